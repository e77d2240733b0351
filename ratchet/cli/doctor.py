"""``ratchet doctor``: whether a store is as it should be, and what to do where it is not."""

from __future__ import annotations

import typer

from ratchet.cli import ERROR, show
from ratchet.cli.options import App, AppDir, Json, Url, opened
from ratchet.doctor import examine
from ratchet.spi.doctor import Level


def doctor(app: App = None, app_dir: AppDir = None, url: Url = None, json: Json = False) -> None:
    """Check the store: reachable, schema and indexes, server, query plans, clock, nodes; changes nothing.

    Exit code 1 if anything is an error; warnings alone are 0.
    """
    with opened(app, app_dir, url) as scheduler:
        found = examine(scheduler.store, orphan_grace=scheduler.settings.node.orphan_grace)
    worst = max((each.level for each in found), key=list(Level).index)
    if json:
        show.say(
            {
                "level": str(worst),
                "findings": [
                    {"name": each.name, "level": str(each.level), "told": each.told} for each in found
                ],
            }
        )
    else:
        show.table(
            f"the store: {worst}",
            ("check", "", "found"),
            [(each.name, each.level, each.told) for each in found],
        )
    if worst is Level.ERROR:
        raise typer.Exit(ERROR)
