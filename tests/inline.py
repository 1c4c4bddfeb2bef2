"""Whole tasks, coordinator and workers, in forks of the test process: everything is imported already.

One run costs some ten milliseconds instead of the half second of real workers, so that thousands can be made. What is
left out are the guard, the exec and the containment (tests/test_engine.py is about those); the rest is the product's
own code, in processes of its own that really hold the lock and really die. That an engine like this one leaves the same
disk as the real one is held by tests/test_scenarios.py.
"""

from __future__ import annotations

import contextlib
import contextvars
import ctypes
import functools
import gc
import inspect
import os
import pickle
import secrets
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

import anyio
import anyio.lowlevel
from conftest import POLL_SECONDS

from orchestrator import containment, files, identity, resolving, templates
from orchestrator.config import from_environment
from orchestrator.coordinator import Coordinator
from orchestrator.core import lifecycle
from orchestrator.core.model import Containment, Launch, TaskSpec, WorkerExit
from orchestrator.core.snapshot import AttemptState
from orchestrator.core.spec import parse_spec, to_yaml
from orchestrator.worker import guard, loop

#: Longer than any run takes on a machine that does something else as well.
PATIENCE_SECONDS = 120.0
#: Descriptors that a worker keeps although it did not open them: the log of whoever watches it.
KEPT: set[int] = set()
#: The variable that names the process group of a run: whoever kills it ends the whole of it at once.
GROUP = "ORCHESTRATOR_TEST_GROUP"
#: Called in every worker before its first act. Empty where nobody watches: see `alone`.
IN_WORKERS: list[Callable[[], None]] = []


def alone() -> None:
    """Raises AssertionError where another stands in the file layer already, or will in the workers: one of the two
    would see nothing of them.
    """
    assert not IN_WORKERS, f"the workers are prepared by another: {IN_WORKERS}"
    assert files.os is os, f"the file layer is {files.os}"


class InlineEngine:
    """See `ports.Engine`: a worker is a fork of the coordinator, in the process group of the whole run."""

    def __init__(self) -> None:
        self._children: dict[str, int] = {}

    def containment(self) -> Containment:
        return Containment(secrets.token_hex(8), None)

    async def start(self, launch: Launch) -> None:
        log = launch.workspace + "/.task/logs/" + launch.run.rpartition(".")[2]
        errors = files.open_log(log + ".err")
        try:
            pid = os.fork()
            if pid == 0:
                _become_worker(launch, log + ".out", errors)
        finally:
            os.close(errors)
        self._children[launch.run] = pid

    async def wait(self, attempt: AttemptState) -> WorkerExit:
        pid = self._children.get(attempt.run)
        if pid is None:  # another coordinator's
            while attempt.identity is not None and identity.alive(attempt.identity):
                await _process_ended(attempt.identity.pid)
            return WorkerExit(attempt.run, None)
        await _process_ended(pid)
        self._children.pop(attempt.run)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        return WorkerExit(attempt.run, code if code >= 0 else None, -code if code < 0 else None)

    async def end(self, attempt: AttemptState, grace_seconds: float) -> None:
        with anyio.CancelScope(shield=True):
            pid = self._children.get(attempt.run)
            who = attempt.identity or (identity.of(pid) if pid is not None else None)
            if who is None or not identity.alive(who):
                return
            containment.send(who.pid, signal.SIGTERM)
            with anyio.move_on_after(grace_seconds):
                await _process_ended(who.pid)
            if identity.alive(who):
                containment.send(who.pid, signal.SIGKILL)
                await _process_ended(who.pid)


async def _process_ended(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        fd = os.pidfd_open(pid)
        try:
            await anyio.wait_readable(fd)
        finally:
            os.close(fd)


def _become_worker(launch: Launch, out: str, errors: int) -> NoReturn:
    """In the fork: nothing of the coordinator is left but the lock, and a context without its event loop."""
    code = 70
    ending = None
    try:
        signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGINT))  # as a worker finds them
        _redirect(os.open(out, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644), errors)
        _close_all_but({launch.lock_fd, *KEPT})
        ending = guard._Ending(out.removesuffix(".out") + ".end", launch.run)
        os.environ.clear()
        os.environ.update({**launch.env, containment.TOKEN: launch.containment.token})
        os.chdir(launch.workspace)
        for prepare in IN_WORKERS:
            prepare()
        code = contextvars.Context().run(
            loop.run, launch.workspace, launch.run, os.getpid(), launch.lock_fd, None, resolving.resolve
        )
    except BaseException:  # nothing may leave a fork but by its exit: above it stands the test that made it
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        if ending is not None:
            ending.write(code << 8)
        os._exit(code)


