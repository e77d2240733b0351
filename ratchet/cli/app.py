"""The whole tree of commands."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from ratchet.cli import conformance, dlq, doctor, jobs, operate
from ratchet.cli.options import Json
from ratchet.cli.work import app

__all__ = ["app"]

app.add_typer(jobs.app, name="jobs")
app.add_typer(dlq.app, name="dlq")
app.add_typer(operate.schema, name="schema")
app.command("health")(operate.health)
app.command("nodes")(operate.nodes)
app.command("doctor")(doctor.doctor)
app.command("conformance")(conformance.conformance)


@app.command("demo")
def demo(
    keep: Annotated[bool, typer.Option("--keep", help="Keep the database and the workers' log.")] = False,
    json: Json = False,
) -> None:
    """Index the standard library with two workers, kill one of them on the way, and check the result.

    Takes well under a minute. Exit code 1 if the result differs from an independent count.
    """
    from ratchet.cli.demo import run_demo

    sys.exit(run_demo(keep=keep, json=json))
