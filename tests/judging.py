"""What must be true of a scenario after something went wrong in it: on the disk as it lies, and after one `recover`.

The proof that nothing was done twice is the log outside of the product; what a person was told counts from then on.
"""

from __future__ import annotations

import difflib
import functools
import hashlib
import io
import json
import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import anyio
import inline
import scenario_skills
import scenarios
from scenarios import Act, Place, Scenario

from orchestrator import store
from orchestrator.cli import main as door
from orchestrator.core import stepfile
from orchestrator.store import Paths
from orchestrator.writer import TaskWriter

T = TypeVar("T")

#: What a fault may be told as: the disk, too many open files, a root that cannot be had, a file that cannot be read.
CODES = frozenset({74, 71, 73, 65})
#: Names of steps that a person writes into task.md.
OF_A_PERSON = frozenset({"of my own", "one more"})


# -- one act, as a command -------------------------------------------------------------------------------------------


class Told(NamedTuple):
    """What whoever asked was told: the exit code, what stood on stderr, and what was announced until then."""

    code: int
    err: str
    told: tuple[str, ...]


def command(scenario: Scenario, place: Place, number: int, begin: Callable[[], None] = lambda: None) -> inline.Ran:
    """One act of a scenario as a command: the value is what it told, an error one that no door knows.

    `begin` is the first thing that its process does.
    """
    scenario_skills.ASKED.clear()
    scenario_skills.ASKED.update(scenario.asked)
    act = functools.partial(_through_the_door, place, scenario.acts[number], begin)
    return inline.attempt(act, environment=place.environment())


def _through_the_door(place: Place, act: Act, begin: Callable[[], None]) -> Told:
    """What the act raises is told as the command line tells it."""
    told: list[str] = []
    scenarios.TOLD.append(told.append)

    async def body() -> None:
        async with inline.coordinator(place.root) as coordinator:
            await act(coordinator)

    write_down_commits(str(place.base / "committed.txt"))
    sys.stderr = io.StringIO()
    door.cli.main = lambda **_: anyio.run(body)  # type: ignore[method-assign]
    code: Any = None
    begin()
    try:
        door.main()
    except SystemExit as left:
        code = left.code
    return Told(code, sys.stderr.getvalue(), tuple(told))


def of_the_telling(ran: inline.Ran) -> Iterator[str]:
    """What is wrong with what was told: one line what, one line what to do, the exit code of its kind."""
    if ran.error or not isinstance(ran.value, Told):
        yield f"a traceback: {ran.error or ran.code}"
        return
    said = ran.value
    lines = said.err.splitlines()
    if said.code == 0:
        return
    if said.code not in CODES or "Traceback" in said.err:
        yield f"exit code {said.code}: {said.err}"
    elif not lines or not lines[0].startswith("orchestrator: ") or (len(lines) != 2 and said.code != 65):
        yield f"not one line what and one what to do: {said.err!r}"


# -- the disk as it lies ---------------------------------------------------------------------------------------------


class Before(NamedTuple):
    """What is to be compared with later: how often each step was entered, and which are done."""

    entered: Counter[str]
    done: dict[Paths, frozenset[str]]
    by_hand: frozenset[str]


def look(place: Place) -> Before:
    done, by_hand = {}, set(OF_A_PERSON)
    for where in place.tasks():
        seen = store.look(where)
        done[where] = frozenset(label for label, state in seen.snapshot.steps.items() if state.status.finished)
        if seen.face is not None:
            by_hand |= {step.name for step in seen.face.steps if step.status == "done"} - done[where]
    return Before(_entered(place), done, frozenset(by_hand))


def _entered(place: Place) -> Counter[str]:
    return Counter(line.partition(" began ")[0] for line in place.ledger.lines() if " began " in line)


