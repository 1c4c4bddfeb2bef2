"""Every file operation of every scenario fails, once or from there on: nothing is lost, nothing is done twice.

Errors that are left out: EINTR (Python calls again by itself, PEP 475), and what a network file system adds.
The seed of what is drawn is printed; ORCHESTRATOR_TEST_SEED=<seed> draws the same again, ORCHESTRATOR_TEST_TRIALS=all
tries all of it (`make crashes`).
"""

from __future__ import annotations

import contextlib
import errno
import functools
import itertools
import os
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import failing
import judging
import pytest
import scenarios
from desk import Desk
from failing import SCOPES, SHORT, Fault
from judging import Told
from kit import everything as everything_in
from scenarios import Scenario

from orchestrator import directories, files, reading, recovery, store, takeover
from orchestrator.core.model import StepId, StepStatus
from orchestrator.errors import Exhausted, SyncFailed

#: How many are drawn in every run of the tests, and in how many parts.
COUNT, PARTS = 224, 4


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
def trials_of(scenario: Scenario, number: int) -> list[Trial]:
    """Every fault at every operation of one act: what an undisturbed run does is written down first."""
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
        told = ran.value.told if isinstance(ran.value, Told) else ()
        face_may_be_lost = fault.lost and "task.md" in fault.point
        wrong = [
            *judging.of_the_telling(ran),
            *judging.of_the_disk(place, by_hand, told, lost=fault.lost, face_may_be_lost=face_may_be_lost),
            *judging.of_a_success(scenario, number, place, ran),
        ]
        wrong += judging.of_the_end(
            scenario, number, place, judging.look(place), told, aside=fault.lost or fault.error == errno.EACCES
        )
    return wrong, come


def everything(part: judging.Part) -> list[Trial]:
    return [one for scenario in part.scenarios for act in range(len(scenario.acts)) for one in trials_of(scenario, act)]


def _kind(trial: Trial) -> object:
    """What fails, and how."""
    return trial.fault.kind, trial.fault.error, trial.fault.lost


def _place(trial: Trial) -> object:
    """Who does it, to which file, and whether it lasts."""
    who, _, what = trial.fault.point.partition(": ")
    return who[:6], what.partition(" #")[0], trial.fault.lasting


@pytest.mark.parametrize("part", judging.parts(PARTS), ids=str)
def test_whatever_operation_fails_nothing_is_lost_and_whoever_asked_is_told(part: judging.Part) -> None:
    all_of_it = everything(part)
    trials = part.of(all_of_it, [_kind, _place], COUNT)
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
        f"errors of the disk, {part}: {len(trials)} of {len(all_of_it)} faults ({kinds}), "
        f"{missed} did not come, {len(wrong)} wrong, {time.monotonic() - begun:.0f} s, seed {judging.SEED}"
    )
    assert not wrong, "\n".join([f"seed {judging.SEED}", *wrong])
    assert missed <= len(trials) / 20
    if part.parts <= PARTS and not judging.TRIALS:
        assert {_kind(trial) for trial in trials} == {_kind(trial) for trial in all_of_it}, "a kind is left out"


# -- by themselves: what no draw may leave out -------------------------------------------------------------------------

STUBBORN = Scenario("a stubborn skill", scenarios.nothing, (scenarios.spawn(scenarios.skill("stubborn")),))


@pytest.mark.parametrize("fault", ["sync", "sync, bytes lost", "short write"])
def test_a_worker_whose_journal_was_not_written_enters_no_further_step_whatever_its_skill_catches(fault: str) -> None:
    """Once only: a later write, and a later sync, would succeed, and prove nothing. What was written by half is cut."""
    kind = "write" if fault == "short write" else "sync"
    points = [one for one in _points(STUBBORN) if one.startswith(f"worker 1: {kind} journal.jsonl")]
    commits = points[-5:-2]  # the last two are the end and its close; a try that begins is not synced
    if kind == "write":
        commits = points[-7:-2:2]
    for steps, point in enumerate(commits, 1):
        error = SHORT if fault == "short write" else errno.EIO
        with tempfile.TemporaryDirectory(dir=scenarios.temporary_base()) as base:
            place = STUBBORN.place(Path(base) / "place")
            with failing.installed(Path(base) / "log", Fault(point, error, lost=fault.endswith("lost"))) as layer:
                ran = judging.command(STUBBORN, place, 0)
                assert layer.has_failed
            assert isinstance(ran.value, Told), ran.error
            assert ran.value.code == 74, ran.value
            entered = [line.partition(" ")[0] for line in place.ledger.lines()]
            assert entered == ["one", "two", "three"][:steps], point
            reading = store.read_journal(place.tasks()[0])
            assert (reading.torn, reading.damaged) == (0, ()), point
            assert sum(entry["kind"] == "commit" for entry in reading.entries) == steps - (fault != "sync"), point


