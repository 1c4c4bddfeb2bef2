"""Edits of a task.md as people, agents and editors make them, and a bench on which a task is worked at meanwhile.

The bench runs the worker's own loop in this process, step by step; only the processes are left out.
"""

from __future__ import annotations

import os
import re
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
from anyio.abc import TaskGroup
from hypothesis import strategies as st

from orchestrator import identity, recovery, supervision, workspace
from orchestrator.core import lifecycle
from orchestrator.core.checklist import Checklist
from orchestrator.core.lifecycle import Start
from orchestrator.core.model import StepId, TaskSpec
from orchestrator.store import look
from orchestrator.takeover import continue_attempt
from orchestrator.worker import descriptors
from orchestrator.worker.loop import _Attempt
from orchestrator.writer import TaskWriter

STEPS = ("a", "b", "c", "b", "d (x)")
ASKED = [StepId(name, STEPS[:number].count(name)) for number, name in enumerate(STEPS, 1)]

TAGS = ["pending", "working", "working done", "failed", "skipped", "redo", "start done", "end", "done", "x"]
FORMS: list[Callable[[str, str], str]] = [
    lambda tag, name: f"[{tag}] {name}",
    lambda tag, name: f"[{tag.upper()}] {name}",
    lambda tag, name: f"[{tag.title()}]  {name}  ",
    lambda tag, name: f"【{tag}】{name}",
    lambda tag, name: f"- [{tag}] {name}",
    lambda tag, name: f"3. [{tag}] {name} <!-- looked at -->",
    lambda tag, name: f"- [x] {name}" if tag == "working done" else f"- [ ] {name}",
    lambda tag, name: f"\t［{tag}］ {name}",
]

Lines = list[str]
Edit = Callable[[Lines], Lines]


def at(lines: Lines, place: int) -> int:
    return place % (len(lines) + 1)


def insert(text: str, place: int) -> Edit:
    return lambda lines: [*lines[: at(lines, place)], text, *lines[at(lines, place) :]]


def change(place: int, how: Callable[[str], Lines]) -> Edit:
    """One line, changed into others."""

    def edit(lines: Lines) -> Lines:
        index = place % len(lines) if lines else 0
        return [*lines[:index], *(how(lines[index]) if lines else []), *lines[index + 1 :]]

    return edit


def swap(one: int, other: int) -> Edit:
    def edit(lines: Lines) -> Lines:
        found = list(lines)
        if found:
            i, j = one % len(found), other % len(found)
            found[i], found[j] = found[j], found[i]
        return found

    return edit


def retag(tag: str, form: Callable[[str, str], str]) -> Callable[[str], Lines]:
    def how(line: str) -> Lines:
        name = re.sub(r"^.*?[]】］]", "", line).strip()
        return [form(tag, name)] if name else [line]

    return how


_places = st.integers(0, 30)
_names = st.sampled_from(["a", "b", "c", "b (2)", "d (x)", "new", "new (2)", "neu ü", "a step of mine"])


def edits(notes: st.SearchStrategy[str]) -> st.SearchStrategy[Edit]:
    tags, forms = st.sampled_from(TAGS), st.sampled_from(FORMS)
    return st.one_of(
        st.builds(insert, notes, _places),
        st.builds(lambda t, f, n, p: insert(f(t, n), p), tags, forms, _names, _places),
        st.builds(lambda t, f, p: change(p, retag(t, f)), tags, forms, _places),
        st.builds(lambda t, p: change(p, retag(t, FORMS[0])), st.sampled_from(TAGS[:6]), _places),
        st.builds(lambda p: change(p, lambda line: []), _places),
        st.builds(lambda p: change(p, lambda line: [line, line]), _places),
        st.builds(lambda p, n: change(p, lambda line: [re.sub(r"(?<=\] ).*", n, line)]), _places, _names),
        st.builds(swap, _places, _places),
        st.builds(
            insert, st.sampled_from(["---", "```", "~~~", "> [redo] a", "<!--", "-->", "", "# Task: other"]), _places
        ),
        st.just(lambda lines: [*(line.removesuffix("\r") + "\r" for line in lines[:-1]), *lines[-1:]]),  # CR LF
        st.just(lambda lines: ["\ufeff" + "\n".join(lines)]),
        st.just(lambda lines: ["```", *lines, "```"]),
        st.just(lambda lines: ["---", "title: x", "---", *lines]),
        st.builds(lambda n: lambda lines: ["\n".join(lines)[: n * 7]], _places),  # cut anywhere
        st.just(lambda lines: []),
        st.just(lambda lines: list(reversed(lines))),
        st.builds(lambda p: insert("bad \udcff\udcfe bytes", p), _places),
    )


