"""Between two attempts: what a person orders there is heard at once."""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path

import kit
import pytest
from conftest import Ledger

from orchestrator import Coordinator
from orchestrator.core import lifecycle


async def test_a_cancel_given_while_the_next_attempt_is_waited_for_starts_no_worker(
    root: Path, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lifecycle, "backoff_seconds", lambda failures, luck: 600.0)
    async with Coordinator(root) as coordinator:
        handle = await coordinator.spawn(kit.spec("dies_at_two", ledger))
        await kit.until(lambda: kit.entries(handle.where, "closed"), "the first attempt is buried")
        begun = time.monotonic()
        said = await coordinator.cancel(handle.id)
    assert said.status == "cancelled"
    assert time.monotonic() - begun < 60
    assert len(kit.entries(handle.where, "attempt")) == 1


def test_recover_that_waits_says_how_each_task_ended_and_leaves_with_the_worst(root: Path, tmp_path: Path) -> None:
    steps = tmp_path / "bad.yaml"
    steps.write_text("steps:\n  - {name: cannot, shell: 'exit 3', retries: 0}\n")
    good = tmp_path / "good.yaml"
    good.write_text(f"steps:\n  - {{name: can, run: ['{sys.executable}', -c, pass]}}\n")
    for path in (steps, good):
        kit.queue(root, path)
    ended = kit.orchestrator(root, "recover", "--wait")
    out, _ = ended.communicate(timeout=300)
    assert "✘ bad" in out
    assert "✔ good" in out
    assert ended.returncode == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_detached_supervisor_may_be_told_to_go_and_leaves_its_worker_and_no_traceback(
    tmp_path: Path, root: Path, ledger: Ledger, number: signal.Signals
) -> None:
    with kit.fifo(tmp_path / "gate") as gate:
        where, supervisor = kit.start_supervised(root, kit.spec("waits_in_two", ledger, gate=str(gate)))
        await ledger.has("two began 1")
        supervisor.send_signal(number)
        await kit.until(lambda: supervisor.poll() is not None, "the supervisor has gone")
        assert supervisor.returncode == -number
        assert Path(where.supervisor_log).read_text() == ""
        await kit.open_gate(gate)
        await kit.let_go(where)
    said = await Coordinator(root).wait(where.task_id, 120)
    assert said.ok
