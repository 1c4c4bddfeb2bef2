"""Skills as directories: where a name is looked for, and what is found there. Reads only.

A skill is `skills/<name>/SKILL.md` and the files beside it. `core.skill` knows the text.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from orchestrator import templates
from orchestrator.core import skill
from orchestrator.errors import BadSpec, OrchestratorError

#: What stands beside a skill's files and is none of them: what was kept aside when one was replaced.
KEPT = ".kept-"


class Place(NamedTuple):
    """A directory that holds skills. `label`: workspace, project, user or package."""

    label: str
    directory: str


@dataclass(frozen=True, slots=True)
class Found:
    """A skill in its place. `problem` says why its SKILL.md cannot be understood, and then `skill` is None."""

    name: str
    place: str
    directory: str
    skill: skill.Skill | None
    problem: OrchestratorError | None = None

    @property
    def file(self) -> str:
        return os.path.join(self.directory, skill.FILE)


def places(environ: Mapping[str, str], *, workspace: str | None = None) -> list[Place]:
    """Where skills are looked for, the first that has a name wins: a task's workspace, the current directory, the
    user's configuration, this package."""
    found = [Place("workspace", os.path.join(workspace, "skills"))] if workspace is not None else []
    home = environ.get("HOME") or os.path.expanduser("~")
    settings = environ.get("XDG_CONFIG_HOME") or os.path.join(home, ".config")
    return [
        *found,
        Place("project", os.path.abspath("skills")),
        Place("user", os.path.join(settings, "orchestrator", "skills")),
        Place("package", templates.shipped("skills")),
    ]


def find(name: str, where: Sequence[Place]) -> Found | None:
    """The skill of this name in the first place that has it; None when none has. Raises BadSpec when it is wrong."""
    if not skill.is_name(name):
        return None
    for place in where:
        found = _at(place, name)
        if found is not None:
            if found.problem is not None:
                raise found.problem
            return found
    return None


def everything(where: Sequence[Place]) -> list[Found]:
    """Every skill that a name leads to, by name; those that are wrong as well."""
    found: dict[str, Found] = {}
    for place in where:
        for name in _names(place):
            here = _at(place, name) if name not in found else None
            if here is not None:
                found[name] = here
    return [found[name] for name in sorted(found)]


def _names(place: Place) -> list[str]:
    try:
        return [name for name in os.listdir(place.directory) if skill.is_name(name)]
    except OSError:  # absent, not a directory, not ours to read: no skills there
        return []


def _at(place: Place, name: str) -> Found | None:
    directory = os.path.join(place.directory, name)
    path = os.path.join(directory, skill.FILE)
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not UTF-8"
        return Found(name, place.label, directory, None, BadSpec(f"{path} cannot be read: {why}", "mend the file"))
    try:
        return Found(name, place.label, directory, skill.parse(text, path, name))
    except BadSpec as error:
        return Found(name, place.label, directory, None, error)


def worker(found: Found) -> str | None:
    """What the skill names as its worker, as `run` takes it; None for instructions only.

    A steps file or a `.py` file is the one beside SKILL.md; so is `module:function` when `module.py` lies there.
    Raises BadSpec for a file that is not there.
    """
    if found.skill is None or found.skill.worker is None:
        return None
    named = found.skill.worker
    if named.endswith((".yaml", ".yml")):
        return _beside(found, named)
    place, _, function = named.rpartition(":")
    if place.endswith(".py"):
        return f"{_beside(found, place)}:{function}"
    module = os.path.join(found.directory, *place.split(".")) + ".py"
    return f"{module}:{function}" if os.path.isfile(module) else named


def _beside(found: Found, name: str) -> str:
    path = os.path.join(found.directory, name)
    if not os.path.isfile(path):
        line = found.skill.worker_line if found.skill else 1
        raise BadSpec(f"{found.file}:{line}: worker: {name} does not lie beside it", "name a file in its directory")
    return path


def contents(directory: str) -> list[tuple[str, bytes]]:
    """The files of a skill, with their names below its directory, sorted. Hidden ones, caches and copies that were kept
    aside are none of them. Raises OSError."""
    return sorted(_contents(directory))


def _contents(directory: str) -> Iterator[tuple[str, bytes]]:
    for here, below, names in os.walk(directory):
        below[:] = [name for name in below if not name.startswith(".") and name != "__pycache__"]
        for name in names:
            path = os.path.join(here, name)
            if not name.startswith(".") and KEPT not in name and os.path.isfile(path):
                with open(path, "rb") as file:
                    yield os.path.relpath(path, directory), file.read()


def version(found: Found) -> str:
    """The version of all the skill's files as they are now."""
    return skill.version(contents(found.directory))
