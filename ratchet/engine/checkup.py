"""What a running node says of a store that is not well: a missing index, a slow plan, a clock far off."""

from __future__ import annotations

import logging
from typing import Final

from ratchet.spi.doctor import CheckedStore, Level
from ratchet.spi.store import JobStore

log = logging.getLogger("ratchet.doctor")

AGAIN_AFTER: Final = 86_400.0
"""Seconds until a node that has looked looks again."""


def check(store: JobStore) -> float:
    """Log what a store that can check itself finds wrong; answers the delay until the next time.

    Raises:
        StoreError: it could not look.
    """
    found = store.checks(quick=True) if isinstance(store, CheckedStore) else ()
    for each in found:
        if each.level is not Level.OK:
            log.warning("%s: %s (`ratchet doctor` looks at everything)", each.name, each.told)
    log.debug("the store was checked: %d findings", len(found))
    return AGAIN_AFTER
