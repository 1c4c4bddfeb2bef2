"""Looking back on real tasks: those that were killed, failed or done anew, and many of one skill at once."""

from __future__ import annotations

import json
import os
import pty
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import anyio
import kit
import pytest
from cli_door import NO_INPUT, USAGE, Cli
from conftest import Ledger

from orchestrator import Announcement, Coordinator, files, workspace
from orchestrator.compose import resolve
from orchestrator.core.model import StepId, StepStatus, TaskSpec
from orchestrator.ledger import Ledger as JournalLedger
from orchestrator.report import retrospects
from orchestrator.store import Paths
from orchestrator.takeover import take_over

EARLIER = "> Of an earlier end"

FRAGILE = """\
async def fetch(task, fails=True):
    def pages():
        if {fails}:
            raise ValueError("no page")
        return 1
    await task.step("fetch", pages, retries=0)
"""


@pytest.fixture
def cli(tmp_path: Path, root: Path) -> Cli:
    return Cli(tmp_path, root)


async def run(root: Path, what: Any, **args: Any) -> tuple[Paths, Announcement]:
    async with Coordinator(root) as coordinator:
        handle = await coordinator.spawn(what, **args)
        said = await handle.wait(120)
        await kit.let_go(handle.where)
    return handle.where, said


def retro_file(where: Paths) -> str:
    return Path(where.retro).read_text("utf-8")


async def test_what_crashes_cost_is_told_by_a_task_that_was_killed_and_went_on(
    root: Path, ledger: Ledger, cli: Cli
) -> None:
    where, _ = await run(root, kit.spec("dies_twice_a_step", ledger))
    said = json.loads(cli("retro", where.task_id, "--json").out)
    assert (said["schema"], said["outcome"], said["ended"]) == (1, "completed", True)
    assert (said["deaths"], said["attempts"], said["resumes"], said["tries"]) == (6, 7, 6, 9)
    assert said["errors_by_class"] == {"crash": 6}
    assert [[t["how"] for t in step["tries"]] for step in said["steps"]] == [["lost", "lost", "done"]] * 3
    assert said["run_twice"] == 0
    assert all(step["lost"] > 0 and step["waiting"] > 0 for step in said["steps"])
    assert said["usage"] is None
    assert said["skill"].endswith(":dies_twice_a_step")


async def test_volumes_are_those_on_the_disk(root: Path, ledger: Ledger, cli: Cli) -> None:
    where, _ = await run(root, kit.spec("six_steps", ledger))
    said = json.loads(cli("retro", where.task_id, "--json").out)["volumes"]
    large = sum(path.stat().st_size for path in Path(where.results).iterdir())
    assert said["steps_run"] == 6
    assert large < said["results"] < large + 1000
    assert said["outputs"] == (Path(where.directory) / "report.md").stat().st_size
    assert said["notes"] >= len("thought about gather")
    shutil.rmtree(where.logs)
    assert json.loads(cli("retro", where.task_id, "--json").out)["volumes"]["logs"] is None


async def test_the_file_that_the_end_wrote_is_the_one_that_the_command_prints_and_writes(
    root: Path, ledger: Ledger, cli: Cli
) -> None:
    where, _ = await run(root, kit.spec("raises", ledger))
    written = retro_file(where)
    assert "| wrong | runtime | 3 | ValueError: wrong at try 1 |" in written
    os.unlink(where.retro)
    said = cli("retro", where.task_id)
    assert (said.code, said.err) == (0, "")
    assert said.out == written == retro_file(where)


async def test_a_task_that_has_not_ended_says_so_above_what_is_there(
    tmp_path: Path, root: Path, ledger: Ledger, cli: Cli
) -> None:
    with kit.fifo(tmp_path / "gate") as gate:
        where = await kit.start_and_leave(root, kit.spec("waits_in_two", ledger, gate=str(gate)))
        await ledger.has("two began")
        said = cli("retro", where.task_id)
        assert said.out.startswith("> It has not ended (it is working)")
        assert "| one | done | 1 |" in said.out
        assert "being worked on" in said.err
        assert not os.path.exists(where.retro)
        kit.kill_worker(where)
        await kit.let_go(where)
        said = cli("retro", where.task_id)
        assert said.out == retro_file(where)
        assert said.out.startswith("> It has not ended (it is interrupted)")
        async with anyio.create_task_group() as group:
            group.start_soon(kit.recover, root, where)
            await kit.open_gate(gate)
    assert retro_file(where).startswith("# Retrospect")


def test_a_task_nobody_has_begun_is_no_error(root: Path, cli: Cli) -> None:
    where, lock = workspace.create(str(root), TaskSpec("later", "python", "m:f"), time.time)
    os.close(lock)
    said = cli("retro", where.task_id)
    assert said.code == 0
    assert "It has not ended (it is queued)" in said.out
    assert "No step was begun." in said.out


# -- reopened --------------------------------------------------------------------------------------------------------


