"""The fold of a journal: what a task is, told by its lines.

`Snapshot.apply` is the one place where a line means something. Its cost does not grow with the lines before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from orchestrator.core.model import Effect, Identity, Limits, Outcome, StepError, StepId, StepStatus
from orchestrator.core.names import parse_run
from orchestrator.core.told import AttemptState, Numbers, StepState, id_of, seconds_between

__all__ = ["DEATHS", "AttemptState", "Entry", "Snapshot", "StepState", "fold"]

Entry = Mapping[str, Any]


@dataclass(slots=True)
class Snapshot:
    """The fold of a journal. `apply` takes one entry more; its cost does not grow with those before it."""

    steps: dict[str, StepState] = field(default_factory=dict)
    order: list[str] = field(default_factory=list)
    labels: dict[StepId, str] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)  #: casefolded file name -> label
    attempts: list[AttemptState] = field(default_factory=list)
    deaths: int = 0  #: attempts that died in a row since the last done commit
    death_limit: int = Limits().deaths
    skill: str | None = None  #: the version of the skill that the newest attempt loaded
    setbacks: int = 0  #: attempts in a row that died by no fault of the task (a full disk), since the last done commit
    incompletes: int = 0  #: attempts that ended without an end in a row, likewise
    end: dict[str, Any] | None = None
    end_closed: bool = False  #: all that belongs to the end was written: the `closed` line came after it
    attention: dict[str, Any] | None = None  #: the announcement of an attempt that waits for a person
    announced: str = ""  #: the run that the last announcement was made in
    handled: set[str] = field(default_factory=set)
    paused: bool = False
    heard: dict[int, list[str]] = field(default_factory=dict)  #: call of `messages` -> what it gave
    questions: dict[str, str | None] = field(default_factory=dict)  #: id -> answer, None while it is open
    generation: str = ""
    seq: Numbers = field(default_factory=Numbers)  #: the highest number of a line, by run
    ignored: int = 0  #: lines of a replaced attempt, or said twice
    attempt_offset: int = 0
    lines: int = 0  #: that counted
    redone: int = 0  #: which of them is the last order to redo a step
    current: str = ""  #: the run of the last line that counted
    begun: str = ""
    ended: str = ""  #: when its last end was, though it may have been reopened since
    idle: float = 0.0  #: seconds between its ends and the attempts after them
    last_at: str = ""

    @property
    def attempt(self) -> AttemptState | None:
        return self.attempts[-1] if self.attempts else None

    @property
    def attempt_number(self) -> int:
        return max(self.attempts[-1].number if self.attempts else 0, self.attempt_offset)

    @property
    def unclosed(self) -> AttemptState | None:
        """The last attempt when it has neither ended nor been declared dead."""
        last = self.attempt
        return last if last is not None and last.closed is None else None

    def resume_point(self) -> StepState | None:
        """The first step, in order, that is neither done nor skipped."""
        return next((self.steps[label] for label in self.order if not self.steps[label].status.finished), None)

    def before(self, label: str) -> str | None:
        """The step that stands before this one; None for the first."""
        if self.order[-1] == label:  # the usual case, and not a search
            return self.order[-2] if len(self.order) > 1 else None
        position = self.order.index(label)
        return self.order[position - 1] if position else None

    def presume_dead(self) -> None:
        """Take an attempt that has not closed for dead; for telling what would be done. The journal is not changed."""
        if self.unclosed is not None:
            _close(self, self.unclosed, str(self.end["outcome"]) if self.end else Outcome.LOST)

    def counts(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for state in self.steps.values():
            found[state.status.value] = found.get(state.status.value, 0) + 1
        return found

    def apply(self, entry: Entry) -> bool:
        """Fold one entry in. False when it does not count: its attempt was replaced, or it was there already."""
        run = str(entry["run"])
        seq = int(entry.get("seq", 0))
        if self.seq.has(run, seq) or self._replaced(run, entry):
            self.ignored += 1
            return False
        self.seq.add(run, seq)
        self.lines += 1
        self.last_at = str(entry.get("at", ""))
        if not self.begun and entry["kind"] == "attempt":
            self.begun = self.last_at
        fold = _FOLDS.get(str(entry["kind"]))
        if fold is not None:  # a kind of a later version is kept in the file and passed over here
            fold(self, entry)
        return True

    def _replaced(self, run: str, entry: Entry) -> bool:
        """The fence: only its `attempt` line begins an attempt, and of all but the newest no line counts any more."""
        begins = bool(entry["kind"] == "attempt")
        if run == self.current:
            return begins or entry["kind"] == "rebuilt"
        parsed = parse_run(run)
        if parsed is None:
            return True
        if entry["kind"] == "rebuilt":  # the first line, or of a holder who found that those after `after` are lost
            if self.lines and entry.get("after") != self.current:
                return True
            self.current = run
            return False
        _, generation, number = parsed
        newest = number > self.attempt_number if begins else not self.attempts and number == self.attempt_number
        if generation != self.generation or not newest:
            return True
        self.current = run
        return False

    def step_of(self, entry: Entry) -> StepState:
        label = str(entry["step"])
        return self.steps.get(label) or self._add(label, entry)

    def _add(self, label: str, entry: Entry) -> StepState:
        step = id_of(entry)
        state = StepState(step, label, str(entry.get("file", label + ".md")), foreign=bool(entry.get("by_hand")))
        self.steps[label] = state
        self.labels[step] = label
        self.files[state.file.casefold()] = label
        after = entry.get("after")
        if after in self.steps and after != label:
            self.order.insert(self.order.index(str(after)) + 1, label)
        else:
            self.order.append(label)
        return state


def fold(entries: Iterable[Entry]) -> Snapshot:
    snapshot = Snapshot()
    for entry in entries:
        snapshot.apply(entry)
    return snapshot


def _attempt(snapshot: Snapshot, entry: Entry) -> None:
    last = snapshot.unclosed
    if last is not None:
        _close(snapshot, last, Outcome.LOST)
    parsed = parse_run(str(entry["run"]))
    assert parsed is not None  # apply() let it in
    snapshot.attempts.append(
        AttemptState(
            parsed[2],
            str(entry["run"]),
            str(entry.get("at", "")),
            str(entry.get("token", "")),
            entry.get("cgroup"),
            place=entry.get("place"),
        )
    )
    snapshot.idle += seconds_between(snapshot.ended, str(entry.get("at", "")))
    snapshot.ended = ""
    snapshot.attention = None
    snapshot.death_limit = int(entry.get("deaths", snapshot.death_limit))


def _skill(snapshot: Snapshot, entry: Entry) -> None:
    snapshot.skill = entry.get("version")


def _started(snapshot: Snapshot, entry: Entry) -> None:
    if snapshot.attempt is not None:
        snapshot.attempt.identity = Identity(*entry["worker"])
        snapshot.attempt.guard = Identity(*entry["guard"])


def _plan(snapshot: Snapshot, entry: Entry) -> None:
    after = entry.get("after")
    for step in entry["steps"]:
        state = snapshot.step_of({**step, "after": after} if after else step)
        after = state.label if after else None


def _running(snapshot: Snapshot, entry: Entry) -> None:
    state = snapshot.step_of(entry)
    if "file" in entry:  # the one that was planned for it has the name of one of its outputs
        state.file = str(entry["file"])
        snapshot.files[state.file.casefold()] = state.label
    if state.foreign:  # the line was of this step: of one that is called otherwise, perhaps
        snapshot.labels.pop(state.id, None)
        state.id, state.foreign = id_of(entry), False
        snapshot.labels[state.id] = state.label
    state.status = StepStatus.WORKING
    state.tries = int(entry["try"])
    state.spent += 1
    state.open_run = str(entry["run"])
    state.error = None
    state.effect = str(entry.get("effect", Effect.IDEMPOTENT))
    state.args = entry.get("args")
    state.at = str(entry.get("at", ""))
    state.attempt = snapshot.attempt_number


def _raised(snapshot: Snapshot, entry: Entry) -> None:
    state = snapshot.step_of(entry)
    state.open_run = None
    state.error = StepError.from_json(entry["error"])


def _interrupted(snapshot: Snapshot, entry: Entry) -> None:
    snapshot.step_of(entry).refund()


def _commit(snapshot: Snapshot, entry: Entry) -> None:
    state = snapshot.step_of(entry)
    if state.status is StepStatus.UNCERTAIN:  # what was waited for is known
        snapshot.attention = None
    if state.status is StepStatus.FAILED and entry.get("by_hand"):  # passed over: a person's word reopens the task
        _live_on(snapshot)
    state.status = StepStatus(entry["status"])
    state.open_run = None
    state.tries = int(entry.get("try", state.tries))
    state.args = entry.get("args", state.args)
    state.result = entry.get("result")
    state.result_file = entry.get("result_file")
    state.error = StepError.from_json(entry["error"]) if entry.get("error") else None
    state.outputs = tuple(entry.get("outputs", ()))
    state.by_hand = bool(entry.get("by_hand", False))
    state.why = str(entry.get("why", ""))
    state.at = str(entry.get("at", ""))
    state.attempt = snapshot.attempt_number
    state.committed = snapshot.lines
    if state.status is StepStatus.DONE:
        snapshot.deaths = snapshot.setbacks = snapshot.incompletes = 0


def _new_order(snapshot: Snapshot, entry: Entry) -> None:
    wanted = [label for label in entry["steps"] if label in snapshot.steps]
    snapshot.order = wanted + [label for label in snapshot.order if label not in set(wanted)]


def _end(snapshot: Snapshot, entry: Entry) -> None:
    snapshot.end, snapshot.end_closed, snapshot.announced = dict(entry), False, str(entry["run"])
    snapshot.ended = str(entry.get("at", ""))
    snapshot.paused = False  # who takes it up anew need not say `continue` as well
    if "request" in entry:
        snapshot.handled.add(str(entry["request"]))


#: Ends of an attempt that spend the task's budget of deaths.
DEATHS = frozenset({Outcome.CRASHED, Outcome.LOST, Outcome.TIMED_OUT})


def _closed(snapshot: Snapshot, entry: Entry) -> None:
    if snapshot.attempt is not None and snapshot.attempt.closed is None:
        _close(snapshot, snapshot.attempt, str(entry["outcome"]), spend=bool(entry.get("death", True)))
    snapshot.attention = entry.get("announcement")
    if snapshot.attention is not None:
        snapshot.announced = str(entry["run"])
    snapshot.end_closed = snapshot.end is not None


def _close(snapshot: Snapshot, attempt: AttemptState, outcome: str, *, spend: bool = True) -> None:
    """End the attempt; the tries it left open were cut off by its death, which is what they count as."""
    attempt.closed = outcome
    if outcome in DEATHS:
        snapshot.deaths += spend
        snapshot.setbacks += not spend
    if outcome == Outcome.INCOMPLETE:
        snapshot.incompletes += 1
    for state in snapshot.steps.values():
        if state.open_run == attempt.run:
            state.refund()


def _rebuilt(snapshot: Snapshot, entry: Entry) -> None:
    snapshot.generation = str(entry["generation"])
    snapshot.attempt_offset = int(entry.get("attempt", 0))


def _deaths(snapshot: Snapshot, entry: Entry) -> None:
    snapshot.deaths = int(entry["deaths"])


# -- a person's orders ---------------------------------------------------------------------------------------------


def _handled(snapshot: Snapshot, entry: Entry) -> None:
    """An order takes effect by this very line: exactly once. One that was refused changes nothing."""
    snapshot.handled.add(str(entry["request"]))
    effect = _ORDERS.get(str(entry.get("verb")))
    if effect is not None and "refused" not in entry:
        effect(snapshot, entry)


def _order_pause(snapshot: Snapshot, _entry: Entry) -> None:
    snapshot.paused = True


def _order_continue(snapshot: Snapshot, _entry: Entry) -> None:
    snapshot.paused = False
    snapshot.attention = None


def _order_retry(snapshot: Snapshot, entry: Entry) -> None:
    for step in snapshot.steps.values():
        if step.status is StepStatus.FAILED:
            step.reopen(entry.get("at"))
    _live_on(snapshot)


def _order_redo(snapshot: Snapshot, entry: Entry) -> None:
    state = snapshot.step_of(entry)
    state.tries = max(state.tries, int(entry.get("try", 0)))
    state.reopen(entry.get("at"))
    snapshot.redone = snapshot.lines
    _live_on(snapshot)


def _live_on(snapshot: Snapshot) -> None:
    snapshot.deaths = snapshot.setbacks = snapshot.incompletes = 0
    snapshot.end = snapshot.attention = None


def _order_skip(snapshot: Snapshot, entry: Entry) -> None:
    step = snapshot.step_of(entry)
    if snapshot.end is None or step.status is StepStatus.FAILED:  # else the end stands, with one step less to do
        _live_on(snapshot)
    step.status, step.why, step.open_run = StepStatus.SKIPPED, str(entry.get("why", "")), None


def _order_resolve(snapshot: Snapshot, entry: Entry) -> None:
    step = snapshot.step_of(entry)
    if entry.get("done"):
        if "result" in entry or step.status is not StepStatus.DONE:  # a conflict: what it gave stands
            step.result, step.result_file = entry.get("result"), None
        step.status, step.why, step.by_hand = StepStatus.DONE, "resolved by a person", False
        step.args = None  # a person vouches for it, whatever it is asked for with
        step.error, step.open_run, step.committed = None, None, snapshot.lines
    else:
        step.reopen(entry.get("at"))
    _live_on(snapshot)


def _order_answer(snapshot: Snapshot, entry: Entry) -> None:
    snapshot.questions[str(entry["question"])] = str(entry.get("text", ""))
    snapshot.attention = None


_ORDERS: Mapping[str, Callable[[Snapshot, Entry], None]] = {
    "pause": _order_pause,
    "continue": _order_continue,
    "retry": _order_retry,
    "redo": _order_redo,
    "skip": _order_skip,
    "resolve": _order_resolve,
    "answer": _order_answer,
}


def _heard(snapshot: Snapshot, entry: Entry) -> None:
    snapshot.heard[int(entry["call"])] = [str(text) for text in entry["texts"]]
    snapshot.handled.update(str(request) for request in entry["requests"])


def _asked(snapshot: Snapshot, entry: Entry) -> None:
    snapshot.questions.setdefault(str(entry["question"]), None)


_FOLDS: Mapping[str, Callable[[Snapshot, Entry], None]] = {
    "attempt": _attempt,
    "started": _started,
    "skill": _skill,
    "plan": _plan,
    "running": _running,
    "raised": _raised,
    "interrupted": _interrupted,
    "commit": _commit,
    "handled": _handled,
    "order": _new_order,
    "redo": _order_redo,
    "asked": _asked,
    "heard": _heard,
    "end": _end,
    "closed": _closed,
    "rebuilt": _rebuilt,
    "deaths": _deaths,
}
