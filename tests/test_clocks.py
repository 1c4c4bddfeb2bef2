"""Clocks that jump, stand still, tick coarsely, or tell another zone: no limit, order or age is judged by them.

What a person would lose: every task at once after the laptop slept, an edit saved within a second of ours, an order
given after the clock was set back.
"""

from __future__ import annotations

import ast
import asyncio
import dataclasses
import json
import os
import re
import signal
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import kit
import pytest
from conftest import Ledger

from orchestrator import (
    Coordinator,
    Limits,
    clearing,
    coordinator,
    face,
    files,
    serving,
    store,
    supervision,
    workspace,
)
from orchestrator.config import Config
from orchestrator.core import checklist
from orchestrator.core.model import Outcome, StepId, TaskSpec
from orchestrator.core.snapshot import AttemptState, Snapshot
from orchestrator.engines.local import LocalEngine
from orchestrator.store import Paths
from orchestrator.takeover import take_over
from orchestrator.worker import guard, lived

PACKAGE = Path(store.__file__).parent
HOUR = 3600.0


class Hand:
    """A clock that is set by hand."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


# -- who reads the wall clock ----------------------------------------------------------------------------------------

#: Where the time of day is asked for, and what for. Nowhere for how long something takes, or whether it is too late.
WALL_CLOCK = {
    "adopting": "the id and the lines of what is adopted",
    "coordinator": "the id and the lines of what is made; handed on",
    "detach": "the id of what is made",
    "examining": "how long ago a task has ended, in days, for a person",
    "explaining": "ages, for a person",
    "files": "whether a file was saved this very moment, compared with its own time; then read twice, at most 20 times",
    "loop": "the lines of the worker",
    "recovery": "the line that says a person took a worker for dead",
    "serving": "whether a file is so fresh that it is looked at once more",
    "task": "the id of a sub-task",
}


def test_no_limit_and_no_pause_is_measured_by_the_time_of_day() -> None:
    """fault 63"""
    asking = re.compile(r"\btime\.time\b|datetime\.now|\btime\.(?:localtime|ctime|gmtime|mktime|strftime)|utcnow")
    found = {path.stem for path in PACKAGE.rglob("*.py") if asking.search(path.read_text("utf-8"))}
    assert found == set(WALL_CLOCK)


def test_no_time_that_is_told_depends_on_the_zone_of_who_looks() -> None:
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                assert node.func.attr not in ("astimezone", "utcfromtimestamp"), path
                assert node.func.attr != "fromtimestamp" or len(node.args) == 2, f"{path}:{node.lineno} names no zone"


# -- machines that sleep ---------------------------------------------------------------------------------------------


def test_hours_of_sleep_count_as_a_moment_of_life() -> None:
    hand = Hand()
    clock = lived.Lived(hand)
    for _ in range(10):
        hand.now += lived.TICK_SECONDS
        clock.tick()
    assert clock() == pytest.approx(1010)
    hand.now += 8 * HOUR  # it is asked for the time before anybody has looked at the clock
    assert clock() == pytest.approx(1011)
    clock.tick()
    assert clock() == pytest.approx(1011)
    hand.now += 1
    clock.tick()
    assert clock() == pytest.approx(1012)


def test_a_late_look_on_a_busy_machine_is_no_sleep_and_lived_time_never_goes_back() -> None:
    hand = Hand()
    clock = lived.Lived(hand)
    seen = [clock()]
    for gap in (0.2, 1.0, 2.9, 0.0, 2.5, 0.3, 3.1, 1.0, 900.0, 0.1):
        for _ in range(7):  # asked for in the middle of it
            hand.now += gap / 7
            seen.append(clock())
        clock.tick()
        seen.append(clock())
    assert seen == sorted(seen)
    assert seen[-1] - seen[0] == pytest.approx(0.2 + 1 + 2.9 + 2.5 + 0.3 + 1 + 1 + 1 + 0.1, abs=5)
    assert seen[-1] - seen[0] < 20


async def test_every_timer_of_a_workers_loop_keeps_to_lived_time(monkeypatch: pytest.MonkeyPatch) -> None:
    real = asyncio.get_running_loop().time
    hand = Hand(real())
    monkeypatch.setattr(lived.time, "monotonic", hand)  # type: ignore[attr-defined]
    monkeypatch.setattr(lived.threading.Thread, "start", lambda _: None)  # type: ignore[attr-defined]
    monkeypatch.setattr(lived.Lived.__init__, "__defaults__", (hand,))
    loop = asyncio.get_running_loop()
    try:
        lived.install()
        begun = anyio.current_time()
        hand.now += 8 * HOUR
        assert anyio.current_time() - begun <= lived.LATE_SECONDS
        with anyio.move_on_after(5.0) as limit:
            hand.now += 8 * HOUR
            await anyio.lowlevel.checkpoint()
        assert not limit.cancelled_caught
    finally:
        loop.time = real  # type: ignore[method-assign]


def settings(*, grace: float, life: float | None) -> guard.Settings:
    rest = dict.fromkeys(guard.Settings._fields, "") | {"output_bytes": 1, "cgroup": None, "subreaper": False}
    return guard.Settings(**{**rest, "grace_seconds": grace, "life_seconds": life})  # type: ignore[arg-type]


def test_a_guard_that_slept_gives_its_worker_the_rest_of_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    hand, killed = Hand(), []
    monkeypatch.setattr(guard.time, "monotonic", hand)  # type: ignore[attr-defined]
    monkeypatch.setattr(guard.os, "kill", lambda pid, number: killed.append((pid, number)))  # type: ignore[attr-defined]
    stop = guard._Stop(4711, settings(grace=1.0, life=60.0))
    for _ in range(30):
        assert stop.timeout() == guard._TICK_SECONDS
        hand.now += 1
        stop.enforce()
    hand.now += 8 * HOUR
    stop.enforce()
    assert killed == []
    for _ in range(29):
        hand.now += 1
        stop.enforce()
    assert killed == []
    for _ in range(4):  # 60 seconds of life, and twice the grace
        hand.now += 1
        stop.enforce()
    assert killed[0] == (4711, signal.SIGKILL)


def test_who_was_told_to_stop_and_then_slept_has_its_grace_after_it_woke(monkeypatch: pytest.MonkeyPatch) -> None:
    hand, killed = Hand(), []
    monkeypatch.setattr(guard.time, "monotonic", hand)  # type: ignore[attr-defined]
    monkeypatch.setattr(guard.os, "kill", lambda pid, number: killed.append(number))  # type: ignore[attr-defined]
    stop = guard._Stop(4711, settings(grace=5.0, life=None))
    stop.on_signal(signal.SIGTERM, None)
    hand.now += HOUR
    stop.enforce()
    assert killed == [signal.SIGTERM, signal.SIGCONT]
    for _ in range(5):
        hand.now += 1
        stop.enforce()
    assert killed[2:] == [signal.SIGKILL]


def test_guard_and_worker_mean_the_same_by_a_sleep() -> None:
    """The guard imports nothing of ours."""
    assert (guard._TICK_SECONDS, guard._LATE_SECONDS) == (lived.TICK_SECONDS, lived.LATE_SECONDS)


def test_a_worker_that_is_just_starting_when_the_machine_falls_asleep_is_not_late_when_it_wakes(
    monkeypatch: pytest.MonkeyPatch, root: Path
) -> None:
    """faults 26, 27: a start has a limit of its own, each attempt anew."""
    hand = Hand()
    monkeypatch.setattr(supervision.time, "monotonic", hand)  # type: ignore[attr-defined]
    supervisor = coordinator.Coordinator(Config(str(root)), LocalEngine())
    attempt = AttemptState(1, "task-20261130-142501-001.1", "")
    assert not supervisor.overdue(attempt)
    hand.now += 8 * HOUR
    assert not supervisor.overdue(attempt)
    seconds = 0
    while not supervisor.overdue(attempt):
        hand.now += 1
        seconds += 1
    assert supervision.STARTUP_SECONDS - 3 <= seconds <= supervision.STARTUP_SECONDS + 1
    assert not supervisor.overdue(AttemptState(2, "task-20261130-142501-001.2", ""))


async def test_a_tree_that_was_stopped_for_longer_than_its_limits_goes_on_and_nothing_has_timed_out(
    root: Path, ledger: Ledger, gate: Path
) -> None:
    """fault 63: as a paused container, or a machine that slept. Attempt and step have limits shorter than that."""
    life = 7.0
    while not await slept_through(root, ledger, gate, life):
        life *= 3  # a busy machine needed most of it to begin
        ledger.path.unlink()


async def slept_through(root: Path, ledger: Ledger, gate: Path, life: float) -> bool:
    """Whether a worker of so many seconds was stopped for longer than that and did all of its work afterwards; False
    when it had not begun within a third of its life."""
    what = kit.spec("waits_with_a_limit", ledger, gate=str(gate), seconds=life)
    async with Coordinator(root) as many:
        begun = time.monotonic()
        handle = await many.spawn(dataclasses.replace(what, limits=Limits(attempt_seconds=life, deaths=1000)))
        await ledger.has("two began 1", 120)
        tree = kit.identities(handle.where)
        if tree is None or time.monotonic() - begun > life / 3:
            await handle.cancel()
            return False
        for who in reversed(tree):
            os.kill(who.pid, signal.SIGSTOP)
        stopped = time.monotonic()
        await kit.until(lambda: time.monotonic() > stopped + life + 1, "it was stopped longer than it may live", 300)
        for who in tree:
            os.kill(who.pid, signal.SIGCONT)
        await kit.open_gate(gate)
        assert (await handle.wait(60)).ok
    assert kit.tries(ledger, "two") == [1]
    assert len(kit.entries(handle.where, "attempt")) == 1
    assert not kit.entries(handle.where, "raised")
    return True


# -- the time of day, set by hand in every process -------------------------------------------------------------------

_CLOCK = """
import os, time
_real = time.time
def _told():
    said = open(os.environ["ORCHESTRATOR_TEST_CLOCK"]).read()
    return float(said[1:]) if said.startswith("=") else _real() + float(said or 0)
