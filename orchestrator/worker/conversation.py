"""What a person and a skill say to each other while a task goes on: orders, questions, messages."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import anyio

from orchestrator import files, orders
from orchestrator.errors import Exhausted, SyncFailed
from orchestrator.worker.call import Unfinished
from orchestrator.worker.step import current
from orchestrator.writer import TaskWriter


class Conversation:
    """The part of a task's handle that listens. `leave` ends this run of the skill, for the reason given."""

    def __init__(self, writer: TaskWriter, leave: Callable[[str], None]) -> None:
        self.broken: Exception | None = None  #: the disk failed: nothing more is written, the worker ends
        self.unfinished = Unfinished()
        self._writer = writer
        self._leave = leave
        self._redone = writer.snapshot.redone  # the last order to redo a step that this run of the skill knows of
        self._orders_seen = 0  # bytes of the requests file that were looked at
        self._calls = 0  # of `messages`, in this run of the skill
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
        """The messages sent to the task (`orchestrator send`) since the last call; the same ones again on every replay.

        What a call gave is recorded before it is handed out: a skill that is run again from its top hears it again, at
        the same call.
        """
        self._calls += 1
        heard = self._writer.snapshot.heard
        if self._calls in heard or any(call > self._calls for call in heard):
            return list(heard.get(self._calls, ()))
        with self._disk():
            due = [r for r in orders.due(self._writer.where, self._writer.snapshot) if r["verb"] == "send"]
        if not due:
            return []
        texts = [str(r.get("text", "")) for r in due]
        with self._disk():
            self._writer.record("heard", sync=True, call=self._calls, requests=[str(r["id"]) for r in due], texts=texts)
        return texts

    async def _border(self) -> None:
        """Between two steps: carry out the orders and take over the edits that came meanwhile. Cheap when none did."""
        size = files.size(self._writer.where.requests)
        await self._settled()
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

    async def _settled(self) -> None:
        """Let an editor that saves right now come to its end: here, where nothing else has to wait for it."""
        for _ in range(20):
            if not self._writer.being_edited() or not (left := files.unsettled_seconds(self._writer.where.task_md)):
                return
            await anyio.sleep(left)

    async def last_border(self) -> None:
        """Behind the last step: what was ordered during it, or written into task.md, still counts."""
        await self._border()

    async def _go(self, why: str) -> None:
        """Leave the skill where it is; its loop cancels it and decides what comes next.

        `once` steps that run elsewhere in it may come to their end first, within their own limit.
        """
        here = current.get()  # a step that asks while it runs itself is not waited for
        await self.unfinished.wait(besides=here.label if here is not None else None)
        self._leave(why)
        await anyio.sleep_forever()

    @contextlib.contextmanager
    def _disk(self) -> Iterator[None]:
        if self.broken is not None:
            raise self.broken
        try:
            yield
        except (OSError, SyncFailed, Exhausted) as error:
            self.broken = error
            raise
