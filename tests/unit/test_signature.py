"""Call signatures: a wrong call or argument is told in one sentence, a right one costs little."""

from __future__ import annotations

import functools
import gc
import inspect
import re
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any, Literal, NewType, Optional, ParamSpec, Protocol, TypeVar
from uuid import UUID

import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratchet.defaults.signature import CallSignature
from ratchet.errors import ArgumentError

if TYPE_CHECKING:
    from nowhere import Missing  # type: ignore[import-not-found]

P = ParamSpec("P")
T = TypeVar("T")
CustomerId = NewType("CustomerId", int)


class Color(Enum):
    RED = "r"


@dataclass
class Order:
    sku: str


class Model(pydantic.BaseModel):
    x: int


class Opaque:
    pass


class Named(Protocol):
    name: str


def charge(invoice_id: int, *, currency: str = "EUR") -> str:
    return f"{invoice_id}{currency}"


def shapes(a: Any, /, b: Any, c: Any = 1, *, d: Any, e: Any = 2) -> None: ...


def star(a: int, *rest: int, **named: str) -> None: ...


def positional_only(a: int, /, **named: str) -> None: ...


async def slow(delay: float) -> None: ...


class Service:
    def run(self, count: int) -> None: ...

    @classmethod
    def make(cls, count: int) -> None: ...

    @staticmethod
    def plain(count: int) -> None: ...

    def __call__(self, count: int) -> None: ...


def validate(
    func: Callable[..., object], *args: object, **kwargs: object
) -> tuple[tuple[object, ...], dict[str, object]]:
    return CallSignature.of(func).validate(args, kwargs)


# -- binding --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "kwargs", "words"),
    [
        ((), {}, "missing a required argument: 'invoice_id'"),
        ((1, 2), {}, "too many positional arguments"),
        ((1,), {"amount": 2}, "got an unexpected keyword argument 'amount'"),
        ((1,), {"invoice_id": 2}, "multiple values for argument 'invoice_id'"),
    ],
)
def test_a_wrong_call_is_told_in_one_sentence(args: Any, kwargs: Any, words: str) -> None:
    """The error names the function, what is wrong, and the signature."""
    with pytest.raises(ArgumentError) as refusal:
        CallSignature.of(charge).bind(args, kwargs)
    told = str(refusal.value)
    assert told.startswith(f"{__name__}.charge() {words}; its signature is charge(invoice_id")
    assert "\n" not in told


@given(
    st.lists(st.just(0), max_size=5),
    st.sets(st.sampled_from("abcdef")),
    st.sampled_from([shapes, star, positional_only]),
)
def test_binding_agrees_with_python(args: list[int], names: set[str], func: Callable[..., object]) -> None:
    """A call is accepted exactly when Python itself would accept it."""
    kwargs = dict.fromkeys(names, "x")
    try:
        inspect.signature(func).bind(*args, **kwargs)
        fits = True
    except TypeError:
        fits = False
    if fits:
        CallSignature.of(func).bind(tuple(args), kwargs)
    else:
        with pytest.raises(ArgumentError):
            CallSignature.of(func).bind(tuple(args), kwargs)


def test_methods_and_other_callables() -> None:
    """Bound methods, class and static methods, partials, callable objects and coroutines bind without self."""
    for func in (
        Service().run,
        Service.make,
        Service().make,
        Service.plain,
        Service(),
        functools.partial(Service.run, Service()),
    ):
        signature = CallSignature.of(func)
        signature.bind((1,), {})
        signature.bind((), {"count": 1})
        for args in ((), (1, 2)):
            with pytest.raises(ArgumentError):
                signature.bind(args, {})
        with pytest.raises(ArgumentError, match="argument 'count'"):
            signature.validate(("x",), {})
    unbound = CallSignature.of(Service.run, skip_self=True)
    unbound.bind((1,), {})
    with pytest.raises(ArgumentError):
        CallSignature.of(Service.run).bind((1,), {})
    assert unbound.names == ("count",)
    with pytest.raises(ArgumentError, match="argument 'delay'"):
        validate(slow, "soon")


