"""The file layer: what it promises when the disk is full, fails, or somebody else touches the same file."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import hashlib
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kit import until

from orchestrator import files, locking, reading
from orchestrator.errors import Damaged, Exhausted, SyncFailed


class FailingOs:
    """`os` as files.py sees it, whose named calls fail; `write` takes `room` bytes first, as a full disk does."""

    def __init__(self, error: int, *calls: str, room: int | None = None) -> None:
        self._error, self._calls, self.room = error, calls, room

    def __getattr__(self, name: str) -> Any:
        if name in self._calls:
            return self._write if name == "write" and self.room is not None else self._fail
        return getattr(os, name)

    def _fail(self, *_args: Any, **_how: Any) -> Any:
        raise OSError(self._error, os.strerror(self._error))

    def _write(self, fd: int, data: bytes) -> int:
        assert self.room is not None
        if not self.room:
            self._fail()
        written = os.write(fd, bytes(data)[: self.room])
        self.room -= written
        return written


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    def fail(error: int, *calls: str, room: int | None = None) -> None:
        monkeypatch.setattr(files, "os", FailingOs(error, *calls, room=room))
        if "fdatasync" in calls:
            monkeypatch.setattr(files, "_datasync", files.os._fail)

    return fail


def temporaries(directory: Path) -> list[str]:
    return [name for name in os.listdir(directory) if name.startswith(files.TEMPORARY)]


# -- appending -----------------------------------------------------------------------------------------------------


def test_a_line_cut_short_by_a_full_disk_is_taken_out_again(tmp_path, failing, monkeypatch):
    """Half a line would make the next one unreadable as well."""
    file = files.SyncedFile(str(tmp_path / "journal"))
    file.append(b"first\n", sync=True)
    failing(errno.ENOSPC, "write", room=3)
    with pytest.raises(OSError, match="short write") as short:
        file.append(b"second\n", sync=True)
    assert short.value.errno == errno.ENOSPC
    with pytest.raises(OSError, match="No space left"):
        file.append(b"second\n", sync=True)
    assert (tmp_path / "journal").read_bytes() == b"first\n"
    monkeypatch.setattr(files, "os", os)
    file.append(b"third\n", sync=True)  # room was made
    assert (tmp_path / "journal").read_bytes() == b"first\nthird\n"
    file.close()


def test_a_line_that_could_not_be_taken_out_again_ends_all_writing(tmp_path, failing, monkeypatch):
    file = files.SyncedFile(str(tmp_path / "journal"))
    failing(errno.EIO, "write", "ftruncate", room=3)
    with pytest.raises(OSError, match="short write"):
        file.append(b"second\n", sync=True)
    monkeypatch.setattr(files, "os", os)
    with pytest.raises(SyncFailed):
        file.append(b"third\n", sync=False)
    file.close()


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC, errno.EDQUOT])
def test_after_a_failed_sync_no_later_success_is_believed(tmp_path, failing, monkeypatch, error):
    """The kernel may drop the page and report the next sync as good: a commit would be told that is not on the disk."""
    file = files.SyncedFile(str(tmp_path / "journal"))
    datasync = files._datasync
    failing(error, "fdatasync")
    with pytest.raises(SyncFailed, match="not known to be on the disk") as failed:
        file.append(b"first\n", sync=True)
    assert "mend the disk" in str(failed.value.hint)
    monkeypatch.setattr(files, "_datasync", datasync)
    for sync in (True, False):
        with pytest.raises(SyncFailed, match="an earlier sync failed") as refused:
            file.append(b"second\n", sync=sync)
        assert "mend the disk" in str(refused.value.hint)
    file.close()
    assert b"second" not in (tmp_path / "journal").read_bytes()


@pytest.mark.parametrize("what", ["deleted", "replaced", "a directory", "a link to itself"])
def test_a_journal_taken_away_by_an_agent_is_noticed(tmp_path, what):
    path, aside = tmp_path / "journal", tmp_path / "aside"
    file = files.SyncedFile(str(path))
    file.append(b"first\n", sync=True)
    assert file.in_place()
    path.rename(aside)
    if what == "replaced":
        path.write_bytes(aside.read_bytes())
    elif what == "a directory":
        path.mkdir()
    elif what == "a link to itself":
        path.symlink_to(aside)
    assert not file.in_place()
    file.close()


def test_a_closed_file_takes_nothing_that_another_descriptor_would_get(tmp_path):
    file = files.SyncedFile(str(tmp_path / "journal"))
    file.close()
    file.close()  # nor does another close of it close that one
    with (tmp_path / "other").open("wb"), pytest.raises(SyncFailed):  # it has the number of the closed one
        file.append(b"line\n", sync=False)
    assert (tmp_path / "other").read_bytes() == b""


@pytest.mark.parametrize(
    "append", [files.append, lambda p, d: files.append(p, d, sync=True), lambda p, d: files.SyncedFile(p)], ids="abc"
)
def test_nothing_is_appended_through_a_link_or_to_a_fifo_that_nobody_reads(tmp_path, append):
    (tmp_path / "link").symlink_to(tmp_path / "outside")
    os.mkfifo(tmp_path / "fifo")
    for name in ("link", "fifo"):
        with pytest.raises(OSError, match=r"symbolic links|No such device"):
            append(str(tmp_path / name), b"x")
    assert not (tmp_path / "outside").exists()


def test_a_long_text_is_appended_whole_though_the_system_takes_it_in_pieces(tmp_path, monkeypatch):
    pieces = FailingOs(0)
    pieces.write = lambda fd, data: os.write(fd, bytes(data)[:7])  # type: ignore[attr-defined]
    monkeypatch.setattr(files, "os", pieces)
    files.append(str(tmp_path / "step.md"), b"0123456789" * 10)
    files.append(str(tmp_path / "step.md"), b"0123456789" * 10, sync=True)
    assert (tmp_path / "step.md").read_bytes() == b"0123456789" * 20


def test_what_is_appended_is_synced_for_who_asks_and_for_nobody_else(tmp_path, monkeypatch):
    """An order that its giver believes in must be on the disk, and its file's name; a note need not wait for it."""
    synced: list[str] = []
    recording = FailingOs(0)
    recording.fsync = lambda fd: synced.append(os.readlink(f"/proc/self/fd/{fd}"))  # type: ignore[attr-defined]
    monkeypatch.setattr(files, "os", recording)
    files.append(str(tmp_path / "step.md"), b"note")
    assert synced == []
    files.append(str(tmp_path / "requests"), b"order", sync=True)
    files.sync_file(str(tmp_path / "step.md"))
    assert synced == [str(tmp_path / "requests"), str(tmp_path), str(tmp_path / "step.md")]


