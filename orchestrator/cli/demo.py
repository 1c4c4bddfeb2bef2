"""The `demo` command: a real task, killed in the middle of a step, shown as it lies, recovered, and checked.

The verdict is computed from what is on disk after the kill and at the end; nothing in it is said because it should be
so.
"""

from __future__ import annotations

import os
import secrets
import signal
import sysconfig
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import anyio

from orchestrator import containment, identity, store
from orchestrator.cli.demo_screen import Screen
from orchestrator.cli.lockstep import hold_in_a_step
from orchestrator.cli.progress import Progress
from orchestrator.compose import Coordinator, resolve
from orchestrator.core import stepfile
from orchestrator.core.model import Announcement, Containment, Identity, StepStatus
from orchestrator.core.snapshot import AttemptState, Snapshot, StepState
from orchestrator.errors import UsageError
from orchestrator.store import Look, Paths, look
from orchestrator.watching import Watch

_SKILL = "orchestrator.skills.repo_report:repo_report"

#: How many steps are to be done before the kill.
_DONE_BEFORE = 2

#: How often it is looked whether the killed worker is gone.
_LOOK_SECONDS = 0.005

#: Of the report, so many lines are shown.
_HEAD_LINES = 15

Entry = Mapping[str, Any]


def run_demo(root: str | None, path: str | None) -> int:
    """Run the demonstration. Returns 0 only if every check held.

    root: where the task lies; None is a new temporary directory, which is kept. path: the tree to report on; None is
    the interpreter's own standard library. Raises UsageError when `path` is no directory.
    """
    tree = os.path.abspath(path or sysconfig.get_paths()["stdlib"])
    if not os.path.isdir(tree):
        raise UsageError(f"{tree} is no directory", "name a source tree: orchestrator demo --path DIR")
    place = root or os.path.join(tempfile.gettempdir(), f"orchestrator-demo-{secrets.token_hex(4)}")
    return anyio.run(_story, place, tree, Screen())


async def _story(root: str, tree: str, screen: Screen) -> int:
    screen.title(
        "Killed in the middle, and nothing lost",
        f"A skill of six steps reads {tree} and writes a report on it. Its worker process is killed with SIGKILL in "
        "the middle of a step; then the task is recovered.",
    )
    progress = Progress()
    screen.chapter("Start", f"export ORCHESTRATOR_ROOT={root}", f"orchestrator spawn repo_report --arg path={tree}")
    where, attempt = await _start(root, tree)
    assert attempt.identity is not None
    screen.say(f"{where.task_id}, worker process {attempt.identity.pid}")
    step = await _kill_in_the_middle(where, attempt, screen, progress)
    if step is None:
        screen.verdict(False, "The task ended before its worker could be killed: name a larger tree with --path.")
        return 1
    killed = _evidence(where)
    screen.chapter("What lies on the disk now", f"cat $ORCHESTRATOR_ROOT/{where.task_id}/task.md")
    screen.file(_text(where.task_md))
    screen.chapter("Recover", f"orchestrator recover {where.task_id}")
    said = await _recover(root, where, screen, progress)
    _show_the_end(where, said, screen)
    ended = _evidence(where)
    screen.chapter("What was run, by the journal", f"cat $ORCHESTRATOR_ROOT/{where.task_id}{Paths('').journal}")
    screen.table(("Step", "Begun", "Done", "By attempt"), [_row(ended, label) for label in ended.snapshot.order])
    found = list(_checks(where, attempt, step, killed, ended, said))
    screen.checks(found)
    good = all(holds for holds, _ in found)
    screen.verdict(good, _verdict(good, step, killed, ended))
    screen.say(f"All of it lies in {where.directory}", wrap=False)
    return 0 if good else 1


# -- what happens ------------------------------------------------------------------------------------------------


async def _start(root: str, tree: str) -> tuple[Paths, AttemptState]:
    """Spawn the task and leave it alone as soon as its worker runs: nobody will start it again."""
    spec = resolve(_SKILL, name=f"report on {os.path.basename(tree) or tree}", args={"path": tree})
    async with Coordinator(root) as coordinator:
        where = (await coordinator.spawn(spec)).where
        async with Watch(where.inner) as changes:
            while True:
                attempt = look(where).snapshot.attempt
                if attempt is not None and attempt.identity is not None:
                    if identity.alive(attempt.identity):
                        os.kill(attempt.identity.pid, signal.SIGSTOP)  # until we look at it step by step
                    return where, attempt
                await changes.next()


async def _kill_in_the_middle(
    where: Paths, attempt: AttemptState, screen: Screen, progress: Progress
) -> StepState | None:
    """Kill the worker with a step begun and not done, and return when its guard has ended what was left of it."""
    who = attempt.identity
    assert who is not None
    try:
        with screen.working() as working:

            def show(seen: Look) -> None:
                screen.lines(progress.lines(seen))
                working.update(_last_note(seen))

            step = await hold_in_a_step(where, who, after=_DONE_BEFORE, show=show)
    except BaseException:  # nobody looks after this worker: it must not outlive a demonstration that was broken off
        containment.end(Containment(attempt.token, attempt.cgroup))
        raise
    if step is None:
        return None
    screen.chapter("Kill", f"kill -KILL {who.pid}")
    if identity.alive(who):  # it is held, so this stays true until the signal
        os.kill(who.pid, signal.SIGKILL)
    await _gone(who, attempt.guard or who)
    note = _last_note(look(where))
    screen.say(
        f"Worker {who.pid} died in the middle of {step.label!r}"
        + (f"; the last that it noted there: {note}." if note else ".")
        + " Nobody looks after the task now."
    )
    return step


