"""Skills that spawn sub-tasks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve()


def write(ledger: str, text: str) -> None:
    with open(ledger, "a", encoding="utf-8") as file:
        file.write(f"{text}\n")


def stand_at(gate: str, ledger: str, text: str) -> None:
    """Say that we wait, and wait until somebody opens the gate."""
    write(ledger, f"{text} waits")
    with open(gate, encoding="utf-8"):
        pass


async def child(task: Any, ledger: str, n: int, gate: str | None = None, fail: bool = False) -> int:
    if gate:
        await task.step("wait", stand_at, gate, ledger, f"child {n}")
    await task.step("work", write, ledger, f"child {n} worked")
    if fail:
        raise ValueError(f"child {n} cannot")
    return n * 10


async def parent(task: Any, ledger: str, many: int = 3, **more: Any) -> list[int]:
    """Spawn so many children, then add up what they give."""
    made = [
        await task.spawn(f"{HERE}:child", name=f"child {n}", args={"ledger": ledger, "n": n, **more})
        for n in range(many)
    ]
    await task.step("all spawned", write, ledger, "all spawned")
    return [await one.result() for one in made]


async def leaver(task: Any, ledger: str, on_end: str, **more: Any) -> str:
    """End without asking for the child's result."""
    await task.spawn(f"{HERE}:child", args={"ledger": ledger, "n": 1, **more}, on_end=on_end)
    return "left"


async def deep(task: Any, ledger: str) -> int:
    """Spawn oneself, for ever."""
    below = await task.spawn(f"{HERE}:deep", args={"ledger": ledger})
    await task.step("below", write, ledger, "below")
    return 1 + await below.result()
