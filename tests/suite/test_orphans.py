"""What the suite starts in processes of its own ends with it, however it ends."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from ratchet.engine.identity import process_started
from tests.field_cases.kit import wait_until

PARENT = """
import sys, time
from functools import partial
from conformance_tests.processes import Elsewhere, work_until_killed
from ratchet.plugins import open_store

if __name__ == "__main__":
    child = Elsewhere(partial(open_store, "memory://orphans"), work_until_killed, "node")
    child.wait_until_ready()
    child.go()
    print(child.process.pid, flush=True)
    time.sleep(60)
"""


def test_a_worker_ends_with_the_suite_that_was_killed(tmp_path: Path) -> None:
    """A process that works until it is killed ends by itself when whoever would kill it has been killed."""
    (tmp_path / "parent.py").write_text(PARENT)
    parent = subprocess.Popen(
        [sys.executable, str(tmp_path / "parent.py")], stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    parent.kill()
    parent.wait(10)
    parent.stdout.close()
    wait_until(lambda: process_started(child) is None, 20, "the child ends without its parent")
