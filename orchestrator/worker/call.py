"""One call of `task.step`: what to run, and how."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import anyio.to_thread

from orchestrator.core.model import Effect, StepId
from orchestrator.core.snapshot import StepState
from orchestrator.errors import StepConflict, UsageError


@dataclass(frozen=True, slots=True)
class Call:
    step: StepId
    fn: Callable[..., Any]
    effect: str
    retries: int
    args: tuple[Any, ...] = ()
    timeout: float | None = None
    check: Callable[..., Any] | None = None
    outputs: tuple[str, ...] = ()
    digest: str = ""


async def run(fn: Callable[..., Any], args: Sequence[Any]) -> Any:
    """Run a function, sync ones in a thread: cancelling leaves the thread behind."""
    if inspect.iscoroutinefunction(fn):
        return await fn(*args)
    result = await anyio.to_thread.run_sync(lambda: fn(*args), abandon_on_cancel=True)
    return await result if inspect.isawaitable(result) else result


def effect_of(effect: str) -> str:
    try:
        return Effect(effect)
    except ValueError:
        raise UsageError(f"effect {effect!r} is none", "it is pure, idempotent or once") from None


def conflict(state: StepState, what: str) -> StepConflict:
    return StepConflict(
        f"step {state.label!r}: {what}",
        f"write `[redo] {state.label}` into task.md to have it done anew, then recover the task",
    )
