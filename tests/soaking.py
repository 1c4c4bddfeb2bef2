"""Tasks under fire: each lives in a task group of its own, is killed, ordered about, edited, recovered, and judged.

What is done to a task is drawn from the seed and the task's number alone; what meets what, the machine decides.
"""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import kit
import soak_judge
import soaked_skills
from conftest import POLL_SECONDS
from soak_judge import Figures
from soaked_skills import Log

from orchestrator import Limits, files, holders, identity, store, workspace
from orchestrator.compose import resolve
from orchestrator.core.model import Announcement, Effect, Identity, StepSpec, TaskSpec

HERE = Path(__file__).parent
WHOM = (
    *("worker",) * 6,
    *("guard", "worker and guard") * 2,
    *("coordinator", "coordinator and worker", "coordinator and worker", "coordinator, worker and guard"),
)
ORDERS = ("redo", "redo", "pause", "send", "send", "edit: note", "edit: redo", "edit: done")
WAYS = ("command", "command for all", "command, killed", "program", "program for all", *("nobody",) * 4)
PYTHON_FORMS = ("plain", "large", "todo", "together", "flaky", "hopeless", "once")
SHELL_FORMS = ("plain", "flaky", "once", "output", "plain")

#: About how long the command `recover` takes.
COMMAND_SECONDS = 0.8
#: How long a task that is left alone may take to its end before it counts as lost.
PATIENCE_SECONDS = 180.0
#: How long a moment that was drawn is waited for; then the blow falls as it is.
MOMENT_SECONDS = 6.0
LEFT_SECONDS = 20.0


# -- what a task is to do --------------------------------------------------------------------------------------------


def python_script(luck: random.Random) -> list[str]:
    script = [luck.choice(PYTHON_FORMS) for _ in range(luck.randint(3, 7))]
    if luck.random() < 0.2:
        script.insert(luck.randrange(len(script)), "stumbles")
    return script


_BEGAN = (
    'echo "began|$ORCHESTRATOR_STEP|$ORCHESTRATOR_TRY" >> "$SOAK_LOG"; i=0; while [ $i -lt 3000 ]; do i=$((i+1)); done'
)
_SHELL = {
    "plain": "true",
    "output": "head -c 90000 /dev/zero | tr '\\0' 'x'; echo done > \"$ORCHESTRATOR_STEP.txt\"",
    "once": 'echo "effect|$ORCHESTRATOR_STEP|" >> "$SOAK_LOG"',
    "flaky": 'test "$(grep -c "^raised|$ORCHESTRATOR_STEP|" "$SOAK_LOG")" -ge 2 && exit 0;'
    ' echo "raised|$ORCHESTRATOR_STEP|" >> "$SOAK_LOG"; exit 1',
}


def shell_step(number: int, form: str) -> StepSpec:
    name = f"{number} {form}"
    step = StepSpec(name, shell=f"{_BEGAN}; {_SHELL[form]}")
    if form == "once":
        check = ("sh", "-c", f'grep -q "^effect|{name}|" "$SOAK_LOG"')
        return replace(step, effect=Effect.ONCE, check=check)
    return replace(step, outputs=(f"{name}.txt",)) if form == "output" else step


def task_spec(kind: str, script: list[str], place: Path, fault: str) -> TaskSpec:
    limits = Limits(deaths=1000)
    if kind == "steps":
        env = {"SOAK_LOG": str(Log(place).path)}
        steps = tuple(shell_step(number, form) for number, form in enumerate(script))
        return TaskSpec("soaked", "steps", "soak.yaml", steps=steps, env=env, limits=limits)
    env = {soaked_skills.VARIABLE: str(place), soaked_skills.FAULT: fault}
    skill = f"{soaked_skills.__file__}:soaked"
    return replace(resolve(skill, args={"place": str(place), "script": script}, env=env), limits=limits)


# -- one task --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Blow:
    """What is drawn beforehand: how far the journal is to grow, how much later, what then, and who goes on."""

    bytes: int
    seconds: float
    what: str
    whom: str
    way: str
    step: float


