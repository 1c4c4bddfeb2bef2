"""The main session's side: spawn tasks, watch over their workers, go on after a crash, end them.

A coordinator holds a task's lock only between two attempts; while a worker lives, the worker holds it. Everything it
knows is on disk, so any number of them may look after one root, come and go, or be killed.
"""

from __future__ import annotations

import math
import os
import secrets
import time
from collections.abc import Sequence
from typing import Any, Literal, Self

import anyio
import anyio.to_thread
from anyio.abc import TaskGroup, TaskStatus

from orchestrator import orders, recovery, workspace
from orchestrator.config import Config
from orchestrator.core.model import Announcement, TaskSpec
from orchestrator.errors import Exhausted, NotRunning, OrchestratorError, WaitTimeout
from orchestrator.family import children
from orchestrator.ports import Engine
from orchestrator.recovery import Recovery
from orchestrator.store import (
    Clock,
    Look,
    Paths,
    begun_here,
    check_readable,
    lock_is_free,
    look,
    make_request,
    paths,
    task_ids,
    told,
)
from orchestrator.strays import AtLarge
from orchestrator.supervision import LOCK_LOOK_SECONDS, Supervisor
from orchestrator.watching import Watch

_thread = anyio.to_thread.run_sync


class Handle:
    """One task as its spawner sees it."""

    def __init__(self, coordinator: Coordinator, where: Paths) -> None:
        self._coordinator = coordinator
        self.where = where
        self.id = where.task_id

    async def wait(self, timeout: float | None = None) -> Announcement:
        """Return when the task has ended or waits for a person. Cancelling, or `timeout` seconds, ends the waiting
        only.

        Raises WaitTimeout; Unkillable when a dead worker's processes cannot be ended.
        """
        return await self._coordinator.wait(self.id, timeout)

    async def cancel(self) -> Announcement:
        return await self._coordinator.cancel(self.id)

    async def look(self) -> Look:
        """The task as it lies on disk now."""
        return await _thread(look, self.where)


