"""The MongoDB store: jobs as documents, one atomic update per transition, on any deployment.

`MongoJobStore` and `AsyncMongoJobStore` are made from a URL or from a client that the application has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ratchet_mongo._async.store import AsyncMongoJobStore
    from ratchet_mongo._sync.store import MongoJobStore

__all__ = ["AsyncMongoJobStore", "MongoJobStore"]


def __getattr__(name: str) -> Any:
    # Lazily: whoever uses one flavour does not import the driver's other one.
    if name == "MongoJobStore":
        from ratchet_mongo._sync.store import MongoJobStore

        return MongoJobStore
    if name == "AsyncMongoJobStore":
        from ratchet_mongo._async.store import AsyncMongoJobStore

        return AsyncMongoJobStore
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
