"""Why a task is in the state it is in, on what evidence, and what happens next, by whom and when. Pure and total.

What is known comes in as `Facts`; each state has one rule below, and a state that has none yet is told by its evidence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any

from orchestrator.core import evidence
from orchestrator.core.evidence import Evidence, Facts
from orchestrator.core.lifecycle import Ended, Finish, Start, Wait, command_line, next_action
from orchestrator.core.model import Json, StepStatus
from orchestrator.core.verbs import Verb

#: A process that is none of its two identified ones holds the lock of a task whose worker is dead.
STRAY = "held by a stray"
#: Nobody is to be stopped: a coordinator has the lock between two attempts.
HELD = "held"


@dataclass(frozen=True, slots=True)
class Next:
    """What happens next. by: worker, supervisor, person, or nobody; when: now, soon, on command, or never."""

    what: str
    by: str
    when: str
    command: str | None = None


@dataclass(frozen=True, slots=True)
class Budget:
    """So much of a limit is spent; no limit is None."""

    name: str
    spent: float
    limit: float | None


@dataclass(frozen=True, slots=True)
class Explanation:
    task: str
    state: str
    why: str
    evidence: tuple[Evidence, ...]
    next: Next
    budget: tuple[Budget, ...] = ()
    orders: tuple[str, ...] = ()
    edits: tuple[str, ...] = ()
    damage: tuple[str, ...] = field(default=())

    def to_json(self) -> dict[str, Json]:
        """The stable form, schema 1 (docs/protocol.md)."""
        return {"schema": 1, **asdict(self)}


def explain(facts: Facts) -> Explanation:
    """Total: every set of facts has exactly one explanation, and asking twice gives it twice."""
    state = standing(facts)
    why, follows = _RULES.get(state, _other)(facts)
    found = tuple(evidence.of(facts, state))
    pending = tuple(_order(facts, state, order) for order in waiting_orders(facts))
    return Explanation(
        facts.task, state, why, found, follows, tuple(_budget(facts)), pending, facts.edits, facts.damage
    )


def standing(facts: Facts) -> str:
    """The state, with what the lock says beside what the journal does."""
    without_journal = facts.state == "working" and facts.snapshot.unclosed is None  # the lock alone says so
    if not facts.locked or not (facts.state == "interrupted" or without_journal):
        return facts.state
    return STRAY if any(holder.role == "stray" for holder in facts.holders) else HELD


def waiting_orders(facts: Facts) -> Iterator[Mapping[str, Any]]:
    """The orders that somebody has yet to carry out. What comes to nothing after the end is not waited for."""
    for order in facts.orders:
        if facts.snapshot.end is None or order["verb"] not in (Verb.CANCEL, Verb.SEND):
            yield order


def _order(facts: Facts, state: str, order: Mapping[str, Any]) -> str:
    step = f" of step {order['step']!r}" if order.get("step") else ""
    said = f"{order['verb']}{step} was ordered and nobody has carried it out yet"
    if state == "working":
        return f"{said}: its worker does, at its next step border"
    if _attended(facts):
        return f"{said}: whoever looks after it does, now"
    return f"{said}: whoever goes on with it does: {_command(facts, 'recover TASK')}"


def _budget(facts: Facts) -> Iterator[Budget]:
    snapshot = facts.snapshot
    yield Budget("attempts that died in a row without finishing a step", snapshot.deaths, snapshot.death_limit)
    if snapshot.incompletes:
        yield Budget("attempts in a row that left without an end", snapshot.incompletes, 2)
    attempt = snapshot.unclosed
    if attempt is not None and facts.alive:
        yield Budget(
            f"seconds of attempt {attempt.number}", _seconds(attempt.at, facts.now), facts.limits.attempt_seconds
        )
    for label in snapshot.order:
        step = snapshot.steps[label]
        if step.spent and not step.status.finished:
            retries = facts.retries.get(label)
            yield Budget(f"tries of step {label!r}", step.spent, None if retries is None else retries + 1)


def _seconds(begun: str, now: str) -> float:
    try:
        return max(0.0, round((datetime.fromisoformat(now) - datetime.fromisoformat(begun)).total_seconds(), 3))
    except (ValueError, TypeError):
        return 0.0


# -- one rule a state ------------------------------------------------------------------------------------------------

Said = tuple[str, Next]


def _attended(facts: Facts) -> bool:
    return any(who.role in ("supervisor", "serve") for who in facts.attendants)


def _command(facts: Facts, verb: str) -> str:
    return command_line(verb, facts.task)


def _going_on(facts: Facts, what: str, verb: str = "recover TASK") -> Next:
    """Somebody has to start it: whoever looks after it, or else a person."""
    roles = {who.role for who in facts.attendants}
    if "supervisor" in roles or facts.locked:
        return Next(what, "supervisor", "now")
    if "serve" in roles:
        return Next(what, "supervisor", "soon")
    return Next(what, "person", "on command", _command(facts, verb))


def _queued(facts: Facts) -> Said:
    return "it was made, and no worker has been started yet", _going_on(facts, "its first attempt is started")


def _working(facts: Facts) -> Said:
    attempt = facts.snapshot.unclosed
    number = attempt.number if attempt else 0
    open_ = [step.label for step in facts.snapshot.steps.values() if step.open_run is not None]
    doing = f"in step {', '.join(map(repr, open_))}" if open_ else "between two steps"
    if facts.alive is None:
        host = attempt.identity.host if attempt and attempt.identity else "?"
        said = f"attempt {number} runs on {host}, which cannot be asked from here"
        if facts.elsewhere and facts.locked is False:
            command = _command(facts, "recover TASK --presume-dead")
            return said, Next("nobody holds its lock here: if that machine is gone", "person", "on command", command)
        return said, Next(f"whether it lives can only be seen on {host}", "worker", "now")
    if attempt is not None and attempt.identity is None:
        return f"attempt {number} is being started: its worker has not said yet who it is", _starting(facts)
    if facts.stopped:
        pids = " ".join(map(str, facts.stopped))
        said = f"attempt {number} is stopped by a signal, {doing}"
        return said, Next("it goes on when its processes do", "person", "on command", f"kill -CONT {pids}")
    after = "" if _attended(facts) else "; should its worker die, nobody that can be seen starts another"
    return f"attempt {number} is at work, {doing}", Next(f"its worker goes on by itself{after}", "worker", "now")


def _starting(facts: Facts) -> Next:
    return _going_on(facts, "the worker says who it is, or is ended after a minute")


def _interrupted(facts: Facts) -> Said:
    why = "its last worker is gone and its end is not recorded"
    if not facts.snapshot.attempts:
        why = "its journal is lost: what is known stands in task.md"
    elif facts.snapshot.unclosed is None:
        why = f"its last attempt ended as {facts.snapshot.attempts[-1].closed}, and none was started after it"
    return why, _going_on(facts, _what_recover_does(facts))


def _what_recover_does(facts: Facts) -> str:
    cancel = next((str(order["id"]) for order in facts.orders if order["verb"] == Verb.CANCEL), None)
    match next_action(facts.after, cancel=cancel):
        case Start(step, _):
            return f"another attempt goes on at step {step!r}" if step else "another attempt brings it to its end"
        case Finish(outcome, reason):
            return f"it ends as {outcome}: {reason}"
        case Wait(outcome, _, reason, verb):
            return f"it waits for a person ({outcome}): {reason}; then: {_command(facts, verb)}"
        case Ended(outcome):
            return f"task.md is brought up to its end ({outcome})"


def _held(facts: Facts) -> Said:
    who = "a coordinator between two attempts, as it seems"
    if any(holder.role == "guard" for holder in facts.holders):
        who = "its guard, which ends what the worker left"
    why = f"its worker is gone, and its lock is held: {who}"
    return why, Next(_what_recover_does(facts), "supervisor", "now")


def _stray(facts: Facts) -> Said:
    pids = ", ".join(str(holder.pid) for holder in facts.holders if holder.role == "stray")
    return (
        f"its worker is dead, and a process that it left ({pids}) keeps its lock: nothing may be started beside it",
        Next("the stray processes are ended, then work goes on", "person", "on command", "orchestrator doctor --fix"),
    )


def _for_a_person(facts: Facts, verb: str) -> Next:
    """It waits for an order; when that, or an edit, is there already, somebody has to carry it out."""
    if facts.edits or any(True for _ in waiting_orders(facts)):
        return _going_on(facts, _what_recover_does(facts))
    return Next("it goes on", "person", "on command", _command(facts, verb))


def _paused(facts: Facts) -> Said:
    return "a person paused it", _for_a_person(facts, "continue TASK")


def _question(facts: Facts) -> Said:
    asked = [q for q, answer in facts.snapshot.questions.items() if answer is None]
    why = f"it asks: {'; '.join(asked)}" if asked else "it asked a question"
    return why, _for_a_person(facts, "answer TASK TEXT")


def _uncertain(facts: Facts) -> Said:
    label = next((s.label for s in facts.snapshot.steps.values() if s.status is StepStatus.UNCERTAIN), "")
    return (
        f"step {label!r} must not happen twice, was cut off, and nobody knows whether it took effect",
        _for_a_person(facts, f"resolve TASK {label!r} --done|--redo"),
    )


def _reason(facts: Facts) -> str:
    said = (facts.snapshot.end or {}).get("announcement") or {}
    return " ".join(str(said.get("summary", "")).split("\n")[1:])


def _failed(facts: Facts) -> Said:
    return f"it was given up: {_reason(facts) or 'see its end'}", _for_a_person(facts, "retry TASK")


def _conflict(facts: Facts) -> Said:
    reason = _reason(facts)
    found = (step for step in facts.snapshot.steps.values() if f"step {step.label!r}" in reason)
    step = next(found, None)
    label = repr(step.label) if step else "STEP"
    done = "--done --result JSON" if step and step.by_hand else "--done"  # its skill asks for what it gave
    return (
        f"a finished step is not what its skill asks for: {reason or 'see its end'}",
        _for_a_person(facts, f"resolve TASK {label} {done}|--redo"),
    )


def _completed(facts: Facts) -> Said:
    return _after_the_end(facts, "it has ended well, and its end is recorded")


def _cancelled(facts: Facts) -> Said:
    return _after_the_end(facts, "a person cancelled it")


def _after_the_end(facts: Facts, why: str) -> Said:
    if any(holder.role == "stray" for holder in facts.holders):
        step = Next("a process that it left is ended", "person", "on command", "orchestrator doctor --fix")
        return f"{why}; yet a process of it lives", step
    if facts.after.end is None:
        return why, _going_on(facts, f"it was ordered anew: {_what_recover_does(facts)}")
    return why, Next("nothing", "nobody", "never")


def _damaged(facts: Facts) -> Said:
    why = f"what lies on disk is damaged: {'; '.join(facts.damage) or 'see doctor'}"
    if facts.spec_problem:
        what = f"it cannot go on ({facts.spec_problem}): what is left can be read, the work has to be spawned anew"
        return why, Next(what, "person", "on command", "orchestrator spawn WORKER")
    what = "it is made again from what is left, the originals are kept aside, and it goes on"
    return why, _going_on(facts, what)


def _other(facts: Facts) -> Said:
    return f"its journal says so: {facts.state}", _going_on(facts, _what_recover_does(facts))


_RULES: Mapping[str, Callable[[Facts], Said]] = {
    "queued": _queued,
    "working": _working,
    "interrupted": _interrupted,
    "paused": _paused,
    "question": _question,
    "uncertain": _uncertain,
    "failed": _failed,
    "conflict": _conflict,
    "completed": _completed,
    "cancelled": _cancelled,
    "damaged": _damaged,
    STRAY: _stray,
    HELD: _held,
}

#: The states that have a rule of their own.
STATES: Sequence[str] = tuple(_RULES)
