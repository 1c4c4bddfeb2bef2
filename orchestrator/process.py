"""One command in its own containment: run, watched, and ended with its whole tree."""

from __future__ import annotations

import contextlib
import math
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import anyio
from anyio.abc import Process

from orchestrator import containment

#: Joins the cgroup before the command exists, so that no child of it can escape; then becomes the command.
_JOIN = 'echo 0 > "$0/cgroup.procs" && exec "$@"'
#: The names of variables that /bin/sh hands on; any other (npm_config_@scope:registry) it drops without a word.
_SHELL_KEEPS = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
#: How long the end of a killed process group is waited for.
_GONE_SECONDS = 2.0
#: What is kept of the end of a command's output, to show why it failed.
TAIL_BYTES = 4096


@dataclass(frozen=True, slots=True)
class CommandExit:
    """How a command ended: `code` is -N for signal N, as subprocess has it; `tail` is the end of what it said."""

    code: int
    timed_out: bool
    tail: str


def find(program: str, env: Mapping[str, str], cwd: str) -> str | None:
    """The absolute path of a program as its environment would find it; None when there is none."""
    if os.sep in program:
        path = os.path.join(cwd, program)
        return path if os.access(path, os.X_OK) and not os.path.isdir(path) else None
    return shutil.which(program, path=env.get("PATH", os.defpath))


async def run(
    argv: Sequence[str],
    *,
    cwd: str,
    env: Mapping[str, str],
    timeout: float | None,
    grace_seconds: float,
    sink: Callable[[bytes], None],
    cgroup: str | None = None,
) -> CommandExit:
    """Run a command, stdin from /dev/null, and return when its whole tree is gone.

    `sink` gets its output, both streams, as it comes. Over `timeout` seconds, or when cancelled: SIGTERM to its process
    group, `grace_seconds`, then SIGKILL to all of its tree. What it left in the background is ended as well. With
    `cgroup` (a name that does not exist yet) no process of it can escape; without, or with a variable that a shell does
    not hand on, one that opens its own session lives until its worker's guard ends. The environment is `env`; with a
    cgroup the shell that joins it adds PWD. Raises OSError when it cannot be started (with a cgroup: code 126 or 127).
    """
    if cgroup and all(map(_SHELL_KEEPS.fullmatch, env)) and containment.make(cgroup):
        argv = ["/bin/sh", "-c", _JOIN, cgroup, *argv]
    else:
        cgroup = None
    output, its_output = os.pipe()
    try:
        process = await anyio.open_process(
            list(argv),
            cwd=cwd,
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=its_output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except BaseException:
        os.close(output)
        if cgroup:
            containment.kill_cgroup(cgroup, 0.0)
        raise
    finally:
        os.close(its_output)
    tail = _Tail(sink)
    timed_out = gone = False
    try:
        async with anyio.create_task_group() as group:
            group.start_soon(_pump, output, tail)
            with anyio.move_on_after(math.inf if timeout is None else timeout) as limit:
                await process.wait()
            timed_out = limit.cancelled_caught
            await _end(process, grace_seconds, cgroup)
            gone = True
            with anyio.move_on_after(1.0):  # its tree is gone: what is still in the pipe comes at once
                await tail.ended.wait()
            group.cancel_scope.cancel()
    finally:
        with anyio.CancelScope(shield=True):
            if not gone:  # else its number may be another's by now
                await _end(process, grace_seconds, cgroup)
        os.close(output)
    return CommandExit(process.returncode or 0, timed_out, tail.text())


async def _end(process: Process, grace_seconds: float, cgroup: str | None) -> None:
    if process.returncode is None:
        _signal_group(process.pid, signal.SIGTERM)
        with anyio.move_on_after(grace_seconds):
            await process.wait()
    _signal_group(process.pid, signal.SIGKILL)
    if cgroup:
        await anyio.to_thread.run_sync(containment.kill_cgroup, cgroup, 10.0)
    await process.wait()
    with anyio.move_on_after(_GONE_SECONDS):  # killed is not yet dead
        while containment.group_lives(process.pid):
            _signal_group(process.pid, signal.SIGKILL)
            await anyio.sleep(0.001)


def _signal_group(group: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


class _Tail:
    def __init__(self, sink: Callable[[bytes], None]) -> None:
        self._sink = sink
        self._kept = b""
        self.ended = anyio.Event()

    def add(self, data: bytes) -> None:
        self._sink(data)
        self._kept = (self._kept + data)[-TAIL_BYTES:]

    def text(self) -> str:
        return self._kept.decode("utf-8", "replace")


async def _pump(source: int, tail: _Tail) -> None:
    """Take what comes. The pipe is ours, not asyncio's: that would stay open while anybody else holds its end."""
    while True:
        await anyio.wait_readable(source)
        data = os.read(source, 1 << 16)
        if not data:
            break
        tail.add(data)
    tail.ended.set()
