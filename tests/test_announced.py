"""What is announced of a task's end: how long it took."""

from __future__ import annotations

import time
from pathlib import Path

from orchestrator import orders, store, workspace
from orchestrator.core.model import StepId, StepStatus, TaskSpec
from orchestrator.takeover import take_over

HOUR = 3600.0


def test_the_time_between_an_end_and_the_order_that_takes_it_up_again_is_nobodys_work(root: Path) -> None:
    now = float(int(time.time()))  # the journal has milliseconds
    where, _lock = workspace.create(str(root), TaskSpec("it", "python", "m:f"), lambda: now)
    task = take_over(where, lambda: now)
    for attempt in (1, 2):
        task.begin_attempt(token="none")
        task.begin_try(StepId("a"), attempt, effect="idempotent", args="")
        now += 10
        task.commit("a", StepStatus.DONE)
        said = task.announcement("completed", "")
        assert said.seconds == 10 * attempt
        task.end(said)
        store.make_request(where, {"id": f"order {attempt}", "verb": "redo", "step": "a"})
        now += HOUR
        orders.carry_out(task)
    task.close()
