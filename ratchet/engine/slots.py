"""Slots: threads for sync bodies and for the proxies of child processes, one event loop for async bodies."""

from __future__ import annotations

import contextvars
import logging
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Final

from ratchet.engine.attempt import Attempt, HardStop
from ratchet.spi.executor import ExecutorRefused

if TYPE_CHECKING:
    import asyncio

log = logging.getLogger("ratchet.engine")


RunBody = Callable[[Attempt], None]


class ThreadSlots:
    """Our own daemon threads: a stuck body holds up neither the interpreter's exit nor another job.

    A pool of the standard library is joined at exit, and an asynchronous exception that arrives late
    would land in its next job; here a thread that was hit is retired (section 5).

    Args:
        name: the executor's word.
        slots: how many.
        run: executes one attempt, gates to outcome; never raises but `HardStop`.
        freed: called on the slot's thread when its body has ended.
    """

    def __init__(self, name: str, slots: int, run: RunBody, freed: Callable[[Attempt], None]) -> None:
        self.name, self.slots = name, slots
        self._run, self._freed = run, freed
        self._queue: SimpleQueue[Attempt | None] = SimpleQueue()
        self._running: dict[int, Attempt] = {}
        self._threads = 0
        self._lock = threading.Lock()
        self._closed = False

    def start(self) -> None:
        """Nothing yet: threads are made as attempts arrive, so that an idle node stays small."""

    def busy(self) -> int:
        """Bodies that have begun and not ended."""
        return len(self._running)

    def waiting(self) -> int:
        """Attempts that have not begun."""
        return self._queue.qsize()

    def running(self) -> list[Attempt]:
        """The attempts whose bodies have begun and not ended."""
        return list(self._running.values())

    def submit(self, attempt: Attempt) -> None:
        """Queue it for the next free slot."""
        if self._closed or not self.slots:
            raise ExecutorRefused(f"executor {self.name} takes no work")
        self._queue.put(attempt)
        if self._threads < self.slots:  # guessing whether one is idle would let a job wait behind a long one
            self._spawn()

    def _spawn(self) -> None:
        with self._lock:
            if self._closed or self._threads >= self.slots:
                return
            self._threads += 1
        threading.Thread(target=self._main, name=f"ratchet-{self.name}", daemon=True).start()

    def withdraw(self) -> list[Any]:
        """Every attempt that has not begun, oldest first."""
        found: list[Attempt] = []
        with suppress(Empty):
            while True:
                attempt = self._queue.get_nowait()
                if attempt is not None:
                    found.append(attempt)
        return found

    def _main(self) -> None:
        ident = threading.get_ident()
        get, running, run, freed = self._queue.get, self._running, self._run, self._freed
        hit = False
        attempt: Attempt | None = None
        while not self._closed:
            attempt = get()
            if attempt is None:
                break
            running[ident] = attempt
            try:
                run(attempt)
            except HardStop:
                hit = True
            except BaseException as error:  # noqa: BLE001 - a slot outlives whatever it meets
                log.error("internal error in a %s slot: %s", self.name, type(error).__name__)
            hit = hit or attempt.hard_stopped
            attempt.ended = True
            running.pop(ident, None)
            if hit:
                break
            freed(attempt)
            attempt = None
        with self._lock:
            self._threads -= 1
        if hit and attempt is not None:
            freed(attempt)
            if self._queue.qsize():
                self._spawn()

    def stop_hard(self, attempt: Attempt) -> None:
        """Raise `HardStop` in the body's thread; it cannot reach a blocking C call."""
        guard = attempt.guard
        if guard is None or not guard.acquire(timeout=1.0):
            return
        try:
            if attempt.thread_id is not None:
                attempt.hard_stopped = True
                _raise_in(attempt.thread_id)
                if attempt.interrupt is not None:
                    attempt.interrupt()
        finally:
            guard.release()

    def close(self) -> None:
        """Let idle threads end; a thread in a body ends with it."""
        self._closed = True
        for _ in range(self._threads + 1):
            self._queue.put(None)


def call_in_thread(attempt: Attempt, call: Callable[[], Any]) -> Any:
    """Call a sync body so that `ThreadSlots.stop_hard` can reach exactly this frame.

    Whoever holds the attempt's guard knows whether the body is still running: the exception is sent
    only then, and once it was sent this waits for it to arrive, so that it cannot hit anything else.
    """
    guard = attempt.guard = threading.Lock()
    attempt.thread_id = threading.get_ident()
    try:
        # Whoever took the decision before this frame could be reached has stopped nothing: do not begin.
        return None if attempt.is_decided else call()
    finally:
        with guard:
            attempt.thread_id = None
        if attempt.hard_stopped:
            _await_hard_stop()


def _await_hard_stop() -> None:
    """Give a sent `HardStop` the few bytecodes it needs to arrive; one that has arrived already passes."""
    for _ in range(1000):
        pass


def _raise_in(thread_id: int) -> None:
    """Have the interpreter raise `HardStop` in a thread at its next bytecode."""
    import ctypes  # only when a body has overrun: 2 ms that a worker's start can do without

    raise_in = ctypes.pythonapi.PyThreadState_SetAsyncExc
    raise_in.argtypes = (ctypes.c_ulong, ctypes.py_object)
    raise_in(thread_id, HardStop)


