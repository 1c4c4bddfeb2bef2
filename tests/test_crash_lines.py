"""Runs are killed before each line that they execute where state is read, written and decided on.

SIGKILL, of the process that comes to the line: of a worker, which its coordinator sees, or of the coordinator with all
that it started. The seed of what is drawn is printed; see test_disk_faults.py.
"""

from __future__ import annotations

import functools
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import judging
import pytest
import scenarios
import tracing
from judging import Told
from scenarios import Scenario

#: How many are drawn in every run of the tests, in how many parts; and how often a line is died at, beside its last.
COUNT, PARTS, HITS = 224, 4, 2


class Crash(NamedTuple):
    scenario: Scenario
    act: int
    point: str

    @property
    def line(self) -> str:
        return self.point.partition(": ")[2].partition(" ")[0]

    def __str__(self) -> str:
        return f"{self.scenario}, act {self.act + 1}: killed before {self.point}"


@pytest.fixture(scope="module", autouse=True)
def clean() -> Iterator[None]:
    yield
    scenarios.clean_up()


@functools.cache
def deaths(scenario: Scenario, number: int) -> list[Crash]:
    """Every line of one act, as an undisturbed run comes to it."""
    with tempfile.TemporaryDirectory(dir=scenarios.temporary_base()) as base:
        place = scenario.place(Path(base) / "place")
        for earlier in range(number):
            assert scenario.act(place, earlier).code == 0
        with tracing.installed(Path(base) / "log") as tracer:
            ran = judging.command(scenario, place, number, tracer.begin)
        assert ran.value is not None, ran.error
        assert ran.value.code == 0, ran.value.err
        points = tracing.points(Path(base) / "log", HITS)
    return [Crash(scenario, number, point) for point in points]


def attempt(crash: Crash) -> tuple[list[str], bool]:
    """What is wrong after one death, and whether the line was reached."""
    scenario, number, point = crash
    with tempfile.TemporaryDirectory(dir=scenarios.temporary_base()) as base:
        place = scenario.place(Path(base) / "place")
        for earlier in range(number):
            assert scenario.act(place, earlier).code == 0
        by_hand = judging.look(place).by_hand
        with tracing.installed(Path(base) / "log", point) as tracer:
            ran = judging.command(scenario, place, number, tracer.begin)
            come = tracer.has_killed
        died = ran.code == -signal.SIGKILL
        wrong = [] if died else [*judging.of_the_telling(ran), *judging.of_a_success(scenario, number, place, ran)]
        told = ran.value.told if isinstance(ran.value, Told) else ()
        wrong += judging.of_the_disk(place, by_hand, told)
        wrong += judging.of_the_end(scenario, number, place, judging.look(place), told)
    return wrong, come


def everything(part: judging.Part) -> list[Crash]:
    return [one for scenario in part.scenarios for act in range(len(scenario.acts)) for one in deaths(scenario, act)]


def _module(crash: Crash) -> object:
    """Of a module, and by whom."""
    return crash.line.partition(":")[0], crash.point[:6]


@pytest.mark.parametrize("part", judging.parts(PARTS), ids=str)
def test_whatever_line_a_process_dies_at_one_recover_brings_the_task_to_its_end(part: judging.Part) -> None:
    all_of_it = everything(part)
    crashes = part.of(all_of_it, [_module, lambda crash: crash.line], COUNT)
    begun, wrong, missed, workers = time.monotonic(), [], 0, 0
    for crash in crashes:
        found, come = attempt(crash)
        missed += not come
        workers += crash.point.startswith("worker")
        wrong += [f"{crash}: {what}" for what in found]
    lines = len({crash.line for crash in crashes})
    print(
        f"every line, {part}: {len(crashes)} of {len(all_of_it)} deaths ({workers} of workers) "
        f"before {lines} lines, {missed} were not reached, {len(wrong)} wrong, {time.monotonic() - begun:.0f} s, "
        f"seed {judging.SEED}"
    )
    assert not wrong, "\n".join([f"seed {judging.SEED}", *wrong])
    assert missed <= len(crashes) / 10
    if part.parts <= PARTS and not judging.TRIALS:
        assert {_module(crash) for crash in crashes} == {_module(crash) for crash in all_of_it}, "a module is left out"