time.time = _told
"""


class DayClock:
    """The time of day as every process of the product is told it: shifted by seconds, or standing still."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.shift(0)

    def shift(self, seconds: float) -> None:
        self._write(str(seconds))

    def stand_still(self, at: float) -> None:
        self._write(f"={at}")

    def _write(self, text: str) -> None:
        beside = self.path.with_suffix(".new")
        beside.write_text(text)
        beside.replace(self.path)


@pytest.fixture
def day(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DayClock:
    (tmp_path / "clock").mkdir()
    (tmp_path / "clock" / "sitecustomize.py").write_text(_CLOCK)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "clock"))
    monkeypatch.setenv("ORCHESTRATOR_TEST_CLOCK", str(tmp_path / "told"))
    return DayClock(tmp_path / "told")


def six_steps(root: Path, ledger: Ledger) -> Any:
    return kit.orchestrator(root, "run", "--json", f"{kit.SKILLS}:six_steps", "--arg", f"ledger={ledger.path}")


async def said_by(caller: Any) -> str:
    out, err = await anyio.to_thread.run_sync(caller.communicate)
    assert "Traceback" not in err, err
    assert caller.returncode == 0, (out, err)
    return str(out)


async def test_a_task_whose_clock_jumps_by_hours_back_and_forth_keeps_its_limits_its_order_and_its_pace(
    root: Path, ledger: Ledger, gate: Path, day: DayClock
) -> None:
    what = kit.spec("waits_with_a_limit", ledger, gate=str(gate), seconds=60.0, raises=True)
    where, supervisor = kit.start_supervised(root, what)
    await ledger.has("two began 1")
    day.shift(7 * HOUR)  # no limit has passed
    kit.kill_worker(where)
    await kit.until(lambda: len(kit.entries(where, "started")) == 2, "the next one begins, without a pause of hours")
    await ledger.has("two began 2")
    day.shift(-5 * HOUR)
    again = Coordinator(root)
    assert (await again.order(where.task_id, "send", patience=0, text="hello"))[0] is None
    await kit.open_gate(gate)
    await anyio.to_thread.run_sync(supervisor.wait)
    seen = store.look(where)
    assert seen.state == "completed"
    assert seen.announcement().seconds >= 0  # type: ignore[union-attr]
    assert [kit.tries(ledger, step) for step in ("one", "two", "three")] == [[1], [1, 2], [1, 2]]
    entries = list(store.read_journal(where).entries)
    assert sorted(e["at"] for e in entries) != [e["at"] for e in entries]  # the clock did jump
    for run in {e["run"] for e in entries}:
        numbers = [e["seq"] for e in entries if e["run"] == run]
        assert numbers == list(range(1, len(numbers) + 1))
    told = await said_by(kit.orchestrator(root, "retro", where.task_id))
    told += await said_by(kit.orchestrator(root, "explain", where.task_id))
    told += await said_by(kit.orchestrator(root, "show", where.task_id))
    assert not re.search(r"(?<![\w-])-\d+(?:\.\d+)? (?:s|h|min|d)\b", told), told
    retro = json.loads(await said_by(kit.orchestrator(root, "retro", "--json", where.task_id)))
    assert negative(retro) == []


