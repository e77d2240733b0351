"""What can be submitted, what each word of the builder stores, and what is refused with which sentence."""

from __future__ import annotations

import gc
import textwrap
import warnings
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from ratchet import (
    Backoff,
    DoNotRetry,
    ExecutionSettings,
    Job,
    JobOptions,
    PayloadSettings,
    Priority,
    Scheduler,
    Settings,
    Status,
)
from ratchet.domain.lifecycle import LATEST
from ratchet.errors import (
    ArgumentError,
    CapabilityMissing,
    ConfigurationError,
    DuplicateBusinessKey,
    PayloadTooLarge,
    StoreTransientError,
    TargetRefused,
    UnencodableValue,
    UnsupportedTarget,
    UsageError,
)
from ratchet.testing import VirtualClock
from tests.unit import scheduler_kit as kit

NOW = datetime(2030, 1, 1, tzinfo=UTC)


@pytest.fixture
def scheduler() -> Iterator[Scheduler]:
    scheduler = Scheduler.from_url("memory://", allow=[kit.__name__], clock=VirtualClock(NOW))
    yield scheduler
    scheduler.close()


def stored(scheduler: Scheduler, builder: Any) -> Job:
    job = scheduler.get(builder.submit().id)
    assert job is not None
    return job


# -- the words ---------------------------------------------------------------------------------------------------

WORDS: list[tuple[Callable[[Any], Any], str, object]] = [
    (lambda b: b, "priority", Priority.NORMAL),
    (lambda b: b, "max_retries", 0),
    (lambda b: b, "backoff", Backoff.none()),
    (lambda b: b, "timeout", timedelta(minutes=30)),
    (lambda b: b, "executor", "threads"),
    (lambda b: b, "scheduled_time", NOW),
    (lambda b: b, "target", f"{kit.__name__}:add"),
    (lambda b: b.with_priority(Priority.HIGH), "priority", Priority.HIGH),
    (lambda b: b.with_max_retries(7), "max_retries", 7),
    (lambda b: b.with_backoff(Backoff.fixed(timedelta(1))), "backoff", Backoff.fixed(timedelta(1))),
    (lambda b: b.with_timeout(timedelta(seconds=5)), "timeout", timedelta(seconds=5)),
    (lambda b: b.with_tags(" Red", "", "BLUE").with_tags("red"), "tags", frozenset({"red", "blue"})),
    (lambda b: b.with_executor("processes"), "executor", "processes"),
    (lambda b: b.with_principal("alice"), "principal", "alice"),
    (lambda b: b.with_idempotency_key("k" * 255), "idempotency_key", "k" * 255),
    (lambda b: b.with_business_key("invoice-42"), "business_key", "invoice-42"),
    (lambda b: b.on_success(kit.after_success), "on_success", f"{kit.__name__}:after_success"),
    (lambda b: b.on_failure(kit.after_failure), "on_failure", f"{kit.__name__}:after_failure"),
    (lambda b: b.with_delay(timedelta(minutes=5)), "scheduled_time", NOW + timedelta(minutes=5)),
    (lambda b: b.with_delay(timedelta(minutes=-5)), "scheduled_time", NOW),
    (lambda b: b.with_delay(timedelta.max), "scheduled_time", LATEST),
    (lambda b: b.at(datetime(2031, 1, 1, 1, tzinfo=ZoneInfo("Europe/Paris"))), "scheduled_time",
     datetime(2031, 1, 1, tzinfo=UTC)),
    (lambda b: b.at(datetime.max.replace(tzinfo=UTC)), "scheduled_time", LATEST),
    (lambda b: b.with_delay(timedelta(1)).at(NOW), "scheduled_time", NOW),
    (lambda b: b.with_options(JobOptions(max_retries=2, tags=frozenset({"x"}))), "max_retries", 2),
    (lambda b: b.with_max_retries(1).with_options(JobOptions(priority=Priority.LOW)), "max_retries", 1),
]  # fmt: skip


@pytest.mark.parametrize(("word", "field", "value"), WORDS)
def test_each_word_stores_its_value(scheduler: Scheduler, word: Any, field: str, value: object) -> None:
    """Every word of the builder (and none at all) writes exactly its field of the stored job."""
    job = stored(scheduler, word(scheduler.enqueue(kit.add, 1)))
    assert getattr(job, field) == value
    assert job.status is Status.PENDING


