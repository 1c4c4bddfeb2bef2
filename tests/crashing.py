"""Every point at which a run may be cut off, every state of the disk that is left then, and what must hold of each.

`Cuts` runs a scenario once, recorded, and enumerates the states. `Checked` looks at one as it lies, recovers it, and
looks again. `python crashing.py` goes through all of them; the tests take a sample.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import disklog
import power
import scenarios
from disklog import Event
from power import Disk, Tree
from scenarios import SCENARIOS, Scenario

from orchestrator import files, store
from orchestrator.core import journal
from orchestrator.core.checklist import Checklist
from orchestrator.core.model import StepStatus, TaskStatus
from orchestrator.core.snapshot import Snapshot, fold
from orchestrator.errors import OrchestratorError
from orchestrator.store import Paths

Kind = Literal["crash", "power"]
#: Named by an environment variable, a run of the tests takes another sample; it is printed with every failure.
SEED = os.environ.get("ORCHESTRATOR_TEST_SEED", "0")


@dataclass
class Promised:
    """What had been promised when the run was cut off."""

    lines: frozenset[bytes] = frozenset()  #: of journals, whose sync had returned
    told: frozenset[str] = frozenset()
    words: frozenset[str] = frozenset()  #: of a person, saved durably
    ledger: int = 0  #: how much of the log of the steps was written
    acknowledged: int = 0  #: how many of the acts were
    begun: int = 0

    def __or__(self, other: Promised) -> Promised:
        """Both: the same state may be left at either point."""
        return Promised(
            self.lines | other.lines,
            self.told | other.told,
            self.words | other.words,
            max(self.ledger, other.ledger),
            max(self.acknowledged, other.acknowledged),
            max(self.begun, other.begun),
        )


@dataclass
class State:
    """One state of the disk: the first point and way in which it comes about."""

    point: int
    way: str
    tree: Tree
    promised: Promised


class Cuts:
    """The points and states of one scenario, in a place of its own."""

    def __init__(self, scenario: Scenario, kind: Kind, base: Path, *, cuts: int | None) -> None:
        self.scenario = scenario
        self.kind = kind
        self.ends = [json.loads(end) for end in scenario.ends]
        self.place = scenario.place(base / "place")
        self.disk = Disk.of(self.place.base)
        self._cuts = cuts
        self.events = self._record(base / "log")
        self.ledger = b"".join(line.encode() + b"\n" for line in self.place.ledger.lines())
        self.points = 0
        self.ways = 0
        self.states = self._enumerate()

    def _record(self, log: Path) -> list[Event]:
        recorder = disklog.Recorder(log, self.place.ledger.path)
        with recorder.installed():
            for number in range(len(self.scenario.acts)):
                recorder.tell("act begins")
                ran = self.scenario.act(self.place, number)
                assert ran.code == 0, ran.error
                recorder.tell("act returns")
        return disklog.read(log)

    def _enumerate(self) -> list[State]:
        found: dict[bytes, State] = {}
        promised = Promised(_lines(self.disk), words=_words(self.disk), ledger=self.events[0].ledger)
        for point, event in enumerate([None, *self.events]):
            if event is not None:
                self.disk.apply(event)
                promised = self._after(promised, event)
            after = self.events[point].ledger if point < len(self.events) else len(self.ledger)
            promised = Promised(**{**vars(promised), "ledger": after})
            self.points += 1
            for way, tree in self._ways(event):
                self.ways += 1
                key = power.digest(tree)
                if key in found:
                    found[key].promised |= promised
                else:
                    found[key] = State(point, way, tree, promised)
        return list(found.values())

    def _ways(self, event: Event | None) -> Iterator[tuple[str, Tree]]:
        if self.kind == "crash":
            yield "as it is", self.disk.now()
            if event is not None and event.operation == "write":
                yield from self.disk.half_written()
        elif event is None or event.operation != "told" or self.disk.pending:
            syncs = event is not None and event.operation in ("fsync", "fdatasync", "told")
            yield from self.disk.ways(each=syncs, cuts=self._cuts)

    def _after(self, before: Promised, event: Event) -> Promised:
        now = dict(vars(before))
        if event.operation in ("fsync", "fdatasync"):
            now["lines"] = before.lines | _lines(self.disk, event.args[0])
        if event.operation == "told":
            (text,) = event.args
            now["told"] = before.told | {text}
            now["begun"] += text == "act begins"
            acknowledged = text in ("spawned", "act returns") or text.startswith(("ordered", "announced"))
            now["acknowledged"] = max(before.acknowledged, now["begun"]) if acknowledged else before.acknowledged
            if text == "edited":
                now["words"] = before.words | {scenarios.REMARK}
        return Promised(**now)

    def describe(self, state: State) -> str:
        event = self.events[state.point - 1] if state.point else None
        where = f"after {_short(event)}" if event else "before anything"
        upcoming = self.events[state.point] if state.point < len(self.events) else None
        where += f", before {_short(upcoming)}" if upcoming else ""
        return f"{self.scenario.name} [{self.kind}] point {state.point} ({where}), {state.way}"


def _short(event: Event) -> str:
    args = [os.path.basename(a) if isinstance(a, str) else a[-80:] if isinstance(a, bytes) else a for a in event.args]
    return f"{event.operation}({', '.join(map(repr, args))})"


def _lines(disk: Disk, number: int | None = None) -> frozenset[bytes]:
    """The durable lines of the journals of all tasks; only of the one that has this inode's number, if it is given."""
    found: set[bytes] = set()
    root = (disk.root.entries or {}).get("root")
    for name, task in ((root.entries or {}) if root else {}).items():
        inner = (task.entries or {}).get(".task")
        inode = (inner.entries or {}).get("journal.jsonl") if inner else None
        if name.startswith("task-") and inode is not None and (number is None or disk.number(number) is inode):
            found.update(inode.sure_data.split(b"\n")[:-1])
    return frozenset(found)