def blows(luck: random.Random) -> list[Blow]:
    return [
        Blow(
            luck.randrange(2500),
            luck.choice((0.0, luck.random() * 0.03)),
            luck.choice(("kill",) * 16 + ORDERS),
            luck.choice(WHOM),
            luck.choice(WAYS),
            luck.random(),
        )
        for _ in range(luck.randint(3, 10))
    ]


class Life:
    def __init__(self, soak: Soak, number: int) -> None:
        self.soak = soak
        self.number = number
        luck = random.Random(f"{soak.figures.seed}/{number}")
        self.kind = "python" if soak.fault else luck.choice(("python", "python", "steps"))
        self.script = (
            python_script(luck)
            if self.kind == "python"
            else [luck.choice(SHELL_FORMS) for _ in range(luck.randint(3, 6))]
        )
        self.begins = luck.choice(("command", "supervised", "queued"))
        self.blows = blows(luck)
        if soak.fault:  # it is to be met soon, and by whatever it is
            self.script = ["plain", "large", "together", "plain", "todo"]
            self.blows = [
                replace(blow, bytes=1500, what="kill", whom="worker", way="nobody") for blow in self.blows[:2]
            ]
        self.place = soak.place / f"{number:05d}"
        self.place.mkdir()
        self.log = Log(self.place)
        self.log.path.touch()
        self.notes: list[str] = []
        self.skipped: set[str] = set()
        self.ordered: set[str] = set()
        self.met = 0

    # -- its course --------------------------------------------------------------------------------------------

    async def run(self) -> None:
        await self.begin()
        try:
            for blow in self.blows:
                if self.soak.over:
                    break
                await self.moment(blow)
                await self.strike(blow) if blow.what == "kill" else await self.order(blow)
                await self.recover(self.way_after(blow), blow.step)
            problems = await self.to_the_end()
        except Exception as error:  # it is told with the task that met it, and the others go on
            problems = [f"{type(error).__name__}: {error}"]
        await self.judge(problems)

    async def begin(self) -> None:
        spec = task_spec(self.kind, self.script, self.place, self.soak.fault)
        root = str(self.soak.root)
        if self.begins == "supervised":
            where, supervisor = await anyio.to_thread.run_sync(kit.start_supervised, self.soak.root, spec)
            self.soak.ours.append(supervisor)
            self.where = where
            return
        self.where, lock = await anyio.to_thread.run_sync(workspace.create, root, spec, time.time)
        os.close(lock)
        if self.begins == "command":
            await self.recover("command")

    async def moment(self, blow: Blow) -> None:
        """Return when a worker is there and the journal has grown as drawn, or the task stands still."""
        wanted = files.size(self.where.journal) + blow.bytes

        def come() -> bool:
            if store.ended_by_tail(self.where) is not None:
                return True
            return files.size(self.where.journal) >= wanted and any(identity.alive(who) for _, who in self.workers())

        with contextlib.suppress(TimeoutError):
            await kit.until(come, "the moment", 60 if self.soak.fault else MOMENT_SECONDS)
        await anyio.sleep(blow.seconds)

    async def strike(self, blow: Blow) -> None:
        met = await anyio.to_thread.run_sync(self.kill, blow.whom)
        if not met:
            return
        self.met += 1
        worker = next((who for role, who in met if role in ("worker", "guard")), None)
        self.soak.figures.kills[self.phase(met) if worker else f"coordinator: {self.last_kind()}"] += 1
        self.soak.figures.killed[" and ".join(sorted({role for role, _ in met}))] += 1
        for label in kit.done_steps(self.where) - self.ordered:
            self.log.say("committed", label)

    def kill(self, whom: str) -> list[tuple[str, Identity]]:
        """SIGKILL, and wait until they are gone. Who was met."""
        wanted: list[tuple[str, Identity]] = []
        if "coordinator" in whom:
            wanted += [("coordinator", seen.who) for seen in holders.processes() if self.is_coordinator(seen)]
        wanted += [(role, who) for role, who in self.workers() if role in whom]
        met = [(role, who) for role, who in wanted if kit.kill(who)]
        deadline = time.monotonic() + MOMENT_SECONDS
        while any(identity.alive(who) for _, who in met) and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
        return met

    def workers(self) -> list[tuple[str, Identity]]:
        found = kit.identities(self.where)
        return list(zip(("worker", "guard"), found, strict=True)) if found else []

    def is_coordinator(self, seen: holders.Seen) -> bool:
        if holders.supervises(seen, self.where.directory):
            return True
        ids = [word for word in seen.argv if word.startswith("task-")]
        return (
            str(HERE / "soak_host.py") in seen.argv
            and str(self.soak.root) in seen.argv
            and (not ids or self.where.task_id in ids)
        )

    def phase(self, met: list[tuple[str, Identity]]) -> str:
        """Where the worker was: its own last word, or for want of that the last line of the journal."""
        worker = dict(self.workers()).get("worker")
        with contextlib.suppress(OSError, ValueError):
            pid, _, said = (self.place / "phase").read_text().strip().partition(" ")
            if worker is not None and int(pid) == worker.pid:
                return said
        return f"{self.last_kind()}: {'a command of it' if self.kind == 'steps' else 'before its skill'}"

    def last_kind(self) -> str:
        lines = store.last_lines(self.where)
        return str(lines[-1]["kind"]) if lines else "created"

    def way_after(self, blow: Blow) -> str:
        """Who goes on: where a coordinator was killed, more often than not somebody has to."""
        left_alone = blow.what == "kill" and "coordinator" in blow.whom and blow.step > 0.3
        return "command" if left_alone and blow.way == "nobody" else blow.way

    async def recover(self, way: str, how_far: float = 0.0) -> None:
        one = [] if way.endswith("all") else [self.where.task_id]
        if way == "command, killed":
            await self.killed_command(how_far * COMMAND_SECONDS, *one)
        elif way.startswith("command"):
            await self.command("recover", *one)
        elif way.startswith("program"):
            self.soak.program(*one)

    async def command(self, *words: str) -> bool:
        """The command line. Whether it said yes."""
        argv = [sys.executable, "-m", "orchestrator.cli.main", "--root", str(self.soak.root), *words]
        ended = await anyio.run_process(argv, check=False, start_new_session=True, stdin=subprocess.DEVNULL)
        if b"Traceback" in ended.stderr:
            raise AssertionError(f"{words}: {ended.stderr.decode()}")
        return ended.returncode == 0

    async def killed_command(self, seconds: float, *ids: str) -> None:
        """`recover` that is killed somewhere on its way: before it has claimed the task, or as it hands it over."""
        argv = [sys.executable, "-m", "orchestrator.cli.main", "--root", str(self.soak.root), "recover", *ids]
        command = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )
        self.soak.ours.append(command)
        await anyio.sleep(seconds)
        if command.poll() is None:
            command.kill()
            self.soak.figures.kills[f"command: {self.last_kind()}"] += 1
            self.soak.figures.killed["command"] += 1

    # -- orders and edits --------------------------------------------------------------------------------------

    async def order(self, blow: Blow) -> None:
        verb, _, how = blow.what.partition(": ")
        done = None
        match verb, how:
            case "pause", _:
                if await self.command("pause", self.where.task_id):
                    done = await self.command("continue", self.where.task_id)
            case "send", _:
                text = f"message {self.met} of {blow.bytes}"
                done = await self.command("send", self.where.task_id, text)
                if done and self.kind == "python":
                    self.log.say("sent", "", text)
            case "redo", _:
                done = await self.redo(blow, lambda step: self.command("redo", self.where.task_id, step))
            case _, "redo":
                done = await self.redo(blow, lambda step: self.edit(lambda text: _mark(text, step, "[redo]")))
            case _, "done":
                done = await self.done_by_hand(blow)
            case _:
                note = f"a thought of {blow.step}"
                done = await self.edit(lambda text: f"{text.rstrip()}\n\n{note}\n")
                self.notes += [note] if done else []
        if done:
            self.soak.figures.orders[blow.what] += 1

    async def redo(self, blow: Blow, give: Callable[[str], Any]) -> bool:
        done = sorted(kit.done_steps(self.where))
        if not done:
            return False
        step = done[int(blow.step * len(done))]
        self.ordered.add(step)
        self.log.say("ordered", step)
        return bool(await give(step))

    async def done_by_hand(self, blow: Blow) -> bool:
        """Say that a step of a checklist which has not begun was done by hand; a skill's would want a result."""
        if self.kind != "steps":
            return False
        steps = store.look(self.where).snapshot.steps.values()
        ahead = [s.label for s in steps if s.status == "pending" and "output" not in s.label and not s.tries]
        if not ahead:
            return False
        step = ahead[int(blow.step * len(ahead))]
        self.skipped.add(step)
        return await self.edit(lambda text: _mark(text, step, "[working done]"))

    async def edit(self, change: Callable[[str], str]) -> bool:
        """Read task.md, change it, and save it by rename, as editors do. False when it had changed meanwhile."""
        path = Path(self.where.task_md)
        before = path.read_text()
        new = self.place / "edited"
        new.write_text(change(before))
        if path.read_text() != before:
            return False
        os.rename(new, path)
        return True

    # -- its end -----------------------------------------------------------------------------------------------

    async def to_the_end(self) -> list[str]:
        """Recover it, and settle what it asks for, until it has completed. What kept it from that."""
        with anyio.move_on_after(PATIENCE_SECONDS):
            await self.recover("command")
            while True:
                said = await anyio.to_thread.run_sync(store.told, self.where)
                if said is not None and said.ok and not await self.has_news():
                    await kit.let_go(self.where)
                    return []
                problem = await self.go_on(said)
                if problem:
                    return [problem]
                await anyio.sleep(POLL_SECONDS)
        return [f"it has not ended in {PATIENCE_SECONDS:g} s: it is {store.look(self.where).state}"]

    async def has_news(self) -> bool:
        """Whether an edit or an order of ours is still to be taken over."""
        from orchestrator import recovery

        said = await anyio.to_thread.run_sync(recovery.inspect, self.where)
        return said.news or said.action not in ("ended", "alive")

    async def go_on(self, said: Announcement | None) -> str:
        """Do what the state asks of a person. What is wrong, when no person should have been asked."""
        status = said.status if said is not None else ""
        if status == "paused":
            await self.command("continue", self.where.task_id)
        elif status == "failed" and "stumbles" in self.script and not (self.place / "mended").exists():
            for number, form in enumerate(self.script):
                if form in ("stumbles", "hopeless"):
                    self.log.say("ordered", f"{number} {form}")
            (self.place / "mended").touch()
            await self.command("retry", self.where.task_id)
        elif said is not None and not said.ok:
            return f"it is {status}: {said.summary}"
        elif await anyio.to_thread.run_sync(store.lock_is_free, self.where):
            await self.recover("command")
        return ""

    async def judge(self, problems: list[str]) -> None:
        figures, lines = self.soak.figures, self.log.lines()
        again = soak_judge.entered_again(lines, in_order=self.kind == "steps") + soak_judge.tries_twice(lines)
        problems = problems or self.lost()
        temporaries, processes = await self.left()
        figures.tasks += 1
        figures.resumes += max(0, len(kit.entries(self.where, "attempt")) - 1)
        figures.steps += sum(1 for what, _, _ in lines if what == "began")
        figures.entered_again += len(again)
        figures.lost += len(problems)
        figures.temporaries += len(temporaries)
        figures.processes += len(processes)
        if any((again, problems, temporaries, processes)):
            self.soak.say_kept(self, again + problems + temporaries + processes)
        else:
            await anyio.to_thread.run_sync(self.soak.forget, self)

    def lost(self) -> list[str]:
        try:
            said = Path(self.where.supervisor_log)
            broken = [said.read_text()] if said.exists() and "Traceback" in said.read_text() else []
            lost = soak_judge.lost(self.where, self.log, self.script, notes=self.notes, skipped=self.skipped)
            return lost + broken
        except Exception as error:  # what cannot be read any more is lost as well
            return [f"{type(error).__name__}: {error}"]

    async def left(self) -> tuple[list[str], list[str]]:
        """Temporaries and processes that are there still when whoever cleans up has had his time, and was asked to."""
        await self.recover("command")  # a guard that was killed cleans up no more: the next who looks does
        with contextlib.suppress(TimeoutError):
            await kit.until(
                lambda: not any(soak_judge.left_behind(self.where)),
                "nothing is left",
                2 if self.soak.fault else LEFT_SECONDS,
            )
        return soak_judge.left_behind(self.where)


