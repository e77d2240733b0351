"""The entry points of the group ``ratchet.stores`` for ``mongodb`` and ``mongodb+srv``: from a URL to a store."""

from __future__ import annotations

from typing import Final

from ratchet.errors import ConfigurationError, MissingExtra
from ratchet.spi.clock import Clock
from ratchet.spi.store import JobStore

SCHEMES: Final = ("mongodb://", "mongodb+srv://")


class MongoPlugin:
    """Opens ``mongodb://host/database`` and ``mongodb+srv://host/database``.

    The path names the database (``ratchet`` without one); all options are the driver's.
    """

    def open(self, url: str, *, clock: Clock | None = None, auto_upgrade: bool = False) -> JobStore:
        """A store for `url`; see `ratchet.spi.plugin.StorePlugin.open`."""
        if not url.startswith(SCHEMES):
            raise ConfigurationError(
                "that is not a MongoDB URL; write one like mongodb://localhost:27017/jobs"
            )
        if not url.partition("://")[2].partition("/")[0].rpartition("@")[2]:
            raise ConfigurationError(
                "the MongoDB URL names no host; write one like mongodb://localhost:27017/jobs"
            )
        try:
            from ratchet_mongo._sync.store import MongoJobStore
        except ModuleNotFoundError as missing:
            if missing.name not in ("pymongo", "bson"):
                raise
            raise MissingExtra("PyMongo is not installed; pip install 'ratchet-jobs[mongo]'") from missing
        return MongoJobStore.from_url(url, clock=clock)


mongodb: Final = MongoPlugin()
"""What the entry points name."""
