"""What is left of a task whose journal is lost, read from its directory; nothing here writes."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from orchestrator import files
from orchestrator.core import journal, names
from orchestrator.core import rebuild as remade
from orchestrator.core.checklist import Checklist
from orchestrator.core.model import TaskSpec
from orchestrator.core.rebuild import Remains
from orchestrator.core.spec import parse_spec
from orchestrator.core.stepfile import INFO, StepFile, parse
from orchestrator.errors import BadSpec, Damaged
from orchestrator.places import Paths, seconds_of

Request = Mapping[str, Any]

#: The generation of a journal that was only imagined; one that is written has a random one.
IMAGINED = "unwritten"
#: A text larger than this is no step file that we would read for a list.
_STEP_FILE_BYTES = 16 * 1024 * 1024


def imagine(where: Paths, requests: Sequence[Request]) -> list[dict[str, Any]] | None:
    """The entries that a lost journal would be made of; None when it is not lost, or nothing tells of the task."""
    try:
        remains = lost(where, requests)
    except OSError:  # whoever holds the lock will be told
        return None
    return None if remains is None else remade.entries(remains, IMAGINED, _last_at(remains.files))


def has_journal(where: Paths) -> bool:
    """Whether a line of its journal can be read."""
    try:
        return bool(journal.read(files.read(where.journal, files.JOURNAL_BYTES)).entries)
    except (Damaged, OSError):
        return False


def tell(where: Paths) -> bool:
    """Whether any step file has a checkpoint: then the task is not lost though task.md and the journal are."""
    return any(text.checkpoints for text in texts(where.directory)[0].values())


def gather(
    where: Paths,
    requests: Sequence[Request],
    spec: TaskSpec | None = None,
    *,
    task_id: str = "",
    foreign: bool = False,
) -> Remains:
    """All that the directory tells of its task beside the journal. `spec`: what it is to run, when that is new."""
    found, taken = texts(where.directory)
    face = _face(where, remade.known(found))
    spec = spec or _spec(where)
    final = Paths(os.path.join(os.path.dirname(where.directory), task_id or where.task_id))  # it may be staged yet
    return Remains(
        task_id or where.task_id,
        face,
        found,
        taken,
        name=spec.name if spec else "",
        attempt=attempts_logged(where),
        result=f"{final.results}/result.json" if os.path.isfile(f"{where.results}/result.json") else None,
        requests=_old(requests, found),
        foreign=foreign,
        by_hand=not foreign or (spec is not None and spec.kind == "steps"),  # a foreign tool left no results
        spec_names=[step.name for step in spec.steps] if spec else (),
        outputs=[output for step in spec.steps for output in step.outputs] if spec else (),
    )


# -- whether it is lost --------------------------------------------------------------------------------------------


def lost(where: Paths, requests: Sequence[Request]) -> Remains | None:
    """What is left, when no line of the journal can be read although there were some.

    Raises OSError when the disk does not say what is left: a journal made of half of it would have steps done again.
    """
    data = _content(where.journal, files.JOURNAL_BYTES)
    if data is not None and journal.read(data).entries:  # an empty one had a first line when the task was made
        return None
    remains = gather(where, requests)
    if remains.face is None and not any(text.checkpoints for text in remains.files.values()):
        return None
    return remains


# -- what is left --------------------------------------------------------------------------------------------------


def _face(where: Paths, known: Collection[str]) -> Checklist | None:
    data = _content(where.task_md)
    face = None if data is None else Checklist.parse(data, known)
    return None if face is None or face.damaged else face


def _content(path: str, limit: int = files.TEXT_BYTES) -> bytes | None:
    """What a file holds; None when it cannot be read. Raises OSError when that is the disk's fault, and not its own."""
    try:
        return files.read(path, limit)
    except (Damaged, OSError) as error:
        files.check_answer(error)
        return None


def texts(directory: str) -> tuple[dict[str, StepFile], list[str]]:
    """The texts in a workspace that may be step files, and the names of whatever else is there. Raises OSError."""
    found: dict[str, StepFile] = {}
    others: list[str] = []
    try:
        for entry in files.entries(directory):
            text = _text(entry)
            if text is not None:
                found[entry.name] = text
            else:
                others.append(entry.name)
    except OSError as error:
        files.check_answer(error)
    return found, others


def _text(entry: os.DirEntry[str]) -> StepFile | None:
    own = entry.name.removesuffix(names.SUFFIX).casefold() in names.OWN_NAMES
    if own or not entry.name.endswith(names.SUFFIX) or entry.name.startswith("."):
        return None
    data = _content(entry.path, _STEP_FILE_BYTES)
    if data is None:
        return None
    if INFO.encode() in data:
        return parse(data.decode("utf-8", "replace"))
    return StepFile(parse(data[:4096].decode("utf-8", "replace")).heading, (), ())


def _spec(where: Paths) -> TaskSpec | None:
    try:
        return parse_spec(files.read(where.spec).decode("utf-8", "replace"), where.spec)
    except (BadSpec, Damaged, OSError):
        return None


def attempts_logged(where: Paths) -> int:
    """The highest attempt that has a log."""
    try:
        stems = [entry.name.partition(".")[0] for entry in files.entries(where.logs)]
    except OSError:
        return 0
    return max((int(stem) for stem in stems if stem.isdecimal() and len(stem) < 9), default=0)


def _old(requests: Sequence[Request], texts: Mapping[str, StepFile]) -> list[tuple[str, str]]:
    """The orders that the lost journal may have carried out already: they are not carried out once more.

    Those given when it was lost already, or after the last checkpoint, are still to be carried out.
    """
    last = _last_at(texts)
    old = (r for r in requests if r.get("journal") != "lost" and not _is_newer(r.get("at"), last))
    return [(str(r["id"]), str(r["verb"])) for r in old]


def _is_newer(at: Any, last: str) -> bool:
    if not isinstance(at, int | float):
        return False
    try:
        return not last or at > seconds_of(last)
    except ValueError:  # somebody has written into the checkpoint
        return True


def _last_at(texts: Mapping[str, StepFile]) -> str:
    return max((block.at for text in texts.values() for block in text.checkpoints), default="")
