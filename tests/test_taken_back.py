"""What the journal lost and the step files prove is taken back, once; orders find their way past what lies in it."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import inline
import pytest
from desk import Desk

from orchestrator import store
from orchestrator.core import journal, reconcile, stepfile
from orchestrator.core.model import Checkpoint, StepError, StepStatus
from orchestrator.core.snapshot import Snapshot, fold
from orchestrator.places import Paths
from orchestrator.requesting import make_request, read_requests
from orchestrator.takeover import take_over

DONE = Checkpoint("a", "done", attempt=1, try_number=1, result=7)
RUNNING = Checkpoint("a", "running", attempt=1, try_number=1)
RAISED = Checkpoint("a", "raised", attempt=1, try_number=1, error=StepError("runtime", "E", "no"))
SKIPPED = Checkpoint("a", "skipped", attempt=1, by_hand=True)
REOPENED = Checkpoint("a", "reopened", attempt=1)


def _files(*blocks: Checkpoint) -> dict[str, stepfile.StepFile]:
    return {"a.md": stepfile.parse("# a\n" + "".join(map(stepfile.render_checkpoint, blocks)))}


def _with(snapshot: Snapshot, lost: reconcile.Ahead) -> Snapshot:
    """The snapshot with what was taken back."""
    for kind, fields in lost.lines:
        line = {"run": snapshot.current, "seq": snapshot.seq[snapshot.current] + 1, "at": "", "kind": kind, **fields}
        assert journal.decode(journal.encode(line)[:-1]) is not None
        assert snapshot.apply(line)
    return snapshot


def _begun(*lines: dict[str, object]) -> Snapshot:
    run = "task-20260101-000000-001.1"
    first = {"kind": "attempt", "token": "t"}
    return fold({"run": run, "seq": n, "at": "", **line} for n, line in enumerate([first, *lines], 1))


@pytest.mark.parametrize(
    "blocks, status, tries",
    [
        ([RUNNING, DONE], StepStatus.DONE, 1),
        ([DONE], StepStatus.DONE, 1),
        ([RUNNING], StepStatus.WORKING, 1),
        ([RUNNING, RAISED], StepStatus.WORKING, 1),
        ([RAISED], StepStatus.WORKING, 1),
        ([RUNNING, DONE, dataclasses.replace(REOPENED, try_number=1)], StepStatus.PENDING, 1),
        ([SKIPPED, REOPENED], StepStatus.PENDING, 0),
        ([REOPENED], StepStatus.PENDING, 0),
    ],
    ids=lambda value: " ".join(block.status for block in value) if isinstance(value, list) else None,
)
@pytest.mark.parametrize("known", range(4))
def test_what_the_journal_lacks_of_a_step_is_taken_back_once(
    blocks: list[Checkpoint], status: StepStatus, tries: int, known: int
) -> None:
    """Whatever the journal still knew of it. A second look finds nothing: else each recovery would spend a try."""
    snapshot = _with(_begun(), reconcile.ahead(_begun(), _files(*blocks[:known])))
    _with(snapshot, reconcile.ahead(snapshot, _files(*blocks)))
    state = snapshot.steps["a"]
    assert (state.status, state.tries) == (status, tries)
    assert state.result == (7 if status is StepStatus.DONE else None)
    assert reconcile.ahead(snapshot, _files(*blocks)).lines == ()


@pytest.mark.parametrize("known", [0, 1, 3])
def test_a_step_that_was_skipped_reopened_and_skipped_again_is_not_reopened_by_a_recovery(known: int) -> None:
    blocks = [SKIPPED, REOPENED, SKIPPED]
    snapshot = _with(_begun(), reconcile.ahead(_begun(), _files(*blocks[:known])))
    assert _with(snapshot, reconcile.ahead(snapshot, _files(*blocks))).steps["a"].status is StepStatus.SKIPPED


def test_a_try_that_raised_is_spent_once_though_its_beginning_is_lost() -> None:
    snapshot = _with(_begun(), reconcile.ahead(_begun(), _files(RAISED)))
    assert (snapshot.steps["a"].spent, snapshot.steps["a"].error) == (1, RAISED.error)


def test_what_the_journal_knows_better_is_left_as_it_is() -> None:
    done = {"kind": "commit", "step": "a", "status": "done", "try": 2, "result": 8}
    assert reconcile.ahead(_begun(done), _files(RUNNING, DONE)).lines == ()


def test_a_journal_cut_at_any_line_has_every_commit_again_and_no_run_id_comes_twice(root: Path, tmp_path: Path) -> None:
    desk = Desk(root)
    desk.next_holder().begin_attempt(token="none")
    desk.run("b")
    desk.run("c")
    runs = {attempt.run for attempt in desk.task.snapshot.attempts}
    desk.close()
    lines = Path(desk.where.journal).read_bytes().splitlines(keepends=True)
    for kept in range(1, len(lines)):
        copy = Paths(str(tmp_path / str(kept) / desk.where.task_id))
        shutil.copytree(desk.where.directory, copy.directory)
        Path(copy.journal).write_bytes(b"".join(lines[:kept]))
        for _ in range(2):
            task = take_over(copy, time.time, thorough=True)
            task.close()
        steps = {label: (state.status, state.result) for label, state in task.snapshot.steps.items()}
        assert steps == {name: (StepStatus.DONE, name) for name in "abc"}, kept
        after = take_over(copy, time.time)
        after.begin_attempt(token="none")
        after.close()
        assert after.run not in runs, kept


# -- orders --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "instead",
    [lambda path: os.symlink("/etc/hostname", path), os.mkdir, os.mkfifo, lambda path: os.symlink("/nowhere/x", path)],
    ids=["a link", "a directory", "a fifo", "a dangling link"],
)
def test_an_order_is_given_past_whatever_lies_in_the_place_of_the_requests_and_that_is_kept(
    root: Path, instead: Callable[[str], object]
) -> None:
    desk = Desk(root)
    Path(desk.where.requests).unlink(missing_ok=True)
    instead(desk.where.requests)
    make_request(desk.where, {"id": "r", "verb": "pause"})
    assert [request["id"] for request in read_requests(desk.where)] == ["r"]
    assert [name for name in os.listdir(desk.where.inner) if name.startswith("requests.jsonl.")]
    desk.close()


def test_requests_that_are_no_orders_do_not_hide_those_that_are(root: Path) -> None:
    desk = Desk(root)
    lines = [
        b"{" * 5000,
        b'{"id": 1, "verb": "pause"}',
        b'{"id": "x"}',
        b"\0",
        json.dumps({"id": "r", "verb": "pause"}).encode(),
    ]
    Path(desk.where.requests).write_bytes(b"\n".join(lines) + b'\n{"id": "torn", "ver')
    assert [request["id"] for request in store.read_requests(desk.where)] == ["r"]
    desk.close()


def test_a_file_of_ours_that_was_closed_to_us_is_opened_again(desk: Desk) -> None:
    needed = (desk.where.task_md, desk.where.journal, desk.where.spec)
    closed = (*needed, desk.where.step("a.md"))

    def next_holder() -> tuple[list[bool], StepStatus]:
        inline.obey_permissions()
        for path in closed:
            os.chmod(path, 0)
        kept_out = [not os.access(path, os.R_OK) for path in closed]
        return kept_out, desk.next_holder().snapshot.steps["a"].status

    assert inline.run(next_holder) == ([True] * len(closed), StepStatus.DONE)
    assert all(os.stat(path).st_mode & 0o600 == 0o600 for path in needed)
