"""Players to compare with: explore-then-plan, which knows only what it has seen; a novice; a random one.

Each is a function of what it may know: the task, the state, and which places were visited (a bit per place).
"""

from __future__ import annotations

import numpy as np

from agent_envs.crafting.generate import Task
from agent_envs.crafting.solver import Solution, free_work, remaining_work, solve
from agent_envs.crafting.world import FAR, GIVE_UP, Command, State, World, admissible, apply

ATTENTION = 0.27  # how often the novice thinks; set so that it wins 0.2 to 0.35 of tiers 0 and 1 together


def seen_world(task: Task, visited: int) -> World:
    """What a player knows: all of a known map; of a hidden one the places visited and the names of their exits.

    Args:
        visited: bit i is set where place i was visited.
    """
    world = task.world
    if not task.hidden:
        return world
    known = [bool(visited >> i & 1) for i in range(len(world.places))]
    exits = tuple(way if seen else () for way, seen in zip(world.exits, known, strict=True))
    held = tuple(here if seen else () for here, seen in zip(world.resources, known, strict=True))
    return World(world.table, world.places, exits, held)


def toward_unvisited(world: World, state: State, visited: int) -> Command | None:
    """The first step to the nearest place not yet visited (the first by name among equals), None where all were."""
    away = world.distances[state.place]
    unvisited = [i for i in range(len(world.places)) if not visited >> i & 1 and away[i] < FAR]
    if not unvisited:
        return None
    target = min(unvisited, key=lambda i: away[i])
    step = next(i for i in world.exits[state.place] if world.distances[i][target] == away[target] - 1)
    return Command("go", world.places[step])


def last_resort(world: World, state: State, found: Solution) -> Command:
    """Giving up where the goal was proved impossible; a move where the solver merely met its bound."""
    return GIVE_UP if found.status == "impossible" else Command("go", world.places[world.exits[state.place][0]])


def explore_then_plan(task: Task, state: State, visited: int) -> Command:
    """Plans exactly once everything needed was seen; until then does what is useful here and looks around.

    Gives up only when every place was visited and something needed is nowhere.
    """
    world = seen_world(task, visited)
    found = solve(world, state, task.goal, task.count)
    if found.plan:
        return found.plan[0]
    work = remaining_work(world.table, state, task.goal, task.count)
    free = free_work(world, state, work)
    if free is not None:
        formula = world.table.formulas[free[1]]
        return Command(formula.kind, formula.item)
    return toward_unvisited(world, state, visited) or last_resort(world, state, found)


def novice(task: Task, state: State, visited: int, rng: np.random.Generator) -> Command:
    """Half-attentive: with probability ATTENTION a useful command, else any it has heard of; never gives up.

    Useful is, at random, a command that is still needed; where there is none, a step to a place beside this one that
    is known to hold something needed; where there is none either, a step anywhere. It does not plan ahead. What it has
    heard of are the exits of this place and every item's command, whether or not they can be had here.
    """
    world = seen_world(task, visited)
    if rng.random() >= ATTENTION:
        return _draw(_heard_of(world, state), rng)
    work = remaining_work(world.table, state, task.goal, task.count)
    commands = admissible(world, state)[:-1]
    needed = [c for c in commands if c.verb != "go" and _is_needed(world, state, work.total, c, task)]
    if needed:
        return _draw(needed, rng)
    rows = world.table.rows
    minable = [i for i in work.mined if rows[i].tool < 0 or state.inventory[rows[i].tool]]
    sites = [state.sites[slot] for _, slot in work.stationed]
    exits = world.exits[state.place]
    beside = [place for place in exits if place in sites or any(i in minable for i in world.resources[place])]
    return _draw([Command("go", world.places[place]) for place in beside or exits], rng)


def _heard_of(world: World, state: State) -> list[Command]:
    table = world.table
    commands = [Command("go", world.places[place]) for place in world.exits[state.place]]
    commands += [Command(f.kind, f.item) for f in table.formulas]
    return commands + [Command("place", name) for name in table.stations]


def _is_needed(world: World, state: State, total: int, command: Command, task: Task) -> bool:
    after = apply(world, state, command).state
    return remaining_work(world.table, after, task.goal, task.count).total < total


def random_admissible(task: Task, state: State, rng: np.random.Generator) -> Command:
    """Uniform over the commands that would not be refused, giving up aside."""
    return _draw(admissible(task.world, state)[:-1], rng)


def _draw(commands: list[Command], rng: np.random.Generator) -> Command:
    return commands[int(rng.integers(len(commands)))]
