"""A skill that was interrupted and then changed: what is done stays done, whatever became of the skill.

Each test kills a worker after some finished steps, changes the skill's file, and recovers.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from replaying import SkillFile, checklist, entries, recovered, result, snapshot

PLAIN = """
    one = await task.step("one", work, "one")
    two = await task.step("two", work, "two")
    await task.step("hold", hold)
    return [one, two]
"""


@pytest.fixture
def skill(tmp_path: Path, ledger: Any) -> SkillFile:
    return SkillFile(tmp_path, ledger.path)


async def test_a_step_put_into_a_skill_runs_at_its_place_and_the_finished_ones_are_handed_back(root, ledger, skill):
    where = await skill.write(PLAIN).until(root, ledger, "held")
    skill.write("""
        one = await task.step("one", work, "one")
        new = await task.step("between", work, "between")
        two = await task.step("two", work, "two")
        await task.step("hold", hold)
        return [one, new, two]
    """)
    said = await recovered(root, where)
    assert said.status == "completed"
    assert result(where) == ["result of one", "result of between", "result of two"]
    assert [ledger.count(f"{name} ran") for name in ("one", "between", "two")] == [1, 1, 1]
    marks = [f"[working done] {name}" for name in ("one", "between", "two", "hold")]
    assert checklist(where) == [*marks, "[end]"]


async def test_a_finished_step_taken_out_of_a_skill_stays_done(root, ledger, skill):
    where = await skill.write(PLAIN).until(root, ledger, "held")
    skill.write("""
        two = await task.step("two", work, "two")
        await task.step("hold", hold)
        return [two]
    """)
    assert (await recovered(root, where)).status == "completed"
    assert result(where) == ["result of two"]
    assert [ledger.count("one ran"), ledger.count("two ran")] == [1, 1]
    assert checklist(where) == ["[working done] one", "[working done] two", "[working done] hold", "[end]"]


async def test_a_planned_step_taken_out_of_a_skill_is_skipped_and_says_why(root, ledger, skill):
    where = await skill.write('    await task.plan(["one", "hold", "later"])' + PLAIN).until(root, ledger, "held")
    assert "[pending] later" in checklist(where)
    skill.write(PLAIN)
    said = await recovered(root, where)
    assert said.status == "completed"
    assert snapshot(where).steps["later"].status == "skipped"
    assert snapshot(where).steps["later"].why == "not reached by the skill"
    assert "[skipped] later" in checklist(where)
    assert "1 skipped" in said.summary


async def test_a_renamed_step_runs_under_its_new_name_and_the_old_one_stays(root, ledger, skill):
    where = await skill.write(PLAIN).until(root, ledger, "held")
    skill.write(PLAIN.replace('"two", work', '"second", work'))
    assert (await recovered(root, where)).status == "completed"
    assert ledger.count("two ran") == 2  # once under each name
    assert ledger.count("one ran") == 1
    assert {"[working done] two", "[working done] second"} < set(checklist(where))


async def test_steps_in_another_order_get_their_own_results_and_not_those_of_their_place(root, ledger, skill):
    where = await skill.write(PLAIN).until(root, ledger, "held")
    skill.write("""
        two = await task.step("two", work, "two")
        one = await task.step("one", work, "one")
        await task.step("hold", hold)
        return {"one": one, "two": two}
    """)
    assert (await recovered(root, where)).status == "completed"
    assert result(where) == {"one": "result of one", "two": "result of two"}
    assert [ledger.count("one ran"), ledger.count("two ran")] == [1, 1]


async def test_a_finished_step_with_other_arguments_is_a_conflict_and_nothing_is_done_twice(root, ledger, skill):
    where = await skill.write(PLAIN).until(root, ledger, "held")
    before = Path(where.step("two.md")).read_bytes()
    skill.write(PLAIN.replace('work, "two"', 'work, "another"'))
    said = await recovered(root, where)
    assert said.status == "conflict"
    assert "'two'" in said.summary
    assert "`[redo] two`" in said.hint
    text = Path(where.task_md).read_text("utf-8")
    assert "## Status: failed\n" in text
    assert "[end]" not in text
    assert snapshot(where).steps["two"].status == "done"
    assert Path(where.step("two.md")).read_bytes() == before
    assert [ledger.count("two ran"), ledger.count("another ran")] == [1, 0]

    Path(where.task_md).write_text(text.replace("[working done] two", "[redo] two"), "utf-8")
    assert (await recovered(root, where)).status == "completed"
    assert [ledger.count(f"{name} ran") for name in ("one", "two", "another")] == [1, 1, 1]


async def test_a_changed_skill_is_noted_for_whoever_asks_and_refused_by_nobody(root, ledger, skill):
    where = await skill.write(PLAIN).until(root, ledger, "held")
    skill.write(PLAIN)
    changed = hashlib.sha256(skill.path.read_bytes()).hexdigest()[:12]
    assert (await recovered(root, where)).status == "completed"
    versions = [e["version"] for e in entries(where, "skill")]
    assert len(versions) == 2
    assert versions[0] != versions[1] == changed
    assert f"the skill has changed since an earlier attempt: {versions[0]} -> {changed}" in _stderr(where, 2)
    assert "has changed" not in _stderr(where, 1)


def _stderr(where: Any, attempt: int) -> str:
    return Path(where.log(attempt, "err")).read_text("utf-8")


#: A result as a skill writes it, and as it comes back: at first, and after any number of kills.
RESULTS = {
    "(1, (2, 3))": [1, [2, 3]],
    "{1: 'a', 'b': (None,)}": {"1": "a", "b": [None]},
    "'ünï 漢字 \\U0001F600 \\u2028 \\x00 \\ud800'": "ünï 漢字 \U0001f600 \u2028 \x00 \ud800",
    "'\\ud83d\\ude00'": "\U0001f600",
    "'x' * 70_000": "x" * 70_000,
    "['漢' * 30_000]": ["漢" * 30_000],
    "None": None,
    "True": True,
    "0.1 + 0.2": 0.1 + 0.2,
    "-0.0": -0.0,
    "1.7976931348623157e308": 1.7976931348623157e308,
    "5e-324": 5e-324,
    "2 ** 200": 2**200,
    "-10 ** 4000": -(10**4000),
    "Colour.RED": "red",
    "Size.BIG": 3,
    "[]": [],
    "''": "",
}

_ENUMS = """
    import enum
    class Colour(enum.StrEnum):
        RED = "red"
    class Size(enum.IntEnum):
        BIG = 3
