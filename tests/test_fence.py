"""Lines that a replaced attempt, or somebody's hand, appends to a journal: they change nothing, and hide nothing.

What a person would lose: a step that is done is called undone, an end is taken back, a new worker is not believed.
"""

from __future__ import annotations

import dataclasses
import fcntl
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import kit
import pytest
from conftest import Ledger

from orchestrator import Coordinator, files, identity, recovery, store, workspace
from orchestrator.core import journal
from orchestrator.core.model import TaskSpec
from orchestrator.core.snapshot import _FOLDS, Snapshot, fold
from orchestrator.store import Paths
from orchestrator.takeover import take_over

TASK = "task-20261130-142501-001"
ME = list(identity.mine())

#: A line of every kind that there is, as an attempt would write it.
LINES: dict[str, dict[str, Any]] = {
    "attempt": {"token": "stale", "cgroup": None, "deaths": 9},
    "started": {"worker": ME, "guard": ME},
    "skill": {"worker": "other.py:f", "version": "other"},
    "plan": {"steps": [{"step": "invented"}]},
    "running": {"step": "two", "try": 7, "effect": "once", "args": "x"},
    "raised": {"step": "two", "try": 7, "error": {"class": "runtime", "type": "E", "message": "m"}},
    "interrupted": {"step": "two", "try": 7, "why": "stale"},
    "commit": {"step": "two", "try": 7, "status": "done", "result": "stale"},
    "handled": {"request": "r", "verb": "redo", "step": "one"},
    "heard": {"call": 0, "requests": ["r"], "texts": ["stale"]},
    "asked": {"question": "stale", "text": "?"},
    "order": {"steps": ["two", "one"]},
    "redo": {"step": "one", "why": "stale"},
    "end": {
        "outcome": "completed",
        "announcement": {"id": "x", "task": TASK, "name": "n", "status": "completed", "summary": "it is done"},
    },
    "closed": {"outcome": "crashed"},
    "rebuilt": {"generation": "cafe", "attempt": 40},
    "deaths": {"deaths": 40},
}


def line(run: str, seq: int, kind: str, **fields: Any) -> dict[str, Any]:
    return {"run": run, "seq": seq, "at": "2026-11-30T14:25:01.000Z", "kind": kind, **fields}


def history() -> list[dict[str, Any]]:
    """A task whose first attempt died after one step, and whose second is in the other."""
    one, two = f"{TASK}.1", f"{TASK}.2"
    return [
        line(f"{TASK}.0", 1, "created"),
        line(one, 1, "attempt", token="first"),
        line(one, 2, "started", worker=ME, guard=ME),
        line(one, 3, "running", step="one", **{"try": 1}, effect="idempotent", args=""),
        line(one, 4, "commit", step="one", **{"try": 1}, status="done", result=1),
        line(one, 5, "closed", outcome="lost"),
        line(two, 1, "attempt", token="second"),
        line(two, 2, "started", worker=ME, guard=ME),
        line(two, 3, "running", step="two", **{"try": 1}, effect="idempotent", args=""),
    ]


def state(snapshot: Snapshot) -> dict[str, Any]:
    found = {f.name: getattr(snapshot, f.name) for f in dataclasses.fields(snapshot)}
    return {key: repr(value) for key, value in found.items() if key != "ignored"}


#: Whose line it is, and the number it claims.
STALE: dict[str, tuple[str, int]] = {
    "of the attempt that was replaced": (f"{TASK}.1", 6),
    "of that attempt, with a number that lies": (f"{TASK}.1", 10**9),
    "of an attempt that was never begun": (f"{TASK}.3", 2),
    "of one that was never begun, with a number that lies": (f"{TASK}.900", 10**9),
    "of before the first attempt": (f"{TASK}.0", 2),
    "of a journal that was lost": (f"{TASK}.beef.2", 4),
    "of no run at all": ("nobody", 4),
    "of another task": ("task-20261130-142501-777.2", 4),
}


def test_there_is_a_line_of_every_kind() -> None:
    assert set(LINES) == set(_FOLDS)


#: Every kind in every way, but for the one line by which an attempt begins.
STALE_LINES = [(kind, whose) for kind in LINES for whose in STALE if kind != "attempt" or "never begun" not in whose]


@pytest.mark.parametrize("kind, whose", STALE_LINES)
def test_a_line_of_a_replaced_attempt_changes_nothing_of_what_is_known(kind: str, whose: str) -> None:
    before = fold(history())
    after = fold(history())
    assert after.apply(line(*STALE[whose], kind, **LINES[kind])) is False
    assert state(after) == state(before)
    assert after.ignored == before.ignored + 1


@pytest.mark.parametrize("kind", ["attempt", "rebuilt"])
def test_the_newest_attempt_is_not_begun_or_forgotten_a_second_time(kind: str) -> None:
    snapshot = fold(history())
    before = state(snapshot)
    assert snapshot.apply(line(f"{TASK}.2", 4, kind, **LINES[kind])) is False
    assert state(snapshot) == before


