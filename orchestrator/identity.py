"""Who a process is, so that nobody is mistaken for another after pids were used again (faults 12, 60).

A pid alone says nothing. With the raw start ticks of /proc/PID/stat, the boot id and the pid namespace it names one
process for ever; the host tells which machine to ask.
"""

from __future__ import annotations

import functools
import os

from orchestrator import means
from orchestrator.core.model import Identity


def of(pid: int) -> Identity | None:
    """The identity of a living process; None when there is none (a zombie is none)."""
    ticks = _ticks(pid)
    return None if ticks is None else Identity(pid, ticks, _boot(), _namespace(), os.uname().nodename)


def mine() -> Identity:
    found = of(os.getpid())
    assert found is not None
    return found


def alive(who: Identity) -> bool | None:
    """True or False when it can be known; None for a process of another machine or pid namespace.

    The host's name may change while it runs: the same boot id is the same machine whatever it is called.
    """
    if not same_kernel(who):
        return False if who.host == os.uname().nodename else None
    if who.namespace != _namespace():
        return None
    return _ticks(who.pid) == who.ticks


def is_stopped(who: Identity) -> bool:
    """Whether a living process was stopped by a signal. False where that cannot be seen."""
    try:
        with open(f"/proc/{who.pid}/stat", "rb", buffering=0) as file:
            state = file.read(1024).rpartition(b")")[2].split()[0]
    except OSError:
        return False
    return state in (b"T", b"t") and alive(who) is True


def same_kernel(who: Identity) -> bool:
    """Whether it ran under this very kernel, since its last boot: then locks held there are seen here."""
    return who.boot == _boot()


def _ticks(pid: int) -> int | None:
    if not means.has("proc"):
        return _psutil_ticks(pid)
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
            fields = file.read(1024).rpartition(b")")[2].split()  # the name before it may hold blanks and brackets
    except OSError:
        return None
    return None if fields[0] in (b"Z", b"X") else int(fields[19])


def _psutil_ticks(pid: int) -> int | None:
    import psutil

    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else int(process.create_time() * 100)
    except psutil.Error:
        return None


@functools.cache
def _boot() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        import psutil

        return f"since {int(psutil.boot_time()) // 60}"  # the minute: the value drifts by a second


@functools.cache
def _namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""
