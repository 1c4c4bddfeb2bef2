"""The composition root: names an engine and joins it to the coordinator. Every door comes through here."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Literal

import anyio.to_thread

from orchestrator import adoption, coordinator, templates
from orchestrator.config import from_environment
from orchestrator.coordinator import Handle
from orchestrator.core.model import Announcement, Json, Limits, TaskSpec
from orchestrator.engines.local import LocalEngine
from orchestrator.resolving import Worker, installed_skills, resolve, unknown_skill


class Coordinator(coordinator.Coordinator):
    """Looks after the tasks under `root`; workers are processes of this machine.

    `async with Coordinator(root) as c: handle = await c.spawn(worker, name=…, args=…); said = await handle.wait()`.
    Leaving detaches: workers go on, and the next coordinator (or `orchestrator recover`) adopts them. With
    `orphans="stop"` they are stopped, and their tasks stay resumable.
    """

    def __init__(
        self, root: str | os.PathLike[str] | None = None, *, orphans: Literal["detach", "stop"] = "detach"
    ) -> None:
        config = from_environment(os.environ, os.fspath(root) if root is not None else None)
        super().__init__(config, LocalEngine(), orphans=orphans, template=templates.read("task.md"))

    async def spawn(
        self,
        worker: Worker | TaskSpec,
        *,
        name: str | None = None,
        args: Mapping[str, Json] | None = None,
        limits: Limits | None = None,
        env: Mapping[str, str] | None = None,
    ) -> Handle:
        """Make a task and start its worker; returns when the task is on disk and its worker is starting.

        Raises UnknownSkill or BadSpec before anything is made, RootUnusable or OSError when the disk takes nothing.
        """
        if not isinstance(worker, TaskSpec):
            worker = resolve(worker, name=name, args=args, limits=limits, env=env)
        return await super().spawn(worker)

    async def adopt_workspace(
        self,
        directory: str | os.PathLike[str],
        worker: Worker | TaskSpec | None = None,
        *,
        name: str | None = None,
        args: Mapping[str, Json] | None = None,
        limits: Limits | None = None,
        env: Mapping[str, str] | None = None,
        start: bool = True,
    ) -> Handle:
        """Take over a workspace that another tool of the protocol made, and go on at its first unfinished step.

        A directory of the root that has a task's id is adopted where it lies, any other is copied. `worker` runs the
        steps of its checklist that are not done, and gets None from those that are. One that has ended is adopted and
        not started. Raises as `adoption.adopt` does, UnknownSkill and BadSpec as `spawn`.
        """
        if worker is not None and not isinstance(worker, TaskSpec):
            worker = resolve(worker, name=name, args=args, limits=limits, env=env)
        found = await anyio.to_thread.run_sync(
            lambda: adoption.adopt(self.root, os.fspath(directory), worker, self._clock, name=name, start=start)
        )
        if found.lock is None:
            return self.attach(found.where.task_id)
        return await self.adopt(found.where, found.lock)


__all__ = ["Announcement", "Coordinator", "Handle", "Worker", "installed_skills", "resolve", "unknown_skill"]
