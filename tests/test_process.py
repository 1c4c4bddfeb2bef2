"""One command of a checklist: run, watched, ended with all it started; with a cgroup of its own and without."""

from __future__ import annotations

import os
import secrets
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from kit import until
from launching import is_alive

from orchestrator import containment, process

ENV = {"PATH": os.environ["PATH"]}


@pytest.fixture(params=["cgroup", "no-cgroup"])
def cgroup(request: pytest.FixtureRequest) -> str | None:
    if request.param == "no-cgroup":
        return None
    found = containment.name_one(secrets.token_hex(8)).cgroup
    if found is None:
        pytest.skip("no cgroup can be made here")
    return found


@pytest.fixture
def run(tmp_path: Path, cgroup: str | None) -> Callable[..., Any]:
    async def run(script: str, **how: Any) -> tuple[process.CommandExit, bytes]:
        said: list[bytes] = []
        given = {"cwd": str(tmp_path), "env": ENV, "timeout": 30.0, "grace_seconds": 0.3, "cgroup": cgroup, **how}
        ended = await process.run(["/bin/sh", "-c", script], sink=said.append, **given)
        assert cgroup is None or not os.path.exists(cgroup)
        return ended, b"".join(said)

    return run


def pid_in(path: Path) -> int:
    return int(path.read_text()) if path.exists() and path.read_text().strip() else 0


# -- how it ends ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [0, 1, 3, 127, 255])
async def test_the_exit_code_is_the_commands(run, code):
    ended, _ = await run(f"exit {code}")
    assert (ended.code, ended.timed_out) == (code, False)


async def test_a_command_killed_by_a_signal_is_told_from_one_that_failed(run):
    ended, _ = await run("kill -KILL $$")
    assert ended.code == -signal.SIGKILL


async def test_a_program_that_is_not_there_is_found_out_before_it_is_started(tmp_path):
    (tmp_path / "plain").write_text("no program")
    (tmp_path / "tool").write_text("#!/bin/sh\n")
    (tmp_path / "tool").chmod(0o755)
    where = str(tmp_path)
    assert process.find("no-such-program-at-all", ENV, where) is None
    assert process.find("./plain", ENV, where) is None
    assert process.find("./", ENV, where) is None
    assert process.find("./tool", ENV, where) == f"{where}/./tool"
    assert process.find("tool", {"PATH": where}, "/") == f"{where}/tool"
    assert process.find("sh", {}, where) is not None  # without a PATH, where the system has its programs


async def test_a_program_that_vanished_since_is_an_error_and_no_success(tmp_path, cgroup):
    call: Any = {"cwd": str(tmp_path), "env": ENV, "timeout": 5, "grace_seconds": 1, "cgroup": cgroup}
    try:
        ended = await process.run([str(tmp_path / "gone")], sink=lambda _: None, **call)
    except FileNotFoundError:
        assert cgroup is None
    else:
        assert ended.code == 127
        assert "gone" in ended.tail
    assert cgroup is None or not os.path.exists(cgroup)


async def test_over_its_timeout_it_is_asked_to_end_and_may_put_things_away(run, tmp_path):
    ended, said = await run("trap 'echo put away; exit 9' TERM; echo begun; while :; do sleep 0.01; done", timeout=0.5)
    assert (ended.code, ended.timed_out) == (9, True)
    assert said.startswith(b"begun\n")
    assert said.endswith(b"put away\n")


async def test_one_that_ignores_sigterm_is_killed_after_the_grace(run):
    begun = time.monotonic()
    ended, _ = await run("trap '' TERM; while :; do sleep 0.01; done", timeout=0.2, grace_seconds=0.3)
    assert (ended.code, ended.timed_out) == (-signal.SIGKILL, True)
    assert 0.5 <= time.monotonic() - begun < 100


async def test_cancelling_returns_only_when_the_whole_tree_is_gone(run, tmp_path):
    script = "sleep 300 & echo $! > child; trap '' TERM; echo $$ > pid; while :; do sleep 0.01; done"
    async with anyio.create_task_group() as group:
        group.start_soon(run, script)
        await until(lambda: pid_in(tmp_path / "pid"), "it runs")
        group.cancel_scope.cancel()
    assert not is_alive(pid_in(tmp_path / "pid"))
    assert not is_alive(pid_in(tmp_path / "child"))


async def test_a_stopped_command_is_ended_at_its_timeout(run):
    ended, _ = await run("kill -STOP $$", timeout=0.2)
    assert (ended.code, ended.timed_out) == (-signal.SIGKILL, True)


# -- what it leaves ------------------------------------------------------------------------------------------------


