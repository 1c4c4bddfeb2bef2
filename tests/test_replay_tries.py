"""Tries of a step: counted, told apart, cut off by a timeout or a kill, and what the next one knows of the last."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest
from replaying import SkillFile, checklist, entries, recovered, result, snapshot

from orchestrator.core import stepfile


@pytest.fixture
def skill(tmp_path: Path, ledger: Any) -> SkillFile:
    return SkillFile(tmp_path, ledger.path)


# -- todo ----------------------------------------------------------------------------------------------------------


async def test_the_body_of_a_todo_that_is_done_is_not_entered_again(root, ledger, skill):
    body = """
        async for step in task.todo("write"):
            say("wrote")
            step.result = {"pages": 3}
        await task.step("hold", hold)
    """
    where = await skill.write(body).until(root, ledger, "held")
    assert snapshot(where).steps["write"].result == {"pages": 3}
    assert (await recovered(root, where)).status == "completed"
    assert ledger.count("wrote") == 1


async def test_the_body_of_a_todo_that_raises_is_tried_from_the_top_and_then_given_up(root, ledger, skill):
    body = """
        say("from the top")
        await task.step("one", work, "one")
        async for step in task.todo("write", retries=2):
            say(f"try {step.try_number}")
            raise RuntimeError("no ink")
    """
    where, said = await skill.write(body).to_its_end(root)
    assert said.status == "failed"
    assert "no ink" in said.summary
    assert [ledger.count(f"try {n}") for n in (1, 2, 3, 4)] == [1, 1, 1, 0]
    assert [ledger.count("from the top"), ledger.count("one ran")] == [3, 1]
    assert checklist(where) == ["[working done] one", "[failed] write"]
    assert len(snapshot(where).attempts) == 1  # one worker did all three


async def test_a_todo_that_raised_once_goes_on_as_if_nothing_had_been(root, ledger, skill):
    body = """
        async for step in task.todo("write"):
            if step.try_number == 1:
                raise RuntimeError("no ink")
            step.result = "written"
        return await task.step("last", work, "last")
    """
    where, said = await skill.write(body).to_its_end(root)
    assert said.status == "completed"
    assert snapshot(where).steps["write"].result == "written"
    assert checklist(where) == ["[working done] write", "[working done] last", "[end]"]


# -- what a try knows ----------------------------------------------------------------------------------------------


async def test_what_a_killed_try_wrote_down_is_what_the_next_one_reads(root, ledger, skill):
    body = """
        async def think():
            step = current_step()
            say(f"previous of try {step.try_number}: {step.previous!r}")
            step.note("looked at 漢字.txt\\nthe answer is 42")
            await hold()
        await task.step("think", think)
    """
    where = await skill.write(body).until(root, ledger, "held")
    assert (await recovered(root, where)).status == "completed"
    assert ledger.count("previous of try 1: ''") == 1
    assert ledger.count(r"previous of try 2: 'looked at 漢字.txt\nthe answer is 42'") == 1
    assert Path(where.step("think.md")).read_text("utf-8").count("the answer is 42") == 2


async def test_every_try_of_a_step_has_one_idempotency_key_and_no_other_step_has_it(root, ledger, skill):
    body = """
        async def tell(name):
            step = current_step()
            assert task.attempt == step.attempt
            say(f"{name}: attempt {step.attempt}, try {step.try_number}, key {step.idempotency_key}")
            if step.try_number == 1:
                raise RuntimeError("once more")
            await hold()
        if not went_on():
            await task.step("other", work, "other")
        await task.step("tell", tell, "tell")
        await task.step("tell", tell, "second", key="second")
    """
    where = await skill.write(body).until(root, ledger, "held")
    assert (await recovered(root, where)).status == "completed"
    told = [line.partition(", key ") for line in ledger.lines() if "key" in line]
    assert [said for said, _, _ in told] == [
        "tell: attempt 1, try 1",
        "tell: attempt 1, try 2",
        "tell: attempt 2, try 3",
        "second: attempt 2, try 1",
        "second: attempt 2, try 2",
    ]
    keys = [key for _, _, key in told]
    assert len(set(keys[:3])) == len(set(keys[3:])) == 1
    assert keys[0] != keys[3]


# -- timeouts ------------------------------------------------------------------------------------------------------


async def test_an_async_step_that_hangs_is_tried_again_and_given_up_within_its_budget(root, ledger, skill):
    body = """
        async def hang():
            say(f"try {current_step().try_number}")
            await anyio.sleep_forever()
        await task.step("hang", hang, timeout=0.05, retries=1)
    """
    where, said = await skill.write(body).to_its_end(root)
    assert said.status == "failed"
    assert "longer than its timeout of 0.05 s" in said.summary
    assert [ledger.count(f"try {n}") for n in (1, 2, 3)] == [1, 1, 0]
    error = snapshot(where).steps["hang"].error
    assert (error.error_class, error.type) == ("timeout", "TimeoutError")
    assert "[failed] hang" in checklist(where)


async def test_a_hanging_thread_costs_a_worker_but_no_finished_step_and_no_death(root, ledger, skill):
    body = """
        def hang():
            say(f"try {current_step().try_number} in attempt {current_step().attempt}")
            if current_step().try_number == 1:
                import threading
                threading.Event().wait()
            return "through"
        await task.step("one", work, "one")
        return await task.step("hang", hang, timeout=0.05)
    """
    where, said = await skill.write(body).to_its_end(root)
    assert said.status == "completed"
    assert result(where) == "through"
    assert [ledger.count("one ran"), ledger.count("try 2 in attempt 2")] == [1, 1]
    assert [a.closed for a in snapshot(where).attempts] == ["timed_out", "completed"]
    assert snapshot(where).deaths == 0


async def test_a_thread_that_hangs_in_every_try_ends_the_task_and_not_the_machine(root, ledger, skill):
    body = """
        def hang():
            say(f"try {current_step().try_number}")
            import threading
            threading.Event().wait()
        await task.step("hang", hang, timeout=0.05, retries=1)
    """
    where, said = await skill.write(body).to_its_end(root)
    assert said.status == "failed"
    assert [ledger.count(f"try {n}") for n in (1, 2, 3)] == [1, 1, 0]
    assert snapshot(where).steps["hang"].error.error_class == "timeout"


# -- outputs -------------------------------------------------------------------------------------------------------


# fault 10
async def test_a_step_whose_declared_output_is_missing_is_not_done(root, ledger, skill):
    body = """
        def write():
            say(f"try {current_step().try_number}")
            if current_step().try_number == 2:
                (task.workspace / "out").mkdir()
            if current_step().try_number == 3:
                (task.workspace / "out" / "page.txt").write_text("there")
        await task.step("write", write, outputs=["out/page.txt"])
        say("went on")
    """
    where, said = await skill.write(body).to_its_end(root)
    assert said.status == "completed"
    assert [ledger.count(text) for text in ("try 1", "try 2", "try 3", "went on")] == [1, 1, 1, 1]
    raised = entries(where, "raised")
    assert [e["error"]["type"] for e in raised] == ["OutputMissing", "OutputMissing"]
    assert "'out/page.txt' is not there" in raised[0]["error"]["message"]


# fault 39
async def test_an_output_that_never_comes_fails_the_step_and_says_which(root, ledger, skill):
    where, said = await skill.write('await task.step("w", work, "w", outputs=["x.txt"], retries=0)').to_its_end(root)
    assert said.status == "failed"
    assert "'x.txt' is not there" in said.summary
    assert not [e for e in entries(where, "commit") if e["status"] == "done"]


async def test_size_and_hash_of_what_a_step_made_lie_in_the_journal_and_in_its_file(root, ledger, skill):
    body = """
        def write():
            (task.workspace / "Übersicht.txt").write_text("漢字" * 1000)
            (task.workspace / "empty").touch()
        await task.step("write", write, outputs=["Übersicht.txt", "empty"])
    """
    where, said = await skill.write(body).to_its_end(root)
    assert said.status == "completed"
    contents = {"Übersicht.txt": ("漢字" * 1000).encode(), "empty": b""}
    wanted = [{"path": p, "size": len(c), "sha256": hashlib.sha256(c).hexdigest()} for p, c in contents.items()]
    (commit,) = entries(where, "commit")
    assert commit["outputs"] == wanted
    block = stepfile.parse(Path(where.step("write.md")).read_text("utf-8")).checkpoints[-1]
    assert [{"path": o.path, "size": o.size, "sha256": o.sha256} for o in block.outputs] == wanted


# -- skip, plan, effects -------------------------------------------------------------------------------------------


async def test_a_skipped_step_says_why_and_stays_skipped_and_a_done_one_stays_done(root, ledger, skill):
    body = """
        await task.plan(["one", "two"])
        if went_on():
            await task.skip("one", "too late")
            await task.step("two", work, "two")
        else:
            await task.step("one", work, "one")
            await task.skip("two", "nothing to translate")
        await task.skip("unplanned", "nobody asked")
        await task.step("hold", hold)
    """
    where = await skill.write(body).until(root, ledger, "held")
    assert (await recovered(root, where)).status == "completed"
    assert [ledger.count("one ran"), ledger.count("two ran")] == [1, 0]
    steps = snapshot(where).steps
    assert [(steps[n].status, steps[n].why) for n in ("one", "two", "unplanned")] == [
        ("done", ""),
        ("skipped", "nothing to translate"),
        ("skipped", "nobody asked"),
    ]
    marks = ["[working done] one", "[skipped] two", "[skipped] unplanned", "[working done] hold"]
    assert checklist(where) == [*marks, "[end]"]


async def test_a_plan_shows_what_lies_ahead_and_a_replay_plans_nothing_twice(root, ledger, skill):
    body = """
        await task.plan(["one", "hold", "again", "again"])
        await task.step("one", work, "one")
        await task.step("hold", hold)
        await task.step("again", work, "again")
        await task.step("again", work, "again")
    """
    where = await skill.write(body).until(root, ledger, "held")
    assert checklist(where) == ["[working done] one", "[working] hold", "[pending] again", "[pending] again (2)"]
    assert (await recovered(root, where)).status == "completed"
    done = [f"[working done] {name}" for name in ("one", "hold", "again", "again (2)")]
    assert checklist(where) == [*done, "[end]"]
    assert len(entries(where, "plan")) == 4


@pytest.mark.parametrize("effect", ["pure", "idempotent"])
async def test_a_step_that_may_run_twice_does_so_after_a_kill_and_nobody_is_asked(root, ledger, skill, effect):
    body = f"""
        async def check():
            say("was asked")
            return Done("from the check")
        return await task.step("hold", hold, effect={effect!r}, check=check)
    """
    where = await skill.write(body).until(root, ledger, "held")
    assert (await recovered(root, where)).status == "completed"
    assert result(where) == "held"
    assert [ledger.count("held"), ledger.count("was asked")] == [2, 0]


async def test_an_effect_that_is_none_is_refused_before_anything_runs(root, ledger, skill):
    _, said = await skill.write('await task.step("w", work, "w", effect="twice")').to_its_end(root)
    assert said.status == "failed"
    assert "'twice'" in said.summary
    assert ledger.lines() == []
