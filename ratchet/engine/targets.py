"""From a callable to the text that is stored, and back from the text to a callable (section 8)."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING, Any, Final, cast

from ratchet.errors import RatchetError, TargetRefused, UnsupportedTarget

if TYPE_CHECKING:
    from ratchet.defaults.signature import CallSignature
    from ratchet.spi.policy import TargetPolicy
    from ratchet.spi.resolver import ServiceResolver

SERVICE: Final = "__ratchet_service__"


class UnknownTarget(RatchetError):
    """Allowed, but not here: not deployed yet, not importable, or its service is not registered."""


def circuit_breaker(*, service: str) -> Callable[[Any], Any]:
    """Name the service that a function or class calls, for the `ResilienceStrategy` (section 5)."""

    def mark(item: Any) -> Any:
        setattr(item, SERVICE, service)
        return item

    return mark


@dataclass(frozen=True, slots=True)
class Target:
    """A callable that can be a job.

    Attributes:
        text: what is stored.
        call: what is called, a service method bound to its object.
        is_async: True for an ``async def``.
        service: what `circuit_breaker` named.
        signature: for binding and validating arguments.
        needs_service: True for an instance method.
    """

    text: str
    call: Callable[..., Any]
    is_async: bool
    service: str | None
    signature: CallSignature
    needs_service: bool = False

    @property
    def is_method(self) -> bool:
        """True for a method of an object (not of a class)."""
        owner = getattr(self.call, "__self__", None)
        return self.needs_service or (owner is not None and not isinstance(owner, type))


_REMEDY = "define it with `def` at the top level of a module, or as a method of a class there"


def _main_name() -> str | None:
    """The importable name of the file that runs as ``__main__``; None if it has none."""
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    if spec is not None and spec.name not in ("__main__", ""):
        name: str = spec.name
        return name
    path = getattr(main, "__file__", None)
    if path is not None:
        file = Path(path).resolve()
        for entry in sys.path:
            root = Path(entry).resolve()
            if file.is_relative_to(root) and file.suffix == ".py":
                parts = file.relative_to(root).with_suffix("").parts
                if all(part.isidentifier() for part in parts):
                    return ".".join(parts)
    return None


def _importable_main(what: str) -> str:
    """The importable name of ``__main__``, or the remedy."""
    name = _main_name()
    if name is not None:
        return name
    raise UnsupportedTarget(
        f"{what} lives in __main__, which a worker cannot import; move it into a module, "
        "or run its file by `python file.py` or `python -m package.module`"
    )


def split(func: Callable[..., Any]) -> tuple[str, str, bool]:
    """(module, qualified name, is an instance method) of a callable; refuses what cannot be imported.

    Raises:
        UnsupportedTarget: with the remedy.
    """
    if isinstance(func, partial):
        raise UnsupportedTarget("a functools.partial cannot be a job; pass the arguments to enqueue instead")
    if isinstance(func, type):
        raise UnsupportedTarget(f"{func.__qualname__} is a class; submit a function or a method of it")
    plain = getattr(func, "__func__", func)
    module, name = getattr(plain, "__module__", None), getattr(plain, "__qualname__", None)
    if module is None or name is None or not inspect.isroutine(func):
        raise UnsupportedTarget(f"{type(func).__qualname__} objects cannot be jobs; {_REMEDY}")
    if name.rpartition(".")[2] == "<lambda>":
        raise UnsupportedTarget(f"a lambda cannot be stored as a job; {_REMEDY}")
    if "<locals>" in name:
        raise UnsupportedTarget(
            f"{name} is a closure inside another function and cannot be imported; {_REMEDY}"
        )
    if inspect.isgeneratorfunction(plain) or inspect.isasyncgenfunction(plain):
        raise UnsupportedTarget(
            f"{name} is a generator function; a job's body must return, so collect and return"
        )
    bound_to = getattr(func, "__self__", None)
    if isinstance(bound_to, type):
        name, module = f"{bound_to.__qualname__}.{plain.__name__}", bound_to.__module__
    elif bound_to is not None and not inspect.ismodule(bound_to):
        name, module = f"{type(bound_to).__qualname__}.{plain.__name__}", type(bound_to).__module__
    if module == "__main__":
        module_name = _importable_main(name)
        holder: object = sys.modules["__main__"]
    else:
        module_name = module
        holder = sys.modules.get(module)
        if holder is None:
            raise UnsupportedTarget(f"{module}.{name} cannot be imported: no module {module!r} is loaded")
    return module_name, name, _find(holder, name, f"{module}.{name}")[1]


def _find(holder: object, name: str, whole: str) -> tuple[Any, bool]:
    """(what `name` leads to inside `holder`, is it an instance method)."""
    parts = name.split(".")
    for part in parts[:-1]:
        holder = getattr(holder, part, None)
    if holder is None or not hasattr(holder, parts[-1]):
        raise UnsupportedTarget(f"{whole} cannot be found by its name; {_REMEDY}")
    if isinstance(holder, type):
        static = inspect.getattr_static(holder, parts[-1])
        if not isinstance(static, (staticmethod, classmethod)) and inspect.isfunction(static):
            return static, True
    return getattr(holder, parts[-1]), False


class Targets:
    """Knows which callables may be jobs and finds them by their stored text.

    Args:
        policy: asked before anything is imported.
        services: gives the objects of service methods.
    """

    def __init__(self, policy: TargetPolicy, services: ServiceResolver) -> None:
        self.policy, self.services = policy, services
        self._by_text: dict[str, Callable[..., Any]] = {}
        self._texts: dict[object, str] = {}
        self._resolved: dict[str, Target] = {}
        # Looking a plain function up by its name again costs a fifth of a submission; nothing of it changes.
        self._described: dict[Callable[..., Any], Target] = {}

    # -- registration and submission

    def register(self, func: Callable[..., Any], name: str | None, aliases: tuple[str, ...]) -> str:
        """Remember a decorated function under its stored text (and aliases); answers the text."""
        module, qualname, _ = split_unloaded(func)
        text = name or f"{module}:{qualname}"
        for each in (text, *aliases, f"{module}:{qualname}"):
            known = self._by_text.get(each)
            if known is not None and not _same(known, func):
                raise UnsupportedTarget(
                    f"two job functions are registered as {each!r}; give one another name="
                )
            self._by_text[each] = func
        self._texts[func] = text
        self._described.pop(func, None)
        return text

    def texts(self) -> tuple[str, ...]:
        """Every registered text."""
        return tuple(self._by_text)

    def describe(self, func: Callable[..., Any]) -> Target:
        """The target of a callable that is submitted.

        Raises:
            UnsupportedTarget: it cannot be a job.
            TargetRefused: it lies outside the policy.
        """
        known = self._described.get(func) if type(func) is FunctionType else None
        if known is not None and self.policy.allows_target(known.text):
            return known
        text = self._texts.get(func) if _hashable(func) else None
        module, qualname, needs_service = split(func)
        if text is None:
            text = f"{module}:{qualname}"
        known = self._resolved.get(text)
        if known is not None and not known.needs_service:
            return known
        if not self.policy.allows_target(text):
            raise TargetRefused(
                f"{text} lies outside the target policy; name its module in Scheduler(allow=[...]) "
                "or decorate it with @scheduler.job"
            )
        target = _target(text, func, needs_service=needs_service and getattr(func, "__self__", None) is None)
        if type(func) is FunctionType:
            self._described[func] = target
        return target

    # -- resolution

    def resolve(self, text: str) -> Target:
        """The target that a stored text names.

        Raises:
            TargetRefused: outside the policy; nothing was imported.
            UnknownTarget: allowed, but not here.
        """
        known = self._resolved.get(text)
        if known is not None:
            return known
        if not self.policy.allows_target(text):
            raise TargetRefused(f"{text} lies outside the target policy")
        func = self._by_text.get(text)
        if func is None:
            func = self._import(text)
        target = self._bind(text, func)
        self._resolved[text] = target
        return target

    def import_path(self, text: str) -> str:
        """``module:qualname`` of a stored text, for a child process: a registered name is looked up."""
        func = self._by_text.get(text)
        if func is None:
            return text
        module, qualname, _ = split_unloaded(func)
        return f"{module}:{qualname}"

    def _import(self, text: str) -> Callable[..., Any]:
        module_name, colon, name = text.partition(":")
        if not colon:
            raise UnknownTarget(f"no job function is registered as {text!r} here")
        module = None
        if module_name not in sys.modules and module_name == _main_name():
            module = sys.modules["__main__"]  # not a second time under its other name
        if module is None:
            # Also of a loaded one: while another thread imports it, half of its names are missing.
            try:
                module = importlib.import_module(module_name)
            except Exception as error:
                raise UnknownTarget(
                    f"module {module_name!r} cannot be imported here: {type(error).__name__}"
                ) from error
            except SystemExit as error:
                raise UnknownTarget(f"module {module_name!r} exits when it is imported") from error
        registered = self._by_text.get(text)
        if registered is not None:
            return registered
        owner: Any = module
        *path, last = name.split(".")
        for part in path:
            owner = self._step(owner, part, text)
        found = self._step(owner, last, text)
        if isinstance(owner, type):
            static = inspect.getattr_static(owner, last)
            if not isinstance(static, (staticmethod, classmethod)) and inspect.isfunction(static):
                return self._method(owner, static.__name__, text)
        if not callable(found):
            raise UnknownTarget(f"{text} is not callable here")
        return cast("Callable[..., Any]", found)

    def _step(self, owner: object, part: str, text: str) -> Any:
        """One name further; never into another module, nor to what an allowed module only imported."""
        found: Any = getattr(owner, part, None)
        if found is None:
            raise UnknownTarget(f"{text} does not exist here: no {part!r}")
        home = getattr(found, "__module__", None)
        if home == "__main__":
            home = _main_name()
        led_out = isinstance(home, str) and not self.policy.allows_module(home)
        if led_out or inspect.ismodule(found):
            raise TargetRefused(f"{text} leads to {home or part}, outside the target policy")
        return found

    def _method(self, cls: type, name: str, text: str) -> Callable[..., Any]:
        service: object = self.services.resolve(cls)
        if service is None:
            raise UnknownTarget(f"{text} needs a {cls.__qualname__}; give one to scheduler.register(...)")
        method: Callable[..., Any] = getattr(service, name)
        return method

    def _bind(self, text: str, func: Callable[..., Any]) -> Target:
        if inspect.isfunction(func) and "." in func.__qualname__ and "<locals>" not in func.__qualname__:
            module = sys.modules.get(func.__module__)
            if module is not None:
                found, is_method = _find(module, func.__qualname__, text)
                if is_method and found is func:
                    holder: Any = attrgetter(func.__qualname__.rpartition(".")[0])(module)
                    return _target(text, self._method(holder, func.__name__, text))
        return _target(text, func)


def split_unloaded(func: Callable[..., Any]) -> tuple[str, str, bool]:
    """Like `split`, for a function whose module is still being imported (a decorator's view)."""
    name = getattr(func, "__qualname__", "")
    if not inspect.isroutine(func) or "<" in name or inspect.isgeneratorfunction(func):
        return split(func)
    if inspect.isasyncgenfunction(func):
        return split(func)
    module = func.__module__
    return (_importable_main(name) if module == "__main__" else module), name, False


def _target(text: str, func: Callable[..., Any], *, needs_service: bool = False) -> Target:
    from ratchet.defaults.signature import CallSignature

    plain = getattr(func, "__func__", func)
    owner = getattr(func, "__self__", None)
    owner_class = owner if isinstance(owner, type) else type(owner)
    service = getattr(plain, SERVICE, None) or (
        getattr(owner_class, SERVICE, None) if owner is not None else None
    )
    return Target(
        text=text,
        call=func,
        is_async=inspect.iscoroutinefunction(plain),
        service=service,
        signature=CallSignature.of(plain if needs_service else func, skip_self=needs_service),
        needs_service=needs_service,
    )


def _same(one: Callable[..., Any], other: Callable[..., Any]) -> bool:
    return (one.__module__, one.__qualname__) == (other.__module__, other.__qualname__)


def _hashable(func: object) -> bool:
    try:
        hash(func)
    except TypeError:
        return False
    return True
