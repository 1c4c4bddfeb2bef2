"""The fold of a journal: what each line means, what a line of the past does not, and what a person's word changes."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from orchestrator.core import names
from orchestrator.core.lifecycle import Start, next_action
from orchestrator.core.model import Identity, StepError, StepId, StepStatus
from orchestrator.core.snapshot import Snapshot, fold
from orchestrator.core.told import StepState

TASK = "task-20260101-000000-001"
WRONG = {"class": "runtime", "type": "ValueError", "message": "no", "fingerprint": "f"}
WORKER = [11, 22, "boot", "ns", "host"]
GUARD = [10, 21, "boot", "ns", "host"]


class Log:
    """A journal that is written line by line, and its fold."""

    def __init__(self) -> None:
        self.snapshot = Snapshot()
        self.run = f"{TASK}.0"
        self.number = 0
        self._seq: dict[str, int] = {}

    def __call__(self, kind: str, **fields: Any) -> Log:
        assert self.line(kind, **fields), "the line was ignored"
        return self

    def line(self, kind: str, *, run: str | None = None, seq: int | None = None, **fields: Any) -> bool:
        run = self.run if run is None else run
        self.number += 1
        if seq is None:
            seq = self._seq[run] = self._seq.get(run, 0) + 1
        entry = {"run": run, "seq": seq, "at": f"at {self.number}", "kind": kind, **fields}
        return self.snapshot.apply({k.rstrip("_"): v for k, v in entry.items()})

    def attempt(self, number: int, **fields: Any) -> Log:
        self.run = f"{TASK}.{number}"
        return self("attempt", **fields)

    def running(self, step: str, number: int = 1, **fields: Any) -> Log:
        return self("running", step=step, try_=number, **fields)

    def commit(self, step: str, status: str = "done", **fields: Any) -> Log:
        return self("commit", step=step, status=status, **fields)

    def order(self, verb: str, **fields: Any) -> Log:
        return self("handled", request=f"r{self.number}", verb=verb, **fields)

    def step(self, label: str) -> StepState:
        return self.snapshot.steps[label]


@pytest.fixture
def log() -> Log:
    return Log()("created").attempt(1)


# -- steps -----------------------------------------------------------------------------------------------------------


def test_a_step_is_told_whole_from_its_first_try_to_its_commit(log: Log) -> None:
    log.running("a", effect="once", args="h")
    begun = StepState(
        *(StepId("a"), "a", "a.md", StepStatus.WORKING),
        tries=1,
        spent=1,
        open_run=log.run,
        effect="once",
        args="h",
        at="at 3",
        attempt=1,
    )
    assert log.step("a") == begun
    output = {"path": "p", "size": 1, "sha256": "s"}
    log.commit("a", try_=1, result=[1], outputs=[output])
    done = dataclasses.replace(begun, status=StepStatus.DONE, open_run=None, result=[1], outputs=(output,))
    assert log.step("a") == dataclasses.replace(done, at="at 4", committed=4)


def test_a_commit_alone_tells_a_step_as_a_person_or_a_rebuilt_journal_writes_it(log: Log) -> None:
    log.commit("a", "failed", try_=3, args="h", error=WRONG, why="w", by_hand=True, result_file="results/r")
    assert log.step("a") == StepState(
        *(StepId("a"), "a", "a.md", StepStatus.FAILED, 3),
        args="h",
        error=StepError("runtime", "ValueError", "no", "f"),
        result_file="results/r",
        by_hand=True,
        foreign=True,
        why="w",
        at="at 3",
        attempt=1,
        committed=3,
    )


def test_what_a_commit_does_not_say_is_as_the_try_had_it(log: Log) -> None:
    log.running("a", 2, args="h").commit("a")
    state = log.step("a")
    assert (state.tries, state.args, state.by_hand, state.why, state.error, state.outputs) == (
        2,
        "h",
        False,
        "",
        None,
        (),
    )


def test_a_step_has_the_name_number_key_and_file_that_its_line_says(log: Log) -> None:
    log.running("X (k)", name="X", key="k", file="Y.md").running("X (2)", name="X", n=2).running("Z")
    assert log.step("X (k)").id == StepId("X", 1, "k")
    assert log.step("X (2)").id == StepId("X", 2)
    assert log.snapshot.labels == {StepId("X", 1, "k"): "X (k)", StepId("X", 2): "X (2)", StepId("Z"): "Z"}
    assert log.snapshot.files == {"y.md": "X (k)", "x (2).md": "X (2)", "z.md": "Z"}


def test_a_planned_step_may_get_another_file_when_it_begins(log: Log) -> None:
    log("plan", steps=[{"step": "a"}])
    assert (log.step("a").attempt, log.step("a").committed, log.step("a").at) == (0, 0, "")
    log.running("a", file="Other.md")
    assert log.step("a").file == "Other.md"
    assert log.snapshot.files["other.md"] == "a"


def test_steps_stand_where_their_lines_put_them(log: Log) -> None:
    log("plan", steps=[{"step": "a"}, {"step": "b"}])
    log("plan", steps=[{"step": "c"}, {"step": "d"}], after="a")
    log.running("e", after="b").running("f", after="not there").running("g")
    assert log.snapshot.order == ["a", "c", "d", "b", "e", "f", "g"]
    assert [log.snapshot.before(label) for label in ("a", "c", "g", "b")] == [None, "a", "f", "d"]
    assert Log()("plan", steps=[{"step": "only"}]).snapshot.before("only") is None


def test_a_new_order_moves_steps_and_drops_none(log: Log) -> None:
    log("plan", steps=[{"step": s} for s in "abcd"])("order", steps=["c", "not there", "a"])
    assert log.snapshot.order == ["c", "a", "b", "d"]


def test_the_resume_point_is_the_first_step_that_is_neither_done_nor_skipped(log: Log) -> None:
    log("plan", steps=[{"step": s} for s in "abc"]).commit("a").commit("b", "skipped")
    resume = log.snapshot.resume_point()
    assert resume is not None
    assert resume.label == "c"
    log.commit("c")
    assert log.snapshot.resume_point() is None
    assert log.snapshot.counts() == {"done": 2, "skipped": 1}


def test_of_two_steps_the_second_stands_behind_the_first() -> None:
    assert Log()("plan", steps=[{"step": "a"}, {"step": "b"}]).snapshot.before("b") == "a"


# -- tries -----------------------------------------------------------------------------------------------------------


def test_a_try_that_raised_is_spent_and_says_why(log: Log) -> None:
    log.running("a")("raised", step="a", try_=1, error=WRONG)
    state = log.step("a")
    assert (state.status, state.spent, state.open_run) == (StepStatus.WORKING, 1, None)
    assert state.error == StepError("runtime", "ValueError", "no", "f")
    log.running("a", 2)
    assert (state.tries, state.spent, state.error) == (2, 2, None)


def test_a_try_that_was_stopped_on_purpose_is_given_back(log: Log) -> None:
    log.running("a")("interrupted", step="a", try_=1)
    assert (log.step("a").tries, log.step("a").spent, log.step("a").open_run) == (1, 0, None)
    log("interrupted", step="a", try_=1)
    assert log.step("a").spent == 0


def test_of_two_tries_only_the_one_that_was_stopped_is_given_back(log: Log) -> None:
    log.running("a")("raised", step="a", try_=1, error=WRONG).running("a", 2)("interrupted", step="a", try_=2)
    assert log.step("a").spent == 1


def test_a_try_cut_off_by_the_death_of_its_worker_is_given_back_and_only_that(log: Log) -> None:
    log.running("a")("raised", step="a", try_=1, error=WRONG).running("b").attempt(2)
    assert (log.step("a").spent, log.step("b").spent) == (1, 0)
    assert log.step("b").open_run is None
    assert log.snapshot.deaths == 1


# -- attempts --------------------------------------------------------------------------------------------------------


def test_an_attempt_says_how_its_processes_are_found(log: Log) -> None:
    log("started", worker=WORKER, guard=GUARD)("skill", worker="w", version="v1")
    log.attempt(2, token="t", cgroup="/c", deaths=7)
    first, second = log.snapshot.attempts
    assert (first.number, first.run, first.at) == (1, f"{TASK}.1", "at 2")
    assert (first.token, first.cgroup) == ("", None)
    assert (first.identity, first.guard) == (Identity(*WORKER), Identity(*GUARD))
    assert (second.token, second.cgroup, second.identity, second.closed) == ("t", "/c", None, None)
    assert (log.snapshot.attempt, log.snapshot.unclosed, log.snapshot.attempt_number) == (second, second, 2)
    assert (log.snapshot.death_limit, log.snapshot.skill, log.snapshot.begun) == (7, "v1", "at 2")
    assert log.snapshot.last_at == "at 5"


def test_an_attempt_says_in_which_directory_it_was_begun(log: Log) -> None:
    assert log.snapshot.attempts[-1].place is None
    assert log.attempt(2, place=17).snapshot.attempts[-1].place == 17


def test_the_time_between_an_end_and_the_attempt_after_it_is_none_of_the_work(log: Log) -> None:
    assert (Snapshot().idle, log.snapshot.idle) == (0.0, 0.0)
    log("end", outcome="failed", at="2026-01-01T00:00:00.000Z").order("retry")
    assert log.snapshot.ended == "2026-01-01T00:00:00.000Z"
    log.attempt(2, at="2026-01-01T00:00:05.000Z").attempt(3, at="2026-01-01T00:00:09.000Z")
    assert (log.snapshot.idle, log.snapshot.ended) == (5.0, "")
    log("end", outcome="failed", at="2026-01-01T00:00:10.000Z").attempt(4, at="2026-01-01T00:00:10.500Z")
    log("end", outcome="failed", at="2026-01-01T00:00:20.000Z").attempt(5, at="2025-01-01T00:00:00.000Z")
    assert log.snapshot.idle == 5.5, "also when somebody has set the clock back"


def test_what_was_announced_last_is_known_by_its_run(log: Log) -> None:
    assert log.snapshot.announced == ""
    log("closed", outcome="crashed")
    assert log.snapshot.announced == ""
    log.attempt(2)("closed", outcome="question", announcement={"status": "question"})
    log.attempt(3)("closed", outcome="crashed")
    assert log.snapshot.announced == f"{TASK}.2"
    log.attempt(4)("end", outcome="failed")
    assert log.snapshot.announced == f"{TASK}.4"


def test_a_line_of_a_person_is_the_step_that_begins_under_its_name(log: Log) -> None:
    """A person writes only the name; which step that is, with its key, the skill says when it comes there."""
    log("plan", steps=[{"step": "X", "by_hand": True}, {"step": "Y"}])
    log.running("X", name="X", key="k").running("Y", name="Y", key="k")
    assert (log.step("X").id, log.step("X").foreign) == (StepId("X", 1, "k"), False)
    assert log.snapshot.labels == {StepId("X", 1, "k"): "X", StepId("Y"): "Y"}
    log.running("X", 2, name="X", key="other")
    assert log.snapshot.labels == {StepId("X", 1, "k"): "X", StepId("Y"): "Y"}


def test_an_attempt_that_did_not_close_has_died(log: Log) -> None:
    log.attempt(2).attempt(3)
    assert [a.closed for a in log.snapshot.attempts] == ["lost", "lost", None]
    assert log.snapshot.deaths == 2
    assert log.snapshot.death_limit == 3


@pytest.mark.parametrize(
    "outcome, fields, deaths, incompletes",
    [
        ("crashed", {}, 1, 0),
        ("lost", {}, 1, 0),
        ("timed_out", {}, 1, 0),
        ("timed_out", {"death": False}, 0, 0),
        ("incomplete", {}, 0, 1),
        ("stopped", {}, 0, 0),
        ("paused", {}, 0, 0),
        ("completed", {}, 0, 0),
    ],
)
def test_an_attempt_spends_the_budget_by_how_it_closed(
    log: Log, outcome: str, fields: dict[str, Any], deaths: int, incompletes: int
) -> None:
    log("closed", outcome=outcome, **fields)
    assert (log.snapshot.deaths, log.snapshot.incompletes) == (deaths, incompletes)
    assert log.snapshot.setbacks == (1 if fields else 0)
    assert log.snapshot.unclosed is None
    log("closed", outcome="crashed")  # what is closed is not closed again
    assert (log.snapshot.deaths, log.snapshot.attempts[0].closed) == (deaths, outcome)


def test_a_finished_step_gives_the_budget_back_and_no_other_commit_does(log: Log) -> None:
    log("closed", outcome="crashed").attempt(2)("closed", outcome="incomplete").attempt(3)
    log("closed", outcome="crashed", death=False).attempt(4)
    for status in ("failed", "skipped", "uncertain"):
        log.commit(f"a {status}", status)
    assert (log.snapshot.deaths, log.snapshot.setbacks, log.snapshot.incompletes) == (1, 1, 1)
    log.commit("b")
    assert (log.snapshot.deaths, log.snapshot.setbacks, log.snapshot.incompletes) == (0, 0, 0)


def test_to_presume_an_attempt_dead_is_what_its_death_would_do(log: Log) -> None:
    log.running("a").snapshot.presume_dead()
    assert (log.snapshot.deaths, log.step("a").spent, log.snapshot.attempts[0].closed) == (1, 0, "lost")
    log.snapshot.presume_dead()
    assert log.snapshot.deaths == 1
    ended = Log()("created").attempt(1)("end", outcome="completed")
    ended.snapshot.presume_dead()
    assert (ended.snapshot.deaths, ended.snapshot.attempts[0].closed) == (0, "completed")


def test_a_task_that_never_began_has_no_attempt() -> None:
    snapshot = Log()("created").snapshot
    assert (snapshot.attempt, snapshot.unclosed, snapshot.attempt_number) == (None, None, 0)
    snapshot.presume_dead()
    assert snapshot.deaths == 0
    assert (snapshot.begun, snapshot.lines) == ("", 1)
    stray = Log()("started", worker=WORKER, guard=GUARD)("closed", outcome="crashed").snapshot
    assert (stray.attempts, stray.deaths) == ([], 0)


# -- the fence -------------------------------------------------------------------------------------------------------


def test_a_line_of_a_replaced_attempt_does_not_count(log: Log) -> None:
    """However it got there: its worker was thought dead, and was not."""
    old = log.run
    log.running("a").attempt(2)
    before = dataclasses.asdict(log.snapshot)
    assert before["seq"] == log.snapshot.seq
    assert not log.line("commit", run=old, step="a", status="done")
    assert not log.line("attempt", run=f"{TASK}.0")
    assert log.snapshot.ignored == 2
    assert dataclasses.asdict(log.snapshot) == {**before, "ignored": 2}
    assert log.line("commit", step="a", status="done"), "the newest still counts"


def test_a_line_said_twice_counts_once(log: Log) -> None:
    log.running("a")
    assert not log.line("running", seq=2, step="a", try_=1)
    assert not log.line("running", seq=1, step="a", try_=1)
    assert log.step("a").spent == 1
    assert log.line("running", seq=9, step="a", try_=2), "a gap is none of ours to judge"
    assert not log.line("running", seq=2, step="a", try_=2), "the line before the gap is none of it"
    assert log.line("running", seq=5, step="a", try_=3), "one that lies about its number hides no other"
    assert not log.line("running", seq=5, step="a", try_=4)
    assert not log.line("running", seq=9, step="a", try_=4)
    assert log.line("running", seq=11, step="a", try_=4)
    assert log.line("running", seq=10, step="a", try_=5), "nor one that jumps over only one"
    assert log.attempt(2, seq=2).line("running", seq=1, step="a", try_=6), "nor the very first"


def test_a_line_without_a_number_or_of_no_run_does_not_count(log: Log) -> None:
    assert not log.snapshot.apply({"run": log.run, "kind": "commit", "step": "a", "status": "done"})
    for run in ("", "nonsense", TASK):
        assert not log.line("commit", run=run, step="a", status="done")
    assert log.snapshot.ignored == 4
    assert not log.snapshot.steps


def test_a_first_line_without_a_number_does_not_count() -> None:
    snapshot = Snapshot()
    assert not snapshot.apply({"run": f"{TASK}.1", "kind": "commit", "step": "a", "status": "done"})
    assert (snapshot.steps, snapshot.redone) == ({}, 0)


def test_an_attempt_begins_by_a_line_with_a_number_and_only_once(log: Log) -> None:
    assert not Snapshot().apply({"run": f"{TASK}.1", "kind": "attempt"})
    assert not Log().line("attempt"), "they are counted from 1"
    assert not log.line("attempt", run="task-20260101-000000-002.1"), "one of another task, of the same number"
    assert not log.line("attempt")
    assert not log.line("rebuilt", generation="x")
    assert (len(log.snapshot.attempts), log.snapshot.generation) == (1, "")
    assert log.line("skill", version="v")


def test_a_line_of_before_the_journal_was_lost_does_not_count() -> None:
    log, old = Log(), f"{TASK}.9"
    log.run = _generation_run("aaaa", 3)
    log("rebuilt", generation="aaaa", attempt=3)("deaths", deaths=2)
    assert (log.snapshot.generation, log.snapshot.attempt_offset, log.snapshot.deaths) == ("aaaa", 3, 2)
    assert not log.line("commit", run=old, step="a", status="done")
    assert not log.line("attempt", run=old)
    assert not log.line("commit", run=_generation_run("aaaa", 4), seq=2, step="a", status="done"), "nobody has begun it"
    assert log.line("attempt", run=_generation_run("aaaa", 4))
    assert log.line("commit", run=_generation_run("aaaa", 4), step="a", status="done")
    assert not log.line("attempt", run=_generation_run("bbbb", 5))
    assert not log.line("rebuilt", run=_generation_run("bbbb", 5), generation="bbbb")
    assert not log.line("commit", run=_generation_run("bbbb", 5), step="b", status="done")
    assert list(log.snapshot.steps) == ["a"]


def test_who_found_lines_lost_goes_on_under_a_new_generation_and_says_after_which(log: Log) -> None:
    old = log.run
    log.running("a")
    for after in (f"{TASK}.0", "", None):
        assert not log.line("rebuilt", run=_generation_run("aaaa", 3), generation="aaaa", attempt=3, after=after)
    log.run = _generation_run("aaaa", 3)
    log("rebuilt", generation="aaaa", attempt=3, after=old).commit("a")
    assert (log.snapshot.generation, log.snapshot.attempt_number, log.snapshot.lines) == ("aaaa", 3, 5)
    assert not log.line("rebuilt", generation="aaaa", attempt=9, after=log.run), "once"
    assert not log.line("commit", run=old, step="b", status="done")
    assert not log.line("attempt", run=f"{TASK}.4")
    log.run = _generation_run("aaaa", 4)
    assert log("attempt").snapshot.attempt_number == 4


def _generation_run(generation: str, number: int) -> str:
    return names.run_id(TASK, number, generation)


def test_attempts_count_on_behind_a_rebuilt_journal() -> None:
    log = Log()
    log.run = _generation_run("aaaa", 3)
    log("rebuilt", generation="aaaa", attempt=3)
    assert log.snapshot.attempt_number == 3
    log.run = _generation_run("aaaa", 4)
    log("attempt")
    assert log.snapshot.attempt_number == 4
    bare = Log()
    bare.run = _generation_run("aaaa", 0)
    assert bare("rebuilt", generation="aaaa").snapshot.attempt_number == 0


def test_a_kind_of_a_later_version_is_passed_over_and_counted(log: Log) -> None:
    lines = log.snapshot.lines
    log("a kind to come", anything=1)
    assert log.snapshot.lines == lines + 1


def test_a_fold_of_all_is_the_same_as_one_line_after_the_other() -> None:
    entries = [
        {"run": f"{TASK}.0", "seq": n, "at": "", "kind": "commit", "step": "a", "status": "done"} for n in (1, 1)
    ]
    assert fold(entries).ignored == 1
    assert fold(entries).last_at == ""


# -- the end, and a person's word ------------------------------------------------------------------------------------


def test_an_end_is_kept_as_it_was_said_and_takes_the_pause_with_it(log: Log) -> None:
    log.order("pause")
    assert log.snapshot.paused
    log("end", outcome="cancelled", request="r")
    assert log.snapshot.end is not None
    assert log.snapshot.end["outcome"] == "cancelled"
    assert "r" in log.snapshot.handled
    assert not log.snapshot.paused
    assert Log()("created").attempt(1)("end", outcome="failed").snapshot.handled == set()


def test_what_an_attempt_waits_for_is_told_until_the_next_begins(log: Log) -> None:
    said = {"status": "question"}
    log("closed", outcome="question", announcement=said)
    assert log.snapshot.attention == said
    assert log.attempt(2).snapshot.attention is None


def test_an_order_takes_effect_by_its_line_and_is_remembered(log: Log) -> None:
    log("handled", request="r", verb="pause")
    assert log.snapshot.handled == {"r"}
    assert log.snapshot.paused
    log("handled", request="s", verb="a verb to come")
    assert log.snapshot.handled == {"r", "s"}


def test_an_order_that_was_refused_changes_nothing(log: Log) -> None:
    log("handled", request="r", verb="pause", refused="because")
    assert log.snapshot.handled == {"r"}
    assert not log.snapshot.paused


def spent(log: Log) -> Log:
    """A task at its end: one step done, one failed, one uncertain, its budget spent, and it was announced."""
    log.running("done", args="h").commit("done", try_=1, result=1).running("failed")
    log.commit("failed", "failed", try_=1, error=WRONG, result_file="f", by_hand=True)
    log.running("unknown", effect="once").commit("unknown", "uncertain")
    log("closed", outcome="crashed", announcement={"status": "uncertain"}).attempt(2)
    log("closed", outcome="incomplete").attempt(3)
    log("closed", outcome="crashed", death=False, announcement={"status": "uncertain"})
    log("end", outcome="failed")
    assert (log.snapshot.deaths, log.snapshot.setbacks, log.snapshot.incompletes) == (1, 1, 1)
    return log


def lives_on(log: Log) -> bool:
    found = log.snapshot
    return (found.deaths, found.setbacks, found.incompletes, found.end, found.attention) == (0, 0, 0, None, None)


def reopened(state: StepState) -> bool:
    return (state.status, state.spent, state.open_run, state.by_hand) == (StepStatus.PENDING, 0, None, False) and (
        state.error is state.result is state.result_file is None
    )


def test_retry_reopens_what_failed_and_nothing_else(log: Log) -> None:
    spent(log).order("retry")
    assert lives_on(log)
    assert reopened(log.step("failed"))
    assert (log.step("done").status, log.step("unknown").status) == (StepStatus.DONE, StepStatus.UNCERTAIN)


@pytest.mark.parametrize("step", ["done", "failed", "unknown"])
def test_redo_reopens_one_step_and_says_at_which_line(log: Log, step: str) -> None:
    spent(log).order("redo", step=step)
    assert lives_on(log)
    assert reopened(log.step(step))
    assert log.snapshot.redone == log.snapshot.lines
    assert sum(state.status is StepStatus.PENDING for state in log.snapshot.steps.values()) == 1


def test_redo_in_task_md_is_the_same_as_the_order(log: Log) -> None:
    spent(log)("redo", step="done", by_hand=True)
    assert lives_on(log)
    assert reopened(log.step("done"))


def test_a_redo_that_says_the_number_of_its_try_counts_on_from_there(log: Log) -> None:
    """As a rebuilt journal writes it, in which the tries before it are lost."""
    log.running("a", 2)
    assert log("redo", step="a").step("a").tries == 2
    assert log("redo", step="a", try_=5).step("a").tries == 5
    assert log("plan", steps=[{"step": "b"}])("redo", step="b").step("b").tries == 0


def test_a_try_that_runs_while_its_step_is_reopened_is_not_given_back_twice(log: Log) -> None:
    log.running("a").running("a", 2).order("redo", step="a")
    assert reopened(log.step("a"))
    log("closed", outcome="crashed")
    assert log.step("a").spent == 0


def test_continue_ends_the_pause_and_what_was_told_of_it(log: Log) -> None:
    log.order("pause")("closed", outcome="paused", announcement={"status": "paused"}).order("continue")
    assert not log.snapshot.paused
    assert log.snapshot.attention is None


def test_skip_passes_a_step_over_and_reopens_the_task_only_for_one_that_failed(log: Log) -> None:
    spent(log).order("skip", step="unknown", why="not needed")
    state = log.step("unknown")
    assert (state.status, state.why, state.open_run) == (StepStatus.SKIPPED, "not needed", None)
    assert log.snapshot.end is not None, "the end stands, with one step less to do"
    log.order("skip", step="failed")
    assert lives_on(log)
    assert log.step("failed").why == ""


def test_skip_in_a_task_that_has_not_ended_gives_its_budget_back(log: Log) -> None:
    log("closed", outcome="crashed").running("a").order("skip", step="a")
    assert lives_on(log)


def test_what_a_person_vouches_for_is_done_whatever_it_is_asked_for_with(log: Log) -> None:
    spent(log).order("resolve", step="unknown", done=True, result={"id": 1})
    state = log.step("unknown")
    assert (state.status, state.result, state.args, state.error) == (StepStatus.DONE, {"id": 1}, None, None)
    assert (state.why, state.by_hand, state.open_run) == ("resolved by a person", False, None)
    assert state.committed == log.snapshot.lines
    assert lives_on(log)


def test_a_conflict_settled_as_done_keeps_what_the_step_gave(log: Log) -> None:
    log.running("a", args="h").commit("a", result=1).order("resolve", step="a", done=True)
    assert (log.step("a").result, log.step("a").args) == (1, None)
    log.order("resolve", step="a", done=True, result=None)
    assert log.step("a").result is None


def test_resolved_as_done_without_a_result_has_none(log: Log) -> None:
    log.commit("a", "uncertain", result=1, result_file="f").order("resolve", step="a", done=True)
    assert (log.step("a").result, log.step("a").result_file) == (None, None)


def test_resolved_as_not_done_is_run_again(log: Log) -> None:
    spent(log).order("resolve", step="unknown", done=False)
    assert reopened(log.step("unknown"))
    assert lives_on(log)


def test_a_commit_of_what_was_uncertain_ends_the_waiting(log: Log) -> None:
    log.commit("a", "uncertain")("closed", outcome="uncertain", announcement={"status": "uncertain"})
    log.commit("b")
    assert log.snapshot.attention is not None
    log.commit("a")
    assert log.snapshot.attention is None


def test_a_failed_step_marked_by_hand_reopens_the_task_and_by_no_other_commit(log: Log) -> None:
    spent(log).commit("failed", "failed")
    assert log.snapshot.end is not None
    log.commit("unknown", "skipped", by_hand=True)
    assert log.snapshot.end is not None
    log.commit("failed", "skipped", by_hand=True)
    assert lives_on(log)


def test_a_question_is_asked_once_and_its_answer_is_kept(log: Log) -> None:
    log("asked", question="q")("closed", outcome="question", announcement={"status": "question"})
    assert log.snapshot.questions == {"q": None}
    log.order("answer", question="q", text="yes")("asked", question="q")
    assert log.snapshot.questions == {"q": "yes"}
    assert log.snapshot.attention is None
    assert log.order("answer", question="p").snapshot.questions["p"] == ""


def test_messages_are_handled_by_the_line_that_says_they_were_heard(log: Log) -> None:
    log("heard", call=2, texts=["a", 1], requests=["r", "s"])
    assert log.snapshot.heard == {2: ["a", "1"]}
    assert log.snapshot.handled == {"r", "s"}


def test_an_order_lets_a_task_that_was_given_up_begin_again(log: Log) -> None:
    spent(log).order("resolve", step="unknown", done=True).order("retry")
    assert next_action(log.snapshot) == Start("failed", fresh=False)
