"""The node's side of one slot's child process: start it, hand it bodies, watch it, end it.

One child serves one slot, so a body that takes its process down (a crash in C, out of memory, ``os._exit``)
fails its own attempt and no other (specification, section 5). `ChildProcess.run` is called by the slot's thread;
all reading and writing of the socket happens there. Every other thread only signals.
"""

import contextlib
import logging
import os
import select
import signal
import site
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from typing import Final, TypeAlias

from ratchet.engine.child_log import explicit_levels, restore_record
from ratchet.engine.child_wire import (
    BodyReply,
    BodyRequest,
    ChildSetup,
    Died,
    FrameReader,
    Message,
    Raised,
    Refused,
    Returned,
    WireError,
    encode_frame,
    parse_reply,
    to_message,
)
from ratchet.errors import NotRunning

__all__ = ["BodyReply", "BodyRequest", "ChildProcess", "Died", "Raised", "Refused", "Returned"]

_Process: TypeAlias = "subprocess.Popen[bytes]"
_log: Final = logging.getLogger("ratchet.engine")
_PACKAGE_ROOT: Final = str(Path(__file__).resolve().parents[2])
_RECEIVE: Final = 256 * 1024
_READABLE: Final = select.POLLIN | select.POLLHUP | select.POLLERR
# Where the system cannot announce a process's end on a descriptor it is looked for this often.
_LOOK_SECONDS: Final = 0.1
# A child that has closed its socket is given this long to end by itself.
_EXIT_PATIENCE: Final = 2.0
# SIGKILL works at once, unless the kernel is busy for the process (a dead network file system, a huge core dump).
_KILL_PATIENCE: Final = 10.0


