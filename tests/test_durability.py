"""docs/durability.md makes no promise that a test does not prove, and says what is not promised."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import test_crash_lines
import test_disk_faults
import test_fuzz
import test_model
import test_ruined
import test_ruined_running

REPOSITORY = Path(__file__).resolve().parent.parent
PAGE = REPOSITORY / "docs/durability.md"

_SECTION = re.compile(r"^## ([^\n]+)\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
_TABLE = re.compile(r"^\| promise \| proved by \|\n\|---\|---\|\n((?:\|.*\n)+)", re.MULTILINE)
_TEST = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")
_NOT_PROMISED = "What is not promised"


def sections(text: str) -> dict[str, str]:
    return dict(_SECTION.findall(text))


def promises(body: str) -> list[tuple[str, str]]:
    """Each promise of the tables in a text, and what is named as its proof."""
    rows = [row.strip("| ").rpartition(" | ") for table in _TABLE.findall(body) for row in table.splitlines()]
    return [(promise, proofs) for promise, _, proofs in rows]


def unproved(body: str) -> list[str]:
    """What is wrong with the promises of a text: one without a test, or with one that is not there."""
    found = []
    for promise, proofs in promises(body):
        tests = _TEST.findall(proofs)
        if not tests or _TEST.sub("", proofs).strip(" ,"):
            found.append(f"{promise}: {proofs!r} is no list of tests")
        found += [f"{promise}: {path}::{name} is not there" for path, name in tests if not exists(path, name)]
    return found


def exists(path: str, name: str) -> bool:
    file = REPOSITORY / path
    return file.is_file() and re.search(rf"^(async )?def {name}\(", file.read_text("utf-8"), re.MULTILINE) is not None


def test_every_promise_is_proved_by_a_test_that_is_there() -> None:
    found = sections(PAGE.read_text("utf-8"))
    assert not [wrong for body in found.values() for wrong in unproved(body)]
    assert [title for title, body in found.items() if not promises(body)] == [_NOT_PROMISED]


@pytest.mark.parametrize(
    "row",
    [
        "| all is kept | we are sure |",
        "| all is kept | `tests/test_durability.py::test_that_nobody_wrote` |",
        "| all is kept | `tests/test_nowhere.py::test_x` |",
        "| all is kept | `tests/test_durability.py::test_every_promise_is_proved_by_a_test_that_is_there` and luck |",
    ],
)
def test_a_promise_that_nothing_proves_is_found(row: str) -> None:
    assert unproved(f"| promise | proved by |\n|---|---|\n{row}\n")


def test_what_is_not_promised_is_said() -> None:
    said = sections(PAGE.read_text("utf-8"))[_NOT_PROMISED].lower()
    for word in ("side effects", "network file systems", "editor", "lies", "notes", "hardware", "two machines"):
        assert word in said


@pytest.mark.parametrize("page", ["README.md", "docs/protocol.md"])
def test_whoever_reads_of_the_promises_is_led_to_their_proofs(page: str) -> None:
    assert "durability.md)" in (REPOSITORY / page).read_text("utf-8")


def test_how_much_of_what_is_too_large_is_drawn_is_told_as_it_is() -> None:
    section = sections(PAGE.read_text("utf-8"))["The tests themselves"]
    rows = [
        [cell.strip() for cell in line.strip("| ").split(" | ")] for line in section.splitlines() if line[:2] == "| "
    ]
    told = {what: (every, drawn, by) for what, every, drawn, by in (row for row in rows if len(row) == 4)}
    for what, count in (
        ("an operation of the disk fails", test_disk_faults.COUNT),
        ("a process dies before a line", test_crash_lines.COUNT),
        ("a file is ruined", test_ruined.COUNT),
        ("a file is ruined under its worker", test_ruined_running.COUNT),
        ("a script of moves, beside the model", 40),
    ):
        assert told[what][1].partition(",")[0] == str(count)
    assert told["a file is ruined"][0].startswith(f"{len(test_ruined.CELLS)} cells")
    assert told["a file is ruined under its worker"][0].startswith(f"{len(test_ruined_running.CELLS)} cells")
    makefile = (REPOSITORY / "Makefile").read_text("utf-8")
    crashes = makefile.partition("\ncrashes:")[2].partition("\n\n")[0]
    for module in (test_crash_lines, test_disk_faults, test_ruined, test_ruined_running, test_fuzz, test_model):
        assert f"tests/{module.__name__}.py" in crashes
    assert "tests/test_damage.py" in crashes
