"""Whatever is written into task.md, whenever: no finished work is done anew, no note lost, the task can be ended.

A note counts as lost when it stood there after the last save of the person and does not at the end.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import anyio
import kit
import pytest
from conftest import Ledger
from hypothesis import HealthCheck, Phase, given, note, settings
from hypothesis import strategies as st
from scribbling import ASKED, STEPS, Bench, Edit, edits, redone, save

from orchestrator import Coordinator, Limits, files, store
from orchestrator.core.checklist import Checklist
from orchestrator.core.model import StepId, StepSpec, StepStatus, TaskSpec
from orchestrator.store import Paths, look

NOTES = [f"a thought, the {number}th" for number in range(40)]

#: When an edit is saved: while a step runs; while nobody is there; while the next worker starts.
WHEN = ("live", "at rest", "at the start")

SCRIPTS = st.lists(
    st.tuples(edits(st.sampled_from(NOTES)), st.sampled_from(WHEN), st.booleans()), min_size=1, max_size=8
)


def notes_in(text: str) -> set[str]:
    lines = {line.removesuffix("\r") for line in text.split("\n")}
    return lines.intersection(NOTES)


class Watcher:
    """What must stay true from one moment to the next."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.notes: set[str] = set()
        self.finished: set[StepId] = set()

    def saved(self) -> None:
        """A person has just saved: what is not there now, he has deleted himself."""
        self.notes = notes_in(self.bench.text)

    def check(self) -> None:
        snapshot = look(self.bench.where).snapshot
        finished = {state.id for state in snapshot.steps.values() if state.status.finished}
        gone = {step for step in self.finished - finished if step.name not in self.bench.ordered}
        assert not gone, "a commit has vanished"
        self.finished = finished
        assert not self.bench.again, "a finished step was run again"

    def at_the_end(self) -> None:
        text = self.bench.text
        seen = look(self.bench.where)
        assert self.notes <= notes_in(text), "notes were lost"
        assert seen.snapshot.end is not None
        assert seen.snapshot.end["outcome"] == "completed"
        assert seen.face is not None
        assert seen.face.ended
        shown = sorted(step.status for step in seen.face.steps)
        assert shown == sorted(state.status for state in seen.snapshot.steps.values())
        for step in ASKED:
            state = seen.snapshot.steps[seen.snapshot.labels[step]]
            assert state.by_hand or (state.status is StepStatus.DONE and self.bench.runs[step]), state


async def weather(bench: Bench, script: list[tuple[Edit, str, bool]]) -> None:
    watcher = Watcher(bench)
    async with anyio.create_task_group() as group:
        assert bench.begin()
        await bench.live(group)
        for edit, when, by_rename in script:
            if when == "live":
                bench.save(edit, by_rename)
                watcher.saved()
                await bench.one_step()
            else:
                await bench.kill()
                if when == "at rest":
                    bench.save(edit, by_rename)
                    watcher.saved()
                goes_on = bench.begin()
                if when == "at the start":
                    bench.save(edit, by_rename)
                    watcher.saved()
                if goes_on:
                    await bench.live(group)
            watcher.check()
        for _ in range(100):
            if bench.alive:
                await bench.one_step()
            elif bench.begin():
                await bench.live(group)
            else:
                break
            watcher.check()
        bench.begin()
    watcher.at_the_end()


@given(script=SCRIPTS)
@settings(max_examples=200, suppress_health_check=list(HealthCheck))
def test_no_edit_costs_finished_work_or_a_note_or_the_end_of_the_task(
    script: list[Any], tmp_path_factory: pytest.TempPathFactory
) -> None:
    patch = pytest.MonkeyPatch()
    patch.setattr(files, "SETTLE_SECONDS", 0.0)
    bench = Bench(tmp_path_factory.mktemp("bench"))
    try:
        anyio.run(weather, bench, script)
    except BaseException:
        note(f"{bench.where.directory}\n{bench.text}")
        raise
    finally:
        bench.close()
        patch.undo()


# -- with processes --------------------------------------------------------------------------------------------------


def errands(ledger: Ledger, gate: Path) -> TaskSpec:
    """The same steps as commands, each of which says that it runs and then waits at the gate."""
    shells = [f"echo 'step {number} ran' >> '{ledger.path}'; cat '{gate}'" for number in range(len(STEPS))]
    steps = tuple(StepSpec(name, shell=shell) for name, shell in zip(STEPS, shells, strict=True))
    return TaskSpec("errands", "steps", "errands.yaml", steps=steps, limits=Limits(deaths=1000))


async def gale(base: Path, script: list[tuple[Edit, str, bool]]) -> None:
    ledger, root, notes, ordered = Ledger(base / "ledger"), base / "root", set[str](), set[str]()
    cut_off: Counter[str] = Counter()
    with kit.fifo(base / "gate") as gate:
        where = await kit.start_and_leave(root, errands(ledger, gate))
        face = Path(where.task_md)

        async def pass_the_gate() -> bool:
            """Whether somebody stood there; else the task has ended."""
            return await kit.until(lambda: "passed" if kit._opened(gate) else ended(where), "it goes on") == "passed"

        for edit, when, by_rename in script:
            await kit.until(lambda: ledger.lines() or ended(where), "it has begun")
            if when != "live" and not ended(where):
                cut_off[ledger.lines()[-1]] += 1
                kit.kill_worker(where)
                await kit.let_go(where)
            text = save(face, edit, by_rename)
            notes, ordered = notes_in(text), ordered | redone(text)
            async with Coordinator(root) as coordinator:
                await coordinator.recover()
            await pass_the_gate()
        while await pass_the_gate():
            pass
        async with Coordinator(root) as coordinator:
            await kit.let_go(where)
            await coordinator.recover()
            while await pass_the_gate():
                pass
            await kit.let_go(where)
    assert notes <= notes_in(face.read_text("utf-8", "surrogateescape"))
    assert Checklist.parse(face.read_bytes()).ended
    for number, name in enumerate(STEPS):
        ran = ledger.count(f"step {number} ran")
        assert name in ordered or ran <= 1 + cut_off[f"step {number} ran"], f"{name} ran {ran} times"


def ended(where: Paths) -> bool:
    return store.ended_by_tail(where) is not None


@given(script=SCRIPTS)
@settings(max_examples=6, phases=(Phase.explicit, Phase.reuse, Phase.generate), suppress_health_check=list(HealthCheck))
def test_the_same_holds_for_workers_that_are_processes_and_are_killed(
    script: list[Any], tmp_path_factory: pytest.TempPathFactory
) -> None:
    base = tmp_path_factory.mktemp("gale")
    (base / "root").mkdir()
    anyio.run(gale, base, script)
