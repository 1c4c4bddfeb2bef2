"""What to run, as people and programs write it: steps files and `.task/spec.yaml`, checked to the last key.

pydantic and yaml are imported when they are used: listing a thousand tasks needs neither.
"""

from __future__ import annotations

import contextlib
import json
import re
import zlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from orchestrator.core.model import Json, Limits, StepSpec, TaskSpec
from orchestrator.errors import BadSpec, Damaged

if TYPE_CHECKING:
    import yaml

#: The newest schema of a spec that is understood.
SCHEMA = 1

#: The keys of a steps file; anything else is a typing error and said so.
FILE_KEYS = ("name", "steps", "limits", "env", "args")


#: The last line of a spec is this and the checksum of the lines before it: one that was cut short, or has another path
#: in it by a bad bit, is good YAML all the same.
_SEAL = "# crc32: "
_EDITED = "# edited by hand"


def to_yaml(spec: TaskSpec) -> str:
    """The spec as `.task/spec.yaml` holds it: only what is not the default, for people to read; and its checksum."""
    return seal(_dumped(_lean(spec)))


def _dumped(data: Json) -> str:
    """YAML that gives back exactly this. Raises BadSpec for what it cannot hold."""
    import yaml

    wanted = json.dumps(data)
    for readable in (True, False):  # U+0085 and its like are line breaks to YAML: then as escapes
        text: str = yaml.safe_dump(data, sort_keys=False, allow_unicode=readable)
        if json.dumps(_loads(text)) == wanted:
            return text
    raise BadSpec("what it is to run cannot be written as YAML and read back", "give its arguments in a file")


def _loads(text: str) -> Any:
    import yaml

    try:
        return yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except (yaml.YAMLError, RecursionError):
        return None


def seal(text: str) -> str:
    """The text of a spec with its checksum as the last line; an earlier one is replaced."""
    body, mark, rest = text.rpartition(f"\n{_SEAL}")
    body = f"{body}\n" if mark and "\n" not in rest.rstrip("\n") else text
    return f"{body}{_SEAL}{_crc(body)}\n"


def _crc(text: str) -> str:
    return f"{zlib.crc32(text.encode('utf-8', 'replace')):08x}"


def _check_seal(text: str, source: str) -> None:
    """Raises BadSpec for a text that is not all that was written."""
    body, _, last = text.replace("\r\n", "\n").rstrip("\n").rpartition("\n")
    if last.strip() == _EDITED or last.strip() == _SEAL + _crc(body + "\n"):
        return
    cut = not last.startswith(_SEAL)
    what = "is missing: it was cut short" if cut else "does not fit the lines before it"
    raise BadSpec(
        f"{source}: its last line, the checksum, {what}",
        f"if you changed it on purpose, make its last line `{_EDITED}`",
    )


def _lean(value: Any) -> Json:
    import dataclasses

    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        found = {}
        for f in dataclasses.fields(value):
            here = getattr(value, f.name)
            default = f.default if f.default is not dataclasses.MISSING else f.default_factory
            default = default() if callable(default) else default
            if f.name in ("schema", "kind", "worker", "name") or here != default:
                found[f.name] = _lean(here)
        return found
    if isinstance(value, Mapping):
        return {str(k): _lean(v) for k, v in value.items()}
    if isinstance(value, tuple | list):
        return [_lean(v) for v in value]
    return str(value) if isinstance(value, str) else value


def parse_spec(text: str, source: str) -> TaskSpec:
    """The spec that `.task/spec.yaml` holds. Raises BadSpec, or Damaged for one that a newer version has written."""
    data, node = _yaml(text, source)
    schema = data.get("schema") if isinstance(data, dict) else None
    if _is_newer(schema):  # looked at first: what else is new in it is no typing error
        raise Damaged(
            f"{source}:{_line(node, ('schema',))}: its schema is {schema}, and this version reads up to {SCHEMA}",
            "install a newer version of orchestrator",
        )
    found = _validate(data, source, node)
    _check_seal(text, source)
    return found


def _is_newer(schema: Any) -> bool:
    try:
        return int(schema) > SCHEMA
    except (TypeError, ValueError, OverflowError):
        return False


def parse_steps(text: str, source: str, *, name: str | None = None, limits: Limits | None = None) -> TaskSpec:
    """The spec that a steps file means. Raises BadSpec with file, line and key for whatever is wrong in it.

    `name` and `limits` win over what the file says.
    """
    data, node = _yaml(text, source)
    if not isinstance(data, dict):
        raise BadSpec(
            f"{source}:1: a steps file is a mapping with the key `steps`", f"it may have: {', '.join(FILE_KEYS)}"
        )
    for key in data:
        if key not in FILE_KEYS:
            line = _line(node, (key,))
            raise BadSpec(f"{source}:{line}: unknown key {key!r}", f"the keys are: {', '.join(FILE_KEYS)}")
    if not data.get("steps"):
        raise BadSpec(f"{source}:{_line(node, ('steps',))}: `steps` is missing or empty", "give at least one step")
    spec = {"name": name or data.get("name") or _stem(source), "kind": "steps", "worker": source, **_given(data)}
    found = _validate({**spec, "source": source}, source, node)
    _check_steps(found, source, node)
    return found if limits is None else _with_limits(found, limits)


