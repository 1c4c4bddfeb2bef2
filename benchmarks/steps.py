"""What one durable no-op step costs, beside the raw floor of the same promise measured in the same run.

    python benchmarks/steps.py [--repeat N]

The floor does with bare `os` calls what a step has to: append and sync the commit to an open file, append to the step's
file, write task.md anew and rename it. Both run in a real worker, in turns, so that a noisy disk meets both. The last
line is `ratio: X`: median step over median floor, the worst of 10, 100 and 1,000 steps.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import anyio

from orchestrator import Coordinator, Task

HERE = Path(__file__).resolve()
SIZES = (10, 100, 1000)
BLOCK = b"x" * 330  # the two checkpoints of a step file
LINE = b"y" * 320  # the two journal lines of a step


class Floor:
    """The same promise in bare calls: one append and sync, one append to another file, one write and rename."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._log = os.open(f"{directory}/log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._text = b"# Task: floor\n## Status: working\n\n[start done]\n"

    def step(self, number: int) -> None:
        os.write(self._log, LINE)
        os.fdatasync(self._log)
        other = os.open(f"{self._directory}/step {number}.md", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(other, BLOCK)
        os.close(other)
        self._text += b"[working done] step %d\n" % number
        new = os.open(f"{self._directory}/task.tmp", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.write(new, self._text)
        os.close(new)
        os.rename(f"{self._directory}/task.tmp", f"{self._directory}/task.md")


async def nothing() -> None:
    """The step that does nothing."""


async def measure(task: Task, steps: int) -> dict[str, Any]:
    """Run so many steps, each after one of the floor; the medians in microseconds."""
    directory = task.workspace / "floor"
    directory.mkdir()
    floor = Floor(str(directory))
    floors, costs = [], []
    for number in range(steps):
        begun = time.perf_counter()
        floor.step(number)
        floors.append(time.perf_counter() - begun)
        begun = time.perf_counter()
        await task.step(f"step {number}", nothing)
        costs.append(time.perf_counter() - begun)
    return {"floor": statistics.median(floors) * 1e6, "step": statistics.median(costs) * 1e6}


async def run(repeat: int) -> float:
    worst = 0.0
    with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".benchmark-") as root:
        async with Coordinator(root) as coordinator:
            for steps in SIZES:
                found = [await one(coordinator, steps) for _ in range(repeat)]
                floor, step = (statistics.median(f[key] for f in found) for key in ("floor", "step"))
                print(f"{steps:5} steps: floor {floor:7.1f} µs   step {step:7.1f} µs   ratio {step / floor:.2f}")
                worst = max(worst, step / floor)
    return worst


async def one(coordinator: Coordinator, steps: int) -> dict[str, float]:
    handle = await coordinator.spawn(f"{HERE}:measure", args={"steps": steps})
    said = await handle.wait()
    if not said.ok or said.result is None:
        sys.exit(said.summary)
    found: dict[str, float] = json.loads(await anyio.Path(said.result).read_text())
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeat", type=int, default=5, help="runs per size; their median counts")
    print(f"ratio: {anyio.run(run, parser.parse_args().repeat):.2f}")


if __name__ == "__main__":
    main()
