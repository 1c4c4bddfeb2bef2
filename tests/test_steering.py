"""Orders of a person in the course of things: while workers work, die, ask and are told; several at once; by hand."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import kit
import pytest
import states
from cli_door import DATA, NO_INPUT, TEMPORARY, Cli
from states import SKILLS, Place, edit, goes_on, order, recovers, tries

from orchestrator import Coordinator, recovery, store
from orchestrator.compose import resolve
from orchestrator.core.model import Limits, StepStatus
from orchestrator.errors import Refused

Begin = Callable[[str], Awaitable[Place]]


@pytest.fixture
async def begin(tmp_path: Path) -> AsyncIterator[Begin]:
    """A task in the state that is named."""
    async with contextlib.AsyncExitStack() as stack:
        yield lambda state: stack.enter_async_context(states.task(state, tmp_path))


# -- redo, retry, pause ----------------------------------------------------------------------------------------------


async def test_a_step_redone_while_the_worker_lives_is_done_anew_and_the_others_are_handed_back(begin: Begin) -> None:
    at = await begin("working")
    async with anyio.create_task_group() as group:
        group.start_soon(functools.partial(order, at, "redo", step="one"))
        await kit.until(lambda: store.read_requests(at.where), "the order is given")
        await kit.open_gate(at.gate)
    assert (await Coordinator(at.root).wait(at.id, 120)).ok
    assert tries(at) == [[1, 2], [1], [1]]
    assert at.ledger.count("handed back one 2, two") == 1
    assert len(kit.entries(at.where, "attempt")) == 1


@pytest.mark.parametrize("how", ["by the verb", "in task.md"])
async def test_a_step_redone_while_the_last_step_runs_is_done_anew_before_the_end(begin: Begin, how: str) -> None:
    """There is no next step before which the worker would look."""
    at = await begin("working")
    edit(at, "[pending] three", "[skipped] three")
    if how == "by the verb":
        await Coordinator(at.root).order(at.id, "redo", patience=0, step="one")
    else:
        edit(at, "[working done] one", "[redo] one")
    await kit.open_gate(at.gate)
    assert (await Coordinator(at.root).wait(at.id, 120)).ok
    assert tries(at) == [[1, 2], [1], []]
    assert kit.step_lines(at.where)[1:] == ["[working done] one", "[working done] two", "[skipped] three", "[end]"]


async def test_a_task_that_is_retried_runs_only_what_is_not_finished(begin: Begin) -> None:
    at = await begin("failed")
    assert tries(at) == [[1], [1], []]
    _, lock = await order(at, "retry")
    assert await goes_on(at, lock) == "completed"
    assert tries(at) == [[1], [1, 2], [1]]


async def test_a_failed_step_that_is_skipped_lets_the_task_go_on(begin: Begin) -> None:
    at = await begin("failed")
    _, lock = await order(at, "skip", step="two", why="not needed")
    assert await goes_on(at, lock) == "completed"
    assert tries(at) == [[1], [1], [1]]


async def test_a_task_that_is_paused_in_every_step_spends_nothing_of_its_budget(tmp_path: Path) -> None:
    at = states.place(tmp_path / "place")
    args = {"ledger": str(at.ledger.path), "gate": str(at.gate), "steps": 4}
    what = dataclasses.replace(resolve(f"{SKILLS}:listens", name="steps", args=args), limits=Limits(deaths=1))
    where = await kit.start_and_leave(at.root, what)
    async with Coordinator(at.root) as coordinator:
        for number in range(1, 4):
            await at.ledger.has(f"step {number} began 1")
            await coordinator.order(at.id, "pause", patience=0)
            await kit.open_gate(at.gate)
            assert (await coordinator.wait(at.id, 120)).status == "paused"
            await kit.let_go(where)
            assert (await coordinator.recover())[0].action == "waits"
            _, lock = await order(at, "continue")
            await coordinator.adopt(where, lock)
        await kit.open_gate(at.gate)
        assert (await coordinator.wait(at.id, 120)).ok
        await kit.let_go(where)
    assert [kit.tries(at.ledger, f"step {number}") for number in range(1, 5)] == [[1]] * 4
    assert at.look().snapshot.deaths == 0


# -- resolve ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["uncertain", "conflict"])
async def test_the_result_that_a_person_gives_is_handed_to_the_skill(begin: Begin, state: str) -> None:
    at = await begin(state)
    _, lock = await order(at, "resolve", step="two", done=True, result="as I saw it")
    assert await goes_on(at, lock) == "completed"
    assert at.ledger.count("handed back one 1, as I saw it") == 1
    assert tries(at)[::2] == [[1], [1]]
    assert len(tries(at)[1]) == 1


@pytest.mark.parametrize("state", ["uncertain", "conflict"])
async def test_a_step_that_did_not_take_effect_is_run_again_when_a_person_says_so(begin: Begin, state: str) -> None:
    at = await begin(state)
    _, lock = await order(at, "resolve", step="two", done=False)
    assert await goes_on(at, lock) == "completed"
    assert tries(at) == [[1], [1, 2], [1]]


# -- orders in the middle of a death, and several at once -------------------------------------------------------------


async def test_an_order_made_while_the_worker_dies_is_carried_out_once_by_who_comes_next(begin: Begin) -> None:
    at = await begin("working")
    async with anyio.create_task_group() as group:
        found: list[Any] = []

        async def give() -> None:
            found.append(await order(at, "skip", step="three", why="late"))

        group.start_soon(give)
        await kit.until(lambda: store.read_requests(at.where), "the order is given")
        kit.kill_worker(at.where)
    (handled, lock), *_ = found
    assert handled["verb"] == "skip"
    at.tell("work")
    assert await goes_on(at, lock) == "completed"
    assert len(kit.entries(at.where, "handled")) == 1
    assert tries(at) == [[1], [1, 2], []]


@pytest.mark.parametrize("state, verb", [("paused", "continue"), ("failed", "retry"), ("interrupted", "pause")])
async def test_an_order_whose_giver_was_killed_is_carried_out_by_the_next_recover(
    begin: Begin, state: str, verb: str
) -> None:
    at = await begin(state)
    store.make_request(at.where, {"id": "0", "verb": verb})
    expected = "waits" if verb == "pause" else "resumed"
    assert recovery.inspect(at.where).action == expected, "a dry run must say so too"
    async with Coordinator(at.root) as coordinator:
        assert [r.action for r in await coordinator.recover()] == [expected]
        said = await coordinator.wait(at.id, 120)
        await kit.let_go(at.where)
    assert said.status == ("paused" if verb == "pause" else "completed")
    assert [e["request"] for e in kit.entries(at.where, "handled")][-1] == "0"
    assert [r.action for r in await Coordinator(at.root).recover()] == ["waits" if verb == "pause" else "ended"]


async def test_an_order_that_has_lost_its_sense_until_the_border_is_refused_and_changes_nothing(begin: Begin) -> None:
    at = await begin("working")
    with pytest.raises(Refused, match="running at this moment"):
        await order(at, "skip", step="two")
    store.make_request(at.where, {"id": "late", "verb": "skip", "step": "two"})  # as one given before the step began
    await kit.open_gate(at.gate)
    assert (await Coordinator(at.root).wait(at.id, 120)).ok
    assert at.look().snapshot.steps["two"].status is StepStatus.DONE
    (handled,) = kit.entries(at.where, "handled")
    assert "done already" in handled["refused"]


async def test_two_who_redo_the_same_step_at_once_have_it_done_anew_once(begin: Begin) -> None:
    at = await begin("completed")
    for number in range(2):  # both are on the disk before either is carried out
        store.make_request(at.where, {"id": str(number), "verb": "redo", "step": "one"})
    assert await recovers(at) == ("resumed", "completed")
    assert ["refused" in e for e in kit.entries(at.where, "handled")] == [False, True]
    assert tries(at) == [[1, 2], [1], [1]]


async def test_twenty_who_retry_one_task_at_once_start_one_worker(begin: Begin) -> None:
    at = await begin("failed")
    callers = [kit.orchestrator(at.root, "retry", at.id) for _ in range(20)]
    said = [await anyio.to_thread.run_sync(caller.communicate) for caller in callers]
    assert sorted(caller.returncode for caller in callers) == [0] + [DATA] * 19, said
    assert (await Coordinator(at.root).wait(at.id, 120)).ok
    await kit.let_go(at.where)
    assert len(kit.entries(at.where, "attempt")) == 2
    assert tries(at) == [[1], [1, 2], [1]]


async def test_two_who_pause_at_once_do_not_make_the_third_wait_for_ever(begin: Begin) -> None:
    at = await begin("interrupted")
    for number in range(2):
        store.make_request(at.where, {"id": str(number), "verb": "pause"})
    await Coordinator(at.root).order(at.id, "send", patience=0, text="hello")
    async with Coordinator(at.root) as coordinator:
        assert [r.action for r in await coordinator.recover()] == ["waits"]
    assert ["refused" in e for e in kit.entries(at.where, "handled")] == [False, True]
    assert (await Coordinator(at.root).wait(at.id, 120)).status == "paused"


async def test_a_cancel_that_came_too_late_does_not_end_what_is_redone_later(begin: Begin) -> None:
    at = await begin("completed")
    store.make_request(at.where, {"id": "late", "verb": "cancel"})
    _, lock = await order(at, "redo", step="three")
    assert await goes_on(at, lock) == "completed"
    assert tries(at) == [[1], [1], [1, 2]]


async def test_a_paused_task_that_was_cancelled_and_is_redone_is_not_paused_any_more(begin: Begin) -> None:
    at = await begin("paused")
    await Coordinator(at.root).cancel(at.id)
    _, lock = await order(at, "redo", step="one")
    assert await goes_on(at, lock) == "completed"


# -- ask, answer, send -----------------------------------------------------------------------------------------------


# fault 19
async def test_a_question_outlives_its_worker_and_is_asked_once(tmp_path: Path) -> None:
    at = states.place(tmp_path / "place")
    cli = Cli(tmp_path, at.root)
    task_id = cli("spawn", f"{SKILLS}:asks_twice", "--arg", f"ledger={at.ledger.path}").out.strip()
    asked = ["Which colour?", "Which size?", "Which colour? (2)"]
    for number, text in enumerate(["blue", "42", "red"]):
        said = cli("wait", task_id)
        assert said.code == TEMPORARY, said
        assert asked[number] in said.out
        assert cli("recover").code == 1
        assert cli("answer", task_id, text).code == 0
    assert cli("wait", task_id).code == 0
    await kit.let_go(at.where)
    assert at.ledger.lines() == ["paint began 1", "told blue 42 red"]
    assert [e["question"] for e in kit.entries(at.where, "asked")] == asked
    assert len(kit.entries(at.where, "attempt")) == 4


async def test_messages_arrive_in_order_and_at_least_once_though_the_worker_is_killed(tmp_path: Path) -> None:
    at = states.place(tmp_path / "place")
    args = {"ledger": str(at.ledger.path), "gate": str(at.gate), "steps": 4}
    where = await kit.start_and_leave(at.root, resolve(f"{SKILLS}:listens", name="ears", args=args))
    for number in range(1, 4):
        await at.ledger.has(f"step {number} began 1")
        for text in (f"{number}a", f"{number}b"):
            await Coordinator(at.root).order(at.id, "send", patience=0, text=text)
        if number == 2:  # with messages that nobody has read
            kit.kill_worker(where)
            await kit.let_go(where)
            async with Coordinator(at.root) as coordinator:
                await coordinator.recover()
            await at.ledger.has("step 2 began 2")
        await kit.open_gate(at.gate)
    await at.ledger.has("step 4 began 1")
    kit.kill_worker(where)  # it has read the last two
    await kit.let_go(where)
    async with Coordinator(at.root) as coordinator:
        await coordinator.recover()
        await at.ledger.has("step 4 began 2")
        await kit.open_gate(at.gate)
        assert (await coordinator.wait(at.id, 120)).ok
        await kit.let_go(where)
    read = [line.removeprefix("read ") for line in at.ledger.lines() if line.startswith("read ")]
    assert list(dict.fromkeys(read)) == ["1a", "1b", "2a", "2b", "3a", "3b"]
    assert sum(len(e["requests"]) for e in kit.entries(where, "heard")) == 6


# -- through the command line ----------------------------------------------------------------------------------------


# fault 52
async def test_the_command_line_says_what_came_of_an_order(begin: Begin) -> None:
    at = await begin("interrupted")
    cli = Cli(at.base, at.root)
    said = cli("pause", at.id)
    assert (said.code, said.err) == (0, "")
    assert f"orchestrator continue {at.id}" in said.out
    cli("pause", at.id).refuses(DATA, "paused already", f"orchestrator continue {at.id}")
    assert cli("wait", at.id).code == TEMPORARY
    cli("retry", at.id[:-1] + "9").refuses(NO_INPUT, "list")
    cli("redo", at.id, "nine").refuses(DATA, "'nine'", "'one', 'two', 'three'")
    cli("answer", at.id, "yes").refuses(DATA, "question")
    said = cli("skip", at.id, "three", "--json")
    assert json.loads(said.out)["started"] is False
    assert cli("send", at.id, "mind the gap").code == 0
    said = cli("continue", at.id, "--json")
    assert json.loads(said.out)["started"] is True
    assert cli("wait", at.id).code == 0
    await kit.let_go(at.where)
    assert at.ledger.count("read mind the gap") == 1
    assert tries(at) == [[1], [1, 2], []]
    cli("resolve", at.id, "two", "--done").refuses(DATA, "orchestrator redo")