def test_a_decorated_function_keeps_its_signature() -> None:
    """A wrapper that tells what it wraps is called as what it wraps."""

    @functools.wraps(charge)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return charge(*args, **kwargs)

    with pytest.raises(ArgumentError, match="missing a required argument"):
        CallSignature.of(wrapper).bind((), {})
    with pytest.raises(ArgumentError, match="argument 'invoice_id'"):
        validate(wrapper, "x")


def test_a_builtin_without_signature_is_not_judged() -> None:
    """What Python cannot describe is not refused here."""

    class Silent:
        __signature__ = "none"

        def __call__(self, x: int) -> None: ...

    assert validate(Silent(), 1, 2, y=3) == ((1, 2), {"y": 3})


def test_signatures_are_remembered_while_the_function_lives() -> None:
    """The same function gives the same object, and remembering it keeps no function alive."""

    def short_lived(x: int) -> None: ...

    assert CallSignature.of(short_lived) is CallSignature.of(short_lived)
    assert CallSignature.of(Service().run) is CallSignature.of(Service().run)
    assert CallSignature.of(Service.run) is not CallSignature.of(Service().run)
    gone = weakref.ref(short_lived)
    CallSignature.of(short_lived).validate((1,), {})
    del short_lived
    gc.collect()
    assert gone() is None


def test_a_default_that_cannot_be_printed() -> None:
    """The sentence comes out also when the signature cannot be printed."""

    class Rude:
        def __repr__(self) -> str:
            raise RuntimeError("no")

    def polite(x: int, y: object = Rude()) -> None: ...

    with pytest.raises(ArgumentError, match=r"its signature is polite\(x, y\)"):
        CallSignature.of(polite).bind((), {})


# -- annotations ----------------------------------------------------------------------------------------


def named(value: object) -> str:
    """A parameter's name: without addresses, which no two processes that share tests have alike."""
    return re.sub(r" at 0x[0-9a-f]+", "", ascii(value))


def annotated(annotation: Any) -> Callable[..., object]:
    def body(x: Any) -> None: ...

    body.__annotations__ = {"x": annotation}
    return body


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (int, 1),
        (int, 10**40),
        (str, "a"),
        (bool, True),
        (bytes, b""),
        (float, 1.5),
        (None, None),
        (Any, object()),
        (object, object()),
        (int | None, None),
        (Optional[Order], None),  # noqa: UP045  # the old spelling is met in the wild
        (Order, Order("a")),
        (Model, Model(x=1)),
        (Color, Color.RED),
        (UUID, UUID(int=1)),
        (Decimal, Decimal("NaN")),
        (datetime, datetime(2024, 1, 1, tzinfo=UTC)),
        (date, date(2024, 1, 1)),
        (list, [1]),
        (list[int], [1]),
        (dict[str, list[int]], {"a": [1]}),
        (tuple[int, ...], (1, 2)),
        (tuple[int, str], (1, "a")),
        (set[str], {"a"}),
        (Sequence[int], (1, 2)),
        (Mapping[str, int], {"a": 1}),
        (AbstractSet[str], {"a"}),
        (AbstractSet[str], frozenset("a")),
        (AbstractSet[str] | None, {"a"}),
        (Iterable[int], [1]),
        (list[Iterable[int]], [[1]]),
        (Literal["a"], "a"),
        (CustomerId, 1),
        (T, 1),
        (Opaque, Opaque()),
        (Named, object()),
        (list[Named], [object()]),
        (len, 1),
        ("Missing", 1),
        (list["Missing"], 1),
        ("this is no annotation", 1),
        ("1/0", 1),
        (12, 1),
    ],
    ids=named,
)
def test_a_fitting_value_is_passed_on(annotation: Any, value: object) -> None:
    """What fits its annotation, or has one that cannot be enforced, arrives equal and of the same type."""
    (back,), _ = validate(annotated(annotation), value)
    assert back is value or (back == value and type(back) is type(value))
    assert validate(annotated(annotation), x=value)[1].keys() == {"x"}


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (int, "1"),
        (int, True),
        (int, 1.0),
        (str, 1),
        (str, b"a"),
        (bool, 1),
        (bytes, "a"),
        (float, "1"),
        (None, 0),
        (int | None, "x"),
        (Order, {"sku": "a"}),
        (Color, "r"),
        (UUID, "00000000-0000-0000-0000-000000000001"),
        (datetime, "2024-01-01"),
        (date, datetime(2024, 1, 1, tzinfo=UTC)),
        (list[int], ["1"]),
        (list[int], (1,)),
        (tuple[int, ...], [1]),
        (dict[str, int], {"a": "b"}),
        (AbstractSet[str], ["a"]),
        (Literal["a"], "b"),
        (CustomerId, "1"),
        (Opaque, 1),
        (Annotated[int, pydantic.Field(gt=3)], 1),
    ],
    ids=named,
)
def test_a_value_that_does_not_fit_is_refused_by_name(annotation: Any, value: object) -> None:
    """Nothing is converted to fit; the error names function and argument, by position and by keyword."""
    for args, kwargs in (((value,), {}), ((), {"x": value})):
        with pytest.raises(ArgumentError, match=r"body\(\) argument 'x': ") as refusal:
            CallSignature.of(annotated(annotation)).validate(args, kwargs)
        assert "\n" not in str(refusal.value)


