"""What a killed guard left alive is ended by whoever looks next, also when its task has ended."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio.to_thread
import kit
import pytest
from cli_door import Cli
from conftest import Ledger

from orchestrator import Coordinator, clearing, containment, identity, recovery, store, strays
from orchestrator.core.model import Identity
from orchestrator.store import Paths
from orchestrator.strays import AtLarge


async def with_a_stray(root: Path, ledger: Ledger, waits: bool = False) -> tuple[Paths, Identity]:
    """A task that has ended, or waits for a person; its guard was killed before it had ended what the worker left."""
    where = await kit.start_and_leave(root, kit.spec("leaves_a_stray", ledger, asks=waits))
    await kit.until(lambda: store.last_lines(where)[-1:] and store.last_lines(where)[-1]["kind"] == "closed", "its end")
    found = kit.identities(where)
    assert found is not None
    worker, guard = found
    await kit.until(lambda: identity.alive(worker) is not True, "the worker is gone")
    kit.kill(guard)
    await kit.until(lambda: identity.alive(guard) is not True, "the guard is gone")
    (line,) = [line for line in ledger.lines() if line.startswith("sleeps ")]
    stray = identity.of(int(line.split()[1]))
    assert stray is not None, "it outlived them"
    return where, stray


async def by_command(root: Path, where: Paths) -> None:
    await anyio.to_thread.run_sync(Cli(root, root), "recover", where.task_id)


async def by_command_for_all(root: Path, _where: Paths) -> None:
    await anyio.to_thread.run_sync(Cli(root, root), "recover")


async def by_program(root: Path, _where: Paths) -> None:
    async with Coordinator(root) as coordinator:
        await coordinator.recover()


async def by_gc(root: Path, where: Paths) -> None:
    rule = clearing.rule(older_days=0, failed=False, clock=time.time)
    (gone,) = clearing.remove(str(root), list(clearing.candidates(str(root), rule)), rule)
    assert gone.removed
    assert not os.path.exists(where.directory)


Look = Callable[[Path, Paths], Awaitable[None]]


@pytest.mark.parametrize("look", [by_command, by_command_for_all, by_program, by_gc])
async def test_a_process_that_a_killed_guard_left_ends_with_the_next_look_though_its_task_has_ended(
    root: Path, ledger: Ledger, look: Look
) -> None:
    where, stray = await with_a_stray(root, ledger)
    attempt = store.look(where).snapshot.attempt
    assert attempt is not None
    await look(root, where)
    await kit.until(lambda: identity.alive(stray) is not True, "the stray has ended")
    assert not list(containment.marked(attempt.token))
    assert not (attempt.cgroup and os.path.exists(attempt.cgroup))


async def test_it_ends_as_well_when_the_task_waits_for_a_person(root: Path, ledger: Ledger) -> None:
    where, stray = await with_a_stray(root, ledger, waits=True)
    said, lock = recovery.claim(where)
    assert (said.action, lock) == ("waits", None)
    assert identity.alive(stray) is not True


async def test_a_copy_of_the_task_touches_no_process_of_the_first(tmp_path: Path, root: Path, ledger: Ledger) -> None:
    where, stray = await with_a_stray(root, ledger)
    other = tmp_path / "a copy"
    shutil.copytree(root, other)
    recovery.claim(Paths(str(other / where.task_id)))
    assert identity.alive(stray) is True
    recovery.claim(where)
    assert identity.alive(stray) is not True


async def test_while_its_guard_lives_that_is_left_to_do_it(root: Path, ledger: Ledger) -> None:
    where = await kit.start_and_leave(root, kit.spec("leaves_a_stray", ledger))
    await kit.until(lambda: store.ended_by_tail(where), "its end")
    found = kit.identities(where)
    assert found is not None
    assert strays.end(where, AtLarge.of(str(root)), time.time()) == []
    containment.send(found[1].pid, signal.SIGCONT)
    await kit.let_go(where)
    assert not kit.left_behind(where)
