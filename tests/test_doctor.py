"""What `doctor` finds and what `--fix` mends: nothing is hidden by one bad task, and nobody else's work is touched."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import kit
import pytest
from cli_door import Cli
from conftest import TOKEN, Ledger
from test_explain import GONE, asks, damaged, ends, interrupted, make

from orchestrator import (
    Coordinator,
    containment,
    doctor,
    files,
    identity,
    mounts,
    recovery,
    store,
    surroundings,
    workspace,
)
from orchestrator.core.model import Outcome, TaskSpec
from orchestrator.findings import Finding
from orchestrator.store import Paths
from orchestrator.takeover import take_over


def later() -> float:
    """A clock by which every worker has long had its grace."""
    return time.time() + 3600


def examined(root: Path) -> dict[tuple[str, str | None], Finding]:
    """What there is to say, but for what other roots of this machine have left."""
    return {(one.code, one.task): one for one in doctor.examine(str(root), later) if one.code != "cgroup"}


def mended(root: Path) -> list[str]:
    return [line for line in doctor.mend(str(root), later) if "cgroup" not in line]


@contextlib.contextmanager
def living(root: Path | None, token: str, *argv: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process with the mark of a worker, whose environment names a root."""
    environment = {k: v for k, v in os.environ.items() if k != "ORCHESTRATOR_ROOT"} | {"ORCHESTRATOR_TOKEN": token}
    if root is not None:
        environment["ORCHESTRATOR_ROOT"] = str(root)
    code = "import sys; print('up', flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", code, *argv], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"up\n"
        yield child


# -- tasks -----------------------------------------------------------------------------------------------------------


def test_every_task_that_needs_somebody_is_listed_with_the_way_out(root: Path) -> None:
    fine, cut_off, asking = make(root, ends(Outcome.COMPLETED)), make(root, interrupted), make(root, asks)
    queued, broken = make(root), damaged(root)
    found = examined(root)
    assert {task for _, task in found} == {w.task_id for w in (cut_off, asking, queued, broken)}
    assert fine.task_id not in {task for _, task in found}
    assert found["interrupted", cut_off.task_id].hint == f"orchestrator recover {cut_off.task_id}"
    assert "never started" in found["interrupted", queued.task_id].what
    assert f"orchestrator answer {asking.task_id} TEXT" in found["waits", asking.task_id].what
    assert found["damaged", broken.task_id].level == "mend"


# fault 53
def test_one_task_that_cannot_even_be_listed_hides_no_other(root: Path) -> None:
    (root / "task-20260101-000000-001").mkdir()
    shutil.rmtree(Path(make(root).directory) / ".task")
    cut_off = make(root, interrupted)
    assert ("interrupted", cut_off.task_id) in examined(root)


# fault 82
def test_a_task_that_no_worker_can_ever_run_is_found(root: Path, tmp_path: Path) -> None:
    where, lock = workspace.create(str(root), TaskSpec("x", "python", f"{tmp_path}/gone.py:skill"), time.time)
    os.close(lock)
    assert "gone.py" in examined(root)["no-worker", where.task_id].what
    nameless = make(root, interrupted)
    os.remove(nameless.spec)
    assert ("no-spec", nameless.task_id) in examined(root)


def test_a_damaged_task_is_made_again_from_what_is_left_and_the_original_stays(root: Path) -> None:
    where = damaged(root)
    lines = mended(root)
    assert any("task.md could not be read" in line for line in lines)
    assert kit.step_lines(where) == ["[start done]", "[working done] one", "[working] two"]
    (aside,) = Path(where.directory).glob("task.md.damaged-*")
    assert aside.read_bytes() == b"\0\0"
    assert set(examined(root)) == {("interrupted", where.task_id)}


def test_a_damaged_journal_is_mended_and_the_original_stays(root: Path) -> None:
    where = make(root, interrupted)
    lines = Path(where.journal).read_bytes().splitlines(keepends=True)
    original = lines[0] + b"something else\n" + b"".join(lines[1:])
    Path(where.journal).write_bytes(original)
    assert ("damaged", where.task_id) in examined(root)
    assert any("damaged" in line for line in mended(root))
    assert ("damaged", where.task_id) not in examined(root)
    (aside,) = Path(where.inner).glob("journal.jsonl.damaged-*")
    assert aside.read_bytes() == original


