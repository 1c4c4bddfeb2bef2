"""One task between its attempts: bury the last, carry out what was ordered, start the next or end the task."""

from __future__ import annotations

import contextlib
import os
import random
import secrets
import time
from collections.abc import Callable
from typing import TypeGuard

import anyio
import anyio.to_thread

from orchestrator import files, orders, recovery
from orchestrator.config import Config
from orchestrator.core import lifecycle
from orchestrator.core.lifecycle import WAITING, Ended, Finish, Start, Wait
from orchestrator.core.model import Announcement, Launch, Outcome, WorkerExit
from orchestrator.core.snapshot import AttemptState
from orchestrator.errors import Exhausted, Held, OrchestratorError, TaskNotFound
from orchestrator.family import children
from orchestrator.ports import Engine
from orchestrator.store import Clock, Paths, begun_here, check_readable, ended_by_tail, look, make_request, read_spec
from orchestrator.takeover import take_over
from orchestrator.watching import Watch
from orchestrator.writer import TaskWriter

_thread = anyio.to_thread.run_sync

#: How long a worker may take to say who it is, before it is ended as one that never will.
STARTUP_SECONDS = 60.0
#: Of the time between two looks at such a worker, no more than this counts.
LOOK_COUNTS_SECONDS = 2.0
#: How often a lock that somebody holds for a moment is asked for again.
LOCK_LOOK_SECONDS = 0.05
#: How long a cancel waits for a lock that is held by no worker of the task, before it says by whom and gives up.
CANCEL_SECONDS = 10.0


