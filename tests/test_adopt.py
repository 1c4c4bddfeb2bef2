"""A workspace that another tool made goes on here: what it did is not done again, and what it wrote is kept."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from cli_door import DATA, NO_INPUT, TEMPORARY, USAGE, Cli
from conftest import Ledger
from kit import everything, fifo, kill_worker, let_go, open_gate, spec, start_and_leave, status_line, step_lines, until

from orchestrator import Coordinator, adoption, copying, files, store, workspace
from orchestrator.compose import resolve
from orchestrator.core.checklist import Checklist
from orchestrator.core.model import TaskSpec
from orchestrator.errors import Damaged, Held
from orchestrator.store import Paths, look, task_ids

CASES = Path(__file__).parent / "cases" / "task-md"
WORKER = f"{Path(__file__).with_name('foreign_skills.py')}:follows"
FOREIGN_ID = "task-20260524-210600-001"
PROSE = "Read the page, it was long.\r\nNext: sort it. \xe4\n\n```yaml\nnot: a checkpoint\n```"


def worker(ledger: Ledger, steps: list[str], **more: str) -> TaskSpec:
    return resolve(WORKER, args={"ledger": str(ledger.path), "steps": steps, **more})


def foreign(place: Path, text: bytes) -> Path:
    """A workspace as another tool leaves it: a checklist, prose about each step, files of the work."""
    place.mkdir()
    (place / "task.md").write_bytes(text)
    for step in Checklist.parse(text).steps:
        if step.status.value != "pending":
            (place / f"{step.name}.md").write_text(f"{PROSE} {step.name}", encoding="latin-1", errors="replace")
    (place / "data").mkdir()
    (place / "data" / "pages.bin").write_bytes(bytes(range(256)))
    (place / "latest").symlink_to("data/pages.bin")
    (place / "tool.sh").write_text("#!/bin/sh\n")
    (place / "tool.sh").chmod(0o755)
    return place


def is_kept(source: dict[str, bytes], where: Paths) -> bool:
    """Every file has the bytes it had; a step's file may have more behind them."""
    here = everything(where.directory)
    return all(
        here[name].startswith(data) if name.endswith(".md") else here[name] == data
        for name, data in source.items()
        if name != "task.md"
    )


def right(case: str) -> dict[str, list[list[str]]]:
    return dict(json.loads((CASES / f"{case}.json").read_text("utf-8")))


def left_to_do(steps: list[list[str]]) -> list[str]:
    """The labels of the steps that are neither done nor skipped."""
    names = [name for name, _ in steps]
    labels = [name if (n := names[:i].count(name) + 1) == 1 else f"{name} ({n})" for i, name in enumerate(names)]
    return [label for label, (_, status) in zip(labels, steps, strict=True) if status not in ("done", "skipped")]


def began(ledger: Ledger) -> list[str]:
    return [line.rpartition(" began ")[0] for line in ledger.lines()]


GOING_ON = sorted({path.stem for path in CASES.glob("*.md")} - {"05-ended", "18-empty"})


@pytest.mark.parametrize("case", GOING_ON)
async def test_each_agreed_checklist_goes_on_at_the_right_step(
    case: str, root: Path, tmp_path: Path, ledger: Ledger
) -> None:
    steps = right(case)["steps"] or [["first", "pending"], ["second", "pending"]]
    source = foreign(tmp_path / "theirs", (CASES / f"{case}.md").read_bytes())
    before = everything(str(source))
    async with Coordinator(root) as coordinator:
        handle = await coordinator.adopt_workspace(source, worker(ledger, [name for name, _ in steps]))
        said = await handle.wait()
    assert said.ok
    assert began(ledger) == left_to_do(steps)
    assert everything(str(source)) == before
    assert is_kept(before, handle.where)
    face = Checklist.parse(Path(handle.where.task_md).read_bytes())
    assert (face.ended, face.task_id) == (True, handle.id)
    assert [step.status.value for step in face.steps] == [
        "skipped" if status == "skipped" else "done" for _, status in steps
    ]