def test_a_damaged_task_that_somebody_holds_is_left_to_him(root: Path) -> None:
    where = damaged(root)
    lock = files.lock_directory(where.directory)
    assert lock is not None
    assert mended(root) == [f"{where.task_id}: left alone: somebody holds it"]
    os.close(lock)
    assert Path(where.task_md).read_bytes() == b"\0\0"


def test_a_task_that_cannot_be_mended_is_said_so_and_keeps_no_other_from_it(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost, where = damaged(root), damaged(root)
    mend_task = doctor._mend_task

    def on_a_bad_disk(room: Any, here: Paths, *more: Any) -> Iterator[str]:
        if here.task_id == lost.task_id:
            raise OSError(5, "Input/output error")
        yield from mend_task(room, here, *more)

    monkeypatch.setattr(doctor, "_mend_task", on_a_bad_disk)
    lines = mended(root)
    assert any(line.startswith(f"{lost.task_id}: not mended: Input/output error") for line in lines), lines
    assert ("damaged", where.task_id) not in examined(root)


async def test_a_task_that_is_worked_on_is_no_finding_and_is_not_touched(
    tmp_path: Path, root: Path, ledger: Ledger
) -> None:
    with kit.fifo(tmp_path / "gate") as gate:
        async with Coordinator(root) as coordinator:
            handle = await coordinator.spawn(kit.spec("waits_in_two", ledger, gate=str(gate)))
            await ledger.has("two began")
            assert examined(root) == {}
            assert mended(root) == []
            await kit.open_gate(gate)
            assert (await handle.wait(120)).ok
            await kit.let_go(handle.where)
    assert examined(root) == {}


# -- processes -------------------------------------------------------------------------------------------------------


def over(root: Path, token: str = TOKEN, guard: Any = GONE) -> Paths:
    """A task that has ended, whose only attempt had this token."""
    where, lock = workspace.create(str(root), TaskSpec("the work", "python", "module:skill"), time.time)
    task = take_over(where, time.time)
    task.begin_attempt(token=token)
    task.started(worker=GONE, guard=guard)
    task.end(task.announcement(Outcome.COMPLETED, ""))
    task.close()
    os.close(lock)
    return where


# fault 30
def test_a_process_that_outlived_its_task_is_found_and_ended(root: Path) -> None:
    where = over(root)
    with living(root, TOKEN) as stray:
        assert str(stray.pid) in examined(root)["stray", where.task_id].what
        (line,) = mended(root)
        assert line.startswith(f"{where.task_id}: ended process {stray.pid}: ")
        assert stray.wait(120) == -9
    assert examined(root) == {}


def test_a_worker_that_has_just_ended_gets_its_grace(root: Path) -> None:
    over(root, guard=list(identity.mine()))
    with living(root, TOKEN) as worker:
        assert [one for one in doctor.examine(str(root), time.time) if one.code == "stray"] == []
        assert not [line for line in doctor.mend(str(root), time.time) if "ended process" in line]
        assert worker.poll() is None


@pytest.mark.parametrize("named", ["another root", "no root"])
def test_a_process_of_another_root_is_never_touched_though_a_copied_task_has_its_mark(
    tmp_path: Path, root: Path, named: str
) -> None:
    over(root)
    other = tmp_path / "other root"
    shutil.copytree(root, other)
    with living(root if named == "another root" else None, TOKEN) as theirs:
        assert examined(other) == {}
        assert mended(other) == []
        assert theirs.poll() is None


def test_a_worker_whose_task_is_gone_is_found_by_its_arguments_and_ended(root: Path) -> None:
    workspace_of = f"{root}/task-20260101-000000-001"
    with (
        living(None, f"{TOKEN} 1", f'{{"workspace": "{workspace_of}", "x": 1}}') as orphan,
        living(root, f"{TOKEN} 2") as unplaced,
    ):
        assert [code for code, _ in examined(root)] == ["orphan"]
        assert [line for line in mended(root) if str(orphan.pid) in line]
        assert orphan.wait(120) == -9
        assert unplaced.poll() is None  # of this root, of no task that it names: it may be a person's shell


# fault 14
def test_a_stray_that_keeps_the_lock_of_a_dead_worker_is_ended_and_the_task_can_go_on(root: Path) -> None:
    where = make(root, interrupted)
    lock = files.lock_directory(where.directory)
    assert lock is not None
    code = "import sys; print('up', flush=True); sys.stdin.read()"
    environment = os.environ | {"ORCHESTRATOR_TOKEN": TOKEN, "ORCHESTRATOR_ROOT": str(root)}
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, pass_fds=(lock,)
    ) as stray:
        os.close(lock)
        assert stray.stdout is not None
        assert stray.stdout.readline() == b"up\n"
        assert ("stray", where.task_id) in examined(root)
        assert [line for line in mended(root) if f"ended process {stray.pid}" in line]
        stray.wait(120)
    assert store.lock_is_free(where)
    assert recovery.inspect(where).action == "resumed"


