"""Every statement of the hot paths, written once in SQLAlchemy Core.

`python -m ratchet_sql.render` turns them into the text of `ratchet_sql.rendered`, which is what a running
store uses: it needs neither to import SQLAlchemy (a sixth of a second) nor to compile anything.

Each answers at most one row of one value, a JSON text; `ratchet_sql.dialect` says why.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from sqlalchemy import Integer, Text, and_, bindparam, delete, func, insert, null, or_, select, update
from sqlalchemy.sql.elements import ColumnElement
from sqlalchemy.sql.expression import ClauseElement
from sqlalchemy.sql.selectable import FromClause, Select

from ratchet.domain.lifecycle import ROWS, SETTLED, TABLE, Status, Transition, Trigger, Value
from ratchet_sql.dialect import SqlDialect
from ratchet_sql.rows import (
    CALLBACK_COLUMNS,
    CLAIM_COLUMNS,
    EXECUTION_COLUMNS,
    GUARD_COLUMNS,
    INSERT_COLUMNS,
    JOB_COLUMNS,
    NEVER,
    NODE_COLUMNS,
)
from ratchet_sql.schema import (
    callback,
    execution,
    holds_business_key,
    idempotency,
    is_batch,
    is_status,
    is_work,
    job,
    job_tag,
    literal,
    node,
)
from ratchet_sql.transitions import DATA_VALUES, data_columns

_is_running: Final = is_status(Status.RUNNING)
_is_settled: Final = job.c.status.in_([literal(s.value) for s in sorted(SETTLED)])


def _pick(names: tuple[str, ...]) -> list[ColumnElement[Any]]:
    return [job.c[name] for name in names]


def _param(name: str) -> ColumnElement[Any]:
    return bindparam(name, type_=Text())


def _number(name: str) -> ColumnElement[Any]:
    return bindparam(name, type_=Integer())


# -- submission and reading by key ----------------------------------------------------------------


def insert_one(d: SqlDialect) -> ClauseElement:
    """A job, column by column."""
    return insert(job).values({name: bindparam(name) for name in INSERT_COLUMNS})


def insert_many(d: SqlDialect) -> ClauseElement:
    """Jobs."""
    rows = d.rows("rows", INSERT_COLUMNS)
    return insert(job).from_select(INSERT_COLUMNS, rows.select(), include_defaults=False)


def insert_tags(d: SqlDialect) -> ClauseElement:
    """(tag, job id) pairs."""
    rows = d.rows("rows", ("tag", "job_id"))
    return insert(job_tag).from_select(("tag", "job_id"), rows.select())


def insert_keys(d: SqlDialect) -> ClauseElement:
    """(idempotency key, job id) pairs."""
    names = ("idempotency_key", "job_id")
    return insert(idempotency).from_select(names, d.rows("rows", names).select())


def idempotency_holders(d: SqlDialect) -> ClauseElement:
    """Of these idempotency keys: (key, job id, status or null of a purged job)."""
    source, key = d.values("keys")
    joined = source.join(idempotency, idempotency.c.idempotency_key == key).outerjoin(
        job, job.c.id == idempotency.c.job_id
    )
    return select(d.collect([key, idempotency.c.job_id, job.c.status])).select_from(joined)


def business_holders(d: SqlDialect) -> ClauseElement:
    """Of these business keys: (key, job id, status) of the unsettled job that holds it."""
    source, key = d.values("keys")
    joined = source.join(job, and_(job.c.business_key == key, holds_business_key))
    return select(d.collect([key, job.c.id, job.c.status])).select_from(joined)


def _by_ids(
    d: SqlDialect, value: Callable[[], ColumnElement[str]], *more: ColumnElement[bool]
) -> Select[Any]:
    source, job_id = d.values("ids")
    return select(value()).select_from(source.join(job, and_(job.c.id == job_id, *more)))


def existing_ids(d: SqlDialect) -> ClauseElement:
    """Which of these ids are stored."""
    return _by_ids(d, lambda: d.collect_one(job.c.id))


def get_one(d: SqlDialect) -> ClauseElement:
    """A job."""
    return select(d.row(_pick(JOB_COLUMNS))).where(job.c.id == _param("id"))


def get_many(d: SqlDialect) -> ClauseElement:
    """Jobs by ids."""
    return _by_ids(d, lambda: d.collect(_pick(JOB_COLUMNS)))


def get_guards(d: SqlDialect) -> ClauseElement:
    """What transitions need to know of these jobs."""
    return _by_ids(d, lambda: d.collect(_pick(GUARD_COLUMNS)))


# -- claiming -------------------------------------------------------------------------------------


def _candidates(d: SqlDialect, *filters: ColumnElement[bool]) -> ClauseElement:
    wanted, executor = d.values("executors", alias="e")
    priorities, priority = d.priorities()
    branch = (job.c.executor == executor, job.c.priority == priority, is_work, *filters)
    first = (
        select(job.c.scheduled_time, job.c.id)
        .where(*branch, job.c.scheduled_time <= _number("now"))
        .order_by(job.c.scheduled_time, job.c.id)
        .limit(_number("rows"))
        .offset(literal(0))
        .correlate(wanted, priorities)
        .subquery("c")
    )
    due = (
        select(d.collect([first.c.scheduled_time, first.c.id]))
        .correlate(wanted, priorities)
        .scalar_subquery()
    )
    following = (
        select(func.min(job.c.scheduled_time))
        .where(*branch, job.c.scheduled_time > _number("now"), job.c.scheduled_time < literal(NEVER))
        .correlate(wanted, priorities)
        .scalar_subquery()
    )
    answer = d.collect([executor, priority, d.nested(due), following])
    return select(answer).select_from(wanted, priorities)


def candidates(d: SqlDialect) -> ClauseElement:
    """Of each executor and priority: (executor, priority, [first due (scheduled time, id)], next due time)."""
    return _candidates(d)


def candidates_filtered(d: SqlDialect) -> ClauseElement:
    """As `candidates`, narrowed; an empty filter does not narrow."""
    required, required_tag = d.values("require_tags", alias="rt")
    excluded, excluded_tag = d.values("exclude_tags", alias="xt")
    types, job_type = d.values("types", alias="ty")
    left = d.rows("leave_out", ("target", "format"), alias="lo")

    def some(source: FromClause, *where: ColumnElement[bool]) -> ColumnElement[bool]:
        return select(literal(1)).select_from(source).where(*where).correlate_except(source).exists()

    def carries(tag: ColumnElement[str]) -> ColumnElement[bool]:
        return some(job_tag, job_tag.c.tag == tag, job_tag.c.job_id == job.c.id)

    return _candidates(
        d,
        ~some(required, ~carries(required_tag)),
        ~some(excluded, carries(excluded_tag)),
        or_(_param("types") == literal("[]"), some(types, job_type == job.c.type)),
        ~some(left.source, left["target"] == job.c.target, left["format"] == job.c.format),
    )


def claimed(d: SqlDialect) -> ClauseElement:
    """What a worker needs of these jobs."""
    return _by_ids(d, lambda: d.collect(_pick(CLAIM_COLUMNS)))


def held(d: SqlDialect) -> ClauseElement:
    """(id, claim) of the running jobs of an owner."""
    return select(d.collect([job.c.id, job.c.claim_seq])).where(
        _is_running, job.c.picked_by == _param("owner")
    )


# -- transitions ----------------------------------------------------------------------------------


def transition(d: SqlDialect, row: Transition) -> ClauseElement:
    """A row of the lifecycle table as a guarded update of many jobs.

    Guard: the source states, and the version and claim that were read. What the row says by itself is
    written into the statement; what depends on the change comes with the rows, per job.
    """
    rows = d.rows("rows", ("id", "version", "claim_seq", *data_columns(row))).columns
    return (
        update(job)
        .values(_writes(row, rows))
        .where(
            job.c.id == rows["id"],
            job.c.version == rows["version"],
            job.c.claim_seq == rows["claim_seq"],
            job.c.status.in_([literal(s.value) for s in row.sources]),
        )
    )


def claim(d: SqlDialect) -> ClauseElement:
    """The row ``claim`` for jobs that were read as due under the same lock: all alike, so ids suffice."""
    row = ROWS[Trigger.CLAIM]
    source, job_id = d.values("ids")
    chosen = job.c.id.in_(select(job_id).select_from(source))
    return update(job).values(_writes(row, {})).where(chosen, is_work)


def _writes(row: Transition, rows: Mapping[str, ColumnElement[Any]]) -> dict[str, Any]:
    given: dict[Value, Callable[[str], Any]] = {
        Value.NULL: lambda _: null(),
        Value.ZERO: lambda _: literal(0),
        Value.INCREMENT: lambda name: job.c[name] + literal(1),
        Value.NOW: lambda _: _number("now"),
        Value.OWNER: lambda _: _param("incarnation"),
        Value.SOURCE: lambda _: job.c.status,
    }
    values: dict[str, Any] = {
        name: rows[name] if value in DATA_VALUES else given[value](name) for name, value in row.writes.items()
    }
    values["version"] = job.c.version + literal(1)
    values["updated_at"] = _number("now")
    match row.targets:
        case ():
            pass
        case (only,):
            values["status"] = literal(only.value)
        case _:
            values["status"] = _param("status")
    return values


def insert_executions(d: SqlDialect) -> ClauseElement:
    """History rows."""
    rows = d.rows("rows", EXECUTION_COLUMNS)
    return insert(execution).from_select(EXECUTION_COLUMNS, rows.select())


def insert_callbacks(d: SqlDialect) -> ClauseElement:
    """Pending callbacks."""
    rows = d.rows("rows", CALLBACK_COLUMNS)
    return insert(callback).from_select(CALLBACK_COLUMNS, rows.select())


# -- recovery, callbacks, nodes -------------------------------------------------------------------


def _distinct(column: ColumnElement[Any], *where: ColumnElement[bool]) -> Any:
    """The distinct values of an index's first column, hopping from one to the next (never a scan)."""
    start = select(func.min(column).label("owner")).where(*where).cte("owners", recursive=True)
    following = (
        select(func.min(column)).where(*where, column > start.c.owner).correlate(start).scalar_subquery()
    )
    return start.union_all(select(following).where(start.c.owner.is_not(None)))


