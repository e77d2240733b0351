"""MongoDB servers for tests: a deployment named by the environment, or a process of our own that speaks its protocol.

No ``mongod`` can be had from package registries. Two servers stand in, both on WiredTiger and GPL, so
that they are run as processes and never imported: ``secantusd-rs`` (cargo, ``secantus-mdb``), which takes
part in races, crashes, ``explain`` and speed; and ``secantusdb`` (PyPI, in the extra ``test``), about forty
times slower, for machines without cargo. What the latter cannot do is in `LACKING`, and NOT RUN there.
"""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias
from urllib.parse import urlsplit, urlunsplit

DEPLOYMENT: Final = "RATCHET_TEST_MONGODB_URL"
"""Environment variable: the URL of a real deployment, which is then used instead."""

Kind: TypeAlias = Literal["deployment", "secantusd-rs", "secantusdb"]
Ability: TypeAlias = Literal["explain", "distinct in arrays", "speed", "kill"]

LACKING: Final[Mapping[Ability, str]] = {
    "explain": "secantusdb plans without partial indexes; secantusd-rs or a deployment explains",
    "distinct in arrays": "secantusdb's distinct finds nothing in arrays, as callbacks of dead nodes are found",
    "speed": "secantusdb is too slow for it; secantusd-rs or a deployment is not",
    "kill": "secantusdb is not killed in tests; secantusd-rs is",
}
"""Why a test that needs this of its server is not run on the Python one."""

_BEARABLE: Final[Mapping[Kind, int]] = {"deployment": sys.maxsize, "secantusd-rs": 2_000, "secantusdb": 200}

_PATIENCE: Final = 30.0
_LAST_WORD: Final = 10.0


class NoServer(Exception):
    """No MongoDB can be had on this machine; the message says why."""


def rust_server() -> str | None:
    """Where ``secantusd-rs`` is, if it is installed."""
    return shutil.which("secantusd-rs") or shutil.which("secantusd-rs", path=str(Path.home() / ".cargo/bin"))


def kind() -> Kind:
    """The server that tests of this process get.

    Raises:
        NoServer: PyMongo is missing, or every server is.
    """
    return "deployment" if os.environ.get(DEPLOYMENT) else _stand_in()


def _stand_in() -> Literal["secantusd-rs", "secantusdb"]:
    if find_spec("pymongo") is None:
        raise NoServer("PyMongo is not installed (extra 'mongo')")
    if rust_server() is not None:
        return "secantusd-rs"
    if find_spec("secantus") is not None:
        return "secantusdb"
    raise NoServer(
        "neither secantusd-rs (cargo install secantus-mdb) nor secantusdb (PyPI) is installed, and "
        f"{DEPLOYMENT} names no deployment"
    )


def lacking(*abilities: Ability) -> str | None:
    """Why this process's server is not enough for what needs these; None if it is.

    Raises:
        NoServer: there is no server at all.
    """
    return LACKING[abilities[0]] if abilities and kind() == "secantusdb" else None


def bearable(jobs: int) -> int:
    """So many of these jobs as one database may hold.

    On MongoDB a claim reads the heads of its lanes, on an index, whatever lies behind and beside them (the
    tests of the indexes show it). The stand-ins plan no join: for each claim they read all jobs, settled ones
    too, some 10 microseconds each on the fast one and more than once; at 30,000 jobs that is half a second.
    """
    return min(jobs, _BEARABLE[kind()])


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@dataclass
class Server:
    """A process of our own on a port and a folder that it keeps over restarts.

    Attributes:
        standalone: a standalone server; else a replica set of one.
        rust: the fast stand-in; else the Python one.
    """

    standalone: bool = False
    rust: bool = True
    port: int = field(default_factory=_free_port)
    folder: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="ratchet-mongo-")))
    process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """Host and port."""
        return f"127.0.0.1:{self.port}"

    def url(self, database: str = "") -> str:
        """The URL of one database."""
        return f"mongodb://{self.address}/{database}"

    def _command(self) -> list[str]:
        settings = self.folder / "server.toml"
        settings.touch()  # an empty one of our own, so that none is found elsewhere
        if not self.rust:
            return [
                sys.executable, "-W", "ignore", "-m", "secantus", "--config", str(settings),
                "--host", "127.0.0.1", "--port", str(self.port), "--storage-path", str(self.folder / "data"),
                *(["--standalone"] if self.standalone else []),
            ]  # fmt: skip
        return [
            str(rust_server()), "--config", str(settings), "--port", str(self.port),
            "--storage-path", str(self.folder / "data"), "--cache-size", "256M", "--log-file-max", "16MB",
            "--log-level", "WARNING",
            "--sync-on-commit",  # without it kill -9 loses writes acknowledged with j:true
            *(["--standalone"] if self.standalone else []),
        ]  # fmt: skip

    def start(self) -> Server:
        """Start it and wait until it answers: a SIGTERM before that would be lost."""
        log = (self.folder / "log").open("ab")
        self.process = subprocess.Popen(
            self._command(), stdout=log, stderr=log, cwd=self.folder, start_new_session=True
        )
        log.close()
        until = time.monotonic() + _PATIENCE
        while not self._answers():
            if self.process.poll() is not None or time.monotonic() > until:
                told = (self.folder / "log").read_text(errors="replace")[-2000:]
                self.kill()
                raise NoServer(f"the server did not start: {told}")
        return self

    def _answers(self) -> bool:
        from pymongo import MongoClient
        from pymongo.errors import PyMongoError

        client: MongoClient[dict[str, Any]] = MongoClient(self.url(), serverSelectionTimeoutMS=200)
        with client:
            try:
                client.admin.command("ping")
            except PyMongoError:
                return False
            return True

    def kill(self) -> None:
        """SIGKILL: what a crash of the server looks like to everybody else."""
        if self.process is not None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()
            self.process = None

    def stop(self) -> None:
        """End it, kindly for ten seconds."""
        if self.process is not None:
            self.process.terminate()
            try:
                self.process.wait(_LAST_WORD)
            except subprocess.TimeoutExpired:
                self.kill()
            self.process = None

    def remove(self) -> None:
        """End it and remove its data."""
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)


_running: dict[bool, Server] = {}


def shared(*, standalone: bool = False) -> Server:
    """The server of this process's tests, started at its first use and removed at exit.

    Raises:
        NoServer: neither stand-in is installed.
    """
    if standalone not in _running:
        server = Server(standalone=standalone, rust=_stand_in() == "secantusd-rs")
        atexit.register(server.remove)
        _running[standalone] = server.start()
    return _running[standalone]


def database_url(name: str) -> str:
    """The URL of a database of this name, on the deployment of the environment or on the shared server."""
    deployment = os.environ.get(DEPLOYMENT)
    if deployment:
        parts = urlsplit(deployment)
        url = urlunsplit(parts._replace(path=f"/{name}"))
        if name:
            atexit.register(drop, url)
        return url
    standalone = os.environ.get("RATCHET_TEST_MONGODB_STANDALONE") == "1"
    return shared(standalone=standalone).url(name)


def drop(url: str) -> None:
    """Remove a database."""
    from pymongo import MongoClient

    client: MongoClient[dict[str, Any]] = MongoClient(url)
    with client:
        client.drop_database(client.get_default_database().name)
