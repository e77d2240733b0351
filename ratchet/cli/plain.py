"""Text for a terminal: what a job, a target or an error says is shown, and never obeyed."""

from __future__ import annotations

import re
from typing import Final

# C0 and C1 (escape sequences begin there), DEL, and the marks that turn the direction of what follows.
_OBEYED: Final = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)


def plain(text: str) -> str:
    r"""The text with control characters written out, like ``\x1b``; tabs and ends of lines stay."""
    return _OBEYED.sub(_written, text)


def _written(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