class Coordinator(Supervisor):
    """Looks after the tasks of one root, as an async context manager.

    Leaving it detaches: workers go on, and whoever comes next adopts them. With `orphans="stop"` they are stopped
    first; their tasks stay resumable.
    """

    def __init__(
        self,
        config: Config,
        engine: Engine,
        *,
        clock: Clock = time.time,
        orphans: Literal["detach", "stop"] = "detach",
        template: str | None = None,
    ) -> None:
        super().__init__(os.path.abspath(config.root), config, engine, clock)
        self._orphans = orphans
        self._template = template
        self._group: TaskGroup | None = None
        self._watched: set[str] = set()  # tasks we look after
        self._ours: set[str] = set()  # and those we ever did
        self._errors: dict[str, OSError | OrchestratorError] = {}  # why we stopped to

    async def __aenter__(self) -> Self:
        self._group = await anyio.create_task_group().__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> bool | None:
        assert self._group is not None
        self._group.cancel_scope.cancel()
        try:
            result = await self._group.__aexit__(*error)
        except BaseExceptionGroup as group:
            if len(group.exceptions) > 1:
                raise
            (alone,) = group.exceptions  # what the body raised, or a disk that takes nothing: as it was raised
            raise alone from alone.__cause__
        finally:
            if self._orphans == "stop":
                with anyio.CancelScope(shield=True):
                    await self._stop_all()
        return result

    async def _stop_all(self) -> None:
        """Stop the workers of our tasks and of their sub-tasks, all at once. Raises the first error, after the last."""
        errors: list[Exception] = []
        async with anyio.create_task_group() as group:
            for task_id in self._ours:
                group.start_soon(self._stop, Paths(os.path.join(self.root, task_id)), errors)
        if errors:
            raise errors[0]

    async def _stop(self, where: Paths, errors: list[Exception]) -> None:
        """The parent first: it would wait for its children, and makes no new ones any more."""
        try:
            attempt = (await _thread(look, where)).snapshot.unclosed
            if attempt is not None and begun_here(where, attempt):
                await self._engine.end(attempt, 5.0)
        except (OSError, OrchestratorError) as error:
            errors.append(error)
        async with anyio.create_task_group() as group:
            for child in await _thread(children, where):
                group.start_soon(self._stop, child, errors)

    # -- verbs -------------------------------------------------------------------------------------------------

    async def spawn(self, what: TaskSpec) -> Handle:
        """Make a task of this spec and start its worker; returns when both are there.

        Raises OSError when the disk does not take it: then there is no task, or one that `recover` starts.
        """
        where, lock = await _thread(workspace.create, self.root, what, self._clock, self._template)
        return await self.adopt(where, lock)

    async def adopt(self, where: Paths, lock: int | None = None) -> Handle:
        """Watch over a task from now on, in the background; returns when its next worker runs, or none is needed.

        `lock` is the task's lock, when the caller has it already.
        """
        assert self._group is not None, "use it as `async with Coordinator(...)`"
        self._errors.pop(where.task_id, None)
        await self._group.start(self._watch, where, lock)
        return Handle(self, where)

    def attach(self, task_id: str) -> Handle:
        """A handle of any task of the root, without watching over it. Raises TaskNotFound."""
        return Handle(self, paths(self.root, task_id))

    async def recover(self, ids: Sequence[str] = (), *, presume_dead: bool = False) -> list[Recovery]:
        """Look at the tasks named, or all, and go on with each that has no worker. See `recovery.Recovery`.

        What is wrong with one task is said in its own line and never keeps the others from going on. `presume_dead`:
        workers on machines that cannot be asked from here are taken for dead where the lock is free. Should one live
        after all, two work at once: only for machines that are known to be gone.
        """
        await _thread(workspace.sweep_staging, self.root)
        wheres = [paths(self.root, task_id) for task_id in ids or await _thread(task_ids, self.root)]
        found: dict[str, Recovery] = {}
        at_large = await _thread(AtLarge.of, self.root)
        async with anyio.create_task_group() as group:
            for where in wheres:
                group.start_soon(self._recover, where, found, at_large, presume_dead)
        return [found[where.task_id] for where in wheres]

    async def _recover(self, where: Paths, found: dict[str, Recovery], at_large: AtLarge, presume_dead: bool) -> None:
        try:
            found[where.task_id], lock = await _thread(recovery.claim, where, at_large, presume_dead)
            if lock is not None:
                await self.adopt(where, lock)
        except Exhausted:
            raise
        except (OSError, OrchestratorError) as error:
            found[where.task_id] = recovery.failed(where, error)

    async def wait(self, task_id: str, timeout: float | None = None) -> Announcement:
        """As Handle.wait, for any task of the root; NotRunning when nobody works on it."""
        where = paths(self.root, task_id)
        with anyio.move_on_after(timeout if timeout is not None else math.inf):
            async with Watch(where.inner) as changes:
                while True:
                    said = await _thread(told, where)
                    if said is not None:
                        return said
                    if task_id in self._errors:
                        raise self._errors[task_id]
                    paths(self.root, task_id)  # it may have been moved or removed meanwhile
                    if task_id not in self._watched and await _thread(_nobody_works, where):
                        await _thread(check_readable, where)
                        raise NotRunning(f"nobody works on {task_id}", f"go on with it: orchestrator recover {task_id}")
                    await changes.next()
        raise WaitTimeout(
            f"{task_id} has not ended within {timeout:g} s", "it goes on; wait again, or see: orchestrator show"
        )

    async def cancel(self, task_id: str) -> Announcement:
        """End a task for good: its worker is stopped, confirmed dead, and the end recorded. An ended one stays.

        Its sub-tasks are ended first. The request is durable before anything else: if we die here, the next
        coordinator cancels.
        """
        return await self.end_for_good(paths(self.root, task_id))

    async def order(
        self, task_id: str, verb: str, *, patience: float | None = None, **fields: Any
    ) -> tuple[dict[str, Any] | None, int | None]:
        """Give an order of `core.verbs` to a task, with `step`, `why`, `done`, `result`, `question`, `text`.

        Returns the journal's `handled` entry, and the task's lock when work can go on and nobody works on it: hand it
        to `adopt`. A living worker carries the order out at its next step border; after `patience` seconds (None: as
        long as it takes) the entry is None, and the order stays given. Raises Refused when it makes no sense in the
        state the task is in.
        """
        where = paths(self.root, task_id)
        given = {k: v for k, v in fields.items() if v is not None}
        request = {"id": secrets.token_hex(8), "verb": verb, "at": self._clock(), **given}
        await _thread(check_readable, where)
        await _thread(orders.check_now, where, request)
        await _thread(make_request, where, request)
        with anyio.move_on_after(math.inf if patience is None else patience):
            async with Watch(where.inner) as changes:
                while (handled := await _thread(orders.handled, where, request["id"])) is None:
                    lock = await self.lock(where)
                    if lock is not None:
                        return await self._order_now(where, lock, request)
                    await changes.next()
            return handled, None
        return None, None

    async def _order_now(self, where: Paths, lock: int, request: dict[str, Any]) -> tuple[dict[str, Any], int | None]:
        """Nobody works on the task: carry the order out ourselves."""
        with anyio.CancelScope(shield=True):
            kept = await self.put_in_order(where, lock)
            handled = await _thread(orders.handled, where, request["id"])
        return handled or request, kept

    # -- watching over one task --------------------------------------------------------------------------------

    async def _watch(
        self, where: Paths, lock: int | None, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED
    ) -> None:
        """Supervise in the background. An error before the worker runs is the starter's, a later one each waiter's."""
        self._watched.add(where.task_id)
        self._ours.add(where.task_id)
        begun = _Once(task_status)
        try:
            await self.supervise(where, lock, begun=begun.now)
        except (OSError, OrchestratorError) as error:
            if not begun.done:
                raise
            self._errors[where.task_id] = error
        finally:
            self._watched.discard(where.task_id)
        begun.now()


class _Once:
    """Tells a starter, once."""

    def __init__(self, status: TaskStatus[None]) -> None:
        self._status = status
        self.done = False

    def now(self) -> None:
        if not self.done:
            self.done = True
            self._status.started()


def _nobody_works(where: Paths) -> bool:
    """Whether the task is unfinished and its lock free for half a second: neither worker nor supervisor is there.

    For a shorter time it is free between two attempts, while the supervisor looks for what the last one left.
    """
    if look(where).alive is not False:
        return False
    for _ in range(10):
        if not lock_is_free(where):
            return False
        time.sleep(LOCK_LOOK_SECONDS)
    return look(where).announcement() is None
