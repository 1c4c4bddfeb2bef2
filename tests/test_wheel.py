"""What a user gets who installs the wheel: types, licence, templates, the command."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent
SKILL = "skills/orchestrator"
TEMPLATES = (
    *("task.md", "step.md", "task-retro.md", "routine.md", "routine.zh.md"),
    *(f"{SKILL}/SKILL.md", f"{SKILL}/references/verbs.md", f"{SKILL}/references/files.md"),
)

#: Written as a user would: every name from the package's top.
USER_SCRIPT = """\
import anyio
from orchestrator import Coordinator, Task

async def greet(task: Task, who: str = "world") -> str:
    return str(await task.step("say hello", lambda: f"hello {who}"))

async def main(root: str) -> None:
    async with Coordinator(root) as coordinator:
        print(type(coordinator).__name__)

anyio.run(main, "workspaces")
"""

pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Installed:
    """A clean environment that has the wheel and its dependencies, nothing else."""

    wheel: Path
    python: Path
    home: Path

    def run(self, *command: str | Path) -> subprocess.CompletedProcess[str]:
        return run(*command, cwd=self.home)


def run(*command: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run outside the checkout, and without its path: only what was installed can be found."""
    environment = {
        key: value for key, value in os.environ.items() if key not in {"PYTHONPATH", "MYPYPATH", "VIRTUAL_ENV"}
    }
    return subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


def must(*command: str | Path, cwd: Path) -> None:
    done = run(*command, cwd=cwd)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    home = tmp_path_factory.mktemp("user")
    dist, env = home / "dist", home / "env"
    must(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", dist, REPOSITORY, cwd=home)
    (wheel,) = dist.glob("*.whl")
    venv.create(env, with_pip=True)
    python = env / "bin" / "python"
    must(python, "-m", "pip", "install", "-q", wheel, cwd=home)
    return Installed(wheel, python, home)


def test_the_wheel_has_types_licence_and_templates_and_no_tests(installed: Installed) -> None:
    names = zipfile.ZipFile(installed.wheel).namelist()
    assert "orchestrator/py.typed" in names
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)
    assert {f"orchestrator/templates/{name}" for name in TEMPLATES} <= set(names)
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {"orchestrator"}


def test_templates_lie_inside_the_installed_package(installed: Installed) -> None:
    script = "import pathlib, orchestrator; print(pathlib.Path(orchestrator.__file__).parent / 'templates')"
    found = installed.run(installed.python, "-c", script)
    assert found.returncode == 0, found.stderr
    directory = Path(found.stdout.strip())
    assert directory.is_relative_to(installed.home)
    for name in TEMPLATES:
        assert (directory / name).read_bytes() == (REPOSITORY / "templates" / name).read_bytes()


def test_the_command_runs(installed: Installed) -> None:
    shown = installed.run(installed.python.parent / "orchestrator", "--help")
    assert shown.returncode == 0, shown.stderr
    assert "Usage" in shown.stdout


def test_an_installed_command_brings_the_skill_that_teaches_it(installed: Installed) -> None:
    command = installed.python.parent / "orchestrator"
    said = installed.run(command, "skill", "install", "--for", installed.home / "skills")
    assert said.returncode == 0, said.stderr
    written = installed.home / SKILL / "SKILL.md"
    assert written.read_bytes() == (REPOSITORY / "templates" / SKILL / "SKILL.md").read_bytes()


def check_types(installed: Installed, script: str) -> subprocess.CompletedProcess[str]:
    path = installed.home / "user_script.py"
    path.write_text(script, "utf-8")
    cache = f"--cache-dir={installed.home / 'mypy'}"
    return installed.run(sys.executable, "-m", "mypy", "--strict", cache, "--python-executable", installed.python, path)


def test_a_users_typed_script_passes_mypy(installed: Installed) -> None:
    done = check_types(installed, USER_SCRIPT)
    assert done.returncode == 0, done.stdout


def test_a_users_mistake_is_found_by_mypy(installed: Installed) -> None:
    """Without py.typed every name would be Any, and any script would pass."""
    done = check_types(installed, USER_SCRIPT.replace("Coordinator(root)", "Coordinator(root, no_such_argument=1)"))
    assert done.returncode == 1, done.stdout
    assert "no_such_argument" in done.stdout
