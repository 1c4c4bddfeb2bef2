"""A resident coordinator: nothing of its root is left lying, whatever is killed, and when idle it costs nothing."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import anyio
import kit
import pytest
from conftest import Ledger
from test_explain import asks, damaged, ends, interrupted, make, paused

from orchestrator import Coordinator, files, holders, inspection, means, serving, store, workspace
from orchestrator.core.explain import explain
from orchestrator.core.model import Outcome
from orchestrator.store import Paths, make_request
from orchestrator.supervision import Supervisor


class Served:
    """`orchestrator serve` as a process of its own, and what it has logged so far."""

    def __init__(self, root: Path, log: Path, interval: float) -> None:
        words = [
            sys.executable,
            "-m",
            "orchestrator.cli.main",
            "--root",
            str(root),
            "serve",
            "--interval",
            str(interval),
        ]
        with log.open("ab") as output:
            self.process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        self._log = log

    def events(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._log.read_text().splitlines(keepends=True) if line.endswith("\n")]

    async def says(self, event: str, task: str | None = None) -> dict[str, Any]:
        def found() -> dict[str, Any] | None:
            return next((e for e in self.events() if e["event"] == event and e.get("task") == task), None)

        return dict(await kit.until(found, f"the log says {event!r} of {task}; it says {self._log.read_text()}"))

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(120)


@contextlib.asynccontextmanager
async def served(root: Path, log: Path, interval: float = 30.0) -> AsyncIterator[Served]:
    """A `serve` that has begun. The interval is long: what is seen sooner was told by an event."""
    found = Served(root, log, interval)
    try:
        await found.says("serving")
        yield found
    finally:
        if found.process.poll() is None:
            found.process.kill()
            found.process.wait()


def state(where: Paths) -> str:
    return store.look(where).state


def queued(root: Path, ledger: Ledger, skill: str = "six_steps", **args: Any) -> Paths:
    """A task that somebody made, and was killed before it could start it."""
    where, lock = workspace.create(str(root), kit.spec(skill, ledger, **args), time.time)
    os.close(lock)
    return where


async def test_what_is_queued_before_and_while_it_serves_is_started(tmp_path: Path, root: Path, ledger: Ledger) -> None:
    first = queued(root, ledger)
    async with served(root, tmp_path / "log") as serve:
        await serve.says("ended", first.task_id)
        second = queued(root, ledger)
        await serve.says("ended", second.task_id)
        assert serve.stop() == 0
    assert [state(first), state(second)] == ["completed", "completed"]
    assert ledger.count("gather began") == 2
    assert not kit.left_behind(first) + kit.left_behind(second)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_told_to_stop_it_leaves_its_workers_alive_and_the_next_one_adopts_them(
    tmp_path: Path, root: Path, ledger: Ledger, number: int
) -> None:
    with kit.fifo(tmp_path / "gate") as gate:
        where = queued(root, ledger, "waits_in_two", gate=str(gate))
        async with served(root, tmp_path / "log") as serve:
            await ledger.has("two began")
            assert serve.stop(number) == 0
            assert serve.events()[-1]["event"] == "stopping"
        assert state(where) == "working"
        async with served(root, tmp_path / "log 2") as serve:
            await serve.says("adopted", where.task_id)
            await kit.open_gate(gate)
            await serve.says("ended", where.task_id)
    assert kit.tries(ledger, "two") == [1]
    assert len(kit.entries(where, "attempt")) == 1


async def test_a_worker_killed_while_it_serves_is_followed_by_another(
    tmp_path: Path, root: Path, ledger: Ledger
) -> None:
    with kit.fifo(tmp_path / "gate") as gate:
        where = queued(root, ledger, "waits_in_two", gate=str(gate))
        async with served(root, tmp_path / "log") as serve:
            await ledger.has("two began 1")
            kit.kill_worker(where)
            await ledger.has("two began 2")
            await kit.open_gate(gate)
            await serve.says("ended", where.task_id)
    assert ledger.count("one began") == 1


async def test_killed_itself_it_costs_no_step_and_the_next_one_goes_on(
    tmp_path: Path, root: Path, ledger: Ledger
) -> None:
    with kit.fifo(tmp_path / "gate") as gate:
        where = queued(root, ledger, "waits_in_two", gate=str(gate))
        async with served(root, tmp_path / "log") as serve:
            await ledger.has("two began")
            serve.process.kill()
            serve.process.wait()
        kit.kill_worker(where)
        await kit.let_go(where)
        async with served(root, tmp_path / "log 2") as serve:
            await serve.says("resumed", where.task_id)
            await ledger.has("two began 2")
            await kit.open_gate(gate)
            await serve.says("ended", where.task_id)
    assert ledger.count("one began") == 1


async def test_two_on_one_root_do_every_step_once(tmp_path: Path, root: Path, ledger: Ledger) -> None:
    async with served(root, tmp_path / "log 1") as one, served(root, tmp_path / "log 2") as other:
        wheres = [queued(root, ledger) for _ in range(4)]
        for where in wheres:
            await kit.until(lambda where=where: state(where) == "completed", f"{where.task_id} completes")
        assert [one.stop(), other.stop()] == [0, 0]
    assert ledger.count("gather began") == ledger.count("report ended") == 4
    assert [len(kit.entries(where, "attempt")) for where in wheres] == [1] * 4
    assert not [e for serve in (one, other) for e in serve.events() if e["level"] == "error"]


async def test_an_order_given_while_nobody_held_the_task_is_carried_out(
    tmp_path: Path, root: Path, ledger: Ledger
) -> None:
    """The command that gave it was killed before it had the task's lock; only the next look can find it."""
    where = queued(root, ledger)
    make_request(where, {"id": "r1", "verb": "pause"})
    async with served(root, tmp_path / "log", interval=0.2) as serve:
        await kit.until(lambda: state(where) == "paused", "it is paused")
        make_request(where, {"id": "r2", "verb": "continue"})
        await serve.says("ended", where.task_id)
        os.remove(Path(where.directory) / "report.md")
        make_request(where, {"id": "r3", "verb": "redo", "step": "report"})
        await kit.until((Path(where.directory) / "report.md").exists, "the report is made anew")
        await kit.until(lambda: state(where) == "completed", "it has ended again")
    assert kit.tries(ledger, "report") == [1, 2]
    assert ledger.count("gather began") == 1


