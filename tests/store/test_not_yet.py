"""Facts that bind every store and need a capability that is not built yet: named, not taken for shown."""

from __future__ import annotations

import pytest

from ratchet.spi.capabilities import Capability
from tests.conftest import not_yet

FACTS = {
    "CRUD-13 dependants of a job": Capability.WORKFLOW,
    "CRUD-14 dependants in pages": Capability.WORKFLOW,
    "TERM-01 two completions of a batch child count once and release one dependent": Capability.BATCH,
    "TERM-06 a canceled batch child counts as failed": Capability.BATCH,
    "TERM-07 the batch parent settles with the totals": Capability.BATCH,
    "BK-03 a waiting job's deadline is stored": Capability.SIGNAL,
    "ENC-01 to ENC-04 arguments and parameter values pass an encryption engine": "encryption",
}


@pytest.mark.parametrize("fact", FACTS)
def test_not_built_yet(fact: str) -> None:
    """Reported with the capability that it waits for."""
    not_yet(FACTS[fact])
