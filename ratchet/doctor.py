"""What ``ratchet doctor`` looks at: first what a store says of itself, then what holds for every store."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

from ratchet.errors import RatchetError
from ratchet.spi.capabilities import Capability
from ratchet.spi.doctor import CheckedStore, Finding, Level
from ratchet.spi.plugin import SchemaStore
from ratchet.spi.store import JobStore, Node

_SKEW: Final = timedelta(seconds=1)
"""What the specification allows (section 3)."""


def examine(store: JobStore, *, orphan_grace: timedelta) -> list[Finding]:
    """All that can be found out about a store; it changes nothing.

    A store that cannot be reached, or whose schema is not there, is a finding; what could only be found
    out after that is left out.

    Args:
        store: is used, and stays open.
        orphan_grace: a node silent for longer is dead (`ratchet.settings.NodeSettings.orphan_grace`).
    """
    found: list[Finding] = []
    try:
        for part in (_schema, _own):
            found += part(store)
            if any(each.level is Level.ERROR for each in found):
                return found  # what follows would fail, or would make what is missing
        found += [_clock(store), _capabilities(store)]
        found += _nodes(store, orphan_grace)
    except RatchetError as error:
        found.append(Finding("reachable", Level.ERROR, str(error)))
    else:
        found.insert(0, Finding("reachable", Level.OK, f"{type(store).__name__} answers"))
    return found


def _schema(store: JobStore) -> list[Finding]:
    if not isinstance(store, SchemaStore):
        return []
    version, wanted = store.schema_status()
    if version == wanted:
        return [Finding("schema", Level.OK, f"version {version}, current")]
    if version is None:
        told = "there is no Ratchet schema here; see that the URL is right, then run `ratchet schema upgrade`"
    elif version < wanted:
        told = f"version {version} is older than this Ratchet's {wanted}; run `ratchet schema upgrade`"
    else:
        told = f"version {version} is newer than this Ratchet's {wanted}; upgrade ratchet-jobs here"
    return [Finding("schema", Level.ERROR, told)]


def _own(store: JobStore) -> Sequence[Finding]:
    return store.checks() if isinstance(store, CheckedStore) else ()


def _clock(store: JobStore) -> Finding:
    sent = datetime.now(UTC)
    there = store.now()
    answered = datetime.now(UTC)
    # Beyond the time that the question took, the difference is the clocks'.
    skew = max(sent - there, there - answered, timedelta())
    if skew <= _SKEW:
        return Finding("clock", Level.OK, "this host's clock and the store's differ by less than a second")
    return Finding(
        "clock",
        Level.WARNING,
        f"this host's clock and the store's differ by {skew.total_seconds():.1f} s; the store's counts: set "
        "both by a time server",
    )


def _capabilities(store: JobStore) -> Finding:
    offered = sorted(store.capabilities)
    missing = sorted(set(Capability) - set(offered))
    told = f"offered: {', '.join(offered) or 'none'}; not offered: {', '.join(missing) or 'none'}"
    return Finding("capabilities", Level.OK, told)


def _nodes(store: JobStore, grace: timedelta) -> Iterator[Finding]:
    nodes = store.nodes()
    if not nodes:
        yield Finding(
            "nodes", Level.WARNING, "no node is registered, so nothing runs; start one with `ratchet worker`"
        )
        return
    wrong = [told for node in nodes for told in _of_node(node, grace)]
    if not wrong:
        yield Finding("nodes", Level.OK, f"{len(nodes)} registered, all of them alive and well")
    for told in wrong:
        yield Finding("nodes", Level.WARNING, told)


def _of_node(node: Node, grace: timedelta) -> Iterator[str]:
    info = node.info
    name = f"node {info.name} on {info.host or '?'}"
    if node.age > grace:
        silent = timedelta(seconds=int(node.age.total_seconds()))
        yield f"{name} has been silent for {silent}; if it is gone the others take its jobs back, else restart it"
        return
    if info.state == "unhealthy":
        yield f"{name} is unhealthy ({info.detail.get('reason', 'it does not say why')}); restart it"
    if info.detail.get("unresolved"):
        yield f"{name} cannot resolve {info.detail['unresolved']}; deploy that code to it, or cancel those jobs"
