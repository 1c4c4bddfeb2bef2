"""For tests of what a replay hands back: a skill that can be changed, an attempt that is killed, a recovery."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import textwrap
from pathlib import Path
from typing import Any

from orchestrator import Announcement, Coordinator, identity
from orchestrator.core.snapshot import Snapshot
from orchestrator.store import Paths, look, read_journal

#: What the skills of these tests begin with. `hold` keeps a first attempt from going on until `go` lies there.
_HEAD = """\
import anyio, json, os
from orchestrator import Done, NotDone, current_step

LEDGER = {ledger!r}
POLL_SECONDS = 0.001

def say(text):
    with open(LEDGER, "a") as file:
        file.write(f"{{text}}\\n")

def work(name):
    say(f"{{name}} ran")
    return f"result of {{name}}"

async def comes(condition):
    while not condition():
        await anyio.sleep(POLL_SECONDS)

def went_on():
    return os.path.exists(LEDGER + ".go")

async def hold(*_):
    say("held")
    if not went_on():
        await anyio.sleep_forever()
    return "held"

"""


class SkillFile:
    """`async def skill(task)` with a body that a test can change between two attempts."""

    def __init__(self, directory: Path, ledger: Path) -> None:
        self.path = directory / "skill.py"
        self._ledger = ledger
        self._writes = 0

    def write(self, body: str, above: str = "") -> SkillFile:
        text = _HEAD.format(ledger=str(self._ledger)) + textwrap.dedent(above)
        text += "\nasync def skill(task):\n" + textwrap.indent(textwrap.dedent(body).strip("\n"), "    ") + "\n"
        self._writes += 1
        text += "#" * self._writes + "\n"  # another size: its .pyc is never taken for this one's
        self.path.write_text(text, "utf-8")
        return self

    async def until(self, root: Path, ledger: Any, text: str) -> Paths:
        """Spawn it, wait until the ledger has `text`, leave it, and kill its worker with the guard."""
        async with Coordinator(root) as coordinator:
            handle = await coordinator.spawn(f"{self.path}:skill", name="replayed")
            await ledger.has(text)
        kill_worker(handle.where)
        Path(f"{self._ledger}.go").touch()
        return handle.where

    async def to_its_end(self, root: Path) -> tuple[Paths, Announcement]:
        async with Coordinator(root) as coordinator:
            handle = await coordinator.spawn(f"{self.path}:skill", name="replayed")
            return handle.where, await handle.wait(120)


def kill_worker(where: Paths) -> None:
    attempt = look(where).snapshot.unclosed
    assert attempt is not None
    assert attempt.identity is not None
    assert attempt.guard is not None
    for who in (attempt.guard, attempt.identity):
        with contextlib.suppress(ProcessLookupError):
            os.kill(who.pid, signal.SIGKILL)
    while identity.alive(attempt.guard) or identity.alive(attempt.identity):
        os.sched_yield()


async def recovered(root: Path, where: Paths) -> Announcement:
    async with Coordinator(root) as coordinator:
        await coordinator.recover([where.task_id])
        return await coordinator.wait(where.task_id, 120)


def snapshot(where: Paths) -> Snapshot:
    return look(where).snapshot


def entries(where: Paths, kind: str) -> list[dict[str, Any]]:
    return [e for e in read_journal(where).entries if e["kind"] == kind]


def result(where: Paths) -> Any:
    return json.loads(Path(where.results, "result.json").read_text("utf-8"))


def checklist(where: Paths) -> list[str]:
    """The lines of task.md from `[start done]` on."""
    lines = Path(where.task_md).read_text("utf-8").splitlines()
    return [line for line in lines[lines.index("[start done]") + 1 :] if line.startswith("[")]
