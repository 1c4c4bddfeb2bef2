"""Tasks that outlive the command that started them: a small supervisor process for each."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from orchestrator import files, recovery, store
from orchestrator.errors import Exhausted, NotRunning, OrchestratorError
from orchestrator.recovery import Recovery
from orchestrator.store import Paths
from orchestrator.strays import AtLarge

if TYPE_CHECKING:
    from subprocess import Popen

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
    supervisor(where, lock).returncode = 0  # it outlives us on purpose: Popen is not to warn that it still runs


def supervisor(where: Paths, lock: int) -> Popen[bytes]:
    """The same, for whoever waits for it."""
    import subprocess

    errors = files.open_log(where.supervisor_log)
    try:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "orchestrator.cli.supervisor", where.directory, str(lock)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            pass_fds=(lock,),
            start_new_session=True,
        )
    finally:
        os.close(errors)
        os.close(lock)


def recover_all(
    root: str, ids: Sequence[str], *, dry_run: bool, and_wait: bool, presume_dead: bool, as_json: bool
) -> int:
    """The `recover` command. 0 when nothing needs a person, 1 when a task is damaged or waits for a decision."""
    wheres = [store.paths(root, i) for i in ids] or [Paths(os.path.join(root, i)) for i in store.task_ids(root)]
    if not dry_run and not ids and wheres:
        from orchestrator import workspace

        workspace.sweep_staging(root)
    at_large = AtLarge.of(root) if wheres and not dry_run else None
    found = [_one(where, at_large, presume_dead) for where in wheres]
    open_ones = [w for w, said in zip(wheres, found, strict=True) if said.action in ("resumed", "alive", "damaged")]
    if not as_json:
        _print(found, root, dry_run)
    ends = _wait(open_ones, quiet=as_json) if and_wait else {}
    if as_json:
        click.echo(json.dumps([_json(said, ends.get(said.id)) for said in found]))
    if dry_run:
        return 0
    return max([int(any(said.action in ("damaged", "waits") for said in found)), *(code for code, _ in ends.values())])


def _json(said: Recovery, end: tuple[int, dict[str, Any] | None] | None) -> dict[str, Any]:
    told = {"id": said.id, "action": said.action, "step": said.step, "reason": said.reason}
    return told if end is None else {**told, "announcement": end[1]}


def _one(where: Paths, at_large: AtLarge | None, presume_dead: bool) -> Recovery:
    """One task; whatever is wrong with it never hides the others (fault 53). Without `at_large` it is a dry run."""
    try:
        if at_large is None:
            return recovery.inspect(where, presume_dead=presume_dead)
        said, lock = recovery.claim(where, at_large, presume_dead)
        if lock is not None and said.news:  # now: whoever asks next must not be told what was before them
            lock = _put_in_order(where, lock)
        if lock is not None:
            start_supervisor(where, lock)
        return said
    except Exhausted:
        raise
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
        text = f"{verb}{said.reason}" if said.action == "resumed" else f"{said.action:<9}  {said.reason}"
        mark = "✘" if said.action == "ended" and said.reason != "completed" else _MARKS.get(said.action, " ")
        retry = f": orchestrator retry {said.id}" if said.action == "ended" and said.reason == "failed" else ""
        click.echo(f"{mark} {said.id}  {text}{retry}")


def _wait(wheres: Sequence[Paths], *, quiet: bool) -> dict[str, tuple[int, dict[str, Any] | None]]:
    """Wait for the ends of all, and tell each as it comes: exit code and announcement, by task."""
    import anyio

    from orchestrator.cli.progress import exit_code, tell
    from orchestrator.compose import Coordinator

    ends: dict[str, tuple[int, dict[str, Any] | None]] = {}

    async def wait(where: Paths) -> None:
        try:
            said = await Coordinator(os.path.dirname(where.directory)).wait(where.task_id)
        except NotRunning:  # what keeps it from going on was said above
            ends[where.task_id] = (1, None)
            return
        except OrchestratorError as error:
            click.echo(f"orchestrator: {where.task_id}: {error}", err=True)
            ends[where.task_id] = (error.exit_code, None)
            return
        ends[where.task_id] = (exit_code(said), store.announcement_to_json(said))
        if not quiet:
            tell(said, False)

    async def wait_all() -> None:
        async with anyio.create_task_group() as group:
            for where in wheres:
                group.start_soon(wait, where)

    anyio.run(wait_all)
    return ends
