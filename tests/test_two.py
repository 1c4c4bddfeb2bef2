"""Two of everything, with real processes: coordinators, recovers, workspaces of one id, hands that hold one lock.

What a person would lose: a step done twice, a healthy worker of another task killed, a task that hangs without a word.
"""

from __future__ import annotations

import dataclasses
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import kit
import psutil
import pytest
from conftest import Ledger
from test_together import sleepers

from orchestrator import (
    Coordinator,
    Limits,
    containment,
    doctor,
    files,
    identity,
    recovery,
    store,
    supervision,
    workspace,
)
from orchestrator.core.model import StepSpec, TaskSpec
from orchestrator.errors import Damaged, Held, TaskNotFound
from orchestrator.store import Paths

SIX = ("gather", "sort", "measure", "collect (all)", "draw", "report")


def lives(where: Paths) -> bool:
    found = kit.identities(where)
    assert found is not None
    return all(identity.alive(who) is True for who in found)


async def stopped(where: Paths, *, guard: bool) -> None:
    """Stop the worker, or worker and guard, by SIGSTOP."""
    found = kit.identities(where)
    assert found is not None
    for who in found[: 1 + guard]:
        os.kill(who.pid, signal.SIGSTOP)
        await kit.until(lambda pid=who.pid: psutil.Process(pid).status() == psutil.STATUS_STOPPED, f"{who.pid} stops")


# -- two coordinators of one root ------------------------------------------------------------------------------------

_PROGRAM = """
import sys, json, anyio
sys.path.insert(0, sys.argv[1])
import kit
from conftest import Ledger
from pathlib import Path
from orchestrator import Coordinator

root, ledgers, gate, me = sys.argv[2:6]

async def main():
    async with Coordinator(root) as coordinator:
        made = [await coordinator.spawn(kit.spec("six_steps", Ledger(Path(ledgers, f"{me}-{n}")))) for n in range(2)]
        stuck = await coordinator.spawn(kit.spec("waits_in_two", Ledger(Path(ledgers, f"{me}-stuck")), gate=gate))
        print(json.dumps({"made": [handle.id for handle in made], "stuck": stuck.id}), flush=True)
        everybody = json.loads(sys.stdin.readline())
        said = await coordinator.recover()
        heard = {}
        async with anyio.create_task_group() as group:
            async def hear(task, what):
                heard[task] = await what(task)
            for task in everybody["made"]:
                group.start_soon(hear, task, lambda task: coordinator.attach(task).wait(120))
            for task in everybody["stuck"]:
                group.start_soon(hear, task, coordinator.cancel)
        print(json.dumps({task: [said.id, said.status] for task, said in heard.items()}), flush=True)

anyio.run(main)
"""


async def test_two_coordinators_that_spawn_recover_wait_and_cancel_in_one_root_do_each_step_once_and_hear_the_same(
    tmp_path: Path, root: Path, gate: Path
) -> None:
    """fault 41"""
    words = [str(Path(__file__).parent), str(root), str(tmp_path), str(gate)]
    programs = [
        subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, *words, me], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for me in ("here", "there")
    ]
    made: list[dict[str, Any]] = []
    for program in programs:
        assert program.stdout is not None
        made.append(json.loads(await anyio.to_thread.run_sync(program.stdout.readline)))
    everybody = {"made": made[0]["made"] + made[1]["made"], "stuck": [m["stuck"] for m in made]}
    ends = [await anyio.to_thread.run_sync(program.communicate, json.dumps(everybody) + "\n") for program in programs]
    assert [program.returncode for program in programs] == [0, 0]
    heard = [json.loads(out) for out, _ in ends]
    assert heard[0] == heard[1]
    assert Counter(status for _, status in heard[0].values()) == {"completed": 4, "cancelled": 2}
    for me in ("here", "there"):
        for n in range(2):
            ledger = Ledger(tmp_path / f"{me}-{n}")
            assert [kit.tries(ledger, step) for step in SIX] == [[1]] * 6
    for task_id in store.task_ids(str(root)):
        where = Paths(str(root / task_id))
        assert [len(kit.entries(where, kind)) for kind in ("attempt", "started", "end")] == [1, 1, 1]
        assert not kit.left_behind(where)


