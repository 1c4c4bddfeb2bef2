"""The supervisor of one detached task: `python -m orchestrator.cli.supervisor WORKSPACE LOCK`."""

from __future__ import annotations

import os
import signal
import sys

import anyio

from orchestrator.compose import Coordinator
from orchestrator.errors import OrchestratorError
from orchestrator.store import Paths


async def _supervise(workspace: str, lock: int) -> None:
    await Coordinator(os.path.dirname(workspace)).supervise(Paths(workspace), lock)


def main() -> int:
    workspace, lock = sys.argv[1], int(sys.argv[2])
    os.set_inheritable(lock, False)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # as by SIGTERM: it may go at any moment, and has nothing to say
    try:
        anyio.run(_supervise, workspace, lock)
    except OrchestratorError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    except OSError as error:
        print(error, file=sys.stderr)
        return 74
    return 0


if __name__ == "__main__":
    sys.exit(main())
