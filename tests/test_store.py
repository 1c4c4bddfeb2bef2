"""A task looked at without touching it: what a list, a dry run and a waiter are told, of whatever lies there."""

from __future__ import annotations

import errno
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from desk import Desk

from orchestrator import files, identity, store, workspace
from orchestrator.core import journal
from orchestrator.core.model import Outcome, StepId, StepStatus, TaskSpec
from orchestrator.errors import Damaged, RootUnusable, TaskNotFound
from orchestrator.store import Paths, look
from orchestrator.takeover import take_over


def ended(desk: Desk, outcome: Outcome = Outcome.COMPLETED) -> Desk:
    desk.task.commit("b", StepStatus.DONE)
    desk.task.commit("c", StepStatus.SKIPPED)
    desk.task.end(desk.task.announcement(outcome, ""))
    return desk


# -- which tasks there are -------------------------------------------------------------------------------------------


def test_an_id_is_matched_whole_and_leads_to_a_directory_of_the_root(desk: Desk, root: Path) -> None:
    task_id = desk.where.task_id
    assert store.paths(str(root), task_id) == desk.where
    (root / "task-20260101-000000-001").symlink_to(desk.where.directory)
    (root / "task-20260101-000000-002").write_text("a file")
    (root / "other").mkdir()
    for wrong in (task_id[:-1], "", "other", "task-20260101-000000-001", "task-20260101-000000-002", "../x"):
        with pytest.raises(TaskNotFound):
            store.paths(str(root), wrong)


def test_tasks_are_listed_oldest_first_also_past_999_in_a_second(root: Path) -> None:
    names = [f"task-20260101-000000-{n}" for n in ("002", "999", "1000", "1001")] + ["task-20260101-000001-001"]
    for name in [*reversed(names), "other"]:
        (root / name).mkdir()
    assert store.task_ids(str(root)) == names
    assert store.task_ids(str(root / "not there")) == []
    (root / "file").write_text("")
    with pytest.raises(RootUnusable):
        store.task_ids(str(root / "file"))


# -- the journal, the spec -------------------------------------------------------------------------------------------


def test_no_journal_is_an_empty_one_and_what_is_no_file_is_damage(desk: Desk, tmp_path: Path) -> None:
    nowhere = Paths(str(tmp_path / "nowhere"))
    assert store.read_journal(nowhere) == journal.Reading((), 0, 0)
    (tmp_path / "file").write_text("")
    assert store.read_journal(Paths(str(tmp_path / "file"))) == journal.Reading((), 0, 0)
    os.unlink(desk.where.journal)
    os.mkdir(desk.where.journal)
    with pytest.raises(Damaged):
        store.read_journal(desk.where)


def test_a_task_is_readable_by_its_face_or_its_journal_or_its_steps(desk: Desk) -> None:
    task_md, kept = Path(desk.where.task_md), Path(desk.where.journal).read_bytes()
    store.check_readable(desk.where)
    task_md.write_bytes(b"\0\0")
    store.check_readable(desk.where)
    Path(desk.where.journal).write_bytes(b"")
    store.check_readable(desk.where)  # the step files tell
    for path in task_md.parent.glob("*.md"):
        path.unlink()
    with pytest.raises(Damaged, match=desk.where.task_id) as refused:
        store.check_readable(desk.where)
    assert desk.where.directory in str(refused.value.hint)
    Path(desk.where.journal).write_bytes(kept)
    store.check_readable(desk.where)


def test_what_a_task_runs_is_told_or_it_is_said_how_to_say_it_anew(desk: Desk) -> None:
    assert store.read_spec(desk.where).worker == "m:f"
    Path(desk.where.spec).write_text("nonsense: [")
    for _ in range(2):
        with pytest.raises(Damaged) as refused:
            store.read_spec(desk.where)
        assert f"orchestrator adopt {desk.where.task_id} --worker" in str(refused.value.hint)
        Path(desk.where.spec).unlink(missing_ok=True)


# -- requests --------------------------------------------------------------------------------------------------------


