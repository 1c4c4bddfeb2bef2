"""Skills whose processes do not want to end, for the tests of engine, guard and containment. Imported by workers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio

from orchestrator import files

POLL_SECONDS = 0.005

#: Says its pid and start, then goes on writing into the workspace until somebody ends it.
_BEAT = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
PACE_SECONDS = 0.01
with open(sys.argv[1], "a", buffering=1) as file:
    file.write(f"{os.getpid()}\\n")
    while True:
        time.sleep(PACE_SECONDS)
        file.write("beat\\n")
"""
_DAEMON = """
import os
if os.fork(): os._exit(0)
os.setsid()
if os.fork(): os._exit(0)
"""


def _start(code: str, beats: Path, **how: Any) -> None:
    subprocess.Popen([sys.executable, "-S", "-I", "-c", code, str(beats)], **how)


#: The ways in which a process gets away from the one that started it.
KINDS: dict[str, Callable[[Path], None]] = {
    "child": lambda beats: _start(_BEAT, beats),
    "session": lambda beats: _start(_BEAT, beats, start_new_session=True),
    "daemon": lambda beats: _start(_DAEMON + _BEAT, beats),
    "nameless": lambda beats: _start(_DAEMON + _BEAT, beats, env={}),  # a daemon that cleared its environment
}


async def family(task: Any, kinds: list[str], then: str = "stay", code: int = 0) -> None:
    """Start one process of each kind, say "ready" when all of them write, then end as `then` says."""
    beats = {kind: task.workspace / f"{kind}.beats" for kind in kinds}
    if then == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    for kind, path in beats.items():
        KINDS[kind](path)
    while not all(path.exists() and path.read_text().count("\n") > 1 for path in beats.values()):  # noqa: ASYNC110
        await anyio.sleep(POLL_SECONDS)
    (task.workspace / "ready").write_text("ready")
    if then == "exit":
        os._exit(code)
    if then == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    if then == "deaf":
        while True:  # not even a cancelled task ends it
            signal.pause()
    if then != "return":
        await anyio.sleep_forever()


async def two_steps(task: Any) -> dict[str, str]:
    """A step that may run twice and one that may not; each makes a directory, which is seen among the system calls."""
    for name, effect in (("one", "idempotent"), ("two", "once")):
        await task.step(name, files.make_directory, str(task.workspace / f"effect of {name}"), effect=effect)
    return {"answer": "forty-two"}
