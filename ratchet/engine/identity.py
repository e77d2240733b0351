"""Who this process is, and whether another one on this host is certainly gone (section 9)."""

from __future__ import annotations

import os
import platform
from functools import lru_cache
from pathlib import Path

from ratchet.domain.ids import new_id
from ratchet.spi.store import Node, NodeInfo


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""


@lru_cache(maxsize=1)
def boot_id() -> str:
    """What tells one boot of this host from another; empty if the platform does not say."""
    return _read("/proc/sys/kernel/random/boot_id")


def pid_namespace() -> str:
    """In which pid namespace this process lives; empty if the platform does not say."""
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""


def process_started(pid: int) -> int | None:
    """Start time of a process in clock ticks since boot; None if there is no such process, 0 if unknown."""
    stat = _read(f"/proc/{pid}/stat")
    if not stat:
        if Path("/proc/self/stat").exists():
            return None
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return None
        except OSError:
            return 0
        return 0
    fields = stat.rpartition(")")[2].split()
    if fields[0] in ("Z", "X"):  # killed, and not yet waited for: it will never run again
        return None
    return int(fields[19])


def identify(name: str | None) -> NodeInfo:
    """The identity of a node that starts now: a new incarnation."""
    host, pid = platform.node(), os.getpid()
    return NodeInfo(
        incarnation=str(new_id()),
        name=name or f"{host}:{pid}",
        host=host,
        boot_id=boot_id(),
        pid_namespace=pid_namespace(),
        pid=pid,
        pid_started=process_started(pid) or 0,
    )


def is_gone(node: Node, here: NodeInfo) -> bool:
    """True only if `node` certainly runs no more: same host, boot and pid namespace, and no such process."""
    info = node.info
    if not info.pid or not info.boot_id or info.incarnation == here.incarnation:
        return False
    if (info.host, info.boot_id, info.pid_namespace) != (here.host, here.boot_id, here.pid_namespace):
        return False
    started = process_started(info.pid)
    return started is None or (bool(started) and bool(info.pid_started) and started != info.pid_started)