class ChildProcess:
    """The child process of one slot. It starts with its first body and again after it died.

    Args:
        allow: module prefixes that the child may import, as the target policy has them.
        sys_path: the child's import path; by default the node's at the moment the child starts.
        env: the child's whole environment; by default the node's.
        result_limit: largest encoded result, in bytes, that is sent back (specification, section 5: 64 KiB).
        start_seconds: how long a child may take until it is ready before it is given up.
    """

    def __init__(
        self,
        *,
        allow: Sequence[str],
        sys_path: Sequence[str] | None = None,
        env: Mapping[str, str] | None = None,
        result_limit: int = 64 * 1024,
        start_seconds: float = 60.0,
    ) -> None:
        self._allow = tuple(allow)
        self._sys_path = None if sys_path is None else tuple(sys_path)
        self._env = None if env is None else dict(env)
        self._result_limit = result_limit
        self._start_seconds = start_seconds
        self._lock = threading.Lock()  # guards what follows; never held while waiting
        self._live: _Live | None = None
        self._request: BodyRequest | None = None
        self._cancels: list[tuple[str, bool]] = []
        self._killed = False
        # What was asked of a request before `run` got it: (request, reason or None to kill it, cancel its task).
        self._early: list[tuple[BodyRequest, str | None, bool]] = []
        self._closed = False
        self._number = 0
        _children.add(self)

    @property
    def pid(self) -> int | None:
        """The process id of the living child; None if there is none."""
        with self._lock:
            return None if self._live is None or self._live.has_ended else self._live.process.pid

    def run(self, request: BodyRequest, *, on_log: Callable[[logging.LogRecord], None]) -> BodyReply:
        """Run one body and wait for its end. A child that dies is an answer, `Died`, never an exception.

        Args:
            request: the attempt.
            on_log: gets every log record of the child, on this thread, before the answer.

        Raises:
            NotRunning: after `close`, or while another thread is in `run`.
        """
        made = time.monotonic()
        with self._lock:
            if self._closed:
                raise NotRunning("this child process was closed")
            if self._request is not None:
                raise NotRunning("a child process runs one body at a time")
            early = [(reason, cancel) for one, reason, cancel in self._early if one is request]
            self._early.clear()
            self._cancels = [(reason, cancel) for reason, cancel in early if reason is not None]
            if len(self._cancels) < len(early):
                return Died(
                    description="it was to be killed before it was handed over", killed=True, started=False
                )
            self._request, self._killed = request, False
        try:
            # A child that was killed while idle is noticed when it does not take the job: then a fresh one gets it.
            reply = self._converse(request, made, on_log)
            if isinstance(reply, Died) and not (reply.started or reply.killed):
                reply = self._converse(request, made, on_log)
            return reply
        finally:
            gone = self._leave()
            if gone is not None:
                self._dispose(gone)

    def request_cancellation(
        self, reason: str, *, cancel_task: bool = False, request: BodyRequest | None = None
    ) -> None:
        """Ask the running body to stop; from any thread, never blocks, does nothing when none is running.

        Args:
            reason: ``timeout``, ``canceled`` (which cancels the task of an async body, too), ``shutdown`` or
                ``claim_lost``.
            cancel_task: cancel the task of an async body whatever the reason.
            request: do it only if this very request is the one that runs, or the next.
        """
        with self._lock:
            if not self._is_running(request):
                if request is not None:
                    self._early.append((request, reason, cancel_task))
                return
            self._cancels.append((reason, cancel_task))
            live = self._live
            if live is not None:
                live.wake()

    def kill(self, *, request: BodyRequest | None = None) -> None:
        """End the child and what it started in its process group with SIGKILL; from any thread, never blocks.

        The `run` that is under way answers `Died` with `killed` set; without one an idle child is ended.

        Args:
            request: do it only if this very request is the one that runs, or the next, so that a late decision
                about one body cannot hit another.
        """
        with self._lock:
            if request is not None and not self._is_running(request):
                self._early.append((request, None, False))
                return
            self._killed = True
            if self._live is not None:
                self._live.kill()

    def close(self) -> None:
        """Let the child go: an idle one ends by itself (within two seconds, else it is killed), a busy one is killed.

        Idempotent.
        """
        with self._lock:
            self._closed = True
            live, busy = self._live, self._request is not None
            if live is not None and busy:
                self._killed = True
                live.kill()  # the thread in `run` disposes of it
        if live is not None and not busy:
            self._dispose(live)

    def _leave(self) -> "_Live | None":
        """End `run`; answers the child if `close` came meanwhile and left it to this thread."""
        with self._lock:
            self._request = None
            return self._live if self._closed else None

    # -- one conversation ------------------------------------------------------------------------

    def _is_running(self, request: BodyRequest | None) -> bool:
        return self._request is not None and (request is None or request is self._request)

    def _converse(
        self, request: BodyRequest, made: float, on_log: Callable[[logging.LogRecord], None]
    ) -> BodyReply:
        """Send the request to a living child and follow it until it has answered or died."""
        try:
            live = self._ensure_child()
        except (OSError, RuntimeError) as problem:
            # No memory, no process or descriptor left, or an interpreter that is shutting down.
            description = f"its process could not be started: {type(problem).__name__}: {problem}"
            return Died(description=description, started=False)
        self._number += 1
        talk = _Talk(number=self._number, request=request, made=made, on_log=on_log)
        reply: BodyReply | None = None
        try:
            while reply is None:
                self._write(live, talk)
                if not live.wait(self._patience(live)):
                    if not live.is_ready and time.monotonic() - live.started_at > self._start_seconds:
                        live.kill()
                        talk.problem = f"it was not ready within {self._start_seconds:g} s"
                    continue
                reply = self._read(live, talk)
        except WireError as problem:
            talk.problem = str(problem)
        if reply is not None and not isinstance(reply, Died):
            return reply
        return self._bury(live, talk)

    def _patience(self, live: "_Live") -> float | None:
        return None if live.is_ready and live.announces_end else _LOOK_SECONDS

    def _write(self, live: "_Live", talk: "_Talk") -> None:
        if live.is_ready and not talk.sent:
            talk.sent = True
            message = to_message(talk.request)
            left = talk.request.timeout_seconds_left
            if left is not None:  # starting the child took its share of the attempt's time
                message["timeout_seconds_left"] = left - (time.monotonic() - talk.made)
            live.outgoing += encode_frame({"kind": "run", "n": talk.number, "request": message})
        if talk.sent:
            with self._lock:
                cancels, self._cancels = self._cancels, []
            for reason, cancel_task in cancels:
                message = {"kind": "cancel", "n": talk.number, "reason": reason, "cancel_task": cancel_task}
                live.outgoing += encode_frame(message)
        live.flush()

    def _read(self, live: "_Live", talk: "_Talk") -> BodyReply | None:
        ended = live.has_ended  # asked first: what such a child has sent is in the socket by now
        for message in live.receive(drain=ended):
            match message.get("kind"):
                case "log":
                    self._deliver(message["record"], talk)
                case "ready":
                    live.is_ready = True
                case "started":
                    talk.started = True
                case kind if message.get("n") == talk.number:
                    return parse_reply(kind, message["reply"])
        return Died(description="") if ended or live.is_closed else None

    @staticmethod
    def _deliver(record: Message, talk: "_Talk") -> None:
        try:
            talk.on_log(restore_record(record))
        except Exception as problem:  # noqa: BLE001 - a log handler's failure is no failure of the job
            _log.warning("a log record of job %s was lost: %s", talk.request.job_id, type(problem).__name__)

    def _bury(self, live: "_Live", talk: "_Talk") -> Died:
        """The child is dead or beyond talking to: make sure of it and say how it ended."""
        self._dispose(live)
        with self._lock:
            killed = self._killed
        description = talk.problem or _describe(live.process.returncode, killed=killed)
        return Died(description=description, killed=killed, started=talk.started)

    # -- the process -----------------------------------------------------------------------------

    def _ensure_child(self) -> "_Live":
        with self._lock:
            live = self._live
        if live is not None and not live.has_ended:
            return live
        if live is not None:
            self._dispose(live)
        live = self._start()
        with self._lock:
            self._live = live
            if self._killed:  # asked for while there was nobody to kill
                live.kill()
        return live

    def _start(self) -> "_Live":
        environment = _environment(os.environ if self._env is None else self._env)
        python_path = environment.get("PYTHONPATH")
        if _PACKAGE_ROOT not in _site_folders():
            # Without this a checkout would not be found before the node's import path has arrived. It goes last.
            known = [python_path] if python_path else []
            environment["PYTHONPATH"] = os.pathsep.join([*known, _PACKAGE_ROOT])
        ours, theirs = socket.socketpair()
        try:
            command = [
                sys.executable,
                *_interpreter_options(),
                "-P",  # the working directory must not shadow the standard library
                "-m",
                "ratchet.engine.child",
                str(theirs.fileno()),
                str(os.getpid()),
            ]
            process = _spawner.start(command, environment, theirs.fileno())
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        live = _Live(process, ours)
        path = sys.path if self._sys_path is None else self._sys_path
        setup = ChildSetup(
            allow=self._allow,
            sys_path=[entry or os.getcwd() for entry in path],  # noqa: PTH109 - as sys.path spells it
            result_limit=self._result_limit,
            log_levels=explicit_levels(),
            python_path=python_path,
        )
        live.outgoing += encode_frame({"kind": "setup", "setup": to_message(setup)})
        return live

    def _dispose(self, live: "_Live") -> None:
        with self._lock:
            if self._live is live:
                self._live = None
        live.end()

    def _forget_after_fork(self) -> None:
        # A fork of the node must not hold the socket open: the child would then outlive the node.
        self._lock = threading.Lock()
        live, self._live, self._request, self._cancels = self._live, None, None, []
        if live is not None:
            live.process.returncode = 0  # it is not this process's child: nothing to wait for or to warn of
            live.let_go()


