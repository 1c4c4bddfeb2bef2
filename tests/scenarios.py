"""What can happen to a task, as a table: how the disk lies before, what is done, and what there is to see at the end.

Each runs in forks of the test process (inline.py). Whoever cuts one off anywhere and then recovers has to come to the
end of an undisturbed run: one of `Scenario.ends`. Tests of crashes, of errors and of power cuts share the table.
"""

from __future__ import annotations

import atexit
import dataclasses
import functools
import hashlib
import json
import os
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio.to_thread
import inline
import scenario_skills
from conftest import Ledger

from orchestrator import files, recovery, store, workspace
from orchestrator.compose import resolve
from orchestrator.coordinator import Coordinator
from orchestrator.core import stepfile
from orchestrator.core.model import TaskSpec
from orchestrator.core.spec import parse_steps
from orchestrator.errors import Damaged
from orchestrator.report import retrospects
from orchestrator.store import Paths
from orchestrator.strays import AtLarge

_thread = anyio.to_thread.run_sync

#: Told what a person has been told: from then on it must hold whatever happens. Whoever records a run listens here.
TOLD: list[Callable[[str], None]] = []


def tell(text: str) -> None:
    for listener in TOLD:
        listener(text)


# -- where it happens ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Place:
    """A directory with a root, and the log of the steps beside it."""

    base: Path

    @property
    def root(self) -> str:
        return str(self.base / "root")

    @property
    def ledger(self) -> Ledger:
        return Ledger(self.base / "ledger.txt")

    def environment(self, die: str = "") -> dict[str, str]:
        return {scenario_skills.LEDGER: str(self.base / "ledger.txt"), scenario_skills.DIE: die}

    def tasks(self) -> list[Paths]:
        return [Paths(os.path.join(self.root, task_id)) for task_id in store.task_ids(self.root)]

    def do(self, act: Act, *, die: str = "") -> inline.Ran:
        """One act, in a run of its own."""
        return inline.attempt(
            functools.partial(_under_a_coordinator, self.root, act), environment=self.environment(die)
        )


async def _under_a_coordinator(root: str, act: Act) -> Any:
    async with inline.coordinator(root) as coordinator:
        return await act(coordinator)


