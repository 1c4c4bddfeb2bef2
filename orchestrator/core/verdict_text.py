"""Verdicts on skills as Markdown, to be read at 80 columns, and as JSON. Bounded: what is left out is counted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from orchestrator.core.model import Json
from orchestrator.core.retro_text import code, message, number, time
from orchestrator.core.verdict import CHANGE, CHANGED_SINCE, RULE, Evidence, Finding, Verdict

#: Of the JSON form (docs/protocol.md).
SCHEMA = 1

SKILLS_SHOWN = 30
FINDINGS_SHOWN = 10
EVIDENCE_SHOWN = 5
DAMAGED_SHOWN = 10

#: What the verdict means, in words.
WORDS = {CHANGE: "needs a change", CHANGED_SINCE: "changed since", "keep": "nothing to change"}


def sentence(verdict: Verdict) -> str:
    """The verdict on one skill, in one sentence."""
    if not verdict.findings:
        return "Nothing to change." if verdict.judged else "Nothing was begun."
    first = verdict.findings[0]
    said = f"{code(first.step)} failed with {code(first.error_class)} in {_of(first, verdict)}"
    if first.since is not None:
        return f"Nothing to change any more: {said}, but since version {code(first.since)} no such failure."
    more = sum(1 for finding in verdict.findings if finding.since is None) - 1
    return f"Needs a change: {said}{f'; and {more} more' if more else ''}."


def render(verdicts: Sequence[Verdict], damaged: Mapping[str, str]) -> str:
    """The retrospect over many tasks as Markdown. `damaged`: task -> what is wrong with it."""
    tasks = sum(verdict.tasks for verdict in verdicts)
    parts = [f"# Retrospect: {number(tasks, 'task')} of {number(len(verdicts), 'skill')}", _totals(verdicts)]
    parts += [_skill(verdict) for verdict in verdicts[:SKILLS_SHOWN]]
    if len(verdicts) > SKILLS_SHOWN:
        parts.append(f"… {number(len(verdicts) - SKILLS_SHOWN, 'more skill')}.")
    if damaged:
        lines = [f"- `{task}`: {message(said)}" for task, said in list(damaged.items())[:DAMAGED_SHOWN]]
        more = len(damaged) - DAMAGED_SHOWN
        parts.append("\n".join(["## Damaged", "", *lines, *([f"- … {more} more"] if more > 0 else [])]))
    return "\n\n".join(parts) + "\n"


def _totals(verdicts: Sequence[Verdict]) -> str:
    wanting = sum(1 for verdict in verdicts if verdict.word == CHANGE)
    rule = f"one step, one class of error, in at least {RULE.tasks} tasks or {RULE.share:.0%} of them"
    return f"**{number(wanting, 'skill')} of {len(verdicts)} to be changed** ({rule})."


def _skill(verdict: Verdict) -> str:
    median, p90 = ("–" if t is None else time(t) for t in (verdict.median, verdict.p90))
    ended = ", ".join(f"{many} {outcome}" for outcome, many in verdict.ended.items())
    rows = [
        f"## {code(verdict.skill)}",
        "",
        f"**{sentence(verdict)}**",
        "",
        "| Tasks | Ended | Median | p90 | Deaths | Tries | Verdict |",
        "|---:|---|---:|---:|---:|---:|---|",
        f"| {verdict.tasks} | {ended} | {median} | {p90} | {verdict.deaths} | {verdict.tries} "
        f"| {WORDS[verdict.word]} |",
    ]
    for finding in verdict.findings[:FINDINGS_SHOWN]:
        rows += ["", *_finding(finding, verdict)]
    if len(verdict.findings) > FINDINGS_SHOWN:
        rows += ["", f"… and {len(verdict.findings) - FINDINGS_SHOWN} more steps that failed."]
    return "\n".join(rows)


def _finding(finding: Finding, verdict: Verdict) -> list[str]:
    good = f", {finding.for_good} of them for good" if finding.for_good else ""
    rows = [
        f"{code(finding.step)}, {code(finding.error_class)}: {_of(finding, verdict)} ({finding.share:.0%}), "
        f"{number(finding.tries, 'failure')}{good}.",
    ]
    if finding.since is not None:
        had = number(verdict.newest_tasks, "task")
        rows[0] += f" Since version {code(finding.since)} ({had}) no such failure."
    rows += ["", *map(_evidence, finding.evidence[:EVIDENCE_SHOWN])]
    more = len(finding.evidence) - EVIDENCE_SHOWN
    return [*rows, *([f"- … {more} more"] if more > 0 else [])]


def _evidence(line: Evidence) -> str:
    times = f" ({line.count} times)" if line.count > 1 else ""
    return f"- `{line.task}`, attempt {line.attempt}: {code(message(line.message))}{times}"


def _of(finding: Finding, verdict: Verdict) -> str:
    return f"{finding.tasks} of {number(verdict.judged, 'task')}"


# -- as JSON ---------------------------------------------------------------------------------------------------------


def to_json(verdicts: Sequence[Verdict], damaged: Mapping[str, str]) -> dict[str, Json]:
    """Schema 1. Bounded as the text is; `…_left_off` counts what is not there."""
    return {
        "schema": SCHEMA,
        "rule": RULE._asdict(),
        "tasks": sum(verdict.tasks for verdict in verdicts),
        "skills": [_skill_json(verdict) for verdict in verdicts[:SKILLS_SHOWN]],
        "skills_left_off": max(0, len(verdicts) - SKILLS_SHOWN),
        "damaged": [{"id": task, "reason": said} for task, said in list(damaged.items())[:DAMAGED_SHOWN]],
        "damaged_left_off": max(0, len(damaged) - DAMAGED_SHOWN),
    }


def _skill_json(verdict: Verdict) -> dict[str, Json]:
    return {
        "skill": verdict.skill,
        "verdict": verdict.word,
        "said": sentence(verdict),
        "tasks": verdict.tasks,
        "judged": verdict.judged,
        "ended": dict(verdict.ended),
        "median_seconds": _rounded(verdict.median),
        "p90_seconds": _rounded(verdict.p90),
        "deaths": verdict.deaths,
        "tries": verdict.tries,
        "newest_version": verdict.newest,
        "newest_version_tasks": verdict.newest_tasks,
        "findings": [_finding_json(finding) for finding in verdict.findings[:FINDINGS_SHOWN]],
        "findings_left_off": max(0, len(verdict.findings) - FINDINGS_SHOWN),
    }


def _finding_json(finding: Finding) -> dict[str, Json]:
    return {
        "step": finding.step,
        "class": finding.error_class,
        "tasks": finding.tasks,
        "share": finding.share,
        "failures": finding.tries,
        "for_good": finding.for_good,
        "since_version": finding.since,
        "evidence": [
            {
                "task": line.task,
                "step": line.step,
                "attempt": line.attempt,
                "class": line.error_class,
                "message": message(line.message),
                "version": line.version,
                "count": line.count,
            }
            for line in finding.evidence[:EVIDENCE_SHOWN]
        ],
        "evidence_left_off": max(0, len(finding.evidence) - EVIDENCE_SHOWN),
    }


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)
