"""The skills of the scenarios. What their steps do is appended to a log outside of the product, and nowhere else.

Their environment says what is asked of a step besides its work: `ORCHESTRATOR_TEST_LEDGER` names the log;
`ORCHESTRATOR_TEST_DIE` the step in whose first try everything dies, worker and coordinator; and `ASKED`, a function by
the label of a step, is called in it (a person who does something just then).
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable
from typing import Any

import anyio

from orchestrator import current_step
from orchestrator.core.model import INLINE_RESULT_BYTES

LEDGER = "ORCHESTRATOR_TEST_LEDGER"
DIE = "ORCHESTRATOR_TEST_DIE"
#: What happens beside the work, by the label of the step in whose first try it does. Inherited by forks only.
ASKED: dict[str, Callable[[Any], None]] = {}

LARGE = "large " * (INLINE_RESULT_BYTES // 6 + 1)


def write(text: str) -> None:
    fd = os.open(os.environ[LEDGER], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(fd, f"{text}\n".encode())
    os.close(fd)


def enter(task: Any) -> int:
    """Write down that the step was entered; which try it is."""
    step = current_step()
    write(f"{step.label} began {step.try_number}")
    if step.try_number == 1 and os.environ.get(DIE) == step.label:
        os.killpg(int(os.environ["ORCHESTRATOR_TEST_GROUP"]), signal.SIGKILL)
    if step.try_number == 1 and step.label in ASKED:
        ASKED[step.label](task)
    return step.try_number


def leave(value: Any) -> Any:
    write(f"{current_step().label} ended")
    return value


async def varied(task: Any) -> dict[str, Any]:
    """Notes, a result above the inline limit, a step that fails at first, two at once, and one that is skipped."""

    def gather() -> list[str]:
        enter(task)
        current_step().note("looked at both\n\nand took them")
        return leave(["b", "a"])

    async def collect() -> str:
        enter(task)
        return leave(LARGE)

    def fragile() -> int:
        if enter(task) == 1:
            raise ValueError("not at the first try")
        return leave(7)

    async def half(side: str) -> str:
        enter(task)
        return leave(side)

    def report(found: Any) -> str:
        enter(task)
        return leave(f"{found}")

    await task.plan(["gather", "collect (all)", "fragile", "never needed"])
    found = await task.step("gather", gather)
    large = await task.step("collect (all)", collect)
    number = await task.step("fragile", fragile)
    sides: dict[str, Any] = {}

    async def one(side: str) -> None:
        sides[side] = await task.step("half", half, side, key=side)

    async with anyio.create_task_group() as group:
        group.start_soon(one, "left")
        group.start_soon(one, "right")
    await task.skip("never needed", "it was not")
    said = await task.step("report", report, [found, len(large), number, sorted(sides)])
    return {"said": said}


async def three(task: Any) -> str:
    """The shortest that has a middle."""

    def work(value: str) -> str:
        enter(task)
        current_step().note(f"about {value}")
        return leave(value)

    await task.plan(["one", "two", "three"])
    return "".join([str(await task.step(name, work, name)) for name in ("one", "two", "three")])


async def stubborn(task: Any) -> None:
    """Goes on whatever a step raises."""

    def work() -> None:
        enter(task)

    for name in ("one", "two", "three"):
        with contextlib.suppress(Exception):
            await task.step(name, work)


async def fails(task: Any) -> str:
    """A step that fails for good, until a person orders another try."""

    def wrong() -> str:
        enter(task)
        if sum(line.startswith("wrong began") for line in open(os.environ[LEDGER])) < 2:  # noqa: SIM115
            raise ValueError("no")
        return leave("right")

    def first() -> None:
        enter(task)

    await task.step("first", first)
    return str(await task.step("wrong", wrong, retries=0))


async def sends_once(task: Any) -> str:
    """A step that must not happen twice, and nobody can tell whether it has."""

    def send() -> str:
        enter(task)
        return leave("sent")

    def thank() -> str:
        enter(task)
        return leave("thanked")

    await task.step("send", send, effect="once")
    return str(await task.step("thank", thank))


async def asks(task: Any) -> str:
    """A question to a person, and the messages that came."""

    def first() -> None:
        enter(task)

    def use(answer: str) -> str:
        enter(task)
        return leave(answer)

    await task.step("first", first)
    answer = await task.ask("which one?")
    heard = task.messages()
    return f"{await task.step('use', use, answer)} {heard}"
