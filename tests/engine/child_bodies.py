"""Job bodies for the tests of child processes: ordinary ones and every way to take a process down."""

import asyncio
import contextlib
import contextvars
import ctypes
import logging
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn

from ratchet.context import current_job, current_job_or_none
from ratchet.errors import CancellationRequested, DoNotRetry, RetryAfter, do_not_retry

log = logging.getLogger("shop.bodies")
kept: list[Any] = []
colour: contextvars.ContextVar[str] = contextvars.ContextVar("colour", default="none")


def add(one: int, other: int = 10) -> int:
    return one + other


async def add_async(one: int, other: int = 10) -> int:
    await asyncio.sleep(0)
    return one + other


class Till:
    @staticmethod
    def count(coins: tuple[int, ...]) -> int:
        return sum(coins)

    @classmethod
    def name(cls) -> str:
        return cls.__qualname__

    def open(self) -> None: ...


def pid() -> int:
    return os.getpid()


def seen() -> dict[str, object]:
    context = current_job()
    deadline = context.deadline()
    return {
        "id": str(context.id),
        "attempt": context.attempt,
        "claim_seq": context.claim_seq,
        "node": context.node,
        "params": dict(context.params),
        "metadata": dict(context.metadata),
        "deadline": deadline,
        "requested": context.is_cancellation_requested(),
    }


def main_module() -> str:
    return str(sys.modules["__main__"].__file__)


def surroundings() -> dict[str, object]:
    return {
        "argv": sys.argv[1:],
        "stdin": sys.stdin.read(),
        "path": sys.path,
        "python_path": os.environ.get("PYTHONPATH"),
        "thread": threading.current_thread() is threading.main_thread(),
        "session": os.getsid(0) == os.getpid(),
        "pydantic": "pydantic" in sys.modules,
    }


def big(size: int) -> str:
    return "x" * size


def unencodable() -> object:
    return threading.Lock()


# -- errors --------------------------------------------------------------------------------------


class CardDeclined(Exception):
    pass


@do_not_retry("gone for good")
class Gone(Exception):
    pass


class Nasty(Exception):
    def __str__(self) -> str:
        raise KeyboardInterrupt


def fail(how: str) -> NoReturn:
    match how:
        case "plain":
            raise CardDeclined("no money")
        case "permanent":
            raise Gone("really")
        case "ready-made":
            raise DoNotRetry("stop it")
        case "later":
            raise RetryAfter(timedelta(seconds=90))
        case "exit":
            sys.exit("bye")
        case "interrupt":
            raise KeyboardInterrupt
        case "generator":
            raise GeneratorExit
        case "memory":
            kept.append(bytearray(1 << 60))
        case "recursion":
            fail("recursion")
        case "nasty":
            raise Nasty
        case "asyncio":
            raise asyncio.CancelledError
        case "early":
            raise CancellationRequested("before anybody asked")
    raise AssertionError(how)


async def fail_async(how: str) -> None:
    await asyncio.sleep(0)
    fail(how)


# -- processes that go down ----------------------------------------------------------------------


def go_down(how: str) -> None:
    match how:
        case "exit":
            os._exit(3)
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "segfault":
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            ctypes.string_at(0)
        case "abort":
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            os.abort()
        case "close descriptors":
            os.closerange(3, 256)


def scribble() -> None:
    """Writes into every socket of the process, as code does that closes and reuses descriptors wrongly."""
    for entry in list(Path("/proc/self/fd").iterdir()):
        with contextlib.suppress(OSError):
            if str(entry.readlink()).startswith("socket:"):
                os.write(int(entry.name), b"\xff" * 64)
    threading.Event().wait(60)


def say(text: str) -> None:
    print(text)


def forks(path: str) -> str:
    """The fork returns from the body, too; only the child itself may answer."""
    if os.fork() == 0:
        Path(path).write_text(str(os.getpid()), encoding="ascii")
        return "from the fork"
    os.wait()
    return "from the child"


def forks_and_goes_down(path: str) -> None:
    """Leaves a process that inherited everything, in a session of its own, and dies."""
    if (fork := os.fork()) == 0:
        os.setsid()
        threading.Event().wait(60)
        os._exit(0)
    Path(path).write_text(str(fork), encoding="ascii")
    os._exit(4)


def starts_a_program(path: str) -> None:
    program = subprocess.Popen(["sleep", "60"])
    Path(path).write_text(str(program.pid), encoding="ascii")
    program.wait()


