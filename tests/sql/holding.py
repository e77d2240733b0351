"""Program of test_faults and test_waiting: holds the file's write lock from "held" until told to let go."""

from __future__ import annotations

import sqlite3
import sys

connection = sqlite3.connect(sys.argv[1].removeprefix("sqlite:///"), isolation_level=None)
connection.execute("BEGIN IMMEDIATE")
print("held", flush=True)
sys.stdin.readline()
connection.execute("ROLLBACK")
print("free", flush=True)
