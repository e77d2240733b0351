"""Wake-ups between processes on one MongoDB database: a change stream, or a cheap look where there is none.

The commit that made the work is the signal; nothing is written for it. A stream that ends is resumed; one
that cannot be resumed is opened anew, with one hint for whatever was missed. A standalone server has no
streams: there the newest job is looked at once a second while this node could use a hint.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any, Final

from pymongo.errors import OperationFailure, PyMongoError

from ratchet.domain.priority import Priority
from ratchet.errors import StoreError
from ratchet.spi.coordinator import Hint, HintListener
from ratchet_mongo.translate import codes, translated

if TYPE_CHECKING:
    from ratchet_mongo._sync.database import MongoDatabase

_log = logging.getLogger("ratchet.store")

LOOK_EVERY: Final = 1.0
"""Seconds between two looks where there are no change streams."""
_WAIT_MS: Final = 250
"""Milliseconds for which the server is asked to wait for an event; closing takes as long."""
_LONGEST_BACKOFF: Final = 10.0
_NO_STREAMS: Final = frozenset({40573, 40324, 59, 303})
"""Not a replica set; an unknown stage or command: this deployment has no change streams."""
_HISTORY_LOST: Final = frozenset({136, 260, 280, 286})
"""The token is of no use any more: capped position lost, invalid, fatal, or older than the log."""

_EVENTS: Final[list[dict[str, Any]]] = [
    {
        "$match": {
            "$or": [
                {"operationType": "insert", "fullDocument.lane": {"$exists": True}},
                # Shown by the operation, or the settlement, that had inserted it hidden.
                {"operationType": "update", "updateDescription.updatedFields.lane": {"$exists": True}},
            ]
        }
    },
    {
        "$project": {
            "operationType": 1,
            "fullDocument.lane": 1,
            "fullDocument.write": 1,
            "fullDocument.scheduled_time": 1,
            "fullDocument.created_at": 1,
            "updateDescription.updatedFields.lane": 1,
            "updateDescription.removedFields": 1,
        }
    },
]


class MongoCoordinator:
    """A `ratchet.spi.coordinator.ClusterCoordinator` over the collection of jobs.

    Attributes:
        received: hints that were passed on.
        listener_failures: hints whose listener raised.
        streaming: True while a change stream is open.
    """

    def __init__(self, database: MongoDatabase) -> None:
        self.received = 0
        self.listener_failures = 0
        self.streaming = False
        self._database = database
        self._active = threading.Event()
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None
        self._streams = True
        self._token: Any = None
        self._newest: object = None

    def start(self, node: str, listener: HintListener) -> None:
        """Begin to listen, on a thread of its own; never blocks on the network."""
        if self._closed.is_set() or self._thread is not None:
            return
        self._thread = threading.Thread(
            target=self._listen, args=(listener,), name=f"ratchet-hints-{node}", daemon=True
        )
        self._thread.start()

    def notify(self, hint: Hint) -> None:
        """Nothing to do: the commit that made the work is what the others see."""

    def watch(self, active: bool) -> None:
        """Pass hints on (True) or not (False)."""
        if active:
            self._active.set()
        else:
            self._active.clear()

    def close(self) -> None:
        """Stop listening; afterwards no listener is called. Safe from the listener itself."""
        self._closed.set()
        self._active.set()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    # -- the thread

    def _listen(self, listener: HintListener) -> None:
        pause = 0.0
        told = False
        while not self._closed.wait(pause):
            try:
                if self._streams:
                    self._follow(listener)
                else:
                    self._look(listener)
                pause = 0.0 if self._streams else LOOK_EVERY
                told = False
            except (PyMongoError, StoreError) as error:
                cause = error if isinstance(error, PyMongoError) else error.__cause__
                if isinstance(cause, OperationFailure) and codes(cause) & _NO_STREAMS:
                    _log.info("this MongoDB has no change streams; new work is looked for once a second")
                    self._streams, pause = False, 0.0
                    continue
                if isinstance(cause, OperationFailure) and codes(cause) & _HISTORY_LOST:
                    self._token, pause = None, 0.1  # the next stream begins with a hint for what was missed
                    continue
                if self._closed.is_set():
                    return
                _log.log(
                    logging.DEBUG if told else logging.INFO,
                    "cannot hear of work of other processes: %s",
                    error if isinstance(error, StoreError) else translated(error, self._database.name),
                )
                told = True
                pause = min(max(pause, 0.1) * 2, _LONGEST_BACKOFF)
            finally:
                self.streaming = False

    def _follow(self, listener: HintListener) -> None:
        """Pass on what the stream says, until it ends."""
        resumed = self._token is not None
        where = {"resume_after": self._token} if resumed else {}
        with self._database.jobs.watch(_EVENTS, max_await_time_ms=_WAIT_MS, **where) as stream:
            self.streaming = True
            self._token = stream.resume_token
            if not resumed:
                self._tell(listener, Hint())  # whatever came before the stream was open
            while not self._closed.is_set() and stream.alive:
                event = stream.try_next()
                self._token = stream.resume_token
                hint = None if event is None else self._hint(event)
                if hint is not None:
                    self._tell(listener, hint)

    def _hint(self, event: dict[str, Any]) -> Hint | None:
        """What an event says to this node; None: its own work, or not due yet, or no new work."""
        if event["operationType"] == "insert":
            doc = event["fullDocument"]
            if self._database.is_own(doc.get("write")):
                return None
            # Asked of the clock, because a transaction may commit a job when its time has come already.
            if doc["scheduled_time"] > doc["created_at"] and doc["scheduled_time"] > self._database.now():
                return None
            lane = doc["lane"]
        else:
            changed = event["updateDescription"]
            if "hold" not in changed.get("removedFields", ()):
                return None  # a retry, a release, a resume: the node that did it knows
            lane = changed["updatedFields"]["lane"]
        executor, _, priority = str(lane).rpartition("/")
        return Hint(Priority(int(priority)), None, executor)

    def _look(self, listener: HintListener) -> None:
        """Pass on that there is a job that was not there at the last look."""
        if not self._active.is_set():
            return
        jobs = self._database.jobs
        newest = self._database.run(
            lambda: jobs.find_one({}, {"write": 1}, sort=[("created_at", -1), ("_id", 1)])
        )
        seen, self._newest = self._newest, None if newest is None else (newest["_id"], newest.get("write"))
        if self._newest is not None and self._newest != seen and not self._database.is_own(self._newest[1]):
            self._tell(listener, Hint())

    def _tell(self, listener: HintListener, hint: Hint) -> None:
        if not self._active.is_set() or self._closed.is_set():
            return
        try:
            listener(hint)
        except Exception:  # noqa: BLE001 - a listener harms nobody else
            self.listener_failures += 1
            _log.exception("a listener of hints raised")
        else:
            self.received += 1
