"""Every reader of bytes that an agent, a person or a crash may have made: it reads them, or says what is wrong.

Total means: only the error that the reader declares, whatever the bytes are; and in time in proportion to their size,
counted in executed lines, which is the same on every machine.
"""

from __future__ import annotations

import contextlib
import copy
import json
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mangling import bounded, mangled, text_of, wronged

from orchestrator import config, orders, requesting, store
from orchestrator.core import (
    canonical,
    evidence,
    glance,
    handedit,
    journal,
    lifecycle,
    rebuild,
    reconcile,
    retro,
    retro_text,
    routine,
    skill,
    spec,
    stepfile,
    verbs,
    verdict,
)
from orchestrator.core.checklist import Checklist
from orchestrator.core.model import Announcement, Checkpoint, Output, StepError, StepSpec, TaskSpec
from orchestrator.core.rebuild import Remains
from orchestrator.core.snapshot import Snapshot, fold
from orchestrator.core.stepfile import StepFile
from orchestrator.core.submit import check as check_spec
from orchestrator.errors import BadSpec, Damaged

TASK = "task-20260101-000000-001"
RUN = f"{TASK}.1"
AT = "2026-01-01T00:00:00.000Z"

FACE = (
    f"# Task: fetch\n## Status: working\n## TaskID: {TASK}\n\n[start done]\n[working done] a\n[working] b\na note\n"
    f"- [ ] c <!-- by hand -->\n[pending] b (2)\n[failed] 步骤\n[end]\n\n---\nmore\n"
).encode()
APPENDED = b"[start done]\n[working] a\n[working done] a\n[working] b\n[working] a\n[redo] b\n[working done] a"
ERROR = StepError("runtime", "ValueError", "no", "0123456789abcdef")
BLOCKS = (
    Checkpoint("a", "running", attempt=1, try_number=1, at=AT, args="x"),
    Checkpoint("a", "done", attempt=1, try_number=1, at=AT, result={"x": [1]}, outputs=(Output("o", 1, "ab"),)),
    Checkpoint("b", "raised", n=2, key="k", attempt=2, try_number=1, at=AT, error=ERROR, usage={"input": 1}),
)
STEP_FILE = (
    stepfile.heading("a") + stepfile.escape_note("thought") + "".join(map(stepfile.render_checkpoint, BLOCKS))
).encode()
STEP = {"step": "a", "name": "a", "n": 1, "key": None, "file": "a.md"}
SAID = {"id": f"{RUN}.end", "task": TASK, "name": "fetch", "status": "completed", "summary": "x\ny", "result": "/r",
        "steps": {"done": 1}, "seconds": 1.5, "usage": {"input": 1}, "hint": ""}  # fmt: skip
