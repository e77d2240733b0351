"""Answers: one JSON document for scripts, tables for people. Keys of the documents are stable."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from ratchet.cli.plain import plain
from ratchet.domain.job import Job
from ratchet.domain.lifecycle import Execution
from ratchet.spi.store import Health, Node

if TYPE_CHECKING:
    from rich.console import Console

WIDTH_WITHOUT_TERMINAL = 200


def say(document: Mapping[str, object]) -> None:
    """Write the JSON document."""
    sys.stdout.write(json.dumps(document, indent=2, ensure_ascii=True) + "\n")
    sys.stdout.flush()


def line(text: str) -> None:
    """Write one line for a person."""
    sys.stdout.write(plain(text).replace("\n", "\\n") + "\n")
    sys.stdout.flush()


def console() -> Console:
    """Rich's console on standard output; a pipe gets lines that are not cut at 80 columns."""
    from rich.console import Console

    width = None if sys.stdout.isatty() else WIDTH_WITHOUT_TERMINAL
    return Console(width=width, highlight=False, soft_wrap=False)


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table; text is shown as it is, never as markup, and no terminal obeys it."""
    from rich.table import Table
    from rich.text import Text

    shown = Table(
        title=Text(plain(title)), title_justify="left", box=None, pad_edge=False, header_style="bold"
    )
    for column in columns:
        shown.add_column(column, overflow="fold")
    for row in rows:
        shown.add_row(*(Text("" if cell is None else plain(str(cell))) for cell in row))
    console().print(shown)


# -- documents ------------------------------------------------------------------------------------


def instant(value: datetime | None) -> str | None:
    """ISO 8601 in UTC with milliseconds."""
    return None if value is None else value.isoformat(timespec="milliseconds")


def seconds(value: timedelta | None) -> float | None:
    """A duration as it is written in documents."""
    return None if value is None else round(value.total_seconds(), 3)


def job_document(job: Job) -> dict[str, object]:
    """A job. Arguments, params and result are the codec's own text."""
    return {
        "id": str(job.id),
        "status": str(job.status),
        "target": job.target,
        "type": str(job.type),
        "executor": job.executor,
        "priority": job.priority.name,
        "tags": sorted(job.tags),
        "business_key": job.business_key,
        "idempotency_key": job.idempotency_key,
        "principal": job.principal,
        "resource": job.resource,
        "scheduled_time": instant(job.scheduled_time),
        "created_at": instant(job.created_at),
        "updated_at": instant(job.updated_at),
        "started_at": instant(job.started_at),
        "ended_at": instant(job.ended_at),
        "duration_seconds": seconds(job.duration),
        "queue_wait_seconds": seconds(job.queue_wait),
        "timeout_seconds": seconds(job.timeout),
        "attempts": job.attempts,
        "max_retries": job.max_retries,
        "crash_count": job.crash_count,
        "claim_seq": job.claim_seq,
        "version": job.version,
        "picked_by": job.picked_by,
        "picked_at": instant(job.picked_at),
        "paused_from_status": None if job.paused_from_status is None else str(job.paused_from_status),
        "superseded_by": None if job.superseded_by is None else str(job.superseded_by),
        "last_error": job.last_error,
        "payload": job.payload,
        "params": dict(job.params),
        "result": job.result,
    }


def execution_document(execution: Execution) -> dict[str, object]:
    """One ended claim."""
    return {
        "claim_seq": execution.claim_seq,
        "attempt": execution.attempt,
        "end": str(execution.end),
        "trigger": str(execution.trigger),
        "node": execution.node,
        "picked_at": instant(execution.picked_at),
        "started_at": instant(execution.started_at),
        "ended_at": instant(execution.ended_at),
        "duration_seconds": seconds(execution.duration),
        "error": execution.error,
    }


def node_document(node: Node) -> dict[str, object]:
    """A registered node."""
    info = node.info
    return {
        "name": info.name,
        "incarnation": info.incarnation,
        "state": info.state,
        "host": info.host,
        "pid": info.pid,
        "started_at": instant(node.started_at),
        "last_heartbeat": instant(node.last_heartbeat),
        "age_seconds": seconds(node.age),
        "detail": dict(info.detail),
    }


def health_document(health: Health, nodes: Sequence[Node]) -> dict[str, object]:
    """The state of the queue."""
    return {
        "now": instant(health.now),
        "by_status": {str(key): value for key, value in health.by_status.items()},
        "pending_by_priority": {key.name: value for key, value in health.pending_by_priority.items()},
        "pending_by_type": {str(key): value for key, value in health.pending_by_type.items()},
        "oldest_due_age_seconds": seconds(health.oldest_due_age),
        "window_seconds": seconds(health.window),
        "throughput_per_second": health.throughput,
        "success_rate": health.success_rate,
        "p50_seconds": seconds(health.p50),
        "p95_seconds": seconds(health.p95),
        "p99_seconds": seconds(health.p99),
        "nodes": len(nodes),
        "unhealthy_nodes": sorted(node.info.name for node in nodes if node.info.state == "unhealthy"),
        "unresolved": sorted({each for node in nodes for each in _list(node.info.detail.get("unresolved"))}),
    }


def _list(text: str | None) -> list[str]:
    return [each.strip() for each in (text or "").split(";") if each.strip()]


# -- short forms for people -----------------------------------------------------------------------


def when(value: datetime | None) -> str:
    """An instant in a table."""
    return "" if value is None else f"{value:%Y-%m-%d %H:%M:%S}"


def took(value: timedelta | None) -> str:
    """A duration in a table."""
    if value is None:
        return ""
    total = value.total_seconds()
    if total < 1:
        return f"{total * 1000:.0f} ms"
    if total < 120:
        return f"{total:.1f} s"
    return str(timedelta(seconds=round(total)))


def short(text: str | None, limit: int = 100) -> str:
    """One line of at most `limit` characters."""
    flat = " ".join((text or "").split())
    return flat if len(flat) <= limit else flat[: limit - 1] + "…"
