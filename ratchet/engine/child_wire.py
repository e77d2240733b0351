"""What a node and the child process of one slot say to each other, and how it is framed.

A frame is a four-byte big-endian length and that many bytes of ASCII JSON, over one socket pair: never pickle,
and neither standard input nor output, which belong to the job's own code. Both sides import this module, so it
stays light.
"""

import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Final, Literal, TypeAlias, TypeVar

from ratchet.errors import RatchetError

__all__ = [
    "MAX_FRAME",
    "BodyReply",
    "BodyRequest",
    "ChildSetup",
    "Died",
    "FrameReader",
    "Message",
    "Raised",
    "Refused",
    "Returned",
    "WireError",
    "encode_frame",
    "parse_reply",
    "parse_request",
    "parse_setup",
    "to_message",
]

_T = TypeVar("_T")
Message: TypeAlias = dict[str, Any]
RefusalKind: TypeAlias = Literal["unknown", "newer_format", "arguments", "poison", "policy"]

# Far above every payload and result limit; a larger length means that the stream is out of step.
MAX_FRAME: Final = 64 * 1024 * 1024
_HEADER: Final = struct.Struct(">I")


class WireError(RatchetError):
    """The other side sent what is no frame of this protocol."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildSetup:
    """What a child is told once, before its first job.

    Attributes:
        allow: module prefixes that targets and payload classes may come from.
        sys_path: the node's import path.
        result_limit: largest encoded result, in bytes, that is sent back.
        log_levels: explicit levels of the node's loggers; the root logger's under the empty name.
        python_path: the node's PYTHONPATH, which was changed to start the child; None: not set.
    """

    allow: Sequence[str]
    sys_path: Sequence[str]
    result_limit: int
    log_levels: Mapping[str, int] = field(default_factory=dict)
    python_path: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BodyRequest:
    """One attempt whose body a child is to run.

    Attributes:
        job_id: the job's id as text.
        claim_seq: the claim under which it runs.
        attempt: 1 for the first execution.
        target: ``module:qualname``.
        payload: the encoded arguments.
        format: the payload's format version.
        params: name -> encoded value.
        timeout_seconds_left: time until the attempt's deadline when this request was made; None: no deadline.
        node: the node's name.
        metadata: facts of the job as text, for `JobContext.metadata`.
    """

    job_id: str
    claim_seq: int
    attempt: int
    target: str
    payload: str
    format: int
    params: Mapping[str, str] = field(default_factory=dict)
    timeout_seconds_left: float | None = None
    node: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Returned:
    """The body returned.

    Attributes:
        result: the encoded result; None if it is larger than the limit.
        result_size: size of the encoded result in bytes.
        duration: how long the body ran, in seconds.
        age: seconds between the end of the body and this answer.
    """

    tag: ClassVar[str] = "returned"
    result: str | None
    result_size: int
    duration: float
    age: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Raised:
    """The body raised, or returned what cannot be encoded.

    Attributes:
        type_name: the exception's class as ``module.QualName``.
        error: the sanitized error text.
        do_not_retry: why the failure is permanent; None if it is not.
        retry_after: the lower bound of the delay in seconds that the body asked for.
        cancellation: the body stopped because this attempt was asked to, and after it was asked.
        duration: how long the body ran, in seconds.
        age: seconds between the end of the body and this answer.
        unencodable_result: the body returned, but its result cannot travel.
    """

    tag: ClassVar[str] = "raised"
    type_name: str
    error: str
    do_not_retry: str | None = None
    retry_after: float | None = None
    cancellation: bool = False
    duration: float = 0.0
    age: float = 0.0
    unencodable_result: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """The body was not called.

    Attributes:
        kind: ``policy`` (target not allowed), ``unknown`` (allowed, but not to be found here),
            ``newer_format``, ``poison`` (the payload cannot be read) or ``arguments`` (they do not fit).
        message: the reason as sanitized text.
    """

    tag: ClassVar[str] = "refused"
    kind: RefusalKind
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Died:
    """There is no answer: the child's process ended. Only the node's side makes this.

    Attributes:
        description: how it ended, in words.
        killed: `ChildProcess.kill` did it.
        started: the child had taken the job; False: the body certainly did not begin, charge nothing.
    """

    tag: ClassVar[str] = "died"
    description: str
    killed: bool = False
    started: bool = True


BodyReply: TypeAlias = Returned | Raised | Refused | Died


def to_message(value: ChildSetup | BodyRequest | Returned | Raised | Refused) -> Message:
    """The fields of `value` as a JSON object."""
    message: Message = {}
    for each in fields(value):
        content = getattr(value, each.name)
        message[each.name] = dict(content) if isinstance(content, Mapping) else content
    return message


def parse_setup(message: Message) -> ChildSetup:
    """The setup that `to_message` turned into `message`."""
    return _parse(ChildSetup, message)


def parse_request(message: Message) -> BodyRequest:
    """The request that `to_message` turned into `message`."""
    return _parse(BodyRequest, message)


def parse_reply(tag: object, message: Message) -> Returned | Raised | Refused:
    """The reply of this class that `to_message` turned into `message`.

    Raises:
        WireError: no such reply.
    """
    match tag:
        case Returned.tag:
            return _parse(Returned, message)
        case Raised.tag:
            return _parse(Raised, message)
        case Refused.tag:
            return _parse(Refused, message)
        case _:
            raise WireError(f"a child sent an unknown kind of reply: {tag!r:.100}")


def encode_frame(message: Message) -> bytes:
    """One frame. Lone surrogates and NUL travel as escapes.

    Raises:
        WireError: longer than `MAX_FRAME`.
    """
    body = json.dumps(message, separators=(",", ":")).encode("ascii")
    if len(body) > MAX_FRAME:
        raise WireError(f"a message of {len(body):,} bytes is too large for a child process")
    return _HEADER.pack(len(body)) + body


class FrameReader:
    """Cuts a stream of bytes into messages."""

    __slots__ = ("_buffer",)

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[Message]:
        """Add received bytes and yield every message that is now complete.

        Raises:
            WireError: the bytes are no frames of this protocol; nothing after them can be understood.
        """
        self._buffer += data
        while len(self._buffer) >= _HEADER.size:
            (length,) = _HEADER.unpack_from(self._buffer)
            if length > MAX_FRAME:
                raise WireError(f"a frame claims to have {length:,} bytes")
            end = _HEADER.size + length
            if len(self._buffer) < end:
                return
            body = self._buffer[_HEADER.size : end]
            del self._buffer[:end]
            try:
                message = json.loads(body.decode("ascii"))
            except ValueError as problem:
                raise WireError(f"a frame is not JSON: {problem}") from problem
            if not isinstance(message, dict):
                raise WireError("a frame is not a JSON object")
            yield message


def _parse(cls: type[_T], message: Message) -> _T:
    try:
        return cls(**message)
    except TypeError as problem:
        raise WireError(f"a message does not fit {cls.__name__}: {problem}") from problem
