"""What the frozen dataclasses that every worker loads have in common."""

from __future__ import annotations

from dataclasses import Field
from typing import Any, ClassVar


class ValueObject:
    """Compared, hashed and shown by its fields, as a dataclass is.

    A dataclass has these three methods compiled for each class, which took a tenth of the way from the exec of
    a worker to its first job. With this base and ``eq=False, repr=False`` there is one of each.
    """

    __slots__ = ()
    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    def __eq__(self, other: object) -> bool:
        if other.__class__ is not self.__class__:
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self.__dataclass_fields__)

    def __hash__(self) -> int:
        return hash(tuple([getattr(self, name) for name in self.__dataclass_fields__]))

    def __repr__(self) -> str:
        shown = (name for name, each in self.__dataclass_fields__.items() if each.repr)
        return f"{type(self).__qualname__}({', '.join(f'{name}={getattr(self, name)!r}' for name in shown)})"
