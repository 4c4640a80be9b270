"""Write the generated pages of docs/, or check that they are current.

    python -m docs.build            writes docs/environments/*.md, docs/methods.md and docs/vector.md
    python -m docs.build --check    exits 1 and names each page that is not what it would write

The one slow table, docs/environments/crafting_table.md, has a command of its own (`docs.crafting_parts.COMMAND`).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from docs import crafting_parts, environment_pages, method_page, vector_page

DOCS = Path(__file__).parent


def pages() -> dict[str, Callable[[], str]]:
    """Path under docs → what makes the page."""
    return {**environment_pages.pages(), **method_page.pages(), **vector_page.pages()}


def stale(docs: Path = DOCS) -> list[str]:
    """A line for each page that is missing, out of date, or there without a source."""
    made = {docs / path: make for path, make in pages().items()}
    lines = []
    for path, make in made.items():
        if not path.exists():
            lines.append(f"{path.relative_to(docs.parent)} is missing")
        elif path.read_text(encoding="utf-8") != make():
            lines.append(f"{path.relative_to(docs.parent)} is stale")
    known = {*made, docs / "environments" / crafting_parts.RESULTS.name}
    for path in sorted((docs / "environments").glob("*.md")):
        if path not in known:
            lines.append(f"{path.relative_to(docs.parent)} is about no environment; delete it")
    return lines


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a page is not current")
    if parser.parse_args(argv).check:
        lines = stale()
        if lines:
            lines.append("Write them anew with: python -m docs.build")
        measured = crafting_parts.stale_results()
        if measured:
            lines.append(f"{crafting_parts.RESULTS.name}: {measured[0]}; write it anew with: {crafting_parts.COMMAND}")
        print("\n".join(lines) or "The pages are current.")
        sys.exit(1 if lines else 0)
    for path, make in pages().items():
        target = DOCS / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(make(), encoding="utf-8", newline="\n")
        print(target.relative_to(DOCS.parent))


if __name__ == "__main__":
    main()
