"""One annotation of a parameter: looked up, and enforced by pydantic, strictly (specification, section 8)."""

from __future__ import annotations

import collections.abc
import functools
import inspect
import types
import typing
from typing import Any, NewType

if typing.TYPE_CHECKING:
    from pydantic import TypeAdapter, ValidationError

Scope = tuple[
    dict[str, Any], dict[str, Any]
]  # the names that the text of an annotation may use: globals, locals


class Unfit(Exception):
    """Why a value does not fit; whoever knows the function and the argument raises `ArgumentError`."""


class Check:
    """One annotation. A value whose type is in `exact` fits as it is, without pydantic being imported."""

    __slots__ = ("_adapter", "_annotation", "_built", "exact")

    def __init__(self, annotation: Any, exact: frozenset[type]) -> None:
        self.exact = exact
        self._annotation = annotation
        self._adapter: TypeAdapter[Any] | None = None
        self._built = False

    def __call__(self, value: object) -> Any:
        """The value to call the function with, or `Unfit`."""
        if not self._built:
            self._adapter, self._built = _adapter_of(self._annotation), True
        kind = type(value).__qualname__
        if self._adapter is None:
            if isinstance(self._annotation, type) and not _fits(value, self._annotation):
                raise Unfit(f"it should be a {self._annotation.__qualname__} (it is a {kind})")
            return value
        from pydantic import ValidationError

        try:
            return _kept(self._adapter.validate_python(value, strict=True), value)
        except ValidationError as error:
            raise Unfit(f"{_told(error)} (it is a {kind})") from None
        except Unfit:
            raise
        except Exception as error:
            raise Unfit(f"its validation raised {type(error).__name__}") from error


def _kept(answer: Any, value: Any) -> Any:
    """The answer, but never a different value in silence.

    Pydantic flattens what is an int or a str and more, like an Enum member, although it fits as it is; and
    it makes a float of an int that no float can hold.
    """
    if answer is value:
        return value
    if type(answer) is not type(value):
        if isinstance(value, type(answer)) and value == answer:
            return value
        if type(answer) is float and type(value) is int and answer != value:
            raise Unfit(f"a float cannot hold {value} exactly" if abs(value) < 10**30 else "it is no float")
        return answer
    match answer:
        case list() if len(answer) == len(value):
            return list(map(_kept, answer, value))
        case tuple() if type(answer) is tuple and len(answer) == len(value):
            return tuple(map(_kept, answer, value))
        case dict() if answer.keys() == value.keys():
            return {key: _kept(each, value[key]) for key, each in answer.items()}
        case _:
            return answer


def _fits(value: object, cls: type) -> bool:
    try:
        return isinstance(value, cls)
    except TypeError:  # a protocol that is not checkable at run time
        return True


def _told(error: ValidationError) -> str:
    """What pydantic found, without the values, which may be secret."""
    found = []
    for one in error.errors(include_url=False, include_context=False, include_input=False)[:3]:
        place = "".join(f"[{part!r}]" for part in one["loc"])
        message = one["msg"]
        found.append(f"{place + ' ' if place else ''}{message[:1].lower()}{message[1:]}")
    more = error.error_count() - len(found)
    return "; ".join(found) + (f"; and {more} more" if more > 0 else "")


def scope_of(func: Any) -> Scope:
    """Where the text of an annotation is to be read: the module's names, and type parameters."""
    while True:
        if isinstance(func, functools.partial):
            func = func.func
        elif (inner := getattr(func, "__func__", None) or getattr(func, "__wrapped__", None)) is not None:
            func = inner
        else:
            break
    if not hasattr(func, "__globals__"):
        func = getattr(func.__call__, "__func__", func)
    names = {parameter.__name__: parameter for parameter in getattr(func, "__type_params__", ())}
    return getattr(func, "__globals__", {}), names


def resolved(annotation: Any, scope: Scope) -> Any:
    """The annotation with every name in it looked up; Any, which checks nothing, if one is missing."""
    holder = types.SimpleNamespace(__annotations__={"it": annotation})
    try:
        return typing.get_type_hints(holder, *scope, include_extras=True)["it"]
    except Exception:  # noqa: BLE001  # whatever the text of an annotation does when it is read
        return Any


def check_of(annotation: Any) -> Check | None:
    """What enforces a resolved annotation; None if it allows everything."""
    while isinstance(annotation, NewType):
        annotation = annotation.__supertype__
    if annotation is typing.LiteralString:
        annotation = str
    if is_unchecked(annotation):
        return None
    members = typing.get_args(annotation) if _is_union(annotation) else (annotation,)
    return Check(annotation, frozenset(one for one in members if isinstance(one, type)))


def is_unchecked(annotation: Any) -> bool:
    """True if the annotation says nothing about one argument's type."""
    # What a decorator's ParamSpec, a TypeVarTuple or Unpack stand for is not one argument's type.
    return (
        any(annotation is one for one in (inspect.Parameter.empty, Any, object))
        or isinstance(annotation, typing.TypeVar | typing.ParamSpecArgs | typing.ParamSpecKwargs)
        or typing.get_origin(annotation) is typing.Unpack
    )


def _is_union(annotation: Any) -> bool:
    return typing.get_origin(annotation) in (typing.Union, types.UnionType)


def _adapter_of(annotation: Any) -> TypeAdapter[Any] | None:
    from pydantic import ConfigDict, PydanticUserError, TypeAdapter

    annotation = _with_both_sets(annotation)
    try:
        try:
            adapter = TypeAdapter(annotation, config=ConfigDict(arbitrary_types_allowed=True))
        except PydanticUserError as error:
            if error.code != "type-adapter-config-unused":
                raise
            adapter = TypeAdapter(annotation)  # a model, dataclass or TypedDict has a config of its own
        # An Iterable would be replaced by an iterator that validates later and can be read only once.
        return None if _mentions_generator(adapter.core_schema) else adapter
    except Exception:  # noqa: BLE001  # pydantic tells in many ways that it can make no schema
        return None


def _with_both_sets(annotation: Any) -> Any:
    """Pydantic reads ``collections.abc.Set`` as frozenset alone, which in strict mode refuses a set."""
    arguments = typing.get_args(annotation)
    if annotation is collections.abc.Set or typing.get_origin(annotation) is collections.abc.Set:
        return set[arguments] | frozenset[arguments] if arguments else set | frozenset  # type: ignore[valid-type]
    if _is_union(annotation):
        return typing.Union[tuple(map(_with_both_sets, arguments))]  # noqa: UP007  # made at run time
    return annotation


def _mentions_generator(schema: Any) -> bool:
    match schema:
        case {"type": "generator"}:
            return True
        case dict():
            return any(map(_mentions_generator, schema.values()))
        case list() | tuple():
            return any(map(_mentions_generator, schema))
        case _:
            return False
