"""Every ```python block of the README and of docs/ runs, as a reader would run it.

The blocks of one page share a namespace, one after the other, in an empty working directory. A block
whose first line is a comment with a path (``# shop/jobs.py``) is saved there first and imported, so
that its functions are importable, as job functions must be; its names are then visible to the blocks
below it. A block that cannot run says why in the line above it: ``<!-- no-run: needs a server -->``.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])

_BLOCK = re.compile(
    r"^(?P<mark><!--[^\n]*-->\n+)?(?P<indent>[ ]*)```python[^\n]*\n(?P<code>.*?)^(?P=indent)```[ ]*$",
    re.DOTALL | re.MULTILINE,
)
_NO_RUN = re.compile(r"<!-- no-run: \S.* -->")
_SAVED_AS = re.compile(r"# (?P<path>[\w/]+\.py)$")


@dataclass(frozen=True)
class Block:
    """One block: its code padded so that line numbers in tracebacks are the page's."""

    code: str
    runs: bool
    saved_as: str | None


def blocks(text: str) -> Iterator[Block]:
    """The python blocks of a page, in order."""
    for match in _BLOCK.finditer(text):
        mark, indent = (match["mark"] or "").strip(), match["indent"]
        if "no-run" in mark:
            assert _NO_RUN.fullmatch(mark), f"a no-run mark gives its reason: {mark}"
        lines = [line.removeprefix(indent) for line in match["code"].splitlines()]
        saved = _SAVED_AS.match(lines[0]) if lines else None
        padding = "\n" * text.count("\n", 0, match.start("code"))
        yield Block(padding + "\n".join(lines) + "\n", "no-run" not in mark, saved["path"] if saved else None)


def run_page(text: str, page: str, folder: Path) -> int:
    """Run the blocks of a page in `folder` (the working directory, importable); how many ran."""
    namespace = ModuleType("snippets")
    ran = 0
    for block in blocks(text):
        if not block.runs:
            continue
        if block.saved_as is None:
            exec(compile(block.code, page, "exec"), namespace.__dict__)
        else:
            target = folder / block.saved_as
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(block.code, encoding="utf-8")
            importlib.invalidate_caches()
            module = importlib.import_module(block.saved_as.removesuffix(".py").replace("/", "."))
            public = {name: value for name, value in vars(module).items() if not name.startswith("__")}
            namespace.__dict__.update(public)
        ran += 1
    return ran


@pytest.fixture
def page_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty working directory from which the page's own modules are imported, and forgotten."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        location = getattr(sys.modules[name], "__file__", None)
        if location and Path(location).is_relative_to(tmp_path):
            del sys.modules[name]


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_page(page: Path, page_folder: Path) -> None:
    """Every block of the page runs without an error."""
    run_page(page.read_text(encoding="utf-8"), str(page), page_folder)


def test_a_failing_block_fails_at_its_line(page_folder: Path) -> None:
    """A broken snippet fails the page, and the traceback names the page's own line."""
    text = "# Title\n\n```python\nx = 1\n```\n\nmore\n\n```python\nassert x == 2\n```\n"
    with pytest.raises(AssertionError) as caught:
        run_page(text, "page.md", page_folder)
    assert caught.traceback[-1].lineno == 9  # counted from 0


def test_saved_blocks_are_importable_modules(page_folder: Path) -> None:
    """A block saved under a path is a real module whose functions later blocks can use."""
    saved = "```python\n# shop/jobs.py\ndef f(): return 7\n```\n"
    text = f"{saved}\n```python\nassert f() == 7\nassert f.__module__ == 'shop.jobs'\n```\n"
    assert run_page(text, "page.md", page_folder) == 2


def test_a_no_run_mark_skips_one_block_and_needs_a_reason(page_folder: Path) -> None:
    """Only the block under the mark is left out, and a mark without a reason is an error."""
    text = "<!-- no-run: needs a server -->\n```python\n1 / 0\n```\n\n```python\npass\n```\n"
    assert run_page(text, "page.md", page_folder) == 1
    with pytest.raises(AssertionError, match="reason"):
        run_page("<!-- no-run -->\n```python\npass\n```\n", "page.md", page_folder)
