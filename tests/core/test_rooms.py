"""The table of commands says what the modules have: a command that is not in it could not be called."""

import importlib

import pytest

from orchestrator.cli.group import ROOMS, cli


@pytest.mark.parametrize("room", ROOMS)
def test_every_command_of_a_module_is_in_the_table_under_it(room: str) -> None:
    before = set(cli.commands)
    for name in ROOMS[room][1]:
        cli.commands.pop(name, None)
    module = importlib.reload(importlib.import_module(f"orchestrator.cli.{room}"))
    assert set(ROOMS[room][1]) <= set(cli.commands)
    assert set(cli.commands) - before <= set(ROOMS[room][1]), module
