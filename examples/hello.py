"""Greets some people, one step each, and writes a card."""

from orchestrator import Task, current_step


def greet(name: str) -> str:
    current_step().note(f"{name} likes to be greeted by name.")
    return f"Hello, {name}!"


async def hello(task: Task, who: list[str]) -> str:
    lines = [await task.step(f"greet {name}", greet, name) for name in who]
    card = task.workspace / "card.txt"
    await task.step("write the card", lambda: card.write_text("\n".join(lines)), outputs=["card.txt"])
    return card.read_text()