WORKER = [1, 2, "boot", "namespace", "host"]
ENTRIES: list[dict[str, Any]] = [
    {"run": RUN, "seq": seq, "at": AT, "kind": kind, **fields}
    for seq, (kind, fields) in enumerate(
        [
            ("attempt", {"token": "t", "cgroup": None, "deaths": 3, "place": 1}),
            ("started", {"worker": WORKER, "guard": WORKER}),
            ("skill", {"worker": "m:f", "version": "0"}),
            ("plan", {"steps": [STEP, {"step": "b"}], "after": "a"}),
            ("running", {**STEP, "try": 1, "effect": "once", "args": "x"}),
            ("raised", {"step": "a", "try": 1, "error": ERROR.to_json()}),
            ("interrupted", {"step": "a", "try": 1, "why": "w"}),
            ("commit", {"step": "a", "try": 1, "status": "done", "result": 1, "result_file": "results/x",
                        "usage": {"input": 1}, "outputs": [{"path": "o", "size": 1, "sha256": "ab"}],
                        "by_hand": True, "error": ERROR.to_json()}),
            ("order", {"steps": ["b", "a"]}),
            ("handled", {"request": "r1", "verb": "redo", "step": "a"}),
            ("handled", {"request": "r2", "verb": "resolve", "step": "b", "done": True, "result": 1, "refused": "no"}),
            ("asked", {"question": "q"}),
            ("handled", {"request": "r3", "verb": "answer", "question": "q", "text": "yes"}),
            ("heard", {"call": 1, "requests": ["r4"], "texts": ["t"]}),
            ("redo", {"step": "a", "why": "w"}),
            ("end", {"outcome": "failed", "announcement": SAID, "error_class": "quota", "request": "r5"}),
            ("closed", {"outcome": "crashed", "announcement": SAID, "exit": 1, "signal": 9, "last_sign": AT}),
            ("rebuilt", {"generation": "0a1b2c3d", "attempt": 2}),
            ("deaths", {"deaths": 2}),
            ("of a later version", {"step": ["x"], "usage": 1}),
        ],
        1,
    )
]  # fmt: skip
JOURNAL = b"".join(map(journal.encode, ENTRIES))
SPEC = TaskSpec("fetch", "steps", "s.yaml", args={"a": [1, "x"]}, steps=(StepSpec("a", run=("ls",), outputs=("o",)),))
STEPS = b"""name: fetch
limits: {deaths: 2, attempt_seconds: 60}
env: {A: b}
args: {x: [1, 2.5, null]}
steps:
- name: a
  run: [ls, -l]
  timeout: 3
- name: b
  shell: 'echo x'
  effect: once
  check: [test, -e, x]
"""
SKILL = b"---\nname: fetch\ndescription: >\n  fetches\nworker: work.py:run\nother: [x]\n---\nDo it.\n"
ROUTINE = f"Protocol: p\nTask: do\n  it: now\nNotify: true\nTaskID: {TASK}\nAction: resume\nStep: a\n---\n".encode()
CHINESE = f"协议：p\n技能：s\n任务：做\n通知用户：是\n任务ID：{TASK}\n动作：恢复\n".encode()
REQUEST = {"id": "r", "verb": "redo", "step": "a", "why": "w", "done": True, "result": 1, "question": "q", "text": "t"}


# -- task.md -------------------------------------------------------------------------------------------------------


@given(
    mangled(FACE, APPENDED, b"```\n" + FACE + b"```\n", b"---\nx: y\n---\n" + FACE),
    st.sets(st.sampled_from("ab步"), max_size=2),
)
@bounded
def test_whatever_task_md_is_it_is_read_kept_and_mended(data: bytes, known: set[str]) -> None:
    face = Checklist.parse(data, known)
    assert face.render() == data
    json.dumps(face.lint_json())
    mended = canonical.canonical(data, task_id=TASK, known=known)
    assert canonical.canonical(mended, task_id=TASK, known=known) == mended
    snapshot = fold(ENTRIES[:8])
    glance.says_the_same(data, snapshot)
    for edit in handedit.edits(snapshot, face):
        assert journal.decode(
            journal.encode({"run": RUN, "seq": 99, "kind": (e := handedit.entry(edit))[0], **e[1]})[:-1]
        )


# -- step files ----------------------------------------------------------------------------------------------------


@given(mangled(STEP_FILE, STEP_FILE.replace(b"```", b"`````")))
@bounded
def test_whatever_a_step_file_is_it_is_read_and_the_journal_made_of_it_can_be_told(data: bytes) -> None:
    found = stepfile.parse(text_of(data))
    assert len(found.lines) == len(found.checkpoints)
    stepfile.notes_since_running(text_of(data))
    again = stepfile.parse("".join(map(stepfile.render_checkpoint, found.checkpoints)))
    assert repr(again.checkpoints) == repr(found.checkpoints), "parse, render, parse"
    _made_again({"a.md": found}, None)


def _made_again(step_files: dict[str, StepFile], face: Checklist | None) -> Snapshot:
    """The journal is made again of these, can be read whole, and has nothing more to be taken back into it."""
    lines = list(map(journal.encode, rebuild.entries(Remains(TASK, face, step_files), "0a1b2c3d", AT)))
    reading = journal.read(b"".join(lines))
    assert (len(reading.entries), reading.damaged, reading.torn) == (len(lines), (), 0)
    snapshot = fold(reading.entries)
    assert snapshot.ignored == 0
    _told(list(reading.entries))
    assert reconcile.ahead(snapshot, step_files).lines == ()
    return snapshot