async def test_notes_in_task_md_are_kept_byte_for_byte(root: Path, tmp_path: Path, ledger: Ledger) -> None:
    for case in ("08-rules-footer", "16-fence-inside", "20-prose", "09-crlf-bom"):
        text = (CASES / f"{case}.md").read_bytes()
        source = foreign(tmp_path / case, text)
        async with Coordinator(root) as coordinator:
            handle = await coordinator.adopt_workspace(source, start=False)
        mine = Path(handle.where.task_md).read_bytes()
        assert mine == text.replace(FOREIGN_ID.encode(), handle.id.encode())


async def test_one_that_has_ended_is_taken_in_and_not_started(root: Path, tmp_path: Path, ledger: Ledger) -> None:
    source = foreign(tmp_path / "theirs", (CASES / "05-ended.md").read_bytes())
    (source / "results").mkdir()
    (source / "results" / "result.json").write_text("[1]")
    async with Coordinator(root) as coordinator:
        handle = await coordinator.adopt_workspace(source, worker(ledger, ["fetch pages", "analyse"]))
        said = await handle.wait()
    assert (said.status, said.result) == ("completed", f"{root}/{handle.id}/results/result.json")
    assert said.id.endswith(".restored")
    assert began(ledger) == []
    assert Cli(tmp_path, root)("result", handle.id).out == "[1]"


def test_a_cancelled_one_is_not_started_either(root: Path, tmp_path: Path, ledger: Ledger) -> None:
    source = foreign(tmp_path / "theirs", b"# Task: x\n## Status: cancelled\n[start done]\n[working] a\n")
    said = Cli(tmp_path, root)("adopt", source, "--worker", WORKER)
    assert "it had ended already (cancelled)" in said.err
    assert look(Paths(f"{root}/{said.out.strip()}")).state == "cancelled"


async def test_a_worker_that_is_killed_goes_on_with_an_adopted_task_as_with_any(
    root: Path, tmp_path: Path, ledger: Ledger
) -> None:
    source = foreign(tmp_path / "theirs", (CASES / "02-in-place.md").read_bytes())
    cli = Cli(tmp_path, root)
    with fifo(tmp_path / "gate") as gate:
        steps = '["fetch pages", "analyse", "write report"]'
        args = ("--arg", f"ledger={ledger.path}", "--arg", f"steps={steps}", "--arg", f"gate={gate}")
        said = cli("adopt", source, "--worker", WORKER, *args)
        where = Paths(f"{root}/{said.out.strip()}")
        assert said.err == "  it goes on at step 'analyse'\n"
        await ledger.has("analyse began")
        assert cli("explain", where.task_id).code == 0
        kill_worker(where)
        await until(lambda: began(ledger) == ["analyse", "analyse"], "its next worker is at the step")
        await open_gate(gate)
        await ledger.has("write report began")
        await open_gate(gate)
    assert cli("wait", where.task_id).code == 0
    assert began(ledger) == ["analyse", "analyse", "write report"]


@pytest.mark.parametrize("id_in_it", [FOREIGN_ID, "", "task-20260524-210600-777"])
async def test_one_that_lies_in_the_root_under_an_id_stays_where_it_is(
    root: Path, ledger: Ledger, id_in_it: str
) -> None:
    text = (CASES / "03-append-style.md").read_text().replace(FOREIGN_ID, id_in_it)
    place = foreign(root / FOREIGN_ID, text.encode())
    before = everything(str(place))
    async with Coordinator(root) as coordinator:
        handle = await coordinator.adopt_workspace(FOREIGN_ID, worker(ledger, ["fetch pages", "analyse"]))
        assert (await handle.wait()).ok
    assert task_ids(str(root)) == [FOREIGN_ID]
    assert (handle.id, began(ledger)) == (FOREIGN_ID, ["analyse"])
    assert is_kept(before, handle.where)
    assert Checklist.parse(Path(handle.where.task_md).read_bytes()).task_id == FOREIGN_ID


