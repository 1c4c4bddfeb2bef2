"""One call of `task.step`: what to run, and how."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import math
import os
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import anyio
import anyio.to_thread

from orchestrator.core.model import Effect, Json, Output, StepId
from orchestrator.core.snapshot import StepState
from orchestrator.errors import StepConflict, UsageError
from orchestrator.worker import step as steps
from orchestrator.worker.descriptors import Own

#: The exit code of a worker that cannot go on.
BROKEN = 70

#: How long a `once` step that has no timeout is waited for before its worker leaves.
UNLIMITED_ONCE_SECONDS = 30.0

#: How long the check of a step that has no timeout may take before it counts as one that does not know.
CHECK_SECONDS = 300.0


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


class CancelledInside(Exception):  # noqa: N818 - says what happened
    """A step's own code was cancelled by itself, not by us: a future that it waited for, a client that gave up."""


async def _unless_cancelled_from_inside(call: Awaitable[Any]) -> Any:
    try:
        return await call
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is not None and not task.cancelling():
            raise CancelledInside("the step was cancelled by what it waited for") from error
        raise


class Threads:
    """Runs step functions, sync ones in a thread. Cancelling leaves the thread behind: `live` counts those that run."""

    def __init__(self, own: Own) -> None:
        self.live = 0
        self._own = own
        self._lock = threading.Lock()
        self._limiter = anyio.CapacityLimiter(math.inf)  # a try that waits for a thread would use up its timeout

    async def run(self, fn: Callable[..., Any], args: Sequence[Any]) -> Any:
        if inspect.iscoroutinefunction(fn):
            return await _unless_cancelled_from_inside(fn(*args))
        left = False

        def in_thread() -> Any:
            with self._lock:
                if left:  # cut off before it began: nobody counts on it any more
                    return None
                self.live += 1
            try:
                return fn(*args)
            finally:
                with self._lock:
                    self.live -= 1
                if not self._own.intact():  # nobody could tell the loop: it would sleep until the attempt's limit
                    print("a step closed descriptors that its worker lives by: it ends", file=sys.stderr, flush=True)
                    os._exit(BROKEN)

        try:
            result = await anyio.to_thread.run_sync(in_thread, abandon_on_cancel=True, limiter=self._limiter)
        finally:
            with self._lock:
                left = True
        return await result if inspect.isawaitable(result) else result


class Unfinished:
    """The tries of `once` steps that run now: before the worker leaves they may finish within their own limit."""

    def __init__(self) -> None:
        self._tries: dict[str, tuple[float, anyio.Event]] = {}
        self.awaited = False

    @contextlib.contextmanager
    def running(self, label: str, call: Call) -> Iterator[None]:
        if call.effect != Effect.ONCE:
            yield
            return
        limit = math.inf if call.timeout is None else anyio.current_time() + call.timeout
        self._tries[label] = limit, anyio.Event()
        try:
            yield
        finally:
            self._tries.pop(label)[1].set()

    async def wait(self, *, besides: str | None = None) -> None:
        """Return when all have ended, been cut off, or run out of time. Nothing new may begin meanwhile."""
        self.awaited = True
        latest = anyio.current_time() + UNLIMITED_ONCE_SECONDS
        with anyio.CancelScope(shield=True):  # the skill may have given up the step that is the reason
            for limit, ended in [tried for label, tried in self._tries.items() if label != besides]:
                until = limit if math.isfinite(limit) else latest
                with anyio.move_on_after(max(0.0, until - anyio.current_time())):
                    await ended.wait()


def never() -> None:
    raise AssertionError("this step is not run by a call")


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


async def answer_of_check(
    call: Call, threads: Threads, workspace: str
) -> tuple[tuple[Json, tuple[Output, ...]] | bool | None, str]:
    """What the check of a `once` step says: the result and the outputs to commit, False, or None; and why so.

    One that says done counts only when what would be committed can be; to begin the step anew would be to do it twice.
    """
    if call.check is None:
        return None, _NOBODY_KNOWS
    limit = CHECK_SECONDS if call.timeout is None else call.timeout
    try:
        with anyio.move_on_after(limit) as scope:
            said = await threads.run(call.check, call.args)
        if scope.cancelled_caught:
            return None, f"cut off, and its check did not answer within {limit:g} s"
        if said is True or isinstance(said, steps.Done):
            result = steps.storable(said.result) if isinstance(said, steps.Done) else None
            return (result, steps.verify(workspace, call.outputs)), "its check said so"
    except (steps.NotStorable, steps.OutputMissing) as error:
        return None, f"cut off; its check says that it is done, but {error}"
    except Exception as error:  # a check that fails knows nothing
        return None, f"cut off, and its check raised {type(error).__name__}"
    return False if said is False else None, _NOBODY_KNOWS


_NOBODY_KNOWS = "cut off, and no check knows"
