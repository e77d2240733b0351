"""The same call from several threads at the same moment."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def from_threads(call: Callable[[], T], *, threads: int = 8, times: int = 50) -> list[T]:
    """What all the calls answered; the first error that one raised is raised here."""
    barrier, answers, raised = threading.Barrier(threads), [], []

    def work() -> None:
        barrier.wait(30)
        try:
            answers.extend([call() for _ in range(times)])
        except BaseException as error:
            raised.append(error)

    workers = [threading.Thread(target=work, daemon=True) for _ in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
        assert not worker.is_alive(), "a call hangs"
    if raised:
        raise AssertionError("a call from a thread raised") from raised[0]
    return answers