def test_a_request_behind_a_torn_line_is_heard(desk: Desk) -> None:
    """The one before it was cut off by a kill: it must not take this one with it."""
    Path(desk.where.requests).write_bytes(b'{"id":"torn","ve')
    store.make_request(desk.where, {"id": "r", "verb": "pause"})
    store.make_request(desk.where, {"id": "s", "verb": "continue"})
    assert [r["id"] for r in store.read_requests(desk.where)] == ["r", "s"]


@pytest.mark.parametrize(
    "line",
    [
        *(b"", b"  ", b"x", b"[]", b"3", b"{}", b"\xff", b"[" * 9000),
        *(b'{"id":"r"}', b'{"verb":"v"}', b'{"id":1,"verb":"v"}'),
        *(b'{"id":"r","verb":"v","%s":1}' % key for key in (b"step", b"question", b"text", b"why")),
        b'{"id":"r","verb":["v"]}',
    ],
    ids=lambda line: line[:30].decode("latin-1") or "empty",
)  # fmt: skip
def test_a_line_that_is_no_request_is_passed_over(desk: Desk, line: bytes) -> None:
    Path(desk.where.requests).write_bytes(b'{"id":"a","verb":"v"}\n' + line + b'\n{"id":"b","verb":"v","done":true}\n')
    assert [r["id"] for r in store.read_requests(desk.where)] == ["a", "b"]


def test_without_requests_there_are_none(desk: Desk) -> None:
    assert store.read_requests(desk.where) == []
    os.mkdir(desk.where.requests)
    assert store.read_requests(desk.where) == []


def test_a_request_is_taken_though_an_agent_removed_its_directory(desk: Desk) -> None:
    files.remove_tree(desk.where.inner)
    store.make_request(desk.where, {"id": "r", "verb": "pause"})
    assert [r["id"] for r in store.read_requests(desk.where)] == ["r"]


def test_the_first_cancel_that_nobody_has_handled_is_the_one(desk: Desk) -> None:
    assert look(desk.where).cancel_request() is None
    for id_, verb in (("p", "pause"), ("a", "cancel"), ("b", "cancel")):
        store.make_request(desk.where, {"id": id_, "verb": verb})
    assert look(desk.where).cancel_request() == "a"
    desk.task.record("handled", sync=True, request="a", verb="cancel", refused="too late")
    assert look(desk.where).cancel_request() == "b"


# -- how it stands ---------------------------------------------------------------------------------------------------

MINE = list(identity.mine())
DEAD = [2**22 + 1, 1, *MINE[2:]]
ELSEWHERE = [1, 1, "another boot", "ns", "another host"]


@pytest.mark.parametrize(
    "who, alive, state", [(MINE, True, "working"), (DEAD, False, "interrupted"), (ELSEWHERE, None, "working")]
)
def test_a_task_is_worked_on_as_long_as_its_worker_may_live(
    desk: Desk, who: list[Any], alive: bool | None, state: str
) -> None:
    desk.task.begin_attempt(token="t")
    assert (look(desk.where).alive, look(desk.where).state) == (False, "interrupted")
    desk.task.started(worker=who, guard=who)
    assert (look(desk.where).alive, look(desk.where).state) == (alive, state)
    desk.task.close_attempt(Outcome.STOPPED)
    assert (look(desk.where).alive, look(desk.where).state) == (False, "interrupted")


def test_a_task_that_nobody_began_is_queued_and_one_that_lost_its_journal_is_not(root: Path) -> None:
    where, lock = workspace.create(str(root), TaskSpec("new", "python", "m:f"), time.time)
    os.close(lock)
    assert look(where).state == "queued"
    store.make_request(where, {"id": "r", "verb": "pause"})
    assert look(where).state == "queued"
    found = look(where)
    found.snapshot.paused = True
    assert found.state == "paused"


