"""Many hands on one task: whoever comes, goes, or is killed, one worker does the work, and nobody is lied to."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import anyio
import dying
import kit
import psutil
import pytest
from conftest import Ledger

from orchestrator import Coordinator, identity, recovery, store
from orchestrator.errors import NotRunning
from orchestrator.store import Paths

# -- several at once -------------------------------------------------------------------------------------------------


# fault 42
async def test_twenty_who_recover_one_task_at_once_start_one_worker(root: Path, ledger: Ledger, gate: Path) -> None:
    where = await kit.interrupted(root, ledger, gate)
    callers = [kit.orchestrator(root, "recover", "--json") for _ in range(20)]
    said = [await anyio.to_thread.run_sync(caller.communicate) for caller in callers]
    assert [caller.returncode for caller in callers] == [0] * 20, said
    actions = Counter(json.loads(out)[0]["action"] for out, _ in said)
    assert actions == {"resumed": 1, "alive": 19}
    await kit.open_gate(gate)
    announced = await Coordinator(root).wait(where.task_id, 120)
    assert announced.ok, announced
    assert len(kit.entries(where, "attempt")) == 2
    assert (kit.tries(ledger, "one"), kit.tries(ledger, "two")) == ([1], [1, 2])


async def test_two_coordinators_of_one_root_share_a_task_and_are_told_the_same(
    root: Path, ledger: Ledger, gate: Path
) -> None:
    where = await kit.interrupted(root, ledger, gate)
    async with Coordinator(root) as one, Coordinator(root) as other:
        said = [(await one.recover())[0].action, (await other.recover())[0].action]
        assert sorted(said) == ["alive", "resumed"]
        await kit.open_gate(gate)
        heard = [await one.attach(where.task_id).wait(120), await other.attach(where.task_id).wait(120)]
    assert heard[0] == heard[1]
    assert heard[0].ok
    assert kit.tries(ledger, "two") == [1, 2]


async def test_a_coordinator_that_watches_takes_over_when_the_one_that_started_the_worker_is_gone(
    root: Path, ledger: Ledger, gate: Path
) -> None:
    """It adopts the living worker; when that one is killed, it starts the next."""
    where = await kit.start_and_leave(root, kit.spec("waits_in_two", ledger, gate=str(gate)))
    coordinator = Coordinator(root)
    async with anyio.create_task_group() as group:
        group.start_soon(coordinator.supervise, where)
        await ledger.has("two began 1")
        kit.kill_worker(where)
        await ledger.has("two began 2")
        await kit.open_gate(gate)
    assert (await coordinator.wait(where.task_id, 120)).ok
    assert kit.tries(ledger, "one") == [1]


_SPAWNER = """
import sys, anyio
sys.path.insert(0, sys.argv[1])
import kit
from conftest import Ledger
from pathlib import Path
from orchestrator import Coordinator

async def main():
    async with Coordinator(sys.argv[2]) as coordinator:
        handle = await coordinator.spawn(kit.spec("waits_in_two", Ledger(Path(sys.argv[3])), gate=sys.argv[4]))
        print(handle.id, flush=True)
        await handle.wait()

anyio.run(main)
"""


async def test_a_program_killed_with_its_coordinator_leaves_its_worker_alive_and_the_next_one_hears_the_end(
    root: Path, ledger: Ledger, gate: Path
) -> None:
    words = [str(Path(__file__).parent), str(root), str(ledger.path), str(gate)]
    with subprocess.Popen([sys.executable, "-c", _SPAWNER, *words], stdout=subprocess.PIPE, text=True) as program:
        await ledger.has("two began 1")
        program.kill()
    where = store.Paths(str(root / store.task_ids(str(root))[0]))
    assert recovery.inspect(where).action == "alive"
    async with Coordinator(root) as coordinator:
        assert [(r.action, r.step) for r in await coordinator.recover()] == [("alive", "two")]
        await kit.open_gate(gate)
        assert (await coordinator.attach(where.task_id).wait(120)).ok
    assert (kit.tries(ledger, "one"), kit.tries(ledger, "two")) == ([1], [1])
    assert len(kit.entries(where, "attempt")) == 1


async def test_who_waits_for_a_task_that_nobody_works_on_is_told_so(root: Path, ledger: Ledger, gate: Path) -> None:
    where = await kit.interrupted(root, ledger, gate)
    with pytest.raises(NotRunning, match=where.task_id):
        await Coordinator(root).attach(where.task_id).wait(120)


_CLAIMER = """
import os, sys, time
sys.path.insert(0, sys.argv[1])
from orchestrator import workspace
from orchestrator.core.model import TaskSpec

