"""A task whose journal is lost is told by its face, and goes on from it: what was done stays done.

Unreadable is never empty (faults 48, 49), and a task that is damaged hides no other (fault 53).
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cli_door import Cli
from conftest import Ledger
from hypothesis import given, settings
from hypothesis import strategies as st
from kit import (
    entries,
    everything,
    fifo,
    kill_worker,
    let_go,
    open_gate,
    recover,
    spec,
    start_and_leave,
    step_lines,
    tries,
    until,
)

from orchestrator import Coordinator, orders, store, workspace
from orchestrator.compose import resolve
from orchestrator.core.checklist import display
from orchestrator.core.model import StepError, StepId, StepStatus, TaskSpec
from orchestrator.core.names import parse_run
from orchestrator.core.snapshot import Snapshot
from orchestrator.store import Paths, look, rows
from orchestrator.takeover import take_over
from orchestrator.writer import TaskWriter

NAMES = ("fetch", "步骤 1", "fetch", "tidy: up?", "task", "FETCH", "two  blanks")


class Life:
    """A task of which a worker's acts are played, its lock held. No two of them fall into one millisecond."""

    def __init__(self, root: Path) -> None:
        moments = itertools.count(int(time.time() * 1000))
        self.clock = lambda: next(moments) / 1000
        self.where, self._lock = workspace.create(str(root), TaskSpec("a life", "python", "m:f"), self.clock)
        self.task = take_over(self.where, self.clock)
        self.begin()
        self.seen: dict[str, int] = {}

    def begin(self) -> None:
        self.task.begin_attempt(token="none")
        self.task.started(worker=[1, 1, "b", "n", "h"], guard=[1, 1, "b", "n", "h"])

    def next_worker(self) -> None:
        if self.task.snapshot.unclosed is not None:
            self.task.close_attempt("lost")
        self.begin()

    def named(self, name: str) -> StepId:
        self.seen[name] = self.seen.get(name, 0) + 1
        return StepId(name, self.seen[name])

    def run(self, step: StepId, **more: Any) -> str:
        label = self.task.snapshot.labels.get(step)
        number = self.task.snapshot.steps[label].tries + 1 if label is not None else 1
        said = {"effect": "idempotent", "args": f"args of {step.name}", **more}
        return self.task.begin_try(step, number, **said).label

    def done(self, step: StepId, result: Any = "a result", **more: Any) -> str:
        label = self.run(step, **more)
        self.task.commit(label, StepStatus.DONE, result=result)
        self.task.settle()
        return label

    def lose_the_journal(self, how: str = "gone") -> Snapshot:
        """What the journal said. It is not there any more."""
        before = look(self.where).snapshot
        before.presume_dead()
        self.task.settle()
        self.task.close()
        path = Path(self.where.journal)
        if how == "all of .task":
            shutil.rmtree(path.parent)
        elif how == "gone":
            path.unlink()
        else:
            path.write_bytes(b"\0\xff not a line\nnor this\n" * 9 if how == "garbage" else b"")
        return before

    def next_holder(self) -> TaskWriter:
        self.task.close()
        self.task = take_over(self.where, self.clock)
        return self.task

    def close(self) -> None:
        self.task.close()
        os.close(self._lock)


@pytest.fixture
def life(root: Path) -> Iterator[Life]:
    found = Life(root)
    yield found
    found.close()


def told(snapshot: Snapshot) -> list[tuple[Any, ...]]:
    """All that decides what is run, and what is handed back."""
    ids = {
        s.label: s.id if s.tries or s.status.finished else s.id._replace(name=display(s.id.name))
        for s in snapshot.steps.values()
    }
    return [
        (
            s.label,
            ids[s.label],
            s.file,
            s.status,
            s.result,
            s.result_file,
            s.error,
            s.outputs,
            s.args,
            s.effect,
            s.tries,
            s.spent,
        )
        for s in (snapshot.steps[label] for label in snapshot.order)
    ]


# -- the same as the journal -----------------------------------------------------------------------------------------


