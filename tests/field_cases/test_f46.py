"""F46: secrets in errors reach no record, event, log line, repr or byte on the disk; the exception's class remains."""

from __future__ import annotations

import dataclasses
import gc
import io
import logging
import re
import subprocess
import time
import traceback
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Final, NoReturn

import pydantic
import pytest

from ratchet import DoNotRetry, JobCallbackFailed, JobDlq, RetryAfter, Scheduler, Status
from ratchet.defaults.sanitizer import DefaultErrorSanitizer
from ratchet.errors import ConfigurationError, RatchetError, StoreTransientError
from ratchet.spi.store import Selection
from tests.conftest import not_yet
from tests.field_cases.exact import KINDS, Recorder, slots, submitter
from tests.field_cases.faults import FaultyStore
from tests.field_cases.kit import SCALE, Gates, wait_until

pytestmark = pytest.mark.field_case("F46")

# All made up.
FORMS: Final = (
    "mongodb://svc:s3cr3t-A@h1.example:27017,h2.example:27017/app?authSource=admin",
    "mongodb+srv://svc:s3cr3t-B@c.example/x",
    "postgresql+asyncpg://svc:s3%40cr3t-C@h/db",
    "amqp://u:s3cr3t-D@h1//;amqp://u:s3cr3t-E@h2//",
    "redis://:s3cr3t-F@h/0",
    "mysql+pymysql://u:s3cr3t-P1/s3cr3t-P2@s3cr3t-P3:s3cr3t-P4@h/db",
    "host=h user=u password=s3cr3t-G dbname=d",
    "Authorization: Bearer s3cr3t-H.abc.def",
    "AKIAIOSFODNN7EXAMPLE wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
    '{"api_key": "s3cr3t-I", "b": 1}',
    "{'client_secret': 's3cr3t-J'}",
    "person@example.org",
    "https://hooks.example/x?token=s3cr3t-K&x=1",
)
FORBIDDEN: Final = re.compile(rb"cr3t-[A-Z]|wJalrXUtnFEMI|person@example|person%40example")


class ConnectError(Exception):
    """An error with a driver's data in its arguments."""


def refuse(url: str) -> NoReturn:
    """A driver that shows what it was given."""
    raise ConnectError(f"cannot connect to {url}")


def in_message(form: str) -> NoReturn:
    refuse(form)


def in_arguments(form: str) -> NoReturn:
    raise ConnectError("cannot connect", form, {"dsn": form})


def in_cause(form: str) -> NoReturn:
    try:
        refuse(form)
    except ConnectError as error:
        raise ConnectError("no database") from error


def in_context(form: str) -> NoReturn:
    try:
        refuse(form)
    finally:
        raise ConnectError("no database, once more")


def in_notes(form: str) -> NoReturn:
    error = ConnectError("no database")
    error.add_note(form)
    raise error


def in_key(form: str) -> NoReturn:
    raise KeyError(form)


def in_file_name(form: str) -> NoReturn:
    raise OSError(2, "No such file", form)


def in_command(form: str) -> NoReturn:
    raise subprocess.CalledProcessError(1, ["psql", form], output=form)


def in_group(form: str) -> NoReturn:
    raise ExceptionGroup(form, [ConnectError(form), ExceptionGroup("inner", [KeyError(form)])])


def in_permanent(form: str) -> NoReturn:
    raise DoNotRetry(form)


def in_permanent_cause(form: str) -> NoReturn:
    raise ConnectError("no database") from DoNotRetry(form)


def in_wish(form: str) -> NoReturn:
    raise RetryAfter(timedelta(), form)


def in_exit(form: str) -> NoReturn:
    raise SystemExit(form)


def in_the_middle(form: str) -> NoReturn:
    raise ConnectError("x" * 1_950 + " " + form + " " + "y" * 10_000)


def in_source_line(form: str) -> NoReturn:
    refuse("postgresql://svc:s3cr3t-S@h/db" + " password=s3cr3t-T")


def in_result(form: str) -> Any:
    return {form: object()}


def in_result_key(form: str) -> Any:
    return {form: {1: 2}}


