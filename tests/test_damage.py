"""Every file of a task, ruined in every way: it keeps what was done, and others do not notice."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from cli_door import DATA, Cli
from ruining import DAMAGES
from test_explain import GONE

from orchestrator import doctor, files, recovery, store, workspace
from orchestrator.cli.show import result_path
from orchestrator.core.model import Limits, Outcome, StepId, StepSpec, StepStatus, TaskSpec
from orchestrator.core.spec import parse_spec, to_yaml
from orchestrator.errors import BadSpec, Damaged
from orchestrator.store import Paths
from orchestrator.takeover import take_over


def later() -> float:
    return time.time() + 3600


def build(root: Path, state: str) -> Paths:
    """Two steps done, one of them with a large result; then cut off in the third, or ended."""
    where, lock = workspace.create(str(root), TaskSpec("the work", "steps", "module:skill"), time.time)
    task = take_over(where, time.time)
    task.begin_attempt(token="none")
    task.started(worker=GONE, guard=GONE)
    task.plan([StepId("one"), StepId("two"), StepId("three")])
    for name, result in (("one", "large " * 20_000), ("two", 2), ("three", 3)):
        task.begin_try(StepId(name), 1, effect="idempotent", args=name)
        task.settle()
        if name != "three" or state == "ended":
            task.commit(name, StepStatus.DONE, result=result)
    if state == "ended":
        task.end(task.announcement(Outcome.COMPLETED, "", result=task.store_result({"x": [1, 2]})))
    task.close()
    os.close(lock)
    return where


FILES: dict[str, Callable[[Paths], str]] = {
    "task.md": lambda where: where.task_md,
    "step file": lambda where: where.step("two.md"),
    "journal": lambda where: where.journal,
    "result": lambda where: f"{where.results}/result.json",
}


#: What a file whose owner is root is not kept from by.
_HARMLESS = {"unreadable"} if os.geteuid() == 0 else set()


def _todo(root: Path, where: Paths) -> list[doctor.Finding]:
    found = doctor.examine(str(root), later)
    return [one for one in found if one.task == where.task_id and not one.settled]


def _mended(root: Path, where: Paths) -> list[str]:
    return [line for line in doctor.mend(str(root), later) if where.task_id in line]


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("state", ["interrupted", "ended"])
def test_whatever_becomes_of_a_file_the_task_keeps_what_was_done_and_others_do_not_notice(
    root: Path, state: str, file: str
) -> None:
    """Faults 48, 49 and 53: fault 48, fault 49, fault 53."""
    if (file, state) == ("result", "interrupted"):
        return
    other = build(root, "interrupted")
    before = recovery.inspect(other)
    for damage, ruin in DAMAGES.items():
        where = build(root, state)
        ruin(Path(FILES[file](where)))
        assert len(_todo(root, where)) <= 1, damage
        _mended(root, where)
        assert _mended(root, where) == [], damage
        left = _todo(root, where)
        assert [one.code for one in left] in ([], ["interrupted"]), (damage, left)
        lock = files.lock_directory(where.directory)
        assert lock is not None
        task = take_over(where, time.time)
        steps = task.snapshot.steps
        assert len(str(task.result_of(steps["one"]))) == 120_000, damage
        assert (steps["two"].status, steps["two"].result) == (StepStatus.DONE, 2), damage
        task.close()
        os.close(lock)
        assert recovery.inspect(other) == before
        if damage == "a full directory":
            (kept,) = Path(where.directory).rglob("inside")
            assert kept.read_text() == "precious"
        shutil.rmtree(where.directory)
    assert store.row(other).state == "interrupted"


def test_a_result_that_is_not_what_the_task_gave_is_not_shown_as_such_and_is_made_again(root: Path) -> None:
    """As a fifo it was waited for; with a bit of it changed it was printed."""
    for damage, ruin in DAMAGES.items():
        if damage in _HARMLESS:
            continue
        where = build(root, "ended")
        ruin(Path(FILES["result"](where)))
        with pytest.raises(Damaged) as refused:
            result_path(str(root), where.task_id)
        assert len(refused.value.what.splitlines()) == len(refused.value.hint.splitlines()) == 1, damage
        _mended(root, where)
        assert json.loads(Path(result_path(str(root), where.task_id)).read_text()) == {"x": [1, 2]}, damage
        shutil.rmtree(where.directory)


def test_the_result_of_a_task_is_asked_for_and_a_fifo_in_its_place_is_not_waited_for(
    root: Path, tmp_path: Path
) -> None:
    cli, where = Cli(tmp_path, root), build(root, "ended")
    assert json.loads(cli("result", where.task_id).out) == {"x": [1, 2]}
    DAMAGES["a fifo"](Path(FILES["result"](where)))
    cli("result", where.task_id).refuses(DATA, "results/result.json", "orchestrator doctor --fix")


def test_a_spec_that_was_cut_at_any_byte_is_never_run_as_if_it_were_whole() -> None:
    text = to_yaml(TaskSpec("x", "python", "a.py:b", args={"path": "/some/where", "n": 12}))
    for length in range(len(text) - 1):
        with pytest.raises(BadSpec):
            parse_spec(text[:length], "spec.yaml")


@pytest.mark.parametrize("value", ["a\x85b", "\u2028", "\ufeff", "yes", "1e3", " x \t", "\r\n", "\x7f", "\U0001f600"])
def test_an_argument_comes_back_as_it_was_given(value: str) -> None:
    spec = TaskSpec("x", "python", "a.py:b", args={"a": value, value: [value]})
    assert parse_spec(to_yaml(spec), "spec.yaml") == spec


@pytest.mark.parametrize(
    "spec",
    [
        TaskSpec("\udcff", "python", "a.py:b"),
        TaskSpec("x", "python", "a.py:b", args={"a": "\ud800"}),
        TaskSpec("x", "python", "a.py:b", args={"a": float("nan")}),
        TaskSpec("x", "python", "a.py:b", env={"A": "\0"}),
        TaskSpec("x", "python", "a.py:b", env={"A=B": "c"}),
        TaskSpec("x", "python", "a.py:b", env={"": "c"}),
        TaskSpec("x", "python", "a.py:b", env={"A": "\ud800"}),
        TaskSpec("x", "python", "a.py:b", args={"a": json.loads("[" * 150 + "]" * 150)}),
        TaskSpec("x", "steps", "s.yaml", steps=(StepSpec("a\ud800", run=("ls",)),)),
        TaskSpec("x", "steps", "s.yaml", steps=(StepSpec("a", run=("ls", "\0")),)),
        TaskSpec("x", "steps", "s.yaml", steps=(StepSpec("a", run=("ls",), timeout=float("inf")),)),
        TaskSpec("x", "steps", "s.yaml", steps=(StepSpec("a", run=("ls",), timeout=0),)),
        *(
            TaskSpec("x", "python", "a.py:b", limits=Limits(**{name: value}))
            for name in ("attempt_seconds", "grace_seconds", "deaths")
            for value in (float("inf"), float("nan"), -1)
        ),
        TaskSpec("x", "python", "a.py:b", limits=Limits(attempt_seconds=0)),
        TaskSpec("x", "python", "a.py:b", limits=Limits(deaths=0)),
    ],
)
def test_what_no_worker_could_run_is_refused_before_a_task_is_made(root: Path, spec: TaskSpec) -> None:
    with pytest.raises(BadSpec) as refused:
        workspace.create(str(root), spec, time.time)
    assert len(refused.value.what.splitlines()) == len(refused.value.hint.splitlines()) == 1
    assert list(root.iterdir()) == []
