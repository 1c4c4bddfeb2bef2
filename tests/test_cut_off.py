"""What is cut off by the skill, an order, a timeout or a signal: it never runs twice at once, nor counts as done."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from conftest import TOKEN
from kit import recover, until
from replaying import SkillFile, checklist, entries, snapshot

from orchestrator import Coordinator, store, workspace
from orchestrator.compose import resolve
from orchestrator.takeover import take_over


@pytest.fixture
def skill(tmp_path: Path, ledger: Any) -> SkillFile:
    return SkillFile(tmp_path, ledger.path)


#: A sync step that ends only when its process does, and says whether another try of it is running beside it.
ABOVE = """
import threading

inside = []

def stands():
    inside.append(current_step().try_number)
    say(f"beside {len(inside) - 1} others, in attempt {current_step().attempt}")
    if current_step().attempt == 1:
        threading.Event().wait()
    return "stood"

def threads_blocked(*_):
    import signal, subprocess, sys
    code = "import signal; print(len(signal.pthread_sigmask(signal.SIG_BLOCK, [])))"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip()

async def loop_blocked(*_):
    return threads_blocked()
"""


# -- no step beside itself -----------------------------------------------------------------------------------------


async def test_an_order_that_reopens_a_step_never_runs_a_sync_step_beside_its_own_thread(root, ledger, skill):
    body = """
        async def other():
            await task.step("one", work, "one")
            await comes(lambda: inside)
            say("up")
            await comes(lambda: task.attempt > 1 or went_on())
            await task.step("two", work, "two")
        async with anyio.create_task_group() as group:
            group.start_soon(task.step, "stands", stands)
            group.start_soon(other)
    """
    skill.write(body, ABOVE)
    async with Coordinator(root) as coordinator:
        handle = await coordinator.spawn(f"{skill.path}:skill", name="replayed")
        await ledger.has("up")
        await coordinator.order(handle.id, "redo", patience=0, step="one")
        Path(f"{ledger.path}.go").touch()
        said = await handle.wait(120)
    assert said.ok, said
    assert [line for line in ledger.lines() if line.startswith("beside")] == [
        "beside 0 others, in attempt 1",
        "beside 0 others, in attempt 2",
    ]
    assert ledger.count("one ran") == 2
    assert [a.closed for a in snapshot(handle.where).attempts] == ["stopped", "completed"]
    assert snapshot(handle.where).deaths == 0


async def test_a_todo_that_raises_never_runs_a_sync_step_beside_its_own_thread(root, ledger, skill):
    body = """
        async def other():
            async for step in task.todo("write"):
                await comes(lambda: inside)
                if step.try_number == 1:
                    raise RuntimeError("no ink")
        async with anyio.create_task_group() as group:
            group.start_soon(task.step, "stands", stands)
            group.start_soon(other)
    """
    where, said = await skill.write(body, ABOVE).to_its_end(root)
    assert said.ok, said
    assert ledger.lines() == ["beside 0 others, in attempt 1", "beside 0 others, in attempt 2"]
    assert [e["step"] for e in entries(where, "raised")] == ["write"]


async def test_an_order_that_is_refused_costs_the_skill_no_run(root, ledger, skill):
    body = """
        say("from the top")
        await task.step("one", work, "one")
        say("up")
        await comes(went_on)
        await task.step("two", work, "two")
    """
    skill.write(body)
    async with Coordinator(root) as coordinator:
        handle = await coordinator.spawn(f"{skill.path}:skill", name="replayed")
        await ledger.has("up")
        for number, more in enumerate([{"verb": "retry"}, {"verb": "resolve", "step": "one"}]):
            store.make_request(handle.where, {"id": f"r{number}", "at": 0, **more})
        Path(f"{ledger.path}.go").touch()
        assert (await handle.wait(120)).ok
    assert all("refused" in e for e in entries(handle.where, "handled"))
    assert len(entries(handle.where, "handled")) == 2
    assert ledger.count("from the top") == 1


# -- a `once` step that its skill cuts off -------------------------------------------------------------------------


CUT_OFF = """
    async def send():
        say("sent")
        await anyio.sleep_forever()
    def stuck():
        say("sent")
        threading.Event().wait()
    async def check():
        say("was asked")
        return {answer}
    with anyio.CancelScope() as limit:
        async with anyio.create_task_group() as group:
            async def cut():
                await comes(lambda: os.path.exists(LEDGER))
                limit.cancel()
            group.start_soon(cut)
            await task.step("send", {fn}, effect="once", check={check})
