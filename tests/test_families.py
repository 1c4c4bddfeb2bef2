"""Sub-tasks: found again by a resumed parent, never made twice, never left behind."""

from __future__ import annotations

import os
from pathlib import Path

import kit
import pytest
from click import unstyle
from conftest import Ledger

from orchestrator import Coordinator, Limits, family, store
from orchestrator.cli.show import look_json, look_text
from orchestrator.compose import resolve
from orchestrator.core.model import TaskSpec
from orchestrator.store import Paths

FAMILIES = Path(__file__).with_name("families.py")


def spec(skill: str, ledger: Ledger, **args: object) -> TaskSpec:
    return resolve(f"{FAMILIES}:{skill}", args={"ledger": str(ledger.path), **args}, limits=Limits(deaths=50))


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    path = tmp_path / "gate"
    os.mkfifo(path)
    return path


def all_tasks(root: Path) -> list[Paths]:
    return [Paths(f"{root}/{task_id}") for task_id in store.task_ids(str(root))]


async def test_a_parent_gets_what_its_children_give(root: Path, ledger: Ledger) -> None:
    async with Coordinator(root) as coordinator:
        handle = await coordinator.spawn(spec("parent", ledger))
        said = await handle.wait(120)
    assert said.ok, said.summary
    assert store.read_result(handle.where) == [0, 10, 20]
    assert len(family.children(handle.where)) == 3
    shown = look_json(store.look(handle.where))["children"]
    assert {(one["name"], one["state"]) for one in shown} == {(f"child {n}", "completed") for n in range(3)}
    text = look_text(store.look(handle.where))
    assert all(f"{one['id']}  completed  {one['name']}" in unstyle(text) for one in shown)
    assert [ledger.count(f"child {n} worked") for n in range(3)] == [1, 1, 1]


async def test_a_parent_killed_again_and_again_makes_no_child_twice(root: Path, ledger: Ledger, gate: Path) -> None:
    async with Coordinator(root) as coordinator:
        handle = await coordinator.spawn(spec("parent", ledger, gate=str(gate)))
        for life in range(1, 6):
            await kit.until(
                lambda n=life: len(kit.entries(handle.where, "started")) >= n and ledger.count("child 0 waits"),  # type: ignore[misc]
                "the parent lives and its first child waits",
            )
            kit.kill_worker(handle.where)
        await ledger.has("all spawned")
        for n in range(3):
            await ledger.has(f"child {n} waits")
        gate.unlink()
        gate.touch()  # an ordinary file: nobody waits there any more
        for where in family.children(handle.where):
            kit.kill_worker(where)  # they wait at the gate that is gone
        said = await handle.wait(120)
    assert said.ok, said.summary
    assert len(all_tasks(root)) == 4
    assert [ledger.count(f"child {n} worked") for n in range(3)] == [1, 1, 1]


async def test_a_failed_child_fails_the_step_that_asks_for_its_result(root: Path, ledger: Ledger) -> None:
    async with Coordinator(root) as coordinator:
        handle = await coordinator.spawn(spec("parent", ledger, many=1, fail=True))
        said = await handle.wait(120)
    assert said.status == "failed"
    assert "child 0 cannot" in said.summary


# fault 24
async def test_cancelling_a_parent_cancels_its_children_before_it(root: Path, ledger: Ledger, gate: Path) -> None:
    async with Coordinator(root) as coordinator:
        handle = await coordinator.spawn(spec("parent", ledger, gate=str(gate)))
        for n in range(3):
            await ledger.has(f"child {n} waits")
        said = await coordinator.cancel(handle.id)
    assert said.status == "cancelled"
    assert {store.look(where).state for where in all_tasks(root)} == {"cancelled"}
    end = kit.entries(handle.where, "end")[0]["at"]
    assert all(kit.entries(where, "end")[0]["at"] <= end for where in family.children(handle.where))
    assert not [left for where in all_tasks(root) for left in kit.left_behind(where)]


@pytest.mark.parametrize(("on_end", "state"), [("wait", "completed"), ("cancel", "cancelled")])
async def test_a_parent_that_ends_leaves_no_child_behind(
    root: Path, ledger: Ledger, gate: Path, on_end: str, state: str
) -> None:
    async with Coordinator(root) as coordinator:
        handle = await coordinator.spawn(spec("leaver", ledger, on_end=on_end, gate=str(gate)))
        await ledger.has("child 1 waits") if on_end == "wait" else None
        if on_end == "wait":
            await kit.open_gate(gate)
        said = await handle.wait(120)
        await kit.until(
            lambda: all(store.ended_by_tail(where) for where in all_tasks(root)), "parent and child have ended"
        )
    assert said.ok
    (child,) = family.children(handle.where)
    assert store.look(child).state == state


async def test_a_family_has_its_limits(root: Path, ledger: Ledger) -> None:
    async with Coordinator(root) as coordinator:
        handle = await coordinator.spawn(spec("deep", ledger))
        said = await handle.wait(120)
    assert said.status == "failed"
    assert "generations deep" in " ".join(store.look(where).announcement().summary for where in all_tasks(root))  # type: ignore[union-attr]
    assert len(all_tasks(root)) == 1 + Limits().depth


async def test_stopping_a_coordinator_stops_its_tasks_children_too(root: Path, ledger: Ledger, gate: Path) -> None:
    async with Coordinator(root, orphans="stop") as coordinator:
        handle = await coordinator.spawn(spec("parent", ledger, gate=str(gate)))
        for n in range(3):
            await ledger.has(f"child {n} waits")
    assert {store.look(where).state for where in all_tasks(root)} == {"interrupted"}
    assert not [left for where in all_tasks(root) for left in kit.left_behind(where)]
    assert {kit.entries(where, "closed")[-1]["outcome"] for where in all_tasks(root)} == {"stopped"}
    assert handle.id in store.task_ids(str(root))


async def test_a_cancel_that_nobody_carried_out_ends_the_children_when_somebody_recovers(
    root: Path, ledger: Ledger, gate: Path
) -> None:
    async with Coordinator(root) as coordinator:
        handle = await coordinator.spawn(spec("parent", ledger, gate=str(gate)))
        for n in range(3):
            await ledger.has(f"child {n} waits")
    kit.kill_worker(handle.where)
    await kit.let_go(handle.where)
    store.make_request(handle.where, {"id": "c1", "verb": "cancel"})
    text = Path(handle.where.task_md).read_text()
    Path(handle.where.task_md).write_text(text + "[pending] by hand\n")
    said = kit.orchestrator(root, "recover", handle.id, "--wait")
    said.communicate(timeout=300)
    assert {store.look(where).state for where in all_tasks(root)} == {"cancelled"}
    assert not [left for where in all_tasks(root) for left in kit.left_behind(where)]
