"""Error sanitizers: always text, never too long, and no secret in it."""

from __future__ import annotations

import pytest

from conformance_tests.spi.at_once import from_threads
from conformance_tests.spi.parts import shows
from conformance_tests.spi.raising import HOSTILE, ORDINARY, ShopError
from ratchet.spi.sanitizer import ErrorSanitizer

MOST = 2_000

SECRETS = {
    "password in a URL": ("cannot connect to postgresql://bob:hunter2secret@db:5432/shop", "hunter2secret"),
    "password=": ("login failed: user=bob password=hunter2secret host=db", "hunter2secret"),
    "token: ": ("refused, token: hunter2secret", "hunter2secret"),
    "api_key in JSON": ('bad request {"api_key": "hunter2secret", "id": 7}', "hunter2secret"),
    "authorization header": ("401 Authorization: Bearer hunter2secretabcdefgh", "hunter2secretabcdefgh"),
    "private key": (
        "bad key -----BEGIN PRIVATE KEY-----\nhunter2secretabc\n-----END PRIVATE KEY-----",
        "hunter2secretabc",
    ),
}


@shows("ES-01")
@pytest.mark.parametrize("kind", list(ORDINARY))
def test_text(made: ErrorSanitizer, kind: str) -> None:
    """Every error becomes a text of 1 to 2,000 characters that names its class."""
    error = ORDINARY[kind]()
    text = made.sanitize(error)
    assert isinstance(text, str)
    assert 0 < len(text.strip()) <= len(text) <= MOST
    assert kind == "text alone" or type(error).__qualname__ in text


@shows("ES-02")
def test_the_message_is_kept(made: ErrorSanitizer) -> None:
    """A message without secrets follows the class, as ``module.QualName: message``."""
    text = made.sanitize(ShopError("no such shop"))
    assert text == f"{ShopError.__module__}.{ShopError.__qualname__}: no such shop"


@shows("ES-03")
@pytest.mark.parametrize("kind", list(SECRETS))
def test_secrets(made: ErrorSanitizer, kind: str) -> None:
    """What looks like a secret is not in the text, nor are those of causes and notes."""
    message, secret = SECRETS[kind]
    error = ShopError(message)
    error.add_note(message)
    error.__cause__ = ValueError(message)
    assert secret not in made.sanitize(error)


@shows("ES-04")
def test_a_secret_at_the_cut(made: ErrorSanitizer) -> None:
    """A secret at the place where a long message is cut is not in the text either."""
    for length in range(MOST - 120, MOST + 20, 7):
        text = made.sanitize(ShopError("x" * length + " password=hunter2secret and so on"))
        assert "hunter2" not in text
        assert len(text) <= MOST


@shows("ES-05")
@pytest.mark.parametrize("kind", list(HOSTILE))
def test_hostile_errors(made: ErrorSanitizer, kind: str) -> None:
    """An exception that cannot be printed, is huge or refers to itself is answered like any other."""
    text = made.sanitize(HOSTILE[kind]())
    assert isinstance(text, str)
    assert 0 < len(text) <= MOST


@shows("ES-06")
def test_no_traceback(made: ErrorSanitizer) -> None:
    """Nothing of the traceback, of local variables or of the source is in the text."""
    local_secret = "local-" + "variable"
    try:
        raise ShopError("plain")
    except ShopError as error:
        text = made.sanitize(error)
    assert local_secret not in text
    assert "Traceback" not in text
    assert __file__ not in text


@shows("ES-07")
def test_threads(made: ErrorSanitizer) -> None:
    """It may be asked from several threads at once, and answers alike."""
    error = ShopError("password=hunter2secret at shop 7")
    assert len(set(from_threads(lambda: made.sanitize(error)))) == 1