ERRANDS = """
steps:
  - name: fetch
    shell: echo "$ME fetched" >> "$LEDGER"
  - name: weigh
    shell: echo "$ME weighed" >> "$LEDGER"; while [ ! -e "$GO" ]; do sleep 0.02; done
  - name: send
    shell: echo "$ME sent" >> "$LEDGER"
"""


async def test_two_runs_a_serve_and_recovers_on_one_root_restart_a_killed_worker_once(
    tmp_path: Path, root: Path, ledger: Ledger
) -> None:
    (tmp_path / "errands.yaml").write_text(ERRANDS)
    shared = ["--env", f"LEDGER={ledger.path}", "--env", f"GO={tmp_path / 'go'}", str(tmp_path / "errands.yaml")]
    serve = kit.orchestrator(root, "serve", "--interval", "0.2")
    runs = [kit.orchestrator(root, "run", "--json", "--env", f"ME={me}", *shared) for me in ("one", "other")]
    try:
        for me in ("one", "other"):
            await ledger.has(f"{me} weighed", 60)
        wheres = [Paths(str(root / task_id)) for task_id in store.task_ids(str(root))]
        kit.kill_worker(wheres[0])
        recovers = [kit.orchestrator(root, "recover", "--json") for _ in range(3)]
        said = [await anyio.to_thread.run_sync(caller.communicate) for caller in recovers]
        assert [caller.returncode for caller in recovers] == [0] * 3, said
        await kit.until(lambda: len(kit.entries(wheres[0], "started")) == 2, "the killed one goes on")
        (tmp_path / "go").touch()
        for run in runs:
            out, _ = await anyio.to_thread.run_sync(run.communicate)
            assert (run.returncode, json.loads(out)["status"]) == (0, "completed")
    finally:
        serve.send_signal(signal.SIGTERM)
        serve.communicate()
    assert [len(kit.entries(where, "attempt")) for where in wheres] == [2, 1]
    assert [ledger.count(f"{me} {did}") for me in ("one", "other") for did in ("fetched", "sent")] == [1] * 4
    assert ledger.count("weighed") == 3


async def test_twenty_recovers_of_ten_tasks_of_which_half_are_killed_start_each_task_once(
    tmp_path: Path, root: Path
) -> None:
    """fault 42: whoever dies in the middle of a claim leaves nothing half claimed."""
    ledgers = [Ledger(tmp_path / f"ledger {n}") for n in range(10)]
    for ledger in ledgers:
        os.close(workspace.create(str(root), kit.spec("six_steps", ledger), time.time)[1])
    chance = random.Random(4)
    callers = [kit.orchestrator(root, "recover", "--json") for _ in range(20)]
    doomed = callers[::2]
    while doomed:  # each at another moment: when so many of the tasks have been begun
        begun = sum(bool(kit.entries(Paths(str(root / i)), "attempt")) for i in store.task_ids(str(root)))
        for caller in [caller for caller in doomed if begun >= chance.randrange(11) or caller.poll() is not None]:
            caller.kill()
            doomed.remove(caller)
        await anyio.sleep(kit.POLL_SECONDS)
    for caller in callers:
        await anyio.to_thread.run_sync(caller.communicate)
    last = kit.orchestrator(root, "recover", "--wait", "--json")
    out, err = await anyio.to_thread.run_sync(last.communicate)
    assert last.returncode == 0, (out, err)
    for task_id, ledger in zip(store.task_ids(str(root)), ledgers, strict=True):
        where = Paths(str(root / task_id))
        assert store.look(where).state == "completed"
        assert [len(kit.entries(where, kind)) for kind in ("attempt", "started", "end")] == [1, 1, 1]
        assert [kit.tries(ledger, step) for step in SIX] == [[1]] * 6
        await kit.let_go(where)
        assert not kit.left_behind(where)


# -- workers that are stopped ----------------------------------------------------------------------------------------


