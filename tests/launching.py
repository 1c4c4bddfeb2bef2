"""One attempt on an engine, without a coordinator: what a test of engines starts, looks at and ends."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import psutil
from kit import until

from orchestrator import containment, files, identity, workspace
from orchestrator.core.model import Launch, Limits, TaskSpec
from orchestrator.core.snapshot import AttemptState
from orchestrator.ports import Engine
from orchestrator.store import Paths, look
from orchestrator.takeover import take_over

HERE = Path(__file__).parent
LIMITS = Limits(grace_seconds=0.3)


@dataclass
class Attempt:
    """A worker that was started, and its engine."""

    engine: Engine
    where: Paths
    run: str
    pids: dict[str, int] = field(default_factory=dict)

    @property
    def state(self) -> AttemptState:
        """As the journal has it: what a coordinator knows that did not start it."""
        found = look(self.where).snapshot.attempt
        assert found is not None
        return found

    @property
    def worker(self) -> int:
        assert self.state.identity is not None
        return self.state.identity.pid

    @property
    def guard(self) -> int:
        assert self.state.guard is not None
        return self.state.guard.pid

    def file(self, name: str) -> Path:
        return Path(self.where.directory) / name

    def alive(self) -> set[str]:
        """Which of the processes it started are alive at this very moment."""
        return {kind for kind, pid in self.pids.items() if is_alive(pid)}

    def is_locked(self) -> bool:
        lock = files.lock_directory(self.where.directory)
        if lock is not None:
            os.close(lock)
        return lock is None


#: Of the flags in /proc/PID/stat: it is inside of exit(2), leaves its cgroup, and runs no line of its own any more.
_EXITING = 0x4


def is_alive(pid: int) -> bool:
    """Whether it can still do anything; on a machine under load a process takes its time from the last to a zombie."""
    if identity.of(pid) is None:
        return False
    try:
        fields = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()
    except OSError:
        return identity.of(pid) is not None
    return not int(fields[6]) & _EXITING


def spec_of(skill: str, limits: Limits = LIMITS, **args: Any) -> TaskSpec:
    """A skill of stubborn.py, as `spawn` takes it."""
    worker = f"{HERE}/stubborn.py:{skill}"
    return TaskSpec("a family", "python", worker, args, limits=limits, import_paths=(str(HERE),))


def make_task(root: Path, skill: str, **args: Any) -> Paths:
    where, lock = workspace.create(str(root), spec_of(skill, **args), time.time)
    os.close(lock)
    return where


async def begin(engine: Engine, where: Paths, limits: Limits = LIMITS) -> Attempt:
    """Start an attempt as the coordinator does it, and let go of the lock: the worker has it."""
    lock = files.lock_directory(where.directory)
    assert lock is not None
    try:
        task = take_over(where, time.time)
        held = engine.containment()
        run = task.begin_attempt(token=held.token, cgroup=held.cgroup)
        task.close()
        await engine.start(Launch(run, where.directory, held, dict(os.environ), lock, limits))
    finally:
        os.close(lock)
    return Attempt(engine, where, run)


@contextlib.asynccontextmanager
async def family(engine: Engine, root: Path, *kinds: str, **args: Any) -> AsyncIterator[Attempt]:
    """A worker of `stubborn.family` that is ready; whatever of it is alive at the end is ended."""
    where = make_task(root, "family", kinds=list(kinds), **args)
    attempt = await begin(engine, where)
    try:
        await until(attempt.file("ready").exists, f"all of {kinds} run")
        attempt.pids = {kind: int(attempt.file(f"{kind}.beats").read_text().split()[0]) for kind in kinds}
        yield attempt
    finally:
        for pid in attempt.pids.values():  # what a means does not reach, the test ends itself
            with contextlib.suppress(psutil.NoSuchProcess):
                if attempt.where.directory in " ".join(psutil.Process(pid).cmdline()):
                    os.kill(pid, signal.SIGKILL)
        containment.end(containment.Containment(attempt.state.token, attempt.state.cgroup))
        with anyio.CancelScope(shield=True):
            await engine.wait(attempt.state)