def text_of(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8", "surrogateescape")
    except FileNotFoundError:
        return ""


def save(path: Path, edit: Edit, by_rename: bool) -> str:
    """As one editor does it or the other; what is there then."""
    text = "\n".join(edit(text_of(path).split("\n")))
    new = path.with_name("task.md~") if by_rename else path
    new.write_bytes(text.encode("utf-8", "surrogateescape"))
    if by_rename:
        os.rename(new, path)
    return text


def redone(text: str) -> set[str]:
    """The names of steps that stand on a line with `[redo]`, whether it counts or not."""
    lines = [line for line in text.split("\n") if "redo" in line.lower()]
    of_ours = {name for name in STEPS for line in lines if re.search(rf"(?<!\w){re.escape(name)}(?!\w)", line)}
    # and steps that an edit made, whatever they are called: a fence may become one
    return of_ours | {step.name for step in Checklist.parse(text.encode("utf-8", "surrogateescape")).steps if step.redo}


class Bench:
    """A task of five steps on a bench. Each step waits at a gate; what was run is counted outside of the product."""

    def __init__(self, root: Path) -> None:
        self.spec = TaskSpec("bench", "steps", "none", steps=())
        self.where, self.lock = workspace.create(str(root), self.spec, time.time)
        self.runs: Counter[StepId] = Counter()
        self.returned: set[StepId] = set()  #: steps that ran to their end
        self.again: list[StepId] = []  #: what ran again though nobody had ordered it
        self.ordered: set[str] = set()  #: names of steps that stood on a line with `[redo]`
        self.gates: dict[StepId, anyio.Event] = {}
        self.turned = anyio.Event()
        self._life: anyio.CancelScope | None = None
        self._writer: TaskWriter | None = None

    # -- the worker ----------------------------------------------------------------------------------------------

    async def skill(self, task: Any) -> None:
        await task.plan(list(STEPS[:3]))
        for step in ASKED:
            await task.step(step.name, self.work, *step)

    async def work(self, *said: Any) -> str:
        step = StepId(*said)
        if step in self.returned and step.name not in self.ordered:
            self.again.append(step)
        self.runs[step] += 1
        gate = self.gates[step] = anyio.Event()
        self._turn()
        await gate.wait()
        self.returned.add(step)
        return step.name

    def _turn(self) -> None:
        turned, self.turned = self.turned, anyio.Event()
        turned.set()

    def begin(self) -> bool:
        """As a supervisor does: take over, bury, decide. Whether a worker is to live."""
        recovery.inspect(self.where)
        last = look(self.where).snapshot.attempt
        task = supervision._in_order(self.where, time.time, last, None)
        try:
            action = lifecycle.next_action(task.snapshot)
            if isinstance(action, Start):
                task.begin_attempt(token="none", deaths=10**6)
                return True
            recovery.conclude(task, action)
            return False
        finally:
            task.close()

    async def live(self, group: TaskGroup) -> None:
        """The worker of the attempt that was begun; returns when it stands at a gate, or has ended."""
        run = look(self.where).snapshot.attempts[-1].run
        self._writer = writer = continue_attempt(self.where, time.time, run)
        assert writer is not None
        nobody = list(identity.mine()._replace(ticks=1))  # who looks finds that it is dead
        writer.started(worker=nobody, guard=nobody)
        self._life = anyio.CancelScope()

        async def life(scope: anyio.CancelScope) -> None:
            attempt = _Attempt(writer, None, lambda *a, **k: self.spec)
            attempt._own = descriptors.Own()
            with scope:
                while await attempt._from_the_top(self.spec, self.skill, {}) is None:
                    pass
            writer.close()
            if self._life is scope:
                self._life = None
            self._turn()

        turned = self.turned
        group.start_soon(life, self._life)
        await turned.wait()

    @property
    def alive(self) -> bool:
        return self._life is not None

    async def kill(self) -> None:
        if self._life is not None:
            turned = self.turned
            self._life.cancel()
            await turned.wait()
        self.gates.clear()

    async def one_step(self) -> None:
        """Let the step at the gate end; returns when the next one stands there, or the worker has ended."""
        gates, turned = dict(self.gates), self.turned
        self.gates.clear()
        for gate in gates.values():
            gate.set()
        if gates:
            await turned.wait()

    # -- the person ----------------------------------------------------------------------------------------------

    @property
    def text(self) -> str:
        return text_of(Path(self.where.task_md))

    def save(self, edit: Edit, by_rename: bool) -> None:
        self.ordered |= redone(save(Path(self.where.task_md), edit, by_rename))

    def close(self) -> None:
        os.close(self.lock)
