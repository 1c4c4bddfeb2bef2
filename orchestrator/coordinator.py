"""The main session's side: spawn tasks, watch over their workers, go on after a crash, end them.

A coordinator holds a task's lock only between two attempts; while a worker lives, the worker holds it. Everything it knows
is on disk, so any number of them may look after one root, come and go, or be killed.
"""

from __future__ import annotations

import os
import random
import secrets
import time
from collections.abc import Sequence
from typing import Any, Literal, Self

import anyio
import anyio.to_thread
from anyio.abc import TaskGroup

from orchestrator import files, recovery, workspace
from orchestrator.config import Config
from orchestrator.core import lifecycle
from orchestrator.core.journal import AttemptState
from orchestrator.core.lifecycle import Start
from orchestrator.core.model import Announcement, Launch, TaskSpec, WorkerExit
from orchestrator.errors import NotRunning, WaitTimeout
from orchestrator.ports import Engine
from orchestrator.recovery import Recovery
from orchestrator.store import Clock, Look, Paths, look, make_request, paths, read_spec, task_ids
from orchestrator.takeover import take_over
from orchestrator.watching import Watch
from orchestrator.writer import TaskWriter

_thread = anyio.to_thread.run_sync

#: How often a lock that somebody holds for a moment is asked for again.
_LOCK_LOOK_SECONDS = 0.05


class Handle:
    """One task as its spawner sees it."""

    def __init__(self, coordinator: Coordinator, where: Paths) -> None:
        self._coordinator = coordinator
        self.where = where
        self.id = where.task_id

    async def wait(self, timeout: float | None = None) -> Announcement:
        """Return when the task has ended or waits for a person. Cancelling, or `timeout` seconds, ends the waiting only.

        Raises WaitTimeout; Unkillable when a dead worker's processes cannot be ended.
        """
        return await self._coordinator.wait(self.id, timeout)

    async def cancel(self) -> Announcement:
        return await self._coordinator.cancel(self.id)

    async def look(self) -> Look:
        """The task as it lies on disk now."""
        return await _thread(look, self.where)


