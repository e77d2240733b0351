"""The commands that look at jobs and change them: tables, JSON documents with stable keys, exit codes."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from ratchet import Priority, Scheduler
from ratchet.cli import main
from ratchet.cli.logs import HumanFormatter
from ratchet.domain.lifecycle import Status
from tests.cli import cli_jobs

pytestmark = pytest.mark.stores("sqlite")

JOB_KEYS = {
    *("id", "status", "target", "type", "executor", "priority", "tags", "business_key", "idempotency_key"),
    *("principal", "resource", "scheduled_time", "created_at", "updated_at", "started_at", "ended_at"),
    *("duration_seconds", "queue_wait_seconds", "timeout_seconds", "attempts", "max_retries", "crash_count"),
    *("claim_seq", "version", "picked_by", "picked_at", "paused_from_status", "superseded_by", "last_error"),
    *("payload", "params", "result"),
}
EXECUTION_KEYS = {
    *("claim_seq", "attempt", "end", "trigger", "node", "picked_at", "started_at", "ended_at"),
    *("duration_seconds", "error"),
}
HEALTH_KEYS = {
    *(
        "now",
        "by_status",
        "pending_by_priority",
        "pending_by_type",
        "oldest_due_age_seconds",
        "window_seconds",
    ),
    *("throughput_per_second", "success_rate", "p50_seconds", "p95_seconds", "p99_seconds", "nodes"),
    *("unhealthy_nodes", "unresolved"),
}
NODE_KEYS = {
    *("name", "incarnation", "state", "host", "pid", "started_at", "last_heartbeat", "age_seconds", "detail"),
}


class Cli:
    """Runs commands in this process, on one store."""

    def __init__(self, scheduler: Scheduler, capture: pytest.CaptureFixture[str]) -> None:
        self.scheduler, self._capture = scheduler, capture

    def __call__(self, *words: str) -> tuple[int, str, str]:
        self._capture.readouterr()
        code = main(list(words))
        out, err = self._capture.readouterr()
        return code, out, err

    def json(self, *words: str, code: int = 0) -> Any:
        got, out, err = self(*words, "--json")
        assert (got, err) == (code, "")
        return json.loads(out)

    def told(self, *words: str, code: int) -> str:
        """The one sentence of a refusal."""
        got, out, err = self(*words)
        assert (got, out) == (code, ""), err
        assert len(err.splitlines()) == 1, err
        return err


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Cli]:
    monkeypatch.setenv("RATCHET_URL", f"sqlite:///{tmp_path / 'jobs.db'}")
    scheduler = cli_jobs.scheduler()
    yield Cli(scheduler, capsys)
    scheduler.close()


@pytest.fixture
def failed(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Ids of two jobs in the DLQ: one tagged, one with a business key; oldest first."""
    with cli.scheduler as running:
        one = running.enqueue(cli_jobs.boom, "the first").with_tags("billing").submit()
        other = running.enqueue(cli_jobs.boom, "the second").with_business_key("invoice-1").submit()
        assert [one.wait(20).status, other.wait(20).status] == [Status.FAILED] * 2
    return [str(one.id), str(other.id)]


def pending(cli: Cli, *tags: str, priority: Priority = Priority.NORMAL) -> str:
    builder = cli.scheduler.schedule(timedelta(hours=1), cli_jobs.add, 1, 2)
    return str(builder.with_tags(*tags).with_priority(priority).submit().id)


def test_list_answers_a_page_with_stable_keys(cli: Cli) -> None:
    """`jobs list --json` is one document of jobs, newest first, with a cursor that leads to the next page."""
    ids = [pending(cli) for _ in range(3)]
    page = cli.json("jobs", "list", "--limit", "2", "--order", "id_asc")
    assert set(page) == {"jobs", "cursor"}
    assert [set(job) for job in page["jobs"]] == [JOB_KEYS] * 2
    assert [job["id"] for job in page["jobs"]] == ids[:2]
    rest = cli.json("jobs", "list", "--limit", "2", "--order", "id_asc", "--cursor", page["cursor"])
    assert ([job["id"] for job in rest["jobs"]], rest["cursor"]) == (ids[2:], None)


def test_list_filters(cli: Cli, failed: list[str]) -> None:
    """Each filter of `jobs list` narrows; several statuses add up, several tags must all be there."""
    urgent = pending(cli, "a", "b", priority=Priority.HIGH)
    plain = pending(cli, "a")

    def found(*words: str) -> set[str]:
        return {job["id"] for job in cli.json("jobs", "list", *words)["jobs"]}

    assert found("--status", "failed") == set(failed)
    assert found("--status", "FAILED", "--status", "pending") == {*failed, urgent, plain}
    assert found("--tag", "a") == {urgent, plain}
    assert found("--tag", "a", "--tag", "B") == {urgent}
    assert found("--priority", "high") == {urgent}
    assert found("--target", ":boom") == set(failed)
    assert found("--error", "the second") == {failed[1]}
    assert found("--business-key", "invoice-1") == {failed[1]}
    assert found("--type", "single", "--principal", "nobody") == set()