async def test_a_stopped_worker_is_ended_at_its_limit_and_is_dead_before_the_next_one_begins(
    root: Path, ledger: Ledger
) -> None:
    """fault 27: a replacement comes after a confirmed death; and fault 62: who is stopped has a limit all the same."""
    limits = Limits(attempt_seconds=4.0, grace_seconds=0.3, deaths=1000)
    async with Coordinator(root) as coordinator:
        handle = await coordinator.spawn(dataclasses.replace(kit.spec("stops_itself", ledger), limits=limits))
        await ledger.has("stuck began 1", 120)
        begun, stuck = len(kit.entries(handle.where, "attempt")), kit.identities(handle.where)
        assert stuck is not None
        await kit.until(lambda: len(kit.entries(handle.where, "attempt")) > begun, "the next attempt begins", 120)
        assert [identity.alive(who) for who in stuck] == [False, False]
        assert (await handle.wait(120)).ok
    assert kit.tries(ledger, "stuck")[:2] == [1, 2]


@pytest.mark.parametrize("guard", [False, True], ids=["worker", "worker and guard"])
async def test_a_coordinator_that_stops_its_workers_ends_those_that_do_not_hear_it(
    root: Path, ledger: Ledger, gate: Path, guard: bool
) -> None:
    async with Coordinator(root, orphans="stop") as coordinator:
        what = kit.spec("waits_in_two", ledger, gate=str(gate))
        handle = await coordinator.spawn(dataclasses.replace(what, limits=Limits(grace_seconds=0.3)))
        await ledger.has("two began 1")
        found = kit.identities(handle.where)
        await stopped(handle.where, guard=guard)
    assert found is not None
    assert [identity.alive(who) for who in found] == [False, False]
    assert recovery.inspect(handle.where).action == "resumed"
    assert not kit.left_behind(handle.where)


@pytest.mark.parametrize("guard", [False, True], ids=["worker", "worker and guard"])
async def test_a_task_with_a_stopped_worker_is_never_given_a_second_one_and_doctor_says_why_it_stands_still(
    root: Path, ledger: Ledger, gate: Path, guard: bool
) -> None:
    """faults 12, 25: it holds the lock, so it is alive, however long it has not been heard of."""
    where = await kit.working(root, ledger, gate)
    await stopped(where, guard=guard)
    callers = [kit.orchestrator(root, "recover", "--json") for _ in range(2)]
    said = [json.loads((await anyio.to_thread.run_sync(c.communicate))[0])[0]["action"] for c in callers]
    assert said == ["alive", "alive"]
    assert lives(where)
    found = [one for one in doctor.examine(str(root), lambda: 2e9) if one.code == "stopped"]
    assert len(found) == 1 + guard
    assert f"orchestrator cancel {where.task_id}" in found[0].hint
    assert (await Coordinator(root).cancel(where.task_id)).status == "cancelled"
    assert len(kit.entries(where, "attempt")) == 1
    assert not kit.left_behind(where)


# -- hands that hold the lock ----------------------------------------------------------------------------------------


async def keeps_the_lock(root: Path, ledger: Ledger, gate: Path) -> tuple[Paths, int]:
    """A task whose worker and guard were killed, and a process that one of its steps left with its lock."""
    where = await kit.start_and_leave(root, kit.spec("leaves_one_with_the_lock", ledger, gate=str(gate)))
    await kit.until(lambda: sleepers(ledger), "the process sleeps")
    found = kit.identities(where)
    assert found is not None
    for who in reversed(found):
        kit.kill(who)
    await kit.until(lambda: not any(map(identity.alive, found)), "both are dead")
    (left,) = sleepers(ledger)
    assert files.lock_directory(where.directory) is None
    return where, left


async def test_what_a_dead_worker_left_with_its_lock_is_ended_by_recover_and_the_task_goes_on(
    root: Path, ledger: Ledger, gate: Path
) -> None:
    _, left = await keeps_the_lock(root, ledger, gate)
    caller = kit.orchestrator(root, "recover", "--wait", "--json")
    out, err = await anyio.to_thread.run_sync(caller.communicate)
    assert caller.returncode == 0, (out, err)
    assert [(said["action"], said["step"]) for said in json.loads(out)] == [("resumed", "start")]
    assert left not in sleepers(ledger)
    assert (kit.tries(ledger, "one"), kit.tries(ledger, "start")) == ([1], [1, 2])