sys.stdin.readline()
for number in range(20):
    where, lock = workspace.create(sys.argv[2], TaskSpec(sys.argv[3], "python", "m:f"), lambda: 1.8e9)
    print(where.task_id, flush=True)
    os.close(lock)
"""


# fault 44
async def test_eight_processes_that_make_tasks_in_the_same_second_never_share_one(root: Path) -> None:
    """While somebody sweeps away what killed makers left: none of the living loses its own."""
    from orchestrator import workspace

    words = [sys.executable, "-c", _CLAIMER, str(Path(__file__).parent), str(root)]
    makers = [
        subprocess.Popen([*words, f"maker {n}"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for n in range(8)
    ]
    for maker in makers:
        assert maker.stdin is not None
        maker.stdin.write("go\n")
        maker.stdin.flush()
    while any(maker.poll() is None for maker in makers):
        workspace.sweep_staging(str(root))
    made = {f"maker {n}": maker.communicate()[0].split() for n, maker in enumerate(makers)}
    assert [maker.returncode for maker in makers] == [0] * 8
    ids = [task_id for found in made.values() for task_id in found]
    assert len(set(ids)) == len(ids) == 160
    assert sorted(ids) == sorted(store.task_ids(str(root)))
    for maker, found in made.items():
        assert {store.look(Paths(str(root / task_id))).title for task_id in found} == {maker}
    assert not list(root.glob(".orchestrator-*"))


# -- stopped, and cancelled ------------------------------------------------------------------------------------------


async def test_a_worker_that_is_stopped_is_left_alone_by_recover_and_ended_by_cancel(
    root: Path, ledger: Ledger, gate: Path
) -> None:
    where = await kit.start_and_leave(root, kit.spec("waits_in_two", ledger, gate=str(gate)))
    await ledger.has("two began 1")
    found = kit.identities(where)
    assert found is not None
    os.kill(found[0].pid, signal.SIGSTOP)
    await kit.until(lambda: psutil.Process(found[0].pid).status() == psutil.STATUS_STOPPED, "the worker is stopped")
    async with Coordinator(root) as coordinator:
        assert [r.action for r in await coordinator.recover()] == ["alive"]
        assert identity.alive(found[0])
        said = await coordinator.cancel(where.task_id)
    assert said.status == "cancelled"
    assert kit.tries(ledger, "two") == [1]
    cancelled_whole(where)


def cancelled_whole(where: Paths) -> None:
    assert kit.status_line(where) == "## Status: cancelled"
    assert [e["outcome"] for e in kit.entries(where, "end")] == ["cancelled"]
    assert not kit.left_behind(where)


def sleepers(ledger: Ledger) -> list[int]:
    """The processes that the ledger names and that live."""
    named = [int(line.split()[1]) for line in ledger.lines() if line.startswith("sleeps ")]
    return [pid for pid in named if psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE]


@pytest.mark.parametrize("without", ["", "cgroup", "cgroup,subreaper"])
# fault 54
async def test_cancelling_a_task_ends_what_its_step_left_in_a_session_of_its_own(
    root: Path, ledger: Ledger, gate: Path, without: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORCHESTRATOR_WITHOUT", without)
    async with Coordinator(root) as coordinator:
        handle = await coordinator.spawn(kit.spec("leaves_a_grandchild", ledger, gate=str(gate)))
        await ledger.has("start began 1")
        await kit.until(lambda: sleepers(ledger), "the grandchild sleeps")
        said = await coordinator.cancel(handle.id)
        assert said == await handle.wait(120)
    assert said.status == "cancelled"
    assert not sleepers(ledger)
    cancelled_whole(handle.where)


@pytest.mark.parametrize("without", ["", "cgroup"])
async def test_what_a_stopped_worker_left_is_ended_before_the_next_one_begins(
    tmp_path: Path, root: Path, ledger: Ledger, gate: Path, without: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its guard, which would have seen to it, was killed when the attempt had just closed."""
    monkeypatch.setenv("ORCHESTRATOR_WITHOUT", without)
    (tmp_path / "death").mkdir()
    (tmp_path / "death" / "order").write_text('["closed: sync journal.jsonl", 1, "after", "guard"]')
    env = {dying.VARIABLE: str(tmp_path / "death")}
    where = await kit.start_and_leave(root, kit.spec("leaves_a_grandchild", ledger, env=env, gate=str(gate)))
    await ledger.has("start began 1")
    found = kit.identities(where)
    assert found is not None
    os.kill(found[1].pid, signal.SIGTERM)
    await kit.let_go(where)
    assert [e["outcome"] for e in kit.entries(where, "closed")] == ["stopped"]
    left = sleepers(ledger)
    assert left, "nobody has ended the grandchild yet"
    async with Coordinator(root) as coordinator:
        assert [r.action for r in await coordinator.recover()] == ["resumed"]
        await ledger.has("start began 2")
        assert left[0] not in sleepers(ledger)
        await coordinator.cancel(where.task_id)
    cancelled_whole(where)


