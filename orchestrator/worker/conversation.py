"""What a person and a skill say to each other while a task goes on: orders, questions, messages."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import anyio

from orchestrator import files, orders
from orchestrator.errors import SyncFailed
from orchestrator.writer import TaskWriter


class Conversation:
    """The part of a task's handle that listens. `leave` ends this run of the skill, for the reason given."""

    def __init__(self, writer: TaskWriter, leave: Callable[[str], None]) -> None:
        self.broken: Exception | None = None  #: the disk failed: nothing more is written, the worker ends
        self._writer = writer
        self._leave = leave
        self._redone = writer.snapshot.redone  # the last order to redo a step that this run of the skill knows of
        self._orders_seen = 0  # bytes of the requests file that were looked at
        self._taken: list[dict[str, Any]] = []  # messages the skill was given and has not yet acted upon
        self._asked: dict[str, int] = {}

    async def ask(self, question: str) -> str:
        """Ask a person. The worker ends, the question is announced, and the answer lets the task go on, here.

        The same question asked again in one skill is another one, and gets an answer of its own.
        """
        n = self._asked[question] = self._asked.get(question, 0) + 1
        key = question if n == 1 else f"{question} ({n})"
        await self._border()
        answer = self._writer.snapshot.questions.get(key)
        if answer is None:
            if key not in self._writer.snapshot.questions:
                with self._disk():
                    self._writer.record("asked", sync=True, question=key)
            await self._go("question")
        assert answer is not None
        return answer

    def messages(self) -> list[str]:
        """The messages sent to the task (`orchestrator send`) since the last call.

        Each is given at least once: again after a crash that came before the next step.
        """
        due = [r for r in orders.due(self._writer.where, self._writer.snapshot) if r["verb"] == "send"]
        new = [r for r in due if r not in self._taken]
        self._taken += new
        return [str(r.get("text", "")) for r in new]

    async def _border(self) -> None:
        """Between two steps: carry out the orders and take over the edits that came meanwhile. Cheap when none did."""
        size = files.size(self._writer.where.requests)
        self._acknowledge()
        with self._disk():
            self._writer.look_for_edits()
        came: set[str] = set()
        if size != self._orders_seen:
            self._orders_seen = size
            with self._disk():
                came = {request["verb"] for request in orders.carry_out(self._writer)}
        if self._writer.snapshot.paused:
            await self._go("paused")
        redone = self._writer.snapshot.redone != self._redone  # by the verb, or in task.md
        if redone or came & {"resolve", "retry"}:  # what was handed back may be wrong now: from the top
            await self._go("again")

    async def last_border(self) -> None:
        """Behind the last step: what was ordered during it, or written into task.md, still counts."""
        await self._border()

    async def _go(self, why: str) -> None:
        """Leave the skill where it is; its loop cancels it and decides what comes next."""
        self._leave(why)
        await anyio.sleep_forever()

    def _acknowledge(self) -> None:
        """The skill has taken its next step: the messages it was given have arrived."""
        taken, self._taken = self._taken, []
        for request in taken:
            with self._disk():
                orders.handle(self._writer, request)

    @contextlib.contextmanager
    def _disk(self) -> Iterator[None]:
        if self.broken is not None:
            raise self.broken
        try:
            yield
        except (OSError, SyncFailed) as error:
            self.broken = error
            raise
