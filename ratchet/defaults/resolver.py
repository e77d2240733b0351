"""The default service resolver: what the application registered."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar, cast

from ratchet.errors import ConfigurationError

T = TypeVar("T")


class RegisteredServices:
    """Gives the registered object of a class; a registered factory is called once, at first use."""

    def __init__(self) -> None:
        self._objects: dict[type, object] = {}
        self._factories: dict[type, Callable[[], Any]] = {}
        self.start_afresh()

    def start_afresh(self) -> None:
        """No factory is being called: at first, and in a child process, where its parent's threads do not exist."""
        self._lock = threading.Lock()

    def register(self, service: object, cls: type | None = None) -> None:
        """Register an object, or a class or factory that makes it (`cls` names what a factory makes)."""
        if isinstance(service, type):
            self._factories[cls or service] = service
        elif cls is not None and callable(service) and not isinstance(service, cls):
            self._factories[cls] = service
        elif cls is not None and not isinstance(service, cls):
            raise ConfigurationError(f"{service!r} is not a {cls.__qualname__}")
        else:
            self._objects[cls or type(service)] = service

    def resolve(self, cls: type[T]) -> T | None:
        """The object registered for exactly `cls`, else for a subclass of it; None if there is none."""
        found = self._objects.get(cls)
        if found is None:
            with self._lock:
                found = self._objects.get(cls)
                if found is None and cls in self._factories:
                    found = self._objects[cls] = self._factories[cls]()
        if found is None:
            found = next((each for known, each in self._objects.items() if issubclass(known, cls)), None)
        return cast("T | None", found)
