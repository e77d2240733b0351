"""One database: its client, its collections, its time, and the one edge where the driver's errors end."""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeVar
from uuid import UUID, uuid4

from bson.binary import UuidRepresentation
from bson.codec_options import CodecOptions
from pymongo import IndexModel, ReadPreference, WriteConcern
from pymongo.errors import InvalidOperation, OperationFailure, PyMongoError
from pymongo.read_concern import ReadConcern

from ratchet.errors import ConfigurationError, StoreClosed, StoreError, StorePermanentError
from ratchet.spi.clock import Clock
from ratchet_mongo._async.flavour import (
    Client,
    Collection,
    Lock,
    close_client,
    close_with,
    make_client,
    sleep,
)
from ratchet_mongo.documents import whole
from ratchet_mongo.examining import conflict
from ratchet_mongo.indexes import INDEXES
from ratchet_mongo.translate import (
    INDEX_CONFLICTS,
    NAMESPACE_EXISTS,
    UNENCODABLE,
    codes,
    is_retryable,
    translated,
    unencodable,
    unusable,
)

T = TypeVar("T")
_log = logging.getLogger("ratchet.store")

_PAUSES: Final = (0.02, 0.1, 0.4)
"""Seconds between tries of a call that may be repeated at once; beyond them it is the engine that waits."""
_PATIENCE: Final = 6.0
"""Seconds after which a call is not tried again."""
_MEASURE_EVERY: Final = 60.0
"""Seconds for which a measured offset of the server's clock is trusted; two clocks drift apart slowly."""

OPTIONS: Final[dict[str, Any]] = {
    "codec_options": CodecOptions(tz_aware=True, tzinfo=UTC, uuid_representation=UuidRepresentation.STANDARD),
    "write_concern": WriteConcern(w="majority", j=True),
    "read_concern": ReadConcern("majority"),
    "read_preference": ReadPreference.PRIMARY,
}
"""Whatever the client says: an acknowledged write survives, and what is read was acknowledged."""

CLIENT_DEFAULTS: Final[dict[str, Any]] = {
    "serverSelectionTimeoutMS": 5_000,
    "connectTimeoutMS": 5_000,
    "socketTimeoutMS": 30_000,
    "appname": "ratchet",
}
"""For clients of our own, where the URL says nothing: a server that does not answer must not hang a node."""