ACTS = st.lists(
    st.tuples(
        st.sampled_from(["done", "fail", "raise", "leave", "skip", "plan", "once", "die", "redo", "large", "by hand"]),
        st.sampled_from(NAMES),
    ),
    max_size=12,
)


@given(ACTS)
@settings(max_examples=120)
def test_the_face_says_all_that_the_journal_said_of_every_step(acts: list[tuple[str, str]]) -> None:
    with tempfile.TemporaryDirectory() as place:
        life = Life(Path(place))
        try:
            for act, name in acts:
                play(life, act, name)
            if life.task.snapshot.unclosed is not None:
                life.task.close_attempt("lost")
            before = life.lose_the_journal()
            assert told(look(life.where).snapshot) == told(before)  # before anybody has made it again
            task = life.next_holder()
            assert told(task.snapshot) == told(before)
            assert task.snapshot.attempt_number == max((s.attempt for s in before.steps.values()), default=0)
        finally:
            life.close()


def play(life: Life, act: str, name: str) -> None:
    task, error = life.task, StepError("runtime", "ValueError", "no", "f")
    if act == "die":
        return life.next_worker()
    if act == "redo":
        done = [s for s in task.snapshot.steps.values() if s.status.finished]
        if done:
            task.record("redo", sync=True, step=done[-1].label, why="a person")
            task.show_all()
        return None
    step = life.named(name)
    if act == "plan":
        task.plan([step])
    elif act in ("skip", "by hand"):
        task.plan([step])
        status = StepStatus.SKIPPED if act == "skip" else StepStatus.DONE
        task.commit(task.snapshot.labels[step], status, why="for a reason", by_hand=act == "by hand")
    elif act in ("done", "large"):
        life.done(step, result={"of": name} if act == "done" else "x" * 70_000)
    else:
        label = life.run(step, effect="once" if act == "once" else "idempotent")
        if act in ("raise", "fail"):
            task.raised(label, error)
        if act == "fail":
            task.commit(label, StepStatus.FAILED, error=error)
        if act == "once":
            task.commit(label, StepStatus.UNCERTAIN)
    task.settle()
    return None


LOSSES = ("gone", "garbage", "empty", "all of .task")


@pytest.mark.parametrize("how", LOSSES)
def test_what_was_done_stays_done_whichever_way_the_journal_is_lost(life: Life, how: str) -> None:
    life.done(StepId("a"), result=[1, "ä"])
    life.run(StepId("b"))
    before = life.lose_the_journal(how)
    assert told(look(life.where).snapshot) == told(before)
    task = life.next_holder()
    assert task.result_of(task.snapshot.steps["a"]) == [1, "ä"]
    assert task.begin_attempt(token="t").rpartition(".")[2] == "2"
    aside = list(Path(life.where.inner).glob("journal.jsonl.damaged-*"))
    assert len(aside) == (how in ("garbage", "empty"))


def test_a_run_after_the_loss_has_the_name_of_none_before(life: Life) -> None:
    life.done(StepId("a"))
    earlier = life.task.run
    life.lose_the_journal()
    task = life.next_holder()
    run = parse_run(task.begin_attempt(token="t"))
    assert run is not None
    assert len(run[1]) == 8
    assert earlier != task.run
    assert next(e["kind"] for e in task.entries()) == "rebuilt"
    life.lose_the_journal()
    again = life.next_holder()
    assert parse_run(again.run) is not None
    assert again.run.split(".")[1] != run[1]


def test_a_task_that_never_began_is_not_taken_for_one_that_lost_its_journal(root: Path) -> None:
    where, lock = workspace.create(str(root), TaskSpec("new", "python", "m:f"), time.time)
    Path(where.task_md).write_text(Path(where.task_md).read_text() + "[pending] planned by hand\n")
    assert (look(where).state, look(where).lost) == ("queued", False)
    task = take_over(where, time.time)
    assert [e["kind"] for e in task.entries()] == ["created", "plan"]
    task.close()
    os.close(lock)


# -- the face says less, or something else -----------------------------------------------------------------------------


def edit(where: Paths, old: str, new: str) -> None:
    path = Path(where.task_md)
    text = path.read_text("utf-8")
    assert old in text
    path.write_text(text.replace(old, new), "utf-8")


