"""Skills for the tests of orders: what they do is told them while they run, by a word in a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dying
from skills_under_test import Entries, die

from orchestrator import current_step

dying.install_as_ordered()


async def steered(
    task: Any, ledger: str, gate: str, word: str, effect: str = "idempotent", ask: bool = False
) -> list[Any]:
    """Three steps. The second waits at the gate, raises, dies or just works, as the word in the file has it.

    With `ask` the skill asks before it. What it was told, and each message, goes into the ledger.
    """
    entries = Entries(ledger)

    def one() -> str:
        entries.began()
        return f"one {current_step().try_number}"

    def two() -> str:
        entries.began()
        match Path(word).read_text("utf-8"):
            case "wait":
                Path(gate).read_bytes()
            case "raise":
                raise ValueError("no")
            case "die":
                die()
        return "two"

    def three() -> str:
        entries.began()
        return "three"

    await task.plan(["one", "two", "three"])
    found = [await task.step("one", one)]
    if ask:
        entries.write(f"answered {await task.ask('Which?')}")
    found.append(await task.step("two", two, retries=0, effect=effect))
    for text in task.messages():
        entries.write(f"read {text}")
    found.append(await task.step("three", three))
    entries.write(f"handed back {found[0]}, {found[1]}")
    return found


async def listens(task: Any, ledger: str, gate: str, steps: int) -> None:
    """Before each step it reads its messages; in each step it waits at the gate."""
    entries = Entries(ledger)

    def work() -> None:
        entries.began()
        Path(gate).read_bytes()

    for number in range(1, steps + 1):
        for text in task.messages():
            entries.write(f"read {text}")
        await task.step(f"step {number}", work)


async def asks_twice(task: Any, ledger: str) -> str:
    """One question before a step and one behind it, and the first one's words once more."""
    entries = Entries(ledger)
    one = await task.ask("Which colour?")
    await task.step("paint", entries.began)
    two = await task.ask("Which size?")
    three = await task.ask("Which colour?")
    entries.write(f"told {one} {two} {three}")
    return f"{one} {two} {three}"
