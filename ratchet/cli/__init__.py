"""The command ``ratchet``: runs the command line and turns what it raises into a sentence and an exit code.

Exit codes: 0 done (a worker: drained), 1 error, 2 wrong usage or configuration, 70 a worker with stuck bodies.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Sequence
from typing import Final

OK: Final = 0
ERROR: Final = 1
USAGE: Final = 2
STUCK: Final = 70
"""EX_SOFTWARE of sysexits.h: the node had bodies that nothing could end; start a new one."""

_EXTRA: Final = frozenset({"typer", "rich", "click"})


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; answers the exit code.

    Args:
        arguments: without the program's name; None: those of this process. ``--debug`` may stand anywhere
            and adds the traceback to an error.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in words
    if debug:
        words.remove("--debug")
    collects = gc.isenabled()
    if words[:1] == ["worker"]:
        gc.disable()  # what is made while loading is no garbage: looking for it is a tenth of the way to the first job
    try:
        return _run(words)
    except BrokenPipeError:
        # The reader of a pipe has gone (``| head``). What is still buffered has nowhere to go.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ERROR
    except KeyboardInterrupt:
        print("ratchet: interrupted", file=sys.stderr)
        return 130
    except Exception as error:  # noqa: BLE001 - the last frame of a command: a sentence, never a traceback
        if debug:
            import traceback

            traceback.print_exc()
        code, sentence = _told(error)
        from ratchet.cli.plain import plain

        print(f"ratchet: {plain(sentence)}", file=sys.stderr)
        return code
    finally:
        if collects:
            gc.enable()


def _run(words: list[str]) -> int:
    try:
        if words[:1] == ["worker"]:
            from ratchet.cli.work import app
        else:
            from ratchet.cli.app import app  # the same, with every other command added to it
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _EXTRA:
            raise
        print(
            f"ratchet: the command line needs the extra 'cli' ({error.name} is not installed); "
            "install it with: pip install 'ratchet-jobs[cli]'",
            file=sys.stderr,
        )
        return USAGE
    try:
        app(args=words, prog_name="ratchet")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else (OK if end.code is None else ERROR)
    return OK


def _told(error: Exception) -> tuple[int, str]:
    from ratchet.defaults.sanitizer import sanitize_text
    from ratchet.errors import ConfigurationError, RatchetError, UsageError

    sentence = sanitize_text(" ".join(str(error).split()))
    if isinstance(error, (UsageError, ConfigurationError)):
        return USAGE, sentence
    if isinstance(error, RatchetError):
        return getattr(error, "exit_code", ERROR), sentence
    return (
        ERROR,
        f"unexpected {type(error).__name__}: {sentence} (run it again with --debug for the traceback)",
    )