def _words(disk: Disk) -> frozenset[str]:
    whole = b"".join(data for data in disk.now().values() if data)
    return frozenset(words for words in (scenarios.REMARK, scenarios.WORDS) if words.encode() in whole)


# -- what must hold --------------------------------------------------------------------------------------------------


class Checked:
    """One state, laid out and recovered. `problems` says what does not hold of it."""

    def __init__(self, cuts: Cuts, state: State, *, recover: bool = True) -> None:
        self.cuts = cuts
        self.state = state
        self.problems: list[str] = []
        self._promised = state.promised
        self._place = cuts.place
        self._lay()
        self._as_it_lies()
        if recover:
            self._recovered()

    def _lay(self) -> None:
        base = self._place.base
        for entry in list(os.scandir(base)):
            shutil.rmtree(entry.path) if entry.is_dir() else os.unlink(entry.path)
        tree = {path: data for path, data in self.state.tree.items() if path != "ledger.txt"}
        power.lay(tree, base, time.time() - 60)
        self._place.ledger.path.write_bytes(self.cuts.ledger[: self._promised.ledger])

    def _say(self, text: str) -> None:
        self.problems.append(text)

    def _tasks(self) -> list[Paths]:
        return self._place.tasks()

    # -- before anybody does anything ------------------------------------------------------------------------------

    def _as_it_lies(self) -> None:
        tasks = self._tasks()
        if not tasks and (self._promised.lines or "spawned" in self._promised.told):
            self._say("as it lies: the task is gone")
        lines: set[bytes] = set()
        announced: set[str] = set()
        for where in tasks:
            try:
                lines |= set(files.read(where.journal).split(b"\n"))
                announced |= self._of_task(where)
            except (OSError, OrchestratorError) as error:
                self._say(f"as it lies: {error!r}")
        self._kept(lines, "as it lies")
        for text in self._promised.told:
            if text.startswith("announced ") and text.removeprefix("announced ") not in announced:
                self._say(f"as it lies: {text}, and the journal does not have it")

    def _kept(self, lines: set[bytes], when: str) -> None:
        for line in self._promised.lines - lines:
            self._say(f"{when}: a line that was durable is not in the journal: {line[:200]!r}")
        whole = b"".join(p.read_bytes() for p in Path(self._place.root).rglob("*") if p.is_file())
        for words in self._promised.words:
            if words.encode() not in whole:
                self._say(f"{when}: a person's words are lost: {words}")

    def _of_task(self, where: Paths) -> set[str]:
        """Check what lies there of one task; the ids of what it has announced."""
        store.read_spec(where)
        reading = store.read_journal(where)
        if not reading.entries:
            self._say("as it lies: the journal has no line")
        if reading.damaged and self.cuts.kind == "crash":
            self._say(f"as it lies: bad lines in the journal: {reading.damaged}")
        snapshot = fold(reading.entries)
        self._unique(reading.entries, "as it lies")
        self._results(where, reading.entries)
        self._face(where, snapshot)
        said = [e["announcement"] for e in reading.entries if e.get("announcement")]
        return {str(a["id"]) for a in said}

    def _unique(self, entries: Sequence[Any], when: str) -> None:
        numbers = [(e["run"], e["seq"]) for e in entries]
        if len(set(numbers)) != len(numbers):
            self._say(f"{when}: two lines of the journal have one number")
        runs = [e["run"] for e in entries if e["kind"] == "attempt"]
        if len(set(runs)) != len(runs):
            self._say(f"{when}: two attempts have one id")
        kinds = [e["kind"] for e in entries]
        if "end" in kinds and kinds.count("end") > 1 + kinds.count("handled") + kinds.count("redo"):
            self._say(f"{when}: it ended twice")

    def _results(self, where: Paths, entries: Sequence[Any]) -> None:
        for entry in entries:
            path = entry.get("result_file")
            if path is not None:
                data = files.read(where.step(path))
                if hashlib.sha256(data).hexdigest() != entry["result_sha256"]:
                    self._say(f"as it lies: {path} is not the result that was committed")
            if entry["kind"] == "end" and entry["announcement"]["result"]:
                json.loads(files.read(entry["announcement"]["result"]))

    def _face(self, where: Paths, snapshot: Snapshot) -> None:
        face = Checklist.parse(files.read(where.task_md), snapshot.steps)
        if face.damaged:
            if self.cuts.kind == "crash":
                self._say("as it lies: task.md is damaged")
            return
        if (face.has_end or face.status is TaskStatus.END) and snapshot.end is None and not snapshot.redone:
            self._say("as it lies: task.md says that it has ended, the journal does not")
        for step in face.steps:
            state = snapshot.steps.get(step.name)
            status = state.status if state is not None else None
            done = step.status is StepStatus.DONE and not step.redo
            if done and status is not StepStatus.DONE and step.name not in self.cuts.scenario.hands:
                self._say(f"as it lies: task.md has {step.name!r} done, the journal {status}")

    # -- after one recovery ----------------------------------------------------------------------------------------

    def _recovered(self) -> None:
        ran = self.cuts.scenario.recover(self._place)
        if ran.code != 0:
            self._say(f"recover: {ran.error or ran.code}")
            return
        left = [p.name for p in Path(self._place.root).rglob("*") if p.name.startswith(".orchestrator")]
        if left:
            self._say(f"recovered: temporaries are left: {left}")
        self._end()
        lines: set[bytes] = set()
        entries: list[Any] = []
        for where in self._tasks():
            lines |= set(files.read(where.journal).split(b"\n"))
            entries += store.read_journal(where).entries
        self._kept(lines, "recovered")
        self._unique(entries, "recovered")
        self._entered_again(entries)

    def _end(self) -> None:
        try:
            end = scenarios.picture(self._place.root)
        except (OSError, OrchestratorError) as error:
            self._say(f"recovered: {error!r}")
            return
        for task in end:  # what a power cut has spoilt is kept aside: that is no difference
            if self.cuts.kind == "power":
                task["beside"] = [name for name in task["beside"] if ".damaged-" not in name]
        end = json.loads(json.dumps(end))
        scenario = self.cuts.scenario
        allowed = self.cuts.ends[self._promised.acknowledged : self._promised.begun + 1]
        if scenario.asked and "edited" not in self._promised.told:
            allowed = [*allowed, json.loads(scenario.unasked)]
        if (
            self.cuts.kind == "power" and end not in allowed
        ):  # with a step's first line its place was lost: it is the last
            end, allowed = _in_any_order(end), [_in_any_order(one) for one in allowed]
        if end not in allowed and not (scenario.may_wait and [task["state"] for task in end] == ["uncertain"]):
            self._say(f"recovered: another end: {_difference(allowed[-1], end)}")

    def _entered_again(self, entries: Sequence[Any]) -> None:
        """No step that was durably done, and that nobody has ordered anew since, was entered by recovering."""
        new = self._place.ledger.path.read_bytes()[self._promised.ledger :].decode()
        done: set[str] = set()
        for entry in entries:
            durable = journal.encode({k: v for k, v in entry.items() if k != "crc"})[:-1] in self._promised.lines
            if entry["kind"] == "commit" and entry["status"] == "done" and durable:
                done.add(entry["step"])
            if entry["kind"] == "redo" or (entry["kind"] == "handled" and entry["verb"] in ("redo", "resolve")):
                done.discard(str(entry.get("step")))
        for step in done:
            if any(line.startswith(f"{step} began ") for line in new.splitlines()):
                self._say(f"recovered: step {step!r} was committed, and entered again")


