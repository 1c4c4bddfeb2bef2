"""The handle a skill works with: steps that are done once, whatever happens to the worker."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import random
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread

from orchestrator.core import lifecycle
from orchestrator.core.journal import StepState
from orchestrator.core.lifecycle import Check, Conflict, GiveUp, HandBack, Reopen, RunTry
from orchestrator.core.model import Effect, Json, StepError, StepId, StepStatus
from orchestrator.errors import NotDone, StepConflict, StepFailed, StepUncertain, SyncFailed, UsageError
from orchestrator.worker import step as steps
from orchestrator.worker.step import Done, Step
from orchestrator.writer import TaskWriter


class ThreadStuck(Exception):  # noqa: N818 - ends the worker, never reaches a skill's user
    """A sync step function is over its timeout: its thread cannot be ended but with the worker."""


class Task:
    """What a skill is given. `workspace` is where its own files go, `args` what it was spawned with."""

    def __init__(self, writer: TaskWriter, *, name: str, args: Mapping[str, Json], needs_result: bool = True) -> None:
        self.id = writer.where.task_id
        self.name = name
        self.args = args
        self.workspace = Path(writer.where.directory)
        self.attempt = writer.snapshot.attempt_number
        self.broken: Exception | None = None  #: the disk failed: nothing more is written, the worker ends
        self.open: dict[str, Step] = {}  #: tries that run now, by label
        self.todos: dict[str, _Call] = {}  #: of these, the ones whose body is a loop's
        self._needs_result = needs_result
        self._writer = writer
        self._seen: dict[str, int] = {}
        self._running: set[tuple[str, str | None]] = set()
        self._cursor: str | None = None
        self._settling = False
        self._random = random.Random()

    # -- what a skill calls ------------------------------------------------------------------------------------

    async def step(
        self,
        name: str,
        fn: Callable[..., Any],
        *args: Any,
        key: str | None = None,
        effect: str = "idempotent",
        retries: int = 2,
        timeout: float | None = None,
        check: Callable[..., Any] | None = None,
        outputs: Sequence[str] = (),
    ) -> Json:
        """Run `fn(*args)` once and commit its result; when it is committed already, hand the result back.

        fn is async, or sync and then run in a thread. Its result is JSON and comes back as JSON has it (a tuple as a
        list), at first and on every replay. `key` tells steps of one name apart that run at once. A try that raises is
        tried again up to `retries` times; over `timeout` seconds it counts as raised (a thread cannot be ended: then
        the worker is ended, and the next one goes on). `outputs` are files of the workspace that must be there before
        the commit. With `effect="once"`, a try whose end is not known is never repeated: `check(*args)` says
        Done(result), False (not done) or None (unknown), and only raising NotDone allows another try.

        Raises StepFailed when it failed for good, StepConflict when it is done with other arguments, StepUncertain when
        a person must say whether a `once` step took effect. Cancelling leaves the step to be run again.
        """
        effect = _effect(effect)
        with self._name_taken(name, key) as step_id:
            call = _Call(step_id, fn, args, effect, retries, timeout, check, tuple(outputs), steps.hash_args(args))
            return await self._step(call)

    def todo(self, name: str, *, key: str | None = None, effect: str = "idempotent", retries: int = 2) -> _Todo:
        """`async for step in task.todo(name):` runs the body when the step is not done, else passes over it.

        What the body sets as `step.result` is committed when it ends. A body that raises ends this run of the skill; it
        is tried again, from the top, up to `retries` times. Leaving the body by `break` or `return` leaves the step
        undone.
        """
        return _Todo(self, name, key, _effect(effect), retries)

    async def plan(self, names: Iterable[str | StepId]) -> None:
        """Write the steps that lie ahead into task.md. Those never reached by the end are skipped, with that reason."""
        wanted: list[StepId] = []
        counted: dict[str, int] = {}
        for name in names:
            text = name if isinstance(name, str) else name.name
            counted[text] = counted.get(text, 0) + 1
            wanted.append(StepId(text, counted[text]) if isinstance(name, str) else name)
        with self._disk():
            self._writer.plan(wanted)

    async def skip(self, name: str, why: str, *, key: str | None = None) -> None:
        """Record that a step is not needed. A step that is done stays done."""
        with self._name_taken(name, key) as step_id, self._disk():
            if step_id not in self._writer.snapshot.labels:
                self._writer.plan([step_id], self._cursor)
            label = self._writer.snapshot.labels[step_id]
            if not self._writer.snapshot.steps[label].status.finished:
                self._writer.commit(label, StepStatus.SKIPPED, why=why)
                self._settle_soon()
            self._cursor = label

    # -- one step ----------------------------------------------------------------------------------------------

    def _state(self, step: StepId) -> StepState | None:
        label = self._writer.snapshot.labels.get(step)
        return self._writer.snapshot.steps[label] if label is not None else None

    def _decide(self, state: StepState | None, call: _Call) -> lifecycle.StepDecision:
        redone = self._writer.snapshot.redone
        return lifecycle.decide_step(state, effect=call.effect, retries=call.retries, args=call.digest, redone=redone)

    async def _step(self, call: _Call) -> Json:
        while True:
            state = self._state(call.step)
            decision = self._decide(state, call)
            if isinstance(decision, RunTry):
                done, result = await self._try(call, decision.number)
                if done:
                    return result
                continue
            assert state is not None
            self._cursor = state.label
            match decision:
                case HandBack():
                    return self._hand_back(state, call)
                case Conflict():
                    raise _conflict(state, "it is done with other arguments than it is asked for with now")
                case GiveUp(error, commit):
                    self._give_up(state, error, commit)
                case Check():
                    await self._check(state, call)
                case Reopen():
                    self._reopen(state)

    def _hand_back(self, state: StepState, call: _Call) -> Json:
        if state.by_hand and state.status is StepStatus.DONE:
            if self._needs_result and state.result is None:
                raise _conflict(state, "it was marked done by hand and its result is not known")
            try:
                steps.verify(str(self.workspace), call.outputs)
            except steps.OutputMissing as error:
                raise _conflict(state, f"it was marked done by hand, but {error}") from None
        return self._writer.result_of(state)

    def _reopen(self, state: StepState) -> None:
        """A step before it was redone and changed what this one gets; what `once` did is for a person to judge."""
        with self._disk():
            self._writer.record("redo", sync=True, step=state.label, why="a step before it was done anew")
            if state.effect == Effect.ONCE:
                self._writer.commit(state.label, StepStatus.UNCERTAIN, why="done before, with other arguments")
        self._settle_soon()

    def _give_up(self, state: StepState, error: StepError, commit: bool) -> None:
        if commit:
            with self._disk():
                self._writer.commit(state.label, StepStatus.FAILED, error=error)
            self._settle_soon()
        raise StepFailed(state.label, f"{error.type}: {error.message}", error.error_class)

    async def _try(self, call: _Call, number: int) -> tuple[bool, Json]:
        """One try. (True, result) when it is done; (False, None) when the journal now says what comes next."""
        step = self._begin(call, number)
        try:
            result = await self._run(call, step)
            outputs = steps.verify(str(self.workspace), call.outputs) if call.outputs else ()
        except ThreadStuck as error:
            self._failed(call, step, TimeoutError(str(error)), give_up=False)
            raise
        except Exception as error:
            if self.broken is not None:
                raise
            self._failed(call, step, error)
            await anyio.sleep(self._pause(step.label))
            return False, None
        self._commit(step, result, outputs)
        return True, result

    def _begin(self, call: _Call, number: int) -> Step:
        previous = steps.previous_notes(self._writer, self._state(call.step)) if number > 1 else ""
        with self._disk():
            state = self._writer.begin_try(
                call.step, number, effect=call.effect, args=call.digest, after=self._cursor, outputs=call.outputs
            )
        self._cursor = state.label
        step = self.open[state.label] = Step(self._writer, state, previous)
        return step

    async def _run(self, call: _Call, step: Step) -> Json:
        token = steps.current.set(step)
        try:
            if call.timeout is None:
                result = await _call(call.fn, call.args)
            else:
                with anyio.move_on_after(call.timeout) as limit:
                    result = await _call(call.fn, call.args)
                if limit.cancelled_caught:
                    said = f"step {step.label!r} took longer than its timeout of {call.timeout:g} s"
                    raise TimeoutError(said) if inspect.iscoroutinefunction(call.fn) else ThreadStuck(said)
            return steps.storable(result)
        finally:
            steps.current.reset(token)

    def _commit(self, step: Step, result: Json, outputs: Sequence[Any] = ()) -> None:
        with self._disk():
            self._writer.commit(step.label, StepStatus.DONE, result=result, outputs=outputs)
        del self.open[step.label]
        self._settle_soon()

    def _failed(self, call: _Call, step: Step, error: BaseException, *, give_up: bool = True) -> None:
        """Write down that a try raised. A `once` try is left as it is: nobody knows what it did, its check is asked."""
        del self.open[step.label]
        said = steps.describe(error)
        if call.effect == Effect.ONCE and not isinstance(error, NotDone):
            step.note(f"The try ended with {said.type}: {said.message}")
            return
        with self._disk():
            self._writer.raised(step.label, said)
            spent = self._writer.snapshot.steps[step.label].spent
            if give_up and (spent > call.retries or said.error_class in steps.HOPELESS):
                self._writer.commit(step.label, StepStatus.FAILED, error=said)
        self._settle_soon()

    def todo_failed(self, label: str, error: BaseException) -> StepState:
        """Write down that the body of a todo raised; its status says whether it was the last try."""
        self._failed(self.todos.pop(label), self.open[label], error)
        return self._writer.snapshot.steps[label]

    def _pause(self, label: str) -> float:
        state = self._writer.snapshot.steps[label]
        if state.status is not StepStatus.WORKING or state.error is None:
            return 0.0
        return lifecycle.backoff_seconds(state.spent, self._random.random())

    async def _check(self, state: StepState, call: _Call) -> None:
        """Find out whether a `once` step that was cut off took effect; on return the journal says so."""
        said: Any = None
        if call.check is not None and state.status is not StepStatus.UNCERTAIN:
            with contextlib.suppress(Exception):  # a check that fails knows nothing
                said = await _call(call.check, call.args)
        if said is True or isinstance(said, Done):
            result = steps.storable(said.result) if isinstance(said, Done) else None
            outputs = steps.verify(str(self.workspace), call.outputs)
            with self._disk():
                self._writer.commit(
                    state.label, StepStatus.DONE, result=result, outputs=outputs, why="its check said so"
                )
            self._settle_soon()
        elif said is False:
            error = StepError("runtime", "NotDone", "its check said that it did not take effect")
            with self._disk():
                self._writer.raised(state.label, error)
        else:
            if state.status is not StepStatus.UNCERTAIN:
                with self._disk():
                    self._writer.commit(state.label, StepStatus.UNCERTAIN, why="cut off, and no check knows")
            raise StepUncertain(
                f"nobody knows whether step {state.label!r} took effect",
                f"look, then say so: orchestrator resolve {self.id} {state.label!r} --done|--redo",
            )

    # -- the rest ----------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _name_taken(self, name: str, key: str | None) -> Iterator[StepId]:
        """Give the n-th use of a name its identity, and refuse a use that would make n depend on luck."""
        if (name, key) in self._running:
            raise UsageError(f"step {name!r} is running already", "steps of one name at once need a `key` each")
        if key is None:
            n = self._seen[name] = self._seen.get(name, 0) + 1
        else:
            n = 1
        self._running.add((name, key))
        try:
            yield StepId(name, n, key)
        finally:
            self._running.discard((name, key))

    @contextlib.contextmanager
    def _disk(self) -> Iterator[None]:
        if self.broken is not None:
            raise self.broken
        try:
            yield
        except (OSError, SyncFailed) as error:
            self.broken = error
            raise

    def _settle_soon(self) -> None:
        """Write task.md at the next turn of the loop: with the mark of the next step, if one begins now."""
        if not self._settling:
            self._settling = True
            asyncio.get_running_loop().call_soon(self._settle)

    def _settle(self) -> None:
        self._settling = False
        with contextlib.suppress(OSError, SyncFailed), self._disk():
            self._writer.settle()


class _Call:
    """One call of `task.step`: what to run, and how."""

    __slots__ = ("args", "check", "digest", "effect", "fn", "outputs", "retries", "step", "timeout")

    def __init__(
        self,
        step: StepId,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        effect: str,
        retries: int,
        timeout: float | None,
        check: Callable[..., Any] | None,
        outputs: tuple[str, ...],
        digest: str,
    ) -> None:
        self.step, self.fn, self.args, self.effect, self.retries = step, fn, args, effect, retries
        self.timeout, self.check, self.outputs, self.digest = timeout, check, outputs, digest


class _Todo(AsyncIterator[Step]):
    """A loop of no or one pass. An iterator and no generator: a generator would not see its body raise either."""

    def __init__(self, task: Task, name: str, key: str | None, effect: str, retries: int) -> None:
        self._task = task
        self._name, self._key, self._effect, self._retries = name, key, effect, retries
        self._step: Step | None = None

    def __aiter__(self) -> _Todo:
        return self

    async def __anext__(self) -> Step:
        if self._step is not None:
            self._task._commit(self._step, steps.storable(self._step.result))
            del self._task.todos[self._step.label]
            raise StopAsyncIteration
        with self._task._name_taken(self._name, self._key) as step_id:
            call = _Call(step_id, _never, (), self._effect, self._retries, None, None, (), "")
            state = self._task._state(step_id)
            decision = self._task._decide(state, call)
            if isinstance(decision, RunTry):
                self._step = self._task._begin(call, decision.number)
                self._task.todos[self._step.label] = call
                return self._step
            await self._task._step(call)
            raise StopAsyncIteration


def _never() -> None:
    raise AssertionError("the body of a todo is run by its loop")


async def _call(fn: Callable[..., Any], args: Sequence[Any]) -> Any:
    if inspect.iscoroutinefunction(fn):
        return await fn(*args)
    result = await anyio.to_thread.run_sync(lambda: fn(*args), abandon_on_cancel=True)
    return await result if inspect.isawaitable(result) else result


def _effect(effect: str) -> str:
    try:
        return Effect(effect)
    except ValueError:
        raise UsageError(f"effect {effect!r} is none", "it is pure, idempotent or once") from None


def _conflict(state: StepState, what: str) -> StepConflict:
    return StepConflict(
        f"step {state.label!r}: {what}",
        f"write `[redo] {state.label}` into task.md to have it done anew, then recover the task",
    )
