"""The skill for main sessions, put where agent CLIs look for skills. A file that was changed there is never lost.

What was written is remembered beside it, so that a file that nobody changed can be brought up to date.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from orchestrator import files
from orchestrator.core import skill
from orchestrator.errors import Damaged, Held, Refused, UsageError
from orchestrator.skillfiles import KEPT, Found, contents

#: Beside the files of an installed skill: file -> version, as they were written.
REMEMBERED = ".orchestrator-skill.json"


class Agent(NamedTuple):
    """Where an agent CLI looks for skills. `home`: the directory it makes for itself, by which we know it is used."""

    home: str
    user: str
    project: str


#: As the CLIs document it. {VARIABLE} is of the environment, with its usual value (below) when it is not set.
AGENTS: dict[str, Agent] = {
    "claude": Agent("{CLAUDE_CONFIG_DIR}", "{CLAUDE_CONFIG_DIR}/skills", ".claude/skills"),
    "codex": Agent("{CODEX_HOME}", "{HOME}/.agents/skills", ".agents/skills"),
    "gemini": Agent("{HOME}/.gemini", "{HOME}/.gemini/skills", ".gemini/skills"),
    "opencode": Agent("{XDG_CONFIG_HOME}/opencode", "{XDG_CONFIG_HOME}/opencode/skills", ".opencode/skills"),
}
#: These read codex's directory as well: where that has the skill, another copy would only be one too many.
SHARING = ("gemini", "opencode")
USUAL = {"CLAUDE_CONFIG_DIR": ".claude", "CODEX_HOME": ".codex", "XDG_CONFIG_HOME": ".config"}


class Written(NamedTuple):
    """What was done about one file: `wrote`, `updated` or `same`; `aside` is where its changed content was kept."""

    path: str
    action: str
    aside: str | None = None


def targets(given: tuple[str, ...], environ: Mapping[str, str], *, project: bool) -> list[str]:
    """The directories of skills that are meant: of the CLIs named, else those that serve the ones used here; each once.

    Raises UsageError for a name that is neither a CLI nor a directory, and when no CLI is used here.
    """
    values = _values(environ)
    names = given or _used(values)
    if not names:
        raise UsageError("no agent CLI was used here yet", f"say which: --for {' | '.join(AGENTS)} | DIRECTORY")
    return list(dict.fromkeys(_target(name, values, project) for name in names))


def _used(values: Mapping[str, str]) -> tuple[str, ...]:
    used = [name for name, agent in AGENTS.items() if os.path.isdir(agent.home.format_map(values))]
    return tuple(name for name in used if "codex" not in used or name not in SHARING)


def _values(environ: Mapping[str, str]) -> dict[str, str]:
    home = environ.get("HOME") or os.path.expanduser("~")
    return {"HOME": home, **{name: environ.get(name) or os.path.join(home, usual) for name, usual in USUAL.items()}}


def _target(name: str, values: Mapping[str, str], project: bool) -> str:
    agent = AGENTS.get(name)
    if agent is not None:
        return os.path.abspath(agent.project if project else agent.user.format_map(values))
    if "/" not in name and not os.path.isdir(name):
        raise UsageError(f"{name!r} is no agent CLI we know", f"known: {', '.join(AGENTS)}; a directory: ./{name}")
    return os.path.abspath(name)


def install(found: Found, into: str, *, force: bool) -> list[Written]:
    """Put a skill's files into `into/<name>`; what is there already and the same is left alone.

    A file that somebody changed since it was installed, or that we did not write, is not overwritten: Refused, and
    nothing is written. With `force` it is kept aside first. Raises OSError as the disk says.
    """
    target = os.path.join(into, found.name)
    if os.path.lexists(target) and not os.path.isdir(target):
        raise UsageError(f"{target} is in the way: it is no directory", "move it aside")
    files.make_directories(target)
    with _alone(target):
        wanted = contents(found.directory)
        before = {name: _present(os.path.join(target, name)) for name, _ in wanted}
        remembered = _remembered(target)
        changed = [n for n, new in wanted if before[n] not in (None, new) and not _ours(before[n], remembered.get(n))]
        if changed and not force:
            raise Refused(
                f"changed since it was installed: {', '.join(os.path.join(target, n) for n in changed)}",
                "nothing was written; --force keeps it aside and writes the shipped one",
            )
        said = [_write(os.path.join(target, n), new, before[n], n in changed) for n, new in wanted]
        _remember(target, {**remembered, **{name: _digest(new) for name, new in wanted}})
    return said


@contextlib.contextmanager
def _alone(target: str) -> Iterator[None]:
    lock = files.lock_directory(target)
    if lock is None:
        raise Held(f"{target} is being installed by another process", "try again")
    try:
        yield
    finally:
        os.close(lock)


def _present(path: str) -> bytes | None:
    """What is there; None when nothing is. Raises Refused for what is no plain file: a link may lead anywhere."""
    try:
        return files.read(path)
    except FileNotFoundError:
        return None
    except Damaged:
        raise Refused(f"{path} is no plain file", "nothing was written; move it aside") from None


def _ours(present: bytes | None, remembered: Any) -> bool:
    return present is not None and _digest(present) == remembered


def _digest(content: bytes) -> str:
    return skill.version([("", content)])


def _write(path: str, new: bytes, before: bytes | None, changed: bool) -> Written:
    if before == new:
        return Written(path, "same")
    aside = _keep(path, before) if before is not None and changed else None
    files.make_directories(os.path.dirname(path))
    files.replace(path, new, sync=True)
    return Written(path, "wrote" if before is None else "updated", aside)


def _keep(path: str, content: bytes) -> str:
    number = next(n for n in range(1, 10**6) if not os.path.lexists(f"{path}{KEPT}{n}"))
    aside = f"{path}{KEPT}{number}"
    files.replace(aside, content, sync=True)
    return aside


def _remembered(target: str) -> dict[str, Any]:
    try:
        data = json.loads(files.read(os.path.join(target, REMEMBERED)))
    except (OSError, ValueError, Damaged):
        return {}  # then every file that differs counts as changed
    return data if isinstance(data, dict) else {}


def _remember(target: str, written: dict[str, Any]) -> None:
    if written != _remembered(target):
        data = json.dumps(written, indent=1, sort_keys=True).encode() + b"\n"
        files.replace(os.path.join(target, REMEMBERED), data, sync=True)
