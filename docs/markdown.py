"""The few Markdown forms that the pages use, and the run of an example that a page shows."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterable, Sequence


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A Markdown table; a bar inside a cell is escaped."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |" for line in lines)


def fenced(text: str, language: str = "text") -> str:
    return f"```{language}\n{text.strip(chr(10))}\n```"


def code(text: object) -> str:
    return f"`{text}`"


def keywords(kwargs: dict[str, object]) -> str:
    """`high=8, max_guesses=3`, or "the defaults"."""
    return code(", ".join(f"{name}={value!r}" for name, value in kwargs.items())) if kwargs else "the defaults"


def example(source: str) -> str:
    """A piece of Python and what it prints when it is run, which it is."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(source, "<example>", "exec"), {"__name__": "example"})
    return f"{fenced(source, 'python')}\n\nprints\n\n{fenced(printed.getvalue())}"


def page(*blocks: str) -> str:
    """Blocks as one page, with the note that it is written by a command."""
    note = "<!-- Written by `python -m docs.build`; edit the docstrings it comes from, not this file. -->"
    return "\n\n".join([note, *(block.strip("\n") for block in blocks)]) + "\n"
