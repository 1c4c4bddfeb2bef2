"""From a worker's name to the function it means."""

from __future__ import annotations

import hashlib
import importlib
import importlib.metadata
import importlib.util
import inspect
import os
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from orchestrator.errors import UnknownSkill

Skill = Callable[..., Awaitable[Any]]

#: Distributions offer skills under this entry-point group.
ENTRY_POINTS = "orchestrator.skills"


def load(reference: str, import_paths: Sequence[str]) -> Skill:
    """The skill that `module:function`, `path/to/file.py:function` or an entry point's name means.

    Raises UnknownSkill with what is wrong; an error in the module itself comes as it is.
    """
    sys.dont_write_bytecode = True  # a skill changed twice within a second must not be taken from a cache
    for path in reversed(import_paths):
        if path not in sys.path:
            sys.path.insert(0, path)
    place, _, name = reference.rpartition(":")
    if not place:
        return _checked(_entry_point(reference), reference)
    module = _from_file(place) if place.endswith(".py") else _from_module(place)
    found: Any = module
    for part in name.split("."):
        found = getattr(found, part, None)
    return _checked(found, reference)


def _checked(found: Any, reference: str) -> Skill:
    if found is None:
        raise UnknownSkill(f"{reference}: there is no such function", "name it as module:function")
    if not inspect.iscoroutinefunction(found):
        raise UnknownSkill(f"{reference} is not an async function", "a skill is written `async def skill(task, ...)`")
    skill: Skill = found
    return skill


def _from_module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not (name == error.name or name.startswith(error.name + ".")):
            raise  # the module is there, one that it imports is not
        raise UnknownSkill(
            f"{name}: there is no such module", f"it is looked for in: {os.pathsep.join(sys.path[:5])}"
        ) from error


def _from_file(path: str) -> Any:
    name = os.path.basename(path)[:-3]
    spec = importlib.util.spec_from_file_location(name, path) if os.path.isfile(path) else None
    if spec is None or spec.loader is None:
        raise UnknownSkill(f"{path}: there is no such file", "name a Python file that exists")
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(name, module)
    directory = os.path.dirname(os.path.abspath(path))
    if directory not in sys.path:
        sys.path.insert(0, directory)
    spec.loader.exec_module(module)
    return module


def _entry_point(name: str) -> Any:
    found = [e for e in importlib.metadata.entry_points(group=ENTRY_POINTS) if e.name == name]
    return found[0].load() if found else None


def version(skill: Skill) -> str | None:
    """A short hash of the file the skill is defined in: changes when the skill changes. None when there is no file."""
    try:
        path = inspect.getsourcefile(skill)
        if path is None:
            return None
        with open(path, "rb") as file:
            return hashlib.sha256(file.read()).hexdigest()[:12]
    except (OSError, TypeError):
        return None
