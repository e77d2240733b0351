"""The default target policy: module prefixes and registered targets; everything else is refused."""

from __future__ import annotations

from collections.abc import Iterable

from ratchet.errors import ConfigurationError


class PrefixPolicy:
    """Allows modules by prefix, and single targets by registration (section 5).

    Args:
        prefixes: dotted module names; ``shop`` allows ``shop`` and ``shop.orders``, not ``shopping``.
    """

    def __init__(self, prefixes: Iterable[str] = ()) -> None:
        if isinstance(prefixes, str):
            raise ConfigurationError(f"allow takes a list of module prefixes: write allow=[{prefixes!r}]")
        if not isinstance(prefixes, Iterable):
            raise ConfigurationError(
                f"allow takes a list of module prefixes, like allow=['shop'], not {type(prefixes).__name__}"
            )
        self.prefixes = tuple(prefixes)
        for prefix in self.prefixes:
            if not isinstance(prefix, str):
                raise ConfigurationError(
                    f"allow takes module names as text, like allow=['shop'], not {type(prefix).__name__}"
                )
            if not all(part.isidentifier() for part in prefix.split(".")):
                raise ConfigurationError(
                    f"{prefix!r} is not a module name; allow takes names like 'shop.jobs'"
                )
        self._targets: set[str] = set()
        self._modules: set[str] = set()

    def add_target(self, target: str, module: str | None = None) -> None:
        """Allow one target, and (for classes in its payload) its module."""
        self._targets.add(target)
        if module is not None:
            self._modules.add(module)

    @property
    def is_empty(self) -> bool:
        """True if nothing is allowed."""
        return not self.prefixes and not self._targets

    def allows_module(self, module: str) -> bool:
        """By prefix, or because a registered job lives there."""
        if module in self._modules:
            return True
        return any(module == prefix or module.startswith(prefix + ".") for prefix in self.prefixes)

    def allows_target(self, target: str) -> bool:
        """Registered, or in an allowed module."""
        if target in self._targets:
            return True
        module, colon, _ = target.partition(":")
        return bool(colon) and self.allows_module(module)
