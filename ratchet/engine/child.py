"""The process that runs the bodies of one slot: ``python -m ratchet.engine.child <socket> <node's pid>``.

It is started as a module, so the application's ``__main__`` is not run again, and imports what targets and
payload classes the policy allows and nothing else of the application (specification, section 5). The main thread
runs bodies, one after another, as in any program; a reader thread receives requests and cancellations meanwhile.

It lives exactly as long as its node: it ignores the signals that a terminal or a service manager sends to the
whole group (the node decides what they mean) and ends when the node's end of the socket closes or, where the
system can do that, at the moment the node's process dies.

This is a program with a composition root of its own, which is why it may name the shipped defaults.
"""

import contextlib
import ctypes
import os
import signal
import socket
import sys
import threading
from queue import SimpleQueue
from types import FrameType
from typing import Final

from ratchet.engine.child_body import Attempt, BodyRunner
from ratchet.engine.child_log import forward_logging
from ratchet.engine.child_wire import (
    BodyRequest,
    FrameReader,
    Message,
    encode_frame,
    parse_request,
    parse_setup,
    to_message,
)

_PR_SET_PDEATHSIG: Final = 1
_RECEIVE: Final = 256 * 1024
# How long interpreter exit may take (atexit functions, threads of the jobs' code) after the node has let go.
_EXIT_PATIENCE: Final = 1.0


class NodeChannel:
    """The child's end of the socket. Sending is safe from any thread, and impossible in a fork of the child."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        os.register_at_fork(after_in_child=self._close_after_fork)

    def send(self, message: Message) -> None:
        """Send one message; OSError if the node is gone or this process is a fork of the child."""
        frame = encode_frame(message)
        with self._lock:
            self._connection.sendall(frame)

    def receive(self) -> bytes:
        """What has arrived, waiting for it; empty when the node is gone."""
        try:
            return self._connection.recv(_RECEIVE)
        except OSError:
            return b""

    def _close_after_fork(self) -> None:
        # A process that a body forks must neither speak as the child nor keep the socket open after its death.
        self._lock = threading.Lock()
        self._connection.close()


class Child:
    """The two threads of a child and what they share."""

    def __init__(self, channel: NodeChannel) -> None:
        self._channel = channel
        self._inbox: SimpleQueue[tuple[int, Attempt] | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._number = 0  # of the request that is being worked on; 0 while idle
        self._attempt: Attempt | None = None
        self._runner: BodyRunner | None = None

    def serve(self) -> None:
        """Run bodies until the node lets go."""
        threading.Thread(target=self._listen, name="ratchet-child-reader", daemon=True).start()
        while (work := self._inbox.get()) is not None:
            number, attempt = work
            self._channel.send({"kind": "started", "n": number})
            assert self._runner is not None  # the setup always comes first
            reply = self._runner.run(attempt)
            self._flush_output()
            with self._lock:
                self._number, self._attempt = 0, None
            self._channel.send({"kind": reply.tag, "n": number, "reply": to_message(reply)})
        if self._runner is not None:
            self._runner.close()
            self._flush_output()

    @staticmethod
    def _flush_output() -> None:
        for stream in (sys.stdout, sys.stderr):
            # A body may have closed or replaced them.
            with contextlib.suppress(Exception):
                stream.flush()

    # -- the reader thread -----------------------------------------------------------------------

    def _listen(self) -> None:
        frames = FrameReader()
        try:
            while data := self._channel.receive():
                for message in frames.feed(data):
                    self._handle(message)
        finally:
            self._end()

    def _handle(self, message: Message) -> None:
        match message["kind"]:
            case "run":
                request: BodyRequest = parse_request(message["request"])
                attempt = Attempt(request)
                with self._lock:
                    self._number, self._attempt = message["n"], attempt
                self._inbox.put((message["n"], attempt))
            case "cancel":
                with self._lock:
                    current = self._attempt if self._number == message["n"] else None
                if current is not None:
                    current.request_cancellation(message["reason"], cancel_task=message["cancel_task"])
            case "setup":
                setup = parse_setup(message["setup"])
                sys.path[:] = setup.sys_path
                if setup.python_path is None:
                    os.environ.pop("PYTHONPATH", None)
                else:
                    os.environ["PYTHONPATH"] = setup.python_path
                forward_logging(setup.log_levels, self._send_log)
                self._runner = BodyRunner(allow=setup.allow, result_limit=setup.result_limit)
                self._channel.send({"kind": "ready"})

    def _send_log(self, record: Message) -> bool:
        if self._number == 0:
            return False  # nobody reads between two bodies: a full socket would block the job's thread
        self._channel.send({"kind": "log", "record": record})
        return True

    def _end(self) -> None:
        """The node is gone or has closed the socket: leave, politely only if no body is running."""
        with self._lock:
            busy = self._number != 0
        if not busy:
            self._inbox.put(None)
            threading.Event().wait(_EXIT_PATIENCE)
        os._exit(0)


def _die_with(node: int) -> None:
    """Have the kernel end this process with its node, also while a body holds the interpreter lock in C."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != node:  # it died before the line above
        os._exit(0)


def _leave_signals_to_the_node() -> None:
    ours = (signal.SIGINT, signal.SIGTERM)
    forking = threading.local()

    def leave(_signal: int, _frame: FrameType | None) -> None:
        """Do nothing. Unlike SIG_IGN this is not inherited by programs that a body starts."""

    def hold() -> None:
        # A signal to a new fork waits until the fork is no longer deaf to it.
        forking.mask = signal.pthread_sigmask(signal.SIG_BLOCK, ours)

    def go_on() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, forking.mask)

    def become_stoppable() -> None:
        # What a body forks is no child of the node's.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        go_on()

    for number in ours:
        signal.signal(number, leave)
    os.register_at_fork(before=hold, after_in_parent=go_on, after_in_child=become_stoppable)


def main() -> None:
    """Serve one node until it lets go."""
    descriptor, node = int(sys.argv[1]), int(sys.argv[2])
    del sys.argv[1:]
    _leave_signals_to_the_node()
    _die_with(node)
    os.set_inheritable(descriptor, False)  # noqa: FBT003 - positional only
    try:
        Child(NodeChannel(socket.socket(fileno=descriptor))).serve()
    except OSError:
        os._exit(0)  # the node went away between a body and its answer


if __name__ == "__main__":
    main()
