"""Finds secrets in text and replaces them, in linear time whatever the text is.

No pattern here backtracks over more than a fixed number of characters: its repetitions are possessive
or bounded. Where it cannot tell a secret from other text it removes too much rather than too little.
"""

from __future__ import annotations

import re
from typing import Final

REDACTED: Final = "***REDACTED***"
_NOT_YET: Final = r"(?!\*\*\*REDACTED)"
# The last word before a cut goes too, up to this length: of a secret that was cut in two, the half that
# is left might not look like one any more.
_LONGEST_WORD: Final = 4_096

_UNSTORABLE: Final = re.compile("[\0\ud800-\udfff]")


def clean(text: str) -> str:
    """The text with every NUL and lone surrogate, which databases refuse, as U+FFFD."""
    return text if text.isascii() and "\0" not in text else _UNSTORABLE.sub("\ufffd", text)


def redact(text: str, *, enough: int) -> str:
    """The text without secrets; of a very long one only as much as `enough` characters are made of.

    Replacements may make text shorter, so eight times as much is looked at before the rest is dropped.
    """
    most = max(8 * enough, 4 * _LONGEST_WORD)
    cut = len(text) > most
    if cut:
        text = _without_last_word(text[:most])
    text = _private_keys(clean(text))
    lowered = text.lower()
    keyed = any(part in lowered for part in _SECRET_PARTS)
    if keyed:
        # Before URLs, whose end is only guessed at: a quoted value ends where its quotes say.
        text = _QUOTED_VALUE.sub(rf"\1{REDACTED}", text)
    if "://" in text:
        text = _urls(text, cut=cut)
    if keyed:
        for pattern in (_HEADER, _ELEMENT, _BARE_VALUE, _OPTION_VALUE):
            text = pattern.sub(rf"\1{REDACTED}", text)
    if "bearer" in lowered or "basic" in lowered:
        text = _AUTHENTICATION.sub(rf"\1{REDACTED}", text)
    if any(mark in text for mark in _KEY_MARKS):
        text = _MARKED_KEYS.sub(REDACTED, text)
    if any(len(word) >= 40 for word in text.split()):
        text = _UNMARKED_KEYS.sub(REDACTED, text)
    if "@" in text:
        text = _WORD.sub(_without_login, text)
        text = _ADDRESS.sub(REDACTED, text)
    return f"{text} …" if cut else text


def _without_last_word(text: str) -> str:
    for i in range(len(text) - 1, len(text) - 1 - _LONGEST_WORD, -1):
        if text[i].isspace():
            return text[:i]
    return text[:-_LONGEST_WORD]


# -- private keys ---------------------------------------------------------------------------------------

_PEM: Final = re.compile(
    r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----.*?(?:-----END [A-Z0-9 ]{0,40}-----|\Z)", re.DOTALL
)


def _private_keys(text: str) -> str:
    return _PEM.sub(REDACTED, text) if "-----BEGIN " in text else text


# -- key and value --------------------------------------------------------------------------------------

