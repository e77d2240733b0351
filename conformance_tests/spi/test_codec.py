"""Payload codecs: out comes what went in, or a clear error; never something else."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conformance_tests.spi.at_once import from_threads
from conformance_tests.spi.parts import shows
from conformance_tests.spi.values import EXACT, EXACT_OR_REFUSED, REFUSED, same
from ratchet.errors import NewerPayloadFormat, UnencodableValue, UnreadablePayload
from ratchet.spi.codec import PayloadCodec

_LEAVES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.binary(max_size=20),
    st.decimals(allow_nan=False), st.dates(), st.timedeltas(), st.uuids(),
)  # fmt: skip
_VALUES = st.recursive(
    _LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.tuples(inner, inner),
        st.dictionaries(st.text(max_size=5), inner, max_size=3),
    ),
    max_leaves=10,
)


def _through(codec: PayloadCodec, value: object) -> object:
    text = codec.encode_value(value, what="result")
    assert isinstance(text, str)
    assert text.isascii()
    return codec.decode_value(text)


@shows("PC-01")
@pytest.mark.parametrize("name", list(EXACT))
def test_values(made: PayloadCodec, name: str) -> None:
    """Each of the types that need no annotation comes back equal and of the same type, as ASCII text."""
    assert same(_through(made, EXACT[name]), EXACT[name])


@shows("PC-02")
def test_not_a_number(made: PayloadCodec) -> None:
    """A NaN comes back as a NaN."""
    back = _through(made, math.nan)
    assert isinstance(back, float)
    assert math.isnan(back)


@shows("PC-03")
@pytest.mark.parametrize("name", list(EXACT_OR_REFUSED))
def test_classes(made: PayloadCodec, name: str) -> None:
    """A member of an Enum and a dataclass come back exactly, or are refused; they are never flattened."""
    try:
        back = _through(made, EXACT_OR_REFUSED[name])
    except UnencodableValue:
        return
    assert same(back, EXACT_OR_REFUSED[name])


@shows("PC-04")
@pytest.mark.parametrize("name", list(REFUSED))
def test_what_cannot_travel(made: PayloadCodec, name: str) -> None:
    """Anything else is refused when it is encoded, with an error that names it."""
    with pytest.raises(UnencodableValue) as raised:
        made.encode_value(REFUSED[name], what="param 'x'")
    assert "param 'x'" in str(raised.value)
    with pytest.raises(UnencodableValue) as raised:
        made.encode_arguments((1, REFUSED[name]), {}, names=("first", "second"))
    assert "second" in str(raised.value)
    with pytest.raises(UnencodableValue) as raised:
        made.encode_arguments((), {"third": REFUSED[name]})
    assert "third" in str(raised.value)


@shows("PC-05")
def test_arguments(made: PayloadCodec) -> None:
    """A call comes back as its positional and keyword arguments, in ASCII, in the codec's own format."""
    assert isinstance(made.format, int)
    assert made.format >= 1
    for args, kwargs in (
        ((), {}),
        ((1, (2, 3), None), {}),
        ((), {"a": 1.5, "b": [b"x"]}),
        (([],), {"args": (), "kwargs": {}, "self": 1}),
    ):
        text = made.encode_arguments(args, kwargs, names=("a", "b", "c"))
        assert text.isascii()
        back_args, back_kwargs = made.decode_arguments(text, made.format)
        assert same(back_args, args)
        assert same(dict(back_kwargs), kwargs)


@shows("PC-06")
def test_a_newer_format(made: PayloadCodec) -> None:
    """A format that only a newer version can read is told as such, so that a newer node may run the job."""
    text = made.encode_arguments((1,), {})
    for newer in (made.format + 1, made.format + 1000):
        with pytest.raises(NewerPayloadFormat):
            made.decode_arguments(text, newer)


@shows("PC-07")
def test_corrupt_text(made: PayloadCodec) -> None:
    """Text that is cut, empty or of something else is unreadable; it is never an error of another kind."""
    text = made.encode_arguments((1, "a", (2, b"x")), {"k": {1.5, 2.5}})
    wrong = [
        "",
        " ",
        "no",
        "[",
        "{}",
        "7",
        "null",
        '"',
        "[[],{},0]",
        "\x00",
        "é",
        *(text[:n] for n in range(len(text))),
    ]
    for each in wrong:
        with pytest.raises(UnreadablePayload):
            made.decode_arguments(each, made.format)


@shows("PC-08")
def test_corrupt_values(made: PayloadCodec) -> None:
    """One wrong character in a value's text is unreadable, or another value; never an error of another kind."""
    text = made.encode_value([1, (2, "a"), {"k": b"x"}, None], what="result")
    for place in range(len(text)):
        for character in ('"', "x", "0", "]", "\\"):
            try:
                made.decode_value(text[:place] + character + text[place + 1 :])
            except UnreadablePayload:
                continue


@shows("PC-09")
def test_what_was_encoded_may_change(made: PayloadCodec) -> None:
    """The text is what the value was, and each decoding makes new objects."""
    value = [1]
    text = made.encode_value(value, what="result")
    value.append(2)
    first, second = made.decode_value(text), made.decode_value(text)
    assert first == second == [1]
    assert first is not second


@shows("PC-10")
def test_anything_nested(made: PayloadCodec) -> None:
    """Whatever is built from these types comes back exactly."""

    @settings(max_examples=150, deadline=None, database=None)
    @given(_VALUES)
    def holds(value: object) -> None:
        assert same(_through(made, value), value)

    holds()


@shows("PC-11")
def test_threads(made: PayloadCodec) -> None:
    """It may be used from several threads at once."""
    value = EXACT["everything at once"]
    assert all(same(back, value) for back in from_threads(lambda: _through(made, value)))