def test_a_log_goes_on_where_it_was_and_to_nowhere_when_it_cannot_be_had(tmp_path):
    (tmp_path / "log").write_bytes(b"before ")
    for path in (tmp_path / "log", tmp_path / "not there" / "log"):
        fd = files.open_log(str(path))
        assert os.write(fd, b"after") == 5
        os.close(fd)
    assert (tmp_path / "log").read_bytes() == b"before after"


def test_files_of_ours_can_be_read_by_others_and_run_by_nobody(tmp_path):
    mask = os.umask(0)
    try:
        files.append(str(tmp_path / "appended"), b"")
        files.replace(str(tmp_path / "replaced"), b"", sync=False)
    finally:
        os.umask(mask)
    assert [stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()] == [0o644, 0o644]


def test_too_many_open_files_are_said_to_be_that(tmp_path, failing, monkeypatch):
    failing(errno.EMFILE, "open")
    monkeypatch.setattr(reading, "os", files.os)
    for call in (files.SyncedFile, files.sync_file, files.lock_directory):
        with pytest.raises(Exhausted, match="too many files open"):
            call(str(tmp_path))


def test_no_call_leaves_a_descriptor_open_whether_it_succeeds_or_fails(tmp_path, failing, monkeypatch):
    """A supervisor makes thousands of them: it would end with too many files open, and others would keep a lock."""
    path = str(tmp_path / "task.md")

    def closed_twice() -> None:
        file = files.SyncedFile(path)
        file.close()
        file.close()

    before = os.listdir("/proc/self/fd")
    for error in (None, errno.EIO):
        if error is not None:
            failing(error, "write", "fsync", "rename")
            monkeypatch.setattr(fcntl, "flock", files.os._fail)
        for call in (
            closed_twice,
            lambda: files.append(path, b"x", sync=True),
            lambda: files.replace(path, b"x", sync=True),
            lambda: files.exchange(path, b"y", expected=b"x", sync=True),
            lambda: files.sync_file(path),
            lambda: files.sync_directory(str(tmp_path)),
            lambda: list(files.sweep(str(tmp_path))),
            lambda: os.close(files.lock_directory(str(tmp_path)) or -1),
        ):
            with contextlib.suppress(OSError):
                call()
            assert os.listdir("/proc/self/fd") == before


