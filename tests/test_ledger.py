"""The journal's one writer: what it adds, what it keeps, and when what lies at its path is not its own any more."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from desk import Desk

from orchestrator import files, store
from orchestrator.core import journal
from orchestrator.core.reconcile import Ahead
from orchestrator.core.snapshot import fold
from orchestrator.errors import Held, SyncFailed
from orchestrator.ledger import Ledger

NOW, AT = 1_767_225_600.0, "2026-01-01T00:00:00.000Z"
NOTICE = "the journal had been removed or changed and was written again"


@pytest.fixture
def desk(desk: Desk) -> Desk:
    """One whose journal nobody has open."""
    desk.task.close()
    return desk


@pytest.fixture
def ledger(desk: Desk) -> Iterator[Ledger]:
    found = opened(desk)
    yield found
    found.close()


@pytest.fixture
def syncs(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files whose content was synced."""
    found: list[str] = []
    monkeypatch.setattr(files, "_datasync", lambda fd: found.append(os.readlink(f"/proc/self/fd/{fd}")))
    return found


def opened(desk: Desk) -> Ledger:
    lines = Path(desk.where.journal).read_bytes().splitlines(keepends=True)
    return Ledger(desk.where, lambda: NOW, lines, fold(store.read_journal(desk.where).entries))


def on_disk(desk: Desk) -> list[journal.Entry]:
    reading = store.read_journal(desk.where)
    assert (reading.torn, reading.damaged) == (0, ())
    return list(reading.entries)


def write(desk: Desk, *lines: tuple[str, int, str, dict[str, object]]) -> None:
    entries = [{"run": desk.where.task_id + run, "seq": seq, "kind": kind, **more} for run, seq, kind, more in lines]
    Path(desk.where.journal).write_bytes(b"".join(map(journal.encode, entries)))


# -- lines -----------------------------------------------------------------------------------------------------------


def test_each_line_says_whose_it_is_when_it_was_written_and_which_of_its_run_it_is(desk: Desk, ledger: Ledger) -> None:
    before, seq = on_disk(desk), ledger.snapshot.seq[ledger.run]
    assert ledger.entries() == before
    ledger.record("skill", sync=False, version="v")
    ledger.run = f"{desk.where.task_id}.2"
    ledger.record("attempt", sync=False, token="t")
    assert on_disk(desk) == ledger.entries()
    assert [{k: e[k] for k in ("run", "seq", "at", "kind")} for e in on_disk(desk)[len(before) :]] == [
        {"run": f"{desk.where.task_id}.1", "seq": seq + 1, "at": AT, "kind": "skill"},
        {"run": f"{desk.where.task_id}.2", "seq": 1, "at": AT, "kind": "attempt"},
    ]
    assert (ledger.snapshot.skill, ledger.snapshot.attempt_number) == ("v", 2)


def test_a_line_is_synced_for_who_asks(ledger: Ledger, syncs: list[str]) -> None:
    ledger.record("skill", sync=False)
    assert syncs == []
    ledger.record("skill", sync=True)
    assert syncs == [ledger.where.journal]


def test_a_holder_goes_on_in_the_run_of_the_newest_attempt_or_of_the_generation_that_came_after_it(desk: Desk) -> None:
    def run() -> str:
        ledger = opened(desk)
        ledger.close()
        return ledger.run.removeprefix(desk.where.task_id)

    assert run() == ".1"
    lines: list[tuple[str, int, str, dict[str, object]]] = [(".0", 1, "created", {})]
    for line, expected in (
        (None, ".0"),
        ((".1", 1, "attempt", {}), ".1"),
        ((".aaaa0000.3", 1, "rebuilt", {"generation": "aaaa0000", "attempt": 3, "after": ".1"}), ".aaaa0000.3"),
        ((".aaaa0000.4", 1, "attempt", {}), ".aaaa0000.4"),
    ):
        if line is not None:
            more = {**line[3], "after": desk.where.task_id + ".1"} if "after" in line[3] else line[3]
            lines.append((*line[:3], more))
        write(desk, *lines)
        assert run() == expected


def test_after_it_is_closed_nothing_is_added(desk: Desk, ledger: Ledger) -> None:
    before = on_disk(desk)
    ledger.close()
    with pytest.raises(SyncFailed):
        ledger.record("skill", sync=False)
    assert on_disk(desk) == before


# -- what was lost ---------------------------------------------------------------------------------------------------

DONE = ("commit", {"step": "c", "try": 1, "status": "done", "result": 1})


def test_what_is_taken_back_is_durable_by_one_sync_and_stays_in_its_run(
    desk: Desk, ledger: Ledger, syncs: list[str]
) -> None:
    before, run = on_disk(desk), ledger.run
    ledger.take_back(Ahead((DONE,), attempt=1, deaths=0))
    assert [(e["kind"], e["run"]) for e in on_disk(desk)[len(before) :]] == [("commit", run)]
    assert (ledger.snapshot.steps["c"].result, ledger.run) == (1, run)
    assert syncs == [desk.where.journal]


def test_attempts_and_deaths_that_were_lost_count_as_well(desk: Desk, ledger: Ledger, syncs: list[str]) -> None:
    before, old = on_disk(desk), ledger.run
    ledger.take_back(Ahead((DONE,), attempt=2, deaths=1))
    assert [e["kind"] for e in on_disk(desk)[len(before) :]] == ["rebuilt", "commit", "deaths"]
    generation = ledger.snapshot.generation
    assert len(bytes.fromhex(generation)) == 4
    assert ledger.run == f"{desk.where.task_id}.{generation}.2" != old
    again = fold(on_disk(desk))
    assert (again.attempt_number, again.deaths, again.ignored, again.steps["c"].result) == (2, 1, 0, 1)
    assert syncs == [desk.where.journal]


