"""The work that the soak kills: a skill whose steps are of every form, by a script; what it did is logged outside.

A line of the log is `what|step|more`, one write each: `began`, `noted`, `raised`, `effect`, `returned` (the step's
value was handed to the skill: it is committed), `gave up` (it failed for good), `heard`. The soak adds `committed`,
`ordered` and `sent`.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import anyio
import dying
from skills_under_test import labour

from orchestrator import Done, Step, StepFailed, current_step

#: In the environment of a worker: the directory of its log, beside which it says in which operation it is.
VARIABLE = "ORCHESTRATOR_SOAK"
#: In the environment of a worker: a fault of the product to plant, so that the soak can be seen to find it.
FAULT = "ORCHESTRATOR_SOAK_FAULT"
KEYS = "abcd"
ROUNDS = 40_000  # of labour in a step; some 20 ms


class Log:
    def __init__(self, place: str | Path) -> None:
        self.path = Path(place, "log")

    def say(self, what: str, step: str = "", more: object = "") -> None:
        fd = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(fd, f"{what}|{step}|{more}\n".encode())
        finally:
            os.close(fd)

    def lines(self) -> list[tuple[str, str, str]]:
        try:
            whole, _, _torn = self.path.read_text("utf-8").rpartition("\n")
        except FileNotFoundError:
            return []
        return [(what, step, more) for what, step, more in (line.split("|", 2) for line in whole.splitlines())]

    def count(self, what: str, step: str) -> int:
        return sum(1 for line in self.lines() if line[:2] == (what, step))


class Recorder(dying.DyingLayer):
    """Says before and after each file operation which one it is; whoever is killed leaves the last word there."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._said = os.open(directory / "phase", os.O_WRONLY | os.O_CREAT, 0o644)

    def do(self, phase: str, act: Callable[[], Any], half: Callable[[], Any] | None = None) -> Any:
        self._say(f"in {phase}")
        result = act()
        self._say(f"after {phase}")
        return result

    def phase_of(self, operation: str, path: str) -> str:
        if os.path.basename(os.path.dirname(path)) == "results":
            path = "result"
        return super().phase_of(operation, path)

    def _say(self, text: str) -> None:
        os.pwrite(self._said, f"{os.getpid()} {text}".ljust(200).encode(), 0)


def value(label: str) -> Any:
    """What a step gives: a large one lies above the limit up to which results stand in the journal."""
    digest = hashlib.sha256(label.encode()).hexdigest()
    return digest * 2_000 if "large" in label else {"of": label, "digest": digest}


def digest(found: Any) -> str:
    return hashlib.sha256(repr(found).encode()).hexdigest()[:16]