_SECRET_WORD: Final = (
    r"(?:passw(?:or)?d|pwd|passphrase|passcode|\bpass\b|secret|token|credential|authorization|cookie"
    r"|(?:api|access|private|account|shared|encryption|signing|master)[ _-]?key"
    r"|session[_-]?id|signature|\bsig\b|\botp\b)"
)
# One of these is in every text that _SECRET_WORD can match: looking for them costs next to nothing.
_SECRET_PARTS: Final = (
    "pass",
    "pwd",
    "secret",
    "token",
    "credential",
    "authoriz",
    "cookie",
    "key",
    "session",
    "sig",
    "otp",
)
# Not in the name of an exception, whose message follows its colon.
_KEY: Final = rf"{_SECRET_WORD}[\w.-]{{0,40}}+(?<!(?-i:Error))(?<!(?-i:Exception))(?<!(?-i:Warning))"
_SEPARATOR: Final = r"(?:\\{0,8}+[\"'`])?+[\])]?+\s{0,8}+(?:=>|:=|==|[:=])\s{0,8}+"
# A quote that a word character or another quote follows does not end the value: 'it's', 'a''b', """a""".
_DOUBLE: Final = r"\"(?:[^\"\\]|\\.|\"(?=[\w\"]))*+\"?+"
_SINGLE: Final = r"'(?:[^'\\]|\\.|'(?=[\w']))*+'?+"
_QUOTED: Final = (
    r"(?:\\{1,8}+[\"'][^\"']*+(?:[\"']\S*+)?+"  # quotes that were escaped once more: to the end of the word
    rf"|[bru]{{0,2}}+(?:{_DOUBLE}|{_SINGLE}|`[^`]*+`?+)"
    rf"|[\w.]{{0,40}}+[\[({{](?:[^\"'\])}}]|{_DOUBLE}|{_SINGLE})*+[\])}}]?+)"  # a printed list, dict or object
)
_FLAGS: Final = re.IGNORECASE | re.DOTALL
_QUOTED_VALUE: Final = re.compile(rf"({_KEY}{_SEPARATOR}){_QUOTED}", _FLAGS)
_BARE_VALUE: Final = re.compile(rf"({_KEY}{_SEPARATOR}){_NOT_YET}\S++", _FLAGS)
_HEADER: Final = re.compile(rf"((?:authorization|cookie){_SEPARATOR}){_NOT_YET}[^\r\n]++", re.IGNORECASE)
_ELEMENT: Final = re.compile(
    rf"(<[\w.:-]{{0,40}}?{_SECRET_WORD}[\w.-]{{0,40}}+[^<>]{{0,200}}+>){_NOT_YET}[^<]++", re.IGNORECASE
)
# Options of a command, also as the items of a printed list: --db-password s3cret, '--token', 's3cret'
_OPTION_VALUE: Final = re.compile(
    rf"((?<![\w-])--(?:[a-z0-9]{{1,20}}-){{0,3}}{_SECRET_WORD}[\w-]{{0,40}}+[\"']?+,?+\s{{1,8}}+)"
    rf"{_NOT_YET}(?:{_QUOTED}|[^\s-]\S*+)",
    _FLAGS,
)
_AUTHENTICATION: Final = re.compile(
    # "Bearer token is missing" is prose ...
    r"(\b(?i:bearer)\s{1,8}+[\"']?+(?!(?i:token|auth\w{0,20}+|scheme)(?:[\s.,;:!?)]|\Z))"
    # ... and so is "Basic auth failed": what follows is a secret if it has a digit, a capital or padding.
    rf"|\b[Bb]asic\s{{1,8}}+[\"']?+(?=[^\s\"']{{0,80}}?[0-9A-Z=+/])){_NOT_YET}[^\s\"']++"
)

# -- keys that are known by their form ------------------------------------------------------------------