# -- replacing -----------------------------------------------------------------------------------------------------


REPLACING = {
    "replace": lambda path, data: files.replace(path, data, sync=True),
    "exchange": lambda path, data: files.exchange(path, data, expected=b"old", sync=True),
}


@pytest.mark.parametrize("write", REPLACING)
@pytest.mark.parametrize("call", ["open", "write", "short write", "fsync", "rename"])
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO], ids=lambda e: errno.errorcode[e])
def test_a_failed_replacement_leaves_the_old_content_and_nothing_beside_it(
    tmp_path, failing, monkeypatch, write, call, error
):
    path = tmp_path / "task.md"
    path.write_bytes(b"old")
    if call == "rename":
        monkeypatch.setattr(files, "_swap", lambda *_: False)  # a file system that cannot exchange names
    failing(error, call.removeprefix("short "), room=3 if call == "short write" else None)
    with pytest.raises(OSError, match=os.strerror(error)):
        REPLACING[write](str(path), b"new content")
    assert path.read_bytes() == b"old"
    assert temporaries(tmp_path) == []


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO, errno.EROFS], ids=lambda e: errno.errorcode[e])
def test_an_exchange_that_the_disk_does_not_take_throws_nothing_away(tmp_path, monkeypatch, error):
    """A plain rename in its place might succeed, over an edit that nobody has seen yet."""
    path = tmp_path / "task.md"
    path.write_bytes(b"an edit")
    monkeypatch.setattr(files, "_renameat2", lambda *_: ctypes.set_errno(error) or -1)
    with pytest.raises(OSError, match=os.strerror(error)) as failed:
        files.exchange(str(path), b"new", expected=b"old", sync=True)
    assert (failed.value.errno, failed.value.filename) == (error, str(path))
    assert path.read_bytes() == b"an edit"
    assert temporaries(tmp_path) == []


@pytest.mark.parametrize("write", REPLACING)
@pytest.mark.parametrize("swap", [True, False])
# fault 49
def test_a_replacement_is_synced_before_its_rename_and_its_name_after(tmp_path, monkeypatch, write, swap):
    """Else a power cut leaves an empty task.md, or the old one after the new was announced."""
    calls: list[str] = []
    recording = FailingOs(0)
    recording.fsync = lambda fd: calls.append("sync " + os.readlink(f"/proc/self/fd/{fd}"))  # type: ignore[attr-defined]
    recording.rename = lambda a, b: (calls.append("rename"), os.rename(a, b))  # type: ignore[attr-defined]
    really = files._swap
    monkeypatch.setattr(files, "os", recording)
    monkeypatch.setattr(files, "_swap", lambda a, b: swap and (calls.append("rename") or really(a, b)))
    (tmp_path / "task.md").write_bytes(b"old")
    REPLACING[write](str(tmp_path / "task.md"), b"new")
    assert calls == [f"sync {tmp_path}/{files.TEMPORARY}task.md", "rename", f"sync {tmp_path}"]


def test_a_file_can_be_replaced_whatever_its_name(tmp_path):
    """Step files and results are named after steps: in any script, up to the longest name there can be."""
    for name in ("x" * 255, "字" * 85, "🧪" * 63, "-", " "):
        files.replace(str(tmp_path / name), b"first", sync=False)
        files.exchange(str(tmp_path / name), b"second", expected=b"first", sync=True)
        assert (tmp_path / name).read_bytes() == b"second"
    assert temporaries(tmp_path) == []


