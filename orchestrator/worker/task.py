"""The handle a skill works with: steps that are done once, whatever happens to the worker."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import inspect
import math
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread

from orchestrator.core import lifecycle
from orchestrator.core.lifecycle import Check, Conflict, GiveUp, HandBack, Reopen, RunTry
from orchestrator.core.model import Effect, Json, StepError, StepId, StepStatus, TaskSpec
from orchestrator.core.snapshot import StepState
from orchestrator.errors import Exhausted, NotDone, StepFailed, StepUncertain, SyncFailed, UsageError
from orchestrator.store import Paths
from orchestrator.worker import call as call_
from orchestrator.worker import children
from orchestrator.worker import step as steps
from orchestrator.worker.call import Call
from orchestrator.worker.children import Child, OnEnd
from orchestrator.worker.conversation import Conversation
from orchestrator.worker.descriptors import Own
from orchestrator.worker.step import Step
from orchestrator.worker.todo import Body, Todo
from orchestrator.writer import TaskWriter


class ThreadStuck(Exception):  # noqa: N818 - ends the worker, never reaches a skill's user
    """A sync step function is over its timeout: its thread cannot be ended but with the worker."""


class Task(Conversation):
    """What a skill is given. `workspace` is where its own files go, `args` what it was spawned with."""

    def __init__(
        self,
        writer: TaskWriter,
        spec: TaskSpec,
        args: Mapping[str, Json],
        *,
        leave: Callable[[str], None],
        resolve: Callable[..., TaskSpec],
        own: Own,
    ) -> None:
        super().__init__(writer, leave)
        self.id = writer.where.task_id
        self.name = spec.name
        self.args = args
        self.workspace = Path(writer.where.directory)
        self.attempt = writer.snapshot.attempt_number
        self.open: dict[str, Step] = {}  #: tries that run now, by label
        self.calls: dict[str, Call] = {}  #: what each try of this run of the skill was begun for, by label
        self.todos: dict[str, Body] = {}  #: of these, the ones whose body is a loop's
        self.threads = call_.Threads(own)
        self.stuck = ""  #: why the worker has to end, when a thread does not
        self._needs_result = spec.kind == "python"
        self._seen: dict[str, int] = {}
        self._running: set[tuple[str, str | None]] = set()
        self._cursor: str | None = None
        self._settling = False
        self._spec = spec
        self._resolve = resolve
        self.children: list[Child] = []
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
        effect = call_.effect_of(effect)
        with self._name_taken(name, key) as step_id:
            call = Call(step_id, fn, effect, retries, args, timeout, check, tuple(outputs), steps.hash_args(args))
            return await self._step(call)

    def todo(self, name: str, *, key: str | None = None, effect: str = "idempotent", retries: int = 2) -> Todo:
        """`async for step in task.todo(name):` runs the body when the step is not done, else passes over it.

        What the body sets as `step.result` is committed when it ends. A body that raises ends this run of the skill; it
        is tried again, from the top, up to `retries` times. Leaving the body by `break` or `return` leaves the step
        undone.
        """
        return Todo(self, name, key, call_.effect_of(effect), retries)

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

    async def spawn(
        self,
        worker: Any,
        *,
        name: str | None = None,
        args: Mapping[str, Json] | None = None,
        key: str | None = None,
        on_end: OnEnd = "wait",
    ) -> Child:
        """Make a sub-task: a committed step, so that a resumed parent finds its child and never makes a second one.

        Worker, name and args are as for Coordinator.spawn. The parent's supervisor starts the child, in the same root.
        When the parent ends well it waits for its children, or with `on_end="cancel"` cancels them; when it fails or is
        cancelled, so are they. Raises TooManyChildren above `limits.children` and `limits.depth`.
        """
        parent, what = self._spec, self._resolve(worker, name=name, args=args)

        async def make() -> str:
            step = steps.current_step()
            return await anyio.to_thread.run_sync(
                children.make, self._writer, parent, what, step.idempotency_key, time.time
            )

        task_id = await self.step(f"spawn {what.name}", make, key=key)
        child = Child(Paths(f"{self.workspace.parent}/{task_id}"), self.step, on_end)
        self.children.append(child)
        return child

    async def leave_children(self) -> None:
        """Wait for the children that are to be waited for, however they end."""
        for child in self.children:
            if child.on_end == "wait":
                with contextlib.suppress(StepFailed):
                    await child.ended()

    # -- one step ----------------------------------------------------------------------------------------------

    def _state(self, step: StepId) -> StepState | None:
        label = self._writer.snapshot.labels.get(step)
        return self._writer.snapshot.steps[label] if label is not None else None

    def _decide(self, state: StepState | None, call: Call) -> lifecycle.StepDecision:
        redone = self._writer.snapshot.redone
        return lifecycle.decide_step(state, effect=call.effect, retries=call.retries, args=call.digest, redone=redone)

    async def _step(self, call: Call) -> Json:
        await self._border()
        while True:
            state = self._state(call.step)
            decision = self._decide(state, call)
            if isinstance(decision, RunTry):
                await self._may_begin()
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
                    raise call_.conflict(state, "it is done with other arguments than it is asked for with now")
                case GiveUp(error, commit):
                    self._give_up(state, error, commit)
                case Check():
                    await self._check(state, call)
                case Reopen():
                    self._reopen(state)

    def _hand_back(self, state: StepState, call: Call) -> Json:
        if state.by_hand and state.status is StepStatus.DONE:
            if self._needs_result and state.result is None:
                raise call_.conflict(state, "it was marked done by hand and its result is not known")
            try:
                steps.verify(str(self.workspace), call.outputs)
            except steps.OutputMissing as error:
                raise call_.conflict(state, f"it was marked done by hand, but {error}") from None
        with self._disk():
            return self._writer.result_of(state)

    def _reopen(self, state: StepState) -> None:
        """A step before it was redone and changed what this one gets; what `once` did is for a person to judge, by one
        line: there is no moment at which it could be taken for one that is to be done again."""
        once = state.effect == Effect.ONCE
        with self._disk():
            self._writer.will_reopen(state.label, redo=not once)
            if once:
                self._writer.commit(state.label, StepStatus.UNCERTAIN, why="done before, with other arguments")
                self._settle_soon()
                return
            known = self._writer.snapshot.redone == self._redone
            self._writer.record("redo", sync=True, step=state.label, why="a step before it was done anew")
            if known:  # no order of a person came in between
                self._redone = self._writer.snapshot.redone
        self._settle_soon()

    def _give_up(self, state: StepState, error: StepError, commit: bool) -> None:
        if commit:
            with self._disk():
                self._writer.commit(state.label, StepStatus.FAILED, error=error)
            self._settle_soon()
        raise StepFailed(state.label, f"{error.type}: {error.message}", error.error_class)

    async def _may_begin(self) -> None:
        """Begin nothing new while the worker waits for what it may not cut off, to end itself."""
        if self.unfinished.awaited:
            await anyio.sleep_forever()

    async def _try(self, call: Call, number: int) -> tuple[bool, Json]:
        """One try. (True, result) when it is done; (False, None) when the journal now says what comes next."""
        step = self._begin(call, number)
        try:
            result = await self._run(call, step)
            outputs = steps.verify(str(self.workspace), call.outputs) if call.outputs else ()
        except ThreadStuck as error:
            self._failed(call, step, TimeoutError(str(error)), give_up=False)
            self.stuck = str(error)
            await self._go("stuck")
            raise
        except Exception as error:  # the step's own, of any kind
            if self.broken is not None or isinstance(error, Exhausted):
                raise
            self._failed(call, step, error)
            await anyio.sleep(self._pause(step.label))
            return False, None
        self._commit(step, result, outputs)
        return True, result

    def _begin(self, call: Call, number: int) -> Step:
        for label in [label for label, body in self.todos.items() if body.was_left()]:
            del self.todos[label]  # undone: what is raised from here on is none of it
        with self._disk():
            previous = steps.previous_notes(self._writer, self._state(call.step)) if number > 1 else ""
            state = self._writer.begin_try(
                call.step, number, effect=call.effect, args=call.digest, after=self._cursor, outputs=call.outputs
            )
        self._cursor = state.label
        self.calls[state.label] = call
        step = self.open[state.label] = Step(self._writer, state, previous)
        return step

    async def _run(self, call: Call, step: Step) -> Json:
        token = steps.current.set(step)
        try:
            with (
                self.unfinished.running(step.label, call),
                anyio.move_on_after(math.inf if call.timeout is None else call.timeout) as limit,
            ):
                begun = anyio.current_time()
                result = await self.threads.run(call.fn, call.args)
            if call.timeout is not None and not limit.cancelled_caught and anyio.current_time() > begun + call.timeout:
                with self._disk():
                    step.note(f"It held on beyond its timeout of {call.timeout:g} s, and ended by itself.")
            if limit.cancelled_caught:
                said = f"step {step.label!r} took longer than its timeout of {call.timeout:g} s"
                raise TimeoutError(said) if inspect.iscoroutinefunction(call.fn) else ThreadStuck(said)
            return steps.storable(result)
        finally:
            steps.current.reset(token)

    def _commit(self, step: Step, result: Json, outputs: Sequence[Any] = ()) -> None:
        if self._writer.snapshot.steps[step.label].status is not StepStatus.SKIPPED:  # by a person, while it ran
            with self._disk():
                self._writer.commit(step.label, StepStatus.DONE, result=result, outputs=outputs)
        del self.open[step.label]
        self._settle_soon()

    def _failed(self, call: Call, step: Step, error: BaseException, *, give_up: bool = True) -> None:
        """Write down that a try raised. A `once` try is left as it is: nobody knows what it did, its check is asked."""
        del self.open[step.label]
        if self._writer.snapshot.steps[step.label].status.finished:  # a person has settled it while it ran
            return
        said = steps.describe(error)
        if call.effect == Effect.ONCE and not isinstance(error, NotDone):
            with self._disk():
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
        self._failed(self.todos.pop(label).call, self.open[label], error)
        return self._writer.snapshot.steps[label]

    def _pause(self, label: str) -> float:
        state = self._writer.snapshot.steps[label]
        if state.status is not StepStatus.WORKING or state.error is None:
            return 0.0
        return lifecycle.backoff_seconds(state.spent, self._random.random())

    async def _check(self, state: StepState, call: Call) -> None:
        """Find out whether a `once` step that was cut off took effect; on return the journal says so."""
        said, why = None, ""
        if state.status is not StepStatus.UNCERTAIN:
            said, why = await call_.answer_of_check(call, self.threads, str(self.workspace))
        if state.status.finished:  # a person knew it sooner
            return
        if isinstance(said, tuple):
            with self._disk():
                self._writer.commit(state.label, StepStatus.DONE, result=said[0], outputs=said[1], why=why)
            self._settle_soon()
        elif said is False:
            error = StepError("runtime", "NotDone", "its check said that it did not take effect")
            with self._disk():
                self._writer.raised(state.label, error)
        else:
            if state.status is not StepStatus.UNCERTAIN:
                with self._disk():
                    self._writer.commit(state.label, StepStatus.UNCERTAIN, why=why)
            raise StepUncertain(
                f"nobody knows whether step {state.label!r} took effect",
                f"look, then say so: orchestrator resolve {self.id} {state.label!r} --done|--redo",
            )

    async def judge_cut_off(self) -> None:
        """Behind the last step: what became of the `once` tries that the skill itself cut off? Raises StepUncertain.

        While a thread of one goes on, its check could only say what is not yet true.
        """
        for state in list(self._writer.snapshot.steps.values()):
            if state.status is StepStatus.WORKING and state.effect == Effect.ONCE and state.error is None:
                call = self.calls.get(state.label) or Call(state.id, call_.never, state.effect, 0)
                await self._check(state, call if not self.threads.live else dataclasses.replace(call, check=None))

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

    def _settle_soon(self) -> None:
        """Write task.md at the next turn of the loop: with the mark of the next step, if one begins now."""
        if not self._settling:
            self._settling = True
            asyncio.get_running_loop().call_soon(self._settle)

    def _settle(self) -> None:
        self._settling = False
        with contextlib.suppress(OSError, SyncFailed, Exhausted), self._disk():
            self._writer.settle()
