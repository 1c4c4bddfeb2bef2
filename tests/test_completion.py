"""Shell completion: the scripts are scripts, and a task's id is completed from the root that the words name."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from cli_door import USAGE, Cli

IDS = ("task-20260101-000000-001", "task-20260101-000000-002", "task-20270101-000000-001")


@pytest.fixture
def cli(tmp_path: Path, root: Path) -> Cli:
    for name in (*IDS, "no-task", ".orchestrator-new-1"):
        (root / name).mkdir()
    return Cli(tmp_path, root)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_script_is_one_that_its_shell_can_read(cli: Cli, shell: str) -> None:
    said = cli("completion", shell)
    assert said.code == 0
    assert f"_ORCHESTRATOR_COMPLETE={shell}_complete" in said.out
    if shell == "bash" or shutil.which(shell):
        subprocess.run([shell, "-n"], input=said.out, text=True, check=True)
    else:
        word = {"zsh": "compdef", "fish": "complete "}[shell]
        assert word in said.out
        assert said.out.count("{") == said.out.count("}")
        assert said.out.count("(") == said.out.count(")")


def completed(cli: Cli, line: str, **environment: str) -> list[str]:
    """What bash would offer at the end of the line."""
    words = line.split(" ")
    asked = {"_ORCHESTRATOR_COMPLETE": "bash_complete", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    program = os.path.join(os.path.dirname(sys.executable), "orchestrator")
    ended = subprocess.run(
        [program], env={**os.environ, **asked, **environment}, cwd=cli.cwd, capture_output=True, text=True, check=True
    )
    return [line.partition(",")[2] for line in ended.stdout.splitlines() if line]


@pytest.mark.parametrize("command", ["show", "explain", "wait", "cancel", "recover", "pause", "resolve", "lint"])
def test_the_ids_of_the_root_are_offered_the_newest_first(cli: Cli, command: str) -> None:
    root = str(cli.root)
    assert completed(cli, f"orchestrator {command} ", ORCHESTRATOR_ROOT=root) == list(reversed(IDS))
    assert completed(cli, f"orchestrator {command} task-2027", ORCHESTRATOR_ROOT=root) == [IDS[2]]
    assert completed(cli, f"orchestrator {command} x", ORCHESTRATOR_ROOT=root) == []


def test_the_root_may_be_named_before_or_behind_the_command(cli: Cli, tmp_path: Path) -> None:
    os.symlink(cli.root, tmp_path / "plain")  # a shell would quote the blanks; here the words are split at them
    assert completed(cli, "orchestrator --root plain show task-2027") == [IDS[2]]
    assert completed(cli, "orchestrator show --root plain task-2027") == [IDS[2]]


def test_a_root_that_is_none_completes_to_nothing_and_says_nothing(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert completed(cli, "orchestrator show ", ORCHESTRATOR_ROOT=str(tmp_path / "file")) == []
    assert completed(cli, "orchestrator show ", ORCHESTRATOR_ROOT=str(tmp_path / "gone")) == []


@pytest.mark.parametrize("command", ["redo", "skip", "resolve"])
def test_the_steps_of_the_task_are_offered(cli: Cli, tmp_path: Path, command: str) -> None:
    (tmp_path / "w.yaml").write_text("steps:\n  - {name: fetch, shell: 'true'}\n  - {name: file, shell: 'true'}\n")
    assert cli("run", "w.yaml").code == 0
    (task,) = set(os.listdir(cli.root)) - {*IDS, "no-task", ".orchestrator-new-1"}
    root = str(cli.root)
    assert completed(cli, f"orchestrator {command} {task} f", ORCHESTRATOR_ROOT=root) == ["fetch", "file"]
    assert completed(cli, f"orchestrator {command} {task} fe", ORCHESTRATOR_ROOT=root) == ["fetch"]
    assert completed(cli, f"orchestrator {command} {IDS[0]} f", ORCHESTRATOR_ROOT=root) == []
    assert completed(cli, f"orchestrator {command} no-task f", ORCHESTRATOR_ROOT=root) == []


@pytest.mark.parametrize("command", ["run", "spawn"])
def test_workers_are_offered_by_name_and_files_by_the_shell(cli: Cli, tmp_path: Path, command: str) -> None:
    (tmp_path / "skills" / "report-it").mkdir(parents=True)
    (tmp_path / "skills" / "report-it" / "SKILL.md").write_text("---\nname: report-it\ndescription: Reports.\n---\n")
    assert completed(cli, f"orchestrator {command} re") == ["repo_report", "report-it", "retrospect", "re"]


def test_commands_are_completed(cli: Cli) -> None:
    assert completed(cli, "orchestrator exp") == ["explain"]
    cli("completion", "tcsh").refuses(USAGE, "tcsh")


def test_every_help_page_fits_into_80_columns() -> None:
    from click import Context, Group

    from orchestrator.cli.main import cli as program

    def pages(command, name):
        yield name, command.get_help(Context(command, info_name=name, terminal_width=80))
        for sub in command.list_commands(Context(command)) if isinstance(command, Group) else ():
            yield from pages(command.get_command(Context(command), sub), f"{name} {sub}")

    found = dict(pages(program, "orchestrator"))
    assert len(found) > 25
    wide = [line for page in found.values() for line in page.splitlines() if len(line) > 80]
    assert wide == []
    empty = [name for name, page in found.items() if len(page.split("Options:")[0].strip().splitlines()) < 3]
    assert empty == []
