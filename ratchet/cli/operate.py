"""``ratchet health``, ``nodes`` and ``schema``."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

import typer

from ratchet.cli import ERROR, show
from ratchet.cli.options import App, AppDir, Json, Url, opened
from ratchet.errors import ConfigurationError
from ratchet.scheduler import Scheduler
from ratchet.spi.plugin import SchemaStore

schema = typer.Typer(help="The schema of the store's database.", no_args_is_help=True, rich_markup_mode=None)


def health(
    app: App = None,
    app_dir: AppDir = None,
    url: Url = None,
    window: Annotated[
        float, typer.Option("--window", min=1.0, help="Rates and durations over so many seconds.")
    ] = 3600.0,
    json: Json = False,
) -> None:
    """Counts by state, what waits, rates and durations, unhealthy nodes, targets that nobody resolves."""
    with opened(app, app_dir, url) as scheduler:
        state = scheduler.query.health(window=timedelta(seconds=window))
        nodes = scheduler.query.nodes()
    document = show.health_document(state, nodes)
    if json:
        show.say(document)
        return
    facts: list[tuple[str, object]] = [(str(key), value) for key, value in state.by_status.items()]
    show.table("jobs by state", ("state", "jobs"), facts)
    waiting = [(key.name, value) for key, value in state.pending_by_priority.items() if value]
    if waiting:
        show.table("\npending by priority", ("priority", "jobs"), waiting)
    rate = "" if state.success_rate is None else f"{state.success_rate:.1%}"
    show.table(
        f"\nover the last {show.took(state.window)}",
        ("", ""),
        [
            ("settled per second", f"{state.throughput:.2f}"),
            ("success rate", rate),
            ("duration p50 / p95 / p99", " / ".join(map(show.took, (state.p50, state.p95, state.p99)))),
            ("oldest due job has waited", show.took(state.oldest_due_age)),
            ("nodes", len(nodes)),
        ],
    )
    for node in nodes:
        if node.info.state == "unhealthy":
            show.line(f"node {node.info.name} is unhealthy: {node.info.detail.get('reason', '')}")
        if node.info.detail.get("unresolved"):
            show.line(f"node {node.info.name} cannot resolve: {node.info.detail['unresolved']}")


def nodes(app: App = None, app_dir: AppDir = None, url: Url = None, json: Json = False) -> None:
    """Every registered node, latest heartbeat first."""
    with opened(app, app_dir, url) as scheduler:
        found = scheduler.query.nodes()
    if json:
        show.say({"nodes": [show.node_document(node) for node in found]})
        return
    show.table(
        f"{len(found)} nodes",
        ("name", "state", "host", "pid", "started (UTC)", "heartbeat", "detail"),
        [
            (
                node.info.name,
                node.info.state,
                node.info.host,
                node.info.pid,
                show.when(node.started_at),
                f"{show.took(node.age)} ago",
                ", ".join(f"{key} {value}" for key, value in node.info.detail.items()),
            )
            for node in found
        ],
    )


def _schema_of(scheduler: Scheduler) -> SchemaStore:
    if isinstance(scheduler.store, SchemaStore):
        return scheduler.store
    raise ConfigurationError(f"{type(scheduler.store).__name__} has no schema; there is nothing to upgrade")


@schema.command()
def status(app: App = None, app_dir: AppDir = None, url: Url = None, json: Json = False) -> None:
    """The schema version found and the one this Ratchet wants; exit code 1 if they differ."""
    with opened(app, app_dir, url) as scheduler:
        found, wanted = _schema_of(scheduler).schema_status()
    if json:
        show.say({"found": found, "wanted": wanted, "current": found == wanted})
    elif found == wanted:
        show.line(f"version {found}, current")
    else:
        show.line(f"{'no schema' if found is None else f'version {found}'}, wanted is {wanted}")
    if found != wanted:
        raise typer.Exit(ERROR)


@schema.command()
def upgrade(app: App = None, app_dir: AppDir = None, url: Url = None, json: Json = False) -> None:
    """Bring the schema up to date; safe to run from several hosts at once."""
    with opened(app, app_dir, url) as scheduler:
        store = _schema_of(scheduler)
        applied = list(store.schema_upgrade())
        found, wanted = store.schema_status()
    if json:
        show.say({"applied": applied, "found": found, "wanted": wanted})
    else:
        show.line(
            f"applied {', '.join(map(str, applied))}" if applied else f"version {found}, already current"
        )
