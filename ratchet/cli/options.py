"""What every command takes: which scheduler or store, and how to answer."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, TypeAlias, TypeVar
from uuid import UUID

import typer

from ratchet.cli.loading import load_scheduler
from ratchet.domain.job import JobType
from ratchet.domain.lifecycle import Status
from ratchet.domain.options import clean_tags
from ratchet.domain.priority import Priority
from ratchet.errors import UsageError
from ratchet.scheduler import Scheduler
from ratchet.spi.store import Selection

App: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--app", metavar="MODULE:NAME", help="The application's scheduler, like shop.jobs:scheduler."
    ),
]
AppDir: TypeAlias = Annotated[
    Path | None, typer.Option("--app-dir", help="Where the application's modules are [default: .].")
]
Url: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--url", help="The store, like sqlite:///jobs.db [default: $RATCHET_URL]; instead of --app."
    ),
]
Json: TypeAlias = Annotated[bool, typer.Option("--json", help="One JSON document on standard output.")]

StatusFilter: TypeAlias = Annotated[
    list[str] | None, typer.Option("--status", help="In this state; may be given several times.")
]
TagFilter: TypeAlias = Annotated[
    list[str] | None, typer.Option("--tag", help="Carrying this tag; several: all of them.")
]
PriorityFilter: TypeAlias = Annotated[
    list[str] | None, typer.Option("--priority", help="LOWEST, LOW, NORMAL, HIGH or CRITICAL.")
]
TypeFilter: TypeAlias = Annotated[list[str] | None, typer.Option("--type", help="SINGLE, BATCH, ...")]
TargetFilter: TypeAlias = Annotated[
    str | None, typer.Option("--target", help="Whose target contains this text.")
]
ErrorFilter: TypeAlias = Annotated[
    str | None, typer.Option("--error", help="Whose last error contains this text.")
]
KeyFilter: TypeAlias = Annotated[str | None, typer.Option("--business-key", help="With this business key.")]
PrincipalFilter: TypeAlias = Annotated[
    str | None, typer.Option("--principal", help="Submitted for this principal.")
]

T = TypeVar("T", Status, Priority, JobType)


@contextmanager
def opened(app: str | None, app_dir: Path | None, url: str | None) -> Iterator[Scheduler]:
    """The scheduler that a command works on; its store is closed afterwards.

    Raises:
        UsageError: neither was named, or both.
    """
    if app is not None and url is not None:
        raise UsageError("give --app or --url, not both")
    if app is None and url is None and not os.environ.get("RATCHET_URL"):
        raise UsageError("say which jobs: --app MODULE:NAME, --url URL, or set RATCHET_URL")
    scheduler = Scheduler.from_url(url) if app is None else load_scheduler(app, app_dir)
    try:
        yield scheduler
    finally:
        scheduler.store.close()


def selection_of(
    *,
    status: Sequence[str] | None = None,
    tag: Sequence[str] | None = None,
    priority: Sequence[str] | None = None,
    type: Sequence[str] | None = None,
    target: str | None = None,
    error: str | None = None,
    business_key: str | None = None,
    principal: str | None = None,
) -> Selection:
    """The jobs that the filters of a command name.

    Raises:
        UsageError: a word that is none of those there are.
    """
    return Selection(
        statuses=_words("--status", status, {each.name: each for each in Status}),
        tags=clean_tags(tag or ()),
        priorities=_words("--priority", priority, {each.name: each for each in Priority}),
        types=_words("--type", type, {each.name: each for each in JobType}),
        target=target,
        error=error,
        business_key=business_key,
        principal=principal,
    )


def _words(option: str, given: Sequence[str] | None, known: dict[str, T]) -> frozenset[T]:
    found = set()
    for word in given or ():
        value = known.get(word.strip().upper().replace("-", "_"))
        if value is None:
            raise UsageError(f"{option} is one of {', '.join(known)}, not {word!r}")
        found.add(value)
    return frozenset(found)


def job_ids(texts: Sequence[str]) -> list[UUID]:
    """Job ids from the command line.

    Raises:
        UsageError: one of them is not a UUID.
    """
    ids = []
    for text in texts:
        try:
            ids.append(UUID(text))
        except ValueError as error:
            raise UsageError(f"{text!r} is not a job id; `ratchet jobs list` shows them") from error
    return ids