def test_a_journal_made_again_from_the_face_tells_of_an_interrupted_task(desk: Desk) -> None:
    desk.task.close()
    os.unlink(desk.where.journal)
    assert look(desk.where).state == "working", "whoever holds it writes its journal again"
    os.close(desk._lock)
    found = look(desk.where)
    assert (found.state, found.lost, found.damage) == ("interrupted", True, [])
    desk._lock = os.open(os.devnull, os.O_RDONLY)
    Path(desk.where.journal).write_bytes(b"\0" * 10)
    assert look(desk.where).damage == [".task/journal.jsonl: not one line of it can be read"]


def test_a_pause_and_a_question_and_an_end_are_told_as_they_are(desk: Desk) -> None:
    said = desk.task.announcement(Outcome.QUESTION, "it asks: q")
    desk.task.wait_for_person(said)
    assert look(desk.where).state == "question"
    assert look(desk.where).announcement() == said
    desk.task.record("handled", sync=True, request="p", verb="pause")
    assert look(desk.where).state == "paused"
    ended(desk)
    assert look(desk.where).state == "completed"
    told = look(desk.where).announcement()
    assert told is not None
    assert told.status == "completed"


def test_a_task_that_has_nothing_to_tell_tells_nothing(desk: Desk) -> None:
    assert look(desk.where).announcement() is None


def test_damage_is_named_and_never_taken_for_empty(desk: Desk) -> None:
    path = Path(desk.where.journal)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([lines[0], b"x\n", *lines[1:]]))
    assert look(desk.where).damage == [".task/journal.jsonl: bad line 2 with good ones after it"]
    path.write_bytes(b"".join(lines))
    Path(desk.where.task_md).write_bytes(b"")
    for with_face in (True, False):
        found = look(desk.where, with_face=with_face)
        assert (found.damage, found.state) == (["task.md is empty or unreadable"], "damaged")
    os.unlink(desk.where.task_md)
    for with_face in (True, False):
        assert look(desk.where, with_face=with_face).damage == ["task.md is gone"]
    os.mkdir(desk.where.task_md)
    for with_face in (True, False):
        (said,) = look(desk.where, with_face=with_face).damage
        assert said.startswith("task.md: ")
    ended(desk)
    os.unlink(path)
    os.mkdir(path)
    assert any(text.startswith(".task/journal.jsonl: ") for text in look(desk.where).damage)


@pytest.mark.parametrize(
    "text, title",
    [
        ("# Task: a title\n", "a title"),
        ("\ufeff# Task:   a title  \r\nmore", "a title"),
        ("# Task:\n", None),
        ("X# Task: a title\n", None),
        ("# Another: heading\n", None),
        ("# Task: " + "x" * 2000, "x" * 1016),
    ],
)
def test_a_list_has_the_title_without_reading_the_checklist(desk: Desk, text: str, title: str | None) -> None:
    Path(desk.where.task_md).write_text(text, "utf-8")
    found = look(desk.where, with_face=False)
    assert found.face is None
    assert found.title == (title or desk.where.task_id)


def test_a_title_with_bad_bytes_is_read_as_far_as_it_goes(desk: Desk) -> None:
    Path(desk.where.task_md).write_bytes(b"# Task: a \xff title\n")
    assert look(desk.where, with_face=False).title == "a \ufffd title"


@pytest.mark.parametrize(
    "error, said",
    [(OSError(errno.EIO, "Input/output error"), "Input/output error"), (OSError("no number"), "no number")],
)
def test_what_cannot_be_read_is_said_in_the_words_of_the_system(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, error: OSError, said: str
) -> None:
    def fails(*_: object) -> bytes:
        raise error

    monkeypatch.setattr(files, "read", fails)
    for with_face in (True, False):
        assert store.look(desk.where, with_face=with_face).damage == [
            f".task/journal.jsonl: {said}",
            f"task.md: {said}",
        ]


def test_what_is_no_file_is_said_to_be_none(desk: Desk) -> None:
    os.unlink(desk.where.task_md)
    os.mkdir(desk.where.task_md)
    for with_face in (True, False):
        assert look(desk.where, with_face=with_face).damage == [f"task.md: {desk.where.task_md} is not a regular file"]


