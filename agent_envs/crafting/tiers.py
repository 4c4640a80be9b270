"""The six tiers, and the settings of one episode: what a tier sets, overridden by what the user sets, checked."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Literal

import numpy as np

from agent_envs.crafting.formulas import FULL, LITE, FormulaTable, as_table

Map = Literal["known", "hidden"]
Quantities = Literal["lite", "full", "perturbed"]
Reward = Literal["sparse", "milestone", "potential"]

MAX_COUNT, MAX_PLACES = 64, 8


@dataclass(frozen=True)
class Tier:
    """What a tier draws from. goals: (item, largest count) pairs; () stands for any item, materials up to 2."""

    goals: tuple[tuple[str, int], ...]
    places: tuple[int, int]
    map: Map = "known"
    quantities: tuple[Quantities, ...] = ("lite",)
    distractors: int = 0
    impossible_fraction: float = 0.0
    tight: bool = False


TIERS = (
    Tier((("planks", 4), ("stick", 4)), (3, 3)),
    Tier((("wooden_pickaxe", 1), ("stone", 2)), (5, 5)),
    Tier((("stone_pickaxe", 1), ("furnace", 1)), (6, 6), distractors=3),
    Tier((("iron_ingot", 2),), (6, 6), "hidden", distractors=3),
    Tier((("iron_pickaxe", 1), ("diamond", 2)), (6, 8), "hidden", distractors=4, impossible_fraction=0.06),
    Tier((), (6, 8), "hidden", ("full", "perturbed"), distractors=4, impossible_fraction=0.06, tight=True),
)


@dataclass(frozen=True)
class Settings:
    """The settings of an episode. None leaves the choice to the tier (and, within it, to the seed).

    Args:
        tier: 0 (easiest) to 5.
        goal: the item to have.
        count: how many of it, 1 to 64.
        places: how many places, 2 to 8.
        map: "known" prints every place at the start; "hidden" shows the current one only.
        quantities: "lite", "full" (Minecraft-like) or "perturbed" (drawn from the seed, and printed).
        reward: "sparse", "milestone" or "potential", see `CraftingEnv`.
        budget: commands in an episode; None for the tier's own rule (`agent_envs.crafting.generate.budget_for`).
        impossible_fraction: share of tasks with a needed resource removed everywhere; the tiers' own is 0.06,
            which keeps samples of them below a tenth.
        distractors: formulas shown beside those the goal needs.
        show_admissible: end each observation with the commands that would not be refused.
    """

    tier: int = 1
    goal: str | None = None
    count: int | None = None
    places: int | None = None
    map: Map | None = None
    quantities: Quantities | None = None
    reward: Reward = "sparse"
    budget: int | None = None
    impossible_fraction: float | None = None
    distractors: int | None = None
    show_admissible: bool = False


OPTIONS = tuple(f.name for f in fields(Settings))
CHOICES = {"map": ("known", "hidden"), "quantities": ("lite", "full", "perturbed")}
REWARDS = ("sparse", "milestone", "potential")


def check_settings(settings: Settings, table: FormulaTable | None) -> Settings:
    """The settings, whole numbers as `int`.

    Args:
        table: the user's own formulas, or None for the standard ones.

    Raises:
        ValueError: a setting out of its range, an unknown goal, or settings that exclude each other.
    """
    whole = {"tier": (0, len(TIERS) - 1), "count": (1, MAX_COUNT), "places": (2, MAX_PLACES), "budget": (1, 10**6)}
    changed: dict[str, Any] = {}
    for name, (low, high) in {**whole, "distractors": (0, 10**6)}.items():
        number = getattr(settings, name)
        if number is None and name != "tier":
            continue
        if isinstance(number, bool) or not isinstance(number, (int, np.integer)) or not low <= number <= high:
            raise ValueError(f"Crafting: {name}={number!r} is not a whole number in {low}..{high}")
        changed[name] = int(number)
    for name, known in CHOICES.items():
        if getattr(settings, name) not in (None, *known):
            raise ValueError(f"Crafting: {name}={getattr(settings, name)!r} is unknown; use one of {known}")
    if settings.reward not in REWARDS:
        raise ValueError(f"Crafting: reward={settings.reward!r} is unknown; use one of {REWARDS}")
    if not isinstance(settings.show_admissible, bool):
        raise ValueError(f"Crafting: show_admissible={settings.show_admissible!r} is neither True nor False")
    fraction = settings.impossible_fraction
    if fraction is not None:
        if isinstance(fraction, bool) or not isinstance(fraction, (int, float)) or not 0 <= fraction <= 1:
            raise ValueError(f"Crafting: impossible_fraction={fraction!r} is not a number in 0..1")
        changed["impossible_fraction"] = float(fraction)
    if table is not None and settings.quantities == "full":
        raise ValueError("Crafting: quantities='full' belongs to the standard formulas; leave it out with formulas=")
    settings = Settings(**{**settings.__dict__, **changed})
    _check_goal(settings, LITE if table is None else table)
    return settings


def _check_goal(settings: Settings, table: FormulaTable) -> None:
    goals = goals_of(settings, table)
    if not goals:
        raise ValueError(f"Crafting: these formulas hold no goal of tier {settings.tier}; name one with goal=")
    if settings.goal is not None and settings.goal not in table:
        raise ValueError(f"Crafting: goal={settings.goal!r} is no item of the table; known: {', '.join(table.index)}")
    fewest = settings.places or TIERS[settings.tier].places[0]
    for goal, _ in goals:
        kinds = kinds_of_place(table, goal)
        if len(kinds) > fewest:
            raise ValueError(f"Crafting: {goal} needs {len(kinds)} kinds of place, more than places={fewest}")


def goals_of(settings: Settings, table: FormulaTable) -> tuple[tuple[str, int], ...]:
    """(item, largest count) for each goal that may be drawn under these settings."""
    largest = dict(TIERS[settings.tier].goals)
    if settings.goal is not None:
        return ((settings.goal, largest.get(settings.goal, 1)),)
    if not largest:
        durable = (*table.tools, *table.stations)
        return tuple((name, 1 if name in durable else 2) for name in table.index)
    return tuple((name, count) for name, count in largest.items() if name in table)


def kinds_of_place(table: FormulaTable, goal: str) -> tuple[str, ...]:
    """The kinds of place the goal needs, in table order."""
    kinds = (table[name].terrain for name in (*table.ancestors(goal), goal))
    return tuple(dict.fromkeys(kind for kind in kinds if kind))


def base_tables(settings: Settings, table: FormulaTable | None) -> tuple[tuple[Quantities, FormulaTable], ...]:
    """(quantities, table) for each table that may be drawn under these settings, before any perturbation."""
    choices = (settings.quantities,) if settings.quantities else TIERS[settings.tier].quantities
    if table is not None:
        return tuple(dict.fromkeys((("perturbed" if q == "perturbed" else "lite"), table) for q in choices))
    return tuple((q, FULL if q == "full" else LITE) for q in choices)


def own_table(formulas: Any) -> FormulaTable | None:
    """The user's `formulas=` as a validated table, None where there is none."""
    return None if formulas is None else as_table(formulas)