def test_a_checkpoint_done_counts_although_the_mark_was_not_yet_written(life: Life) -> None:
    life.done(StepId("a"))
    life.lose_the_journal()
    edit(life.where, "[working done] a", "[working] a")
    assert life.next_holder().snapshot.steps["a"].status is StepStatus.DONE
    assert "[working done] a" in Path(life.where.task_md).read_text()


def test_a_step_marked_done_without_a_checkpoint_was_done_by_hand(life: Life) -> None:
    life.task.plan([StepId("a"), StepId("b")])
    life.lose_the_journal()
    edit(life.where, "[pending] a", "[working done] a")
    state = life.next_holder().snapshot.steps["a"]
    assert (state.status, state.by_hand) == (StepStatus.DONE, True)


def test_a_vanished_line_drops_no_step_of_which_there_is_a_file(life: Life) -> None:
    for name in "abc":
        life.done(StepId(name))
    life.lose_the_journal()
    edit(life.where, "[working done] b\n", "")
    task = life.next_holder()
    assert task.snapshot.order == ["a", "b", "c"]
    assert "[working done] a\n[working done] b\n[working done] c\n" in Path(life.where.task_md).read_text()


@pytest.mark.parametrize("content", [None, b"", b"\0" * 50], ids=["gone", "empty", "zeros"])
def test_with_task_md_lost_as_well_the_step_files_alone_tell_what_was_done(life: Life, content: bytes | None) -> None:
    for name in ("zero", "one", "two"):
        life.done(StepId(name), result=name)
    life.run(StepId("half"))
    before = life.lose_the_journal("all of .task")
    path = Path(life.where.task_md)
    path.unlink() if content is None else path.write_bytes(content)
    assert told(look(life.where).snapshot) == told(before)
    task = life.next_holder()
    assert told(task.snapshot) == told(before)
    assert step_lines(life.where)[1:] == [
        "[working done] zero",
        "[working done] one",
        "[working done] two",
        "[working] half",
    ]


def test_with_all_of_them_lost_nothing_is_invented(life: Life, root: Path) -> None:
    life.done(StepId("a"))
    life.lose_the_journal("all of .task")
    for path in Path(life.where.directory).glob("*.md"):
        path.unlink()
    said = Cli(root, root)("recover", life.where.task_id)
    assert "damaged" in said.out
    assert said.code == 1
    assert "Traceback" not in said.err
    Path(life.where.task_md).write_text("# Task: x\n")
    life.next_holder()


def test_a_copy_of_a_step_file_does_not_take_its_place(life: Life) -> None:
    life.done(StepId("a"))
    before = life.lose_the_journal()
    shutil.copy(Path(life.where.directory, "a.md"), Path(life.where.directory, "0 backup.md"))
    assert told(look(life.where).snapshot) == told(before)


def test_a_checkpoint_that_somebody_wrote_leads_to_no_file_outside(life: Life) -> None:
    life.done(StepId("a"))
    life.lose_the_journal()
    file = Path(life.where.directory, "a.md")
    file.write_text(file.read_text().replace('result: "a result"', 'result_file: "results/../../../etc/passwd"'))
    task = life.next_holder()
    assert task.result_of(task.snapshot.steps["a"]) is None


# -- orders and ends -----------------------------------------------------------------------------------------------


def test_an_order_that_was_carried_out_is_not_carried_out_again(root: Path, life: Life) -> None:
    life.done(StepId("a"))
    request = {"id": "r1", "verb": "redo", "step": "a", "at": life.clock()}
    Path(life.where.requests).write_text(json.dumps(request) + "\n")
    task = life.next_holder()
    orders.carry_out(task)
    assert task.snapshot.steps["a"].status is StepStatus.PENDING
    life.begin()
    life.done(StepId("a"), result="anew")
    life.lose_the_journal()
    task = life.next_holder()
    assert orders.carry_out(task) == []
    assert task.snapshot.steps["a"].result == "anew"


