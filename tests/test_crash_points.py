"""Every scenario, cut off before and after every operation on a file: what lies there holds, and one recovery mends it.

In CI a sample of the states, which ORCHESTRATOR_TEST_SEED changes; `make cuts` goes through all of them.
"""

from __future__ import annotations

import pytest
from crashing import go_through
from kinds_of_fault import FAULTS, of_a_crash, planted
from scenarios import SCENARIOS, Scenario

#: States of each scenario that are recovered.
SAMPLE = 12


@pytest.mark.parametrize("scenario", SCENARIOS, ids=str)
def test_cut_off_at_any_operation_it_comes_to_the_end_of_an_undisturbed_run(scenario: Scenario) -> None:
    tally = go_through(scenario, "crash", cuts=2, sample=SAMPLE)
    assert not tally.failures, "\n".join(tally.failures)
    assert tally.recoveries >= min(SAMPLE, 4)


@pytest.mark.parametrize("fault", of_a_crash(FAULTS), ids=str)
def test_a_fault_in_the_order_of_the_writes_is_found(fault: str) -> None:
    with planted(fault) as scenario:
        assert go_through(scenario, "crash", cuts=2, stop_at=1).failures, fault
