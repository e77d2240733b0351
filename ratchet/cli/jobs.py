"""``ratchet jobs``: look at jobs and change them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated
from uuid import UUID

import typer

from ratchet.cli import ERROR, show
from ratchet.cli.options import (
    App,
    AppDir,
    ErrorFilter,
    Json,
    KeyFilter,
    PrincipalFilter,
    PriorityFilter,
    StatusFilter,
    TagFilter,
    TargetFilter,
    TypeFilter,
    Url,
    job_ids,
    opened,
    selection_of,
)
from ratchet.domain.job import Job
from ratchet.errors import JobNotFound, UsageError
from ratchet.scheduler import Scheduler
from ratchet.spi.store import Order

app = typer.Typer(help="Look at jobs and change them.", no_args_is_help=True, rich_markup_mode=None)

Ids = Annotated[list[str], typer.Argument(metavar="ID...", help="Job ids.")]
ORDERS: tuple[Order, ...] = ("created_desc", "created_asc", "id_asc", "ended_desc", "scheduled_asc")


def _order(text: str) -> Order:
    for order in ORDERS:
        if text.replace("-", "_") == order:
            return order
    raise UsageError(f"--order is one of {', '.join(ORDERS)}, not {text!r}")


@app.command("list")
def list_(
    app: App = None,
    app_dir: AppDir = None,
    url: Url = None,
    status: StatusFilter = None,
    tag: TagFilter = None,
    priority: PriorityFilter = None,
    type: TypeFilter = None,
    target: TargetFilter = None,
    error: ErrorFilter = None,
    business_key: KeyFilter = None,
    principal: PrincipalFilter = None,
    order: Annotated[
        str,
        typer.Option("--order", help="created_desc, created_asc, id_asc, ended_desc or scheduled_asc."),
    ] = "created_desc",
    limit: Annotated[int, typer.Option("--limit", help="1 to 1000.")] = 50,
    cursor: Annotated[
        str | None, typer.Option("--cursor", help="Where the page before ended; from its --json.")
    ] = None,
    json: Json = False,
) -> None:
    """One page of jobs, newest first."""
    selection = selection_of(
        status=status,
        tag=tag,
        priority=priority,
        type=type,
        target=target,
        error=error,
        business_key=business_key,
        principal=principal,
    )
    with opened(app, app_dir, url) as scheduler:
        page = scheduler.query.find(selection, order=_order(order), limit=limit, cursor=cursor)
    if json:
        show.say({"jobs": [show.job_document(job) for job in page.jobs], "cursor": page.cursor})
        return
    more = "" if page.cursor is None else ", and there are more"
    show.table(
        f"{len(page.jobs)} jobs{more}",
        ("id", "status", "target", "priority", "tags", "due (UTC)", "attempts", "took", "error"),
        [
            (
                job.id,
                job.status,
                job.target,
                job.priority.name,
                " ".join(sorted(job.tags)),
                show.when(job.scheduled_time),
                _attempts(job),
                show.took(job.duration),
                show.short(job.last_error, 60),
            )
            for job in page.jobs
        ],
    )


def _attempts(job: Job) -> str:
    crashes = f" (+{job.crash_count} crashes)" if job.crash_count else ""
    return f"{job.attempts}/{job.max_retries + 1}{crashes}"


@app.command("show")
def show_(
    id: Annotated[str, typer.Argument(help="The job's id.")],
    app: App = None,
    app_dir: AppDir = None,
    url: Url = None,
    json: Json = False,
) -> None:
    """One job with everything that is stored of it, and how each of its executions ended."""
    (job_id,) = job_ids([id])
    with opened(app, app_dir, url) as scheduler:
        detail = scheduler.query.detail(job_id)
    if detail is None:
        raise JobNotFound(f"no job has the id {job_id}")
    document = show.job_document(detail.job)
    history = [show.execution_document(each) for each in detail.history]
    if json:
        show.say({"job": document, "history": history})
        return
    facts = [(key, _cell(value)) for key, value in document.items() if value not in (None, [], {})]
    show.table(f"job {job_id}", ("field", "value"), facts)
    show.table(
        f"\n{len(history)} ended executions",
        ("claim", "attempt", "end", "node", "started (UTC)", "took", "error"),
        [
            (
                each.claim_seq,
                each.attempt,
                each.end,
                each.node,
                show.when(each.started_at),
                show.took(each.duration),
                show.short(each.error),
            )
            for each in detail.history
        ],
    )


def _cell(value: object) -> str:
    if isinstance(value, list):
        return " ".join(map(str, value))
    if isinstance(value, dict):
        return ", ".join(f"{key}={each}" for key, each in value.items())
    return str(value)


@app.command()
def cancel(
    ids: Annotated[list[str] | None, typer.Argument(metavar="[ID]...", help="Job ids.")] = None,
    tag: Annotated[
        list[str] | None,
        typer.Option(
            "--tag", help="Instead of ids: every job that has not begun and carries all these tags."
        ),
    ] = None,
    app: App = None,
    app_dir: AppDir = None,
    url: Url = None,
    json: Json = False,
) -> None:
    """Cancel jobs: those that have not begun at once, running ones by asking their bodies to stop."""
    if bool(ids) == bool(tag):
        raise UsageError("give job ids or --tag, one of them")
    if not tag:
        _each(ids or [], "canceled", Scheduler.cancel, app, app_dir, url, json)
        return
    with opened(app, app_dir, url) as scheduler:
        count = scheduler.cancel_tagged(*tag)
    if json:
        show.say({"action": "canceled", "count": count, "results": []})
    else:
        show.line(f"{count} canceled")


@app.command()
def pause(ids: Ids, app: App = None, app_dir: AppDir = None, url: Url = None, json: Json = False) -> None:
    """Suspend jobs that have not begun."""
    _each(ids, "paused", Scheduler.pause, app, app_dir, url, json)


@app.command()
def resume(ids: Ids, app: App = None, app_dir: AppDir = None, url: Url = None, json: Json = False) -> None:
    """Queue paused jobs again."""
    _each(ids, "resumed", Scheduler.resume, app, app_dir, url, json)


@app.command()
def retry(ids: Ids, app: App = None, app_dir: AppDir = None, url: Url = None, json: Json = False) -> None:
    """Give failed jobs a new life; `ratchet dlq retry` does so by filter."""
    _each(ids, "requeued", Scheduler.retry, app, app_dir, url, json)


def _each(
    texts: Sequence[str],
    action: str,
    change: Callable[[Scheduler, UUID], bool],
    app: str | None,
    app_dir: AppDir,
    url: str | None,
    json: bool,
) -> None:
    """Change one job after the other; exit code 1 if one of them could not be."""
    ids = job_ids(texts)
    results: list[dict[str, object]] = []
    with opened(app, app_dir, url) as scheduler:
        for job_id in ids:
            changed = change(scheduler, job_id)
            job = scheduler.get(job_id)
            status = None if job is None else str(job.status)
            results.append({"id": str(job_id), "changed": changed, "status": status})
    if json:
        count = sum(bool(each["changed"]) for each in results)
        show.say({"action": action, "count": count, "results": results})
    else:
        for each in results:
            state = f"is {each['status']}" if each["status"] else "is unknown"
            show.line(
                f"{each['id']} {action}" if each["changed"] else f"{each['id']} not {action}: it {state}"
            )
    if not all(each["changed"] for each in results):
        raise typer.Exit(ERROR)
