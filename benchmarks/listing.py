"""What `list` and `recover --dry-run` cost over a thousand tasks, as ratios to bare `python -c pass` in the same run.

    python benchmarks/listing.py [--tasks N] [--repeat N]

A quarter of the tasks has ended, half was interrupted in its middle, a quarter was never started. The last lines are
`list ratio: X` (at most 15) and `dry-run ratio: X` (at most 25).
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time

from orchestrator import workspace
from orchestrator.core.model import Outcome, StepId, StepStatus, TaskSpec
from orchestrator.takeover import take_over

STEPS = 6


def make(root: str, number: int) -> None:
    """One task as a worker of long ago left it."""
    where, lock = workspace.create(root, TaskSpec(f"task number {number}", "python", "module:skill"), time.time)
    kind = number % 4
    if kind < 3:
        task = take_over(where, time.time)
        task.begin_attempt(token="none")
        gone = [2**22, 1, "another boot", "pid:[1]", os.uname().nodename]
        task.started(worker=gone, guard=gone)
        for step in range(STEPS if kind == 0 else STEPS - 2):
            state = task.begin_try(StepId(f"step {step}"), 1, effect="idempotent", args="")
            if kind == 1 and step == STEPS - 3:
                break
            task.commit(state.label, StepStatus.DONE, result={"step": step})
        task.settle()
        if kind == 0:
            task.end(task.announcement(Outcome.COMPLETED, ""))
        task.close()
    os.close(lock)


def timed(command: list[str]) -> float:
    begun = time.perf_counter()
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - begun


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tasks", type=int, default=1000)
    parser.add_argument("--repeat", type=int, default=11)
    given = parser.parse_args()
    orchestrator = os.path.join(os.path.dirname(sys.executable), "orchestrator")
    with tempfile.TemporaryDirectory(prefix=".benchmark-", dir=".") as root:
        for number in range(given.tasks):
            make(root, number)
        commands = {
            "bare": [sys.executable, "-c", "pass"],
            "list": [orchestrator, "--root", root, "list"],
            "dry-run": [orchestrator, "--root", root, "recover", "--dry-run"],
        }
        taken: dict[str, list[float]] = {name: [] for name in commands}
        for _ in range(given.repeat):  # in turns, so that a busy machine meets all of them
            for name, command in commands.items():
                taken[name].append(timed(command))
    medians = {name: statistics.median(times) for name, times in taken.items()}
    for name, median in medians.items():
        print(f"{name:8} {median * 1000:7.1f} ms")
    print(f"list ratio: {medians['list'] / medians['bare']:.1f}")
    print(f"dry-run ratio: {medians['dry-run'] / medians['bare']:.1f}")


if __name__ == "__main__":
    main()
