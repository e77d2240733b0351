"""Which class a payload names: its text on the way out, the class itself on the way in, under the policy."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import Enum
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeGuard

from ratchet.errors import UnreadablePayload

if TYPE_CHECKING:
    from pydantic import BaseModel

Allows = Callable[[str], bool]


class UnresolvableClass(UnreadablePayload):
    """A stored payload names an allowed class, or a member of it, that this code does not have.

    The data is whole: a node with the class can read it, and so can this one after a deploy.

    Args:
        name: what is missing, as ``module:QualName`` or ``module:QualName.MEMBER``.
        reason: why it could not be found.
    """

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(
            f"{name} is not available here: {reason}; deploy the code that has it, then retry the job"
        )
        self.name = name


class Untransportable(Exception):
    """Why a value cannot travel; the encoder adds the path and raises `UnencodableValue`."""


class PayloadClasses:
    """Names classes and finds them again, both only in modules that `allows` answers True for."""

    __slots__ = ("_allows",)

    def __init__(self, allows: Allows) -> None:
        self._allows = allows

    def name_of(self, cls: type) -> str:
        """The text under which `find` gives exactly this class, or `Untransportable` with the remedy."""
        module, qualname = cls.__module__, cls.__qualname__
        if "<locals>" in qualname:
            raise Untransportable(
                f"its class {qualname} is defined inside a function; define it at module level"
            )
        if module == "__main__":
            raise Untransportable(
                f"its class {qualname} belongs to the script that is running (__main__), which a worker"
                " cannot import; define it in a module and import it from there"
            )
        if not self._allows(module):
            raise Untransportable(
                f"its class {module}.{qualname} lies outside the target policy; allow the module {module!r}"
            )
        if not _is_dotted_name(qualname) or _attribute(sys.modules.get(module), qualname) is not cls:
            raise Untransportable(
                f"its class cannot be found as {module}.{qualname}; give it a module-level name of its own"
            )
        return f"{module}:{qualname}"

    def find(self, name: object) -> type[Any]:
        """The class with this name; a module outside the policy is never imported."""
        if not isinstance(name, str) or not all(map(_is_dotted_name, name.partition(":")[::2])):
            raise UnreadablePayload("a class name in the payload is malformed")
        module, _, qualname = name.partition(":")
        if not self._allows(module):
            raise UnreadablePayload(
                f"the payload names the class {name}, which lies outside the target policy"
            )
        try:
            # Also of a loaded one: while another thread imports it, half of its names are missing.
            loaded = importlib.import_module(module)
        # A module that exits while it is imported must not end the worker.
        except (Exception, SystemExit) as error:
            raise UnresolvableClass(name, f"importing {module} raised {type(error).__name__}") from error
        found = _attribute(loaded, qualname)
        # What an allowed module merely imported is not its own: the policy was asked about `module`.
        if not isinstance(found, type) or (found.__module__, found.__qualname__) != (module, qualname):
            raise UnresolvableClass(name, f"{module} defines no such class")
        return found


def _is_dotted_name(text: str) -> bool:
    return all(part.isidentifier() for part in text.split("."))


def _attribute(module: object, qualname: str) -> object:
    """Walk through classes only, so that no name leads from an allowed module into another one."""
    first, *rest = qualname.split(".")
    found: object = getattr(module, first, None)
    for part in rest:
        if not isinstance(found, type):
            return None
        found = found.__dict__.get(part)
    return found


# -- dataclasses: carried as their state, rebuilt without __init__, so that nothing is computed twice ---


def is_plain_dataclass(cls: type) -> bool:
    """True for a dataclass whose whole state is its attributes (it inherits from no builtin container)."""
    return is_dataclass(cls) and cls.__new__ is object.__new__ and not _foreign_slots(cls)


def _foreign_slots(cls: type) -> bool:
    names = {field.name for field in fields(cls)} | {"__dict__", "__weakref__"}
    for base in cls.__mro__:
        slots = base.__dict__.get("__slots__", ())
        if not names.issuperset((slots,) if isinstance(slots, str) else slots):
            return True
    return False


def dataclass_state(value: object) -> Iterator[tuple[str, object, bool]]:
    """Its attributes as (name, value, is a field); what a ``cached_property`` keeps is left out."""
    names = [field.name for field in fields(type(value))]  # type: ignore[arg-type]  # checked by the caller
    for name in names:
        try:
            yield name, getattr(value, name), True
        except AttributeError:  # an init=False field that was never set stays unset
            continue
    for name, kept in getattr(value, "__dict__", {}).items():
        if name not in names and not is_derived(type(value), name):
            yield name, kept, False


def is_derived(cls: type, name: str) -> bool:
    """True if an instance attribute can be computed again and need not travel."""
    if name == "__orig_class__":  # typing puts it on instances made through Generic[...]
        return True
    for base in cls.__mro__:
        if name in base.__dict__:
            return isinstance(base.__dict__[name], cached_property)
    return False


def build_dataclass(name: str, cls: type[Any], state: dict[str, object], extra: dict[str, object]) -> object:
    """The instance with this state; a field that is new since then gets its default."""
    if not is_plain_dataclass(cls):
        raise UnresolvableClass(name, "it is no longer a dataclass that can be rebuilt from its fields")
    known = {field.name: field for field in fields(cls)}
    _refuse_unknown(name, state, known)
    instance = object.__new__(cls)
    for field in known.values():
        if field.name in state:
            object.__setattr__(instance, field.name, state[field.name])
        elif (default := _default(field)) is not MISSING:
            object.__setattr__(instance, field.name, default)
        elif field.init:
            raise UnreadablePayload(f"the payload of {name} has no value for its new field {field.name!r}")
    for attribute, value in extra.items():
        object.__setattr__(instance, attribute, value)
    return instance


def _default(field: Field[Any]) -> object:
    return field.default if field.default_factory is MISSING else field.default_factory()


def _refuse_unknown(name: str, state: dict[str, object], known: dict[str, Any]) -> None:
    for gone in state.keys() - known.keys():
        raise UnreadablePayload(f"the payload of {name} has a field {gone!r} that the class no longer has")


# -- pydantic models: likewise their state, without a second validation ---------------------------------


def is_model(cls: type) -> TypeGuard[type[BaseModel]]:
    """True for a pydantic model; pydantic is not imported just to say no."""
    module = sys.modules.get("pydantic.main")
    return module is not None and issubclass(cls, module.BaseModel)


def build_model(
    name: str,
    cls: type[Any],
    state: dict[str, object],
    fields_set: list[str],
    extra: dict[str, object] | None,
    private: dict[str, object] | None,
) -> object:
    """The instance with this state; a field or private attribute that is new since then gets its default."""
    from pydantic_core import PydanticUndefined

    if not is_model(cls):
        raise UnresolvableClass(name, "it is no longer a pydantic model")
    known = cls.model_fields
    _refuse_unknown(name, state, known)
    attributes: dict[str, object] = {}
    for field_name, info in known.items():
        if field_name in state:
            attributes[field_name] = state[field_name]
        elif info.is_required():
            raise UnreadablePayload(f"the payload of {name} has no value for its new field {field_name!r}")
        else:
            attributes[field_name] = info.get_default(call_default_factory=True, validated_data=attributes)
    for attribute, declared in cls.__private_attributes__.items():
        private = {} if private is None else private
        if attribute not in private and (default := declared.get_default()) is not PydanticUndefined:
            private[attribute] = default
    instance = cls.__new__(cls)
    object.__setattr__(instance, "__dict__", attributes)
    object.__setattr__(instance, "__pydantic_fields_set__", set(fields_set))
    object.__setattr__(instance, "__pydantic_extra__", extra)
    object.__setattr__(instance, "__pydantic_private__", private)
    return instance


# -- enums ----------------------------------------------------------------------------------------------


def find_member(name: str, cls: type[Any], member: str) -> Enum:
    """The enum member of this name."""
    if not issubclass(cls, Enum):
        raise UnresolvableClass(name, "it is no longer an enum")
    found: Enum | None = cls.__members__.get(member)
    if found is None:
        raise UnresolvableClass(f"{name}.{member}", "the enum has no such member")
    return found
