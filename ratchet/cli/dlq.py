"""``ratchet dlq``: the jobs that failed for good, and new lives for them."""

from __future__ import annotations

from typing import Annotated

import typer

from ratchet.cli import show
from ratchet.cli.options import (
    App,
    AppDir,
    ErrorFilter,
    Json,
    KeyFilter,
    PrincipalFilter,
    PriorityFilter,
    TagFilter,
    TargetFilter,
    TypeFilter,
    Url,
    opened,
    selection_of,
)
from ratchet.domain.lifecycle import Status
from ratchet.errors import UsageError
from ratchet.spi.store import OnConflict

app = typer.Typer(help="The jobs that failed for good.", no_args_is_help=True, rich_markup_mode=None)


@app.command("list")
def list_(
    app: App = None,
    app_dir: AppDir = None,
    url: Url = None,
    tag: TagFilter = None,
    priority: PriorityFilter = None,
    type: TypeFilter = None,
    target: TargetFilter = None,
    error: ErrorFilter = None,
    business_key: KeyFilter = None,
    principal: PrincipalFilter = None,
    limit: Annotated[int, typer.Option("--limit", help="1 to 1000.")] = 50,
    cursor: Annotated[
        str | None, typer.Option("--cursor", help="Where the page before ended; from its --json.")
    ] = None,
    json: Json = False,
) -> None:
    """One page of failed jobs with their reasons, latest first."""
    selection = selection_of(
        status=[Status.FAILED.name],
        tag=tag,
        priority=priority,
        type=type,
        target=target,
        error=error,
        business_key=business_key,
        principal=principal,
    )
    with opened(app, app_dir, url) as scheduler:
        page = scheduler.query.find(selection, order="ended_desc", limit=limit, cursor=cursor)
    if json:
        show.say({"jobs": [show.job_document(job) for job in page.jobs], "cursor": page.cursor})
        return
    more = "" if page.cursor is None else ", and there are more"
    show.table(
        f"{len(page.jobs)} failed jobs{more}",
        ("id", "target", "failed at (UTC)", "attempts", "crashes", "reason"),
        [
            (
                job.id,
                job.target,
                show.when(job.ended_at),
                job.attempts,
                job.crash_count,
                show.short(job.last_error),
            )
            for job in page.jobs
        ],
    )


@app.command()
def retry(
    app: App = None,
    app_dir: AppDir = None,
    url: Url = None,
    tag: TagFilter = None,
    priority: PriorityFilter = None,
    type: TypeFilter = None,
    target: TargetFilter = None,
    error: ErrorFilter = None,
    business_key: KeyFilter = None,
    principal: PrincipalFilter = None,
    all: Annotated[bool, typer.Option("--all", help="Without any filter.")] = False,
    limit: Annotated[int, typer.Option("--limit", help="1 to 1000, oldest first.")] = 1000,
    on_conflict: Annotated[
        str,
        typer.Option(
            "--on-conflict", help="A business key is in use: abort (change nothing) or skip (leave that job)."
        ),
    ] = "abort",
    json: Json = False,
) -> None:
    """Give failed jobs a new life: attempts and crashes 0, due now. Needs a filter, or --all."""
    filters = (tag, priority, type, target, error, business_key, principal)
    if any(filters) == all:
        raise UsageError("say which: filters like --target or --error, or --all for every failed job")
    choices: dict[str, OnConflict] = {"abort": "abort", "skip": "skip"}
    if on_conflict not in choices:
        raise UsageError(f"--on-conflict is abort or skip, not {on_conflict!r}")
    selection = selection_of(
        tag=tag,
        priority=priority,
        type=type,
        target=target,
        error=error,
        business_key=business_key,
        principal=principal,
    )
    with opened(app, app_dir, url) as scheduler:
        chosen = scheduler.retry_all(selection, limit=limit, on_conflict=choices[on_conflict])
    if json:
        skipped = {str(key): why for key, why in chosen.skipped.items()}
        show.say({"count": len(chosen.ids), "ids": [str(each) for each in chosen.ids], "skipped": skipped})
        return
    show.line(f"{len(chosen.ids)} requeued")
    for key, why in chosen.skipped.items():
        show.line(f"{key} not requeued: {why}")
