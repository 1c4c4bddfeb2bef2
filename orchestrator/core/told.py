"""What a journal tells of one step, and of one attempt. Owned by the Snapshot that folds it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from orchestrator.core.model import Effect, Identity, StepError, StepId, StepStatus


class Numbers(dict[str, int]):
    """The highest number of a line, by run; and which numbers were there already."""

    def __init__(self, known: Iterable[tuple[str, int]] = ()) -> None:
        super().__init__(known)
        self._gaps: dict[str, list[tuple[int, int]]] = {}
        self._filled: set[tuple[str, int]] = set()

    def has(self, run: str, number: int) -> bool:
        """Whether a line of this number was there. One that lies about its number makes no other look like it."""
        if number > self.get(run, 0):
            return False
        gaps = self._gaps.get(run, [])
        behind = bisect_left(gaps, (number,))  # those that begin below it; they lie in their order
        in_gap = behind > 0 and number < gaps[behind - 1][1]
        return not in_gap or (run, number) in self._filled

    def add(self, run: str, number: int) -> None:
        highest = self.get(run, 0)
        if number > highest + 1:
            self._gaps.setdefault(run, []).append((highest, number))
        if number < highest:
            self._filled.add((run, number))
        self[run] = max(number, highest)


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
    foreign: bool = False  #: only a line of task.md, that nobody but a person knows of yet
    committed: int = 0  #: which line of the journal, counted from 1, its commit is

    def refund(self) -> None:
        """A try that was cut off does not count against its retries."""
        self.open_run = None
        self.spent = max(0, self.spent - 1)

    def reopen(self, at: str | None) -> None:
        """It is to be done anew, with all its tries."""
        self.at = at or self.at
        self.status = StepStatus.PENDING
        self.spent = 0
        self.open_run = None
        self.by_hand = False
        self.error = self.result = self.result_file = None


def id_of(entry: Mapping[str, Any]) -> StepId:
    """The step that an entry of the journal is about."""
    key = entry.get("key")
    return StepId(str(entry.get("name", entry["step"])), int(entry.get("n", 1)), None if key is None else str(key))


@dataclass(slots=True)
class AttemptState:
    number: int
    run: str
    at: str
    token: str = ""
    cgroup: str | None = None
    identity: Identity | None = None
    guard: Identity | None = None  #: the process around the worker, which goes last
    place: int | None = None  #: the number of the directory it was begun in, where that was written down
    closed: str | None = None  #: the outcome, None while it lives or when it died unseen


def seconds_between(since: str, until: str) -> float:
    """Of two times as the journal has them; 0 when one is not there, or somebody has set the clock back."""
    try:
        return max(0.0, (datetime.fromisoformat(until) - datetime.fromisoformat(since)).total_seconds())
    except (ValueError, TypeError, OverflowError):  # no times, or only one of them with a zone
        return 0.0
