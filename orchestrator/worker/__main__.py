"""The worker process: `python -m orchestrator.worker '{…}'`. The guard is forked off before any heavy import."""

import contextlib
import json
import os
import sys
from typing import Any

from orchestrator import means
from orchestrator.worker import guard


def main() -> None:
    said = json.loads(sys.argv[1])
    workspace, attempt = said["workspace"], said["run"].rpartition(".")[2]
    logs = f"{workspace}/.task/logs/{attempt}"
    guard_pid = os.getpid()
    guard.enter(
        guard.Settings(
            said["run"],
            logs + ".out",
            logs + ".err",
            logs + ".end",
            said["output_bytes"],
            said["grace_seconds"],
            said["life_seconds"],
            said["cgroup"],
            means.has("subreaper"),
        )
    )
    # Made anew: what lies behind the descriptors has changed from a file to a pipe.
    sys.stdout = open(1, "w", buffering=1, encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115
    code = 70
    try:
        from orchestrator.worker import loop

        code = loop.run(workspace, said["run"], guard_pid, said["lock_fd"], said["cgroup"], _resolve)
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):  # the skill closed it
                stream.flush()
        os._exit(code)  # threads that a cancelled step left must not keep us


def _resolve(worker: Any, **more: Any) -> Any:
    """What a skill's `task.spawn` means by a worker; imported only for a skill that spawns."""
    from orchestrator import resolving

    return resolving.resolve(worker, **more)


main()
