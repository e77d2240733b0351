"""A TCP proxy for MongoDB messages that loses connections, answers in the server's place, or does not answer."""

from __future__ import annotations

import random
import socket
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import bson

Document: TypeAlias = dict[str, Any]

_HEADER: Final = struct.Struct("<iiii")
_FLAGS: Final = struct.Struct("<I")
_OP_MSG: Final = 2013
_MORE_TO_COME: Final = 2
_HELLOS: Final = frozenset({"hello", "isMaster", "ismaster"})


@dataclass(frozen=True, slots=True)
class Fault:
    """What becomes of one command and its reply; as it stands, the connection is lost before the server.

    Attributes:
        applied: the server carries the command out before anything goes wrong.
        reply: what the client is told in the server's place.
        extra: fields that are added to the server's own reply, which `applied` then goes with.
        silent: nothing is told, and the connection stays open.
    """

    applied: bool = False
    reply: Document | None = None
    extra: Document | None = None
    silent: bool = False


class LosingProxy:
    """Forwards MongoDB messages to `port` of this host.

    Args:
        port: of the server.
        seed: of its dice.

    Attributes:
        loss: share of messages whose connection is dropped, half of them before, half after the server.
        delay: seconds that are added to each round trip.
        choose: says for a command (its body; the first key names it) what is done to it; None for nothing.
            Handshakes and monitoring are never asked about.
        dropped: how many were lost by `loss`, before and after the server.
        answered: how many faults of `choose` there were.
    """

    def __init__(self, port: int, *, seed: int = 7) -> None:
        self.loss = 0.0
        self.delay = 0.0
        self.choose: Callable[[Document], Fault | None] | None = None
        self.dropped = [0, 0]
        self.answered = 0
        self._target = port
        self._dice = random.Random(seed)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._closed = False
        threading.Thread(target=self._accept, name="proxy", daemon=True).start()

    def close(self) -> None:
        """Take no more connections; those there are end."""
        self._closed = True
        self._listener.close()

    def _accept(self) -> None:
        while not self._closed:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), name="proxy-connection", daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client:
            try:
                server = socket.create_connection(("127.0.0.1", self._target))
            except OSError:
                return
            with server:
                try:
                    while not self._closed and self._exchange(client, server):
                        pass
                except OSError:
                    return

    def _exchange(self, client: socket.socket, server: socket.socket) -> bool:
        """One request and its reply; False: the connection is lost."""
        request = _message(client)
        if request is None:
            return False
        body = _body(request)
        fault = self._dropping() if body is not None else None
        if fault is None and body is not None and self.choose is not None:
            fault = self.choose(body)
            self.answered += fault is not None
        if fault is not None and not (fault.applied or fault.extra is not None):
            return _instead(client, request, fault)
        server.sendall(request)
        while (reply := _message(server)) is not None:
            if fault is not None and fault.extra is None:
                return _instead(client, request, fault)
            if fault is not None:
                reply = _encoded(request, {**(_body(reply, any_name=True) or {}), **(fault.extra or {})})
            if self.delay:
                time.sleep(self.delay)
            client.sendall(reply)
            if not _more_to_come(reply):
                return True
        return False

    def _dropping(self) -> Fault | None:
        """The dice of `loss`."""
        if self._dice.random() >= self.loss:
            return None
        applied = self._dice.random() >= 0.5
        self.dropped[applied] += 1
        return Fault(applied=applied)


def _instead(client: socket.socket, request: bytes, fault: Fault) -> bool:
    """Tell the client what the fault says; False: the connection is lost."""
    if fault.silent:
        client.recv(1)  # until the client gives the connection up
    if fault.reply is None:
        return False
    client.sendall(_encoded(request, fault.reply))
    return True


# -- messages -------------------------------------------------------------------------------------


def _body(message: bytes, *, any_name: bool = False) -> Document | None:
    """The command, or the reply, of an OP_MSG; None for handshakes, and for all that has no command of its own."""
    if _HEADER.unpack_from(message)[3] != _OP_MSG:
        return None
    at = _HEADER.size + _FLAGS.size
    while at < len(message):
        kind, (size,) = message[at], struct.unpack_from("<i", message, at + 1)
        if kind == 0:
            found: Document = bson.decode(message[at + 1 : at + 1 + size])
            # A hello of the application itself runs in a session, that of the driver's monitor does not.
            plain = any_name or next(iter(found)) not in _HELLOS or "lsid" in found
            return found if plain else None
        at += 1 + size
    return None


def _more_to_come(message: bytes) -> bool:
    """True if a further reply follows without a request (a monitor's stream)."""
    is_msg = _HEADER.unpack_from(message)[3] == _OP_MSG
    return is_msg and bool(_FLAGS.unpack_from(message, _HEADER.size)[0] & _MORE_TO_COME)


def _encoded(request: bytes, reply: Document) -> bytes:
    """A reply to a request."""
    rest = _FLAGS.pack(0) + b"\0" + bson.encode(reply)
    asked = _HEADER.unpack_from(request)[1]
    return _HEADER.pack(_HEADER.size + len(rest), 0, asked, _OP_MSG) + rest


def _message(source: socket.socket) -> bytes | None:
    """A whole message, or None at the end."""
    head = _exactly(source, _HEADER.size)
    if head is None:
        return None
    body = _exactly(source, _HEADER.unpack(head)[0] - _HEADER.size)
    return None if body is None else head + body


def _exactly(source: socket.socket, size: int) -> bytes | None:
    parts = bytearray()
    while len(parts) < size:
        part = source.recv(size - len(parts))
        if not part:
            return None
        parts += part
    return bytes(parts)