async def test_the_retrospect_of_a_task_that_is_done_anew_is_not_taken_for_its_last_word(
    root: Path, ledger: Ledger
) -> None:
    where, said = await run(root, kit.spec("six_steps", ledger))
    first = retro_file(where)
    async with Coordinator(root) as coordinator:
        _, lock = await coordinator.order(where.task_id, "redo", step="sort")
        (end,) = kit.entries(where, "end")
        assert retro_file(where) == f"{retro_file(where).splitlines()[0]}\n\n{first}"
        assert retro_file(where).startswith(f"{EARLIER} ({said.status}, {end['at']}): the task was reopened")
        handle = await coordinator.adopt(where, lock)
        await handle.wait(120)
    assert retro_file(where).startswith("# Retrospect")
    assert "reopened after" in retro_file(where)


async def test_a_retry_marks_the_retrospect_of_the_failure(root: Path, ledger: Ledger, cli: Cli) -> None:
    where, _ = await run(root, kit.spec("raises", ledger, retries=0))
    async with Coordinator(root) as coordinator:
        _, lock = await coordinator.order(where.task_id, "retry")
        assert retro_file(where).startswith(f"{EARLIER} (failed,")
        assert lock is not None
        os.close(lock)
    assert cli("retro", where.task_id).out.startswith("> It has not ended")
    await kit.recover(root, where)
    assert retro_file(where).startswith("# Retrospect")
    assert json.loads(cli("retro", where.task_id, "--json").out)["reopened"] == 1


async def test_a_redo_written_into_task_md_marks_it_too(root: Path, ledger: Ledger) -> None:
    where, _ = await run(root, kit.spec("raises_outside", ledger))
    face = Path(where.task_md)
    face.write_text(face.read_text().replace("[working done] one", "[redo] one"))
    lock = files.lock_directory(where.directory)
    assert lock is not None
    task = take_over(where, time.time)
    assert retro_file(where).startswith(EARLIER)
    task.close()
    os.close(lock)


def test_whoever_is_killed_between_an_order_and_the_mark_leaves_it_to_the_next_attempt(root: Path) -> None:
    where, lock = workspace.create(str(root), TaskSpec("desk", "python", "m:f"), time.time)
    task = take_over(where, time.time)
    task.begin_attempt(token="none")
    assert not os.path.exists(where.retro)
    task.begin_try(StepId("a"), 1, effect="idempotent", args="")
    task.commit("a", StepStatus.DONE)
    task.end(task.announcement("completed", ""))
    JournalLedger.record(task, "redo", sync=True, step="a", why="and then it was killed")
    assert retro_file(where).startswith("# Retrospect")
    task.begin_attempt(token="none")
    assert retro_file(where).count(EARLIER) == 1
    task.close()
    os.close(lock)


# -- many tasks ------------------------------------------------------------------------------------------------------


def skills_of(cli: Cli, *words: str) -> dict[str, Any]:
    said = cli("retro", "--all", "--json", *words)
    assert said.code == 0, said
    return json.loads(said.out)


def skill_file(tmp_path: Path, *, fails: bool) -> str:
    path = tmp_path / "fragile.py"
    path.write_text(FRAGILE.format(fails=fails))
    return f"{path}:fetch"


# fault 40
async def test_a_skill_that_keeps_failing_is_found_and_its_mending_is_noticed(
    tmp_path: Path, root: Path, cli: Cli
) -> None:
    failed = {(await run(root, skill_file(tmp_path, fails=True)))[0].task_id for _ in range(3)}
    (skill,) = skills_of(cli)["skills"]
    assert (skill["verdict"], skill["tasks"], skill["ended"]) == ("change", 3, {"failed": 3})
    (finding,) = skill["findings"]
    assert (finding["step"], finding["class"], finding["for_good"]) == ("fetch", "runtime", 3)
    assert {line["task"] for line in finding["evidence"]} == failed
    assert {line["message"] for line in finding["evidence"]} == {"ValueError: no page"}
    await run(root, skill_file(tmp_path, fails=False))
    (skill,) = skills_of(cli)["skills"]
    assert skill["verdict"] == "changed_since"
    assert skill["findings"][0]["since_version"] == skill["newest_version"]
    text = cli("retro", "--skill", "fetch").out
    assert "no such failure" in text
    assert "| 4 | 3 failed, 1 completed |" in text


async def test_one_damaged_task_never_hides_the_others(root: Path, ledger: Ledger, cli: Cli) -> None:
    good, _ = await run(root, kit.spec("raises", ledger))
    torn, _ = await run(root, kit.spec("raises", ledger))
    gone, _ = await run(root, kit.spec("raises", ledger))
    lines = Path(torn.journal).read_bytes().splitlines(keepends=True)
    Path(torn.journal).write_bytes(b"".join([*lines[:3], b"rubbish\n", *lines[3:]]))
    os.unlink(gone.journal)
    os.mkdir(gone.journal)
    (root / "task-20260101-000000-001").mkdir()
    said = skills_of(cli)
    assert {d["id"] for d in said["damaged"]} == {torn.task_id, gone.task_id, "task-20260101-000000-001"}
    skill = next(s for s in said["skills"] if s["skill"].endswith(":raises"))
    assert (skill["tasks"], skill["judged"]) == (3, 2)
    assert {e["task"] for e in skill["findings"][0]["evidence"]} == {good.task_id, torn.task_id}
    one = cli("retro", gone.task_id)
    assert one.code == 0
    assert "damaged: .task/journal.jsonl" in one.err
    assert "| wrong | failed | 3 |" in one.out, "its step file still tells of it"


