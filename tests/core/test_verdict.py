"""When a skill is said to need a change, by what evidence, and when no longer."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from orchestrator.core import verdict, verdict_text
from orchestrator.core.retro import Failure
from orchestrator.core.verdict import CHANGE, CHANGED_SINCE, KEEP, RULE, Record, judge, judge_all


def failure(step: str = "fetch", kind: str = "timeout", message: str = "too slow", **more: Any) -> Failure:
    return Failure(step, more.pop("attempt", 1), kind, message, **more)


def task(number: int, *failures: Failure, skill: str = "m:f", version: str | None = "v1", **more: Any) -> Record:
    at = f"2026-11-30T12:00:{number:02}.000Z"
    found = Record(f"task-{number}", skill, "completed", float(number), 1, 0, 4, version, at, failures)
    return replace(found, **more)


def tasks(failing: int, total: int) -> list[Record]:
    return [task(n, *([failure()] if n <= failing else [])) for n in range(1, total + 1)]


@pytest.mark.parametrize(
    "failing, total, word",
    [(0, 5, KEEP), (1, 6, KEEP), (1, 5, CHANGE), (2, 11, KEEP), (2, 10, CHANGE), (3, 100, CHANGE), (1, 1, CHANGE)],
)
def test_three_tasks_or_a_fifth_of_them_and_no_fewer_make_it_the_skills_fault(
    failing: int, total: int, word: str
) -> None:
    assert RULE == (3, 0.20)
    assert judge(tasks(failing, total)).word == word


def test_one_task_that_failed_ten_times_is_one_task() -> None:
    found = judge([task(1, *[failure()] * 10), *tasks(0, 9)])
    assert found.word == KEEP


@pytest.mark.parametrize("other", [failure(step="parse"), failure(kind="runtime")], ids=["step", "class"])
def test_different_failures_are_not_added_up(other: Failure) -> None:
    records = [task(1, failure()), task(2, failure()), task(3, other), *(task(n) for n in range(4, 15))]
    assert judge(records).word == KEEP


def test_every_line_of_evidence_leads_to_its_task_and_attempt() -> None:
    records = [task(n, failure(attempt=2), failure(attempt=2), failure(attempt=3, for_good=True)) for n in range(1, 4)]
    (found,) = judge(records).findings
    assert (found.tasks, found.tries, found.for_good) == (3, 9, 3)
    lines = [
        (line.task, line.step, line.attempt, line.error_class, line.message, line.count) for line in found.evidence
    ]
    assert lines[:2] == [
        ("task-1", "fetch", 2, "timeout", "too slow", 2),
        ("task-1", "fetch", 3, "timeout", "too slow", 1),
    ]
    assert len(lines) == 6
    text = verdict_text.render([judge(records)], {})
    assert "- `task-1`, attempt 2: `too slow` (2 times)" in text


def test_a_skill_that_was_mended_is_not_accused_of_its_past() -> None:
    old = [task(n, failure(version="v1")) for n in range(1, 4)]
    found = judge([*old, task(5, version="v2"), task(6, version="v2")])
    assert found.word == CHANGED_SINCE
    assert found.findings[0].since == "v2"
    assert "since version `v2` no such failure" in verdict_text.sentence(found)
    assert "Since version `v2` (2 tasks) no such failure." in verdict_text.render([found], {})


def test_a_failure_of_the_newest_version_shows_that_it_was_not_mended() -> None:
    old = [task(n, failure(version="v1")) for n in range(1, 4)]
    assert judge([*old, task(5, failure(version="v2"), version="v2"), task(6, version="v2")]).word == CHANGE


def test_a_failure_of_a_version_nobody_knows_is_not_taken_for_an_old_one() -> None:
    old = [task(n, failure(version=None)) for n in range(1, 4)]
    assert judge([*old, task(5, version="v2")]).word == CHANGE


def test_the_newest_version_is_the_one_loaded_last_and_not_the_one_of_the_newest_task() -> None:
    resumed_late = task(1, version="v2", at="2026-12-24T00:00:00.000Z")
    found = judge([resumed_late, *(task(n, failure(version="v1")) for n in range(2, 6))])
    assert (found.newest, found.newest_tasks, found.word) == ("v2", 1, CHANGED_SINCE)


def test_tasks_that_were_never_begun_do_not_dilute_the_failures() -> None:
    queued = [task(n, attempts=0, outcome="", version=None) for n in range(6, 30)]
    found = judge([*tasks(1, 5), *queued])
    assert found.word == CHANGE
    assert (found.tasks, found.judged, found.ended) == (29, 5, {"open": 24, "completed": 5})
    assert "1 of 5 tasks" in verdict_text.sentence(found)
    assert verdict_text.sentence(judge(queued)) == "Nothing was begun."


def test_times_are_of_the_tasks_that_have_ended() -> None:
    records = [task(n) for n in range(1, 11)]
    found = judge([*records, task(50, outcome="")])
    assert (found.median, found.p90) == (5.5, 9.0)
    alone = judge([task(7)])
    assert (alone.median, alone.p90) == (7.0, 7.0)
    open_ = judge([task(7, outcome="")])
    assert (open_.median, open_.p90) == (None, None)


def test_skills_are_judged_apart_and_the_ones_to_change_come_first() -> None:
    records = [
        task(n, *([failure()] if skill == "z:bad" else []), skill=skill) for n in (1, 2) for skill in ("a:ok", "z:bad")
    ]
    found = judge_all(records)
    assert [(v.skill, v.word, v.tasks) for v in found] == [("z:bad", CHANGE, 2), ("a:ok", KEEP, 2)]


def test_a_thousand_failing_tasks_fit_into_an_answer() -> None:
    records = [
        task(n % 60, failure(step=f"step {n % 40}", message="x" * 5000), skill=f"m:{n % 60}") for n in range(1000)
    ]
    found = judge_all(records)
    damaged = {f"task-{n}": "y" * 5000 for n in range(100)}
    as_json = verdict_text.to_json(found, damaged)
    assert len(verdict_text.render(found, damaged)) < 60_000
    assert len(json.dumps(as_json)) < 200_000
    assert (as_json["skills_left_off"], as_json["damaged_left_off"]) == (30, 90)
    assert as_json["tasks"] == 1000


def test_the_json_says_its_schema_and_the_rule_it_judged_by() -> None:
    said = verdict_text.to_json([judge(tasks(3, 4))], {"task-9": "torn"})
    assert (said["schema"], said["rule"]) == (1, {"tasks": 3, "share": 0.2})
    assert said["damaged"] == [{"id": "task-9", "reason": "torn"}]
    (skill,) = said["skills"]
    assert (skill["verdict"], skill["tasks"], skill["findings"][0]["evidence"][0]["task"]) == ("change", 4, "task-1")


def test_a_record_survives_being_written_down() -> None:
    found = task(1, failure(version="v1", for_good=True, fingerprint="f"))
    assert verdict.record_from_json(json.loads(json.dumps(verdict.record_to_json(found)))) == found
