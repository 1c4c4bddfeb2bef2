"""Whether work goes to a worker: the rule of the table, its order, and that a reason is always given."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import orchestrator
from orchestrator.core.delegation import HEAVY_TOKENS, RULES, Decision, Estimate, should_delegate
from orchestrator.errors import UsageError

estimates = st.builds(Estimate, st.integers(0, 10**7), st.booleans(), st.booleans(), st.booleans())


@pytest.mark.parametrize(
    "estimate, delegate, rule",
    [
        (Estimate(), False, "light"),
        (Estimate(HEAVY_TOKENS), False, "light"),
        (Estimate(HEAVY_TOKENS + 1), True, "heavy"),
        (Estimate(10, nested=True), True, "nested"),
        (Estimate(10, structured=True), True, "structured"),
        (Estimate(10, interactive=True), False, "interactive"),
    ],
)
def test_heavy_nested_and_structured_work_leaves_the_main_session_and_light_work_does_not(
    estimate: Estimate, delegate: bool, rule: str
) -> None:
    said = should_delegate(estimate)
    assert (said.delegate, said.rule) == (delegate, rule)


@given(estimates)
def test_a_user_who_is_asked_as_it_goes_is_never_left_to_a_worker_that_cannot_ask(estimate: Estimate) -> None:
    assert not (estimate.interactive and should_delegate(estimate))


@given(estimates)
def test_every_decision_has_its_reason_in_words_with_the_numbers_filled_in(estimate: Estimate) -> None:
    said = should_delegate(estimate)
    assert said.reason
    assert "{" not in said.reason
    assert bool(said) is said.delegate
    assert said == should_delegate(estimate)


def test_every_rule_of_the_table_can_decide() -> None:
    told = {
        should_delegate(e).rule
        for e in (
            Estimate(),
            Estimate(10**6),
            Estimate(1, True),
            Estimate(1, False, True),
            Estimate(1, interactive=True),
        )
    }
    assert told == {rule.name for rule in RULES}


def test_a_negative_estimate_is_a_mistake_and_not_light_work() -> None:
    with pytest.raises(UsageError, match="less than none"):
        should_delegate(Estimate(-1))


def test_a_program_finds_the_rule_at_the_top_of_the_package() -> None:
    assert isinstance(orchestrator.should_delegate(orchestrator.Estimate(20_000)), Decision)
