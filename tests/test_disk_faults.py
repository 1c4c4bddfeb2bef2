"""Every file operation of every scenario fails, once or from there on: nothing is lost, nothing is done twice.

Errors that are left out: EINTR (Python calls again by itself, PEP 475), and what a network file system adds.
The seed of what is drawn is printed; ORCHESTRATOR_TEST_SEED=<seed> draws the same again, ORCHESTRATOR_TEST_TRIALS=all
tries all of it (`make crashes`).
"""

from __future__ import annotations

import errno
import functools
import os
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import failing
import judging
import pytest
import scenarios
from desk import Desk
from failing import SCOPES, SHORT, Fault
from judging import Told
from kit import everything as everything_in
from scenarios import SCENARIOS, Scenario

from orchestrator import files, reading, recovery, store
from orchestrator.core.model import StepId, StepStatus
from orchestrator.errors import Exhausted

#: How many are drawn in every run of the tests, and in how many parts.
COUNT, PARTS = 380, 4


class Trial(NamedTuple):
    scenario: Scenario
    act: int
    fault: Fault

    def __str__(self) -> str:
        return f"{self.scenario}, act {self.act + 1}: {self.fault}"


@pytest.fixture(scope="module", autouse=True)
def clean() -> Iterator[None]:
    yield
    scenarios.clean_up()


@functools.cache
def everything() -> list[Trial]:
    """Every fault at every operation of every act: what an undisturbed run does is written down first."""
    return [trial for scenario in SCENARIOS for number in range(len(scenario.acts)) for trial in _of(scenario, number)]


def _of(scenario: Scenario, number: int) -> list[Trial]:
    with tempfile.TemporaryDirectory(dir=scenarios.temporary_base()) as base:
        place = scenario.place(Path(base) / "place")
        for earlier in range(number):
            assert scenario.act(place, earlier).code == 0
        with failing.installed(Path(base) / "log"):
            ran = judging.command(scenario, place, number)
        assert ran.value is not None, ran.error
        assert ran.value.code == 0, ran.value.err
        points = failing.points(Path(base) / "log")
    return [Trial(scenario, number, fault) for point in points for fault in failing.faults(point, tuple(SCOPES))]


def attempt(trial: Trial) -> tuple[list[str], bool]:
    """What is wrong after one fault, and whether it came at all: two that run at once need not meet a third time."""
    scenario, number, fault = trial
    with tempfile.TemporaryDirectory(dir=scenarios.temporary_base()) as base:
        place = scenario.place(Path(base) / "place")
        for earlier in range(number):
            assert scenario.act(place, earlier).code == 0
        by_hand = judging.look(place).by_hand
        with failing.installed(Path(base) / "log", fault) as layer:
            ran = judging.command(scenario, place, number)
            come = layer.has_failed
        wrong = [
            *judging.of_the_telling(ran),
            *judging.of_the_disk(place, by_hand, face_may_be_lost=fault.lost and "task.md" in fault.point),
            *judging.of_a_success(scenario, number, place, ran),
        ]
        told = ran.value.told if isinstance(ran.value, Told) else ()
        wrong += judging.of_the_end(scenario, number, place, judging.look(place), told)
    return wrong, come


@pytest.mark.parametrize("part", range(PARTS))
def test_whatever_operation_fails_nothing_is_lost_and_whoever_asked_is_told(part: int) -> None:
    trials = judging.drawn(everything(), lambda t: (t.fault.kind, t.fault.error, t.fault.lasting), COUNT)[part::PARTS]
    begun, wrong, missed = time.monotonic(), [], 0
    codes: Counter[int] = Counter()
    for trial in trials:
        found, come = attempt(trial)
        missed += not come
        codes[trial.fault.error] += 1
        wrong += [f"{trial}: {what}" for what in found]
    names = {SHORT: "short write", **errno.errorcode}
    kinds = ", ".join(f"{names[code]} {count}" for code, count in codes.most_common())
    print(
        f"errors of the disk, part {part + 1} of {PARTS}: {len(trials)} of {len(everything())} faults ({kinds}), "
        f"{missed} did not come, {len(wrong)} wrong, {time.monotonic() - begun:.0f} s, seed {judging.SEED}"
    )
    assert not wrong, "\n".join([f"seed {judging.SEED}", *wrong])
    assert missed <= len(trials) / 20


# -- what these found, each by itself --------------------------------------------------------------------------------


@pytest.fixture
def desk(root: Path) -> Iterator[Desk]:
    found = Desk(root)
    yield found
    found.close()


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE], ids=lambda code: errno.errorcode[code])
@pytest.mark.parametrize("ask", [store.look, store.check_readable, store.read_spec, store.told, recovery.inspect])
def test_too_many_open_files_are_never_taken_for_a_damaged_task(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, code: int, ask: Callable[[store.Paths], object]
) -> None:
    """They say nothing of the file: a journal would be called lost, and made again from what cannot be read either."""
    before = everything_in(desk.where.directory)

    def refuse(path: str, _flags: int) -> int:
        raise OSError(code, os.strerror(code), path)

    layer = SimpleNamespace(**{**vars(os), "open": refuse})
    monkeypatch.setattr(reading, "os", layer)
    with pytest.raises(Exhausted, match="too many files open"):
        ask(desk.where)
    monkeypatch.undo()
    assert everything_in(desk.where.directory) == before


def test_a_text_of_ours_that_could_not_be_removed_does_not_take_back_an_order(desk: Desk) -> None:
    """Killed between the exchange and the removal, it lies there with the step as done; task.md says `[redo]`."""
    old = desk.text
    desk.task.will_reopen("a")
    Path(files.temporary_of(desk.where.task_md)).write_text(old, "utf-8")
    state = desk.next_holder().snapshot.steps["a"]
    assert (state.status, state.by_hand) == (StepStatus.PENDING, False)


def test_a_line_whose_journal_line_was_lost_is_the_step_that_it_names_also_when_that_has_a_key(desk: Desk) -> None:
    """The line is not synced, so a power cut may take it and leave task.md and the step file."""
    journal = Path(desk.where.journal)
    before = journal.read_bytes()
    half = StepId("half", 1, "right")
    desk.task.begin_try(half, 1, effect="idempotent", args="")
    journal.write_bytes(before)
    task = desk.next_holder()
    assert task.begin_try(half, 1, effect="idempotent", args="").label == "half (right)"
    task.commit("half (right)", StepStatus.DONE, result=1)
    found = store.look(desk.where).snapshot
    assert [label for label in found.steps if label.startswith("half")] == ["half (right)"]
    assert (found.labels[half], found.steps["half (right)"].file) == ("half (right)", "half (right).md")


@pytest.mark.parametrize("left", ["", "# ", "# c\n"])
def test_a_step_file_that_a_full_disk_left_without_its_heading_gets_it(desk: Desk, left: str) -> None:
    Path(desk.where.step("c.md")).write_text(left)
    desk.run("c")
    assert Path(desk.where.step("c.md")).read_text("utf-8").startswith("# c\n")
    assert Path(desk.where.step("c.md")).read_text("utf-8").count("# c\n") == 1


def test_a_task_md_that_was_lost_says_again_how_the_task_stands(desk: Desk) -> None:
    Path(desk.where.task_md).unlink()
    desk.next_holder()
    assert "## Status: working" in desk.text
