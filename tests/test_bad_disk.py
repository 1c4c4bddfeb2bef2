"""A disk that is full or read-only, and files of a task that somebody ruined: what was done stays done."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import kit
import pytest
from cli_door import CANNOT_CREATE, DATA, FAILED, IO, NO_INPUT, TEMPORARY, Cli
from kit import let_go
from replaying import SkillFile, entries, kill_worker, result, snapshot
from small_disk import Disk

from orchestrator import Coordinator
from orchestrator.errors import SyncFailed
from orchestrator.store import Paths, look


@pytest.fixture
def cli(tmp_path: Path, disk: Disk) -> Cli:
    cli = Cli(tmp_path, disk.path / "root")
    cli.limits = disk.limits
    return cli


@pytest.fixture
def skill(tmp_path: Path, ledger: Any) -> SkillFile:
    return SkillFile(tmp_path, ledger.path)


MANY = """
    for number in range(200):
        await task.step(f"part {number}", lambda: work(number) and "x" * 2000)
    return "all of them"
"""


def test_a_task_that_a_full_disk_takes_no_more_is_refused_and_leaves_nothing(cli, disk, skill):
    worker = f"{skill.write('return 1').path}:skill"
    cli.root.mkdir()
    disk.fill()
    cli("spawn", worker).refuses(IO, "free some space")
    cli("run", worker).refuses(IO, "free some space")
    assert cli.tasks() == []
    disk.free()
    assert cli("run", worker).code == 0


def test_a_disk_that_fills_in_the_middle_costs_no_finished_step(cli, disk, skill, ledger):
    said = cli("run", f"{skill.write(MANY).path}:skill")
    said.ends_refusing(IO, "free some space", "orchestrator recover")
    task = cli.task()
    snap = snapshot(Paths(str(task)))
    assert (len(snap.attempts), snap.deaths) == (1, 0)  # another worker could do no better: the budget is kept for them
    before = snap.counts()["done"]
    assert 0 < before < 200
    assert cli("list").code == 0
    disk.free()
    cli.limits = None
    again = cli("recover", "--wait")
    assert again.code == 0, again
    assert json.loads(cli("result", task.name).out) == "all of them"
    ran = [ledger.count(f"{number} ran") for number in range(200)]
    assert sum(ran) - 200 <= len(snapshot(Paths(str(task))).attempts)  # the one that was not committed, each time
    assert ran[: before - 1] == [1] * (before - 1)
    assert not list(task.rglob(".orchestrator-*"))


def test_a_worker_that_could_not_write_spends_nothing_of_the_budget_and_no_other_is_sent_after_it(
    root, skill, ledger, tmp_path
):
    body = """
        import resource
        await task.step("one", work, "one")
        if not went_on():
            size = os.path.getsize(task.workspace / ".task" / "journal.jsonl") + 1000
            resource.setrlimit(resource.RLIMIT_FSIZE, (size, -1))
        return await task.step("big", lambda: say("big ran") or "x" * 5000)
    """
    cli = Cli(tmp_path, root)
    cli("run", f"{skill.write(body).path}:skill").ends_refusing(IO, "free some space", "orchestrator recover task-")
    where = Paths(str(cli.task()))
    (closed,) = entries(where, "closed")
    assert (closed["exit"], closed["death"]) == (IO, False)
    assert (snapshot(where).deaths, snapshot(where).steps["big"].spent) == (0, 0)
    Path(f"{ledger.path}.go").touch()
    assert cli("recover", "--wait").code == 0
    assert result(where) == "x" * 5000
    assert [ledger.count("one ran"), ledger.count("big ran")] == [1, 2]


async def test_an_adopted_worker_that_could_not_write_spends_nothing_of_the_budget_either(
    root, skill, ledger, tmp_path
):
    """Whoever adopts it is not its parent, and sees no exit code: its guard has written it down."""
    body = """
        import resource
        def big():
            say("held")
            while not went_on():
                pass
            if task.attempt == 1:
                size = os.path.getsize(task.workspace / ".task" / "journal.jsonl") + 1000
                resource.setrlimit(resource.RLIMIT_FSIZE, (size, -1))
            return "x" * 5000
        return await task.step("big", big)
    """
    async with Coordinator(root) as first:
        handle = await first.spawn(f"{skill.write(body).path}:skill", name="adopted")
        await ledger.has("held")
    async with Coordinator(root) as second:
        await second.adopt(handle.where)
        _, guard = kit.identities(handle.where)
        await kit.until(lambda: kit.is_waited_for(guard.pid), "somebody watches how it ends")
        Path(f"{ledger.path}.go").touch()
        with pytest.raises(SyncFailed, match="the disk does not take") as refused:
            await second.wait(handle.id, 120)
    assert "free some space" in refused.value.hint
    (closed,) = entries(handle.where, "closed")
    assert (closed["exit"], closed["death"]) == (IO, False)
    cli = Cli(tmp_path, root)
    assert cli("recover", "--wait").code == 0
    assert snapshot(handle.where).deaths == 0
    assert ledger.count("held") == 2


async def test_a_worker_that_could_not_write_while_nobody_watched_spends_nothing_of_the_budget(
    root, skill, ledger, tmp_path
):
    body = """
        import resource
        if task.attempt == 1:
            size = os.path.getsize(task.workspace / ".task" / "journal.jsonl") + 1000
            resource.setrlimit(resource.RLIMIT_FSIZE, (size, -1))
        return await task.step("big", lambda: "x" * 5000)
    """
    async with Coordinator(root) as left:
        handle = await left.spawn(f"{skill.write(body).path}:skill", name="alone")
    await let_go(handle.where)
    assert Cli(tmp_path, root)("recover", "--wait").code == 0
    assert [entry.get("death", True) for entry in entries(handle.where, "closed")] == [False, True]
    assert entries(handle.where, "closed")[0]["last_sign"]


async def test_a_root_that_is_read_only_can_be_looked_at_and_says_so_to_whoever_writes(cli, disk, skill, ledger):
    cli.root.mkdir()
    skill.write(MANY.replace("200", "2").replace("return", 'await task.step("hold", hold)\n    return'))
    where = await skill.until(cli.root, ledger, "held")
    root = disk.read_only(cli.root)
    cli("spawn", f"{skill.path}:skill", root=root).refuses(CANNOT_CREATE, str(root), "--root")
    cli("run", f"{skill.path}:skill", root=root).refuses(CANNOT_CREATE, str(root), "--root")
    if root == cli.root:
        assert where.task_id in cli("list").out
        assert cli("show", where.task_id).code == 0
        cli("cancel", where.task_id).refuses(IO, "read-only", "--root")
        said = cli("recover")
        assert (said.code, said.err) == (FAILED, "")
        assert f"{where.directory} cannot be written" in said.out
    disk.free()
    cli.limits = None
    assert cli("recover", "--wait").code == 0
    assert [ledger.count(f"{number} ran") for number in range(2)] == [1, 1]


# -- files that were ruined ----------------------------------------------------------------------------------------


def _dangling(path: Path) -> None:
    path.unlink()
    path.symlink_to("/nowhere/task.md")


def _directory(path: Path) -> None:
    path.unlink()
    path.mkdir()
    (path / "inside").write_text("precious")


RUINS: dict[str, Callable[[Path], object]] = {
    "empty": lambda path: path.write_bytes(b""),
    "NUL": lambda path: path.write_bytes(b"\0" * 300),
    "a directory": _directory,
    "a dangling link": _dangling,
    "gone": Path.unlink,
}

WITH_HOLD = """
    await task.plan(["one", "hold", "last"])
    await task.step("one", work, "one")
    say(f"{task.id} is held")
    await task.step("hold", hold)
    return await task.step("last", work, "last")
