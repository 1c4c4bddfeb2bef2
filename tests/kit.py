"""Hands and eyes for the tests of crashes: start a task, wait for a condition, kill, go on, look for what is left."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
from conftest import PATIENCE_SECONDS, POLL_SECONDS, Ledger

from orchestrator import Coordinator, Limits, containment, files, identity, recovery, store, workspace
from orchestrator.cli import detach
from orchestrator.compose import resolve
from orchestrator.core.model import Announcement, Identity, TaskSpec
from orchestrator.recovery import Recovery
from orchestrator.store import Paths

SKILLS = Path(__file__).with_name("skills_under_test.py")


def spec(skill: str, ledger: Ledger, *, deaths: int = 1000, env: dict[str, str] | None = None, **args: Any) -> TaskSpec:
    """A skill of skills_under_test.py, as `spawn` takes it."""
    what = resolve(f"{SKILLS}:{skill}", name="the work", args={"ledger": str(ledger.path), **args}, env=env)
    return dataclasses.replace(what, limits=Limits(deaths=deaths))


# -- waiting for conditions ------------------------------------------------------------------------------------------


async def until(condition: Callable[[], Any], what: str, timeout: float = PATIENCE_SECONDS) -> Any:
    """Return what the condition gives as soon as that is something; TimeoutError, naming it, when it does not come."""
    deadline = time.monotonic() + timeout
    while not (found := condition()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {timeout} s: {what}")
        await anyio.sleep(POLL_SECONDS)
    return found


async def let_go(where: Paths) -> None:
    """Return when nobody holds the task's lock: worker and guard are gone, with all they started."""

    def free() -> bool:
        lock = files.lock_directory(where.directory)
        if lock is not None:
            os.close(lock)
        return lock is not None

    await until(free, f"the lock of {where.directory} is free")


@contextlib.contextmanager
def fifo(path: Path) -> Iterator[Path]:
    """A gate that is shut while the block runs; whoever stands there at its end is let go."""
    os.mkfifo(path)
    try:
        yield path
    finally:
        _opened(path)


def _opened(gate: Path) -> bool:
    """Open the gate for whoever stands there; False when nobody does."""
    try:
        os.close(os.open(gate, os.O_WRONLY | os.O_NONBLOCK))
    except OSError:
        return False
    return True


async def open_gate(gate: Path) -> None:
    """Return when somebody has come to the gate and was let through."""
    await until(lambda: _opened(gate), f"somebody waits at {gate}")


# -- the journal, as it lies -----------------------------------------------------------------------------------------


def entries(where: Paths, kind: str) -> list[dict[str, Any]]:
    return [dict(entry) for entry in store.read_journal(where).entries if entry["kind"] == kind]


def done_steps(where: Paths) -> set[str]:
    return {str(e["step"]) for e in entries(where, "commit") if e["status"] == "done"}


def is_waited_for(pid: int) -> bool:
    """Whether this process waits for the end of another by a pidfd, as the engine does."""
    for name in os.listdir("/proc/self/fdinfo"):
        with contextlib.suppress(OSError):
            if f"Pid:\t{pid}\n" in Path(f"/proc/self/fdinfo/{name}").read_text():
                return True
    return False


def identities(where: Paths) -> tuple[Identity, Identity] | None:
    """Worker and guard of the last attempt, when it has said who they are."""
    started = entries(where, "started")
    if not started or started[-1]["run"] != entries(where, "attempt")[-1]["run"]:
        return None
    return Identity(*started[-1]["worker"]), Identity(*started[-1]["guard"])


# -- starting, killing, going on -------------------------------------------------------------------------------------


async def start_and_leave(root: Path, what: TaskSpec) -> Paths:
    """Start a task and detach as soon as its worker has said who it is: nobody restarts it from here on."""
    async with Coordinator(root) as coordinator:
        handle = await coordinator.spawn(what)
        await until(lambda: identities(handle.where), f"the worker of {handle.id} has started")
    return handle.where


