"""From a seed to a task: the map, the goal, the budget. The same seed and settings give the same task everywhere."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from agent_envs.crafting.formulas import FormulaTable, dearest, perturbed
from agent_envs.crafting.solver import MAX_REMEMBERED, solve
from agent_envs.crafting.tiers import TIERS, Settings, base_tables, goals_of, kinds_of_place
from agent_envs.crafting.world import State, World, start_state

SMALL = 3  # places; larger maps hardly ever come twice
MAX_DIAMETER = 4  # moves between the two farthest places, at most; keeps the bound on the budget close


@dataclass(frozen=True, eq=False)
class Task:
    """One task instance.

    Attributes:
        world, start: the map with its formulas, and the state play starts in.
        goal, count: the item to have and how many.
        hidden: whether only the current place is shown.
        impossible: a needed resource was removed everywhere; giving up is then right.
        reference_steps: L*, the fewest commands to the goal knowing the whole map; in an impossible task, before the
            removal (so that the budget gives nothing away). A lower bound under a hidden map. None where the budget
            was set by hand: nothing needed it.
        budget: commands in the episode.
        shown: the items whose formulas the agent is told, sorted.
    """

    world: World
    start: State
    goal: str
    count: int
    hidden: bool
    impossible: bool
    reference_steps: int | None
    budget: int
    shown: tuple[str, ...]


def budget_for(steps: int, places: int, hidden: bool, tight: bool) -> int:
    """Commands in an episode: 2·L* + 4, and 2·(places - 1) more to explore a hidden map; 1.3·L* where it is tight.

    A tight budget leaves nothing for exploring: a short goal far off may then be out of a player's reach, and so may
    the proof that a task is impossible.
    """
    if tight:
        return -(-13 * steps // 10)
    return 2 * steps + 4 + (2 * (places - 1) if hidden else 0)


def generate(seed: int, settings: Settings, table: FormulaTable | None = None) -> Task:
    """The task of a seed under checked settings (`check_settings`).

    Everything is drawn in one fixed order, and drawn even where the settings fix it, so that fixing one thing leaves
    the others alone as far as it can.

    Args:
        table: the user's own formulas, or None for the standard ones.
    """
    rng = np.random.default_rng(seed)
    tier = TIERS[settings.tier]
    # The draws of the choices, as fractions of one.
    which, goal_at, count_at, places_at, removed, removed_at = rng.random(6).tolist()
    quantities, formulas = _pick(base_tables(settings, table), which)
    if quantities == "perturbed":
        formulas = perturbed(formulas, rng)
    goal, largest = _pick(goals_of(settings, formulas), goal_at)
    count = settings.count or 1 + int(count_at * largest)
    fewest, most = tier.places
    n = settings.places or fewest + int(places_at * (most + 1 - fewest))
    hidden = (settings.map or tier.map) == "hidden"
    fraction = tier.impossible_fraction if settings.impossible_fraction is None else settings.impossible_fraction

    world, start_place = _draw_world(rng, formulas, goal, n)
    start = start_state(formulas, start_place)
    needed = (*formulas.ancestors(goal), goal)
    distractors = tier.distractors if settings.distractors is None else settings.distractors
    shown = _shown(rng, formulas, needed, distractors)
    steps, budget = None, settings.budget
    if budget is None:
        steps = _fewest(world, start, goal, count)
        budget = budget_for(steps, n, hidden, tier.tight)
    impossible = removed < fraction
    if impossible:
        lost = _pick(tuple(name for name in needed if formulas[name].kind == "mine"), removed_at)
        world = _without(world, formulas.index[lost])
    return Task(world, start, goal, count, hidden, impossible, steps, budget, shown)


def _fewest(world: World, start: State, goal: str, count: int) -> int:
    """L* of a task. The smallest maps come again and again under other names, so a table remembers a number of them."""
    known = world.table.fewest
    key = world.exits, world.resources, start.place, goal, count
    steps = known.get(key)
    if steps is None:
        steps = solve(world, start, goal, count).steps
        assert steps is not None  # every kind of place needed is on the map
        if len(world.places) <= SMALL:
            if len(known) >= MAX_REMEMBERED:
                known.clear()
            known[key] = steps
    return steps


def _pick(choices, at: float):  # type: ignore[no-untyped-def]
    return choices[int(at * len(choices))]


def _shown(rng: np.random.Generator, table: FormulaTable, needed: tuple[str, ...], k: int) -> tuple[str, ...]:
    others = [name for name in table.index if name not in needed]
    drawn = rng.permutation(len(others))[:k].tolist() if k else []
    return tuple(sorted((*needed, *(others[i] for i in drawn))))


def _draw_world(rng: np.random.Generator, table: FormulaTable, goal: str, n: int) -> tuple[World, int]:
    """A connected map of n places that holds every kind of place the goal needs, and the place to start from."""
    kinds = list(kinds_of_place(table, goal))
    every = table.kinds
    held = _held_by(table.terrain_of, tuple(table.terrains))
    at = rng.random(4 * n).tolist()
    kinds += [every[int(at[i] * len(every))] for i in range(n - len(kinds))]
    unused = {kind: list(names) for kind, names in table.terrains.items()}
    named = []
    for i, kind in enumerate(kinds):
        if not unused[kind]:
            kind = next(k for k in every if unused[k])
        names = unused[kind]
        named.append((names.pop(int(at[n + i] * len(names))), kind))
    named.sort()  # exits are shown by name, and the order of the kinds gives nothing away
    exits = _draw_exits(at[2 * n :], rng.permutation(n).tolist())
    world = World(table, tuple(name for name, _ in named), exits, tuple(held[kind] for _, kind in named))
    return world, int(rng.integers(n))


@lru_cache(maxsize=64)
def _held_by(terrain_of: tuple[str | None, ...], kinds: tuple[str, ...]) -> dict[str, tuple[int, ...]]:
    """Kind of place -> the items mined there."""
    return {kind: tuple(i for i, terrain in enumerate(terrain_of) if kind and terrain == kind) for kind in kinds}


def _draw_exits(at: list[float], places: list[int]) -> tuple[tuple[int, ...], ...]:
    """A tree no wider than MAX_DIAMETER over the places, then one more way for every three places.

    Args:
        at: (2n,) numbers in [0, 1). places: (n,) a permutation of the places.
    """
    n = len(places)
    exits: list[list[int]] = [[] for _ in places]
    depth = [0] * n
    for i in range(1, n):
        # Joining only what is less than MAX_DIAMETER / 2 deep keeps any two places within MAX_DIAMETER.
        open_ = [j for j in range(i) if depth[j] < MAX_DIAMETER // 2]
        j = open_[int(at[i] * len(open_))]
        depth[i] = depth[j] + 1
        exits[places[i]].append(places[j])
        exits[places[j]].append(places[i])
    for i in range(n // 3):
        a, b = int(at[n + 2 * i] * n), int(at[n + 2 * i + 1] * n)
        if a != b and b not in exits[a]:
            exits[a].append(b)
            exits[b].append(a)
    return tuple(tuple(sorted(way)) for way in exits)


def _without(world: World, item: int) -> World:
    held = tuple(tuple(i for i in here if i != item) for here in world.resources)
    return World(world.table, world.places, world.exits, held)


def max_turns(settings: Settings, table: FormulaTable | None = None) -> int:
    """A bound on the budget of every seed under these settings (and on no other: a user's `budget` is its own).

    L* is at most the commands other than `go`, plus MAX_DIAMETER (or places - 1) moves for each time the plan has to
    change place on a map where all places adjoin and each kind of place is there once: walking that plan on any other
    map takes no more.
    """
    return settings.budget or _max_turns(settings, table)


@lru_cache(maxsize=256)
def _max_turns(settings: Settings, table: FormulaTable | None) -> int:
    tier = TIERS[settings.tier]
    places = settings.places or tier.places[1]
    hidden = (settings.map or tier.map) == "hidden"
    longest = 0
    for quantities, formulas in base_tables(settings, table):
        costly = dearest(formulas) if quantities == "perturbed" else formulas
        for goal, largest in goals_of(settings, formulas):
            longest = max(longest, _longest(costly, goal, settings.count or largest, min(places - 1, MAX_DIAMETER)))
    return budget_for(longest, places, hidden, tier.tight)


def _longest(table: FormulaTable, goal: str, count: int, diameter: int) -> int:
    kinds = ("", *kinds_of_place(table, goal))  # the start holds nothing
    everywhere = tuple(tuple(j for j in range(len(kinds)) if j != i) for i in range(len(kinds)))
    held = tuple(tuple(i for i, f in enumerate(table.formulas) if kind and f.terrain == kind) for kind in kinds)
    world = World(table, tuple(f"place{i}" for i in range(len(kinds))), everywhere, held)
    found = solve(world, start_state(table, 0), goal, count)
    if found.status != "solved" or found.steps is None:
        raise ValueError(f"Crafting: {count} {goal} is too much for the solver's bound; ask for less or give a budget")
    moves = sum(command.verb == "go" for command in found.plan)
    return found.steps + moves * (diameter - 1)