def test_a_holder_without_the_mark_is_named_and_left_alone(root: Path) -> None:
    where = make(root, interrupted)
    lock = files.lock_directory(where.directory)
    assert lock is not None
    code = "import sys; print('up', flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=(lock,)
    ) as holder:
        os.close(lock)
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"up\n"
        assert f"process {holder.pid} has its lock" in examined(root)["held", where.task_id].what
        assert mended(root) == []
        assert holder.poll() is None


# -- leftovers -------------------------------------------------------------------------------------------------------


def test_what_crashes_left_beside_the_tasks_is_found_and_swept(root: Path) -> None:
    for name in (".orchestrator-new-1", ".orchestrator-gone-task-20260101-000000-001-2"):
        (root / name / "sub").mkdir(parents=True)
    where = make(root, ends(Outcome.COMPLETED))
    temporary = Path(files.temporary_of(where.task_md))
    temporary.write_bytes(Path(where.task_md).read_bytes())
    assert {code for code, _ in examined(root)} == {"staging", "temporary"}
    lines = mended(root)
    assert len(lines) == 3, lines
    assert examined(root) == {}
    assert [path.name for path in root.iterdir()] == [where.task_id]


def test_what_is_being_made_at_this_moment_is_no_leftover(root: Path) -> None:
    path = root / ".orchestrator-new-1"
    path.mkdir()
    lock = files.lock_directory(str(path))
    assert lock is not None
    assert examined(root) == {}
    assert mended(root) == []
    os.close(lock)
    assert path.exists()


def test_only_old_and_empty_cgroups_of_workers_are_leftovers(tmp_path: Path) -> None:
    for name in ("orchestrator-old", "orchestrator-busy", "orchestrator-new", "somebody-else"):
        (tmp_path / name).mkdir()
    (tmp_path / "orchestrator-busy" / "cgroup.procs").write_text("1\n")
    now = time.time()
    for path in tmp_path.iterdir():
        os.utime(path, (now - 100, now - 100))
    os.utime(tmp_path / "orchestrator-new", (now, now))
    assert containment.empty_ones(now, str(tmp_path)) == [str(tmp_path / "orchestrator-old")]
    assert containment.remove_empty(str(tmp_path / "orchestrator-old"))
    assert not containment.remove_empty(str(tmp_path / "orchestrator-busy"))


# -- the machine and the root ----------------------------------------------------------------------------------------


def around(root: Path) -> dict[str, Finding]:
    return {one.code: one for one in surroundings.examine(str(root))}


def test_a_root_that_can_hold_tasks_is_found_so_by_trying(root: Path) -> None:
    found = around(root)
    assert {found[code].level for code in ("write", "lock", "sync", "space", "versions")} == {"ok"}
    assert list(root.iterdir()) == []


