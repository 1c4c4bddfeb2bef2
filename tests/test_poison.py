"""Work that does harm as often as it is started: given up within its budget, slowly, and a person is told what to do.

The rate of restarts is read in the journal: each pause is at least half of a full one, and that doubles.
"""

from __future__ import annotations

import dataclasses
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import kit
import poisoned_skills
import pytest
from cli_door import IO, Cli
from conftest import POLL_SECONDS, Ledger
from small_disk import Disk

from orchestrator import Announcement, Coordinator, Limits, holders, inspection, recovery, store, supervision, workspace
from orchestrator.cli import detach
from orchestrator.compose import resolve
from orchestrator.core import explain, lifecycle
from orchestrator.core.model import StepSpec, TaskSpec
from orchestrator.store import Paths

SKILLS = Path(poisoned_skills.__file__)
DEATHS = 3


def spec(skill: str, ledger: Ledger, *, deaths: int = DEATHS, **env: str) -> TaskSpec:
    what = resolve(f"{SKILLS}:{skill}", name=skill, args={"ledger": str(ledger.path)}, env=env)
    return dataclasses.replace(what, limits=Limits(deaths=deaths))


# -- the rate --------------------------------------------------------------------------------------------------------


def least(failures: int) -> float:
    """The shortest pause after so many deaths in a row."""
    return lifecycle.backoff_seconds(failures, 0.0)


def pauses(where: Paths) -> list[float]:
    """The seconds between the end of each attempt and the beginning of the next."""
    entries = store.read_journal(where).entries
    begun = [store.seconds_of(e["at"]) for e in entries if e["kind"] == "attempt"]
    closed = [store.seconds_of(e["at"]) for e in entries if e["kind"] == "closed"]
    return [after - before for before, after in zip(closed, begun[1:], strict=False)]


def see_that_it_was_no_hot_loop(where: Paths, failures: Callable[[int], int] = lambda n: n) -> None:
    found = pauses(where)
    for number, pause in enumerate(found, 1):
        assert pause >= least(failures(number)) - 0.01, f"pause {number} of {found}"


def test_the_pause_doubles_to_half_a_minute_and_a_random_half_of_it_is_left_out() -> None:
    full = [lifecycle.backoff_seconds(n, 1.0) for n in range(1, 30)]
    assert full[:4] == pytest.approx([0.1, 0.2, 0.4, 0.8])
    assert full == sorted(full)
    assert full[-1] == max(full) == 30.0
    assert [least(n) for n in range(1, 30)] == pytest.approx([pause / 2 for pause in full])
    assert least(1) < lifecycle.backoff_seconds(1, 0.3) < lifecycle.backoff_seconds(1, 0.7) < full[0]


# -- every kind of it ------------------------------------------------------------------------------------------------


def startup(tmp_path: Path, text: str) -> dict[str, str]:
    """An environment in which the interpreter runs this before anything of ours."""
    place = tmp_path / "start"
    place.mkdir()
    (place / "sitecustomize.py").write_text(text)
    return {"PYTHONPATH": str(place)}


ONLY_WORKERS = "import os, sys\nif '-m' in sys.orig_argv and 'orchestrator.worker' in sys.orig_argv:\n    "
CANNOT_FORK = """
    import errno

    def fork():
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    os.fork = fork
"""