def test_the_same_vocabulary_is_spoken_everywhere(scheduler: Scheduler) -> None:
    """The words of `JobOptions`, of `@job` and of the builder are the same."""
    options: dict[str, Any] = {
        "priority": Priority.LOW,
        "max_retries": 3,
        "backoff": Backoff.exponential(timedelta(seconds=2)),
        "timeout": timedelta(minutes=1),
        "tags": ["a"],
        "executor": "processes",
        "principal": "bob",
        "on_success": kit.after_success,
        "on_failure": kit.after_failure,
    }
    registry = Scheduler.from_url("memory://", allow=[kit.__name__], clock=VirtualClock(NOW))
    registry.job(**options)(kit.say)
    by_decorator = stored(registry, registry.enqueue(kit.say, 1))
    by_options = stored(scheduler, scheduler.enqueue(kit.say, 1).with_options(JobOptions.of(options)))
    builder = scheduler.enqueue(kit.say, 1)
    for word, value in options.items():
        name = word if word.startswith("on_") else f"with_{word}"
        getattr(builder, name)(*value if word == "tags" else (value,))
    by_words = stored(scheduler, builder)
    for field in (*options, "payload", "target"):
        assert getattr(by_decorator, field) == getattr(by_options, field) == getattr(by_words, field)


def test_params_travel_beside_the_arguments(scheduler: Scheduler) -> None:
    """Params are encoded like arguments and keep names that are no identifiers."""
    builder = scheduler.enqueue(kit.add, 1).with_param("a.b$", {"x": (1, 2)}).with_params(c=b"\0")
    job = stored(scheduler, builder)
    decode = scheduler.codec.decode_value
    assert {name: decode(text) for name, text in job.params.items()} == {"a.b$": {"x": (1, 2)}, "c": b"\0"}


def test_ids_are_time_ordered(scheduler: Scheduler) -> None:
    """Ids are UUIDv7 and ascend in the order of submission."""
    ids = [scheduler.enqueue(kit.add, i).submit().id for i in range(50)]
    assert ids == sorted(ids)
    assert {each.version for each in ids} == {7}


# -- refused, with the sentence ----------------------------------------------------------------------------------


def local() -> Callable[[], None]:
    def closure() -> None:
        """Not importable."""

    return closure


class Callable_:  # noqa: N801
    def __call__(self) -> None:
        """An object that can be called."""


hidden = kit.add
NOT_JOBS: list[tuple[Any, str]] = [
    (lambda: 1, "a lambda cannot be stored as a job; define it with `def` at the top level of a module"),
    (local(), "is a closure inside another function and cannot be imported; define it with `def`"),
    (kit.generate, "is a generator function; a job's body must return, so collect and return"),
    (
        partial(kit.add, 1),
        "functools.partial cannot be a job; pass the arguments to enqueue instead",
    ),
    (kit.Service, "is a class; submit a function or a method of it"),
    (Callable_(), "Callable_ objects cannot be jobs; define it with `def`"),
    (42, "int objects cannot be jobs"),
]


@pytest.mark.parametrize(("func", "sentence"), NOT_JOBS, ids=[sentence[:24] for _, sentence in NOT_JOBS])
def test_what_cannot_be_a_job_is_refused_with_the_remedy(
    scheduler: Scheduler, func: Any, sentence: str
) -> None:
    """Lambda, closure, generator, partial, class and objects are refused where they are submitted."""
    for submit in (
        lambda: scheduler.enqueue(func),
        lambda: scheduler.enqueue_now(func),
        lambda: scheduler.enqueue_many(func, [()]),
        lambda: scheduler.schedule(timedelta(1), func),
    ):
        with pytest.raises(UnsupportedTarget) as caught:
            submit()
        assert sentence in str(caught.value)


@pytest.mark.parametrize("func", [lambda: 1, local(), kit.generate], ids=["lambda", "closure", "generator"])
def test_the_decorator_refuses_the_same(scheduler: Scheduler, func: Any) -> None:
    """What cannot be submitted cannot be registered either."""
    with pytest.raises(UnsupportedTarget):
        scheduler.job(func)


CALLS: list[tuple[tuple[Any, ...], dict[str, Any], str]] = [
    ((), {}, "missing a required argument: 'a'"),
    ((1, 2, 3), {}, "too many positional arguments"),
    ((1,), {"colour": 1}, "got an unexpected keyword argument 'colour'"),
    ((1,), {"a": 2}, "multiple values for argument 'a'"),
    (("one",), {}, "argument 'a'"),
    ((1,), {"scale": 1.5}, "argument 'scale'"),
]


