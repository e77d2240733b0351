"""Lifecycle rows as guarded updates: applied to a document they do what the table says, and only under their guard."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from ratchet.domain.job import JobType, NewJob
from ratchet.domain.lifecycle import ROWS, SETTLED, UNSCHEDULED, BusinessKey, Status, Trigger, assign, refusal
from ratchet.domain.settlement import Change, Effect, RunCallback
from ratchet.errors import CapabilityMissing, PayloadTooLarge, UsageError
from ratchet_mongo.documents import KEPT, MAX_ERROR, MAX_TEXT, Document, job_from, new_document
from ratchet_mongo.moves import (
    APPLIES,
    SETTLES,
    Guard,
    Move,
    check,
    check_size,
    frees,
    holds,
    move,
)
from tests.unit.mongo_kit import NOW, TOKEN, collection, ours, over_the_wire, theirs

JOB = UUID(int=5)
LATER = NOW + timedelta(minutes=1)
CELLS = [
    (trigger, source, target)
    for trigger, row in ROWS.items()
    for source in row.sources
    for target in row.targets
]


def stored(status: Status, trigger: Trigger) -> Document:
    """A document in a state, as far along as the trigger wants it."""
    batch = trigger is Trigger.BATCH_SETTLE
    new = NewJob(
        id=JOB, target="m:f", payload="[]", type=JobType.BATCH if batch else JobType.SINGLE, business_key="k",
        at=UNSCHEDULED if trigger is Trigger.UNBLOCK else NOW - timedelta(seconds=5),
    )  # fmt: skip
    doc = new_document(new, NOW, token=UUID(int=1), business_key="k")
    doc |= {"status": status.value, "version": 7, "claim_seq": 2, "attempts": 1, "crash_count": 1, "fence": 3}
    if status is not Status.PENDING:
        doc.pop("lane", None)
    if status is Status.RUNNING or status in SETTLED:
        doc |= {"picked_by": "node", "picked_at": NOW - timedelta(seconds=2)}
    if status is Status.PAUSED:
        doc |= {"paused_from_status": Status.PENDING.value}
    if status in SETTLED:
        doc |= {
            "ended_at": NOW,
            "duration": 5,
            "queue_wait": 3,
            "started_at": NOW,
            "result": "1",
            "last_error": "e",
        }
    return doc


def change_of(trigger: Trigger, target: Status) -> Change:
    row = ROWS[trigger]
    return Change(
        trigger,
        JOB,
        claim_seq=2 if row.fenced else None,
        target=target if len(row.targets) > 1 else None,
        incarnation="node",
        attempts=2,
        error="module.Error: it broke",
        result='"r"',
        delay=timedelta(seconds=9),
        superseded_by=UUID(int=6),
        signal='"s"',
    )


def decided(doc: Document, change: Change, **options: Any) -> Move:
    return move(Guard(over_the_wire(doc)), change, LATER, TOKEN, **options)


def applied(doc: Document, one: Move) -> Document | None:
    """The document after the update; None: its guard did not match."""
    jobs = collection([doc])
    matched = jobs.update_one(theirs(one.where), theirs(one.update)).matched_count
    return ours(jobs.find_one({})) if matched else None


@pytest.mark.parametrize(("trigger", "source", "target"), CELLS, ids=str)
def test_an_update_does_what_the_table_says(trigger: Trigger, source: Status, target: Status) -> None:
    """For each allowed cell the stored job afterwards is the one before with exactly the table's changes."""
    doc = stored(source, trigger)
    change = change_of(trigger, target)
    guard = Guard(over_the_wire(doc))
    if trigger is Trigger.UNBLOCK and source is Status.PAUSED:
        doc["paused_from_status"] = Status.PENDING.value
    assert refusal(guard, change, LATER) is None
    wanted = replace(job_from(over_the_wire(doc)), **assign(guard, change, LATER))  # type: ignore[arg-type]
    after = applied(doc, decided(doc, change))
    assert after is not None
    assert job_from(after) == wanted
    assert after["write"] == TOKEN