async def working(root: Path, ledger: Ledger, gate: Path) -> Paths:
    """A task whose worker waits at the gate in its second step, with nobody to look after it."""
    where = await start_and_leave(root, spec("waits_in_two", ledger, gate=str(gate)))
    await ledger.has("two began 1")
    return where


async def interrupted(root: Path, ledger: Ledger, gate: Path) -> Paths:
    """A task whose worker was killed in its second step, with nobody there to start it again."""
    where = await working(root, ledger, gate)
    kill_worker(where)
    await let_go(where)
    return where


async def to_its_end(root: Path, what: TaskSpec) -> tuple[Paths, Announcement]:
    """A task to its end, through all the attempts that its budget allows."""
    async with Coordinator(root) as coordinator:
        handle = await coordinator.spawn(what)
        said = await handle.wait(120)
        await let_go(handle.where)
    return handle.where, said


def start_supervised(root: Path, what: TaskSpec) -> tuple[Paths, subprocess.Popen[bytes]]:
    """Start a task under a supervisor process of its own, as `orchestrator spawn` does."""
    where, lock = workspace.create(str(root), what, time.time)
    return where, detach.supervisor(where, lock)


def kill(who: Identity) -> bool:
    """SIGKILL, to this very process and to no other that has its number. Whether it was there."""
    there = identity.alive(who) is True
    if there:
        containment.send(who.pid, signal.SIGKILL)
    return there


def kill_worker(where: Paths) -> None:
    found = identities(where)
    assert found is not None
    kill(found[0])


async def go_on(coordinator: Coordinator, where: Paths) -> tuple[Recovery, Announcement | None]:
    """What `recover` does with one task, waited for to its end."""
    said, lock = await anyio.to_thread.run_sync(recovery.claim, where)
    if lock is not None:
        return said, await coordinator.supervise(where, lock)
    if said.action == "alive":
        return said, await coordinator.supervise(where)
    return said, store.look(where).announcement()


async def recover(root: Path, where: Paths) -> tuple[Recovery, Announcement | None]:
    return await go_on(Coordinator(root), where)


def orchestrator(root: Path, *words: str) -> subprocess.Popen[str]:
    """The command line, as a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "orchestrator.cli.main", "--root", str(root), *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


# -- what is left ----------------------------------------------------------------------------------------------------


def left_behind(where: Paths) -> list[str]:
    """Temporaries of a task, and processes and cgroups of any of its attempts. Nothing, when all is well."""
    found = [str(path) for path in Path(where.directory).rglob(".orchestrator-*")]
    for attempt in entries(where, "attempt"):
        found += [f"process {pid} of {attempt['run']}" for pid in containment.marked(attempt["token"])]
        if attempt.get("cgroup") and os.path.exists(attempt["cgroup"]):
            found.append(attempt["cgroup"])
    return found


def step_lines(where: Paths) -> list[str]:
    """task.md without its headings and blank lines."""
    return [line for line in Path(where.task_md).read_text().splitlines() if line.startswith("[")]


def status_line(where: Paths) -> str:
    return next(line for line in Path(where.task_md).read_text().splitlines() if line.startswith("## Status:"))


def tries(ledger: Ledger, step: str) -> list[int]:
    """The numbers of the tries that entered a step, in their order."""
    begun = [line.removeprefix(f"{step} began ") for line in ledger.lines() if line.startswith(f"{step} began ")]
    return [int(number) for number in begun]


def texts(where: Paths, names: Sequence[str]) -> dict[str, str]:
    """The named files of a task, without its id."""
    found = {name: Path(where.directory, name) for name in names}
    return {name: path.read_text().replace(where.task_id, "ID") for name, path in found.items() if path.exists()}


def everything(directory: str) -> dict[str, bytes]:
    """The bytes of every file below a directory, by its path within it."""
    return {str(p.relative_to(directory)): p.read_bytes() for p in sorted(Path(directory).rglob("*")) if p.is_file()}


def queue(root: Path, worker: Path) -> Paths:
    """Make a task that nobody has started yet."""
    where, lock = workspace.create(str(root), resolve(str(worker)), time.time)
    os.close(lock)
    return where