def of_the_disk(
    place: Place,
    by_hand: frozenset[str],
    told: Iterable[str] = (),
    *,
    lost: bool = False,
    face_may_be_lost: bool = False,
) -> Iterator[str]:
    """What of the invariants is broken. `by_hand`: what a person had called done before the journal knew.

    `lost`: the disk has taken back what it was not made to keep, which lines and files that are not synced may be.
    """
    for where in place.tasks():
        seen = store.look(where)
        if not face_may_be_lost:
            yield from (f"damage: {said}" for said in seen.damage)
        yield from (f"{name} is not there" for name in (where.spec, where.journal) if not os.path.exists(name))
        for step in seen.face.steps if seen.face is not None else ():
            state = seen.snapshot.steps.get(step.name)
            if step.status == "done" and step.name not in by_hand and (state is None or not state.status.finished):
                yield f"task.md says that {step.name!r} is done, the journal does not"
        if seen.face is not None and seen.face.has_end and seen.face.status == "end" and seen.snapshot.end is None:
            yield "task.md says that it has ended, the journal does not"
        entries = store.read_journal(where).entries
        yield from _of_the_journal(entries)
        yield from _of_the_results(where, entries, seen)
        if not lost:
            yield from _of_the_step_files(where, entries, seen)
    yield from _of_what_was_told(place, told)


def _of_the_journal(entries: Sequence[dict[str, Any]]) -> Iterator[str]:
    """No line, no announcement and no order counts twice."""
    lines = Counter(f"line {entry['run']} {entry['seq']}" for entry in entries)
    said = (entry.get("announcement") or {} for entry in entries if entry["kind"] in ("end", "closed"))
    announced = Counter((f"announcement {a['id']}", a["status"]) for a in said if a)  # `closed` says it as `end` does
    names = Counter(name for name, _ in announced)
    begun = Counter(entry["step"] for entry in entries if entry["kind"] == "running")
    unsure = Counter(e["step"] for e in entries if e["kind"] == "commit" and e["status"] == "uncertain")
    yield from (f"{step!r} is uncertain more often than it was begun" for step in unsure if unsure[step] > begun[step])
    orders = Counter(f"order {entry['id']}" for entry in entries if entry["kind"] == "handled" and "id" in entry)
    for counted in (lines, names, orders):
        yield from (f"{name} is there {number} times" for name, number in counted.items() if number > 1)


def _of_the_results(where: Paths, entries: Sequence[dict[str, Any]], seen: store.Look) -> Iterator[str]:
    """Every result that the journal names is there, and is the one that was recorded."""
    named = {e["result_file"]: e["result_sha256"] for e in entries if e["kind"] == "commit" and "result_file" in e}
    end = seen.snapshot.end or {}
    if (end.get("announcement") or {}).get("result"):
        named["results/result.json"] = end["result_sha256"]
    for name, digest in named.items():
        path = Path(where.directory, name)
        if not path.is_file() or hashlib.sha256(path.read_bytes()).hexdigest() != digest:
            yield f"the journal names {name}, which is not there or another"


def _of_the_step_files(where: Paths, entries: Sequence[dict[str, Any]], seen: store.Look) -> Iterator[str]:
    """A step's file begins with its heading, as far as it was written, and says of no try what the journal does not."""
    known = {(e["step"], e["status"]) for e in entries if e["kind"] == "commit"}
    settled = {e.get("step") for e in entries if e["kind"] == "handled"}  # the order of a person is the commit
    for label, state in seen.snapshot.steps.items():
        path = Path(where.step(state.file))
        text = path.read_text("utf-8", "replace") if path.is_file() else ""
        heading = f"# {state.id.name}\n"
        if not text.startswith(heading) and not heading.startswith(text):
            yield f"{state.file} begins with {text[:40]!r}"
        said = {block.status for block in stepfile.parse(text).checkpoints} & {"done", "failed", "skipped"}
        yield from (
            f"{state.file} says {status}, the journal does not"
            for status in said
            if (label, status) not in known and label not in settled
        )


def _of_what_was_told(place: Place, told: Iterable[str]) -> Iterator[str]:
    """What was acknowledged is there: commits to the worker that made them, announcements to whoever heard them."""
    entries = [entry for where in place.tasks() for entry in store.read_journal(where).entries]
    there = Counter(f"{e['step']}: {e['status']}" for e in entries if e["kind"] == "commit")
    log = place.base / "committed.txt"
    committed = Counter(log.read_text("utf-8").splitlines() if log.exists() else ())
    yield from (f"{what}, and its commit is lost" for what in committed if there[what] < committed[what])
    known = {str((entry.get("announcement") or {}).get("id")) for entry in entries}
    yield from (f"{text}, not in the journal" for text in told if text[:9] == "announced" and text[10:] not in known)


