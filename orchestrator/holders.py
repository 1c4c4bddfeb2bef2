"""Which processes hold a lock, carry a worker's mark, or look after a task: told from /proc, and never guessed.

Three-valued where it matters: None is "cannot be known from here". Nothing in this module ends anything.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass

from orchestrator import containment, identity, means
from orchestrator.core.model import Identity

_ROOT = b"ORCHESTRATOR_ROOT="
_TOKEN = f"{containment.TOKEN}=".encode()
_TASK = re.compile(r"/(task-\d{8}-\d{6}-\d{3,})(?![\w-])")
#: The module that a detached supervisor runs; its argument is the workspace.
SUPERVISOR = "orchestrator.cli.supervisor"


@dataclass(frozen=True, slots=True)
class Seen:
    """A process that lives, and what its environment and arguments say of where it belongs."""

    who: Identity
    argv: tuple[str, ...]
    token: str
    root: str

    @property
    def pid(self) -> int:
        return self.who.pid

    @property
    def command(self) -> str:
        return " ".join(self.argv)[:160]

    def belongs_to(self, root: str) -> bool:
        """Whether its environment or its arguments name this root: nothing else makes it ours to touch."""
        real = os.path.realpath(root)
        if self.root and os.path.realpath(self.root) == real:
            return True
        return any(f"{place}/task-" in word for place in {root, real} for word in self.argv)

    def task_of(self, root: str) -> str | None:
        """The id of the task of this root that its arguments name."""
        for place in (root, os.path.realpath(root)):
            for word in self.argv:
                found = _TASK.match(word, word.find(place) + len(place)) if place in word else None
                if found:
                    return found[1]
        return None


def processes() -> list[Seen]:
    """Every living process whose environment may be read. Empty without /proc: then nothing can be told."""
    return [seen for pid in _pids() if (seen := _seen(pid)) is not None]


def _pids() -> Iterator[int]:
    if means.has("proc"):
        yield from (int(name) for name in os.listdir("/proc") if name.isdecimal())


def _seen(pid: int) -> Seen | None:
    try:
        who = identity.of(pid)
        with open(f"/proc/{pid}/environ", "rb") as file:
            environment = file.read().split(b"\0")
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            argv = tuple(os.fsdecode(word) for word in file.read().rstrip(b"\0").split(b"\0"))
    except OSError:
        return None
    if who is None or identity.alive(who) is not True:
        return None
    return Seen(who, argv, _value(environment, _TOKEN), _value(environment, _ROOT))


def _value(environment: list[bytes], name: bytes) -> str:
    return next((os.fsdecode(line[len(name) :]) for line in environment if line.startswith(name)), "")


def of_lock(directory: str, *, shared: bool = False) -> list[int] | None:
    """The pids that have the lock of a directory, also those that inherited it; None where that cannot be known."""
    if not means.has("proc"):
        return None
    real, kind = os.path.realpath(directory), b"READ" if shared else b"WRITE"
    return [pid for pid in _pids() if _has_lock(pid, real, kind)]


def named(directory: str) -> list[Seen]:
    """Who has the lock of a directory, besides ourselves; empty where that cannot be seen."""
    pids = set(of_lock(directory) or ()) - {os.getpid()}
    return [seen for seen in processes() if seen.pid in pids] if pids else []


def _has_lock(pid: int, directory: str, kind: bytes) -> bool:
    with contextlib.suppress(OSError):
        for fd in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                if os.readlink(f"/proc/{pid}/fd/{fd}") == directory and _flocked(pid, fd, kind):
                    return True
    return False


def _flocked(pid: int, fd: str, kind: bytes) -> bool:
    with open(f"/proc/{pid}/fdinfo/{fd}", "rb") as file:
        return any(line.startswith(b"lock:") and b"FLOCK" in line and kind in line for line in file)


def supervises(seen: Seen, directory: str) -> bool:
    """Whether it is the detached supervisor of this very task."""
    return SUPERVISOR in seen.argv and directory in seen.argv
