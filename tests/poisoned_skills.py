"""Skills that do harm, each in its own way, as often as they are started; a ledger outside has what they did."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import Any

from skills_under_test import Entries, die

#: In the environment of a worker: what becomes of it while this module is imported.
VARIABLE = "ORCHESTRATOR_TEST_POISON"


async def kills_its_worker(task: Any, ledger: str) -> None:
    entries = Entries(ledger)

    def two() -> None:
        entries.began()
        die()

    await task.step("one", entries.began)
    await task.step("two", two)


async def kills_its_guard(task: Any, ledger: str) -> None:
    entries = Entries(ledger)

    def two() -> None:
        entries.began()
        os.kill(os.getppid(), signal.SIGKILL)
        signal.pause()

    await task.step("one", entries.began)
    await task.step("two", two)


STOP_PROOF = """
import os, signal, sys
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
os.setsid()
print(os.getpid(), flush=True)
os.close(1)
while True:
    signal.pause()
"""


async def leaves_what_cannot_be_stopped(task: Any, ledger: str) -> None:
    """Its step leaves a child that ignores every signal but one, and tells whether the one before is there still."""
    entries = Entries(ledger)

    def two() -> None:
        entries.began()
        with open(ledger) as file:
            before = [int(line.split()[1]) for line in file if line.startswith("child ")]
        entries.write(f"alive {sum(os.path.exists(f'/proc/{pid}') for pid in before)}")
        child = subprocess.Popen([sys.executable, "-c", STOP_PROOF], stdout=subprocess.PIPE, start_new_session=False)
        assert child.stdout is not None
        entries.write(f"child {int(child.stdout.readline())}")
        die()

    await task.step("one", entries.began)
    await task.step("two", two)


async def gives_much(task: Any, ledger: str) -> int:
    entries = Entries(ledger)

    def two() -> str:
        entries.began()
        return "x" * 400_000

    await task.step("one", entries.began)
    return len(await task.step("two", two))


async def ruins_its_spec(task: Any, ledger: str) -> None:
    entries = Entries(ledger)

    def two() -> None:
        entries.began()
        (task.workspace / ".task" / "spec.yaml").write_bytes(b"\0" * 100)
        die()

    await task.step("one", entries.began)
    await task.step("two", two)


async def closes_all_that_is_open(task: Any, ledger: str) -> None:
    """As a daemon does at its start, and here in a thread of the worker."""
    entries = Entries(ledger)

    def two() -> None:
        entries.began()
        os.closerange(3, 1000)

    await task.step("one", entries.began)
    await task.step("two", two)


async def forks(task: Any, ledger: str) -> str:
    """A child that returns into the loop, as `os.fork` in an async step makes one, and then a step in a thread."""

    async def one() -> str:
        pid = os.fork()
        if pid == 0:
            return "the child"
        os.waitpid(pid, 0)
        return "the parent"

    said = await task.step("one", one)
    await task.step("two", Entries(ledger).began)
    return str(said)


async def is_well(task: Any, ledger: str = "/dev/null") -> str:
    await task.step("one", Entries(ledger).began)
    return "well"


match os.environ.get(VARIABLE):
    case "leave":
        os._exit(3)
    case "kill":
        die()
