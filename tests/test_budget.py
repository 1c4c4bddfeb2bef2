"""When enough is enough: work that cannot succeed ends as failed, says why, and is not begun again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import kit
import pytest
from conftest import Ledger

from orchestrator import Announcement, Coordinator, store
from orchestrator.store import Paths


async def nothing_is_started_again(root: Path, where: Paths) -> None:
    """`recover` says that it has ended, and leaves journal and task.md as they are."""
    before = Path(where.journal).read_bytes(), Path(where.task_md).read_bytes()
    said, _ = await kit.recover(root, where)
    assert said.action == "ended"
    assert (Path(where.journal).read_bytes(), Path(where.task_md).read_bytes()) == before


def told_in_short(said: Announcement, *words: str) -> None:
    """Why it failed stands in at most five lines, with a command that says more."""
    assert len(said.summary.splitlines()) <= 5, said.summary
    for word in words:
        assert word in said.summary, said.summary
    assert f"orchestrator logs {said.task}" in said.hint


@pytest.mark.parametrize("deaths", [2, 3])
async def test_a_step_that_always_kills_its_worker_is_given_up_and_said_so(
    root: Path, ledger: Ledger, deaths: int
) -> None:
    where, said = await kit.to_its_end(root, kit.spec("dies_at_two", ledger, deaths=deaths))
    assert said.status == "failed"
    told_in_short(said, "1 of 2 steps done", f"{deaths} attempts died in a row")
    assert ledger.count("one began") == 1
    assert kit.tries(ledger, "two") == list(range(1, deaths + 1))
    assert kit.status_line(where) == "## Status: failed"
    assert kit.step_lines(where) == ["[start done]", "[working done] one", "[failed] two"]
    assert [e["outcome"] for e in kit.entries(where, "end")] == ["failed"]
    await nothing_is_started_again(root, where)
    assert ledger.count("two began") == deaths
    assert not kit.left_behind(where)


# fault 13
async def test_deaths_that_nobody_saw_count_as_well(tmp_path: Path, root: Path, ledger: Ledger) -> None:
    """Each worker is killed while no coordinator is there; the one who comes after the last starts none."""
    with kit.fifo(tmp_path / "gate") as gate:
        where = await kit.start_and_leave(root, kit.spec("waits_in_two", ledger, deaths=2, gate=str(gate)))
        await ledger.has("two began 1")
        kit.kill_worker(where)
        await kit.let_go(where)
        async with Coordinator(root) as coordinator:
            assert [r.action for r in await coordinator.recover()] == ["resumed"]
            await ledger.has("two began 2")
        kit.kill_worker(where)
        await kit.let_go(where)
        said, announced = await kit.recover(root, where)
    assert said.action == "failed"
    assert announced is not None
    told_in_short(announced, "2 attempts died")
    assert kit.tries(ledger, "two") == [1, 2]
    await nothing_is_started_again(root, where)


async def test_a_finished_step_gives_the_whole_budget_back(root: Path, ledger: Ledger) -> None:
    where, said = await kit.to_its_end(root, kit.spec("dies_twice_a_step", ledger, deaths=3))
    assert said.ok, said.summary
    assert len(kit.entries(where, "attempt")) == 7  # six deaths, but never three in a row
    assert [kit.tries(ledger, step) for step in ("one", "two", "three")] == [[1, 2, 3]] * 3


@pytest.mark.parametrize("retries", [0, 2])
async def test_a_step_that_raises_is_tried_as_often_as_was_said_and_no_more(
    root: Path, ledger: Ledger, retries: int
) -> None:
    where, said = await kit.to_its_end(root, kit.spec("raises", ledger, retries=retries))
    assert said.status == "failed"
    assert len(said.summary.splitlines()) <= 5
    assert f"ValueError: wrong at try {1 + retries}" in said.summary
    assert f"orchestrator show {where.task_id}" in said.hint
    assert kit.tries(ledger, "wrong") == list(range(1, 2 + retries))
    assert kit.step_lines(where) == ["[start done]", "[failed] wrong"]
    assert len(kit.entries(where, "attempt")) == 1, "a try that raises costs no worker"
    await nothing_is_started_again(root, where)


# fault 36
async def test_a_try_cut_off_by_a_death_is_no_try_and_the_tries_before_it_still_count(
    root: Path, ledger: Ledger
) -> None:
    """Try 1 raises, try 2 is cut off by SIGKILL, 3 and 4 raise: three that raised, one death."""
    where, said = await kit.to_its_end(root, kit.spec("raises", ledger, deaths=2, die_at_try=2))
    assert said.status == "failed"
    assert "wrong at try 4" in said.summary
    assert kit.tries(ledger, "wrong") == [1, 2, 3, 4]
    assert kit.entries(where, "closed")[0]["outcome"] == "crashed"
    assert store.look(where).snapshot.deaths == 1


async def test_a_worker_that_leaves_without_a_word_is_given_one_more_chance(root: Path, ledger: Ledger) -> None:
    where, said = await kit.to_its_end(root, kit.spec("leaves", ledger))
    assert said.status == "failed"
    told_in_short(said, "ended twice without an end")
    assert kit.tries(ledger, "go") == [1, 2]
    assert kit.step_lines(where) == ["[start done]", "[failed] go"]
    assert [e["outcome"] for e in kit.entries(where, "closed")][:2] == ["incomplete", "incomplete"]
    await nothing_is_started_again(root, where)


async def test_the_second_chance_of_a_worker_that_left_is_a_real_one(root: Path, ledger: Ledger) -> None:
    where, said = await kit.to_its_end(root, kit.spec("leaves", ledger, times=1))
    assert said.ok, said.summary
    assert kit.tries(ledger, "go") == [1, 2]
    assert kit.step_lines(where)[-1] == "[end]"


async def test_a_worker_that_leaves_with_an_error_code_has_died(root: Path, ledger: Ledger) -> None:
    where, said = await kit.to_its_end(root, kit.spec("leaves", ledger, deaths=2, code=3))
    assert said.status == "failed"
    told_in_short(said, "2 attempts died")
    assert [(e["outcome"], e.get("exit")) for e in kit.entries(where, "closed")][:2] == [("crashed", 3)] * 2


async def test_a_skill_that_raises_outside_of_a_step_fails_at_once_with_its_words(root: Path, ledger: Ledger) -> None:
    where, said = await kit.to_its_end(root, kit.spec("raises_outside", ledger))
    assert said.status == "failed"
    told_in_short(said, "LookupError: nothing there")
    assert len(kit.entries(where, "attempt")) == 1
    assert "Traceback" in Path(where.log(1, "err")).read_text()
    assert kit.status_line(where) == "## Status: failed"
    assert kit.step_lines(where) == ["[start done]", "[working done] one"]
    await nothing_is_started_again(root, where)


def caught(where: Paths, said: Announcement) -> dict[str, Any]:
    return {
        "lines": kit.step_lines(where),
        "status": kit.status_line(where),
        "outcome": said.status,
        "counts": dict(said.steps),
    }


WITHOUT_EXTRA = {
    "lines": ["[start done]", "[failed] extra", "[working done] rest", "[end]"],
    "status": "## Status: end",
    "outcome": "completed",
    "counts": {"failed": 1, "done": 1},
}


@pytest.mark.parametrize("deaths", [0, 1])
async def test_a_skill_may_go_on_without_a_step_that_failed_and_its_task_completes(
    root: Path, ledger: Ledger, deaths: int
) -> None:
    """With a death after it, the failed step raises again on replay and is not entered a second time."""
    where, said = await kit.to_its_end(root, kit.spec("goes_on_without", ledger, lives=deaths))
    assert caught(where, said) == WITHOUT_EXTRA
    assert kit.tries(ledger, "extra") == [1]
    assert ledger.count("caught extra") == 1 + deaths
    assert kit.tries(ledger, "rest") == list(range(1, 2 + deaths))
    await nothing_is_started_again(root, where)


async def test_a_budget_spent_behind_a_failed_step_is_laid_on_the_step_that_spent_it(
    root: Path, ledger: Ledger
) -> None:
    where, said = await kit.to_its_end(root, kit.spec("goes_on_without", ledger, deaths=2, lives=99))
    assert said.status == "failed"
    told_in_short(said, "2 attempts died")
    assert kit.step_lines(where) == ["[start done]", "[failed] extra", "[failed] rest"]
    await nothing_is_started_again(root, where)


async def test_a_step_that_loses_the_journal_and_its_worker_is_given_up_all_the_same(
    root: Path, ledger: Ledger
) -> None:
    async with Coordinator(root) as coordinator:
        handle = await coordinator.spawn(kit.spec("takes_its_journal_with_it", ledger, deaths=3))
        said = await handle.wait(120)
    assert said.status == "failed"
    assert kit.tries(ledger, "one") == [1]
    assert kit.tries(ledger, "two") == [1, 2, 3]
