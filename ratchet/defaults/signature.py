"""Does a call fit a job function: its signature and its annotations (specification, section 8)."""

from __future__ import annotations

import functools
import inspect
import weakref
from collections.abc import Callable, Mapping
from typing import Any, Final

from ratchet.defaults.signature_annotations import (
    Check,
    Scope,
    Unfit,
    check_of,
    is_unchecked,
    resolved,
    scope_of,
)
from ratchet.errors import ArgumentError

_P = inspect.Parameter
_cache: Final[weakref.WeakKeyDictionary[Any, dict[tuple[bool, bool], CallSignature]]] = (
    weakref.WeakKeyDictionary()
)


class CallSignature:
    """What may be passed to one job function.

    Made by `of`, which remembers it for the function's life. Annotations are resolved at the first
    `validate`, so that a forward reference may still be missing while modules are being imported.
    """

    __slots__ = (
        "_checks",
        "_names",
        "_places",
        "_positional",
        "_raw",
        "_required",
        "_scope",
        "_signature",
        "name",
    )

    def __init__(self, func: Callable[..., object], *, skip_self: bool = False) -> None:
        self.name: str = _name_of(func)
        self._signature = _signature_of(func, skip_self=skip_self)
        self._scope = scope_of(func)
        parameters = () if self._signature is None else tuple(self._signature.parameters.values())
        self._raw = {p.name: p.annotation for p in parameters if not is_unchecked(p.annotation)}
        by_place = [p for p in parameters if p.kind in (_P.POSITIONAL_ONLY, _P.POSITIONAL_OR_KEYWORD)]
        self._names = tuple(p.name for p in by_place)
        self._positional = len(by_place)
        # A keyword fits if its place is not taken by a positional argument; keyword-only ones have none.
        self._places = {p.name: i for i, p in enumerate(by_place) if p.kind is _P.POSITIONAL_OR_KEYWORD}
        self._places |= {p.name: self._positional for p in parameters if p.kind is _P.KEYWORD_ONLY}
        self._required = tuple((p.name, i) for i, p in enumerate(by_place) if p.default is _P.empty) + tuple(
            (p.name, self._positional)
            for p in parameters
            if p.kind is _P.KEYWORD_ONLY and p.default is _P.empty
        )
        self._checks: _Checks | None = None if self._raw else _Checks()

    @classmethod
    def of(cls, func: Callable[..., object], *, skip_self: bool = False) -> CallSignature:
        """The signature of `func`; a bound method's has no ``self``.

        Args:
            func: a function, ``async def`` function, bound method, partial or callable object.
            skip_self: leave out the first parameter, for a plain function found on a class whose
                instance is not at hand.
        """
        key = getattr(func, "__func__", func)
        variant = (key is func, skip_self)
        try:
            known = _cache.get(key)
            if known is None:
                known = _cache.setdefault(key, {})
        except TypeError:  # not hashable or not weakly referable
            return cls(func, skip_self=skip_self)
        found = known.get(variant)
        if found is None:
            found = known[variant] = cls(func, skip_self=skip_self)
        return found

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the parameters that can be passed by position, in order."""
        return self._names

    def bind(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> None:
        """Check that the function can be called so.

        Raises:
            ArgumentError: an argument is missing, unknown, given twice or one too many.
        """
        count = len(args)
        if count <= self._positional:
            places = self._places
            for name in kwargs:
                if places.get(name, -1) < count:
                    break
            else:
                for name, place in self._required:
                    if place >= count and (name not in kwargs or name not in places):
                        break
                else:
                    return
        if self._signature is None:
            return
        try:
            self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise ArgumentError(f"{self.name}() {error}; its signature is {self}") from None

    def validate(
        self, args: tuple[object, ...], kwargs: Mapping[str, object]
    ) -> tuple[tuple[object, ...], dict[str, object]]:
        """`bind`, and enforce the annotations; answers what the function is to be called with.

        Pydantic judges strictly: an int does not pass for a str, a str not for a datetime. A
        validator in an annotation may answer another value, so a submission encodes what it was
        given, not this answer: the worker validates again. Annotations that cannot be resolved,
        or of which pydantic can make no schema, are not enforced. Defaults are not looked at.

        Raises:
            ArgumentError: the call does not fit, or an argument does not fit its annotation.
        """
        self.bind(args, kwargs)
        checks = self._checks
        if checks is None:
            checks = self._checks = _Checks.resolve(self._signature, self._raw, self._scope)
        keywords = dict(kwargs)
        if checks.by_place or checks.surplus:
            args = self._validated(args, checks)
        if checks.by_name or checks.unnamed:
            for name, value in keywords.items():
                check = checks.by_name.get(name) if name in self._places else checks.unnamed
                if check is not None and type(value) not in check.exact:
                    keywords[name] = self._enforce(check, value, name)
        return args, keywords

    def _validated(self, args: tuple[object, ...], checks: _Checks) -> tuple[object, ...]:
        changed: list[object] | None = None
        for i, value in enumerate(args):
            check = checks.by_place[i] if i < self._positional else checks.surplus
            if check is None or type(value) in check.exact:
                continue
            answer = self._enforce(check, value, self._names[i] if i < self._positional else f"*{i + 1}")
            if answer is not value:
                changed = changed or list(args)
                changed[i] = answer
        return args if changed is None else tuple(changed)

    def _enforce(self, check: Check, value: object, argument: str) -> object:
        try:
            return check(value)
        except Unfit as refusal:
            raise ArgumentError(
                f"{self.name}() argument {argument!r}: {refusal}; its signature is {self}"
            ) from refusal.__cause__

    def __str__(self) -> str:
        """The function's head, like ``charge(invoice_id: int, *, currency: str = 'EUR')``; no secret in defaults."""
        from ratchet.defaults.sanitizer import sanitize_text

        try:
            text = f"{self.name.rpartition('.')[2]}{self._signature}"
        except Exception:  # noqa: BLE001  # a default's repr is the application's code
            text = f"{self.name.rpartition('.')[2]}({', '.join(self._signature.parameters if self._signature else ())})"
        return sanitize_text(text, limit=300)


