"""`make soak MINUTES=n`: SIGKILL to workers, guards and coordinators at random moments, over tasks of all kinds.

Prints seed, kills by phase of the write order, resumes, steps run, and what must be nothing: committed steps entered
again, results lost, temporaries and processes left. The last line is JSON. The exit code is 1 when one of the four is
not 0, or nothing was killed. SEED draws the same tasks, and what is done to them, again. Ctrl-C ends all that was
started and prints what there is.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import sys
import tempfile
from pathlib import Path

import anyio
from soak_judge import Figures
from soaking import Soak


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Kill workers and coordinators at random moments; see that nothing is lost."
    )
    parser.add_argument("--minutes", type=float, default=2.0, help="how long; a fraction will do [2]")
    parser.add_argument("--tasks", type=int, help="so many, if the time is enough [what the time allows]")
    parser.add_argument("--seed", type=int, help="draw the same again [at random]")
    parser.add_argument("--at-once", type=int, default=2 + 2 * (os.cpu_count() or 1), help="tasks at once")
    parser.add_argument("--place", help="a directory for all of it [a new one for temporary files]")
    parser.add_argument("--fault", default="", help="plant a fault of the product: commits, results, temporaries")
    return parser.parse_args()


async def until_told(soak: Soak, seconds: float, tasks: int | None) -> bool:
    """Run it. False when somebody stopped it."""
    told = False
    async with anyio.create_task_group() as group:

        async def listen() -> None:
            nonlocal told
            with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
                async for _ in signals:
                    told = True
                    group.cancel_scope.cancel()
                    return

        group.start_soon(listen)
        await soak.run(seconds, tasks)
        group.cancel_scope.cancel()
    return not told


def main() -> int:
    wanted = options()
    seed = wanted.seed if wanted.seed is not None else random.SystemRandom().randrange(10**6)
    place = Path(tempfile.mkdtemp(prefix="orchestrator-soak-", dir=wanted.place)).resolve()
    os.environ["ORCHESTRATOR_ROOT"] = str(place / "root")  # by this whatever we start is found again
    figures = Figures(seed, wanted.minutes)
    soak = Soak(place, figures, at_once=wanted.at_once, fault=wanted.fault)
    print(f"soak: seed {seed}, {wanted.minutes:g} min, {wanted.at_once} tasks at once, in {place}", flush=True)
    whole = False
    try:
        whole = anyio.run(until_told, soak, wanted.minutes * 60, wanted.tasks)
    finally:
        soak.end_all()
    if soak.kept:
        print(f"kept in {place} (seed {seed}):", *(f"  {what}" for what in soak.kept), sep="\n")
    else:
        shutil.rmtree(place, ignore_errors=True)
    if not whole:
        print("stopped before its time; what there was:")
    print(figures.table())
    print(figures.line(), flush=True)
    return figures.code if whole else 128 + signal.SIGINT


if __name__ == "__main__":
    sys.exit(main())
