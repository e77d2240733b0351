"""A database of many jobs, what the store asks of it, and what the server says of each of its questions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import UUID

from pymongo import monitoring

from ratchet.domain.ids import new_id
from ratchet.domain.lifecycle import Status
from ratchet_mongo._sync.database import OPTIONS
from ratchet_mongo.documents import Document
from ratchet_mongo.plans import Plan, plan_of
from tests.mongo.conftest import needs

NOW: Final = datetime(2026, 3, 1, 12, tzinfo=UTC)
RUNNING: Final = 200
TOKEN: Final = UUID(int=0)


def _job(number: int, **fields: Any) -> Document:
    base = {
        "_id": new_id(), "target": "m:f", "payload": "[]", "format": 1, "type": "SINGLE",
        "executor": "threads", "priority": number % 5, "created_at": NOW - timedelta(seconds=number),
        "updated_at": NOW, "scheduled_time": NOW - timedelta(seconds=number), "version": 0, "claim_seq": 1,
        "attempts": 0, "crash_count": 0, "max_retries": 0, "timeout": 1, "fence": 0,
    }  # fmt: skip
    return base | fields


def _chunks(start: int, stop: int) -> Iterator[range]:
    return (range(first, min(first + 5000, stop)) for first in range(start, stop, 5000))


def add_settled(database: Any, start: int, stop: int) -> None:
    """Settled jobs number `start` to `stop`; each twentieth is in the dead-letter queue."""
    ended = Status.SUCCEEDED.value, Status.FAILED.value
    for numbers in _chunks(start, stop):
        database.jobs.insert_many(
            _job(
                n,
                status=ended[n % 20 == 0],
                ended_at=NOW - timedelta(seconds=n),
                picked_by=f"n{n % 7}",
                tags=["t", f"t{n % 1000}"],
                business_key=f"k{n % 1000}",
                principal=f"p{n % 1000}",
            )
            for n in numbers
        )


def add_pending(database: Any, number: int) -> None:
    """Pending jobs on two executors and five priorities, a third of them not yet due."""

    def one(n: int) -> Document:
        lane = f"{'threads' if n // 5 % 2 else 'async'}/{n % 5}"
        due = NOW + timedelta(days=n % 3 == 0) - timedelta(seconds=n)
        return _job(
            n,
            status=Status.PENDING.value,
            lane=lane,
            executor=lane[:-2],
            scheduled_time=due,
            tags=["t"],
            business_key=f"k{n}",
        )

    for numbers in _chunks(0, number):
        database.jobs.insert_many(map(one, numbers))


def add_the_rest(database: Any) -> None:
    """Of all that the hot queries ask for a little: running jobs, callbacks, keys, operations, what is unfinished."""
    owners = ("a node", "n1", "n2")
    jobs = [
        _job(n, status=Status.RUNNING.value, picked_by=owners[n % 3], picked_at=NOW - timedelta(seconds=n))
        for n in range(RUNNING)
    ]
    jobs[0]["_id"] = TOKEN
    outbox = {"id": TOKEN, "at": NOW, "submits": []}
    ended = {"status": Status.SUCCEEDED.value, "ended_at": NOW}
    jobs += [_job(n, **ended, outbox=outbox, business_key="k", principal="p") for n in range(9)]
    hold = {"kind": "operation", "id": TOKEN, "at": NOW - timedelta(days=1)}
    # In the middle: a page passes over what is not decided upon.
    jobs += [_job(500 + n, hold=hold, reveal={}) for n in range(9)]
    told = {"owner": "a node", "claim_seq": 1, "name": "on_failure", "target": "t", "argument": ""}
    jobs += [_job(n, status=Status.FAILED.value, ended_at=NOW, callbacks=[told]) for n in range(20)]
    database.jobs.insert_many(jobs)
    database.business.insert_one({"_id": "a key", "holder": TOKEN, "token": TOKEN})
    database.idempotency.insert_one({"_id": "a key", "job": TOKEN, "token": TOKEN})
    database.business.insert_many(
        {"_id": f"k{n}", "holder": UUID(int=n), "token": UUID(int=n)} for n in range(2000)
    )
    database.idempotency.insert_many(
        {"_id": f"i{n}", "job": UUID(int=n), "token": UUID(int=n)} for n in range(2000)
    )
    states = ("committed",) * 9 + ("open",) * 200
    old, new = NOW - timedelta(days=1), NOW + timedelta(days=9000)
    database.operations.insert_many(
        {"_id": UUID(int=n + 9), "kind": "insert", "state": state, "at": old if n < 20 else new, "steps": []}
        for n, state in enumerate(states)
    )


def explained(database: Any, command: Document) -> Plan:
    """What the server does for a command; it is executed, and changes nothing."""
    needs("explain")
    answer: Document = database.db.command(
        "explain", command, verbosity="executionStats", codec_options=OPTIONS["codec_options"]
    )
    return plan_of(answer)


class Recorder(monitoring.CommandListener):
    """The commands that the store sends while it is asked to."""

    def __init__(self) -> None:
        self._sent: list[Document] | None = None

    def started(self, event: monitoring.CommandStartedEvent) -> None:
        if self._sent is not None:
            self._sent.append(dict(event.command))

    def succeeded(self, event: monitoring.CommandSucceededEvent) -> None:
        pass

    def failed(self, event: monitoring.CommandFailedEvent) -> None:
        pass

    @contextmanager
    def recording(self) -> Iterator[list[Document]]:
        """Those of the block."""
        sent: list[Document] = []
        self._sent = sent
        try:
            yield sent
        finally:
            self._sent = None


def questions(command: Document) -> Iterator[Document]:
    """What a command looks for, as commands to explain; the branches of a claim one by one."""
    match next(iter(command)):
        case "find" | "distinct":
            names = ("find", "filter", "sort", "limit", "projection", "hint", "distinct", "key", "query")
            yield {name: command[name] for name in names if name in command}
        case "findAndModify":
            yield {"find": command["findAndModify"], "filter": command["query"], "limit": 1}
        case "update" | "delete" as verb:
            for each in command["updates" if verb == "update" else "deletes"]:
                found = {"find": command[verb], "filter": each["q"]}
                found |= {"hint": each["hint"]} if "hint" in each else {}
                single = each.get("limit") == 1 or (verb == "update" and not each.get("multi"))
                yield found | ({"limit": 1} if single else {})
        case "aggregate":
            yield from _aggregate(command)
        case "insert" | "hello" | "getMore" | "createIndexes" | "buildInfo":
            return
        case other:
            raise AssertionError(f"a command that this test does not know: {other}")


def _aggregate(command: Document) -> Iterator[Document]:
    names = [next(iter(stage)) for stage in command["pipeline"]]
    before = names.index("$facet") if "$facet" in names else len(names)
    stages = command["pipeline"][before:]
    yield {"aggregate": command["aggregate"], "pipeline": command["pipeline"][:before], "cursor": {}}
    if stages:
        join = stages[-1]["$lookup"]
        match, *others = join["pipeline"]
        for branch in stages[1]["$set"]["branch"]["$literal"]:
            wanted = {join["foreignField"]: branch["lane"], **match["$match"]}
            yield {"aggregate": join["from"], "pipeline": [{"$match": wanted}, *others], "cursor": {}}
