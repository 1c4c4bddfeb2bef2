"""What a person may order of a task, and what each order does. Pure.

An order is a request on disk; whoever holds the task's lock carries it out by one `handled` line in the journal, which
*is* its effect: exactly once, however often the request is read.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from typing import Any

from orchestrator.core.model import Outcome, StepStatus
from orchestrator.core.snapshot import Snapshot, StepState


class Verb(enum.StrEnum):
    CANCEL = "cancel"
    PAUSE = "pause"
    CONTINUE = "continue"
    RETRY = "retry"
    REDO = "redo"
    SKIP = "skip"
    RESOLVE = "resolve"
    SEND = "send"
    ANSWER = "answer"


#: Verbs whose request names a step.
OF_A_STEP = frozenset({Verb.REDO, Verb.SKIP, Verb.RESOLVE})

Refusal = tuple[str, str]  #: what, and what to do instead

#: Ends that a retry may reopen.
_FAILED = frozenset({Outcome.FAILED, Outcome.CONFLICT})


def refusal(snapshot: Snapshot, request: Mapping[str, Any]) -> Refusal | None:
    """Why this order cannot be carried out now; None when it can. Total over every verb and every state."""
    verb = str(request["verb"])
    if verb not in _RULES:
        return f"there is no order {verb!r}", f"there are: {', '.join(Verb)}"
    if verb in OF_A_STEP:
        label = str(request.get("step"))
        step = snapshot.steps.get(label)
        if step is None:
            known = ", ".join(repr(name) for name in snapshot.order[:8]) or "none yet"
            return f"there is no step {label!r}", f"its steps are: {known}"
        return _STEP_RULES[verb](snapshot, step)
    return _RULES[verb](snapshot, request)


def _ended(snapshot: Snapshot) -> str | None:
    return str(snapshot.end["outcome"]) if snapshot.end is not None else None


def _not_after_the_end(what: str) -> Callable[[Snapshot, Mapping[str, Any]], Refusal | None]:
    def rule(snapshot: Snapshot, _request: Mapping[str, Any]) -> Refusal | None:
        outcome = _ended(snapshot)
        return (f"it has ended already ({outcome}): {what}", _way_out(snapshot)) if outcome else None

    return rule


def _way_out(snapshot: Snapshot) -> str:
    outcome = _ended(snapshot)
    if outcome in _FAILED:
        return "to go on: orchestrator retry TASK"
    done = next((label for label in reversed(snapshot.order) if snapshot.steps[label].status.finished), None)
    return f"to have a step done anew: orchestrator redo TASK {done!r}" if done else "spawn the work anew"


def _pause(snapshot: Snapshot, request: Mapping[str, Any]) -> Refusal | None:
    if snapshot.paused and snapshot.end is None:
        return "it is paused already", "to go on: orchestrator continue TASK"
    return _not_after_the_end("there is nothing to pause")(snapshot, request)


def _continue(snapshot: Snapshot, _request: Mapping[str, Any]) -> Refusal | None:
    if snapshot.end is not None:
        return f"it has ended already ({_ended(snapshot)})", _way_out(snapshot)
    return None if snapshot.paused else ("it is not paused", "to go on after a crash: orchestrator recover TASK")


def _retry(snapshot: Snapshot, _request: Mapping[str, Any]) -> Refusal | None:
    if _ended(snapshot) in _FAILED:
        return None
    failed = next((s for s in snapshot.steps.values() if s.status is StepStatus.FAILED), None)
    if failed is not None and snapshot.end is None:
        return None
    state = f"it is {_ended(snapshot)}" if snapshot.end else "it has not failed"
    return f"{state}: there is nothing to retry", _way_out(snapshot) if snapshot.end else "see: orchestrator show TASK"


def _answer(snapshot: Snapshot, request: Mapping[str, Any]) -> Refusal | None:
    if not str(request.get("text", "")).strip():
        return "an empty answer is none", "say what it is: orchestrator answer TASK TEXT"
    if snapshot.end is not None:
        return f"it has ended already ({_ended(snapshot)}): nobody asks any more", _way_out(snapshot)
    question = request.get("question")
    asked = [q for q, a in snapshot.questions.items() if a is None]
    if not asked or (question is not None and question not in asked):
        return "no such question is open", "see: orchestrator show TASK"
    return None


def _redo(snapshot: Snapshot, step: StepState) -> Refusal | None:
    if step.status.finished or step.status is StepStatus.FAILED:
        return None
    if step.status is StepStatus.UNCERTAIN:
        return f"step {step.label!r} is uncertain", "say what you found: orchestrator resolve TASK STEP --done|--redo"
    if snapshot.end is not None:
        failed = _ended(snapshot) in _FAILED
        hint = "to go on: orchestrator retry TASK" if failed else "spawn the work anew to have it after all"
        return f"step {step.label!r} is {step.status}, and the task has ended ({_ended(snapshot)})", hint
    return f"step {step.label!r} is {step.status}: it is run anyway", "to go on: orchestrator recover TASK"


def _skip(snapshot: Snapshot, step: StepState) -> Refusal | None:
    if _ended(snapshot) in (Outcome.COMPLETED, Outcome.CANCELLED):
        return f"it has ended already ({_ended(snapshot)})", _way_out(snapshot)
    if step.status.finished:
        return f"step {step.label!r} is {step.status} already", "to have it done anew: orchestrator redo TASK STEP"
    if step.open_run is not None and snapshot.unclosed is not None:
        return (
            f"step {step.label!r} is running at this moment",
            "wait for it, or stop the task at its end: orchestrator pause TASK",
        )
    return None


def _resolve(snapshot: Snapshot, step: StepState) -> Refusal | None:
    if _ended(snapshot) in (Outcome.COMPLETED, Outcome.CANCELLED):
        return f"it has ended already ({_ended(snapshot)})", _way_out(snapshot)
    if step.status is StepStatus.UNCERTAIN or (step.status is StepStatus.DONE and _ended(snapshot) == Outcome.CONFLICT):
        return None
    return f"step {step.label!r} is {step.status}, not uncertain", "to have it done anew: orchestrator redo TASK STEP"


_RULES: Mapping[str, Callable[[Snapshot, Mapping[str, Any]], Refusal | None]] = {
    Verb.CANCEL: _not_after_the_end("there is nothing to cancel"),
    Verb.PAUSE: _pause,
    Verb.CONTINUE: _continue,
    Verb.RETRY: _retry,
    Verb.SEND: _not_after_the_end("nobody reads it"),
    Verb.ANSWER: _answer,
    **dict.fromkeys(OF_A_STEP, lambda _snapshot, _request: None),
}

_STEP_RULES: Mapping[str, Callable[[Snapshot, StepState], Refusal | None]] = {
    Verb.REDO: _redo,
    Verb.SKIP: _skip,
    Verb.RESOLVE: _resolve,
}