@pytest.mark.parametrize(("trigger", "source", "target"), CELLS, ids=str)
@pytest.mark.parametrize("field", ["_id", "status", "claim_seq", "version"])
def test_an_update_is_guarded_by_what_was_seen(
    trigger: Trigger, source: Status, target: Status, field: str
) -> None:
    """A document that is another's, or has changed in state, claim or version, is not written."""
    doc = stored(source, trigger)
    one = decided(doc, change_of(trigger, target))
    assert next(iter(one.where)) == "_id"
    others: Document = {
        "_id": UUID(int=9),
        "status": next(s.value for s in Status if s is not source),
        "claim_seq": 3,
        "version": 8,
    }
    assert applied(doc | {field: others[field]}, one) is None


@pytest.mark.parametrize(("trigger", "source", "target"), CELLS, ids=str)
def test_only_what_can_be_claimed_has_a_lane(trigger: Trigger, source: Status, target: Status) -> None:
    """After each update the job is in the index of claims exactly if it can be claimed, now or later."""
    doc = stored(source, trigger)
    after = applied(doc, decided(doc, change_of(trigger, target)))
    assert after is not None
    job = job_from(after)
    claimable = job.status is Status.PENDING and not job.is_batch_parent and job.scheduled_time != UNSCHEDULED
    assert after.get("lane") == (f"{job.executor}/{int(job.priority)}" if claimable else None)


@pytest.mark.parametrize(("trigger", "source", "target"), CELLS, ids=str)
def test_nothing_is_stored_as_null(trigger: Trigger, source: Status, target: Status) -> None:
    """What the table clears is removed from the document."""
    doc = stored(source, trigger)
    after = applied(doc, decided(doc, change_of(trigger, target)))
    assert after is not None
    assert None not in after.values()


def histories(length: int) -> Iterator[Document]:
    for n in range(length):
        yield {
            "claim_seq": n + 1, "attempt": 1, "end": "FAILED", "trigger": "retry",
            "started_at": NOW, "ended_at": NOW, "duration": 1,
        }  # fmt: skip


@pytest.mark.parametrize("length", [0, 1, KEPT - 1, KEPT, KEPT + 1])
def test_history_is_kept_or_spilled(length: int) -> None:
    """No ended claim is lost: what the document does not keep is to be stored elsewhere before, under its own key."""
    doc = stored(Status.RUNNING, Trigger.RETRY) | {
        "claim_seq": length + 1,
        "history": list(histories(length)),
    }
    change = replace(change_of(Trigger.RETRY, Status.PENDING), claim_seq=length + 1)
    one = decided(doc, change)
    after = applied(doc, one)
    assert after is not None
    kept = [entry["claim_seq"] for entry in after["history"]]
    spilled = [entry["claim_seq"] for entry in one.spill]
    assert len(kept) <= KEPT
    assert spilled + kept == list(range(1, length + 2))
    assert len({entry["_id"] for entry in one.spill}) == len(one.spill)
    assert after.get("spilled", False) == bool(spilled)


def test_callbacks_are_added_to_those_there_are() -> None:
    """A pending callback is recorded with its claim and owner beside earlier ones."""
    earlier = {"claim_seq": 1, "name": "on_failure", "owner": "gone", "target": "m:g", "argument": "x"}
    doc = stored(Status.RUNNING, Trigger.SUCCEED) | {"callbacks": [earlier]}
    told = RunCallback("on_success", "m:f", '"r"')
    after = applied(doc, decided(doc, change_of(Trigger.SUCCEED, Status.SUCCEEDED), callbacks=[told]))
    assert after is not None
    assert after["callbacks"] == [
        earlier,
        {"claim_seq": 2, "name": "on_success", "owner": "node", "target": "m:f", "argument": '"r"'},
    ]


