"""What `import ratchet` may load: no driver, no framework, no extra."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = (
    "sqlalchemy", "alembic", "sqlite3", "psycopg", "pymysql", "pymongo", "motor", "bson",
    "typer", "click", "rich", "pydantic_settings", "pytest",
)  # fmt: skip


def loaded_by(statement: str) -> set[str]:
    """The modules that a fresh interpreter has after `statement`."""
    code = f"import sys; {statement}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


@pytest.mark.parametrize("statement", ["import ratchet", "import ratchet.spi.store"])
def test_the_import_is_light(statement: str) -> None:
    """The import loads nothing that belongs to a store, a command line or a test."""
    assert not loaded_by(statement) & set(HEAVY)
