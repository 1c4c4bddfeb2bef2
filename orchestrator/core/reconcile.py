"""What the step files prove and the journal has lost: a checkpoint is the copy of a line that was there. Pure.

The journal is written first, so a checkpoint that is ahead of it tells of a line that was lost since: torn off, holed,
cut away by somebody. Without this, a step whose commit is lost would be done by hand, without its result.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator.core import names, rebuild
from orchestrator.core.model import Checkpoint, StepStatus
from orchestrator.core.snapshot import Snapshot, StepState
from orchestrator.core.stepfile import StepFile

#: What becomes of one try, in its order. Of two tries the later one is ahead.
_RANKS = {"running": 0, "raised": 1, "uncertain": 1, "failed": 2, "skipped": 2, "done": 2, "reopened": 3}
_OF_STATUS = {
    StepStatus.WORKING: 0,
    StepStatus.UNCERTAIN: 1,
    StepStatus.FAILED: 2,
    StepStatus.SKIPPED: 2,
    StepStatus.DONE: 2,
    StepStatus.PENDING: 3,
}


@dataclass(frozen=True, slots=True)
class Ahead:
    """Lines to be added to the journal, kind and fields, and the highest attempt that they tell of."""

    lines: tuple[tuple[str, dict[str, Any]], ...]
    attempt: int
    deaths: int


def ahead(snapshot: Snapshot, files: Mapping[str, StepFile], attempt: int = 0) -> Ahead:
    """What of the checkpoints the journal does not have. `attempt`: the highest that something else tells of."""
    lines: list[tuple[str, dict[str, Any]]] = []
    known: list[rebuild.Step] = []
    for step, (file, blocks) in rebuild.blocks_of(files).items():
        label = snapshot.labels.get(step)
        state = snapshot.steps[label] if label is not None else None
        later = tuple(block for block in blocks if state is None or _place(block) > _stands(state))
        if not later:
            continue
        found = rebuild.Step(step, label or names.label(step, snapshot.steps), None, later, file)
        if state is None:
            lines.append(("plan", {"steps": [rebuild.said(found)]}))
        lines += rebuild.by_blocks(found)
        known.append(rebuild.Step(step, found.label, None, blocks, file))
    most = max([attempt, *(rebuild.bounded(block.attempt) for step in known for block in step.blocks)])
    return Ahead(tuple(lines), most, rebuild.deaths(known))


def _place(block: Checkpoint) -> tuple[int, int]:
    return rebuild.bounded(block.try_number), _RANKS.get(block.status, -1)


def _stands(state: StepState) -> tuple[int, int]:
    """Where the journal says that the step is; pending without a try is before everything."""
    if state.status is StepStatus.PENDING and not state.tries:
        return 0, -1
    if state.status is StepStatus.WORKING and state.error is not None:
        return state.tries, 1
    return state.tries, _OF_STATUS[state.status]