"""


async def test_a_result_comes_back_after_a_kill_as_it_came_back_the_first_time(root, ledger, skill):
    steps = "\n".join(f'    seen.append(await task.step("step {i}", lambda: {r}))' for i, r in enumerate(RESULTS))
    body = "if True:\n    seen = []\n" + steps + '\n    say("saw " + ascii(seen))\n    await task.step("hold", hold)\n'
    where = await skill.write(body, above=_ENUMS).until(root, ledger, "held")
    assert (await recovered(root, where)).status == "completed"
    first, again = [line.removeprefix("saw ") for line in ledger.lines() if line.startswith("saw ")]
    assert first == ascii(list(RESULTS.values()))
    assert again == first


async def test_half_a_character_in_the_result_of_a_task_is_there_as_it_was(root, ledger, skill):
    """JSON can say it, UTF-8 cannot: it must not become a question mark that nobody notices."""
    where, said = await skill.write("return ['\\ud800', {'\\udcff': '\\\\ud800 ü'}]").to_its_end(root)
    assert said.ok
    assert result(where) == ["\ud800", {"\udcff": "\\ud800 ü"}]


async def test_a_large_result_lies_in_a_file_that_names_its_hash(root, ledger, skill):
    where, said = await skill.write('await task.step("big", lambda: "x" * 70_000)').to_its_end(root)
    assert said.status == "completed"
    (path,) = Path(where.results).iterdir()
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    assert path.name == f"big-{digest[:16]}.json"
    assert json.loads(path.read_text()) == "x" * 70_000
    (commit,) = entries(where, "commit")
    assert (commit["result_file"], commit["result_sha256"]) == (f"results/{path.name}", digest)
    assert "result" not in commit


@pytest.mark.parametrize("value", ["float('nan')", "[1, float('inf')]", "object()", "{1, 2}", "b'x'", "10 ** 5000"])
async def test_a_result_that_could_not_be_handed_back_is_refused_at_once(root, ledger, skill, value):
    body = f'await task.step("bad", lambda: say("ran") or {value}, retries=5)\nsay("went on")'
    where, said = await skill.write(body).to_its_end(root)
    assert said.status == "failed"
    assert "cannot be stored as JSON" in said.summary
    assert snapshot(where).steps["bad"].error.error_class == "validation"
    assert [ledger.count("ran"), ledger.count("went on")] == [1, 0]  # another try would give the same


async def test_a_name_used_twice_and_one_with_keys_are_told_apart_by_person_and_replay(root, ledger, skill):
    body = """
        found = [await task.step("fetch", work, "first"), await task.step("fetch", work, "second")]
        for key in ("de", "fr"):
            found.append(await task.step("translate", work, key, key=key))
        await task.step("hold", hold)
        return found
    """
    where = await skill.write(body).until(root, ledger, "held")
    assert (await recovered(root, where)).status == "completed"
    assert result(where) == [f"result of {name}" for name in ("first", "second", "de", "fr")]
    assert [ledger.count(f"{name} ran") for name in ("first", "second", "de", "fr")] == [1, 1, 1, 1]
    labels = ["fetch", "fetch (2)", "translate (de)", "translate (fr)", "hold"]
    assert checklist(where) == [*(f"[working done] {label}" for label in labels), "[end]"]
    assert all(Path(where.step(f"{label}.md")).is_file() for label in labels)


async def test_one_name_at_once_without_keys_is_refused_because_a_replay_would_mix_them_up(root, ledger, skill):
    body = """
        async with anyio.create_task_group() as group:
            for number in (1, 2):
                group.start_soon(task.step, "fetch", hold, number)
    """
    where, said = await skill.write(body).to_its_end(root)
    assert said.status == "failed"
    assert "step 'fetch' is running already" in said.summary
    assert "`key`" in said.summary + said.hint
    assert snapshot(where).steps["fetch"].status != "done"


async def test_of_steps_that_ran_at_once_only_the_unfinished_ones_run_again(root, ledger, skill):
    body = """
        found = {}
        async def one(name):
            found[name] = await task.step("part", hold if name in "cd" else work, name, key=name)
            say(f"{name} finished")
            if ledger_has("a finished", "b finished"):
                say("half done")
        async with anyio.create_task_group() as group:
            for name in "abcd":
                group.start_soon(one, name)
        return [found[name] for name in "abcd"]
    """
    above = """
        def ledger_has(*texts):
            return all(text in open(LEDGER).read() for text in texts)
    """
    where = await skill.write(body, above=above).until(root, ledger, "half done")
    assert {s.label for s in snapshot(where).steps.values() if s.status == "working"} == {"part (c)", "part (d)"}
    assert (await recovered(root, where)).status == "completed"
    assert result(where) == ["result of a", "result of b", "held", "held"]
    assert [ledger.count("a ran"), ledger.count("b ran"), ledger.count("held")] == [1, 1, 4]
    tries = {s.label: s.tries for s in snapshot(where).steps.values()}
    assert tries == {"part (a)": 1, "part (b)": 1, "part (c)": 2, "part (d)": 2}