class ProcessSlots(ThreadSlots):
    """Proxy threads, one child process each; a body that overruns is killed, its proxy lives on."""

    def stop_hard(self, attempt: Attempt) -> None:
        """Kill the child that runs this body."""
        if attempt.interrupt is not None:
            attempt.interrupt()


class LoopSlots:
    """Async bodies, all on one event loop, which lives as long as the node (F52: loop affinity).

    Args:
        slots: how many at once.
        gate: runs the gates and the decoding on a helper thread; answers the call, or None if ended.
        ended: called on the loop with (attempt, result, error, whether a cancel was ours).
        freed: called when a body has ended.
        loop: the application's own loop, if it hands one over; else one is made on its own thread.
    """

    name = "async"

    def __init__(
        self,
        slots: int,
        gate: Callable[[Attempt], Callable[[], Awaitable[Any]] | None],
        ended: Callable[[Attempt, object, BaseException | None, bool], None],
        freed: Callable[[Attempt], None],
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self.slots = slots
        self._gate, self._ended, self._freed = gate, ended, freed
        self._own = loop is None
        self._loop = loop
        self._queue: SimpleQueue[Attempt | None] = SimpleQueue()
        self._room = threading.Semaphore(slots)
        self._running: dict[Attempt, asyncio.Task[None] | None] = {}
        self._cancels: set[Attempt] = set()
        self._held: Attempt | None = None
        self._lock = threading.Lock()
        self._closed = False
        self._started = False
        self._thread: threading.Thread | None = None
        self._asked: float | None = None

    def start(self) -> None:
        """Nothing yet: the loop is made with the first attempt."""

    def _start(self) -> None:
        with self._lock:
            if self._started:
                return
            self._started = True
            if self._loop is None:
                import asyncio  # with the first async body: a node without any starts sooner

                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=self._serve, args=(self._loop,), name="ratchet-loop", daemon=True
                )
                self._thread.start()
            threading.Thread(target=self._dispatch, name="ratchet-loop-gate", daemon=True).start()

    def _serve(self, loop: asyncio.AbstractEventLoop) -> None:
        import asyncio

        asyncio.set_event_loop(loop)
        try:
            while not self._closed:
                try:
                    loop.run_forever()
                except BaseException as error:  # noqa: BLE001 - SystemExit of a task that a job left behind
                    log.error("a task left behind by a job raised %s on the loop", type(error).__name__)
        finally:
            _end_tasks(loop)
            with suppress(Exception):
                loop.run_until_complete(loop.shutdown_asyncgens())
            loop.close()

    def call(self, make: Callable[[], Awaitable[Any]], attempt: Attempt | None = None) -> Any:
        """Await on the loop, from another thread, what `make` gives there; answer or raise as it does.

        For what is async and has no slot here: a callback, or the body of a job that was stored for threads.
        On a loop of its own it could not use what the jobs have bound to this one.

        Args:
            make: called on the loop, in the caller's context.
            attempt: whose hard stop cancels it.
        """
        import asyncio

        self._start()
        if self._loop is None:
            raise RuntimeError("no loop")

        async def guarded() -> tuple[Any, BaseException | None]:
            try:
                return await make(), None
            except BaseException as error:  # noqa: BLE001 - SystemExit would end the loop; the caller raises it
                return None, error

        future = asyncio.run_coroutine_threadsafe(guarded(), self._loop)
        if attempt is not None:
            attempt.interrupt = lambda: (future.cancel(), None)[1]
        try:
            answer, error = future.result()
        finally:
            if attempt is not None:
                attempt.interrupt = None
        if error is not None:
            try:
                raise error
            finally:
                del error, future  # the error's frames lead here: without this a cycle would keep them
        return answer

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None:
        """The loop, once there is one."""
        return self._loop

    def busy(self) -> int:
        """Bodies that have begun and not ended."""
        return len(self._running)

    def waiting(self) -> int:
        """Attempts that have not begun."""
        return self._queue.qsize() + (self._held is not None)

    def running(self) -> list[Attempt]:
        """The attempts whose bodies have begun and not ended."""
        return list(self._running)

    def has_stalled(self, now: float) -> bool:
        """True if the loop has not answered since before the deadline of everything on it passed.

        Asks it, by the way: to be called again and again.
        """
        loop, running = self._loop, self.running()
        if loop is None or not running:
            self._asked = None
            return False
        if self._asked is None:
            self._asked = now
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(self._answer)
            return False
        longest = max((each.deadline for each in running if each.deadline is not None), default=now)
        return now > longest + 1.0 and now > self._asked + 1.0

    def _answer(self) -> None:
        self._asked = None

    def submit(self, attempt: Attempt) -> None:
        """Queue it for the loop."""
        if self._closed or not self.slots:
            raise ExecutorRefused("executor async takes no work")
        if not self._started:
            self._start()
        self._queue.put(attempt)

    def withdraw(self) -> list[Any]:
        """Every attempt that has not begun, oldest first."""
        found: list[Attempt] = []
        with self._lock:
            if self._held is not None:
                found.append(self._held)
                self._held = None
        with suppress(Empty):
            while True:
                attempt = self._queue.get_nowait()
                if attempt is not None:
                    found.append(attempt)
        return found

    def _dispatch(self) -> None:
        while (attempt := self._queue.get()) is not None:
            self._dispatch_one(attempt)
            del attempt  # an idle node keeps nothing of its last job

    def _dispatch_one(self, attempt: Attempt) -> None:
        with self._lock:
            self._held = attempt
        self._room.acquire()
        with self._lock:
            if self._held is not attempt:  # withdrawn while it waited for room
                self._room.release()
                return
            self._held = None
            self._running[attempt] = None
        call = self._gate(attempt)
        loop = self._loop
        if call is None or loop is None:
            self._done(attempt)
            return
        try:
            loop.call_soon_threadsafe(self._begin, attempt, call)
        except RuntimeError as error:  # the application closed its loop
            self._end(attempt, None, error, False)  # noqa: FBT003

    def _begin(self, attempt: Attempt, call: Callable[[], Awaitable[Any]]) -> None:
        loop = self._loop
        if loop is None:
            raise RuntimeError("no loop")
        if attempt.is_decided:  # whoever took the decision has found no task to cancel
            self._done(attempt)
            return
        # An empty context of its own: nothing of one job's context is visible to another.
        task = loop.create_task(self._body(attempt, call), context=contextvars.Context())
        self._running[attempt] = task
        task.add_done_callback(lambda done: self._lost(attempt, done))
        context = attempt.context
        if context is not None:
            context.on_cancellation(lambda reason: self._on_request(attempt, reason))

    async def _body(self, attempt: Attempt, call: Callable[[], Awaitable[Any]]) -> None:
        from asyncio import CancelledError

        result: object = None
        try:
            result = await call()
        except BaseException as error:  # noqa: BLE001 - SystemExit and the like end the attempt, not the loop
            ours = attempt in self._cancels and issubclass(type(error), CancelledError)
            self._end_aside(attempt, error, ours)
        else:
            self._end(attempt, result, None, False)  # noqa: FBT003

    def _lost(self, attempt: Attempt, task: asyncio.Task[None]) -> None:
        """The task has ended; if `_body` never ran, since somebody cancelled it before its first step, this ends it."""
        if not task.cancelled() or attempt not in self._running:
            return
        from asyncio import CancelledError

        self._end_aside(attempt, CancelledError("cancelled before its first step"), attempt in self._cancels)

    def _end_aside(self, attempt: Attempt, error: BaseException, ours: bool) -> None:
        """Making text of an error runs the job's code, which may block: not on the loop.

        So many threads at most as there are slots, since the slot is held until the outcome is handed over.
        """
        try:
            threading.Thread(
                target=self._end, args=(attempt, None, error, ours), name="ratchet-loop-error", daemon=True
            ).start()
        except RuntimeError:  # the process can make no more threads: late is better than never
            self._end(attempt, None, error, ours)

    def _end(self, attempt: Attempt, result: object, error: BaseException | None, ours: bool) -> None:
        try:
            self._ended(attempt, result, error, ours)
        finally:
            self._done(attempt)

    def _on_request(self, attempt: Attempt, reason: str) -> None:
        if reason != "timeout":
            self._cancel(attempt)

    def _cancel(self, attempt: Attempt) -> None:
        loop = self._loop
        if loop is None:
            return

        def cancel() -> None:
            task = self._running.get(attempt)
            if task is not None and not task.done():
                self._cancels.add(attempt)
                task.cancel()

        with suppress(RuntimeError):  # the loop is closed: nothing runs on it any more
            loop.call_soon_threadsafe(cancel)

    def stop_hard(self, attempt: Attempt) -> None:
        """Cancel the body's task."""
        attempt.hard_stopped = True
        self._cancel(attempt)

    def _done(self, attempt: Attempt) -> None:
        attempt.ended = True
        self._running.pop(attempt, None)
        self._cancels.discard(attempt)
        self._room.release()
        self._freed(attempt)

    def close(self) -> None:
        """End the helper thread and our own loop with what is left on it."""
        self._closed = True
        self._queue.put(None)
        loop = self._loop
        if self._own and loop is not None:
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(loop.stop)
            if self._thread is not None and self._thread is not threading.current_thread():
                # What jobs left on it gets its end before the interpreter's; a loop that is blocked does not.
                self._thread.join(_BLOCKED_PATIENCE if self._running else _LEFTOVER_PATIENCE + 0.5)


_LEFTOVER_PATIENCE: Final = 2.0
_BLOCKED_PATIENCE: Final = 0.2


def _end_tasks(loop: asyncio.AbstractEventLoop) -> None:
    """Cancel what jobs left behind on the loop, and wait for it, so that nothing is destroyed pending."""
    import asyncio

    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    if tasks:
        with suppress(BaseException):  # a task may answer its cancellation with SystemExit
            loop.run_until_complete(asyncio.wait(tasks, timeout=_LEFTOVER_PATIENCE))