def write_down_commits(log: str) -> None:
    """In the process that begins a run: whatever commits in it or in a fork of it says so, outside of the product."""
    real = TaskWriter.commit

    @functools.wraps(real)
    def commit(task: TaskWriter, label: str, status: Any, **more: Any) -> None:
        real(task, label, status, **more)
        fd = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        os.write(fd, f"{label}: {status.value}\n".encode())
        os.close(fd)

    TaskWriter.commit = commit  # type: ignore[method-assign]


# -- after one `recover` ---------------------------------------------------------------------------------------------


def of_a_success(scenario: Scenario, number: int, place: Place, ran: inline.Ran) -> Iterator[str]:
    """Whoever was told that all is well finds the end of the act, without any `recover`.

    The journal's `end` line is the end: of a task that has one, task.md may lag behind until somebody can write it.
    """
    if not isinstance(ran.value, Told) or ran.value.code != 0 or waits(place):
        return
    ends = _ends(scenario, place)[number + 1 :]
    shown = comparable(scenarios.shown(place.root))
    lags = all(store.look(where).snapshot.end is not None for where in place.tasks())
    if (_without_face(shown) if lags else shown) not in ([_without_face(end) for end in ends] if lags else ends):
        yield f"called a success: {_difference(ends[0], shown)}"


def of_the_end(
    scenario: Scenario, number: int, place: Place, before: Before, told: Iterable[str], *, aside: bool = False
) -> Iterator[str]:
    """Recover, and say what is not as at the end of an undisturbed run. `before`: as it lay until then.

    `aside`: whether something could really not be read, and may have been moved aside.
    """
    ran = scenario.recover(place)
    if ran.code != 0:
        yield f"recover: {ran.error}"
        return
    if waits(place) and '"uncertain"' not in scenario.ends[-1]:  # a thing to be done once was cut off: a person again
        assert scenario.act(place, number).code == 0
    told = tuple(told)
    effective = number + any(text.startswith(("spawned", "ordered", "announced")) for text in told)
    end, ends = comparable(scenarios.shown(place.root)), _ends(scenario, place)
    if end not in ends[effective:]:
        yield f"another end: {_difference(ends[min(number + 1, len(ends) - 1)], end)}"
    entries = [entry for where in place.tasks() for entry in store.read_journal(where).entries]
    known = {str((entry.get("announcement") or {}).get("id")) for entry in entries}
    yield from (f"{text}, and forgotten" for text in told if text[:9] == "announced" and text[10:] not in known)
    yield from (f"left behind: {path}" for path in Path(place.root).rglob(".orchestrator*"))
    if not aside:
        yield from (f"moved aside, and intact: {path}" for path in Path(place.root).rglob("*.damaged-*"))
    more = _entered(place) - before.entered
    reopened = {str(e["step"]) for e in entries if e["kind"] in ("redo", "handled") and e.get("step")}
    for labels in before.done.values():
        yield from (f"{label!r} was done, and entered again" for label in labels - reopened if more[label])


def _without_face(shown: str) -> str:
    return json.dumps([{key: said for key, said in task.items() if key != "task.md"} for task in json.loads(shown)])


def waits(place: Place) -> bool:
    """Whether a person has to say what became of a step."""
    return any(store.look(where).state == "uncertain" for where in place.tasks())


def _ends(scenario: Scenario, place: Place) -> list[str]:
    """The ends of the scenario; also those of one without the person beside it, until his edit is known to be saved."""
    ends = [comparable(end) for end in scenario.ends]
    if scenario.asked and not place.ledger.count(scenarios.EDITED):
        ends.append(comparable(scenario.unasked))
    return ends


