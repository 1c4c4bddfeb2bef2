"""Workers for workspaces that others made: their steps have the names that the checklist has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from skills_under_test import Entries


async def follows(task: Any, ledger: str, steps: list[str], effect: str = "idempotent", gate: str = "") -> list[Any]:
    """Does the steps in their order; what a finished one hands back is in its result."""
    entries = Entries(ledger)

    def do() -> str:
        entries.began()
        if gate:
            Path(gate).read_bytes()
        return "done by us"

    return [await task.step(name, do, effect=effect) for name in steps]