class MongoDatabase:
    """The collections of one store.

    Args:
        name: of the database.
        url: where to connect; None with `client`.
        client: the application's; it is never closed here.
        clock: replaces store time.
        prefix: of the collections' names.
    """

    def __init__(
        self,
        name: str,
        *,
        url: str | None = None,
        client: Client | None = None,
        clock: Clock | None = None,
        prefix: str = "",
    ) -> None:
        self.name = name
        self.reached: Callable[[str], None] | None = None
        """Called between the writes of one operation; only tests set it, to stop there."""
        self._url = url
        self._given = client
        self._own: Client | None = None
        self._pid = 0
        self._mark = os.urandom(8)
        self._making = threading.Lock()  # held for a moment, also on an event loop
        self._collections: dict[str, Collection] = {}
        self.clock = clock
        self.prefix = prefix
        self._ready = False
        self._lock = Lock()
        self._closed = False
        self.expected: UUID | None = None
        """A probe, left by a store of another flavour, by which its database is known through our client."""
        self._reached_by: weakref.WeakValueDictionary[int, Client] = weakref.WeakValueDictionary()
        self._offset: tuple[datetime, float] | None = (
            None  # server time and monotonic time, measured together
        )

    # -- tokens

    def token(self) -> UUID:
        """A new mark for a write; its first half says that it is of this handle."""
        return UUID(bytes=self._mark + os.urandom(8))

    def is_own(self, token: object) -> bool:
        """True if a write of this handle carries the token."""
        return isinstance(token, UUID) and token.bytes[:8] == self._mark

    # -- client and collections

    @property
    def client(self) -> Client:
        """The client; after a fork a client of our own is a new one."""
        if self._closed:
            raise StoreClosed("this store was closed; open another")
        if self._given is not None:
            return self._given
        if self._own is None or self._pid != os.getpid():
            with self._making:
                if self._own is None or self._pid != os.getpid():
                    self._collections = {}
                    try:
                        self._own = make_client(str(self._url), **self._missing_options())
                    except (PyMongoError, ValueError, OSError) as error:
                        raise unusable(error) from error
                    close_with(self, self._own)
                    self._pid = os.getpid()
        return self._own

    def _missing_options(self) -> dict[str, Any]:
        asked = str(self._url).partition("?")[2].lower()
        return {name: value for name, value in CLIENT_DEFAULTS.items() if f"{name.lower()}=" not in asked}

    @property
    def db(self) -> Any:
        """The database with the concerns that correctness needs."""
        return self.client.get_database(self.name, **OPTIONS)

    def _collection(self, name: str) -> Collection:
        client = self.client  # first: it may be a new one
        found = self._collections.get(name)
        if found is None:
            found = client.get_database(self.name, **OPTIONS)[self.prefix + name]
            self._collections[name] = found
        return found

    @property
    def jobs(self) -> Collection:
        """One document per job."""
        return self._collection("jobs")

    @property
    def business(self) -> Collection:
        """Business keys and who holds them."""
        return self._collection("business_keys")

    @property
    def idempotency(self) -> Collection:
        """Idempotency keys, for ever."""
        return self._collection("idempotency_keys")

    @property
    def operations(self) -> Collection:
        """Bulk operations under way."""
        return self._collection("operations")

    @property
    def executions(self) -> Collection:
        """Ended claims beyond those that their job's document keeps."""
        return self._collection("executions")

    @property
    def nodes(self) -> Collection:
        """Registered incarnations."""
        return self._collection("nodes")

    @property
    def probes(self) -> Collection:
        """Written for a moment, to see whether another client has this database before it."""
        return self._collection("probes")

    # -- calls

    async def run(self, call: Callable[[], Awaitable[T]]) -> T:
        """Make a call that may be repeated; the driver's errors end here.

        Raises:
            StoreError: what the driver's error means.
        """
        if not self._ready:
            await self.prepare()
        return await self._tried(call)

    async def _tried(self, call: Callable[[], Awaitable[T]]) -> T:
        started = time.monotonic()
        pauses = iter(_PAUSES)
        while True:
            try:
                return await call()
            except PyMongoError as error:
                if self._closed and isinstance(error, InvalidOperation):
                    raise StoreClosed("this store was closed; open another") from error
                pause = next(pauses, None) if is_retryable(error) else None
                if pause is None or time.monotonic() - started > _PATIENCE:
                    raise translated(error, self.name) from error
                _log.debug("MongoDB: %s; trying again", type(error).__name__)
                await sleep(pause)
            except UNENCODABLE as error:
                raise unencodable(error, self.name) from error

    def step(self, name: str) -> None:
        """Say that the operation under way has come this far."""
        if self.reached is not None:
            self.reached(name)

    async def prepare(self) -> bool:
        """Create the indexes; several processes may do so at once, and those that exist are left.

        Returns:
            True if a collection was made, which a transaction that has begun to read does not see.
        """
        made = False
        async with self._lock:
            if self._ready:
                return made
            by_collection: dict[str, list[IndexModel]] = {}
            for index in INDEXES:
                options = {} if index.only is None else {"partialFilterExpression": dict(index.only)}
                model = IndexModel(list(index.keys), name=index.name, **options)
                by_collection.setdefault(index.collection, []).append(model)
            for name, models in by_collection.items():
                collection = self._collection(name)
                try:
                    await self._tried(lambda c=collection, m=models: c.create_indexes(m))  # type: ignore[misc]
                except StorePermanentError as error:
                    cause = error.__cause__
                    if not isinstance(cause, PyMongoError) or not codes(cause) & INDEX_CONFLICTS:
                        raise
                    there = await self._tried(lambda c=collection: c.index_information())  # type: ignore[misc]
                    raise StorePermanentError(conflict(name, collection.name, there)) from cause
            # The others that a transaction writes to: one over several shards cannot make them.
            for collection in (self.business, self.idempotency):
                made |= await self._made(collection)
            self._ready = True
        return made

    async def _made(self, collection: Collection) -> bool:
        try:
            await self._tried(lambda: self.db.command("create", collection.name))
        except StoreError as error:
            cause = error.__cause__
            if not isinstance(cause, OperationFailure) or cause.code != NAMESPACE_EXISTS:
                raise
            return False
        return True

    def leave_indexes(self) -> None:
        """Make no index by this handle: whoever only looks changes nothing."""
        self._ready = True

    # -- transactions of others

    async def is_reached_by(self, client: Client) -> bool:
        """True if the client, which may be another one than ours, has this very database before it.

        Addresses would not tell, because one server has many, nor would anything that a copy of the database
        has, too. So it has to read what is written here for this question only.
        """
        if client is not self.client:
            return await self._has_reached(client)
        expected = self.expected
        if expected is not None:
            found = await self.run(lambda: self.probes.find_one({"_id": expected}))
            if found is None and self.expected is not None:
                return False
            self.expected = None  # first: whoever asks meanwhile need not find it any more
            await self.remove_probe(expected)
        return True

    async def _has_reached(self, client: Client) -> bool:
        if self._reached_by.get(id(client)) is not client:
            theirs = client.get_database(self.name, **OPTIONS)[self.probes.name]
            probe = await self.leave_probe()
            try:
                if await self.run(lambda: theirs.find_one({"_id": probe})) is None:
                    return False
            finally:
                await self.remove_probe(probe)
            self._reached_by[id(client)] = client
        return True

    async def leave_probe(self) -> UUID:
        """Write what another client has to find."""
        probe = uuid4()
        await self.run(lambda: self.probes.insert_one({"_id": probe}))
        return probe

    async def remove_probe(self, probe: UUID) -> None:
        """Undo `leave_probe`."""
        await self.run(lambda: self.probes.delete_one({"_id": probe}))

    async def close(self) -> None:
        """Let go of a client of our own."""
        self._closed = True
        client, self._own = self._own, None
        if client is not None and self._pid == os.getpid():
            await close_client(client)

    # -- time

    async def now(self) -> datetime:
        """Store time: the given clock, or this process's monotonic clock set by the server's."""
        if self._closed:
            raise StoreClosed("this store was closed; open another")
        if self.clock is not None:
            return whole(self.clock.now())
        here = time.monotonic()
        if self._offset is None or here - self._offset[1] > _MEASURE_EVERY:
            await self._measure()
            here = time.monotonic()
        assert self._offset is not None
        there, when = self._offset
        return whole(there + timedelta(seconds=here - when))

    async def _measure(self) -> None:
        client = self.client
        sent = time.monotonic()
        told = await self._tried(lambda: client.admin.command("hello"))
        answered = time.monotonic()
        local: datetime = told["localTime"]
        if local.tzinfo is None:
            local = local.replace(tzinfo=UTC)
        # Half of the way is the best guess of when the server looked at its clock.
        self._offset = (local, (sent + answered) / 2)

    async def server_version(self) -> str:
        """What the server says of itself."""
        client = self.client
        told = await self._tried(lambda: client.admin.command("buildInfo"))
        version: str = told["version"]
        return version


def database_name(name: object) -> str:
    """The database of a URL; `StorePermanentError` for a name that no server takes."""
    if name is None:
        return "ratchet"
    if not isinstance(name, str):
        raise ConfigurationError(f"the database is named by a text, not by a {type(name).__name__}")
    if "@" in name:  # no part of it is shown: it may be one of a password
        raise StorePermanentError(
            "the database of the MongoDB URL has an '@' in its name; percent-encode user name and password"
        )
    if not name or len(name.encode()) > 63 or any(c in name for c in '/\\. "$\0'):
        raise StorePermanentError(f"{name!r} cannot be the name of a MongoDB database")
    return name
