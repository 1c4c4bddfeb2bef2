"""A copy of the tree with an interpreter of its own, in which one change after another is tried.

The working tree is never touched. The copy is what its tests import and what their workers run: its interpreter does
not know the tree that the copy was made of.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shutil
import signal
import site
import subprocess
import sys
import time
import uuid
import venv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from mutants.changes import Mutant

_LEFT_OUT = shutil.ignore_patterns(
    ".git", ".venv", "__pycache__", "*.pyc", "build", "dist", ".hypothesis", ".*_cache", "task-*[0-9]", ".mutants*"
)
_SCRIPT = "#!{python}\nimport sys\nfrom orchestrator.cli.main import main\n\nsys.exit(main())\n"
#: Makes a file of a size that no test has here: a change that writes without end must not fill the machine.
_TOO_LARGE = "tests/test_files.py::test_a_file_larger_than_can_be_true_is_not_read_into_memory"
#: In the environment of all that a run starts, so that all of it can be found and ended.
MARK = "ORCHESTRATOR_MUTANT_RUN"
#: The libraries are there before pytest is: their own assertions are as they are written.
_REWRITE = "ignore::pytest.PytestAssertRewriteWarning"


@dataclass(frozen=True, slots=True)
class Run:
    """How the tests went: `code` as pytest has it, None when they took too long; the tests that failed, and why."""

    code: int | None
    failed: tuple[tuple[str, str], ...]
    seconds: float
    output: str


class Bench:
    """Tries changes, one at a time. A context manager: nothing of it is left behind."""

    def __init__(self, repository: Path, place: Path) -> None:
        self._place = place
        self.tree = place / "tree"
        shutil.copytree(repository, self.tree, ignore=_LEFT_OUT, symlinks=True)
        (self.tree / "workspaces").mkdir(exist_ok=True)
        self.python = self._interpreter()
        self._written = int(time.time())
        self._mark = uuid.uuid4().hex
        self._server = self._serve()

    def __enter__(self) -> Bench:
        return self

    def __exit__(self, *_error: object) -> None:
        self._server.terminate()
        self._server.communicate()
        self._end_what_was_started()
        shutil.rmtree(self._place, ignore_errors=True)

    def _interpreter(self) -> Path:
        environment = self._place / "venv"
        venv.EnvBuilder(with_pip=False, symlinks=True).create(environment)
        (packages,) = environment.glob("lib/python*/site-packages")
        # Paths behind these in .pth files of their own are not followed: the tree that we copied is none of them.
        (packages / "tree.pth").write_text("\n".join([str(self.tree), *site.getsitepackages()]) + "\n")
        program = environment / "bin" / "orchestrator"
        program.write_text(_SCRIPT.format(python=environment / "bin" / "python"))
        program.chmod(0o755)
        return environment / "bin" / "python"

    def _serve(self) -> subprocess.Popen[str]:
        ours = ("PYTHONPATH", "PYTEST_", "ORCHESTRATOR_")
        environment = {k: v for k, v in os.environ.items() if not k.startswith(ours)}
        return subprocess.Popen(
            [self.python, self.tree / "tests" / "mutants" / "server.py"],
            cwd=self.tree,
            env={**environment, "CI": "true"},  # property tests try the same examples
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # ^C is for us: we end it
        )

    def try_out(self, mutant: Mutant, tests: Sequence[str], seconds: float) -> Run:
        with self._changed(mutant):
            return self.run(tests, seconds)

    def run(self, tests: Sequence[str], seconds: float, *, first_failure: bool = True) -> Run:
        """Run these tests, up to the first that fails. All they started is gone on return."""
        self._mark, temporary = uuid.uuid4().hex, self._place / "tmp"
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        args = [
            "-q",
            "-p",
            "no:cacheprovider",
            "-W",
            _REWRITE,
            "--tb=short",
            "--basetemp",
            str(temporary / "pytest"),
            *tests,
        ]
        args += [f"--deselect={_TOO_LARGE}"]
        args[:0] = ["-x"] if first_failure else []
        if importlib.util.find_spec("xdist") is not None:
            args[:0] = ["-n0"]
        began = time.monotonic()
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        order = {
            "args": args,
            "env": {MARK: self._mark, "TMPDIR": str(temporary)},
            "seconds": seconds,
            "log": str(self._place / "log"),
        }
        print(json.dumps(order), file=self._server.stdin, flush=True)
        said = json.loads(self._server.stdout.readline())
        self._end_what_was_started()
        failed = tuple((test, why) for test, why in said["failed"])
        output = (self._place / "log").read_text("utf-8", "replace")
        return Run(said["code"], failed, time.monotonic() - began, output[-4000:])

    def _end_what_was_started(self) -> None:
        """End all that carries the mark, and what was given another environment but runs our interpreter."""
        end(self._mark, os.fsencode(self.python), spare=self._server.pid)

    @contextlib.contextmanager
    def _changed(self, mutant: Mutant) -> Iterator[None]:
        path = self.tree / mutant.path
        before = path.read_text()
        self._write(path, mutant.mutated)
        try:
            yield
        finally:
            self._write(path, before)

    def _write(self, path: Path, text: str) -> None:
        """Each with another time: what was compiled of the last one is not taken for it."""
        self._written += 2
        path.write_text(text)
        os.utime(path, (self._written, self._written))


def end(mark: str, program: bytes, *, spare: int) -> None:
    """End every process with this mark or of this program but one, until a look finds none."""
    wanted = f"{MARK}={mark}".encode()
    deadline = time.monotonic() + 10
    while (found := set(_started(wanted, program)) - {spare, os.getpid()}) and time.monotonic() < deadline:
        for pid in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)


def _started(mark: bytes, program: bytes) -> Iterator[int]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):
                if mark in _words(entry / "environ") or program == _words(entry / "cmdline")[0]:
                    yield int(entry.name)


def _words(path: Path) -> list[bytes]:
    return path.read_bytes().split(b"\0")


def place_for(number: int, parent: Path) -> Path:
    place = parent / f"copy-{number}"
    place.mkdir()
    return place


def fast_directory() -> str | None:
    """Where a sync costs nothing, if there is room; None for wherever temporaries lie."""
    memory = Path("/dev/shm")
    if sys.platform == "linux" and os.access(memory, os.W_OK) and shutil.disk_usage(memory).free > 4_000_000_000:
        return str(memory)
    return None