async def test_what_is_wrong_with_one_task_stops_neither_the_others_nor_itself(
    tmp_path: Path, root: Path, ledger: Ledger
) -> None:
    lost = make(root, interrupted)
    os.remove(lost.spec)
    (root / "task-20260101-000000-001").write_text("a file in the place of a task")
    (root / "task-20260101-000000-002").mkdir()
    os.symlink("/nowhere", root / "task-20260101-000000-003")
    broken, waiting = damaged(root), make(root, asks)
    where = queued(root, ledger)
    async with served(root, tmp_path / "log") as serve:
        await serve.says("ended", where.task_id)
        assert "is not known" in (await serve.says("damaged", lost.task_id))["reason"]
        assert f"orchestrator answer {waiting.task_id} TEXT" in (await serve.says("waits", waiting.task_id))["reason"]
        await kit.until(lambda: "broken" not in state(broken) and state(broken) != "damaged", "it was made again")
        assert serve.process.poll() is None
        told = [(e["event"], e.get("task")) for e in serve.events()]
        assert told.count(("waits", waiting.task_id)) == 1
        assert serve.stop() == 0


async def test_a_root_that_is_not_there_yet_is_made_and_one_made_anew_is_watched(
    tmp_path: Path, ledger: Ledger
) -> None:
    root = tmp_path / "new" / "root"
    async with served(root, tmp_path / "log", interval=0.2) as serve:
        first = queued(root, ledger)
        await serve.says("ended", first.task_id)
        shutil.rmtree(root)
        root.mkdir()
        second = queued(root, ledger)
        await kit.until(lambda: state(second) == "completed", "the new root is looked after")
        assert serve.stop() == 0


@pytest.mark.skipif(not means.has("proc"), reason="who holds a lock is told by /proc")
async def test_that_somebody_serves_is_seen_by_explain(tmp_path: Path, root: Path, ledger: Ledger) -> None:
    where = queued(root, ledger)
    lock = files.lock_directory(where.directory)  # so that it stays as it is
    assert lock is not None
    async with served(root, tmp_path / "log") as serve:
        assert holders.of_lock(str(root), shared=True) == [serve.process.pid]
        said = explain(inspection.facts_of(where, time.time))
        assert any(one.what == f"process {serve.process.pid} looks after it (serve)" for one in said.evidence)
        assert said.next.by == "supervisor"
        assert serve.stop() == 0
    os.close(lock)
    assert explain(inspection.facts_of(where, time.time)).next.by == "person"


