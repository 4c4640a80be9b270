"""What the page of the crafting world has beside the docstrings: formulas, tiers, and the measured table."""

from __future__ import annotations

import re
from pathlib import Path

from agent_envs.crafting import FULL, LITE, FormulaTable
from agent_envs.crafting.render import formula_text
from agent_envs.crafting.table import COLUMNS, tier_row
from agent_envs.crafting.tiers import TIERS, Tier
from docs.markdown import code, table

RESULTS = Path(__file__).parent / "environments" / "crafting_table.md"
COMMAND = "python -m agent_envs.crafting.table > docs/environments/crafting_table.md"


def parts() -> tuple[str, ...]:
    """The sections, titles included."""
    return (
        "## Formulas",
        'What each item is made of under `quantities="lite"` and `"full"`. `"perturbed"` draws the numbers from the '
        "seed; the observation at reset prints those that hold.",
        _formulas(),
        "## Tiers",
        "What a tier draws from; every one of these can be fixed by an argument or a reset option.",
        _tiers(),
        "## How the players fare",
        _results_note(),
        RESULTS.read_text(encoding="utf-8"),
    )


def _formulas() -> str:
    rows = []
    for formula in LITE.formulas:
        where = f"{formula.terrain} places" if formula.terrain else ""
        rows.append((code(formula.item), _made(LITE, formula.item), _made(FULL, formula.item), where))
    return table(("item", "lite", "full", "found in"), rows)


def _made(formulas: FormulaTable, item: str) -> str:
    return formula_text(formulas, item).removeprefix(f"{item}: ")


def _tiers() -> str:
    header = ("tier", "goals", "places", "map", "quantities", "distractors", "impossible", "budget")
    return table(header, [(i, *_tier(tier)) for i, tier in enumerate(TIERS)])


def _tier(tier: Tier) -> tuple[str, ...]:
    goals = [f"1 {name}" if most == 1 else f"1 to {most} {name}" for name, most in tier.goals]
    fewest, most = tier.places
    return (
        ", ".join(goals) or "any item (materials up to 2)",
        str(fewest) if fewest == most else f"{fewest} to {most}",
        tier.map,
        " or ".join(tier.quantities),
        str(tier.distractors),
        f"{tier.impossible_fraction:.0%}",
        "tight" if tier.tight else "ample",
    )


def _results_note() -> str:
    tasks = results_tasks()
    return (
        f"Written by `{COMMAND}`, on the tasks of seeds 0 to {tasks - 1} of each tier, with its own settings. "
        "As that is slow, `python -m docs.build` copies the file and does not play the games again; "
        "`python -m docs.build --check` plays only tier 0 again and compares that line, and `tests/test_docs.py` "
        "(marked `full`) compares all of them."
    )


def results_tasks() -> int:
    """How many tasks a tier the measured table is about."""
    match = re.match(r"Success over (\d+) tasks a tier", RESULTS.read_text(encoding="utf-8"))
    if match is None:
        raise ValueError(f"{RESULTS} does not say over how many tasks; write it with: {COMMAND}")
    return int(match[1])


def stale_results(tiers: range = range(1)) -> list[str]:
    """What is wrong with the measured table: its columns, its tiers, or a line of `tiers`, which are played again."""
    rows = [
        tuple(cell.strip() for cell in line.strip("|").split("|"))
        for line in RESULTS.read_text(encoding="utf-8").splitlines()
        if line.startswith("|")
    ]
    if rows[:1] != [COLUMNS]:
        return ["the columns have changed"]
    if [row[0] for row in rows[2:]] != [str(tier) for tier in range(len(TIERS))]:
        return ["the tiers have changed"]
    return [f"tier {i} has changed" for i in tiers if rows[2 + i] != tier_row(i, range(results_tasks()))]
