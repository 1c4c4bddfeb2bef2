"""Runs pytest again and again in a copy of the tree: each time in a fork, which spares it the imports of the libraries.

One JSON object a line: {args, env, seconds} comes in, {code, failed} goes out; code is None for what took too long.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import resource
import select
import signal
import sys
import traceback
from typing import Any

import pytest

#: What a change that writes without end may cost: bytes of one file, and of memory.
FILE_BYTES = 1_300_000_000
MEMORY_BYTES = 6_000_000_000
_LIBRARIES = "_pytest.assertion.rewrite anyio click hypothesis psutil pydantic pytest_asyncio rich structlog yaml"


class Recorder:
    """Which tests failed, and with what words."""

    def __init__(self) -> None:
        self.failed: list[list[str]] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            said = str(crash.message if crash is not None else report.longrepr).strip() or report.when or ""
            self.failed.append([report.nodeid, said.splitlines()[0][:200] if said else ""])


def _child(order: dict[str, Any], answer: int) -> None:
    os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for number, limit in ((resource.RLIMIT_FSIZE, FILE_BYTES), (resource.RLIMIT_AS, MEMORY_BYTES)):
        hard = resource.getrlimit(number)[1]
        resource.setrlimit(number, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))
    nowhere, log = os.open(os.devnull, os.O_RDONLY), os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for source, target in ((nowhere, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    os.environ.update(order["env"])
    recorder = Recorder()
    code = int(pytest.main(order["args"], plugins=[recorder]))
    sys.stdout.flush()
    os.write(answer, json.dumps({"code": code, "failed": recorder.failed[:5]}).encode())


def _end(pid: int, *, leave: bool = False) -> None:
    for end in (os.killpg, os.kill):  # it may not have a group of its own yet
        with contextlib.suppress(ProcessLookupError, PermissionError):
            end(pid, signal.SIGKILL)
    if leave:
        os._exit(0)


def run(order: dict[str, Any]) -> dict[str, Any]:
    source, target = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(source)
            _child(order, target)
        except BaseException:  # nothing may leave a fork: above it stands the server's own loop
            traceback.print_exc()
        finally:
            os._exit(0)
    os.close(target)
    signal.signal(signal.SIGTERM, lambda *_: _end(pid, leave=True))
    ready, _, _ = select.select([source], [], [], order["seconds"])  # its end closes the pipe, if nothing else holds it
    said = os.read(source, 1 << 16) if ready else b""
    os.close(source)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _end(pid)
    os.waitpid(pid, 0)
    found: dict[str, Any] = json.loads(said) if said else {"code": None if not ready else -1, "failed": []}
    return found


def main() -> None:
    sys.path[0] = os.getcwd()
    for name in _LIBRARIES.split():
        importlib.import_module(name)
    for line in sys.stdin:
        print(json.dumps(run(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