"""


async def interrupted(root: Path, skill: SkillFile, ledger: Any, count: int) -> list[Paths]:
    """So many tasks, each killed in its second step of three."""
    skill.write(WITH_HOLD)
    async with Coordinator(root) as coordinator:
        handles = [await coordinator.spawn(f"{skill.path}:skill", name="precious") for _ in range(count)]
        for handle in handles:
            await ledger.has(f"{handle.id} is held")
    for handle in handles:
        kill_worker(handle.where)
    Path(f"{ledger.path}.go").touch()
    return [handle.where for handle in handles]


# fault 48
async def test_a_ruined_task_md_is_mended_from_the_journal_and_hides_no_other_task(root, ledger, skill, tmp_path):
    cli = Cli(tmp_path, root)
    wheres = await interrupted(root, skill, ledger, len(RUINS) + 1)
    for where, ruin in zip(wheres, RUINS.values(), strict=False):
        ruin(Path(where.task_md))
    listed = cli("list")
    assert listed.code == 0
    assert all(where.task_id in listed.out for where in wheres)
    told = {line.split()[1]: line for line in cli("recover", "--wait").out.splitlines()}
    for where, how in zip(wheres, RUINS, strict=False):
        assert "damaged" in told[where.task_id]
        assert "task.md" in told[where.task_id]
        assert "mended, then resumed at step 'hold'" in told[where.task_id]
        aside = [path.name for path in Path(where.directory).iterdir() if "damaged" in path.name]
        assert len(aside) == (how != "gone"), how
    assert "resumed at step 'hold'" in told[wheres[-1].task_id]
    assert "damaged" not in told[wheres[-1].task_id]
    for where in wheres:
        text = Path(where.task_md).read_text("utf-8")
        assert "[working done] one\n[working done] hold\n[working done] last\n[end]" in text
        assert "## Status: end" in text
        assert "# Task: precious\n" in text
        assert result(where) == "result of last"
    assert ledger.count("one ran") == len(wheres)
    (kept,) = Path(wheres[2].directory).glob("task.md.damaged-*")
    assert (kept / "inside").read_text() == "precious"


async def test_a_task_whose_spec_is_gone_is_told_apart_and_left_as_it_is(root, ledger, skill, tmp_path):
    cli = Cli(tmp_path, root)
    gone, fine = await interrupted(root, skill, ledger, 2)
    Path(gone.spec).unlink()
    said = cli("recover", "--wait")
    told = {line.split()[1]: line for line in said.out.splitlines()}
    assert said.code == 1
    assert "damaged" in told[gone.task_id]
    assert "spec.yaml is gone" in told[gone.task_id]
    assert look(fine).snapshot.end["outcome"] == "completed"
    assert look(gone).snapshot.end is None
    assert [state.status for state in snapshot(gone).steps.values()] == ["done", "working", "pending"]
    assert len(entries(gone, "attempt")) == 1
    listed = {line.split()[0]: line for line in cli("list").out.splitlines()[1:]}
    assert "1/3" in listed[gone.task_id]
    cli("wait", gone.task_id).refuses(TEMPORARY, gone.task_id, "orchestrator recover")
    assert cli("cancel", gone.task_id).code == 0  # it can still be ended
    assert look(gone).snapshot.end["outcome"] == "cancelled"


async def test_a_spec_that_somebody_garbled_is_told_with_its_line(root, ledger, skill, tmp_path):
    cli = Cli(tmp_path, root)
    (where,) = await interrupted(root, skill, ledger, 1)
    good = Path(where.spec).read_text("utf-8")
    Path(where.spec).write_text(good + "nonsense: true\n", "utf-8")
    said = cli("recover")
    assert said.code == 1
    assert "spec.yaml:" in said.out
    assert "nonsense" in said.out
    Path(where.spec).write_text(good, "utf-8")
    assert cli("recover", "--wait").code == 0
    assert ledger.count("one ran") == 1


@pytest.mark.parametrize("ruin", ["empty", "NUL", "a directory"])
async def test_lint_tells_of_a_task_md_that_is_no_checklist(root, tmp_path, ruin):
    place = tmp_path / "of a task" / "task.md"
    place.parent.mkdir()
    place.write_text("# Task: x\n[start done]\n")
    RUINS[ruin](place)
    said = Cli(tmp_path, root)("lint", place.parent)
    assert said.code == DATA
    assert "Traceback" not in said.err


def test_the_means_of_these_tests_are_what_they_say(disk, tmp_path):
    """A full disk that takes a byte would make the tests above worthless."""
    disk.fill()
    if disk.mounted:
        with pytest.raises(OSError, match="No space left") as refused:
            (disk.path / "more").write_bytes(b"x" * 5000)
        assert refused.value.errno == errno.ENOSPC
    assert Cli(tmp_path, tmp_path / "none")("show", "x").code == NO_INPUT