#: Two that run at once, in the other order.
_AT_ONCE = re.compile(r"^(\[[a-z ]+\] half \(right\))\n(\[[a-z ]+\] half \(left\))$", re.MULTILINE)
_BESIDE = re.compile(r"\.damaged-|^task-retro\.md$|^\.orchestrator-tmp-")


@functools.lru_cache(maxsize=256)
def comparable(shown: str) -> str:
    """Without what a fault may add or take: what could not be read and was moved aside, a retrospect that can be made
    again, how often it was uncertain what became of a step, that an order found its effect there already; and which of
    two steps at once began first.
    """
    picture = json.loads(shown)
    for task in picture:
        task["beside"] = [name for name in task["beside"] if not _BESIDE.search(name)]
        task["commits"] = {key: n for key, n in task["commits"].items() if not key.endswith(": uncertain")}
        task["orders"] = sorted({f"{verb} {step}" for verb, step, _ in task["orders"]})
        task["results"] = {name: sha for name, sha in task["results"].items() if not _BESIDE.search(name)}
        task["task.md"] = _AT_ONCE.sub(r"\2\n\1", task["task.md"])
        task["steps"], task["step files"] = (dict(sorted(task[key].items())) for key in ("steps", "step files"))
        del task["retro"]
    return json.dumps(picture, indent=1, ensure_ascii=False)


def _difference(wanted: str, found: str) -> str:
    lines = difflib.unified_diff(wanted.splitlines(), found.splitlines(), "wanted", "found", lineterm="", n=1)
    return "\n".join(lines)


# -- which of thousands ----------------------------------------------------------------------------------------------

#: The seed of what is drawn; printed, and ORCHESTRATOR_TEST_SEED=<seed> draws the same again.
SEED = int(os.environ.get("ORCHESTRATOR_TEST_SEED") or 4)
#: How many of each enumeration are tried: a number, or `all`.
TRIALS = os.environ.get("ORCHESTRATOR_TEST_TRIALS", "")


def drawn(everything: Sequence[T], kind: Callable[[T], object], count: int) -> list[T]:
    """So many of them, of every kind about as many; or as the environment says."""
    return chosen(everything, [kind], int(TRIALS or count) if TRIALS != "all" else None)


def chosen(everything: Sequence[T], kinds: Sequence[Callable[[T], object]], count: int | None) -> list[T]:
    """So many of them, None: all; the one that comes next is of what came least often by the first of `kinds`, among
    these by the second, and so on.
    """
    # By a hash of each: two that run at once do not do exactly the same every time, and that must not change the rest.
    order = sorted(everything, key=lambda one: hashlib.sha256(f"{SEED} {one}".encode()).digest())
    for kind in reversed(kinds):
        seen: Counter[object] = Counter()
        ranked = []
        for one in order:
            seen[kind(one)] += 1
            ranked.append((seen[kind(one)], one))
        order = [one for _, one in sorted(ranked, key=lambda pair: pair[0])]
    return order[:count]


class Part(NamedTuple):
    """One of the tests that an enumeration over the scenarios is divided among: each enumerates its own ones only."""

    number: int
    parts: int

    @property
    def scenarios(self) -> tuple[Scenario, ...]:
        return scenarios.SCENARIOS[self.number % len(scenarios.SCENARIOS) :: self.parts]

    def of(self, everything: Sequence[T], kinds: Sequence[Callable[[T], object]], count: int) -> list[T]:
        """What is tried of all that may happen in its scenarios. `count`: how many are tried in all parts together."""
        wanted = None if TRIALS == "all" else int(TRIALS or count) // self.parts
        several = range(self.number % len(scenarios.SCENARIOS), self.parts, len(scenarios.SCENARIOS))
        return chosen(everything[several.index(self.number) :: len(several)], kinds, wanted)

    def __str__(self) -> str:
        return f"part {self.number + 1} of {self.parts}"


def parts(usual: int) -> list[Part]:
    """In how many tests they are tried: of many, so many that one sees how far they have come."""
    several = 200 if TRIALS == "all" else max(usual, int(TRIALS or 0) // 200)
    return [Part(number, several) for number in range(several)]
