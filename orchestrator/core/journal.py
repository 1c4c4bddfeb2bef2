"""The commit log: its lines as text, and their fold into a Snapshot.

A line is one JSON object, closed by a CRC-32 of all that stands before it. Lines are only ever appended. What a reader
makes of a file is total: every sequence of bytes gives a snapshot, a length up to which it is sound, and what is
damaged.

Kinds and what they carry beside `run`, `seq`, `at` and `kind` (a step is named by its label; `name`, `n`, `key` and
`file` are written only where they differ from what the label says):

    attempt      token, cgroup, deaths                   a worker is about to be started
    started      worker, guard                           its first act: the identities of its two processes
    skill        version                                 what the worker loaded
    plan         steps, after                            steps are expected
    running      step, try, effect, args, after          a try begins
    raised       step, try, error                        the try failed and spends budget; the step is not given up
    interrupted  step, try, why                          the try was stopped on purpose and is refunded
    commit       step, try, status, result, …            done, skipped, failed for good, or uncertain
    handled      request, verb, …                        a request took effect
    order        steps                                   a person gave the steps a new order
    redo         step, why                               a person reopened a step (and with it an ended task)
    end          outcome, announcement                   the task has ended
    closed       outcome, announcement?, exit?, …        the attempt has ended; an attempt without it died
    rebuilt      generation, attempt                     the log was lost and made again from the face
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from orchestrator.core.model import Effect, Identity, Limits, Outcome, StepError, StepId, StepStatus
from orchestrator.core.names import parse_run

Entry = Mapping[str, Any]

_MARK = b',"crc":"'
_TAIL = len(_MARK) + 8 + 2  # eight hex digits, quote, brace
_encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode
_decode = json.JSONDecoder().raw_decode  # a line is one object, whole by its checksum: nothing may follow


def encode(entry: Entry) -> bytes:
    """The entry as one line with its checksum and newline. Raises ValueError or TypeError for what JSON cannot hold."""
    body = _encode(entry).encode("ascii")[:-1]
    return b'%s,"crc":"%08x"}\n' % (body, zlib.crc32(body))


def decode(line: bytes) -> dict[str, Any] | None:
    """The entry of one line without its newline, or None when it is not whole."""
    cut = len(line) - _TAIL
    if cut <= 0 or line[cut : cut + len(_MARK)] != _MARK or line[-2:] != b'"}':
        return None
    body = line[:cut]
    if b"%08x" % zlib.crc32(body) != line[-10:-2]:
        return None
    try:
        entry = _decode(body.decode("ascii") + "}")[0]
    except ValueError:
        return None
    return entry if isinstance(entry, dict) and "kind" in entry and "run" in entry else None


@dataclass(frozen=True, slots=True)
class Reading:
    """What a journal file says. `sound` is the length of the prefix of whole lines; `torn` are bytes behind it.

    `damaged` are the numbers (from 1) of bad lines that have good ones after them: no crash makes those.
    """

    entries: tuple[dict[str, Any], ...]
    sound: int
    torn: int
    damaged: tuple[int, ...] = ()


def read(data: bytes) -> Reading:
    """Read a journal. Total; a bad end is torn, a bad line in the middle is damage and is left out."""
    entries: list[dict[str, Any]] = []
    bad: list[int] = []
    sound = offset = number = last_good = 0
    size = len(data)
    while offset < size:
        end = data.find(b"\n", offset)
        number += 1
        entry = decode(data[offset:end]) if end >= 0 else None
        offset = end + 1 if end >= 0 else size
        if entry is None:
            bad.append(number)
            continue
        entries.append(entry)
        sound, last_good = offset, number
    return Reading(tuple(entries), sound, size - sound, tuple(n for n in bad if n < last_good))


@dataclass(slots=True)
class StepState:
    """What the journal says of one step. Owned by its Snapshot; everybody else only reads it."""

    id: StepId
    label: str
    file: str
    status: StepStatus = StepStatus.PENDING
    tries: int = 0  #: begun so far, over all attempts
    spent: int = 0  #: of these, the ones that count against the step's retries
    open_run: str | None = None  #: the run whose try has begun and not ended
    effect: str = Effect.IDEMPOTENT
    args: str | None = None
    result: Any = None
    result_file: str | None = None
    error: StepError | None = None
    outputs: tuple[Mapping[str, Any], ...] = ()
    by_hand: bool = False
    why: str = ""
    at: str = ""
    attempt: int = 0  #: in which its last try began or its commit was made
    committed: int = 0  #: which line of the journal, counted from 1, its commit is


@dataclass(slots=True)
class AttemptState:
    number: int
    run: str
    at: str
    token: str = ""
    cgroup: str | None = None
    identity: Identity | None = None
    guard: Identity | None = None  #: the process around the worker, which goes last
    closed: str | None = None  #: the outcome, None while it lives or when it died unseen


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
    incompletes: int = 0  #: attempts that ended without an end in a row, likewise
    end: dict[str, Any] | None = None
    attention: dict[str, Any] | None = None  #: the announcement of an attempt that waits for a person
    handled: set[str] = field(default_factory=set)
    generation: str = ""
    seq: dict[str, int] = field(default_factory=dict)
    ignored: int = 0  #: lines of a replaced attempt, or said twice
    attempt_offset: int = 0
    lines: int = 0  #: that counted
    redone: int = 0  #: which of them is the last order to redo a step
    current: str = ""  #: the run of the last line that counted
    begun: str = ""
    last_at: str = ""

    @property
    def attempt(self) -> AttemptState | None:
        return self.attempts[-1] if self.attempts else None

    @property
    def attempt_number(self) -> int:
        return self.attempts[-1].number if self.attempts else self.attempt_offset

    @property
    def unclosed(self) -> AttemptState | None:
        """The last attempt when it has neither ended nor been declared dead."""
        last = self.attempt
        return last if last is not None and last.closed is None else None

    def resume_point(self) -> StepState | None:
        """The first step, in order, that is neither done nor skipped."""
        return next((self.steps[label] for label in self.order if not self.steps[label].status.finished), None)

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
        if seq <= self.seq.get(run, 0) or self._replaced(run, entry):
            self.ignored += 1
            return False
        self.seq[run] = seq
        self.lines += 1
        self.last_at = str(entry.get("at", ""))
        if not self.begun:
            self.begun = self.last_at
        fold = _FOLDS.get(str(entry["kind"]))
        if fold is not None:  # a kind of a later version is kept in the file and passed over here
            fold(self, entry)
        return True

    def _replaced(self, run: str, entry: Entry) -> bool:
        """The fence: a line of a lower attempt than the newest does not count."""
        if run == self.current:
            return False
        parsed = parse_run(run)
        if parsed is None:
            return True
        if entry["kind"] == "rebuilt":
            return False
        _, generation, number = parsed
        if generation != self.generation or number < self.attempt_number:
            return True
        self.current = run
        return False

    def step_of(self, entry: Entry) -> StepState:
        label = str(entry["step"])
        return self.steps.get(label) or self._add(label, entry)

    def _add(self, label: str, entry: Entry) -> StepState:
        key = entry.get("key")
        step = StepId(str(entry.get("name", label)), int(entry.get("n", 1)), None if key is None else str(key))
        state = StepState(step, label, str(entry.get("file", label + ".md")))
        self.steps[label] = state
        self.labels[step] = label
        self.files[state.file.casefold()] = label
        after = entry.get("after")
        if after in self.steps:
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
        )
    )
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
    _refund(snapshot.step_of(entry))


def _refund(state: StepState) -> None:
    state.open_run = None
    state.spent = max(0, state.spent - 1)


def _commit(snapshot: Snapshot, entry: Entry) -> None:
    state = snapshot.step_of(entry)
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
        snapshot.deaths = snapshot.incompletes = 0


def _handled(snapshot: Snapshot, entry: Entry) -> None:
    snapshot.handled.add(str(entry["request"]))


def _redo(snapshot: Snapshot, entry: Entry) -> None:
    state = snapshot.step_of(entry)
    state.status = StepStatus.PENDING
    state.spent = 0
    state.error = state.result = state.result_file = None
    snapshot.redone = snapshot.lines
    snapshot.deaths = snapshot.incompletes = 0
    snapshot.end = snapshot.attention = None


def _order(snapshot: Snapshot, entry: Entry) -> None:
    wanted = [label for label in entry["steps"] if label in snapshot.steps]
    snapshot.order = wanted + [label for label in snapshot.order if label not in set(wanted)]


def _end(snapshot: Snapshot, entry: Entry) -> None:
    snapshot.end = dict(entry)
    if "request" in entry:
        snapshot.handled.add(str(entry["request"]))


#: Ends of an attempt that spend the task's budget of deaths.
DEATHS = frozenset({Outcome.CRASHED, Outcome.LOST, Outcome.TIMED_OUT})


def _closed(snapshot: Snapshot, entry: Entry) -> None:
    if snapshot.attempt is not None and snapshot.attempt.closed is None:
        _close(snapshot, snapshot.attempt, str(entry["outcome"]), spend=bool(entry.get("death", True)))
    snapshot.attention = entry.get("announcement")


def _close(snapshot: Snapshot, attempt: AttemptState, outcome: str, *, spend: bool = True) -> None:
    """End the attempt; the tries it left open were cut off by its death, which is what they count as."""
    attempt.closed = outcome
    if outcome in DEATHS and spend:
        snapshot.deaths += 1
    if outcome == Outcome.INCOMPLETE:
        snapshot.incompletes += 1
    for state in snapshot.steps.values():
        if state.open_run == attempt.run:
            _refund(state)


def _rebuilt(snapshot: Snapshot, entry: Entry) -> None:
    snapshot.current = ""
    snapshot.generation = str(entry["generation"])
    snapshot.attempt_offset = int(entry.get("attempt", 0))


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
    "order": _order,
    "redo": _redo,
    "end": _end,
    "closed": _closed,
    "rebuilt": _rebuilt,
}
