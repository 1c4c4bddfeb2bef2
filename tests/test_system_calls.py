"""In which order things reach the disk, told by the system calls: a missing sync shows in no other way.

The life of one task is recorded twice: by strace, with its real processes, where that can be had; and by a layer around
`files.os` in this process, always. The same questions are asked of both.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest
import recording
from launching import make_task
from recording import CALLS, Call, Trace
from stubborn import two_steps

from orchestrator import files
from orchestrator.compose import resolve
from orchestrator.core.model import Outcome, TaskSpec
from orchestrator.takeover import continue_attempt, take_over
from orchestrator.worker.descriptors import Own
from orchestrator.worker.task import Task

_DRIVER = """
import sys, time, anyio
sys.path.insert(0, sys.argv[1])
from launching import spec_of
from orchestrator import Coordinator, supervision
supervision.STARTUP_SECONDS = 600.0  # traced, and on a machine under load, a worker needs longer to its first line
async def main():
    async with Coordinator(sys.argv[2]) as coordinator:
        assert (await (await coordinator.spawn(spec_of("two_steps"))).wait()).ok
anyio.run(main)
"""


# -- recorded by strace --------------------------------------------------------------------------------------------

_LINE = re.compile(r"^\d+ +(?:<\.\.\. )?(\w+)(?:\(| resumed>)")
_STRING = re.compile(r'"((?:[^"\\]|\\.)*)"')


def _plain(text: str) -> str:
    return (
        text.encode("latin-1", "replace")
        .decode("unicode_escape")
        .encode("latin-1", "replace")
        .decode("utf-8", "replace")
    )


def by_strace(output: str) -> list[Call]:
    calls: list[Call] = []
    open_: dict[str, Call] = {}
    for number, line in enumerate(output.splitlines(), 1):
        found = _LINE.match(line)
        if found is None:
            continue
        pid, name = line.split()[0], found[1]
        if "resumed>" in line:
            if pid in open_ and " = -1" not in line:
                open_[pid].ended = number
            continue
        words = [_plain(text) for text in _STRING.findall(line)]
        descriptor = re.search(r"\(\d+<(.*?)>", line)
        path = _plain(descriptor[1]) if descriptor else words[-1] if name.startswith("rename") else words[0]
        text = " ".join(words)
        call = Call(name, path, text, number, 0 if "<unfinished" in line or " = -1" in line else number)
        open_[pid] = call
        calls.append(call)
    return calls


def strace(root: Path, output: Path) -> list[Call]:
    tool = shutil.which("strace")
    if tool is None or subprocess.run([tool, "-qq", "-o", os.devnull, "true"], check=False).returncode:
        pytest.skip("strace is not here or may not trace; the layer around files.os is asked instead")
    traced = [tool, "-f", "-qq", "-y", "-s", "4000", "-e", f"trace={CALLS}", "-o", str(output)]
    here = str(Path(__file__).parent)
    subprocess.run([*traced, sys.executable, "-c", _DRIVER, here, str(root)], check=True, timeout=600)
    return by_strace(output.read_text("utf-8", "replace"))


# -- recorded by a layer around files.os ---------------------------------------------------------------------------


async def wrapped(root: Path, patch: pytest.MonkeyPatch) -> list[Call]:
    """The same life as strace sees, with no other process: what a coordinator does, then what a worker does."""
    layer = recording.install(patch)
    where = make_task(root, "two_steps")
    coordinator = take_over(where, time.time)
    run = coordinator.begin_attempt(token="t", cgroup=None)
    coordinator.close()
    layer.add("execve", "python", "python -m orchestrator.worker")
    worker = continue_attempt(where, time.time, run)
    assert worker is not None
    worker.started(worker=[1, 1, "", "", ""], guard=[1, 1, "", "", ""])
    what = TaskSpec("a family", "python", "")
    result = await two_steps(Task(worker, what, {}, leave=print, resolve=resolve, own=Own()))
    await anyio.lowlevel.checkpoint()  # the mark of the last step is written at the next turn of the loop
    path = worker.store_result(result)
    worker.end(worker.announcement(Outcome.COMPLETED, "", result=path))
    worker.close()
    return layer.calls


@pytest.fixture(scope="module", params=["strace", "wrapped"])
def trace(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trace]:
    root = tmp_path_factory.mktemp("work spaces ü")
    if request.param == "strace":
        yield Trace(strace(root, tmp_path_factory.mktemp("trace") / "calls"))
        return
    with pytest.MonkeyPatch.context() as patch:
        calls = anyio.run(wrapped, root, patch)
    yield Trace(calls)


# -- the order -----------------------------------------------------------------------------------------------------


def test_a_task_is_whole_on_the_disk_before_it_has_its_name(trace):
    """After a power cut there is a task that can be started, or none; never half of one."""
    named = trace.find("rename", "-001")
    staging = _STAGED.search(named.text)
    assert staging is not None
    for file in (".task/spec.yaml", ".task/journal.jsonl", "task.md"):
        directory, name = os.path.split(f"{staging[0]}/{file}")
        written = trace.find("fsync", f"{directory}/{files.TEMPORARY}{name}")
        renamed = trace.find("rename", f"{directory}/{name}", after=written.ended)
        assert trace.find("fsync", directory, after=renamed.ended).ended < named.began
    assert trace.find("fsync", staging[0]).ended < named.began


_STAGED = re.compile(r"\.orchestrator-new-\w+")


def test_the_name_of_a_task_is_durable_before_anything_is_done_about_it(trace):
    """Else a power cut takes away a task whose id was told already."""
    named = trace.find("rename", "-001")
    root = os.path.dirname(named.path)
    durable = trace.find("fsync", root, after=named.ended)
    assert durable.path == root
    assert durable.ended < trace.entry("attempt").began


def test_an_attempt_is_recorded_durably_before_its_worker_exists(trace):
    """Else a worker could live that no coordinator knows of."""
    durable = trace.synced(trace.entry("attempt"))
    assert durable.ended < trace.find("execve", "", "orchestrator.worker").began


def test_a_worker_says_who_it_is_durably_before_it_does_anything(trace):
    durable = trace.synced(trace.entry("started"))
    assert durable.ended < trace.entry("running").began
    assert durable.ended < trace.shown("## Status: working").began


@pytest.mark.parametrize("step", ["one", "two"])
def test_a_try_is_in_the_journal_then_in_the_step_file_then_in_task_md_then_begun(trace, step):
    running = trace.entry("running", f'"step":"{step}"')
    noted = trace.find("write", f"/{step}.md", "running")
    shown = trace.shown(f"[working] {step}")
    begun = trace.find("mkdir", f"effect of {step}")
    assert running.ended < noted.began
    assert noted.ended < shown.began
    assert shown.ended < begun.began


def test_a_step_that_may_run_only_once_is_durably_recorded_before_its_effect(trace):
    """After a power cut the effect may have happened: somebody must know that it was begun."""
    durable = trace.synced(trace.entry("running", '"step":"two"'))
    assert durable.ended < trace.find("mkdir", "effect of two").began


@pytest.mark.parametrize("step", ["one", "two"])
def test_a_commit_is_durable_before_anybody_can_read_done(trace, step):
    commit = trace.entry("commit", f'"step":"{step}"')
    durable = trace.synced(commit)
    noted = trace.find("write", f"/{step}.md", "done")
    assert trace.find("mkdir", f"effect of {step}").ended < commit.began
    assert durable.ended < noted.began
    assert noted.ended < trace.shown(f"[working done] {step}").began


def test_a_commit_costs_one_write_and_one_sync(trace):
    """The promise of the journal; more of either would be the cost of every step."""
    commit = trace.entry("commit", '"step":"one"')
    following = trace.entry("running", '"step":"two"')
    between = [c for c in trace.calls if commit.began <= c.began < following.began and c.path == commit.path]
    assert [c.name for c in between] == ["write", "fdatasync"]


def test_the_end_is_durable_before_task_md_says_end(trace):
    """An announced end that a power cut takes back would be announced twice, or its work done twice."""
    end = trace.entry("end")
    assert trace.synced(end).ended < trace.shown("[end]").began
    assert trace.shown("[end]").ended < trace.entry("closed").began


def test_the_result_and_the_step_files_are_durable_before_the_end_that_names_them(trace):
    end = trace.entry("end")
    written = trace.find("fsync", f"results/{files.TEMPORARY}result.json")
    renamed = trace.find("rename", "results/result.json", after=written.ended)
    assert trace.find("fsync", "/results", after=renamed.ended).ended < end.began
    for step in ("one", "two"):
        last = [c for c in trace.calls if c.name == "write" and c.path.endswith(f"/{step}.md") and c.began < end.began][
            -1
        ]
        assert trace.synced(last).ended < end.began


def test_task_md_is_durable_at_the_end_and_with_it_its_directory(trace):
    written = trace.find("write", files.TEMPORARY + "task.md", "[end]\n")
    shown = trace.shown("[end]")
    assert trace.find("fsync", files.TEMPORARY + "task.md", after=written.ended).ended < shown.began
    directory = os.path.dirname(shown.path)
    assert trace.find("fsync", directory, after=shown.ended).ended < trace.entry("closed").began