async def test_the_next_worker_writes_into_the_step_file_that_the_last_tool_used(
    root: Path, tmp_path: Path, ledger: Ledger
) -> None:
    source = foreign(tmp_path / "theirs", (CASES / "07-chinese.md").read_bytes())
    names = [name for name, _ in right("07-chinese")["steps"]]
    async with Coordinator(root) as coordinator:
        handle = await coordinator.adopt_workspace(source, worker(ledger, names))
        assert (await handle.wait()).ok
    file = Path(handle.where.directory, f"{names[1]}.md").read_bytes()
    assert file.startswith((source / f"{names[1]}.md").read_bytes())
    assert b"yaml checkpoint" in file
    assert not list(Path(handle.where.directory).glob("* (2).md"))


async def test_a_step_that_must_not_happen_twice_is_asked_about(root: Path, tmp_path: Path, ledger: Ledger) -> None:
    source = foreign(tmp_path / "theirs", (CASES / "02-in-place.md").read_bytes())
    names = [name for name, _ in right("02-in-place")["steps"]]
    async with Coordinator(root) as coordinator:
        handle = await coordinator.adopt_workspace(source, worker(ledger, names, effect="once"))
        assert (await handle.wait()).status == "uncertain"
    assert began(ledger) == []


# -- with a steps file -----------------------------------------------------------------------------------------------


def steps_file(path: Path, ledger: Ledger, names: list[str], outputs: str = "") -> Path:
    more = f"\n    outputs: [{outputs}]" if outputs else ""
    steps = "".join(
        f"  - name: {json.dumps(n)}\n    shell: echo \"$ORCHESTRATOR_STEP began 1\" >> '{ledger.path}'{more}\n"
        for n in names
    )
    path.write_text(f"steps:\n{steps}", "utf-8")
    return path


def test_a_steps_file_is_matched_to_the_checklist_by_name(root: Path, tmp_path: Path, ledger: Ledger) -> None:
    source = foreign(tmp_path / "theirs", (CASES / "02-in-place.md").read_bytes())
    file = steps_file(tmp_path / "steps.yaml", ledger, ["Fetch  pages", "analyse", "write report", "send it"])
    cli = Cli(tmp_path, root)
    said = cli("adopt", source, "--worker", file)
    assert "not in the checklist, and so still to be run: 'send it'" in said.err
    assert cli("wait", said.out.strip()).code == 0
    assert began(ledger) == ["analyse", "write report", "send it"]


def test_a_steps_file_of_something_else_is_refused(root: Path, tmp_path: Path, ledger: Ledger) -> None:
    source = foreign(tmp_path / "theirs", (CASES / "02-in-place.md").read_bytes())
    file = steps_file(tmp_path / "steps.yaml", ledger, ["bake", "eat"])
    cli = Cli(tmp_path, root)
    cli("adopt", source, "--worker", file).refuses(DATA, "none of its steps", "'bake'")
    assert cli.tasks() == []


def test_outputs_of_what_another_tool_did_are_looked_for(root: Path, tmp_path: Path, ledger: Ledger) -> None:
    source = foreign(tmp_path / "theirs", (CASES / "02-in-place.md").read_bytes())
    file = steps_file(tmp_path / "steps.yaml", ledger, ["fetch pages", "analyse", "write report"], "pages.txt")
    cli = Cli(tmp_path, root)
    task = cli("adopt", source, "--worker", file).out.strip()
    cli("wait", task).tells_failure("marked done by hand", "pages.txt")
    assert began(ledger) == []


# -- what is refused -------------------------------------------------------------------------------------------------