def negative(value: Any, name: str = "") -> list[str]:
    """The names of numbers below zero in something that was JSON."""
    if isinstance(value, dict):
        return [found for key, inner in value.items() for found in negative(inner, f"{name}.{key}")]
    if isinstance(value, list):
        return [found for inner in value for found in negative(inner, name)]
    return [name] if isinstance(value, int | float) and not isinstance(value, bool) and value < 0 else []


async def test_a_whole_life_within_one_millisecond_is_told_in_its_order(
    root: Path, ledger: Ledger, day: DayClock
) -> None:
    day.stand_still(datetime(2026, 12, 31, 23, 59, 59, 999_000, UTC).timestamp())
    ids = []
    for _ in range(3):
        out = await said_by(
            kit.orchestrator(root, "run", "--json", f"{kit.SKILLS}:six_steps", "--arg", f"ledger={ledger.path}")
        )
        ids.append(json.loads(out)["task"])
    assert ids == [f"task-20261231-235959-{n:03}" for n in (1, 2, 3)]
    assert store.task_ids(str(root)) == ids
    for task_id in ids:
        where = Paths(str(root / task_id))
        entries = store.read_journal(where).entries
        assert {e["at"] for e in entries} == {"2026-12-31T23:59:59.999Z"}
        assert [e["kind"] for e in entries[:3]] == ["created", "attempt", "started"]
        assert [e["kind"] for e in entries[-2:]] == ["end", "closed"]
        said = store.look(where).announcement()
        assert said is not None
        assert (said.id, said.ok, said.seconds) == (f"{task_id}.1.end", True, 0.0)
    assert [kit.tries(ledger, step) for step in ("gather", "report")] == [[1, 1, 1]] * 2


