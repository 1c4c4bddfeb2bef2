"""Time as it was lived: a clock that stands still while the process does.

A machine that sleeps, a container that is paused, a process tree that is stopped: when it wakes, hours may have passed,
and every limit with them, though nothing had the chance to work. A limit of a worker is a limit of the time in which it
could. So a thread looks at the clock once a second; when it did not come to that for several, the rest is not counted.
(The suspension of a whole machine is not in CLOCK_MONOTONIC on Linux to begin with; that of a container is.)

The guard keeps its limits in the same way, by itself (guard.py): a worker whose threads are all stuck is ended by it.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable

#: Between two looks at the clock.
TICK_SECONDS = 1.0
#: A look that comes later than this was kept from coming: what is above a tick was not lived.
LATE_SECONDS = 3.0


class Lived:
    """Seconds on a monotonic clock, without those in which nobody came to look at it. Never goes back."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._state = clock(), 0.0  # when it was looked at last, and how much was not lived until then
        self._shown = self._state[0]

    def tick(self) -> None:
        """To be called every TICK_SECONDS, from one thread."""
        now = self._clock()
        last, lost = self._state
        self._state = now, lost + _not_lived(now - last)

    def __call__(self) -> float:
        now = self._clock()
        last, lost = self._state
        self._shown = max(self._shown, now - lost - _not_lived(now - last))
        return self._shown


def _not_lived(gap: float) -> float:
    return gap - TICK_SECONDS if gap > LATE_SECONDS else 0.0


def install() -> None:
    """Give the running event loop lived time: all its timers, and so every limit and pause in it, keep to that."""
    lived = Lived()

    def look() -> None:
        while True:
            time.sleep(TICK_SECONDS)
            lived.tick()

    asyncio.get_running_loop().time = lived  # type: ignore[method-assign]
    threading.Thread(target=look, daemon=True, name="lived time").start()
