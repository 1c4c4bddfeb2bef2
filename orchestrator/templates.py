"""The shipped templates; a project's own `templates/` beside its root win over them."""

from __future__ import annotations

import os

_HERE = os.path.dirname(os.path.abspath(__file__))


def read(name: str) -> str | None:
    """The text of a template: `./templates/NAME`, else the shipped one; None when there is none."""
    for path in _places(name):
        try:
            with open(path, encoding="utf-8") as file:
                return file.read()
        except OSError:
            continue
    return None


def find(name: str) -> tuple[str, str] | None:
    """Where a template is read from, absolute, and whose it is: `project` or `shipped`."""
    for number, path in enumerate(_places(name)):
        if os.path.isfile(path):
            return os.path.abspath(path), "shipped" if number else "project"
    return None


def _places(name: str) -> tuple[str, ...]:
    directories = ("templates", os.path.join(_HERE, "templates"), os.path.join(_HERE, "..", "templates"))
    return tuple(os.path.join(directory, name) for directory in directories)


def shipped(name: str) -> str:
    """Where a shipped directory of templates lies: inside the installed package, beside it in the source tree."""
    inside = os.path.join(_HERE, "templates", name)
    return inside if os.path.isdir(inside) else os.path.join(os.path.dirname(_HERE), "templates", name)