Poison = Callable[[Path, Ledger], TaskSpec]
STEPS: dict[str, Poison] = {
    "a step that kills its worker": lambda _, ledger: spec("kills_its_worker", ledger),
    "a step that kills its guard": lambda _, ledger: spec("kills_its_guard", ledger),
    "a step that leaves what cannot be stopped": lambda _, ledger: spec("leaves_what_cannot_be_stopped", ledger),
    "a command that kills its worker": lambda _, ledger: TaskSpec(
        "kills",
        "steps",
        "x.yaml",
        steps=(
            StepSpec("one", shell=f"echo one began 1 >> '{ledger.path}'"),
            StepSpec("two", shell=f"echo two began $ORCHESTRATOR_TRY >> '{ledger.path}'; kill -9 $PPID; sleep 60"),
        ),
    ),
}
STARTS: dict[str, Poison] = {
    "a skill whose import leaves": lambda _, ledger: spec("is_well", ledger, **{poisoned_skills.VARIABLE: "leave"}),
    "a skill whose import kills": lambda _, ledger: spec("is_well", ledger, **{poisoned_skills.VARIABLE: "kill"}),
    "an interpreter that leaves at its start": lambda tmp, ledger: spec(
        "is_well", ledger, **startup(tmp, f"{ONLY_WORKERS}os._exit(3)")
    ),
    "an interpreter that finds no library": lambda tmp, ledger: spec("is_well", ledger, PYTHONHOME=str(tmp)),
    "a module of ours that cannot be imported": lambda tmp, ledger: spec(
        "is_well", ledger, **startup(tmp, f"{ONLY_WORKERS}sys.modules['orchestrator.worker.guard'] = None")
    ),
    "a guard that cannot fork": lambda tmp, ledger: spec("is_well", ledger, **startup(tmp, ONLY_WORKERS + CANNOT_FORK)),
}


async def see_that_it_is_given_up(root: Path, where: Paths, said: Announcement, deaths: int = DEATHS) -> None:
    """Failed, with a reason and a verb; as many attempts as the budget has, with their pauses; never begun again."""
    assert said.status == "failed"
    assert f"{deaths} attempts died in a row" in said.summary
    assert f"orchestrator retry {where.task_id}" in said.hint, "the announcement says what a person can do"
    assert len(kit.entries(where, "attempt")) == deaths
    assert len(pauses(where)) == deaths - 1
    see_that_it_was_no_hot_loop(where)
    assert store.row(where).state == "failed"
    assert store.ended_by_tail(where), "whoever lists it need not read all of its journal"
    follows = explain.explain(inspection.facts_of(where, lambda: 0.0)).next
    assert (follows.by, follows.command) == ("person", f"orchestrator retry {where.task_id}")
    before = Path(where.journal).read_bytes()
    recovered, _ = await kit.recover(root, where)
    assert recovered.action == "ended"
    assert Path(where.journal).read_bytes() == before
    await kit.until(lambda: not kit.left_behind(where), f"nothing is left: {kit.left_behind(where)}")


@pytest.mark.parametrize("how", STEPS)
async def test_a_step_that_does_harm_each_time_is_tried_as_often_as_the_budget_says(
    tmp_path: Path, root: Path, ledger: Ledger, how: str
) -> None:
    where, said = await kit.to_its_end(root, STEPS[how](tmp_path, ledger))
    await see_that_it_is_given_up(root, where, said)
    assert kit.tries(ledger, "one") == [1]
    assert kit.tries(ledger, "two") == [1, 2, 3]
    assert kit.step_lines(where) == ["[start done]", "[working done] one", "[failed] two"]
    assert not [line for line in ledger.lines() if line.startswith("alive ") and line != "alive 0"], "two at once"


@pytest.mark.parametrize("how", STARTS)
async def test_a_worker_that_dies_before_its_first_step_each_time_is_started_as_often_as_the_budget_says(
    tmp_path: Path, root: Path, ledger: Ledger, how: str
) -> None:
    where, said = await kit.to_its_end(root, STARTS[how](tmp_path, ledger))
    await see_that_it_is_given_up(root, where, said)
    assert ledger.lines() == []
    assert said.steps == {}


async def test_a_worker_that_never_says_who_it_is_is_ended_and_counts(
    tmp_path: Path, root: Path, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervision, "STARTUP_SECONDS", 0.7)
    hangs = startup(tmp_path, f"{ONLY_WORKERS}import signal; signal.pause()")
    where, said = await kit.to_its_end(root, spec("is_well", ledger, deaths=2, **hangs))
    await see_that_it_is_given_up(root, where, said, deaths=2)