#: A block with every key that there is.
BLOCK = {"name": "a", "n": 1, "key": "k", "status": "done", "attempt": 1, "try": 1, "at": AT, "effect": "once",
         "args": "x", "result": 1, "result_file": "results/x", "usage": {"input": 1}, "error": ERROR.to_json(),
         "why": "w", "by_hand": True, "outputs": [{"path": "o", "size": 1, "sha256": "ab"}]}  # fmt: skip


@given(st.lists(wronged(BLOCK), max_size=4), mangled(FACE, APPENDED))
@bounded
def test_a_checkpoint_with_a_value_of_another_kind_is_a_note_or_can_be_told(
    blocks: list[dict[str, Any]], face: bytes
) -> None:
    text = "# a\n" + "".join(
        "\n```yaml checkpoint\n" + "".join(f"{key}: {json.dumps(value)}\n" for key, value in block.items()) + "```\n"
        for block in blocks
    )
    _made_again({"a.md": stepfile.parse(text)}, Checklist.parse(face, {"a", "b"}))
    reconcile.ahead(fold(ENTRIES[:8]), {"a.md": stepfile.parse(text)})


# -- the journal ---------------------------------------------------------------------------------------------------


def _told(entries: list[dict[str, Any]]) -> None:
    """All that is told of a journal: its fold, what happens next, what explains it, its retrospect, its verdict."""
    snapshot = fold(entries)
    assert snapshot.resume_point() is None or snapshot.counts()
    after = copy.deepcopy(snapshot)
    after.presume_dead()
    lifecycle.next_action(after)
    for state in snapshot.steps.values():
        lifecycle.decide_step(state, effect="once", retries=2, args="x", redone=snapshot.redone)
    for verb in verbs.Verb:
        verbs.refusal(snapshot, {"verb": verb, "step": "a", "text": "x"})
    for said in (snapshot.end and snapshot.end.get("announcement"), snapshot.attention):
        if said:
            store.announcement_from_json(said)
    for entry in entries:
        evidence._said(entry["kind"], entry)
    told = retro.analyse(entries)
    retro_text.render(told, "{steps} {name}", name="n", task_id=TASK, status="s")
    json.dumps(retro_text.to_json(told, task_id=TASK, name="n", state="s"))
    record = verdict.record(TASK, "s", told)
    assert verdict.record_from_json(json.loads(json.dumps(verdict.record_to_json(record)))).failures == record.failures
    verdict.judge_all([record])


@given(mangled(JOURNAL))
@bounded
def test_whatever_a_journal_is_it_is_read_and_told(data: bytes) -> None:
    found = journal.read(data)
    assert found.sound + found.torn == len(data)
    kept = b"".join(map(journal.encode, found.entries))
    assert journal.read(kept).entries == found.entries
    _told(list(found.entries))


@given(st.lists(st.sampled_from(ENTRIES).flatmap(wronged), max_size=8))
@bounded
def test_a_line_that_is_whole_and_has_a_value_of_another_kind_is_a_bad_line_and_stops_nobody(
    wrong: list[dict[str, Any]],
) -> None:
    lines = [
        *ENTRIES[:8],
        *({**entry, "seq": entry.get("seq", 0), "kind": entry.get("kind", "commit")} for entry in wrong),
    ]
    found = journal.read(
        b"".join(map(journal.encode, [line if "run" in line else {**line, "run": RUN} for line in lines]))
    )
    _told(list(found.entries))


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry["kind"])
def test_a_line_that_lacks_what_its_kind_is_told_by_or_has_anything_in_its_place_stops_nobody(
    entry: dict[str, Any],
) -> None:
    """Each key of each kind: gone, and each of these values in its place."""
    for key in entry:
        for value in (
            "gone",
            None,
            True,
            7,
            -1,
            10**30,
            1.5,
            "",
            "\ud800",
            [],
            {},
            [[]],
            [None],
            {"a": []},
            [{"step": 1}],
        ):
            wrong = {k: v for k, v in {**entry, key: value}.items() if (k, value) != (key, "gone")}
            wrong.setdefault("run", RUN)
            wrong.setdefault("kind", "commit")
            _told(list(journal.read(JOURNAL[: JOURNAL.index(b"\n") + 1] + journal.encode(wrong) + JOURNAL).entries))


# -- what is to be run ---------------------------------------------------------------------------------------------


