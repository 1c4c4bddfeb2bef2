"""The whole life of a task with each means of the operating system off, and with none; and who is taken for whom.

Where a means is missing (macOS has none of them, a container not all) something plainer takes its place: slower,
perhaps reaching less far (tests/test_engine.py), but no task is lost and nothing runs twice.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import anyio.to_thread
import pytest
from conftest import Ledger
from kit import (
    entries,
    identities,
    kill,
    left_behind,
    let_go,
    orchestrator,
    recover,
    start_and_leave,
    status_line,
    until,
)

from orchestrator import Coordinator, doctor, identity, inspection, means, recovery, store
from orchestrator.core import journal
from orchestrator.core.explain import explain
from orchestrator.core.model import Identity, Limits, StepSpec, TaskSpec
from orchestrator.errors import Held
from orchestrator.store import Paths

WITHOUT = ["", *means.NAMES, ",".join(means.NAMES)]


@pytest.fixture(params=WITHOUT, ids=lambda without: f"without-{without.replace(',', '-') or 'nothing'}")
def without(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv(means.VARIABLE, request.param)
    return request.param


def errands(ledger: Ledger) -> TaskSpec:
    """Five commands; the second waits for a file `go` in the workspace."""
    names = ("fetch", "weigh", "sort", "wrap", "send")
    wait = "; while [ ! -e go ]; do sleep 0.01; done"
    return TaskSpec(
        "errands",
        "steps",
        "errands.yaml",
        steps=tuple(
            StepSpec(name, shell=f"echo {name} ran >> '{ledger.path}'" + (wait if name == "weigh" else ""))
            for name in names
        ),
        limits=Limits(grace_seconds=1.0),
    )


# -- the whole life of a task --------------------------------------------------------------------------------------


async def test_a_task_killed_and_finished_by_hand_goes_on_at_the_step_after(root, ledger, without):
    where = await start_and_leave(root, errands(ledger))
    await ledger.has("weigh ran")
    who = identities(where)
    assert who is not None
    kill(who[0])
    await let_go(where)
    face = Path(where.task_md)
    assert "[working] weigh" in face.read_text()
    face.write_text(face.read_text().replace("[working] weigh", "[working done] weigh"))

    said, ended = await recover(root, where)
    assert (said.action, ended and ended.status) == ("resumed", "completed")
    assert [ledger.count(f"{name} ran") for name in ("fetch", "weigh", "sort", "wrap", "send")] == [1] * 5
    assert face.read_text().rstrip().endswith("[end]")
    assert status_line(where) == "## Status: end"
    await until(lambda: not left_behind(where), "nothing is left of either worker")


# fault 12
async def test_a_worker_outlives_its_coordinator_and_the_next_one_hears_of_its_end(root, ledger, without):
    where = await start_and_leave(root, errands(ledger))
    await ledger.has("weigh ran")
    said, lock = recovery.claim(where)
    assert (said.action, lock) == ("alive", None)
    Path(where.directory, "go").touch()
    ended = await Coordinator(root).wait(where.task_id, timeout=30)
    assert ended.ok
    assert ledger.count("fetch ran") == 1
    await let_go(where)
    await until(lambda: not left_behind(where), "nothing is left of it")


async def test_a_cancelled_task_ends_at_once_and_leaves_no_process(root, ledger, without):
    async with Coordinator(root) as coordinator:
        handle = await coordinator.spawn(errands(ledger))
        await ledger.has("weigh ran")
        said = await handle.cancel()
    assert said.status == "cancelled"
    assert ledger.count("sort ran") == 0
    await until(lambda: not left_behind(handle.where), "nothing is left of it")


# -- who is taken for whom -----------------------------------------------------------------------------------------


def other(who: Identity, what: str) -> Identity:
    """The same process as another machine, another boot or another user of the same pid would have written it."""
    changes = {
        "the pid of a later process": {"ticks": who.ticks - 1},
        "an earlier boot": {"boot": "11111111-2222-3333-4444-555555555555"},
        "another container": {"namespace": "pid:[1]"},
        "a container of another name": {"namespace": "pid:[1]", "host": "c0ffee"},
        "another machine": {"boot": "11111111-2222-3333-4444-555555555555", "host": "elsewhere"},
        "a machine renamed since": {"host": "elsewhere"},
    }
    return who._replace(**changes[what])  # type: ignore[arg-type]


#: What is known of a process whose identity was written so, and what `recover` does with its task if its lock is free.
KNOWN: dict[str, tuple[bool | None, str]] = {
    "the pid of a later process": (False, "resumed"),
    "an earlier boot": (False, "resumed"),
    "another container": (None, "resumed"),  # its pids say nothing here, but its lock would be seen
    "a container of another name": (None, "resumed"),
    "another machine": (None, "alive"),  # left alone: neither its pids nor its locks are seen from here
}


@pytest.fixture(params=["", "proc"], ids=["proc", "psutil"])
def looks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(means.VARIABLE, request.param)


@pytest.mark.parametrize("what", KNOWN)
def test_a_living_process_is_not_mistaken_for_one_of_another_time_or_place(looks, what):
    assert identity.alive(identity.mine()) is True
    assert identity.alive(other(identity.mine(), what)) is KNOWN[what][0]


def test_a_machine_renamed_since_still_knows_its_processes(looks):
    assert identity.alive(other(identity.mine(), "a machine renamed since")) is True


def test_a_dead_child_that_nobody_collected_is_dead(looks):
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    try:
        assert identity.of(pid) is None
    finally:
        os.waitpid(pid, 0)


def test_a_process_whose_name_has_brackets_and_blanks_is_known_all_the_same(looks):
    before = Path("/proc/self/comm").read_text()
    try:
        Path("/proc/self/comm").write_text("a) Z 0 (b")
        assert identity.alive(identity.mine()) is True
    finally:
        Path("/proc/self/comm").write_text(before)


def written_as(where: Paths, change: Callable[[Identity], Identity]) -> None:
    """Rewrite who the worker said it was."""
    lines = []
    for line in Path(where.journal).read_bytes().splitlines():
        entry = journal.decode(line)
        assert entry is not None
        said = {key: value for key, value in json.loads(line).items() if key != "crc"}
        if entry["kind"] == "started":
            for which in ("worker", "guard"):
                said[which] = list(change(Identity(*said[which])))
        lines.append(journal.encode(said))
    Path(where.journal).write_bytes(b"".join(lines))


async def killed_task(root: Path, ledger: Ledger) -> Paths:
    where = await start_and_leave(root, errands(ledger))
    await ledger.has("weigh ran")
    who = identities(where)
    assert who is not None
    kill(who[0])
    await let_go(where)
    Path(where.directory, "go").touch()
    return where


@pytest.mark.parametrize("what", KNOWN)
async def test_a_task_whose_worker_is_gone_goes_on_wherever_it_ran_unless_it_may_still_run_elsewhere(
    root, ledger, what
):
    """A container that is started again has another pid namespace, often another name: its tasks must go on."""
    where = await killed_task(root, ledger)
    written_as(where, lambda who: other(identity.mine(), what))  # we are alive, and must be so afterwards
    said, lock = recovery.claim(where)
    assert said.action == KNOWN[what][1]
    assert (lock is None) is (said.action == "alive")
    if lock is None:
        assert "elsewhere, which cannot be asked from here" in said.reason
        return
    ended = await Coordinator(root).supervise(where, lock)
    assert ended is not None
    assert ended.ok
    assert ledger.count("fetch ran") == 1


@pytest.mark.parametrize("what", ["another container", "another machine"])
async def test_a_task_held_in_another_container_is_left_alone(root, ledger, what):
    where = await start_and_leave(root, errands(ledger))
    await ledger.has("weigh ran")
    who = identities(where)
    assert who is not None
    written_as(where, lambda real: other(real, what))
    said, lock = recovery.claim(where)
    assert (said.action, lock) == ("alive", None)
    assert all(identity.alive(each) for each in who)
    kill(who[0])
    await let_go(where)


def test_each_means_can_be_switched_off_by_name_and_several_at_once(monkeypatch):
    for name in means.NAMES:
        monkeypatch.setenv(means.VARIABLE, f" {name} ,nonsense")
        assert not means.has(name)
        assert all(means.has(rest) for rest in means.NAMES if rest != name)
    monkeypatch.setenv(means.VARIABLE, ",".join(means.NAMES))
    assert not any(map(means.has, means.NAMES))


async def test_what_was_written_with_all_means_is_read_with_none(root, ledger, monkeypatch):
    where = await killed_task(root, ledger)
    begun = time.monotonic()
    monkeypatch.setenv(means.VARIABLE, ",".join(means.NAMES))
    said, ended = await recover(root, where)
    assert (said.action, ended and ended.status) == ("resumed", "completed")
    assert [e["run"] for e in entries(where, "attempt")] == [f"{where.task_id}.1", f"{where.task_id}.2"]
    assert store.look(where).state == "completed"
    assert time.monotonic() - begun < 30


# -- machines that cannot be asked -----------------------------------------------------------------------------------


async def on_another_machine(root: Path, ledger: Ledger) -> Paths:
    """A killed task whose worker was, as its journal has it, on another machine since another boot."""
    where = await killed_task(root, ledger)
    written_as(where, lambda who: other(who, "another machine"))
    return where


async def test_a_worker_on_a_machine_that_cannot_be_asked_is_neither_ended_nor_doubled_by_any_verb(root, ledger):
    """It may be at work this very moment: an order stays given, and who gives it is told what decides."""
    where = await on_another_machine(root, ledger)
    at_work = Coordinator(root)
    for act in (
        lambda: at_work.cancel(where.task_id),
        lambda: at_work.order(where.task_id, "pause"),
        lambda: at_work.supervise(where),
    ):
        with pytest.raises(Held, match="elsewhere, which cannot be asked from here") as told:
            await act()
        assert f"orchestrator recover {where.task_id} --presume-dead" in told.value.hint
    assert len(entries(where, "attempt")) == 1
    assert not entries(where, "closed")
    for said in (*await at_work.recover(), recovery.inspect(where)):
        assert said.action == "alive"
        assert f"orchestrator recover {where.task_id} --presume-dead" in said.reason
    (found,) = [one for one in doctor.examine(str(root), time.time) if one.code == "elsewhere"]
    assert "--presume-dead" in found.hint
    assert not [line for line in doctor.mend(str(root), time.time) if "empty cgroup" not in line]  # of other roots
    assert explain(inspection.facts_of(where, time.time)).next.command.endswith("--presume-dead")


async def test_a_task_of_a_machine_that_a_person_says_is_gone_goes_on_and_does_nothing_twice(root, ledger):
    where = await on_another_machine(root, ledger)
    caller = orchestrator(root, "recover", where.task_id, "--presume-dead", "--wait", "--json")
    out, err = await anyio.to_thread.run_sync(caller.communicate)
    assert caller.returncode == 0, (out, err)
    assert [said["action"] for said in json.loads(out)] == ["resumed"]
    assert next(e.get("reason") for e in entries(where, "closed")) == "its machine is gone: a person said so"
    assert [ledger.count(f"{name} ran") for name in ("fetch", "weigh", "sort", "wrap", "send")] == [1, 2, 1, 1, 1]


async def test_nobody_can_say_that_a_machine_is_gone_whose_worker_holds_the_lock(root, ledger):
    """The lock is the evidence: held, the worker is not gone, whatever a person thinks."""
    where = await start_and_leave(root, errands(ledger))
    await ledger.has("weigh ran")
    who = identities(where)
    assert who is not None
    written_as(where, lambda real: other(real, "another machine"))
    said, lock = recovery.claim(where, presume_dead=True)
    assert (said.action, lock) == ("alive", None)
    assert all(identity.alive(each) for each in who)
    kill(who[0])
    await let_go(where)


def test_which_machine_is_gone_has_to_be_said(root):
    caller = orchestrator(root, "recover", "--presume-dead")
    _, err = caller.communicate()
    assert (caller.returncode, "name it" in err) == (64, True)