STEPS_FILE = """
steps:
  - name: fetch
    shell: echo fetched >> "$LEDGER"
  - name: crunch
    shell: setsid sleep 300 & echo "sleeps $!" >> "$LEDGER"; echo crunching >> "$LEDGER"; exec sleep 300
  - name: tell
    shell: echo told >> "$LEDGER"
"""


async def test_cancelling_a_checklist_ends_its_command_with_all_it_started(
    tmp_path: Path, root: Path, ledger: Ledger
) -> None:
    steps = tmp_path / "work.yaml"
    steps.write_text(STEPS_FILE)
    async with Coordinator(root) as coordinator:
        handle = await coordinator.spawn(steps, env={"LEDGER": str(ledger.path)})
        await ledger.has("crunching")
        said = await coordinator.cancel(handle.id)
    assert said.status == "cancelled"
    assert not sleepers(ledger)
    assert ledger.count("told") == 0
    assert kit.step_lines(handle.where)[:2] == ["[start done]", "[working done] fetch"]
    cancelled_whole(handle.where)


async def test_cancelling_a_task_that_nobody_works_on_ends_it(root: Path, ledger: Ledger, gate: Path) -> None:
    where = await kit.interrupted(root, ledger, gate)
    said = await Coordinator(root).cancel(where.task_id)
    assert said.status == "cancelled"
    assert kit.tries(ledger, "two") == [1]
    cancelled_whole(where)
    assert (await kit.recover(root, where))[0].action == "ended"
    assert store.ended_by_tail(where), "whoever lists it need not read all of its journal"


async def test_cancelling_a_task_that_has_ended_changes_nothing(root: Path, ledger: Ledger) -> None:
    async with Coordinator(root) as coordinator:
        handle = await coordinator.spawn(kit.spec("six_steps", ledger))
        said = await handle.wait(120)
        await kit.let_go(handle.where)
        before = contents(handle.where)
        assert await coordinator.cancel(handle.id) == said
    assert contents(handle.where) == before


def contents(where: Paths) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in Path(where.directory).rglob("*") if path.is_file()}


# -- once ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("check", ["", "unknown", "broken"])
# fault 43
async def test_a_thing_to_be_done_once_that_was_cut_off_waits_for_a_person(
    root: Path, ledger: Ledger, check: str
) -> None:
    async with Coordinator(root) as coordinator:
        handle = await coordinator.spawn(kit.spec("sends_once", ledger, check=check))
        said = await handle.wait(120)
        await kit.let_go(handle.where)
        assert said.status == "uncertain"
        assert f"orchestrator resolve {handle.id}" in said.hint
        again = [(await coordinator.recover())[0] for _ in range(2)]
    assert {(r.action, r.step) for r in again} == {("waits", "send")}
    assert "--done|--redo" in again[0].reason
    assert kit.tries(ledger, "send") == [1]
    assert kit.step_lines(handle.where) == ["[start done]", "[working] send"]


async def test_a_thing_to_be_done_once_waits_for_a_person_behind_a_step_that_failed_as_well(
    root: Path, ledger: Ledger
) -> None:
    async with Coordinator(root) as coordinator:
        handle = await coordinator.spawn(kit.spec("sends_once", ledger, after_a_failure=True))
        assert (await handle.wait(120)).status == "uncertain"
        await kit.let_go(handle.where)
        again = (await coordinator.recover())[0]
    assert (again.action, again.step) == ("waits", "send")
    assert kit.step_lines(handle.where) == ["[start done]", "[failed] extra", "[working] send"]


@pytest.mark.parametrize(
    "check, tries, result",
    [
        ("done", [1], "sent by the first try"),
        ("true", [1], None),
        ("not done", [1, 2], "sent by a later try"),
    ],
)
async def test_a_thing_to_be_done_once_is_done_once_when_its_check_knows(
    root: Path, ledger: Ledger, check: str, tries: list[int], result: str | None
) -> None:
    async with Coordinator(root) as coordinator:
        handle = await coordinator.spawn(kit.spec("sends_once", ledger, check=check))
        said = await handle.wait(120)
        await kit.let_go(handle.where)
    assert said.ok, said
    assert kit.tries(ledger, "send") == tries
    assert store.look(handle.where).snapshot.steps["send"].result == result
    assert kit.step_lines(handle.where) == ["[start done]", "[working done] send", "[end]"]
