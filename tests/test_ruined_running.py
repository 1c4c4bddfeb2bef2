"""Each file of a task is ruined in each way under the worker that holds it: whoever looks is told, the worker goes on
to its end or says what is to be done, and after its end, or its kill, one recover brings the task to the end of an
undisturbed run.

The worker stands in a step until it is told how that ends (stage.py). `ORCHESTRATOR_TEST_TRIALS=all` tries every cell.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import os
import resource
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import inline
import judging
import pytest
import ruining
import stage
from ruining import DAMAGES
from stage import Stage

from orchestrator import doctor, store
from orchestrator.cli import show
from orchestrator.findings import Finding
from orchestrator.store import Paths

#: How many are drawn in every run of the tests, in how many parts.
COUNT, PARTS = 36, 2

#: Two that are done, of which one has its result in a file; the one it stands in; one that takes that result.
SKILL = [
    {"name": name, "label": name, "uses": uses, "check": False, "effect": "idempotent", "retries": 0}
    for name, uses in (("first", None), ("second", None), ("third", None), ("fourth", "first"))
]
RETURNS = {"first": "large", "second": "two", "third": "three", "fourth": "one"}
REMARK, WORDS, MESSAGE = "A remark of mine.", "My own words.", "are you there?"


def _result(where: Paths) -> str:
    (found,) = Path(where.results).glob("first*.json")
    return str(found)


FILES: dict[str, Callable[[Paths], str]] = {
    "task.md": lambda where: where.task_md,
    "a step's file": lambda where: where.step("second.md"),
    "the open step's file": lambda where: where.step("third.md"),
    "journal.jsonl": lambda where: where.journal,
    "spec.yaml": lambda where: where.spec,
    "requests.jsonl": lambda where: where.requests,
    "a step's result": _result,
}
#: What becomes of its worker then, and of who looks after it.
ENDINGS = ("it goes on", "its worker is killed", "both are killed")
#: Of whom it is said what is lost, and by which word: nothing else knows what stood there.
UNKNOWN = {"spec.yaml": "adopt", "a step's result": "redo"}


class Cell(NamedTuple):
    file: str
    damage: str
    ending: str

    def __str__(self) -> str:
        return f"running, {self.file}: {self.damage}; {self.ending}"


CELLS = [Cell(*one) for one in itertools.product(FILES, DAMAGES, ENDINGS)]


# -- the stage -------------------------------------------------------------------------------------------------------


class Kept(Stage):
    """Whoever looks after a task, and its worker, obey the mode of a file; what they commit is written down."""

    recorded = False

    async def _coordinate(self, act: Callable[[Any], Any], writing: int) -> None:
        inline.obey_permissions()
        judging.write_down_commits(str(self.base / "committed.txt"))
        await super()._coordinate(act, writing)

    @property
    def committed(self) -> set[str]:
        log = self.base / "committed.txt"
        return {line.rpartition(": ")[0] for line in log.read_text().splitlines()} if log.exists() else set()


class Looked(NamedTuple):
    """What whoever looks is told: the state of each task, what is shown of it, what doctor finds and mends."""

    states: dict[str, str]
    shown: str
    findings: list[Finding]
    mended: list[str]
    grown: int


def _look(root: str, task_id: str, mend: bool) -> Looked:
    """In a fork: `list`, `show`, `doctor`, and `doctor --fix` twice; of the second time what it still mended."""
    inline.obey_permissions()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    wheres = [Paths(os.path.join(root, one)) for one in store.task_ids(root)]
    rows = [store.row(where) for where in wheres]
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        show.table(rows, root)
        for where in wheres:
            seen = store.look(where)
            print(show.look_text(seen), json.dumps(show.look_json(seen)))
    findings = [one for one in doctor.examine(root, time.time) if one.task == task_id]
    mended: list[str] = []
    if mend:
        list(doctor.mend(root, time.time))
        mended = [line for line in doctor.mend(root, time.time) if task_id in line and "left alone" not in line]
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    return Looked({row.id: row.state for row in rows}, text.getvalue(), findings, mended, grown)


class Trial:
    """One cell, played."""

    def __init__(self, cell: Cell, mend: bool) -> None:
        self.cell, self.mend = cell, mend
        self.stage = Kept()
        self.wrong: list[str] = []
        self.recovered = ""

    def close(self) -> None:
        for seat in (self.seat, self.neighbour):
            self.stage.end(seat)
        self.stage.close()

    def begin(self) -> None:
        """Its worker stands in the third step, beside a task that was interrupted; people have written into it."""
        self.seat, self.neighbour = (
            self.stage.spawn(stage.spec({"skill": SKILL, "planned": 4, "checklist": False}, deaths=5)) for _ in range(2)
        )
        self.where = self.seat.where
        self.stage.recover(self.neighbour)
        self.stage.kill_coordinator(self.neighbour)
        self.stage.kill(self.neighbour)
        self.stage.recover(self.seat)
        self.step()
        self.step()
        face, step = Path(self.where.task_md), Path(self.where.step("second.md"))
        face.write_text(face.read_text("utf-8") + f"\n{REMARK}\n", "utf-8")
        step.write_text(step.read_text("utf-8") + f"\n{WORDS}\n", "utf-8")
        self.stage.order(self.seat, "send", text="before")

    def step(self) -> None:
        """The step that it stands in returns; whatever it stands in next was not committed before."""
        said = len(self.seat.said)
        entered = [words[1] for words in self.seat.said if words[0] == "entered"]
        self.stage.tell(self.seat, "returns", RETURNS[entered[-1]])
        self._check_entered(said)

    def _check_entered(self, since: int) -> None:
        again = [words[1] for words in self.seat.said[since:] if words[0] == "entered"]
        if found := self.stage.committed.intersection(again[-1:]):
            self.wrong.append(f"done, and entered again: {found}")

    def ruin(self) -> set[str]:
        """The file is ruined; what of a person's words is there still."""
        DAMAGES[self.cell.damage](Path(FILES[self.cell.file](self.where)))
        return self.words()

    def words(self) -> set[str]:
        return {word for word in (REMARK, WORDS, "precious") if any(_has(p, word) for p in _files(self.where))}

    def look(self, mend: bool) -> Looked:
        ran = inline.attempt(lambda: _look(str(self.stage.root), self.where.task_id, mend))
        assert ran.code == 0, f"{self.cell}: {ran.error}"
        looked: Looked = ran.value
        return looked

    def go_on(self) -> None:
        """The ending of the cell, and then each step as it comes, until nobody works on it."""
        said = len(self.seat.said)
        if self.cell.ending == "both are killed":
            self.stage.end(self.seat)
            if self.mend:
                self.look(mend=True)
        elif self.cell.ending == "its worker is killed":
            self.stage.kill(self.seat)
        self._check_entered(said)
        self._to_its_end()
        if store.row(self.where).state != "completed":
            said = len(self.seat.said)
            self.recovered = self.stage.recover(self.seat)
            self._check_entered(said)
            self._to_its_end()

    def _to_its_end(self) -> None:
        for _ in range(12):
            if self.seat.worker is None:
                return
            self.step()
        self.wrong.append("it never ends")


