"""The retrospect of one task as Markdown, to be read at 80 columns, and as JSON."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from orchestrator.core.model import Json
from orchestrator.core.retro import USAGE, Failure, Retro, StepRetro, Try

#: Of the JSON form (docs/protocol.md).
SCHEMA = 1

#: How much is shown; what is left out is counted.
TRIES_SHOWN = 8
STEPS_SHOWN = 50
ERRORS_SHOWN = 20
MESSAGE_SHOWN = 160

#: Both kinds of remark above a retrospect that is not of the last end begin so.
REMARK = "> "


def earlier(outcome: str, at: str) -> str:
    """The line above a retrospect whose task was reopened."""
    return f"{REMARK}Of an earlier end ({outcome}, {at}): the task was reopened, and its next end writes a new one.\n\n"


def unfinished(state: str, at: str) -> str:
    """The line above the retrospect of a task that has not ended."""
    return f"{REMARK}It has not ended (it is {state}): this is what there is, up to {at or 'now'}.\n\n"


def render(retro: Retro, template: str, *, name: str, task_id: str, status: str) -> str:
    """The retrospect as Markdown. What the template has in braces and is none of ours stays as it is."""
    steps = list(retro.steps.values())
    values = {
        "name": line(name),
        "task_id": task_id,
        "status": status,
        "outcome": retro.outcome or "open",
        "seconds": f"{retro.seconds:.1f}",
        "time": time(retro.seconds),
        "attempts": str(retro.attempts),
        "resumes": str(max(0, retro.attempts - 1)),
        "reopened": str(retro.reopened),
        "steps_table": _steps_table(steps),
        "tries": _tries_list(steps),
        "errors_table": _errors_table(retro.failures),
        "crash_cost": _crash_cost(retro),
        "volumes": _volumes(retro),
        "verdict": sentence(retro),
    }
    text = re.sub(r"\{(\w+)\}", lambda found: values.get(found[1], found[0]), template)
    return re.sub(r"\n{3,}", "\n\n", text)


# -- parts -----------------------------------------------------------------------------------------------------------


def _steps_table(steps: Sequence[StepRetro]) -> str:
    if not steps:
        return "No step was begun."
    rows = ["| Step | Status | Tries | Own time | Waiting | Lost |", "|---|---|---:|---:|---:|---:|"]
    for step in steps[:STEPS_SHOWN]:
        times = f"{time(step.own)} | {_some(step.waiting)} | {_some(step.lost)}"
        rows.append(f"| {cell(step.name)} | {step.status} | {len(step.tries)} | {times} |")
    if len(steps) > STEPS_SHOWN:
        rows.append(f"| … {len(steps) - STEPS_SHOWN} more | | | | | |")
    own, waiting, lost = (sum(t) for t in zip(*((s.own, s.waiting, s.lost) for s in steps), strict=True))
    rows.append(
        f"| **all** | | {sum(len(s.tries) for s in steps)} | **{time(own)}** | {_some(waiting)} | {_some(lost)} |"
    )
    return "\n".join(rows)


def _tries_list(steps: Sequence[StepRetro]) -> str:
    """Try by try, for the steps that needed more than one."""
    several = [step for step in steps if len(step.tries) > 1]
    if not several:
        return ""
    shown = [f"- {code(step.name)}: {', '.join(_tries(step.tries))}" for step in several[:STEPS_SHOWN]]
    more = len(several) - STEPS_SHOWN
    return "\n".join(["Try by try:", "", *shown, *([f"- … {more} more steps"] if more > 0 else [])])


def _tries(tries: Sequence[Try]) -> list[str]:
    half = TRIES_SHOWN // 2
    shown = [_try(t) for t in (tries if len(tries) <= TRIES_SHOWN else [*tries[:half], *tries[-half:]])]
    if len(tries) > TRIES_SHOWN:
        shown.insert(half, f"… {len(tries) - TRIES_SHOWN} more …")
    return shown


def _try(one: Try) -> str:
    if one.how == "running":
        return f"running (attempt {one.attempt})"
    return f"{one.how} after {time(one.seconds)} (attempt {one.attempt})"


def counted(failures: Iterable[Failure]) -> dict[tuple[str, str, str], int]:
    """How often each error was met: by step, class and (first) message, the most frequent first."""
    alike: dict[tuple[str, str, str], list[Failure]] = {}
    for failure in failures:
        alike.setdefault((failure.step, failure.error_class, failure.kind), []).append(failure)
    ordered = sorted(alike.values(), key=len, reverse=True)
    return {(some[0].step, some[0].error_class, message(some[0].message)): len(some) for some in ordered}


def by_class(failures: Iterable[Failure]) -> dict[str, int]:
    found: dict[str, int] = {}
    for failure in failures:
        found[failure.error_class] = found.get(failure.error_class, 0) + 1
    return dict(sorted(found.items(), key=lambda item: (-item[1], item[0])))


def _errors_table(failures: Sequence[Failure]) -> str:
    if not failures:
        return "None."
    found = counted(failures)
    said = ", ".join(f"{kind} {times}" for kind, times in by_class(failures).items())
    rows = [f"By class: {said}.", "", "| Step | Class | Times | Message |", "|---|---|---:|---|"]
    for (step, kind, text), times in list(found.items())[:ERRORS_SHOWN]:
        rows.append(f"| {cell(step)} | {cell(kind)} | {times} | {cell(text)} |")
    if len(found) > ERRORS_SHOWN:
        rows.append(f"| … {len(found) - ERRORS_SHOWN} more | | | |")
    return "\n".join(rows)


def _crash_cost(retro: Retro) -> str:
    if not retro.deaths:
        return "No worker died."
    died = f"{number(retro.deaths, 'worker')} died"
    begun_again = [s.name for s in retro.steps.values() if any(t.how == "lost" for t in s.tries)]
    names = ", ".join(map(code, begun_again[:10])) or "no step"
    more = f" and {len(begun_again) - 10} more" if len(begun_again) > 10 else ""
    return (
        f"{died}. {time(retro.lost)} of work was lost ({names}{more}); {time(retro.waiting)} passed before "
        f"the next worker began. Finished steps run again: {retro.run_twice}."
    )


def _volumes(retro: Retro) -> str:
    had = retro.volumes
    run = sum(1 for s in retro.steps.values() if s.tries)
    sizes = ", ".join(
        f"{name} {_bytes(size)}"
        for name, size in (("results", had.results), ("outputs", had.outputs), ("notes", had.notes))
    )
    begun = f"{number(run, 'step')} run in {number(retro.tries, 'try', 'tries')}"
    return f"{begun}. Kept: {sizes}. Usage: {_usage(retro.usage)}."


def _usage(usage: Mapping[str, float] | None) -> str:
    if usage is None:
        return "unknown"
    return ", ".join(f"{k.replace('_', ' ')} {v:,.6g}" if k == "cost_usd" else f"{k} {v:,}" for k, v in usage.items())


def sentence(retro: Retro) -> str:
    """What is to be done, in one sentence."""
    if not retro.attempts and not retro.tries:
        return "Nothing was begun."
    failed = [s for s in retro.steps.values() if s.status == "failed"]
    if failed:
        return f"Step {code(failed[0].name)} failed for good: look at its errors before the skill is used again."
    if retro.outcome in ("failed", "conflict"):
        return f"It ended {retro.outcome}, and not in a step: look at its errors before the skill is used again."
    raised = next((f.step for f in retro.failures if f.error_class != "crash"), None)
    if raised is not None:
        return f"It is {retro.outcome or 'open'}, but {code(raised)} needed more than one try."
    if retro.deaths:
        return "The skill did well; its worker died, and nothing finished was lost."
    return "Nothing to change."


# -- as JSON ---------------------------------------------------------------------------------------------------------


def to_json(retro: Retro, *, task_id: str, name: str, state: str, damage: Sequence[str] = ()) -> dict[str, Json]:
    """Schema 1. Seconds and bytes; what is unknown is null."""
    return {
        "schema": SCHEMA,
        "id": task_id,
        "name": name,
        "skill": retro.skill,
        "version": retro.version,
        "state": state,
        "ended": bool(retro.outcome),
        "outcome": retro.outcome or None,
        "at": retro.last_at or None,
        "seconds": round(retro.seconds, 3),
        "waiting": round(retro.waiting, 3),
        "lost": round(retro.lost, 3),
        "attempts": retro.attempts,
        "resumes": max(0, retro.attempts - 1),
        "deaths": retro.deaths,
        "reopened": retro.reopened,
        "tries": retro.tries,
        "run_twice": retro.run_twice,
        "steps": [_step_json(step) for step in retro.steps.values()],
        "errors": [
            {"step": step, "class": kind, "message": text, "count": times}
            for (step, kind, text), times in counted(retro.failures).items()
        ],
        "errors_by_class": by_class(retro.failures),
        "volumes": {
            "steps_run": sum(1 for s in retro.steps.values() if s.tries),
            "results": retro.volumes.results,
            "outputs": retro.volumes.outputs,
            "logs": retro.volumes.logs,
            "notes": retro.volumes.notes,
        },
        "usage": _usage_json(retro.usage),
        "verdict": sentence(retro),
        "damage": list(damage),
    }


def _step_json(step: StepRetro) -> dict[str, Json]:
    return {
        "name": step.name,
        "status": step.status,
        "own": round(step.own, 3),
        "waiting": round(step.waiting, 3),
        "lost": round(step.lost, 3),
        "tries": [
            {"attempt": t.attempt, "try": t.number, "how": t.how, "seconds": round(t.seconds, 3)} for t in step.tries
        ],
        "usage": _usage_json(step.usage),
    }


def _usage_json(usage: Mapping[str, float] | None) -> dict[str, Json] | None:
    return None if usage is None else {key: usage.get(key) for key in USAGE}


# -- words -----------------------------------------------------------------------------------------------------------


def time(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.2f} s" if seconds < 10 else f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02} s" if minutes < 120 else f"{minutes // 60} h {minutes % 60:02} min"


def _some(seconds: float) -> str:
    """A time that is mostly none: then nothing is shown, so that the others are seen."""
    return time(seconds) if seconds >= 0.005 else "–"


def _bytes(size: int | None) -> str:
    if size is None:
        return "unknown"
    for unit, scale in (("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size >= scale:
            return f"{size / scale:.1f} {unit}"
    return f"{size} bytes"


def number(many: int, noun: str, nouns: str = "") -> str:
    return f"{many} {noun if many == 1 else nouns or noun + 's'}"


def line(text: str) -> str:
    """One line, with nothing in it that a terminal would obey."""
    return "".join(c if c.isprintable() else "\ufffd" for c in " ".join(text.split()))


def message(text: str) -> str:
    text = line(text)
    return text if len(text) <= MESSAGE_SHOWN else text[: MESSAGE_SHOWN - 1] + "…"


def code(text: str) -> str:
    """As it is written, whatever signs of Markdown are in it."""
    return f"`{line(text).replace('`', chr(39))}`"


_MARKS = re.compile(r"([\\|*<>\[\]~]|(?<!\w)_|_(?!\w))")


def cell(text: str) -> str:
    """In a table, with the signs of Markdown escaped; a backtick, which nothing escapes in a name, becomes a quote."""
    return _MARKS.sub(r"\\\1", line(text).replace("`", "'"))
