"""``python -m ratchet`` is the command ``ratchet``."""

from __future__ import annotations

from ratchet.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
