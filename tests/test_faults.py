"""docs/faults.md says which faults of others are kept out, and which test proves it; two of these are here."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from cli_door import Cli

from orchestrator import store

REPOSITORY = Path(__file__).resolve().parent.parent
_ROW = re.compile(r"^\| (\d+) \| .* \| `(tests/[\w/]+\.py)::(\w+)` \| [^|]+ \|$", re.MULTILINE)
_NAMED = re.compile(r"\bfaults? (\d+(?:, \d+)*)")


def table() -> list[tuple[str, str, str]]:
    return _ROW.findall((REPOSITORY / "docs/faults.md").read_text("utf-8"))


def test_every_fault_that_the_code_names_is_in_the_table() -> None:
    sources = [*(REPOSITORY / "orchestrator").rglob("*.py"), *(REPOSITORY / "tests").rglob("*.py")]
    named = {n for path in sources for found in _NAMED.findall(path.read_text("utf-8")) for n in found.split(", ")}
    assert len(named) > 5
    assert named <= {number for number, _, _ in table()}


def test_every_row_of_the_table_names_a_test_that_is_there() -> None:
    rows = (REPOSITORY / "docs/faults.md").read_text("utf-8").count("\n| ") - 1
    assert len(table()) == rows
    assert not [row for row in table() if not function(row[1], row[2])]


def test_every_test_of_the_table_names_its_fault() -> None:
    for number, path, name in table():
        named = {n for found in _NAMED.findall(function(path, name)) for n in found.split(", ")}
        assert number in named, f"{path}::{name} does not say that it is about fault {number}"


def function(path: str, name: str) -> str:
    """The source of a test, with a comment above it; "" when it is not there."""
    text = (REPOSITORY / path).read_text("utf-8")
    found = re.search(rf"^(#[^\n]*\n)?(async )?def {name}\(.*?(?=\n\n\n|\Z)", text, re.MULTILINE | re.DOTALL)
    return found[0] if found else ""


@pytest.fixture
def seen(tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The environment of a step, started from one with a secret in it and another encoding."""
    monkeypatch.setenv("MY_API_SECRET", "hidden")
    monkeypatch.setenv("HTTPS_PROXY", "http://name:word@proxy")
    monkeypatch.setenv("LC_ALL", "C")
    monkeypatch.setenv("PYTHONUTF8", "0")
    (tmp_path / "env.yaml").write_text("steps:\n  - name: look\n    shell: env -0 > seen\n")
    assert Cli(tmp_path, root)("run", "env.yaml").code == 0
    (task_id,) = store.task_ids(str(root))
    lines = (root / task_id / "seen").read_text().split("\0")
    return dict(line.split("=", 1) for line in lines if line)


# faults 59, 69
def test_nothing_in_a_worker_waits_for_somebody_and_its_text_is_utf8(seen: dict[str, str]) -> None:
    wanted = {"GIT_TERMINAL_PROMPT": "0", "GIT_EDITOR": "true", "PAGER": "cat", "PYTHONUTF8": "1"}
    assert {name: seen.get(name) for name in wanted} == wanted


# fault 85
def test_a_secret_of_ours_does_not_reach_a_worker(seen: dict[str, str]) -> None:
    assert not {"MY_API_SECRET", "HTTPS_PROXY"} & seen.keys()