async def test_logs_that_cannot_be_opened_cost_the_output_and_nothing_else(root: Path, ledger: Ledger) -> None:
    where, lock = workspace.create(str(root), spec("is_well", ledger), time.time)
    os.close(lock)
    os.rmdir(where.logs)
    Path(where.logs).write_text("no directory")
    _, said = await kit.recover(root, where)
    assert said is not None
    assert said.ok, said
    assert ledger.count("one began") == 1


async def test_a_step_that_closes_what_its_worker_lives_by_ends_the_worker_at_once_and_it_is_said(
    root: Path, ledger: Ledger
) -> None:
    """Its loop would sleep until the limit of the attempt, a day."""
    where, said = await kit.to_its_end(root, spec("closes_all_that_is_open", ledger, deaths=2))
    await see_that_it_is_given_up(root, where, said, deaths=2)
    assert "a step closed descriptors that its worker lives by" in said.summary
    assert kit.tries(ledger, "two") == [1, 2]


async def test_a_child_that_a_step_forks_never_puts_its_parent_to_sleep(root: Path, ledger: Ledger) -> None:
    """It shares the epoll of the loop: what it takes out of it, nobody hears any more."""
    where, said = await kit.to_its_end(root, spec("forks", ledger))
    assert said.ok, said
    assert store.read_result(where) == "the parent"
    assert kit.tries(ledger, "two") == [1]


# -- it is kept on disk, whoever comes and goes ----------------------------------------------------------------------


async def test_the_budget_is_not_reset_by_a_coordinator_that_dies_with_each_worker(root: Path, ledger: Ledger) -> None:
    where, supervisor = kit.start_supervised(root, spec("kills_its_worker", ledger, deaths=4))
    for number in range(1, 5):
        await ledger.has(f"two began {number}")
        supervisor.kill()
        supervisor.wait()
        await kit.let_go(where)
        said, lock = await anyio.to_thread.run_sync(recovery.claim, where)
        if lock is not None and said.action == "resumed":
            supervisor = detach.supervisor(where, lock)
        elif lock is not None:
            os.close(lock)
    _, announced = await kit.recover(root, where)
    assert announced is not None
    await see_that_it_is_given_up(root, where, announced, deaths=4)
    assert kit.tries(ledger, "two") == [1, 2, 3, 4]


async def test_twenty_who_recover_it_at_once_again_and_again_make_no_hot_loop_of_it(root: Path, ledger: Ledger) -> None:
    where = await begun_and_dead(root, spec("kills_its_worker", ledger, deaths=4), ledger)
    callers: list[subprocess.Popen[str]] = []
    async with anyio.create_task_group() as group:
        for _ in range(20 - COMMANDS):
            group.start_soon(again_and_again, root, where)
        for _ in range(COMMANDS):
            callers.append(kit.orchestrator(root, "recover"))
    for caller in callers:
        caller.communicate(timeout=300)
    announced = await Coordinator(root).wait(where.task_id, 120)
    await kit.let_go(where)
    await see_that_it_is_given_up(root, where, announced, deaths=4)
    assert kit.tries(ledger, "two") == [1, 2, 3, 4]


#: Of the twenty, so many are commands, the others coordinators in a program.
COMMANDS = 5


async def begun_and_dead(root: Path, what: TaskSpec, ledger: Ledger) -> Paths:
    """Its first worker has died in step two, and nobody looks after it."""
    where, supervisor = kit.start_supervised(root, what)
    await ledger.has("two began 1")
    supervisor.kill()
    supervisor.wait()
    await kit.let_go(where)
    return where


async def again_and_again(root: Path, where: Paths) -> None:
    """As by a clock that has run wild: go on with it, let go of it, and so on, until it has ended."""
    while store.ended_by_tail(where) is None:
        async with Coordinator(root) as coordinator:
            await coordinator.recover([where.task_id])
        await anyio.sleep(POLL_SECONDS)


# -- what is not its fault -------------------------------------------------------------------------------------------