"""


async def test_a_step_that_must_not_happen_twice_and_was_cut_off_by_its_skill_waits_for_a_person(root, ledger, skill):
    where, said = await skill.write(CUT_OFF.format(answer=None, fn="send", check=None), ABOVE).to_its_end(root)
    assert said.status == "uncertain", said
    assert snapshot(where).steps["send"].status == "uncertain"
    assert "[end]" not in checklist(where)
    async with Coordinator(root) as coordinator:
        _, lock = await coordinator.order(where.task_id, "resolve", step="send", done=True)
        if lock is not None:
            await coordinator.adopt(where, lock)
        assert (await coordinator.wait(where.task_id, 120)).ok
    assert ledger.count("sent") == 1


@pytest.mark.parametrize("answer, status", [("Done('seen')", "done"), ("False", "skipped"), ("None", "uncertain")])
async def test_what_a_check_knows_of_a_step_that_its_skill_cut_off_is_believed(root, ledger, skill, answer, status):
    where, said = await skill.write(CUT_OFF.format(answer=answer, fn="send", check="check"), ABOVE).to_its_end(root)
    assert snapshot(where).steps["send"].status == status
    assert said.status == ("uncertain" if status == "uncertain" else "completed")
    assert [ledger.count("sent"), ledger.count("was asked")] == [1, 1]


async def test_a_check_is_not_believed_while_the_thread_of_its_step_goes_on(root, ledger, skill):
    where, said = await skill.write(CUT_OFF.format(answer=False, fn="stuck", check="check"), ABOVE).to_its_end(root)
    assert said.status == "uncertain"
    assert snapshot(where).steps["send"].status == "uncertain"
    assert ledger.lines() == ["sent"]


# -- a stop at once ------------------------------------------------------------------------------------------------


_STOPPED_AT_ONCE = """
import os, runpy, signal, sys
from orchestrator.writer import TaskWriter

real = TaskWriter.started

def started(self, **fields):
    real(self, **fields)
    os.kill(os.getpid(), getattr(signal, {name!r}))

TaskWriter.started = started
runpy.run_module("orchestrator.worker", run_name="__main__")
"""


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
async def test_a_worker_that_is_stopped_as_soon_as_it_lives_spends_no_life_of_its_task(root, ledger, skill, name):
    skill.write('say("loaded"); await task.step("send", work, "one", effect="once")')
    where, lock = workspace.create(str(root), resolve(f"{skill.path}:skill", name="replayed"), time.time)
    task = take_over(where, time.time)
    run = task.begin_attempt(token=TOKEN, cgroup=None, deaths=3)
    task.close()
    said = {"workspace": where.directory, "run": run, "lock_fd": lock, "cgroup": None}
    said |= {"output_bytes": 10_000, "grace_seconds": 20.0, "life_seconds": None}
    words = [sys.executable, "-c", _STOPPED_AT_ONCE.format(name=name), json.dumps(said)]
    with subprocess.Popen(words, pass_fds=(lock,), env={**os.environ, "ORCHESTRATOR_TOKEN": TOKEN}) as worker:
        os.close(lock)
        await until(lambda: worker.poll() is not None, "the worker has ended")
    assert [a.closed for a in snapshot(where).attempts] == ["stopped"]
    assert snapshot(where).deaths == 0
    assert ledger.lines() == []
    _, announced = await recover(root, where)
    assert announced is not None
    assert announced.ok
    assert ledger.lines() == ["loaded", "one ran"]


async def test_what_a_step_starts_can_be_stopped_by_a_signal(root, skill):
    body = """
        said = [await task.step("a", threads_blocked), await task.step("b", loop_blocked)]
        assert said == ["0", "0"], said
    """
    _, said = await skill.write(body, ABOVE).to_its_end(root)
    assert said.ok, said


# -- a thread that does not end ------------------------------------------------------------------------------------


STUCK = """
    async def send():
        say("sending")
        await comes(lambda: {ends})
        say("sent")
    def hangs():
        if current_step().attempt == 1:
            threading.Event().wait(60)
    async def late():
        await comes(lambda: task.attempt > 1 or "send" in task.open)
        {catch}
            await task.step("hangs", hangs, timeout=0.01 if task.attempt == 1 else None)
    async with anyio.create_task_group() as group:
        group.start_soon(late)
        await task.step("send", send, effect="once"{more})
        await task.step("behind", lambda: say(f"behind in {{task.attempt}}"))
