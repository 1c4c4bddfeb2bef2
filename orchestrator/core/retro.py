"""The retrospect of one task: what its journal says of times, tries, errors and crashes. Pure; no model takes part.

Times are in seconds. What a crash cost is the time from the beginning of a try to its worker's end, where somebody saw
that end, else to the worker's last sign of life. The time between an end and its reopening by a person is nobody's and
is left out. `retro_text.py` renders it, `verdict.py` judges many.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from typing import Any

from orchestrator.core.model import ErrorClass, Outcome, Usage
from orchestrator.core.names import parse_run
from orchestrator.core.snapshot import DEATHS

Entry = Mapping[str, Any]

#: Where a failure belongs that happened in no step.
OUTSIDE = "(outside its steps)"

#: A person's orders that reopen a task which has ended.
REOPENING = frozenset({"redo", "retry", "skip"})

#: After a try that ended so, the next one of its step was not waited for.
_SETTLED = frozenset({"done", "reopened", "skipped"})

#: What may be known of usage; a key that nobody named is unknown, and never 0.
USAGE = tuple(f.name for f in fields(Usage))


@dataclass(slots=True)
class Try:
    """One try of a step.

    `how`: running, done, failed, raised, interrupted, lost (its worker died), uncertain, skipped, reopened (it was
    done, and a person ordered it anew).
    """

    attempt: int
    number: int
    begun: float
    seconds: float = 0.0
    how: str = "running"


@dataclass(slots=True)
class Failure:
    """A try that went wrong: it raised, or its worker died in it. Or the same in no step at all (`OUTSIDE`).

    `error_class` is one of `ErrorClass`, or `conflict`. `version` is that of the skill at the time, where it is known.
    """

    step: str
    attempt: int
    error_class: str
    message: str
    version: str | None = None
    for_good: bool = False  #: there was no further try
    fingerprint: str = ""  #: the same for the same failure, whatever numbers are in its message

    @property
    def kind(self) -> str:
        """What is counted as the same."""
        return self.fingerprint or self.message


@dataclass(slots=True)
class StepRetro:
    name: str
    tries: list[Try] = field(default_factory=list)
    status: str = "pending"
    waiting: float = 0.0  #: from the end of a try to the beginning of the next
    usage: dict[str, float] | None = None  #: None: nobody said
    result_bytes: int = 0  #: of a result that lies in the journal
    output_bytes: int = 0

    @property
    def own(self) -> float:
        """Time spent in tries that were not lost."""
        return sum(t.seconds for t in self.tries if t.how != "lost")

    @property
    def lost(self) -> float:
        return sum(t.seconds for t in self.tries if t.how == "lost")


@dataclass(frozen=True, slots=True)
class Volumes:
    """Bytes on disk; None is unknown, and never 0."""

    results: int | None = None
    outputs: int | None = None
    logs: int | None = None
    notes: int | None = None


@dataclass(slots=True)
class Retro:
    steps: dict[str, StepRetro] = field(default_factory=dict)
    failures: list[Failure] = field(default_factory=list)
    attempts: int = 0
    deaths: int = 0
    reopened: int = 0  #: times that a person had it go on after an end
    waiting: float = 0.0  #: from a worker's end to the next one's beginning
    seconds: float = 0.0
    outcome: str = ""  #: "" while it has not ended
    last_at: str = ""
    skill: str | None = None
    version: str | None = None  #: of the skill, as it was loaded last
    loaded_at: str = ""
    usage: dict[str, float] | None = None  #: None: nobody said
    volumes: Volumes = Volumes()

    @property
    def lost(self) -> float:
        return sum(s.lost for s in self.steps.values())

    @property
    def tries(self) -> int:
        return sum(len(s.tries) for s in self.steps.values())

    @property
    def run_twice(self) -> int:
        """Steps that were begun again after they had been committed as done, without an order: always 0."""
        return sum(_after_done(s) for s in self.steps.values())


def _after_done(step: StepRetro) -> int:
    done = [i for i, t in enumerate(step.tries) if t.how == "done"]
    return 1 if done and done[0] != len(step.tries) - 1 else 0


def analyse(entries: Iterable[Entry], *, version: str | None = None) -> Retro:
    """Fold a journal into its retrospect. `version` is the skill's, for a task whose journal does not tell it."""
    fold = _Fold(version)
    for entry in entries:
        fold.take(entry)
    return fold.finished()