@pytest.mark.parametrize("trigger", [Trigger.REQUEUE, Trigger.REPLACE])
def test_what_was_looked_up_about_keys_is_fenced(trigger: Trigger) -> None:
    """A requeue and a settlement with an outbox fail once somebody took a key from the job."""
    source, target = ROWS[trigger].sources[0], ROWS[trigger].targets[0]
    doc = stored(source, trigger)
    outbox = {"id": TOKEN, "at": NOW, "submits": []} if trigger is Trigger.REPLACE else None
    one = decided(doc, change_of(trigger, target), outbox=outbox)
    assert applied(doc | {"fence": 4}, one) is None
    after = applied(doc, one)
    assert after is not None
    assert after.get("outbox") == outbox


def test_each_trigger_has_one_way() -> None:
    """Every trigger travels by exactly one of claim, recover, settle and apply."""
    assert SETTLES | APPLIES | {Trigger.CLAIM, Trigger.RECOVER} == set(ROWS)
    assert not SETTLES & APPLIES
    assert not (SETTLES | APPLIES) & {Trigger.CLAIM, Trigger.RECOVER}


def test_what_can_never_be_settled_is_refused_at_once() -> None:
    """A trigger of another way, a missing target and an undeclared capability are refused before any look."""

    class Later:
        capability = "batch"

    effects: Any = (Later(),)
    with pytest.raises(UsageError, match="use apply, claim or recover"):
        check(Change(Trigger.PAUSE, JOB), (), frozenset())
    with pytest.raises(UsageError, match="must name its target"):
        check(Change(Trigger.BATCH_SETTLE, JOB), (), frozenset())
    with pytest.raises(CapabilityMissing):
        check(Change(Trigger.SUCCEED, JOB, 1), effects, frozenset())
    check(Change(Trigger.SUCCEED, JOB, 1), effects, frozenset({"batch"}))


@pytest.mark.parametrize(
    ("fields", "effects", "fits"),
    [
        ({"result": "x" * MAX_TEXT}, (), True),
        ({"result": "x" * (MAX_TEXT + 1)}, (), False),
        ({"result": "\N{SNOWMAN}" * (MAX_TEXT // 3 + 1)}, (), False),
        ({"signal": "x" * (MAX_TEXT + 1)}, (), False),
        ({"error": "x" * MAX_ERROR}, (), True),
        ({"error": "x" * (MAX_ERROR + 1)}, (), False),
        ({"error": "\ud800" * (MAX_ERROR // 3)}, (), True),
        ({"error": "\ud800" * (MAX_ERROR // 3 + 1)}, (), False),
        ({"result": "x" * 9}, (RunCallback("on_success", "m:f", "x" * (MAX_TEXT - 9)),), True),
        ({"result": "x" * 9}, (RunCallback("on_success", "m:f", "x" * (MAX_TEXT - 8)),), False),
    ],
)
def test_the_text_of_a_change_is_counted_in_bytes(
    fields: dict[str, Any], effects: tuple[Effect, ...], fits: bool
) -> None:
    """A change may bring so many bytes of text, callbacks included, and not one more."""
    change = Change(Trigger.SUCCEED, JOB, 1, **fields)
    if fits:
        check_size(change, effects)
    else:
        with pytest.raises(PayloadTooLarge):
            check_size(change, effects)


@pytest.mark.parametrize("status", Status)
def test_a_key_is_held_until_the_job_is_settled(status: Status) -> None:
    """A job holds its business key exactly while it is unsettled, and no other key."""
    doc = {"status": status.value, "business_key": "k"}
    assert holds(doc, "k") == (status not in SETTLED)
    assert not holds(doc, "other")
    assert not holds({"business_key": "k"}, "k")


@pytest.mark.parametrize("trigger", Trigger)
def test_a_key_is_given_up_as_the_table_says(trigger: Trigger) -> None:
    """Only the rows that free or move the business key give it up."""
    given_up = ROWS[trigger].business_key in {BusinessKey.FREED, BusinessKey.MOVED}
    assert frees(trigger) == given_up
    if given_up:
        assert set(ROWS[trigger].targets) <= SETTLED
