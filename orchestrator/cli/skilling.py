"""Commands about skills, and whether work is worth a worker."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import click

from orchestrator import errors
from orchestrator.cli.group import cli, command, json_option, root_option

if TYPE_CHECKING:
    from orchestrator.skillfiles import Found

#: The skill that is shipped for main sessions.
SHIPPED = "orchestrator"


@command()
@click.option("--tokens", type=click.IntRange(0), default=0, help="About how many it takes, read and written [0].")
@click.option("--nested", is_flag=True, help="Tool calls follow from the results of others.")
@click.option("--structured", is_flag=True, help="Its result is a file or data that something else reads.")
@click.option("--interactive", is_flag=True, help="The user is asked as it goes.")
@json_option
def delegate(tokens: int, nested: bool, structured: bool, interactive: bool, as_json: bool) -> None:
    """Say whether a piece of work goes to a worker, or stays in the main session; and why."""
    from orchestrator.core.delegation import Estimate, should_delegate

    said = should_delegate(Estimate(tokens, nested=nested, structured=structured, interactive=interactive))
    if as_json:
        click.echo(json.dumps({"delegate": said.delegate, "rule": said.rule, "reason": said.reason}))
    else:
        click.echo(f"{'delegate' if said else 'stay'}: {said.reason}")


@cli.group()
@root_option
def skill() -> None:
    """Skills: what a name leads to, and the one for main sessions, put where agent CLIs find it."""


@skill.command()
@click.option(
    "--for",
    "agents",
    multiple=True,
    metavar="AGENT",
    help="claude, codex, gemini, opencode, or a directory of skills [default: those used here]. Repeatable.",
)
@click.option("--project", is_flag=True, help="For the current directory only, not for all of the user's.")
@click.option("--force", is_flag=True, help="Overwrite changed files too; their content is kept aside.")
@json_option
def install(agents: tuple[str, ...], project: bool, force: bool, as_json: bool) -> None:
    """Put the skill that teaches delegation where an agent CLI looks for skills.

    Doing it again changes nothing. A file that was changed there is left alone unless --force is given.
    """
    from orchestrator import skillinstall

    found = _shipped()
    said: list[skillinstall.Written] = []
    for into in skillinstall.targets(agents, os.environ, project=project):
        here = skillinstall.install(found, into, force=force)
        said += here
        if not as_json:
            click.echo("\n".join(map(_written, here)))
    if as_json:
        click.echo(json.dumps([written._asdict() for written in said]))


def _written(said: Any) -> str:
    kept = f"  (your version: {said.aside})" if said.aside else ""
    return f"{said.action:<8} {said.path}{kept}"


@skill.command("list")
@json_option
def list_(as_json: bool) -> None:
    """List the skills that a name leads to from here: of the project, the user, and this package."""
    from orchestrator import resolving, skillfiles

    found = {f.name: _json(f) for f in skillfiles.everything(skillfiles.places(os.environ))}
    for name, worker in resolving.installed_skills().items():
        found.setdefault(name, {"name": name, "place": "installed", "worker": worker, "description": worker})
    rows = [found[name] for name in sorted(found)]
    if as_json:
        click.echo(json.dumps(rows))
        return
    width = max(len(row["name"]) for row in rows)
    for row in rows:
        about = f"cannot be used: {row['problem']}" if row.get("problem") else row["description"]
        about = about if len(about) <= 90 else about[:89] + "…"
        click.echo(f"{row['name']:<{width}}  {row['place']:<9}  {row.get('version') or '-':<12}  {about}")


@skill.command("show")
@click.argument("name")
@json_option
def show_(name: str, as_json: bool) -> None:
    """Print a skill's SKILL.md, with where it lies and which version it is."""
    from orchestrator import resolving, skillfiles

    found = skillfiles.find(name, skillfiles.places(os.environ))
    if found is None:
        worker = resolving.installed_skills().get(name)
        if worker is None:
            raise resolving.unknown_skill(name)
        data = {"name": name, "place": "installed", "worker": worker}
        click.echo(json.dumps(data) if as_json else f"{worker}  (installed with a package; it has no SKILL.md)")
        return
    data = _json(found)
    with open(found.file, encoding="utf-8") as file:
        text = file.read()
    if as_json:
        click.echo(json.dumps({**data, "text": text}))
    else:
        click.echo(f"{data['path']}  ({data['place']}, version {data['version']})\n\n{text}", nl=False)


def _shipped() -> Found:
    from orchestrator import skillfiles

    found = skillfiles.find(SHIPPED, [place for place in skillfiles.places(os.environ) if place.label == "package"])
    if found is None:
        raise errors.Damaged(f"the skill {SHIPPED!r} is not in this package", "install the package anew")
    return found


def _json(found: Found) -> dict[str, Any]:
    from orchestrator import skillfiles

    return {
        "name": found.name,
        "place": found.place,
        "path": found.file,
        "version": skillfiles.version(found) if found.problem is None else None,
        "description": found.skill.description if found.skill else "",
        "worker": found.skill.worker if found.skill else None,
        "problem": found.problem.what if found.problem else None,
    }
