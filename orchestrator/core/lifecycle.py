"""What may happen: the transition tables, the next action of a task, the verdict on a step, the outcome of an attempt.

Pure and total: every snapshot has exactly one answer, and asking twice gives it twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from orchestrator.core.model import (
    Effect,
    ErrorClass,
    Outcome,
    StepError,
    StepStatus,
    TaskStatus,
    WorkerExit,
)
from orchestrator.core.snapshot import Snapshot, StepState
from orchestrator.errors import TransitionError

PENDING, WORKING, DONE, FAILED, SKIPPED, UNCERTAIN = (
    StepStatus.PENDING,
    StepStatus.WORKING,
    StepStatus.DONE,
    StepStatus.FAILED,
    StepStatus.SKIPPED,
    StepStatus.UNCERTAIN,
)

#: Which status of a step may follow which. Anything else raises TransitionError and changes nothing.
TRANSITIONS: Mapping[StepStatus, frozenset[StepStatus]] = {
    PENDING: frozenset(
        {WORKING, DONE, SKIPPED, FAILED, UNCERTAIN}
    ),  # done: by hand; failed: attempts died before it began
    WORKING: frozenset({WORKING, DONE, FAILED, UNCERTAIN, SKIPPED}),
    UNCERTAIN: frozenset({DONE, PENDING, SKIPPED}),  # a person decides, or its check
    FAILED: frozenset({PENDING, SKIPPED}),  # retry, by a person
    DONE: frozenset({PENDING, UNCERTAIN}),  # redo, by a person; uncertain: `once`, and a step before it was redone
    SKIPPED: frozenset({PENDING}),  # redo, by a person
}

#: The word in task.md for each way a task can end; what is not here leaves the task open.
FACE: Mapping[str, TaskStatus] = {
    Outcome.COMPLETED: TaskStatus.END,
    Outcome.FAILED: TaskStatus.FAILED,
    Outcome.CONFLICT: TaskStatus.FAILED,
    Outcome.CANCELLED: TaskStatus.CANCELLED,
}


#: Ways to stop that leave the task open: a person goes on with it.
WAITING = frozenset({Outcome.UNCERTAIN, Outcome.QUESTION, Outcome.PAUSED})


def check_transition(before: StepStatus, after: StepStatus, label: str) -> None:
    if after not in TRANSITIONS[before]:
        raise TransitionError(
            f"step {label!r} is {before}: it cannot become {after}",
            f"from {before} it may become: {', '.join(sorted(TRANSITIONS[before])) or 'nothing'}",
        )


# -- a task: what now? ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Ended:
    """Nothing is to be done but to keep the face as the journal has it."""

    outcome: str


@dataclass(frozen=True, slots=True)
class Start:
    """Start the next attempt; `step` is where work goes on (None: from the top, or only the end is missing)."""

    step: str | None
    fresh: bool


@dataclass(frozen=True, slots=True)
class Finish:
    """Declare the end without another attempt. `step` is the one to mark failed."""

    outcome: Outcome
    reason: str
    step: str | None = None
    error: StepError | None = None
    request: str | None = None


@dataclass(frozen=True, slots=True)
class Wait:
    """A person decides; `verb` is the command that goes on, with TASK for the task's id."""

    outcome: Outcome
    step: str | None
    reason: str
    verb: str


def next_action(snapshot: Snapshot, *, cancel: str | None = None) -> Ended | Start | Finish | Wait:
    """What may happen to a task whose last worker is dead and closed, and whose lock we hold.

    `cancel` is the id of a cancel request not yet handled.
    """
    if snapshot.end is not None:
        return Ended(str(snapshot.end["outcome"]))
    if cancel is not None:
        return Finish(Outcome.CANCELLED, "cancelled on request", request=cancel)
    step = _next_open(snapshot)
    label = step.label if step else None
    waits = _waits_for(snapshot, label)
    if waits is not None:
        return waits
    if snapshot.deaths >= snapshot.death_limit:
        return _budget_spent(snapshot, label)
    if snapshot.incompletes > 1:
        return Finish(Outcome.FAILED, "the worker ended twice without an end of the task", label)
    begun = snapshot.attempts or any(s.status is not PENDING for s in snapshot.steps.values())
    return Start(label, fresh=not begun)


def _next_open(snapshot: Snapshot) -> StepState | None:
    """The resume point, past what failed for good: a skill may go on without that, and it cannot fail once more."""
    steps = (snapshot.steps[label] for label in snapshot.order)
    return next((s for s in steps if not s.status.finished and s.status is not FAILED), None)


def _waits_for(snapshot: Snapshot, label: str | None) -> Wait | None:
    if snapshot.paused:
        return Wait(Outcome.PAUSED, label, "it was paused", "continue TASK")
    uncertain = next((s.label for s in snapshot.steps.values() if s.status is UNCERTAIN), None)
    if uncertain is not None:
        verb = f"resolve TASK {uncertain!r} --done|--redo"
        return Wait(Outcome.UNCERTAIN, uncertain, f"nobody knows whether step {uncertain!r} took effect", verb)
    asked = next((q for q, answer in snapshot.questions.items() if answer is None), None)
    return None if asked is None else Wait(Outcome.QUESTION, label, f"it asks: {asked}", "answer TASK TEXT")


