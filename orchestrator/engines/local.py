"""Workers as processes of this machine."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Callable

import anyio
import anyio.to_thread

from orchestrator import containment, files, identity, means
from orchestrator.core.model import Containment, Identity, Launch, WorkerExit
from orchestrator.core.snapshot import AttemptState
from orchestrator.errors import Unkillable

#: Between two looks at a process that the kernel cannot tell us about (no pidfd).
_LOOK_SECONDS = 0.05


class LocalEngine:
    """See `ports.Engine`. Holds nothing but the processes it started, to collect their exit status."""

    def __init__(self) -> None:
        self._children: dict[str, subprocess.Popen[bytes]] = {}

    def containment(self) -> Containment:
        return containment.name_one(secrets.token_hex(8))

    async def start(self, launch: Launch) -> None:
        self._children[launch.run] = await anyio.to_thread.run_sync(_spawn, launch)

    async def wait(self, attempt: AttemptState) -> WorkerExit:
        child = self._children.get(attempt.run)
        if child is not None:
            await _process_ended(child.pid, lambda: child.poll() is not None)
            code = child.wait()
            self._children.pop(attempt.run, None)  # another may have waited as well
            await self._confirm(attempt)
            return WorkerExit(attempt.run, code if code >= 0 else None, -code if code < 0 else None)
        guard = attempt.guard or attempt.identity
        if guard is not None:
            await _process_ended(guard.pid, lambda: identity.alive(guard) is not True)
        await self._confirm(attempt)
        return WorkerExit(attempt.run, None)

    async def end(self, attempt: AttemptState, grace_seconds: float) -> None:
        with anyio.CancelScope(shield=True):
            guard = attempt.guard or attempt.identity or self._just_started(attempt.run)
            if guard is not None and identity.alive(guard):
                containment.send(guard.pid, signal.SIGTERM)
                containment.send(guard.pid, signal.SIGCONT)
                # The guard gives the worker its grace and cleans up after it: wait that long for both.
                with anyio.move_on_after(2 * grace_seconds + 1):
                    await _process_ended(guard.pid, lambda: identity.alive(guard) is not True)
            await self._confirm(attempt)

    def _just_started(self, run: str) -> Identity | None:
        """A worker of ours that has not said yet who it is; so young, its environment may still be unreadable."""
        child = self._children.get(run)
        return identity.of(child.pid) if child is not None and child.poll() is None else None

    async def _confirm(self, attempt: AttemptState) -> None:
        held = Containment(attempt.token, attempt.cgroup)
        if not await anyio.to_thread.run_sync(containment.end, held):
            raise Unkillable(
                f"processes of {attempt.run} are still alive after SIGKILL",
                "its task is not started again before they are gone; look at them: "
                f"grep -l {attempt.token} /proc/*/environ",
            )


class _Detachable(subprocess.Popen[bytes]):
    """A child that may outlive our interest in it: that is the promise of `ports.Engine`, and no leak to warn of."""

    def __del__(self) -> None:
        super().__del__(_warn=_silent)  # type: ignore[call-arg]


def _silent(*_args: object, **_more: object) -> None: ...


def _spawn(launch: Launch) -> subprocess.Popen[bytes]:
    cgroup = launch.containment.cgroup
    if cgroup and not containment.make(cgroup):
        cgroup = None
    said = {
        "workspace": launch.workspace,
        "run": launch.run,
        "lock_fd": launch.lock_fd,
        "cgroup": cgroup,
        "output_bytes": launch.limits.output_bytes,
        "grace_seconds": launch.limits.grace_seconds,
        "life_seconds": launch.limits.attempt_seconds,
    }
    env = {**launch.env, containment.TOKEN: launch.containment.token}
    errors = files.open_log(f"{launch.workspace}/.task/logs/{launch.run.rpartition('.')[2]}.err")
    try:
        return _Detachable(
            [sys.executable, "-P", "-m", "orchestrator.worker", json.dumps(said)],
            cwd=launch.workspace,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            pass_fds=(launch.lock_fd,),
            start_new_session=True,
        )
    except OSError:
        if cgroup:
            containment.kill_cgroup(cgroup, 0.0)
        raise
    finally:
        os.close(errors)


async def _process_ended(pid: int, ended: Callable[[], bool]) -> None:
    """Return when the process has ended; by a pidfd where there is one, else by looking."""
    if means.has("pidfd"):
        with contextlib.suppress(OSError):
            fd = os.pidfd_open(pid)
            try:
                if not ended():  # else the pid was somebody else's already
                    await anyio.wait_readable(fd)
                return
            finally:
                os.close(fd)
    while not ended():  # noqa: ASYNC110 - the kernel has no event for it
        await anyio.sleep(_LOOK_SECONDS)