PLACES: Final[tuple[Callable[[str], Any], ...]] = (
    in_message, in_arguments, in_cause, in_context, in_notes, in_key, in_file_name, in_command, in_group,
    in_permanent, in_permanent_cause, in_wish, in_exit, in_the_middle, in_source_line, in_result, in_result_key,
)  # fmt: skip


def fail(place: int, form: int) -> Any:
    """Puts that secret in that place: neither is in the job's arguments."""
    return PLACES[place](FORMS[form])


async def fail_async(place: int, form: int) -> Any:
    """The same on the loop."""
    return fail(place, form)


def call_back(ctx: Any, error: BaseException) -> NoReturn:
    """A callback that shows its own secret."""
    refuse(FORMS[int(ctx.params["form"])])


def succeed() -> str:
    """A job whose success callback fails."""
    return "fine"


def call_back_on_success(ctx: Any, result: Any) -> NoReturn:
    """A callback that shows its own secret."""
    refuse(FORMS[int(ctx.params["form"])])


class Log(logging.Handler):
    """Everything that the library logs, as text, tracebacks included."""

    def __init__(self) -> None:
        super().__init__(level=logging.DEBUG)
        self.text = io.StringIO()
        self.setFormatter(logging.Formatter("%(levelname)s %(name)s %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        # What a body logs is its own business, and what a driver logs the driver's.
        if record.name.startswith("ratchet") and not record.name.startswith("ratchet.job"):
            self.text.write(self.format(record) + "\n" + repr(record.__dict__) + "\n")


@pytest.fixture
def log() -> Iterator[Log]:
    """The library's log from DEBUG on."""
    handler, root = Log(), logging.getLogger()
    before = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    yield handler
    root.removeHandler(handler)
    root.setLevel(before)


def assert_clean(what: str, text: object) -> None:
    """No secret in it."""
    raw = text if isinstance(text, bytes) else str(text).encode(errors="surrogateescape")
    found = FORBIDDEN.search(raw)
    assert found is None, f"{what}: {raw[max(found.start() - 200, 0) : found.end() + 60]!r}"


@dataclasses.dataclass
class Wreck:
    """What is left after every secret was raised from every place."""

    node: Scheduler
    handles: dict[tuple[str, int], Any]
    builders: list[Any]
    recorder: Recorder
    log: Log
    output: str
    folder: Path


@pytest.fixture(params=KINDS)
def wreck(
    request: pytest.FixtureRequest,
    make_node: Any,
    log: Log,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> Wreck:
    """Every secret in every place, with one retry and a failing callback, on one executor."""
    kind = request.param
    node = make_node(**slots(kind, 2))
    recorder = Recorder(node)
    submit = submitter(node, kind)
    handles: dict[tuple[str, int], Any] = {}
    builders = []
    for place, function in enumerate(PLACES):
        for form in range(len(FORMS)):
            builder = submit(fail, fail_async, place, form).with_max_retries(1)
            builder.on_failure(call_back).with_param("form", form)
            builders.append(builder)
            handles[function.__name__, form] = builder.submit()
    happy = [
        node.enqueue(succeed).on_success(call_back_on_success).with_param("form", f).submit()
        for f in range(len(FORMS))
    ]
    for handle in handles.values():
        assert handle.wait(60).status is Status.FAILED
    for handle in happy:
        handle.wait(60)
    wait_until(lambda: recorder.count(JobCallbackFailed) >= len(handles) + len(happy), 60)
    wait_until(lambda: recorder.count(JobDlq) >= len(handles), 60)
    captured = capfd.readouterr()
    return Wreck(node, handles, builders, recorder, log, captured.out + captured.err, tmp_path)


def test_f46_secrets_are_nowhere_and_the_class_remains(wreck: Wreck) -> None:
    """No secret is in row, history, DLQ, events, callbacks' text, logs, reprs or on the disk; the class name is."""
    node = wreck.node
    for (place, form), handle in wreck.handles.items():
        job = handle.job()
        where = f"{place}, {FORMS[form]}"
        assert_clean(f"job record, {where}", job)
        assert_clean(f"job record by field, {where}", dataclasses.asdict(job))
        detail = node.query.detail(handle.id)
        assert detail is not None
        assert_clean(f"attempt history, {where}", detail)
        assert_clean(f"attempt history, {where}", [dataclasses.asdict(entry) for entry in detail.history])
        expected = CLASSES.get(place, "ConnectError")
        assert expected in job.last_error, (where, job.last_error)
        for name, each in {"handle": handle, "wait": handle.wait(0)}.items():
            assert_clean(f"repr of {name}", repr(each))
        with pytest.raises(RatchetError) as raised:
            handle.result(0)
        assert_clean("the error of result()", raised.value)
    dead = list(node.query.iterate(Selection(statuses=frozenset({Status.FAILED}))))
    assert len(dead) == len(wreck.handles)
    assert_clean("DLQ", dead)
    assert_clean("events", wreck.recorder.events)
    assert_clean("events by field", [dataclasses.asdict(event) for event in wreck.recorder.events])
    failures = wreck.recorder.of(JobCallbackFailed)
    assert_clean("callbacks' text", [failure.error for failure in failures])
    assert all("ConnectError" in failure.error for failure in failures)
    assert_clean("log", wreck.log.text.getvalue())
    assert "failed for good" in wreck.log.text.getvalue(), "the log was not captured"
    assert_clean("standard output and error", wreck.output)
    for each in (node, node.store, node.settings, node.node, node.query.nodes(), *wreck.builders):
        assert_clean(f"repr of {type(each).__name__}", repr(each))
    for path in wreck.folder.iterdir():
        assert_clean(f"bytes of {path.name}", path.read_bytes())


CLASSES: Final = {
    "in_key": "KeyError", "in_file_name": "FileNotFoundError", "in_command": "CalledProcessError",
    "in_group": "ExceptionGroup", "in_permanent": "DoNotRetry", "in_wish": "RetryAfter", "in_exit": "SystemExit",
    "in_result": "UnencodableValue", "in_result_key": "UnencodableValue",
}  # fmt: skip


def test_f46_archive() -> None:
    """No secret is in the archive."""
    not_yet("archive")


# -- code that the application lends us -------------------------------------------------------------------


def refuse_value(value: int) -> int:
    """A validator that shows a secret, on the worker only."""
    if Lender.armed:
        raise ValueError(FORMS[0])
    return value


class Lender:
    """Says when the lent code begins to fail."""

    armed = False


def validated(value: Annotated[int, pydantic.AfterValidator(refuse_value)]) -> None:
    """Has an annotation that runs the application's code."""


class LeakyPolicy:
    """A retry policy that raises a secret."""

    def should_retry(self, attempt: int, error: BaseException) -> bool:
        refuse(FORMS[0])

    def delay(self, attempt: int) -> timedelta:
        refuse(FORMS[0])


class LeakySanitizer:
    """A sanitizer that raises a secret."""

    def sanitize(self, error: BaseException) -> str:
        refuse(FORMS[0])


class Service:
    """A service whose factory raises a secret."""

    def work(self) -> None: ...


def test_f46_secrets_of_lent_code_are_nowhere(
    make_node: Any, log: Log, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Validators, retry policies, sanitizers, service factories and listeners may raise secrets: none is kept."""

    def factory() -> Service:
        refuse(FORMS[0])

    def listen(event: Any) -> None:
        refuse(FORMS[0])

    node = make_node(parts={"retry_policy": LeakyPolicy(), "sanitizer": LeakySanitizer()}, start=False)
    node.register(factory, Service)
    recorder, subscription = Recorder(node), node.add_listener(listen)
    handles = [node.enqueue(fail, 0, 0).with_max_retries(1).submit(), node.enqueue(validated, 1).submit()]
    service = node.enqueue(Service.work).submit()
    monkeypatch.setattr(Lender, "armed", True)
    node.start()
    for handle in handles:
        assert handle.wait(30).status is Status.FAILED
    wait_until(lambda: node.store.history(service.id), what="the service's job was put back")
    wait_until(lambda: subscription.failures)
    assert "ConnectError" in handles[0].job().last_error
    assert "ArgumentError" in handles[1].job().last_error
    for handle in (*handles, service):
        assert_clean("job", dataclasses.asdict(handle.job()))
        assert_clean("history", node.query.detail(handle.id))
    assert_clean("events", recorder.events)
    assert_clean("log", log.text.getvalue())
    assert "raised ConnectError" in log.text.getvalue()
    node.stop(5)
    for path in tmp_path.iterdir():
        assert_clean(f"bytes of {path.name}", path.read_bytes())


def leaky_error() -> StoreTransientError:
    """What a store's driver may say."""
    try:
        refuse(FORMS[2])
    except ConnectError as error:
        problem = StoreTransientError(f"cannot reach {FORMS[2]}")
        problem.__cause__ = error
        return problem


def broken_store() -> RuntimeError:
    """What a store with a mistake may say."""
    return RuntimeError(f"cannot reach {FORMS[2]}")


def wait_at(folder: str) -> str:
    """Waits at the gate."""
    Gates(folder).wait("go")
    return "password=s3cr3t-R"  # a result may be secret: the log of a failed write must not show it


@pytest.mark.parametrize("error", [leaky_error, broken_store])
def test_f46_secrets_of_the_store_are_not_logged(
    make_node: Any, faulty: FaultyStore, log: Log, gates: Gates, error: Callable[[], BaseException]
) -> None:
    """A store's errors, and the outcomes that it cannot take, are logged without secrets, tracebacks included."""
    node = make_node(faulty.store)
    handle = node.enqueue(wait_at, str(gates.folder)).submit()
    wait_until(lambda: gates.reached("go"))
    for method in ("claim", "heartbeat", "held", "nodes", "settle_many"):
        faulty.fail(method, times=3, error=error)
    gates.open("go")
    wait_until(
        lambda: all(faulty.failed[m] for m in ("claim", "heartbeat", "held", "nodes", "settle_many")), 30
    )
    if error is leaky_error:
        assert handle.result(30) == "password=s3cr3t-R"
    text = log.text.getvalue()
    assert "failed (1 in a row)" in text
    assert "settle" in text
    assert_clean("log", text)


# -- configuration ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url",
    [
        *(form for form in FORMS if "://" in form),
        "sqlite://svc:s3cr3t-L@h/jobs.db",
        "sqlite:///jobs.db?password=s3cr3t-M",
        "sqlite:///jobs.db?s3cr3t-O",
        "svc:s3cr3t-Q@h/db",
        "unknown://u:s3cr3t-U@h/db",
        "memory://u:s3cr3t-V@h",
    ],
)
def test_f46_urls_of_the_configuration_are_not_shown(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store URL with a password that cannot be used is refused without showing it, from code and environment."""
    monkeypatch.setenv("RATCHET_URL", url)
    for given in (url, None):
        try:
            scheduler = Scheduler.from_url(given, allow=["x"])
        except ConfigurationError as error:
            assert_clean("the refusal", "".join(traceback.format_exception(error)))
        else:
            assert_clean("reprs", f"{scheduler!r} {scheduler.store!r} {scheduler.settings!r}")
            scheduler.close()


# -- speed ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "unit",
    ["a@", "a@b.", "://", "x://a:", "password=", "password='", 'password="\\', "\\", "'", "Bearer ", "--token ",
     "=", "eyJ", "-----BEGIN PRIVATE KEY-----", "AKIA", "[{(", "a:b@", "token:\n", "%40", "sk-", "\x00", "\ud800"],
)  # fmt: skip
def test_f46_sanitising_hostile_text_is_fast(unit: str) -> None:
    """1 MB of hostile text is sanitized within a second (asserted at ten)."""
    text = unit * (1_000_000 // len(unit))
    sanitizer = DefaultErrorSanitizer()
    gc.collect()
    began = time.monotonic()
    sanitizer.sanitize(ValueError(text))
    sanitizer.sanitize_text(text, limit=20_000)  # the most that is ever logged: a traceback
    assert time.monotonic() - began < 1.0 * SCALE