@dataclass(slots=True)
class _Talk:
    """One request on one child."""

    number: int
    request: BodyRequest
    made: float
    on_log: Callable[[logging.LogRecord], None] = field(repr=False)
    sent: bool = False
    started: bool = False
    problem: str | None = None


class _Live:
    """A started child: its process, the node's end of the socket, and what to wait on."""

    def __init__(self, process: _Process, connection: socket.socket) -> None:
        self.process = process
        self.outgoing = bytearray()
        self.is_ready = False
        self.is_closed = False  # the child's end of the socket
        self.started_at = time.monotonic()
        connection.settimeout(0)
        self._connection = connection
        self._frames = FrameReader()
        self._reaping = threading.Lock()  # a pid is signalled only while it is certainly still ours
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)
        self._pidfd = _open_pidfd(process.pid)
        self._descriptors = [self._wake_read, self._wake_write]
        self._descriptors += [] if self._pidfd is None else [self._pidfd]
        self._poll = select.poll()
        self._poll.register(self._wake_read, select.POLLIN)
        self._poll.register(connection, select.POLLIN)
        if self._pidfd is not None:
            self._poll.register(self._pidfd, select.POLLIN)

    @property
    def announces_end(self) -> bool:
        """True if `wait` ends when the process does, though a copy of it keeps the socket open."""
        return self._pidfd is not None

    @property
    def has_ended(self) -> bool:
        """True once the process has ended."""
        with self._reaping:
            return self.process.poll() is not None

    def wait(self, seconds: float | None) -> bool:
        """Wait until the child sends or ends, or a cancellation is to be sent; False: nothing to read."""
        ready = self._poll.poll(None if seconds is None else seconds * 1000)
        if not ready:
            return not self.announces_end and self.has_ended
        for descriptor, _ in ready:
            if descriptor == self._wake_read:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._wake_read, 4096)
        return any(descriptor != self._wake_read and events & _READABLE for descriptor, events in ready)

    def wake(self) -> None:
        """End the `wait` of the thread in `run`."""
        with contextlib.suppress(OSError):
            os.write(self._wake_write, b"!")

    def flush(self) -> None:
        """Send what the socket takes and have `wait` end when it takes more."""
        if self.outgoing:
            try:
                del self.outgoing[: self._connection.send(self.outgoing)]
            except BlockingIOError:
                pass
            except OSError:
                self.outgoing.clear()  # the child is dying; its end is noticed by `wait`
        events = select.POLLIN | select.POLLOUT if self.outgoing else select.POLLIN
        self._poll.modify(self._connection, events)

    def receive(self, *, drain: bool) -> list[Message]:
        """The messages that have arrived whole; with `drain` certainly all that were ever sent."""
        messages: list[Message] = []
        while not self.is_closed:
            try:
                data = self._connection.recv(_RECEIVE)
            except BlockingIOError:
                break
            except ConnectionResetError:  # it died with our frames unread
                data = b""
            self.is_closed = not data
            messages += self._frames.feed(data)
            if len(data) < _RECEIVE and not drain:
                break
        return messages

    def kill(self) -> None:
        """SIGKILL to the process and to its group, unless it has ended."""
        with self._reaping:
            if self.process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self.process.pid, signal.SIGKILL)

    def end(self) -> None:
        """Close the socket, which ends the child, and wait until it is gone; a stubborn one is killed."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        if not self._await_end(_EXIT_PATIENCE):
            self.kill()
            self._await_end(_KILL_PATIENCE)
        self.let_go()

    def _await_end(self, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while not self.has_ended:
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            if self._pidfd is None:
                time.sleep(min(left, 0.01))
            else:
                select.select([self._pidfd], [], [], left)
        return True

    def let_go(self) -> None:
        """Close every descriptor; the process is not touched. Idempotent."""
        descriptors, self._descriptors = self._descriptors, []
        for descriptor in descriptors:
            with contextlib.suppress(OSError):
                os.close(descriptor)
        self._connection.close()


class _Spawner:
    """Starts children from one thread that lives as long as the process.

    A child asks the kernel to be killed with its parent, and to Linux the parent is the *thread* that started it:
    a slot's thread may be retired while its child goes on.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._orders: SimpleQueue[_Order] | None = None

    def start(self, command: Sequence[str], environment: Mapping[str, str], descriptor: int) -> _Process:
        """Start a child that inherits `descriptor`; raises what starting it raises."""
        order = _Order(command, environment, descriptor)
        with self._lock:
            if self._orders is None:
                orders: SimpleQueue[_Order] = SimpleQueue()
                threading.Thread(
                    target=self._work, args=(orders,), name="ratchet-spawner", daemon=True
                ).start()
                self._orders = orders
            self._orders.put(order)
        made = order.made.get()
        if isinstance(made, BaseException):
            raise made
        return made

    @staticmethod
    def _work(orders: "SimpleQueue[_Order]") -> None:
        while True:
            order = orders.get()
            try:
                order.made.put(
                    subprocess.Popen(
                        order.command,
                        env=order.environment,
                        stdin=subprocess.DEVNULL,
                        pass_fds=(order.descriptor,),
                        start_new_session=True,  # a terminal's signals go to the node alone
                    )
                )
            except BaseException as problem:  # noqa: BLE001 - raised again where the child is wanted
                order.made.put(problem)


