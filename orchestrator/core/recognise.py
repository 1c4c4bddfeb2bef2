"""Which step a line of task.md stands for, told by its checkpoints, the spec, or its name alone. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence

from orchestrator.core import names
from orchestrator.core.checklist import display
from orchestrator.core.model import StepId

_COUNTED = re.compile(r"(.+) \(([2-9]|[1-9][0-9]{1,5})\)")


def by_line(told: Collection[StepId]) -> dict[str | tuple[str, int], list[StepId]]:
    """The steps by what a line of theirs may say: the label that we give them, or the name, as the n-th of it."""
    index: dict[str | tuple[str, int], list[StepId]] = {}
    for step in told:
        index.setdefault(names.label(step, ()), []).append(step)
        index.setdefault((display(step.name), step.n), []).append(step)
    return index


def recognised(
    name: str,
    n: int,
    told: Mapping[StepId, str],
    index: Mapping[str | tuple[str, int], Sequence[StepId]],
    used: Collection[StepId],
) -> StepId | None:
    """The step of which there are checkpoints and whose line this is: as we name it, or the n-th of the name."""
    written = re.sub(r" #[0-9]+$", "", name)
    alike = dict.fromkeys(step for key in (name, written, (name, n)) for step in index.get(key, ()))
    own_file = names.file_name(name, ())
    fitting = (step for step in alike if step not in used)
    return min(fitting, key=lambda step: (told[step] != own_file, step != StepId(name, n)), default=None)


def identity(
    name: str, n: int, there: Collection[str], spec_names: Mapping[str, Sequence[str]], used: Collection[StepId]
) -> StepId:
    """What a line is called that no checkpoint tells of. `X (2)` is the second X where there is an X before it."""
    counted = _COUNTED.fullmatch(name)
    if counted is not None and n == 1:
        base, number = counted[1], int(counted[2])
        before = base if number == 2 else f"{base} ({number - 1})"
        second = StepId(_in_spec(base, spec_names), number)
        if before in there and second not in used and display(name).casefold() not in spec_names:
            return second
    step = StepId(_in_spec(name, spec_names), n)
    while step in used:
        step = step._replace(n=step.n + 1)
    return step


def in_specs(spec_names: Collection[str]) -> dict[str, list[str]]:
    """The names of the spec, by what they have in common with others that differ in white space, form, or case only."""
    found: dict[str, list[str]] = {}
    for name in spec_names:
        found.setdefault(display(name).casefold(), []).append(name)
    return found


def _in_spec(name: str, spec_names: Mapping[str, Sequence[str]]) -> str:
    """The spec's own form of a name: exactly this one, or one that differs in white space, form, or case only."""
    alike = spec_names.get(display(name).casefold(), ())
    return next((other for other in alike if display(other) == name), alike[0] if alike else name)
