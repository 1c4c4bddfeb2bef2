"""Each file of a task is ruined in each way, in each state, and recovered: the task comes to the end that it would have
come to, enters nothing again that was done, or says what cannot be known; its neighbour comes to its own.

The seed of what is drawn is printed; see test_disk_faults.py. `ORCHESTRATOR_TEST_TRIALS=all` tries every cell.
"""

from __future__ import annotations

import functools
import os
import resource
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import anyio.to_thread
import inline
import judging
import pytest
import ruining
import scenarios
from ruining import DAMAGES
from scenarios import Place, Start, ended, fresh, interrupted, skill, then

from orchestrator import doctor, recovery, store
from orchestrator.coordinator import Coordinator
from orchestrator.errors import OrchestratorError
from orchestrator.findings import Finding
from orchestrator.store import Paths

#: How many are drawn in every run of the tests, in how many parts.
COUNT, PARTS = 36, 3

_thread = anyio.to_thread.run_sync


def _step_file(where: Paths) -> str:
    return next(path for name in ("gather", "first", "send") if os.path.lexists(path := where.step(f"{name}.md")))


def _step_result(where: Paths) -> str:
    (found,) = Path(where.results).glob("collect*.json")
    return str(found)


FILES: dict[str, Callable[[Paths], str]] = {
    "task.md": lambda where: where.task_md,
    "a step's file": _step_file,
    "journal.jsonl": lambda where: where.journal,
    "spec.yaml": lambda where: where.spec,
    "requests.jsonl": lambda where: where.requests,
    "result.json": lambda where: f"{where.results}/result.json",
    "a step's result": _step_result,
}
_BEGUN = {"task.md", "journal.jsonl", "spec.yaml", "requests.jsonl"}

#: How the task lies, and which of its files are there.
STATES: dict[str, tuple[Start, set[str]]] = {
    "fresh": (fresh(skill("varied")), _BEGUN),
    "interrupted": (interrupted(skill("varied"), "half (left)"), _BEGUN | {"a step's file", "a step's result"}),
    "uncertain": (
        then(interrupted(skill("sends_once"), "send"), scenarios.recover),
        _BEGUN | {"a step's file"},
    ),
    "asks": (ended(skill("asks")), _BEGUN | {"a step's file"}),
    "ended": (ended(skill("varied")), set(FILES)),
}


class Cell(NamedTuple):
    state: str
    file: str
    damage: str

    def __str__(self) -> str:
        return f"{self.state}, {self.file}: {self.damage}"


CELLS = [Cell(state, file, damage) for state, (_, there) in STATES.items() for file in there for damage in DAMAGES]
CELLS.sort()


@functools.cache
def _begun(state: str) -> Path:
    """The task, and behind it a neighbour that was interrupted as well."""
    base = Path(tempfile.mkdtemp(dir=scenarios.temporary_base(), prefix="orchestrator-ruined-"))
    scenarios._MADE.append(base)
    place = Place(base)
    STATES[state][0](place)
    (where,) = place.tasks()
    request = {"id": "an old one", "verb": "send", "text": "hello", "at": 1.0}
    store.make_request(where, request)
    interrupted(skill("three"), "two")(place)
    return base


@pytest.fixture(scope="module", autouse=True)
def clean() -> Iterator[None]:
    yield
    _begun.cache_clear()
    scenarios.clean_up()


# -- what happens in the fork ----------------------------------------------------------------------------------------


class After(NamedTuple):
    """What was found, done and told, and how the tasks lie then."""

    findings: list[Finding]
    done_again: list[str]
    unkept: list[Finding]  #: what --fix was said to mend, after it
    said: dict[str, str]
    states: dict[str, str]
    steps: dict[str, str]
    grown: int


def later() -> float:
    return time.time() + 3600


async def _recover(coordinator: Coordinator) -> dict[str, str]:
    """As `orchestrator recover --wait`: what was said of each task."""
    said = {}
    for task_id in await _thread(store.task_ids, coordinator.root):
        where = Paths(os.path.join(coordinator.root, task_id))
        try:
            found, lock = await _thread(recovery.claim, where)
            said[task_id] = f"{found.action}: {found.reason}"
            if lock is not None or found.action == "alive":
                await coordinator.supervise(where, lock)
        except (OSError, OrchestratorError) as error:
            said[task_id] = f"damaged: {recovery.failed(where, error).reason}"
    return said


async def _ruin_and_recover(root: str, where: Paths, cell: Cell, mend: bool) -> After:
    inline.obey_permissions()
    DAMAGES[cell.damage](Path(FILES[cell.file](where)))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = [one for one in doctor.examine(root, later) if one.task == where.task_id and not one.settled]
    again: list[str] = []
    unkept: list[Finding] = []
    if mend:
        list(doctor.mend(root, later))
        again = [line for line in doctor.mend(root, later) if where.task_id in line]
        unkept = [one for one in doctor.examine(root, later) if one.task == where.task_id and one.level == "mend"]
    async with inline.coordinator(root) as coordinator:
        said = await _recover(coordinator)
    seen = store.look(where)
    states = {task_id: store.row(Paths(os.path.join(root, task_id))).state for task_id in store.task_ids(root)}
    steps = {label: state.status.value for label, state in seen.snapshot.steps.items()}
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    return After(found, again, unkept, said, states, steps, grown)


