"""One attempt: what the worker process does from its first act to its last line in the journal."""

from __future__ import annotations

import errno
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import anyio
import anyio.lowlevel
from anyio.abc import TaskStatus

from orchestrator import identity
from orchestrator.core import lifecycle
from orchestrator.core.lifecycle import Wait
from orchestrator.core.model import Effect, ErrorClass, Json, Outcome, StepStatus, TaskSpec
from orchestrator.errors import (
    Exhausted,
    OrchestratorError,
    StepConflict,
    StepFailed,
    StepUncertain,
    SyncFailed,
    UnknownSkill,
)
from orchestrator.store import Paths, read_spec
from orchestrator.takeover import continue_attempt
from orchestrator.worker import checklist_runner, descriptors, lived, skills
from orchestrator.worker.call import BROKEN
from orchestrator.worker.step import storable, text_of
from orchestrator.worker.task import Task
from orchestrator.writer import TaskWriter

#: Exit codes of a worker whose end is in the journal, or which cannot write one.
FENCED = 75
DISK = 74
#: EFBIG is a limit on the size of files, which is as good as a full disk; so is a workspace that is closed to us.
_DISK_ERRORS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.EFBIG, errno.EACCES, errno.EPERM})
#: What stops a worker; blocked since its guard forked it off (guard.py).
_STOPS = (signal.SIGTERM, signal.SIGINT)


def run(
    workspace: str, run_id: str, guard_pid: int, lock_fd: int, cgroup: str | None, resolve: Callable[..., TaskSpec]
) -> int:
    """Run one attempt to its end. Returns the exit code; the truth is in the journal."""
    try:
        writer = continue_attempt(Paths(workspace), time.time, run_id)
        if writer is None:
            print(f"{run_id} is not the newest attempt of its task: nothing is done", file=sys.stderr)
            return FENCED
        guard = identity.of(guard_pid)
        assert guard is not None
        writer.started(worker=list(identity.mine()), guard=list(guard))
    except (OSError, OrchestratorError) as error:
        print(f"cannot begin: {error}", file=sys.stderr)
        return _code(error)
    _guard_forks(writer, lock_fd)
    attempt = _Attempt(writer, cgroup, resolve)
    try:
        return attempt.run()
    except (OSError, SyncFailed, Exhausted) as error:
        traceback.print_exc()
        if _code(error) == DISK:
            print(f"the disk does not take what is to be written: {error}", file=sys.stderr)
        return _code(error)


def _code(error: Exception) -> int:
    """A disk that takes nothing ends the supervision, for another worker could do no better; all else is a death."""
    disk = isinstance(error, SyncFailed) or (isinstance(error, OSError) and error.errno in _DISK_ERRORS)
    return DISK if disk else BROKEN


def _guard_forks(writer: TaskWriter, lock_fd: int) -> None:
    """A process that the skill forks holds neither the lock nor the journal."""
    os.set_inheritable(lock_fd, False)

    def in_child() -> None:
        writer.close()
        os.close(lock_fd)
        descriptors.leave_the_loop_of_the_parent()

    os.register_at_fork(after_in_child=in_child)


