"""Why a task is in its state: every state there is has an explanation, with evidence, and a way on that is true."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import kit
import pytest
from cli_door import Cli
from conftest import TOKEN, Ledger
from hypothesis import given
from hypothesis import strategies as st

from orchestrator import Coordinator, containment, files, identity, inspection, recovery, store, workspace
from orchestrator.core import explain as explaining
from orchestrator.core.evidence import Facts, Process, numbered
from orchestrator.core.explain import Explanation, explain
from orchestrator.core.journal import Reading, encode, read
from orchestrator.core.model import Effect, Identity, Outcome, StepError, StepId, StepStatus, TaskSpec
from orchestrator.core.snapshot import Snapshot, fold
from orchestrator.store import Paths, make_request
from orchestrator.takeover import take_over
from orchestrator.writer import TaskWriter

GONE = [2**22, 1, "another boot", "pid:[1]", os.uname().nodename]


def make(root: Path, change: Callable[[TaskWriter], None] | None = None) -> Paths:
    """A task with step `one` done and `two` planned, changed further, as a holder who is gone now left it."""
    where, lock = workspace.create(str(root), TaskSpec("the work", "python", "module:skill"), time.time)
    if change is not None:
        task = take_over(where, time.time)
        task.begin_attempt(token=TOKEN)
        task.started(worker=GONE, guard=GONE)
        task.plan([StepId("one"), StepId("two")])
        task.begin_try(StepId("one"), 1, effect="idempotent", args="")
        task.commit("one", StepStatus.DONE, result=1)
        change(task)
        task.settle()
        task.close()
    os.close(lock)
    return where


def explained(where: Paths) -> Explanation:
    return explain(inspection.facts_of(where, time.time))


def ends(outcome: Outcome, reason: str = "") -> Callable[[TaskWriter], None]:
    return lambda task: task.end(task.announcement(outcome, reason))


def interrupted(task: TaskWriter) -> None:
    task.begin_try(StepId("two"), 1, effect="idempotent", args="")


def crashed(task: TaskWriter) -> None:
    interrupted(task)
    task.close_attempt("crashed", signal=9)


def failed(task: TaskWriter) -> None:
    interrupted(task)
    task.commit("two", StepStatus.FAILED, error=StepError("runtime", "ValueError", "no such page"))
    ends(Outcome.FAILED, "step 'two' failed: no such page")(task)


def conflict(task: TaskWriter) -> None:
    ends(Outcome.CONFLICT, "step 'one' is asked for with other arguments")(task)


def waits(task: TaskWriter, outcome: Outcome) -> None:
    task.wait_for_person(task.announcement(outcome, "waits"))


def uncertain(task: TaskWriter) -> None:
    task.begin_try(StepId("two"), 1, effect=Effect.ONCE, args="")
    task.commit("two", StepStatus.UNCERTAIN)
    waits(task, Outcome.UNCERTAIN)


def asks(task: TaskWriter) -> None:
    task.record("asked", sync=True, question="tea or coffee?")
    waits(task, Outcome.QUESTION)


def paused(task: TaskWriter) -> None:
    task.record("handled", sync=True, request="r1", verb="pause")
    waits(task, Outcome.PAUSED)


def damaged(root: Path) -> Paths:
    where = make(root, interrupted)
    Path(where.task_md).write_bytes(b"\0\0")
    return where


#: state -> how to come there, words of the evidence, who acts next, with which command.
LYING: dict[str, tuple[Callable[[Path], Paths], list[str], str, str | None]] = {
    "queued": (make, ["the journal has no attempt", "nobody holds its lock"], "person", "recover TASK"),
    "interrupted": (
        lambda root: make(root, interrupted),
        ["worker 4194304 of attempt 1 is dead", "no line that says how it ended", "step 'two' is working, try 1"],
        "person",
        "recover TASK",
    ),
    "paused": (lambda root: make(root, paused), ["the order pause was carried out"], "person", "continue TASK"),
    "question": (lambda root: make(root, asks), ["a question was asked: tea"], "person", "answer TASK TEXT"),
    "uncertain": (
        lambda root: make(root, uncertain),
        ["step 'two' is uncertain"],
        "person",
        "resolve TASK 'two' --done|--redo",
    ),
    "failed": (
        lambda root: make(root, failed),
        ["the end was recorded: failed", "ValueError: no such page"],
        "person",
        "retry TASK",
    ),
    "conflict": (
        lambda root: make(root, conflict),
        ["the end was recorded: conflict"],
        "person",
        "resolve TASK 'one' --done|--redo",
    ),
    "completed": (lambda root: make(root, ends(Outcome.COMPLETED)), ["the end was recorded"], "nobody", None),
    "cancelled": (lambda root: make(root, ends(Outcome.CANCELLED)), ["the end was recorded"], "nobody", None),
    "damaged": (damaged, ["worker 4194304 of attempt 1 is dead"], "person", "doctor --fix"),
}
#: These need processes; each has a test of its own below.
ALIVE = {"working", explaining.STRAY, explaining.HELD}


def test_no_state_is_left_without_an_explanation() -> None:
    assert set(LYING) | ALIVE == set(explaining.STATES)
    ends_and_waits = {str(o) for o in Outcome if o in (*explaining.STATES,)}
    assert {"completed", "failed", "conflict", "cancelled", "uncertain", "question", "paused"} <= ends_and_waits


@pytest.mark.parametrize("state", LYING)
def test_a_person_is_told_why_on_what_evidence_and_what_to_do(root: Path, state: str) -> None:
    arrange, words, by, command = LYING[state]
    where = arrange(root)
    said = explained(where)
    assert said.state == state == store.look(where).state
    evidence = [one.what for one in said.evidence]
    assert not [word for word in words if not any(word in line for line in evidence)], evidence
    assert said.next.by == by
    if command is None:
        assert said.next.command is None
    elif state == "damaged":
        assert said.next.command == f"orchestrator recover {where.task_id}"
    else:
        assert said.next.command == "orchestrator " + command.replace("TASK", where.task_id)


@pytest.mark.parametrize("state", LYING)
def test_the_line_numbers_lead_to_the_lines_that_are_meant(root: Path, state: str) -> None:
    where = LYING[state][0](root)
    lines = Path(where.journal).read_text().splitlines()
    for one in explained(where).evidence:
        assert (one.line is None) == (one.at is None)
        if one.line is not None:
            assert json.loads(lines[one.line - 1])["at"] == one.at


def test_line_numbers_count_the_damaged_lines_between() -> None:
    entry = {"run": "task-20260101-000000-001.1", "seq": 1, "kind": "attempt"}
    data = b"broken\n" + encode(entry) + b"broken\nbroken\n" + encode({**entry, "seq": 2})
    assert [number for number, _ in numbered(read(data))] == [2, 5]


def test_how_a_worker_died_is_told_and_what_it_spent(root: Path) -> None:
    said = explained(make(root, crashed))
    assert any("crashed (signal 9)" in one.what for one in said.evidence)
    assert [(b.spent, b.limit) for b in said.budget if "died" in b.name] == [(1, 3)]
    assert said.next.what == "another attempt goes on at step 'two'"


def test_a_task_whose_budget_is_spent_is_not_promised_another_attempt(root: Path) -> None:
    def thrice(task: TaskWriter) -> None:
        crashed(task)
        for _ in range(2):
            task.begin_attempt(token=TOKEN)
            task.started(worker=GONE, guard=GONE)
            task.close_attempt("crashed", exit=1)

    said = explained(make(root, thrice))
    assert said.next.what.startswith("it ends as failed: 3 attempts died in a row")


def test_an_order_that_nobody_has_carried_out_is_shown_and_who_will(root: Path) -> None:
    where = make(root, paused)
    make_request(where, {"id": "r2", "verb": "continue"})
    said = explained(where)
    assert said.orders == (
        f"continue was ordered and nobody has carried it out yet: "
        f"whoever goes on with it does: orchestrator recover {where.task_id}",
    )
    assert said.next.command == f"orchestrator recover {where.task_id}"
    assert said.next.what == "another attempt goes on at step 'two'"


def test_an_edit_of_task_md_that_nobody_has_taken_over_is_shown(root: Path) -> None:
    where = make(root, interrupted)
    text = Path(where.task_md).read_text()
    Path(where.task_md).write_text(text.replace("[working] two", "[skipped] two\n[pending] three"))
    assert explained(where).edits == ("step 'two' was marked skipped", "new step 'three'")


def test_a_damaged_task_that_cannot_go_on_is_not_promised_to(root: Path) -> None:
    where = damaged(root)
    os.remove(where.spec)
    said = explained(where)
    assert said.state == "damaged"
    assert "cannot go on" in said.next.what
    assert said.next.command == "orchestrator spawn WORKER"


def test_explaining_changes_nothing(root: Path) -> None:
    for arrange, *_ in LYING.values():
        where = arrange(root)
        before = {p: (p.stat().st_mtime_ns, p.read_bytes()) for p in Path(where.directory).rglob("*") if p.is_file()}
        explained(where)
        after = {p: (p.stat().st_mtime_ns, p.read_bytes()) for p in Path(where.directory).rglob("*") if p.is_file()}
        assert before == after


# -- with living processes -----------------------------------------------------------------------------------------


async def test_a_worker_that_lives_is_named_with_its_step_and_its_lock(
    tmp_path: Path, root: Path, ledger: Ledger
) -> None:
    with kit.fifo(tmp_path / "gate") as gate:
        where = await kit.start_and_leave(root, kit.spec("waits_in_two", ledger, gate=str(gate)))
        await ledger.has("two began")
        make_request(where, {"id": "r1", "verb": "pause"})
        said = explained(where)
        found = kit.identities(where)
        assert found is not None
        assert said.state == "working"
        assert said.why == "attempt 1 is at work, in step 'two'"
        holders = {one.what.split(" holds")[0] for one in said.evidence if "holds its lock" in one.what}
        assert holders == {f"process {found[0].pid} (worker)", f"process {found[1].pid} (guard)"}
        assert said.orders[0].endswith("its worker does, at its next step border")
        assert (said.next.by, said.next.when) == ("worker", "now")
        assert "nobody that can be seen starts another" in said.next.what
        containment.send(found[0].pid, signal.SIGSTOP)
        await kit.until(lambda: identity.is_stopped(found[0]), "the worker is stopped")
        said = explained(where)
        assert (said.next.by, said.next.command) == ("person", f"kill -CONT {found[0].pid}")
        assert said.why == "attempt 1 is stopped by a signal, in step 'two'"
        kit.kill_worker(where)
        await kit.let_go(where)
    assert explained(where).state == "interrupted"


@pytest.mark.parametrize("marked", [True, False])
async def test_a_dead_workers_stray_that_keeps_the_lock_is_told_from_a_coordinator(root: Path, marked: bool) -> None:
    where = make(root, interrupted)
    lock = files.lock_directory(where.directory)
    assert lock is not None
    environment = os.environ | ({"ORCHESTRATOR_TOKEN": TOKEN} if marked else {})
    command = [sys.executable, "-c", "import sys; print('up', flush=True); sys.stdin.read()"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, pass_fds=(lock,)
    ) as child:
        os.close(lock)
        assert child.stdout is not None
        assert child.stdout.readline() == b"up\n"
        said = explained(where)
        assert said.state == (explaining.STRAY if marked else explaining.HELD)
        assert any(
            f"process {child.pid} ({'stray' if marked else 'other'}) holds its lock" in e.what for e in said.evidence
        )
        assert said.next.command == ("orchestrator doctor --fix" if marked else None)


async def test_who_looks_after_a_task_is_named(root: Path, ledger: Ledger, tmp_path: Path) -> None:
    with kit.fifo(tmp_path / "gate") as gate:
        where, supervisor = kit.start_supervised(root, kit.spec("waits_in_two", ledger, gate=str(gate)))
        await ledger.has("two began")
        said = explained(where)
        assert any(one.what == f"process {supervisor.pid} looks after it (supervisor)" for one in said.evidence)
        assert "starts another" not in said.next.what
        await kit.open_gate(gate)
        supervisor.wait(120)
    assert explained(where).state == "completed"


async def test_a_copy_of_a_task_is_not_taken_for_the_one_that_is_worked_on(
    tmp_path: Path, root: Path, ledger: Ledger
) -> None:
    with kit.fifo(tmp_path / "gate") as gate:
        where = await kit.start_and_leave(root, kit.spec("waits_in_two", ledger, gate=str(gate)))
        await ledger.has("two began")
        subprocess.run(["cp", "-r", where.directory, str(tmp_path / where.task_id)], check=True)
        said = explained(Paths(str(tmp_path / where.task_id)))
        assert any("this one is a copy, and has no worker" in one.what for one in said.evidence)
        assert said.state == "interrupted"
        await kit.open_gate(gate)
        async with Coordinator(root) as coordinator:
            await coordinator.adopt(where)
            await coordinator.wait(where.task_id, 120)
        await kit.let_go(where)


# -- total, and the door -------------------------------------------------------------------------------------------

_PROCESS = st.builds(
    Process, st.integers(1, 9), st.sampled_from(["worker", "guard", "supervisor", "serve", "stray", "other"])
)


@st.composite
def any_facts(draw: st.DrawFn) -> Facts:
    run = "task-20260101-000000-001.1"
    kinds = draw(
        st.lists(st.sampled_from(["attempt", "started", "running", "commit", "asked", "end", "closed"]), max_size=9)
    )
    more = {
        "started": {"worker": GONE, "guard": GONE},
        "running": {"step": "s", "try": 1},
        "commit": {"step": "s", "status": draw(st.sampled_from(list(StepStatus)))},
        "asked": {"question": "q"},
        "end": {"outcome": draw(st.sampled_from(list(Outcome)))},
        "closed": {"outcome": draw(st.sampled_from(list(Outcome)))},
    }
    entries = tuple(
        {"run": run, "seq": n, "at": "2026-01-01T00:00:00.000Z", "kind": k, **more.get(k, {})}
        for n, k in enumerate(kinds, 1)
    )
    after = fold(entries)
    after.presume_dead()
    return Facts(
        "task-20260101-000000-001",
        draw(st.sampled_from([*explaining.STATES, *map(str, Outcome), "something new"])),
        fold(entries),
        after,
        numbered(Reading(entries, 0, 0)),
        draw(st.sampled_from(["", "2026-01-01T00:00:05.000Z"])),
        draw(st.sampled_from([True, False, None])),
        draw(st.sampled_from([True, False, None])),
        tuple(draw(st.lists(_PROCESS, max_size=2))),
        tuple(draw(st.lists(_PROCESS, max_size=2))),
        tuple(
            draw(
                st.lists(st.builds(dict, id=st.just("r"), verb=st.sampled_from(["cancel", "redo", "send"])), max_size=2)
            )
        ),
    )


@given(any_facts())
def test_whatever_is_known_there_is_one_explanation_and_asking_twice_gives_it_twice(facts: Facts) -> None:
    said = explain(facts)
    assert said == explain(facts)
    assert said.why
    assert said.next.what
    assert (said.next.by == "person") == (said.next.when == "on command") == (said.next.command is not None)
    json.dumps(said.to_json())


def test_the_command_says_it_for_people_and_for_programs(tmp_path: Path, root: Path) -> None:
    cli, where = Cli(tmp_path, root), make(root, crashed)
    shown = cli("explain", where.task_id)
    assert shown.code == 0
    assert shown.out.startswith(f"{where.task_id}  interrupted\n")
    assert re.search(r"attempt 1 ended: crashed \(signal 9\)  \(journal line \d, 20.*Z, \d+ s ago\)", shown.out)
    assert f"when you give the command): orchestrator recover {where.task_id}" in shown.out
    told = json.loads(cli("explain", where.task_id, "--json").out)
    assert told["schema"] == 1
    assert set(told) == {"schema", "task", "state", "why", "evidence", "next", "budget", "orders", "edits", "damage"}
    assert {"what", "line", "at"} == set(told["evidence"][0])
    cli("explain", "task-20260101-000000-001").refuses(66, "no task")


def test_what_is_foretold_is_what_recover_then_says(root: Path) -> None:
    for arrange in (lambda r: make(r, interrupted), lambda r: make(r, crashed), make):
        where = arrange(root)
        assert explained(where).next.by == "person"
        assert recovery.inspect(where).action == "resumed"


def test_a_snapshot_without_anything_is_explained() -> None:
    said = explain(Facts("task-20260101-000000-001", "working", Snapshot(), Snapshot(), alive=True))
    assert said.why == "attempt 0 is at work, between two steps"


def test_a_worker_elsewhere_is_not_taken_for_dead(root: Path) -> None:
    far = Identity(1, 1, "boot", "pid:[1]", "another-host")

    def elsewhere(task: TaskWriter) -> None:
        task.begin_attempt(token=TOKEN)
        task.started(worker=list(far), guard=list(far))

    said = explained(make(root, elsewhere))
    assert said.state == "working"
    assert "another-host, which cannot be asked from here" in said.why
