"""One body in a child process: find the target, decode the call, run it, tell how it ended. Never raises."""

import contextlib
import contextvars
import functools
import inspect
import logging
import os
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Final, TypeVar
from uuid import UUID

from ratchet.context import JobContext, bind_context
from ratchet.defaults.codec import JsonCodec
from ratchet.defaults.policy import PrefixPolicy
from ratchet.defaults.sanitizer import DefaultErrorSanitizer, safe_sanitize
from ratchet.domain.retry import answers_request, do_not_retry_reason, retry_after
from ratchet.engine.child_wire import BodyRequest, Raised, Refused, Returned
from ratchet.engine.targets import Target, Targets
from ratchet.errors import NewerPayloadFormat, PayloadTooLarge, TargetRefused

if TYPE_CHECKING:
    import asyncio

__all__ = ["Attempt", "BodyRunner"]

_T = TypeVar("_T")
_log: Final = logging.getLogger("ratchet.job")
# How long tasks that a body left behind may take to end after they were cancelled.
_LEFTOVER_PATIENCE: Final = 2.0
# Reasons for which the task of an async body is cancelled as well; all others only set the request.
_CANCELS_TASK: Final = frozenset({"canceled"})


class Attempt:
    """A request on its way through the child, and where cancellations for it arrive, from the reader thread."""

    def __init__(self, request: BodyRequest) -> None:
        self.request = request
        self.task_canceled = False
        left = request.timeout_seconds_left
        self.deadline_monotonic = None if left is None else time.monotonic() + left
        self._lock = threading.Lock()
        self._reasons: list[str] = []
        self._cancel_wanted = False
        self._context: JobContext | None = None
        self._cancel_task: Callable[[], object] | None = None

    def request_cancellation(self, reason: str, *, cancel_task: bool = False) -> None:
        """Ask the body to stop, also before it has begun; an async body's task may be cancelled, too."""
        with self._lock:
            self._reasons.append(reason)
            self._cancel_wanted |= cancel_task or reason in _CANCELS_TASK
            context, cancel = self._context, self._cancel_task if self._cancel_wanted else None
        if context is not None:
            context.request_cancellation(reason)
        if cancel is not None:
            cancel()

    def bind(self, context: JobContext) -> None:
        """From now on requests reach `context`; those that have come already do so at once."""
        with self._lock:
            self._context = context
            reasons = list(self._reasons)
        for reason in reasons:
            context.request_cancellation(reason)

    def attach_task(self, cancel: Callable[[], object] | None) -> None:
        """Have `cancel` called when the body's task is to be cancelled; at once if that was asked for already."""
        with self._lock:
            self._cancel_task = cancel
            wanted = self._cancel_wanted
        if wanted and cancel is not None:
            cancel()


class _NoServices:
    """The objects that an application registers exist only in its own process."""

    def resolve(self, cls: type[_T]) -> _T | None:
        return None


