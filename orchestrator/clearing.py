"""Which ended tasks may be removed, how large each is, and removing them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

from orchestrator import containment, recovery, store, strays, workspace
from orchestrator.core.model import Outcome
from orchestrator.errors import OrchestratorError
from orchestrator.store import Clock, Look, Paths
from orchestrator.strays import AtLarge

#: Ends after which nobody comes back to a task.
ENDED = frozenset({Outcome.COMPLETED, Outcome.CANCELLED})
#: Ends that a person may still retry.
FAILED = frozenset({Outcome.FAILED, Outcome.CONFLICT})


@dataclass(frozen=True, slots=True)
class Candidate:
    """A task that may go. `removed` is None while it was only listed; `kept` says why it was left after all."""

    id: str
    name: str
    state: str
    ended: str
    bytes: int
    removed: bool | None = None
    kept: str = ""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Rule:
    """What may go: tasks that ended so, at least `older_seconds` before `now`."""

    states: frozenset[Outcome]
    older_seconds: float
    now: float

    def allows(self, where: Paths) -> bool:
        """Whether it has ended so long ago, with nothing ordered since. What cannot be known is no."""
        seen = store.look(where)
        end = seen.snapshot.end
        if end is None or end["outcome"] not in self.states or seen.snapshot.unclosed is not None:
            return False
        said = recovery.inspect(where)
        if said.action != "ended" or said.news:
            return False
        return self.now - store.seconds_of(str(end["at"])) >= self.older_seconds


def rule(*, older_days: float, failed: bool, clock: Clock) -> Rule:
    return Rule(ENDED | FAILED if failed else ENDED, older_days * 86400.0, clock())


def candidates(root: str, rule: Rule) -> Iterator[Candidate]:
    """The tasks that may go, oldest first. One that cannot be judged is none."""
    for task_id in store.task_ids(root):
        try:
            where = store.paths(root, task_id)
            if store.ended_by_tail(where) is None or not rule.allows(where) or _is_needed(where):
                continue
            row = store.row(where)
            yield Candidate(task_id, row.name, row.state, row.at, size(where.directory))
        except (OSError, OrchestratorError, ValueError):
            continue


def _is_needed(where: Paths) -> bool:
    """Whether it is the sub-task of one that has not ended: that one may ask for its result again."""
    from orchestrator import inspection  # not where nothing may go

    spec, _ = inspection.spec_of(where)
    if spec is None or not spec.parent:
        return False
    parent = Paths(os.path.join(os.path.dirname(where.directory), spec.parent.partition("/")[0]))
    return os.path.isdir(parent.directory) and store.look(parent).snapshot.end is None


def size(directory: str) -> int:
    """Bytes that its files take on the disk, links not followed; each of several names of one file counts."""
    total = 0
    for path, _, names in os.walk(directory):
        for name in names:
            try:
                total += os.lstat(os.path.join(path, name)).st_blocks * 512
            except OSError:
                continue
    return total


def remove(root: str, found: list[Candidate], rule: Rule) -> Iterator[Candidate]:
    """Remove what was listed, as far as it still may go. What keeps one from going keeps no other."""
    for one in found:
        try:
            where = store.paths(root, one.id)
            if rule.allows(where):
                strays.end(where, AtLarge.of(root), rule.now)
            workspace.remove(root, one.id, lambda where: rule.allows(where) and not _lives(where))
            yield replace(one, removed=True)
        except OrchestratorError as error:
            yield replace(one, removed=False, kept=error.what)
        except OSError as error:
            removed = not os.path.lexists(os.path.join(root, one.id))
            yield replace(one, removed=removed, kept=f"{error.filename}: {error.strerror}")


def _lives(where: Paths) -> bool:
    """Whether any process carries the mark of one of its attempts, even one that does not hold its lock."""
    seen: Look = store.look(where)
    marks = {attempt.token for attempt in seen.snapshot.attempts if attempt.token}
    return any(True for mark in marks for _ in containment.marked(mark))