def test_an_order_given_after_the_loss_is_carried_out(life: Life) -> None:
    life.done(StepId("a"))
    life.lose_the_journal("all of .task")
    store.make_request(life.where, {"id": "r2", "verb": "redo", "step": "a", "at": life.clock()})
    task = life.next_holder()
    assert [order["id"] for order in orders.carry_out(task)] == ["r2"]
    assert task.snapshot.steps["a"].status is StepStatus.PENDING


@pytest.mark.parametrize("outcome", ["completed", "failed", "cancelled"])
def test_an_end_is_announced_again_under_a_name_of_its_own_and_nothing_is_run(life: Life, outcome: str) -> None:
    life.done(StepId("a"))
    life.task.end(life.task.announcement(outcome, "as it was"))
    life.lose_the_journal("all of .task")
    assert look(life.where).state == outcome
    assert [(r.state, r.done, r.total) for r in rows(os.path.dirname(life.where.directory))] == [(outcome, 1, 1)]
    task = life.next_holder()
    assert task.snapshot.end is not None
    said = task.snapshot.end["announcement"]
    assert said["id"] == f"{task.run}.restored"
    assert (said["name"], said["status"], said["steps"]) == ("a life", outcome, {"done": 1})


# -- real workers ----------------------------------------------------------------------------------------------------


async def killed_in_two(root: Path, ledger: Ledger, gate: Path) -> Paths:
    where = await start_and_leave(root, spec("waits_in_two", ledger, gate=str(gate)))
    await ledger.has("two began")
    kill_worker(where)
    await let_go(where)
    return where


@pytest.mark.parametrize("how", ["journal", "face too"])
# fault 21
async def test_a_killed_task_without_its_journal_goes_on_at_its_unfinished_step(
    root: Path, tmp_path: Path, ledger: Ledger, how: str
) -> None:
    with fifo(tmp_path / "gate") as gate:
        where = await killed_in_two(root, ledger, gate)
        Path(where.journal).unlink()
        if how == "face too":
            Path(where.task_md).unlink()
        async with Coordinator(root) as coordinator:
            (said,) = await coordinator.recover()
            assert said.step == "two"
            await open_gate(gate)
            assert (await coordinator.wait(where.task_id)).ok
    assert (tries(ledger, "one"), tries(ledger, "two")) == ([1], [1, 2])
    assert step_lines(where) == ["[start done]", "[working done] one", "[working done] two", "[end]"]


async def test_lists_and_dry_runs_tell_of_it_before_it_is_made_again_and_write_nothing(
    root: Path, tmp_path: Path, ledger: Ledger
) -> None:
    with fifo(tmp_path / "gate") as gate:
        where = await killed_in_two(root, ledger, gate)
    Path(where.journal).unlink()
    before = everything(where.directory)
    cli = Cli(tmp_path, root)
    assert f"{where.task_id}  interrupted      1/2" in cli("list").out
    shown = cli("show", where.task_id).out
    assert "✔ one" in shown
    assert "goes on at step 'two'" in shown
    assert "would be resumed at step 'two'" in cli("recover", "--dry-run").out
    assert everything(where.directory) == before


async def test_an_ended_task_without_its_journal_is_not_started_again(root: Path, ledger: Ledger) -> None:
    async with Coordinator(root) as coordinator:
        handle = await coordinator.spawn(spec("six_steps", ledger))
        assert (await handle.wait()).ok
    before = ledger.lines()
    await let_go(handle.where)
    shutil.rmtree(handle.where.inner)
    said, announced = await recover(root, handle.where)
    assert (said.action, ledger.lines()) == ("ended", before)
    assert announced is not None
    assert announced.id.endswith(".restored")
    assert announced.result == f"{handle.where.results}/result.json"
    assert entries(handle.where, "attempt") == []
    assert (await recover(root, handle.where))[1] == announced


async def test_a_once_step_that_was_cut_off_is_not_repeated_because_the_journal_is_lost(
    root: Path, ledger: Ledger
) -> None:
    where = await start_and_leave(root, spec("sends_once", ledger))
    await let_go(where)
    Path(where.journal).unlink()
    _, announced = await recover(root, where)
    assert announced is not None
    assert announced.status == "uncertain"
    assert ledger.count("send began") == 1