@pytest.mark.parametrize(("args", "kwargs", "sentence"), CALLS)
def test_wrong_arguments_fail_where_they_are_written(
    scheduler: Scheduler, args: Any, kwargs: Any, sentence: str
) -> None:
    """A call that does not fit signature or annotations is refused at enqueue, with the signature."""
    with pytest.raises(ArgumentError) as caught:
        scheduler.enqueue(kit.add, *args, **kwargs)
    assert sentence in str(caught.value)
    assert "its signature is add(a: 'int', b: 'int' = 1, *, scale: 'int' = 1)" in str(caught.value)


VALUES: list[tuple[Any, str]] = [
    (object(), "argument 'what': "),
    ([1, {"x": {2: 3}}], "argument 'what'[1]['x']"),
    ({"f": open}, "argument 'what'['f']"),
    (ValueError("x"), "argument 'what': "),
]


@pytest.mark.parametrize(("value", "sentence"), VALUES, ids=[sentence for _, sentence in VALUES])
def test_an_argument_that_cannot_travel_is_named(scheduler: Scheduler, value: Any, sentence: str) -> None:
    """An unserialisable argument is refused at submit, with its name and the place inside it."""
    with pytest.raises(UnencodableValue) as caught:
        scheduler.enqueue(kit.say, value).submit()
    assert str(caught.value).startswith(sentence)
    with pytest.raises(UnencodableValue, match=r"^param 'p'"):
        scheduler.enqueue(kit.say, 1).with_param("p", object()).submit()
    assert scheduler.query.count() == 0


def test_a_payload_beyond_the_limit_is_refused(scheduler: Scheduler) -> None:
    """API-SIZE-01: 100 KiB encoded are the limit, one character more is refused with both figures."""
    room = 100 * 1024 - len('[[""],{}]')
    assert scheduler.enqueue(kit.say, "x" * room).submit().created
    with pytest.raises(PayloadTooLarge) as caught:
        scheduler.enqueue(kit.say, "x" * (room + 1)).submit()
    assert str(caught.value) == (
        "the arguments: 102,401 bytes encoded, the limit is 102,400; store the data elsewhere and pass its key"
    )
    with pytest.raises(PayloadTooLarge, match=r"the arguments: 103,4\d\d bytes"):
        scheduler.enqueue(kit.say, "x" * 101 * 1024).submit()
    with pytest.raises(PayloadTooLarge, match="the params"):
        scheduler.enqueue(kit.say, 1).with_param("p", "x" * 101 * 1024).submit()


def test_the_limit_is_a_setting() -> None:
    """A smaller limit is enforced like the default."""
    settings = Settings(payload=PayloadSettings(arguments=20))
    scheduler = Scheduler.from_url("memory://", allow=[kit.__name__], settings=settings)
    with pytest.raises(PayloadTooLarge, match="the limit is 20"):
        scheduler.enqueue(kit.say, "x" * 20).submit()


def test_a_target_outside_the_policy_is_refused(scheduler: Scheduler) -> None:
    """A function of a module that was not named is refused, with what to write."""
    with pytest.raises(TargetRefused) as caught:
        scheduler.enqueue(textwrap.dedent, "x")
    assert "lies outside the target policy" in str(caught.value) or "name its module" in str(caught.value)
    with pytest.raises(TargetRefused, match=r"name its module in Scheduler\(allow=\[...\]\)"):
        scheduler.enqueue(here)
    with pytest.raises(TargetRefused):
        scheduler.enqueue(kit.add, 1).on_success(here).submit()


def test_a_naive_datetime_is_refused(scheduler: Scheduler) -> None:
    """A due time without a zone is refused with the remedy, by `schedule` and by `at`."""
    naive = datetime(2031, 1, 1)  # noqa: DTZ001
    builder = scheduler.enqueue(kit.add, 1)
    for build in (partial(scheduler.schedule, naive, kit.add, 1), partial(builder.at, naive)):
        with pytest.raises(UsageError, match=r"2031-01-01 00:00:00 has no time zone; write one"):
            build()
    builder.submit()
    for wrong in (30, "2031-01-01", None):
        with pytest.raises(UsageError, match="a due time is a datetime or a timedelta"):
            scheduler.schedule(wrong, kit.add, 1)  # type: ignore[call-overload]


def test_an_unknown_option_is_an_error_that_names_the_nearest(scheduler: Scheduler) -> None:
    """A misspelt option of `@job` is told at once, with the word that was meant."""
    with pytest.raises(UsageError, match=r"unknown job option 'max_retry'; did you mean 'max_retries'\?"):
        scheduler.job(max_retry=3)(kit.add)  # type: ignore[call-overload]
    with pytest.raises(UsageError, match="unknown job option 'colour'; known are priority"):
        scheduler.job(colour=3)(kit.add)  # type: ignore[call-overload]


