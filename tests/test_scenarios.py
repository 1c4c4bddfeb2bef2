"""The scenarios: each comes to its end, and the engine that they run with leaves the disk that the real one leaves."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import inline
import pytest
import scenarios
from scenarios import SCENARIOS, Place, Scenario

from orchestrator import store
from orchestrator.engines.local import LocalEngine


@pytest.fixture
def base() -> Iterator[Path]:
    """A directory in memory, where there is one."""
    made = Path(tempfile.mkdtemp(dir=scenarios.temporary_base()))
    yield made
    shutil.rmtree(made)


@pytest.fixture(scope="module", autouse=True)
def clean() -> Iterator[None]:
    yield
    scenarios.clean_up()


@pytest.mark.parametrize("scenario", SCENARIOS, ids=str)
def test_an_undisturbed_run_comes_to_its_end_and_leaves_nothing_behind(scenario: Scenario, base: Path) -> None:
    place = scenario.place(base)
    for number in range(len(scenario.acts)):
        ran = scenario.act(place, number)
        assert ran.code == 0, ran.error
    end = scenarios.shown(place.root)
    assert end == scenario.ends[-1] or scenario.name == "retro, interrupted"
    assert end != scenario.ends[0] or scenario.name.startswith(("recover", "retro")), "its acts change nothing"
    assert [p for p in Path(place.root).rglob("*") if p.name.startswith(".orchestrator")] == []
    assert scenario.recover(place).code == 0  # and then there is nothing to recover
    assert scenarios.shown(place.root) == end or scenario.name == "retro, interrupted"


@pytest.mark.parametrize("scenario", SCENARIOS[:4], ids=str)
def test_the_engine_of_the_scenarios_leaves_the_disk_that_the_real_one_leaves(
    scenario: Scenario, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = scenario.place(base)
    monkeypatch.setattr(inline, "InlineEngine", LocalEngine)
    for number in range(len(scenario.acts)):
        ran = scenario.act(place, number)
        assert ran.code == 0, ran.error
    assert scenarios.shown(place.root) == scenario.ends[-1]
    monkeypatch.undo()
    with tempfile.TemporaryDirectory(dir=base) as other:
        again = scenario.place(Path(other))
        scenario.act(again, 0)
        assert _files(place) == _files(again)
        assert _kinds(place) == _kinds(again)


def _files(place: Place) -> list[str]:
    (where,) = place.tasks()
    return sorted(str(p.relative_to(where.directory)) for p in Path(where.directory).rglob("*"))


def _kinds(place: Place) -> list[tuple[str, str]]:
    """What the journal has, line by line."""
    (where,) = place.tasks()
    return [(e["kind"], str(e.get("step") or e.get("outcome") or "")) for e in store.read_journal(where).entries]