def _with_limits(spec: TaskSpec, limits: Limits) -> TaskSpec:
    import dataclasses

    return dataclasses.replace(spec, limits=limits)


def _given(data: Mapping[str, Any]) -> dict[str, Any]:
    return {k: data[k] for k in ("steps", "limits", "env", "args") if data.get(k) is not None}


def _stem(source: str) -> str:
    return re.split(r"[/\\]", source)[-1].rsplit(".", 1)[0] or "task"


def _check_steps(spec: TaskSpec, source: str, node: yaml.Node | None) -> None:
    for i, step in enumerate(spec.steps):
        line = _line(node, ("steps", i))
        if not step.name.strip():
            raise BadSpec(f"{source}:{line}: step {i + 1} has an empty name", "give it a name of its own")
        if bool(step.run) == bool(step.shell):
            raise BadSpec(
                f"{source}:{line}: step {step.name!r} needs exactly one of `run` and `shell`",
                "run: [program, argument]   or   shell: one command line",
            )
        if step.retries < 0 or (step.timeout is not None and step.timeout <= 0):
            raise BadSpec(
                f"{source}:{line}: step {step.name!r}: timeout and retries are positive", "timeout is in seconds"
            )
        for path in step.outputs:
            if path.startswith("/") or ".." in path.split("/"):
                raise BadSpec(
                    f"{source}:{_line(node, ('steps', i, 'outputs'))}: output {path!r} lies outside of the workspace",
                    "outputs are relative to the task's workspace",
                )


def validate(data: Mapping[str, Any], source: str = "spec") -> TaskSpec:
    """A spec made of plain data. Raises BadSpec."""
    return _validate(dict(data), source, None)


def _validate(data: Any, source: str, node: yaml.Node | None) -> TaskSpec:
    import pydantic

    try:
        found: TaskSpec = _adapter().validate_python(data)
        return found
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        where = tuple(part for part in first["loc"])
        key = _key(where, data) or "(the whole file)"
        hint = _hint(first["type"], where)
        raise BadSpec(f"{source}:{_line(node, where)}: {key}: {_said(first)}", hint) from None


#: In our words: what a person is likely to have written instead.
_SAID = {
    "tuple_type": "is a list, like [ls, -l]",
    "float_parsing": "is a number, of seconds",
    "float_type": "is a number, of seconds",
    "int_parsing": "is a whole number",
    "string_type": "is text: put it in quotes",
    "dict_type": "is a mapping, like {KEY: value}",
    "enum": "is pure, idempotent or once",
}


def _said(error: Any) -> str:
    return _SAID.get(str(error["type"]), str(error["msg"]))


def _key(where: tuple[Any, ...], data: Any) -> str:
    """The place as a person names it: a step by its name."""
    with contextlib.suppress(LookupError, TypeError):
        if where[:1] == ("steps",) and len(where) > 1:
            name = data["steps"][where[1]]["name"]
            return f"step {name!r}: " + ".".join(str(part) for part in where[2:])
    return ".".join(str(part) for part in where)


def _hint(kind: str, where: tuple[Any, ...]) -> str:
    if kind == "missing":
        return "add the key"
    if kind == "tuple_type" and where[-1:] == ("run",):
        return "for a command line with spaces, pipes and variables use `shell:`"
    if kind == "unexpected_keyword_argument":
        import dataclasses

        owner: Any = StepSpec if where[:1] == ("steps",) else Limits if where[:1] == ("limits",) else TaskSpec
        return f"the keys here are: {', '.join(f.name for f in dataclasses.fields(owner))}"
    return "see docs/protocol.md for the keys of a spec"


_adapters: list[Any] = []


def _adapter() -> Any:
    if not _adapters:
        import pydantic

        _adapters.append(pydantic.TypeAdapter(TaskSpec))
    return _adapters[0]


#: What yaml lets through for values that look like a date or a number and are none.
_NO_VALUES = (ValueError, LookupError, AttributeError, TypeError, OverflowError, RecursionError)


def _yaml(text: str, source: str) -> tuple[Any, yaml.Node | None]:
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        return yaml.load(text, Loader=loader), yaml.compose(text, Loader=loader)
    except _NO_VALUES as error:
        said = "nested too deep" if isinstance(error, RecursionError) else f"a value is none of its kind: {error}"
        raise BadSpec(f"{source}:1: not YAML: {said}", "mend the value, or put it in quotes") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = mark.line + 1 if mark is not None else 1
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise BadSpec(
            f"{source}:{line}: not YAML: {problem}", "mend the line, or compare with the example in README.md"
        ) from None


def _line(node: Any, where: tuple[Any, ...]) -> int:
    """The line (from 1) of the deepest part of a path that the file has."""
    line = 1
    for part in where:
        if node is None:
            break
        found = None
        if isinstance(part, int) and isinstance(node.value, list) and part < len(node.value) and node.id == "sequence":
            found = node.value[part]
            line = found.start_mark.line + 1
        elif node.id == "mapping":
            for key, value in node.value:
                if key.value == part:
                    line, found = key.start_mark.line + 1, value
        node = found
    return line