def work(log: Log, step: Step | None = None) -> Any:
    """The inside of a step: it begins, thinks, notes, and gives what it has to give."""
    step = step or current_step()
    log.say("began", step.label, step.try_number)
    labour(ROUNDS // 2)
    step.note(f"thought about {step.label} in try {step.try_number}")
    log.say("noted", step.label, step.try_number)
    labour(ROUNDS // 2)
    return value(step.label)


async def _call(task: Any, log: Log, name: str, fn: Callable[..., Any], *args: Any, **more: Any) -> Any:
    key = more.get("key")
    label = f"{name} ({key})" if key else name
    found = await task.step(name, fn, *args, **more)
    log.say("returned", label, digest(found))
    return {label: digest(found)}


async def plain(task: Any, log: Log, name: str) -> Any:
    async def awaited(_text: str) -> Any:
        return work(log)

    return await _call(task, log, name, awaited, name)


async def large(task: Any, log: Log, name: str) -> Any:
    return await _call(task, log, name, lambda: work(log))


async def todo(task: Any, log: Log, name: str) -> Any:
    async for step in task.todo(name):
        step.result = work(log, step)
    log.say("returned", name, digest(value(name)))
    return {name: digest(value(name))}


async def together(task: Any, log: Log, name: str) -> Any:
    found: dict[str, Any] = {}

    async def awaited() -> Any:
        await anyio.lowlevel.checkpoint()
        return work(log)

    async def one(key: str) -> None:
        found.update(await _call(task, log, name, awaited if key < "c" else lambda: work(log), key=key))

    async with anyio.create_task_group() as group:
        for key in KEYS:
            group.start_soon(one, key)
    return {label: found[label] for label in sorted(found)}


async def flaky(task: Any, log: Log, name: str) -> Any:
    def twice_in_vain() -> Any:
        found = work(log)
        if log.count("raised", name) < 2:
            log.say("raised", name)
            raise ConnectionError("not yet")
        return found

    return await _call(task, log, name, twice_in_vain)


async def hopeless(task: Any, log: Log, name: str) -> Any:
    def never() -> None:
        work(log)
        raise ValueError("never")

    try:
        await task.step(name, never, retries=1)
    except StepFailed:
        log.say("gave up", name)
    return {name: "gave up"}


async def once(task: Any, log: Log, name: str) -> Any:
    def send() -> Any:
        found = work(log)
        log.say("effect", name)
        labour(ROUNDS)
        return found

    def check() -> Any:
        return Done(value(name)) if log.count("effect", name) else False

    return await _call(task, log, name, send, effect="once", check=check)


async def stumbles(task: Any, log: Log, name: str) -> Any:
    """Fails its task, until somebody has mended what it needs and said `retry`."""

    def needs() -> Any:
        found = work(log)
        if not log.path.with_name("mended").exists():
            raise LookupError("what it needs is not there")
        return found

    try:
        return await _call(task, log, name, needs, retries=0)
    except StepFailed:
        log.say("gave up", name)
        raise


Form = Callable[[Any, Log, str], Awaitable[dict[str, Any]]]
FORMS: Mapping[str, Form] = {
    form.__name__: form for form in (plain, large, todo, together, flaky, hopeless, once, stumbles)
}


def labels(name: str, form: str) -> list[str]:
    return [f"{name} ({key})" for key in KEYS] if form == "together" else [name]


def expected(script: list[str]) -> dict[str, str]:
    """What the task gives, however often it was killed."""
    found = {}
    for number, form in enumerate(script):
        for label in labels(f"{number} {form}", form):
            found[label] = "gave up" if form == "hopeless" else digest(value(label))
    return found


async def soaked(task: Any, place: str, script: list[str]) -> dict[str, Any]:
    log = Log(place)
    found: dict[str, Any] = {}
    await task.plan([f"{number} {form}" for number, form in enumerate(script[:2]) if form != "together"])
    for number, form in enumerate(script):
        found |= await FORMS[form](task, log, f"{number} {form}")
        for text in task.messages():
            log.say("heard", "", text)
    return found


def _plant(fault: str) -> None:
    """A fault of the product, in this worker."""
    from orchestrator.core.model import StepStatus
    from orchestrator.writer import TaskWriter

    record, store_result, commit = TaskWriter.record, TaskWriter._store_result, TaskWriter.commit

    def forgotten(self: TaskWriter, label: str, status: StepStatus, **fields: Any) -> None:
        if status is not StepStatus.DONE:
            return commit(self, label, status, **fields)
        state = self.snapshot.steps[label]
        state.status, state.result, state.open_run = status, fields.get("result"), None

    def another(self: TaskWriter, label: str, result: Any) -> dict[str, Any]:
        return store_result(self, label, "another" if "plain" in label else result)

    def and_a_temporary(self: TaskWriter, kind: str, *, sync: bool, **fields: Any) -> None:
        record(self, kind, sync=sync, **fields)
        if kind == "closed":
            place = Path(self.where.directory, "where nobody sweeps")
            place.mkdir(exist_ok=True)
            (place / ".orchestrator-tmp-left").touch()

    match fault:
        case "commits":
            TaskWriter.commit = forgotten  # type: ignore[method-assign]
        case "results":
            TaskWriter._store_result = another  # type: ignore[method-assign]
        case "temporaries":
            TaskWriter.record = and_a_temporary  # type: ignore[method-assign]


if VARIABLE in os.environ:
    dying.put_in_place(Recorder(Path(os.environ[VARIABLE])))
    _plant(os.environ.get(FAULT, ""))