class Coordinator:
    """Looks after the tasks of one root, as an async context manager.

    Leaving it detaches: workers go on, and whoever comes next adopts them. With `orphans="stop"` they are stopped first;
    their tasks stay resumable.
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
        self.root = os.path.abspath(config.root)
        self._config = config
        self._engine = engine
        self._clock = clock
        self._orphans = orphans
        self._template = template
        self._group: TaskGroup | None = None
        self._watched: dict[str, anyio.Event] = {}
        self._random = random.Random()  # noqa: S311 - jitter

    async def __aenter__(self) -> Self:
        self._group = await anyio.create_task_group().__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> bool | None:
        assert self._group is not None
        self._group.cancel_scope.cancel()
        try:
            result = await self._group.__aexit__(*error)
        finally:
            if self._orphans == "stop":
                with anyio.CancelScope(shield=True):
                    await self._stop_all()
        return result

    async def _stop_all(self) -> None:
        for task_id in self._watched:
            attempt = (await _thread(look, Paths(os.path.join(self.root, task_id)))).snapshot.unclosed
            if attempt is not None:
                await self._engine.end(attempt, 5.0)

    # -- verbs -------------------------------------------------------------------------------------------------

    async def spawn(self, what: TaskSpec) -> Handle:
        """Make a task of this spec and start its worker; returns when the task is on disk and its worker is starting."""
        where, lock = await _thread(workspace.create, self.root, what, self._clock, self._template)
        return self.adopt(where, lock)

    def adopt(self, where: Paths, lock: int | None = None) -> Handle:
        """Watch over a task from now on, in the background. `lock` is its lock, when the caller has it already."""
        assert self._group is not None, "use it as `async with Coordinator(...)`"
        self._watched[where.task_id] = anyio.Event()
        self._group.start_soon(self._watch, where, lock)
        return Handle(self, where)

    def attach(self, task_id: str) -> Handle:
        """A handle of any task of the root, without watching over it. Raises TaskNotFound."""
        return Handle(self, paths(self.root, task_id))

    async def recover(self, ids: Sequence[str] = ()) -> list[Recovery]:
        """Look at the tasks named, or all, and go on with each that has no worker. See `recovery.Recovery`."""
        await _thread(workspace.sweep_staging, self.root)
        found: list[Recovery] = []
        for task_id in ids or await _thread(task_ids, self.root):
            where = paths(self.root, task_id)
            said, lock = await _thread(recovery.claim, where)
            if lock is not None:
                self.adopt(where, lock)
            found.append(said)
        return found

    async def wait(self, task_id: str, timeout: float | None = None) -> Announcement:
        where = paths(self.root, task_id)
        with anyio.move_on_after(timeout if timeout is not None else float("inf")):
            async with Watch(where.inner) as changes:
                while True:
                    seen = await _thread(look, where)
                    said = seen.announcement()
                    if said is not None and not self._being_started(seen):
                        return said
                    if task_id not in self._watched and await _thread(_nobody_works, seen):
                        raise NotRunning(f"nobody works on {task_id}", f"go on with it: orchestrator recover {task_id}")
                    await changes.next()
        raise WaitTimeout(f"{task_id} has not ended within {timeout:g} s", "it goes on; wait again, or see: orchestrator show")

    def _being_started(self, seen: Look) -> bool:
        """An announcement that waits for a person is outdated once another attempt runs."""
        return seen.snapshot.end is None and seen.snapshot.unclosed is not None

    async def cancel(self, task_id: str) -> Announcement:
        """End a task for good: its worker is stopped, confirmed dead, and the end recorded. An ended task stays as it is.

        The request is durable before anything else: if we die here, the next coordinator cancels.
        """
        where = paths(self.root, task_id)
        seen = await _thread(look, where)
        if seen.snapshot.end is None:
            request = {"id": secrets.token_hex(8), "verb": "cancel", "at": self._clock()}
            await _thread(make_request, where, request)
        while True:
            attempt = (await _thread(look, where)).snapshot.unclosed
            if attempt is not None and attempt.identity is not None:
                await self._engine.end(attempt, 5.0)
            lock = await self._lock(where, seconds=1.0)
            if lock is not None:
                break
        said = await self.supervise(where, lock)
        assert said is not None
        return said

    # -- watching over one task --------------------------------------------------------------------------------

    async def _watch(self, where: Paths, lock: int | None) -> None:
        try:
            await self.supervise(where, lock)
        finally:
            self._watched.pop(where.task_id).set()

    async def supervise(self, where: Paths, lock: int | None = None) -> Announcement | None:
        """Take a task to its end, through as many attempts as its budget allows; None when it is damaged beyond that.

        Returns what was announced: its end, or that it waits for a person. Raises OSError or SyncFailed when the disk takes
        nothing more, Unkillable when a worker's processes stay. Cancelling leaves the worker alive.
        """
        seen_exit: WorkerExit | None = None
        while True:
            if lock is None:
                lock = await self._lock(where)
            if lock is None:
                seen_exit = await self._wait_for_holder(where)
                continue
            held, lock = lock, None
            try:
                step = await self._between_attempts(where, held, seen_exit)
            finally:
                os.close(held)
            if isinstance(step, Announcement):
                return step
            seen_exit = await self._engine.wait(step)

    async def _lock(self, where: Paths, seconds: float = 0.0) -> int | None:
        deadline = time.monotonic() + seconds
        while True:
            lock = await _thread(files.lock_directory, where.directory)
            if lock is not None or time.monotonic() >= deadline:
                return lock
            await anyio.sleep(_LOCK_LOOK_SECONDS)

    async def _wait_for_holder(self, where: Paths) -> WorkerExit | None:
        """Somebody holds the lock: a worker (wait for its end), another coordinator (for a moment), or a stray process."""
        seen = await _thread(look, where)
        attempt = seen.snapshot.unclosed
        if attempt is None or attempt.identity is None:
            await anyio.sleep(_LOCK_LOOK_SECONDS)
            return None
        if seen.alive is False:  # the lock is held, its holder dead: a descendant has it
            await self._engine.end(attempt, 0.0)
            await anyio.sleep(_LOCK_LOOK_SECONDS)
            return None
        return await self._engine.wait(attempt)

    async def _between_attempts(self, where: Paths, lock: int, seen_exit: WorkerExit | None) -> Announcement | AttemptState:
        """With the lock held: bury the last attempt, then end the task, or start the next attempt."""
        last = (await _thread(look, where)).snapshot.unclosed
        if last is not None:
            await self._engine.end(last, 0.0)
        task = await _thread(take_over, where, self._clock)
        try:
            await _thread(recovery.bury, task, last, seen_exit)
            cancel = await _thread(lambda: look(where).cancel_request())
            action = lifecycle.next_action(task.snapshot, cancel=cancel)
            if isinstance(action, Start):
                if task.snapshot.deaths:
                    await anyio.sleep(lifecycle.backoff_seconds(task.snapshot.deaths, self._random.random()))
                return await self._start(where, task, lock)
            return await _thread(recovery.conclude, task, action)
        finally:
            task.close()

    async def _start(self, where: Paths, task: TaskWriter, lock: int) -> AttemptState:
        what = await _thread(read_spec, where)
        held = self._engine.containment()
        limit = what.limits.deaths
        await _thread(lambda: task.begin_attempt(token=held.token, cgroup=held.cgroup, deaths=limit))
        environment = {**dict(self._config.environment), **what.env, "ORCHESTRATOR_ROOT": self.root}
        await self._engine.start(Launch(task.run, where.directory, held, environment, lock, what.limits))
        attempt = task.snapshot.attempt
        assert attempt is not None
        return attempt


def _nobody_works(seen: Look) -> bool:
    """Whether the task is unfinished and its lock is free for half a second: neither a worker nor a supervisor is there.

    For a shorter time it is free between two attempts, while the supervisor looks for what the last one left.
    """
    if seen.alive is not False:
        return False
    for _ in range(10):
        lock = files.lock_directory(seen.where.directory)
        if lock is None:
            return False
        os.close(lock)
        time.sleep(_LOCK_LOOK_SECONDS)
    return look(seen.where).snapshot.end is None
