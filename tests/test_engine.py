"""One contract for every engine, with every means of the operating system and without.

The promise (`ports.Engine`): when `wait` or `end` returns, nothing of that worker can still write to its workspace. How
far it holds without a means is the table REACHED, which docs/isolation.md repeats for people.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest
from kit import until
from launching import LIMITS, Attempt, begin, family, is_alive, make_task
from stubborn import KINDS

from orchestrator import containment, files, identity
from orchestrator.core.model import Launch
from orchestrator.engines.local import LocalEngine
from orchestrator.ports import Engine

ENGINES: dict[str, Callable[[], Engine]] = {"local": LocalEngine}

EVERY = frozenset(KINDS)
NAMED = EVERY - {"nameless"}  # what carries the worker's token in its environment

#: Without which means -> which processes are ended (when the worker's end is waited for or ordered; by the guard alone,
#: with no coordinator living; by `end` when the guard itself was killed).
REACHED: dict[str, tuple[frozenset[str], frozenset[str], frozenset[str]]] = {
    "": (EVERY, EVERY, EVERY),
    "cgroup": (EVERY, EVERY, NAMED),
    "cgroup,subreaper": (NAMED, NAMED, NAMED),
    "pidfd": (EVERY, EVERY, EVERY),
    "proc": (EVERY, EVERY, EVERY),
    "exchange": (EVERY, EVERY, EVERY),
    "inotify": (EVERY, EVERY, EVERY),
    "cgroup,subreaper,pidfd,exchange,proc,inotify": (NAMED, NAMED, NAMED),
}


@pytest.fixture(params=ENGINES)
def make_engine(request: pytest.FixtureRequest) -> Callable[[], Engine]:
    return ENGINES[request.param]


@pytest.fixture(params=REACHED, ids=lambda without: f"without-{without or 'nothing'}")
def without(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("ORCHESTRATOR_WITHOUT", request.param)
    if "cgroup" not in request.param and containment.name_one("x").cgroup is None:
        pytest.skip("no cgroup can be made here")
    return request.param


@pytest.fixture(params=["", "cgroup", "cgroup,subreaper,pidfd,exchange,proc,inotify"], ids=["all", "no-cgroup", "none"])
def some(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """All means, the usual ones of an ordinary user, and none."""
    monkeypatch.setenv("ORCHESTRATOR_WITHOUT", request.param)
    return request.param


def no_cgroup_is_left(attempt: Attempt) -> bool:
    return attempt.state.cgroup is None or not os.path.exists(attempt.state.cgroup)


# -- the promise ---------------------------------------------------------------------------------------------------


async def test_when_wait_returns_no_child_of_the_worker_writes_on(make_engine, without, root):
    async with family(make_engine(), root, *KINDS, then="return") as attempt:
        ended = await attempt.engine.wait(attempt.state)
        assert attempt.alive() == EVERY - REACHED[without][0]
        assert (ended.code, ended.signal) == (0, None)
        assert no_cgroup_is_left(attempt)


async def test_when_end_returns_no_child_of_the_worker_writes_on(make_engine, without, root):
    async with family(make_engine(), root, *KINDS) as attempt:
        await attempt.engine.end(attempt.state, 5.0)
        assert attempt.alive() == EVERY - REACHED[without][0]
        assert not is_alive(attempt.worker)
        assert not is_alive(attempt.guard)
        assert not attempt.is_locked() or "nameless" in attempt.alive()
        assert no_cgroup_is_left(attempt)


async def test_the_guard_alone_cleans_up_when_no_coordinator_lives_to_do_it(make_engine, without, root):
    async with family(make_engine(), root, *KINDS) as attempt:
        os.kill(attempt.worker, signal.SIGKILL)
        await until(lambda: not attempt.is_locked(), "the lock is free")
        assert attempt.alive() == EVERY - REACHED[without][1]
        await until(lambda: no_cgroup_is_left(attempt), "its cgroup is gone")


async def test_a_killed_guard_takes_its_worker_along_and_end_finds_the_rest(make_engine, without, root):
    async with family(make_engine(), root, *KINDS) as attempt:
        os.kill(attempt.guard, signal.SIGKILL)
        await until(lambda: not is_alive(attempt.worker), "the worker ends with its guard")
        await attempt.engine.end(attempt.state, 0.0)
        assert attempt.alive() == EVERY - REACHED[without][2]
        assert no_cgroup_is_left(attempt)


async def test_the_lock_is_free_only_after_the_last_writer_is_gone(make_engine, root):
    async with family(make_engine(), root, *KINDS) as attempt:
        os.kill(attempt.worker, signal.SIGKILL)
        while (lock := files.lock_directory(attempt.where.directory)) is None:
            pass  # as close behind as can be: a pause would hide what it looks for
        os.close(lock)
        assert attempt.alive() == set()


# -- workers that do not want to end -------------------------------------------------------------------------------


async def test_a_worker_that_ignores_sigterm_is_killed_after_its_grace(make_engine, some, root):
    async with family(make_engine(), root, "child", then="deaf") as attempt:
        begun = time.monotonic()
        await attempt.engine.end(attempt.state, LIMITS.grace_seconds)
        took = time.monotonic() - begun
        assert attempt.alive() == set()
        assert not is_alive(attempt.worker)
        assert LIMITS.grace_seconds <= took < 60
        assert (await attempt.engine.wait(attempt.state)).signal == signal.SIGKILL


async def test_a_stopped_worker_is_ended_and_not_waited_for_for_ever(make_engine, some, root):
    async with family(make_engine(), root, "session", then="stop") as attempt:
        await attempt.engine.end(attempt.state, 5.0)
        assert attempt.alive() == set()
        assert not is_alive(attempt.worker)


async def test_a_stopped_guard_is_ended_with_its_stopped_worker(make_engine, some, root):
    async with family(make_engine(), root, "session", then="stop") as attempt:
        os.kill(attempt.guard, signal.SIGSTOP)
        await attempt.engine.end(attempt.state, 5.0)
        assert attempt.alive() == set()
        assert not is_alive(attempt.guard)
        assert not is_alive(attempt.worker)


# fault 22
async def test_ending_what_has_ended_is_success_however_often(make_engine, some, root):
    async with family(make_engine(), root, "child") as attempt:
        await attempt.engine.end(attempt.state, 5.0)
        await attempt.engine.end(attempt.state, 5.0)
        await attempt.engine.wait(attempt.state)
        await attempt.engine.end(attempt.state, 0.0)


async def test_a_worker_too_young_to_have_said_who_it_is_is_ended_too(make_engine, some, root, monkeypatch):
    """Cancelled right after the spawn. Just after its exec a process shows no environment yet to be known by."""
    monkeypatch.setattr(containment, "marked", lambda _token: iter(()))
    attempt = await begin(make_engine(), make_task(root, "family", kinds=[], then="stay"))
    unknown = attempt.state
    unknown.identity = unknown.guard = None
    await attempt.engine.end(unknown, 5.0)
    assert not attempt.is_locked()
    await attempt.engine.wait(attempt.state)
    assert no_cgroup_is_left(attempt)


async def test_end_keeps_its_promise_though_whoever_called_it_is_cancelled(make_engine, root):
    async with family(make_engine(), root, "daemon", then="deaf") as attempt:
        with anyio.CancelScope() as scope:
            scope.cancel()
            await attempt.engine.end(attempt.state, LIMITS.grace_seconds)
        assert attempt.alive() == set()
        assert not is_alive(attempt.worker)


async def test_cancelling_a_wait_leaves_the_worker_at_its_work(make_engine, some, root):
    async with family(make_engine(), root, "child") as attempt:
        with anyio.move_on_after(0.05) as limit:
            await attempt.engine.wait(attempt.state)
        assert limit.cancelled_caught
        assert is_alive(attempt.worker)
        assert attempt.alive() == {"child"}


# -- a coordinator that comes later --------------------------------------------------------------------------------


async def test_a_restarted_coordinator_ends_a_worker_that_it_did_not_start(make_engine, without, root):
    async with family(make_engine(), root, *KINDS) as attempt:
        await make_engine().end(attempt.state, 5.0)
        assert attempt.alive() == EVERY - REACHED[without][0]
        assert not is_alive(attempt.guard)
        assert no_cgroup_is_left(attempt)


async def test_a_restarted_coordinator_waits_for_a_worker_that_it_did_not_start(make_engine, some, root):
    async with family(make_engine(), root, "session") as attempt:
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(make_engine().wait(attempt.state))
            await until(lambda: len(asyncio.all_tasks()) > 1, "it waits")
            assert not waiting.done()
            os.kill(attempt.worker, signal.SIGKILL)
        assert attempt.alive() == set()
        assert (waiting.result().code, waiting.result().signal) == (None, None)  # nobody of it saw the exit status


async def test_two_may_wait_for_one_worker_and_both_are_told(make_engine, some, root):
    async with family(make_engine(), root, "child") as attempt:
        async with asyncio.TaskGroup() as group:
            waiting = [group.create_task(attempt.engine.wait(attempt.state)) for _ in range(2)]
            await anyio.lowlevel.checkpoint()
            os.kill(attempt.worker, signal.SIGKILL)
        assert {task.result().run for task in waiting} == {attempt.run}


# fault 60
async def test_another_process_with_the_guards_pid_is_left_alone(make_engine, root):
    """After a reboot, or after enough processes, the recorded pid is somebody else's."""
    async with family(make_engine(), root, "child") as attempt:
        state = attempt.state
        await attempt.engine.end(state, 5.0)
        mine = identity.mine()
        state.identity = state.guard = mine._replace(ticks=mine.ticks - 1)
        with anyio.fail_after(10):
            await make_engine().end(state, 5.0)  # we are alive to see it return
            await make_engine().wait(state)


