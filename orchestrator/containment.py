"""Finding and ending whole trees of processes: by cgroup, by a token in their environment, by process group.

A tool that an agent starts may open a session of its own, and a daemon may clear its environment: the process group
reaches neither. What reaches what is told in docs/isolation.md.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator

from orchestrator import identity, means
from orchestrator.core.model import Containment

#: In the environment of every process of a worker, so that it can be found when its cgroup cannot.
TOKEN = "ORCHESTRATOR_TOKEN"

_PREFIX = "orchestrator-"


def name_one(token: str) -> Containment:
    """A containment for a worker to come; the cgroup is only named here, and None where none can be made."""
    base = _cgroup_base() if means.has("cgroup") else None
    return Containment(token, f"{base}/{_PREFIX}{token}" if base else None)


def make(cgroup: str) -> bool:
    """Make the cgroup that was named. False when that cannot be done any more: the other means remain."""
    try:
        os.mkdir(cgroup)
    except FileExistsError:
        return True
    except OSError:
        return False
    return True


def _cgroup_base() -> str | None:
    """The writable cgroup v2 directory under which workers get theirs: ours, but never inside another worker's."""
    try:
        mount = _cgroup2_mount()
        with open("/proc/self/cgroup") as file:
            own = next((line[3:].strip() for line in file if line.startswith("0::")), None)
    except OSError:
        return None
    if mount is None or own is None:
        return None
    parts = own.strip("/").split("/")
    inside = next((i for i, part in enumerate(parts) if part.startswith(_PREFIX)), len(parts))
    base = "/".join([mount, *filter(None, parts[:inside])])
    return base if os.access(base, os.W_OK) and os.access(f"{base}/cgroup.procs", os.W_OK) else None


def _cgroup2_mount() -> str | None:
    with open("/proc/self/mountinfo") as file:
        for line in file:
            before, _, after = line.partition(" - ")
            if after.startswith("cgroup2 "):
                return before.split()[4]
    return None


def members(cgroup: str) -> list[int]:
    """The pids in a cgroup and those below it; none when it is gone."""
    found: list[int] = []
    for directory, _, _ in os.walk(cgroup):
        with contextlib.suppress(OSError), open(f"{directory}/cgroup.procs") as file:
            found.extend(int(line) for line in file)
    return found


def empty_ones(now: float, base: str | None = None, seconds: float = 60.0) -> list[str]:
    """Workers' cgroups without a process. One made less than so many seconds ago waits for its worker."""
    base = base or _cgroup_base()
    found: list[str] = []
    for entry in os.scandir(base) if base else ():
        with contextlib.suppress(OSError):
            old = now - entry.stat(follow_symlinks=False).st_mtime > seconds
            if entry.name.startswith(_PREFIX) and entry.is_dir(follow_symlinks=False) and old:
                found += [] if members(entry.path) else [entry.path]
    return sorted(found)


def all_of_workers(base: str | None = None) -> list[str]:
    """The cgroups of workers that there are, beside our own."""
    base = base or (_cgroup_base() if means.has("cgroup") else None)
    with contextlib.suppress(OSError):
        return [entry.path for entry in os.scandir(base) if entry.name.startswith(_PREFIX)] if base else []
    return []


def token_of(cgroup: str) -> str:
    return os.path.basename(cgroup).removeprefix(_PREFIX)


def kill_cgroup(cgroup: str, seconds: float) -> bool:
    """Kill all that is in a cgroup and remove it. True when it is gone within the time."""
    deadline = time.monotonic() + seconds
    pause = 0.001
    while True:
        with contextlib.suppress(OSError), open(f"{cgroup}/cgroup.kill", "w") as file:
            file.write("1")
        if remove_empty(cgroup):
            return True
        if time.monotonic() > deadline:
            return False
        time.sleep(pause)
        pause = min(2 * pause, 0.1)


def remove_empty(cgroup: str) -> bool:
    """Remove a cgroup and those below it. False when a process is in one of them: nothing is ended here."""
    for directory, _, _ in os.walk(cgroup, topdown=False):
        try:
            os.rmdir(directory)
        except FileNotFoundError:
            continue
        except OSError:
            return False
    return not os.path.exists(cgroup)


def marked(token: str) -> Iterator[int]:
    """The pids whose environment carries the token. Without /proc psutil looks; what may not be read is passed over."""
    wanted = f"{TOKEN}={token}".encode()
    if not means.has("proc"):
        yield from _marked_by_psutil(token)
        return
    for name in os.listdir("/proc"):
        if name.isdecimal():
            with contextlib.suppress(OSError), open(f"/proc/{name}/environ", "rb") as file:
                if wanted in file.read().split(b"\0") and not _ended(name):
                    yield int(name)


def _ended(pid: str) -> bool:
    with open(f"/proc/{pid}/stat", "rb") as file:
        return file.read().rpartition(b")")[2].split()[0] in (b"Z", b"X")


def _marked_by_psutil(token: str) -> Iterator[int]:
    import psutil

    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get(TOKEN) == token and process.status() != psutil.STATUS_ZOMBIE:
                yield process.pid


def group_lives(group: int) -> bool:
    """Whether a process group has a member that has not ended. A zombie has, though signals still find it."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return any(_group_of(pid) == group and identity.of(pid) is not None for pid in _pids())


def _group_of(pid: int) -> int | None:
    try:
        return os.getpgid(pid)
    except OSError:
        return None


def _pids() -> list[int]:
    if means.has("proc"):
        return [int(name) for name in os.listdir("/proc") if name.isdecimal()]
    import psutil

    return psutil.pids()


def kill_marked(token: str, seconds: float) -> bool:
    """Kill every process that carries the token, until a look finds none. True when that was so within the time."""
    deadline = time.monotonic() + seconds
    while True:
        found = [pid for pid in marked(token) if pid != os.getpid()]
        for pid in found:
            send(pid, signal.SIGKILL)
        if not found:
            return True
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)


def send(pid: int, number: signal.Signals) -> None:
    """Signal a process. One that is gone, or that may not be signalled, is passed over."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def end(held: Containment, seconds: float = 10.0) -> bool:
    """End whatever is left of a worker. True when nothing that can be found is alive."""
    if held.cgroup and os.path.isdir(held.cgroup) and not kill_cgroup(held.cgroup, seconds):
        return False
    return kill_marked(held.token, seconds)
