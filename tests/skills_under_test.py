"""Skills that the tests spawn. What their steps do is written to a ledger outside of the product."""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
import subprocess
from pathlib import Path
from typing import Any, NoReturn

import dying

from orchestrator import Done, Step, StepFailed, current_step

dying.install_as_ordered()

STEPS = ("gather", "sort", "measure", "collect (all)", "draw", "report")


class Entries:
    """What a step writes into the ledger: one write a line, at once."""

    def __init__(self, path: str) -> None:
        self._path = path

    def write(self, text: str) -> None:
        fd = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(fd, f"{text}\n".encode())
        os.close(fd)

    def began(self, step: Step | None = None) -> None:
        step = step or current_step()
        self.write(f"{step.label} began {step.try_number}")

    def ended(self, step: Step | None = None) -> None:
        self.write(f"{(step or current_step()).label} ended")


def die() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("a SIGKILL came back")


def labour(rounds: int) -> str:
    """Work that takes its time without waiting for anything; some 10 ms for 20,000 rounds."""
    return hashlib.pbkdf2_hmac("sha256", b"work", b"", rounds).hex() if rounds else ""


async def six_steps(task: Any, ledger: str, rounds: int = 0) -> dict[str, Any]:
    """Sync and async steps, a large result, notes, and a report at the end."""
    entries = Entries(ledger)

    def plain(value: Any) -> Any:
        entries.began()
        labour(rounds)
        current_step().note(f"thought about {current_step().name}")
        entries.ended()
        return value

    async def awaited(value: Any) -> Any:
        return plain(value)

    def report(found: Any) -> str:
        entries.began()
        labour(rounds)
        (task.workspace / "report.md").write_text("".join(f"- {len(str(item))} {item!s:.20}\n" for item in found))
        entries.ended()
        return "report.md"

    await task.plan(STEPS[:3])
    found = [await task.step("gather", awaited, ["b", "a"])]
    found.append(await task.step("sort", awaited, sorted(found[0])))
    found.append(await task.step("measure", plain, len(found[1])))
    found.append(await task.step("collect (all)", plain, "large " * 20_000))
    async for step in task.todo("draw"):
        entries.began(step)
        labour(rounds)
        entries.ended(step)
        step.result = "drawn"
    await task.step("report", report, found, outputs=["report.md"])
    return {"report": "report.md", "found": found[:3]}


# -- budgets ---------------------------------------------------------------------------------------------------------


async def dies_at_two(task: Any, ledger: str) -> None:
    entries = Entries(ledger)

    def one() -> None:
        entries.began()

    def two() -> None:
        entries.began()
        die()

    await task.step("one", one)
    await task.step("two", two)


async def dies_twice_a_step(task: Any, ledger: str) -> str:
    """Each of three steps kills its worker twice, and is done the third time."""
    entries = Entries(ledger)

    def third_time() -> None:
        entries.began()
        if current_step().try_number < 3:
            die()

    for name in ("one", "two", "three"):
        await task.step(name, third_time)
    return "through"


async def raises(task: Any, ledger: str, die_at_try: int = 0, retries: int = 2) -> None:
    """A step that always raises, but for one try that is cut off by its worker's death."""
    entries = Entries(ledger)

    def wrong() -> None:
        entries.began()
        if current_step().try_number == die_at_try:
            die()
        raise ValueError(f"wrong at try {current_step().try_number}")

    await task.step("wrong", wrong, retries=retries)


async def leaves(task: Any, ledger: str, code: int = 0, times: int = 99) -> str:
    """The process exits in the middle of a step, without a word about it, in its first `times` lives."""
    entries = Entries(ledger)

    def go() -> None:
        entries.began()
        if task.attempt <= times:
            os._exit(code)

    await task.step("go", go)
    return "stayed"


async def raises_outside(task: Any, ledger: str) -> None:
    await task.step("one", Entries(ledger).began)
    raise LookupError("nothing there\nand a second line")


async def goes_on_without(task: Any, ledger: str, lives: int = 0) -> str:
    """A step fails for good, the skill takes note of it and goes on; then its worker dies in its first `lives`."""
    entries = Entries(ledger)

    def wrong() -> None:
        entries.began()
        raise ValueError("no")

    def rest() -> None:
        entries.began()
        if task.attempt <= lives:
            die()

    try:
        await task.step("extra", wrong, retries=0)
    except StepFailed as failed:
        entries.write(f"caught {failed.step}")
    await task.step("rest", rest)
    return "without extra"


# -- many hands ------------------------------------------------------------------------------------------------------