def test_a_task_md_with_a_nul_in_it_is_damaged_for_a_list_too(desk: Desk) -> None:
    Path(desk.where.task_md).write_bytes(b"# Task: a\0 title\n[start done]\n")
    for with_face in (True, False):
        assert look(desk.where, with_face=with_face).damage == ["task.md is empty or unreadable"]


def test_the_title_is_that_of_the_checklist(desk: Desk) -> None:
    assert look(desk.where).title == "desk"
    assert look(desk.where).task_id == desk.where.task_id


# -- lists -----------------------------------------------------------------------------------------------------------


def test_a_row_counts_the_steps_and_an_ended_task_is_told_by_its_last_lines(desk: Desk, root: Path) -> None:
    where = desk.where
    working = store.row(where)
    assert (working.id, working.name, working.state, working.done, working.total) == (
        *(where.task_id, "desk", "interrupted", 1, 3),
    )
    assert working.at == look(where).snapshot.last_at
    ended(desk)
    assert store.row(where) == store.Row(where.task_id, "desk", "completed", 2, 3, store.row(where).at)
    end = store.ended_by_tail(where)
    assert end is not None
    assert store.row(where).at == end["at"]
    assert [row.id for row in store.rows(str(root))] == [where.task_id]


def test_a_list_reads_no_checklist_and_of_what_has_ended_only_the_last_lines(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    def reads(*_: object, **_how: object) -> None:
        raise AssertionError("it costs too much for thousands")

    before = store.row(desk.where)
    monkeypatch.setattr(store, "read_face", reads)
    assert store.row(desk.where) == before
    ended(desk)
    monkeypatch.setattr(store, "look", reads)
    assert store.row(desk.where).state == "completed"


def test_a_task_of_which_nothing_is_done_has_none_in_its_row(desk: Desk, root: Path) -> None:
    where, lock = workspace.create(str(root), TaskSpec("new", "python", "m:f"), time.time)
    os.close(lock)
    assert (store.row(where).done, store.row(where).total) == (0, 0)
    run = {"run": f"{desk.where.task_id}.1", "at": "then"}
    said = {"id": "i", "task": "t", "name": "n", "status": "completed", "summary": "s"}
    for announcement, expected in (({**said, "steps": {"skipped": 2}}, (0, 2)), (said, (0, 0)), (None, (0, 0))):
        end = {**run, "seq": 2, "kind": "end", "outcome": "completed", "announcement": announcement}
        lines = [{**run, "seq": 1, "kind": "attempt"}, end, {**run, "seq": 3, "kind": "closed", "outcome": "completed"}]
        Path(desk.where.journal).write_bytes(b"".join(map(journal.encode, lines)))
        assert (store.row(desk.where).done, store.row(desk.where).total) == expected
        assert store.row(desk.where).state == "completed"


def test_the_tail_is_the_last_64_KiB_and_what_does_not_fit_says_nothing(desk: Desk) -> None:  # noqa: N802
    run, path = desk.where.task_id, Path(desk.where.journal)

    def padded(size: int, *lines: dict[str, Any]) -> bytes:
        """Lines of `size` bytes in all."""
        missing = size - len(b"".join(map(journal.encode, [{**lines[0], "text": ""}, *lines[1:]])))
        return b"".join(map(journal.encode, [{**lines[0], "text": "x" * missing}, *lines[1:]]))

    old = [{"run": f"{run}.1", "seq": n, "kind": kind, "outcome": "x"} for n, kind in ((8, "end"), (9, "closed"))]
    for size, told in ((65_536, 2), (65_537, 0)):
        path.write_bytes(journal.encode({"run": f"{run}.1", "seq": 1, "kind": "x"}) + padded(size, *old))
        assert len(store.last_lines(desk.where)) == told
    new = {"run": f"{run}.2", "seq": 1, "kind": "attempt"}
    for size, told in ((65_535, 0), (65_536, 0), (65_537, 2)):  # where the line of the newest attempt is not whole
        path.write_bytes(journal.encode({"run": f"{run}.1", "seq": 1, "kind": "x"}) + padded(size, new, *old))
        assert len(store.last_lines(desk.where)) == told


def test_an_end_with_anything_behind_it_is_not_told_by_the_tail(desk: Desk) -> None:
    assert store.ended_by_tail(desk.where) is None
    ended(desk)
    assert [entry["kind"] for entry in store.last_lines(desk.where)] == ["end", "closed"]
    desk.task.record("handled", sync=True, request="r", verb="redo", step="a")
    assert store.ended_by_tail(desk.where) is None
    desk.task.record("closed", sync=True, outcome="stopped")
    assert store.ended_by_tail(desk.where) is None, "the line before it is no end"


def test_an_end_closed_by_another_attempt_is_not_told_by_the_tail(desk: Desk) -> None:
    lines = [
        {"run": f"{desk.where.task_id}.{n}", "seq": 1, "kind": kind, "outcome": "completed"}
        for n, kind in ((1, "end"), (2, "closed"))
    ]
    Path(desk.where.journal).write_bytes(b"".join(map(journal.encode, lines)))
    assert store.ended_by_tail(desk.where) is None
    Path(desk.where.journal).write_bytes(
        journal.encode(lines[0]) + journal.encode({**lines[1], "run": lines[0]["run"]})
    )
    assert store.ended_by_tail(desk.where) == lines[0]


@pytest.mark.parametrize("tail", [b"torn", b"\0\0\n", b"x\n"])
def test_a_tail_that_is_not_whole_says_nothing(desk: Desk, tail: bytes) -> None:
    ended(desk)
    with open(desk.where.journal, "ab") as file:
        file.write(tail)
    assert store.last_lines(desk.where) == []


def test_a_tail_of_lines_too_long_or_of_none_says_nothing(desk: Desk, tmp_path: Path) -> None:
    assert store.last_lines(Paths(str(tmp_path))) == []
    desk.task.record("a kind to come", sync=False, text="x" * 70_000)
    desk.task.record("a kind to come", sync=False)
    assert store.last_lines(desk.where) == []


def test_the_result_of_a_task_is_read_as_it_was_written(desk: Desk) -> None:
    desk.task.store_result({"ü": [1, None]})
    assert store.read_result(desk.where) == {"ü": [1, None]}
    assert json.loads(Path(desk.where.results, "result.json").read_text("utf-8")) == {"ü": [1, None]}


def test_a_result_may_be_whole_when_it_is_a_file_of_the_size_that_its_end_says(desk: Desk) -> None:
    desk.task.make(desk.where.results)
    path = Path(desk.where.results, "result.json")
    assert not store.result_may_be_whole(desk.where, {})
    for data, size, whole in (
        (b"1", None, True),
        (b"1", 1, True),
        (b"1", 2, False),
        (b"", None, False),
        (b"", 0, False),
    ):
        path.write_bytes(data)
        assert store.result_may_be_whole(desk.where, {} if size is None else {"result_bytes": size}) is whole
    path.write_bytes(b"1")
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")
    assert not store.result_may_be_whole(desk.where, {})
    path.unlink()
    path.mkdir()
    assert not store.result_may_be_whole(desk.where, {})


# -- what is told to who waits ---------------------------------------------------------------------------------------


def test_an_end_is_told_when_it_is_whole_or_its_writer_is_gone(desk: Desk) -> None:
    """Whoever is told reads task.md next: it must say so too."""
    said = desk.task.announcement(Outcome.COMPLETED, "")
    assert store.told(desk.where) is None
    desk.task.record("end", sync=True, outcome=said.status, announcement=store.announcement_to_json(said))
    assert store.told(desk.where) is None, "its writer is still at it"
    os.close(desk._lock)
    assert store.told(desk.where) == said, "its writer is gone: the rest is nobody's"
    lock = files.lock_directory(desk.where.directory)
    assert lock is not None
    desk._lock = lock
    desk.task.close_attempt(said.status)
    assert store.told(desk.where) == said


def test_what_waits_for_a_person_is_told_once_its_attempt_is_closed(desk: Desk) -> None:
    said = desk.task.announcement(Outcome.QUESTION, "it asks")
    desk.task.wait_for_person(said)
    assert store.told(desk.where) == said


def test_what_waits_for_a_person_is_told_also_behind_an_order_when_nobody_works_on_it(desk: Desk) -> None:
    said = desk.task.announcement(Outcome.QUESTION, "it asks")
    desk.task.wait_for_person(said)
    desk.task.record("handled", sync=True, request="r", verb="pause", refused="no")
    assert store.told(desk.where) is None, "whoever holds it may be about to begin"
    os.close(desk._lock)
    assert store.told(desk.where) == said
    desk._lock = os.open(os.devnull, os.O_RDONLY)


def test_nothing_is_told_of_a_task_that_goes_on_whoever_holds_it(desk: Desk) -> None:
    assert store.told(desk.where) is None
    os.close(desk._lock)
    assert store.told(desk.where) is None
    desk._lock = os.open(os.devnull, os.O_RDONLY)


def test_an_end_is_told_when_the_guard_is_gone_and_at_last_without(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """The guard goes last: until then something of the worker may still write."""
    desk.task.begin_attempt(token="t")
    desk.task.started(worker=MINE, guard=MINE)
    ended(desk)
    slept: list[float] = []
    now = [100.0]

    class Clock:
        @staticmethod
        def monotonic() -> float:
            return now[0]

        @staticmethod
        def sleep(seconds: float) -> None:
            slept.append(seconds)
            now[0] += 0.5

    monkeypatch.setattr(store, "time", Clock)
    assert store.told(desk.where) is not None
    assert slept == [0.005] * 4, "two seconds, in small steps"
    slept.clear()
    monkeypatch.setattr(identity, "alive", lambda who: None)
    assert store.told(desk.where) is not None
    assert slept == [], "one that cannot be asked is not waited for"


def test_the_lock_is_told_and_not_kept(desk: Desk) -> None:
    assert not store.lock_is_free(desk.where)
    os.close(desk._lock)
    assert store.lock_is_free(desk.where)
    assert store.lock_is_free(desk.where)
    desk._lock = os.open(os.devnull, os.O_RDONLY)


def test_an_announcement_of_a_later_version_is_read_as_far_as_we_know_it(desk: Desk) -> None:
    said = desk.task.announcement(Outcome.COMPLETED, "why")
    data = store.announcement_to_json(said)
    assert store.announcement_from_json({**data, "to come": 1}) == said


# -- at the borders --------------------------------------------------------------------------------------------------


def test_who_names_a_task_or_a_root_that_is_none_is_told_what_is_wrong_and_then_what_to_do(root: Path) -> None:
    with pytest.raises(TaskNotFound, match="no task 'x'") as refused:
        store.paths(str(root), "x")
    assert str(refused.value.hint) == f"see them all: orchestrator --root {root} list"
    (root / "file").write_text("")
    with pytest.raises(RootUnusable, match="is a file") as unusable:
        store.task_ids(str(root / "file"))
    assert "ORCHESTRATOR_ROOT" in str(unusable.value.hint)


def test_a_spec_with_bad_bytes_is_damage_and_stops_nobody(desk: Desk) -> None:
    Path(desk.where.spec).write_bytes(b"name: \xff\nkind: [")
    with pytest.raises(Damaged):
        store.read_spec(desk.where)


@pytest.mark.parametrize("what", ["closed to us", "a directory"])
def test_a_spec_that_cannot_be_read_is_named_with_the_way_out(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    if what == "a directory":
        os.unlink(desk.where.spec)
        os.mkdir(desk.where.spec)
        said, hint = f"{desk.where.spec} is not a regular file", f"orchestrator adopt {desk.where.task_id}"
    else:

        def closed(path: str, _limit: int) -> bytes:
            raise PermissionError(errno.EACCES, "Permission denied", path)

        monkeypatch.setattr(files, "read", closed)
        said, hint = f"{desk.where.spec} may not be read", f"chmod u+rw {desk.where.spec}"
    with pytest.raises(Damaged) as refused:
        store.read_spec(desk.where)
    assert refused.value.what == said
    assert hint in str(refused.value.hint)


def test_a_request_is_one_whole_line_between_two_newlines(desk: Desk) -> None:
    store.make_request(desk.where, {"id": "r", "verb": "pause"})
    assert Path(desk.where.requests).read_bytes() == b'\n{"id": "r", "verb": "pause"}\n'


def test_a_task_planned_by_hand_and_never_begun_is_queued(root: Path) -> None:
    where, lock = workspace.create(str(root), TaskSpec("new", "python", "m:f"), time.time)
    task = take_over(where, time.time)
    task.plan([StepId("a")])
    task.close()
    os.close(lock)
    assert look(where).state == "queued"


def test_the_checklist_is_read_for_who_wants_it_and_where_nothing_else_tells(desk: Desk, root: Path) -> None:
    """A list of thousands does without: it would read every one."""
    assert look(desk.where).face is not None
    assert look(desk.where, with_face=False).face is None
    where, lock = workspace.create(str(root), TaskSpec("new", "python", "m:f"), time.time)
    os.close(lock)
    assert look(where, with_face=False).face is None
    os.unlink(where.journal)
    assert look(where, with_face=False).face is not None


def test_a_task_whose_inner_directory_is_a_link_is_damaged_and_the_link_is_named(desk: Desk, tmp_path: Path) -> None:
    os.rename(desk.where.inner, tmp_path / "elsewhere")
    os.symlink(tmp_path / "elsewhere", desk.where.inner)
    with pytest.raises(Damaged, match=r"\.task is a link") as refused:
        store.check_readable(desk.where)
    assert "remove the link" in str(refused.value.hint)
    assert look(desk.where).damage == [".task is a link"]


def test_an_order_given_to_a_task_that_lost_its_journal_says_so(desk: Desk) -> None:
    store.make_request(desk.where, {"id": "r", "verb": "pause"})
    os.unlink(desk.where.journal)
    store.make_request(desk.where, {"id": "s", "verb": "pause"})
    assert [r.get("journal") for r in store.read_requests(desk.where)] == [None, "lost"]


def test_a_worker_on_another_machine_is_told_with_its_host(desk: Desk) -> None:
    assert look(desk.where).elsewhere is None
    desk.task.started(worker=ELSEWHERE, guard=ELSEWHERE)
    assert look(desk.where).elsewhere == "another host"
    desk.task.begin_attempt(token="t")
    desk.task.started(worker=MINE, guard=MINE)
    assert look(desk.where).elsewhere is None
    desk.task.begin_attempt(token="t")
    other = [*MINE[:3], "another namespace", MINE[4]]
    desk.task.started(worker=other, guard=other)
    assert (look(desk.where).alive, look(desk.where).elsewhere) == (None, None), "its locks are seen from here"


def test_an_attempt_was_begun_here_by_its_id_and_by_the_number_of_the_directory(desk: Desk) -> None:
    attempt = desk.task.snapshot.attempts[0]
    found = os.stat(desk.where.directory).st_ino
    for run, place, here in (
        (attempt.run, None, True),
        (attempt.run, found, True),
        (attempt.run, found + 1, False),
        ("task-20200101-000000-001.1", found, False),
        (f"{desk.where.task_id}1.1", None, False),
    ):
        attempt.run, attempt.place = run, place
        assert store.begun_here(desk.where, attempt) is here


def test_the_tail_of_an_attempt_that_was_replaced_tells_nothing(desk: Desk) -> None:
    run = desk.where.task_id
    old = [
        {"run": f"{run}.1", "seq": n, "kind": kind, "outcome": "completed"} for n, kind in ((8, "end"), (9, "closed"))
    ]
    new = {"run": f"{run}.2", "seq": 1, "kind": "attempt"}
    own = {"run": f"{run}.1", "seq": 1, "kind": "attempt"}
    for lines, told in (([new, *old], []), ([own, *old], old), ([new, {**new, "seq": 2, "kind": "x"}, *old], [])):
        Path(desk.where.journal).write_bytes(b"".join(map(journal.encode, lines)))
        assert store.last_lines(desk.where) == told