def test_a_line_that_lies_about_its_number_hides_none_of_those_that_the_worker_writes_after_it() -> None:
    two = f"{TASK}.2"
    lying = line(two, 1000, "interrupted", step="two", **{"try": 1}, why="by hand")
    genuine = [
        line(two, 4, "commit", step="two", **{"try": 1}, status="done", result=2),
        line(two, 5, "end", **LINES["end"]),
    ]
    snapshot = fold([*history(), lying, *genuine])
    assert snapshot.steps["two"].status == "done"
    assert snapshot.end is not None
    assert snapshot.apply(genuine[0]) is False  # said twice is said once, all the same
    assert snapshot.apply({**lying}) is False


@pytest.mark.parametrize("bad", [6, 5, 7], ids=["its first line", "the end of the one before", "its second line"])
def test_what_an_attempt_committed_counts_though_its_first_line_cannot_be_read_any_more(root: Path, bad: int) -> None:
    two = f"{TASK}.2"
    written = [*history(), line(two, 4, "commit", step="two", **{"try": 1}, status="done", result=2)]
    lines = [journal.encode(entry) for entry in written]
    lines[bad] = b"\0" * (len(lines[bad]) - 1) + b"\n"
    where = made(root)
    Path(where.journal).write_bytes(b"".join(lines))
    assert store.look(where).snapshot.steps["two"].status == "done"
    with holding(where) as task:
        assert task.snapshot.steps["two"].status == "done"
        assert task.snapshot.attempt_number == 2
    seen = store.look(where)  # of the journal that was made sound
    assert seen.snapshot.steps["two"].status == "done"
    assert not seen.damage


def made(root: Path) -> Paths:
    where, lock = workspace.create(str(root), TaskSpec("the work", "python", "m:f"), lambda: 1.8e9)
    os.close(lock)
    target = root / TASK
    os.rename(where.directory, target)
    return Paths(str(target))


class holding:  # noqa: N801 - reads as what it does
    """The task, held, and put down again."""

    def __init__(self, where: Paths) -> None:
        self._where = where

    def __enter__(self) -> Any:
        lock = files.lock_directory(self._where.directory)
        assert lock is not None
        self._lock = lock
        self._task = take_over(self._where, lambda: 1.8e9)
        return self._task

    def __exit__(self, *_: object) -> None:
        self._task.close()
        os.close(self._lock)


def test_an_end_that_a_replaced_attempt_wrote_late_does_not_end_the_task_in_a_list(root: Path) -> None:
    """Ended tasks are told by their last two lines alone: they have to be those of the newest attempt."""
    where = made(root)
    late = [line(f"{TASK}.1", 6, "end", **LINES["end"]), line(f"{TASK}.1", 7, "closed", outcome="completed")]
    Path(where.journal).write_bytes(b"".join(map(journal.encode, [*history(), *late])))
    assert store.ended_by_tail(where) is None
    assert store.row(where).state == "working"
    assert recovery.inspect(where).action == "alive"


def test_the_lock_of_a_directory_that_was_replaced_in_this_moment_is_none(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the opening and the lock another took its place: what we have locked is nobody's any more."""
    where = made(root)
    real = fcntl.flock

    def flock(fd: int, how: int) -> None:
        os.rename(where.directory, root / "moved away")
        os.mkdir(where.directory)
        real(fd, how)

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(FileNotFoundError):
        files.lock_directory(where.directory)
    monkeypatch.undo()
    lock = files.lock_directory(where.directory)
    assert lock is not None
    os.close(lock)


# -- beside a living worker ------------------------------------------------------------------------------------------


INTRUSIONS: dict[str, Callable[[Paths], bytes]] = {
    "a done commit of an attempt that was replaced": lambda where: journal.encode(
        line(f"{where.task_id}.0", 9, "commit", step="two", status="done", result="stale")
    ),
    "the end of an attempt that was never begun": lambda where: journal.encode(
        line(f"{where.task_id}.9", 1, "end", **LINES["end"])
    ),
    "half a line": lambda _: b'{"run":"half',
}


@pytest.mark.parametrize("what", INTRUSIONS)
async def test_a_living_worker_commits_its_steps_though_somebody_wrote_into_its_journal(
    root: Path, ledger: Ledger, gate: Path, what: str
) -> None:
    """fault 35: a late writer takes nothing back."""
    async with Coordinator(root) as coordinator:
        handle = await coordinator.spawn(kit.spec("waits_in_two", ledger, gate=str(gate)))
        await ledger.has("two began 1")
        with open(handle.where.journal, "ab") as file:
            file.write(INTRUSIONS[what](handle.where))
        assert store.row(handle.where).state == "working"
        await kit.open_gate(gate)
        said = await handle.wait(120)
    assert (said.ok, said.status) == (True, "completed")
    reading = store.read_journal(handle.where)
    assert (reading.torn, reading.damaged) == (0, ())
    assert fold(reading.entries).steps["two"].result is None
    assert {entry["run"].rpartition(".")[2] for entry in reading.entries} == {"0", "1"}
    assert kit.tries(ledger, "two") == [1]
