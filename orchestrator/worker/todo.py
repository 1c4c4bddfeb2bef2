"""`async for step in task.todo(name):`: a step whose body is code in place."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import traceback
import weakref
from collections.abc import AsyncIterator
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING, Any

from orchestrator.core.lifecycle import RunTry
from orchestrator.worker import step as steps
from orchestrator.worker.call import Call, never
from orchestrator.worker.step import Step

if TYPE_CHECKING:
    from orchestrator.worker.task import Task


@dataclass(frozen=True, slots=True)
class Body:
    """The body of a todo that was begun: where it runs, by which an error of it is told from another's."""

    call: Call
    loop: weakref.ref[Todo]
    frame: FrameType
    runs_in: asyncio.Task[Any] | None

    def was_left(self) -> bool:
        """Whether it was left by `break`, or by an error that was caught; asked where its own thread of work goes on.

        The interpreter lets go of a loop's iterator as it leaves the loop.
        """
        return self.loop() is None and asyncio.current_task() is self.runs_in

    def raised(self, error: BaseException | None) -> BaseException | None:
        """The error, out of a group of errors, that came out of this body; None when none of them did."""
        while error is not None:
            if any(frame is self.frame for frame, _ in traceback.walk_tb(error.__traceback__)):
                while isinstance(error, BaseExceptionGroup):
                    error = error.exceptions[0]
                return error
            if isinstance(error, BaseExceptionGroup):
                found = next(filter(None, map(self.raised, error.exceptions)), None)
                if found is not None:
                    return found
            error = error.__context__
        return None


class Todo(AsyncIterator[Step]):
    """A loop of no or one pass. An iterator and no generator: a generator would not see its body raise either."""

    def __init__(self, task: Task, name: str, key: str | None, effect: str, retries: int) -> None:
        self._task = task
        self._name, self._key, self._effect, self._retries = name, key, effect, retries
        self._step: Step | None = None
        self._name_is_held = contextlib.ExitStack()

    def __del__(self) -> None:
        self._name_is_held.close()

    def __aiter__(self) -> Todo:
        return self

    async def __anext__(self) -> Step:
        if self._step is not None:
            steps.current.set(None)
            self._task._commit(self._step, steps.storable(self._step.result))
            del self._task.todos[self._step.label]
            self._name_is_held.close()
            raise StopAsyncIteration
        frame = sys._getframe(1)
        with contextlib.ExitStack() as held:
            step_id = held.enter_context(self._task._name_taken(self._name, self._key))
            await self._task._border()
            call = Call(step_id, never, self._effect, self._retries)
            state = self._task._state(step_id)
            decision = self._task._decide(state, call)
            if isinstance(decision, RunTry):
                await self._task._may_begin()
                self._step = self._task._begin(call, decision.number)
                body = Body(call, weakref.ref(self), frame, asyncio.current_task())
                self._task.todos[self._step.label] = body
                steps.current.set(self._step)
                self._name_is_held = held.pop_all()
                return self._step
            await self._task._step(call)
            raise StopAsyncIteration
