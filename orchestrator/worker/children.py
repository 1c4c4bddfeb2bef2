"""Sub-tasks: `await task.spawn(...)` in a skill is a committed step, so that a resumed parent finds its child again."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from typing import Any, Literal

import anyio

from orchestrator import family, files, store, workspace
from orchestrator.core.model import Json, TaskSpec
from orchestrator.errors import StepFailed, TooManyChildren
from orchestrator.store import Clock, Paths
from orchestrator.watching import Watch
from orchestrator.writer import TaskWriter

#: What becomes of a child that has not ended when its parent ends well. When the parent fails, it is cancelled.
OnEnd = Literal["wait", "cancel"]


class Child:
    """A sub-task. Its parent's supervisor starts it and looks after it; it goes on while its parent is interrupted."""

    def __init__(self, where: Paths, step: Callable[..., Any], on_end: OnEnd) -> None:
        self._where = where
        self._step = step
        self.id = where.task_id
        self.on_end = on_end

    async def result(self) -> Json:
        """Wait for its end and hand back its result: a committed step. Raises StepFailed when it failed."""
        return await self._step(f"result of {self.id}", self.ended)

    async def ended(self) -> Json:
        """Return its result as soon as it has ended. One that waits for a person is waited for."""
        async with Watch(self._where.inner) as changes:
            while (end := store.ended_by_tail(self._where)) is None:
                if not await anyio.Path(self._where.directory).is_dir():
                    raise StepFailed(self.id, "its directory is gone", "dependency")
                await changes.next()
        said = store.announcement_from_json(end["announcement"])
        if not said.ok:
            raise StepFailed(self.id, said.summary.replace("\n", "; "), "dependency")
        return store.read_result(self._where) if said.result else None


def make(writer: TaskWriter, parent: TaskSpec, what: TaskSpec, key: str, clock: Clock) -> str:
    """Make the child of one step, once: its id is noted, durably, before it can exist. Returns the id."""
    root = os.path.dirname(writer.where.directory)
    known = family.child_of(writer.where, key)
    if known is not None:
        return known.task_id
    _check(writer.where, parent)
    spec = dataclasses.replace(what, parent=f"{writer.where.task_id}/{key}", depth=parent.depth + 1)
    note = writer.where.child(key)
    where, lock = workspace.create(
        root, spec, clock, claim=lambda task_id: files.replace(note, task_id.encode(), sync=True)
    )
    os.close(lock)
    files.replace(note, where.task_id.encode(), sync=False)  # tells the parent's supervisor that it is there now
    return where.task_id


def _check(where: Paths, parent: TaskSpec) -> None:
    if parent.depth >= parent.limits.depth:
        raise TooManyChildren(
            f"{where.task_id} is {parent.depth} generations deep: it may spawn nothing",
            "raise limits.depth of the first",
        )
    count = len(family.children(where))
    if count >= parent.limits.children:
        raise TooManyChildren(f"{where.task_id} has {count} sub-tasks already", "raise its limits.children")