class Supervisor:
    """Takes tasks of one root to their end, through as many attempts as each one's budget allows."""

    def __init__(self, root: str, config: Config, engine: Engine, clock: Clock) -> None:
        self.root = root
        self._config = config
        self._engine = engine
        self._clock = clock
        self._unborn: dict[str, tuple[float, float]] = {}  # of a run that has not said who it is: last look, seconds
        self._random = random.Random()

    async def supervise(
        self, where: Paths, lock: int | None = None, *, begun: Callable[[], None] = lambda: None
    ) -> Announcement:
        """Take a task to its end, through as many attempts as its budget allows. `begun` is called when a worker runs.

        Its sub-tasks are looked after as well, and those it leaves unfinished are cancelled. Returns what was
        announced: its end, or that it waits for a person. Raises OSError or SyncFailed when the disk takes nothing
        more, Unkillable when a worker's processes stay. Cancelling leaves the workers alive.
        """
        failure: Exception | None = None
        said: Announcement | None = None
        async with anyio.create_task_group() as group:
            works = False

            def worker_runs() -> None:
                nonlocal works
                if not works:  # before that there is no parent whose children could go on
                    works = True
                    group.start_soon(self._foster, where)
                begun()

            try:
                said = await self._to_the_end(where, lock, worker_runs)
                if said.status not in WAITING:
                    await self._end_children(where)
            except Exception as error:  # told as it is, and not as a group of one
                failure = error
            group.cancel_scope.cancel()
        if failure is not None:
            raise failure
        assert said is not None
        return said

    async def _foster(self, where: Paths) -> None:
        """Look after the sub-tasks of a task, from the moment each one is there."""
        known: set[str] = set()
        async with anyio.create_task_group() as group, Watch(where.inner, names_only=True) as names:
            while True:
                try:
                    found = await _thread(children, where)
                except Exhausted:  # no fault of the task: look again when somebody has closed a file
                    await anyio.sleep(1.0)
                    continue
                for child in found:
                    if child.task_id not in known:
                        known.add(child.task_id)
                        group.start_soon(self._foster_one, child)
                await names.next()

    async def _foster_one(self, child: Paths) -> None:
        """What is wrong with a sub-task is in its own files; it does not end its parent."""
        with contextlib.suppress(OSError, OrchestratorError):
            said, lock = await _thread(recovery.claim, child)
            if lock is not None or said.action == "alive":
                await self.supervise(child, lock)

    async def _end_children(self, where: Paths) -> None:
        for child in await _thread(children, where):
            if await _thread(ended_by_tail, child) is None:
                await self.end_for_good(child)

    async def end_for_good(self, where: Paths) -> Announcement:
        """Cancel a task, and its sub-tasks before it; an ended one stays as it is.

        One whose task.md orders a step anew has not ended: it would be taken up by the very supervision below.
        Raises Held, with the name of the holder, when its lock cannot be had though nothing that we know of its worker
        is alive. The order stays given: whoever has the task next carries it out.
        """
        await _thread(check_readable, where)
        if (await _thread(recovery.inspect, where)).action != "ended":
            request = {"id": secrets.token_hex(8), "verb": "cancel", "at": self._clock()}
            await _thread(make_request, where, request)
        deadline, mark = time.monotonic() + CANCEL_SECONDS, -1
        while True:
            seen = await _thread(look, where)
            attempt = seen.snapshot.attempt  # closed or not: what it left may have the lock
            if _is_of(attempt, where) and (attempt.identity is not None or self.overdue(attempt)):
                await self._engine.end(attempt, 5.0)
            lock = await self.lock(where, seconds=1.0)
            if lock is not None:
                return await self.supervise(where, lock)
            if mark != (mark := files.size(where.journal)):  # somebody works on it, perhaps on this very order
                deadline = time.monotonic() + CANCEL_SECONDS
            elif time.monotonic() > deadline:
                raise await _thread(_held, where)

    async def _to_the_end(self, where: Paths, lock: int | None, begun: Callable[[], None]) -> Announcement:
        seen_exit: WorkerExit | None = None
        while True:
            if lock is None:
                lock = await self.lock(where)
            if lock is None:
                begun()
                seen_exit = await self._wait_for_holder(where)
                continue
            held, lock = lock, None
            try:
                step = await self._between_attempts(where, held, seen_exit)
            finally:
                os.close(held)
            if isinstance(step, Announcement):
                return step
            begun()
            seen_exit = await self._wait_for_worker(where, step)

    async def _wait_for_worker(self, where: Paths, attempt: AttemptState) -> WorkerExit:
        """How our own worker ended. One that does not say who it is in time is ended, as one that never will."""
        with anyio.move_on_after(STARTUP_SECONDS):
            return await self._engine.wait(attempt)
        now = (await _thread(look, where)).snapshot.attempt
        if now is not None and now.run == attempt.run and now.identity is None:
            await self._engine.end(attempt, 0.0)
        return await self._engine.wait(attempt)

    async def lock(self, where: Paths, seconds: float = 0.0) -> int | None:
        """The task's lock; None when it is still held after so many seconds."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                lock = await _thread(files.lock_directory, where.directory)
            except FileNotFoundError:
                raise TaskNotFound(
                    f"{where.task_id} is gone: its directory was moved or removed",
                    f"see what there is: orchestrator --root {self.root} list",
                ) from None
            if lock is not None or time.monotonic() >= deadline:
                return lock
            await anyio.sleep(LOCK_LOOK_SECONDS)

    async def _wait_for_holder(self, where: Paths) -> WorkerExit | None:
        """Somebody holds the lock: a worker (wait for it), another coordinator (for a moment), a stray process."""
        seen = await _thread(look, where)
        attempt = seen.snapshot.unclosed
        if attempt is None or (attempt.identity is None and not self.overdue(attempt)):
            await anyio.sleep(LOCK_LOOK_SECONDS)
            return None
        if attempt.identity is not None and seen.alive is None:  # on another machine, or in another pid namespace
            await anyio.sleep(1.0)
            return None
        if not _is_of(attempt, where):  # a copy: whoever holds its lock, it is not the worker that its journal names
            await anyio.sleep(LOCK_LOOK_SECONDS)
            return None
        if attempt.identity is None or seen.alive is False:  # the lock is held by a descendant, or one that never began
            await self._engine.end(attempt, 0.0)
            await anyio.sleep(LOCK_LOOK_SECONDS)
            return None
        return await _thread(recovery.how_it_ended, where, attempt, await self._engine.wait(attempt))

    def overdue(self, attempt: AttemptState) -> bool:
        """Whether a worker should long have said who it is: told by how long it was waited for, look after look.

        A gap between two looks is a machine that slept, and its worker with it: no more than a moment of it counts.
        """
        now = time.monotonic()
        last, waited = self._unborn.get(attempt.run, (now, 0.0))
        waited += min(now - last, LOOK_COUNTS_SECONDS)
        self._unborn[attempt.run] = now, waited
        return waited > STARTUP_SECONDS

    async def _between_attempts(
        self, where: Paths, lock: int, seen_exit: WorkerExit | None
    ) -> Announcement | AttemptState:
        """With the lock held: bury the last attempt, then end the task, or start the next attempt."""
        task = await self.take_over(where, seen_exit)
        try:
            deadline: float | None = None
            while True:
                action = await self._next(where, task)
                if not isinstance(action, Start):
                    return await self._conclude(where, task, action)
                recovery.check_disk(task, task.snapshot.attempt, seen_exit)
                pause = lifecycle.pause_seconds(task.snapshot, self._random.random())
                if pause and deadline is None:
                    deadline = time.monotonic() + pause
                if deadline is None or not await _ordered_before(where, deadline):
                    return await self._start(where, task, lock)
                await _thread(orders.carry_out, task)
        finally:
            task.close()

    async def _next(self, where: Paths, task: TaskWriter) -> Ended | Start | Finish | Wait:
        cancel = await _thread(lambda: look(where).cancel_request())
        return lifecycle.next_action(task.snapshot, cancel=cancel)

    async def _conclude(self, where: Paths, task: TaskWriter, action: Ended | Finish | Wait) -> Announcement:
        """Record what follows without another attempt; before a task ends so, its sub-tasks do."""
        if isinstance(action, Finish):
            await self._end_children(where)
        return await _thread(recovery.conclude, task, action)

    async def put_in_order(self, where: Paths, lock: int) -> int | None:
        """With the lock held: carry out what was ordered, take edits over, and record what follows without a worker.

        Gives the lock back when a worker is to be started; else it is closed.
        """
        keep = False
        try:
            task = await self.take_over(where, None)
            try:
                action = await self._next(where, task)
                keep = isinstance(action, Start)
                if not isinstance(action, Start):
                    await self._conclude(where, task, action)
            finally:
                task.close()
            return lock if keep else None
        finally:
            if not keep:
                os.close(lock)

    async def take_over(self, where: Paths, seen_exit: WorkerExit | None) -> TaskWriter:
        """With the lock held: nothing of the last worker is alive, its end is recorded, the orders are carried out."""
        seen = await _thread(look, where)
        last = seen.snapshot.attempt
        if seen.elsewhere is not None:
            raise Held(
                f"{where.task_id}: its worker is on {seen.elsewhere}, which cannot be asked from here",
                f"if that machine is gone: {recovery.presume_dead_command(where.task_id)}",
            )
        if _is_of(last, where):  # closed or not: its guard may have been killed before it had cleaned up
            await self._engine.end(last, 0.0)
        return await _thread(_in_order, where, self._clock, last, seen_exit)

    async def _start(self, where: Paths, task: TaskWriter, lock: int) -> AttemptState:
        what = await _thread(read_spec, where)
        held = self._engine.containment()
        limit = what.limits.deaths
        place = files.identity(where.directory)
        fields = {"token": held.token, "cgroup": held.cgroup, "deaths": limit, "place": place[1] if place else None}
        await _thread(lambda: task.begin_attempt(**fields))
        environment = {**dict(self._config.environment), **what.env, "ORCHESTRATOR_ROOT": self.root}
        try:
            await self._engine.start(Launch(task.run, where.directory, held, environment, lock, what.limits))
        except OSError as error:  # the machine's trouble: the task has lost nothing by it
            reason = f"no process could be made: {error.strerror or error}"
            await _thread(lambda: task.close_attempt(Outcome.LOST, reason=reason, death=False))
            raise
        attempt = task.snapshot.attempt
        assert attempt is not None
        return attempt


def _is_of(attempt: AttemptState | None, where: Paths) -> TypeGuard[AttemptState]:
    """Whether there is an attempt, and of this task: a copied workspace names the worker of another."""
    return attempt is not None and begun_here(where, attempt)


def _held(where: Paths) -> Held:
    return Held(
        f"{where.task_id} cannot be cancelled now: {recovery.held_by(where)}, and is no worker of it",
        "end that process if it is no coordinator; the order stays, and whoever has the task next carries it out",
    )


async def _ordered_before(where: Paths, deadline: float) -> bool:
    """Wait for the time on the monotonic clock; True as soon as somebody orders something."""
    size = files.size(where.requests)
    with anyio.move_on_after(max(0.0, deadline - time.monotonic())):
        async with Watch(where.inner) as changes:
            while files.size(where.requests) == size:
                await changes.next()
            return True
    return False


def _in_order(where: Paths, clock: Clock, last: AttemptState | None, seen_exit: WorkerExit | None) -> TaskWriter:
    task = take_over(where, clock)
    try:
        recovery.bury(task, last, seen_exit)
        orders.carry_out(task)
    except BaseException:
        task.close()
        raise
    return task