def test_show_has_the_job_and_its_history(cli: Cli, failed: list[str]) -> None:
    """`jobs show` gives every stored field and one entry per ended claim, as a document and as tables."""
    shown = cli.json("jobs", "show", failed[0])
    assert set(shown) == {"job", "history"}
    assert set(shown["job"]) == JOB_KEYS
    assert [set(each) for each in shown["history"]] == [EXECUTION_KEYS]
    assert shown["history"][0]["end"] == "FAILED"
    assert "the first" in shown["job"]["last_error"]
    code, out, _ = cli("jobs", "show", failed[0])
    assert code == 0
    assert failed[0] in out
    assert "the first" in out


def test_pause_resume_cancel(cli: Cli) -> None:
    """The changes of one job answer what became of it, and 1 where it could not be changed."""
    job = pending(cli)
    done = cli.json("jobs", "pause", job)
    assert done == {
        "action": "paused",
        "count": 1,
        "results": [{"id": job, "changed": True, "status": "PAUSED"}],
    }
    assert cli.json("jobs", "resume", job)["results"][0]["status"] == "PENDING"
    assert cli.json("jobs", "cancel", job)["results"][0]["status"] == "CANCELED"
    again = cli.json("jobs", "cancel", job, code=1)
    assert again["results"] == [{"id": job, "changed": False, "status": "CANCELED"}]
    unknown = str(uuid4())
    assert cli.json("jobs", "pause", unknown, code=1)["results"][0]["status"] is None
    code, out, err = cli("jobs", "resume", job, unknown)
    assert (code, err) == (1, "")
    assert out.splitlines() == [f"{job} not resumed: it is CANCELED", f"{unknown} not resumed: it is unknown"]


def test_cancel_by_tag(cli: Cli) -> None:
    """`jobs cancel --tag` cancels what carries all the tags and counts it."""
    pending(cli, "old")
    pending(cli, "old", "kept")
    pending(cli)
    assert cli.json("jobs", "cancel", "--tag", "old") == {"action": "canceled", "count": 2, "results": []}
    assert "--tag" in cli.told("jobs", "cancel", code=2)


def test_retry_one_job(cli: Cli, failed: list[str]) -> None:
    """`jobs retry` requeues a failed job, once."""
    assert cli.json("jobs", "retry", failed[0])["results"][0]["status"] == "PENDING"
    assert cli.json("jobs", "retry", failed[0], code=1)["count"] == 0


def test_retry_of_a_job_whose_key_is_taken(cli: Cli, failed: list[str]) -> None:
    """A requeue that needs a business key in use is refused with the holder's id in one sentence."""
    holder = (
        cli.scheduler.schedule(timedelta(hours=1), cli_jobs.add, 1, 2).with_business_key("invoice-1").submit()
    )
    assert str(holder.id) in cli.told("jobs", "retry", failed[1], code=1)


def test_dlq_list_and_retry(cli: Cli, failed: list[str]) -> None:
    """The DLQ is listed with reasons and retried by filter; without filter or --all nothing is touched."""
    jobs = cli.json("dlq", "list")["jobs"]
    assert {job["id"] for job in jobs} == set(failed)
    assert [set(job) for job in jobs] == [JOB_KEYS] * 2
    code, out, _ = cli("dlq", "list", "--tag", "billing")
    assert code == 0
    assert failed[0] in out
    assert failed[1] not in out
    assert "--all" in cli.told("dlq", "retry", code=2)
    assert cli.json("dlq", "retry", "--error", "the second") == {
        "count": 1,
        "ids": [failed[1]],
        "skipped": {},
    }
    assert cli.json("dlq", "retry", "--all") == {"count": 1, "ids": [failed[0]], "skipped": {}}


def test_dlq_retry_with_a_conflict(cli: Cli, failed: list[str]) -> None:
    """A business key in use stops the whole retry, or with --on-conflict skip only that job, with the reason."""
    holder = (
        cli.scheduler.schedule(timedelta(hours=1), cli_jobs.add, 1, 2).with_business_key("invoice-1").submit()
    )
    assert "invoice-1" in cli.told("dlq", "retry", "--all", code=1)
    done = cli.json("dlq", "retry", "--all", "--on-conflict", "skip")
    assert (done["count"], done["ids"], set(done["skipped"])) == (1, [failed[0]], {failed[1]})
    assert str(holder.id) in done["skipped"][failed[1]]


def test_health_and_nodes(cli: Cli, failed: list[str]) -> None:
    """Both documents have their stable keys; the tables name the states and the node."""
    with cli.scheduler:
        health = cli.json("health")
        assert set(health) == HEALTH_KEYS
        assert (health["by_status"]["FAILED"], health["success_rate"], health["nodes"]) == (2, 0.0, 1)
        (node,) = cli.json("nodes")["nodes"]
        assert set(node) == NODE_KEYS
        assert node["state"] == "running"
        assert node["name"] in cli("nodes")[1]
    assert "FAILED" in cli("health")[1]