def _mark(text: str, step: str, tag: str) -> str:
    lines = text.split("\n")
    return "\n".join(f"{tag} {step}" if line.startswith("[") and line.endswith(f"] {step}") else line for line in lines)


# -- all of them -----------------------------------------------------------------------------------------------------


class Soak:
    """Keeps so many tasks at once going until its time is up."""

    def __init__(self, place: Path, figures: Figures, *, at_once: int, fault: str = "") -> None:
        self.place = place
        self.root = place / "root"
        self.root.mkdir()
        self.figures = figures
        self.fault = fault
        self.at_once = at_once
        self.over = False
        self.running = 0
        self.kept: list[str] = []
        self.ours: list[subprocess.Popen[Any]] = []

    async def run(self, seconds: float, tasks: int | None = None) -> None:
        deadline = time.monotonic() + seconds
        numbers = iter(range(10**9 if tasks is None else tasks))

        async def one_after_another() -> None:
            for number in numbers:
                self.running += 1
                await Life(self, number).run()
                self.running -= 1
                if self.over:
                    return

        async with anyio.create_task_group() as group:
            group.start_soon(self._tell, deadline)
            group.start_soon(self._end_at, deadline)
            async with anyio.create_task_group() as lives:
                for _ in range(self.at_once):
                    lives.start_soon(one_after_another)
            group.cancel_scope.cancel()
        await self._nothing_is_left()

    async def _end_at(self, deadline: float) -> None:
        await anyio.sleep(deadline - time.monotonic())
        self.over = True

    async def _tell(self, deadline: float) -> None:
        figures = self.figures
        while True:
            await anyio.sleep(PROGRESS_SECONDS)
            left = max(0.0, deadline - time.monotonic())
            print(
                f"  {left / 60:5.1f} min left: {figures.kills.total()} kills, {figures.tasks} tasks ended, "
                f"{self.running} under way; again {figures.entered_again}, lost {figures.lost}, "
                f"temporaries {figures.temporaries}, processes {figures.processes}",
                flush=True,
            )
            self.reap()

    async def _nothing_is_left(self) -> None:
        """Beside the tasks: no process that names the root, nothing in it that only a crash leaves."""
        self.reap()
        with contextlib.suppress(TimeoutError):
            await kit.until(lambda: not self.processes(), "no process is left", LEFT_SECONDS)
        for seen in self.processes():
            self.figures.processes += 1
            self.kept.append(f"process {seen.pid}: {seen.command}")
        programs = self.place / "programs.log"
        if programs.exists() and "Traceback" in programs.read_text():
            self.figures.lost += 1
            self.kept.append(f"{programs}: {programs.read_text()[-2000:]}")
        workspace.sweep_staging(str(self.root))
        left = [str(path) for path in self.root.glob(".orchestrator-*")]
        self.figures.temporaries += len(left)
        self.kept += left

    def processes(self) -> list[holders.Seen]:
        self.reap()
        return [seen for seen in holders.processes() if seen.belongs_to(str(self.root)) and seen.pid != os.getpid()]

    def program(self, *ids: str) -> None:
        argv = [sys.executable, str(HERE / "soak_host.py"), str(self.root), *ids]
        with open(self.place / "programs.log", "ab") as log:
            self.ours.append(
                subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
            )

    def reap(self) -> None:
        self.ours = [child for child in self.ours if child.poll() is None]

    def end_all(self) -> None:
        """End everything that was started here, whoever is its parent by now."""
        for _ in range(5):
            for seen in self.processes():
                kit.kill(seen.who)
            for child in self.ours:
                child.kill()
            self.reap()

    def say_kept(self, life: Life, problems: list[str]) -> None:
        self.kept.append(life.where.directory)
        print(
            f"✘ task {life.number} (seed {self.figures.seed}), kept: {life.where.directory}, its log: {life.log.path}",
            *(f"    {problem}" for problem in problems),
            sep="\n",
            flush=True,
        )

    def forget(self, life: Life) -> None:
        workspace.remove(str(self.root), life.where.task_id, lambda _where: True)
        files.remove_tree(str(life.place))


PROGRESS_SECONDS = 10.0
