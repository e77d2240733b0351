"""What may be kept of an error (specification, section 7)."""

from __future__ import annotations

from typing import Protocol, runtime_checkable


@runtime_checkable
class ErrorSanitizer(Protocol):
    """Turns an exception into text that may be stored, logged and published.

    Contracts: ES-01 ... ES-07.
    """

    def sanitize(self, error: BaseException) -> str:
        """``module.QualName: message`` without secrets, at most 2,000 characters, never empty.

        One that raises, or answers anything but text, is replaced by the default for that error.
        """
        ...
