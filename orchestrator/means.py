"""Which means of the operating system are used: each can be switched off, and has a plain fallback.

`ORCHESTRATOR_WITHOUT` names those to do without, separated by commas: `cgroup`, `subreaper`, `pidfd`, `exchange`,
`proc`, `inotify`. What is not there at all (macOS has none of them) is off by itself. Workers inherit the choice.
"""

from __future__ import annotations

import functools
import os
import sys

NAMES = ("cgroup", "subreaper", "pidfd", "exchange", "proc", "inotify")
VARIABLE = "ORCHESTRATOR_WITHOUT"


def has(name: str) -> bool:
    """Whether this means is there and not switched off. Asked anew each time, as tests change the environment."""
    assert name in NAMES, name
    return _present(name) and name not in _without(os.environ.get(VARIABLE, ""))


@functools.lru_cache(maxsize=8)
def _without(text: str) -> frozenset[str]:
    return frozenset(word.strip() for word in text.split(","))


@functools.lru_cache(maxsize=len(NAMES))
def _present(name: str) -> bool:
    if name == "pidfd":
        return hasattr(os, "pidfd_open")
    if name == "proc":
        return os.path.exists("/proc/self/stat")
    return sys.platform == "linux"  # cgroup, exchange and inotify are found out on use