def _points(scenario: Scenario) -> list[str]:
    with tempfile.TemporaryDirectory(dir=scenarios.temporary_base()) as base:
        with failing.installed(Path(base) / "log"):
            assert judging.command(scenario, scenario.place(Path(base) / "place"), 0).code == 0
        return failing.points(Path(base) / "log")


# -- what these found, each by itself --------------------------------------------------------------------------------


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


@pytest.mark.parametrize("there", [True, False])
def test_a_step_file_that_could_not_be_looked_at_for_a_moment_keeps_its_heading(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, there: bool
) -> None:
    """It was taken for closed: what came next was the first line of a new one."""
    if there:
        Path(desk.where.step("c.md")).write_text("# c\n\nmine\n")

    def refuse(path: str, flags: int) -> int:
        if path.endswith("/c.md") and not flags & os.O_CREAT:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return os.open(path, flags)

    monkeypatch.setattr(reading, "os", SimpleNamespace(**{**vars(os), "open": refuse}))
    with pytest.raises(PermissionError):
        desk.run("c")
    monkeypatch.undo()
    task = desk.next_holder()
    task.begin_try(StepId("c"), 1, effect="idempotent", args="")
    text = Path(desk.where.step("c.md")).read_text("utf-8")
    assert text.startswith("# c\n")
    assert text.count("# c\n") == 1
    assert ("mine" in text) is there


def test_a_task_md_that_was_lost_says_again_how_the_task_stands(desk: Desk) -> None:
    Path(desk.where.task_md).unlink()
    desk.next_holder()
    assert "## Status: working" in desk.text


class _NoAnswer:
    """Looks like `os`; the n-th time that a file is looked at, the disk gives no answer."""

    def __init__(self, number: int) -> None:
        self.left = number

    def __getattr__(self, name: str) -> Any:
        real = getattr(os, name)
        if name not in ("stat", "fstat", "read", "pread", "scandir", "open"):
            return real

        def look(*args: Any, **more: Any) -> Any:
            self.left -= name != "open" or not args[1] & os.O_CREAT
            if self.left == 0:
                raise OSError(errno.EIO, os.strerror(errno.EIO), None if isinstance(args[0], int) else args[0])
            return real(*args, **more)

        return look


def _ended(desk: Desk) -> None:
    for name in ("b", "c"):
        desk.run(name)
    desk.task.end(desk.task.announcement("completed", "", result=desk.task.store_result({"found": 1})))


def _without_a_journal(desk: Desk) -> None:
    Path(desk.where.journal).unlink()


@pytest.mark.parametrize("before", [_ended, _without_a_journal], ids=["ended", "journal lost"])
def test_an_intact_file_that_the_disk_could_not_read_is_not_moved_aside(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, before: Callable[[Desk], None]
) -> None:
    """Whoever takes the task over is told of the disk; what he could not read is whole, and is read the next time."""
    before(desk)
    desk.task.close()
    start = everything_in(desk.where.directory)
    for number in itertools.count(1):
        layer = _NoAnswer(number)
        for module in (files, reading, directories):
            monkeypatch.setattr(module, "os", layer)
        with contextlib.suppress(OSError):
            takeover.take_over(desk.where, time.time, thorough=True).close()
        monkeypatch.undo()
        aside = [name for name in everything_in(desk.where.directory) if ".damaged-" in name]
        assert not aside, f"at look {number}"
        takeover.take_over(desk.where, time.time, thorough=True).close()
        steps = store.look(desk.where).snapshot.steps
        assert {label: state.status for label, state in steps.items()} == _statuses(before), f"at look {number}"
        _put_back(desk.where.directory, start)
        if layer.left > 0:
            break
    assert number > 10


def _statuses(before: Callable[[Desk], None]) -> dict[str, StepStatus]:
    done = StepStatus.DONE
    return (
        dict.fromkeys("abc", done)
        if before is _ended
        else {"a": done, "b": StepStatus.WORKING, "c": StepStatus.PENDING}
    )


def _put_back(directory: str, start: dict[str, bytes]) -> None:
    for name in everything_in(directory):
        Path(directory, name).unlink()
    for name, content in start.items():
        Path(directory, name).write_bytes(content)


def test_an_edit_that_the_disk_could_not_read_back_is_merged_by_the_next_holder(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was displaced by our mark: whole, and nowhere else."""
    met = False
    for number in itertools.count(1):
        desk.edit(lambda text, n=number: text.replace("[pending] c", f"[pending] c\n\nRemark {n}.", 1))
        layer = _NoAnswer(number)
        for module in (files, reading, directories):
            monkeypatch.setattr(module, "os", layer)
        try:
            desk.task.begin_try(StepId("b"), number + 1, effect="idempotent", args="")
            desk.task.note("b", "went on")
        except (OSError, SyncFailed):
            met = True
        monkeypatch.undo()
        desk.next_holder()
        assert f"Remark {number}." in desk.text
        assert not [name for name in everything_in(desk.where.directory) if ".damaged-" in name], f"at look {number}"
        if layer.left > 0:
            break
    assert met
