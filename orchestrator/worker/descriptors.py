"""The descriptors by which a worker's loop wakes: a skill that closes or inherits them must not leave it asleep.

A loop whose descriptors were closed under it, by `os.closerange` in a thread, sleeps until the limit of its attempt. A
child that was forked shares the loop's epoll with its parent: ending its own copy of the loop would empty the parent's.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

_EPOLL = "anon_inode:[eventpoll]"


def _links() -> Iterator[tuple[int, str]]:
    """Each open descriptor and what it is; none where that cannot be seen."""
    with contextlib.suppress(OSError):
        for name in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):
                yield int(name), os.readlink(f"/proc/self/fd/{name}")


class Own:
    """What the loop wakes by, as it is when this is made: before any code of a skill has run."""

    def __init__(self) -> None:
        self._known = {fd: link for fd, link in _links() if link == _EPOLL or link.startswith("socket:")}

    def intact(self) -> bool:
        return all(_is(fd, link) for fd, link in self._known.items())


def _is(fd: int, link: str) -> bool:
    try:
        return os.readlink(f"/proc/self/fd/{fd}") == link
    except OSError:
        return False


def leave_the_loop_of_the_parent() -> None:
    """In a forked child: nothing that it does to its copy of the loop reaches the parent's."""
    for fd, link in list(_links()):
        if link == _EPOLL:
            with contextlib.suppress(OSError):
                nothing = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
                os.dup2(nothing, fd, inheritable=False)
                os.close(nothing)
