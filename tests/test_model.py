"""Whatever happens to a task, in whatever order, it stands as a simple model of it says; and nothing is lost.

A machine plays scripts of moves to the product and to the model (tests/model.py), and compares after each move.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import glob
import json
import os
import re
import signal
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import stage
from doors import RealStage
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test
from mains import Mains
from model import FINISHED, TAG, Asked, Lines, Model, Question
from power import LOST, WHOLE
from stage import Seat, Stage

from orchestrator import store
from orchestrator.cli import show
from orchestrator.core.handedit import face_labels
from orchestrator.store import Paths, look

TAGS = "pending|working|working done|failed|skipped|redo"

NAMES = (("a", 1), ("b", 1), ("c", 1), ("b", 2), ("d (x)", 1))
VALUES = st.sampled_from(["one", "two", "three", "large"])
NEW = st.sampled_from(["new", "neu ü", "e"])
GARBAGE = st.sampled_from(["[wroking] a", "- [] b", "[working done]", "> [redo] a", "bad \udcff bytes", "", "[ende]"])

#: How what was not synced comes up after a power cut: the newest of it each in its own way, and all the rest.
HOWS = st.lists(st.integers(0, 5), max_size=12)
OTHERWISE = st.sampled_from([LOST, WHOLE])

#: What comes after a death in the middle of a write.
NOTHING, RECOVERS, POWER_CUT = range(3)
THEN = st.sampled_from([NOTHING, RECOVERS, RECOVERS, POWER_CUT])


@st.composite
def skills(draw: st.DrawFn) -> tuple[Asked | Question, ...]:
    items: list[Asked | Question] = []
    for number, (name, n) in enumerate(NAMES[: draw(st.integers(1, 5))]):
        if draw(st.integers(0, 5)) == 0:
            items.append(Question(f"Which {number}?"))
        before = [item.label for item in items if isinstance(item, Asked)]
        uses = draw(st.sampled_from([None, *before]))
        effect = draw(st.sampled_from(["idempotent", "idempotent", "pure", "once"]))
        items.append(Asked(name, n, effect, draw(st.integers(0, 2)), uses, effect == "once" and draw(st.booleans())))
    return tuple(items)


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
        fitting = [moment for moment in moments if self.stands_as(task, moment)]
        assert fitting, f"it stands as it never stood: {look(task.seat.where).snapshot}"
        marked = [moment for moment in fitting if self.redos(moment.face) == self.redos(self.lines_of(task))]
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

    @staticmethod
    def lines_of(task: Both) -> list[tuple[str, str]]:
        """task.md as it lies."""
        seen = look(task.seat.where)
        steps = seen.face.steps if seen.face is not None else []
        labels = face_labels(seen.face, seen.snapshot) if seen.face is not None else []
        return [(x, "redo" if s.redo else TAG[str(s.status)]) for x, s in zip(labels, steps, strict=True)]

    def stands_as(self, task: Both, model: Model) -> bool:
        snapshot = look(task.seat.where).snapshot
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
        lies = [number for number, one in enumerate(may) if self.stands_as(task, one)]
        assert lies, f"it stands as it may not: {look(task.seat.where).snapshot}"
        faces = self.faces_of(task)
        self.thoughts_of(task)
        said = self.stage.recover(task.seat)
        ways = [self.comes_to(task, one, face) for one in may[lies[0] :] for face in faces]
        fitting = [way for way, expected in ways if said in (expected, "damaged") and self.fits(task, way)]
        assert fitting, f"it came up and went on as it may not: {said}, {look(task.seat.where).snapshot}"
        task.model = fitting[-1]

    def faces_of(self, task: Both) -> list[Lines | None]:
        """What task.md may be taken to say: what it says, or what a kill left beside it. One that is unsynced may be
        torn, unless a person has written into it."""
        model, left = task.model, self.left(task)
        found = self.lines_of(task) if task.face.exists() else None
        torn = [face for face in model.faces if face and found is not None and face[: len(found)] == found != face]
        assert found in model.faces or torn or left, f"task.md says what it may not: {found}, not one of {model.faces}"
        assert left or found in model.faces or not task.notes, "a note was lost"
        return [*(model.faces if left else []), *([] if found else [None]), found]

    @staticmethod
    def left(task: Both) -> list[Path]:
        """The temporaries of task.md."""
        return list(Path(task.seat.where.directory).glob(".orchestrator-*"))

    def thoughts_of(self, task: Both) -> None:
        """The newest may be lost, but none that had been there when the task ended."""
        snapshot = look(task.seat.where).snapshot
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

    def fits(self, task: Both, model: Model) -> bool:
        said = [words for words in task.seat.said if words[0] != "noted"]
        return said == model.said and self.stands_as(task, model) and self.lines_of(task) == model.face

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
        self.check_journal(task)
        self.check_face(task)
        self.check_announcements(task)
        self.check_notes(task)
        self.check_show(task)

    def check_show(self, task: Both) -> None:
        """What `show --json` tells."""
        model, said = task.model, show.look_json(look(task.seat.where))
        assert [(s["name"], s["status"], s["tries"]) for s in said["steps"]] == [
            (label, model.steps[label].status, model.steps[label].tries) for label in model.order
        ]
        assert (said["state"], said["attempts"], said["deaths"]) == (model.state, model.attempts, model.deaths)
        assert said["worker"] == (task.seat.worker if model.alive else None)
        assert said["resume"] == next((x for x in model.order if model.steps[x].status not in FINISHED), None)
        told = said["announcement"]
        assert (told["status"] if told else None) == (model.end or model.told)
        assert json.loads(json.dumps(said)) == said

    def check_journal(self, task: Both) -> None:
        model, seen = task.model, look(task.seat.where)
        snapshot = seen.snapshot
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

    def check_face(self, task: Both) -> None:
        where, model = task.seat.where, task.model
        if model.messy:
            return
        if model.face is None:
            assert not task.face.exists()
            return
        seen = look(where)
        assert seen.face is not None
        assert self.lines_of(task) == model.face
        if not model.edited and model.attempts:
            status = {None: "working", "completed": "end", "conflict": "failed"}.get(model.end, model.end)
            assert str(seen.face.status) == status
            assert seen.face.has_end == (model.end == "completed")

    def check_announcements(self, task: Both) -> None:
        entries = store.read_journal(task.seat.where).entries
        ends = [e["announcement"]["id"] for e in entries if e["kind"] == "end"]
        assert len(set(ends)) == len(ends) == task.model.ends
        ids = [e["announcement"]["id"] for e in entries if e["kind"] in ("end", "closed") and "announcement" in e]
        assert len(set(ids)) == len(ids)
        said = look(task.seat.where).announcement()
        assert (said.status if said else None) == (task.model.end or task.model.told)

    def check_notes(self, task: Both) -> None:
        where = task.seat.where
        if task.face.exists() and not task.model.messy:
            lines = set(task.face.read_bytes().decode("utf-8", "surrogateescape").split("\n"))
            assert task.notes <= lines, "a note was lost"
        if task.model.end is not None and task.model.closed:
            task.kept = copy.deepcopy(task.thoughts)
        for label, thoughts in task.thoughts.items():
            text = self.text_of(task, look(where).snapshot.steps[label].file)
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


class Machine(RuleBasedStateMachine):
    """Which moves there are, and when each can be made."""

    def __init__(self, python: bool = True, *, real: bool = False) -> None:
        super().__init__()
        self.python = python
        self.play = Play(RealStage() if real else Stage())
        self.task: Both
        self.failed = False

    def teardown(self) -> None:
        try:
            if not self.failed:
                self.play.check_doors()
        finally:
            self.play.close()

    @initialize(
        skill=skills(),
        planned=st.integers(0, 5),
        deaths=st.integers(1, 3),
        begin=st.integers(0, 7),
    )
    def spawn(self, skill: Any, planned: int, deaths: int, begin: int) -> None:
        self.task = self.play.spawn(skill, planned, deaths, self.python)
        if begin:
            self.somebody_recovers()

    @property
    def m(self) -> Model:
        return self.task.model

    def after(self) -> None:
        try:
            self.play.check_all()
        except BaseException:
            self.failed = True
            raise

    # -- the worker's steps ----------------------------------------------------------------------------------------

    def stands(self, where: str) -> bool:
        return self.m.stands is not None and self.m.stands[0] == where

    @precondition(lambda self: self.stands("in"))
    @rule(value=VALUES)
    def a_step_ends(self, value: Any) -> None:
        self.m.returns(stage.VALUES[value])
        self.play.stage.tell(self.task.seat, "returns", value)
        self.after()

    @precondition(lambda self: self.stands("in"))
    @rule(value=VALUES)
    def another_step_ends(self, value: Any) -> None:
        self.a_step_ends(value)

    @precondition(lambda self: self.stands("in"))
    @rule(value=VALUES)
    def and_another_step_ends(self, value: Any) -> None:
        self.a_step_ends(value)

    @precondition(lambda self: self.stands("in"))
    @rule(not_done=st.booleans())
    def a_step_raises(self, not_done: bool) -> None:
        self.m.raises(not_done=not_done)
        self.play.stage.tell(self.task.seat, "raises NotDone" if not_done else "raises")
        self.after()

    @precondition(lambda self: self.stands("in"))
    @rule()
    def a_step_notes_a_thought(self) -> None:
        self.play.noted += 1
        thought = f"thought number {self.play.noted} of it"
        assert self.m.stands is not None
        self.task.thoughts.setdefault(self.m.stands[1], set()).add(thought)
        self.play.stage.tell(self.task.seat, "note", thought)
        self.after()

    def used(self) -> list[str]:
        """The steps that are done and have given another that is finished its arguments."""
        users = [item for item in self.m.skill if isinstance(item, Asked) and item.uses]
        begun = {item.uses for item in users if item.label in self.m.steps and self.m.steps[item.label].tries}
        return [x for x in self.m.order if x in begun and self.m.steps[x].status == "done"]

    @precondition(used)
    @rule(number=st.integers(0, 9))
    def a_step_that_others_use_is_redone_and_ends_otherwise(self, number: int) -> None:
        label = self.used()[number % len(self.used())]
        before = self.m.steps[label].result
        self.ordered("redo", step=label)
        for _ in range(3):  # the order is carried out at the next border
            if self.stands("in") and self.m.stands != ("in", label):
                self.a_step_ends("one")
        if self.m.stands == ("in", label):
            self.a_step_ends("three" if before != stage.VALUES["three"] else "two")

    @precondition(lambda self: self.stands("check"))
    @rule(said=st.sampled_from([["done", "found"], "not done", None]))
    def a_check_answers(self, said: Any) -> None:
        self.m.checked(said)
        self.play.stage.tell(self.task.seat, "returns", said)
        self.after()

    @precondition(lambda self: self.stands("in"))
    @rule()
    def the_worker_leaves_without_a_word(self) -> None:
        self.m.dies("incomplete")
        self.play.stage.tell(self.task.seat, "leaves")
        self.after()

    # -- deaths ----------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.m.alive)
    @rule()
    def the_worker_is_killed(self) -> None:
        self.m.dies()
        self.play.stage.kill(self.task.seat)
        self.after()

    @precondition(lambda self: self.m.alive)
    @rule()
    def the_worker_is_stopped(self) -> None:
        self.m.stops()
        self.play.stage.kill(self.task.seat, signal.SIGTERM)
        self.after()

    @precondition(lambda self: self.m.supervised)
    @rule()
    def the_coordinator_is_killed(self) -> None:
        self.m.supervised = False
        self.play.stage.kill_coordinator(self.task.seat)
        self.after()

    @precondition(lambda self: not self.m.supervised or not self.m.alive)
    @rule()
    def somebody_recovers(self) -> None:
        expected = self.m.recover()
        assert self.play.stage.recover(self.task.seat) == expected
        self.after()

    # -- a person's orders -----------------------------------------------------------------------------------------

    def ordered(self, verb: str, **fields: Any) -> None:
        expected = self.m.ordered({"verb": verb, **fields})
        assert self.play.stage.order(self.task.seat, verb, **fields) == expected
        self.after()

    def orders(self) -> list[dict[str, Any]]:
        """What can be ordered now, and sense has it."""
        given: list[dict[str, Any]] = [{"verb": verb} for verb in ("pause", "continue", "continue", "retry", "retry")]
        for label in self.m.order:
            given += [{"verb": "redo", "step": label}, {"verb": "skip", "step": label}]
            given += [{"verb": "resolve", "step": label, "done": True, "result": "from a person"}]
            given += [{"verb": "resolve", "step": label, "done": done} for done in (True, False)]
        given += [{"verb": "answer", "text": "blue"}] * 3
        return [order for order in given if not self.m.refuses(order)]

    @precondition(orders)
    @rule(number=st.integers(0, 99))
    def somebody_orders(self, number: int) -> None:
        orders = self.orders()
        self.ordered(**orders[number % len(orders)])

    @precondition(orders)
    @rule(number=st.integers(0, 99))
    def somebody_orders_something_else(self, number: int) -> None:
        self.somebody_orders(number)

    @rule(
        verb=st.sampled_from(["pause", "continue", "retry", "redo", "skip", "resolve", "answer"]),
        number=st.integers(0, 9),
    )
    def somebody_orders_what_may_make_no_sense(self, verb: str, number: int) -> None:
        labels = [*self.m.order, "not there"]
        step = {"step": labels[number % len(labels)]} if verb in ("redo", "skip", "resolve") else {}
        self.ordered(
            verb,
            **step,
            **({"done": True} if verb == "resolve" else {}),
            **({"text": "red"} if verb == "answer" else {}),
        )

    @precondition(lambda self: self.m.end is None)
    @rule()
    def somebody_sends(self) -> None:
        self.play.noted += 1
        self.ordered("send", text=f"message {self.play.noted}")

    @rule(really=st.integers(0, 3))
    def somebody_cancels(self, really: int) -> None:
        if really != 0:
            return
        expected = self.m.cancel()
        assert self.play.stage.cancel(self.task.seat) == expected
        self.after()

    # -- a person's edits ------------------------------------------------------------------------------------------

    def save(self, how: Any, by_rename: bool) -> None:
        lines = how(self.task.face.read_bytes().decode("utf-8", "surrogateescape").split("\n"))
        data = "\n".join(lines).encode("utf-8", "surrogateescape")
        self.play.stage.hands.save(self.task.face, data, by_rename=by_rename)
        self.m.shows(sync=True)
        self.after()

    def line_of(self, lines: list[str], label: str) -> int:
        return next(i for i, line in enumerate(lines) if re.fullmatch(rf"\[({TAGS})\] {re.escape(label)}", line))

    def has_lines(self) -> bool:
        return bool(self.m.face) and not self.m.messy

    @precondition(has_lines)
    @rule(
        number=st.integers(0, 9),
        tag=st.sampled_from(
            ["pending", "working done", "working done", "skipped", "redo", "redo", "working", "failed"]
        ),
        by_rename=st.booleans(),
    )
    def somebody_marks_a_step(self, number: int, tag: str, by_rename: bool) -> None:
        label, _ = self.m.face[number % len(self.m.face)]
        self.m.face = [(x, tag if x == label else t) for x, t in self.m.face]
        self.m.edited = True

        def how(lines: list[str]) -> list[str]:
            lines[self.line_of(lines, label)] = f"[{tag}] {label}"
            return lines

        self.save(how, by_rename)

    @precondition(lambda self: self.m.face is not None and not self.m.messy)
    @rule(name=NEW, number=st.integers(0, 9), by_rename=st.booleans())
    def somebody_adds_a_step(self, name: str, number: int, by_rename: bool) -> None:
        if name in self.m.steps or any(name == label for label, _ in self.m.face):
            return
        at = number % (len(self.m.face) + 1)
        self.m.face = [*self.m.face[:at], (name, "pending"), *self.m.face[at:]]
        self.m.edited = True

        def how(lines: list[str]) -> list[str]:
            behind = self.line_of(lines, self.m.face[at - 1][0]) if at else lines.index("[start done]")
            return [*lines[: behind + 1], f"[pending] {name}", *lines[behind + 1 :]]

        self.save(how, by_rename)

    @precondition(lambda self: self.m.face is not None and len(self.m.face) > 1 and not self.m.messy)
    @rule(one=st.integers(0, 9), other=st.integers(0, 9), by_rename=st.booleans())
    def somebody_changes_the_order(self, one: int, other: int, by_rename: bool) -> None:
        face = list(self.m.face)
        i, j = one % len(face), other % len(face)
        first, second = face[i][0], face[j][0]
        face[i], face[j] = face[j], face[i]
        self.m.face, self.m.edited = face, True

        def how(lines: list[str]) -> list[str]:
            a, b = self.line_of(lines, first), self.line_of(lines, second)
            lines[a], lines[b] = lines[b], lines[a]
            return lines

        self.save(how, by_rename)

    @precondition(lambda self: self.m.face is not None and not self.m.messy)
    @rule(number=st.integers(0, 30), by_rename=st.booleans(), garbage=st.one_of(st.none(), GARBAGE))
    def somebody_writes_a_line_that_is_no_step(self, number: int, by_rename: bool, garbage: str | None) -> None:
        self.play.noted += 1
        text = f"a thought, the {self.play.noted}th" if garbage is None else garbage
        self.m.edited = True

        def how(lines: list[str]) -> list[str]:
            at = 3 + number % (len(lines) - 3)
            return [*lines[:at], text, *lines[at:]]

        if text:
            self.task.notes.add(text)
        self.save(how, by_rename)

    # -- what becomes of its files ---------------------------------------------------------------------------------

    @precondition(lambda self: self.m.face is not None and not self.m.messy)
    @rule(really=st.integers(0, 2))
    def task_md_is_deleted(self, really: int) -> None:
        if really:
            self.play.stage.hands.delete(self.task.face)
            self.task.notes.clear()
            self.m.face_is_deleted()
            self.after()

    @precondition(lambda self: any(s.tries for s in self.m.steps.values()))
    @rule(number=st.integers(0, 9))
    def the_file_of_a_step_is_deleted(self, number: int) -> None:
        begun = [label for label, s in self.m.steps.items() if s.tries]
        label = begun[number % len(begun)]
        file = look(self.task.seat.where).snapshot.steps[label].file
        self.play.stage.hands.delete(Path(self.task.seat.where.directory, file))
        self.task.thoughts.pop(label, None)
        self.task.kept.pop(label, None)
        self.after()

    @precondition(lambda self: self.stands("in") and not self.m.edited)
    @rule(what=st.sampled_from(["journal.jsonl", "."]), value=VALUES)
    def the_journal_is_deleted_while_a_step_runs(self, what: str, value: Any) -> None:
        inner = Path(self.task.seat.where.inner)
        self.play.stage.hands.delete(inner / what)
        if what == ".":
            self.m.requests, self.m.unread, self.m.ever_asked = [], [], False
        self.a_step_ends(value)

    @precondition(lambda self: len(self.play.tasks) < 3 and not self.m.messy)
    @rule(really=st.integers(0, 2))
    def the_workspace_is_copied(self, really: int) -> None:
        if really:
            self.task = self.play.copy(self.task)
            self.after()

    @precondition(lambda self: len(self.play.tasks) > 1)
    @rule(number=st.integers(0, 2))
    def somebody_turns_to_another_task(self, number: int) -> None:
        self.task = self.play.tasks[number % len(self.play.tasks)]

    # -- deaths in the middle of a write ---------------------------------------------------------------------------

    @precondition(lambda self: self.stands("in") and not self.m.supervised)
    @rule(value=st.one_of(VALUES, st.just("raises")), operation=st.integers(1, 40), then=THEN, hows=HOWS)
    def the_worker_is_killed_while_a_step_ends(
        self, value: Any, operation: int, then: int = RECOVERS, hows: Sequence[int] = ()
    ) -> None:
        stage_, seat = self.play.stage, self.task.seat
        before = self.m.before()
        self.m.history = []
        self.m.raises() if value == "raises" else self.m.returns(stage.VALUES[value])
        steps, self.m.history = self.m.history, None
        stage_.doom(seat, operation)
        stage_.tell(seat, *(["raises"] if value == "raises" else ["returns", value]))
        if seat.worker is not None:
            stage_.doom(seat, 0)
        elif self.play.stands_as(self.task, self.m) and not self.temporaries():
            self.m.may = steps[-1].may  # it had come to its end, or to the sync of its last line
        else:
            self.play.died(self.task, [before, *steps])
        self.after()
        if not self.m.alive:
            self.and_then(then, hows)

    def and_then(self, then: int, hows: Sequence[int]) -> None:
        if then == RECOVERS:
            self.somebody_recovers()
        elif then == POWER_CUT and self.play.stage.recorded:
            self.the_power_is_cut(hows, LOST)

    def temporaries(self) -> bool:
        return bool(list(Path(self.task.seat.where.directory).rglob(".orchestrator-*")))

    @precondition(
        lambda self: not self.m.supervised and not self.m.alive and self.m.face is not None and not self.m.messy
    )
    @rule(operation=st.integers(1, 40), then=THEN, hows=HOWS)
    def a_coordinator_is_killed_while_it_recovers(
        self, operation: int, then: int = RECOVERS, hows: Sequence[int] = ()
    ) -> None:
        before = self.m.before()
        self.m.history = []
        self.m.recover()
        steps, self.m.history = self.m.history, None
        if self.play.stage.recover_and_die(self.task.seat, operation):
            self.m.supervised = False
            if self.task.seat.worker is None:
                self.play.died(self.task, [before, *steps])
        self.after()
        if not self.m.alive and not self.m.supervised:
            self.and_then(then, hows)

    @precondition(lambda self: self.stands("in") and self.play.stage.recorded)
    @rule(value=VALUES, hows=HOWS, otherwise=OTHERWISE)
    def a_step_ends_and_the_power_is_cut(self, value: Any, hows: Sequence[int], otherwise: str) -> None:
        self.a_step_ends(value)
        self.the_power_is_cut(hows, otherwise)

    @precondition(lambda self: self.play.stage.recorded)
    @rule(hows=HOWS, otherwise=OTHERWISE)
    def the_power_is_cut(self, hows: Sequence[int], otherwise: str) -> None:
        self.failed = True
        self.play.cut_power(hows, otherwise)
        self.failed = False
        self.after()


#: How many scripts are played; `make crashes` plays more.
EXAMPLES = int(os.environ.get("ORCHESTRATOR_TEST_EXAMPLES", "30"))
#: A failing script is made shorter, unless somebody is in a hurry.
PHASES = [phase for phase in Phase if phase is not Phase.shrink or "ORCHESTRATOR_TEST_HURRY" not in os.environ]


@pytest.mark.timeout(60 * EXAMPLES)
@pytest.mark.parametrize("python", [True, False], ids=["a skill", "a checklist"])
def test_whatever_happens_to_a_task_it_stands_as_the_model_says(python: bool) -> None:
    run_state_machine_as_test(
        lambda: Machine(python),
        settings=settings(
            max_examples=EXAMPLES, stateful_step_count=25, phases=PHASES, suppress_health_check=list(HealthCheck)
        ),
    )


#: Scripts of each kind whose workers are programs of their own: some two seconds of a processor each.
REAL_EXAMPLES = max(4, EXAMPLES // 10)


@pytest.mark.timeout(120 * REAL_EXAMPLES)
def test_the_same_holds_of_workers_that_are_programs_of_their_own() -> None:
    run_state_machine_as_test(
        lambda: Machine(real=True),
        settings=settings(
            max_examples=REAL_EXAMPLES, stateful_step_count=12, phases=PHASES, suppress_health_check=list(HealthCheck)
        ),
    )


# -- scripts that once did not go well, the shortest of each kind ------------------------------------------------------


@contextlib.contextmanager
def playing() -> Iterator[Machine]:
    machine = Machine()
    try:
        yield machine
    except BaseException:
        machine.failed = True
        raise
    finally:
        machine.teardown()


@pytest.fixture
def machine() -> Iterator[Machine]:
    with playing() as machine:
        yield machine


def one_step(machine: Machine, *, begin: bool = True, **more: Any) -> None:
    machine.spawn((Asked("a", **more),), planned=1, deaths=3, begin=int(begin))


def test_what_is_told_of_a_waiting_task_and_of_its_end_without_a_worker_has_an_id_each(machine: Machine) -> None:
    """Whoever recognises ids would take the end for what he had been told already."""
    one_step(machine, begin=False)
    machine.ordered("pause")
    machine.somebody_cancels(1)


def test_to_cancel_an_ended_task_whose_face_orders_a_step_anew_starts_no_worker(machine: Machine) -> None:
    one_step(machine)
    machine.a_step_ends("one")
    machine.somebody_marks_a_step(0, "redo", True)
    machine.somebody_cancels(1)


def redone(machine: Machine, effect: str) -> None:
    """Two steps, of which the second uses what the first gave; and the first, redone, stands."""
    machine.spawn((Asked("a"), Asked("b", effect=effect, uses="a")), planned=2, deaths=3, begin=1)
    machine.a_step_ends("one")
    machine.a_step_ends("two")
    machine.ordered("redo", step="a")


def test_what_used_a_step_that_ends_otherwise_when_redone_is_done_anew_with_it(machine: Machine) -> None:
    """Or the second would stand on a result that nobody stands by any more."""
    redone(machine, "idempotent")
    machine.a_step_ends("three")
    assert machine.m.stands == ("in", "b")
    assert machine.m.entered["b"] == 2
    machine.a_step_ends("one")
    assert machine.m.end == "completed"


@pytest.mark.parametrize("otherwise", [WHOLE, LOST])
@pytest.mark.parametrize("how", range(6))
def test_what_was_done_is_done_whatever_a_power_cut_leaves_of_the_rest(
    machine: Machine, how: int, otherwise: str
) -> None:
    """Of a step that is done and of one that runs: the first is not entered again, the second is, in any case."""
    machine.spawn((Asked("a"), Asked("b")), planned=2, deaths=3, begin=1)
    machine.a_step_ends("one")
    machine.the_power_is_cut([how] * 4, otherwise)
    assert (machine.m.entered["a"], machine.m.stands) == (1, ("in", "b"))


@pytest.mark.parametrize("then", [RECOVERS, POWER_CUT])
def test_what_was_done_once_is_not_repeated_at_any_death_when_a_step_before_it_ends_otherwise(then: int) -> None:
    for operation in range(1, 26):
        with playing() as machine:
            redone(machine, "once")
            machine.the_coordinator_is_killed()
            machine.the_worker_is_killed_while_a_step_ends("three", operation, then)
            assert machine.m.entered["b"] == 1


def test_an_edit_does_not_settle_what_nobody_knows_of_a_step_that_was_done_before(machine: Machine) -> None:
    redone(machine, "once")
    machine.a_step_ends("three")
    machine.somebody_adds_a_step("new", 2, True)
    machine.somebody_recovers()
    assert machine.m.steps["b"].status == "uncertain"


def test_a_step_after_one_that_was_redone_is_reopened_though_the_journal_was_lost_in_between(machine: Machine) -> None:
    redone(machine, "idempotent")
    machine.the_coordinator_is_killed()
    machine.the_worker_is_killed()
    play, seat = machine.play, machine.task.seat
    seat.drain()
    seat.said.clear()
    play.stage.hands.delete(Path(seat.where.journal))
    assert play.stage.recover(seat) == "resumed"
    play.stage.tell(seat, "returns", "three")
    assert [words[:2] for words in seat.said] == [("entered", "a"), ("entered", "b")]
    machine.failed = True  # the model has not heard of it


def test_that_a_person_has_to_decide_is_told_once_wherever_the_worker_is_killed_before() -> None:
    for operation in range(1, 16):
        with playing() as machine:
            one_step(machine, effect="once", retries=0)
            machine.the_coordinator_is_killed()
            machine.the_worker_is_killed_while_a_step_ends("raises", operation)
            entries = store.read_journal(machine.task.seat.where).entries
            told = [e["announcement"]["status"] for e in entries if e["kind"] == "closed" and "announcement" in e]
            assert told == ["uncertain"]


@pytest.mark.parametrize("done", [True, False], ids=["by its worker", "by a coordinator"])
def test_of_an_ended_task_without_its_face_is_told_that_it_was_mended_whoever_ended_it(
    machine: Machine, done: bool
) -> None:
    machine.spawn((Asked("a"),), planned=0, deaths=1, begin=1)
    machine.a_step_ends("one") if done else machine.the_worker_is_killed()
    machine.task_md_is_deleted(1)
    machine.somebody_recovers()
    assert machine.task.face.exists()