def owners(d: SqlDialect) -> ClauseElement:
    """Who holds claims: (incarnation, its last heartbeat or null)."""
    found = _distinct(job.c.picked_by, _is_running)
    return (
        select(d.collect([found.c.owner, node.c.last_heartbeat]))
        .select_from(found.outerjoin(node, node.c.incarnation == found.c.owner))
        .where(found.c.owner.is_not(None))
    )


def claims_of(d: SqlDialect) -> ClauseElement:
    """What an owner took up to a time, oldest first: what a transition needs to know of each."""
    first = (
        select(*_pick(GUARD_COLUMNS))
        .where(
            _is_running,
            job.c.picked_by == _param("owner"),
            job.c.picked_at <= _number("before"),
        )
        .order_by(job.c.picked_at)
        .limit(_number("limit"))
        .offset(literal(0))
        .subquery("c")
    )
    return select(d.collect([first.c[name] for name in GUARD_COLUMNS]))


def callback_owners(d: SqlDialect) -> ClauseElement:
    """Who has pending callbacks: (incarnation, its last heartbeat or null)."""
    found = _distinct(callback.c.owner)
    return (
        select(d.collect([found.c.owner, node.c.last_heartbeat]))
        .select_from(found.outerjoin(node, node.c.incarnation == found.c.owner))
        .where(found.c.owner.is_not(None))
    )