def test_what_is_no_workspace_is_refused_in_two_lines_and_nothing_is_made(
    root: Path, tmp_path: Path, ledger: Ledger
) -> None:
    cli = Cli(tmp_path, root)
    (tmp_path / "empty").mkdir()
    damaged = foreign(tmp_path / "damaged", (CASES / "18-empty.md").read_bytes())
    words = foreign(tmp_path / "words", b"# Read me\n\nnothing to do\n")
    (tmp_path / "link").symlink_to(damaged)
    linked = tmp_path / "linked"
    linked.mkdir()
    (linked / "task.md").symlink_to(CASES / "02-in-place.md")
    cli("adopt", tmp_path / "nowhere", "--worker", WORKER).refuses(NO_INPUT, "no such directory")
    cli("adopt", tmp_path / "empty", "--worker", WORKER).refuses(DATA, "has no task.md")
    cli("adopt", damaged, "--worker", WORKER).refuses(DATA, "empty or unreadable")
    cli("adopt", words, "--worker", WORKER).refuses(DATA, "is no checklist")
    cli("adopt", linked, "--worker", WORKER).refuses(DATA, "not a regular file")
    cli("adopt", tmp_path / "link", "--worker", WORKER).refuses(DATA, "is a link")
    cli("adopt", damaged, "--worker", "no.such:thing").refuses(NO_INPUT, "no.such")
    cli("adopt", tmp_path, "--worker", WORKER).refuses(DATA, "has the root")
    assert cli.tasks() == []


async def test_a_task_of_ours_is_not_adopted_but_recovered(root: Path, tmp_path: Path, ledger: Ledger) -> None:
    cli = Cli(tmp_path, root)
    with fifo(tmp_path / "gate") as gate:
        where = await start_and_leave(root, spec("waits_in_two", ledger, gate=str(gate)))
        await ledger.has("two began")
        cli("adopt", where.task_id, "--worker", WORKER).refuses(TEMPORARY, "is being worked on")
        elsewhere = Cli(tmp_path, tmp_path / "another root")
        elsewhere("adopt", where.directory, "--worker", WORKER).refuses(DATA, "a task of ours", "mv ")
        await open_gate(gate)
    await let_go(where)
    cli("adopt", where.task_id, "--worker", WORKER).refuses(DATA, "is a task of this root", "orchestrator recover")
    os.unlink(where.spec)
    cli("adopt", where.task_id).refuses(USAGE, "is not known", "--worker WORKER")


async def test_a_workspace_that_somebody_holds_is_not_copied(root: Path, tmp_path: Path, ledger: Ledger) -> None:
    source = foreign(tmp_path / "theirs", (CASES / "02-in-place.md").read_bytes())
    lock = files.lock_directory(str(source))
    assert lock is not None
    async with Coordinator(root) as coordinator:
        with pytest.raises(Held):
            await coordinator.adopt_workspace(source, worker(ledger, ["analyse"]))
    os.close(lock)
    assert list(root.iterdir()) == []


async def test_a_copy_that_fails_leaves_nothing(
    root: Path, tmp_path: Path, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = foreign(tmp_path / "theirs", (CASES / "02-in-place.md").read_bytes())
    before = everything(str(source))

    def full(path: str) -> None:
        raise OSError(28, "No space left on device", path)

    monkeypatch.setattr(files, "sync_file", full)
    async with Coordinator(root) as coordinator:
        with pytest.raises(OSError, match="No space left"):
            await coordinator.adopt_workspace(source, worker(ledger, ["analyse"]))
    assert list(root.iterdir()) == []
    assert everything(str(source)) == before


async def test_a_link_and_the_mode_of_a_file_are_copied_as_they_are(root: Path, tmp_path: Path, ledger: Ledger) -> None:
    source = foreign(tmp_path / "theirs", (CASES / "02-in-place.md").read_bytes())
    os.mkfifo(source / "a pipe")
    cli = Cli(tmp_path, root)
    said = cli("adopt", source, "--no-start")
    here = root / said.out.strip()
    assert os.readlink(here / "latest") == "data/pages.bin"
    assert (here / "tool.sh").stat().st_mode == (source / "tool.sh").stat().st_mode
    assert "left out, it is no file" in said.err
    assert cli("list").out.count("interrupted") == 1


async def test_one_taken_in_without_a_worker_is_given_one_later(root: Path, tmp_path: Path, ledger: Ledger) -> None:
    source = foreign(tmp_path / "theirs", (CASES / "21-append-resumed.md").read_bytes())
    async with Coordinator(root) as coordinator:
        kept = await coordinator.adopt_workspace(source)
        assert status_line(kept.where) == "## Status: working"
        assert look(kept.where).state == "interrupted"
        handle = await coordinator.adopt_workspace(kept.id, worker(ledger, ["a", "b", "c"]))
        said = await handle.wait()
    assert (said.ok, began(ledger)) == (True, ["c"])
    assert step_lines(handle.where) == ["[start done]", *(f"[working done] {name}" for name in "abc"), "[end]"]
    assert json.loads(Path(handle.where.results, "result.json").read_text()) == [None, None, "done by us"]


async def test_a_damaged_one_says_so_to_a_program(root: Path, tmp_path: Path, ledger: Ledger) -> None:
    source = foreign(tmp_path / "theirs", (CASES / "18-empty.md").read_bytes())
    async with Coordinator(root) as coordinator:
        with pytest.raises(Damaged):
            await coordinator.adopt_workspace(source, worker(ledger, ["a"]))
    assert list(root.iterdir()) == []


# -- killed while it adopts ------------------------------------------------------------------------------------------


class Dying:
    """Looks like `os`; the process dies by SIGKILL before the operation with the given number that changes a file."""

    def __init__(self, number: int) -> None:
        self._left = itertools.count(number, -1)

    def __getattr__(self, name: str) -> Any:
        real = getattr(os, name)
        if name not in ("open", "write", "fsync", "rename", "mkdir", "unlink", "symlink"):
            return real

        def operation(*args: Any, **more: Any) -> Any:
            if (name != "open" or args[1] & os.O_CREAT) and next(self._left) == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*args, **more)

        return operation


