"""A task on the desk of a test: its lock held in this process, and an editor at hand."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from orchestrator import workspace
from orchestrator.core.model import StepId, StepStatus, TaskSpec
from orchestrator.store import look
from orchestrator.takeover import take_over
from orchestrator.writer import TaskWriter


class Desk:
    """A task with steps a (done), b (begun) and c (planned), its lock held, and an editor to change task.md with."""

    def __init__(self, root: Path) -> None:
        self.where, self._lock = workspace.create(str(root), TaskSpec("desk", "python", "m:f"), time.time)
        self.task = take_over(self.where, time.time)
        self.task.begin_attempt(token="none")
        self.task.plan([StepId("a"), StepId("b"), StepId("c")])
        self.run("a")
        self.task.begin_try(StepId("b"), 1, effect="idempotent", args="")
        self.task.settle()

    def run(self, name: str) -> None:
        number = self.task.snapshot.steps[name].tries + 1
        self.task.begin_try(StepId(name), number, effect="idempotent", args="")
        self.task.commit(name, StepStatus.DONE, result=name)
        self.task.settle()

    @property
    def text(self) -> str:
        return Path(self.where.task_md).read_text("utf-8")

    def edit(self, change: Callable[[str], str]) -> None:
        """Save as an editor does that writes a new file and renames it."""
        new = Path(self.where.task_md + "~")
        new.write_text(change(self.text), "utf-8")
        os.rename(new, self.where.task_md)

    def mark(self) -> None:
        """Let the worker write task.md for a reason of its own."""
        self.task.begin_try(StepId("d"), 1, effect="idempotent", args="")

    def next_holder(self) -> TaskWriter:
        self.task.close()
        self.task = take_over(self.where, time.time)
        return self.task

    def status(self, label: str) -> StepStatus:
        return look(self.where).snapshot.steps[label].status

    def close(self) -> None:
        self.task.close()
        os.close(self._lock)
