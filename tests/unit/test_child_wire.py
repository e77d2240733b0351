"""Frames between a node and its children: whole messages out of any stream, clear errors out of garbage."""

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratchet.engine.child_wire import (
    MAX_FRAME,
    BodyRequest,
    ChildSetup,
    FrameReader,
    Raised,
    Refused,
    Returned,
    WireError,
    encode_frame,
    parse_reply,
    parse_request,
    parse_setup,
    to_message,
)

text = st.text(st.characters(categories=None, codec=None))  # lone surrogates and NUL included
messages = st.dictionaries(
    text, text | st.integers() | st.none() | st.booleans() | st.lists(text), max_size=4
)


@given(st.lists(messages, max_size=5), st.integers(1, 40))
def test_messages_survive_any_cutting_of_the_stream(sent: list[dict[str, Any]], piece: int) -> None:
    """However the bytes arrive, the same messages come out in order, and nothing else."""
    stream = b"".join(map(encode_frame, sent))
    reader = FrameReader()
    received = [
        message for i in range(0, len(stream), piece) for message in reader.feed(stream[i : i + piece])
    ]
    assert received == sent


@pytest.mark.parametrize(
    "garbage",
    [
        struct.pack(">I", MAX_FRAME + 1),
        b"\xff\xff\xff\xff",
        struct.pack(">I", 3) + b"{a}",
        struct.pack(">I", 2) + b"[]",
        struct.pack(">I", 2) + b"\xc3\xa9",
        struct.pack(">I", 0),
    ],
)
def test_garbage_is_an_error(garbage: bytes) -> None:
    """Impossible lengths, and contents that are no JSON object in ASCII, are told at once."""
    with pytest.raises(WireError):
        list(FrameReader().feed(garbage))


def test_an_oversized_message_is_refused_before_it_is_sent() -> None:
    """A message that the other side would refuse is refused here, with its size."""
    with pytest.raises(WireError, match="67,108,87"):
        encode_frame({"text": "x" * MAX_FRAME})


def test_values_come_back_as_they_were_sent() -> None:
    """Setup, request and each reply are equal after their way through a frame."""
    setup = ChildSetup(allow=["a"], sys_path=["/x"], result_limit=5, log_levels={"": 30}, python_path=None)
    request = BodyRequest(
        job_id="1", claim_seq=2, attempt=3, target="a:b", payload="[[],{}]", format=1, params={"x": "1"}
    )
    replies: list[Returned | Raised | Refused] = [
        Returned(result=None, result_size=7, duration=0.5, age=0.25),
        Raised(type_name="a.B", error="a.B: \ud800", retry_after=1.5, cancellation=True),
        Refused(kind="poison", message="corrupt"),
    ]
    reader = FrameReader()

    def travel(value: Any) -> dict[str, Any]:
        (message,) = reader.feed(encode_frame(to_message(value)))
        return message

    assert parse_setup(travel(setup)) == setup
    assert parse_request(travel(request)) == request
    assert [parse_reply(reply.tag, travel(reply)) for reply in replies] == replies


@pytest.mark.parametrize(
    ("tag", "message"), [("died", {}), (None, {}), ("returned", {"size": 1}), ("raised", {})]
)
def test_replies_that_do_not_fit_are_errors(tag: object, message: dict[str, Any]) -> None:
    """An unknown kind of reply, or one with other fields, is told as such."""
    with pytest.raises(WireError):
        parse_reply(tag, message)
