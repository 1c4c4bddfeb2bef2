"""What an idle `serve` costs over a thousand tasks, as ratios in the same run.

    python benchmarks/serving.py [--tasks N] [--seconds S]

The last lines are `scan ratio: X`, a scan of idle tasks to as many bare stats (at most 10), and `idle ratio: X`, the
CPU seconds of a running `serve` to the seconds it was idle (at most 0.02).
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time

import psutil
from listing import make

from orchestrator import recovery, serving, store
from orchestrator.compose import Coordinator
from orchestrator.core.model import Outcome
from orchestrator.store import Paths
from orchestrator.takeover import take_over


def make_idle(root: str, number: int) -> None:
    """A task that needs nobody: ended, or paused by a person."""
    make(root, number)
    where = Paths(os.path.join(root, store.task_ids(root)[-1]))
    if store.ended_by_tail(where) is None:
        task = take_over(where, time.time)
        task.begin_attempt(token="none")
        task.record("handled", sync=False, request="r", verb="pause")
        task.wait_for_person(task.announcement(Outcome.PAUSED, "paused"))
        task.close()


def scanning(root: str, repeat: int) -> float:
    """A scan of tasks that were set aside, to three stats of each."""
    with open(os.devnull, "w") as nowhere:
        serve = serving.Serving(Coordinator(root), 5, serving.logger(nowhere))
        for where, mark in serve.scan():
            serve._set_aside(where, mark, recovery.inspect(where))
        assert serve.scan() == []
        ratios = []
        for _ in range(repeat):
            begun = time.perf_counter()
            for task_id in os.listdir(root):
                for name in (".task/journal.jsonl", ".task/requests.jsonl", "task.md"):
                    path = f"{root}/{task_id}/{name}"
                    if os.path.exists(path):
                        os.stat(path)
            middle = time.perf_counter()
            serve.scan()
            ratios.append((time.perf_counter() - middle) / (middle - begun))
    return statistics.median(ratios)


def idling(root: str, seconds: float) -> float:
    """CPU seconds of a `serve` that has nothing to do, to the seconds that passed."""
    orchestrator = os.path.join(os.path.dirname(sys.executable), "orchestrator")
    with subprocess.Popen([orchestrator, "--root", root, "serve"], stdout=subprocess.DEVNULL) as process:
        watched = psutil.Process(process.pid)
        used, still = -1.0, 0
        while still < 3:  # it has looked at all of them
            time.sleep(0.2)
            now = sum(watched.cpu_times()[:2])
            still, used = (still + 1, now) if now - used < 0.02 else (0, now)
        begun = time.perf_counter()
        time.sleep(seconds)
        ratio = (sum(watched.cpu_times()[:2]) - used) / (time.perf_counter() - begun)
        process.terminate()
        assert process.wait() == 0
    return ratio


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tasks", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--repeat", type=int, default=11)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix=".benchmark-", dir=".") as root:
        root = os.path.abspath(root)
        for number in range(given.tasks):
            make_idle(root, number)
        print(f"scan ratio: {scanning(root, given.repeat):.1f}")
        print(f"idle ratio: {idling(root, given.seconds):.4f}")


if __name__ == "__main__":
    main()
