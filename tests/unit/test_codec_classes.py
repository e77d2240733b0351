"""The JSON codec and the application's classes: enums, dataclasses, pydantic models, and the policy."""

import sys
from dataclasses import InitVar, dataclass, field, make_dataclass
from decimal import Decimal
from enum import Enum, Flag, IntFlag
from functools import cached_property
from pathlib import Path
from typing import Any, Generic, TypeVar

import pydantic
import pydantic.dataclasses
import pytest

from ratchet.defaults.codec import JsonCodec, UnresolvableClass
from ratchet.errors import UnencodableValue, UnreadablePayload

codec = JsonCodec(lambda module: module == __name__)
T = TypeVar("T")


def travel(value: Any) -> Any:
    back = codec.decode_value(codec.encode_value(value, what="result"))
    assert type(back) is type(value)
    return back


class Color(Enum):
    RED = "r"
    ALIAS = RED
    MIXED = ("x", 1)


class Mode(Flag):
    READ = 1
    WRITE = 2


class Bits(IntFlag):
    ONE = 1


@dataclass
class Line:
    sku: str
    price: Decimal = Decimal("0.10")


@dataclass(frozen=True, slots=True)
class Frozen:
    lines: tuple[Line, ...]


@dataclass(kw_only=True)
class Keyword(Line):
    extra: int


@dataclass
class Computed:
    raw: str
    seed: InitVar[int]
    total: int = field(init=False)
    unset: int = field(init=False)
    made: list[int] = field(default_factory=list)

    def __post_init__(self, seed: int) -> None:
        self.total = seed
        self.raw += "!"  # running this again would change the value
        self.note = "not a field"

    @cached_property
    def derived(self) -> object:
        return object()


@dataclass
class Box(Generic[T]):
    item: T


class Outer:
    @dataclass
    class Inner:
        x: int = 1

    class Kind(Enum):
        A = 1


@dataclass
class Mapping(dict[str, int]):
    x: int = 1


class SlotBase:
    __slots__ = ("hidden",)


@dataclass
class OddSlots(SlotBase):
    x: int = 1


@pydantic.dataclasses.dataclass
class Checked:
    x: int


