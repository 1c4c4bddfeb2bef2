"""Every file of a task, ruined in every way: it keeps what was done, and others do not notice."""

from __future__ import annotations

import json
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import failing
import inline
import judging
import pytest
import scenarios
from cli_door import DATA, TEMPORARY, Cli
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


#: What of a task may be cut off; a journal or a step file by a crash, the others by whoever writes them in place.
CUT: dict[str, Callable[[Paths], str]] = {**FILES, "spec": lambda where: where.spec, "requests": lambda w: w.requests}


@pytest.mark.parametrize("file", CUT)
def test_a_file_that_is_cut_at_any_byte_is_read_all_the_same_and_what_was_done_is_known(root: Path, file: str) -> None:
    where = build(root, "ended" if file == "result" else "interrupted")
    store.make_request(where, {"id": "first", "verb": "send", "text": "hello", "at": 1.0})
    path = Path(CUT[file](where))
    whole = path.read_bytes()
    for n, length in enumerate(judging.drawn(range(len(whole)), lambda at: 0, 120)):
        path.write_bytes(whole[:length])
        seen = store.look(where)
        assert store.row(where).total in (3, 2, 1, 0)
        assert recovery.inspect(where).action in ("resumed", "damaged", "ended", "failed"), length
        if file != "journal":
            assert [state.status.value for state in seen.snapshot.steps.values()][:2] == ["done", "done"], length
        if n % 10 == 0 or judging.TRIALS:
            kept = {name: Path(name).read_bytes() for name in (where.task_md, where.journal, where.step("two.md"))}
            lock = files.lock_directory(where.directory)
            assert lock is not None
            task = take_over(where, time.time, thorough=True)
            steps = task.snapshot.steps
            assert (steps["two"].status, steps["two"].result) == (StepStatus.DONE, 2), length
            assert steps["one"].status is StepStatus.DONE, length
            task.close()
            os.close(lock)
            for name, data in kept.items():
                Path(name).write_bytes(data)
    path.write_bytes(whole)


def test_a_doctor_that_is_killed_at_any_of_its_operations_is_followed_by_one_that_mends_the_rest() -> None:
    for file, damage in _MENDED:
        number = 1
        while _mending_dies_at(file, damage, number):
            number += 1 if judging.TRIALS else 7
        assert number > 7, f"{file}: {damage}: nothing was mended"


_MENDED = [("task.md", "zeroed"), ("journal", "holed"), ("journal", "a fifo"), ("step file", "a full directory")]
_WRITES = {"create", "append", "write", "sync", "mkdir", "rename", "unlink", "truncate", "chmod"}


def _mending_dies_at(file: str, damage: str, number: int) -> bool:
    """Kill `doctor --fix` before its so manieth write; then mend the rest. Whether it wrote as often."""
    with tempfile.TemporaryDirectory(dir=scenarios.temporary_base()) as base:
        root = Path(base) / "root"
        where = build(root, "interrupted")
        DAMAGES[damage](Path(FILES[file](where)))
        with failing.installed(Path(base) / "log") as layer:
            _die(layer, number)
            ran = inline.attempt(lambda: list(doctor.mend(str(root), later)))
        assert ran.code in (0, -signal.SIGKILL), ran.error
        _mended(root, where)
        assert _mended(root, where) == [], (file, damage, number)
        assert [one.code for one in _todo(root, where)] == ["interrupted"], (file, damage, number)
        steps = store.look(where).snapshot.steps
        assert [steps[name].status.value for name in ("one", "two")] == ["done", "done"], (file, damage, number)
        assert [p.read_text() for p in Path(where.directory).rglob("inside")] == ["precious"] * ("full" in damage)
        return ran.code != 0


def _die(layer: failing.FailingLayer, number: int) -> None:
    real, left = layer.do, [number]

    def do(kind: str, *more: Any) -> Any:
        left[0] -= kind in _WRITES and os.getpid() != layer._maker
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(kind, *more)

    layer.do = do  # type: ignore[method-assign]


def test_the_commands_say_of_each_ruined_task_what_is_wrong_and_show_the_others(root: Path, tmp_path: Path) -> None:
    cli = Cli(tmp_path, root)
    ended = {}
    for file, damage in (("task.md", "a fifo"), ("journal", "a full directory"), ("result", "a fifo")):
        ended[file] = build(root, "ended")
        DAMAGES[damage](Path(FILES[file](ended[file])))
    unknown, sound = build(root, "interrupted"), build(root, "ended")
    DAMAGES["a fifo"](Path(unknown.spec))
    everybody = [*ended.values(), unknown, sound]
    assert [row["id"] for row in json.loads(cli("list", "--json").out)] == [where.task_id for where in everybody]
    before = json.loads(cli("doctor", "--json").out)["findings"]
    assert [[f["level"] for f in before if f["task"] == w.task_id] for w in everybody] == [
        *([["mend"]] * 3),
        ["person"],
        [],
    ]
    cli("wait", unknown.task_id, "--timeout", "1").ends_refusing(TEMPORARY, unknown.task_id)
    recovered = cli("recover", unknown.task_id, "--wait")
    assert (recovered.code, "adopt" in recovered.out, "Traceback" in recovered.err) == (1, True, False), recovered
    said = cli("doctor", "--fix")
    assert said.code == 1
    assert all(where.task_id in said.out for where in [*ended.values(), unknown])
    assert "damaged-" in said.out  # where what was moved aside lies now
    assert sound.task_id not in said.out
    assert [cli("result", where.task_id).code for where in [*ended.values(), sound]] == [0] * 4
    assert "→" not in cli("doctor", "--fix").out


@pytest.mark.parametrize("damage", ["zeroed", "holed", "1 GB", "a fifo"])
def test_nothing_is_appended_to_a_step_file_in_which_nobody_would_find_it(root: Path, damage: str) -> None:
    where = build(root, "interrupted")
    path = Path(where.step("three.md"))
    DAMAGES[damage](path)
    task = take_over(where, time.time)
    task.begin_attempt(token="none")
    task.started(worker=GONE, guard=GONE)
    task.begin_try(StepId("three"), 1, effect="idempotent", args="three")
    task.commit("three", StepStatus.DONE, result=3)
    task.close()
    assert path.read_text("utf-8").startswith("# three\n")
    assert list(path.parent.glob("three.md.damaged-*"))


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
