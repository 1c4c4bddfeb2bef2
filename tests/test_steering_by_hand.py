"""What a person writes into task.md steers the task as the verbs do; and orders whose carrier is killed."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import kit
import pytest
import states
from cli_door import Cli
from states import Place, edit, goes_on, order, recovers, tries

from orchestrator import Coordinator, store
from orchestrator.core.model import StepSpec, StepStatus, TaskSpec

Begin = Callable[[str], Awaitable[Place]]


@pytest.fixture
async def begin(tmp_path: Path) -> AsyncIterator[Begin]:
    """A task in the state that is named."""
    async with contextlib.AsyncExitStack() as stack:
        yield lambda state: stack.enter_async_context(states.task(state, tmp_path))


# -- by hand, in task.md ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "tag, ends, ran",
    [("working done", "conflict", [1]), ("redo", "completed", [1, 2]), ("skipped", "completed", [1])],
)
async def test_what_a_person_writes_behind_an_uncertain_step_settles_it(
    begin: Begin, tag: str, ends: str, ran: list[int]
) -> None:
    """Done by hand, but with what result? That a skill cannot be told in task.md."""
    at = await begin("uncertain")
    edit(at, "[working] two", f"[{tag}] two")
    assert await recovers(at) == ("resumed", ends)
    assert tries(at)[1] == ran
    if ends == "conflict":
        _, lock = await order(at, "resolve", step="two", done=True, result="seen")
        assert await goes_on(at, lock) == "completed"
        assert at.ledger.count("handed back one 1, seen") == 1


@pytest.mark.parametrize("tag, ran", [("working done", 1), ("redo", 2)])
async def test_an_uncertain_command_that_a_person_marks_done_is_done(
    tmp_path: Path, root: Path, tag: str, ran: int
) -> None:
    log = tmp_path / "log"
    kill = f"echo ran >> '{log}'; [ -e '{tmp_path}/calm' ] || kill -9 $PPID"
    steps = (StepSpec("send", shell=kill, effect="once"), StepSpec("tell", shell=f"echo told >> '{log}'"))
    async with Coordinator(root) as coordinator:
        handle = await coordinator.spawn(TaskSpec("errand", "steps", "errand.yaml", steps=steps))
        assert (await handle.wait(120)).status == "uncertain"
    await kit.let_go(handle.where)
    (tmp_path / "calm").touch()
    face = Path(handle.where.task_md)
    face.write_text(face.read_text().replace("[working] send", f"[{tag}] send"))
    said, announced = await kit.recover(root, handle.where)
    assert (said.action, announced and announced.status) == ("resumed", "completed")
    await kit.let_go(handle.where)
    assert log.read_text().split() == ["ran"] * ran + ["told"]


@pytest.mark.parametrize("state", ["paused", "question"])
async def test_what_a_person_writes_into_the_task_md_of_a_task_that_waits_is_taken_over_while_it_waits_on(
    begin: Begin, state: str
) -> None:
    at = await begin(state)
    edit(at, "[pending] three", "[skipped] three\n[pending] four\nand a thought")
    assert await recovers(at) == ("waits", state)
    steps = at.look().snapshot.steps
    assert [steps[name].status for name in ("three", "four")] == [StepStatus.SKIPPED, StepStatus.PENDING]
    assert "and a thought" in Path(at.where.task_md).read_text("utf-8")
    before = at.contents()
    assert await recovers(at) == ("waits", state)
    assert at.contents() == before


async def test_a_failed_step_that_a_person_marks_skipped_lets_recover_go_on(begin: Begin) -> None:
    at = await begin("failed")
    edit(at, "[failed] two", "[skipped] two")
    assert await recovers(at) == ("resumed", "completed")
    assert tries(at) == [[1], [1], [1]]


async def test_a_failed_step_that_a_person_marks_done_stays_failed_and_breaks_nothing(begin: Begin) -> None:
    """A commit beats any tag, but `[redo]`."""
    at = await begin("failed")
    edit(at, "[failed] two", "[working done] two")
    assert (await recovers(at))[1] == "failed"
    edit(at, "[working done] one", "[redo] one")
    assert await recovers(at) == ("resumed", "failed")
    assert tries(at) == [[1, 2], [1], []]
    assert "[failed] two" in Path(at.where.task_md).read_text("utf-8")


async def test_who_recovers_and_waits_is_told_the_new_end_of_a_task_that_had_ended(begin: Begin) -> None:
    at = await begin("completed")
    edit(at, "[working done] one", "[redo] one")
    cli = Cli(at.base, at.root)
    assert "resumed at step 'one'" in cli("recover", "--dry-run").out
    said = cli("recover", "--wait")
    assert said.code == 0, said
    assert at.ledger.count("one began 2") == 1
    assert [e["outcome"] for e in kit.entries(at.where, "end")] == ["completed"] * 2
    assert "[end]" in Path(at.where.task_md).read_text("utf-8")


# -- who carries an order out is killed ------------------------------------------------------------------------------


_ORDERER = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import anyio
import dying
from orchestrator import Coordinator
dying.install(Path(sys.argv[2]))
anyio.run(lambda: Coordinator(sys.argv[3]).order(sys.argv[4], "redo", step="one"))
"""


async def ordered_and_died(of: Place, base: Path, death: tuple[str, int] | None) -> Place:
    """A copy of a completed task, and one who orders its first step to be redone, killed behind one operation."""
    at = states.copy(of, base)
    (base / "death").mkdir()
    if death is not None:
        (base / "death" / "order").write_text(json.dumps([*death, "after"]))
    words = [str(Path(__file__).parent), str(base / "death"), str(at.root), at.id]
    done = await anyio.run_process([sys.executable, "-c", _ORDERER, *words], check=death is None)
    assert (base / "death" / "hit").exists() is (death is not None), done.stderr
    return at


async def test_an_order_to_redo_survives_the_death_of_its_giver_at_every_write(begin: Begin, tmp_path: Path) -> None:
    """A `[working done]` that still stands in task.md must not be taken for the word of a person."""
    of = await begin("completed")
    whole = await ordered_and_died(of, tmp_path / "whole", None)
    phases = (whole.base / "death" / "log").read_text().splitlines()
    deaths = [(phase, phases[: at + 1].count(phase)) for at, phase in enumerate(phases)]
    assert len(deaths) > 10, "the layer was not in place"
    ends: dict[tuple[str, int], Any] = {}

    async def die_and_recover(number: int, death: tuple[str, int]) -> None:
        async with limit:
            at = await ordered_and_died(of, tmp_path / str(number), death)
            given = bool(store.read_requests(at.where))
            said, announced = await kit.recover(at.root, at.where)
            await kit.let_go(at.where)
            took = [e for e in kit.entries(at.where, "handled") if "refused" not in e]
            by_hand = kit.entries(at.where, "redo")  # a `[redo]` left in task.md is as good as the order
            ran = [[1, 2], [1], [1]] if given else [[1], [1], [1]]
            if announced is None or not announced.ok or tries(at) != ran or (given and not took and not by_hand):
                ends[death] = (said, announced, tries(at))

    limit = anyio.CapacityLimiter(6)
    async with anyio.create_task_group() as group:
        for number, death in enumerate(deaths):
            group.start_soon(die_and_recover, number, death)
    assert not ends
