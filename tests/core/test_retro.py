"""What the retrospect of one task says, and does not say, to whoever must decide by it."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.core import retro_text
from orchestrator.core.retro import OUTSIDE, Retro, Volumes, analyse

RAISED = {"class": "runtime", "type": "ValueError", "message": "no such page 17", "fingerprint": "f1"}


def entry(second: float, kind: str, **fields: Any) -> dict[str, Any]:
    minute, second = divmod(second, 60)
    return {"at": f"2026-11-30T12:{minute:02.0f}:{second:06.3f}+00:00", "kind": kind, **fields}


def running(second: float, step: str, number: int = 1) -> dict[str, Any]:
    return entry(second, "running", step=step, **{"try": number})


def done(second: float, step: str, **fields: Any) -> dict[str, Any]:
    return entry(second, "commit", step=step, status="done", **fields)


def ended(second: float, outcome: str = "completed", summary: str = "x", **fields: Any) -> list[dict[str, Any]]:
    said = {"summary": summary, **fields}
    return [entry(second, "end", outcome=outcome, announcement=said), entry(second, "closed", outcome=outcome)]


def errors(retro: Retro) -> list[tuple[str, str, int]]:
    return [(step, kind, times) for (step, kind, _), times in retro_text.counted(retro.failures).items()]


def rendered(retro: Retro, template: str = "{verdict}\n\n{steps_table}\n\n{tries}\n\n{errors_table}\n") -> str:
    return retro_text.render(retro, template, name="the work", task_id="ID", status="end")


def test_a_step_that_waited_is_not_taken_for_a_slow_one() -> None:
    retro = analyse(
        [
            entry(0, "attempt"),
            running(1, "a"),
            entry(3, "raised", step="a", error=RAISED, **{"try": 1}),
            running(10, "a", 2),
            entry(14, "closed", outcome="crashed", signal=9),
            entry(20, "attempt"),
            running(21, "a", 3),
            done(24, "a"),
            *ended(25),
        ]
    )
    step = retro.steps["a"]
    assert (step.own, step.waiting, step.lost) == (5, 7 + 7, 4)
    assert (retro.seconds, retro.waiting, retro.attempts, retro.deaths) == (25, 6, 2, 1)


def test_a_try_that_raised_and_was_the_last_is_one_error_and_not_two() -> None:
    retro = analyse(
        [
            entry(0, "attempt"),
            running(1, "a"),
            entry(2, "raised", step="a", error=RAISED, **{"try": 1}),
            entry(2, "commit", step="a", status="failed", error=RAISED),
            *ended(3, "failed", "failed: 0 of 1 step done\nstep 'a' failed"),
        ]
    )
    assert errors(retro) == [("a", "runtime", 1)]
    assert retro.failures[0].for_good


def test_a_message_that_differs_in_its_numbers_only_is_counted_as_the_same_error() -> None:
    lines = [entry(0, "attempt")]
    for number in range(1, 4):
        said = {**RAISED, "message": f"no such page {number}"}
        lines += [running(number, "a", number), entry(number, "raised", step="a", error=said, **{"try": number})]
    assert errors(analyse(lines)) == [("a", "runtime", 3)]
    assert "no such page 1" in rendered(analyse(lines))


def test_a_death_between_two_steps_is_not_blamed_on_either() -> None:
    retro = analyse(
        [
            entry(0, "attempt"),
            running(1, "a"),
            done(2, "a"),
            entry(3, "closed", outcome="crashed", exit=3),
            entry(4, "attempt"),
            *ended(5),
        ]
    )
    assert errors(retro) == [(OUTSIDE, "crash", 1)]
    assert "exit code 3" in retro.failures[0].message


def test_a_task_that_failed_in_no_step_still_tells_its_error() -> None:
    retro = analyse(
        [entry(0, "attempt"), *ended(1, "failed", "failed: 0 of 0 steps done\nthe skill raised KeyError: 'x'")]
    )
    assert [(f.step, f.message) for f in retro.failures] == [(OUTSIDE, "the skill raised KeyError: 'x'")]
    assert "Nothing to change" not in rendered(retro)


@pytest.mark.parametrize(
    "close",
    [{"outcome": "stopped"}, {"outcome": "crashed", "signal": 9, "death": False}, {"outcome": "uncertain"}],
    ids=["stopped on request", "a disk that took nothing", "a person is to decide"],
)
def test_a_skill_is_not_blamed_for_an_end_that_was_not_its_own(close: dict[str, Any]) -> None:
    retro = analyse([entry(0, "attempt"), running(1, "a"), entry(2, "closed", **close)])
    assert retro.failures == []


def test_a_worker_that_had_to_be_killed_to_cancel_its_task_did_nothing_wrong() -> None:
    retro = analyse(
        [
            entry(0, "attempt"),
            running(1, "a"),
            entry(2, "raised", step="a", error=RAISED, **{"try": 1}),
            running(3, "a", 2),
            entry(4, "closed", outcome="crashed", signal=9),
            *ended(5, "cancelled"),
        ]
    )
    assert errors(retro) == [("a", "runtime", 1)]


@pytest.mark.parametrize("order", [entry(3000, "redo", step="a"), entry(3000, "handled", verb="redo", step="a")])
def test_the_hours_between_an_end_and_its_reopening_are_not_counted_as_work(order: dict[str, Any]) -> None:
    first = [entry(0, "attempt"), running(1, "a"), done(2, "a"), *ended(3)]
    retro = analyse([*first, order, entry(3001, "attempt"), running(3002, "a", 2), done(3004, "a"), *ended(3005)])
    assert retro.seconds == 8
    assert (retro.waiting, retro.steps["a"].waiting, retro.reopened) == (1, 0, 1)
    assert [t.how for t in retro.steps["a"].tries] == ["reopened", "done"]
    assert analyse([*first, order]).outcome == ""


def test_an_order_that_was_refused_reopens_nothing() -> None:
    first = [entry(0, "attempt"), running(1, "a"), done(2, "a"), *ended(3)]
    retro = analyse([*first, entry(9, "handled", verb="retry", refused="it is completed")])
    assert (retro.outcome, retro.seconds) == ("completed", 3)


@pytest.mark.parametrize("fields, status", [({"done": True}, "done"), ({"done": False}, "pending")])
def test_what_a_person_said_of_an_uncertain_step_is_its_status(fields: dict[str, Any], status: str) -> None:
    retro = analyse([running(1, "a"), entry(2, "handled", verb="resolve", step="a", **fields)])
    assert retro.steps["a"].status == status


def test_usage_that_nobody_told_is_unknown_and_not_nothing() -> None:
    retro = analyse([entry(0, "attempt"), running(1, "a"), done(2, "a"), *ended(3, usage=None)])
    as_json = retro_text.to_json(retro, task_id="ID", name="n", state="completed")
    assert as_json["usage"] is None
    assert as_json["volumes"] == {"steps_run": 1, "results": None, "outputs": None, "logs": None, "notes": None}
    text = rendered(retro, "{volumes}")
    assert "Usage: unknown" in text
    assert "0 bytes" not in text


def test_usage_is_added_up_over_steps_and_what_was_not_told_stays_null() -> None:
    lines = [entry(0, "attempt")]
    for step in "ab":
        lines += [running(1, step), done(2, step, usage={"input": 10, "cost_usd": 0.25, "output": None})]
    found = retro_text.to_json(analyse(lines), task_id="ID", name="n", state="working")["usage"]
    assert found["input"] == 20
    assert found["cost_usd"] == 0.5
    assert found["output"] is None
    whole = analyse([*lines, *ended(3, usage={"input": 25})])
    assert whole.usage == {"input": 25}


def test_what_came_of_each_try_stands_below_the_table_and_only_where_there_were_several() -> None:
    lines = [entry(0, "attempt"), running(1, "easy"), done(2, "easy")]
    lines += [running(3, "hard"), entry(4, "raised", step="hard", error=RAISED), running(5, "hard", 2)]
    text = rendered(analyse([*lines, done(7, "hard")]))
    table, _, below = text.partition("Try by try:")
    assert "| hard | done | 2 |" in table
    assert "- `hard`: raised after 1.00 s (attempt 1), done after 2.00 s (attempt 1)" in below
    assert "easy" not in below
    assert max(len(line) for line in table.splitlines()) <= 80
    assert "Try by try" not in rendered(analyse([running(1, "easy"), done(2, "easy")]))


def test_a_step_tried_a_thousand_times_does_not_bury_the_rest() -> None:
    lines = [running(1, "a", n) for n in range(1, 1001)]
    text = rendered(analyse([entry(0, "attempt"), *lines]), "{tries}")
    assert "… 992 more …" in text
    assert len(text) < 500


def test_a_name_cannot_break_the_table_nor_command_the_terminal() -> None:
    name = "a|b\n# c `d` <e> *f*\x1b[31m"
    text = rendered(analyse([entry(0, "attempt"), running(1, name), done(2, name)]))
    row = next(line for line in text.splitlines() if line.startswith("| a"))
    assert row.startswith(r"| a\|b # c 'd' \<e\> \*f\*")
    assert "\x1b" not in text


def test_a_template_of_ones_own_with_unknown_braces_fails_no_task() -> None:
    assert rendered(Retro(), "{name} {task_id} {no_such} {} {0[x]}") == "the work ID {no_such} {} {0[x]}"


def test_sizes_are_shown_as_people_read_them() -> None:
    retro = Retro(volumes=Volumes(results=0, outputs=2048, logs=3 << 20))  # logs are still being written at an end
    assert "results 0 bytes, outputs 2.0 KiB, notes unknown" in rendered(retro, "{volumes}")