def command_line(verb: str, task_id: str) -> str:
    """The command that goes on."""
    return f"orchestrator {verb.replace('TASK', task_id)}"


def _budget_spent(snapshot: Snapshot, label: str | None) -> Finish:
    reason = f"{snapshot.deaths} attempts died in a row without finishing a step"
    error = StepError(ErrorClass.CRASH, "AttemptsDied", reason)
    return Finish(Outcome.FAILED, reason, label, error)


# -- a step: run it, hand it back, or neither? -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class HandBack:
    """It is done (or skipped): give its result back, run nothing."""


@dataclass(frozen=True, slots=True)
class RunTry:
    """Begin try number `number`."""

    number: int


@dataclass(frozen=True, slots=True)
class Check:
    """A `once` try was cut off: ask its check before anything else."""


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Raise the error it failed with. `commit`: the journal does not have it yet (the worker died before)."""

    error: StepError
    commit: bool


@dataclass(frozen=True, slots=True)
class Conflict:
    """It is done with other arguments: a person settles it."""


@dataclass(frozen=True, slots=True)
class Reopen:
    """It is done with other arguments, because a step before it was done anew by order: so is this one."""


StepDecision = HandBack | RunTry | Check | GiveUp | Conflict | Reopen


def decide_step(state: StepState | None, *, effect: str, retries: int, args: str, redone: int = 0) -> StepDecision:
    """What to do when a skill asks for a step. `retries` are the tries allowed after the first.

    `redone` is the journal's line with the last order to redo a step.
    """
    if state is None:
        return RunTry(1)
    if state.status is DONE:
        if state.args in (None, args):
            return HandBack()
        return Reopen() if state.committed < redone else Conflict()
    if state.status is SKIPPED:
        return HandBack()
    if state.status is FAILED:
        return GiveUp(state.error or _UNKNOWN, commit=False)
    interrupted = state.tries > 0 and state.error is None and state.status in (WORKING, UNCERTAIN)
    if state.status is UNCERTAIN or (interrupted and Effect.ONCE in (effect, state.effect)):
        return Check()
    if state.spent > retries:
        return GiveUp(state.error or _UNKNOWN, commit=True)
    return RunTry(state.tries + 1)


_UNKNOWN = StepError(ErrorClass.RUNTIME, "Unknown", "no error was recorded")


# -- an attempt: how did it end? -------------------------------------------------------------------------------------


def outcome_of(snapshot: Snapshot, exit_: WorkerExit) -> Outcome:
    """The outcome of the last attempt, concluded from the journal first and the exit status after.

    The journal wins: an attempt that recorded its end ended so, whatever its process did afterwards.
    """
    last = snapshot.attempt
    if last is not None and last.closed is not None:
        return Outcome(last.closed)
    if snapshot.end is not None:
        return Outcome(snapshot.end["outcome"])
    if exit_.code is None and exit_.signal is None:
        return Outcome.LOST
    return Outcome.INCOMPLETE if exit_.code == 0 else Outcome.CRASHED


def end_summary(snapshot: Snapshot, outcome: str, reason: str = "") -> str:
    """At most five lines: what came of the task, in words."""
    counts = snapshot.counts()
    total = len(snapshot.steps)
    lines = [f"{outcome}: {counts.get('done', 0)} of {total} step{'' if total == 1 else 's'} done"]
    if counts.get("skipped"):
        lines[0] += f", {counts['skipped']} skipped"
    if reason:
        lines.append(one_line(reason))
    return "\n".join(lines)


def one_line(text: str, limit: int = 300) -> str:
    """A text as an announcement tells it: short, and without what a terminal would obey."""
    folded = "".join(c if c.isprintable() else "\ufffd" for c in " ".join(text.split()))
    return folded if len(folded) <= limit else folded[: limit - 1] + "…"


#: What is not the task's fault is told to a person, who mends it and goes on: he is not kept waiting for half a minute.
_SETBACKS = 6


def pause_seconds(snapshot: Snapshot, luck: float) -> float:
    """The pause before the next attempt, by what is on disk: so it is kept by whoever starts it, however often."""
    failures = snapshot.deaths + min(snapshot.setbacks, _SETBACKS)
    return backoff_seconds(failures, luck) if failures else 0.0


def backoff_seconds(failures: int, luck: float) -> float:
    """The pause before the next try: doubles from 0.1 s to at most 30 s, of which a random half (`luck` in 0..1)."""
    full = min(30.0, 0.1 * 2.0 ** max(0, min(failures, 20) - 1))
    return full * (0.5 + luck / 2)
