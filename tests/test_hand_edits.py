"""What a person writes into task.md is taken over, kept, and never costs a finished step."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from desk import Desk

from orchestrator import files, identity
from orchestrator.core.model import StepId, StepStatus
from orchestrator.store import Paths, look
from orchestrator.takeover import continue_attempt

HOLDERS = pytest.mark.parametrize("later", ["by the worker that lives", "by the next holder"])


def notice(desk: Desk, later: str) -> None:
    if later == "by the next holder":
        desk.next_holder()
    else:
        desk.mark()


@HOLDERS
def test_a_step_marked_done_by_hand_is_not_run(desk: Desk, later: str) -> None:
    desk.edit(lambda text: text.replace("[pending] c", "[working done] c"))
    notice(desk, later)
    assert desk.status("c") is StepStatus.DONE
    assert look(desk.where).snapshot.steps["c"].by_hand
    assert "[working done] c" in desk.text


@HOLDERS
def test_a_step_marked_skipped_by_hand_is_passed_over(desk: Desk, later: str) -> None:
    desk.edit(lambda text: text.replace("[pending] c", "[skipped] c"))
    notice(desk, later)
    assert desk.status("c") is StepStatus.SKIPPED


@pytest.mark.parametrize("name, label", [("b", "b (2)"), ("new", "new")])
def test_a_step_that_a_person_wrote_down_before_it_came_is_known_by_its_name_and_number_ever_after(
    desk: Desk, name: str, label: str
) -> None:
    """Else it would be another step to the next worker, and be done again."""
    desk.edit(lambda text: text.replace("[pending] c", f"[pending] {name}\n[pending] c"))
    desk.task.look_for_edits()
    step = StepId(name, 2 if name == "b" else 1)
    desk.task.begin_try(step, 1, effect="idempotent", args="")
    desk.task.commit(label, StepStatus.DONE, result="mine")
    for task in (desk.task, desk.next_holder()):
        assert task.snapshot.labels[step] == label
        assert task.snapshot.steps[label].result == "mine"


@HOLDERS
def test_a_commit_beats_any_tag(desk: Desk, later: str) -> None:
    desk.edit(lambda text: text.replace("[working done] a", "[working] a"))
    notice(desk, later)
    assert desk.status("a") is StepStatus.DONE
    assert "[working done] a" in desk.text


@HOLDERS
def test_a_vanished_line_drops_no_step(desk: Desk, later: str) -> None:
    desk.edit(lambda text: text.replace("[pending] c\n", ""))
    notice(desk, later)
    assert "[pending] c" in desk.text
    assert list(look(desk.where).snapshot.steps)[:3] == ["a", "b", "c"]


@HOLDERS
def test_a_new_line_becomes_a_step_at_its_place(desk: Desk, later: str) -> None:
    desk.edit(lambda text: text.replace("[pending] c", "[pending] between\n[pending] c"))
    notice(desk, later)
    assert look(desk.where).snapshot.order[:4] == ["a", "b", "between", "c"]


@HOLDERS
def test_a_third_line_of_a_name_is_the_third_step_of_it_though_the_second_shows_its_number(
    desk: Desk, later: str
) -> None:
    second = StepId("a", 2)
    desk.task.plan([second])
    desk.edit(lambda text: text.replace("[pending] a (2)", "[pending] a (2)\n[working done] a"))
    notice(desk, later)
    labels = look(desk.where).snapshot.labels
    assert labels[second] == "a (2)"
    assert desk.status("a (2)") is StepStatus.PENDING
    assert desk.status(labels[StepId("a", 3)]) is StepStatus.DONE


@HOLDERS
def test_a_new_order_is_taken_over_when_every_step_is_there(desk: Desk, later: str) -> None:
    desk.edit(lambda text: text.replace("[working] b\n[pending] c\n", "[pending] c\n[working] b\n"))
    notice(desk, later)
    assert look(desk.where).snapshot.order[:3] == ["a", "c", "b"]
    assert desk.text.index("[pending] c") < desk.text.index("[working] b")


@HOLDERS
def test_notes_and_everything_unknown_are_kept_byte_for_byte(desk: Desk, later: str) -> None:
    note = "\nA thought: [working] is not a step here.\n> quoted\n\n---\n[working done] c\nafterwards \t\n"
    desk.edit(lambda text: text + note)
    notice(desk, later)
    assert note in desk.text
    assert desk.status("c") is StepStatus.PENDING  # what stands behind --- is a note


@HOLDERS
def test_an_order_to_redo_reopens_the_step(desk: Desk, later: str) -> None:
    desk.edit(lambda text: text.replace("[working done] a", "[redo] a"))
    notice(desk, later)
    assert desk.status("a") is StepStatus.PENDING
    assert "[redo]" not in desk.text


# fault 47
def test_a_thousand_saves_between_a_thousand_marks_lose_neither(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "SETTLE_SECONDS", 0.0)
    for number in range(1000):
        desk.edit(lambda text, n=number: text + f"note {n}\n")  # type: ignore[misc]
        desk.run("c") if number == 0 else desk.task.interrupted("b", "test")
        desk.task.begin_try(StepId(f"step {number}"), 1, effect="idempotent", args="")
    for number in range(1000):
        assert f"note {number}\n" in desk.text
        assert f"[working] step {number}\n" in desk.text


def test_an_edit_displaced_in_the_moment_of_a_kill_is_merged_by_the_next_holder(desk: Desk) -> None:
    text = desk.text
    edited = text.replace("[pending] c", "[skipped] c") + "a thought of the person\n"
    beside = Path(desk.where.directory, files.TEMPORARY + "task.md")
    beside.write_text(edited, "utf-8")  # as the exchange leaves it when the worker dies right after
    desk.next_holder()
    assert not beside.exists()
    assert desk.status("c") is StepStatus.SKIPPED
    assert "a thought of the person\n" in desk.text


def test_all_edits_displaced_by_kills_are_merged_and_not_only_the_first(desk: Desk) -> None:
    text = desk.text
    for number in ("", "2-", "3-"):
        beside = Path(desk.where.directory, f"{files.TEMPORARY}{number}task.md")
        beside.write_text(f"{text}a thought with {number or '1-'}\n", "utf-8")
    desk.next_holder()
    assert [f"a thought with {number}\n" in desk.text for number in ("1-", "2-", "3-")] == [True] * 3
    assert not list(Path(desk.where.directory).glob(files.TEMPORARY + "*"))


@pytest.mark.parametrize("what", ["gone", "a directory", "empty"])
def test_a_task_md_missing_for_a_moment_does_not_keep_a_worker_from_beginning(desk: Desk, what: str) -> None:
    """An editor that deletes and writes anew would otherwise end the supervision, as a full disk does."""
    run = desk.task.begin_attempt(token="none")
    path = Path(desk.where.task_md)
    path.unlink()
    if what == "a directory":
        path.mkdir()
    elif what == "empty":
        path.touch()
    worker = continue_attempt(desk.where, time.time, run)
    assert worker is not None
    worker.started(worker=list(identity.mine()), guard=list(identity.mine()))
    worker.close()
    assert "[working done] a\n[working] b\n[pending] c\n" in desk.text
    assert worker.notices


@pytest.mark.parametrize("content", [b"", b"\0" * 100, b"  \n\n", None], ids=["empty", "zeros", "blank", "gone"])
def test_a_lost_checklist_is_made_again_from_the_journal(desk: Desk, content: bytes | None) -> None:
    path = Path(desk.where.task_md)
    path.unlink() if content is None else path.write_bytes(content)
    task = desk.next_holder()
    assert "[working done] a\n[working] b\n[pending] c\n" in desk.text
    assert task.notices
    if content is not None:
        aside = [p for p in path.parent.iterdir() if p.name.startswith("task.md.damaged-")]
        assert [p.read_bytes() for p in aside] == [content]


def test_a_directory_in_the_place_of_task_md_is_set_aside_by_a_living_worker(desk: Desk) -> None:
    path = Path(desk.where.task_md)
    path.unlink()
    path.mkdir()
    (path / "inside").write_text("kept")
    desk.mark()
    desk.task.settle()
    assert "[working done] a" in desk.text
    assert [p.read_text() for p in path.parent.glob("task.md.damaged-*/inside")] == ["kept"]


RUINED = {
    "one NUL": lambda text: text.encode().replace(b"mine", b"mi\0ne", 1) + b"A remark of mine.\n",
    "UTF-16": lambda text: text.encode("utf-16"),
}


@pytest.mark.parametrize("ruined", RUINED)
@pytest.mark.parametrize("seen", ["at the next mark", "between two steps", "by who comes after a kill in between"])
def test_a_task_md_that_was_ruined_under_its_worker_is_kept_beside_it(desk: Desk, ruined: str, seen: str) -> None:
    """It was thrown away, with all that people had written into it."""
    data = RUINED[ruined](desk.text + "\nA remark of mine.\n")
    if seen == "by who comes after a kill in between":
        Path(files.temporary_of(desk.where.task_md)).write_bytes(data)
        desk.next_holder()
    else:
        Path(desk.where.task_md).write_bytes(data)
        if seen == "between two steps":
            desk.task.look_for_edits()
        desk.mark()
    (aside,) = Path(desk.where.directory).glob("task.md.damaged-*")
    assert aside.read_bytes() == data
    assert any(str(aside) in notice for notice in desk.task.notices)
    assert "[working done] a\n" in desk.text
    assert not list(Path(desk.where.directory).glob(f"{files.TEMPORARY}*"))


# fault 73
def test_a_link_in_the_place_of_a_step_file_is_never_written_through(desk: Desk, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("untouched")
    file = Path(desk.where.directory, "b.md")
    file.unlink()
    file.symlink_to(outside)
    desk.task.note("b", "a note")
    assert outside.read_text() == "untouched"
    assert "a note" in file.read_text()
    assert not file.is_symlink()


def test_a_journal_deleted_under_its_writer_is_written_again_whole(desk: Desk) -> None:
    before = look(Paths(desk.where.directory)).snapshot.order
    Path(desk.where.journal).unlink()
    desk.run("c")
    assert not look(desk.where).lost  # not told by the face alone
    after = look(desk.where).snapshot
    assert after.order[: len(before)] == before
    assert after.steps["a"].status is StepStatus.DONE
    assert after.steps["c"].status is StepStatus.DONE