OPTIONS: list[tuple[Callable[[Any], Any], str]] = [
    (lambda b: b.with_max_retries(-1), "max_retries must be a whole number, 0 or more, not -1"),
    (lambda b: b.with_max_retries(True), "max_retries must be a whole number"),
    (lambda b: b.with_priority(3), "priority must be one of Priority.LOWEST"),
    (lambda b: b.with_backoff("fixed"), "backoff must be made with Backoff.fixed"),
    (lambda b: b.with_timeout(timedelta(0)), "timeout must be a timedelta longer than zero"),
    (lambda b: b.with_timeout(5), "timeout must be a timedelta longer than zero, not 5"),
    (lambda b: b.with_executor("fibers"), "executor must be 'threads', 'async' or 'processes', not 'fibers'"),
    (
        lambda b: b.with_executor("async").submit(),
        "is not an async def, so it cannot run with executor='async'",
    ),
    (lambda b: b.with_tags("x" * 65), "a tag may have 64 characters; this one has 65"),
    (lambda b: b.with_tags("a\0"), "a tag cannot contain NUL"),
    (lambda b: b.with_tags(7), "a tag must be text, not int"),
    (lambda b: b.with_idempotency_key("k" * 256), "an idempotency key may have 255 characters"),
    (lambda b: b.with_idempotency_key(""), "the idempotency key cannot be empty"),
    (lambda b: b.with_business_key("\ud800"), "a business key cannot contain a lone surrogate"),
    (lambda b: b.with_principal("a\0b"), "a principal cannot contain NUL"),
    (lambda b: b.with_delay(5), "a delay is a timedelta, not int"),
    (lambda b: b.on_success(1), "on_success must be a named function, not int"),
    (lambda b: b.on_success(lambda c, r: None).submit(), "a lambda cannot be stored as a job"),
]


@pytest.mark.parametrize(("word", "sentence"), OPTIONS, ids=[sentence for _, sentence in OPTIONS])
def test_a_wrong_option_is_refused(scheduler: Scheduler, word: Any, sentence: str) -> None:
    """Every word refuses what it cannot mean, with one sentence, and nothing is stored."""
    builder = scheduler.enqueue(kit.add, 1)
    with pytest.raises(UsageError) as caught:
        word(builder)
    assert sentence in str(caught.value)
    assert scheduler.query.count() == 0
    builder.with_executor("threads").on_success(kit.after_success).submit()


def test_an_async_function_does_not_run_on_threads(scheduler: Scheduler) -> None:
    """An `async def` cannot be given to threads, and a service's method not to a child process."""
    with pytest.raises(UsageError, match="is an async def, so it cannot run with executor='threads'"):
        scheduler.enqueue(kit.add_later, 1).with_executor("threads").submit()
    with pytest.raises(
        UnsupportedTarget, match="is a method of a service, which a child process does not have"
    ):
        scheduler.enqueue(kit.Service("x").greet, "y").with_executor("processes").submit()


def test_a_resource_needs_the_capability(scheduler: Scheduler) -> None:
    """A job that names a resource nobody configured is refused at submit."""
    with pytest.raises(CapabilityMissing, match="resource 'gpu' is not configured"):
        scheduler.enqueue(kit.add, 1).with_resource("gpu").submit()


def test_a_wrong_entry_of_many_is_told(scheduler: Scheduler) -> None:
    """An entry that is no tuple, and one key for all jobs, are refused with what to write."""
    with pytest.raises(UsageError, match=r"one tuple of arguments per job, like \[\(1,\), \(2,\)\], not int"):
        scheduler.enqueue_many(kit.add, [1, 2])  # type: ignore[list-item,arg-type]
    with pytest.raises(UsageError, match=r"one business key cannot serve several jobs.*'k-\{0\}'.format"):
        scheduler.enqueue_many(kit.add, [(1,)], business_key="k")  # type: ignore[call-overload]
    with pytest.raises(UsageError, match="idempotency key must be text, not int"):
        scheduler.enqueue_many(kit.add, [(1,)], idempotency_key=lambda a: a)


