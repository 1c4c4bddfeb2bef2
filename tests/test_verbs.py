"""What each order of a person does to a task in each state: the table, and a test for every cell of it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import kit
import pytest
import states
from states import STATES, Place

from orchestrator import Coordinator, recovery
from orchestrator.core.checklist import Checklist
from orchestrator.core.lifecycle import FACE
from orchestrator.core.model import StepStatus, TaskStatus
from orchestrator.errors import NotRunning, OrchestratorError, WaitTimeout

#: In every state but `queued` a task has the steps one (done), two (where it stands) and three (pending; in a completed
#: task all are done).
TABLE = """
| state       | cancel    | pause  | continue | retry  | send   | answer | recover | wait  |
|-------------|-----------|--------|----------|--------|--------|--------|---------|-------|
| queued      | cancelled | paused | no       | no     | kept   | no     | starts  | no 75 |
| working     | cancelled | border | no       | no     | kept   | no     | as is   | waits |
| interrupted | cancelled | paused | no       | no     | kept   | no     | starts  | no 75 |
| paused      | cancelled | no     | starts   | no     | kept   | no     | as is   | as is |
| question    | cancelled | paused | no       | no     | kept   | starts | as is   | as is |
| uncertain   | cancelled | paused | no       | no     | kept   | no     | as is   | as is |
| failed      | as is     | no     | no       | starts | no     | no     | as is   | as is |
| conflict    | as is     | no     | no       | starts | no     | no     | as is   | as is |
| completed   | as is     | no     | no       | no     | no     | no     | as is   | as is |
| cancelled   | as is     | no     | no       | no     | no     | no     | as is   | as is |
| damaged     | no        | no     | no       | no     | no     | no     | as is   | no    |

