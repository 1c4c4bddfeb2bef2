"""A program with a coordinator in it, to be killed: `python soak_host.py ROOT [TASK…]` takes tasks to their ends."""

from __future__ import annotations

import contextlib
import sys

import anyio

from orchestrator import Coordinator
from orchestrator.errors import NotRunning, OrchestratorError


async def main(root: str, ids: list[str]) -> None:
    async with Coordinator(root) as coordinator:
        for said in await coordinator.recover(ids):
            if said.action == "resumed":
                with contextlib.suppress(NotRunning, OrchestratorError):  # another has it, or it is gone meanwhile
                    await coordinator.wait(said.id)


if __name__ == "__main__":
    anyio.run(main, sys.argv[1], sys.argv[2:])
