"""A TCP proxy that loses connections: before a request reaches the server, or after it did and before the reply."""

from __future__ import annotations

import random
import socket
import struct
import threading
import time
from typing import Final

_HEADER: Final = struct.Struct("<i")


class LosingProxy:
    """Forwards MongoDB messages to `port` of this host.

    Args:
        port: of the server.
        seed: of its dice.

    Attributes:
        loss: share of messages whose connection is dropped, half of them before, half after the server.
        delay: seconds that are added to each round trip.
        dropped: how many were, before and after the server.
    """

    def __init__(self, port: int, *, seed: int = 7) -> None:
        self.loss = 0.0
        self.delay = 0.0
        self.dropped = [0, 0]
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
        lost = self._dice.random() < self.loss and b"hello" not in request and b"isMaster" not in request
        before = lost and self._dice.random() < 0.5
        if before:
            self.dropped[0] += 1
            return False
        server.sendall(request)
        reply = _message(server)
        if reply is None:
            return False
        if lost:
            self.dropped[1] += 1
            return False
        if self.delay:
            time.sleep(self.delay)
        client.sendall(reply)
        return True


def _message(source: socket.socket) -> bytes | None:
    """A whole message, or None at the end."""
    head = _exactly(source, 4)
    if head is None:
        return None
    (length,) = _HEADER.unpack(head)
    body = _exactly(source, length - 4)
    return None if body is None else head + body


def _exactly(source: socket.socket, size: int) -> bytes | None:
    parts = bytearray()
    while len(parts) < size:
        part = source.recv(size - len(parts))
        if not part:
            return None
        parts += part
    return bytes(parts)
