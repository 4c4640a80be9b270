"""The exact solver: A* to the fewest commands that reach a goal, from any state, bounded by expansions.

Formulas are unique and form no cycle, deposits never run out and nothing is lost, so the commands other than `go` that
a shortest plan holds can be counted at once (`remaining_work`): only the route, and where stations are placed, is left
to search. That count plus the distance to the farthest thing still needed never overestimates, and it is consistent.

Three facts keep the search small, and none costs exactness:
- A needed command that takes nothing from another needed one is done as soon as it can be (`free_work`): any plan
  that does it later can do it now.
- A command that is not needed is never tried: dropping it from a plan leaves a plan.
- One goes only where something needed can be done, and straight there: nothing happens on the way.
"""

from __future__ import annotations

import heapq
from typing import Literal, NamedTuple

from agent_envs.crafting.formulas import FormulaTable
from agent_envs.crafting.world import FAR, Command, State, World

MAX_EXPANSIONS = 20_000
MAX_REMEMBERED = 8192


class Solution(NamedTuple):
    """What the solver found.

    status: "solved", "impossible" (a needed resource is nowhere in reach: a proof) or "unsolved" (the bound was met).
    steps: the fewest commands that reach the goal; for "unsolved" a lower bound, for "impossible" None.
    plan: commands that reach it, () unless solved. expansions: states expanded.
    """

    status: Literal["solved", "impossible", "unsolved"]
    steps: int | None
    plan: tuple[Command, ...]
    expansions: int


class Work(NamedTuple):
    """The commands other than `go` still needed, from `remaining_work`.

    times: (items,) how often each formula is still made. place: (stations,) whether each is still to be placed.
    total: all of them together. sole: (items,) the one formula that still uses the item, -1 for none, -2 for several.
    mined, made: items with times > 0 that are mined, and those that are not. stationed: (item, slot) for those made at
        a station.
    """

    times: tuple[int, ...]
    place: tuple[bool, ...]
    total: int
    sole: tuple[int, ...]
    mined: tuple[int, ...]
    made: tuple[int, ...]
    stationed: tuple[tuple[int, int], ...]


def remaining_work(table: FormulaTable, state: State, goal: str, count: int) -> Work:
    """What every plan from here must still do, and what a shortest plan does exactly (besides `go`)."""
    # Episodes of one goal pass through the same packs again and again, so a table remembers a bounded number of them.
    key = state.inventory, tuple([site >= 0 for site in state.sites]), goal, count
    known = table.work.get(key)
    if known is None:
        if len(table.work) >= MAX_REMEMBERED:
            table.work.clear()
        known = table.work[key] = _remaining_work(table, *key)
    return known


