"""The root of the commands and ``ratchet worker``, which is built alone: the others would delay its first job."""

from __future__ import annotations

import gc
import sys
from pathlib import Path
from typing import Annotated

import typer

from ratchet.errors import UsageError

# Markup is off: it would import rich for every command, and a worker has no use for it.
app = typer.Typer(
    name="ratchet",
    help="A persistent job scheduler: run workers, look at jobs, change them.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _version(value: bool) -> None:
    if value:
        import ratchet

        typer.echo(f"ratchet {ratchet.__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the traceback of an error; may stand anywhere.")
    ] = False,
) -> None:
    """A persistent job scheduler: run workers, look at jobs, change them."""


@app.command()
def worker(
    app: Annotated[str, typer.Argument(metavar="APP", help="MODULE:NAME, like shop.jobs:scheduler.")],
    app_dir: Annotated[
        Path | None, typer.Option("--app-dir", help="Where the application's modules are [default: .].")
    ] = None,
    processes: Annotated[
        int, typer.Option("--processes", min=1, max=256, help="So many worker processes.")
    ] = 1,
    threads: Annotated[
        int | None, typer.Option("--threads", min=0, help="Slots for plain functions, per process.")
    ] = None,
    async_: Annotated[
        int | None, typer.Option("--async", min=0, help="Slots for async functions, per process.")
    ] = None,
    process_slots: Annotated[
        int | None,
        typer.Option(
            "--process-slots", min=0, help="Slots for bodies in children of their own, per process."
        ),
    ] = None,
    name: Annotated[str | None, typer.Option("--name", help="Stable node name [default: HOST:PID].")] = None,
    stop_timeout: Annotated[
        float, typer.Option("--stop-timeout", min=0.0, help="Seconds that a shutdown may take.")
    ] = 25.0,
    log_level: Annotated[
        str | None, typer.Option("--log-level", help="DEBUG, INFO, WARNING, ERROR or CRITICAL.")
    ] = None,
    log_json: Annotated[bool, typer.Option("--log-json", help="Log one JSON object a line.")] = False,
) -> None:
    """Execute jobs until SIGTERM or SIGINT; a second signal does not wait for running bodies.

    Exit codes: 0 drained, 1 error, 2 usage, 70 bodies were stuck.
    """
    if log_level is not None and log_level.upper() not in (
        "DEBUG",
        "INFO",
        "WARNING",
        "ERROR",
        "CRITICAL",
    ):
        raise UsageError(f"--log-level is DEBUG, INFO, WARNING, ERROR or CRITICAL, not {log_level!r}")
    if processes > 1:
        from ratchet.cli import logs
        from ratchet.cli.supervisor import Supervisor

        gc.enable()
        logs.configure(log_level, as_json=log_json)
        words: list[str] = [app]
        for option, value in (
            ("--app-dir", app_dir),
            ("--threads", threads),
            ("--async", async_),
            ("--process-slots", process_slots),
            ("--stop-timeout", stop_timeout),
            ("--log-level", log_level),
        ):
            if value is not None:
                words += [option, str(value)]
        if log_json:
            words.append("--log-json")
        supervisor = Supervisor(words, processes=processes, name=name, stop_timeout=stop_timeout)
        sys.exit(supervisor.run())

    from ratchet.cli.worker import WorkerOptions, run_worker

    sys.exit(
        run_worker(
            WorkerOptions(
                app=app,
                app_dir=app_dir,
                threads=threads,
                async_=async_,
                process_slots=process_slots,
                name=name,
                stop_timeout=stop_timeout,
                log_level=log_level,
                log_json=log_json,
            )
        )
    )