def _files(where: Paths) -> Iterator[Path]:
    return (path for path in Path(where.directory).rglob("*") if path.is_file() and not path.is_symlink())


def _has(path: Path, word: str) -> bool:
    with path.open("rb") as file:  # of 1 GB the beginning: nobody wrote behind that
        data = file.read(1 << 24)
    return word.encode() in data or word.encode("utf-16-le") in data


# -- what is wrong with it -------------------------------------------------------------------------------------------


def wrong(cell: Cell, mend: bool) -> list[str]:
    trial = Trial(cell, mend)
    trial.begin()
    try:
        return [*_of_it(trial), *trial.wrong]
    finally:
        trial.close()


def _of_it(trial: Trial) -> Iterator[str]:
    words = trial.ruin()
    looked = trial.look(trial.mend)
    yield from _of_the_look(trial, looked)
    trial.stage.order(trial.seat, "send", text=MESSAGE)
    trial.go_on()
    after = trial.look(mend=False)
    steps = {label: state.status.value for label, state in store.look(trial.where).snapshot.steps.items()}
    heard = [text for words_ in trial.seat.said if words_[0] == "heard" for text in words_[1:]]
    ended = after.states[trial.where.task_id] == "completed" and list(steps.values()) == ["done"] * 4
    if not ended:
        told = " ".join(f"{one.what} {one.hint}" for one in after.findings)
        if UNKNOWN.get(trial.cell.file, "\0") not in told:
            yield f"another end, {after.states[trial.where.task_id]}, {steps}, recover {trial.recovered}: {told}"
    elif MESSAGE not in heard:
        yield f"what was sent after it was ruined: {heard}"
    if lost := words - trial.words():
        yield f"what a person wrote is lost: {lost}"
    yield from _of_the_findings(after)
    trial.stage.recover(trial.neighbour)
    while trial.neighbour.worker is not None:
        entered = [said[1] for said in trial.neighbour.said if said[0] == "entered"]
        trial.stage.tell(trial.neighbour, "returns", RETURNS[entered[-1]])
    if (state := store.row(trial.neighbour.where).state) != "completed":
        yield f"its neighbour: {state}"


def _of_the_look(trial: Trial, looked: Looked) -> Iterator[str]:
    """While its worker stands in a step."""
    if looked.states[trial.where.task_id] not in ("working", "damaged"):
        yield f"called {looked.states[trial.where.task_id]} while its worker lives"
    if looked.states[trial.neighbour.where.task_id] not in ("interrupted", "completed"):
        yield f"its neighbour is called {looked.states[trial.neighbour.where.task_id]}"
    if looked.grown > ruining.PEAK:
        yield f"looking at it costs {looked.grown // 1024} MiB"
    if looked.mended:
        yield f"mended a second time, and its worker lives: {looked.mended}"
    yield from _of_the_findings(looked)


def _of_the_findings(looked: Looked) -> Iterator[str]:
    found = [one for one in looked.findings if not one.settled]
    if len(found) > 1 or not all(one.hint or "orchestrator" in one.what for one in found):
        yield f"not one finding with a way out: {found}"


@pytest.mark.parametrize("part", range(PARTS))
def test_a_task_whose_file_is_ruined_under_its_worker_comes_to_its_end_or_says_what_is_lost(part: int) -> None:
    cells = judging.drawn(CELLS, lambda cell: (cell.file, cell.ending), COUNT)[part::PARTS]
    begun = time.monotonic()
    found = [f"{cell}: {what}" for n, cell in enumerate(cells) for what in wrong(cell, mend=bool(n % 2))]
    print(f"ruined, part {part + 1} of {PARTS}: {len(cells)} of {len(CELLS)} cells, {time.monotonic() - begun:.0f} s")
    assert not found, "\n".join([f"seed {judging.SEED}", *found])


@pytest.mark.parametrize(
    "cell",
    [
        Cell("task.md", "one NUL", "it goes on"),
        Cell("a step's file", "unreadable", "it goes on"),
        Cell("the open step's file", "unreadable", "both are killed"),
        Cell("journal.jsonl", "gone", "its worker is killed"),
    ],
    ids=str,
)
def test_what_was_found_wrong_under_a_worker_stays_right(cell: Cell) -> None:
    """It was thrown away with a remark in it; the task never came to its end; it was called interrupted."""
    assert wrong(cell, mend=False) == []
