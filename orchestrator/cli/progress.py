"""Commands that take their time: they show what happens while it happens."""

from __future__ import annotations

import json
from collections.abc import Iterator

import anyio
import anyio.to_thread
import click

from orchestrator import store
from orchestrator.cli.show import MARKS, cut
from orchestrator.compose import Coordinator, Handle
from orchestrator.core.lifecycle import WAITING
from orchestrator.core.model import Announcement, Outcome, StepStatus, TaskSpec
from orchestrator.core.told import StepState
from orchestrator.store import Look, Paths, look
from orchestrator.watching import Watch

#: Exit codes of commands that wait for a task's end.
_CODES = {Outcome.COMPLETED: 0, **dict.fromkeys(WAITING, 75)}


def exit_code(said: Announcement) -> int:
    return _CODES.get(Outcome(said.status), 1)


def tell(said: Announcement, as_json: bool) -> int:
    """Print an announcement; the exit code says whether the task completed."""
    if as_json:
        click.echo(json.dumps(store.announcement_to_json(said)))
        return exit_code(said)
    mark, colour = ("✔", "green") if said.ok else ("?", "yellow") if said.status in WAITING else ("✘", "red")
    click.echo(f"{click.style(mark, fg=colour)} {cut(said.name)}: {said.summary}  ({duration(said.seconds)})")
    if said.result:
        click.echo(f"  result: {said.result}")
    if said.hint:
        click.echo(f"  {said.hint}")
    return exit_code(said)


def duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s"


class Progress:
    """Lines about what changed since the last look. Times are those of the journal, whenever one began to look."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[StepStatus, int, bool]] = {}
        self._since: dict[str, float] = {}
        self._attempt = 0

    def lines(self, seen: Look) -> Iterator[str]:
        snapshot = seen.snapshot
        number = snapshot.attempt_number
        if number != self._attempt and number > 1:
            step = snapshot.resume_point()
            yield click.style(f"  ↻ attempt {number}, at {cut(step.label) if step else 'the end'}", fg="yellow")
        self._attempt = number
        for label in snapshot.order:
            state = snapshot.steps[label]
            now = (state.status, state.tries, state.error is not None)
            if self._seen.get(label) != now:
                self._seen[label] = now
                if state.status is not StepStatus.PENDING:
                    yield self._line(state)

    def _line(self, state: StepState) -> str:
        at = store.seconds_of(state.at) if state.at else 0.0
        runs = state.status is StepStatus.WORKING
        raised = runs and state.error is not None
        mark, colour = MARKS[StepStatus.FAILED if raised else state.status]
        took = ""
        if runs:
            self._since[state.label] = at
        elif state.label in self._since:
            took = f"  {duration(max(0.0, at - self._since[state.label]))}"
        again = f"  (try {state.tries})" if state.tries > 1 and runs else ""
        more = state.error.message if state.error else state.why
        said = f"  {cut(' '.join(more.split()), 100)}" if more else ""
        return (
            f"  {click.style(mark, fg=colour)} {cut(state.label)}{click.style(took + again + said, fg='bright_black')}"
        )


async def _follow(where: Paths, progress: Progress, *, err: bool) -> None:
    """Print what changes, for as long as it is let."""
    async with Watch(where.inner) as changes:
        while True:
            _print_changes(progress, await anyio.to_thread.run_sync(look, where), err=err)
            await changes.next()
            await anyio.sleep(0.02)  # many changes at once are one look


def _print_changes(progress: Progress, seen: Look, *, err: bool) -> None:
    for line in progress.lines(seen):
        click.echo(line, err=err)


async def _wait_showing(handle: Handle, *, err: bool) -> Announcement:
    progress = Progress()
    async with anyio.create_task_group() as group:
        group.start_soon(lambda: _follow(handle.where, progress, err=err))
        said = await handle.wait()
        group.cancel_scope.cancel()
    _print_changes(progress, look(handle.where), err=err)
    return said


def run_task(root: str, spec: TaskSpec, as_json: bool) -> int:
    task_id = ""

    async def main() -> Announcement:
        nonlocal task_id
        async with Coordinator(root, orphans="stop") as coordinator:
            handle = await coordinator.spawn(spec)
            task_id = handle.id
            click.echo(f"{click.style(cut(spec.name), bold=True)}  {handle.id}", err=True)
            return await _wait_showing(handle, err=True)

    try:
        said = anyio.run(main)
    except KeyboardInterrupt:
        click.echo(f"\nstopped; it goes on where it is: orchestrator recover {task_id}", err=True)
        return 130
    return tell(said, as_json)


def wait_for(root: str, task_id: str, timeout: float | None, as_json: bool) -> int:
    async def main() -> Announcement:
        return await Coordinator(root).wait(task_id, timeout)

    return tell(anyio.run(main), as_json)


def watch_task(root: str, task_id: str) -> int:
    async def main() -> Announcement:
        handle = Coordinator(root).attach(task_id)
        click.echo(f"{click.style(cut(look(handle.where).title), bold=True)}  {task_id}")
        return await _wait_showing(handle, err=False)

    return tell(anyio.run(main), False)


def cancel_task(root: str, task_id: str, as_json: bool) -> int:
    async def main() -> Announcement:
        return await Coordinator(root).cancel(task_id)

    said = anyio.run(main)
    if said.status == Outcome.CANCELLED:
        click.echo(json.dumps(store.announcement_to_json(said)) if as_json else f"cancelled {task_id}: {said.summary}")
        return 0
    if as_json:
        click.echo(json.dumps(store.announcement_to_json(said)))
    else:
        click.echo(f"{task_id} had ended already: {said.summary}")
    return 0
