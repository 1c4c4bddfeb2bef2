"""Tasks in every state that a person may find one in, each made through the real thing: workers, kills, orders.

A resting state is made once and copied for each test: a task's directory may be moved, and holds all there is to it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import kit
from conftest import Ledger

from orchestrator import Coordinator, workspace
from orchestrator.compose import resolve
from orchestrator.core.model import Announcement, TaskSpec
from orchestrator.core.spec import seal
from orchestrator.store import Look, Paths, look, task_ids

SKILLS = Path(__file__).with_name("steered_skills.py")


@dataclasses.dataclass
class Place:
    """A directory with a root, a ledger, a gate, and the file with the word that tells the skill what to do."""

    base: Path

    @property
    def root(self) -> Path:
        return self.base / "root"

    @property
    def ledger(self) -> Ledger:
        return Ledger(self.base / "ledger.txt")

    @property
    def gate(self) -> Path:
        return self.base / "gate"

    @property
    def where(self) -> Paths:
        (only,) = task_ids(str(self.root))
        return Paths(str(self.root / only))

    @property
    def id(self) -> str:
        return self.where.task_id

    def tell(self, word: str) -> None:
        (self.base / "word").write_text(word, "utf-8")

    def look(self) -> Look:
        return look(self.where)

    def spec(self, **args: Any) -> TaskSpec:
        paths = {"ledger": str(self.ledger.path), "gate": str(self.gate), "word": str(self.base / "word")}
        return resolve(f"{SKILLS}:steered", name="the work", args={**paths, **args})

    def contents(self) -> dict[str, bytes]:
        """Every file of the task, its requests too."""
        return {str(p): p.read_bytes() for p in Path(self.where.directory).rglob("*") if p.is_file()}


def place(base: Path) -> Place:
    made = Place(base)
    made.root.mkdir(parents=True)
    os.mkfifo(made.gate)
    return made


def copy(of: Place, base: Path) -> Place:
    """The same task in a place of its own."""
    made = place(base)
    shutil.copytree(of.root, made.root, dirs_exist_ok=True)
    shutil.copy(of.ledger.path, made.ledger.path) if of.ledger.path.exists() else None
    spec = Path(made.where.spec)
    spec.write_text(seal(spec.read_text("utf-8").replace(str(of.base), str(base))), "utf-8")
    made.tell("work")
    return made


async def _run(at: Place, word: str, **args: Any) -> Announcement:
    at.tell(word)
    async with Coordinator(at.root) as coordinator:
        handle = await coordinator.spawn(at.spec(**args))
        said = await handle.wait(120)
        await kit.let_go(handle.where)
    return said


async def queued(at: Place) -> None:
    at.tell("work")
    _, lock = workspace.create(str(at.root), at.spec(), time.time)
    os.close(lock)


async def working(at: Place) -> None:
    """Its worker lives, in the second of three steps."""
    at.tell("wait")
    await kit.start_and_leave(at.root, at.spec())
    await at.ledger.has("two began 1")


async def interrupted(at: Place) -> None:
    await working(at)
    kit.kill_worker(at.where)
    await kit.let_go(at.where)


async def paused(at: Place) -> None:
    await working(at)
    await Coordinator(at.root).order(at.id, "pause", patience=0)
    await kit.open_gate(at.gate)
    assert (await Coordinator(at.root).wait(at.id, 120)).status == "paused"
    await kit.let_go(at.where)


async def question(at: Place) -> None:
    assert (await _run(at, "work", ask=True)).status == "question"


async def uncertain(at: Place) -> None:
    assert (await _run(at, "die", effect="once")).status == "uncertain"


async def failed(at: Place) -> None:
    assert (await _run(at, "raise")).status == "failed"


async def conflict(at: Place) -> None:
    """The second step was marked done by hand, and nobody knows what it would have given."""
    await interrupted(at)
    face = Path(at.where.task_md)
    face.write_text(face.read_text("utf-8").replace("[working] two", "[working done] two"), "utf-8")
    _, said = await kit.recover(at.root, at.where)
    assert said is not None
    assert said.status == "conflict", said
    await kit.let_go(at.where)


async def completed(at: Place) -> None:
    assert (await _run(at, "work")).ok


async def cancelled(at: Place) -> None:
    await interrupted(at)
    await Coordinator(at.root).cancel(at.id)


async def damaged(at: Place) -> None:
    """Neither task.md, nor the journal, nor any step's file can be read any more."""
    await interrupted(at)
    for path in Path(at.where.directory).glob("*.md"):
        path.write_bytes(b"\0" * 200)
    Path(at.where.journal).write_bytes(b"\0" * 2000)


STATES: Mapping[str, Callable[[Place], Awaitable[None]]] = {
    make.__name__: make
    for make in (
        *(queued, working, interrupted, paused, question, uncertain),
        *(failed, conflict, completed, cancelled, damaged),
    )
}


_made: dict[str, Place] = {}


@contextlib.asynccontextmanager
async def task(state: str, tmp_path: Path) -> AsyncIterator[Place]:
    """A task in this state, in a place of its own. Those at rest are made once in a session, and copied."""
    base = tmp_path / "place ü"
    if state == "working":
        found = place(base)
        await working(found)
    else:
        if state not in _made:
            made = place(tmp_path.parent / f"{state} ü")
            await STATES[state](made)
            _made[state] = made
        found = copy(_made[state], base)
    try:
        yield found
    finally:
        if found.look().state == "working":
            await Coordinator(found.root).cancel(found.id)


# -- what is done with them -------------------------------------------------------------------------------------------


async def goes_on(at: Place, lock: int | None = None) -> str:
    """How it ends, looked after from now on."""
    async with Coordinator(at.root) as coordinator:
        await coordinator.adopt(at.where, lock)
        said = await coordinator.wait(at.id, 120)
        await kit.let_go(at.where)
    return said.status


async def order(at: Place, verb: str, **fields: Any) -> tuple[dict[str, Any], int | None]:
    handled, lock = await Coordinator(at.root).order(at.id, verb, **fields)
    assert handled is not None
    return handled, lock


def edit(at: Place, before: str, after: str) -> None:
    face = Path(at.where.task_md)
    text = face.read_text("utf-8")
    assert before in text
    face.write_text(text.replace(before, after), "utf-8")


def tries(at: Place) -> list[list[int]]:
    return [kit.tries(at.ledger, step) for step in ("one", "two", "three")]


async def recovers(at: Place) -> tuple[str, str]:
    """What `recover` said, and how the task stands after."""
    async with Coordinator(at.root) as coordinator:
        (said,) = await coordinator.recover()
        announced = await coordinator.wait(at.id, 120)
        await kit.let_go(at.where)
    return said.action, announced.status
