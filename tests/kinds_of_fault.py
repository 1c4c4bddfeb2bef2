"""Faults of the write order, planted one at a time: what goes through all crashes must find each of them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import pytest
import scenarios
from scenarios import SCENARIOS, Scenario

from orchestrator import directories, files, stepwriter, takeover, workspace
from orchestrator.core.model import StepStatus
from orchestrator.stepwriter import StepWriter
from orchestrator.writer import TaskWriter


class Fault(NamedTuple):
    """`plant` makes it; it shows in this scenario, after a crash or only after a power cut."""

    scenario: str
    shows: str
    plant: Callable[[pytest.MonkeyPatch], None]


def _mark_before_commit(patch: pytest.MonkeyPatch) -> None:
    commit = StepWriter.commit

    def marked_first(self: Any, label: str, status: StepStatus, **more: Any) -> None:
        state = self.snapshot.steps[label]
        before, state.status = state.status, status
        self._face.show(state, None)
        self.settle()
        state.status = before
        commit(self, label, status, **more)

    patch.setattr(StepWriter, "commit", marked_first)


def _end_before_its_line(patch: pytest.MonkeyPatch) -> None:
    end = TaskWriter.end

    def shown_first(self: Any, said: Any, **fields: Any) -> None:
        self._face.status(stepwriter.FACE[said.status])
        self.settle()
        end(self, said, **fields)

    patch.setattr(TaskWriter, "end", shown_first)


def _no_sync_of_the_journal(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(files.SyncedFile, "sync", lambda self: None)


def _no_sync_of_directories(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(files, "sync_directory", lambda path: None)


def _root_not_durable(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(workspace.files, "make_directories", lambda path: directories.os.mkdir(path, 0o777))


def _sweeps_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(takeover.files, "sweep", lambda *_: iter(()))


def _result_not_synced(patch: pytest.MonkeyPatch) -> None:
    replace = files.replace
    patch.setattr(
        files, "replace", lambda path, data, *, sync: replace(path, data, sync=sync and "/results/" not in path)
    )


def _edit_dropped_before_it_is_merged(patch: pytest.MonkeyPatch) -> None:
    exchange = files.swap_in

    def dropping(*args: Any, **more: Any) -> Any:
        displaced, temporary = exchange(*args, **more)
        if temporary is not None:
            files.drop(temporary)
        return displaced, temporary

    patch.setattr(files, "swap_in", dropping)


def _words_written_unsynced(patch: pytest.MonkeyPatch) -> None:
    exchange = files.swap_in
    patch.setattr(files, "swap_in", lambda *args, whole, **more: exchange(*args, **more))


FAULTS: Mapping[str, Fault] = {
    "the mark before the commit": Fault("skip, interrupted", "crash", _mark_before_commit),
    "the end in task.md before its line": Fault("skip, interrupted", "crash", _end_before_its_line),
    "temporaries are not swept": Fault("cancel, interrupted", "crash", _sweeps_nothing),
    "an edit that was displaced goes before it is merged": Fault(
        "an edit in the moment of a mark", "crash", _edit_dropped_before_it_is_merged
    ),
    "no sync of the journal": Fault("cancel, interrupted", "power", _no_sync_of_the_journal),
    "no sync of directories": Fault("spawn a checklist", "power", _no_sync_of_directories),
    "the root's own name is not durable": Fault("spawn a checklist", "power", _root_not_durable),
    "a result is not synced before it is named": Fault("recover, interrupted", "power", _result_not_synced),
    "a person's words are written anew unsynced": Fault("recover, hand-edited", "power", _words_written_unsynced),
}


def of_a_crash(faults: Mapping[str, Fault]) -> list[str]:
    return [name for name, fault in faults.items() if fault.shows == "crash"]


def of_a_power_cut(faults: Mapping[str, Fault]) -> list[str]:
    return [name for name, fault in faults.items() if fault.shows == "power"]


@contextlib.contextmanager
def planted(name: str) -> Iterator[Scenario]:
    """The scenario in which the fault shows, with the fault in it; how it ends without is found out before."""
    fault = FAULTS[name]
    (scenario,) = (s for s in SCENARIOS if s.name == fault.scenario)
    assert scenario.ends
    assert scenario.unasked or not scenario.asked
    with pytest.MonkeyPatch.context() as patch:
        fault.plant(patch)
        yield scenario
    scenarios.clean_up()