async def test_what_cannot_be_ended_is_named_and_no_second_worker_is_started_beside_it(
    root: Path, ledger: Ledger, gate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """fault 28"""
    where, left = await keeps_the_lock(root, ledger, gate)
    with monkeypatch.context() as patch:
        patch.setattr(containment, "send", lambda *_: None)  # as a process that no signal reaches
        patch.setattr(containment, "kill_cgroup", lambda *_: False)
        patch.setattr(recovery, "STRAY_SECONDS", 0.1)
        said, lock = recovery.claim(where)
    assert (said.action, lock) == ("damaged", None)
    assert f"process {left}" in said.reason
    assert "no other is started beside it" in said.reason
    assert left in sleepers(ledger)
    assert len(kit.entries(where, "attempt")) == 1
    assert (await kit.recover(root, where))[1].ok  # type: ignore[union-attr]
    assert left not in sleepers(ledger)


_FOREIGN = (
    "import fcntl, os, sys; fd = os.open(sys.argv[1], os.O_RDONLY); fcntl.flock(fd, 2); print(); sys.stdin.read()"
)


async def test_a_cancel_of_a_task_that_a_strange_process_holds_says_who_it_is_and_gives_up(
    root: Path, ledger: Ledger, gate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervision, "CANCEL_SECONDS", 1.0)
    where = await kit.working(root, ledger, gate)
    kit.kill_worker(where)
    await kit.let_go(where)
    with subprocess.Popen(
        [sys.executable, "-c", _FOREIGN, where.directory], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        await anyio.to_thread.run_sync(holder.stdout.readline)
        with pytest.raises(Held, match=f"process {holder.pid} holds it") as told, anyio.fail_after(30):
            await Coordinator(root).cancel(where.task_id)
        assert told.value.exit_code == 75
        said, lock = recovery.claim(where)
        assert (said.action, lock) == ("alive", None)
        assert f"process {holder.pid} holds it" in said.reason
        assert holder.poll() is None  # none of ours: it was not touched
        holder.communicate(b"")
    assert (await kit.recover(root, where))[0].action == "cancelled"  # the order stayed
    assert kit.tries(ledger, "two") == [1]


# -- one id twice ----------------------------------------------------------------------------------------------------


async def each_verb_on(copy: Paths, where: Paths) -> None:
    """Every verb that could reach a process, on a copy; the original's worker and guard live on."""
    root = Path(copy.directory).parent
    for words in (
        ("explain", copy.task_id),
        ("doctor", "--fix"),
        ("gc", "--older", "0", "--failed", "--yes"),
        ("pause", copy.task_id),
        ("continue", copy.task_id),
        ("cancel", copy.task_id),
        ("recover", copy.task_id),
    ):
        caller = kit.orchestrator(root, *words)
        out, err = await anyio.to_thread.run_sync(caller.communicate)
        assert "Traceback" not in err, (words, out, err)
        assert lives(where), words


@pytest.mark.parametrize("place", ["under the same root", "under another root, with the same id"])
async def test_no_verb_on_a_copy_of_a_workspace_reaches_the_worker_of_the_original(
    tmp_path: Path, root: Path, ledger: Ledger, gate: Path, place: str
) -> None:
    """fault 29: not a name but this very directory says whose worker it is."""
    where = await kit.working(root, ledger, gate)
    other = root if "same root" in place else tmp_path / "other root"
    other.mkdir(exist_ok=True)
    copies = [Paths(str(other / name)) for name in ("task-20200101-000000-001", "task-20200101-000000-002")]
    if other != root:
        copies[0] = Paths(str(other / where.task_id))
    for copy in copies:
        shutil.copytree(where.directory, copy.directory)
    found = doctor.examine(str(other), lambda: 2e9)
    assert {one.task for one in found if one.code == "copied"} == {copy.task_id for copy in copies}

    await each_verb_on(copies[0], where)
    assert kit.status_line(copies[0]) == "## Status: cancelled"

    caller = kit.orchestrator(other, "recover", copies[1].task_id)  # and the other goes on as a task of its own
    await anyio.to_thread.run_sync(caller.communicate)
    await kit.until(lambda: len(kit.entries(copies[1], "started")) == 2, "a worker of its own has started")
    assert lives(where)
    assert (await Coordinator(other).cancel(copies[1].task_id)).status == "cancelled"
    assert not lives(copies[1])
    assert lives(where)
    await kit.open_gate(gate)
    assert (await Coordinator(root).wait(where.task_id, 120)).ok
    assert len(kit.entries(where, "attempt")) == 1


# -- taken away under a living worker --------------------------------------------------------------------------------


async def test_a_worker_whose_journal_and_spec_are_deleted_puts_them_back_and_does_nothing_twice(
    root: Path, ledger: Ledger, gate: Path
) -> None:
    async with Coordinator(root) as coordinator:
        handle = await coordinator.spawn(kit.spec("waits_in_two", ledger, gate=str(gate)))
        await ledger.has("two began 1")
        shutil.rmtree(handle.where.inner)
        said, lock = recovery.claim(handle.where)
        assert (said.action, lock) == ("alive", None)
        await kit.open_gate(gate)
        assert (await handle.wait(120)).ok
    assert kit.done_steps(handle.where) == {"one", "two"}
    assert store.read_spec(handle.where).name == "the work"
    assert (kit.tries(ledger, "one"), kit.tries(ledger, "two")) == ([1], [1])


async def test_a_worker_whose_directory_is_replaced_by_a_link_keeps_its_journal_and_writes_nothing_behind_the_link(
    tmp_path: Path, root: Path, ledger: Ledger, gate: Path
) -> None:
    async with Coordinator(root) as coordinator:
        handle = await coordinator.spawn(kit.spec("waits_in_two", ledger, gate=str(gate)))
        await ledger.has("two began 1")
        outside = tmp_path / "outside"
        os.rename(handle.where.inner, tmp_path / "as it was")
        shutil.copytree(tmp_path / "as it was", outside)
        os.symlink(outside, handle.where.inner)
        before = kit.everything(str(outside))
        await kit.open_gate(gate)
        assert (await handle.wait(30)).ok
        await kit.let_go(handle.where)
    assert kit.everything(str(outside)) == before
    assert not os.path.islink(handle.where.inner)
    assert kit.done_steps(handle.where) == {"one", "two"}


@pytest.mark.parametrize("what", ["renamed", "removed", "replaced by a copy"])
async def test_a_worker_whose_workspace_is_taken_away_stops_and_writes_to_no_other(
    root: Path, ledger: Ledger, gate: Path, what: str
) -> None:
    """fault 16: what lies at the path by now is not what it was started in."""
    async with Coordinator(root) as coordinator:
        handle = await coordinator.spawn(kit.spec("waits_in_two", ledger, gate=str(gate)))
        await ledger.has("two began 1")
        found = kit.identities(handle.where)
        moved = Paths(str(root / "moved away"))
        os.rename(handle.where.directory, moved.directory)
        if what == "replaced by a copy":
            shutil.copytree(moved.directory, handle.where.directory)
            before = kit.everything(handle.where.directory)
        if what == "removed":
            shutil.rmtree(moved.directory)
        await kit.open_gate(gate)
        assert found is not None
        await kit.until(lambda: not any(map(identity.alive, found)), "worker and guard end by themselves")
        if what == "replaced by a copy":
            now = kit.everything(handle.where.directory)
            assert {name: now[name] for name in before if "logs" not in name and "journal" not in name} == {
                name: data for name, data in before.items() if "logs" not in name and "journal" not in name
            }
        else:
            with pytest.raises(TaskNotFound, match=handle.id):
                await handle.wait(120)
            assert not os.path.exists(handle.where.directory)
    if what == "renamed":  # put back, it goes on behind what was committed before it was moved
        os.rename(moved.directory, handle.where.directory)
        assert "two" in kit.done_steps(handle.where)


# -- links -----------------------------------------------------------------------------------------------------------


async def test_nothing_is_read_into_or_written_through_a_link_in_place_of_a_tasks_own_directory(
    tmp_path: Path, root: Path, ledger: Ledger, gate: Path
) -> None:
    where = await kit.working(root, ledger, gate)
    kit.kill_worker(where)
    await kit.let_go(where)
    outside = tmp_path / "outside"
    os.rename(where.inner, outside)
    os.symlink(outside, where.inner)
    before = kit.everything(str(outside))
    said, lock = recovery.claim(where)
    assert (said.action, lock) == ("damaged", None)
    assert "is a link" in said.reason
    with pytest.raises(Damaged, match="is a link"):
        await Coordinator(root).cancel(where.task_id)
    with pytest.raises(Damaged, match="is a link"):
        await Coordinator(root).order(where.task_id, "pause")
    (found,) = [one for one in doctor.examine(str(root), lambda: 2e9) if one.code == "damaged"]
    assert "put the directory itself in its place" in found.hint
    assert [line for line in doctor.mend(str(root), lambda: 2e9) if where.task_id in line] == []
    assert kit.everything(str(outside)) == before
    os.unlink(where.inner)
    os.rename(outside, where.inner)
    async with Coordinator(root) as coordinator:
        assert [said.action for said in await coordinator.recover()] == ["resumed"]
        await kit.open_gate(gate)
        assert (await coordinator.wait(where.task_id, 120)).ok


async def test_a_link_to_a_workspace_is_no_second_task(tmp_path: Path, root: Path, ledger: Ledger, gate: Path) -> None:
    """fault 79: no two tasks in one directory."""
    other = tmp_path / "other root"
    other.mkdir()
    where = await kit.working(root, ledger, gate)
    kit.kill_worker(where)
    await kit.let_go(where)
    os.symlink(where.directory, other / where.task_id)
    os.symlink(tmp_path / "nowhere", other / "task-20200101-000000-001")
    assert store.task_ids(str(other)) == []
    assert await Coordinator(other).recover() == []
    with pytest.raises(TaskNotFound):
        await Coordinator(other).cancel(where.task_id)
    assert [one.code for one in doctor.examine(str(other), lambda: 2e9)].count("link") == 2
    assert recovery.inspect(where).action == "resumed"


# -- two that clear up -----------------------------------------------------------------------------------------------


async def test_two_who_mend_and_clear_away_at_once_touch_neither_each_others_work_nor_a_living_worker(
    tmp_path: Path, root: Path, ledger: Ledger, gate: Path
) -> None:
    where = await kit.working(root, ledger, gate)
    ended, damaged = [], []
    async with Coordinator(root) as coordinator:
        for n in range(4):
            handle = await coordinator.spawn(TaskSpec("done", "steps", "s", steps=(StepSpec("s", run=("true",)),)))
            assert (await handle.wait(120)).ok
            (ended if n % 2 else damaged).append(handle.where)
    for one in damaged:
        await kit.let_go(one)
        Path(one.task_md).write_bytes(b"\0\0\0")
        Path(one.directory, ".orchestrator-tmp-left.md").write_bytes(b"")
    (root / ".orchestrator-new-left").mkdir()
    words = [("doctor", "--fix", "--json")] * 3 + [("gc", "--older", "0", "--yes", "--json")] * 3
    words += [("repair", where.task_md, "--yes")] * 2
    callers = [kit.orchestrator(root, *each) for each in words]
    said = [await anyio.to_thread.run_sync(caller.communicate) for caller in callers]
    assert not [err for _, err in said if "Traceback" in err]
    assert lives(where)
    assert not list(root.glob(".orchestrator-*"))
    for one in ended:
        assert not os.path.exists(one.directory)
    for one in damaged:  # mended, and then perhaps removed: whole or not at all
        assert not os.path.exists(one.directory) or kit.status_line(one) == "## Status: end"
    await kit.open_gate(gate)
    assert (await Coordinator(root).wait(where.task_id, 120)).ok
