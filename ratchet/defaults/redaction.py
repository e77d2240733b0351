"""Finds secrets in text and replaces them, in linear time whatever the text is.

No pattern here backtracks over more than a fixed number of characters: its repetitions are possessive
or bounded. Where it cannot tell a secret from other text it removes too much rather than too little.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
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
    text = clean(text)
    # Every search sees the original text and none hides anything from another: what one of them takes
    # for the end of a value, or for a part of one, may be read otherwise by the next.
    kept: list[str] = []
    done = 0
    for start, end in sorted(_secrets(text, cut=cut)):
        if start > done or not kept:
            kept += (text[done:start], REDACTED)
        done = max(done, end)
    return "".join((*kept, text[done:], " …" if cut else ""))


def _secrets(text: str, *, cut: bool) -> Iterator[tuple[int, int]]:
    """Where the secrets are. The cheap tests before the searches make ordinary text cost little."""
    lowered = text.lower()
    if "-----begin " in lowered:
        yield from (found.span() for found in _PRIVATE_KEY.finditer(text))
    if any(part in lowered for part in _SECRET_PARTS):
        for pattern in _VALUES:
            yield from _after_keys(pattern, text)
    if "bearer" in lowered or "basic" in lowered:
        yield from _after_keys(_AUTHENTICATION, text)
    if any(mark in text for mark in _KEY_MARKS):
        yield from (found.span() for found in _MARKED_KEY.finditer(text))
    if any(len(word) >= 40 for word in text.split()):
        yield from (found.span() for found in _UNMARKED_KEY.finditer(text))
    if "://" in text:
        yield from _urls(text, cut=cut)
    if "@" in text:
        yield from (found.span() for found in _WORD.finditer(text) if _is_login(found[0]))
        yield from (found.span() for found in _ADDRESS.finditer(text))


def _after_keys(pattern: re.Pattern[str], text: str) -> Iterator[tuple[int, int]]:
    """Where the values are that follow group 1.

    What looks like a value may contain the next key, so the search goes on after the key, not after
    the value; a bounded number of times, since the values then overlap.
    """
    position, overlaps = 0, 64
    while (found := pattern.search(text, position)) is not None:
        yield found.end(1), found.end()
        overlaps -= 1
        position = found.end(1) if overlaps > 0 else found.end()


def _without_last_word(text: str) -> str:
    for i in range(len(text) - 1, len(text) - 1 - _LONGEST_WORD, -1):
        if text[i].isspace():
            return text[:i]
    return text[:-_LONGEST_WORD]


# -- private keys ---------------------------------------------------------------------------------------

_PRIVATE_KEY: Final = re.compile(
    r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----.*?(?:-----END [A-Z0-9 ]{0,40}-----|\Z)", re.DOTALL
)

# -- key and value --------------------------------------------------------------------------------------

# A word starts here, also one after a line end that was escaped to a backslash and a letter.
_START: Final = r"(?:\b|(?<=\\[nrt]))"
_SECRET_WORD: Final = (
    rf"(?:passw(?:or)?d|pwd|passphrase|passcode|{_START}pass\b|secret|token|credential|authorization|cookie"
    r"|(?:api|access|private|account|shared|encryption|signing|master)[ _-]?key"
    rf"|session[_-]?id|signature|{_START}(?:sig|otp)\b)"
)
# One of these is in every text that _SECRET_WORD can match: looking for them costs next to nothing.
# fmt: off
_SECRET_PARTS: Final = (
    "pass", "pwd", "secret", "token", "credential", "authoriz", "cookie", "key", "session", "sig", "otp",
)
# fmt: on
# Not in the name of an exception, whose message follows its colon.
_KEY: Final = rf"{_SECRET_WORD}[\w.-]{{0,40}}+(?<!(?-i:Error))(?<!(?-i:Exception))(?<!(?-i:Warning))"
_SEPARATOR: Final = r"(?:\\{0,8}+[\"'`])?+[\])]?+\s{0,8}+(?:=>|:=|==|[:=])\s{0,8}+"


def _quoted(escape: str, deep_escape: str) -> str:
    """A quoted value: to its end, or to the end of the text.

    A quote that a word character or another quote follows does not end it: 'it's', 'a''b', three quotes.
    """
    double = rf"\"(?:[^\"\\]|{escape}|\"(?=[\w\"]))*+\"?+"
    single = rf"'(?:[^'\\]|{escape}|'(?=[\w']))*+'?+"
    # Opened by a quote after backslashes: closed by the same one after as many.
    escaped = (
        r"(?P<b>\\{1,8}+)(?P<q>[\"'])"
        rf"(?:[^\\\"']|(?!(?P=q))[\"']|(?!(?P=b)(?P=q)){deep_escape})*+(?:(?P=b)(?P=q))?+"
    )
    printed = rf"[\w.]{{0,40}}+[\[({{](?:[^\"'\])}}]|{double}|{single})*+\S*+"  # a list, dict or object
    return rf"{_NOT_YET}(?:[bru]{{0,2}}+(?:{escaped}|{double}|{single}|`[^`]*+`?+)|{printed})"


# Where does a value end that has backslashes before a quote? As written, where they escape each other; but
# in text that was escaped once more by somebody else it goes on. Both readings count.
_STRICT: Final = _quoted(r"\\.", r"(?:(?:(?P=b)\\){2}|\\++.?)")
_LOOSE: Final = _quoted(r"\\++.?", r"\\++.?")
_BARE: Final = rf"{_NOT_YET}(?!\\{{0,8}}+[bru]{{0,2}}+\\{{0,8}}+[\"'`])\S++"
# An option of a command, also as an item of a printed list: --db-password s3cret, '--token', 's3cret'
_OPTION: Final = (
    rf"(?:(?<![\w-])|(?<=\\[nrt]))--(?:[a-z0-9]{{1,20}}-){{0,3}}{_SECRET_WORD}[\w-]{{0,40}}+"
    r"(?:\\{0,8}+[\"'])?+,?+\s{1,8}+"
)
_VALUES: Final = tuple(
    re.compile(pattern, re.IGNORECASE | re.DOTALL)
    for pattern in (
        rf"({_KEY}{_SEPARATOR}){_STRICT}",
        rf"({_KEY}{_SEPARATOR}){_LOOSE}",
        rf"({_KEY}{_SEPARATOR}){_BARE}",
        rf"({_OPTION}){_STRICT}",
        rf"({_OPTION}){_LOOSE}",
        rf"({_OPTION})(?!-){_BARE}",
        # A header's value has spaces in it: to the end of the line.
        rf"((?:authorization|cookie){_SEPARATOR}){_NOT_YET}(?![\"'])[^\r\n]++",
        rf"(<[\w.:-]{{0,40}}?{_SECRET_WORD}[\w.-]{{0,40}}+[^<>]{{0,200}}+>){_NOT_YET}[^<]++",
    )
)
_AUTHENTICATION: Final = re.compile(
    # "Bearer token is missing" is prose ...
    r"((?i:bearer)\s{1,8}+[\"']?+(?!(?i:token|auth\w{0,20}+|scheme)(?:[\s.,;:!?)]|\Z))"
    # ... and so is "Basic auth failed": what follows is a secret if it has a digit, a capital or padding.
    rf"|[Bb]asic\s{{1,8}}+[\"']?+(?=[^\s\"']{{0,80}}?[0-9A-Z=+/])){_NOT_YET}[^\s\"']++"
)

# -- keys that are known by their form ------------------------------------------------------------------

# fmt: off
_KEY_MARKS: Final = (
    "AKIA", "ASIA", "AROA", "AIDA", "ABIA", "ACCA", "gho_", "ghp_", "ghr_", "ghs_", "ghu_", "github_pat_", "glpat-",
    "xox", "xapp-", "hooks.slack", "k_live_", "k_test_", "whsec_", "AIza", "ya29.", "sk-", "hf_", "npm_", "pypi-",
    "SG.", "eyJ",
)
# fmt: on
_MARKED_KEY: Final = re.compile(
    r"A(?:KIA|SIA|ROA|IDA|BIA|CCA)[A-Z0-9]{12,}+(?:[\s:/,;|]{1,3}+[A-Za-z0-9/+]{40})?"  # AWS: id, maybe with its secret
    r"|gh[oprsu]_[A-Za-z0-9]{16,}+|github_pat_\w{16,}+|glpat-[\w-]{16,}+"  # GitHub, GitLab
    r"|xox[a-z]-[\w-]{8,}+|xapp-[\w-]{8,}+|hooks\.slack\.com/services/\S++"  # Slack
    r"|[prs]k_(?:live|test)_\w{8,}+|whsec_[\w+/=]{16,}+"  # Stripe
    r"|AIza[\w-]{30,}+|ya29\.[\w.-]{16,}+"  # Google
    rf"|{_START}(?:sk-[\w-]{{16,}}+|hf_\w{{16,}}+|npm_\w{{30,}}+|pypi-[\w-]{{16,}}+|SG\.[\w-]{{16,}}+\.[\w-]++)"
    rf"|{_START}eyJ[\w-]{{8,}}+(?:\.[\w-]*+)*+"  # JSON web tokens
)
# An AWS secret has no mark but its length and its alphabet; a commit id, as long, has no capitals.
_UNMARKED_KEY: Final = re.compile(
    r"(?:(?<![A-Za-z0-9/+=])|(?<=\\[nrt]))(?=[a-z0-9/+]{0,39}[A-Z])(?=[A-Z0-9/+]{0,39}[a-z])(?=[A-Za-z]{0,39}[0-9/+])"
    r"[A-Za-z0-9/+]{40}(?![A-Za-z0-9/+=])"
)

# -- URLs and addresses ---------------------------------------------------------------------------------

_WORD_END: Final = re.compile(r"\s|\Z")
_HOST_END: Final = re.compile(r"[\s\"'`<>]|\\++[\"'nrt]|\Z")
_SCHEME: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789+.-")
_CLOSING: Final = {'"': '"', "'": "'", "`": "`", "<": ">"}


def _urls(text: str, *, cut: bool) -> Iterator[tuple[int, int]]:
    """Where the URLs with credentials are, whole, whatever characters their passwords have.

    Up to the last @ of the word (or of the quotes it stands in) everything may be password, or a
    further URL of a failover list.
    """
    position = word_end = 0
    while (mark := text.find("://", position)) >= 0:
        start = mark
        while start > position and text[start - 1] in _SCHEME and mark - start < 40:
            start -= 1
        after = mark + 3
        opening = text[start - 1] if start > position else ""
        quoted_to = _closing_quote(text, start - 1, after) if opening in _CLOSING else -1
        if quoted_to < 0 and word_end < after:  # looked for once per word, however many marks are in it
            word_end = _found(_WORD_END, text, after)
        end = quoted_to if quoted_to >= 0 else word_end
        at = text.rfind("@", after, end)
        # https://example.org/@name has no login; with a colon before the @ it may have.
        login = at >= 0 and (":" in text[after:at] or "/" not in text[after:at])
        if login or (cut and end == len(text)):
            if quoted_to < 0:
                end = _found(_HOST_END, text, max(at, after))
            yield start, end
        position = max(end, after)


def _closing_quote(text: str, opening: int, position: int) -> int:
    """Where the quotes that open at `opening` end, -1 if not on this line.

    Not at one that a word character follows, or that is escaped otherwise than the opening one: it
    belongs to the password.
    """
    quote, escapes = _CLOSING[text[opening]], _escapes(text, opening)
    line_end = text.find("\n", position, position + _LONGEST_WORD)
    line_end = position + _LONGEST_WORD if line_end < 0 else line_end
    for _ in range(10):
        found = text.find(quote, position, line_end)
        position = found + 1
        if found < 0 or (_escapes(text, found) == escapes and not text[position : position + 1].isalnum()):
            return found
    return -1


def _escapes(text: str, position: int) -> int:
    """How many backslashes stand before `position`, at most 32."""
    before = text[max(0, position - 32) : position]
    return len(before) - len(before.rstrip("\\"))


def _found(pattern: re.Pattern[str], text: str, position: int) -> int:
    match = pattern.search(text, position)
    return len(text) if match is None else match.start()


_WORD: Final = re.compile(r"[^\s\"'`<>]++")
_COLON: Final = re.compile(r":(?!//)")
_ADDRESS: Final = re.compile(r"(?<![\w.%+-])[\w.%+-]++@(?:\[[\w.:]{2,60}+\]|[\w-]++(?:\.[\w-]++)*+)")


def _is_login(word: str) -> bool:
    """True for ``user:password@host`` without a scheme."""
    colon = _COLON.search(word)
    return colon is not None and colon.start() < word.rfind("@")