class Model(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow")

    price: Decimal
    line: Line | None = None
    tags: set[str] = pydantic.Field(default_factory=set)
    _seen: int = pydantic.PrivateAttr(default=0)

    @cached_property
    def derived(self) -> object:
        return object()


class FrozenModel(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(frozen=True)
    x: int
    shout: str = "a"

    @pydantic.field_validator("shout")
    @classmethod
    def _louder(cls, value: str) -> str:
        return value + "!"


class Root(pydantic.RootModel[list[int]]):
    pass


class GenericModel(pydantic.BaseModel, Generic[T]):
    x: T


IntModel = GenericModel[int]


@pytest.mark.parametrize(
    "value",
    [Color.RED, Color.MIXED, Mode.READ, Mode.READ | Mode.WRITE, Mode(0), Bits.ONE, Bits(6), Outer.Kind.A],
    ids=repr,
)
def test_enum_members_travel(value: Enum) -> None:
    """A member arrives as the very member, a combination of flags as the same combination."""
    assert travel(value) is value or (travel(value) == value and isinstance(value, Flag))


@pytest.mark.parametrize(
    "value",
    [
        Line("a"),
        Frozen((Line("b", Decimal("1.10")),)),
        Keyword(sku="c", extra=1),
        Outer.Inner(3),
        Box[int](1),
        Checked(1),
        Model(price=Decimal("1.10"), line=Line("a"), tags={"x"}, **{"more": (1, 2), "$": 3}),
        FrozenModel(x=1),
        FrozenModel(x=1, shout="b"),
        Root([1, 2]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_objects_travel(value: object) -> None:
    """Dataclasses (frozen, slotted, keyword-only, generic, nested) and models arrive equal."""
    assert travel(value) == value
    assert travel([value, (value,)]) == [value, (value,)]


def test_a_dataclass_travels_as_its_state() -> None:
    """Nothing is computed again on arrival: init=False fields and other attributes are what they were."""
    value = Computed("raw", 7)
    _ = value.derived
    back = travel(value)
    assert (back.raw, back.total, back.made, back.note) == ("raw!", 7, [], "not a field")
    assert not hasattr(back, "unset")
    assert "derived" not in vars(back)


def test_a_model_travels_as_its_state() -> None:
    """Validators do not run again; fields set, extras and private attributes are what they were."""
    value = Model.model_validate({"price": Decimal("2.50"), "more": 1})
    value._seen = 5
    _ = value.derived
    back = travel(value)
    assert back == value
    assert back.model_fields_set == {"price", "more"}
    assert back.model_extra == {"more": 1}
    assert back._seen == 5
    assert FrozenModel(x=1, shout="b").shout == travel(FrozenModel(x=1, shout="b")).shout == "b!"


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (Mapping(), "subclass of dict"),
        (OddSlots(), "no exact JSON form"),
        (IntModel(x=1), "name of its own"),
        (Line.__class__, "a class cannot travel"),
        (make_dataclass("Loose", ["x"])(1), "outside the target policy|cannot be found"),  # by Python version
        (Path(), "no exact JSON form"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_classes_that_could_not_be_rebuilt_are_refused(value: object, words: str) -> None:
    """What would lose a part of itself, or could not be found again, is refused when it is encoded."""
    with pytest.raises(UnencodableValue, match=words):
        codec.encode_value(value, what="result")


def test_local_and_main_classes_are_refused() -> None:
    """A class inside a function or of the running script is refused with what to do."""

    @dataclass
    class Local:
        x: int = 1

    with pytest.raises(UnencodableValue, match="define it at module level"):
        codec.encode_value(Local(), what="result")
    main = make_dataclass("Main", ["x"], namespace={"__module__": "__main__"})
    main.__module__ = "__main__"
    with pytest.raises(UnencodableValue, match="which a worker cannot import"):
        JsonCodec(lambda _: True).encode_value(main(1), what="result")


def test_a_class_replaced_under_its_name_is_refused() -> None:
    """A class that its own name does not lead to would come back as another one, so it is refused."""
    impostor = make_dataclass("Line", ["x"])
    impostor.__module__ = __name__
    with pytest.raises(UnencodableValue, match="cannot be found as"):
        codec.encode_value(impostor(1), what="result")


def test_by_default_no_class_travels() -> None:
    """Without a policy every class is refused, both ways."""
    text = codec.encode_value(Line("a"), what="result")
    with pytest.raises(UnencodableValue, match=f"allow the module {__name__!r}"):
        JsonCodec().encode_value(Line("a"), what="result")
    with pytest.raises(UnreadablePayload, match="outside the target policy"):
        JsonCodec().decode_value(text)


def test_a_module_outside_the_policy_is_not_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name in a payload does not make its module run unless the policy allows it."""
    mark = tmp_path / "ran"
    (tmp_path / "ratchet_test_evil.py").write_text(f"open({str(mark)!r}, 'w').close()\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(UnreadablePayload, match="outside the target policy") as refusal:
        codec.decode_value('{"$":["dataclass","ratchet_test_evil:X",{}]}')
    assert not isinstance(refusal.value, UnresolvableClass)
    assert not mark.exists()


@pytest.mark.parametrize(
    "name",
    [
        "{}:Path",
        "{}:pydantic.BaseModel",
        "{}:sys.modules",
        "{}:Line.__init__",
        "{}:Line.__class__",
        "{}:codec",
        "{}:Gone",
        "{}:Outer.Gone",
    ],
)
def test_only_classes_that_the_module_defines_are_found(name: str) -> None:
    """A name does not lead through an allowed module to what it merely imported, nor to anything but a class."""
    with pytest.raises(UnresolvableClass):
        codec.decode_value('{"$":["dataclass","%s",{}]}' % name.format(__name__))  # noqa: UP031  # braces


@pytest.mark.parametrize("name", ["x", ":X", "m:", "m::X", "m:X:Y", "m..n:X", "m:X.<locals>.Y", "../m:X", ""])
def test_malformed_class_names_are_unreadable(name: str) -> None:
    """A class name that is none is refused before anything is looked up."""
    with pytest.raises(UnreadablePayload, match="malformed"):
        JsonCodec(lambda _: True).decode_value('{"$":["dataclass","%s",{}]}' % name)  # noqa: UP031  # braces


@pytest.mark.field_case("F49")
def test_a_class_or_member_that_is_gone_is_named() -> None:
    """A renamed class and a removed enum member raise an error of their own that names what is missing."""
    with pytest.raises(UnresolvableClass, match=f"{__name__}:Gone is not available here") as refusal:
        codec.decode_arguments('[[{"$":["dataclass","%s:Gone",{}]}],{}]' % __name__, 1)  # noqa: UP031  # braces
    assert refusal.value.name == f"{__name__}:Gone"
    with pytest.raises(UnresolvableClass, match=r"Color\.GREEN"):
        codec.decode_value('{"$":["enum","%s:Color","GREEN"]}' % __name__)  # noqa: UP031  # braces
    with pytest.raises(UnresolvableClass, match="no value 8"):
        codec.decode_value('{"$":["flag","%s:Mode",8]}' % __name__)  # noqa: UP031  # braces
    for kind in ("dataclass", "model", "enum"):
        rest = {"dataclass": "{}", "model": "{},[],null,null", "enum": '"A"'}[kind]
        with pytest.raises(UnresolvableClass, match="no longer"):
            codec.decode_value('{"$":["%s","%s:Outer",%s]}' % (kind, __name__, rest))  # noqa: UP031  # braces


@pytest.mark.field_case("F49")
@pytest.mark.parametrize("source", ["raise RuntimeError('x')", "import sys; sys.exit(3)", "def"], ids=str)
def test_a_module_that_breaks_on_import_counts_as_unresolvable(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A module that raises or exits while it is imported ends neither the worker nor in another error."""
    (tmp_path / "ratchet_test_broken.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    sys.modules.pop("ratchet_test_broken", None)
    with pytest.raises(UnresolvableClass, match="importing ratchet_test_broken raised"):
        JsonCodec(lambda _: True).decode_value('{"$":["dataclass","ratchet_test_broken:X",{}]}')


def stored(name: str, state: str) -> str:
    return '{"$":["dataclass","' + f'{__name__}:{name}",{state}]}}'


def test_classes_may_gain_fields_with_defaults() -> None:
    """A payload from before a field existed is read with the field's default."""
    assert codec.decode_value(stored("Line", '{"sku":"a"}')) == Line("a")
    older = '{"$":["model","' + f'{__name__}:Model",{{"price":1}},["price"],{{}},{{}}]}}'
    model = codec.decode_value(older)
    assert isinstance(model, Model)
    assert (model.line, model.tags, model._seen) == (None, set(), 0)


def test_other_changes_of_a_class_are_told() -> None:
    """A new field without a default and a field that is gone are named; nothing is dropped in silence."""
    with pytest.raises(UnreadablePayload, match="no value for its new field 'sku'"):
        codec.decode_value(stored("Line", "{}"))
    with pytest.raises(UnreadablePayload, match="a field 'old' that the class no longer has"):
        codec.decode_value(stored("Line", '{"sku":"a","old":1}'))
    with pytest.raises(UnreadablePayload, match="no value for its new field 'price'"):
        codec.decode_value('{"$":["model","' + f'{__name__}:Model",{{}},[],{{}},{{}}]}}')


def test_the_place_inside_a_model_is_named() -> None:
    """A value that cannot travel is named through fields, extras and private attributes."""
    model = Model(price=Decimal(1))
    for path, change in (
        ("result.line.sku", {"line": Line(object())}),  # type: ignore[arg-type]
        ("result['more']", {"more": object()}),
    ):
        with pytest.raises(UnencodableValue) as refusal:
            codec.encode_value(model.model_copy(update=change), what="result")
        assert refusal.value.path == path