class _Checks:
    """The annotations of one function, resolved: by place, by keyword, and of *args and **kwargs."""

    __slots__ = ("by_name", "by_place", "surplus", "unnamed")

    def __init__(self) -> None:
        self.by_place: list[Check | None] = []
        self.by_name: dict[str, Check] = {}
        self.surplus: Check | None = None
        self.unnamed: Check | None = None

    @classmethod
    def resolve(
        cls,
        signature: inspect.Signature | None,
        raw: Mapping[str, Any],
        scope: Scope,
    ) -> _Checks:
        checks = cls()
        for parameter in () if signature is None else signature.parameters.values():
            check = check_of(resolved(raw.get(parameter.name, Any), scope))
            match parameter.kind:
                case _P.VAR_POSITIONAL:
                    checks.surplus = check
                case _P.VAR_KEYWORD:
                    checks.unnamed = check
                case kind:
                    if kind is not _P.KEYWORD_ONLY:
                        checks.by_place.append(check)
                    if check is not None:
                        checks.by_name[parameter.name] = check
        return checks


def _name_of(func: Any) -> str:
    func = func.func if isinstance(func, functools.partial) else func
    named = func if hasattr(func, "__qualname__") else type(func)
    return f"{named.__module__}.{named.__qualname__}" if named.__module__ else named.__qualname__


def _signature_of(func: Callable[..., object], *, skip_self: bool) -> inspect.Signature | None:
    try:
        signature = inspect.signature(func)
    except (ValueError, TypeError):  # a builtin that does not tell
        return None
    if skip_self:
        signature = signature.replace(parameters=list(signature.parameters.values())[1:])
    return signature