| state       | redo one  | redo three | redo nine | skip one | skip three | resolve two --done | resolve two --redo |
|-------------|-----------|------------|-----------|----------|------------|--------------------|--------------------|
| queued      | no        | no         | no        | no       | no         | no                 | no                 |
| working     | border    | no         | no        | no       | border     | no                 | no                 |
| interrupted | starts    | no         | no        | no       | starts     | no                 | no                 |
| paused      | paused    | no         | no        | no       | paused     | no                 | no                 |
| question    | question  | no         | no        | no       | question   | no                 | no                 |
| uncertain   | uncertain | no         | no        | no       | uncertain  | starts             | starts             |
| failed      | starts    | no         | no        | no       | failed     | no                 | no                 |
| conflict    | starts    | no         | no        | no       | conflict   | starts             | starts             |
| completed   | starts    | starts     | no        | no       | no         | no                 | no                 |
| cancelled   | starts    | no         | no        | no       | no         | no                 | no                 |
| damaged     | no        | no         | no        | no       | no         | no                 | no                 |
"""

#: What the words of the table mean. Every other word is a state: the order acts, no worker is started, and so it is.
WORDS = {
    "starts": "it acts, and a worker is started",
    "border": "the living worker does it between two steps",
    "kept": "the message waits for the worker, which reads it between two steps",
    "waits": "it waits for as long as it is told to",
    "as is": "it says how the task stands, and changes nothing",
    "no": "it is refused with exit code 65, says what to do instead, and changes nothing",
    "no 75": "the same with exit code 75: it will go another time",
}

#: How the task ends when the worker that was started has nothing in its way. Nothing said: completed.
ENDS = {
    ("failed", "redo one"): "failed",  # the second step stays failed until it is retried
    ("conflict", "redo one"): "conflict",
    ("conflict", "retry"): "conflict",  # nothing has been settled
    ("conflict", "continue"): "conflict",
}

#: How often steps were entered in the end when it is not once, by order and step; the second one's tries depend.
ONE_MORE = {"redo one": "one", "redo three": "three"}


def cells(table: str = TABLE) -> Iterator[tuple[str, str, str]]:
    """State, order and word of every cell."""
    header: list[str] = []
    for line in table.strip().splitlines():
        row = [cell.strip() for cell in line.strip("|").split("|")]
        if row[0] == "state":
            header = row
        elif header and len(row) == len(header) and not row[0].startswith("-"):
            yield from ((row[0], order, word) for order, word in zip(header[1:], row[1:], strict=True))


CELLS = list(cells())


def fields(order: str) -> tuple[str, dict[str, Any]]:
    """The verb, and what Coordinator.order is given with it."""
    verb, *words = order.split()
    given: dict[str, Any] = {"step": words[0]} if words else {}
    if verb == "resolve":
        given["done"] = words[1] == "--done"
        if given["done"]:
            given["result"] = "from a person"
    if verb in ("send", "answer"):
        given["text"] = f"the {verb}"
    return verb, given


@pytest.fixture
async def at(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """A task in the state of this cell."""
    async with states.task(request.param, tmp_path) as found:
        yield found


def test_no_cell_of_the_table_is_missing() -> None:
    orders = {order for _, order, _ in CELLS}
    assert [state for state, order, _ in CELLS if order == "cancel"] == list(STATES)
    assert {(state, order) for state, order, _ in CELLS} == {(state, order) for state in STATES for order in orders}
    assert {word for _, _, word in CELLS} <= {*WORDS, *STATES}


@pytest.mark.parametrize("at", STATES, indirect=True, ids=str)
# fault 31
async def test_a_task_is_listed_in_the_state_it_is_in(at: Place, request: pytest.FixtureRequest) -> None:
    state = request.node.callspec.params["at"]
    assert at.look().state == state
    if state not in ("queued", "damaged"):
        steps = at.look().snapshot.steps
        assert steps["one"].status is StepStatus.DONE
        assert steps["three"].status is (StepStatus.DONE if state == "completed" else StepStatus.PENDING)


@pytest.mark.parametrize("at, order, word", CELLS, indirect=["at"], ids=["-".join(c).replace(" ", "_") for c in CELLS])
async def test_an_order_does_what_the_table_says(
    at: Place, order: str, word: str, request: pytest.FixtureRequest
) -> None:
    state = request.node.callspec.params["at"]
    if word.startswith("no"):
        await refused(at, order, int(word[2:] or 65))
    elif word in ("as is", "waits"):
        await changes_nothing(at, state, order, word)
    elif word == "kept":
        await kept(at, state, order)
    elif word == "border":
        await done_at_the_border(at, order)
    elif word == "starts":
        await starts(at, state, order)
    else:
        await acts(at, order, word)


# -- what the words mean, in deeds ----------------------------------------------------------------------------------


async def give(at: Place, order: str) -> Any:
    """The order, as the command line gives it."""
    verb, given = fields(order)
    coordinator = Coordinator(at.root)
    match verb:
        case "cancel":
            return await coordinator.cancel(at.id)
        case "wait":
            return await coordinator.wait(at.id, 0.05 if at.look().state == "working" else 30)
        case "recover":
            return await anyio.to_thread.run_sync(recovery.claim, at.where)
        case _:
            return await coordinator.order(at.id, verb, patience=0 if verb == "send" else 30, **given)


async def refused(at: Place, order: str, code: int) -> None:
    before = at.contents()
    with pytest.raises(OrchestratorError) as error:
        await give(at, order)
    assert error.value.exit_code == code
    for line in (error.value.what, error.value.hint):
        assert line.strip()
        assert "\n" not in line
        assert not re.search(r"\bTASK\b|\bSTEP\b", line), "a place of the text was not filled in"
    assert at.id in error.value.what
    assert at.contents() == before


async def changes_nothing(at: Place, state: str, order: str, word: str) -> None:
    before = at.contents()
    if word == "waits":
        with pytest.raises(WaitTimeout):
            await give(at, order)
    else:
        said = await give(at, order)
        if order == "recover":
            assert said[1] is None, "it has taken the lock"
            assert said[0].action == RECOVERED[state]
        else:
            assert said.status == state
    assert at.contents() == before


RECOVERED = {
    **dict.fromkeys(("paused", "question", "uncertain"), "waits"),
    **dict.fromkeys(("failed", "conflict", "completed", "cancelled"), "ended"),
    "working": "alive",
    "damaged": "damaged",
}


async def kept(at: Place, state: str, order: str) -> None:
    """Nothing changes but that the message is there; who goes on with the task reads it."""
    before = at.contents()
    assert await give(at, order) == (None, None)
    after = at.contents()
    assert at.look().state == state
    assert {path for path in after if after[path] != before.get(path)} == {at.where.requests}


async def done_at_the_border(at: Place, order: str) -> None:
    """It is given to the worker; not before the step has ended does it count."""
    verb, given = fields(order)
    assert await Coordinator(at.root).order(at.id, verb, patience=0, **given) == (None, None)
    assert at.look().state == "working"
    assert not kit.entries(at.where, "handled")
    await kit.open_gate(at.gate)
    at.tell("work")
    said = await Coordinator(at.root).wait(at.id, 120)
    await kit.let_go(at.where)
    assert said.status == ("paused" if verb == "pause" else "completed")
    assert [e["verb"] for e in kit.entries(at.where, "handled")] == [verb]
    effect(at, order)
    face_is_the_journal(at)
    assert at.ledger.count("two began") == 1
    assert len(kit.entries(at.where, "attempt")) == 1


async def acts(at: Place, order: str, state: str) -> None:
    attempts = kit.entries(at.where, "attempt")
    said = await give(at, order)
    if order != "cancel":
        handled, lock = said
        assert "refused" not in handled
        assert lock is None
        assert [e["verb"] for e in kit.entries(at.where, "handled")][-1:] == [handled["verb"]]
    assert kit.entries(at.where, "attempt") == attempts, "a worker was started"
    assert at.look().state == state
    effect(at, order)
    face_is_the_journal(at)
    assert (await Coordinator(at.root).wait(at.id, 5)).status == state
    assert not kit.left_behind(at.where)


async def starts(at: Place, state: str, order: str) -> None:
    before = len(kit.entries(at.where, "attempt"))
    _, lock = await give(at, order)
    assert lock is not None
    async with Coordinator(at.root) as coordinator:
        await coordinator.adopt(at.where, lock)
        said = await coordinator.wait(at.id, 120)
        await kit.let_go(at.where)
    assert said.status == ENDS.get((state, order), "completed")
    assert len(kit.entries(at.where, "attempt")) == before + 1
    ran_again = ONE_MORE.get(order)
    assert at.ledger.count("one began") == 1 + (ran_again == "one")
    assert at.ledger.count("three began") <= 1 + (ran_again == "three")
    face_is_the_journal(at)


def effect(at: Place, order: str) -> None:
    """What the order itself has done to its step."""
    verb, given = fields(order)
    step = at.look().snapshot.steps.get(given.get("step", ""))
    if verb == "skip":
        assert step is not None
        assert step.status is StepStatus.SKIPPED
        assert at.ledger.count("three began") == 0
    if verb == "redo":
        assert step is not None
        again = at.ledger.count("one began") == 2
        assert step.status is (StepStatus.DONE if again else StepStatus.PENDING)


def face_is_the_journal(at: Place) -> None:
    seen = at.look()
    assert seen.face is not None
    shown = {step.name: step.status for step in seen.face.steps}
    known = {label: state.status for label, state in seen.snapshot.steps.items()}
    tags = {StepStatus.UNCERTAIN: StepStatus.WORKING}
    assert shown == {label: tags.get(status, status) for label, status in known.items()}
    end = seen.snapshot.end
    begun = TaskStatus.WORKING if seen.snapshot.attempts else TaskStatus.START
    assert seen.face.status is (FACE[end["outcome"]] if end else begun)
    assert seen.face.has_end is (end is not None and end["outcome"] == "completed")
    assert Checklist.parse(Path(at.where.task_md).read_bytes()).findings == []


# -- what else -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("at", ["interrupted"], indirect=True)
@pytest.mark.parametrize("order", [order for state, order, _ in CELLS if state == "queued"])
async def test_an_order_for_a_task_that_is_not_there_is_refused(at: Place, order: str) -> None:
    verb, given = fields(order)
    coordinator = Coordinator(at.root)
    nobody = at.id[:-1] + "9"
    call = {
        "cancel": lambda: coordinator.cancel(nobody),
        "wait": lambda: coordinator.wait(nobody),
        "recover": lambda: coordinator.recover([nobody]),
    }.get(verb, lambda: coordinator.order(nobody, verb, **given))
    with pytest.raises(OrchestratorError) as error:
        await call()
    assert error.value.exit_code == 66
    assert nobody in error.value.what
    assert error.value.hint


@pytest.mark.parametrize("at", ["interrupted"], indirect=True)
async def test_who_waits_for_an_interrupted_task_is_told_to_recover_it(at: Place) -> None:
    with pytest.raises(NotRunning) as error:
        await Coordinator(at.root).wait(at.id, 120)
    assert f"orchestrator recover {at.id}" in error.value.hint


def test_the_table_for_users_is_the_one_that_is_tested() -> None:
    text = Path(__file__).parent.parent.joinpath("docs", "verbs.md").read_text("utf-8")
    assert list(cells(text)) == CELLS
    for word, meaning in WORDS.items():
        assert f"- `{word}`: {meaning}" in text
