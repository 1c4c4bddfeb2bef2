"""Every scenario, and a power cut at every point: what was not synced is lost, kept, torn or zero, each by itself.

In CI a sample of the states, which ORCHESTRATOR_TEST_SEED changes; `make cuts` goes through all of them.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import scenarios
from crashing import Cuts, go_through
from disklog import Event
from kinds_of_fault import FAULTS, of_a_power_cut, planted
from power import Disk, digest
from scenarios import SCENARIOS, Scenario

#: States of each scenario that are recovered.
SAMPLE = 16


@pytest.mark.parametrize("scenario", SCENARIOS, ids=str)
def test_whatever_of_the_unsynced_is_lost_nothing_that_was_told_is(scenario: Scenario) -> None:
    tally = go_through(scenario, "power", cuts=2, sample=SAMPLE)
    assert not tally.failures, "\n".join(tally.failures)
    assert tally.recoveries >= min(SAMPLE, 4)


@pytest.mark.parametrize("fault", of_a_power_cut(FAULTS), ids=str)
def test_a_sync_that_is_missing_is_found(fault: str) -> None:
    with planted(fault) as scenario:
        assert go_through(scenario, "power", cuts=1, stop_at=1).failures, fault


# -- the model ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def base() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(dir=scenarios.temporary_base()))
    yield made
    shutil.rmtree(made)


@pytest.mark.parametrize("scenario", SCENARIOS[::4], ids=str)
def test_what_was_recorded_is_all_that_was_done_to_the_disk(scenario: Scenario, base: Path) -> None:
    cuts = Cuts(scenario, "crash", base, cuts=1)
    real = {
        str(p.relative_to(cuts.place.base)): None if p.is_dir() else p.read_bytes()
        for p in cuts.place.base.rglob("*")
        if p.name != "ledger.txt" and p.parent.name != "logs"  # written by others than the file layer
    }
    model = {p: data for p, data in cuts.disk.now().items() if p != "ledger.txt" and "/logs/" not in p}
    assert digest(model) == digest(real), set(model) ^ set(real)


def ways(base: Path, *events: tuple[str, tuple[object, ...]]) -> set[tuple[tuple[str, bytes | None], ...]]:
    disk = Disk.of(base)
    for operation, args in events:
        disk.apply(Event(operation, args, 0, 0))
    return {tuple(sorted(tree.items())) for _, tree in disk.ways(each=True, cuts=None)}


def test_what_is_written_and_not_synced_may_be_lost_torn_or_zero(base: Path) -> None:
    (base / "log").write_bytes(b"old ")
    number = (base / "log").stat().st_ino
    found = ways(base, ("write", (number, b"new")))
    assert found == {(("log", b"old " + end),) for end in (b"", b"n", b"ne", b"new", b"\0\0\0")}
    assert ways(base, ("write", (number, b"new")), ("fdatasync", (number,))) == {(("log", b"old new"),)}


def test_a_rename_may_come_without_its_content_until_both_are_synced(base: Path) -> None:
    (base / "face").write_bytes(b"old")
    here, temporary, face = base.stat().st_ino, str(base / "tmp"), str(base / "face")
    written = [("create", (temporary, 1)), ("write", (1, b"new"))]
    renamed = ("rename", (temporary, face))
    assert (("face", b""),) in ways(base, *written, renamed)
    assert (("face", b"old"),) in ways(base, *written, ("fsync", (1,)), renamed)
    assert (("face", b""),) not in ways(base, *written, ("fsync", (1,)), renamed)
    assert ways(base, *written, ("fsync", (1,)), renamed, ("fsync", (here,))) == {(("face", b"new"),)}


def test_the_name_of_a_new_file_is_lost_until_its_directory_is_synced(base: Path) -> None:
    here, made = base.stat().st_ino, [("create", (str(base / "a"), 1)), ("write", (1, b"x")), ("fsync", (1,))]
    assert ways(base, *made) == {(), (("a", b"x"),)}
    assert ways(base, *made, ("fsync", (here,))) == {(("a", b"x"),)}