async def test_a_job_left_in_the_background_is_ended_with_its_command(run, tmp_path):
    ended, said = await run("nohup sleep 300 >/dev/null 2>&1 & echo $! > child; echo done")
    assert (ended.code, said) == (0, b"done\n")
    assert not is_alive(pid_in(tmp_path / "child"))


async def test_a_job_in_its_own_session_is_ended_where_there_is_a_cgroup(run, tmp_path, cgroup):
    script = "setsid sh -c 'echo $$ > child; exec sleep 300' & while [ ! -s child ]; do :; done"
    begun = time.monotonic()
    ended, _ = await run(script)
    assert ended.code == 0
    assert time.monotonic() - begun < 100  # it holds our pipe: it is not waited for
    child = pid_in(tmp_path / "child")
    try:
        assert is_alive(child) is (cgroup is None)  # without one, the worker's guard ends it
    finally:
        containment.send(child, signal.SIGKILL)


async def test_a_job_that_holds_stdout_costs_no_descriptor_of_the_worker(run, tmp_path):
    """A worker runs thousands of commands: one descriptor lost with each ends it."""
    script = "setsid sh -c 'echo $$ > child; exec sleep 300' & while [ ! -s child ]; do :; done"
    await run("true")
    before = len(os.listdir("/proc/self/fd"))
    try:
        await run(script)
        assert len(os.listdir("/proc/self/fd")) <= before
    finally:
        containment.send(pid_in(tmp_path / "child"), signal.SIGKILL)


# -- what it says and is given -------------------------------------------------------------------------------------


async def test_both_streams_come_in_their_order_and_the_tail_shows_why_it_failed(run):
    ended, said = await run("seq -f 'line %g' 0 1999; echo the reason >&2; exit 1")
    assert said.startswith(b"line 0\nline 1\n")
    assert said.endswith(b"line 1999\nthe reason\n")
    assert ended.tail.endswith("line 1999\nthe reason\n")
    assert len(ended.tail) == process.TAIL_BYTES


async def test_a_tail_cut_in_the_middle_of_a_character_or_of_no_text_at_all_is_still_shown(run):
    ended, said = await run(f"printf 'ü%.0s' $(seq {process.TAIL_BYTES}); printf x; printf '\\377\\000'")
    assert said.endswith("ü".encode() + b"x\xff\x00")
    assert ended.tail.endswith("üx\ufffd\x00")


async def test_output_without_end_is_taken_as_it_comes(run):
    ended, said = await run("head -c 50000000 /dev/zero")
    assert (ended.code, len(said)) == (0, 50_000_000)


async def test_a_command_that_closed_its_output_is_waited_for_all_the_same(run, tmp_path):
    ended, said = await run("exec >&- 2>&-; sleep 0.2; : > finished")
    assert (ended.code, said) == (0, b"")
    assert (tmp_path / "finished").exists()


async def test_a_command_that_asks_gets_an_end_of_file_and_does_not_wait_for_an_answer(run):
    ended, said = await run("read answer; echo $?; readlink /proc/$$/fd/0", timeout=10)
    assert (ended.code, said) == (0, b"1\n/dev/null\n")


async def test_its_environment_is_what_it_is_given_and_nothing_of_ours(tmp_path, monkeypatch):
    monkeypatch.setenv("A_SECRET_OF_THE_WORKER", "x")
    odd = {**ENV, "GREETING": "two words ü\nand a line", "npm_config_@scope:registry": "a name no shell knows"}
    for env in (ENV, odd):
        _, said = await _plain(["env", "-0"], tmp_path, env)
        given = dict(pair.split("=", 1) for pair in said.decode().split("\0") if pair)
        assert {k: v for k, v in given.items() if k not in {"PWD", "OLDPWD", "SHLVL", "_"}} == env  # a shell's own


async def _plain(argv: list[str], cwd: Path, env: dict[str, str]) -> tuple[process.CommandExit, bytes]:
    said: list[bytes] = []
    held = containment.name_one(secrets.token_hex(8)).cgroup
    ended = await process.run(argv, cwd=str(cwd), env=env, timeout=10, grace_seconds=1, sink=said.append, cgroup=held)
    return ended, b"".join(said)


async def test_words_reach_the_program_as_they_are_whatever_a_shell_would_make_of_them(tmp_path):
    words = ["", " ", "$HOME", "`id`", "a'b\"c", "-n", "*", "line\nline", "ü", "\\"]
    ended, said = await _plain(["printf", "%s\\0", *words], tmp_path, ENV)
    assert ended.code == 0
    assert said.decode().split("\0")[:-1] == words