def _in_any_order(end: Any) -> Any:
    """The same tasks, the lines of their task.md sorted; the blank ones, torn off, are not made again."""
    return [{**task, "task.md": sorted(filter(None, task["task.md"].split("\n")))} for task in end]


def _difference(expected: Any, found: Any, path: str = "") -> str:
    """Where two pictures differ first."""
    if isinstance(expected, dict) and isinstance(found, dict):
        for key in {**expected, **found}:
            if expected.get(key) != found.get(key):
                return _difference(expected.get(key), found.get(key), f"{path}/{key}")
    if isinstance(expected, list) and isinstance(found, list) and len(expected) == len(found):
        for number, (one, other) in enumerate(zip(expected, found, strict=True)):
            if one != other:
                return _difference(one, other, f"{path}/{number}")
    return f"{path}: {found!r} instead of {expected!r}"


# -- going through them ----------------------------------------------------------------------------------------------


@dataclass
class Tally:
    """What was gone through."""

    points: int = 0
    ways: int = 0
    states: int = 0
    recoveries: int = 0
    failures: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return (
            f"{self.points} points, {self.ways} ways to be cut off, {self.states} distinct states, "
            f"{self.recoveries} recoveries, {len(self.failures)} failures"
        )

    def add(self, other: Tally) -> None:
        self.points += other.points
        self.ways += other.ways
        self.states += other.states
        self.recoveries += other.recoveries
        self.failures += other.failures