# -- what is wrong with it -------------------------------------------------------------------------------------------


@functools.cache
def undisturbed(state: str) -> After:
    with tempfile.TemporaryDirectory(dir=scenarios.temporary_base()) as base:
        return _played(state, Path(base) / "place", None)[0]


def _played(state: str, base: Path, cell: Cell | None, mend: bool = False) -> tuple[After, list[str], Paths]:
    """How it lies after the cell; the done steps that were entered again; the task."""
    shutil.copytree(_begun(state), base, symlinks=True)
    place = Place(base)
    where = place.tasks()[0]
    before = judging.look(place)
    if cell is None:
        DAMAGES["nothing"] = lambda path: None
        cell = Cell(state, "task.md", "nothing")
    act = functools.partial(_ruin_and_recover, place.root, where, cell, mend)

    async def body() -> After:
        return await act()

    ran = inline.attempt(body, environment=place.environment())
    DAMAGES.pop("nothing", None)
    assert ran.code == 0, f"{cell}: {ran.error}"
    entered = judging.look(place).entered - before.entered
    return ran.value, [label for label in before.done[where] if entered[label]], where


#: Of whom it is said what is lost, and by which word: nothing else knows what stood there.
UNKNOWN = {"spec.yaml": "adopt", "a step's result": "redo"}


def wrong(cell: Cell, mend: bool) -> Iterator[str]:
    wanted = undisturbed(cell.state)
    with tempfile.TemporaryDirectory(dir=scenarios.temporary_base()) as base:
        after, again, where = _played(cell.state, Path(base) / "place", cell, mend)
        if cell.damage == "a full directory" and cell.file != "spec.yaml":
            kept = [path.read_text() for path in Path(where.directory).rglob("inside")]
            if kept != ["precious"]:
                yield f"what lay in the directory: {kept}"
    if len(after.findings) > 1 or not all(one.hint or "orchestrator" in one.what for one in after.findings):
        yield f"not one finding with a way out: {after.findings}"
    if after.done_again:
        yield f"mended a second time: {after.done_again}"
    if after.unkept:
        yield f"said to be mended by --fix, and was not: {after.unkept}"
    if again:
        yield f"done, and entered again: {again}"
    if after.grown > ruining.PEAK:
        yield f"looking at it costs {after.grown // 1024} MiB"
    (neighbour,) = set(after.states) - {where.task_id}
    if after.states[neighbour] != "completed":
        yield f"its neighbour: {after.said[neighbour]}"
    ended_as_wanted = list(after.states.values())[:1] == list(wanted.states.values())[:1]
    if not ended_as_wanted or after.steps.items() < wanted.steps.items():
        told = " ".join([after.said[where.task_id], *(f"{one.what} {one.hint}" for one in after.findings)])
        if UNKNOWN.get(cell.file, "\0") not in told:
            yield f"another end, {after.states[where.task_id]}, {after.steps}: {told}"


@pytest.mark.parametrize("part", range(PARTS))
def test_a_ruined_task_comes_to_its_end_or_says_what_is_lost_and_its_neighbour_to_its_own(part: int) -> None:
    cells = judging.drawn(CELLS, lambda cell: cell.file, COUNT)[part::PARTS]
    begun = time.monotonic()
    found = [f"{cell}: {what}" for n, cell in enumerate(cells) for what in wrong(cell, mend=bool(n % 2))]
    print(f"ruined, part {part + 1} of {PARTS}: {len(cells)} of {len(CELLS)} cells, {time.monotonic() - begun:.0f} s")
    assert not found, "\n".join([f"seed {judging.SEED}", *found])


@pytest.mark.parametrize("damage", ["gone", "a fifo"])
def test_a_task_that_waits_for_a_person_is_listed_so_when_its_journal_was_lost(damage: str) -> None:
    assert list(wrong(Cell("uncertain", "journal.jsonl", damage), mend=False)) == []


def test_the_table_of_the_docs_names_every_file_that_is_ruined_and_who_makes_it_good() -> None:
    text = (Path(__file__).parent.parent / "docs/durability.md").read_text("utf-8")
    section = text.partition("| file | when it is ruined |")[2].partition("\n## ")[0]
    rows = [row.strip("| ").split(" | ") for row in section.splitlines()[2:] if row.startswith("|")]
    told = {file.strip("`"): by for file, _, by in rows}
    assert told.keys() == FILES.keys()
    assert {file for file, by in told.items() if by.startswith("a person")} == UNKNOWN.keys()
    assert all(verb in told[file] for file, verb in UNKNOWN.items())