def temporary_base() -> str | None:
    """Where thousands of small trees are made: in memory where that can be had, for there a sync costs nothing."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


# -- what is done ----------------------------------------------------------------------------------------------------

Act = Callable[[Coordinator], Awaitable[Any]]


def the_task(coordinator: Coordinator) -> Paths:
    (task_id,) = store.task_ids(coordinator.root)
    return Paths(os.path.join(coordinator.root, task_id))


def spawn(what: Callable[[], TaskSpec]) -> Act:
    async def act(coordinator: Coordinator) -> None:
        handle = await coordinator.spawn(what())
        tell("spawned")
        said = await handle.wait()
        tell(f"announced {said.id}")

    return act


async def recover(coordinator: Coordinator) -> None:
    """What `orchestrator recover --wait` does, one task after the other."""
    await _thread(workspace.sweep_staging, coordinator.root)
    for task_id in await _thread(store.task_ids, coordinator.root):
        where = Paths(os.path.join(coordinator.root, task_id))
        said, lock = await _thread(recovery.claim, where, AtLarge(coordinator.root, (), (), ()))
        if lock is not None or said.action == "alive":
            announced = await coordinator.supervise(where, lock)
            tell(f"announced {announced.id}")
        elif said.action == "damaged":
            raise Damaged(said.reason)


async def cancel(coordinator: Coordinator) -> None:
    said = await coordinator.cancel(the_task(coordinator).task_id)
    tell(f"announced {said.id}")


def order(verb: str, **fields: Any) -> Act:
    """An order of a person, and the work that it makes possible, to its end."""

    async def act(coordinator: Coordinator) -> None:
        where = the_task(coordinator)
        _, lock = await coordinator.order(where.task_id, verb, **fields)
        tell(f"ordered {verb}")
        if lock is not None:
            said = await coordinator.supervise(where, lock)
            tell(f"announced {said.id}")

    return act


async def look_back(coordinator: Coordinator) -> None:
    await _thread(retrospects.write, the_task(coordinator))


#: In the log of the steps: what a person did beside the work is saved.
EDITED = "somebody edited beside it"
#: What a person wrote into task.md, and into a step's file. It must never be lost.
REMARK = "A remark of mine."
WORDS = "My own words, in a step's file."


def edited(task_md: str, change: Callable[[str], str]) -> None:
    """A person edits a file: as editors do, another is written, synced, and renamed over it."""
    text = Path(task_md).read_text("utf-8")
    after = change(text)
    assert after != text, "the edit changes nothing"
    _saved(task_md, after.encode())
    long_ago = time.time() - 60
    os.utime(task_md, (long_ago, long_ago))  # nobody has to wait for the editor to finish
    tell("edited")
    if scenario_skills.LEDGER in os.environ:  # beside the work, in a worker of it: nobody else hears of it
        scenario_skills.write(EDITED)


def _saved(path: str, data: bytes) -> None:
    """By the calls of the file layer: whoever records a run sees them."""
    call = files.os
    fd = call.open(path + "~", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    call.write(fd, data)
    call.fsync(fd)
    os.close(fd)
    call.rename(path + "~", path)
    files.sync_directory(os.path.dirname(path))


# -- how the disk lies before ----------------------------------------------------------------------------------------

Start = Callable[[Place], None]


def skill(name: str) -> Callable[[], TaskSpec]:
    return lambda: resolve(f"scenario_skills:{name}", name=f"the {name} work")


CHECKLIST = """\
name: the checklist
steps:
  - name: one
    shell: &work |
      echo "$ORCHESTRATOR_STEP began $ORCHESTRATOR_TRY" >> "$ORCHESTRATOR_TEST_LEDGER"
      if [ "$ORCHESTRATOR_TEST_DIE $ORCHESTRATOR_TRY" = "$ORCHESTRATOR_STEP 1" ]; then kill -9 "-$RUN"; fi
      if [ "$ORCHESTRATOR_STEP $ORCHESTRATOR_TRY" = "two 1" ]; then echo "not yet"; exit 1; fi
      echo "$ORCHESTRATOR_STEP ended" >> "$ORCHESTRATOR_TEST_LEDGER"
  - {name: two, shell: *work}
  - {name: three, shell: *work}
  - {name: four, shell: *work}
"""


def checklist() -> TaskSpec:
    return parse_steps(CHECKLIST.replace("$RUN", f"${inline.GROUP}"), "checklist.yaml")


def nothing(place: Place) -> None:
    """Not even the root is there."""


def fresh(what: Callable[[], TaskSpec]) -> Start:
    """A task that nobody has begun."""

    def start(place: Place) -> None:
        _, lock = workspace.create(place.root, what(), time.time)
        os.close(lock)

    return start


def interrupted(what: Callable[[], TaskSpec], step: str) -> Start:
    """Worker and coordinator died in the middle of a step."""

    def start(place: Place) -> None:
        ran = place.do(spawn(what), die=step)
        assert ran.code == -9, f"it did not die: {ran}"

    return start


def ended(what: Callable[[], TaskSpec]) -> Start:
    """As far as it comes by itself: to its end, or until a person is asked."""

    def start(place: Place) -> None:
        ran = place.do(spawn(what))
        assert ran.code == 0, ran.error

    return start


def then(before: Start, *acts: Act) -> Start:
    def start(place: Place) -> None:
        before(place)
        for act in acts:
            ran = place.do(act)
            assert ran.code == 0, ran.error

    return start


def by_hand(before: Start, change: Callable[[str], str]) -> Start:
    """And then somebody edited task.md."""

    def start(place: Place) -> None:
        before(place)
        (where,) = place.tasks()
        edited(where.task_md, change)
        files.append(where.step("gather.md" if "gather" in Path(where.task_md).read_text() else "one.md"), _IN_A_STEP)

    return start


_IN_A_STEP = f"\n{WORDS}\n".encode()


def _hand_of_varied(text: str) -> str:
    text = text.replace("[working done] gather", "[redo] gather")
    text = text.replace("[pending] never needed", "[skipped] never needed\n[pending] one more\n\n" + REMARK)
    return text + "\n---\n[working done] no step at all\nsome more of mine\n"


def _hand_of_three(text: str) -> str:
    return text.replace("[pending] three", "[skipped] three\n[working done] of my own\n\n" + REMARK)


def _hand_of_checklist(text: str) -> str:
    return text.replace("[pending] three\n[pending] four", "[pending] four\n[working done] three\n\n" + REMARK)


# -- what there is to see --------------------------------------------------------------------------------------------


def picture(root: str) -> list[dict[str, Any]]:
    """What a person sees of every task, without what differs from run to run: ids, times, attempts."""
    return [_of_task(Paths(os.path.join(root, task_id))) for task_id in store.task_ids(root)]


def _of_task(where: Paths) -> dict[str, Any]:
    seen = store.look(where)
    said = seen.announcement()
    texts = {state.file: Path(where.step(state.file)) for state in seen.snapshot.steps.values()}
    results = Path(where.results)
    entries = store.read_journal(where).entries
    commits = Counter(f"{e['step']}: {e['status']}" for e in entries if e["kind"] == "commit")
    return {
        "task.md": _neutral(where, Path(where.task_md).read_text("utf-8", "replace")),
        "state": seen.state,
        "damage": seen.damage,
        "steps": {label: _of_step(where, state) for label, state in seen.snapshot.steps.items()},
        "commits": dict(sorted(commits.items())),
        "orders": [[e["verb"], e.get("step"), e.get("refused")] for e in entries if e["kind"] == "handled"],
        "said": said and [said.name, said.status, _neutral(where, said.summary), said.steps, said.result is not None],
        "step files": {file: _of_step_file(path) for file, path in texts.items() if path.exists()},
        "results": {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(results.glob("*"))},
        "retro": os.path.exists(where.retro),
        "beside": sorted({name for name in os.listdir(where.directory) if name[-1] != "~"} - set(texts)),
    }


def _of_step(where: Paths, state: Any) -> list[Any]:
    result = state.result
    if state.result_file is not None:
        text = files.read(f"{where.directory}/{state.result_file}")
        result = ["in a file", hashlib.sha256(text).hexdigest()]
    if isinstance(result, Mapping):
        result = {key: value for key, value in result.items() if key != "seconds"}
    return [state.status.value, result, state.by_hand]


def _of_step_file(path: Path) -> Any:
    """How the step's file says that it stands."""
    found = stepfile.parse(path.read_text("utf-8", "replace"))
    return [found.heading, found.checkpoints[-1].status if found.checkpoints else None]


