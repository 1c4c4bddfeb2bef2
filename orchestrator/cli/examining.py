"""What a person reads of an examination, of what is cleared away, and of the configuration."""

from __future__ import annotations

import dataclasses
import json
import os
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from orchestrator import clearing, config, means, templates, workspace
from orchestrator.clearing import Candidate
from orchestrator.cli.show import cut
from orchestrator.core.model import Limits

if TYPE_CHECKING:
    from orchestrator.findings import Finding
    from orchestrator.surroundings import Means

_MARKS = {"ok": ("✔", "green"), "note": ("·", "bright_black"), "mend": ("!", "yellow"), "person": ("✘", "red")}
_AREAS = ("environment", "tasks", "leftovers")


# -- doctor ----------------------------------------------------------------------------------------------------------


def examine(root: str, fix: bool, as_json: bool) -> int:
    """0 when nothing needs a person, else 1."""
    from orchestrator import doctor, surroundings  # not for `gc`

    done: list[str] = []
    if fix and os.path.isdir(root):
        for line in doctor.mend(root, time.time):
            done.append(line)
            if not as_json:
                click.echo(click.style(f"→ {cut(line, 400)}", fg="cyan"))
    found = [*surroundings.examine(root), *(doctor.examine(root, time.time) if os.path.isdir(root) else ())]
    ok = all(one.settled for one in found)
    if as_json:
        told = {"schema": 1, "root": root, "ok": ok, "findings": [one.to_json() for one in found], "done": done}
        click.echo(json.dumps(told))
    else:
        _print(found, ok)
    return 0 if ok else 1


def _print(found: Sequence[Finding], ok: bool) -> None:
    for area in _AREAS:
        lines = [line for one in found if one.area == area for line in _lines(one)]
        click.echo(click.style(area, bold=True))
        click.echo("\n".join(lines or ["  nothing to say"]))
    todo = sum(1 for one in found if not one.settled)
    click.echo("nothing needs a person" if ok else f"{todo} finding{'' if todo == 1 else 's'} to look at")


def _lines(one: Finding) -> list[str]:
    mark, colour = _MARKS[one.level]
    task = f"{one.task}: " if one.task else ""
    first = f"  {click.style(mark, fg=colour)} {task}{cut(one.what, 400)}"
    return [first, f"      {one.hint}"] if one.hint and one.level != "ok" else [first]


# -- gc --------------------------------------------------------------------------------------------------------------


def clear(root: str, older_days: float, failed: bool, remove: bool, dry_run: bool, as_json: bool) -> int:
    """List what may go, and with `remove` remove it. 0, but for 1 when something of that stayed."""
    rule = clearing.rule(older_days=older_days, failed=failed, clock=time.time)
    found = list(clearing.candidates(root, rule))
    if not as_json:
        _list(found, older_days)
    if remove:
        workspace.sweep_staging(root)
        found = _removed(root, found, rule, as_json)
    if as_json:
        total = sum(one.bytes for one in found)
        told = {"schema": 1, "removing": remove, "bytes": total, "tasks": [one.to_json() for one in found]}
        click.echo(json.dumps(told))
    elif found and not remove and not dry_run:
        click.echo("nothing was removed; to remove what is listed: --yes")
    return 0 if all(one.removed is not False for one in found) else 1


def _list(found: Sequence[Candidate], older_days: float) -> None:
    if not found:
        click.echo(f"no task has ended more than {older_days:g} days ago")
    for one in found:
        click.echo(f"{one.id}  {one.state:<9}  {one.ended[:10]}  {bytes_text(one.bytes):>9}  {cut(one.name, 60)}")
    if found:
        click.echo(f"{len(found)} task{'' if len(found) == 1 else 's'}, {bytes_text(sum(o.bytes for o in found))}")


def _removed(root: str, found: list[Candidate], rule: clearing.Rule, as_json: bool) -> list[Candidate]:
    after = []
    for one in clearing.remove(root, found, rule):
        after.append(one)
        if not as_json:
            kept = f": {one.kept}" if one.kept else ""
            click.echo(f"{'removed' if one.removed else 'kept'} {one.id}{kept}")
    return after


def bytes_text(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


# -- config ----------------------------------------------------------------------------------------------------------


def show_config(root: str, source: str, as_json: bool) -> None:
    found = effective(root, source)
    if as_json:
        click.echo(json.dumps(found))
        return
    click.echo(f"root  {found['root']['value']}  ({source})")
    for title in ("templates", "means", "limits", "versions"):
        click.echo(click.style(title, bold=True))
        for name, one in found[title].items():
            click.echo(f"  {name}  {one['value']}  ({one['source']})")
    environment = found["environment"]
    click.echo(click.style("environment of workers", bold=True))
    click.echo(f"  let through: {' '.join(environment['rules'])}")
    click.echo(f"  of these there are: {' '.join(environment['passed'])}")
    click.echo(f"  always set: {' '.join(f'{name}={value}' for name, value in environment['fixed'].items())}")


def effective(root: str, source: str) -> dict[str, Any]:
    """Every value in effect and where it comes from, schema 1. Of the environment only names: values may be secret."""
    from orchestrator import surroundings

    passed = sorted(name for name in config.allowed(os.environ) if name not in config.FIXED)
    return {
        "schema": 1,
        "root": {"value": root, "source": source},
        "templates": {name: _template(name) for name in ("task.md", "task-retro.md", "routine.md", "routine.zh.md")},
        "environment": {"rules": list(config.ENVIRONMENT), "passed": passed, "fixed": dict(config.FIXED)},
        "means": {one.name: {"value": one.state, "source": _why(one)} for one in surroundings.all_means(root)},
        "limits": {f.name: {"value": f.default, "source": "default"} for f in dataclasses.fields(Limits)},
        "versions": {name: {"value": v, "source": "installed"} for name, v in surroundings.versions().items()},
    }


def _template(name: str) -> dict[str, str | None]:
    path, source = templates.find(name) or (None, "missing")
    return {"value": path, "source": source}


def _why(one: Means) -> str:
    return means.VARIABLE if one.state == "off" else "this system"
