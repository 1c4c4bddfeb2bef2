"""The commit log of a task while its lock is held."""

from __future__ import annotations

import errno
import os
import secrets
from typing import Any

from orchestrator import files
from orchestrator.core import journal, names
from orchestrator.core.reconcile import Ahead
from orchestrator.core.snapshot import Snapshot, fold
from orchestrator.errors import Damaged, Held
from orchestrator.store import Clock, Paths, timestamp


class Ledger:
    """The journal's one writer, and the fold of all that it holds."""

    def __init__(self, where: Paths, clock: Clock, lines: list[bytes], snapshot: Snapshot) -> None:
        self.where = where
        self.snapshot = snapshot
        self._clock = clock
        self._journal = files.SyncedFile(where.journal)
        self._lines = lines  # every line of the journal, in case it has to be written again
        self._spec = _kept(where.spec)
        self._home = files.identity(where.directory)
        self.run = self._newest_run()
        self.notices: list[str] = []

    def _newest_run(self) -> str:
        """The last attempt; none of a journal that lost lines, and counts under a new generation since."""
        last = self.snapshot.attempt
        if last is not None and last.run == self.snapshot.current:
            return last.run
        return self._run_of(self.snapshot.attempt_number)

    def _run_of(self, attempt: int) -> str:
        return names.run_id(self.where.task_id, attempt, self.snapshot.generation)

    def record(self, kind: str, *, sync: bool, **fields: Any) -> None:
        """Append one entry, and fold it in. With `sync` it and all before it are durable on return.

        Raises OSError or SyncFailed: then it does not count, and the holder has to stop.
        """
        entry = {
            "run": self.run,
            "seq": self.snapshot.seq.get(self.run, 0) + 1,
            "at": timestamp(self._clock()),
            "kind": kind,
            **fields,
        }
        line = journal.encode(entry)
        self._journal.append(line, sync=sync)
        self._lines.append(line)
        if not self._journal.in_place():
            self._write_journal_again()
        self.snapshot.apply(entry)

    def take_back(self, lost: Ahead) -> None:
        """Add the lines that the journal had lost, durably. Lost attempts count as well: no run id comes twice."""
        attempts_are_lost = lost.attempt > self.snapshot.attempt_number
        if attempts_are_lost:
            generation = secrets.token_hex(4)
            self.run = names.run_id(self.where.task_id, lost.attempt, generation)
            after = self.snapshot.current
            Ledger.record(self, "rebuilt", sync=False, generation=generation, attempt=lost.attempt, after=after)
        for kind, fields in lost.lines:
            Ledger.record(self, kind, sync=False, **fields)
        if attempts_are_lost and lost.deaths > self.snapshot.deaths:  # else the journal knows better
            Ledger.record(self, "deaths", sync=False, deaths=lost.deaths)
        self._journal.sync()

    def _write_journal_again(self) -> None:
        """Somebody deleted, replaced, cut or lengthened the journal while we hold it: what we know is the truth, write
        it whole, and keep what is there beside it.

        What the task runs is written again as well when all of `.task` is gone: nobody else knows it. When the whole
        workspace was moved or removed, what lies at its path now is not ours to write to.
        """
        if files.identity(self.where.directory) != self._home:
            raise FileNotFoundError(errno.ENOENT, "the workspace was moved or removed", self.where.directory)
        self._journal.close()
        self._check_not_replaced()
        self.make(self.where.inner)
        if os.path.lexists(self.where.journal):
            files.set_aside(self.where.journal, timestamp(self._clock()).replace(":", ""))
        files.replace(self.where.journal, b"".join(self._lines), sync=True)
        if self._spec is not None and not os.path.lexists(self.where.spec):
            files.replace(self.where.spec, self._spec, sync=True)
            self.make(self.where.logs)
        self._journal = files.SyncedFile(self.where.journal)
        self.notices.append("the journal had been removed or changed and was written again")

    def _check_not_replaced(self) -> None:
        """Raises Held when what is there has a line of a later attempt: then it is not ours any more (the fence)."""
        try:
            reading = journal.read(files.read(self.where.journal, files.JOURNAL_BYTES))
        except (Damaged, OSError) as error:
            files.check_answer(error)
            return
        there, ours = fold(reading.entries), self.snapshot
        if there.generation == ours.generation and there.attempt_number > ours.attempt_number:
            raise Held(
                f"{self.where.task_id} was taken over: attempt {there.attempt_number} writes its journal",
                f"wait for that: orchestrator wait {self.where.task_id}",
            )

    def entries(self) -> list[dict[str, Any]]:
        return [e for line in self._lines if (e := journal.decode(line[:-1])) is not None]

    def make(self, directory: str) -> None:
        """A directory of the task, durable, if it is not there."""
        if os.path.islink(directory) or os.path.isfile(directory):  # never through a link, and nothing thrown away
            files.set_aside(directory, "replaced")
        if not os.path.isdir(directory):
            files.make_directory(directory)
            files.sync_directory(os.path.dirname(directory))

    def make_room(self, path: str) -> None:
        """A place for a file, in a directory of the task: a directory that somebody made there is kept beside it."""
        self.make(os.path.dirname(path))
        if os.path.isdir(path) and not os.path.islink(path):
            files.set_aside(path, "replaced")

    def close(self) -> None:
        self._journal.close()


def _kept(path: str) -> bytes | None:
    """A file that nobody could write again; None when it is not there."""
    try:
        return files.read(path)
    except (Damaged, OSError):
        return None
