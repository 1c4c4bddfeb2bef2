"""What a worker's name means: from `module:function`, a file, a skill or a steps file to the spec of a task.

Nothing of the worker is imported for it, and nothing of what would run it.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

from orchestrator import skillfiles
from orchestrator.core.model import Json, Limits, TaskSpec
from orchestrator.core.spec import parse_steps, validate
from orchestrator.errors import BadSpec, UnknownSkill

#: What a worker may be named by: an async function, `module:function`, `file.py:function`, a skill's name, a steps
#: file.
Worker = str | os.PathLike[str] | Callable[..., Any]


def resolve(
    worker: Worker,
    *,
    name: str | None = None,
    args: Mapping[str, Json] | None = None,
    limits: Limits | None = None,
    env: Mapping[str, str] | None = None,
) -> TaskSpec:
    """The spec that a worker's name and arguments mean. Imports nothing of the worker: it may be slow, or do things.

    Raises UnknownSkill when it cannot be found, BadSpec when a steps file or an argument is wrong.
    """
    if callable(worker):
        worker = _reference(worker)
    text = os.fspath(worker)
    named = _of_skill(text)
    target = named or text
    if target.endswith((".yaml", ".yml")):
        return _from_steps_file(target, name, args, limits, env)
    place, _, function = target.rpartition(":")
    reference, import_path = _located(place, function) if place else _by_name(text)
    spec = {
        "name": name or (text if named or not function else function).replace("_", " "),
        "kind": "python",
        "worker": reference,
        "args": _json(args or {}),
        "env": dict(env or {}),
        "import_paths": (import_path,) if import_path else (),
    }
    return dataclasses.replace(validate(spec), limits=limits or Limits())


def _reference(function: Callable[..., Any]) -> str:
    """`module:function` of a function object; `file.py:function` when its module is the program that runs."""
    if not inspect.iscoroutinefunction(function):
        raise UnknownSkill(f"{function!r} is not an async function", "a skill is written `async def skill(task, ...)`")
    if "<" in function.__qualname__:
        raise UnknownSkill(
            f"{function.__qualname__} is defined inside a function: its worker cannot import it",
            "define the skill at the top of a module",
        )
    if function.__module__ == "__main__":
        return f"{_main_place(function)}:{function.__qualname__}"
    return f"{function.__module__}:{function.__qualname__}"


def _main_place(function: Callable[..., Any]) -> str:
    """Where a worker finds what the running program defines: its module's name under `python -m`, else its file."""
    spec = sys.modules["__main__"].__spec__
    if spec is not None:
        return spec.name
    try:
        return os.path.abspath(inspect.getfile(function))
    except (TypeError, OSError):
        raise UnknownSkill(
            f"{function.__qualname__} was typed in and is in no file", "write the skill into a file"
        ) from None


def _located(place: str, function: str) -> tuple[str, str | None]:
    """The reference as the worker will load it, and the directory it needs on its import path."""
    if place.endswith(".py"):
        path = os.path.abspath(place)
        if not os.path.isfile(path):
            raise UnknownSkill(f"{place}: there is no such file", "name a Python file that exists")
        _check_defined(path, function, place)
        return f"{path}:{function}", os.path.dirname(path)
    origin, base = _find_module(place)
    if origin is not None and origin.endswith(".py"):
        _check_defined(origin, function, place)
    return f"{place}:{function}", base


def _find_module(name: str) -> tuple[str | None, str | None]:
    """The file of a module, and the import path it comes from when that is not one of the interpreter's own."""
    import importlib.util

    here = os.getcwd()
    added = here not in sys.path
    if added:
        sys.path.insert(0, here)
    try:
        found = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        found = None
    finally:
        if added:
            sys.path.remove(here)
    if found is None:
        raise UnknownSkill(
            f"{name}: there is no such module",
            f"run it from the directory it lies in, or name its file: path/to/{name.rpartition('.')[2]}.py:function",
        )
    origin = found.origin
    if origin is None or not os.path.exists(origin):
        return None, here
    depth = name.count(".") + (1 if os.path.basename(origin) == "__init__.py" else 0)
    base = os.path.dirname(os.path.abspath(origin))
    for _ in range(depth):
        base = os.path.dirname(base)
    return origin, base