class _Order:
    """One child that is to be started."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], descriptor: int) -> None:
        self.command, self.environment, self.descriptor = command, environment, descriptor
        self.made: SimpleQueue[_Process | BaseException] = SimpleQueue()


def _open_pidfd(pid: int) -> int | None:
    """A descriptor that becomes readable when the process ends; None where the system has none."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):  # an old kernel, or a sandbox that forbids it
            return os.pidfd_open(pid)
    return None


def _site_folders() -> list[str]:
    """Where the interpreter finds installed packages without being told."""
    return [*site.getsitepackages(), site.getusersitepackages()]


def _environment(given: Mapping[str, str]) -> dict[str, str]:
    environment = dict(given)
    if sys.flags.ignore_environment:  # the node was started with -E or -I
        environment = {name: text for name, text in environment.items() if not name.startswith("PYTHON")}
    return environment


def _interpreter_options() -> list[str]:
    """The options of this interpreter that change how code behaves, for the child's command line."""
    options = ["-" + "O" * sys.flags.optimize] if sys.flags.optimize else []
    options += ["-B"] if sys.flags.dont_write_bytecode else []
    options += ["-s"] if sys.flags.no_user_site else []
    options += [f"-W{option}" for option in sys.warnoptions]
    options += [
        f"-X{name}" if value is True else f"-X{name}={value}" for name, value in sys._xoptions.items()
    ]
    return options


def _describe(status: int | None, *, killed: bool) -> str:
    if status is None:
        return "its process could not be ended"
    if status >= 0:
        return f"its process ended with exit status {status} before it answered"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    if killed:
        return f"its process was killed by this node ({name})"
    if -status == signal.SIGKILL:
        return f"its process was killed ({name}), not by this node: perhaps the system ran out of memory"
    return f"its process crashed ({name})"


_spawner = _Spawner()
_children: "weakref.WeakSet[ChildProcess]" = weakref.WeakSet()


def _after_fork_in_child() -> None:
    global _spawner
    _spawner = _Spawner()
    for child in list(_children):
        child._forget_after_fork()


os.register_at_fork(after_in_child=_after_fork_in_child)
