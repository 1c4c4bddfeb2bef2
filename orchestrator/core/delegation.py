"""Whether a piece of work is worth a worker. The rule is the table; nothing is decided elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from orchestrator.errors import UsageError

#: What a main session should not read and write for one piece of work.
HEAVY_TOKENS = 10_000


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a piece of work will take, as far as one can tell before.

    tokens: read and written for it, the results of tools included. nested: tool calls that follow from the results of
    others. structured: its result is a file or data that something else reads. interactive: the user is asked as it
    goes.
    """

    tokens: int = 0
    nested: bool = False
    structured: bool = False
    interactive: bool = False


@dataclass(frozen=True, slots=True)
class Decision:
    """`delegate`, by which rule of the table, and why. True in a condition when the work goes to a worker."""

    delegate: bool
    rule: str
    reason: str

    def __bool__(self) -> bool:
        return self.delegate


class Rule(NamedTuple):
    name: str
    holds: Callable[[Estimate], bool]
    delegate: bool
    reason: str


#: The first that holds decides. The last always does.
RULES = (
    Rule(
        "interactive",
        lambda e: e.interactive,
        False,
        "the user is asked as it goes, and a worker is elsewhere",
    ),
    Rule("heavy", lambda e: e.tokens > HEAVY_TOKENS, True, f"about {{tokens}} tokens, more than {HEAVY_TOKENS}"),
    Rule("nested", lambda e: e.nested, True, "tool calls follow from one another, and each may be lost in a crash"),
    Rule("structured", lambda e: e.structured, True, "its result is data, which is to be complete and kept"),
    Rule("light", lambda _: True, False, f"about {{tokens}} tokens, at most {HEAVY_TOKENS}, and nothing to keep"),
)


def should_delegate(estimate: Estimate) -> Decision:
    """Whether this work goes to a worker, and why. Raises UsageError for a negative number of tokens."""
    if estimate.tokens < 0:
        raise UsageError(f"{estimate.tokens} tokens: less than none", "give an estimate of 0 or more")
    rule = next(rule for rule in RULES if rule.holds(estimate))
    return Decision(rule.delegate, rule.name, rule.reason.format(tokens=estimate.tokens))