class BodyRunner:
    """Runs bodies one after another on the thread that calls it, the async ones on one loop of its own.

    Args:
        allow: module prefixes that may be imported.
        result_limit: largest encoded result in bytes that is answered; of a larger one only the size is.
    """

    def __init__(self, *, allow: Sequence[str], result_limit: int) -> None:
        policy = PrefixPolicy(allow)
        self._targets = Targets(policy, _NoServices())
        self._codec = JsonCodec(allows=policy.allows_module)
        self._sanitize = functools.partial(safe_sanitize, DefaultErrorSanitizer())
        self._result_limit = result_limit
        self._pid = os.getpid()
        # One loop for the life of the child: clients that a module keeps stay usable in its next async job.
        self._loop: asyncio.Runner | None = None

    def run(self, attempt: Attempt) -> Returned | Raised | Refused:
        """Run one body to its end and tell it. The body's exceptions, also those that end programs, are told."""
        request = attempt.request
        target = self._find(request.target)
        if isinstance(target, Refused):
            return target
        call = self._decode(request, target)
        if isinstance(call, Refused):
            return call
        args, kwargs, params = call
        context = JobContext(
            UUID(request.job_id),
            attempt=request.attempt,
            claim_seq=request.claim_seq,
            node=request.node,
            params=params,
            deadline_monotonic=attempt.deadline_monotonic,
            metadata=dict(request.metadata),
        )
        attempt.bind(context)
        began = time.monotonic()
        try:
            value, error = self._call(attempt, context, lambda: target.call(*args, **kwargs)), None
        except BaseException as raised:  # noqa: BLE001 - whatever a body raises is its attempt's failure
            value, error = None, raised
        ended = time.monotonic()
        if os.getpid() != self._pid:
            # The body has forked and this is the copy: it must not answer for the child.
            with contextlib.suppress(BaseException):
                sys.stdout.flush()
            os._exit(0 if error is None else 1)
        if self._loop is not None:
            self._cancel_leftovers(self._loop)
        try:
            if error is None:
                return self._returned(value, duration=ended - began, ended=ended)
            return self._raised(error, attempt, context, duration=ended - began, ended=ended)
        finally:
            # The error's frames lead here: without this a cycle would keep what the body held.
            del error, value

    def close(self) -> None:
        """End the loop, and with it the generators and threads that bodies left on it."""
        loop, self._loop = self._loop, None
        if loop is not None:
            with contextlib.suppress(BaseException):
                loop.close()

    # -- before the body -------------------------------------------------------------------------

    def _find(self, text: str) -> Target | Refused:
        try:
            return self._targets.resolve(text)
        except TargetRefused as problem:
            return Refused(kind="policy", message=self._sanitize(problem))
        except BaseException as problem:  # noqa: BLE001 - a module may raise anything while it is imported
            return Refused(kind="unknown", message=self._sanitize(problem))

    def _decode(
        self, request: BodyRequest, target: Target
    ) -> tuple[tuple[object, ...], dict[str, object], dict[str, object]] | Refused:
        try:
            args, kwargs = self._codec.decode_arguments(request.payload, request.format)
            params = {name: self._codec.decode_value(text) for name, text in request.params.items()}
        except NewerPayloadFormat as problem:
            return Refused(kind="newer_format", message=self._sanitize(problem))
        except BaseException as problem:  # noqa: BLE001 - decoding runs code of payload classes
            return Refused(kind="poison", message=self._sanitize(problem))
        try:
            args, kwargs = target.signature.validate(args, kwargs)
        except BaseException as problem:  # noqa: BLE001 - ArgumentError, or whatever a validator raises
            return Refused(kind="arguments", message=self._sanitize(problem))
        return args, kwargs, params

    # -- the body --------------------------------------------------------------------------------

    def _call(self, attempt: Attempt, context: JobContext, body: Callable[[], object]) -> object:
        scope = contextvars.copy_context()  # what a body sets there is not visible to the next

        def bound() -> object:
            with bind_context(context):
                return body()

        value = scope.run(bound)
        if not inspect.isawaitable(value):
            return value
        import asyncio  # its price is paid by the first async body, not by each child's start

        if self._loop is None:
            self._loop = asyncio.Runner()
        value, error = self._loop.run(_supervise(attempt, context, value), context=scope)
        if error is not None:
            try:
                raise error
            finally:
                del error  # see run
        return value

    @staticmethod
    def _cancel_leftovers(runner: "asyncio.Runner") -> None:
        """End the tasks that a body started and left, as ``asyncio.run`` does, but with limited patience."""
        import asyncio

        loop = runner.get_loop()
        leftovers = asyncio.all_tasks(loop)
        if not leftovers:
            return

        async def end() -> int:
            for task in leftovers:
                task.cancel()
            _, stubborn = await asyncio.wait(leftovers, timeout=_LEFTOVER_PATIENCE)
            return len(stubborn)

        try:
            stubborn = runner.run(end())
        except BaseException as problem:  # noqa: BLE001 - a task may raise SystemExit through the loop
            _log.warning("a task that a job left behind raised %s", type(problem).__name__)
            return
        if stubborn:
            _log.warning("%d tasks that a job left behind ignore their cancellation", stubborn)

    # -- after the body --------------------------------------------------------------------------

    def _returned(self, value: object, *, duration: float, ended: float) -> Returned | Raised:
        try:
            result: str | None = self._codec.encode_value(value, what="result")
            size = len(result or "")
        except PayloadTooLarge as problem:
            result, size = None, max(problem.size, self._result_limit + 1)
        except BaseException as problem:  # noqa: BLE001 - encoding looks into the job's objects
            return Raised(
                type_name=_type_name(problem),
                error=self._sanitize(problem),
                duration=duration,
                age=time.monotonic() - ended,
                unencodable_result=True,
            )
        if size > self._result_limit:
            result = None
        return Returned(result=result, result_size=size, duration=duration, age=time.monotonic() - ended)

    def _raised(
        self, error: BaseException, attempt: Attempt, context: JobContext, *, duration: float, ended: float
    ) -> Raised:
        asked = retry_after(error)
        cancellation = answers_request(error, context.attempt_token) or (
            attempt.task_canceled and _is_cancelled_error(error)
        )
        return Raised(
            type_name=_type_name(error),
            error=self._sanitize(error),
            do_not_retry=do_not_retry_reason(error, self._sanitize),
            retry_after=None if asked is None else asked.total_seconds(),
            cancellation=cancellation,
            duration=duration,
            age=time.monotonic() - ended,
        )


async def _supervise(
    attempt: Attempt, context: JobContext, body: Awaitable[object]
) -> tuple[object, BaseException | None]:
    """Await the body. Its exceptions are answered, not raised: SystemExit would otherwise break the loop."""
    import asyncio

    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    running = True

    def cancel() -> None:
        # On the loop's thread, so that a cancellation cannot hit this coroutine once the body has ended.
        if running:
            attempt.task_canceled = True
            task.cancel()

    try:
        with bind_context(context):
            attempt.attach_task(lambda: loop.call_soon_threadsafe(cancel))
            return await body, None
    except BaseException as raised:  # noqa: BLE001 - whatever a body raises is its attempt's failure
        return None, raised
    finally:
        running = False
        attempt.attach_task(None)


def _is_cancelled_error(error: BaseException) -> bool:
    asyncio = sys.modules.get("asyncio")
    return asyncio is not None and issubclass(type(error), asyncio.CancelledError)


def _type_name(error: BaseException) -> str:
    cls = type(error)
    try:
        return str(
            cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"
        )
    except BaseException:  # noqa: BLE001 - a metaclass may answer anything
        return "Exception"
