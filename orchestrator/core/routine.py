"""The routine message: the few lines with which a worker is told its task, written and read.

A message is a head of `Key: value` lines, in English or Chinese, closed by a line `---`; below it stands what every
worker is told. The task is the one value that may have several lines: those after the first are indented by two
spaces, so that the user's own words can hold anything, `Notify: true` or `---` as well, and come back unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from orchestrator.errors import BadSpec

#: Field -> how it may be called. The first two are what the templates write; case and spaces do not matter.
KEYS: dict[str, tuple[str, ...]] = {
    "protocol": ("Protocol", "协议"),
    "skill": ("Skill", "技能"),
    "task": ("Task", "任务"),
    "notify": ("Notify", "通知用户", "NotifyUser", "通知"),
    "task_id": ("TaskID", "任务ID"),
    "action": ("Action", "动作"),
    "workspace": ("Workspace", "工作区"),
    "step": ("Step", "步骤"),
    "read": ("Read", "先读"),
}
#: Without these nobody can work.
REQUIRED = ("task", "task_id", "action")
#: On `start` there is nothing to go on with: their lines are left out.
RESUME_ONLY = ("step", "read")
YES = frozenset({"true", "yes", "1", "是"})
NO = frozenset({"false", "no", "0", "否", ""})


class Action(StrEnum):
    START = "start"
    RESUME = "resume"


ACTIONS = {
    **dict.fromkeys(("start", "开始", "启动"), Action.START),
    **dict.fromkeys(("resume", "恢复", "继续"), Action.RESUME),
}

_FIELDS = {name.replace(" ", "").casefold(): field for field, names in KEYS.items() for name in names}
_KEY = re.compile(r"([^\s:：][^:：]{0,20}?)[ \t]*[:：](.*)", re.DOTALL)
_BREAK = re.compile(r"-{3,}\s*")
_INDENT = "  "
_PLACEHOLDER = re.compile(r" ?\{(" + "|".join(KEYS) + r")\}")
_ONLY = re.compile(r"\{(start|resume)\}[ \t]*")


@dataclass(frozen=True, slots=True)
class Routine:
    """What a worker is told. `task` is in the user's own words; every other text is one line.

    `step` and `read` are for `resume`: where to go on, and the file to read first.
    """

    protocol: str
    skill: str
    task: str
    notify: bool
    task_id: str
    action: Action
    workspace: str
    step: str = ""
    read: str = ""


# -- writing -----------------------------------------------------------------------------------------------------


def render(routine: Routine, template: str) -> str:
    """The message, by a template whose `{field}` marks are filled in, once: a value may hold such marks.

    A line that begins with `{start}` or `{resume}` is there for that action only; so is one with `{step}` or `{read}`,
    which needs its value besides. Raises BadSpec when a value other than the task has more than one line, or spaces
    around it: it would not come back as it is.
    """
    values = {field: _written(routine, field) for field in KEYS}
    lines = [_line(line, routine, values) for line in template.split("\n")]
    return "\n".join(line for line in lines if line is not None)


def _written(routine: Routine, field: str) -> str:
    value = getattr(routine, field)
    if field == "notify":
        return "true" if value else "false"
    if field == "task":
        return _folded(value)
    if "\n" in value or value != value.strip():
        raise BadSpec(f"{field}: {value!r} is not one line without spaces around it", "only the task may have more")
    return str(value)


def _folded(task: str) -> str:
    """The task for the place behind its key: lines after the first indented; a first line that is blank, or begins
    with a space, as well."""
    first, *more = task.split("\n")
    if (more and not first) or first != first.lstrip():
        first, more = "", [first, *more]
    return "\n".join([first, *(_INDENT + line for line in more)])


def _line(line: str, routine: Routine, values: dict[str, str]) -> str | None:
    only = _ONLY.match(line)
    if only and only[1] != routine.action:
        return None
    line = line[only.end() :] if only else line
    for field in _PLACEHOLDER.findall(line):
        if field in RESUME_ONLY and (routine.action is Action.START or not values[field]):
            return None
    return _PLACEHOLDER.sub(lambda mark: _placed(mark[0], values[mark[1]]), line)


def _placed(mark: str, value: str) -> str:
    """The value in the place of its mark; no space is left at the end of a line before one that is empty."""
    space = " " if mark[0] == " " and value and value[0] != "\n" else ""
    return space + value


# -- reading -----------------------------------------------------------------------------------------------------


def parse(text: str) -> Routine:
    """The message that a text holds. Raises BadSpec, with the line, for what is missing, twice there, or no value.

    Understood: both languages, keys in any order and case, the full-width colon, CR LF, words before the first key,
    and a task whose further lines are not indented, as far as none of them is `---` or looks like another key.
    """
    found = _fields(_lines(text))
    missing = [KEYS[field][0] for field in REQUIRED if field not in found]
    if missing:
        raise BadSpec(
            f"the routine message has no {', '.join(missing)}", f"it needs {', '.join(KEYS[f][0] for f in REQUIRED)}"
        )
    one = {field: parts[0].strip() for field, (_, parts) in found.items() if field != "task"}
    action = _action(one["action"], found["action"][0])
    return Routine(
        protocol=one.get("protocol", ""),
        skill=one.get("skill", ""),
        task=_unfolded(found["task"][1]),
        notify=_flag(one.get("notify", ""), found.get("notify", (0, []))[0]),
        task_id=one["task_id"],
        action=action,
        workspace=one.get("workspace", ""),
        step=one.get("step", "") if action is Action.RESUME else "",
        read=one.get("read", "") if action is Action.RESUME else "",
    )


def _lines(text: str) -> list[str]:
    text = text.removeprefix("\ufeff")
    if text.count("\n") == text.count("\r\n"):
        text = text.replace("\r\n", "\n")
    return text.split("\n")


def _fields(lines: Sequence[str]) -> dict[str, tuple[int, list[str]]]:
    """Field -> the line it stands in, what follows its colon, and the lines after it up to the next key."""
    found: dict[str, tuple[int, list[str]]] = {}
    current: list[str] = []  # what precedes the first key is nobody's
    for number, line, field, value in _marked(lines):
        if field is None:
            current.append(line)
            continue
        if field in found:
            raise BadSpec(
                f"routine message:{number}: {KEYS[field][0]} is there twice",
                "indent the lines of the task by two spaces",
            )
        current = [value]
        found[field] = (number, current)
    return found


def _marked(lines: Sequence[str]) -> Iterator[tuple[int, str, str | None, str]]:
    for number, line in enumerate(lines, 1):
        if _BREAK.fullmatch(line):
            return
        key = _KEY.fullmatch(line)
        field = _FIELDS.get(re.sub(r"[\s_]", "", key[1]).casefold()) if key else None
        yield number, line, field, key[2] if key and field else ""


def _unfolded(parts: Sequence[str]) -> str:
    first, more = parts[0].lstrip(), list(parts[1:])
    while more and not more[-1]:  # blank lines before the next key: ours are indented
        more.pop()
    if all(line.startswith(_INDENT) or not line for line in more):
        more = [line.removeprefix(_INDENT) for line in more]
    return "\n".join(more if not first and more else [first, *more])


def _action(word: str, line: int) -> Action:
    try:
        return ACTIONS[word.casefold()]
    except KeyError:
        raise BadSpec(f"routine message:{line}: {word!r} is no action", "write start or resume") from None


def _flag(word: str, line: int) -> bool:
    if word.casefold() not in YES | NO:
        raise BadSpec(f"routine message:{line}: Notify: {word!r} is neither true nor false", "write true or false")
    return word.casefold() in YES
