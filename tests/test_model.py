"""Whatever happens to a task, in whatever order, it stands as a simple model of it says; and nothing is lost.

A machine plays scripts of moves to the product and to the model (tests/model.py), and compares after each move.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import stage
from doors import RealStage
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test
from model import Asked, Model, Question
from playing import Both, Play
from power import LOST, WHOLE
from stage import Stage

from orchestrator import store
from orchestrator.store import look

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


class Machine(RuleBasedStateMachine):
    """Which moves there are, and when each can be made."""

    def __init__(self, python: bool = True, *, real: bool = False) -> None:
        super().__init__()
        self.python = python
        self.play = Play(RealStage() if real else Stage())
        self.task: Both
        self.failed = False
        self.journal_was_deleted = False  #: under a worker: what a power cut then leaves, the model cannot tell yet

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
        self.journal_was_deleted = True
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
        elif self.play.stands_as(self.task, self.m, look(seat.where)) and not self.temporaries():
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
    @precondition(lambda self: not self.journal_was_deleted)
    @rule(hows=HOWS, otherwise=OTHERWISE)
    def the_power_is_cut(self, hows: Sequence[int], otherwise: str) -> None:
        self.failed = True
        self.play.cut_power(hows, otherwise)
        self.failed = False
        self.after()


#: How many scripts are played; `make crashes` plays more.
EXAMPLES = int(os.environ.get("ORCHESTRATOR_TEST_EXAMPLES", "25"))
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


def begins(machine: Machine, *skill: Asked | Question) -> Machine:
    machine.spawn(skill, planned=2, deaths=3, begin=1)
    return machine


def heard(machine: Machine) -> None:
    begins(machine, Asked("a"), Asked("b")).somebody_sends()
    machine.a_step_ends("one")


def edited(machine: Machine) -> None:
    begins(machine, Asked("a"), Asked("b"), Asked("c")).somebody_marks_a_step(1, "skipped", True)
    machine.a_step_ends("one")


def paused(machine: Machine) -> None:
    begins(machine, Asked("a")).the_coordinator_is_killed()
    machine.the_worker_is_killed()
    machine.ordered("pause")


#: After each of these something has been promised.
PROMISES: dict[str, Callable[[Machine], Any]] = {
    "a step is done": lambda m: begins(m, Asked("a"), Asked("b")).a_step_ends("one"),
    "a step has a large result": lambda m: begins(m, Asked("a"), Asked("b", uses="a")).a_step_ends("large"),
    "what happens once has begun": lambda m: begins(m, Asked("a", effect="once")),
    "a step has failed for good": lambda m: begins(m, Asked("a", retries=0)).a_step_raises(False),
    "the task has ended": lambda m: begins(m, Asked("a")).a_step_ends("one"),
    "a step is ordered anew": lambda m: redone(m, "idempotent"),
    "a question is answered": lambda m: begins(m, Question("Which?"), Asked("a")).ordered("answer", text="blue"),
    "a message is heard": heard,
    "an edit is taken over": edited,
    "a pause is ordered": paused,
    "the journal is written again": lambda m: begins(
        m, Asked("a"), Asked("b")
    ).the_journal_is_deleted_while_a_step_runs(".", "one"),
}


@pytest.mark.parametrize("promise", PROMISES)
def test_what_was_promised_is_there_whatever_a_power_cut_leaves_of_the_rest(promise: str) -> None:
    """All the rest is lost; the newest of it alone; or it comes up as zeros."""
    for hows, otherwise in (([], LOST), ([1], WHOLE), ([2, 2, 2, 2], LOST)):
        with playing() as machine:
            PROMISES[promise](machine)
            machine.the_power_is_cut(hows, otherwise)


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


def test_a_try_that_only_the_file_of_its_step_remembers_keeps_its_number_through_a_power_cut(machine: Machine) -> None:
    machine.spawn((Asked("a"), Asked("b", retries=0), Asked("c")), planned=0, deaths=3, begin=1)
    machine.a_step_ends("one")
    machine.the_journal_is_deleted_while_a_step_runs(value="one", what=".")
    machine.task_md_is_deleted(2)
    machine.a_step_raises(True)
    machine.the_power_is_cut(hows=[5, 1, 3, 5, 0, 4, 1, 6, 3, 3, 4, 1, 2, 1], otherwise="whole")
