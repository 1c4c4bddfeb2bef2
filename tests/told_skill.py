"""A skill that does as it is told, step by step: see tests/stage.py."""

from __future__ import annotations

from typing import Any

import stage

from orchestrator import Done, current_step


async def told(task: Any, skill: list[dict[str, Any]], planned: int, checklist: bool) -> str:
    """Its steps are the ones of `skill`, of which the first `planned` are written down before they begin."""
    task._needs_result = not checklist
    script = stage.Told(task)
    given: dict[str, Any] = {}

    async def work(*_used: Any) -> Any:
        step = current_step()
        return await script.stand("entered", step.label, step.try_number)

    def check_of(label: str) -> Any:
        async def check(*_used: Any) -> Any:
            said = await script.stand("checking", label)
            return Done(said[1]) if isinstance(said, list) else {"not done": False}.get(said)

        return check

    await task.plan([item["name"] for item in skill if "name" in item][:planned])
    for item in skill:
        if "question" in item:
            await task.ask(item["question"])
            continue
        texts = task.messages()
        if texts:
            script.say("heard", *texts)
        args = [given[item["uses"]]] if item["uses"] else []
        more = {"check": check_of(item["label"])} if item["check"] else {}
        given[item["label"]] = await task.step(
            item["name"], work, *args, effect=item["effect"], retries=item["retries"], **more
        )
    return "through"
