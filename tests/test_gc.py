"""What `gc` may remove, and everything it must not: nobody's work is lost to tidiness."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cli_door import DATA, USAGE, Cli
from conftest import TOKEN

from orchestrator import clearing, files, mounts, store, workspace
from orchestrator.core.model import Outcome, StepId, StepStatus, TaskSpec
from orchestrator.errors import Held, Refused
from orchestrator.store import Paths, make_request
from orchestrator.takeover import take_over

DAY = 86400.0


def make(root: Path, outcome: Outcome | None = Outcome.COMPLETED, *, days: float = 40, parent: str = "") -> Paths:
    """A task that was made, worked on, and ended so many days ago."""
    then = time.time() - days * DAY
    spec = TaskSpec("the work", "python", "module:skill", parent=parent or None)
    where, lock = workspace.create(str(root), spec, lambda: then)
    task = take_over(where, lambda: then)
    task.begin_attempt(token=TOKEN)
    task.begin_try(StepId("one"), 1, effect="idempotent", args="")
    if outcome is not None:
        task.commit("one", StepStatus.FAILED if outcome is Outcome.FAILED else StepStatus.DONE)
        task.end(task.announcement(outcome, ""))
    task.close()
    os.close(lock)
    return where


def found(root: Path, *, older: float = 30, failed: bool = False) -> list[str]:
    rule = clearing.rule(older_days=older, failed=failed, clock=time.time)
    return [one.id for one in clearing.candidates(str(root), rule)]


def remove(root: Path, *, older: float = 30) -> list[clearing.Candidate]:
    rule = clearing.rule(older_days=older, failed=False, clock=time.time)
    return list(clearing.remove(str(root), list(clearing.candidates(str(root), rule)), rule))


def force(where: Paths) -> None:
    """Remove it, whatever the rules say of its end: what is left to refuse is the directory itself."""
    workspace.remove(os.path.dirname(where.directory), where.task_id, lambda _: True)


def test_only_what_ended_well_and_long_ago_goes(root: Path) -> None:
    old = [make(root, o).task_id for o in (Outcome.COMPLETED, Outcome.CANCELLED)]
    failed = [make(root, o).task_id for o in (Outcome.FAILED, Outcome.CONFLICT)]
    make(root, None)  # never ended
    make(root, days=29)
    assert found(root) == sorted(old)
    assert found(root, failed=True) == sorted(old + failed)
    assert found(root, older=41) == []


def redo_in_task_md(where: Paths) -> None:
    text = Path(where.task_md).read_text()
    Path(where.task_md).write_text(text.replace("[working done] one", "[redo] one"))


@pytest.mark.parametrize(
    "change",
    [
        redo_in_task_md,
        lambda where: make_request(where, {"id": "r1", "verb": "redo", "step": "one"}),
        lambda where: os.remove(where.journal),
        lambda where: Path(where.journal).write_bytes(b"broken\n" + Path(where.journal).read_bytes()[:-1]),
    ],
    ids=["a step marked to be done anew", "an order given", "no journal", "a damaged journal"],
)
# fault 20
def test_a_task_that_somebody_wants_again_or_that_cannot_be_judged_stays(
    root: Path, change: Callable[[Paths], Any]
) -> None:
    where = make(root)
    assert found(root) == [where.task_id]
    change(where)
    assert found(root) == []


def test_the_result_of_a_sub_task_stays_while_its_parent_may_ask_for_it(root: Path) -> None:
    parent = make(root, None)
    child = make(root, parent=f"{parent.task_id}/key")
    assert found(root) == []
    shutil.rmtree(parent.directory)
    assert found(root) == [child.task_id]


def test_a_removed_task_is_gone_whole_and_its_neighbours_stay(root: Path) -> None:
    gone, stays = make(root), make(root, days=1)
    (Path(gone.directory) / "cache").mkdir()
    (Path(gone.directory) / "cache" / "file").write_text("x")
    (Path(gone.directory) / "cache").chmod(0o500)  # as some tools leave theirs
    outside = root.parent / "outside"
    outside.mkdir()
    (outside / "kept").write_text("x")
    (Path(gone.directory) / "link").symlink_to(outside)
    assert [(one.id, one.removed) for one in remove(root)] == [(gone.task_id, True)]
    assert [path.name for path in root.iterdir()] == [stays.task_id]
    assert (outside / "kept").read_text() == "x"


# -- what only looks like a task -------------------------------------------------------------------------------------


def test_a_link_to_a_task_is_not_followed(root: Path) -> None:
    where = make(root)
    elsewhere = root.parent / "elsewhere"
    os.rename(where.directory, elsewhere)
    os.symlink(elsewhere, where.directory)
    assert found(root) == []
    with pytest.raises(store.TaskNotFound):
        force(where)
    assert (elsewhere / "task.md").exists()


def other_heading(where: Paths) -> None:
    path = Path(where.task_md)
    path.write_text(path.read_text().replace(where.task_id, "task-20200101-000000-001"))


def foreign(where: Paths) -> None:
    shutil.rmtree(where.directory)
    (Path(where.directory) / "sub").mkdir(parents=True)
    (Path(where.directory) / "task.md").write_text("# notes of a person\n\nremember the milk\n")


@pytest.mark.parametrize("change", [other_heading, foreign], ids=["another id in it", "no id in it"])
# fault 75
def test_a_directory_that_does_not_carry_the_id_of_its_name_is_not_ours(
    root: Path, change: Callable[[Paths], None]
) -> None:
    where = make(root)
    change(where)
    with pytest.raises(Refused, match="does not carry the id of its name"):
        force(where)
    assert os.path.exists(where.task_md)


def test_a_copy_under_another_name_is_not_removed_for_the_one_it_was_made_of(root: Path) -> None:
    where = make(root)
    copy = root / "task-20260101-000000-001"
    shutil.copytree(where.directory, copy)
    assert [one.removed for one in remove(root) if one.id == copy.name] == [False]
    assert (copy / "task.md").exists()


def test_what_is_mounted_in_a_task_is_not_removed_with_it(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    where = make(root)
    table = f"/dev/x {where.directory.replace(' ', chr(92) + '040')}/data ext4 rw 0 0\n"
    real = mounts.mounts
    monkeypatch.setattr(mounts, "mounts", lambda _=None: real(table))
    with pytest.raises(Refused, match="a file system is mounted at"):
        force(where)
    assert os.path.exists(where.task_md)


@pytest.mark.parametrize(
    "name", ["..", ".", "", "task-2026", "task-20260101-000000-001/..", "task-20260101-000000-001/"]
)
def test_no_name_leads_out_of_the_root(root: Path, name: str) -> None:
    (root / "task-20260101-000000-001").mkdir()
    with pytest.raises(store.TaskNotFound):
        workspace.remove(str(root), name, lambda _: True)


# -- those who are at it ---------------------------------------------------------------------------------------------


def test_a_task_that_somebody_holds_stays(root: Path) -> None:
    where = make(root)
    lock = files.lock_directory(where.directory)
    assert lock is not None
    with pytest.raises(Held):
        force(where)
    (kept,) = remove(root)
    os.close(lock)
    assert (kept.removed, os.path.isdir(where.directory)) == (False, True)


def test_a_task_of_which_a_process_lives_stays(root: Path) -> None:
    where = make(root)
    environment = os.environ | {"ORCHESTRATOR_TOKEN": TOKEN}
    command = [sys.executable, "-c", "import sys; print('up', flush=True); sys.stdin.read()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"up\n"
        (kept,) = remove(root)
    assert (kept.removed, os.path.isdir(where.directory)) == (False, True)
    assert [one.removed for one in remove(root)] == [True]


def test_a_task_taken_up_again_after_the_list_was_made_stays(root: Path) -> None:
    rule = clearing.rule(older_days=30, failed=False, clock=time.time)
    where = make(root)
    listed = list(clearing.candidates(str(root), rule))
    make_request(where, {"id": "r1", "verb": "redo", "step": "one"})
    (kept,) = clearing.remove(str(root), listed, rule)
    assert (kept.removed, os.path.isdir(where.directory)) == (False, True)


def test_a_crash_in_the_middle_leaves_no_half_task_and_what_is_left_is_swept(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = make(root)

    def dies(path: str) -> None:
        os.unlink(f"{path}/task.md")
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(files, "remove_tree", dies)
        with pytest.raises(KeyboardInterrupt):
            force(where)
    assert store.task_ids(str(root)) == []
    assert len(workspace.leftovers(str(root))) == 1
    assert workspace.sweep_staging(str(root)) == 1
    assert list(root.iterdir()) == []


def test_what_cannot_be_swept_keeps_nobody_from_working(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (root / ".orchestrator-gone-x").mkdir()

    def refuses(path: str) -> None:
        raise PermissionError(1, "Operation not permitted", path)

    monkeypatch.setattr(files, "remove_tree", refuses)
    assert workspace.sweep_staging(str(root)) == 0


# -- the door --------------------------------------------------------------------------------------------------------


@pytest.fixture
def cli(tmp_path: Path, root: Path) -> Cli:
    return Cli(tmp_path, root)


# fault 76
def test_nothing_is_removed_before_a_person_says_yes(cli: Cli, root: Path) -> None:
    where = make(root)
    said = cli("gc")
    assert (said.code, said.err) == (0, "")
    assert "nothing was removed; to remove what is listed: --yes" in said.out
    assert where.task_id in said.out
    assert cli("gc", "--dry-run", "--yes").code == 0
    assert os.path.isdir(where.directory)
    said = cli("gc", "--yes")
    assert (said.code, cli.tasks()) == (0, [])
    assert f"removed {where.task_id}" in said.out
    assert cli("gc").out == "no task has ended more than 30 days ago\n"


def test_programs_are_told_what_goes_and_how_many_bytes(cli: Cli, root: Path) -> None:
    where = make(root)
    Path(where.directory, "data").write_bytes(b"x" * 100_000)
    told = json.loads(cli("gc", "--dry-run", "--json").out)
    (task,) = told["tasks"]
    assert (told["schema"], told["removing"], task["id"], task["removed"]) == (1, False, where.task_id, None)
    assert told["bytes"] == task["bytes"] > 100_000
    told = json.loads(cli("gc", "--yes", "--json").out)
    assert [one["removed"] for one in told["tasks"]] == [True]


def test_what_was_kept_is_said_and_shows_in_the_exit_code(cli: Cli, root: Path) -> None:
    where = make(root)
    other_heading(where)
    said = cli("gc", "--yes")
    assert said.code == 1
    assert f"kept {where.task_id}: " in said.out
    assert cli("gc", "--older", "-1").code in (USAGE, DATA)