async def test_an_order_given_after_the_clock_was_set_back_is_carried_out_though_the_journal_was_lost(
    root: Path, ledger: Ledger, gate: Path
) -> None:
    """It was given to no journal: that tells it from an old one, and not what the clock said."""
    where = await kit.start_and_leave(root, kit.spec("waits_in_two", ledger, gate=str(gate)))
    await ledger.has("two began 1")
    kit.kill_worker(where)
    await kit.let_go(where)
    os.unlink(where.journal)
    set_back = coordinator.Coordinator(Config(str(root)), LocalEngine(), clock=lambda: time.time() - 5 * HOUR)
    assert (await set_back.cancel(where.task_id)).status == "cancelled"
    assert kit.tries(ledger, "two") == [1]


# -- ids -------------------------------------------------------------------------------------------------------------


def make(root: Path, clock: Callable[[], float]) -> str:
    where, lock = workspace.create(str(root), TaskSpec("the work", "python", "m:f"), clock)
    os.close(lock)
    return where.task_id


def test_ids_stay_unique_and_sorted_by_what_the_clock_said_over_the_end_of_a_year_and_back(root: Path) -> None:
    end = datetime(2026, 12, 31, 23, 59, 59, 999_999, UTC).timestamp()
    moments = [end, end + 0.001, end, end - 5 * HOUR, end + 0.001, end]
    ids = [make(root, lambda at=at: at) for at in moments]  # type: ignore[misc]
    assert len(set(ids)) == len(ids)
    assert ids[0] == "task-20261231-235959-001"
    assert ids[1] == "task-20270101-000000-001"
    told = store.task_ids(str(root))
    assert told == [ids[3], ids[0], ids[2], ids[5], ids[1], ids[4]]
    assert [row.id for row in store.rows(str(root))] == told