@pytest.mark.parametrize(
    "kind, level",
    [
        *[(kind, "person") for kind in ("nfs", "nfs4", "cifs", "9p", "fuse.sshfs", "fuseblk", "tmpfs")],
        *[(kind, "ok") for kind in ("ext4", "xfs", "btrfs", "zfs", "overlay")],
    ],
)
def test_a_file_system_whose_locks_or_syncs_cannot_be_trusted_is_warned_of(
    root: Path, monkeypatch: pytest.MonkeyPatch, kind: str, level: str
) -> None:
    point = str(root).replace(" ", "\\040")
    real = mounts.mounts
    table = f"/dev/a / ext4 rw 0 0\nserver:/x {point} {kind} rw 0 0\nproc /proc proc rw 0 0\n"
    monkeypatch.setattr(mounts, "mounts", lambda _=None: real(table))
    found = around(root)["file-system"]
    assert found.level == level
    assert kind in found.what


def test_the_nearest_and_latest_mount_is_the_one_that_counts() -> None:
    table = "a / ext4 rw 0 0\nb /mnt nfs rw 0 0\nc /mnt/disk xfs rw 0 0\nd /mnt/disk btrfs rw 0 0\ne /mn tmpfs rw 0 0\n"
    assert mounts.of("/mnt/disk/root", table) == mounts.Mount("/mnt/disk", "btrfs")
    assert mounts.of("/mnt/diskette", table) == mounts.Mount("/mnt", "nfs")
    assert mounts.of("/x", "") is None


def no_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "lock_directory", lambda path: os.open(path, os.O_RDONLY))


def no_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(files, "replace", fails)


def no_write(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(path: str) -> None:
        raise OSError(30, "Read-only file system", path)

    monkeypatch.setattr(files, "make_directory", fails)


@pytest.mark.parametrize("code, breaks", [("lock", no_lock), ("sync", no_sync), ("write", no_write)])
def test_a_root_that_breaks_a_promise_needs_a_person(
    root: Path, monkeypatch: pytest.MonkeyPatch, code: str, breaks: Callable[[pytest.MonkeyPatch], None]
) -> None:
    breaks(monkeypatch)
    assert around(root)[code].level == "person"


def test_each_means_is_told_with_what_it_costs_to_do_without(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORCHESTRATOR_WITHOUT", "pidfd,exchange")
    found = around(root)
    assert "pidfd: off: " in found["means-pidfd"].what
    assert found["means-pidfd"].level == found["means-exchange"].level == "note"
    assert found["exchange"].level == "ok"


# -- the door --------------------------------------------------------------------------------------------------------


def test_the_exit_code_says_whether_anybody_has_to_do_anything(tmp_path: Path, root: Path) -> None:
    cli = Cli(tmp_path, root)
    assert cli("doctor", root=tmp_path / "not there").code == 0
    assert not (tmp_path / "not there").exists()
    make(root, ends(Outcome.COMPLETED))
    assert cli("doctor").code == 0
    where = damaged(root)
    said = cli("doctor")
    assert said.code == 1
    assert f"! {where.task_id}: task.md is empty or unreadable" in said.out
    told = json.loads(cli("doctor", "--fix", "--json").out)
    assert (told["schema"], told["ok"]) == (1, False)  # mended, and now it waits for somebody to go on
    assert [line for line in told["done"] if where.task_id in line]
    assert [one["code"] for one in told["findings"] if one["task"]] == ["interrupted"]


def test_what_is_configured_is_shown_with_where_it_comes_from(
    tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORCHESTRATOR_WITHOUT", "pidfd")
    monkeypatch.setenv("SECRET_TOKEN", "hidden")
    monkeypatch.setenv("LC_ALL", "C.UTF-8")
    (tmp_path / "templates").mkdir()
    (tmp_path / "templates" / "task.md").write_text("# Task: x\n")
    cli = Cli(tmp_path, root)
    said = cli("config", "show", "--json")
    told = json.loads(said.out)
    assert told["root"] == {"value": str(root), "source": "--root"}
    assert told["templates"]["task.md"] == {"value": str(tmp_path / "templates" / "task.md"), "source": "project"}
    assert told["templates"]["task-retro.md"]["source"] == "shipped"
    assert told["means"]["pidfd"] == {"value": "off", "source": "ORCHESTRATOR_WITHOUT"}
    assert told["limits"]["deaths"] == {"value": 3, "source": "default"}
    assert "LC_ALL" in told["environment"]["passed"]
    assert "SECRET_TOKEN" not in said.out + cli("config", "show").out
    assert {"python", "click", "structlog"} <= set(told["versions"])