@given(mangled(spec.to_yaml(SPEC).encode(), spec.to_yaml(SPEC).rpartition("#")[0].encode() + b"# edited by hand\n"))
@bounded
def test_whatever_a_spec_is_it_is_understood_or_refused(data: bytes) -> None:
    with contextlib.suppress(BadSpec, Damaged):
        found = spec.parse_spec(text_of(data), "spec.yaml")
        check_spec(found)
        assert spec.parse_spec(spec.to_yaml(found), "spec.yaml") == found


@given(mangled(STEPS))
@bounded
def test_whatever_a_steps_file_is_it_is_understood_or_refused_with_its_line(data: bytes) -> None:
    with contextlib.suppress(BadSpec):
        found = spec.parse_steps(text_of(data), "steps.yaml")
        check_spec(found)
        assert spec.parse_spec(spec.to_yaml(found), "spec.yaml") == found


@given(mangled(SKILL))
@bounded
def test_whatever_a_skill_says_of_itself_it_is_understood_or_refused(data: bytes) -> None:
    with contextlib.suppress(BadSpec):
        skill.parse(text_of(data), "SKILL.md", "fetch")


@given(mangled(ROUTINE, CHINESE))
@bounded
def test_whatever_a_routine_message_is_it_is_understood_or_refused(data: bytes) -> None:
    with contextlib.suppress(BadSpec):
        found = routine.parse(text_of(data))
        template = "".join(f"{routine.KEYS[field][0]}: {{{field}}}\n" for field in routine.KEYS) + "---\n"
        assert routine.parse(routine.render(found, template)) == found


# -- orders, announcements, the environment ------------------------------------------------------------------------


@given(mangled(b"\n".join([json.dumps(REQUEST).encode()] * 3)), wronged(REQUEST))
@bounded
def test_whatever_is_ordered_it_is_refused_or_has_one_line_that_can_be_told(data: bytes, wrong: dict[str, Any]) -> None:
    lines = [*data.splitlines(), json.dumps(wrong).encode()]
    for request in filter(None, map(requesting._request, lines)):
        snapshot = fold(ENTRIES[:8])
        forecast = orders.Forecast(TASK, snapshot)
        orders.handle(forecast, request)
        assert str(request["id"]) in snapshot.handled, request


@given(wronged(SAID))
@bounded
def test_an_announcement_that_lacks_something_is_none_and_others_are_read(said: dict[str, Any]) -> None:
    entry = {"run": RUN, "seq": 1, "kind": "end", "outcome": "completed", "announcement": said}
    found = journal.decode(journal.encode(entry)[:-1])
    if found is not None and said:
        assert isinstance(store.announcement_from_json(found["announcement"]), Announcement)


@given(
    st.dictionaries(
        st.text(max_size=5) | st.sampled_from(["PYTHONPATH", "LC_", "ORCHESTRATOR_ROOT"]), st.text(max_size=9)
    )
)
@bounded
def test_whatever_the_environment_is_it_gives_a_configuration(environ: dict[str, str]) -> None:
    found = config.from_environment(environ)
    assert found.root
    assert {*config.FIXED} <= {name for name, _ in found.environment} <= {*config.FIXED, *environ}


# -- time in proportion to the size --------------------------------------------------------------------------------


def _lines_of(work: Callable[[], object]) -> int:
    """How many lines of Python are executed, whatever machine it is."""
    count, before = 0, sys.gettrace()

    def trace(_frame: FrameType, event: str, _arg: object) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


def _faces(line: bytes) -> Callable[[int], object]:
    def work(n: int) -> object:
        data = line * n
        return canonical.canonical(data), handedit.edits(fold(ENTRIES[:8]), Checklist.parse(data))

    return work


def _blocks(make: Callable[[int], Checkpoint], *, face: bool = False) -> Callable[[int], object]:
    """The journal made again of so many checkpoints, and what of them one that knows none of them lacks."""

    def work(n: int) -> object:
        made = [make(i) for i in range(n)]
        step_files = {"a.md": stepfile.parse("# a\n" + "".join(map(stepfile.render_checkpoint, made)))}
        shown = Checklist.parse(b"".join(b"[pending] %s\n" % cp.name.encode() for cp in made)) if face else None
        entries = rebuild.entries(Remains(TASK, shown, step_files), "0a1b2c3d", AT)
        lost = reconcile.ahead(Snapshot(), step_files)
        return fold(journal.read(b"".join(map(journal.encode, entries))).entries), lost

    return work