def adopted_or_killed(root: Path, source: str, what: TaskSpec, number: int) -> bool:
    """Adopt in a process that dies at so many operations; whether it came to its end before."""
    pid = os.fork()
    if pid == 0:
        try:
            files.os = copying.os = Dying(number)  # type: ignore[assignment]
            adoption.adopt(str(root), source, what, time.time, start=False)
            os._exit(0)
        finally:
            os._exit(1)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) in (0, -signal.SIGKILL)
    return status == 0


def statuses(where: Paths) -> list[tuple[str, str]]:
    return [(s.label, s.status.value) for s in look(where).snapshot.steps.values()]


def test_an_adoption_killed_at_any_moment_leaves_a_whole_task_or_none(
    root: Path, tmp_path: Path, ledger: Ledger
) -> None:
    source = foreign(tmp_path / "theirs", (CASES / "12-done-out-of-order.md").read_bytes())
    before, what = everything(str(source)), worker(ledger, ["a", "b", "c"])
    killed = 0
    while not adopted_or_killed(root, str(source), what, killed):
        killed += 1
        workspace.sweep_staging(str(root))
        for path in root.iterdir():
            where = Paths(str(path))
            assert statuses(where) == [("a", "done"), ("b", "working"), ("c", "done")]
            assert is_kept(before, where)
            assert store.read_spec(where).worker == what.worker
            shutil.rmtree(path)
    assert killed > 20
    assert everything(str(source)) == before


def test_an_adoption_in_place_killed_at_any_moment_is_done_by_asking_again(
    root: Path, tmp_path: Path, ledger: Ledger
) -> None:
    what = worker(ledger, ["a", "b", "c"])
    for killed in itertools.count():
        place = foreign(root / FOREIGN_ID, (CASES / "12-done-out-of-order.md").read_bytes())
        before = everything(str(place))
        where, whole = Paths(str(place)), adopted_or_killed(root, FOREIGN_ID, what, killed)
        assert statuses(where) == [("a", "done"), ("b", "working"), ("c", "done")]
        if not os.path.lexists(where.spec):
            adoption.adopt(str(root), FOREIGN_ID, what, time.time, start=False)
        assert store.read_spec(where).worker == what.worker
        assert not look(where).lost
        assert not look(where).snapshot.steps["a"].by_hand  # or the skill would ask for its result
        assert is_kept(before, where)
        shutil.rmtree(place)
        if whole:
            break
    assert killed > 10
