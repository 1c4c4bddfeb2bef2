"""The text of a SKILL.md: its front matter, what of it is ours, and the version of a skill's files.

yaml is imported when it is used: a task that names its worker otherwise needs none.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from orchestrator.errors import BadSpec

if TYPE_CHECKING:
    import yaml

FILE = "SKILL.md"
#: The limits that the agent CLIs have: what is longer is not offered to their models.
NAME_CHARACTERS = 64
DESCRIPTION_CHARACTERS = 1024

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
_FENCE = re.compile(r"---[ \t]*")


@dataclass(frozen=True, slots=True)
class Skill:
    """What a SKILL.md says of itself.

    worker: what `run NAME` starts, as written: `module:function`, `file.py:function` or a steps file, beside it; None
    for a skill that is instructions only. body: what follows the front matter.
    """

    name: str
    description: str
    worker: str | None
    worker_line: int
    body: str


def is_name(text: str) -> bool:
    """Whether a skill may be called so: letters, digits, `-` and `_`. Never a path."""
    return len(text) <= NAME_CHARACTERS and _NAME.fullmatch(text) is not None


def parse(text: str, source: str, name: str) -> Skill:
    """The skill `name` (its directory's name) by the text of its SKILL.md; `source` is the file, for messages.

    `name` and `description` are needed, `worker` is ours; other keys belong to others. Raises BadSpec with file and
    line.
    """
    front, body = _split(text, source)
    data, lines = _mapping(front, source)
    said = _text(data, lines, "name", source)
    if said != name or not is_name(said):
        raise BadSpec(
            f"{source}:{lines['name']}: the name {said!r} is not that of its directory, {name!r}",
            f"letters, digits, - and _, at most {NAME_CHARACTERS}, and the same in both places",
        )
    description = " ".join(_text(data, lines, "description", source).split())
    if len(description) > DESCRIPTION_CHARACTERS:
        raise BadSpec(
            f"{source}:{lines['description']}: the description has {len(description)} characters",
            f"agents take at most {DESCRIPTION_CHARACTERS}",
        )
    worker = _text(data, lines, "worker", source) if data.get("worker") is not None else None
    if worker is not None:
        _check_worker(worker, f"{source}:{lines['worker']}")
    return Skill(said, description, worker, lines.get("worker", 1), body)


def _split(text: str, source: str) -> tuple[str, str]:
    lines = text.removeprefix("\ufeff").replace("\r\n", "\n").split("\n")
    if not _FENCE.fullmatch(lines[0]):
        raise BadSpec(f"{source}:1: there is no front matter", "begin the file with a line ---, name: and description:")
    for number, line in enumerate(lines[1:], 1):
        if _FENCE.fullmatch(line):
            return "\n".join(lines[1:number]), "\n".join(lines[number + 1 :])
    raise BadSpec(f"{source}:1: the front matter has no end", "close it with a line ---")


def _mapping(front: str, source: str) -> tuple[dict[str, Any], dict[str, int]]:
    """The front matter's values, and the line of the file in which each key stands."""
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        data, node = yaml.load(front, Loader=loader), yaml.compose(front, Loader=loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        line = mark.line + 2 if mark is not None else 2
        raise BadSpec(f"{source}:{line}: not YAML: {problem}", "put a text with a colon in it in quotes") from None
    if not isinstance(data, dict) or node is None:
        raise BadSpec(f"{source}:2: the front matter is no mapping", "write name: and description:")
    return data, _lines(node)


def _lines(node: yaml.Node) -> dict[str, int]:
    return {str(key.value): key.start_mark.line + 2 for key, _ in node.value}


def _text(data: dict[str, Any], lines: dict[str, int], key: str, source: str) -> str:
    value = data.get(key)
    if isinstance(value, str) and value.strip():
        return value.strip()
    wrong = "is missing" if value is None else "is not a text" if value != "" else "is empty"
    raise BadSpec(f"{source}:{lines.get(key, 1)}: `{key}` {wrong}", f"write {key}: and a text")


def _check_worker(worker: str, where: str) -> None:
    place, _, function = worker.rpartition(":")
    steps = worker.endswith((".yaml", ".yml"))
    path = worker if steps else place
    if not steps and not (place and function):
        raise BadSpec(
            f"{where}: worker: {worker!r} is none", "write module:function, file.py:function or a steps file (.yaml)"
        )
    if path.startswith("/") or ".." in path.split("/"):
        raise BadSpec(f"{where}: worker: {path!r} does not lie beside the skill", "name a file in its directory")


def version(files: Iterable[tuple[str, bytes]]) -> str:
    """Twelve hex digits that change when a file's name or content does, whatever the order they are given in."""
    from hashlib import sha256  # loads OpenSSL: not for every command

    digest = sha256()
    for name, content in sorted(files):
        for part in (name.encode("utf-8", "surrogateescape"), content):
            digest.update(len(part).to_bytes(8, "big") + part)
    return digest.hexdigest()[:12]
