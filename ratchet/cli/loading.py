"""From ``shop.jobs:scheduler`` to the scheduler it names."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from traceback import extract_tb
from typing import Final

from ratchet.errors import ConfigurationError, RatchetError
from ratchet.scheduler import Scheduler
from ratchet.settings import Settings


class AppNotFound(ConfigurationError):
    """APP names nothing that could be found, or no scheduler."""


class AppFailed(RatchetError):
    """The application's own module raised while it was imported."""


class AppInterrupted(RatchetError):
    """A KeyboardInterrupt, of somebody's Ctrl-C or of the module's own, while the application was imported."""

    exit_code: Final = 130


def load_scheduler(app: str, app_dir: Path | None = None) -> Scheduler:
    """The scheduler that `app` names, with its folder put on the import path.

    Args:
        app: ``module:attribute``; the attribute is a `Scheduler`, or a function without arguments that
            makes one.
        app_dir: where its modules are; None: the working directory.

    Raises:
        AppNotFound: no such folder, module or attribute, or something else than a scheduler.
        AppFailed: the application's code raised.
    """
    module_name, colon, attribute = app.partition(":")
    if not colon or not all(part.isidentifier() for part in (*module_name.split("."), *attribute.split("."))):
        raise AppNotFound(
            f"{app!r} does not name a scheduler; write MODULE:NAME, like shop.jobs:scheduler"
            + (f" (not the file's path: {_dotted(module_name)}:scheduler)" if _dotted(module_name) else "")
        )
    folder = (app_dir or Path.cwd()).absolute()
    if not folder.is_dir():
        raise AppNotFound(f"--app-dir {folder} is not a folder")
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    found: object = _import(module_name, folder)
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise AppNotFound(f"module {module_name!r} has no {attribute!r}{_offer(module_name)}")
        found = getattr(found, part)
    if not isinstance(found, Scheduler) and callable(found):
        _check_maker(app, found)
        with _own_failures(module_name, f"{attribute}()"):
            found = found()
    if not isinstance(found, Scheduler):
        raise AppNotFound(f"{app} is not a Scheduler but {type(found).__name__}{_offer(module_name)}")
    return found


def _check_maker(app: str, found: Callable[..., object]) -> None:
    """Refuse to call what is no function without arguments; it might do anything."""
    try:
        signature = inspect.signature(found)
        signature.bind()
    except (TypeError, ValueError) as error:
        raise AppNotFound(
            f"{app} is no Scheduler, nor a function without arguments that makes one ({error}); "
            "write MODULE:NAME, like shop.jobs:scheduler"
        ) from None


def _dotted(path: str) -> str:
    return path.removesuffix(".py").replace("/", ".") if "/" in path or path.endswith(".py") else ""


def _offer(module_name: str) -> str:
    there = [name for name, value in vars(sys.modules[module_name]).items() if isinstance(value, Scheduler)]
    return f"; its schedulers are: {', '.join(there)}" if there else "; it has no Scheduler at module level"


def _import(module_name: str, folder: Path) -> object:
    with _own_failures(module_name, "being imported"):
        try:
            return importlib.import_module(module_name)
        except ModuleNotFoundError as error:
            missing = error.name or ""
            if module_name != missing and not module_name.startswith(missing + "."):
                raise
            raise AppNotFound(
                f"there is no module {missing!r} in {folder} nor on the import path; "
                "name its folder with --app-dir"
            ) from error


@contextmanager
def _own_failures(module_name: str, doing: str) -> Iterator[None]:
    """Say which line of the application raised; what Ratchet itself raises says it already."""
    try:
        yield
    except RatchetError:
        raise
    except KeyboardInterrupt as error:
        raise AppInterrupted(f"interrupted while {module_name} was {doing}{_place(error)}") from error
    except BaseException as error:
        where = _place(error)
        raise AppFailed(f"{module_name}, {doing}, raised {type(error).__name__}: {error}{where}") from error


def _place(error: BaseException) -> str:
    """Where in the application it came from; empty if nowhere there."""
    if isinstance(error, SyntaxError) and error.filename is not None:
        return f" at {error.filename}:{error.lineno}"
    frames = [
        each
        for each in extract_tb(error.__traceback__)
        if "importlib" not in each.filename and each.filename != __file__
    ]
    return f" at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""


def overridden(
    settings: Settings,
    *,
    threads: int | None = None,
    async_: int | None = None,
    processes: int | None = None,
    name: str | None = None,
) -> Settings:
    """`settings` with what was given on the command line.

    Raises:
        ConfigurationError: they do not fit.
    """
    execution, node = settings.execution, settings.node
    execution = replace(
        execution,
        threads=execution.threads if threads is None else threads,
        async_=execution.async_ if async_ is None else async_,
        processes=execution.processes if processes is None else processes,
    )
    return replace(settings, execution=execution, node=node if name is None else replace(node, name=name))
