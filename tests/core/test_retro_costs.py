"""What the retrospect counts as lost, and what it does not hold against a task."""

from __future__ import annotations

from typing import Any

from orchestrator.core.retro import analyse


def entry(second: float, kind: str, **fields: Any) -> dict[str, Any]:
    return {"at": f"2026-11-30T12:00:{second:06.3f}+00:00", "kind": kind, **fields}


def test_of_a_death_that_nobody_saw_the_work_up_to_its_last_sign_of_life_was_lost() -> None:
    killed = [
        entry(0, "attempt"),
        entry(1, "running", step="a", **{"try": 1}),
        entry(50, "closed", outcome="lost", last_sign="2026-11-30T12:00:08+00:00"),
        entry(51, "attempt"),
    ]
    retro = analyse(killed)
    assert retro.lost == 7
    assert retro.waiting == 43
    del killed[2]["last_sign"]
    assert analyse(killed).lost == 0


def test_a_step_that_a_person_ordered_anew_was_not_run_twice_by_mistake() -> None:
    first = [entry(1, "running", step="a", **{"try": 1}), entry(2, "commit", step="a", status="done")]
    again = [entry(4, "running", step="a", **{"try": 2}), entry(5, "commit", step="a", status="done")]
    assert analyse([*first, *again]).run_twice == 1
    ordered = analyse([*first, entry(3, "redo", step="a"), *again])
    assert ordered.run_twice == 0
    assert [t.how for t in ordered.steps["a"].tries] == ["reopened", "done"]