class _Attempt:
    def __init__(self, writer: TaskWriter, cgroup: str | None, resolve: Callable[..., TaskSpec]) -> None:
        self._resolve_worker = resolve
        self._writer = writer
        self._cgroup = cgroup
        self._own: descriptors.Own | None = None

    def run(self) -> int:
        try:
            spec = read_spec(self._writer.where)
            return anyio.run(self._main, spec)
        except SystemExit as error:  # in a task of the skill's own: asyncio lets it through at once
            return _exit_code(error)
        except OrchestratorError as error:
            if isinstance(error, SyncFailed | Exhausted):
                raise
            return self._end(Outcome.FAILED, error.what, hint=error.hint)

    async def _main(self, spec: TaskSpec) -> int:
        lived.install()
        scope = anyio.CancelScope()
        self._own = descriptors.Own()
        try:
            async with anyio.create_task_group() as group:
                await group.start(self._listen, scope)
                code = await self._limited(spec, scope)
                group.cancel_scope.cancel()
        except BaseExceptionGroup as errors:  # a disk that takes nothing is to be told from a crash
            first = _leaves(errors)[0]
            raise first from first.__cause__
        return code

    async def _listen(self, scope: anyio.CancelScope, *, task_status: TaskStatus[None]) -> None:
        """Stop on a signal. Until here they were blocked: one that came earlier is not lost."""
        with anyio.open_signal_receiver(*_STOPS) as signals:
            if signal.sigpending() & set(_STOPS):
                scope.cancel()
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOPS)
            task_status.started()
            async for _ in signals:
                scope.cancel()

    async def _limited(self, spec: TaskSpec, scope: anyio.CancelScope) -> int:
        """The skill within its life's limit; cancelled by a signal."""
        life = spec.limits.attempt_seconds
        with scope:
            with anyio.move_on_after(life if life is not None else float("inf")) as limit:
                await anyio.lowlevel.checkpoint()  # told to stop already: nothing is begun
                return await self._skill(spec)
            if limit.cancelled_caught:
                return self._stopped(Outcome.TIMED_OUT, f"the attempt reached its limit of {life:g} s")
        return self._stopped(Outcome.STOPPED, "stopped on request")

    async def _skill(self, spec: TaskSpec) -> int:
        """Run the skill from the top, and again after a `todo` body that raised and has tries left."""
        try:
            skill, args = self._resolve(spec)
        except Exception as error:  # importing a module runs it
            traceback.print_exc()
            hint = error.hint if isinstance(error, OrchestratorError) else "see `orchestrator logs` for the traceback"
            what = error.what if isinstance(error, UnknownSkill) else f"the skill cannot be loaded: {_said(error)}"
            return self._end(Outcome.FAILED, what, hint=hint)
        self._note_version(spec, skill)
        while True:
            code = await self._from_the_top(spec, skill, args)
            if code is not None:
                return code

    async def _from_the_top(self, spec: TaskSpec, skill: skills.Skill, args: Mapping[str, Json]) -> int | None:
        """Run the skill once. None when it is to run again: a todo's body raised, or an order reopened a step."""
        why = ""
        with anyio.CancelScope() as scope:

            def leave(reason: str) -> None:
                nonlocal why
                why = why or reason
                scope.cancel()

            assert self._own is not None
            task = Task(self._writer, spec, args, leave=leave, resolve=self._resolve_worker, own=self._own)
            try:
                result = await skill(task, **args)
                await task.leave_children()
                await task.last_border()
                await task.judge_cut_off()
            except Exception as error:  # the skill's own, of any kind
                return await self._raised(task, error)
            except (SystemExit, BaseExceptionGroup) as error:
                left = next((e for e in _leaves(error) if isinstance(e, SystemExit)), None)
                if left is None:
                    raise
                return _exit_code(left)
            return self._ended_well(task, result)
        if why == "again":
            self._interrupt_open("an order reopened a step")
            return self._again(task)
        if why == "stuck":
            self._interrupt_open("a thread did not end")
            self._writer.close_attempt(Outcome.TIMED_OUT, reason=task.stuck, death=False)
            return 0
        return self._wait_for_person()

    def _resolve(self, spec: TaskSpec) -> tuple[skills.Skill, Mapping[str, Json]]:
        if spec.kind == "steps":
            return checklist_runner.skill(spec, self._cgroup), {}
        return skills.load(spec.worker, spec.import_paths), spec.args

    def _note_version(self, spec: TaskSpec, skill: skills.Skill) -> None:
        if spec.kind == "steps":
            return
        version, before = skills.version(skill), self._writer.snapshot.skill
        if before is not None and version is not None and before != version:
            print(f"the skill has changed since an earlier attempt: {before} -> {version}", file=sys.stderr)
        self._writer.record("skill", sync=False, worker=spec.worker, version=version)

    # -- how it ended ------------------------------------------------------------------------------------------

    async def _raised(self, task: Task, error: Exception) -> int | None:
        """The skill ended by an exception. None: a todo body raised and is to be tried again."""
        if task.broken is not None:
            raise task.broken
        first = _leaves(error)
        exhausted = next((e for e in first if isinstance(e, Exhausted)), None)
        if exhausted is not None:  # a fresh worker has none open
            raise exhausted
        for kind in (StepUncertain, StepConflict, StepFailed):
            found = next((e for e in first if isinstance(e, kind)), None)
            if found is not None:
                return await self._by_kind(task, found)
        traceback.print_exception(error)
        raised = {label: e for label, body in task.todos.items() if (e := body.raised(error)) is not None}
        if raised:
            return await self._todo_raised(task, raised)
        return self._end(
            Outcome.FAILED, f"the skill raised {_said(first[0])}", hint=_LOGS.format(self._writer.where.task_id)
        )

    async def _by_kind(self, task: Task, error: Exception) -> int:
        self._interrupt_open("the skill ended")
        assert isinstance(error, OrchestratorError)
        if isinstance(error, StepUncertain):
            return self._wait_for_person()
        outcome = Outcome.CONFLICT if isinstance(error, StepConflict) else Outcome.FAILED
        hint = error.hint or f"see why: orchestrator show {task.id}   the worker's output: orchestrator logs {task.id}"
        return self._end(outcome, error.what, hint=hint)

    async def _todo_raised(self, task: Task, raised: Mapping[str, BaseException]) -> int | None:
        """Bodies of todos raised: their tries are spent. None when the skill is to run again from the top."""
        self._interrupt_open("another step raised", besides=frozenset(raised))
        for state in [task.todo_failed(label, error) for label, error in raised.items()]:
            if state.status is StepStatus.FAILED:
                return self._end(Outcome.FAILED, f"step {state.label!r} failed: {_said(raised[state.label])}")
            await anyio.sleep(lifecycle.backoff_seconds(state.spent, 0.5))
        return self._again(task)

    def _again(self, task: Task) -> int | None:
        """None when the skill may run again in this process: not beside the thread of a step that was cut off."""
        if not task.threads.live:
            return None
        reason = "a sync step that was cut off goes on in its thread: the next worker runs the skill again"
        self._writer.settle()
        self._writer.close_attempt(Outcome.STOPPED, reason=reason, death=False)
        return 0

    def _ended_well(self, task: Task, result: Any) -> int:
        if task.broken is not None:
            raise task.broken
        try:
            path = None if result is None else self._writer.store_result(storable(result))
        except (OSError, SyncFailed, Exhausted):
            raise
        except Exception as error:  # of an object of the skill's own, asked for its content
            return self._end(
                Outcome.FAILED, f"the skill's own result: {text_of(error)}", error_class=ErrorClass.VALIDATION
            )
        if any(state.status is StepStatus.UNCERTAIN for state in self._writer.snapshot.steps.values()):
            return self._wait_for_person()
        for state in list(self._writer.snapshot.steps.values()):
            if not state.status.finished and state.status is not StepStatus.FAILED:
                why = "not reached by the skill" if state.label not in task.open else "left before its end"
                self._writer.commit(state.label, StepStatus.SKIPPED, why=why)
        return self._end(Outcome.COMPLETED, "", result=path)

    def _end(
        self, outcome: Outcome, reason: str, *, hint: str = "", result: str | None = None, error_class: str = ""
    ) -> int:
        self._interrupt_open("the skill ended")
        said = self._writer.announcement(outcome, reason, hint=hint, result=result)
        self._writer.end(said, **({"error_class": error_class} if error_class else {}))
        return 0 if outcome == Outcome.COMPLETED else 1

    def _wait_for_person(self) -> int:
        """Close the attempt because a person has to decide, answer, or say that it goes on."""
        self._interrupt_open("it waits for a person")
        action = lifecycle.next_action(self._writer.snapshot)
        assert isinstance(action, Wait)
        hint = lifecycle.command_line(action.verb, self._writer.where.task_id)
        self._writer.wait_for_person(self._writer.announcement(action.outcome, action.reason, hint=hint))
        return StepUncertain.exit_code

    def _stopped(self, outcome: Outcome, reason: str) -> int:
        self._interrupt_open(reason)
        self._writer.settle()
        self._writer.close_attempt(outcome, reason=reason)
        return 128 + signal.SIGTERM

    def _interrupt_open(self, why: str, besides: frozenset[str] = frozenset()) -> None:
        """Refund the tries that run now. A `once` try stays as it is: its end is not known."""
        for state in self._writer.snapshot.steps.values():
            if state.open_run == self._writer.run and state.effect != Effect.ONCE and state.label not in besides:
                self._writer.interrupted(state.label, why)


def _exit_code(error: SystemExit) -> int:
    """What the interpreter would exit with."""
    return error.code if isinstance(error.code, int) else 0 if error.code is None else 1


_LOGS = "read its traceback: orchestrator logs {}"


def _leaves(error: BaseException) -> list[BaseException]:
    """The errors in a group of errors, or the error itself."""

    def walk(e: BaseException) -> Iterator[BaseException]:
        if isinstance(e, BaseExceptionGroup):
            for inner in e.exceptions:
                yield from walk(inner)
        else:
            yield e

    return list(walk(error))


def _said(error: BaseException) -> str:
    text = text_of(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
