"""The worker kind `steps`: a checklist of commands as a skill. It uses the same handle as a skill of yours does."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from orchestrator import process
from orchestrator.core.model import Json, StepId, StepSpec, TaskSpec
from orchestrator.worker.skills import Skill
from orchestrator.worker.step import CommandFailed, CommandNotFound, Done, current_step
from orchestrator.worker.task import Task


def skill(spec: TaskSpec, cgroup: str | None) -> Skill:
    """The checklist of a spec as a skill. `cgroup` is the worker's, under which each command gets its own."""
    runner = _Runner(spec, cgroup)

    async def run_checklist(task: Task) -> Json:
        await task.plan(_ids(spec.steps))
        for step in spec.steps:
            await task.step(
                step.name,
                runner.command(task, step),
                list(step.run) or step.shell,
                effect=step.effect,
                retries=step.retries,
                check=runner.check(task, step) if step.check else None,
                outputs=step.outputs,
            )
        return {"outputs": [o for step in spec.steps for o in step.outputs]}

    return run_checklist


def _ids(steps: Sequence[StepSpec]) -> list[StepId]:
    counted: dict[str, int] = {}
    found = []
    for step in steps:
        counted[step.name] = counted.get(step.name, 0) + 1
        found.append(StepId(step.name, counted[step.name]))
    return found


class _Runner:
    def __init__(self, spec: TaskSpec, cgroup: str | None) -> None:
        self._spec = spec
        self._cgroup = cgroup
        self._numbers = itertools.count(1)

    def command(self, task: Task, step: StepSpec) -> Callable[[Any], Awaitable[Json]]:
        async def run_command(_argv: Any) -> Json:
            begun = time.monotonic()
            ended = await self._run(task, step, step.run or ("/bin/sh", "-c", str(step.shell)))
            handle = current_step()
            if ended.tail.strip():
                handle.note(f"Output{_where_cut(ended.tail)}:\n\n{_fenced(ended.tail)}")
            if ended.timed_out:
                raise TimeoutError(f"took longer than its timeout of {step.timeout:g} s{_last_line(ended.tail)}")
            if ended.code != 0:
                raise CommandFailed(_how(ended.code) + _last_line(ended.tail))
            return {"exit_code": 0, "seconds": round(time.monotonic() - begun, 3)}

        return run_command

    def check(self, task: Task, step: StepSpec) -> Callable[[Any], Awaitable[Done | bool | None]]:
        """The check command of a `once` step: exit code 0 says done, 1 not done, anything else unknown."""

        async def run_check(_argv: Any) -> Done | bool | None:
            ended = await self._run(task, step, step.check)
            if ended.timed_out or ended.code not in (0, 1):
                return None
            return Done({"exit_code": 0, "checked": True}) if ended.code == 0 else False

        return run_check

    async def _run(self, task: Task, step: StepSpec, argv: Sequence[str]) -> process.CommandExit:
        cwd = step.cwd or str(task.workspace)
        env = {**self._environment(task), **self._spec.env, **step.env}
        if process.find(argv[0], env, cwd) is None:
            raise CommandNotFound(f"there is no program {argv[0]!r} (PATH={env.get('PATH', '')})")
        return await process.run(
            argv,
            cwd=cwd,
            env=env,
            timeout=step.timeout,
            grace_seconds=self._spec.limits.grace_seconds,
            sink=lambda data: _to_log(data),
            cgroup=f"{self._cgroup}/step-{next(self._numbers)}" if self._cgroup else None,
        )

    def _environment(self, task: Task) -> Mapping[str, str]:
        said = {
            "ORCHESTRATOR_TASK": task.id,
            "ORCHESTRATOR_WORKSPACE": str(task.workspace),
            "ORCHESTRATOR_ATTEMPT": str(task.attempt),
        }
        if self._spec.source:
            said["ORCHESTRATOR_STEPS_DIR"] = os.path.dirname(self._spec.source)
        try:
            handle = current_step()
        except LookupError:  # a check runs between two tries
            return {**os.environ, **said}
        said |= {
            "ORCHESTRATOR_STEP": handle.label,
            "ORCHESTRATOR_TRY": str(handle.try_number),
            "ORCHESTRATOR_IDEMPOTENCY_KEY": handle.idempotency_key,
        }
        return {**os.environ, **said}


def _to_log(data: bytes) -> None:
    while data:
        data = data[os.write(1, data) :]


def _how(code: int) -> str:
    return f"exit code {code}" if code > 0 else f"ended by signal {-code}"


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return f": {lines[-1].strip()[:300]}" if lines else ""


def _where_cut(text: str) -> str:
    return " (its end)" if len(text.encode()) >= process.TAIL_BYTES else ""


def _fenced(text: str) -> str:
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{fence}text\n{text.rstrip()}\n{fence}"