# -- how it ended --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [0, 3, 255])
async def test_the_exit_code_of_the_worker_is_told_as_it_was(make_engine, root, code):
    async with family(make_engine(), root, then="exit", code=code) as attempt:
        ended = await attempt.engine.wait(attempt.state)
        assert (ended.code, ended.signal) == (code, None)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGUSR1], ids=lambda n: n.name)
async def test_a_worker_killed_by_a_signal_is_told_as_killed_by_it(make_engine, some, root, number):
    async with family(make_engine(), root, "daemon") as attempt:
        os.kill(attempt.worker, number)
        ended = await attempt.engine.wait(attempt.state)
        assert (ended.code, ended.signal) == (None, number)
        assert attempt.alive() == set()


async def test_a_worker_that_cannot_be_started_raises_and_leaves_nothing(make_engine, root):
    engine = make_engine()
    where = make_task(root, "family", kinds=[])
    held = engine.containment()
    lock = files.lock_directory(where.directory)
    assert lock is not None
    big = {"BIG": "x" * (1 << 20)}  # more than one variable of an environment may have
    with pytest.raises(OSError, match="Argument list too long"):
        await engine.start(Launch(f"{where.task_id}.1", where.directory, held, big, lock, LIMITS))
    os.close(lock)
    assert held.cgroup is None or not os.path.exists(held.cgroup)
    again = files.lock_directory(where.directory)
    assert again is not None
    os.close(again)


async def test_the_worker_gets_the_environment_it_is_given_and_its_token(make_engine, root):
    async with family(make_engine(), root, "child") as attempt:
        said = Path(f"/proc/{attempt.pids['child']}/environ").read_bytes().split(b"\0")
        assert f"{containment.TOKEN}={attempt.state.token}".encode() in said
        line = Path(f"/proc/{attempt.guard}/cmdline").read_bytes().split(b"\0")[-2]
        assert json.loads(line)["run"] == attempt.run
