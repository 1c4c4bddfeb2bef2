"""Processes that outlive their attempt: told by the mark in their own environment, never by a task's files alone.

Commonly the guard ends them, and whoever goes on with the task ends what a killed guard left. A task that has ended, or
waits for a person, nobody goes on with: so whoever looks at it next ends them.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass

from orchestrator import containment, files, holders, identity, store
from orchestrator.core.snapshot import AttemptState, Snapshot
from orchestrator.errors import Damaged
from orchestrator.holders import Seen
from orchestrator.store import Paths

#: After its end a worker has its grace to be gone; a process that is there still, so much later, is a stray.
GRACE_SECONDS = 10.0
#: How long their end is waited for, so that their cgroup can go as well.
_END_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class AtLarge:
    """The marked processes of a root, and the cgroups of workers, in one moment: looked at once for many tasks."""

    root: str
    processes: tuple[Seen, ...]
    cgroups: tuple[str, ...]
    tokens: frozenset[bytes]

    @classmethod
    def of(cls, root: str) -> AtLarge:
        marked = (seen for seen in holders.processes() if seen.token and seen.pid != os.getpid())
        ours = tuple(seen for seen in marked if seen.belongs_to(root))
        cgroups = tuple(containment.all_of_workers())
        tokens = {seen.token for seen in ours} | {containment.token_of(cgroup) for cgroup in cgroups}
        return cls(root, ours, cgroups, frozenset(token.encode() for token in tokens))


def over(where: Paths, snapshot: Snapshot, now: float) -> Iterator[AttemptState]:
    """The attempts of which no process may be left. Those of a task that this is a copy of are none of ours."""
    here = [attempt for attempt in snapshot.attempts if store.begun_here(where, attempt)]
    yield from (attempt for attempt in here if attempt is not snapshot.attempt)  # dead when a further one was begun
    last = here[-1] if here else None
    if last is None or last is not snapshot.attempt:
        return
    late = last.closed is not None and now - store.seconds_of(snapshot.last_at) > GRACE_SECONDS
    if late or both_dead(last):
        yield last


def both_dead(attempt: AttemptState) -> bool:
    """Worker and guard have said who they are, and are known to be dead."""
    return all(who is not None and identity.alive(who) is False for who in (attempt.identity, attempt.guard))


def end(where: Paths, at_large: AtLarge, now: float) -> list[Seen]:
    """End what is left of the attempts of a task which are over; returns the processes that were signalled.

    Only such as name the root themselves: a copy of a workspace names the processes of another.
    """
    try:
        data = files.read(where.journal, files.JOURNAL_BYTES) if at_large.tokens else b""
    except (Damaged, OSError):
        return []
    if not any(token in data for token in at_large.tokens):  # the usual case costs no parsing
        return []
    snapshot = store.look(where, with_face=False).snapshot
    marks = {a.token: a for a in over(where, snapshot, now) if a.token}
    found = [seen for seen in at_large.processes if seen.token in marks and identity.alive(seen.who) is True]
    for seen in found:
        containment.send(seen.pid, signal.SIGKILL)
    deadline = time.monotonic() + _END_SECONDS
    while any(identity.alive(seen.who) for seen in found) and time.monotonic() < deadline:
        time.sleep(0.005)
    for cgroup in at_large.cgroups:
        if containment.token_of(cgroup) in marks:
            containment.remove_empty(cgroup)
    return found
