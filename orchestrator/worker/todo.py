"""`async for step in task.todo(name):`: a step whose body is code in place."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from orchestrator.core.lifecycle import RunTry
from orchestrator.worker import step as steps
from orchestrator.worker.call import Call
from orchestrator.worker.step import Step

if TYPE_CHECKING:
    from orchestrator.worker.task import Task


class Todo(AsyncIterator[Step]):
    """A loop of no or one pass. An iterator and no generator: a generator would not see its body raise either."""

    def __init__(self, task: Task, name: str, key: str | None, effect: str, retries: int) -> None:
        self._task = task
        self._name, self._key, self._effect, self._retries = name, key, effect, retries
        self._step: Step | None = None

    def __aiter__(self) -> Todo:
        return self

    async def __anext__(self) -> Step:
        if self._step is not None:
            steps.current.set(None)
            self._task._commit(self._step, steps.storable(self._step.result))
            del self._task.todos[self._step.label]
            raise StopAsyncIteration
        with self._task._name_taken(self._name, self._key) as step_id:
            await self._task._border()
            call = Call(step_id, _never, self._effect, self._retries)
            state = self._task._state(step_id)
            decision = self._task._decide(state, call)
            if isinstance(decision, RunTry):
                self._step = self._task._begin(call, decision.number)
                self._task.todos[self._step.label] = call
                steps.current.set(self._step)
                return self._step
            await self._task._step(call)
            raise StopAsyncIteration


def _never() -> None:
    raise AssertionError("the body of a todo is run by its loop")
