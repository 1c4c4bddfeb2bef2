"""What the soak holds a task to, told from its log outside the product; and the figures."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import kit
import soaked_skills
from soaked_skills import Log

from orchestrator import store
from orchestrator.core.snapshot import Snapshot
from orchestrator.store import Paths

Line = tuple[str, str, str]

#: A step is committed when its value was handed out, when it failed for good, or when a dead worker's journal says so.
CLOSING = ("returned", "gave up", "committed")


@dataclass
class Figures:
    """What is printed. The four that must be nothing are `entered_again`, `lost`, `temporaries`, `processes`."""

    seed: int
    minutes: float
    tasks: int = 0
    kills: Counter[str] = field(default_factory=Counter)  #: by phase
    killed: Counter[str] = field(default_factory=Counter)  #: by who it was
    orders: Counter[str] = field(default_factory=Counter)
    resumes: int = 0
    steps: int = 0
    entered_again: int = 0
    lost: int = 0
    temporaries: int = 0
    processes: int = 0

    @property
    def code(self) -> int:
        wrong = self.entered_again or self.lost or self.temporaries or self.processes
        return 1 if wrong or not self.kills else 0

    def line(self) -> str:
        said = {k: v for k, v in vars(self).items() if isinstance(v, int | float)}
        return json.dumps(said | {"kills": self.kills.total()})

    def table(self) -> str:
        rows = [f"{number:7}  {phase}" for phase, number in sorted(self.kills.items(), key=lambda item: -item[1])]
        who = ", ".join(f"{number} {name}" for name, number in self.killed.most_common())
        orders = ", ".join(f"{number} {name}" for name, number in self.orders.most_common())
        return "\n".join(
            [
                f"{self.kills.total()} kills in {len(self.kills)} phases of the write order:",
                *rows,
                f"killed:  {who or 'nobody'}",
                f"orders and edits:  {orders or 'none'}",
                f"{self.tasks} tasks, {self.resumes} resumes, {self.steps} steps run, seed {self.seed}",
                f"committed steps entered again {self.entered_again}, results lost {self.lost}, "
                f"temporaries left {self.temporaries}, processes left {self.processes}",
            ]
        )


def entered_again(lines: Iterable[Line], *, in_order: bool = False) -> list[str]:
    """Entries of steps that were committed by then, without an order to do them anew; effects that took place twice.

    `in_order`: the steps are those of a checklist, where a step that begins says that those before it are committed.
    """
    closed: set[str] = set()
    begun: list[str] = []
    allowed: Counter[str] = Counter()
    effects: Counter[str] = Counter()
    found = []
    for what, step, more in lines:
        if what == "ordered":
            allowed[step] += 1
            effects[step] -= 1
        elif what in CLOSING:
            closed.add(step)
        elif what == "effect":
            effects[step] += 1
            if effects[step] > 1:
                found.append(f"{step}: its effect took place twice")
        elif what == "began":
            if step in closed and not allowed[step]:
                found.append(f"{step}: entered again in try {more}")
            elif step in closed:
                allowed[step] -= 1
                closed.discard(step)
            if in_order:
                closed |= {other for other in begun if other != step and _before(other, step)}
                begun.append(step)
    return found


def _before(one: str, other: str) -> bool:
    return int(one.split()[0]) < int(other.split()[0])


def tries_twice(lines: Iterable[Line]) -> list[str]:
    counted = Counter((step, more) for what, step, more in lines if what == "began")
    return [f"{step}: try {number} was entered {n} times" for (step, number), n in counted.items() if n > 1]


def lost(where: Paths, log: Log, script: list[str], *, notes: Iterable[str], skipped: Iterable[str]) -> list[str]:
    """What a person would miss of a task that has ended: results, notes, messages, marks; an end told twice."""
    seen = store.look(where)
    said = seen.announcement()
    if said is None or not said.ok:
        return [f"it did not complete: {said.status + ': ' + said.summary if said else seen.state}"]
    kind = store.read_spec(where).kind
    return [
        *(_wrong_results(where, log, script) if kind == "python" else ()),
        *_missing_notes(where, seen.snapshot, log),
        *(f"the note {note!r} in task.md" for note in notes if note not in Path(where.task_md).read_text().split("\n")),
        *_unheard(log.lines()),
        *_marks(seen, set(skipped)),
        *_ends(where),
    ]


def _wrong_results(where: Paths, log: Log, script: list[str]) -> list[str]:
    wanted = soaked_skills.expected(script)
    handed = [
        f"{step} gave another value" for what, step, more in log.lines() if what == "returned" and more != wanted[step]
    ]
    result = store.read_result(where)
    return handed + ([] if result == wanted else [f"the result is not the one it should be: {result}"])


def _missing_notes(where: Paths, snapshot: Snapshot, log: Log) -> list[str]:
    texts: dict[str, str] = {}
    for label, state in snapshot.steps.items():
        path = Path(where.step(state.file))
        texts[label] = path.read_text() if path.exists() else ""
    found = []
    for what, step, more in log.lines():
        if what == "noted" and f"thought about {step} in try {more}" not in texts.get(step, "").splitlines():
            found.append(f"the note of {step} in try {more}")
    return found


def _unheard(lines: list[Line]) -> list[str]:
    """Messages that were not heard though a step was done for the first time after they were sent."""
    heard = {more for what, _, more in lines if what == "heard"}
    returned: set[str] = set()
    due: set[str] = set()
    sent: set[str] = set()
    for what, step, more in lines:
        if what == "sent":
            sent.add(more)
        elif what == "began" and sent:
            returned.discard(step)
        elif what == "returned" and step not in returned:
            returned.add(step)
            due |= sent
    return [f"the message {text!r} was not heard" for text in due - heard]


def _marks(seen: store.Look, skipped: set[str]) -> list[str]:
    assert seen.face is not None
    found = [] if seen.face.ended else ["task.md does not say that it has ended"]
    shown = sorted(step.status for step in seen.face.steps)
    if shown != sorted(state.status for state in seen.snapshot.steps.values()):
        found.append("task.md and the journal do not say the same")
    for label, state in seen.snapshot.steps.items():
        allowed = {"failed"} if "hopeless" in label else {"done", "skipped"} if label in skipped else {"done"}
        if state.status.value not in allowed:
            found.append(f"{label} is {state.status}")
    return found


def _ends(where: Paths) -> list[str]:
    snapshot = Snapshot()
    found = []
    for entry in store.read_journal(where).entries:
        if entry["kind"] == "end" and snapshot.end is not None:
            found.append("its end was told twice")
        snapshot.apply(entry)
    return found


def left_behind(where: Paths) -> tuple[list[str], list[str]]:
    """Temporaries, and processes and cgroups, that are left of a task."""
    found = kit.left_behind(where)
    temporaries = [what for what in found if "/.orchestrator-" in what]
    return temporaries, [what for what in found if what not in temporaries]
