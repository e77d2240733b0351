"""The shipped error sanitizer: what may be kept of an exception, without secrets (specification, section 7).

The patterns are imported with the first text: compiling them takes as long as starting a node.
"""

from __future__ import annotations

from typing import Final, Protocol

MAX_LENGTH: Final = 2_000
MAX_NAME: Final = 200


class _Sanitizer(Protocol):
    def sanitize(self, error: BaseException) -> str: ...


class DefaultErrorSanitizer:
    """``module.QualName: message``, a builtin without its module: ``ValueError: message``.

    Only the type and the message are kept: no cause, notes, arguments or traceback. From the message
    these are replaced by ``***REDACTED***``: URLs that contain credentials, whole; the values of
    ``key=value``, ``key: value`` and JSON secrets (password, secret, token, api_key, authorization,
    ...); bearer and basic tokens; e-mail addresses; private keys and the key formats of common
    services. Where it cannot tell it removes too much rather than too little.

    An exception that cannot be printed is kept by its name. One whose ``__str__`` blocks delays only
    the slot that it runs in.
    """

    __slots__ = ()

    def sanitize(self, error: BaseException) -> str:
        """Never raises; never empty; at most 2,000 characters."""
        name = _name_of(type(error))
        try:
            printed = str(error)
        # A __str__ that raises KeyboardInterrupt or SystemExit fails like any other.
        except BaseException:  # noqa: BLE001
            return f"{name} (its message could not be printed)"
        message = self.sanitize_text(_exact(printed))
        return _shortened(f"{name}: {message}" if message else name, MAX_LENGTH)

    def sanitize_text(self, text: str, *, limit: int = MAX_LENGTH) -> str:
        """The text without secrets, at most `limit` characters (a log record may want more than 2,000)."""
        return sanitize_text(text, limit=limit)


def sanitize_text(text: str, *, limit: int = MAX_LENGTH) -> str:
    """The text without secrets, NUL and lone surrogates, in time linear in `limit`, not in the text.

    Args:
        text: any text.
        limit: at most so many characters are answered.
    """
    from ratchet.defaults.redaction import redact

    return _shortened(redact(text, enough=limit), limit)


def safe_sanitize(sanitizer: _Sanitizer, error: BaseException) -> str:
    """What `sanitizer` makes of `error`; if it raises or answers no text, what the default one makes of it.

    Never raises, never empty, at most 2,000 characters, without NUL and lone surrogates.
    """
    try:
        answer: object = sanitizer.sanitize(error)
        if isinstance(answer, str) and (text := _exact(answer).strip()):
            return _shortened(_clean(text[: MAX_LENGTH + 1]), MAX_LENGTH)
    # A failure path must end in a settled job whatever an extension does, SystemExit included.
    except BaseException:  # noqa: BLE001
        pass
    try:
        return DefaultErrorSanitizer().sanitize(error)
    except BaseException:  # noqa: BLE001  # out of memory or stack
        return _name_of(type(error))


def _name_of(cls: type[BaseException]) -> str:
    try:
        module, qualname = _exact(cls.__module__), _exact(cls.__qualname__)
        name = qualname if module == "builtins" else f"{module}.{qualname}"
        return _clean(name[:MAX_NAME]) or "Exception"
    except BaseException:  # noqa: BLE001  # a metaclass may answer anything
        return "Exception"


def _exact(text: str) -> str:
    """A plain str of at most what is ever looked at; a subclass's own methods are not asked."""
    return str.__getitem__(text, slice(None, 1_000_000))


def _shortened(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _clean(text: str) -> str:
    from ratchet.defaults.redaction import clean

    return clean(text)