async def _gone(*processes: Identity) -> None:
    while any(map(identity.alive, processes)):  # noqa: ASYNC110 - they are no children of ours to wait for
        await anyio.sleep(_LOOK_SECONDS)


async def _recover(root: str, where: Paths, screen: Screen, progress: Progress) -> Announcement:
    async with Coordinator(root, orphans="stop") as coordinator:
        for found in await coordinator.recover([where.task_id]):
            screen.say(f"▶ {found.reason}" if found.action == "resumed" else f"{found.action}: {found.reason}")
        with screen.working() as working:
            async with anyio.create_task_group() as group:
                group.start_soon(_follow, where, screen, progress, working)
                said = await coordinator.attach(where.task_id).wait()
                group.cancel_scope.cancel()
        screen.lines(progress.lines(look(where)))
    return said


async def _follow(where: Paths, screen: Screen, progress: Progress, working: Any) -> None:
    async with Watch(where.directory) as changes:
        while True:
            seen = look(where)
            screen.lines(progress.lines(seen))
            working.update(_last_note(seen))
            await changes.next()
            await anyio.sleep(0.02)


def _last_note(seen: Look) -> str:
    """The last line noted in the step that runs now."""
    step = seen.snapshot.resume_point()
    if step is None or step.tries == 0:
        return ""
    lines = stepfile.notes_since_running(_text(seen.where.step(step.file))).split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


def _show_the_end(where: Paths, said: Announcement, screen: Screen) -> None:
    screen.say(f"announced: {said.summary}")
    if os.path.exists(where.step("report.md")):
        screen.chapter("The report begins", f"head -n {_HEAD_LINES} $ORCHESTRATOR_ROOT/{where.task_id}/report.md")
        screen.markdown("\n".join(_text(where.step("report.md")).splitlines()[:_HEAD_LINES]))
    if os.path.exists(where.retro):
        screen.chapter("The retrospect", f"cat $ORCHESTRATOR_ROOT/{where.task_id}/task-retro.md")
        screen.markdown(_text(where.retro))


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except FileNotFoundError:
        return ""


# -- what is proved ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Evidence:
    """What lies on disk at one moment: the journal, and of each file a finished step left, which one it is."""

    entries: tuple[Entry, ...]
    snapshot: Snapshot
    files: Mapping[str, tuple[int, int, int]]

    def begun(self, label: str) -> list[int]:
        """The places in the journal where a try of this step begins."""
        return [i for i, e in enumerate(self.entries) if e["kind"] == "running" and e["step"] == label]

    def done(self, label: str) -> list[int]:
        return [i for i, e in enumerate(self.entries) if _is_done(e) and e["step"] == label]


def _is_done(entry: Entry) -> bool:
    return bool(entry["kind"] == "commit" and entry["status"] == StepStatus.DONE)


def _evidence(where: Paths) -> _Evidence:
    entries = store.read_journal(where).entries
    files: dict[str, tuple[int, int, int]] = {}
    for entry in filter(_is_done, entries):
        name = entry["result"].get("file") if isinstance(entry.get("result"), dict) else None
        if name and os.path.exists(where.step(name)):
            found = os.stat(where.step(name))
            files[name] = (found.st_ino, found.st_mtime_ns, found.st_size)
    return _Evidence(entries, look(where).snapshot, files)


def _row(evidence: _Evidence, label: str) -> tuple[str, ...]:
    attempts = [evidence.entries[i]["run"].rpartition(".")[2] for i in evidence.begun(label)]
    ways = ["killed"] * (len(attempts) - 1) + ["done" if evidence.done(label) else "not done"]
    tries = ", ".join(f"{a}: {way}" for a, way in zip(attempts, ways, strict=False))
    return label, str(len(evidence.begun(label))), str(len(evidence.done(label))), tries


def _checks(
    where: Paths, first: AttemptState, step: StepState, killed: _Evidence, ended: _Evidence, said: Announcement
) -> Iterable[tuple[bool, str]]:
    labels = ended.snapshot.order
    before = [label for label in labels if killed.done(label)]
    again = [label for label in labels if ended.done(label) and ended.begun(label)[-1] > ended.done(label)[0]]
    kept = len(killed.entries)
    yield (
        len(before) >= _DONE_BEFORE and not killed.done(step.label),
        f"it was killed after {len(before)} finished steps",
    )
    yield not list(containment.marked(first.token)), "nothing of the killed worker is alive"
    yield (
        not again and all(len(ended.begun(label)) == 1 for label in before),
        "no finished step was begun again",
    )
    yield all(len(ended.done(label)) == 1 for label in labels), "every step was committed exactly once"
    yield len(ended.begun(step.label)) == 2, f"{step.label!r}, which was cut off, was begun twice"
    yield (
        ended.entries[:kept] == killed.entries,
        f"the journal's {kept} entries at the kill stand unchanged among {len(ended.entries)}",
    )
    yield (
        bool(killed.files) and all(ended.files.get(name) == found for name, found in killed.files.items()),
        f"files of finished steps were not touched: {', '.join(killed.files)}",
    )
    yield said.ok and ended.snapshot.end is not None, f"the task announced its end: {said.status}"
    yield (
        os.path.getsize(where.step("report.md")) > 0 if os.path.exists(where.step("report.md")) else False,
        "report.md is there",
    )


def _verdict(good: bool, step: StepState, killed: _Evidence, ended: _Evidence) -> str:
    if not good:
        return "Not every check held. The task's directory shows what happened."
    done = sum(map(_is_done, killed.entries))
    return (
        f"{done} steps were done when the worker died, and none of them was run again. Only {step.label!r}, which was "
        f"cut off, began anew; the {len(ended.snapshot.order) - done - 1} steps after it followed. The kill cost what "
        "had been done of that one step, and nothing else."
    )
