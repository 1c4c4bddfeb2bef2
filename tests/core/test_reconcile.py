"""What the step files prove and the journal has lost, wherever in the life of a step it was cut off."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.core import stepfile
from orchestrator.core.model import Checkpoint, StepError
from orchestrator.core.reconcile import ahead
from orchestrator.core.snapshot import Snapshot, fold

RUN = "task-20260101-000000-001.1"
ERROR = StepError("runtime", "E", "it raised")

#: What may become of one step, word by word: each is a line of the journal and a checkpoint of the step's file.
LIVES = [
    "running done reopened skipped",
    "running done reopened running done",
    "running uncertain reopened running done",
    "running done uncertain reopened running done",
    "running failed reopened skipped",
    "running raised running failed skipped",
    "running uncertain done reopened skipped",
    "skipped reopened running done",
]


def lines(life: list[str]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [{"kind": "attempt"}, {"kind": "plan", "steps": [{"step": "a"}]}]
    for number, word in enumerate(life, 1):
        said: dict[str, Any] = {"step": "a", "try": life[:number].count("running")}
        match word:
            case "running":
                found.append({**said, "kind": "running"})
            case "raised":
                found.append({**said, "kind": "raised", "error": ERROR.to_json()})
            case "reopened":
                found.append({"kind": "redo", "step": "a"})
            case _:
                found.append({**said, "kind": "commit", "status": word})
    return [{"run": RUN, "seq": n, "at": "", **line} for n, line in enumerate(found, 1)]


def step_file(life: list[str]) -> stepfile.StepFile:
    text = "# a\n"
    for number, word in enumerate(life, 1):
        error = ERROR if word == "raised" else None
        block = Checkpoint("a", word, 1, None, 1, life[:number].count("running"), error=error)
        text += stepfile.render_checkpoint(block)
    return stepfile.parse(text)


def stands(snapshot: Snapshot) -> tuple[Any, ...]:
    state = snapshot.steps["a"]
    return state.status, state.tries


@pytest.mark.parametrize("life", LIVES)
def test_what_was_lost_of_a_step_is_taken_back_and_nothing_that_is_known(life: str) -> None:
    words = life.split()
    for kept in range(len(words) + 1):
        snapshot = fold(lines(words[:kept]))
        found = ahead(snapshot, {"a.md": step_file(words)})
        for number, (kind, fields) in enumerate(found.lines):
            snapshot.apply({"run": RUN, "seq": 100 + number, "at": "", "kind": kind, **fields})
        assert stands(snapshot) == stands(fold(lines(words))), f"of {kept} words"
        assert kept < len(words) or not found.lines
