"""What many tasks of one skill say of it: whether the same step keeps failing for the same reason. Pure; no model.

`judge` takes what each task's retrospect says (`record`) and gives a verdict with its evidence; `verdict_text.py`
renders it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import NamedTuple

from orchestrator.core.model import Json
from orchestrator.core.retro import Failure, Retro


class Rule(NamedTuple):
    """A step that fails with one class of error in so many tasks, or in such a share of them, is the skill's fault."""

    tasks: int
    share: float


#: A try that raised, a step that failed for good, and a worker that died in it count alike; a task counts once.
RULE = Rule(tasks=3, share=0.20)

#: What the verdict on a skill says.
CHANGE = "change"  #: it needs a change
CHANGED_SINCE = "changed_since"  #: it needed one; tasks of its newest version had no such failure
KEEP = "keep"  #: nothing to change


@dataclass(frozen=True, slots=True)
class Record:
    """What judging over many tasks needs of one. `seconds` counts for tasks that have ended (`outcome` is not "")."""

    task: str
    skill: str
    outcome: str
    seconds: float
    attempts: int
    deaths: int
    tries: int
    version: str | None
    at: str  #: when that version was loaded
    failures: tuple[Failure, ...]


def record(task: str, skill: str, retro: Retro) -> Record:
    return Record(
        task,
        skill,
        retro.outcome,
        retro.seconds,
        retro.attempts,
        retro.deaths,
        retro.tries,
        retro.version,
        retro.loaded_at or retro.last_at,
        tuple(retro.failures),
    )


def record_to_json(found: Record) -> dict[str, Json]:
    return {**asdict(found), "failures": [asdict(failure) for failure in found.failures]}


def record_from_json(data: Mapping[str, Json]) -> Record:
    """The inverse of `record_to_json`."""
    return Record(**{**data, "failures": tuple(Failure(**failure) for failure in data["failures"])})


@dataclass(frozen=True, slots=True)
class Evidence:
    """The same failure of one task: `count` tries of one attempt."""

    task: str
    step: str
    attempt: int
    error_class: str
    message: str
    version: str | None
    count: int


@dataclass(frozen=True, slots=True)
class Finding:
    """A step that failed with the same class of error in `tasks` tasks of the skill."""

    step: str
    error_class: str
    tasks: int
    share: float
    tries: int
    for_good: int  #: of these, the ones after which the step was given up
    evidence: tuple[Evidence, ...]
    since: str | None = None  #: the version that has no such failure any more, and is the newest


@dataclass(frozen=True, slots=True)
class Verdict:
    """On one skill. Times are in seconds, of the tasks that have ended; None when there is none."""

    skill: str
    tasks: int
    judged: int  #: of these, the ones of which a worker was ever started
    ended: Mapping[str, int]  #: outcome -> tasks; `open` for those that have not ended
    median: float | None
    p90: float | None
    deaths: int
    tries: int
    newest: str | None
    newest_tasks: int
    findings: tuple[Finding, ...]

    @property
    def word(self) -> str:
        if any(finding.since is None for finding in self.findings):
            return CHANGE
        return CHANGED_SINCE if self.findings else KEEP


def judge_all(records: Iterable[Record]) -> list[Verdict]:
    """A verdict on each skill: those that need a change first, then by name."""
    skills: dict[str, list[Record]] = {}
    for found in records:
        skills.setdefault(found.skill, []).append(found)
    return sorted(map(judge, skills.values()), key=lambda v: ((CHANGE, CHANGED_SINCE, KEEP).index(v.word), v.skill))


def judge(records: Sequence[Record], rule: Rule = RULE) -> Verdict:
    """The verdict on the skill that all these tasks are of.

    A task of which no worker was ever started says nothing of its skill: it is counted as open, and not judged.
    """
    begun = [found for found in records if found.attempts]
    newest = _newest(begun)
    times = sorted(found.seconds for found in records if found.outcome)
    ended: dict[str, int] = {}
    for found in records:
        ended[found.outcome or "open"] = ended.get(found.outcome or "open", 0) + 1
    return Verdict(
        records[0].skill if records else "",
        len(records),
        len(begun),
        dict(sorted(ended.items(), key=lambda item: (-item[1], item[0]))),
        _median(times),
        _percentile(times, 0.9),
        sum(found.deaths for found in records),
        sum(found.tries for found in records),
        newest,
        sum(1 for found in begun if found.version == newest) if newest else 0,
        _findings(begun, newest, rule),
    )


def _newest(records: Sequence[Record]) -> str | None:
    """The version that was loaded last."""
    return max(((found.at, found.version) for found in records if found.version), default=("", None))[1]


def _findings(records: Sequence[Record], newest: str | None, rule: Rule) -> tuple[Finding, ...]:
    failing: dict[tuple[str, str], dict[str, list[Failure]]] = {}
    for found in records:
        for failure in found.failures:
            tasks = failing.setdefault((failure.step, failure.error_class), {})
            tasks.setdefault(found.task, []).append(failure)
    findings = [
        _finding(step, error_class, tasks, len(records), newest)
        for (step, error_class), tasks in failing.items()
        if len(tasks) >= rule.tasks or len(tasks) / len(records) >= rule.share
    ]
    return tuple(sorted(findings, key=lambda f: (f.since is not None, -f.tasks, -f.tries, f.step, f.error_class)))


def _finding(
    step: str, error_class: str, tasks: Mapping[str, Sequence[Failure]], total: int, newest: str | None
) -> Finding:
    failures = [failure for some in tasks.values() for failure in some]
    older = newest is not None and all(f.version not in (None, newest) for f in failures)
    return Finding(
        step,
        error_class,
        len(tasks),
        round(len(tasks) / total, 4),
        len(failures),
        sum(failure.for_good for failure in failures),
        tuple(line for task, some in tasks.items() for line in _evidence(task, some)),
        newest if older else None,
    )


def _evidence(task: str, failures: Sequence[Failure]) -> list[Evidence]:
    alike: dict[tuple[int, str, str | None], list[Failure]] = {}
    for failure in failures:
        alike.setdefault((failure.attempt, failure.kind, failure.version), []).append(failure)
    return [
        Evidence(task, first.step, first.attempt, first.error_class, first.message, first.version, len(some))
        for some in alike.values()
        for first in some[:1]
    ]


def _median(ordered: Sequence[float]) -> float | None:
    half = len(ordered) // 2
    if not ordered:
        return None
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


def _percentile(ordered: Sequence[float], share: float) -> float | None:
    """The smallest value that at least this share of them does not exceed."""
    return ordered[math.ceil(share * len(ordered)) - 1] if ordered else None