def _redirect(out: int, errors: int) -> None:
    os.dup2(out, 1)
    os.dup2(errors, 2)
    sys.stdout = open(1, "w", buffering=1, encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115


def _close_all_but(kept: set[int]) -> None:
    low = 3
    for fd in sorted(kept):
        os.closerange(low, fd)
        low = fd + 1
    os.closerange(low, os.sysconf("SC_OPEN_MAX") if low > 4096 else 4096)


def coordinator(root: str | os.PathLike[str]) -> Coordinator:
    """The coordinator of `orchestrator.compose`, with this engine."""
    config = from_environment(os.environ, os.fspath(root))
    return Coordinator(config, InlineEngine(), template=templates.read("task.md"))


# -- a run in a process of its own -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ran:
    """How a run ended: its exit code (-N for signal N), what it gave back, and the traceback if it raised."""

    code: int
    value: Any = None
    error: str = ""


def run(act: Callable[[], Any], *, environment: dict[str, str] | None = None) -> Any:
    """What `act` gives back, run in a fork of its own; raises AssertionError with its traceback when it raised."""
    ran = attempt(act, environment=environment)
    assert ran.code == 0, ran.error or f"it ended by {ran.code}"
    return ran.value


def attempt(act: Callable[[], Any], *, environment: dict[str, str] | None = None) -> Ran:
    """Run `act`, a function or a coroutine function, in a fork: the leader of a process group that its workers stay in.

    When this returns nothing of the group is alive. What it gives back is pickled. Pauses between tries are left out.
    """
    _warm_up()
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        _be_the_run(act, writing, environment or {})
    os.close(writing)
    try:
        said = _read_all(reading, pid)
    finally:
        os.close(reading)
        code = _end_group(pid)
    value, error = pickle.loads(said) if said else (None, "")
    return Ran(code, value, error)


def obey_permissions() -> None:
    """From here on this fork is kept out by the mode of a file, as everybody but root is."""
    libc = ctypes.CDLL(None, use_errno=True)
    header, data = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    assert libc.capget(header, data) == 0
    for part in range(3):  # effective, permitted, inheritable: without CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH
        data[part] &= ~0b110
    assert libc.capset(header, data) == 0


@functools.cache
def _warm_up() -> None:
    """Use once what a run imports or builds when it first uses it, so that its forks find it done."""
    parse_spec(to_yaml(TaskSpec("warm", "python", "x:y")), "warm")
    anyio.run(anyio.lowlevel.checkpoint)
    anyio.CapacityLimiter(1)
    files._swap("", "")
    gc.collect()
    gc.freeze()  # a collection in a fork would copy every page that it looks at


def _be_the_run(act: Callable[[], Any], writing: int, environment: dict[str, str]) -> NoReturn:
    code, said = 1, b""
    try:
        os.setpgid(0, 0)
        os.environ.update({**environment, GROUP: str(os.getpid())})
        lifecycle.backoff_seconds = lambda failures, luck: 0.0
        said = pickle.dumps((contextvars.Context().run(_act, act), ""))
        code = 0
    except BaseException:  # raised again in the process that waits for it
        said = pickle.dumps((None, traceback.format_exc()))
    finally:
        while said:
            said = said[os.write(writing, said) :]
        os._exit(code)


def _act(act: Callable[[], Any]) -> Any:
    return anyio.run(act) if inspect.iscoroutinefunction(act) else act()


def _read_all(fd: int, pid: int) -> bytes:
    """All that the run says, to its end."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    said = b""
    while select.select([fd], [], [], max(0.0, deadline - time.monotonic()))[0]:
        data = os.read(fd, 1 << 16)
        if not data:
            return said
        said += data
    os.killpg(pid, signal.SIGKILL)
    raise TimeoutError(f"a run has not ended within {PATIENCE_SECONDS:g} s")


def _end_group(pid: int) -> int:
    """Collect the run; whatever of its group still lives ends with it."""
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)  # while it is not collected, its number is nobody else's
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    while containment.group_lives(pid):
        time.sleep(POLL_SECONDS)
    return code