"""


@pytest.mark.parametrize(
    "catch", ["if True:", "with anyio.move_on_after(0.1):"], ids=["plain", "given up by its skill"]
)
async def test_a_step_that_must_not_happen_twice_may_end_before_a_stuck_thread_costs_its_worker(
    root, ledger, skill, catch
):
    body = STUCK.format(ends="os.path.exists(LEDGER + '.go')", more="", catch=catch)
    skill.write(body, ABOVE)
    async with Coordinator(root) as coordinator:
        handle = await coordinator.spawn(f"{skill.path}:skill", name="replayed")
        await ledger.has("sending")
        await until(lambda: entries(handle.where, "raised"), "the thread is over its timeout")
        Path(f"{ledger.path}.go").touch()
        said = await handle.wait(120)
    assert said.ok, said
    assert ledger.lines() == ["sending", "sent", "behind in 2"]
    assert [a.closed for a in snapshot(handle.where).attempts] == ["timed_out", "completed"]


async def test_a_step_that_must_not_happen_twice_holds_a_stuck_worker_no_longer_than_its_own_limit(root, ledger, skill):
    body = STUCK.format(ends="False", more=", timeout=0.5", catch="if True:")
    _, said = await skill.write(body, ABOVE).to_its_end(root)
    assert said.status == "uncertain", said
    assert ledger.lines() == ["sending"]


# -- a todo that was left ------------------------------------------------------------------------------------------


async def test_what_goes_wrong_behind_a_todo_that_was_left_is_not_laid_on_it_and_costs_no_run(root, ledger, skill):
    body = """
        say("from the top")
        async for step in task.todo("write"):
            break
        await task.step("one", work, "one")
        raise LookupError("nothing there")
    """
    where, said = await skill.write(body).to_its_end(root)
    assert said.status == "failed"
    assert "the skill raised LookupError" in said.summary
    assert ledger.count("from the top") == 1
    assert entries(where, "raised") == []


async def test_a_todo_beside_which_another_raises_loses_no_try(root, ledger, skill):
    body = """
        async def write(name):
            async for step in task.todo(name):
                say(f"{name} {step.try_number}")
                if task.attempt == 1 and name == "bad" and step.try_number < 3:
                    await comes(lambda: "good" in task.open)
                    raise RuntimeError("no ink")
                await comes(lambda: name != "good" or task._writer.snapshot.steps["bad"].status.finished)
        async with anyio.create_task_group() as group:
            group.start_soon(write, "bad")
            group.start_soon(write, "good")
    """
    where, said = await skill.write(body).to_its_end(root)
    assert said.ok, said
    assert [e["step"] for e in entries(where, "raised")] == ["bad", "bad"]
    assert [e["step"] for e in entries(where, "interrupted")] == ["good", "good"]


async def test_an_error_in_work_that_a_todo_hands_to_others_spends_its_try(root, ledger, skill):
    body = """
        async def wrong():
            raise RuntimeError("no ink")
        async for step in task.todo("write", retries=1):
            say(f"try {step.try_number}")
            async with anyio.create_task_group() as group:
                group.start_soon(wrong)
    """
    _, said = await skill.write(body).to_its_end(root)
    assert said.status == "failed"
    assert "step 'write' failed: RuntimeError: no ink" in said.summary
    assert ledger.lines() == ["try 1", "try 2"]


async def test_two_todos_of_one_name_at_once_are_refused_as_steps_are(root, ledger, skill):
    body = """
        async for step in task.todo("write"):
            say("outer")
            async for step in task.todo("write"):
                say("inner")
    """
    _, said = await skill.write(body).to_its_end(root)
    assert said.status == "failed"
    assert "running already" in said.summary
    assert ledger.count("inner") == 0


async def test_a_name_is_free_again_once_its_todo_was_left(root, ledger, skill):
    body = """
        async for step in task.todo("write"):
            break
        async for step in task.todo("write"):
            say("second")
    """
    where, said = await skill.write(body).to_its_end(root)
    assert said.ok, said
    assert checklist(where) == ["[skipped] write", "[working done] write (2)", "[end]"]


# -- what may happen once only, beside an order or a question of another branch ------------------------------------

PAYS = """
async def pay():
    say("pay began")
    await comes(lambda: os.path.exists(LEDGER + ".paid"))
    say("pay ended")
