"""Job ids: RFC 9562 layout, order, threads and forks."""

import os
import threading
import time
from itertools import pairwise
from uuid import RFC_4122, UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratchet.domain.ids import IdSequence, new_id


def milliseconds(value: UUID) -> int:
    return value.int >> 80


def test_layout_is_version_7() -> None:
    """An id has the version, variant and timestamp places of RFC 9562 section 5.7."""
    before = time.time_ns() // 1_000_000
    value = IdSequence().next()
    after = time.time_ns() // 1_000_000
    assert value.version == 7
    assert value.variant == RFC_4122
    assert before <= milliseconds(value) <= after


def test_example_of_the_rfc() -> None:
    """With the clock and random bits of RFC 9562 appendix A.6 the id is the one printed there."""
    random_bits = (0xCC3 << 62) | 0x18C4DC0C0C07398F
    ids = IdSequence(clock_ms=lambda: 0x017F22E279B0, entropy=lambda n: (random_bits << 6).to_bytes(n, "big"))
    assert ids.next() == UUID("017F22E2-79B0-7CC3-98C4-DC0C0C07398F")


@given(st.lists(st.integers(min_value=-5, max_value=2**48 + 5), min_size=1, max_size=60))
def test_order_survives_any_clock(readings: list[int]) -> None:
    """Ids ascend and keep their layout whatever the clock does: backwards, before 1970, beyond 48 bits."""
    clock = iter(readings)
    ids = IdSequence(clock_ms=lambda: next(clock))
    made = [ids.next() for _ in readings]
    assert all(earlier < later for earlier, later in pairwise(made))
    assert {(value.version, value.variant) for value in made} == {(7, RFC_4122)}


def test_clock_stepping_back_keeps_the_time_part() -> None:
    """While the clock is behind ids keep the newest time seen; they go on with it once it caught up."""
    clock = iter([1_000, 10, 500, 1_001])
    ids = IdSequence(clock_ms=lambda: next(clock))
    assert [milliseconds(ids.next()) for _ in range(4)] == [1_000, 1_000, 1_000, 1_001]


def test_exhausted_random_bits_carry_into_the_time() -> None:
    """When a millisecond has no numbers left the next id belongs to the following millisecond."""
    ids = IdSequence(clock_ms=lambda: 7, entropy=lambda n: b"\xff" * n)
    assert [milliseconds(ids.next()) for _ in range(2)] == [7, 8]


def test_threads_share_one_ascending_sequence() -> None:
    """Eight threads drawing at once get distinct ids, each thread in ascending order."""
    barrier = threading.Barrier(8)
    drawn: list[list[UUID]] = []

    def draw() -> None:
        barrier.wait(10)
        drawn.append([new_id() for _ in range(5_000)])

    threads = [threading.Thread(target=draw) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len({value for ids in drawn for value in ids}) == 40_000
    assert all(ids == sorted(ids) for ids in drawn)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this platform")
def test_forked_children_do_not_repeat_their_parent() -> None:
    """Twenty forks at a stopped clock share no id, though a thread held the lock at the fork (F51)."""
    ids = IdSequence(clock_ms=lambda: 42)
    newest = ids.next()
    seen: set[UUID] = {newest}
    with ids._lock:  # as if another thread were drawing at the moment of the fork
        pipes = [_fork_and_draw(ids, 50) for _ in range(20)]
    for child, reader in pipes:
        with os.fdopen(reader, "rb") as stream:
            data = stream.read()
        assert os.waitpid(child, 0)[1] == 0
        drawn = [UUID(bytes=data[i : i + 16]) for i in range(0, len(data), 16)]
        assert len(drawn) == 50
        assert drawn == sorted(drawn)
        assert drawn[0] > newest
        assert seen.isdisjoint(drawn)
        seen.update(drawn)
    assert ids.next() > newest


def _fork_and_draw(ids: IdSequence, count: int) -> tuple[int, int]:
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.write(writer, b"".join(ids.next().bytes for _ in range(count)))
            status = 0
        finally:
            os._exit(status)
    os.close(writer)
    return child, reader
