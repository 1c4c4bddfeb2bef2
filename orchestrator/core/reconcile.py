"""What the step files prove and the journal has lost: a checkpoint is the copy of a line that was there. Pure.

The journal is written first, so a checkpoint that is ahead of it tells of a line that was lost since: torn off, holed,
cut away by somebody. Without this, a step whose commit is lost would be done by hand, without its result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
        later = blocks if state is None else _behind(blocks, state)
        if not later:
            continue
        found = rebuild.Step(step, label or names.label(step, snapshot.steps), None, later, file)
        if state is None:
            lines.append(("plan", {"steps": [rebuild.said(found)]}))
        begun = state is not None and bool(state.tries or state.committed)
        lines += rebuild.by_blocks(found, begun=begun, open_=state is not None and state.open_run is not None)
        known.append(rebuild.Step(step, found.label, None, blocks, file))
    most = max([attempt, *(rebuild.bounded(block.attempt) for step in known for block in step.blocks)])
    return Ahead(tuple(lines), most, rebuild.deaths(known))


def _behind(blocks: Sequence[Checkpoint], state: StepState) -> tuple[Checkpoint, ...]:
    """The checkpoints behind the last that says what the journal says, or else behind the last of which it knows.

    A rank does not tell what came first after a step was reopened: done, reopened, skipped are of one try.
    """
    here, stands = (state.tries, _word(state)), _stands(state)
    last = range(len(blocks), 0, -1)
    same = next((i for i in last if (blocks[i - 1].try_number, blocks[i - 1].status) == here), 0)
    return tuple(blocks[same or next((i for i in last if _place(blocks[i - 1]) <= stands), 0) :])


def _word(state: StepState) -> str:
    """What the checkpoint says that is the copy of the step's last line."""
    if state.status is StepStatus.WORKING:
        return "running" if state.error is None else "raised"
    return "reopened" if state.status is StepStatus.PENDING and (state.tries or state.committed) else state.status.value


def _place(block: Checkpoint) -> tuple[int, int]:
    return rebuild.bounded(block.try_number), _RANKS.get(block.status, -1)


def _stands(state: StepState) -> tuple[int, int]:
    """Where the journal says that the step is; what was never begun is before everything."""
    if state.status is StepStatus.PENDING and not (state.tries or state.committed):
        return 0, -1
    if state.status is StepStatus.WORKING and state.error is not None:
        return state.tries, 1
    return state.tries, _OF_STATUS[state.status]
