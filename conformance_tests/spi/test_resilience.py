"""Resilience strategies: what passes, passes unchanged; what is held back is told when to come again."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import timedelta

import pytest

from conformance_tests.spi.at_once import from_threads
from conformance_tests.spi.parts import shows
from ratchet.spi.resilience import ResilienceStrategy

SERVICES = (None, "cards", "a service %_é")


class _Stop(BaseException):
    """Not an Exception: a cancellation, an exit."""


@shows("RS-01")
@pytest.mark.parametrize("service", SERVICES)
def test_a_new_one_lets_through(made: ResilienceStrategy, service: str | None) -> None:
    """Nothing is held back of which nothing bad is known."""
    assert made.retry_delay(service) is None


@shows("RS-02")
@pytest.mark.parametrize("service", SERVICES)
def test_the_answer_passes(made: ResilienceStrategy, service: str | None) -> None:
    """`execute` calls exactly once and answers the very object that the call answers."""
    calls, answer = [], object()

    def call() -> object:
        calls.append(1)
        return answer

    assert made.execute(service, call) is answer
    assert len(calls) == 1


@shows("RS-03")
@pytest.mark.parametrize("service", SERVICES)
@pytest.mark.parametrize("kind", [ValueError, TimeoutError, _Stop, KeyboardInterrupt])
def test_the_error_passes(made: ResilienceStrategy, service: str | None, kind: type[BaseException]) -> None:
    """What the call raises comes out as the very same exception, after one call."""
    calls, error = [], kind("no")

    def call() -> object:
        calls.append(1)
        raise error

    with pytest.raises(kind) as raised:
        made.execute(service, call)
    assert raised.value is error
    assert len(calls) == 1


@shows("RS-04")
def test_async_answers_and_errors(made: ResilienceStrategy) -> None:
    """`execute_async` does the same for what is awaited, on the loop that it was called on."""

    async def main() -> None:
        loop, answer, error = asyncio.get_running_loop(), object(), ValueError("no")

        async def call() -> object:
            assert asyncio.get_running_loop() is loop
            await asyncio.sleep(0)
            return answer

        async def failing() -> object:
            await asyncio.sleep(0)
            raise error

        assert await made.execute_async("cards", call) is answer
        with pytest.raises(ValueError, match="no") as raised:
            await made.execute_async("cards", failing)
        assert raised.value is error

    asyncio.run(main())


@shows("RS-05")
def test_a_cancelled_body(made: ResilienceStrategy) -> None:
    """A body that is cancelled while it is awaited ends as cancelled."""

    async def main() -> None:
        begun = asyncio.Event()

        async def call() -> None:
            begun.set()
            await asyncio.Event().wait()

        task = asyncio.ensure_future(made.execute_async("cards", call))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())


@shows("RS-06")
def test_after_failures(made: ResilienceStrategy) -> None:
    """However often a service fails, the delay is None or a time that is not negative."""
    for _ in range(200):
        if made.retry_delay("cards") is None:
            with suppress(ValueError):
                made.execute("cards", _fail)
        delay = made.retry_delay("cards")
        assert delay is None or (isinstance(delay, timedelta) and delay >= timedelta())


@shows("RS-07")
def test_services_are_apart(made: ResilienceStrategy) -> None:
    """The failures of one service do not hold back another."""
    for _ in range(200):
        if made.retry_delay("cards") is None:
            with suppress(ValueError):
                made.execute("cards", _fail)
    assert made.retry_delay("mail") is None
    assert made.execute("mail", lambda: 7) == 7


@shows("RS-08")
def test_asking_is_free(made: ResilienceStrategy) -> None:
    """Asking for the delay uses nothing up: ask as often as you like, the service may still be called."""
    for _ in range(1_000):
        assert made.retry_delay("cards") is None
    assert made.execute("cards", lambda: 7) == 7


@shows("RS-09")
def test_threads(made: ResilienceStrategy) -> None:
    """It may be used from several threads at once."""
    answers = from_threads(lambda: (made.retry_delay("cards"), made.execute("cards", lambda: 7)))
    assert answers == [(None, 7)] * 400


def _fail() -> object:
    raise ValueError("down")
