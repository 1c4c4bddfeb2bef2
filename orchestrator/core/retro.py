"""The retrospect of one task: computed from its journal, rendered by a template. Pure; no model takes part.

Times are in seconds. What a crash cost is the time from the beginning of a try to its worker's end, where somebody saw
that end, else to the worker's last sign of life.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from orchestrator.core.snapshot import DEATHS


@dataclass(slots=True)
class Try:
    """One try of a step.

    `how`: done, failed, raised, interrupted, lost (its worker died), uncertain, skipped, reopened (it was done, and a
    person ordered it anew).
    """

    attempt: int
    number: int
    begun: float
    seconds: float = 0.0
    how: str = "running"


@dataclass(slots=True)
class StepRetro:
    name: str
    tries: list[Try] = field(default_factory=list)
    status: str = "pending"
    errors: list[tuple[str, str]] = field(default_factory=list)

    @property
    def own(self) -> float:
        """Time spent in tries that were not lost."""
        return sum(t.seconds for t in self.tries if t.how != "lost")

    @property
    def lost(self) -> float:
        return sum(t.seconds for t in self.tries if t.how == "lost")


@dataclass(slots=True)
class Retro:
    steps: dict[str, StepRetro] = field(default_factory=dict)
    attempts: int = 0
    deaths: int = 0
    waiting: float = 0.0  #: from a worker's end to the next one's beginning
    seconds: float = 0.0
    outcome: str = ""

    @property
    def lost(self) -> float:
        return sum(s.lost for s in self.steps.values())

    @property
    def run_twice(self) -> int:
        """Steps that were begun again after they had been committed as done, without an order: always 0."""
        return sum(_after_done(s) for s in self.steps.values())


def _after_done(step: StepRetro) -> int:
    done = [i for i, t in enumerate(step.tries) if t.how == "done"]
    return 1 if done and done[0] != len(step.tries) - 1 else 0


def analyse(entries: Iterable[Mapping[str, Any]]) -> Retro:
    """Fold a journal into its retrospect."""
    retro = Retro()
    open_tries: dict[str, Try] = {}
    begun = alive = closed = 0.0
    for entry in entries:
        at = _seconds(entry)
        begun = begun or at
        kind = entry["kind"]
        if kind == "attempt":
            if retro.attempts:
                _lose(open_tries, alive)
                retro.waiting += max(0.0, at - (closed or alive))
            retro.attempts += 1
            closed = 0.0
        elif kind == "closed":
            seen = _end_of_worker(entry, at, alive)
            closed = closed or seen
            retro.deaths += entry["outcome"] in DEATHS and entry.get("death", True)
            _lose(open_tries, seen)
        elif kind == "end":
            retro.outcome = str(entry["outcome"])
            retro.seconds = at - begun
        else:
            _step(retro, open_tries, entry, at)
        alive = at
    if not retro.seconds:
        retro.seconds = alive - begun
    return retro


def _end_of_worker(entry: Mapping[str, Any], at: float, alive: float) -> float:
    """When the worker of a `closed` line ended: then, if somebody saw it; else its last sign of life."""
    if "exit" in entry or "signal" in entry or entry["outcome"] not in DEATHS:
        return at
    sign = entry.get("last_sign")
    return max(alive, min(at, datetime.fromisoformat(str(sign)).timestamp())) if sign else alive


def _seconds(entry: Mapping[str, Any]) -> float:
    return datetime.fromisoformat(str(entry["at"])).timestamp()


def _lose(open_tries: dict[str, Try], at: float) -> None:
    for lost in open_tries.values():
        lost.how, lost.seconds = "lost", max(0.0, at - lost.begun)
    open_tries.clear()


def _step(retro: Retro, open_tries: dict[str, Try], entry: Mapping[str, Any], at: float) -> None:
    for planned in entry.get("steps", ()):
        if isinstance(planned, Mapping):
            retro.steps.setdefault(str(planned["step"]), StepRetro(str(planned["step"])))
    if "step" not in entry:
        return
    label = str(entry["step"])
    step = retro.steps.setdefault(label, StepRetro(label))
    if entry["kind"] == "running":
        begun = open_tries[label] = Try(retro.attempts, int(entry["try"]), at)
        step.tries.append(begun)
        step.status = "working"
        return
    if entry["kind"] == "redo":
        for done in step.tries:
            done.how = "reopened" if done.how == "done" else done.how
    how = str(entry.get("status", entry["kind"]))
    ended = open_tries.pop(label, None)
    if ended is not None:
        ended.how, ended.seconds = how, max(0.0, at - ended.begun)
    if entry.get("error") and (entry["kind"] == "raised" or ended is not None or not step.tries):
        step.errors.append((str(entry["error"].get("class")), str(entry["error"].get("message"))))
    if entry["kind"] == "commit":
        step.status = how


# -- the text ------------------------------------------------------------------------------------------------------


def render(retro: Retro, template: str, *, name: str, task_id: str, status: str) -> str:
    """The retrospect as Markdown."""
    return template.format(
        name=name,
        task_id=task_id,
        status=status,
        outcome=retro.outcome or "open",
        seconds=f"{retro.seconds:.1f}",
        attempts=retro.attempts,
        steps_table=_steps_table(list(retro.steps.values())),
        errors_table=_errors_table(list(retro.steps.values())),
        crash_cost=_crash_cost(retro),
        verdict=_verdict(retro),
    )


def _steps_table(steps: Sequence[StepRetro]) -> str:
    if not steps:
        return "No step was begun."
    rows = ["| Step | Status | Tries | Own time | Lost to crashes | Try by try |", "|---|---|---:|---:|---:|---|"]
    for step in steps:
        rows.append(
            f"| {_cell(step.name)} | {step.status} | {len(step.tries)} | {_time(step.own)} | {_time(step.lost)} "
            f"| {_tries(step.tries)} |"
        )
    own, lost = sum(s.own for s in steps), sum(s.lost for s in steps)
    rows.append(f"| **all** | | {sum(len(s.tries) for s in steps)} | **{_time(own)}** | **{_time(lost)}** | |")
    return "\n".join(rows)


def _tries(tries: Sequence[Try]) -> str:
    shown = tries if len(tries) <= 5 else [*tries[:2], *tries[-2:]]
    said = [f"{t.how} after {_time(t.seconds)} (attempt {t.attempt})" for t in shown]
    if len(tries) > 5:
        said.insert(2, f"… {len(tries) - 4} more …")
    return ", ".join(said)


def _errors_table(steps: Sequence[StepRetro]) -> str:
    counted: dict[tuple[str, str, str], int] = {}
    for step in steps:
        for kind, message in step.errors:
            key = (step.name, kind, " ".join(message.split())[:120])
            counted[key] = counted.get(key, 0) + 1
    if not counted:
        return "None."
    rows = ["| Step | Class | Times | Message |", "|---|---|---:|---|"]
    rows += [f"| {_cell(s)} | {k} | {n} | {_cell(m)} |" for (s, k, m), n in counted.items()]
    return "\n".join(rows)


def _crash_cost(retro: Retro) -> str:
    if not retro.deaths:
        return "No worker died."
    died = "1 worker died" if retro.deaths == 1 else f"{retro.deaths} workers died"
    begun_again = [s.name for s in retro.steps.values() if any(t.how == "lost" for t in s.tries)]
    names = ", ".join(f"`{_cell(n)}`" for n in begun_again) or "no step"
    return (
        f"{died}. {_time(retro.lost)} of work was lost and done again ({names}); {_time(retro.waiting)} passed before "
        f"the next worker began. Finished steps run again: {retro.run_twice}."
    )


def _verdict(retro: Retro) -> str:
    failed = [s for s in retro.steps.values() if s.status == "failed"]
    if failed:
        return f"Step `{_cell(failed[0].name)}` failed for good: look at its errors before the skill is used again."
    tried = [s for s in retro.steps.values() if s.errors]
    if tried:
        return f"It ended {retro.outcome or 'open'}, but `{_cell(tried[0].name)}` needed more than one try."
    if retro.deaths:
        return "The skill did well; its worker was killed, and nothing finished was lost."
    return "Nothing to change."


def _time(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds < 10 else f"{seconds:.1f} s"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("`", "'")