def supervised(where: Paths) -> bool:
    return any(holders.supervises(seen, where.directory) for seen in holders.processes())


def setbacks(where: Paths) -> list[Any]:
    return [e.get("death") for e in kit.entries(where, "closed")]


async def test_a_disk_that_stays_full_is_tried_slower_and_slower_and_spends_nothing(
    tmp_path: Path, disk: Disk, ledger: Ledger
) -> None:
    """A result that the disk does not take, and lines of the journal that it does: each attempt is made, in vain."""
    root = disk.path / "root"
    cli = Cli(tmp_path, root)
    cli.limits = disk.limits
    skill = f"{SKILLS}:gives_much"
    cli("run", skill, "--arg", f"ledger={ledger.path}").ends_refusing(IO, "free some space", "orchestrator recover")
    where = Paths(str(cli.task()))
    for _ in range(4):
        cli("recover")
        await kit.until(lambda: not supervised(where), "it was tried and given up")
    begun = len(kit.entries(where, "attempt"))
    assert begun == 5
    assert setbacks(where) == [False] * begun
    see_that_it_was_no_hot_loop(where)
    assert store.look(where).snapshot.deaths == 0
    assert store.row(where).state == "interrupted"
    follows = explain.explain(inspection.facts_of(where, lambda: 0.0)).next
    assert (follows.by, follows.command) == ("person", f"orchestrator recover {where.task_id}")
    assert re.search("No space left|File too large", cli("logs", where.task_id).out)
    disk.free()
    assert cli("recover", "--wait").code == 0
    assert ledger.count("one began") == 1


async def test_where_no_process_can_be_made_it_is_tried_slower_and_slower_and_spends_nothing(
    root: Path, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = kit.queue(root, Path(f"{SKILLS}:is_well"))
    with monkeypatch.context() as patched:
        patched.setattr(sys, "executable", "/nowhere/python")
        for _ in range(4):
            with pytest.raises(FileNotFoundError):
                await kit.recover(root, where)
    assert setbacks(where) == [False] * 4
    see_that_it_was_no_hot_loop(where)
    assert store.look(where).snapshot.deaths == 0


async def test_a_spec_that_its_own_worker_ruins_ends_the_supervision_and_starts_nothing_more(
    tmp_path: Path, root: Path, ledger: Ledger
) -> None:
    where, supervisor = kit.start_supervised(root, spec("ruins_its_spec", ledger))
    await kit.until(lambda: supervisor.poll() is not None, "the supervisor has ended")
    assert "orchestrator adopt" in Path(where.supervisor_log).read_text(), "it says what a person can do"
    before = Path(where.journal).read_bytes()
    cli = Cli(tmp_path, root)
    for _ in range(3):
        said = cli("recover")
        assert said.code == 1
        assert "damaged" in said.out
        assert "orchestrator adopt" in said.out
    assert Path(where.journal).read_bytes() == before
    assert ledger.count("two began 1") == 1
    assert where.task_id in cli("list").out
    assert cli("cancel", where.task_id).code == 0


# -- beside others ---------------------------------------------------------------------------------------------------


async def test_two_that_do_harm_keep_no_healthy_one_beside_them_from_its_end(root: Path, tmp_path: Path) -> None:
    ledgers = [Ledger(tmp_path / f"ledger {number}") for number in range(5)]
    skills = ["kills_its_worker", "is_well", "is_well", "kills_its_guard", "is_well"]
    async with Coordinator(root) as coordinator:
        handles = [await coordinator.spawn(spec(skill, ledger)) for skill, ledger in zip(skills, ledgers, strict=True)]
        ended = [(await handle.wait(120)).status for handle in handles]
        for handle in handles:
            await kit.let_go(handle.where)
    assert ended == ["failed", "completed", "completed", "failed", "completed"]
    assert [len(kit.entries(handle.where, "attempt")) for handle in handles] == [DEATHS, 1, 1, DEATHS, 1]
    assert not [left for handle in handles for left in kit.left_behind(handle.where)]