@pytest.mark.parametrize("left", ["file", "directory", "link"])
def test_what_a_killed_holder_left_at_the_temporarys_place_is_no_obstacle(tmp_path, left):
    path, temporary = tmp_path / "task.md", tmp_path / (files.TEMPORARY + "task.md")
    path.write_bytes(b"old")
    if left == "file":
        temporary.write_bytes(b"torn")
    elif left == "link":
        temporary.symlink_to(path)
    else:
        temporary.mkdir()
        (temporary / "somebody's").write_text("kept")
    files.replace(str(path), b"new", sync=True)
    assert path.read_bytes() == b"new"
    assert [content for _, content in files.sweep(str(tmp_path))] == ([b"torn"] if left == "file" else [])
    assert temporaries(tmp_path) == []
    if left == "directory":
        assert (tmp_path / "task.md.damaged-replaced" / "somebody's").read_text() == "kept"


# -- exchanging ----------------------------------------------------------------------------------------------------


def test_an_edit_saved_since_the_last_look_is_handed_back_and_not_lost(tmp_path):
    path = tmp_path / "task.md"
    path.write_bytes(b"edited by a person")
    assert files.exchange(str(path), b"ours", expected=b"as we wrote it", sync=False) == b"edited by a person"
    assert files.exchange(str(path), b"ours again", expected=b"ours", sync=True) == b"ours"
    assert path.read_bytes() == b"ours again"
    assert temporaries(tmp_path) == []


@pytest.mark.parametrize("pieces", [1, 2, 30])
def test_an_edit_still_being_saved_is_read_until_it_is_whole(tmp_path, monkeypatch, pieces):
    """One that never is does not hold up the worker for more than two seconds."""
    path = tmp_path / "task.md"
    path.write_bytes(b"half")
    saving = path.open("ab", buffering=0)
    naps: list[float] = []

    def nap(seconds: float) -> None:
        naps.append(seconds)
        if len(naps) <= pieces:
            saving.write(b"+")
        os.utime(saving.fileno(), (2**32, 2**32))  # just now, however slow this machine is

    os.utime(path, (2**32, 2**32))
    monkeypatch.setattr(files.time, "sleep", nap)
    assert files.exchange(str(path), b"ours", expected=b"x", sync=False) == b"half" + b"+" * min(pieces, 20)
    assert naps == [0.1] * min(pieces + 1, 20)
    saving.close()


def test_what_is_not_there_or_is_only_a_link_is_not_waited_for(tmp_path):
    assert files.unsettled_seconds(str(tmp_path / "none")) == 0
    (tmp_path / "file").write_bytes(b"")
    os.utime(tmp_path / "file", (2**32, 2**32))
    assert files.unsettled_seconds(str(tmp_path / "file")) == 0.1
    (tmp_path / "link").symlink_to("file")
    os.utime(tmp_path / "link", (1, 1), follow_symlinks=False)
    assert files.unsettled_seconds(str(tmp_path / "link")) == 0


def test_an_edit_that_cannot_be_read_when_it_is_displaced_is_set_aside_and_not_deleted(tmp_path, monkeypatch):
    path = tmp_path / "task.md"
    path.write_bytes(b"edited by a person")

    def closed(name: str) -> bytes:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), name)

    monkeypatch.setattr(files, "read", closed)
    assert files.exchange(str(path), b"ours", expected=b"x", sync=True) is None
    assert path.read_bytes() == b"ours"
    assert (tmp_path / "task.md.damaged-replaced").read_bytes() == b"edited by a person"
    assert temporaries(tmp_path) == []


def test_an_edit_that_the_disk_does_not_give_back_stays_for_the_next_holder(tmp_path, monkeypatch):
    path = tmp_path / "task.md"
    path.write_bytes(b"edited by a person")

    def no_answer(name: str) -> bytes:
        raise OSError(errno.EIO, os.strerror(errno.EIO), name)

    monkeypatch.setattr(files, "read", no_answer)
    with pytest.raises(OSError, match="Input/output"):
        files.exchange(str(path), b"ours", expected=b"x", sync=True)
    monkeypatch.undo()
    assert [content for _, content in files.sweep(str(tmp_path))] == [b"edited by a person"]


def test_an_edit_displaced_when_the_disk_fails_stays_for_the_next_holder(tmp_path, monkeypatch):
    path = tmp_path / "task.md"
    path.write_bytes(b"edited by a person")

    def fails(_directory: str) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(files, "sync_directory", fails)
    with pytest.raises(OSError, match="Input/output"):
        files.exchange(str(path), b"ours", expected=b"x", sync=True)
    assert [content for _, content in files.sweep(str(tmp_path))] == [b"edited by a person"]


