"""A task.md that was written by hand, by another tool or half: rewritten as we write it, and nothing in it is lost."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

import pytest
from cli_door import DATA, NO_INPUT, TEMPORARY, Cli
from conftest import Ledger
from hypothesis import given, settings
from hypothesis import strategies as st
from kit import fifo, kill_worker, let_go, open_gate, spec, start_and_leave, step_lines, tries

from orchestrator import Coordinator, files, repairing
from orchestrator.core.canonical import LEFT, MENDED, canonical
from orchestrator.core.checklist import Checklist
from orchestrator.core.model import StepId, StepStatus, TaskStatus
from orchestrator.core.names import label
from orchestrator.errors import Refused

CASES = Path(__file__).parent / "cases" / "task-md"
TASK_ID = "task-20260524-210600-001"
HEAD = f"# Task: digest\n## Status: working\n## TaskID: {TASK_ID}\n\n[start done]\n"

#: A text with each deviation, and what becomes of it below the usual head (None: the file stays as it is).
DEVIATIONS: dict[str, tuple[str | bytes, str | None]] = {
    "indent": (HEAD + "   [working] a\n", "[working] a\n"),
    "bullet": (HEAD + "- [working done] a\n12) [working] b\n", "[working done] a\n[working] b\n"),
    "checkbox": (HEAD + "- [x] a\n* [ ] b\n", "[working done] a\n[pending] b\n"),
    "full-width": (HEAD + "【working】\u3000步骤\n", "[working] 步骤\n"),
    "tag-case": (HEAD + "[Working Done] a\n", "[working done] a\n"),
    "white-space": (HEAD + "[working  done]   a   b\n", "[working done] a b\n"),
    "not-nfc": (HEAD + "[working] cafe\u0301\n", "[working] café\n"),
    "html-comment": (HEAD + "[working] a <!-- twice a day -->\n", "[working] a\n<!-- twice a day -->\n"),
    "text-after-tag": (HEAD + "[working done] a\n[end] [working] all fine\n",
                       "[working done] a\n[end]\n> [working] all fine\n"),
    "no-name": (HEAD + "[working] a\n[working] <!-- b -->\n", "[working] a\n> [working] <!-- b -->\n"),
    "heading-form": (HEAD.replace("# Task: digest", "#  task： digest <!-- x -->") + "[working] a\n",
                     "[working] a\n"),
    "no-title": (HEAD.removeprefix("# Task: digest\n") + "- [working] a\n", "[working] a\n"),
    "no-status": (HEAD.replace("## Status: working\n", "") + "[working] a\n", "[working] a\n"),
    "no-task-id": (HEAD.replace(f"## TaskID: {TASK_ID}\n", "") + "- [working] a\n", "[working] a\n"),
    "no-start": (HEAD.replace("[start done]\n", "") + "[working] a\nnote\n", "[working] a\nnote\n"),
    "bom": ("\ufeff" + HEAD + "[working] a\n", "[working] a\n"),
    "crlf": ((HEAD + "[working] a\nnote\n").replace("\n", "\r\n"), "[working] a\nnote\n"),
    "append-style": (HEAD + "[working] a\nn\n[working done] a\n[working] b\n", "[working done] a\nn\n[working] b\n"),
    "unknown-status": (HEAD.replace("working", "perhaps") + "[working] a\n", "[working] a\n"),
    "end-in-template": (HEAD + "[working] a\n[end]\n", "[working] a\n"),
    "end-with-open-steps": (HEAD.replace("working", "end") + "[working] a\n[end]\n", None),
    "status-contradiction": (HEAD + "[working done] a\n[end]\n", "[working done] a\n[end]\n"),
    "end-twice": (HEAD.replace("working", "end") + "[end]\n[working done] a\n[end]\n", "[working done] a\n[end]\n"),
    "torn-line": (HEAD + "[working] step 1\n[working] step 10\n[working done] step 1",
                  "[working] step 1\n[working] step 10\n"),
    "whole-fence": ("# Task: digest\n## Status: working\n## TaskID: " + TASK_ID
                    + "\n\n```text\n[start done]\n[working] a\n```\nnote\n", "[working] a\nnote\n"),
    "open-fence": (HEAD + "[working] a\n```sh\n[working] no step\n", "[working] a\n```sh\n[working] no step\n```\n"),
    "open-comment": (HEAD + "[working] a\n<!-- hidden\n[working] b\n", "[working] a\n<!-- hidden -->\n[working] b\n"),
    "leading-break": ("---\n" + HEAD + "[working] a\n", "[working] a\n"),
    "front-matter": ("---\nowner: me\n---\n" + HEAD + "[working] a\n", None),
    "unknown-tag": (HEAD + "[working] a\n[wroking] b\n", None),
    "broken-checkbox": (HEAD + "[working] a\n- [] b\n", None),
    "bad-bytes": (HEAD.encode() + b"[working] caf\xe9\n", None),
    "steps-after-break": ("# Task: x\n## Status: working\n---\n[working] a\n", None),
    "empty": ("", None),
    "nul": (HEAD + "\0", None),
}  # fmt: skip


def read(data: bytes) -> Checklist:
    return Checklist.parse(data)


def codes(data: bytes) -> set[str]:
    return {found.code for found in read(data).findings}


def essence(found: Checklist, labels: bool = False) -> tuple[list[tuple[str, StepStatus, bool]], bool, int | None]:
    """Steps, end, resume point. labels: with the names that repeated steps have when they are written."""
    counted: Counter[str] = Counter()
    taken = {step.name for step in found.steps}
    steps = []
    for step in found.steps:
        counted[step.name] += 1
        n = counted[step.name]
        name = label(StepId(step.name, n), taken) if labels and n > 1 else step.name
        taken.add(name)
        steps.append((name, step.status, step.redo))
    return steps, found.ended, found.resume


def test_of_everything_the_reader_tolerates_it_is_said_what_becomes_of_it() -> None:
    sources = Path(__file__).parents[1] / "orchestrator" / "core"
    said = {
        code
        for name in ("scan.py", "checklist.py")
        for code in re.findall(r"\"([a-z]+(?:-[a-z0-9]+)+|bom|crlf|nul|empty)\"", (sources / name).read_text("utf-8"))
    }
    assert said - {"utf-8"} - set(MENDED) - set(LEFT) == set()
    assert set(MENDED) | set(LEFT) == set(DEVIATIONS)
    assert not set(MENDED) & set(LEFT)


@pytest.mark.parametrize("code", DEVIATIONS)
def test_a_deviation_is_rewritten_as_we_write_it_and_is_gone(code: str) -> None:
    text, right = DEVIATIONS[code]
    data = text if isinstance(text, bytes) else text.encode()
    assert code in codes(data)
    mended = canonical(data)
    if right is None:
        assert mended == data
        assert code in LEFT
        return
    assert mended.decode().endswith("[start done]\n" + right)
    assert essence(read(mended)) == essence(read(data))
    assert codes(mended) <= set(LEFT)
    assert canonical(mended) == mended


def test_a_status_that_is_none_stays_readable() -> None:
    text, _ = DEVIATIONS["unknown-status"]
    assert "## Status: working\n<!-- Status: perhaps -->\n" in canonical(str(text).encode()).decode()


def test_what_is_known_of_a_task_fills_in_its_headings() -> None:
    mended = canonical(b"[working] a\n", task_id=TASK_ID, title="digest").decode()
    assert mended == HEAD.replace("\n\n", "\n") + "[working] a\n"


def test_a_text_that_is_no_checklist_is_left_alone() -> None:
    assert canonical(b"# Read me\n\nwords\r\n") == b"# Read me\n\nwords\r\n"


@pytest.mark.parametrize("case", sorted(path.stem for path in CASES.glob("*.md")))
def test_each_agreed_case_says_the_same_when_it_is_repaired(case: str) -> None:
    data = (CASES / f"{case}.md").read_bytes()
    mended = canonical(data)
    assert essence(read(mended)) == essence(read(data))
    assert codes(mended) <= set(LEFT)


NOTE = "note{}"
LINES = st.sampled_from(
    ["[working] a", "[working done] a", "[pending] a", "[failed] a", "[redo] a", "[skipped] b", "[working] b",
     "- [pending] b <!-- note{} -->", "- [ ] c note", "1. [x] d", "［working］e", "[Working  Done] a <!-- note{} -->",
     "note{}", "", "> [working] note{}", "```", "~~~ note{}", "---", "[end]", "[end] note{}", "[start done] note{}",
     "[start done]", "## Status: working", "## Status: end <!-- note{} -->", "## status： perhaps", "# Task: x",
     "# note{}",
     "[working] <!-- note{} -->", "<!-- note{}", "note{} -->", "[wroking] note{}", "[end] [working] note{}", "* note{}",
     "[working] caf\udcff", f"## TaskID: {TASK_ID}", "\t[pending] f", "[working done] a (2)", "[working", "...", "***"]
)  # fmt: skip
documents = st.tuples(st.lists(LINES, max_size=16), st.sampled_from(["\n", "\r\n"]), st.booleans(), st.booleans())


def document(lines: list[str], eol: str, bom: bool, whole: bool) -> bytes:
    numbered = [line.replace("{}", f"<{n}>") for n, line in enumerate(lines)]
    text = ("\ufeff" if bom else "") + eol.join(numbered) + (eol if whole else "")
    return text.encode("utf-8", "surrogateescape")


@given(documents)
@settings(max_examples=1500)
def test_a_repaired_checklist_has_the_same_steps_and_every_note_and_nothing_more_to_repair(
    parts: tuple[list[str], str, bool, bool],
) -> None:
    data = document(*parts)
    before = read(data)
    if before.damaged:
        return
    mended = canonical(data)
    after = read(mended)
    assert essence(after) in (essence(before), essence(before, labels=True))
    assert before.status in (after.status, None, TaskStatus.END) or after.ended
    torn = any(found.code == "torn-line" for found in before.findings)
    notes = re.findall(rb"note<\d+>", data if not torn else data.rpartition(b"\n")[0])
    assert [note for note in notes if note not in mended] == []
    assert canonical(mended) == mended
    if mended != data:
        assert {found.code for found in after.findings} <= set(LEFT)


@given(st.binary(max_size=200))
@settings(max_examples=300)
def test_no_bytes_whatever_are_made_worse(data: bytes) -> None:
    before = read(data)
    after = read(canonical(data))
    assert after.damaged == before.damaged
    assert essence(after) in (essence(before), essence(before, labels=True))


# -- the command -----------------------------------------------------------------------------------------------------


UNTIDY = "\ufeff" + HEAD + "- [working] a\nnote\n- [x] a\n* [ ] b\n"
TIDY = HEAD + "[working done] a\nnote\n[pending] b\n"


@pytest.fixture
def cli(tmp_path: Path, root: Path) -> Cli:
    return Cli(tmp_path, root)


def test_what_would_be_changed_is_shown_before_anything_is_written(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "task.md"
    path.write_text(UNTIDY)
    said = cli("repair", path)
    assert (said.code, path.read_text()) == (1, UNTIDY)
    assert "-\\ufeff# Task: digest\n+# Task: digest\n" in said.out
    assert "-- [working] a\n+[working done] a\n note\n-- [x] a\n-* [ ] b\n+[pending] b\n" in said.out
    assert "--yes" in said.err
    assert cli("repair", path, "--yes").code == 0
    assert path.read_text() == TIDY
    said = cli("repair", tmp_path)
    assert (said.code, said.out) == (0, f"{tmp_path}/task.md: nothing to repair\n")


def test_a_program_is_told_the_same(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "task.md"
    path.write_text(UNTIDY + "[wroking] c\n")
    said = cli("repair", path, "--json")
    told = json.loads(said.out)
    assert (said.code, told["changes"], told["written"], path.read_text()) == (1, True, False, UNTIDY + "[wroking] c\n")
    told = json.loads(cli("repair", path, "--json", "--yes").out)
    assert (told["written"], path.read_text()) == (True, TIDY + "[wroking] c\n")
    assert [finding["code"] for finding in told["left"]] == ["unknown-tag"]
    assert json.loads(cli("repair", path, "--json").out)["changes"] is False


def test_what_cannot_be_repaired_is_refused_and_left_as_it_is(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "task.md"
    cli("repair", path).refuses(NO_INPUT, "no task")
    path.write_bytes(b"")
    cli("repair", path, "--yes").refuses(DATA, "is empty", "nothing to rewrite")
    path.write_bytes(b"# Read me\n")
    cli("repair", path, "--yes").refuses(DATA, "is no checklist")
    path.unlink()
    path.symlink_to(CASES / "10-bullets.md")
    cli("repair", path, "--yes").refuses(DATA, "not a regular file")


async def test_a_task_is_repaired_under_its_lock_and_goes_on_as_before(
    cli: Cli, root: Path, tmp_path: Path, ledger: Ledger
) -> None:
    with fifo(tmp_path / "gate") as gate:
        where = await start_and_leave(root, spec("waits_in_two", ledger, gate=str(gate)))
        await ledger.has("two began")
        path = Path(where.task_md)
        untidy = path.read_text().replace("[working] two", "- [Working] two <!-- mine -->").replace(where.task_id, "")
        path.write_text(untidy)
        cli("repair", where.task_id, "--yes").ends_refusing(TEMPORARY, "is being worked on", "orchestrator wait")
        assert path.read_text() == untidy
        kill_worker(where)
        await let_go(where)
        assert cli("repair", where.task_id, "--yes").code == 0
        assert f"## TaskID: {where.task_id}\n" in path.read_text()
        assert step_lines(where) == ["[start done]", "[working done] one", "[working] two"]
        async with Coordinator(root) as coordinator:
            await coordinator.recover()
            await open_gate(gate)
            assert (await coordinator.wait(where.task_id)).ok
    assert tries(ledger, "one") == [1]
    assert "<!-- mine -->\n" in path.read_text()


def test_an_edit_saved_while_the_change_was_looked_at_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "task.md"
    path.write_text(UNTIDY)
    shown = repairing.plan(str(path))
    path.write_text(UNTIDY + "a thought\n")
    with pytest.raises(Refused):
        repairing.carry_out(shown)
    assert path.read_text() == UNTIDY + "a thought\n"


def test_an_edit_saved_in_the_very_moment_of_writing_is_put_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "task.md"
    path.write_text(UNTIDY)
    shown = repairing.plan(str(path))
    read = files.read

    def saved_right_after(name: str) -> bytes:
        text = read(name)
        monkeypatch.setattr(files, "read", read)
        path.write_text(UNTIDY + "a thought\n")
        return text

    monkeypatch.setattr(files, "read", saved_right_after)
    with pytest.raises(Refused):
        repairing.carry_out(shown)
    assert path.read_text() == UNTIDY + "a thought\n"


def test_an_edit_saved_while_another_is_put_back_is_not_thrown_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "task.md"
    path.write_text(UNTIDY)
    shown = repairing.plan(str(path))
    exchange, edits = files.exchange, ["a thought\n", "a second\n", "a third\n"]

    def saved_right_before(name: str, data: bytes, *, expected: bytes | None, sync: bool) -> bytes | None:
        if edits:
            path.write_text(UNTIDY + edits.pop(0))
        return exchange(name, data, expected=expected, sync=sync)

    monkeypatch.setattr(files, "exchange", saved_right_before)
    monkeypatch.setattr(files, "SETTLE_SECONDS", 0.0)
    with pytest.raises(Refused):
        repairing.carry_out(shown)
    assert path.read_text() == UNTIDY + "a third\n"


def test_an_edit_that_a_kill_displaced_is_not_deleted_by_a_repair(tmp_path: Path) -> None:
    path, left = tmp_path / "task.md", tmp_path / (files.TEMPORARY + "task.md")
    path.write_text(UNTIDY)
    left.write_text(UNTIDY + "a thought\n")
    repairing.carry_out(repairing.plan(str(path)))
    assert path.read_text() != UNTIDY
    assert left.read_text() == UNTIDY + "a thought\n"


def test_a_finding_that_repair_mends_is_named_by_lint_with_its_line(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "task.md"
    path.write_text(UNTIDY)
    assert f"{path}:6: bullet: " in cli("lint", path).out