async def test_a_task_whose_inner_files_are_deleted_under_its_worker_loses_nothing(
    root: Path, tmp_path: Path, ledger: Ledger
) -> None:
    with fifo(tmp_path / "gate") as gate:
        where = await start_and_leave(root, spec("waits_in_two", ledger, gate=str(gate)))
        await ledger.has("two began")
        kept = everything(where.inner)
        shutil.rmtree(where.inner)
        await open_gate(gate)
        await until(lambda: look(where).snapshot.end, "its end")
        await let_go(where)
    assert Path(where.spec).read_bytes() == kept["spec.yaml"]
    assert look(where).state == "completed"
    assert [parse_run(e["run"])[1] for e in entries(where, "attempt")] == [""]  # type: ignore[index]
    assert tries(ledger, "two") == [1]


async def test_a_task_that_lost_what_it_is_to_run_is_named_with_the_way_out_and_takes_it(
    root: Path, tmp_path: Path, ledger: Ledger
) -> None:
    with fifo(tmp_path / "gate") as gate:
        where = await killed_in_two(root, ledger, gate)
        shutil.rmtree(where.inner)
        cli = Cli(tmp_path, root)
        said = cli("recover")
        assert said.code == 1
        assert f"orchestrator adopt {where.task_id} --worker WORKER" in said.out
        assert "would be resumed" not in cli("recover", "--dry-run").out
        what = spec("waits_in_two", ledger, gate=str(gate))
        args = [word for key, value in what.args.items() for word in ("--arg", f"{key}={value}")]
        assert "goes on at step 'two'" in cli("adopt", where.task_id, "--worker", what.worker, *args).err
        await open_gate(gate)
        assert cli("wait", where.task_id).code == 0
    assert (tries(ledger, "one"), tries(ledger, "two")) == ([1], [1, 2])


async def test_a_result_that_a_python_skill_needs_is_not_made_up(root: Path, tmp_path: Path, ledger: Ledger) -> None:
    with fifo(tmp_path / "gate") as gate:
        where = await killed_in_two(root, ledger, gate)
    Path(where.journal).unlink()
    edit(where, "[working] two", "[working done] two")
    _, announced = await recover(root, where)
    assert announced is not None
    assert announced.status == "conflict"


async def test_a_parent_without_its_inner_files_finds_its_children_again(
    root: Path, tmp_path: Path, ledger: Ledger
) -> None:
    parent = resolve(f"{Path(__file__).with_name('families.py')}:parent", args={"ledger": str(ledger.path), "many": 2})
    async with Coordinator(root) as coordinator:
        handle = await coordinator.spawn(parent)
        assert (await handle.wait()).ok
    await let_go(handle.where)
    shutil.rmtree(handle.where.inner)
    edit(handle.where, "## Status: end", "## Status: working")
    edit(handle.where, "[end]\n", "")
    for label in ("spawn child 0", "spawn child 1"):
        (file,) = (p for p in Path(handle.where.directory).glob("*.md") if p.read_text().startswith(f"# {label}"))
        file.unlink()
        edit(handle.where, f"[working done] {label}", f"[working] {label}")
    before = store.task_ids(str(root))
    async with Coordinator(root) as coordinator:
        again = await coordinator.adopt_workspace(handle.id, parent)
        assert (await again.wait()).ok
    assert store.task_ids(str(root)) == before
    assert len(before) == 3


def test_an_output_named_as_its_step_is_not_written_into(root: Path, tmp_path: Path) -> None:
    (tmp_path / "steps.yaml").write_text(
        "steps:\n- {name: report, shell: echo words > report.md, outputs: [report.md]}\n- {name: two, shell: exit 3}\n"
    )
    cli = Cli(tmp_path, root)
    assert cli("run", tmp_path / "steps.yaml").code == 1
    where = Paths(str(cli.task()))
    assert Path(where.directory, "report.md").read_text() == "words\n"
    Path(where.journal).unlink()
    assert look(where).snapshot.steps["report"].file == "report (2).md"
    assert look(where).snapshot.steps["report"].status is StepStatus.DONE