def test_values_are_not_quoted() -> None:
    """The error does not repeat the value, which may be secret."""
    with pytest.raises(ArgumentError) as refusal:
        validate(annotated(dict[str, list[int]]), {"k": ["s3cr3t", 1, "s3cr3t", "s3cr3t", "s3cr3t"]})
    told = str(refusal.value)
    assert "['k'][0] input should be a valid integer" in told
    assert "and 1 more" in told
    assert "s3cr3t" not in told


def test_annotations_may_change_the_value() -> None:
    """The body gets what validation answers: an int becomes a float, a validator's value, a model from a dict."""

    def body(
        a: float, b: Annotated[str, pydantic.AfterValidator(str.upper)], c: Model, d: pydantic.SecretStr
    ) -> None: ...

    args: tuple[object, ...] = (1, "x")
    given_kwargs: dict[str, object] = {"c": {"x": 1}, "d": "y"}
    back, kwargs = CallSignature.of(body).validate(args, given_kwargs)
    assert back == (1.0, "X")
    assert type(back[0]) is float
    assert kwargs == {"c": Model(x=1), "d": pydantic.SecretStr("y")}
    assert args == (1, "x")
    assert given_kwargs == {"c": {"x": 1}, "d": "y"}


def test_star_arguments_are_enforced() -> None:
    """Annotations of *args and **kwargs hold for each of theirs."""
    assert validate(star, 1, 2, 3, x="a") == ((1, 2, 3), {"x": "a"})
    with pytest.raises(ArgumentError, match=r"argument '\*3'"):
        validate(star, 1, 2, "3")
    with pytest.raises(ArgumentError, match="argument 'x'"):
        validate(star, 1, x=1)
    assert validate(positional_only, 1, a="free") == ((1,), {"a": "free"})

    def passed_on(*args: P.args, **kwargs: P.kwargs) -> None: ...  # type: ignore[valid-type]

    assert validate(passed_on, 1, x=2) == ((1,), {"x": 2})


def test_one_unresolvable_annotation_leaves_the_others_enforced() -> None:
    """A name that exists only for the type checker switches off its own parameter alone."""

    def body(a: Missing, b: int) -> None: ...

    assert validate(body, "x", 1) == (("x", 1), {})
    with pytest.raises(ArgumentError, match="argument 'b'"):
        validate(body, "x", "y")


def test_defaults_are_not_judged() -> None:
    """A default that does not fit its annotation is the author's business."""

    def body(a: int = "one") -> None: ...  # type: ignore[assignment]

    assert validate(body) == ((), {})


def test_a_validator_that_breaks_is_an_argument_error() -> None:
    """Whatever an annotation's validator raises, it is told as that argument's error."""

    def broken(value: object) -> object:
        raise RuntimeError("broken")

    with pytest.raises(ArgumentError, match="argument 'x': its validation raised RuntimeError"):
        validate(annotated(Annotated[int, pydantic.AfterValidator(broken)]), 1)


def test_exact_builtins_need_no_pydantic() -> None:
    """Validating what fits exactly does not import pydantic."""
    code = """
import sys
from ratchet.defaults.signature import CallSignature
def f(a: int, b: "str | None", *, c: float = 1.0): ...
assert CallSignature.of(f).validate((1, None), {"c": 2.0}) == ((1, None), {"c": 2.0})
print("pydantic" in sys.modules)
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert ran.stdout == "False\n"