async def test_all_writes_the_retrospects_that_are_missing(root: Path, ledger: Ledger, cli: Cli) -> None:
    where, _ = await run(root, kit.spec("raises_outside", ledger))
    before = retro_file(where)
    os.unlink(where.retro)
    assert "(outside its steps)" in cli("retro", "--all").out
    assert retro_file(where) == before


async def test_a_checklist_is_a_skill_whose_version_is_its_steps(tmp_path: Path, root: Path, cli: Cli) -> None:
    steps = tmp_path / "digest.yaml"
    versions = []
    for command in ("exit 3", "exit 0"):
        steps.write_text(f"steps:\n  - name: only\n    shell: {command}\n    retries: 0\n")
        await run(root, str(steps))
        versions.append(skills_of(cli, "--skill", "digest.yaml")["skills"][0])
    assert [v["verdict"] for v in versions] == ["change", "changed_since"]


def test_what_is_asked_wrongly_is_said_in_two_lines(root: Path, cli: Cli) -> None:
    cli("retro").refuses(USAGE, "which task?")
    cli("retro", "task-20260101-000000-001", "--all").refuses(USAGE, "not both")
    cli("retro", "task-20260101-000000-001").refuses(NO_INPUT, "no task")
    cli("retro", "--skill", "m:f").refuses(NO_INPUT, "m:f")
    assert json.loads(cli("retro", "--all", "--json").out)["skills"] == []


async def test_at_a_terminal_it_is_set_for_people(root: Path, ledger: Ledger) -> None:
    where, _ = await run(root, kit.spec("raises", ledger))
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "orchestrator.cli.main", "--root", str(root), "retro", where.task_id]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "80"}
    environment.pop("NO_COLOR", None)
    with subprocess.Popen(command, stdout=theirs, stderr=theirs, stdin=theirs, env=environment) as child:
        os.close(theirs)
        shown = b""
        while chunk := _read(ours):
            shown += chunk
    os.close(ours)
    assert child.returncode == 0
    text = shown.decode()
    assert "\x1b[" in text
    assert "|---" not in text
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
    assert re.search(r"wrong +failed +3 ", plain)
    assert max(len(line.rstrip()) for line in plain.splitlines()) <= 80


def _read(fd: int) -> bytes:
    try:
        return os.read(fd, 4096)
    except OSError:  # the terminal's other side is closed
        return b""


# -- as a task of its own --------------------------------------------------------------------------------------------


async def test_the_pass_itself_is_a_task_that_a_fresh_worker_does(
    tmp_path: Path, root: Path, ledger: Ledger, cli: Cli
) -> None:
    for _ in range(3):
        await run(root, skill_file(tmp_path, fails=True))
    await run(root, kit.spec("six_steps", ledger))
    where, said = await run(root, resolve("retrospect", args={"root": str(root)}))
    assert said.status == "completed"
    assert kit.done_steps(where) == {"read the tasks", "judge the skills", "write the retrospect"}
    result = json.loads(Path(str(said.result)).read_text())
    assert (result["report"], result["tasks"], result["damaged"]) == ("retrospect.md", 4, 0)
    assert [s["verdict"] for s in result["skills"]] == ["change", "keep"]
    assert "failed with `runtime` in 3 of 3 tasks" in result["skills"][0]["said"]
    written = (Path(where.directory) / "retrospect.md").read_text()
    assert all(
        task_id in written for task_id in {e["task"] for e in skills_of(cli)["skills"][0]["findings"][0]["evidence"]}
    )


async def test_the_pass_goes_on_after_its_worker_was_killed(root: Path, ledger: Ledger) -> None:
    await run(root, kit.spec("raises", ledger))
    what = resolve("orchestrator.skills.retrospect:retrospect", args={"skill": "raises", "out": "look back.md"})
    where = await kit.start_and_leave(root, what)
    kit.kill_worker(where)
    _, said = await kit.recover(root, where)
    assert said is not None
    assert said.status == "completed"
    assert "`wrong`, `runtime`: 1 of 1 task" in (Path(where.directory) / "look back.md").read_text()


@pytest.mark.parametrize(
    "args", [{"root": "relative"}, {"all": False}, {"out": "task.md"}, {"out": "../out.md"}, {"root": "/no/such/place"}]
)
async def test_the_pass_refuses_what_it_cannot_do_before_its_first_step(root: Path, args: dict[str, Any]) -> None:
    where, said = await run(root, "orchestrator.skills.retrospect:retrospect", args=args)
    assert said.status == "failed"
    assert kit.entries(where, "running") == []


async def test_the_pass_leaves_itself_out(root: Path) -> None:
    where, said = await run(root, "orchestrator.skills.retrospect:retrospect")
    assert json.loads(Path(str(said.result)).read_text())["tasks"] == 0
    assert retrospects.gather(str(root))[0][0].task == where.task_id
