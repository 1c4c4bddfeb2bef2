"""Every file operation of every scenario fails, once or from there on: nothing is lost, nothing is done twice.

Errors that are left out: EINTR (Python calls again by itself, PEP 475), and what a network file system adds.
The seed of what is drawn is printed; ORCHESTRATOR_TEST_SEED=<seed> draws the same again, ORCHESTRATOR_TEST_TRIALS=all
tries all of it (`make crashes`).
"""

from __future__ import annotations

import errno
import functools
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import failing
import judging
import pytest
import scenarios
from failing import SCOPES, SHORT, Fault
from judging import Told
from scenarios import SCENARIOS, Scenario

#: How many are drawn in every run of the tests, and in how many parts.
COUNT, PARTS = 380, 4


class Trial(NamedTuple):
    scenario: Scenario
    act: int
    fault: Fault

    def __str__(self) -> str:
        return f"{self.scenario}, act {self.act + 1}: {self.fault}"


@pytest.fixture(scope="module", autouse=True)
def clean() -> Iterator[None]:
    yield
    scenarios.clean_up()


@functools.cache
def everything() -> list[Trial]:
    """Every fault at every operation of every act: what an undisturbed run does is written down first."""
    return [trial for scenario in SCENARIOS for number in range(len(scenario.acts)) for trial in _of(scenario, number)]


def _of(scenario: Scenario, number: int) -> list[Trial]:
    with tempfile.TemporaryDirectory(dir=scenarios.temporary_base()) as base:
        place = scenario.place(Path(base) / "place")
        for earlier in range(number):
            assert scenario.act(place, earlier).code == 0
        with failing.installed(Path(base) / "log"):
            ran = judging.command(scenario, place, number)
        assert ran.value is not None, ran.error
        assert ran.value.code == 0, ran.value.err
        points = failing.points(Path(base) / "log")
    return [Trial(scenario, number, fault) for point in points for fault in failing.faults(point, tuple(SCOPES))]


def attempt(trial: Trial) -> tuple[list[str], bool]:
    """What is wrong after one fault, and whether it came at all: two that run at once need not meet a third time."""
    scenario, number, fault = trial
    with tempfile.TemporaryDirectory(dir=scenarios.temporary_base()) as base:
        place = scenario.place(Path(base) / "place")
        for earlier in range(number):
            assert scenario.act(place, earlier).code == 0
        by_hand = judging.look(place).by_hand
        with failing.installed(Path(base) / "log", fault) as layer:
            ran = judging.command(scenario, place, number)
            come = layer.has_failed
        wrong = [
            *judging.of_the_telling(ran),
            *judging.of_the_disk(place, by_hand, face_may_be_lost=fault.lost and "task.md" in fault.point),
            *judging.of_a_success(scenario, number, place, ran),
        ]
        told = ran.value.told if isinstance(ran.value, Told) else ()
        wrong += judging.of_the_end(scenario, number, place, judging.look(place), told)
    return wrong, come


@pytest.mark.parametrize("part", range(PARTS))
def test_whatever_operation_fails_nothing_is_lost_and_whoever_asked_is_told(part: int) -> None:
    trials = judging.drawn(everything(), lambda t: (t.fault.kind, t.fault.error, t.fault.lasting), COUNT)[part::PARTS]
    begun, wrong, missed = time.monotonic(), [], 0
    codes: Counter[int] = Counter()
    for trial in trials:
        found, come = attempt(trial)
        missed += not come
        codes[trial.fault.error] += 1
        wrong += [f"{trial}: {what}" for what in found]
    names = {SHORT: "short write", **errno.errorcode}
    kinds = ", ".join(f"{names[code]} {count}" for code, count in codes.most_common())
    print(
        f"errors of the disk, part {part + 1} of {PARTS}: {len(trials)} of {len(everything())} faults ({kinds}), "
        f"{missed} did not come, {len(wrong)} wrong, {time.monotonic() - begun:.0f} s, seed {judging.SEED}"
    )
    assert not wrong, "\n".join([f"seed {judging.SEED}", *wrong])
    assert missed <= len(trials) / 20