def test_an_edit_left_by_a_killed_holder_is_not_deleted_by_who_writes_before_he_has_merged_it(tmp_path):
    path, left = tmp_path / "task.md", tmp_path / (files.TEMPORARY + "task.md")
    path.write_bytes(b"ours")
    left.write_bytes(b"an edit, displaced in the moment of the kill")
    for number in range(3):
        files.exchange(str(path), b"ours %d" % number, expected=b"x", sync=False)
    assert path.read_bytes() == b"ours 2"
    assert temporaries(tmp_path) == [left.name]
    assert left.read_bytes() == b"an edit, displaced in the moment of the kill"


def test_an_edit_that_was_whole_long_ago_holds_nobody_up(tmp_path, monkeypatch):
    """Each wait is one of the whole worker: nothing else of it goes on meanwhile."""
    path = tmp_path / "task.md"
    path.write_bytes(b"edited by a person")
    os.utime(path, (1, 1))
    naps: list[float] = []
    monkeypatch.setattr(files.time, "sleep", naps.append)
    assert files.exchange(str(path), b"ours", expected=b"x", sync=False) == b"edited by a person"
    assert naps == []


def test_a_file_that_is_gone_is_made_and_displaces_nothing(tmp_path):
    assert files.exchange(str(tmp_path / "task.md"), b"ours", expected=None, sync=True) is None
    assert (tmp_path / "task.md").read_bytes() == b"ours"


@pytest.mark.parametrize("what", ["directory", "link", "fifo"])
def test_task_md_turned_into_something_else_is_replaced_again_and_again(tmp_path, what):
    path = tmp_path / "task.md"
    for round_ in range(2):
        path.unlink(missing_ok=True)
        if what == "directory":
            path.mkdir()
            (path / "inside").write_text(f"kept {round_}")
        elif what == "link":
            path.symlink_to(tmp_path / "elsewhere")
        else:
            os.mkfifo(path)
        assert files.exchange(str(path), b"ours", expected=b"x", sync=False) is None
        assert path.read_bytes() == b"ours"
        assert not path.is_symlink()
    assert temporaries(tmp_path) == []
    if what == "directory":
        assert sorted(p.read_text() for p in tmp_path.glob("task.md.*/inside")) == ["kept 0", "kept 1"]


def test_without_an_exchange_the_new_content_is_there_and_nothing_is_claimed(tmp_path, monkeypatch):
    monkeypatch.setenv("ORCHESTRATOR_WITHOUT", "exchange")
    (tmp_path / "task.md").write_bytes(b"old")
    assert files.exchange(str(tmp_path / "task.md"), b"ours", expected=b"x", sync=True) is None
    assert (tmp_path / "task.md").read_bytes() == b"ours"


def test_where_the_system_has_no_exchange_the_new_content_is_there_and_nothing_is_claimed(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "_renameat2", False)
    (tmp_path / "task.md").write_bytes(b"old")
    assert files.exchange(str(tmp_path / "task.md"), b"ours", expected=b"x", sync=True) is None
    assert (tmp_path / "task.md").read_bytes() == b"ours"
    assert temporaries(tmp_path) == []


def test_a_file_of_the_working_directory_is_exchanged_like_any_other(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "task.md").write_bytes(b"old")
    assert files.exchange("task.md", b"ours", expected=b"old", sync=True) == b"old"
    assert (tmp_path / "task.md").read_bytes() == b"ours"


def test_what_is_set_aside_gets_a_name_of_its_own(tmp_path):
    found = []
    for number in range(3):
        (tmp_path / "x").write_bytes(b"%d" % number)
        found.append(files.set_aside(str(tmp_path / "x"), "stamp"))
    assert found == [str(tmp_path / f"x.damaged-stamp{end}") for end in ("", "-2", "-3")]
    assert [Path(name).read_bytes() for name in found] == [b"0", b"1", b"2"]