async def waits_in_two(task: Any, ledger: str, gate: str) -> str:
    """The second step waits until the gate, a fifo, is opened and closed."""
    entries = Entries(ledger)

    def two() -> None:
        entries.began()
        Path(gate).read_bytes()

    await task.step("one", entries.began)
    await task.step("two", two)
    return "through"


async def leaves_a_grandchild(task: Any, ledger: str, gate: str) -> None:
    entries = Entries(ledger)

    def start() -> None:
        # Its session is its own, and its parent gone. `setsid` execs: the pid stays the same.
        subprocess.run(["sh", "-c", f"setsid sleep 300 & echo sleeps $! >> '{ledger}'"], check=True)
        entries.began()
        Path(gate).read_bytes()

    await task.step("start", start)


async def leaves_a_stray(task: Any, ledger: str, asks: bool = False) -> None:
    """Leaves a process behind and a guard that is stopped: it cannot end it."""

    def start() -> None:
        subprocess.run(["sh", "-c", f"setsid sleep 300 & echo sleeps $! >> '{ledger}'"], check=True)
        os.kill(os.getppid(), signal.SIGSTOP)

    await task.step("start", start)
    if asks:
        await task.ask("what now?")


CHECKS: dict[str, Any] = {
    "done": lambda: Done("sent by the first try"),
    "true": lambda: True,
    "not done": lambda: False,
    "unknown": lambda: None,
    "broken": lambda: 1 / 0,
}


async def sends_once(task: Any, ledger: str, check: str = "", after_a_failure: bool = False) -> Any:
    """A step that must not happen twice; its first try is cut off by SIGKILL."""
    entries = Entries(ledger)
    if after_a_failure:
        with contextlib.suppress(StepFailed):
            await task.step("extra", lambda: 1 / 0, retries=0)

    def send() -> str:
        entries.began()
        if current_step().try_number == 1:
            die()
        return "sent by a later try"

    return await task.step("send", send, effect="once", check=CHECKS.get(check))


async def raises_once(task: Any, ledger: str) -> None:
    """A step that must not happen twice, and raises: nobody knows whether it did before."""
    entries = Entries(ledger)

    def send() -> None:
        entries.began()
        raise ConnectionError("the answer did not come")

    await task.step("send", send, effect="once")


async def takes_its_journal_with_it(task: Any, ledger: str) -> None:
    """A step that loses the journal, and its worker, each time it is tried."""
    entries = Entries(ledger)

    def one() -> None:
        entries.began()

    def two() -> None:
        entries.began()
        os.unlink(task.workspace / ".task" / "journal.jsonl")
        die()

    await task.step("one", one)
    await task.step("two", two)


# -- two of everything -----------------------------------------------------------------------------------------------


async def stops_itself(task: Any, ledger: str) -> str:
    """A worker that is stopped in the first try of a step, and goes through in the next."""
    entries = Entries(ledger)

    def stuck() -> None:
        entries.began()
        if current_step().try_number == 1:
            os.kill(os.getpid(), signal.SIGSTOP)

    await task.step("one", entries.began)
    await task.step("stuck", stuck)
    return "through"


async def leaves_one_with_the_lock(task: Any, ledger: str, gate: str) -> str:
    """In its first life a step leaves a process behind in a session of its own: it has inherited the task's lock."""
    entries = Entries(ledger)

    def start() -> None:
        entries.began()
        if task.attempt > 1:
            return
        lock = next(fd for fd in map(int, os.listdir("/proc/self/fd")) if _leads_to(fd, task.workspace))
        os.set_inheritable(lock, True)
        left = subprocess.Popen(["sleep", "300"], start_new_session=True, close_fds=False)
        entries.write(f"sleeps {left.pid}")
        Path(gate).read_bytes()

    await task.step("one", entries.began)
    await task.step("start", start)
    return "through"


def _leads_to(fd: int, directory: Path) -> bool:
    with contextlib.suppress(OSError):
        return os.readlink(f"/proc/self/fd/{fd}") == str(directory)
    return False


async def waits_with_a_limit(task: Any, ledger: str, gate: str, seconds: float, raises: bool = False) -> str:
    """As `waits_in_two`, with a limit of the second step; the third raises once, if it is told to."""
    entries = Entries(ledger)

    def two() -> None:
        entries.began()
        Path(gate).read_bytes()

    def three() -> None:
        entries.began()
        if raises and current_step().try_number == 1:
            raise ValueError("once")

    await task.step("one", entries.began)
    await task.step("two", two, timeout=seconds)
    await task.step("three", three)
    return "through"
