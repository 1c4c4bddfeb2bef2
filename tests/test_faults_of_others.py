"""Faults of docs/faults.md for which no other test stands: starts that fail, and where things lie."""

from __future__ import annotations

import ast
import functools
import json
import os
import re
import shutil
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import dying
import inline
import kit
import pytest
from cli_door import Cli
from conftest import Ledger
from scenarios import temporary_base
from test_damage import build

from orchestrator import Coordinator, doctor, files, mounts, store, surroundings
from orchestrator.compose import resolve
from orchestrator.core.model import TaskSpec
from orchestrator.store import Paths

REPOSITORY = Path(__file__).resolve().parent.parent


# -- a spawn that is cut off -----------------------------------------------------------------------------------------


def spawns(base: Path, order: list[object] | None) -> Callable[[], Awaitable[None]]:
    """Spawn a task and wait for it; the coordinator, and it alone, dies as ordered."""
    (base / "death").mkdir(exist_ok=True)
    if order is not None:
        (base / "death" / "order").write_text(json.dumps(order))
    real = [functools.partial(setattr, files, name, getattr(files, name)) for name in ("os", "_swap", "_datasync")]

    async def act() -> None:
        inline.IN_WORKERS[:] = real
        dying.install(base / "death")
        coordinator = inline.coordinator(base / "root")
        async with coordinator:
            handle = await coordinator.spawn(kit.spec("six_steps", Ledger(base / "ledger")))
            await handle.wait(120)

    return act


async def recovered(root: Path) -> dict[str, str]:
    """Every task of the root after one `recover`, and its state."""
    async with inline.coordinator(root) as coordinator:
        await coordinator.recover()
        for task_id in store.task_ids(str(root)):
            await coordinator.wait(task_id, 120)
    return {task_id: store.look(Paths(str(root / task_id))).state for task_id in store.task_ids(str(root))}


def test_a_spawn_killed_at_any_operation_leaves_a_task_that_can_be_started_or_none() -> None:
    # fault 11
    with tempfile.TemporaryDirectory(dir=temporary_base()) as directory:
        whole = Path(directory, "whole")
        whole.mkdir()
        assert inline.attempt(spawns(whole, None)).code == 0
        phases = (whole / "death" / "log").read_text().splitlines()
        before_the_worker = phases[: phases.index("attempt: sync journal.jsonl") + 1]
        assert len(before_the_worker) > 15
        made = set()
        for number, phase in enumerate(before_the_worker):
            nth = before_the_worker[: number + 1].count(phase)
            for when in ("before", "after"):
                base = Path(directory, f"{number} {when}")
                base.mkdir()
                assert inline.attempt(spawns(base, [phase, nth, when])).code == -9, (phase, nth, when)
                states = inline.run(functools.partial(recovered, base / "root"))
                made.add(tuple(states.values()))
                assert len(Ledger(base / "ledger").lines()) == len(states) * 12, "each step began and ended, once"
                assert not [p for p in (base / "root").glob(".*") if p.name.startswith(files.TEMPORARY)]
        assert made == {(), ("completed",)}


# -- a start that fails ----------------------------------------------------------------------------------------------

ASKS = """
async def skill(task, ledger):
    def note(text):
        with open(ledger, "a") as file:
            file.write(text + "\\n")
    await task.step("one", lambda: note("one ran"))
    said = await task.ask("which?")
    await task.step("two", lambda: note("two ran with " + said))
"""


class Stillborn:
    """While `fails`, every worker ends before its first line, by itself, and says it went well or not."""

    def __init__(self, directory: Path, code: int) -> None:
        directory.mkdir()
        self._flag = directory / "stillborn"
        (directory / "sitecustomize.py").write_text(
            f"import os, sys\nif 'orchestrator.worker' in sys.orig_argv and os.path.exists({str(self._flag)!r}):\n"
            f"    os._exit({code})\n"
        )
        (directory / "asks.py").write_text(ASKS)
        self._directory = directory

    def spec(self, ledger: Ledger) -> TaskSpec:
        worker = f"{self._directory / 'asks.py'}:skill"
        env = {"PYTHONPATH": str(self._directory)}
        return resolve(worker, name="asks", args={"ledger": str(ledger.path)}, env=env)

    def fails(self, does: bool) -> None:
        self._flag.touch() if does else self._flag.unlink()


@pytest.mark.parametrize("code", [0, 1])
async def test_a_worker_that_ends_before_its_first_line_has_done_nothing_whatever_it_says_of_itself(
    tmp_path: Path, root: Path, ledger: Ledger, code: int
) -> None:
    # fault 17
    stillborn = Stillborn(tmp_path / "stillborn", code)
    stillborn.fails(True)
    async with Coordinator(root) as coordinator:
        handle = await coordinator.spawn(stillborn.spec(ledger))
        said = await handle.wait(120)
    assert said.status == "failed"
    assert not kit.entries(handle.where, "started")
    assert 1 < len(kit.entries(handle.where, "attempt")) <= 3
    assert ledger.lines() == []


async def test_a_resume_that_fails_uses_up_no_answer_and_the_next_one_finds_it(
    tmp_path: Path, root: Path, ledger: Ledger
) -> None:
    # fault 18
    stillborn = Stillborn(tmp_path / "stillborn", 1)
    async with Coordinator(root) as coordinator:
        handle = await coordinator.spawn(stillborn.spec(ledger))
        assert (await handle.wait(120)).status == "question"
        await kit.let_go(handle.where)
        stillborn.fails(True)
        assert (await resumed(coordinator, handle.where, "answer", text="the blue one")).status == "failed"
        stillborn.fails(False)
        assert (await resumed(coordinator, handle.where, "retry")).status == "completed"
    assert ledger.lines() == ["one ran", "two ran with the blue one"]
    assert len(kit.entries(handle.where, "asked")) == 1