def test_a_thousand_damaged_copies_or_temporaries_are_too_many_and_it_is_said_which(tmp_path):
    path = tmp_path / "task.md"
    path.write_bytes(b"old")
    for number in range(1, 1000):
        (tmp_path / ("task.md.damaged-x" + (f"-{number}" if number > 1 else ""))).touch()
        (tmp_path / (files.TEMPORARY + (f"{number}-" if number > 1 else "") + "task.md")).touch()
    with pytest.raises(Damaged, match=r"task\.md: a thousand damaged copies") as copies:
        files.set_aside(str(path), "x")
    with pytest.raises(Damaged, match=r"task\.md: a thousand temporaries") as left:
        files.replace(str(path), b"new", sync=False)
    assert [str(error.value.hint)[:6] for error in (copies, left)] == ["remove", "remove"]
    assert path.read_bytes() == b"old"


# -- reading -------------------------------------------------------------------------------------------------------


def make_odd(path: Path, kind: str) -> None:
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    elif kind == "socket":
        os.mknod(path, stat.S_IFSOCK | 0o600)
    else:
        path.symlink_to({"link": path.parent / "file", "device": "/dev/zero", "loop": path}[kind])


@pytest.mark.parametrize("kind", ["link", "loop", "device", "fifo", "directory", "socket"])
def test_what_is_no_file_is_damage_and_is_neither_followed_nor_waited_for(tmp_path, kind):
    (tmp_path / "file").write_bytes(b"somebody else's")
    make_odd(tmp_path / "odd", kind)
    with pytest.raises(Damaged, match="not a regular file"):
        files.read(str(tmp_path / "odd"))
    with pytest.raises(FileNotFoundError):  # and what is missing is not empty
        files.read(str(tmp_path / "none"))


def test_a_file_larger_than_can_be_true_is_not_read_into_memory(tmp_path):
    with (tmp_path / "huge").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(Damaged, match="more than can be true"):
        files.read(str(tmp_path / "huge"))


def test_a_file_that_grows_while_it_is_read_is_read_to_its_end(tmp_path):
    (tmp_path / "file").write_bytes(b"x" * 3_000_000)
    fd = os.open(tmp_path / "file", os.O_RDONLY)
    assert len(reading._read_all(fd, 1000)) == 3_000_000
    os.close(fd)
    assert files.read_tail(str(tmp_path / "file"), 10) == (b"x" * 10, 3_000_000)


def test_the_hash_of_an_output_is_that_of_its_bytes_and_a_directory_has_none(tmp_path):
    data = os.urandom(3_000_000)
    (tmp_path / "out").write_bytes(data)
    (tmp_path / "link").symlink_to("out")
    for name in ("out", "link"):
        assert files.sha256(str(tmp_path / name)) == (len(data), hashlib.sha256(data).hexdigest())
    with pytest.raises(OSError, match=r"[Dd]irectory"):
        files.sha256(str(tmp_path))


