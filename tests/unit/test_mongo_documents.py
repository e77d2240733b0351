"""Jobs, ended claims and nodes as documents: what is written down comes back, and what is absent is not there."""

from __future__ import annotations

from dataclasses import fields
from datetime import timedelta
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from ratchet.domain.job import Claim, Job, JobType, NewJob
from ratchet.domain.lifecycle import UNSCHEDULED, AttemptEnd, Execution, Status, Trigger
from ratchet.domain.priority import Priority
from ratchet.spi.store import Node, NodeInfo
from ratchet_mongo.documents import (
    Document,
    claim_from,
    cleaned,
    execution_document,
    execution_from,
    hidden,
    job_from,
    lane,
    new_document,
    node_fields,
    node_from,
    spilled_id,
    spilled_range,
    storable,
)
from tests.unit.mongo_kit import NOW, TOKEN, collection, instants, names, new_jobs, ours, over_the_wire, text

SHARED = {each.name for each in fields(NewJob)} & {each.name for each in fields(Job)}


def document(new: NewJob) -> Document:
    return new_document(new, NOW, token=TOKEN, business_key=new.business_key)


def nested(value: Any) -> list[Any]:
    """All keys and values within."""
    if isinstance(value, dict):
        return [*value, *(inner for each in value.values() for inner in nested(each))]
    if isinstance(value, list):
        return [inner for each in value for inner in nested(each)]
    return [value]


@given(new_jobs())
def test_a_job_comes_back_as_it_was_submitted(new: NewJob) -> None:
    """Every field of a submitted job is that of the stored one, whatever its text, after a way over the wire."""
    job = job_from(over_the_wire(document(new)))
    assert {name: getattr(job, name) for name in SHARED} == {name: getattr(new, name) for name in SHARED}
    assert (job.status, job.version, job.claim_seq, job.created_at) == (new.start, 0, 0, NOW)
    if new.at is not None:
        assert job.scheduled_time == new.at
    elif new.delay is None:
        assert job.scheduled_time == NOW
    else:
        # Instants that a store makes err late.
        assert timedelta() <= job.scheduled_time - (NOW + new.delay) < timedelta(milliseconds=1)


@given(new_jobs())
def test_what_is_absent_is_not_stored(new: NewJob) -> None:
    """No document holds a null, nor a field whose name comes from outside."""
    doc = document(new)
    assert None not in nested(doc)
    assert all(name.replace("_", "").isalpha() for name in doc)


@given(new_jobs())
def test_only_what_can_be_claimed_has_a_lane(new: NewJob) -> None:
    """A job is in the index of claims exactly if it is pending, no batch parent, and will ever be due."""
    doc = document(new)
    claimable = (
        new.start is Status.PENDING and new.type is not JobType.BATCH and doc["scheduled_time"] != UNSCHEDULED
    )
    assert ("lane" in doc) == claimable
    if claimable:
        executor, _, priority = doc["lane"].rpartition("/")
        assert (executor, Priority(int(priority))) == (new.executor, new.priority)


@given(names, names, st.sampled_from(Priority), st.sampled_from(Priority))
def test_lanes_are_apart(one: str, other: str, first: Priority, second: Priority) -> None:
    """Two executors and priorities share a lane only if they are the same, slashes in names or not."""
    assert (lane(one, first) == lane(other, second)) == ((one, first) == (other, second))
    assert (lane(f"{one}/1", first) == lane(other, second)) == ((f"{one}/1", first) == (other, second))


@given(new_jobs())
def test_a_hidden_job_is_shown_by_its_own_fields(new: NewJob) -> None:
    """A hidden document has neither status nor lane, and is the plain one again once it is revealed."""
    doc = document(new)
    kept = hidden(doc, {"kind": "operation", "id": TOKEN, "at": NOW})
    assert not kept.keys() & {"status", "lane"}
    jobs = collection([kept])
    jobs.update_one({}, {"$set": kept["reveal"], "$unset": {"hold": "", "reveal": ""}})
    assert ours(jobs.find_one({})) == over_the_wire(doc)


@given(new_jobs(), names, instants)
def test_a_claim_says_what_the_job_says(new: NewJob, node: str, when: Any) -> None:
    """Each field of a claim is that of the job in the same document."""
    doc = over_the_wire(document(new) | {"picked_by": node, "picked_at": when, "claim_seq": 3, "signal": "1"})
    claim, job = claim_from(doc), job_from(doc)
    assert claim.job_id == job.id
    for each in fields(Claim):
        if each.name != "job_id":
            assert getattr(claim, each.name) == getattr(job, each.name), each.name


ended = st.builds(
    Execution,
    job_id=st.uuids(),
    claim_seq=st.integers(1, 2**40),
    attempt=st.integers(1, 2**31),
    end=st.sampled_from(AttemptEnd),
    trigger=st.sampled_from(Trigger),
    node=st.none() | names,
    picked_at=st.none() | instants,
    started_at=instants,
    ended_at=instants,
    duration=st.integers(0, 2**40).map(lambda ms: timedelta(milliseconds=ms)),
    error=st.none() | text,
)


@given(ended)
def test_an_ended_claim_comes_back(execution: Execution) -> None:
    """Every field of an ended claim survives its document."""
    assert execution_from(over_the_wire(execution_document(execution)), execution.job_id) == execution


@given(st.lists(st.tuples(st.uuids(), st.integers(0, 10**10 - 1)), min_size=1, max_size=8, unique=True))
def test_spilled_claims_of_a_job_are_neighbours_in_order(entries: list[Any]) -> None:
    """The range of a job finds all of its spilled claims and nobody else's; their keys sort by claim."""
    stored = collection(
        {"_id": spilled_id(job_id, claim_seq), "n": [job_id, claim_seq]} for job_id, claim_seq in entries
    )
    for wanted, _ in entries:
        found = [doc["_id"] for doc in stored.find(spilled_range(wanted)).sort("_id", 1)]
        mine = sorted(claim_seq for job_id, claim_seq in entries if job_id == wanted)
        assert found == [spilled_id(wanted, claim_seq) for claim_seq in mine]


infos = st.builds(
    NodeInfo,
    incarnation=names,
    name=names,
    host=names,
    boot_id=names,
    pid_namespace=names,
    pid=st.integers(0, 2**31),
    pid_started=st.integers(0, 2**60),
    state=st.sampled_from(["running", "stopping", "unhealthy"]),
    detail=st.dictionaries(names, text, max_size=3),
)


@given(infos)
def test_a_node_comes_back(info: NodeInfo) -> None:
    """What a node says of itself survives its document, and its age is counted from its latest heartbeat."""
    doc = {"_id": info.incarnation, **node_fields(info), "started_at": NOW, "last_heartbeat": NOW}
    later = NOW + timedelta(seconds=5)
    assert node_from(over_the_wire(doc), later) == Node(info, NOW, NOW, timedelta(seconds=5))


@given(st.text(max_size=10))
def test_cleaned_text_can_be_stored(anything: str) -> None:
    """Cleaned text can be stored, is as long as before, and is the same where it could be stored anyway."""
    clean = cleaned(anything)
    assert storable(clean)
    assert len(clean) == len(anything)
    assert (clean == anything) == storable(anything)