def _remaining_work(
    table: FormulaTable, have: tuple[int, ...], placed: tuple[bool, ...], goal: str, count: int
) -> Work:
    rows = table.rows
    n = len(rows)
    demand, times, sole = [0] * n, [0] * n, [-1] * n
    place = [False] * len(table.stations)
    total = 0
    mined: list[int] = []
    stationed: list[tuple[int, int]] = []
    demand[table.index[goal]] = count
    sole[table.index[goal]] = -2  # the goal's own items are spoken for
    for i in table.needed_order(goal):
        lack = demand[i] - have[i]
        if lack <= 0:
            continue
        kind, makes, needs, tool, slot = rows[i]
        times[i] = often = -(-lack // makes)
        total += often
        for part, each in needs:
            demand[part] += each * often
            sole[part] = i if sole[part] == -1 else -2
        if tool >= 0 and not demand[tool]:
            demand[tool] = 1
        if slot >= 0:
            stationed.append((i, slot))
            if not placed[slot] and not place[slot]:
                place[slot] = True
                total += 1
                demand[table.index[table.stations[slot]]] += 1
        if kind == "mine":
            mined.append(i)
    made = tuple([i for i, often in enumerate(times) if often and rows[i].kind != "mine"])
    return Work(tuple(times), tuple(place), total, tuple(sole), tuple(mined), made, tuple(stationed))


def lower_bound(world: World, state: State, work: Work) -> int:
    """Needed commands plus moves to the farthest place needed: the nearest source of what is still mined, or a station
    already placed where something is still made. FAR or more where one is nowhere in reach.
    """
    here, sites, distances = state.place, state.sites, world.distances
    farthest = 0
    for i in work.mined:
        away = world.to_source(i)[here]
        if away > farthest:
            farthest = away
    for _, slot in work.stationed:
        site = sites[slot]
        if site >= 0 and distances[here][site] > farthest:
            farthest = distances[here][site]
    return work.total + farthest


def free_work(world: World, state: State, work: Work) -> tuple[State, int, int] | None:
    """A needed command that can be done here and now at no loss: (the state after, item, how often), or None."""
    table, have, here = world.table, state.inventory, state.place
    rows, times, sole = table.rows, work.times, work.sole
    for i in work.mined:
        if i in world.resources[here] and (rows[i].tool < 0 or have[rows[i].tool]):
            return _made(state, i, (), times[i]), i, times[i]
    for i in work.made:
        _, makes, needs, tool, slot = rows[i]
        if (tool >= 0 and not have[tool]) or (slot >= 0 and state.sites[slot] != here):
            continue
        often = times[i]
        for part, each in needs:
            if have[part] < each:
                break
            if times[part] and sole[part] != i:  # scarce, and others want it too: a choice, not a must
                break
            often = min(often, have[part] // each)
        else:
            return _made(state, i, needs, often, makes), i, often
    return None


def _made(state: State, item: int, needs: tuple[tuple[int, int], ...], often: int, makes: int = 1) -> State:
    inventory = list(state.inventory)
    for part, each in needs:
        inventory[part] -= each * often
    inventory[item] += makes * often
    return State(state.place, tuple(inventory), state.sites)


def _choices(world: World, state: State, work: Work) -> list[tuple[State, Command, int]]:
    """What remains where nothing is forced, as (state after, command, how many commands): scarce crafts, placing here,
    and ways to the places where something needed can be done (`go` with the name of the last of them).
    """
    table, have, sites, here = world.table, state.inventory, state.sites, state.place
    found: list[tuple[State, Command, int]] = []
    useful: set[int] = set()
    for i in work.made:
        kind, makes, needs, tool, slot = table.rows[i]
        if (tool < 0 or have[tool]) and all(have[part] >= each for part, each in needs):
            if slot < 0 or sites[slot] == here:
                found.append((_made(state, i, needs, 1, makes), Command(kind, table.formulas[i].item), 1))
            elif sites[slot] >= 0:
                useful.add(sites[slot])
    for slot, wanted in enumerate(work.place):
        item = table.index[table.stations[slot]]
        if wanted and have[item]:
            after = _made(state, item, (), 1, -1)
            placed = (*sites[:slot], here, *sites[slot + 1 :])
            found.append((State(here, after.inventory, placed), Command("place", table.stations[slot]), 1))
            useful.update(range(len(world.places)))
    for i in work.mined:
        tool = table.rows[i].tool
        if tool < 0 or have[tool]:
            useful.update([place for place, held in enumerate(world.resources) if i in held])
    away = world.distances[here]
    for place in sorted(useful):
        if 0 < away[place] < FAR:
            found.append((State(place, have, sites), Command("go", world.places[place]), away[place]))
    return found


def solve(world: World, state: State, goal: str, count: int = 1, max_expansions: int = MAX_EXPANSIONS) -> Solution:
    """The fewest commands from `state` to `count` of `goal` in the pack, knowing the whole map.

    Args:
        max_expansions: states to expand before answering "unsolved"; the same on every machine, unlike seconds.
    """
    table = world.table
    work = remaining_work(table, state, goal, count)
    bound = lower_bound(world, state, work)
    if bound >= FAR:
        return Solution("impossible", None, (), 0)
    # Entries: (cost + bound, -cost, age, state, its work). Among equals the deepest first, then the oldest.
    queue: list[tuple[int, int, int, State, Work]] = [(bound, 0, 0, state, work)]
    best = {state: 0}
    came: dict[State, tuple[State, Command, int]] = {}
    age = expansions = 0
    while queue:
        estimate, cost, _, at, work = heapq.heappop(queue)
        cost = -cost
        if cost > best[at]:
            continue
        if not work.total:
            return Solution("solved", cost, _plan(world, came, at), expansions)
        if expansions >= max_expansions:
            return Solution("unsolved", estimate, (), expansions)
        expansions += 1
        forced = free_work(world, at, work)
        if forced is not None:
            after, item, often = forced
            command = Command(table.rows[item].kind, table.formulas[item].item)
            steps = [(after, command, often)]
        else:
            steps = _choices(world, at, work)
        for after, command, often in steps:
            reached = cost + often
            if reached < best.get(after, FAR):
                best[after] = reached
                came[after] = (at, command, often)
                age += 1
                left = work if command.verb == "go" else remaining_work(table, after, goal, count)
                heapq.heappush(queue, (reached + lower_bound(world, after, left), -reached, age, after, left))
    raise AssertionError("a reachable goal was not reached: the rules and the solver disagree")


def _plan(world: World, came: dict[State, tuple[State, Command, int]], at: State) -> tuple[Command, ...]:
    steps: list[Command] = []
    while at in came:
        end = at.place
        at, command, often = came[at]
        steps += _way(world, at.place, end)[::-1] if command.verb == "go" else [command] * often
    return tuple(reversed(steps))


def _way(world: World, here: int, end: int) -> list[Command]:
    """The moves of a shortest way."""
    moves = []
    while here != end:
        here = min(world.exits[here], key=lambda place: world.distances[place][end])
        moves.append(Command("go", world.places[here]))
    return moves