def callbacks_of(d: SqlDialect) -> ClauseElement:
    """Pending callbacks of an owner."""
    first = (
        select(*[callback.c[name] for name in CALLBACK_COLUMNS])
        .where(callback.c.owner == _param("owner"))
        .limit(_number("limit"))
        .offset(literal(0))
        .subquery("c")
    )
    return select(d.collect([first.c[name] for name in CALLBACK_COLUMNS]))


def move_callbacks(d: SqlDialect) -> ClauseElement:
    """Give pending callbacks to another owner."""
    rows = d.rows("rows", ("job_id", "claim_seq", "name"))
    matches = [callback.c[name] == rows[name] for name in ("job_id", "claim_seq", "name")]
    return update(callback).values(owner=_param("new_owner")).where(*matches)


def callback_done(d: SqlDialect) -> ClauseElement:
    """Forget a pending callback."""
    return delete(callback).where(
        callback.c.job_id == _param("job_id"),
        callback.c.claim_seq == _number("claim_seq"),
        callback.c.name == _param("name"),
    )


def heartbeat(d: SqlDialect) -> ClauseElement:
    """Register a node, or renew it."""
    values = {name: bindparam(name, type_=node.c[name].type) for name in NODE_COLUMNS}
    return d.insert_or_update(node, values, keep=["started_at"])


