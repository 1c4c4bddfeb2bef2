"""What is on the disk for good when a call returns: a power cut right after it takes nothing of it away.

`test_system_calls.py` follows one life from outside; here each record that must be durable is made by itself.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import recording
from desk import Desk
from recording import Call, Trace

from orchestrator import files, orders, store, workspace
from orchestrator.compose import resolve
from orchestrator.core.model import Outcome, StepId, StepStatus, TaskSpec
from orchestrator.store import Paths
from orchestrator.worker import children
from orchestrator.worker.descriptors import Own
from orchestrator.worker.task import Task


class Disk:
    """What has reached the disk since it was asked last."""

    def __init__(self, layer: recording.RecordingOs) -> None:
        self._layer = layer

    def trace(self) -> Trace:
        return Trace(self._layer.calls)

    def forget(self) -> None:
        self._layer.calls.clear()

    def replaced(self, path: str) -> Call:
        """The rename by which a file was replaced, durably: content before it, name after it."""
        trace = self.trace()
        directory, name = os.path.split(path)
        written = trace.find("fsync", f"{directory}/{files.TEMPORARY}{name}")
        renamed = trace.find("rename|renameat2", path, after=written.ended)
        return trace.find("fsync", directory, after=renamed.ended)


@pytest.fixture
def disk(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(recording.install(monkeypatch))


def skill(desk: Desk) -> Task:
    return Task(desk.task, TaskSpec("desk", "python", "m:f"), {}, leave=print, resolve=resolve, own=Own())


def _carry_out(desk: Desk, verb: str, **fields: str) -> None:
    store.make_request(desk.where, {"id": verb, "verb": verb, **fields})
    orders.carry_out(desk.task)


LINES: dict[str, Callable[[Desk], object]] = {
    "attempt": lambda desk: desk.task.begin_attempt(token="t"),
    "started": lambda desk: desk.task.started(worker=[1, 1, "", "", ""], guard=[1, 1, "", "", ""]),
    "running": lambda desk: desk.task.begin_try(StepId("c"), 1, effect="once", args=""),
    "commit": lambda desk: desk.task.commit("b", StepStatus.DONE, result=1),
    "plan": lambda desk: desk.task.plan([StepId("d"), StepId("e")]),
    "handled": lambda desk: _carry_out(desk, "redo", step="a"),
    "closed": lambda desk: desk.task.close_attempt(Outcome.PAUSED),
    "end": lambda desk: desk.task.end(desk.task.announcement(Outcome.FAILED, "")),
}


@pytest.mark.parametrize("kind", LINES)
def test_a_line_that_is_promised_is_durable_when_its_call_returns(desk: Desk, disk: Disk, kind: str) -> None:
    LINES[kind](desk)
    trace = disk.trace()
    trace.synced(trace.entry(kind))


@pytest.mark.parametrize(
    "edit, kind",
    [
        (("[pending] c", "[working done] c"), "commit"),
        (("[pending] c", "[skipped] c"), "commit"),
        (("[working done] a", "[redo] a"), "redo"),
        (("[pending] c", "[pending] c\n[pending] new"), "plan"),
        (("[working] b\n[pending] c", "[pending] c\n[working] b"), "order"),
    ],
)
def test_an_edit_that_was_taken_over_is_durable_in_the_journal_before_task_md_shows_it(
    desk: Desk, disk: Disk, edit: tuple[str, str], kind: str
) -> None:
    desk.edit(lambda text: text.replace(*edit))
    disk.forget()
    desk.task.look_for_edits()
    trace = disk.trace()
    durable = trace.synced(trace.entry(kind))
    shown = [c for c in trace.calls if c.name.startswith("rename") and c.path.endswith("/task.md")]
    assert all(durable.ended < call.began for call in shown)


def test_a_plan_is_durable_on_both_sides(desk: Desk, disk: Disk) -> None:
    """Who made it may be told of it, or start what comes next."""
    desk.task.plan([StepId("d"), StepId("e")])
    trace = disk.trace()
    durable = trace.synced(trace.entry("plan", '"step":"e"'))
    assert durable.ended < disk.replaced(desk.where.task_md).began


def test_a_large_result_is_durable_before_the_commit_that_names_it(desk: Desk, disk: Disk) -> None:
    """Else a power cut leaves a step that is done and has no result."""
    desk.task.commit("b", StepStatus.DONE, result="x" * 100_000)
    name = desk.task.snapshot.steps["b"].result_file
    assert name is not None
    trace = disk.trace()
    commit = trace.entry("commit")
    made = trace.find("mkdir", "/results")
    assert trace.find("fsync", desk.where.directory, after=made.ended).ended < commit.began
    assert disk.replaced(f"{desk.where.directory}/{name}").ended < commit.began


def test_the_place_of_the_result_is_durable_with_it(desk: Desk, disk: Disk) -> None:
    path = desk.task.store_result({"a": 1})
    disk.replaced(path)
    trace = disk.trace()
    trace.find("fsync", desk.where.directory, after=trace.find("mkdir", "/results").ended)


def test_an_order_is_durable_when_it_is_given_and_when_it_has_taken_effect(desk: Desk, disk: Disk) -> None:
    store.make_request(desk.where, {"id": "r", "verb": "pause"})
    trace = disk.trace()
    trace.synced(trace.find("write", "/requests.jsonl"))
    disk.forget()
    orders.carry_out(desk.task)
    trace = disk.trace()
    trace.synced(trace.entry("handled"))


def test_messages_are_durable_as_heard_before_the_skill_has_them(desk: Desk, disk: Disk) -> None:
    """Else the skill may act on them, and not hear them at the same call again."""
    store.make_request(desk.where, {"id": "r", "verb": "send", "text": "hello"})
    disk.forget()
    assert skill(desk).messages() == ["hello"]
    trace = disk.trace()
    trace.synced(trace.entry("heard"))


def test_task_md_is_durable_once_orders_were_carried_out(desk: Desk, disk: Disk) -> None:
    _carry_out(desk, "redo", step="a")
    disk.replaced(desk.where.task_md)


def test_task_md_that_is_right_already_is_made_durable_where_that_is_asked(desk: Desk, disk: Disk) -> None:
    desk.task.settle(sync=True)
    trace = disk.trace()
    assert trace.find("fsync", "/task.md").ended < trace.find("fsync", desk.where.directory).began


# -- who takes over --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tail", [b"", b'{"run":"task', b"\0" * 4096], ids=["whole", "torn", "holed"])
def test_a_journal_whose_writer_died_is_copied_durably_before_anything_is_added(
    desk: Desk, disk: Disk, tail: bytes
) -> None:
    """What the page cache shows after a failed sync need not be on the disk: a whole one is copied as well."""
    with open(desk.where.journal, "ab") as file:
        file.write(tail)
    desk.next_holder()
    copied = disk.replaced(desk.where.journal)
    desk.task.close_attempt(Outcome.LOST)
    assert copied.ended < disk.trace().entry("closed").began


def test_a_journal_taken_away_is_durable_again_before_the_commit_returns(desk: Desk, disk: Disk) -> None:
    os.unlink(desk.where.journal)
    desk.task.commit("b", StepStatus.DONE, result=1)
    disk.replaced(desk.where.journal)


def test_all_of_dot_task_taken_away_is_durable_again_with_what_is_to_run(desk: Desk, disk: Disk) -> None:
    files.remove_tree(desk.where.inner)
    disk.forget()
    desk.task.commit("b", StepStatus.DONE, result=1)
    disk.replaced(desk.where.journal)
    disk.replaced(desk.where.spec)
    trace = disk.trace()
    trace.find("fsync", desk.where.directory, after=trace.find("mkdir", "/.task").ended)


def test_a_rebuilt_journal_is_durable_before_anything_is_added(desk: Desk, disk: Disk) -> None:
    os.unlink(desk.where.journal)
    desk.next_holder()
    made = disk.replaced(desk.where.journal)
    desk.task.begin_attempt(token="t")
    assert made.ended < disk.trace().entry("attempt").began


# -- new tasks -------------------------------------------------------------------------------------------------------


def test_a_task_made_of_another_is_durable_before_it_has_its_name(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever wrote into it: its names are synced where it becomes a task."""

    def fill(where: Paths, task_id: str) -> None:
        os.mkdir(where.inner)
        Path(where.task_md).write_text(f"# Task: x\n## TaskID: {task_id}\n")

    disk = Disk(recording.install(monkeypatch))
    where, lock = workspace.take_in(str(root), time.time, fill)
    os.close(lock)
    trace = disk.trace()
    named = trace.find("rename", os.path.basename(where.directory))
    staging = trace.find("mkdir", "").path
    for directory in (f"{staging}/.task", staging):
        assert trace.find("fsync", directory).ended < named.began
    trace.find("fsync", str(root), after=named.ended)


def test_a_child_is_noted_durably_before_it_can_exist(desk: Desk, disk: Disk) -> None:
    """Else a parent that is killed in between makes it a second time."""
    parent, child = TaskSpec("desk", "python", "m:f"), TaskSpec("child", "python", "m:g")
    task_id = children.make(desk.task, parent, child, "k1", time.time)
    named = disk.trace().find("rename", f"/{task_id}")
    assert disk.replaced(desk.where.child("k1")).ended < named.began
    assert children.make(desk.task, parent, child, "k1", time.time) == task_id
