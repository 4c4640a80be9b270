"""What every item is made of: the standard formulas in two quantity sets, and the check that any table must pass.

A formula says how one item is obtained: mined from a kind of place, crafted or smelted from other items. Tools stay in
the pack when used; a station (table, furnace) is an item that is placed somewhere before it serves.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np

Kind = Literal["mine", "craft", "smelt"]


class FormulaError(ValueError):
    """A formula table that breaks a rule; each rule has its own subclass."""


class BadFormulaError(FormulaError):
    """A field is out of range, or the fields of one formula contradict each other."""


class DuplicateFormulaError(FormulaError):
    """Two formulas make the same item, or two names could not be told apart in a command."""


class UnobtainableItemError(FormulaError):
    """A formula needs an item, a tool or a station that no formula makes."""


class CyclicFormulaError(FormulaError):
    """An item needs itself, directly or through others."""


@dataclass(frozen=True)
class Formula:
    """How one item is obtained.

    Args:
        item: its name, lower case with underscores.
        kind: the command that makes it.
        makes: how many one command gives, at least 1.
        needs: (item, count) pairs used up; empty for what is mined.
        tool: an item that must be in the pack and stays there.
        station: an item that must have been placed here.
        terrain: for what is mined, the kind of place that holds it.
    """

    item: str
    kind: Kind
    makes: int = 1
    needs: tuple[tuple[str, int], ...] = ()
    tool: str | None = None
    station: str | None = None
    terrain: str | None = None

    @property
    def requires(self) -> tuple[str, ...]:
        """Every item that must exist before this one: ingredients, then tool, then station."""
        return (*(name for name, _ in self.needs), *(name for name in (self.tool, self.station) if name))


class Row(NamedTuple):
    """A formula with indices for names, for the inner loops. -1 stands for "none"; `slot` indexes `table.stations`."""

    kind: str
    makes: int
    needs: tuple[tuple[int, int], ...]
    tool: int
    slot: int


_NAME = re.compile(r"[a-z][a-z0-9]*(?:_[a-z0-9]+)*")
VERBS = ("go", "mine", "craft", "place", "smelt")


class FormulaTable:
    """A validated set of formulas. Two tables are equal only if they are the same object (fast to hash).

    Attributes:
        formulas: in the order given; an item's position is its index in an inventory.
        index: item name → position. rows: the formulas with indices. order: positions, makers after their users.
        stations: the items that are placed, in the order of their positions. terrains: kind of place → place names.
        names: object shared by all tables with the same words (the parser's cache hangs on it).
    """

    def __init__(self, formulas: Iterable[Formula], terrains: Mapping[str, tuple[str, ...]] | None = None) -> None:
        """
        Raises:
            FormulaError: one of its subclasses, naming the item at fault.
        """
        self.formulas = tuple(formulas)
        known = STANDARD_TERRAINS if terrains is None else terrains
        used = {f.terrain: None for f in self.formulas if f.terrain}
        # A terrain without names of its own names its places: swamp, swamp2, ...
        self.terrains = {kind: known.get(kind) or (kind, *(f"{kind}{i}" for i in range(2, 9))) for kind in used}
        self.terrains[""] = known.get("", STANDARD_TERRAINS[""])  # places that hold nothing
        _validate(self.formulas, self.terrains)
        self.index = {f.item: i for i, f in enumerate(self.formulas)}
        placed = {f.station for f in self.formulas}
        self.stations = tuple(f.item for f in self.formulas if f.item in placed)
        self.tools = tuple(f.item for f in self.formulas if f.item in {g.tool for g in self.formulas})
        self.names = Names(tuple(self.index), tuple(n for names in self.terrains.values() for n in names))
        self.terrain_of = tuple(f.terrain for f in self.formulas)
        self.kinds = (*(kind for kind in self.terrains if kind), "")  # of place, the one that holds nothing last
        self.order = _users_first(self.formulas, self.index)
        self.rows = self._compile()
        # Quantities do not matter for these two, so copies share them.
        self._ancestors: dict[str, tuple[str, ...]] = {}
        self._needed: dict[str, tuple[int, ...]] = {}
        self._forget()

    def _forget(self) -> None:
        # What was worked out from this very table, quantities included: by the solver, the generator and the text.
        self.work: dict[tuple, Any] = {}
        self.fewest: dict[tuple, int] = {}
        self.told: dict[str, str] = {}

    def _compile(self) -> tuple[Row, ...]:
        slots = {name: slot for slot, name in enumerate(self.stations)}
        return tuple(
            Row(
                f.kind,
                f.makes,
                tuple((self.index[name], count) for name, count in f.needs),
                self.index[f.tool] if f.tool else -1,
                slots[f.station] if f.station else -1,
            )
            for f in self.formulas
        )

    def __getitem__(self, item: str) -> Formula:
        return self.formulas[self.index[item]]

    def __deepcopy__(self, memo: object) -> FormulaTable:
        return self  # never changed after it is built; a copy would only miss the caches

    def __contains__(self, item: object) -> bool:
        return item in self.index

    def ancestors(self, item: str) -> tuple[str, ...]:
        """Everything the item needs, directly or not, in table order; the item itself is not among them."""
        known = self._ancestors.get(item)
        if known is None:
            known = self._ancestors[item] = self._find_ancestors(item)
        return known

    def needed_order(self, goal: str) -> tuple[int, ...]:
        """Positions of the goal and all it needs, users before what they use."""
        known = self._needed.get(goal)
        if known is None:
            wanted = {self.index[name] for name in (goal, *self.ancestors(goal))}
            known = self._needed[goal] = tuple(i for i in self.order if i in wanted)
        return known

    def _find_ancestors(self, item: str) -> tuple[str, ...]:
        found, todo = {item}, [item]
        while todo:
            for name in self[todo.pop()].requires:
                if name not in found:
                    found.add(name)
                    todo.append(name)
        return tuple(f.item for f in self.formulas if f.item in found and f.item != item)

    def with_quantities(self, formulas: Iterable[Formula]) -> FormulaTable:
        """The same items with other counts. Skips validation: only counts (all at least 1) may differ."""
        table = FormulaTable.__new__(FormulaTable)
        table.__dict__.update(self.__dict__)
        table.formulas = tuple(formulas)
        table.rows = table._compile()
        table._forget()
        return table

    def extended(self, *formulas: Formula, terrains: Mapping[str, tuple[str, ...]] | None = None) -> FormulaTable:
        """This table with more items, validated as a whole. `terrains` names the places of new kinds of place."""
        return FormulaTable((*self.formulas, *formulas), {**self.terrains, **(terrains or {})})


class Names(NamedTuple):
    """The words of a table: its items and the names its places can have."""

    items: tuple[str, ...]
    places: tuple[str, ...]


def _validate(formulas: tuple[Formula, ...], terrains: Mapping[str, tuple[str, ...]]) -> None:
    if not formulas:
        raise BadFormulaError("the table holds no formula")
    seen: dict[str, str] = {}
    for f in formulas:
        _check_name(f.item, "item")
        if f.item.rstrip("s") in seen:
            raise DuplicateFormulaError(f"{f.item}: there is a formula for {seen[f.item.rstrip('s')]!r} already")
        seen[f.item.rstrip("s")] = f.item
        _check_fields(f)
    for name in (n for names in terrains.values() for n in names):
        _check_name(name, "place")
        if name.rstrip("s") in seen:
            raise DuplicateFormulaError(f"{name} is the name of a place and of an item")
    made = {f.item for f in formulas}
    tools, stations = {f.tool for f in formulas}, {f.station for f in formulas}
    for f in formulas:
        for name in f.requires:
            if name not in made:
                raise UnobtainableItemError(f"{f.item} needs {name}, and no formula makes {name}")
        for name, _ in f.needs:
            if name in tools or name in stations:
                raise BadFormulaError(f"{f.item} uses up {name}, but tools and stations are durable")
        if f.item in tools and f.item in stations:
            raise BadFormulaError(f"{f.item} is a tool of one formula and a station of another; choose one")
    _users_first(formulas, {f.item: i for i, f in enumerate(formulas)})


def _check_name(name: str, what: str) -> None:
    if not isinstance(name, str) or not _NAME.fullmatch(name) or name in VERBS:
        raise BadFormulaError(f"{name!r} is no {what} name: use lower-case words joined by _, and none of {VERBS}")


def _check_fields(f: Formula) -> None:
    for name, count in (("makes", f.makes), *f.needs):
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise BadFormulaError(f"{f.item}: {name}={count!r} is not a whole number of at least 1")
    if len({name for name, _ in f.needs}) < len(f.needs):
        raise BadFormulaError(f"{f.item} lists an ingredient twice")
    if f.kind == "mine":
        if f.needs or f.station or not f.terrain:
            raise BadFormulaError(f"{f.item} is mined: give it a terrain, and neither needs nor a station")
    elif f.kind in ("craft", "smelt"):
        if not f.needs or f.terrain:
            raise BadFormulaError(f"{f.item} is made by {f.kind}: give it needs, and no terrain")
    else:
        raise BadFormulaError(f"{f.item}: kind={f.kind!r} is unknown; use 'mine', 'craft' or 'smelt'")


def _users_first(formulas: tuple[Formula, ...], index: dict[str, int]) -> tuple[int, ...]:
    """Positions in an order where every item comes after all items that require it (so needs add up in one pass)."""
    done: list[int] = []
    state = [0] * len(formulas)  # 0 new, 1 on the path, 2 done

    def visit(i: int, path: tuple[str, ...]) -> None:
        path = (*path, formulas[i].item)
        if state[i] == 1:
            raise CyclicFormulaError(f"{path[-1]} needs itself: {' needs '.join(path[path.index(path[-1]) :])}")
        if state[i] == 0:
            state[i] = 1
            for name in formulas[i].requires:
                visit(index[name], path)
            state[i] = 2
            done.append(i)

    for i in range(len(formulas)):
        visit(i, ())
    return tuple(reversed(done))


def perturbed(table: FormulaTable, rng: np.random.Generator) -> FormulaTable:
    """The table with counts drawn anew: ingredients as before or one more, yields above 1 from 1 to one more."""
    formulas = []
    for f in table.formulas:
        needs = tuple((name, count + int(rng.integers(2))) for name, count in f.needs)
        makes = 1 + int(rng.integers(f.makes + 1)) if f.makes > 1 else 1
        formulas.append(replace(f, needs=needs, makes=makes))
    return table.with_quantities(formulas)


def dearest(table: FormulaTable) -> FormulaTable:
    """The most expensive table that `perturbed` can draw: a bound for budgets."""
    return table.with_quantities(
        replace(f, needs=tuple((name, count + 1) for name, count in f.needs), makes=1) for f in table.formulas
    )


def as_table(formulas: FormulaTable | Iterable[Formula | Mapping[str, Any]]) -> FormulaTable:
    """A table from what a user gives: a table, or formulas as objects or as mappings (from JSON or YAML).

    Raises:
        FormulaError: as `FormulaTable`; also where a mapping has an unknown or missing field.
    """
    if isinstance(formulas, FormulaTable):
        return formulas
    rows = []
    for f in formulas:
        if isinstance(f, Mapping):
            try:
                needs = f.get("needs", ())
                pairs = needs.items() if isinstance(needs, Mapping) else needs
                f = Formula(**{**f, "needs": tuple((str(name), count) for name, count in pairs)})
            except (TypeError, ValueError) as error:
                raise BadFormulaError(f"formula {dict(f)!r}: {error}") from error
        if not isinstance(f, Formula):
            raise BadFormulaError(f"{f!r} is not a Formula")
        rows.append(f)
    return FormulaTable(rows)


# --- The standard table ----------------------------------------------------------------------------------------------

STANDARD_TERRAINS: dict[str, tuple[str, ...]] = {
    "wood": ("forest", "grove", "woods", "thicket", "orchard"),
    "rock": ("cave", "quarry", "cliff", "canyon", "gorge"),
    "ore": ("ridge", "hill", "crag", "bluff", "mountain"),
    "deep": ("cavern", "chasm", "pit", "abyss", "vault"),
    "": ("meadow", "river", "beach", "field", "road", "swamp", "lake", "village"),
}

Amounts = tuple[int, dict[str, int]]  # how many it makes, and from what
_RAW: Amounts = (1, {})

# item, kind, lite amounts, full (Minecraft-like) amounts, tool, station, terrain
_STANDARD: tuple[tuple[str, Kind, Amounts, Amounts, str | None, str | None, str | None], ...] = (
    ("log", "mine", _RAW, _RAW, None, None, "wood"),
    ("planks", "craft", (2, {"log": 1}), (4, {"log": 1}), None, None, None),
    ("stick", "craft", (2, {"planks": 1}), (4, {"planks": 2}), None, None, None),
    ("table", "craft", (1, {"planks": 2}), (1, {"planks": 4}), None, None, None),
    ("wooden_pickaxe", "craft", (1, {"planks": 1, "stick": 1}), (1, {"planks": 3, "stick": 2}), None, "table", None),
    ("stone", "mine", _RAW, _RAW, "wooden_pickaxe", None, "rock"),
    ("coal", "mine", _RAW, _RAW, "wooden_pickaxe", None, "rock"),
    ("stone_pickaxe", "craft", (1, {"stone": 1, "stick": 1}), (1, {"stone": 3, "stick": 2}), None, "table", None),
    ("furnace", "craft", (1, {"stone": 2}), (1, {"stone": 8}), None, "table", None),
    ("iron_ore", "mine", _RAW, _RAW, "stone_pickaxe", None, "ore"),
    ("iron_ingot", "smelt", (1, {"iron_ore": 1, "coal": 1}), (1, {"iron_ore": 1, "coal": 1}), None, "furnace", None),
    ("iron_pickaxe", "craft", (1, {"iron_ingot": 1, "stick": 1}), (1, {"iron_ingot": 3, "stick": 2}), None, "table", None),  # noqa: E501
    ("diamond", "mine", _RAW, _RAW, "iron_pickaxe", None, "deep"),
    # Side branches: distractors, and goals of tier 5.
    ("torch", "craft", (2, {"coal": 1, "stick": 1}), (4, {"coal": 1, "stick": 1}), None, None, None),
    ("sword", "craft", (1, {"planks": 1, "stick": 1}), (1, {"planks": 2, "stick": 1}), None, "table", None),
    ("axe", "craft", (1, {"planks": 1, "stick": 1}), (1, {"planks": 3, "stick": 2}), None, "table", None),
    ("chest", "craft", (1, {"planks": 3}), (1, {"planks": 8}), None, "table", None),
)  # fmt: skip


def _standard(full: bool) -> FormulaTable:
    formulas = []
    for item, kind, *amounts, tool, station, terrain in _STANDARD:
        makes, needs = amounts[full]
        formulas.append(Formula(item, kind, makes, tuple(needs.items()), tool, station, terrain))
    return FormulaTable(formulas, STANDARD_TERRAINS)


LITE = _standard(full=False)
FULL = _standard(full=True)
