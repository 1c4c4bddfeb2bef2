"""For tests through the command line: the real program in a process of its own, and the form of what it says."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

# sysexits.h
FAILED, USAGE, DATA, NO_INPUT, CANNOT_CREATE, IO, TEMPORARY = 1, 64, 65, 66, 73, 74, 75


class Said(NamedTuple):
    code: int
    out: str
    err: str

    def refuses(self, code: int, *words: str) -> None:
        """It says in one line what is wrong, in the next what to do, and nothing else; the exit code tells its kind."""
        assert self.out == ""
        self.ends_refusing(code, *words)
        assert len(self.err.splitlines()) == 2, self.err

    def ends_refusing(self, code: int, *words: str) -> None:
        """As `refuses`, behind what it had shown until then."""
        assert "Traceback" not in self.out + self.err
        what, todo = self.err.splitlines()[-2:]
        assert what.startswith("orchestrator: ")
        assert todo.startswith("  ")
        assert todo.strip()
        assert self.code == code, self
        assert not [word for word in words if word not in self.err], self.err

    def tells_failure(self, *words: str) -> None:
        """The job failed, not the program: its end is told, with the reason, and the exit code is 1."""
        assert "Traceback" not in self.out + self.err
        assert self.out.startswith("✘ "), self
        assert self.code == FAILED
        assert not [word for word in words if word not in self.out], self.out


class Cli:
    """`orchestrator --root ROOT …`, run in a directory of the test."""

    def __init__(self, cwd: Path, root: Path) -> None:
        self.cwd, self.root = cwd, root
        self.limits: Callable[[], None] | None = None  #: what the process does to itself before it begins

    def __call__(self, *words: str | Path, root: Path | None = None) -> Said:
        argv = [sys.executable, "-m", "orchestrator.cli.main", "--root", str(root or self.root), *map(str, words)]
        ended = subprocess.run(
            argv,
            cwd=self.cwd,
            env={**os.environ, "PYTHONWARNINGS": "error"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=300,
            preexec_fn=self.limits,
        )
        return Said(ended.returncode, ended.stdout.decode(), ended.stderr.decode())

    def tasks(self) -> list[Path]:
        """The tasks under the root. A beginning of one that was not finished would be there as well."""
        return sorted(self.root.iterdir()) if self.root.exists() else []

    def task(self) -> Path:
        (only,) = self.tasks()
        return only
