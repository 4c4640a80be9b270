"""The world's rules: places, the state of play, and what each command does to it. Pure functions, no text parsing.

A `World` is fixed for an episode; a `State` is small and hashable. Deposits never run out, ways go both ways, tools
last, a placed station stays: no state is a dead end, so a goal is out of reach only where a resource is missing.
"""

from __future__ import annotations

from typing import NamedTuple

from agent_envs.crafting.formulas import FormulaTable

FAR = 1_000_000  # the distance to what cannot be reached


class Command(NamedTuple):
    """One command: verb go, mine, craft, place, smelt or give_up, and the item or place it names ("" for give_up)."""

    verb: str
    name: str = ""

    def __str__(self) -> str:
        return f"{self.verb} {self.name}" if self.name else "give up"


GIVE_UP = Command("give_up")


class State(NamedTuple):
    """Where the player is, the pack, and where the stations stand.

    place: index into `world.places`. inventory: a count per item of the table. sites: a place index per station, or -1.
    """

    place: int
    inventory: tuple[int, ...]
    sites: tuple[int, ...]


class Outcome(NamedTuple):
    """What a command did. `failed` is None or the sentence saying what is missing; then `state` is unchanged.

    gained: index of the item obtained, or -1.
    """

    state: State
    failed: str | None
    said: str
    gained: int = -1


class World:
    """A graph of named places and what can be mined in each, under one formula table.

    Args:
        table: the formulas.
        places: (n,) names.
        exits: (n,) tuples of place indices, in the order they are shown; ways go both ways.
        resources: (n,) tuples of item indices that can be mined there, in the order they are shown.
    """

    def __init__(
        self,
        table: FormulaTable,
        places: tuple[str, ...],
        exits: tuple[tuple[int, ...], ...],
        resources: tuple[tuple[int, ...], ...],
    ) -> None:
        self.table, self.places, self.exits, self.resources = table, places, exits, resources
        self.place_index = {name: i for i, name in enumerate(places)}
        self._distances: list[list[int]] | None = None
        self._to_source: dict[int, list[int]] = {}

    def __deepcopy__(self, memo: object) -> World:
        return self  # never changed after it is built, the lazy distances aside

    @property
    def distances(self) -> list[list[int]]:
        """(n, n) moves between places, FAR where there is no way."""
        if self._distances is None:
            self._distances = [self._distances_from(place) for place in range(len(self.places))]
        return self._distances

    def _distances_from(self, start: int) -> list[int]:
        distance = [FAR] * len(self.places)
        distance[start] = 0
        queue = [start]
        for place in queue:
            for neighbour in self.exits[place]:
                if distance[neighbour] == FAR:
                    distance[neighbour] = distance[place] + 1
                    queue.append(neighbour)
        return distance

    def to_source(self, item: int) -> list[int]:
        """(n,) moves from each place to the nearest one that holds the item, FAR where none can be reached."""
        found = self._to_source.get(item)
        if found is None:
            sources = [i for i, held in enumerate(self.resources) if item in held]
            found = [min([row[i] for i in sources], default=FAR) for row in self.distances]
            self._to_source[item] = found
        return found


def start_state(table: FormulaTable, place: int) -> State:
    """The state at the start of an episode: an empty pack and no station placed."""
    return State(place, (0,) * len(table.formulas), (-1,) * len(table.stations))


def apply(world: World, state: State, command: Command) -> Outcome:
    """What a command does. `give_up` changes nothing here; the environment ends the episode.

    Raises:
        ValueError: an unknown verb, or an item that is not in the table. (An unknown place is merely no exit.)
    """
    verb, name = command
    if verb == "go":
        target = world.place_index.get(name, -1)
        if target == state.place:
            return _refused(state, f"already at {name}")
        if target not in world.exits[state.place]:
            return _refused(state, f"no exit to {name} here")
        return Outcome(State(target, state.inventory, state.sites), None, f"went to {name}")
    if verb == "give_up":
        return Outcome(state, None, "gave up")
    item = world.table.index.get(name, -1)
    if item < 0:
        raise ValueError(f"{name!r} is not an item of this world")
    if verb == "place":
        return _place(world, state, item, name)
    if verb not in ("mine", "craft", "smelt"):
        raise ValueError(f"{verb!r} is not a verb of this world")
    return _make(world, state, verb, item, name)