def test_the_thousandth_task_of_a_second_stands_behind_the_nine_hundredth_and_before_the_next_second(
    root: Path,
) -> None:
    for name in ("task-20261231-235959-1000", "task-20261231-235959-999", "task-20270101-000000-001"):
        (root / name).mkdir()
    assert store.task_ids(str(root))[1] == "task-20261231-235959-1000"
    assert make(root, lambda: datetime(2026, 12, 31, 23, 59, 59, tzinfo=UTC).timestamp()).endswith("-1001")


def test_a_task_that_will_have_ended_tomorrow_is_not_cleared_away_as_an_old_one(root: Path) -> None:
    """The clock was set back since: its age is below zero, and that is not long."""
    now = 1.8e9
    where, lock = workspace.create(str(root), TaskSpec("the work", "python", "m:f"), lambda: now + 24 * HOUR)
    task = take_over(where, lambda: now + 24 * HOUR)
    task.begin_attempt()
    task.end(task.announcement(Outcome.COMPLETED, ""))
    task.close()
    os.close(lock)
    assert list(clearing.candidates(str(root), clearing.rule(older_days=1, failed=False, clock=lambda: now))) == []
    later = clearing.rule(older_days=1, failed=False, clock=lambda: now + 49 * HOUR)
    assert [one.id for one in clearing.candidates(str(root), later)] == [where.task_id]


# -- zones -----------------------------------------------------------------------------------------------------------

ZONES = ("UTC", "Europe/Berlin", "America/St_Johns", "Pacific/Apia")


