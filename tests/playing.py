"""Moves of a script, each made by the product (tests/stage.py) and by the model (tests/model.py), and compared."""

from __future__ import annotations

import copy
import dataclasses
import glob
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import stage
from mains import Mains
from model import FINISHED, TAG, Asked, Lines, Model, Question
from stage import Seat, Stage

from orchestrator import store
from orchestrator.cli import show
from orchestrator.core.handedit import face_labels
from orchestrator.store import Look, Paths, look


def told(item: Asked | Question) -> dict[str, Any]:
    return {"question": item.text} if isinstance(item, Question) else {**dataclasses.asdict(item), "label": item.label}


@dataclasses.dataclass
class Both:
    """A task, and what it should be."""

    seat: Seat
    model: Model
    notes: set[str] = dataclasses.field(default_factory=set)  #: in task.md since its person saved it last
    thoughts: dict[str, set[str]] = dataclasses.field(default_factory=dict)  #: in the files of its steps
    kept: dict[str, set[str]] = dataclasses.field(default_factory=dict)  #: those that no power cut takes away
    runs: Counter[str] = dataclasses.field(default_factory=Counter)  #: by the ledger: how often each step was entered

    @property
    def face(self) -> Path:
        return Path(self.seat.where.task_md)


def lines_of(seen: Look) -> Lines:
    """task.md as it lies."""
    steps = seen.face.steps if seen.face is not None else []
    labels = face_labels(seen.face, seen.snapshot) if seen.face is not None else []
    return [(x, "redo" if s.redo else TAG[str(s.status)]) for x, s in zip(labels, steps, strict=True)]


