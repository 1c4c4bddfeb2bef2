"""A hundred deaths: SIGKILL at every operation of the write order and at random moments, and nothing is lost.

The seed of the random ones is printed; ORCHESTRATOR_TEST_SEED=<seed> runs the same ones again.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import anyio
import dying
import kit
import pytest
import skills_under_test
from conftest import Ledger

from orchestrator import Announcement, Coordinator, files, recovery, store, takeover
from orchestrator.core import stepfile
from orchestrator.store import Paths

SEED = int(os.environ.get("ORCHESTRATOR_TEST_SEED") or random.SystemRandom().randrange(10**6))
MOMENTS = 100
TOGETHER = 6
ROUNDS = 20_000  # of labour in a step, where the moment is random: the steps take longer than what lies between them

#: Phases that a task cannot end without. The undisturbed run shows all there are; these must be among them.
PHASES = """
skill: write journal.jsonl
plan: write journal.jsonl
plan: sync journal.jsonl
running: write journal.jsonl
running: open step file
running: write step file
running: open .orchestrator-tmp-task.md
running: write .orchestrator-tmp-task.md
running: swap task.md
running: unlink .orchestrator-tmp-task.md
running: rename .orchestrator-tmp-collect (all)-df861677ded70762.json
commit: write journal.jsonl
commit: sync journal.jsonl
commit: open step file
commit: write step file
commit: fsync step file
end: write journal.jsonl
end: sync journal.jsonl
end: open .orchestrator-tmp-task.md
end: write .orchestrator-tmp-task.md
end: swap task.md
end: unlink .orchestrator-tmp-task.md
closed: write journal.jsonl
closed: sync journal.jsonl
""".strip().splitlines()


@dataclass(frozen=True)
class Whole:
    """What an undisturbed run leaves: the texts, the phases in their order, the size of its journal."""

    texts: dict[str, str]
    phases: list[str]
    journal_bytes: int


@dataclass(frozen=True)
class Moment:
    """When and who. An order for the dying layer; or a size of the journal, and whom to kill then."""

    number: int
    order: tuple[str, int, str] | None = None
    size: int = 0
    who: str = "worker"

    def __str__(self) -> str:
        when = " ".join(map(str, self.order)) if self.order else f"{self.who} at {self.size} bytes of journal"
        return f"{self.number}: {when}"


FACES = ("task.md", "report.md", "results/result.json")


async def undisturbed(place: Path, rounds: int = 0) -> Whole:
    """One run to its end, with its operations written down."""
    death = place / "death"
    death.mkdir(parents=True)
    ledger = Ledger(place / "ledger")
    what = kit.spec("six_steps", ledger, env={dying.VARIABLE: str(death)}, rounds=rounds)
    async with Coordinator(place / "root") as coordinator:
        handle = await coordinator.spawn(what)
        said = await handle.wait(120)
        assert said.ok, said
        await kit.let_go(handle.where)
    texts = kit.texts(handle.where, FACES)
    assert set(texts) == set(FACES)
    assert [kit.tries(ledger, step) for step in skills_under_test.STEPS] == [[1]] * 6
    return Whole(texts, (death / "log").read_text().splitlines(), os.path.getsize(handle.where.journal))


def moments_of_phases(phases: Sequence[str], luck: random.Random) -> list[Moment]:
    """Before one operation of every phase, in the middle of one of every kind of write, and after the very last."""
    counted = Counter(phases)
    orders = [(phase, luck.randint(1, n), "before") for phase, n in counted.items()]
    orders += [(phase, luck.randint(1, n), "half") for phase, n in counted.items() if ": write " in phase]
    orders.append((phases[-1], counted[phases[-1]], "after"))
    return [Moment(number, order) for number, order in enumerate(orders)]


def moments_of_chance(whole: Whole, luck: random.Random, numbers: range) -> list[Moment]:
    whom = ("worker", "guard", "worker and guard", "supervisor", "supervisor and worker")
    return [Moment(n, None, luck.randrange(whole.journal_bytes), whom[i % len(whom)]) for i, n in enumerate(numbers)]


# -- one moment ------------------------------------------------------------------------------------------------------


def ordered(death: Path, order: tuple[str, int, str] | None) -> Path:
    """The directory that a dying layer reads its order from."""
    death.mkdir()
    if order is not None:
        (death / "order").write_text(json.dumps(order))
    return death


class Trial:
    """One task, killed at one moment, recovered, and looked at."""

    def __init__(self, moment: Moment, place: Path, root: Path) -> None:
        self.moment = moment
        self.place = place
        self.root = root
        self.ledger = Ledger(place / "ledger")
        self.committed: set[str] = set()  #: as the journal has it at the kill
        self.hit = False  #: whether one of the processes that were to be killed was there
        self.entered: dict[str, list[int]] = {}  #: the tries of these, as the ledger has them at the kill
        place.mkdir()

    async def run(self, whole: Whole) -> None:
        where = await (self.die_by_order() if self.moment.order else self.die_by_chance())
        said = await self.recover(where)
        assert said is not None
        assert said.ok, said
        await kit.let_go(where)
        assert kit.texts(where, FACES) == whole.texts
        assert Path(where.retro).is_file(), "the retrospect is there"
        self.see_that_nothing_was_done_twice(where)
        await kit.until(lambda: not kit.left_behind(where), f"nothing is left: {kit.left_behind(where)}")

    async def recover(self, where: Paths) -> Announcement | None:
        return (await kit.recover(self.root, where))[1]

    async def die_by_order(self) -> Paths:
        """The worker kills itself at one operation, while nobody is there to start it again."""
        assert self.moment.order is not None
        death = ordered(self.place / "death", self.moment.order)
        with kit.fifo(death / "gate") as gate:
            what = kit.spec("six_steps", self.ledger, env={dying.VARIABLE: str(death)})
            where = await kit.start_and_leave(self.root, what)
            await kit.open_gate(gate)
        await kit.let_go(where)
        assert (death / "hit").exists(), "the moment never came"
        self.remember(where)
        return where

    async def die_by_chance(self) -> Paths:
        """SIGKILL from outside, when the journal has grown to some size."""
        where, supervisor = kit.start_supervised(self.root, kit.spec("six_steps", self.ledger, rounds=ROUNDS))
        await kit.until(
            lambda: os.path.getsize(where.journal) >= self.moment.size or store.look(where).snapshot.end,
            "the journal has grown",
        )
        if "supervisor" in self.moment.who:
            self.hit = supervisor.poll() is None
            supervisor.kill()
        found = kit.identities(where)
        if found:
            for who, role in zip(found, ("worker", "guard"), strict=True):
                if role in self.moment.who:
                    self.hit |= kit.kill(who)
        if self.moment.who == "supervisor and worker" and found:
            await kit.let_go(where)
            self.remember(where)
        await kit.until(lambda: supervisor.poll() is not None, "the supervisor has ended")
        return where

    def remember(self, where: Paths) -> None:
        self.committed = kit.done_steps(where)
        self.entered = {step: kit.tries(self.ledger, step) for step in self.committed}

    def see_that_nothing_was_done_twice(self, where: Paths) -> None:
        """No step that was committed at the kill was entered since, and no try was ever entered twice."""
        for step, before in self.entered.items():
            assert kit.tries(self.ledger, step) == before, f"{step} was committed and entered again"
        last = {str(e["step"]): e["try"] for e in kit.entries(where, "commit")}
        for step in skills_under_test.STEPS:
            begun = kit.tries(self.ledger, step)
            assert begun == sorted(set(begun)), f"{step}: a try was entered twice: {begun}"
            assert begun[-1] == last[step], f"{step} was entered after its commit: {begun}"
        commits = Counter(str(e["step"]) for e in kit.entries(where, "commit"))
        assert set(commits.values()) == {1}, commits
        assert len(kit.entries(where, "end")) == 1, "the end was announced once"
        for state in store.look(where).snapshot.steps.values():
            blocks = stepfile.parse(Path(where.step(state.file)).read_text()).checkpoints
            assert [b.status for b in blocks].count("done") == 1, f"the file of {state.label} says once that it is done"


async def many(trials: Sequence[Callable[[], Awaitable[None]]], names: Sequence[object]) -> None:
    """Run them, a few at once; afterwards fail with what went wrong in each."""
    wrong: list[str] = []
    limit = anyio.CapacityLimiter(TOGETHER)

    async def one(trial: Callable[[], Awaitable[None]], name: object) -> None:
        async with limit:
            try:
                await trial()
            except Exception as error:  # the other trials go on: which ones fail together says what is wrong
                wrong.append(f"{name}: {type(error).__name__}: {str(error)[:1500]}")

    async with anyio.create_task_group() as group:
        for trial, name in zip(trials, names, strict=True):
            group.start_soon(one, trial, name)
    assert not wrong, f"{len(wrong)} of {len(trials)} lost something (seed {SEED}):\n" + "\n".join(wrong)


# -- the tests -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
# fault 15
async def test_a_worker_killed_at_any_of_a_hundred_moments_loses_no_step_and_does_none_twice(
    tmp_path: Path, root: Path
) -> None:
    print(f"seed {SEED}")
    luck = random.Random(SEED)
    whole = await undisturbed(tmp_path / "whole")
    assert not set(PHASES) - set(whole.phases), "phases of the write order that the test does not see"
    moments = moments_of_phases(whole.phases, luck)
    print(f"{len(moments)} kills in {len(set(whole.phases))} phases, {MOMENTS - len(moments)} at random moments")
    moments += moments_of_chance(whole, luck, range(len(moments), MOMENTS))
    assert len(moments) == MOMENTS
    trials = [Trial(moment, tmp_path / str(moment.number), root) for moment in moments]
    await many([lambda trial=trial: trial.run(whole) for trial in trials], moments)
    hits = Counter(trial.moment.who for trial in trials if trial.moment.order is None and trial.hit)
    print(f"random kills that met a living process: {dict(hits)}")
    assert sum(hits.values()) > MOMENTS // 5
    assert not list(root.glob(".orchestrator-*"))
    assert len(store.task_ids(str(root))) == MOMENTS


#: In the middle of the work: `measure` has begun, and the exchange has left the displaced task.md beside the new one.
INTERRUPTED = Moment(0, ("running: swap task.md", 3, "after"))


class TrialOfTheNext(Trial):
    """The worker is killed in its middle, and the supervisor that takes the task over is killed as well."""

    def __init__(self, second: Moment, place: Path, root: Path) -> None:
        super().__init__(INTERRUPTED, place, root)
        self.second = second

    async def recover(self, where: Paths) -> Announcement | None:
        await self.take_over(where)
        return await super().recover(where)

    async def take_over(self, where: Paths) -> Path:
        """What `recover` starts, with a layer that dies. Returns its directory."""
        death = ordered(self.place / "second", self.second.order)
        said, lock = await anyio.to_thread.run_sync(recovery.claim, where)
        assert said.action == "resumed"
        assert lock is not None
        with subprocess.Popen(
            [sys.executable, "-P", dying.__file__, str(death), where.directory, str(lock)], pass_fds=(lock,)
        ) as supervisor:
            os.close(lock)
            await kit.until(lambda: supervisor.poll() is not None, "the supervisor has ended")
        assert (death / "hit").exists() == (self.second.order is not None), "the moment never came"
        return death


@pytest.mark.slow
async def test_whoever_takes_over_from_a_killed_worker_may_be_killed_as_well(tmp_path: Path, root: Path) -> None:
    print(f"seed {SEED}")
    whole = await undisturbed(tmp_path / "whole")
    first = TrialOfTheNext(Moment(0), tmp_path / "first", root)
    log = await first.take_over(await first.die_by_order()) / "log"
    moments = moments_of_phases(log.read_text().splitlines(), random.Random(SEED))
    print(f"{len(moments)} kills of a supervisor: {', '.join(map(str, moments))}")
    trials = [TrialOfTheNext(moment, tmp_path / str(moment.number), root) for moment in moments]
    await many([lambda trial=trial: trial.run(whole) for trial in trials], moments)


async def test_a_task_md_that_was_torn_while_it_was_written_adds_no_step_and_does_none(
    tmp_path: Path, root: Path
) -> None:
    """SIGKILL or a power cut may leave any beginning of the temporary; it is merged as an edit, and holds none."""
    trial = Trial(INTERRUPTED, tmp_path / "trial", root)
    where = await trial.die_by_order()
    left = Path(files.temporary_of(where.task_md))
    wholes = {left.read_bytes(), Path(where.task_md).read_bytes()}
    assert len(wholes) == 2, "both the old and the new one are there"
    statuses = {s.label: s.status for s in store.look(where).snapshot.steps.values()}
    takeover.take_over(where, time.time).close()  # ends the attempt's loose ends
    face = Path(where.task_md).read_bytes()
    for whole in wholes:
        for length in range(len(whole)):
            left.write_bytes(whole[:length])
            takeover.take_over(where, time.time).close()
            seen = store.look(where).snapshot
            assert {s.label: s.status for s in seen.steps.values()} == statuses, whole[:length]
            assert Path(where.task_md).read_bytes() == face, whole[:length]
            assert not left.exists()
