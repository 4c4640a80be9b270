"""The world in words: the rules once, then four short lines a turn. Regular wording, no set order left to chance."""

from __future__ import annotations

from agent_envs.crafting.formulas import FormulaTable
from agent_envs.crafting.generate import Task
from agent_envs.crafting.world import State, World, admissible

COMMANDS = "go X, mine X, craft X, smelt X, place X, give up"


def formula_text(table: FormulaTable, item: str) -> str:
    """One formula, for instance `planks: craft 2 from 1 log` or `stone: mine with wooden_pickaxe`."""
    known = table.told.get(item)
    if known is None:
        known = table.told[item] = _formula_text(table, item)
    return known


def _formula_text(table: FormulaTable, item: str) -> str:
    f = table[item]
    words = [f"{item}: {f.kind}"]
    if f.makes > 1 or f.needs:
        words.append(str(f.makes))
    if f.needs:
        words.append("from " + ", ".join(f"{count} {name}" for name, count in f.needs))
    if f.tool:
        words.append(f"with {f.tool}")
    if f.station:
        words.append(f"at {f.station}")
    return " ".join(words)


def rules_text(task: Task, lines: Lines) -> str:
    """What the agent is told once: the commands, the formulas, and on a known map every place."""
    world = task.world
    told = [f"Commands: {COMMANDS}. One a turn.", "Formulas:"]
    told += [formula_text(world.table, item) for item in task.shown]
    if task.hidden:
        told.append(f"Map: hidden, {len(world.places)} places.")
    else:
        told.append("Map:")
        told += lines.map
    return "\n".join(told)


def _place_text(world: World, place: int) -> tuple[str, str]:
    """`cave: stone, coal.` and ` Exits: forest, ridge.`: what stands before and after the stations there."""
    items, places = world.table.names.items, world.places
    held = ", ".join([items[item] for item in world.resources[place]]) or "nothing"
    return f"{places[place]}: {held}.", f" Exits: {', '.join([places[i] for i in world.exits[place]])}."


class Lines:
    """The parts of an observation that stay the same all episode, written once.

    Attributes:
        goal: `Goal: stick. Step `. map: (n,) a line a place. places: (n,) pairs of what an observation says of a place
            before and after the stations.
    """

    def __init__(self, task: Task) -> None:
        world = task.world
        amount = f"{task.count} {task.goal}" if task.count > 1 else task.goal
        self.goal = f"Goal: {amount}. Step "
        parts = [_place_text(world, place) for place in range(len(world.places))]
        self.map = [before + after for before, after in parts]
        self.places = [(f"\nAt {before}", after) for before, after in parts]
        self.items = world.table.names.items
        self.stations = [name.capitalize() for name in world.table.stations]


def observation(lines: Lines, task: Task, state: State, step: int, last: str, show_admissible: bool = False) -> str:
    """The state line by line; `last` says what the last command did."""
    before, after = lines.places[state.place]
    where = ""
    for name, site in zip(lines.stations, state.sites, strict=True):
        if site >= 0:
            where += f" {name} here." if site == state.place else f" {name} at {task.world.places[site]}."
    pack = ", ".join([f"{n} {lines.items[i]}" for i, n in enumerate(state.inventory) if n]) or "nothing"
    text = f"{lines.goal}{step}/{task.budget}.{before}{where}{after}\nHave: {pack}.\nLast: {last}."
    if show_admissible:
        text += f"\nCan: {', '.join(map(str, admissible(task.world, state)))}."
    return text