class Play:
    """Moves of a script, each made by the product and by the model, and what must be true after each."""

    def __init__(self, stage_: Stage) -> None:
        self.stage = stage_
        self.tasks: list[Both] = []
        self.noted = 0

    def close(self) -> None:
        for task in self.tasks:
            self.stage.end(task.seat)
        self.stage.close()

    def spawn(self, skill: tuple[Asked | Question, ...], planned: int, deaths: int, python: bool) -> Both:
        names = [item.name for item in skill if isinstance(item, Asked)][:planned]
        args = {"skill": [told(item) for item in skill], "planned": planned, "checklist": not python}
        seat = self.stage.spawn(stage.spec(args, deaths=deaths))
        counted: Counter[str] = Counter()
        labels = []
        for name in names:
            counted[name] += 1
            labels.append(name if counted[name] == 1 else f"{name} ({counted[name]})")
        both = Both(seat, Model(skill, python, deaths, planned=labels))
        self.tasks.append(both)
        return both

    def copy(self, of: Both) -> Both:
        where = of.seat.where
        other = f"{where.directory[:-3]}{500 + len(self.tasks)}"
        self.stage.hands.copy(where.directory, other)
        thoughts, kept = copy.deepcopy(of.thoughts), copy.deepcopy(of.thoughts)
        both = Both(self.stage.seat(Paths(other)), of.model.is_copied(), set(of.notes), thoughts, kept, of.runs.copy())
        self.tasks.append(both)
        return both

    # -- after a death in the middle of a write: which of the moments was it? --------------------------------------

    def died(self, task: Both, moments: list[Model]) -> None:
        """Its worker, or who looked after it, was killed: the task stands as it stood after one of its lines."""
        seen = look(task.seat.where)
        fitting = [moment for moment in moments if self.stands_as(task, moment, seen)]
        assert fitting, f"it stands as it never stood: {seen.snapshot}"
        marked = [moment for moment in fitting if self.redos(moment.face) == self.redos(lines_of(seen))]
        task.model = model = (marked or fitting)[-1]
        model.may = fitting[0].may  # whether the last line was synced, nobody knows
        model.faces = [face for moment in fitting for face in moment.faces]
        model.alive = model.supervised = False
        model.stands, model.how, model.messy = None, "lost", True
        task.seat.drain()
        task.runs.update(words[1] for words in task.seat.said if words[0] == "entered")
        task.seat.said.clear()
        begun = model.entered - task.runs  # one may have been written down that was killed before it could say so
        assert sum(begun.values()) <= 1
        assert not task.runs - model.entered
        model.entered, model.said = task.runs.copy(), []

    @staticmethod
    def redos(lines: list[tuple[str, str]] | None) -> set[str]:
        return {label for label, tag in lines or () if tag == "redo"}

    def stands_as(self, task: Both, model: Model, seen: Look) -> bool:
        snapshot = seen.snapshot
        found = {x: (str(s.status), self.result(task, x, s), s.tries, s.spent) for x, s in snapshot.steps.items()}
        known = {x: (s.status, s.result, s.tries, s.spent) for x, s in model.steps.items()}
        told = (snapshot.order, snapshot.paused, snapshot.questions, snapshot.heard, snapshot.deaths)
        closed = snapshot.unclosed is None
        end = snapshot.end["outcome"] if snapshot.end else None
        attempts = len(snapshot.attempts)
        return (found, *told, end, closed, attempts) == (
            *(known, model.order, model.paused, model.questions, model.heard, model.deaths),
            *(model.end, model.closed, model.attempts),
        )

    # -- after a power cut ---------------------------------------------------------------------------------------------

    def cut_power(self, hows: Sequence[int], otherwise: str) -> None:
        """Of the whole machine; then somebody recovers all tasks."""
        for task in self.tasks:
            self.stage.end(task.seat)
            task.seat.drain()
            task.runs.update(words[1] for words in task.seat.said if words[0] == "entered")
            task.seat.said.clear()
        assert isinstance(self.stage.hands, Mains)
        self.stage.hands.cut(hows, otherwise)
        for task in self.tasks:
            self.comes_up(task)

    def comes_up(self, task: Both) -> None:
        """It stands as after one of its lines, not before the last one that was synced; and so it goes on."""
        model = task.model
        may = model.may
        assert may is not None
        seen = look(task.seat.where)
        lies = [number for number, one in enumerate(may) if self.stands_as(task, one, seen)]
        assert lies, f"it stands as it may not: {seen.snapshot}"
        faces = self.faces_of(task, lines_of(seen))
        self.thoughts_of(task, seen)
        said = self.stage.recover(task.seat)
        seen = look(task.seat.where)
        ways = [self.comes_to(task, one, face) for one in may[lies[0] :] for face in faces]
        for way, _ in ways:
            self.tries_of(way, model, seen)
        fitting = [way for way, expected in ways if said in (expected, "damaged") and self.fits(task, way, seen)]
        assert fitting, f"it came up and went on as it may not: {said}, {seen.snapshot}"
        task.model = fitting[-1]

    @staticmethod
    def tries_of(way: Model, before: Model, seen: Look) -> None:
        """A try that the journal has lost, and the step's file has not, keeps its number; what it spent is lost."""
        for label, state in seen.snapshot.steps.items():
            step, known = way.steps.get(label), before.steps.get(label)
            if step is not None and known is not None and step.tries <= state.tries <= known.tries + 1:
                assert state.spent <= known.spent + 1
                step.tries, step.spent = state.tries, state.spent

    def faces_of(self, task: Both, lines: Lines) -> list[Lines | None]:
        """What task.md may be taken to say: what it says, or what a kill left beside it. One that is unsynced may be
        torn, unless a person has written into it."""
        model, left = task.model, self.left(task)
        found = lines if task.face.exists() else None
        torn = [face for face in model.faces if face and found is not None and face[: len(found)] == found != face]
        assert found in model.faces or torn or left, f"task.md says what it may not: {found}, not one of {model.faces}"
        assert left or found in model.faces or not task.notes, "a note was lost"
        return [*(model.faces if left else []), *([] if found else [None]), found]

    @staticmethod
    def left(task: Both) -> list[Path]:
        """The temporaries of task.md."""
        return list(Path(task.seat.where.directory).glob(".orchestrator-*"))

    def thoughts_of(self, task: Both, seen: Look) -> None:
        """The newest may be lost, but none that had been there when the task ended."""
        snapshot = seen.snapshot
        for label, thoughts in task.thoughts.items():
            text = self.text_of(task, snapshot.steps[label].file if label in snapshot.steps else f"{label}.md")
            there = {thought for thought in thoughts if thought in text}
            assert there >= task.kept.get(label, set()), "a note of a step was lost"
            task.thoughts[label] = there
        task.thoughts = {label: there for label, there in task.thoughts.items() if there}

    @staticmethod
    def comes_to(task: Both, one: Model, face: Lines | None) -> tuple[Model, str]:
        then = one.moment()
        then.comes_up(face)
        then.entered = task.runs.copy()
        return then, then.recover()

    def fits(self, task: Both, model: Model, seen: Look) -> bool:
        said = [words for words in task.seat.said if words[0] != "noted"]
        return said == model.said and self.stands_as(task, model, seen) and lines_of(seen) == model.face

    # -- what must be true -----------------------------------------------------------------------------------------

    def check_all(self) -> None:
        """After each move: the task that it was made with, and all others, which it must not have touched."""
        for task in self.tasks:
            self.check(task)

    def check(self, task: Both) -> None:
        seat, model = task.seat, task.model
        seat.drain()
        said, seat.said = seat.said, []
        assert [words for words in said if words[0] != "noted"] == model.said
        model.said = []
        task.runs.update(words[1] for words in said if words[0] == "entered")
        assert task.runs == model.entered
        seen = look(seat.where)
        self.check_journal(task, seen)
        self.check_face(task, seen)
        self.check_announcements(task, seen)
        self.check_notes(task, seen)
        self.check_show(task, seen)

    def check_show(self, task: Both, seen: Look) -> None:
        """What `show --json` tells."""
        model, said = task.model, show.look_json(seen)
        assert [(s["name"], s["status"], s["tries"]) for s in said["steps"]] == [
            (label, model.steps[label].status, model.steps[label].tries) for label in model.order
        ]
        assert (said["state"], said["attempts"], said["deaths"]) == (model.state, model.attempts, model.deaths)
        assert said["worker"] == (task.seat.worker if model.alive else None)
        assert said["resume"] == next((x for x in model.order if model.steps[x].status not in FINISHED), None)
        told = said["announcement"]
        assert (told["status"] if told else None) == (model.end or model.told)
        assert json.loads(json.dumps(said)) == said

    def check_journal(self, task: Both, seen: Look) -> None:
        model, snapshot = task.model, seen.snapshot
        found = {label: (str(s.status), self.result(task, label, s)) for label, s in snapshot.steps.items()}
        assert found == {label: (s.status, s.result) for label, s in model.steps.items()}
        assert snapshot.order == model.order
        tries = {label: (s.tries, s.spent) for label, s in snapshot.steps.items()}
        assert tries == {label: (s.tries, s.spent) for label, s in model.steps.items()}
        assert (snapshot.end["outcome"] if snapshot.end else None) == model.end
        assert (snapshot.deaths, snapshot.incompletes) == (model.deaths, model.leaves)
        assert (snapshot.paused, snapshot.questions) == (model.paused, model.questions)
        assert snapshot.heard == model.heard
        assert seen.state == model.state
        assert not seen.damage or model.face is None

    def result(self, task: Both, label: str, state: Any) -> Any:
        if state.result_file is None:
            return state.result
        return json.loads(Path(task.seat.where.directory, state.result_file).read_text())

    def check_face(self, task: Both, seen: Look) -> None:
        model = task.model
        if model.messy:
            return
        if model.face is None:
            assert not task.face.exists()
            return
        assert seen.face is not None
        assert lines_of(seen) == model.face
        if not model.edited and model.attempts:
            status = {None: "working", "completed": "end", "conflict": "failed"}.get(model.end, model.end)
            assert str(seen.face.status) == status
            assert seen.face.has_end == (model.end == "completed")

    def check_announcements(self, task: Both, seen: Look) -> None:
        entries = store.read_journal(task.seat.where).entries
        ends = [e["announcement"]["id"] for e in entries if e["kind"] == "end"]
        assert len(set(ends)) == len(ends) == task.model.ends
        ids = [e["announcement"]["id"] for e in entries if e["kind"] in ("end", "closed") and "announcement" in e]
        assert len(set(ids)) == len(ids)
        said = seen.announcement()
        assert (said.status if said else None) == (task.model.end or task.model.told)

    def check_notes(self, task: Both, seen: Look) -> None:
        where = task.seat.where
        if task.face.exists() and not task.model.messy:
            lines = set(task.face.read_bytes().decode("utf-8", "surrogateescape").split("\n"))
            assert task.notes <= lines, "a note was lost"
        if task.model.end is not None and task.model.closed:
            task.kept = copy.deepcopy(task.thoughts)
        for label, thoughts in task.thoughts.items():
            text = self.text_of(task, seen.snapshot.steps[label].file)
            assert all(thought in text for thought in thoughts), "a note of a step was lost"
        assert task.model.messy or not list(Path(where.directory).rglob(".orchestrator-*"))

    @staticmethod
    def text_of(task: Both, file: str) -> str:
        """Of a step's file, and of what a power cut has ruined of it, which is set aside."""
        found = sorted(Path(task.seat.where.directory).glob(f"{glob.escape(file)}*"))
        return "".join(path.read_text(errors="replace") for path in found)

    def check_doors(self) -> None:
        """What `list` and `show --json` tell, of all tasks."""
        rows = {row.id: row for row in store.rows(str(self.stage.root))}
        assert set(rows) == {task.seat.where.task_id for task in self.tasks}
        for task in self.tasks:
            row = rows[task.seat.where.task_id]
            assert row.state == task.model.state
            done = sum(step.status == "done" for step in task.model.steps.values())
            assert (row.done, row.total) == (done, len(task.model.steps))