def nodes(d: SqlDialect) -> ClauseElement:
    """Every registered node."""
    return select(d.collect([node.c[name] for name in NODE_COLUMNS]))


def forget_node(d: SqlDialect) -> ClauseElement:
    """Deregister a node."""
    return delete(node).where(node.c.incarnation == _param("incarnation"))


# -- history, deletion, counts --------------------------------------------------------------------


def history(d: SqlDialect) -> ClauseElement:
    """The ended claims of a job."""
    ordered = (
        select(*[execution.c[name] for name in EXECUTION_COLUMNS])
        .where(execution.c.job_id == _param("id"))
        .order_by(execution.c.claim_seq)
        .subquery("h")
    )
    return select(d.collect([ordered.c[name] for name in EXECUTION_COLUMNS]))


def settled_ids(d: SqlDialect) -> ClauseElement:
    """Which of these ids are settled jobs."""
    return _by_ids(d, lambda: d.collect_one(job.c.id), _is_settled)


def _delete_by_ids(d: SqlDialect, column: ColumnElement[Any]) -> ClauseElement:
    source, job_id = d.values("ids")
    return delete(column.table).where(column.in_(select(job_id).select_from(source)))


def counts(d: SqlDialect) -> ClauseElement:
    """How many jobs are in each state: each counted in the narrowest index that holds it.

    Succeeded jobs, the many, have no index of their own: they are all jobs less the others.
    """
    parts: list[ColumnElement[Any]] = [select(func.count()).select_from(job).scalar_subquery()]
    names: list[str] = ["all"]
    for status in Status:
        if status is Status.SUCCEEDED:
            continue
        counted = select(func.count()).select_from(job)
        if status is Status.PENDING:
            parts.append(counted.where(is_work).scalar_subquery() + counted.where(is_batch).scalar_subquery())
        else:
            parts.append(counted.where(is_status(status)).scalar_subquery())
        names.append(status.value)
    return select(
        d.row([item for name, part in zip(names, parts, strict=True) for item in (literal(name), part)])
    )


STATEMENTS: Final[Mapping[str, Callable[[SqlDialect], ClauseElement]]] = {
    "INSERT_ONE": insert_one,
    "INSERT_MANY": insert_many,
    "INSERT_TAGS": insert_tags,
    "INSERT_KEYS": insert_keys,
    "IDEMPOTENCY_HOLDERS": idempotency_holders,
    "BUSINESS_HOLDERS": business_holders,
    "EXISTING_IDS": existing_ids,
    "GET_ONE": get_one,
    "GET_MANY": get_many,
    "GET_GUARDS": get_guards,
    "CANDIDATES": candidates,
    "CANDIDATES_FILTERED": candidates_filtered,
    "CLAIM": claim,
    "CLAIMED": claimed,
    "HELD": held,
    "INSERT_EXECUTIONS": insert_executions,
    "INSERT_CALLBACKS": insert_callbacks,
    "OWNERS": owners,
    "CLAIMS_OF": claims_of,
    "CALLBACK_OWNERS": callback_owners,
    "CALLBACKS_OF": callbacks_of,
    "MOVE_CALLBACKS": move_callbacks,
    "CALLBACK_DONE": callback_done,
    "HEARTBEAT": heartbeat,
    "NODES": nodes,
    "FORGET_NODE": forget_node,
    "HISTORY": history,
    "SETTLED_IDS": settled_ids,
    "DELETE_JOBS": lambda d: _delete_by_ids(d, job.c.id),
    "DELETE_TAGS": lambda d: _delete_by_ids(d, job_tag.c.job_id),
    "DELETE_EXECUTIONS": lambda d: _delete_by_ids(d, execution.c.job_id),
    "DELETE_CALLBACKS": lambda d: _delete_by_ids(d, callback.c.job_id),
    "COUNTS": counts,
    **{
        "TRANSITION_" + row.trigger.name: (lambda d, row=row: transition(d, row))  # type: ignore[misc]
        for row in TABLE
        if row.trigger is not Trigger.CLAIM
    },
}