def go_through(
    scenario: Scenario, kind: Kind, *, cuts: int | None, sample: int | None = None, seed: str = SEED, stop_at: int = 20
) -> Tally:
    """Check the states of a scenario: all as they lie; and recover all of them, or so many, which the seed chooses."""
    with tempfile.TemporaryDirectory(dir=scenarios.temporary_base(), prefix="orchestrator-cuts-") as base:
        found = Cuts(scenario, kind, Path(base), cuts=cuts)
        chosen = set(range(len(found.states)))
        if sample is not None and sample < len(chosen):
            chosen = set(random.Random(f"{seed} {kind} {scenario.name}").sample(sorted(chosen), sample))
        tally = Tally(found.points, found.ways, len(found.states))
        for number in sorted(chosen):
            tally.recoveries += 1
            problems = Checked(found, found.states[number]).problems
            if problems:
                said = "\n    ".join(problems)
                tally.failures.append(f"{found.describe(found.states[number])} (seed {seed}):\n    {said}")
            if len(tally.failures) >= stop_at:
                break
        return tally


def main() -> int:
    parser = argparse.ArgumentParser(description="Cut every scenario off at every point, and recover each state.")
    parser.add_argument("--scenario", default="", help="only those whose name begins so")
    parser.add_argument("--kind", choices=["crash", "power"])
    parser.add_argument("--sample", type=int, help="so many states of each, instead of all")
    parser.add_argument("--cuts", type=int, help="tear the newest bytes at so many places, instead of at all")
    parser.add_argument("--seed", default=SEED)
    options = parser.parse_args()
    whole = Tally()
    kinds: Sequence[Kind] = [options.kind] if options.kind else ["crash", "power"]
    with contextlib.suppress(KeyboardInterrupt):
        for scenario in SCENARIOS:
            for kind in kinds if scenario.name.startswith(options.scenario) else ():
                begun = time.monotonic()
                tally = go_through(scenario, kind, cuts=options.cuts, sample=options.sample, seed=options.seed)
                print(f"{scenario.name} [{kind}]: {tally}, {time.monotonic() - begun:.0f} s", flush=True)
                for failure in tally.failures:
                    print("  " + failure, flush=True)
                whole.add(tally)
    scenarios.clean_up()
    print(whole)
    return 1 if whole.failures else 0


if __name__ == "__main__":
    sys.exit(main())
