"""Mistakes in a harness, each told in one sentence before any test runs."""

from __future__ import annotations

import difflib
import importlib
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any, Final, TypeVar
from uuid import UUID

from conformance_tests.bridge import METHODS, meets
from conformance_tests.harness import FLAVOURS, START, StoreHarness
from conformance_tests.processes import elsewhere_knows
from conformance_tests.signatures import mismatch
from conformance_tests.under_test import UnderTest
from ratchet.domain.ids import new_id
from ratchet.domain.job import NewJob
from ratchet.spi.capabilities import PROTOCOLS, Capability
from ratchet.spi.store import JobStore

T = TypeVar("T")

_SECOND: Final = timedelta(seconds=1)

_CALLED: Final = (
    "open", "open_async", "reset", "close", "advance", "seed", "crash_points", "open_process", "transaction",
    "versions",
)  # fmt: skip
"""What the suite calls of a harness."""


class HarnessMistake(Exception):
    """What is wrong, in one sentence."""


@contextmanager
def _own_failures(doing: str) -> Iterator[None]:
    try:
        yield
    except HarnessMistake:
        raise
    except NotImplementedError as error:
        raise HarnessMistake(f"{doing} is not written ({_said(error)})") from error
    except Exception as error:
        raise HarnessMistake(f"{doing} raised {_said(error)}") from error