def _neutral(where: Paths, text: str) -> str:
    return text.replace(where.task_id, "ID").replace(os.path.dirname(where.directory), "ROOT")


# -- the table -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Scenario:
    """`start` lays the disk; then each of `acts` is done, each in a run of its own.

    `asked` is what a person does while the work goes on, by the label of the step in whose first try it happens;
    `hands` are the steps that a person marks done. `may_wait`: cut off in the middle of its `once` step, it waits for a
    person again, which is no loss.
    """

    name: str
    start: Start
    acts: tuple[Act, ...]
    asked: Mapping[str, Callable[[Any], None]] = field(default_factory=dict, compare=False)
    hands: frozenset[str] = frozenset(("of my own",))
    may_wait: bool = False

    def __str__(self) -> str:
        return self.name

    def place(self, base: Path) -> Place:
        """A place that lies as this scenario begins; made once and copied."""
        shutil.copytree(_begun(self), base, dirs_exist_ok=True, symlinks=True)
        return Place(base)

    def act(self, place: Place, number: int) -> inline.Ran:
        """One of the acts. Everything in it may be cut off."""
        scenario_skills.ASKED.clear()
        scenario_skills.ASKED.update(self.asked)
        return place.do(self.acts[number])

    def recover(self, place: Place) -> inline.Ran:
        """What makes it whole again, whatever has happened; nobody does anything beside it any more."""
        scenario_skills.ASKED.clear()
        return place.do(recover)

    @property
    def ends(self) -> tuple[str, ...]:
        """The picture at the end when only the first 0, 1, … all of the acts were done, and then recovered.

        A cut that comes before an act has taken effect may end like a run without it; one that comes after what was
        told to a person must not.
        """
        return _ends(self)

    @property
    def unasked(self) -> str:
        """The end of a run in which nobody did anything beside it."""
        return _ends(dataclasses.replace(self, name=f"{self.name}, unasked", asked={}))[-1] if self.asked else ""


@functools.cache
def _begun(scenario: Scenario) -> Path:
    base = Path(tempfile.mkdtemp(dir=temporary_base(), prefix="orchestrator-scenario-"))
    _MADE.append(base)
    scenario_skills.ASKED.clear()  # of the scenario before: none of it belongs to this beginning
    scenario.start(Place(base))
    return base