def test_parts_that_do_not_fit_together_are_refused() -> None:
    """Both kinds of policy, a text as allow, no URL, and settings without a slot are configuration errors."""
    with pytest.raises(ConfigurationError, match=r"write allow=\['shop'\]"):
        Scheduler.from_url("memory://", allow="shop")
    with pytest.raises(ConfigurationError, match="is not a module name"):
        Scheduler.from_url("memory://", allow=["shop.*"])
    policy = Scheduler.from_url("memory://", allow=["shop"]).policy
    with pytest.raises(ConfigurationError, match="either allow="):
        Scheduler.from_url("memory://", allow=["shop"], policy=policy)
    with pytest.raises(ConfigurationError, match="at least one slot"):
        ExecutionSettings(threads=0, async_=0)


def test_no_url_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a URL the environment's is taken, and without that the error says both."""
    monkeypatch.delenv("RATCHET_URL", raising=False)
    with pytest.raises(ConfigurationError, match="RATCHET_URL"):
        Scheduler.from_url()
    monkeypatch.setenv("RATCHET_URL", "memory://")
    assert Scheduler.from_url(allow=["shop"]).query.count() == 0


# -- the builder's life ------------------------------------------------------------------------------------------


def test_a_builder_thrown_away_warns_with_its_call_site(scheduler: Scheduler) -> None:
    """An abandoned builder warns and names the file and the line at which it was made."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        line = here() + 1
        scheduler.enqueue(kit.add, 1).with_tags("x")
        scheduler.schedule(timedelta(1), kit.add, 1)
        gc.collect()
    told = [str(each.message) for each in caught if each.category is ResourceWarning]
    assert told == [
        f"the job built at {__file__}:{line} was never submitted; end the chain with .submit()",
        f"the job built at {__file__}:{line + 1} was never submitted; end the chain with .submit()",
    ]


def here() -> int:
    import sys

    return sys._getframe(1).f_lineno


def test_a_builder_whose_submit_raised_does_not_warn(scheduler: Scheduler) -> None:
    """Only a builder that nobody tried to submit is told of; the error of the others was told already."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UnencodableValue):
            scheduler.enqueue(kit.say, object()).submit()
        gc.collect()


def test_a_builder_is_submitted_once(scheduler: Scheduler) -> None:
    """A second submit of one builder is refused, and its text tells its state."""
    builder = scheduler.enqueue(kit.add, 1)
    assert repr(builder) == f"<JobBuilder {kit.__name__}:add (not submitted)>"
    builder.submit()
    assert repr(builder).endswith("(submitted)>")
    with pytest.raises(UsageError, match="this builder has been submitted; make a new one"):
        builder.submit()


def test_a_submission_whose_answer_was_lost_can_be_repeated(
    scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a store error that had stored the job, submitting the builder again answers the same job."""
    insert, lost = scheduler.store.insert, []

    def lossy(*args: Any, **kwargs: Any) -> Any:
        answer = insert(*args, **kwargs)
        lost.append(answer[0].id)
        raise StoreTransientError("the reply did not arrive")

    monkeypatch.setattr(scheduler.store, "insert", lossy)
    builder = scheduler.enqueue(kit.add, 1)
    with pytest.raises(StoreTransientError):
        builder.submit()
    monkeypatch.undo()
    handle = builder.submit()
    assert [handle.id] == lost
    assert handle.created
    assert scheduler.query.count() == 1


def test_a_refused_submission_can_be_changed_and_repeated(scheduler: Scheduler) -> None:
    """After a conflict the same builder is stored with another key, as one job."""
    scheduler.enqueue(kit.add, 1).with_business_key("k").submit()
    builder = scheduler.enqueue(kit.add, 2).with_business_key("k")
    with pytest.raises(DuplicateBusinessKey):
        builder.submit()
    assert builder.with_business_key("k2").submit().created
    assert scheduler.query.count() == 2


def test_replace_whose_answer_was_lost_can_be_repeated(
    scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replace that was applied though its reply was lost answers the new job when it is repeated."""
    old = scheduler.enqueue(kit.add, 1).submit()
    settle = scheduler.store.settle

    def lossy(settlement: Any) -> Any:
        settle(settlement)
        raise StoreTransientError("the reply did not arrive")

    monkeypatch.setattr(scheduler.store, "settle", lossy)
    builder = scheduler.enqueue(kit.add, 2)
    with pytest.raises(StoreTransientError):
        scheduler.replace(old.id, builder)
    monkeypatch.undo()
    new = scheduler.replace(old.id, builder)
    job = old.job()
    assert job is not None
    assert job.superseded_by == new.id


def test_errors_tell_what_to_do_by_family() -> None:
    """Usage errors are ValueErrors too, so that callers need not know Ratchet's to catch them."""
    assert issubclass(UsageError, ValueError)
    assert not issubclass(DoNotRetry, UsageError)
