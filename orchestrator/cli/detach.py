"""Tasks that outlive the command that started them: a small supervisor process for each."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from orchestrator import files, recovery, store
from orchestrator.errors import OrchestratorError
from orchestrator.recovery import Recovery
from orchestrator.store import Paths

if TYPE_CHECKING:
    from orchestrator.core.model import TaskSpec

_MARKS = {"alive": "●", "resumed": "▶", "ended": "✔", "waits": "?", "failed": "✘", "cancelled": "✘", "damaged": "!"}


def spawn_detached(root: str, spec: TaskSpec) -> str:
    """Make the task and start its supervisor, which gets its lock. Returns the task's id."""
    from orchestrator import templates, workspace

    where, lock = workspace.create(root, spec, time.time, templates.read("task.md"))
    start_supervisor(where, lock)
    return where.task_id


def start_supervisor(where: Paths, lock: int) -> None:
    """Start the process that takes a task to its end, and hand it the lock; ours is closed."""
    import subprocess

    errors = files.open_log(where.supervisor_log)
    try:
        supervisor = subprocess.Popen(
            [sys.executable, "-P", "-m", "orchestrator.cli.supervisor", where.directory, str(lock)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            pass_fds=(lock,),
            start_new_session=True,
        )
        supervisor.returncode = 0  # it outlives us on purpose: Popen is not to warn that it still runs
    finally:
        os.close(errors)
        os.close(lock)


def recover_all(root: str, ids: Sequence[str], *, dry_run: bool, and_wait: bool, as_json: bool) -> int:
    """The `recover` command. 0 when nothing needs a person, 1 when a task is damaged or waits for a decision."""
    wheres = [store.paths(root, i) for i in ids] or [Paths(os.path.join(root, i)) for i in store.task_ids(root)]
    if not dry_run and not ids and wheres:
        from orchestrator import workspace

        workspace.sweep_staging(root)
    found = [_one(where, dry_run) for where in wheres]
    if and_wait:
        _wait(
            [where for where, said in zip(wheres, found, strict=True) if said.action in ("resumed", "alive", "damaged")]
        )
    if as_json:
        click.echo(json.dumps([{"id": r.id, "action": r.action, "step": r.step, "reason": r.reason} for r in found]))
    else:
        _print(found, root, dry_run)
    return 1 if any(r.action in ("damaged", "waits") for r in found) and not dry_run else 0


def _one(where: Paths, dry_run: bool) -> Recovery:
    """One task; whatever is wrong with it never hides the others (fault 53)."""
    try:
        if dry_run:
            return recovery.inspect(where)
        said, lock = recovery.claim(where)
        if lock is not None and said.news:  # now: whoever asks next must not be told what was before them
            lock = _put_in_order(where, lock)
        if lock is not None:
            start_supervisor(where, lock)
        return said
    except (OSError, OrchestratorError) as error:
        return recovery.failed(where, error)


def _put_in_order(where: Paths, lock: int) -> int | None:
    import anyio

    from orchestrator.compose import Coordinator

    return anyio.run(Coordinator(os.path.dirname(where.directory)).put_in_order, where, lock)


def _print(found: Sequence[Recovery], root: str, dry_run: bool) -> None:
    if not found:
        click.echo(f"no tasks in {root}")
    verb = "would be " if dry_run else ""
    for said in found:
        action = verb + said.action if said.action == "resumed" else said.action
        click.echo(f"{_MARKS.get(said.action, ' ')} {said.id}  {action:<9}  {said.reason}")


def _wait(wheres: Sequence[Paths]) -> None:
    import anyio

    from orchestrator.compose import Coordinator

    async def wait_all() -> None:
        for where in wheres:
            coordinator = Coordinator(os.path.dirname(where.directory))
            try:
                await coordinator.wait(where.task_id)
            except OrchestratorError as error:
                click.echo(f"orchestrator: {where.task_id}: {error}", err=True)

    anyio.run(wait_all)
