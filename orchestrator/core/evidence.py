"""What is known of a task, and which of it speaks for its state: lines of its journal, processes, its lock. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from orchestrator.core.journal import Reading
from orchestrator.core.model import Limits, StepStatus
from orchestrator.core.snapshot import Entry, Snapshot


@dataclass(frozen=True, slots=True)
class Evidence:
    """One thing that is known, with the number (from 1) and the time of its line when it stands in the journal."""

    what: str
    line: int | None = None
    at: str | None = None


@dataclass(frozen=True, slots=True)
class Process:
    """A living process. role: worker, guard, supervisor, serve, stray (carries the task's mark), or other."""

    pid: int
    role: str
    command: str = ""


@dataclass(frozen=True, slots=True)
class Facts:
    """`locked` and `alive` are None where they cannot be known. `holders` have the lock; `attendants` look after it.

    `after` is the snapshot with the last worker taken for dead, and orders and edits carried out: what follows is told
    by it.
    """

    task: str
    state: str
    snapshot: Snapshot
    after: Snapshot
    entries: tuple[tuple[int, Entry], ...] = ()
    now: str = ""
    alive: bool | None = False
    locked: bool | None = False
    holders: tuple[Process, ...] = ()
    attendants: tuple[Process, ...] = ()
    orders: tuple[Mapping[str, Any], ...] = ()
    edits: tuple[str, ...] = ()
    damage: tuple[str, ...] = ()
    spec_problem: str = ""
    limits: Limits = field(default_factory=Limits)
    retries: Mapping[str, int] = field(default_factory=dict)
    stopped: tuple[int, ...] = ()  #: pids of its worker and guard that a signal has stopped
    elsewhere: bool = False  #: its worker is on another machine, whose locks are not seen here either
    copied: bool = False  #: its last attempt was begun in another directory


def numbered(reading: Reading) -> tuple[tuple[int, Entry], ...]:
    """The entries with the numbers of their lines in the file: damaged ones between them are counted."""
    bad, number, found = set(reading.damaged), 0, []
    for entry in reading.entries:
        if "made_up" in entry:  # it stands for a line that cannot be read
            continue
        number += 1
        while number in bad:
            number += 1
        found.append((number, entry))
    return tuple(found)


def of(facts: Facts, state: str) -> Iterator[Evidence]:
    """Everything that speaks for the state, the most telling first."""
    for kind in _TELLING.get(state, ("closed", "started", "attempt")):
        number, entry = _last(facts, kind)
        if entry is not None:
            yield Evidence(_said(kind, entry), number, str(entry.get("at", "")))
    yield from _of_the_attempt(facts)
    yield from _of_the_steps(facts)
    yield from _of_the_lock(facts)


#: Which kinds of lines speak for which state. What is not here is told by its attempt.
_TELLING: Mapping[str, tuple[str, ...]] = {
    "queued": (),
    "working": ("started", "attempt"),
    "paused": ("handled", "closed"),
    "question": ("asked", "closed"),
    "uncertain": ("closed",),
    **dict.fromkeys(("completed", "failed", "conflict", "cancelled"), ("end", "closed")),
}


def _last(facts: Facts, kind: str) -> tuple[int, Entry | None]:
    return next(((n, e) for n, e in reversed(facts.entries) if e["kind"] == kind), (0, None))


def _said(kind: str, entry: Entry) -> str:
    """A line of the journal in words."""
    match kind:
        case "end":
            ordered = f", as request {entry['request']} ordered" if "request" in entry else ""
            return f"the end was recorded: {entry['outcome']}{ordered}"
        case "closed":
            return f"attempt {_number(entry)} ended: {entry['outcome']}{_how(entry)}"
        case "attempt":
            return f"attempt {_number(entry)} was begun"
        case "started":
            return f"attempt {_number(entry)} said who it is: worker {entry['worker'][0]}, guard {entry['guard'][0]}"
        case "handled":
            refused = f", refused: {entry['refused']}" if "refused" in entry else ""
            return f"the order {entry['verb']} was carried out{refused}"
        case _:
            return f"a question was asked: {entry.get('question', '')}"


def _number(entry: Entry) -> str:
    return str(entry["run"]).rpartition(".")[2]


def _how(entry: Entry) -> str:
    """How a worker's process ended, as far as somebody saw it."""
    told = []
    if entry.get("exit") is not None:
        told.append(f"exit code {entry['exit']}")
    if entry.get("signal") is not None:
        told.append(f"signal {entry['signal']}")
    if entry.get("last_sign"):
        told.append(f"{'' if told else 'nobody saw how; '}it last wrote something at {entry['last_sign']}")
    if entry.get("reason"):
        told.append(str(entry["reason"]))
    return f" ({', '.join(told)})" if told else ""


def _of_the_attempt(facts: Facts) -> Iterator[Evidence]:
    attempt = facts.snapshot.unclosed
    if attempt is None:
        if not facts.snapshot.attempts:
            yield Evidence("the journal has no attempt")
        return
    if attempt.identity is None:
        yield Evidence(f"attempt {attempt.number} has no line that says who its worker is")
        return
    if facts.copied:
        yield Evidence(f"{attempt.run} was begun in another directory: this one is a copy, and has no worker")
        return
    said = {True: "lives", False: "is dead", None: f"is on {attempt.identity.host}, which cannot be asked from here"}
    yield Evidence(
        f"worker {attempt.identity.pid} of attempt {attempt.number} {said[facts.alive]} (told by pid, start, boot)"
    )
    if not facts.alive:
        yield Evidence(f"attempt {attempt.number} has no line that says how it ended")
    yield from (Evidence(f"process {pid} is stopped by a signal") for pid in facts.stopped)


_OF_A_STEP: Mapping[StepStatus, str] = {
    StepStatus.WORKING: "running",
    StepStatus.FAILED: "commit",
    StepStatus.UNCERTAIN: "commit",
}


def _of_the_steps(facts: Facts) -> Iterator[Evidence]:
    """The steps that are open or went wrong: those that are done and those that lie ahead explain nothing."""
    for label in facts.snapshot.order:
        step = facts.snapshot.steps[label]
        kind = _OF_A_STEP.get(step.status)
        if kind is None:
            continue
        line, entry = _of_step(facts, label, kind)
        error = f": {step.error.type}: {step.error.message}" if step.error else ""
        yield Evidence(
            f"step {label!r} is {step.status}, try {step.tries}{error}",
            line or None,
            str(entry["at"]) if entry is not None and "at" in entry else None,
        )


def _of_step(facts: Facts, label: str, kind: str) -> tuple[int, Entry | None]:
    found = ((n, e) for n, e in reversed(facts.entries) if e["kind"] == kind and e.get("step") == label)
    return next(found, (0, None))


def _of_the_lock(facts: Facts) -> Iterator[Evidence]:
    if facts.locked is None:
        yield Evidence("whether somebody holds its lock cannot be known")
    elif not facts.locked:
        yield Evidence("nobody holds its lock")
        if facts.alive and facts.snapshot.unclosed is not None and facts.snapshot.unclosed.identity is not None:
            yield Evidence("its worker lives and does not hold this lock: is this directory a copy of another task?")
    elif not facts.holders:
        yield Evidence("somebody holds its lock, and who cannot be seen from here")
    for holder in facts.holders:
        yield Evidence(f"process {holder.pid} ({holder.role}) holds its lock: {holder.command}")
    for who in facts.attendants:
        yield Evidence(f"process {who.pid} looks after it ({who.role})")
