"""What may happen next, decided from what the journal says: every case of the tables, at its borders."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.core import lifecycle
from orchestrator.core.lifecycle import (
    FACE,
    TRANSITIONS,
    WAITING,
    Check,
    Conflict,
    Ended,
    Finish,
    GiveUp,
    HandBack,
    Reopen,
    RunTry,
    Start,
    Wait,
    backoff_seconds,
    check_transition,
    decide_step,
    end_summary,
    next_action,
    outcome_of,
    pause_seconds,
)
from orchestrator.core.model import Outcome, StepError, StepId, StepStatus, TaskStatus, WorkerExit
from orchestrator.core.snapshot import Snapshot, fold
from orchestrator.core.told import StepState
from orchestrator.errors import TransitionError

TASK = "task-20260101-000000-001"
PENDING, WORKING, DONE, FAILED, SKIPPED, UNCERTAIN = StepStatus
WRONG = StepError("runtime", "ValueError", "no")

#: What a step may become, written out a second time: a table that is changed is changed twice.
MAY = {
    PENDING: "working done skipped failed uncertain",
    WORKING: "working done failed uncertain skipped",
    DONE: "pending uncertain",
    FAILED: "pending skipped",
    SKIPPED: "pending",
    UNCERTAIN: "done pending skipped",
}


@pytest.mark.parametrize("before", StepStatus)
@pytest.mark.parametrize("after", StepStatus)
def test_a_step_becomes_what_the_table_says_and_nothing_else(before: StepStatus, after: StepStatus) -> None:
    assert (after in TRANSITIONS[before]) == (after in MAY[before].split())
    if after in MAY[before].split():
        check_transition(before, after, "a step")
        return
    with pytest.raises(TransitionError, match="a step") as refused:
        check_transition(before, after, "a step")
    assert ", ".join(sorted(MAY[before].split())) in str(refused.value.hint)


def test_each_end_has_its_word_in_task_md_and_what_has_none_leaves_the_task_open() -> None:
    assert FACE == {
        "completed": TaskStatus.END,
        "failed": TaskStatus.FAILED,
        "conflict": TaskStatus.FAILED,
        "cancelled": TaskStatus.CANCELLED,
    }
    assert {"uncertain", "question", "paused"} == WAITING


# -- a task ----------------------------------------------------------------------------------------------------------


def told(*lines: dict[str, Any]) -> Snapshot:
    """The fold of these lines; what stands before the first attempt is of none."""
    begun = [line["kind"] for line in lines].index("attempt") if ATTEMPT in lines else len(lines)
    numbered = ((f"{TASK}.{int(n >= begun)}", n + 1, line) for n, line in enumerate(lines))
    return fold({"run": run, "seq": n, "at": "t", **line} for run, n, line in numbered)


ATTEMPT = {"kind": "attempt"}
PLAN = {"kind": "plan", "steps": [{"step": "a"}, {"step": "b"}]}


def commit(step: str, status: str) -> dict[str, Any]:
    return {"kind": "commit", "step": step, "status": status}


def test_a_task_that_has_ended_is_left_as_it_is() -> None:
    ended = told(ATTEMPT, PLAN, {"kind": "end", "outcome": "failed"})
    assert next_action(ended) == Ended("failed")
    assert next_action(ended, cancel="r") == Ended("failed")


def test_a_cancel_comes_before_everything_but_the_end() -> None:
    paused = told(ATTEMPT, PLAN, {"kind": "handled", "request": "p", "verb": "pause"})
    assert next_action(paused, cancel="r") == Finish(Outcome.CANCELLED, "cancelled on request", request="r")


def test_a_task_begins_and_goes_on_at_its_first_unfinished_step() -> None:
    assert next_action(told({"kind": "created"})) == Start(None, fresh=True)
    assert next_action(told(PLAN)) == Start("a", fresh=True)
    assert next_action(told(ATTEMPT, PLAN)) == Start("a", fresh=False)
    assert next_action(told(ATTEMPT, PLAN, commit("a", "done"))) == Start("b", fresh=False)
    assert next_action(told(ATTEMPT, PLAN, commit("a", "skipped"))) == Start("b", fresh=False)
    assert next_action(told(ATTEMPT, PLAN, commit("a", "failed"))) == Start("b", fresh=False)
    assert next_action(told(ATTEMPT, PLAN, commit("a", "done"), commit("b", "done"))) == Start(None, fresh=False)
    assert next_action(told(PLAN, commit("a", "done"))) == Start("b", fresh=False), "adopted: done by another tool"


def test_a_task_waits_for_a_person_and_names_the_verb() -> None:
    paused = told(ATTEMPT, PLAN, {"kind": "handled", "request": "p", "verb": "pause"})
    assert next_action(paused) == Wait(Outcome.PAUSED, "a", "it was paused", "continue TASK")
    unknown = next_action(told(ATTEMPT, PLAN, commit("a", "failed"), commit("b", "uncertain")))
    assert isinstance(unknown, Wait)
    assert (unknown.outcome, unknown.step, unknown.verb) == (Outcome.UNCERTAIN, "b", "resolve TASK 'b' --done|--redo")
    asked = told(ATTEMPT, PLAN, *({"kind": "asked", "question": q} for q in "pq"), _answer("p"))
    assert next_action(asked) == Wait(Outcome.QUESTION, "a", "it asks: q", "answer TASK TEXT")
    assert next_action(told(ATTEMPT, PLAN, {"kind": "asked", "question": "q"}, _answer("q"))) == Start("a", fresh=False)
    assert lifecycle.command_line("answer TASK TEXT", TASK) == f"orchestrator answer {TASK} TEXT"


def _answer(question: str) -> dict[str, Any]:
    return {"kind": "handled", "request": "a", "verb": "answer", "question": question, "text": ""}


def test_a_task_whose_workers_die_in_a_row_is_given_up_at_its_limit() -> None:
    snapshot = told(ATTEMPT, PLAN)
    snapshot.deaths = snapshot.death_limit - 1
    assert isinstance(next_action(snapshot), Start)
    snapshot.deaths += 1
    reason = f"{snapshot.deaths} attempts died in a row without finishing a step"
    error = StepError("crash", "AttemptsDied", reason)
    assert next_action(snapshot) == Finish(Outcome.FAILED, reason, "a", error)


def test_a_worker_that_leaves_without_an_end_has_one_more_chance() -> None:
    snapshot = told(ATTEMPT, PLAN)
    snapshot.incompletes = 1
    assert isinstance(next_action(snapshot), Start)
    snapshot.incompletes = 2
    found = next_action(snapshot)
    assert isinstance(found, Finish)
    assert (found.outcome, found.step, found.error, found.request) == (Outcome.FAILED, "a", None, None)


# -- a step ----------------------------------------------------------------------------------------------------------


def state(status: StepStatus, **fields: Any) -> StepState:
    return StepState(StepId("a"), "a", "a.md", status, **fields)


def decided(found: StepState | None, effect: str = "idempotent", **more: Any) -> object:
    return decide_step(found, **{"effect": effect, "retries": 2, "args": "h", **more})


def test_a_step_that_never_ran_is_run() -> None:
    assert decided(None) == RunTry(1)
    assert decided(state(PENDING)) == RunTry(1)
    assert decided(None, "once") == decided(state(PENDING), "once") == RunTry(1)


def test_what_is_done_or_skipped_is_handed_back() -> None:
    assert decided(state(DONE, args="h")) == decided(state(DONE, args=None)) == HandBack()
    assert decided(state(SKIPPED, args="other")) == HandBack()


def test_done_with_other_arguments_is_a_conflict_unless_a_step_before_was_redone() -> None:
    done = state(DONE, args="other", committed=5)
    assert decided(state(DONE, args="other")) == Conflict()
    assert decided(done) == decided(done, redone=4) == decided(done, redone=5) == Conflict()
    assert decided(done, redone=6) == Reopen()


def test_what_failed_for_good_is_not_tried_again() -> None:
    assert decided(state(FAILED, error=WRONG)) == GiveUp(WRONG, commit=False)
    unknown = decided(state(FAILED))
    assert isinstance(unknown, GiveUp)
    assert unknown.error.type == "Unknown"
    assert unknown.error.error_class == "runtime"


def test_a_step_has_its_tries_and_no_more() -> None:
    for spent in (0, 1, 2):
        assert decided(state(WORKING, tries=spent, spent=spent, error=WRONG)) == RunTry(spent + 1)
    assert decided(state(WORKING, tries=3, spent=3, error=WRONG)) == GiveUp(WRONG, commit=True)
    assert isinstance(decided(state(PENDING, spent=3)), GiveUp)
    assert decided(state(WORKING, tries=1, spent=1, error=WRONG), retries=0) == GiveUp(WRONG, commit=True)
    assert decided(state(WORKING, tries=7, spent=0)) == RunTry(8), "cut off: counted, and not spent"


@pytest.mark.parametrize("now, then", [("once", "idempotent"), ("idempotent", "once"), ("once", "once")])
def test_what_must_not_happen_twice_is_asked_about_when_it_was_cut_off(now: str, then: str) -> None:
    """Also when the skill says today that it may, or said so then."""
    assert decided(state(WORKING, tries=1, effect=then), now) == Check()
    assert decided(state(WORKING, tries=1, effect=then, error=WRONG), now) == RunTry(2), "it said that it did nothing"
    assert decided(state(PENDING, tries=1, effect=then), now) == RunTry(2), "a person ordered it anew"
    assert decided(state(WORKING, tries=0, effect=then), now) == RunTry(1)


def test_what_may_happen_twice_runs_again_and_what_nobody_knows_does_not() -> None:
    assert decided(state(WORKING, tries=1)) == decided(state(WORKING, tries=1), "pure") == RunTry(2)
    assert decided(state(UNCERTAIN)) == decided(state(UNCERTAIN, tries=1, error=WRONG)) == Check()


# -- an attempt ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "lines, code, signal, outcome",
    [
        ([ATTEMPT, {"kind": "closed", "outcome": "paused"}], 1, None, "paused"),
        ([ATTEMPT, {"kind": "end", "outcome": "completed"}], None, 9, "completed"),
        (
            [ATTEMPT, {"kind": "end", "outcome": "completed"}, {"kind": "closed", "outcome": "stopped"}],
            0,
            None,
            "stopped",
        ),
        ([ATTEMPT], None, None, "lost"),
        ([ATTEMPT], None, 9, "crashed"),
        ([ATTEMPT], 0, None, "incomplete"),
        ([ATTEMPT], 1, None, "crashed"),
        ([], 0, None, "incomplete"),
    ],
)
def test_the_journal_says_how_an_attempt_ended_and_the_exit_only_what_it_does_not(
    lines: list[dict[str, Any]], code: int | None, signal: int | None, outcome: str
) -> None:
    assert outcome_of(told(*lines), WorkerExit(f"{TASK}.1", code, signal)) == outcome


# -- words, and time -------------------------------------------------------------------------------------------------


def test_what_came_of_a_task_is_said_in_few_lines() -> None:
    snapshot = told(ATTEMPT, PLAN, commit("a", "done"), commit("b", "skipped"))
    assert end_summary(snapshot, "completed") == "completed: 1 of 2 steps done, 1 skipped"
    assert end_summary(told(ATTEMPT, commit("a", "failed")), "failed", "why\nso") == "failed: 0 of 1 step done\nwhy so"
    assert end_summary(told(), "failed", "a\x00b") == "failed: 0 of 0 steps done\na\ufffdb"
    for length, shown in ((300, "x" * 300), (301, "x" * 299 + "…")):
        assert end_summary(told(), "failed", "x" * length).splitlines()[1] == shown


def test_restarts_come_slower_and_slower_and_never_at_once() -> None:
    full = [backoff_seconds(n, 1.0) for n in range(1, 30)]
    assert full[:4] == pytest.approx([0.1, 0.2, 0.4, 0.8])
    assert max(full) == full[-1] == 30.0
    assert full == sorted(full)
    assert backoff_seconds(0, 1.0) == backoff_seconds(1, 1.0)
    assert backoff_seconds(3, 0.0) == pytest.approx(0.2)
    assert backoff_seconds(3, 0.5) == pytest.approx(0.3)
    assert backoff_seconds(10**6, 1.0) == 30.0


def test_the_pause_is_told_by_the_deaths_and_setbacks_on_the_disk() -> None:
    """Whoever starts the next attempt, and however often he has begun anew himself."""
    snapshot = told(ATTEMPT)
    assert pause_seconds(snapshot, 1.0) == 0.0
    for deaths, setbacks, failures in ((1, 0, 1), (0, 1, 1), (2, 3, 5), (0, 6, 6), (0, 100, 6), (1, 100, 7)):
        snapshot.deaths, snapshot.setbacks = deaths, setbacks
        assert pause_seconds(snapshot, 1.0) == backoff_seconds(failures, 1.0)
        assert pause_seconds(snapshot, 0.0) == backoff_seconds(failures, 0.0)