def test_an_output_that_is_a_fifo_does_not_hold_up_the_worker(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(OSError, match="not a regular file"):
        files.sha256(str(tmp_path / "fifo"))


# -- sweeping ------------------------------------------------------------------------------------------------------


def test_temporaries_of_a_killed_holder_are_swept_and_their_content_handed_over(tmp_path):
    (tmp_path / "task.md").write_bytes(b"ours")
    (tmp_path / (files.TEMPORARY + "task.md")).write_bytes(b"an edit, displaced in the moment of the kill")
    (tmp_path / (files.TEMPORARY + "dir")).mkdir()
    (tmp_path / (files.TEMPORARY + "link")).symlink_to("task.md")
    (tmp_path / "work.txt").write_bytes(b"the work's own")
    swept = list(files.sweep(str(tmp_path / "not there"), str(tmp_path), str(tmp_path / "not there")))
    assert [content for _, content in swept] == [b"an edit, displaced in the moment of the kill"]
    assert not os.path.exists(swept[0][0])
    assert (tmp_path / "task.md").read_bytes() == b"ours"
    assert (tmp_path / "work.txt").exists()


def test_a_temporary_that_vanishes_or_cannot_be_read_does_not_hide_the_edits_in_the_others(tmp_path, monkeypatch):
    names = [files.TEMPORARY + name for name in ("2-task.md", "3-task.md", "task.md")]
    for name in names:
        (tmp_path / name).write_bytes(name.encode())
    read = files.read

    def some(path: str) -> bytes:
        if path.endswith("3-task.md"):
            raise PermissionError(errno.EACCES, "closed to us", path)
        return read(path)

    monkeypatch.setattr(files, "read", some)
    found = []
    for path, content in files.sweep(str(tmp_path)):
        found.append(content.decode())
        os.unlink(path)  # as whoever merges it may do
    assert sorted(found) == [names[0], names[2]]
    assert (tmp_path / "3-task.md.damaged-replaced").read_text() == names[1]
    assert temporaries(tmp_path) == []


# -- the lock ------------------------------------------------------------------------------------------------------

_HOLD = """
import os, sys
from orchestrator import files
fd = files.lock_directory(sys.argv[1])
print("held" if fd is not None else "refused", os.get_inheritable(fd) if fd is not None else "", flush=True)
sys.stdin.read()
"""


def holder(path: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", _HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def test_of_two_processes_one_has_the_lock_until_it_dies(tmp_path):
    with holder(tmp_path) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "held False\n"
        assert files.lock_directory(str(tmp_path)) is None
        with holder(tmp_path) as second:
            assert second.communicate()[0].split() == ["refused"]
        first.kill()
        first.wait()
        lock = files.lock_directory(str(tmp_path))
    assert lock is not None
    os.close(lock)


async def test_a_worker_that_inherits_the_descriptor_holds_the_lock_after_its_starter(tmp_path):
    lock = files.lock_directory(str(tmp_path))
    assert lock is not None
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, pass_fds=(lock,)) as worker:
        os.close(lock)
        assert files.lock_directory(str(tmp_path)) is None
        worker.kill()
    found = await until(lambda: files.lock_directory(str(tmp_path)), "the lock is free")
    os.close(found)


def test_a_lock_that_fails_for_another_reason_is_not_taken_for_held(tmp_path, monkeypatch):
    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    before = os.listdir("/proc/self/fd")
    monkeypatch.setattr(fcntl, "flock", no_locks)
    with pytest.raises(OSError, match="No locks available"):
        files.lock_directory(str(tmp_path))
    assert os.listdir("/proc/self/fd") == before


def test_a_lock_held_for_a_moment_by_who_only_looks_is_waited_for_and_refuses_nobody(tmp_path, monkeypatch):
    held = files.lock_directory(str(tmp_path))
    assert held is not None
    assert files.lock_patiently(str(tmp_path), 0.0) is None
    monkeypatch.setattr(files.time, "sleep", lambda _: os.close(held))
    lock = files.lock_patiently(str(tmp_path))
    assert lock is not None
    os.close(lock)


def test_a_lock_that_is_not_given_back_is_waited_for_a_second_and_no_longer(tmp_path, monkeypatch):
    held = files.lock_directory(str(tmp_path))
    assert held is not None
    naps: list[float] = []

    class Clock:
        @staticmethod
        def monotonic() -> float:
            return sum(naps)

        sleep = staticmethod(naps.append)

    monkeypatch.setattr(locking, "time", Clock)
    assert files.lock_patiently(str(tmp_path), 0.0) is None
    assert naps == []
    assert files.lock_patiently(str(tmp_path)) is None
    assert sum(naps) == pytest.approx(1.0, abs=0.1)
    assert max(naps) <= 0.1
    os.close(held)


def test_the_lock_of_a_directory_that_is_none_any_more_is_not_taken(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError):
        files.lock_directory(str(tmp_path / "file"))
    with pytest.raises(NotADirectoryError):
        files.sync_directory(str(tmp_path / "file"))
    (tmp_path / "task").mkdir()
    flock = fcntl.flock

    def replaced(fd: int, how: int) -> None:
        (tmp_path / "task").rename(tmp_path / "moved")
        (tmp_path / "task").mkdir()
        flock(fd, how)

    before = os.listdir("/proc/self/fd")
    monkeypatch.setattr(fcntl, "flock", replaced)
    with pytest.raises(FileNotFoundError, match="replaced in this moment") as gone:
        files.lock_directory(str(tmp_path / "task"))
    assert gone.value.errno == errno.ENOENT
    assert os.listdir("/proc/self/fd") == before


def test_a_lock_refused_leaves_nothing_open(tmp_path):
    held = files.lock_directory(str(tmp_path))
    assert held is not None
    before = os.listdir("/proc/self/fd")
    assert files.lock_directory(str(tmp_path)) is None
    assert os.listdir("/proc/self/fd") == before
    os.close(held)