@pytest.mark.parametrize("zone", ZONES)
def test_a_moment_is_the_same_in_every_zone_also_where_the_hour_is_skipped_or_told_twice(
    zone: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        changes = [
            datetime(2026, month, day, tzinfo=UTC).timestamp() for month, day in ((3, 8), (3, 29), (10, 25), (11, 1))
        ]
        changes.append(datetime(2011, 12, 30, tzinfo=UTC).timestamp())  # a day that Apia never had
        moments = [at + quarter * 900.0 for at in changes for quarter in range(-100, 100)]
        stamps = [store.timestamp(at) for at in moments]
        assert [store.seconds_of(stamp) for stamp in stamps] == moments
        assert stamps[:200] == sorted(stamps[:200])
        assert store.seconds_of("2026-03-29T02:30:00") == store.seconds_of("2026-03-29T02:30:00Z")  # another tool's
    finally:
        monkeypatch.undo()
        time.tzset()


async def test_what_is_told_of_a_task_is_the_same_in_every_zone(
    root: Path, ledger: Ledger, day: DayClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    day.stand_still(datetime(2026, 3, 29, 1, 30, tzinfo=UTC).timestamp())  # half past a change of the hour
    heard: dict[str, list[str]] = {}
    for zone in ZONES[::-1]:
        monkeypatch.setenv("TZ", zone)
        out = await said_by(
            kit.orchestrator(root, "run", "--json", f"{kit.SKILLS}:six_steps", "--arg", f"ledger={ledger.path}")
        )
        task_id = json.loads(out)["task"]
        assert task_id.startswith("task-20260329-013000-")
        where = Paths(str(root / task_id))
        text = Path(where.retro).read_text() + Path(where.step("gather.md")).read_text()
        heard[zone] = [text.replace(task_id, "ID")]
        for words in (("list", "--json"), ("explain", "--json", store.task_ids(str(root))[0])):
            if zone in ("UTC", "Pacific/Apia"):
                heard[zone].append(await said_by(kit.orchestrator(root, *words)))
    told = heard["Pacific/Apia"][0]
    assert "2026-03-29T01:30:00.000Z" in told
    assert all(texts[0] == told for texts in heard.values())
    for here, there in zip(heard["UTC"][1:], heard["Pacific/Apia"][1:], strict=True):
        assert set(re.findall(r"2026-[-\d]+T[\d:.]+Z", here)) == set(re.findall(r"2026-[-\d]+T[\d:.]+Z", there))


# -- times of files --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "when", [time.time() + 9 * HOUR, 0.0, 1.0], ids=["in the future", "at the epoch", "just after"]
)
def test_a_file_with_an_impossible_time_is_read_all_the_same_and_soon(tmp_path: Path, when: float) -> None:
    path = tmp_path / "task.md"
    path.write_text("[start done]\n")
    os.utime(path, (when, when))
    begun = time.monotonic()
    assert files.read_settled(str(path)) == b"[start done]\n"
    assert files.read_settled(str(path), b"other") == b"[start done]\n"
    assert 0 <= files.unsettled_seconds(str(path)) <= files.SETTLE_SECONDS
    assert time.monotonic() - begun < 60


@pytest.fixture
def shown(tmp_path: Path) -> face.Face:
    """A task.md that we have written, on a file system whose clock knows whole seconds."""
    snapshot = Snapshot()
    for n, step in enumerate(("fetch", "send"), 1):
        snapshot.apply({"run": "task-20261130-142501-001.0", "seq": n, "kind": "plan", "steps": [{"step": step}]})
    assert StepId("fetch", 1) in snapshot.labels
    made = checklist.new("the work", "task-20261130-142501-001")
    found = face.Face(str(tmp_path / "task.md"), made, snapshot, None)
    found.flush()
    return found


def coarse(path: str) -> None:
    found = os.stat(path)
    os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns // 10**9 * 10**9))


def test_an_edit_of_the_same_length_within_one_tick_of_the_disks_clock_is_not_missed(shown: face.Face) -> None:
    """`[pending]` and `[skipped]` are of one length, and an editor that writes in place keeps the file's number."""
    coarse(shown.path)
    shown._remember(face._stamp(shown.path))
    assert not shown.touched()
    text = Path(shown.path).read_bytes()
    assert b"[pending] send" in text
    before = os.stat(shown.path)
    with open(shown.path, "r+b") as file:
        file.write(text.replace(b"[pending] send", b"[skipped] send"))
    os.utime(shown.path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert face._stamp(shown.path) == shown._stamp
    assert shown.touched()
    edited = shown.edited()
    assert edited is not None
    assert b"[skipped] send" in edited.text
    assert not shown.touched()


def test_a_file_that_nobody_touches_is_read_no_more_once_its_time_proves_it(
    shown: face.Face, monkeypatch: pytest.MonkeyPatch
) -> None:
    hand = Hand()
    monkeypatch.setattr(face.time, "monotonic", hand)  # type: ignore[attr-defined]
    coarse(shown.path)
    shown._remember(face._stamp(shown.path))
    reads: list[str] = []
    real = files.read
    monkeypatch.setattr(face.files, "read", lambda path: reads.append(path) or real(path))  # type: ignore[attr-defined]
    for _ in range(3):
        assert not shown.touched()
    assert len(reads) == 3
    hand.now += face.COARSE_SECONDS + 0.1
    for _ in range(5):
        assert not shown.touched()
    assert len(reads) == 4


@pytest.mark.parametrize("age, fresh", [(0.0, True), (2.0, True), (-9 * HOUR, True), (60.0, False)])
def test_a_task_whose_files_have_just_changed_is_looked_at_once_more_before_it_is_set_aside(
    root: Path, age: float, fresh: bool
) -> None:
    where = Paths(str(root / make(root, time.time)))
    for path in (where.journal, where.task_md):
        os.utime(path, (time.time() - age, time.time() - age))
    served = serving.Serving(Coordinator(root), 5, None)
    mark = serving.signature(where)
    served._put_aside(where, mark)
    assert (served._aside[where.task_id].due is not None) is fresh
    served._put_aside(where, mark)  # and then not again and again
    assert served._aside[where.task_id].due is None