@functools.cache
def _ends(scenario: Scenario) -> tuple[str, ...]:
    found = []
    for count in range(len(scenario.acts) + 1):
        with tempfile.TemporaryDirectory(dir=temporary_base()) as base:
            place = scenario.place(Path(base))
            for number in range(count):
                ran = scenario.act(place, number)
                assert ran.code == 0, ran.error
            ran = scenario.recover(place)
            assert ran.code == 0, ran.error
            found.append(shown(place.root))
    return tuple(found)


def shown(root: str) -> str:
    """The picture as text, to be compared and to be read."""
    return json.dumps(picture(root), indent=1, ensure_ascii=False)


_MADE: list[Path] = []


def clean_up() -> None:
    """Remove the places that were made to be copied."""
    while _MADE:
        shutil.rmtree(_MADE.pop(), ignore_errors=True)
    _begun.cache_clear()


def _edit_in_flight(task: Any) -> None:
    edited(str(task.workspace / "task.md"), _hand_of_three)


def _edit_in_the_moment(task: Any) -> None:
    """Saved right before the next exchange of task.md, which displaces it."""
    swap = files._swap

    def saved_before(one: str, other: str) -> bool:
        files._swap = swap
        edited(other, lambda text: text.replace("] three\n", f"] three\n[working done] of my own\n\n{REMARK}\n"))
        return swap(one, other)

    files._swap = saved_before


SCENARIOS: tuple[Scenario, ...] = (
    Scenario("spawn a skill", nothing, (spawn(skill("varied")),)),
    Scenario("spawn a checklist", nothing, (spawn(checklist),)),
    Scenario("recover, fresh", fresh(skill("varied")), (recover,)),
    Scenario("recover, interrupted", interrupted(skill("varied"), "half (left)"), (recover,)),
    Scenario("recover, hand-edited", by_hand(interrupted(skill("varied"), "half (left)"), _hand_of_varied), (recover,)),
    Scenario("recover a checklist, interrupted", interrupted(checklist, "two"), (recover,)),
    Scenario(
        "recover a checklist, hand-edited",
        by_hand(interrupted(checklist, "two"), _hand_of_checklist),
        (recover,),
        hands=frozenset(("three",)),
    ),
    Scenario("an edit while it works", nothing, (spawn(skill("three")),), {"two": _edit_in_flight}),
    Scenario("an edit in the moment of a mark", nothing, (spawn(skill("three")),), {"two": _edit_in_the_moment}),
    Scenario("cancel, fresh", fresh(skill("three")), (cancel,)),
    Scenario("cancel, interrupted", interrupted(skill("three"), "two"), (cancel,)),
    Scenario("cancel, hand-edited", by_hand(interrupted(skill("three"), "two"), _hand_of_three), (cancel,)),
    Scenario("redo, ended", ended(skill("three")), (order("redo", step="two"),)),
    Scenario("redo, interrupted", interrupted(skill("three"), "two"), (order("redo", step="one"),)),
    Scenario(
        "redo, hand-edited",
        by_hand(interrupted(skill("three"), "two"), _hand_of_three),
        (order("redo", step="one"),),
    ),
    Scenario("skip, interrupted", interrupted(skill("three"), "two"), (order("skip", step="three", why="enough"),)),
    Scenario("pause and continue", interrupted(skill("three"), "two"), (order("pause"), order("continue"))),
    Scenario("retry, failed", ended(skill("fails")), (order("retry"),)),
    Scenario(
        "resolve as done",
        then(interrupted(skill("sends_once"), "send"), recover),
        (order("resolve", step="send", done=True, result="seen"),),
    ),
    Scenario(
        "resolve as not done",
        then(interrupted(skill("sends_once"), "send"), recover),
        (order("resolve", step="send", done=False),),
        may_wait=True,
    ),
    Scenario("send and answer", ended(skill("asks")), (order("send", text="hello"), order("answer", text="this"))),
    Scenario("retro, ended", ended(skill("three")), (look_back,)),
    Scenario("retro, interrupted", interrupted(skill("three"), "two"), (look_back,)),
)

atexit.register(clean_up)  # a fork of ours leaves by os._exit and takes nothing away