def _refused(state: State, why: str) -> Outcome:
    return Outcome(state, why, why)


def _place(world: World, state: State, item: int, name: str) -> Outcome:
    stations = world.table.stations
    if name not in stations:
        return _refused(state, f"{name} cannot be placed")
    slot = stations.index(name)
    if state.sites[slot] >= 0:
        return _refused(state, f"{name} already at {world.places[state.sites[slot]]}")
    if not state.inventory[item]:
        return _refused(state, f"need 1 {name}, have 0")
    inventory, sites = list(state.inventory), list(state.sites)
    inventory[item] -= 1
    sites[slot] = state.place
    return Outcome(State(state.place, tuple(inventory), tuple(sites)), None, f"placed {name}")


_PAST = {"mine": "mined", "craft": "crafted", "smelt": "smelted"}


def _make(world: World, state: State, verb: str, item: int, name: str) -> Outcome:
    table = world.table
    kind, makes, needs, tool, slot = table.rows[item]
    have = state.inventory
    if kind != verb:
        return _refused(state, f"{name} is {_PAST[kind]}, not {_PAST[verb]}")
    missing = []
    if kind == "mine" and item not in world.resources[state.place]:
        missing.append(f"no {name} here")
    for part, count in needs:
        if have[part] < count:
            missing.append(f"need {count} {table.formulas[part].item}, have {have[part]}")
    if tool >= 0 and not have[tool]:
        missing.append(f"need {table.formulas[tool].item}")
    if slot >= 0 and state.sites[slot] != state.place:
        missing.append(f"no {table.stations[slot]} here")
    if missing:
        return _refused(state, "; ".join(missing))
    inventory = list(have)
    for part, count in needs:
        inventory[part] -= count
    inventory[item] += makes
    return Outcome(State(state.place, tuple(inventory), state.sites), None, f"{_PAST[kind]} {makes} {name}", item)


def admissible(world: World, state: State) -> list[Command]:
    """Every command that would not be refused here, in a fixed order: go, mine, craft and smelt, place, give up."""
    table, have, here = world.table, state.inventory, state.place
    commands = [Command("go", world.places[place]) for place in world.exits[here]]
    for item in world.resources[here]:
        tool = table.rows[item].tool
        if tool < 0 or have[tool]:
            commands.append(Command("mine", table.formulas[item].item))
    for item, (kind, _, needs, tool, slot) in enumerate(table.rows):
        if (
            kind != "mine"
            and all(have[part] >= count for part, count in needs)
            and (tool < 0 or have[tool])
            and (slot < 0 or state.sites[slot] == here)
        ):
            commands.append(Command(kind, table.formulas[item].item))
    for slot, name in enumerate(table.stations):
        if have[table.index[name]] and state.sites[slot] < 0:
            commands.append(Command("place", name))
    commands.append(GIVE_UP)
    return commands


def state_to_json(world: World, state: State) -> dict:
    """The state with names for indices, JSON-safe; `state_from_json` takes it back."""
    table = world.table
    return {
        "place": world.places[state.place],
        "inventory": {f.item: n for f, n in zip(table.formulas, state.inventory, strict=True) if n},
        "sites": {s: world.places[p] for s, p in zip(table.stations, state.sites, strict=True) if p >= 0},
    }


def state_from_json(world: World, data: dict) -> State:
    """The state that `state_to_json` wrote.

    Raises:
        KeyError: a name that this world does not hold.
    """
    index, table = world.place_index, world.table
    unknown = sorted(set(data["inventory"]) - set(table.index))
    if unknown:
        raise KeyError(unknown[0])
    return State(
        index[data["place"]],
        tuple(int(data["inventory"].get(f.item, 0)) for f in table.formulas),
        tuple(index[data["sites"][s]] if s in data["sites"] else -1 for s in table.stations),
    )