def _said(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def load(name: str) -> Callable[..., Any]:
    """The object that ``mypkg.harness:MyHarness`` names."""
    module_name, colon, attribute = name.partition(":")
    if not colon or not module_name or not attribute:
        raise HarnessMistake(f"{name!r} names no harness; write it like mypkg.harness:MyHarness")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if module_name != missing and not module_name.startswith(f"{missing}."):
            raise HarnessMistake(f"importing {module_name} raised {_said(error)}") from error
        raise HarnessMistake(f"there is no module {missing!r} on the import path ({name})") from error
    except Exception as error:
        raise HarnessMistake(f"importing {module_name} raised {_said(error)}") from error
    found: Any = module
    for part in attribute.split("."):
        if not hasattr(found, part):
            near = difflib.get_close_matches(part, dir(found), 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise HarnessMistake(f"module {module_name!r} has no {attribute!r}{hint}")
        found = getattr(found, part)
    if not callable(found):
        raise HarnessMistake(f"{name} is not a class or function but {type(found).__name__}")
    return found  # type: ignore[no-any-return]


def make(factory: Callable[..., Any], *, url: str | None = None, worker: str = "") -> StoreHarness:
    """A harness from a class, a function or an instance's maker."""
    called = getattr(factory, "__name__", repr(factory))
    with _own_failures(f"{called}({'URL' if url else ''})"):
        made = factory(url) if url else factory()
    if not isinstance(made, StoreHarness):
        raise HarnessMistake(
            f"{called} makes a {type(made).__name__}; it must be a conformance_tests.StoreHarness"
        )
    made.worker = worker
    return made


def check(harness: StoreHarness) -> frozenset[str]:
    """Try everything that a test relies on; the capabilities that the store declares.

    Raises:
        HarnessMistake: the first thing that is wrong.
    """
    name = type(harness).__name__
    _check_names(harness, name)
    _check_methods(harness, name)
    declared: frozenset[str] = frozenset()
    for flavour in harness.flavours:
        under_test = UnderTest(harness, flavour)
        try:
            declared |= _check_database(under_test, name)
        except HarnessMistake:
            with suppress(Exception):  # the mistake is what is told, not what it leads to
                under_test.close()
            raise
        with _own_failures(f"closing a handle of {name}"):
            under_test.close()
    with _own_failures(f"{name}.reset()"):
        harness.reset()
    return declared


def _check_names(harness: StoreHarness, name: str) -> None:
    """Find hooks with a typing mistake, which would silently not be offered."""
    known = {each for each in dir(StoreHarness) if not each.startswith("_")}
    own = dict(vars(harness))
    for base in type(harness).__mro__:
        if base is StoreHarness:
            break
        own |= vars(base)
    for each, value in own.items():
        hooks = [hook for hook in known if callable(value) is callable(getattr(StoreHarness, hook))]
        near = difflib.get_close_matches(each, hooks, 1, cutoff=0.85)
        if not each.startswith("_") and each not in known and near and near[0] != "worker":
            raise HarnessMistake(f"{name} has {each!r}; did you mean {near[0]!r}?")


def _check_methods(harness: StoreHarness, name: str) -> None:
    if isinstance(harness.flavours, str) or not harness.flavours:
        raise HarnessMistake(f"{name}.flavours is a tuple of {' and '.join(FLAVOURS)}, like ('sync',)")
    for flavour in harness.flavours:
        if flavour not in FLAVOURS:
            raise HarnessMistake(f"{name}.flavours has {flavour!r}; flavours are {' and '.join(FLAVOURS)}")
    needed = ["reset", *("open" if flavour == "sync" else "open_async" for flavour in harness.flavours)]
    for method in needed:
        if not harness.has(method):
            raise HarnessMistake(f"{name} has no {method}(): {_purpose(method)}")
    for method in _CALLED:
        if harness.has(method) and (
            told := mismatch(getattr(harness, method), getattr(StoreHarness, method))
        ):
            raise HarnessMistake(f"{name}.{method}() {told}")
    clock = harness.clock
    if clock is not None:
        missing = [each for each in ("now", "advance") if not callable(getattr(clock, each, None))]
        if "advance" in missing and harness.has("advance"):
            missing.remove("advance")
        if missing:
            raise HarnessMistake(
                f"{name}.clock is a {type(clock).__name__} without {missing[0]}(); "
                "take conformance_tests.SettableClock"
            )


def _purpose(method: str) -> str:
    return " ".join((getattr(StoreHarness, method).__doc__ or "").partition("\n\n")[0].split())


def _check_database(under_test: UnderTest, name: str) -> frozenset[str]:
    opener = "open" if under_test.flavour == "sync" else "open_async"
    with _own_failures(f"{name}.reset()"):
        under_test.harness.reset()
    first, second = _opened(under_test, name, opener), _opened(under_test, name, opener)
    if under_test.behind(first) is under_test.behind(second):
        raise HarnessMistake(
            f"{name}.{opener}() answers the same handle each time; it must open a further one, as another node would"
        )
    declared = _check_capabilities(first, name)
    job = NewJob(id=new_id(), target="conformance:check", payload="[]")
    with _own_failures("insert() of the store"):
        first.insert([job])
    with _own_failures("get() of the store"):
        if first.get(job.id) is None:
            raise HarnessMistake(
                f"the store of {name}.{opener}() does not find a job that it has just inserted"
            )
        if second.get(job.id) is None:
            raise HarnessMistake(
                f"two handles of {name}.{opener}() do not see the same database; it must open the harness's one"
            )
    if under_test.harness.has("open_process") and under_test.flavour == under_test.harness.flavours[0]:
        _check_process(under_test.harness, name, job.id)
    _check_clock(under_test, first, name)
    with _own_failures("closing a handle"):
        under_test.close_handles()
    with _own_failures(f"{name}.reset()"):
        under_test.harness.reset()
    with _own_failures("counts() of the store"):
        left = sum(_opened(under_test, name, opener).counts().values())
    if left:
        raise HarnessMistake(f"{name}.reset() does not reset: {left} job was still there after it")
    return declared


def _opened(under_test: UnderTest, name: str, opener: str) -> JobStore:
    with _own_failures(f"{name}.{opener}()"):
        store = under_test.open()
    behind: Any = getattr(store, "_store", store) if under_test.flavour == "async" else store
    if isinstance(behind, type):
        raise HarnessMistake(
            f"{name}.{opener}() answers the class {behind.__name__}; it must make a handle of it"
        )
    missing = [each for each in (*METHODS, "capabilities") if not hasattr(behind, each)]
    if len(missing) > len(METHODS) // 2:
        raise HarnessMistake(f"{name}.{opener}() answers a {type(behind).__name__}, which is no job store")
    if missing:
        raise HarnessMistake(f"the {type(behind).__name__} of {name}.{opener}() has no {', '.join(missing)}")
    for each in METHODS:
        if told := mismatch(getattr(behind, each), getattr(JobStore, each)):
            raise HarnessMistake(f"{each}() of the {type(behind).__name__} of {name}.{opener}() {told}")
    return store


def _check_process(harness: StoreHarness, name: str, job_id: UUID) -> None:
    """See that another process would open the same database; first here, where what it raises can be told."""
    with _own_failures(f"{name}.open_process()"):
        opener: Any = harness.open_process()
    if all(hasattr(opener, each) for each in ("insert", "claim")) and not isinstance(opener, type):
        with suppress(Exception):
            opener.close()
        raise HarnessMistake(
            f"{name}.open_process() answers a store; it must answer a function without arguments that opens "
            "one in another process"
        )
    if not callable(opener):
        raise HarnessMistake(
            f"{name}.open_process() answers a {type(opener).__name__}; it must answer a function without "
            "arguments that opens a handle in another process"
        )
    try:
        copy = pickle.loads(pickle.dumps(opener))
    except Exception as error:
        raise HarnessMistake(
            f"what {name}.open_process() answers cannot be pickled ({_said(error)}); take a function of a "
            "module, or functools.partial of one"
        ) from error
    with _own_failures(f"what {name}.open_process() answers"):
        handle = copy()
    with _own_failures(f"the handle that {name}.open_process() leads to"):
        found = handle.get(job_id) is not None
        handle.close()
    if found and not harness.worker:  # the controlling process of xdist has seen it for its workers
        with _own_failures(f"the handle that {name}.open_process() leads to in another process"):
            found = elsewhere_knows(copy, job_id)
    if not found:
        raise HarnessMistake(
            f"{name}.open_process() leads to another database than {name}.open(): a job that was just "
            "inserted is not there"
        )


def _check_capabilities(store: JobStore, name: str) -> frozenset[str]:
    declared: object = store.capabilities
    if not isinstance(declared, (frozenset, set)):
        raise HarnessMistake(f"capabilities of {name}'s store is a frozenset of names, not {declared!r}")
    known = [each.value for each in Capability]
    for each in sorted(map(str, declared)):
        if each not in known:
            near = difflib.get_close_matches(each, known, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}"
            raise HarnessMistake(f"the store declares the capability {each!r}, which does not exist; {hint}")
        protocol = PROTOCOLS.get(Capability(each))
        if protocol is not None and not meets(store, protocol):
            raise HarnessMistake(
                f"the store declares {each!r} and does not have the methods of {protocol.__name__}"
            )
    return frozenset(map(str, declared))


def _check_clock(under_test: UnderTest, store: JobStore, name: str) -> None:
    if not under_test.has_clock:
        return
    time = under_test.time(store)
    before = store.now()
    for delta in (_SECOND, -_SECOND):
        with _own_failures(f"{name}.clock.advance({delta.total_seconds():+.0f} s)"):
            time.advance(delta)
        if store.now() - before != (max(timedelta(), delta)):
            raise HarnessMistake(
                f"advancing the clock of {name} does not move store time: open() must give it to the store"
            )
    with _own_failures(f"setting the clock of {name}"):
        time.advance(START - time.now())
