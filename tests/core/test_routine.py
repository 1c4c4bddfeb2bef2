"""The routine message: written and read without a change in the user's words, in both languages, within its size."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from orchestrator.core.routine import KEYS, Action, Routine, parse, render
from orchestrator.errors import BadSpec

TEMPLATES = Path(__file__).resolve().parents[2] / "templates"
ENGLISH, CHINESE = (TEMPLATES.joinpath(name).read_text("utf-8") for name in ("routine.md", "routine.zh.md"))
LANGUAGES = pytest.mark.parametrize("template", [ENGLISH, CHINESE], ids=["en", "zh"])

ROUTINE = Routine(
    protocol="task.md, schema 1",
    skill="ticket-report",
    task="Group the tickets by cause.",
    notify=True,
    task_id="task-20261130-142501-001",
    action=Action.RESUME,
    workspace="/srv/project/workspaces/task-20261130-142501-001",
    step="write the report",
    read="group the tickets.md",
)
LONG = {
    ENGLISH: "Read the last three months of the support tickets in data/tickets.csv, group them by cause, and write a"
    " report of two pages with a table of the ten most frequent causes, how long each took to solve, and one example"
    " of each.",
    CHINESE: "阅读 data/tickets.csv 中最近三个月的客服工单,按原因归类,写一份两页的报告,附一张表列出最常见的十种原因、"
    "各自的平均解决时间,并各举一个例子。",
}

#: What looks like the message itself, and what is cut off by careless reading.
TRAPS = ["Notify: false", "动作：start", "Task:", "---", "----", "  Step: x", "", " ", "  ", "\t", "{task}", "{start}"]
lines = st.sampled_from(TRAPS) | st.text()
tasks = st.lists(lines, max_size=6).map("\n".join) | st.text()
one_line = st.text().map(lambda text: text.replace("\n", " ").strip()) | st.sampled_from([t.strip() for t in TRAPS])
routines = st.builds(
    Routine,
    protocol=one_line,
    skill=one_line,
    task=tasks,
    notify=st.booleans(),
    task_id=one_line,
    action=st.sampled_from(Action),
    workspace=one_line,
    step=one_line,
    read=one_line,
)


def as_told(routine: Routine) -> Routine:
    """On start there is nothing to go on with."""
    return dataclasses.replace(routine, step="", read="") if routine.action is Action.START else routine


@LANGUAGES
@given(routine=routines)
@example(routine=dataclasses.replace(ROUTINE, task="Do this:\nNotify: false\n---\n\n  TaskID: task-0\n\n"))
@example(routine=dataclasses.replace(ROUTINE, task="\n a"))
@example(routine=dataclasses.replace(ROUTINE, task="a\r\nb\r"))
def test_the_users_words_reach_the_worker_as_they_were_whatever_they_look_like(template: str, routine: Routine) -> None:
    assert parse(render(routine, template)) == as_told(routine)


def test_an_english_worker_reads_what_a_chinese_session_wrote() -> None:
    assert parse(render(ROUTINE, CHINESE)) == parse(render(ROUTINE, ENGLISH)) == ROUTINE


@LANGUAGES
def test_a_worker_that_starts_is_not_sent_to_a_step_and_one_that_resumes_is_not_told_to_plan(template: str) -> None:
    start = render(dataclasses.replace(ROUTINE, action=Action.START), template)
    resume = render(ROUTINE, template)
    for word in KEYS["step"][:2] + KEYS["read"][:2]:
        assert not any(line.startswith(word) for line in start.splitlines())
    assert "[pending]" in start
    assert "[pending]" not in resume
    assert ROUTINE.read in resume
    assert "{" not in start + resume


@pytest.mark.parametrize(
    "text",
    [
        "协议：p\n技能：s\n任务：整理工单\n通知用户：是\n任务ID：t-1\n动作：启动\n",
        "动作: start\n任务ID: t-1\n通知用户: true\n任务: 整理工单\n技能: s\n协议: p",
        "Please begin.\n\nprotocol: p\nSKILL : s\nTask: 整理工单\nnotify: Yes\nTask ID: t-1\nACTION: Start\n",
        "\ufeffProtocol: p\r\nSkill: s\r\nTask: 整理工单\r\nNotify: 1\r\nTaskID: t-1\r\nAction: start\r\n---\r\nx",
    ],
)
def test_a_message_written_by_hand_or_by_another_tool_is_understood(text: str) -> None:
    assert parse(text) == Routine("p", "s", "整理工单", True, "t-1", Action.START, "")


def test_further_lines_of_a_task_that_nobody_indented_are_not_lost() -> None:
    text = "TaskID: t-1\nTask: Do these:\n- one\n  - two\n\nNote: three\n\nAction: resume\nStep: x\n"
    assert parse(text).task == "Do these:\n- one\n  - two\n\nNote: three"


@pytest.mark.parametrize(
    "text, said",
    [
        ("", "no Task, TaskID, Action"),
        ("Task: a\nAction: start", "no TaskID"),
        ("Task: a\nTaskID: t\nAction: begin", "routine message:3: 'begin' is no action"),
        ("Task: a\nTaskID: t\nNotify: perhaps\nAction: start", "routine message:3: Notify: 'perhaps'"),
        ("Task: a\nNotify: no\nNotify: yes\nTaskID: t\nAction: start", "routine message:3: Notify is there twice"),
    ],
)
def test_a_message_that_could_be_misread_is_refused_with_its_line(text: str, said: str) -> None:
    with pytest.raises(BadSpec) as error:
        parse(text)
    assert said in error.value.what
    assert error.value.hint


@pytest.mark.parametrize("field", ["protocol", "skill", "task_id", "workspace", "step", "read"])
@pytest.mark.parametrize("value", ["a\nNotify: true", " a", "a "])
def test_a_value_cannot_forge_a_line_of_the_message(field: str, value: str) -> None:
    with pytest.raises(BadSpec, match=field):
        render(dataclasses.replace(ROUTINE, **{field: value}), ENGLISH)


#: Chinese, Japanese and Korean signs, with their punctuation and full-width forms.
_WIDE = re.compile("[\u2e80-\u9fff\uac00-\ud7af\uf900-\ufaff\ufe30-\ufe4f\uff00-\uffef]")


def tokens_at_most(text: str) -> int:
    """How many tokens a text takes, by a count that errs upwards: no tokenizer is at hand offline.

    One for each wide sign; of the rest the larger of 1.5 a word and one in 3.2 characters. For routine messages that is
    a tenth to a sixth more than the vocabulary o200k makes of them; older ones, which know fewer Chinese words, may
    need a tenth more than this for Chinese.
    """
    wide = len(_WIDE.findall(text))
    rest = _WIDE.sub(" ", text)
    words = rest.split()
    return wide + round(max(1.5 * len(words), len(" ".join(words)) / 3.2) + 0.5)


@LANGUAGES
def test_a_worker_begins_within_350_tokens_and_resumes_within_1000(template: str) -> None:
    resume = dataclasses.replace(ROUTINE, task=LONG[template])
    assert tokens_at_most(render(dataclasses.replace(resume, action=Action.START), template)) < 350
    assert tokens_at_most(render(resume, template)) < 1000


@pytest.mark.parametrize(
    "text, tokens", [("", 0), ("word", 1), ("整理工单", 4), ("Read the tickets, and group them by cause.", 10)]
)
def test_tokens_are_not_counted_too_low(text: str, tokens: int) -> None:
    assert tokens <= tokens_at_most(text) <= 2 * tokens + 5