class _Fold:
    def __init__(self, version: str | None) -> None:
        self.retro = Retro(version=version)
        self.open: dict[str, Try] = {}
        self.attempt = 0  # the number of the last one, as its run id has it
        self.living = False
        self.begun: float | None = None
        self.closed: float | None = None  # when the last worker ended
        self.alive = self.away = 0.0

    def take(self, entry: Entry) -> None:
        moment = _moment(str(entry.get("at", "")))
        at = self.alive if moment is None else moment - self.away  # a line without a time: none has passed
        if self.retro.outcome and _reopens(entry):
            self.away += at - self.alive
            at = self.alive
            self.retro.outcome = ""
            self.retro.reopened += 1
        if self.begun is None and entry["kind"] != "created":  # waiting for its first worker is no time of the task
            self.begun = at
        self.retro.last_at = str(entry.get("at", ""))
        kind = str(entry["kind"])
        if kind in _KINDS:
            _KINDS[kind](self, entry, at)
        elif kind in _OF_STEPS:
            self._of_step(entry, at)
        self.alive = at

    def finished(self) -> Retro:
        if not self.retro.outcome and self.begun is not None:
            self.retro.seconds = max(0.0, self.alive - self.begun)
        if self.retro.usage is None:  # the end, which knows the whole, did not say: what the steps said
            for step in self.retro.steps.values():
                self.retro.usage = _sum(self.retro.usage, step.usage)
        return self.retro

    # -- workers -----------------------------------------------------------------------------------------------

    def begin(self, entry: Entry, at: float) -> None:
        if self.living:  # nobody wrote down how the last one ended
            self._bury({"outcome": Outcome.LOST}, self.alive)
        if self.closed is not None:
            self.retro.waiting += max(0.0, at - self.closed)
        self.retro.attempts += 1
        run = parse_run(str(entry.get("run", "")))
        self.attempt = run[2] if run else self.retro.attempts
        self.living = True

    def close(self, entry: Entry, at: float) -> None:
        if self.living:
            self._bury(entry, _end_of_worker(entry, at, self.alive, self.away))

    def _bury(self, entry: Entry, at: float) -> None:
        died = entry["outcome"] in DEATHS and bool(entry.get("death", True))
        self.retro.deaths += died
        if died or entry["outcome"] == Outcome.INCOMPLETE:
            kind = ErrorClass.TIMEOUT if entry["outcome"] == Outcome.TIMED_OUT else ErrorClass.CRASH
            for label in list(self.open) or [OUTSIDE]:
                self._fail(label, kind, _how_it_died(entry))
        for lost in self.open.values():
            lost.how, lost.seconds = "lost", max(0.0, at - lost.begun)
        self.open.clear()
        self.closed, self.living = at, False

    def rebuild(self, entry: Entry, _at: float) -> None:
        """The journal was lost; how often a worker was started is what the face still tells."""
        self.retro.attempts = self.attempt = max(self.retro.attempts, int(entry.get("attempt", 0)))
        self.living, self.closed = False, None

    def load(self, entry: Entry, _at: float) -> None:
        self.retro.skill = entry.get("worker") or self.retro.skill
        self.retro.version = entry.get("version")
        self.retro.loaded_at = str(entry.get("at", ""))

    def end(self, entry: Entry, at: float) -> None:
        retro, outcome = self.retro, str(entry["outcome"])
        retro.outcome = outcome
        retro.seconds = max(0.0, at - (self.begun or 0.0))
        said = entry.get("announcement") or {}
        retro.usage = _known(said.get("usage"))
        if outcome == Outcome.CANCELLED:  # a worker that had to be killed for it did nothing wrong
            retro.failures = [
                f for f in retro.failures if (f.attempt, f.error_class) != (self.attempt, ErrorClass.CRASH)
            ]
        elif outcome in (Outcome.FAILED, Outcome.CONFLICT) and not self._explained():
            lines = str(said.get("summary") or outcome).splitlines()
            kind = Outcome.CONFLICT if outcome == Outcome.CONFLICT else entry.get("error_class") or ErrorClass.RUNTIME
            self._fail(OUTSIDE, str(kind), lines[1] if len(lines) > 1 else lines[0], for_good=True)

    def _explained(self) -> bool:
        """Whether a failed end is the failure of a step, or of workers that died in none."""
        if any(step.status == "failed" for step in self.retro.steps.values()):
            return True
        last = self.retro.failures[-1] if self.retro.failures else None
        if last is not None and last.step == OUTSIDE:
            last.for_good = True
        return last is not None and last.step == OUTSIDE

    def _fail(self, label: str, kind: str, message: str, for_good: bool = False, fingerprint: str = "") -> None:
        failure = Failure(label, self.attempt, str(kind), message, self.retro.version, for_good, fingerprint)
        self.retro.failures.append(failure)

    # -- steps -------------------------------------------------------------------------------------------------

    def _of_step(self, entry: Entry, at: float) -> None:
        for planned in entry.get("steps", ()):
            if isinstance(planned, Mapping):
                self._step(str(planned["step"]))
        if "step" not in entry:
            return
        step = self._step(str(entry["step"]))
        step.usage = _sum(step.usage, _known(entry.get("usage")))
        if entry["kind"] == "running":
            return self._run(step, entry, at)
        how = str(entry.get("status", entry["kind"]))
        ended = self.open.pop(step.name, None)
        if ended is not None:
            ended.how, ended.seconds = how, max(0.0, at - ended.begun)
        if entry.get("error"):
            self._error(step, entry, ended)
        if entry["kind"] == "commit":
            step.status = how
            step.result_bytes = _size(entry.get("result"))
            step.output_bytes = sum(int(output["size"]) for output in entry.get("outputs", ()))

    def _step(self, label: str) -> StepRetro:
        return self.retro.steps.setdefault(label, StepRetro(label))

    def _run(self, step: StepRetro, entry: Entry, at: float) -> None:
        last = step.tries[-1] if step.tries else None
        if last is not None and last.how not in _SETTLED:
            step.waiting += max(0.0, at - last.begun - last.seconds)
        begun = self.open[step.name] = Try(self.attempt, int(entry["try"]), at)
        step.tries.append(begun)
        step.status = "working"

    def _error(self, step: StepRetro, entry: Entry, ended: Try | None) -> None:
        """A try that raised; one that then is given up for good is the same failure, not another."""
        given_up = entry["kind"] == "commit" and entry.get("status") == "failed"
        if entry["kind"] == "raised" or ended is not None or not step.tries:
            error = entry["error"]
            said = ": ".join(str(error[part]) for part in ("type", "message") if error.get(part))
            self._fail(step.name, str(error.get("class")), said, given_up, str(error.get("fingerprint", "")))
        elif given_up:
            last = next((f for f in reversed(self.retro.failures) if f.step == step.name), None)
            if last is not None:
                last.for_good = True

    # -- a person's orders -------------------------------------------------------------------------------------

    def order(self, entry: Entry, at: float) -> None:
        """What was ordered by command (`handled`) or written into task.md (`redo`)."""
        verb = str(entry.get("verb", entry["kind"]))
        if "refused" in entry:
            return
        if verb == "retry":
            for step in self.retro.steps.values():
                step.status = "pending" if step.status == "failed" else step.status
        if "step" not in entry:
            return
        step = self._step(str(entry["step"]))
        left = self.open.pop(step.name, None)
        if left is not None:
            left.how, left.seconds = verb, max(0.0, at - left.begun)
        if verb == "redo":
            for done in step.tries:
                done.how = "reopened" if done.how == "done" else done.how
        step.status = _ORDERED[verb](entry) if verb in _ORDERED else step.status