def test_schema(cli: Cli, tmp_path: Path) -> None:
    """`schema status` answers 1 until `schema upgrade` has made the schema, and creates nothing itself."""
    url = f"sqlite:///{tmp_path / 'new.db'}"
    none = cli.json("schema", "status", "--url", url, code=1)
    assert (none["found"], none["current"]) == (None, False)
    assert not (tmp_path / "new.db").exists()
    made = cli.json("schema", "upgrade", "--url", url)
    assert made["found"] == made["wanted"] == made["applied"][-1]
    assert cli.json("schema", "upgrade", "--url", url)["applied"] == []
    assert cli.json("schema", "status", "--url", url)["current"] is True
    assert "no schema" in cli.told("schema", "status", "--url", "memory://schema", code=2)


def test_every_command_takes_an_app(cli: Cli) -> None:
    """--app names the store through the application's scheduler."""
    job = pending(cli)
    assert cli.json("jobs", "show", job, "--app", cli_jobs.APP)["job"]["id"] == job
    assert cli.json("health", "--app", cli_jobs.APP)["by_status"]["PENDING"] == 1


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["jobs", "list", "--status", "asleep"], 2, "PENDING, RUNNING"),
        (["jobs", "list", "--priority", "9"], 2, "LOWEST"),
        (["jobs", "list", "--order", "size"], 2, "created_desc"),
        (["jobs", "list", "--limit", "0"], 2, "1000"),
        (["jobs", "list", "--cursor", "???"], 2, "cursor"),
        (["jobs", "show", "seven"], 2, "is not a job id"),
        (["jobs", "show", str(uuid4())], 1, "no job has the id"),
        (["jobs", "list", "--app", "a:b", "--url", "memory://x"], 2, "not both"),
        (["jobs", "list", "--url", "sqlte:///x.db"], 2, "sqlite"),
        (["jobs", "list", "--url", "postgresql://h/x"], 2, "ratchet-jobs[postgres]"),
        (["dlq", "retry", "--all", "--on-conflict", "maybe"], 2, "abort or skip"),
        (["dlq", "retry", "--all", "--limit", "5000"], 2, "1000"),
    ],
)
def test_a_wrong_word_is_told_in_one_sentence(cli: Cli, words: list[str], code: int, says: str) -> None:
    """Wrong usage ends with 2 (an unknown job with 1), nothing on stdout and one sentence with the remedy."""
    assert says in cli.told(*words, code=code)


def test_without_a_store_the_remedy_is_told(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither --app nor --url nor RATCHET_URL: one sentence names all three."""
    monkeypatch.delenv("RATCHET_URL")
    told = cli.told("jobs", "list", code=2)
    assert all(each in told for each in ("--app", "--url", "RATCHET_URL"))


def test_without_the_extra_one_sentence_names_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without typer the command says what to install."""
    for name in [each for each in sys.modules if each.partition(".")[0] == "typer"]:
        monkeypatch.delitem(sys.modules, name)
    for name in [each for each in sys.modules if each.startswith("ratchet.cli.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "typer", None)
    assert main(["health"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert len(err.splitlines()) == 1
    assert "pip install 'ratchet-jobs[cli]'" in err


def test_an_unexpected_error_is_a_sentence_unless_debugged(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """A defect of our own ends with 1 and one sentence; --debug shows where."""

    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("oops")

    monkeypatch.setattr(Scheduler, "from_url", broken)
    assert "ZeroDivisionError: oops" in cli.told("health", code=1)
    assert "Traceback" in cli("--debug", "health")[2]
    assert "Traceback" in cli("health", "--debug")[2]


def test_version(cli: Cli) -> None:
    """--version answers and ends with 0."""
    code, out, _ = cli("--version")
    assert code == 0
    assert out.startswith("ratchet ")


def test_table_cells_are_never_markup(cli: Cli) -> None:
    """A tag that looks like rich's markup is shown as it is."""
    pending(cli, "[red]x[/red]", "[/]")
    code, out, _ = cli("jobs", "list")
    assert code == 0
    assert "[red]x[/red]" in out


def test_no_terminal_obeys_a_job(cli: Cli) -> None:
    """What a job says (error, tag, key) is shown with its control characters written out, in every command."""
    said = "\x1b[31mred\x9b2J\u202egnp"
    with cli.scheduler as running:
        builder = running.enqueue(cli_jobs.boom, said).with_tags(said).with_business_key(said)
        job_id = str(builder.submit().wait(20).id)
    for words in (("dlq", "list"), ("jobs", "list"), ("jobs", "show", job_id), ("dlq", "retry", "--all")):
        code, out, err = cli(*words)
        assert code == 0, err
        assert not set(out) & {"\x1b", "\x9b", "\u202e"}, ascii(out)
    code, out, err = cli("jobs", "list", "--status", said)
    assert "\x1b" not in out + err


def test_log_lines_write_control_characters_out() -> None:
    """A worker's log line about a job shows what the job said, and a terminal does not obey it."""
    record = logging.LogRecord("shop", logging.ERROR, "", 1, "bad \x1b]0;title\x07", None, None)
    line = HumanFormatter().format(record)
    assert line.endswith(r"bad \x1b]0;title\x07")