def _check_defined(path: str, function: str, place: str) -> None:
    """Find a typing error before a worker is started for it; a name that may come from elsewhere is its affair."""
    try:
        with open(path, "rb") as file:
            tree = ast.parse(file.read(), path)
    except SyntaxError as error:
        raise UnknownSkill(f"{path}:{error.lineno}: {error.msg}", "mend the line") from error
    wanted = function.split(".")[0]
    for node in tree.body:
        if isinstance(node, ast.AsyncFunctionDef | ast.ClassDef) and node.name == wanted:
            return
        if isinstance(node, ast.FunctionDef) and node.name == wanted:
            if not node.decorator_list:
                raise UnknownSkill(
                    f"{place}:{function} is not async", "a skill is written `async def skill(task, ...)`"
                )
            return
    if _names_bound(tree) & {wanted, _ANYTHING}:
        return
    functions = [n.name for n in tree.body if isinstance(n, ast.AsyncFunctionDef)]
    known = f"it has: {', '.join(functions[:10])}" if functions else "it has no async function"
    raise UnknownSkill(f"{place} has no function {function!r}", known)


#: What stands for names that only show when the module is imported: `import *`, a `__getattr__`.
_ANYTHING = "*"


def _names_bound(tree: ast.Module) -> set[str]:
    names = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names |= {a.asname or a.name.split(".")[0] for a in node.names}
        if isinstance(node, ast.FunctionDef) and node.name == "__getattr__":
            names |= {_ANYTHING}
    return names


def installed_skills() -> dict[str, str]:
    """The skills that installed packages bring: name -> worker."""
    import importlib.metadata

    return {e.name: e.value for e in importlib.metadata.entry_points(group="orchestrator.skills")}


def _of_skill(name: str) -> str | None:
    """The worker that a SKILL.md of this name gives; None when there is none, or an installed package gives it."""
    found = skillfiles.find(name, skillfiles.places(os.environ))
    worker = skillfiles.worker(found) if found else None
    if found is None or worker is not None or name in installed_skills():
        return worker
    raise UnknownSkill(
        f"the skill {name!r} is instructions for an agent: it names no worker to run",
        f"add `worker: module:function`, or a steps file beside it, to the front matter of {found.file}",
    )


def _by_name(name: str) -> tuple[str, str | None]:
    installed = installed_skills()
    if name not in installed:
        raise unknown_skill(name)
    return installed[name], None


def unknown_skill(name: str) -> UnknownSkill:
    """Nothing is called so: the error that lists what there is."""
    lying = skillfiles.everything(skillfiles.places(os.environ))
    runnable = {f.name for f in lying if f.skill and f.skill.worker} | installed_skills().keys()
    others = sorted({f.name for f in lying} - runnable)
    known = f"there is to run: {', '.join(sorted(runnable)) or 'none'}"
    return UnknownSkill(
        f"{name!r} is no skill that is there or installed, and no module:function or steps file (.yaml)",
        f"{known}; for agents to read: {', '.join(others)}" if others else known,
    )


def _json(args: Mapping[str, Any]) -> Mapping[str, Json]:
    import json

    try:
        return dict(json.loads(json.dumps(dict(args), allow_nan=False)))
    except RecursionError:
        raise BadSpec("an argument is nested too deep", "give it in a file whose path is the argument") from None
    except (TypeError, ValueError) as error:
        raise BadSpec(
            f"the arguments cannot be written as JSON: {error}", "give text, numbers, lists and dicts"
        ) from None


def _from_steps_file(
    path: str,
    name: str | None,
    args: Mapping[str, Json] | None,
    limits: Limits | None,
    env: Mapping[str, str] | None,
) -> TaskSpec:
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except FileNotFoundError:
        raise UnknownSkill(f"{path}: there is no such file", "name a steps file that exists") from None
    except (OSError, UnicodeDecodeError) as error:
        raise BadSpec(
            f"{path} cannot be read: {getattr(error, 'strerror', None) or error}", "it is to be UTF-8 text"
        ) from None
    if args:
        raise BadSpec("a steps file takes no --arg", "write what differs into the file, or pass it with --env")
    spec = parse_steps(text, path, name=name, limits=limits)
    home = os.path.dirname(os.path.abspath(path))
    steps = tuple(dataclasses.replace(s, run=_beside(home, s.run), cwd=_at(home, s.cwd)) for s in spec.steps)
    source = os.path.abspath(path)
    return dataclasses.replace(spec, steps=steps, source=source, worker=source, env={**spec.env, **(env or {})})


def _beside(home: str, argv: tuple[str, ...]) -> tuple[str, ...]:
    """A relative argument that names a file beside the steps file means it: steps run in the workspace."""
    return tuple(_file_beside(home, word) for word in argv)


def _file_beside(home: str, word: str) -> str:
    path = os.path.join(home, word)
    return path if word and not os.path.isabs(word) and os.path.isfile(path) else word


def _at(home: str, cwd: str | None) -> str | None:
    return os.path.join(home, cwd) if cwd is not None else None