async def resumed(coordinator: Coordinator, where: Paths, verb: str, **said: str) -> Any:
    _, lock = await coordinator.order(where.task_id, verb, **said)
    await coordinator.adopt(where, lock)
    announced = await coordinator.wait(where.task_id, 120)
    await kit.let_go(where)
    return announced


# -- where things lie ------------------------------------------------------------------------------------------------


async def test_nothing_that_going_on_needs_lies_in_the_directory_for_temporary_files(
    tmp_path: Path, root: Path, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    # fault 78
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.setattr(tempfile, "tempdir", None)
    with kit.fifo(tmp_path / "gate") as gate:
        where = await kit.start_and_leave(root, kit.spec("waits_in_two", ledger, gate=str(gate)))
        await ledger.has("two began 1")
        kit.kill_worker(where)
        await kit.let_go(where)
    assert list(temporary.iterdir()) == []
    shutil.rmtree(temporary)
    (tmp_path / "gate").unlink()
    (tmp_path / "gate").write_text("open")
    _, announced = await kit.recover(root, where)
    assert announced is not None
    assert announced.ok
    assert kit.tries(ledger, "one") == [1]


#: What cannot import `places`, and must say the same.
SPELL_IT_THEMSELVES = {"worker/__main__.py", "engines/local.py"}


def spelled(path: Path) -> list[str]:
    """The pieces of paths below `.task` that a module spells out; messages only name them."""
    found = [node.value for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, ast.Constant)]
    return [text for text in found if isinstance(text, str) and text.startswith("/.task")]


def test_one_place_knows_where_the_files_of_a_task_lie() -> None:
    # fault 23
    package = REPOSITORY / "orchestrator"
    found = {str(path.relative_to(package)): spelled(path) for path in package.rglob("*.py")}
    elsewhere = {module: texts for module, texts in found.items() if texts and module != "places.py"}
    assert elsewhere.keys() == SPELL_IT_THEMSELVES
    logs = Paths("").logs
    assert all(text == f"{logs}/" for texts in elsewhere.values() for text in texts)
    assert Paths("/t").log(1, "err") == f"/t{logs}/1.err"


def test_a_root_is_one_and_the_same_however_its_path_is_spelled(tmp_path: Path, root: Path, ledger: Ledger) -> None:
    # fault 23
    (tmp_path / "w.yaml").write_text("steps:\n  - {name: one, shell: 'true'}\n")
    (tmp_path / "link").symlink_to(root)
    (tmp_path / "deep").mkdir()
    spellings = [os.path.relpath(root, tmp_path), f"{root}/", "deep/../link/", f"./deep/..//{root.name}"]
    cli = Cli(tmp_path, root)
    for spelling in spellings:
        assert cli("run", "w.yaml", root=Path(spelling)).code == 0
    assert len(store.task_ids(str(root))) == len(spellings)
    for spelling in spellings:
        shown = cli("list", root=Path(spelling)).out
        assert all(task_id in shown for task_id in store.task_ids(str(root)))


@pytest.mark.parametrize("before", range(3))
def test_a_log_that_is_cut_is_cut_between_characters(tmp_path: Path, root: Path, before: int) -> None:
    # fault 68
    text = "x" * before + "步" * 20_000 + "\nthe last line"
    (tmp_path / "says.py").write_text(f"print({text!r})\n")
    command = f"{{name: one, run: [python3, says.py], cwd: {str(tmp_path)!r}}}"
    (tmp_path / "w.yaml").write_text(f"limits: {{output_bytes: 10000}}\nsteps:\n  - {command}\n")
    cli = Cli(tmp_path, root)
    assert cli("run", "w.yaml").code == 0
    said = cli("logs", cli.task().name)
    assert said.code == 0
    head, missing, tail = re.split(r"\n\.\.\. (\d+) bytes were left out here \.\.\.\n", said.out)
    assert text.startswith(head)
    assert text.endswith(tail.removesuffix("\n"))
    assert len(head.encode()) + int(missing) + len(tail.encode()) == len(f"{text}\n".encode())


# fault 51
def test_a_root_on_a_network_is_told_and_no_line_is_believed_before_it_is_checked(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = build(root, "interrupted")
    journal = Path(where.journal)
    journal.write_bytes(journal.read_bytes().replace(b'"status":"done","result":2', b'"status":"done","result":3'))
    (damaged,) = [one for one in doctor.examine(str(root), time.time) if one.task == where.task_id]
    assert (damaged.code, damaged.level) == ("damaged", "mend")
    list(doctor.mend(str(root), time.time))
    assert store.look(where).snapshot.steps["two"].result == 2
    escaped = "".join(f"\\{ord(c):03o}" if c in " \t\\" else c for c in os.path.realpath(root))
    table = f"server:/export {escaped} nfs4 rw 0 0\n"
    seen = mounts.mounts
    monkeypatch.setattr(mounts, "mounts", lambda _=None: [*seen(), *seen(table)])
    (told,) = [one for one in surroundings.examine(str(root)) if one.code == "file-system"]
    assert told.level == "person"
    assert "network" in told.what
    assert told.hint
