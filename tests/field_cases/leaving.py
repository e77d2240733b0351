"""The program of F52: jobs leave work behind on the loop, and the process ends."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from ratchet import Scheduler
from tests.field_cases.kit import append, quick_settings

MODULE = "tests.field_cases.leaving"
left: list[Any] = []


async def sleep_for_ever(folder: str, name: str) -> None:
    """Ends by its cancellation, and says so."""
    append(Path(folder) / "left", f"{name} begun\n")
    try:
        await asyncio.Event().wait()
    finally:
        append(Path(folder) / "left", f"{name} ended\n")


async def resist(folder: str, name: str) -> None:
    """Ignores its first cancellation for a moment."""
    append(Path(folder) / "left", f"{name} begun\n")
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        await asyncio.sleep(0.05)
    append(Path(folder) / "left", f"{name} ended\n")


async def tick(folder: str, name: str) -> AsyncIterator[int]:
    """An asynchronous generator that nobody closes."""
    append(Path(folder) / "left", f"{name} begun\n")
    try:
        while True:
            yield 1
            await asyncio.sleep(0)
    finally:
        append(Path(folder) / "left", f"{name} ended\n")


async def leave(folder: str, number: int) -> int:
    """Leaves two tasks and a generator behind."""
    left.extend(
        asyncio.create_task(kind(folder, f"{kind.__name__}-{number}")) for kind in (sleep_for_ever, resist)
    )
    generator = tick(folder, f"tick-{number}")
    await anext(generator)
    left.append(generator)
    await asyncio.sleep(0.02)
    return number


def main(url: str, folder: str, how: str) -> int:
    """Run five such jobs and end the process: after `stop`, without it, on an application's loop, in children."""
    logging.basicConfig(level=logging.INFO)
    scheduler = Scheduler.from_url(
        url, allow=[MODULE], settings=quick_settings(processes=int(how == "processes"))
    )
    options = "processes" if how == "processes" else "async"

    def submit() -> list[int]:
        builders = [scheduler.enqueue(leave, folder, each).with_executor(options) for each in range(5)]
        return [builder.submit().result(30) for builder in builders]

    async def application() -> None:
        scheduler.start(loop=asyncio.get_running_loop())
        print(await asyncio.to_thread(submit))
        await asyncio.to_thread(scheduler.stop, 10)

    if how == "application":
        asyncio.run(application())
        return 0
    scheduler.start()
    print(submit())
    if how != "abandon":
        scheduler.stop(10)
    return 0


if __name__ == "__main__":
    from tests.field_cases.leaving import main as importable_main

    sys.exit(importable_main(*sys.argv[1:]))
