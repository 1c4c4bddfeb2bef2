"""What all tests share: a root with an awkward name, a ledger outside the product, and the search for what was left."""

from __future__ import annotations

import os
import re
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import anyio
import hypothesis
import psutil
import pytest

SESSION_VARIABLE = "ORCHESTRATOR_TEST_SESSION"
TOKEN_VARIABLE = "ORCHESTRATOR_TOKEN"

#: Set before any test runs and inherited by every worker (its environment passes ORCHESTRATOR_* through), so that a
#: process left behind can be told from one that another test session on this machine has started.
SESSION = os.environ[SESSION_VARIABLE] = uuid.uuid4().hex

#: How long a process that is just dying may take before it counts as left behind.
GRACE_SECONDS = 5.0
POLL_SECONDS = 0.005

hypothesis.settings.register_profile("house", deadline=None, derandomize="CI" in os.environ, print_blob=True)
hypothesis.settings.load_profile("house")


class Ledger:
    """A file outside the product to which steps append what they did: the product's own record proves nothing.

    A step appends whole lines, each in one write. `text` is looked for as whole words: "step 1" is not in "step 10".
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def lines(self) -> list[str]:
        """The lines written so far; a last one without its newline is not yet one."""
        try:
            whole, _, _torn = self.path.read_text("utf-8", errors="replace").rpartition("\n")
        except FileNotFoundError:
            return []
        return whole.splitlines()

    def count(self, text: str) -> int:
        """In how many lines `text` stands."""
        words = re.compile(rf"(?<!\S){re.escape(text)}(?!\S)")
        return sum(1 for line in self.lines() if words.search(line))

    async def has(self, text: str, timeout: float = 20) -> None:
        """Return as soon as `text` stands in the ledger; TimeoutError after `timeout` seconds, with what does."""
        deadline = time.monotonic() + timeout
        while not self.count(text):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{text!r} is not in the ledger after {timeout} s; it has: {self.lines()}")
            await anyio.sleep(POLL_SECONDS)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A directory for workspaces. Its name has spaces and a letter outside ASCII, as people's directories do."""
    path = tmp_path / "work spaces ü"
    path.mkdir()
    return path


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "ledger.txt")


def workers_of(session: str) -> list[psutil.Process]:
    """The living processes that carry a worker's token and this test session's id in their environment."""
    return [process for process in psutil.process_iter() if process.pid != os.getpid() and _is_worker(process, session)]


def _is_worker(process: psutil.Process, session: str) -> bool:
    try:
        environment = process.environ()
        return (
            environment.get(SESSION_VARIABLE) == session
            and TOKEN_VARIABLE in environment
            and process.status() != psutil.STATUS_ZOMBIE
        )
    except (psutil.Error, OSError):  # gone meanwhile, or another user's
        return False


@pytest.fixture
def find_workers() -> Callable[[str], list[psutil.Process]]:
    return workers_of


_left = pytest.StashKey[list[str]]()


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail the session when a worker outlives it; end what was left, so that no machine fills up with it."""
    psutil.wait_procs(workers_of(SESSION), timeout=GRACE_SECONDS)
    left = workers_of(SESSION)
    session.config.stash[_left] = [_describe(process) for process in left]
    for process in left:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue
    if left and session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    left = config.stash.get(_left, [])
    if left:
        terminalreporter.section("workers left behind by the tests (ended now)", red=True)
        for line in left:
            terminalreporter.line(line)


def _describe(process: psutil.Process) -> str:
    try:
        return f"{process.pid} {process.environ()[TOKEN_VARIABLE]} {' '.join(process.cmdline())[:200]}"
    except (psutil.Error, OSError, KeyError):
        return f"{process.pid} (ended while being described)"