"""


@pytest.mark.parametrize("why, waits", [("", "paused"), ('await task.ask("Which?")', "question")])
async def test_what_happens_once_may_end_before_a_pause_or_a_question_elsewhere_ends_the_worker(
    root, ledger, skill, why, waits
):
    body = f"""
        async def other():
            await task.step("one", work, "one")
            say("up")
            await comes(went_on)
            {why or 'await task.step("two", work, "two")'}
        async with anyio.create_task_group() as group:
            group.start_soon(partial(task.step, "pay", pay, effect="once"))
            group.start_soon(other)
    """
    skill.write(body, "from functools import partial\n" + PAYS)
    async with Coordinator(root) as coordinator:
        handle = await coordinator.spawn(f"{skill.path}:skill", name="replayed")
        await ledger.has("up")
        await ledger.has("pay began")
        if not why:
            await coordinator.order(handle.id, "pause", patience=0)
        Path(f"{ledger.path}.go").touch()
        await until(lambda: entries(handle.where, "asked" if why else "handled"), "the other branch is at its border")
        Path(f"{ledger.path}.paid").touch()
        said = await handle.wait(30)
    assert said.status == waits
    assert ledger.count("pay ended") == 1
    assert snapshot(handle.where).steps["pay"].status == "done"
    assert ledger.count("two ran") == 0


# -- checks --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "check, more, why",
    [
        ("Done('paid')", ", outputs=['receipt']", "declared output 'receipt' is not there"),
        ("Done({1, 2})", "", "cannot be stored"),
        ("1 / 0", "", "raised ZeroDivisionError"),
        ("never()", ", timeout=0.05", "did not answer within 0.05 s"),
    ],
    ids=["no output", "no JSON", "raises", "hangs"],
)
async def test_a_check_whose_answer_cannot_count_leaves_its_step_to_a_person_and_says_why(
    root, ledger, skill, check, more, why
):
    above = f"""
        async def never():
            await anyio.sleep_forever()

        async def paid():
            said = {check}
            return await said if hasattr(said, "__await__") else said

        async def pay():
            say("pay began")
            raise LookupError("who knows")
    """
    skill.write(f"await task.step('pay', pay, effect='once', check=paid{more})", above)
    async with Coordinator(root) as coordinator:
        handle = await coordinator.spawn(f"{skill.path}:skill", name="replayed")
        said = await handle.wait(30)
    assert said.status == "uncertain"
    assert why in snapshot(handle.where).steps["pay"].why
    assert ledger.count("pay began") == 1


async def test_a_step_that_held_on_beyond_its_timeout_says_so_in_its_file(root, ledger, skill):
    above = """
        import time

        async def blocks():
            until = time.monotonic() + 0.1
            while time.monotonic() < until:
                pass
            return "through"
    """
    skill.write("await task.step('one', blocks, timeout=0.01)", above)
    async with Coordinator(root) as coordinator:
        handle = await coordinator.spawn(f"{skill.path}:skill", name="replayed")
        assert (await handle.wait(30)).ok
    assert "beyond its timeout of 0.01 s" in Path(handle.where.directory, "one.md").read_text("utf-8")
