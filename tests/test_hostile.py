"""What a skill, or anybody who may write into a workspace, can do to others: nothing."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import kit
import pytest
from conftest import Ledger

from orchestrator import Coordinator, recovery, store, workspace
from orchestrator.compose import resolve
from orchestrator.core.model import StepId, StepStatus, TaskSpec
from orchestrator.errors import Damaged
from orchestrator.takeover import take_over
from orchestrator.worker.step import NotStorable, hash_args, storable

HERE = Path(__file__).resolve()


async def cancels_itself(task: Any) -> str:
    async def waits_for_a_future_that_is_cancelled() -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        future.cancel()
        await future

    await task.step("one", waits_for_a_future_that_is_cancelled, retries=1)
    return "not reached"


async def links_its_results_away(task: Any, outside: str) -> str:
    def link() -> None:
        os.symlink(outside, task.workspace / "results")

    await task.step("link", link)
    return await task.step("large", lambda: "x" * 100_000)


def spec(skill: str, **args: Any) -> TaskSpec:
    return resolve(f"{HERE}:{skill}", args=args)


async def test_a_step_that_is_cancelled_by_what_it_waits_for_has_failed_and_is_not_passed_over(root: Path) -> None:
    async with Coordinator(root) as coordinator:
        handle = await coordinator.spawn(spec("cancels_itself"))
        said = await handle.wait(120)
    assert said.status == "failed"
    assert len(kit.entries(handle.where, "raised")) == 2
    assert len(kit.entries(handle.where, "attempt")) == 1


async def test_results_are_never_written_through_a_link(root: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "result.json").write_text("precious")
    async with Coordinator(root) as coordinator:
        handle = await coordinator.spawn(spec("links_its_results_away", outside=str(outside)))
        said = await handle.wait(120)
    assert said.ok, said.summary
    assert [path.name for path in outside.iterdir()] == ["result.json"]
    assert (outside / "result.json").read_text() == "precious"
    assert store.read_result(handle.where) == "x" * 100_000


def test_a_result_that_a_reader_could_not_follow_is_refused() -> None:
    limit = sys.getrecursionlimit()
    deep: Any = []
    for _ in range(3000):
        deep = [deep]
    sys.setrecursionlimit(20_000)
    try:
        with pytest.raises(NotStorable, match="nested"):
            storable(deep)
    finally:
        sys.setrecursionlimit(limit)
    assert storable([[[1]]]) == [[[1]]]


@pytest.mark.parametrize(
    "line",
    ['{"id":"x","verb":"answer","question":[]}', '{"id":"x","verb":"skip","step":{}}', '{"id":[[1]],"verb":"send"}'],
)
def test_a_request_that_is_none_stops_nobody(root: Path, line: str) -> None:
    where, lock = workspace.create(str(root), TaskSpec("one", "python", "m:f"), time.time)
    os.close(lock)
    Path(where.requests).write_text(line + "\n" + "[" * 100_000 + "\n")
    assert store.read_requests(where) == []
    assert recovery.inspect(where).action == "resumed"


def test_arguments_in_sets_and_under_any_keys_are_told_apart_by_content() -> None:
    nested = {frozenset({"a", "b"}), frozenset({"c"})}
    assert hash_args([nested]) == hash_args([{frozenset({"c"}), frozenset({"b", "a"})}])
    assert hash_args([{1: "x", "b": 2}]) != hash_args([{1: "y", "b": 2}])
    assert hash_args([{(1, 2): 3}]) != hash_args([{(1, 3): 3}])


def test_a_large_result_that_was_changed_is_not_handed_back(root: Path) -> None:
    where, lock = workspace.create(str(root), TaskSpec("one", "python", "m:f"), time.time)
    task = take_over(where, time.time)
    task.begin_attempt(token="none")
    state = task.begin_try(StepId("one"), 1, effect="idempotent", args="")
    task.commit("one", StepStatus.DONE, result="x" * 100_000)
    assert task.result_of(state) == "x" * 100_000
    Path(where.directory, str(state.result_file)).write_text('"tampered"')
    with pytest.raises(Damaged, match="redo"):
        task.result_of(state)
    task.close()
    os.close(lock)


async def test_cancelling_a_copy_of_a_workspace_does_not_touch_the_worker_of_the_original(
    root: Path, ledger: Ledger, tmp_path: Path
) -> None:
    with kit.fifo(tmp_path / "gate") as gate:
        async with Coordinator(root) as coordinator:
            handle = await coordinator.spawn(kit.spec("waits_in_two", ledger, gate=str(gate)))
            await ledger.has("two began")
            copy = "task-20200101-000000-001"
            shutil.copytree(handle.where.directory, root / copy)
            assert (await coordinator.cancel(copy)).status == "cancelled"
            assert store.look(handle.where).alive
            await kit.open_gate(gate)
            assert (await handle.wait(120)).ok
    assert kit.tries(ledger, "two") == [1]