def stops_a_program() -> int:
    """SIGTERM must reach programs and forks that a body starts."""
    program = subprocess.Popen(["sleep", "60"])
    program.terminate()
    if (fork := os.fork()) == 0:
        threading.Event().wait(60)
    os.kill(fork, signal.SIGTERM)
    return program.wait(10) + os.waitstatus_to_exitcode(os.waitpid(fork, 0)[1])


# -- waiting and stopping ------------------------------------------------------------------------


def announce(path: str) -> None:
    temporary = Path(f"{path}.new")
    temporary.write_text(str(os.getpid()), encoding="ascii")
    temporary.replace(path)


def wait_for_ever(path: str) -> None:
    announce(path)
    threading.Event().wait(300)


def hold_the_interpreter(path: str) -> None:
    """Blocks in C without letting any other thread of the child run."""
    announce(path)
    ctypes.PyDLL(None).sleep(300)


def stop_itself(path: str) -> None:
    announce(path)
    os.kill(os.getpid(), signal.SIGSTOP)


def wait_for_request(path: str, how: str) -> str:
    announce(path)
    context = current_job()
    deadline = time.monotonic() + 60
    while not context.is_cancellation_requested():
        assert time.monotonic() < deadline
        time.sleep(0.005)
    match how:
        case "raise":
            context.raise_if_cancellation_requested()
        case "own":
            raise CancellationRequested("enough")
        case "wrapped":
            try:
                context.raise_if_cancellation_requested()
            except CancellationRequested as error:
                raise CardDeclined from error
        case "other error":
            raise CardDeclined("it failed just then")
    return str(context.cancellation_reason)


def keep_request(path: str) -> None:
    """Keeps this attempt's CancellationRequested for `raise_kept` in a later attempt."""
    try:
        wait_for_request(path, "raise")
    except CancellationRequested as error:
        kept.append(error)


def raise_kept() -> None:
    raise kept.pop()


async def wait_async(path: str, how: str) -> str:
    announce(path)
    try:
        await asyncio.sleep(60)
    except asyncio.CancelledError:
        if how == "finish":
            return "tidied up"
        raise
    return "slept"


# -- what one job must not leave to the next -----------------------------------------------------


def set_colour(value: str) -> str:
    before = colour.get()
    colour.set(value)
    return before


async def set_colour_async(value: str) -> str:
    return set_colour(value)


async def use_loop() -> bool:
    """True if this is the loop that the first async body of this child ran on (F52)."""
    loop = asyncio.get_running_loop()
    kept.append(loop)
    return kept[0] is loop


async def leave_task() -> None:
    async def linger() -> None:
        try:
            await asyncio.sleep(300)
        finally:
            kept.append("ended")

    kept.clear()
    kept.append(asyncio.create_task(linger()))
    await asyncio.sleep(0)


def what_was_left() -> list[str]:
    return [thing for thing in kept if isinstance(thing, str)]


def context_outside() -> bool:
    """True if a thread that this body starts sees no job, like any thread without a copied context."""
    found: list[object] = []
    thread = threading.Thread(target=lambda: found.append(current_job_or_none()))
    thread.start()
    thread.join()
    return found == [None]


# -- logging -------------------------------------------------------------------------------------


class Unprintable:
    def __str__(self) -> str:
        raise SystemExit("no")

    __repr__ = __str__


def log_things() -> None:
    log.debug("too quiet")
    log.info("order %d of %s", 7, "Ann", extra={"invoice": 42, "thing": object()})
    log.error("bad %s", Unprintable())
    log.error("mismatch %d", "x")
    log.error(Unprintable())
    try:
        fail("plain")
    except CardDeclined:
        log.exception("it failed")
    try:
        raise Nasty
    except Nasty:
        log.exception("it failed badly")


def log_much(lines: int, size: int) -> int:
    for number in range(lines):
        log.warning("%d %s", number, "y" * size)
    return lines


def log_later() -> None:
    """Goes on logging from a thread after the body has returned, until it is told to stop."""
    stop = threading.Event()

    def chatter() -> None:
        while not stop.is_set():
            with contextlib.suppress(ValueError):
                log.warning("z" * 1_000)

    thread = threading.Thread(target=chatter, daemon=True)
    thread.start()
    kept[:] = [stop, thread]


def stop_logging() -> bool:
    stop, thread = kept
    stop.set()
    thread.join(30)
    return not thread.is_alive()
