"""What all tests share: a root with an awkward name, a ledger outside the product, and the search for what was left."""

from __future__ import annotations

import os
import re
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import hypothesis
import psutil
import pytest
from small_disk import Disk

if TYPE_CHECKING:
    from desk import Desk

SESSION_VARIABLE = "ORCHESTRATOR_TEST_SESSION"
TOKEN_VARIABLE = "ORCHESTRATOR_TOKEN"


def _session(environment: Mapping[str, str]) -> str:
    """An id for this test session; a process of pytest-xdist adds its own name to the id of the whole."""
    if worker := environment.get("PYTEST_XDIST_WORKER"):
        return f"{environment[SESSION_VARIABLE]}.{worker}"
    return uuid.uuid4().hex


#: Set before any test runs and inherited by every worker (its environment passes ORCHESTRATOR_* through), so that a
#: process left behind can be told from one that another test session on this machine has started.
SESSION = os.environ[SESSION_VARIABLE] = _session(os.environ)

#: What a test writes where it makes both an attempt and a process of it itself. Whoever ends an attempt ends all that
#: carry its token, so a word that another test process uses at the same time would end that one's.
TOKEN = f"token of {SESSION}"

#: How long a process that is just dying may take before it counts as left behind.
GRACE_SECONDS = 5.0
POLL_SECONDS = 0.005
#: How long a condition is waited for before the test gives up. It proves nothing: it is long, for a machine under load.
PATIENCE_SECONDS = 120.0

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

    async def has(self, text: str, timeout: float = PATIENCE_SECONDS) -> None:
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


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Path]:
    """A fifo at which a step waits; whoever stands there at the end of the test is let go."""
    from kit import fifo  # which needs this module itself

    with fifo(tmp_path / "gate") as path:
        yield path


@pytest.fixture
def desk(root: Path) -> Iterator[Desk]:
    from desk import Desk

    found = Desk(root)
    yield found
    found.close()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    (tmp_path / "small disk").mkdir()
    disk = Disk(tmp_path / "small disk")
    yield disk
    disk.close()


def workers_of(session: str) -> list[psutil.Process]:
    """The living processes whose environment has a worker's token and this session's id, or that of a part of it."""
    return [process for process in psutil.process_iter() if process.pid != os.getpid() and _is_worker(process, session)]


def _is_worker(process: psutil.Process, session: str) -> bool:
    try:
        environment = process.environ()
        return (
            f"{environment.get(SESSION_VARIABLE)}.".startswith(f"{session}.")
            and TOKEN_VARIABLE in environment
            and process.status() != psutil.STATUS_ZOMBIE
        )
    except (psutil.Error, OSError):  # gone meanwhile, or another user's
        return False


@pytest.fixture
def find_workers() -> Callable[[str], list[psutil.Process]]:
    return workers_of


#: Whose tests share a set-up that is dear: one process of pytest-xdist has them all. The others go to any that is free.
TOGETHER = frozenset(f"tests/{name}.py" for name in ("test_house", "test_system_calls", "test_wheel"))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from xdist.scheduler import LoadScopeScheduling

    class BySetUp(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            module, _, _ = nodeid.partition("::")
            return module if module in TOGETHER else nodeid

    return BySetUp(config, log)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Twice the processors, for a test mostly waits for what it started; not more than a disk can sync for."""
    return min(2 * len(os.sched_getaffinity(0)), 8)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The slow ones first: one that began last would be waited for alone."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)


_left = pytest.StashKey[list[str]]()


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail the session when a worker outlives it; end what was left, so that no machine fills up with it.

    Where several processes test, the one that started them looks, for all of them, when they are through.
    """
    if hasattr(session.config, "workerinput"):
        return
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
