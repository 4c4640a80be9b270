"""From a docstring to the parts of a page: named sections, the descriptions of arguments, the body."""

from __future__ import annotations

import inspect
import re
from typing import Any

SECTIONS = ("Rules", "Observation", "Action", "Reward", "Episode end", "Info", "Reset options", "Solver")
"""What the docstring of an environment class must hold, each as a paragraph that begins with the name and a colon."""

_GOOGLE = ("Args", "Raises", "Returns", "Attributes")
_HEADING = re.compile(rf"({'|'.join((*SECTIONS, *_GOOGLE))}):\s*")


def sections(thing: Any) -> dict[str, str]:
    """The parts of a docstring by name; "" holds what comes before the first heading."""
    parts: dict[str, list[str]] = {"": []}
    name = ""
    for block in _doc(thing).split("\n\n"):
        match = _HEADING.match(block)
        if match:
            name = match[1]
            parts[name] = []
            block = block[match.end() :] if name in SECTIONS else block.partition("\n")[2]
            block = block[:1].upper() + block[1:]
        parts[name].append(block)
    return {name: "\n\n".join(blocks).strip("\n") for name, blocks in parts.items()}


def environment_sections(cls: type) -> dict[str, str]:
    """The sections of an environment class.

    Raises:
        ValueError: one of SECTIONS is missing, or its place in the order is wrong.
    """
    found = sections(cls)
    order = [name for name in found if name in SECTIONS]
    if order != list(SECTIONS):
        raise ValueError(f"the docstring of {cls.__name__} has the sections {order}, not {list(SECTIONS)}")
    return found


def summary(thing: Any) -> str:
    """The first paragraph, on one line."""
    return " ".join(_doc(thing).split("\n\n")[0].split())


def body(thing: Any) -> str:
    """Everything between the first paragraph and `Args:`, `Returns:` and their like."""
    return sections(thing)[""].partition("\n\n")[2]


def arguments(thing: Any) -> dict[str, str]:
    """Argument → its description, from `Args:`. What stands for several names at once is given to each of them."""
    described: dict[str, str] = {}
    entries = re.split(r"\n(?=    \S)", "\n" + sections(thing).get("Args", ""))
    for entry in filter(str.strip, entries):
        names, _, text = entry.strip().partition(": ")
        described.update(dict.fromkeys(re.split(r",\s*", names), " ".join(text.split())))
    return described


def _doc(thing: Any) -> str:
    doc = inspect.getdoc(thing)
    if not doc:
        raise ValueError(f"{getattr(thing, '__name__', thing)} has no docstring")
    return doc