# -- what others do to it --------------------------------------------------------------------------------------------


def test_a_journal_taken_away_is_written_again_with_every_line(desk: Desk, ledger: Ledger) -> None:
    before, there, spec = on_disk(desk), os.listdir("/proc/self/fd"), Path(desk.where.spec)
    ledger.record("skill", sync=False)
    os.unlink(desk.where.journal)
    spec.write_text("changed by somebody since")
    for _ in range(2):
        ledger.record("skill", sync=False)
    assert on_disk(desk) == ledger.entries()
    assert [e["kind"] for e in on_disk(desk)[len(before) :]] == ["skill"] * 3
    assert ledger.notices == [NOTICE]
    assert os.listdir("/proc/self/fd") == there
    assert spec.read_text() == "changed by somebody since"
    assert sorted(os.listdir(desk.where.inner)) == ["journal.jsonl", "logs", "spec.yaml"]


@pytest.mark.parametrize("spec", [True, False])
def test_all_of_dot_task_taken_away_is_made_again_with_what_is_to_run_where_that_is_known(
    desk: Desk, spec: bool
) -> None:
    kept = Path(desk.where.spec).read_bytes()
    if not spec:
        os.unlink(desk.where.spec)
    ledger = opened(desk)
    files.remove_tree(desk.where.inner)
    ledger.record("skill", sync=False)
    ledger.close()
    assert on_disk(desk) == ledger.entries()
    assert sorted(os.listdir(desk.where.inner)) == ["journal.jsonl", *(["logs", "spec.yaml"] if spec else [])]
    assert not spec or Path(desk.where.spec).read_bytes() == kept


def test_what_somebody_made_of_the_journal_is_kept_beside_it(desk: Desk, ledger: Ledger) -> None:
    with open(desk.where.journal, "ab") as file:
        file.write(b"a line of somebody else\n")
    theirs = Path(desk.where.journal).read_bytes()
    ledger.record("skill", sync=False)
    assert on_disk(desk) == ledger.entries()
    aside = Path(f"{desk.where.journal}.damaged-2026-01-01T000000.000Z").read_bytes()
    assert aside.startswith(theirs)
    os.unlink(desk.where.journal)
    os.mkdir(desk.where.journal)
    ledger.record("skill", sync=False)
    assert on_disk(desk) == ledger.entries()


def test_a_workspace_that_was_moved_is_not_made_again_at_its_old_place(desk: Desk, ledger: Ledger) -> None:
    os.rename(desk.where.directory, desk.where.directory + "-moved")
    os.mkdir(desk.where.directory)
    with pytest.raises(FileNotFoundError, match="moved or removed") as gone:
        ledger.record("skill", sync=False)
    assert (gone.value.errno, gone.value.filename) == (errno.ENOENT, desk.where.directory)
    assert os.listdir(desk.where.directory) == []


@pytest.mark.parametrize(
    "lines, taken",
    [
        ([(".2", 1, "attempt", {})], True),
        ([(".1", 1, "attempt", {})], False),
        ([(".0", 1, "created", {})], False),
        ([(".aaaa0000.2", 1, "rebuilt", {"generation": "aaaa0000", "attempt": 2})], False),
    ],
    ids=["later", "same", "earlier", "of another generation"],
)
def test_a_journal_that_a_later_attempt_writes_is_not_ours_any_more(
    desk: Desk, ledger: Ledger, lines: list[tuple[str, int, str, dict[str, object]]], taken: bool
) -> None:
    os.unlink(desk.where.journal)
    write(desk, *lines)
    theirs = Path(desk.where.journal).read_bytes()
    if taken:
        with pytest.raises(Held, match=f"{desk.where.task_id} was taken over: attempt 2 writes") as held:
            ledger.record("skill", sync=False)
        assert f"orchestrator wait {desk.where.task_id}" in str(held.value.hint)
        assert Path(desk.where.journal).read_bytes() == theirs
    else:
        ledger.record("skill", sync=False)
        assert on_disk(desk) == ledger.entries()


# -- directories -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["nothing", "directory", "file", "link", "link to nothing"])
def test_a_directory_of_the_task_is_a_real_one_and_durable(
    ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    results, outside = Path(ledger.where.results), tmp_path / "outside"
    if what == "directory":
        results.mkdir()
    elif what == "file":
        results.write_text("somebody's")
    elif what.startswith("link"):
        results.symlink_to(outside)
        if what == "link":
            outside.mkdir()
    synced: list[str] = []
    monkeypatch.setattr(files, "sync_directory", synced.append)
    for _ in range(2):
        ledger.make(str(results))
        assert results.is_dir()
        assert not results.is_symlink()
    assert synced == ([] if what == "directory" else [ledger.where.directory])
    aside = os.path.lexists(f"{results}.damaged-replaced")
    assert aside is (what in ("file", "link", "link to nothing"))


def test_there_is_room_for_a_file_and_a_directory_in_its_place_is_kept_beside_it(ledger: Ledger) -> None:
    path = Path(ledger.where.results, "result.json")
    ledger.make_room(str(path))
    assert path.parent.is_dir()
    path.mkdir()
    (path / "inside").write_text("somebody's")
    ledger.make_room(str(path))
    assert not path.exists()
    assert Path(f"{path}.damaged-replaced", "inside").read_text() == "somebody's"
    for leave in (lambda: path.write_text(""), lambda: path.symlink_to(path.parent)):
        leave()
        ledger.make_room(str(path))
        assert os.path.lexists(path)
        path.unlink()
