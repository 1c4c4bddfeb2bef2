"""Following a worker so closely that it can be caught inside a step, however short its steps are."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import anyio
import anyio.lowlevel
import psutil

from orchestrator import containment, identity
from orchestrator.core import stepfile
from orchestrator.core.model import Identity
from orchestrator.core.snapshot import StepState
from orchestrator.store import Look, Paths, look

#: How long the worker runs between two looks: longer and longer within a step, short whenever the journal grew.
_SHORTEST, _LONGEST = 0.001, 0.05


async def hold_in_a_step(where: Paths, who: Identity, *, after: int, show: Callable[[Look], None]) -> StepState | None:
    """Return with the worker stopped by SIGSTOP inside a step: begun, not done, with `after` steps done before it.

    The first such step is let run until it has noted something; if it ends without, the next one will do. `show` is
    given every look. None when the worker ended first. The worker may be stopped already; when this is cancelled, or
    `show` raises, it goes on.
    """
    slice_seconds, size, waited_for = _SHORTEST, -1, ""
    while identity.alive(who):
        await anyio.sleep(slice_seconds)
        containment.send(who.pid, signal.SIGSTOP)
        caught = False
        try:
            if not await _stopped(who):
                return None
            seen = look(where)
            show(seen)
            step = _open_step(seen, after)
            if step is not None:
                waited_for = waited_for or step.label
                last = step.label == seen.snapshot.order[-1]
                caught = last or step.label != waited_for or _has_notes(where, step)
                if caught:
                    return step
        finally:
            if not caught and identity.alive(who):
                containment.send(who.pid, signal.SIGCONT)
        now = os.stat(where.journal).st_size
        in_a_step = any(state.open_run for state in seen.snapshot.steps.values())
        slice_seconds = min(2 * slice_seconds, _LONGEST) if in_a_step and now == size else _SHORTEST
        size = now
    return None


async def _stopped(who: Identity) -> bool:
    """Wait until the signal has taken effect. False when the process ended instead."""
    try:
        while psutil.Process(who.pid).status() != psutil.STATUS_STOPPED:
            if not identity.alive(who):
                return False
            await anyio.lowlevel.checkpoint()
    except psutil.NoSuchProcess:
        return False
    return bool(identity.alive(who))


def _open_step(seen: Look, after: int) -> StepState | None:
    snapshot = seen.snapshot
    if snapshot.counts().get("done", 0) < after:
        return None
    return next((s for s in snapshot.steps.values() if s.open_run is not None), None)


def _has_notes(where: Paths, step: StepState) -> bool:
    with open(where.step(step.file), encoding="utf-8", errors="replace") as file:
        return bool(stepfile.notes_since_running(file.read()).strip())