_KEY_MARKS: Final = (
    *(
        "AKIA",
        "ASIA",
        "AROA",
        "AIDA",
        "ABIA",
        "ACCA",
        "gho_",
        "ghp_",
        "ghr_",
        "ghs_",
        "ghu_",
        "github_pat_",
        "glpat-",
    ),
    *(
        "xox",
        "xapp-",
        "hooks.slack",
        "k_live_",
        "k_test_",
        "whsec_",
        "AIza",
        "ya29.",
        "sk-",
        "hf_",
        "npm_",
        "pypi-",
    ),
    *("SG.", "eyJ"),
)
_MARKED_KEYS: Final = re.compile(
    r"A(?:KIA|SIA|ROA|IDA|BIA|CCA)[A-Z0-9]{12,}+(?:[\s:/,;|]{1,3}+[A-Za-z0-9/+]{40})?"  # AWS: id, maybe with its secret
    r"|gh[oprsu]_[A-Za-z0-9]{16,}+|github_pat_\w{16,}+|glpat-[\w-]{16,}+"  # GitHub, GitLab
    r"|xox[a-z]-[\w-]{8,}+|xapp-[\w-]{8,}+|hooks\.slack\.com/services/\S++"  # Slack
    r"|[prs]k_(?:live|test)_\w{8,}+|whsec_[\w+/=]{16,}+"  # Stripe
    r"|AIza[\w-]{30,}+|ya29\.[\w.-]{16,}+"  # Google
    r"|\bsk-[\w-]{16,}+|\bhf_\w{16,}+|\bnpm_\w{30,}+|\bpypi-[\w-]{16,}+|\bSG\.[\w-]{16,}+\.[\w-]++"
    r"|\beyJ[\w-]{8,}+(?:\.[\w-]*+)*+"  # JSON web tokens
)
# An AWS secret has no mark but its length and its alphabet; a commit id, as long, has no capitals.
_UNMARKED_KEYS: Final = re.compile(
    r"(?<![A-Za-z0-9/+=])(?=[a-z0-9/+]{0,39}[A-Z])(?=[A-Z0-9/+]{0,39}[a-z])(?=[A-Za-z]{0,39}[0-9/+])"
    r"[A-Za-z0-9/+]{40}(?![A-Za-z0-9/+=])"
)

# -- URLs and addresses ---------------------------------------------------------------------------------

_WORD_END: Final = re.compile(r"\s|\Z")
_HOST_END: Final = re.compile(r"[\s\"'`<>]|\Z")
_SCHEME: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789+.-")
_CLOSING: Final = {'"': '"', "'": "'", "`": "`", "<": ">"}


def _urls(text: str, *, cut: bool) -> str:
    """Replace every URL with credentials whole, whatever characters its password has.

    Up to the last @ of the word (or of the quotes it stands in) everything may be password, or a
    further URL of a failover list.
    """
    kept: list[str] = []
    done = position = 0
    while (mark := text.find("://", position)) >= 0:
        start = mark
        while start > done and text[start - 1] in _SCHEME and mark - start < 40:
            start -= 1
        after = mark + 3
        opening = text[start - 1] if start > done else ""
        quoted_to = _closing_quote(text, _CLOSING[opening], after) if opening in _CLOSING else -1
        end = quoted_to if quoted_to >= 0 else _found(_WORD_END, text, after)
        at = text.rfind("@", after, end)
        # https://example.org/@name has no login; with a colon before the @ it may have.
        login = at >= 0 and (":" in text[after:at] or "/" not in text[after:at])
        if login or (cut and end == len(text)):
            if quoted_to < 0:
                end = _found(_HOST_END, text, max(at, after))
            kept += (text[done:start], REDACTED)
            done = end
        position = max(end, after)
    return "".join((*kept, text[done:]))


def _closing_quote(text: str, quote: str, position: int) -> int:
    """Where the quotes end: not at one that is followed by a word character, as in a password."""
    line_end = text.find("\n", position, position + _LONGEST_WORD)
    line_end = position + _LONGEST_WORD if line_end < 0 else line_end
    for _ in range(20):
        position = text.find(quote, position, line_end) + 1
        if position == 0 or not text[position : position + 1].isalnum():
            return position - 1
    return -1


def _found(pattern: re.Pattern[str], text: str, position: int) -> int:
    match = pattern.search(text, position)
    return len(text) if match is None else match.start()


_WORD: Final = re.compile(r"[^\s\"'`<>]++")
_COLON: Final = re.compile(r":(?!//)")
_ADDRESS: Final = re.compile(r"(?<![\w.%+-])[\w.%+-]++@(?:\[[\w.:]{2,60}+\]|[\w-]++(?:\.[\w-]++)*+)")


def _without_login(word: re.Match[str]) -> str:
    """Replace ``user:password@host`` without a scheme."""
    text = word[0]
    colon = _COLON.search(text)
    return REDACTED if colon is not None and colon.start() < text.rfind("@") else text
