"""The seams, each with its promise. One contract suite in the tests holds every implementation to it."""

from __future__ import annotations

from typing import Protocol

from orchestrator.core.model import Containment, Launch, WorkerExit
from orchestrator.core.snapshot import AttemptState


class Engine(Protocol):
    """Where workers run.

    Promise: when `wait` or `end` returns, nothing of that worker can still write to its workspace. `start` and `wait`
    are two calls, so that a coordinator can leave (its wait is cancelled) while its worker goes on, and another can
    wait for a worker it did not start.
    """

    def containment(self) -> Containment:
        """How the next worker's processes will be found. Asked before the attempt is recorded; makes nothing."""
        ...

    async def start(self, launch: Launch) -> None:
        """Start the worker; it holds `launch.lock_fd` from here on. Raises OSError when no process could be made."""
        ...

    async def wait(self, attempt: AttemptState) -> WorkerExit:
        """Return when the worker of this attempt has ended. Cancelling stops the waiting, never the worker."""
        ...

    async def end(self, attempt: AttemptState, grace_seconds: float) -> None:
        """End the worker and its tree: SIGTERM, grace, SIGKILL. Gone already is success.

        Raises Unkillable when something of it is still alive. Cancelling does not shorten the promise: it is shielded.
        """
        ...