def test_a_root_that_cannot_be_made_is_told_as_every_command_tells_it(tmp_path: Path) -> None:
    from cli_door import CANNOT_CREATE, Cli

    (tmp_path / "file").write_text("")
    Cli(tmp_path, tmp_path / "file" / "root")("serve").refuses(CANNOT_CREATE, "the root")


# -- what it costs ---------------------------------------------------------------------------------------------------


class Untouched(Supervisor):
    """A supervisor for tasks that need none."""

    def __init__(self, root: Path, failing: Exception | None = None) -> None:
        self.root = str(root)
        self.failing = failing

    async def supervise(
        self, where: Paths, lock: int | None = None, *, begun: Callable[[], None] = lambda: None
    ) -> Any:
        if lock is not None:
            os.close(lock)
        assert self.failing is not None, where
        raise self.failing


async def _scan(serve: serving.Serving) -> int:
    """One scan, everything that it led to, and how many tasks that was."""
    found = await serve._scanned()
    async with anyio.create_task_group() as group:
        for where, mark in found:
            group.start_soon(serve._attend, where, mark)
    return len(found)


async def test_a_task_that_needs_nothing_is_read_once_and_then_only_looked_at(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheres = [make(root, change) for change in (ends(Outcome.COMPLETED), ends(Outcome.FAILED), paused, asks)]
    serve = serving.Serving(Untouched(root), 5, serving.logger(io.StringIO()))
    assert await _scan(serve) == 4
    opened: list[Any] = []
    watched = [True]
    sys.addaudithook(lambda event, args: opened.append(args[0]) if watched and event == "open" else None)
    try:
        assert await _scan(serve) == 0
    finally:
        watched.clear()
    assert [path for path in opened if "task-" in str(path)] == []
    make_request(wheres[2], {"id": "r1", "verb": "send"})
    Path(wheres[3].task_md).write_text(Path(wheres[3].task_md).read_text() + "\na note\n")
    assert await _scan(serve) == 2
    assert await _scan(serve) == 0


async def test_a_task_that_fails_is_tried_again_later_and_later_and_not_at_every_look(root: Path) -> None:
    where = make(root, interrupted)
    output = io.StringIO()
    serve = serving.Serving(Untouched(root, OSError(28, "No space left on device")), 5, serving.logger(output))
    assert await _scan(serve) == 1
    assert await _scan(serve) == 0
    serve._aside[where.task_id] = serving.Aside(serving.signature(where), time.monotonic() - 1)
    assert await _scan(serve) == 1
    events = [json.loads(line) for line in output.getvalue().splitlines()]
    pauses = [event["again_in"] for event in events if event["event"] == "error"]
    assert pauses == [0.1, 0.2]


@pytest.mark.parametrize(
    "error", [RuntimeError("ours"), OSError(5, "Input/output error"), ExceptionGroup("x", [KeyError()])]
)
async def test_every_error_of_a_task_is_one_line_of_json(root: Path, error: Exception) -> None:
    where = make(root, interrupted)
    output = io.StringIO()
    await _scan(serving.Serving(Untouched(root, error), 5, serving.logger(output)))
    (line,) = [json.loads(line) for line in output.getvalue().splitlines()[-1:]]
    assert (line["event"], line["level"], line["task"]) == ("error", "error", where.task_id)
    assert ("exception" in line) is not isinstance(error, OSError)


def test_a_log_that_nobody_reads_any_more_stops_no_work() -> None:
    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError(32, "Broken pipe")

    serving.logger(Gone()).info("an event")


def test_at_a_terminal_the_log_is_for_people() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    output = Terminal()
    serving.logger(output).info("resumed", task="task-1")
    assert "resumed" in output.getvalue()
    assert not output.getvalue().startswith("{")


async def test_leaving_the_root_alone_needs_no_coordinator(root: Path, ledger: Ledger) -> None:
    """A program's own coordinator and a `serve` share a root as two of either kind do."""
    async with served(root, root.parent / "log") as serve, Coordinator(root) as coordinator:
        handle = await coordinator.spawn(kit.spec("six_steps", ledger))
        assert (await handle.wait(120)).ok
        await kit.until(lambda: state(handle.where) == "completed", "it has ended")
        assert serve.stop() == 0
    assert ledger.count("gather began") == 1