def _journals(make: Callable[[int, int], dict[str, Any]]) -> Callable[[int], object]:
    def work(n: int) -> object:
        begin = {"run": RUN, "seq": 1, "at": AT, "kind": "attempt"}
        data = journal.encode(begin) + b"".join(journal.encode({"run": RUN, "at": AT, **make(i, n)}) for i in range(n))
        entries = journal.read(data).entries
        return fold(entries), retro.analyse(entries)

    return work


def _requests(n: int) -> object:
    snapshot = fold(ENTRIES[:8])
    forecast = orders.Forecast(TASK, snapshot)
    for line in [json.dumps({**REQUEST, "id": str(i)}).encode() for i in range(n)]:
        request = requesting._request(line)
        if request is not None and request["id"] not in snapshot.handled:
            orders.handle(forecast, request)
    return None


def _commit(seq: int, step: str) -> dict[str, Any]:
    return {"seq": seq, "kind": "commit", "step": step, "status": "done"}


ADVERSARIES: dict[str, Callable[[int], object]] = {
    "fences": _faces(b"```\n[working] a\n"),
    "tags of one name": _faces(b"[pending] a\n"),
    "opened and closed": _faces(b"[working] a\n[working done] a\n"),
    "orders to redo": _faces(b"[working done] a\n[redo] a\n"),
    "a line that numbers itself": _faces(b"[pending] a\n[pending] a (2)\n"),
    "brackets": _faces(b"[["),
    "quotes": _faces(b"> > "),
    "comments that never close": _faces(b"[pending] a\n<!--\n"),
    "unfinished blocks": lambda n: stepfile.parse("```yaml checkpoint\nname: 1\n" * n),
    "notes": lambda n: stepfile.escape_note("```\n~~~\n" * n),
    "steps of one name": _blocks(lambda i: Checkpoint("a", "done", n=i + 1, try_number=1, at=f"{i:09}")),
    "keys that look alike": _blocks(lambda i: Checkpoint("a", "done", key="k" + " " * i, try_number=1)),
    "tries of one step": _blocks(lambda i: Checkpoint("a", "running", try_number=i, attempt=i)),
    "steps that the face shows": _blocks(lambda i: Checkpoint(f"s{i}", "done", try_number=1), face=True),
    "steps of one name that the face shows": _blocks(lambda i: Checkpoint("a", "done", n=i + 1), face=True),
    "files that look alike": _blocks(lambda i: Checkpoint("aA"[i % 2] * (i // 2 + 1), "done"), face=True),
    "numbers with gaps, said twice": _journals(lambda i, n: _commit(2 * (i % (n // 2)) + 3, f"s{i}")),
    "steps": _journals(lambda i, n: _commit(i + 2, f"s{i}")),
    "errors": _journals(lambda i, n: {"seq": i + 2, "kind": "raised", "step": f"s{i % 2}", "error": ERROR.to_json()}),
    "attempts": _journals(lambda i, n: {"run": f"{TASK}.{i + 2}", "seq": 1, "kind": "attempt"}),
    "bad lines": lambda n: journal.read(b"x\n" * n + JOURNAL),
    "orders": _requests,
    "keys of a task": lambda n: routine.parse(text_of(ROUTINE) + "x: y\n" * n),
}


@pytest.mark.parametrize("adversary", ADVERSARIES)
def test_twice_as_much_takes_twice_as_long(adversary: str) -> None:
    work = ADVERSARIES[adversary]
    work(4)  # whatever is imported or cached
    once, twice = (_lines_of(lambda n=n: work(n)) for n in (150, 300))
    assert twice < 2.05 * once + 500, f"{once} lines for 150, {twice} for 300"


def test_what_takes_four_times_as_long_is_noticed() -> None:
    def squared(n: int) -> None:
        for _ in range(n):
            sum(1 for _ in range(n))

    once, twice = (_lines_of(lambda n=n: squared(n)) for n in (150, 300))
    assert twice >= 2.05 * once + 500