_ORDERED: Mapping[str, Callable[[Entry], str]] = {
    "redo": lambda entry: "pending",
    "skip": lambda entry: "skipped",
    "resolve": lambda entry: "done" if entry.get("done") else "pending",
}

_KINDS: Mapping[str, Callable[[_Fold, Entry, float], None]] = {
    "attempt": _Fold.begin,
    "closed": _Fold.close,
    "rebuilt": _Fold.rebuild,
    "skill": _Fold.load,
    "end": _Fold.end,
    "handled": _Fold.order,
    "redo": _Fold.order,
}


#: Lines that tell what became of a step.
_OF_STEPS = frozenset({"plan", "running", "raised", "interrupted", "commit"})


def _size(result: Any) -> int:
    """Bytes of a result as JSON; 0 for none, and for one nested deeper than can be written again."""
    try:
        return len(json.dumps(result)) if result is not None else 0
    except RecursionError:
        return 0


def _reopens(entry: Entry) -> bool:
    return "refused" not in entry and entry.get("verb", entry["kind"]) in REOPENING


def _moment(text: str) -> float | None:
    """The time that a line has; None when it has none that can be read."""
    try:
        moment = datetime.fromisoformat(text)
        return (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return None


def _end_of_worker(entry: Entry, at: float, alive: float, away: float) -> float:
    """When the worker of a `closed` line ended: then, if somebody saw it; else its last sign of life."""
    sign = entry.get("last_sign")
    if not sign and ("exit" in entry or "signal" in entry or entry["outcome"] not in DEATHS):
        return at
    seen = _moment(str(sign)) if sign else None
    return alive if seen is None else max(alive, min(at, seen - away))


def _how_it_died(entry: Entry) -> str:
    if entry.get("reason"):
        return str(entry["reason"])
    if entry["outcome"] == Outcome.INCOMPLETE:
        return "the worker left before the end of the task"
    if entry.get("signal"):
        return f"the worker was ended by signal {entry['signal']}"
    return f"the worker left with exit code {entry['exit']}" if "exit" in entry else "the worker died unseen"


# -- usage: what nobody said stays unknown -------------------------------------------------------------------------


def _known(usage: Mapping[str, Any] | None) -> dict[str, float] | None:
    return {k: usage[k] for k in USAGE if usage.get(k) is not None} or None if usage else None


def _sum(one: dict[str, float] | None, other: dict[str, float] | None) -> dict[str, float] | None:
    if one is None or other is None:
        return one or other
    return {k: one.get(k, 0) + other.get(k, 0) for k in (*one, *(k for k in other if k not in one))}
