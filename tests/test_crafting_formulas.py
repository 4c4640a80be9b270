"""The formula tables: their numbers, the check of a user's own, and where they show in the text."""

import json
import warnings

import gymnasium
import numpy as np
import pytest

import agent_envs  # noqa: F401  (registers the ids)
from agent_envs.crafting import CraftingEnv
from agent_envs.crafting.formulas import (
    FULL,
    LITE,
    BadFormulaError,
    CyclicFormulaError,
    DuplicateFormulaError,
    Formula,
    FormulaError,
    FormulaTable,
    UnobtainableItemError,
    as_table,
    dearest,
    perturbed,
)
from agent_envs.crafting.render import formula_text

LOG = Formula("log", "mine", terrain="wood")
ROPE = Formula("rope", "craft", 2, (("vine", 3),), station="table")
VINE = Formula("vine", "mine", terrain="jungle")


def test_standard_quantities():
    assert dict(LITE["iron_pickaxe"].needs) == {"iron_ingot": 1, "stick": 1}
    assert dict(FULL["iron_pickaxe"].needs) == {"iron_ingot": 3, "stick": 2}
    assert (LITE["planks"].makes, FULL["planks"].makes) == (2, 4)
    assert dict(FULL["furnace"].needs) == {"stone": 8}
    assert LITE.stations == ("table", "furnace")
    assert LITE.tools == ("wooden_pickaxe", "stone_pickaxe", "iron_pickaxe")
    assert list(LITE.index) == list(FULL.index)


def test_ancestors_are_all_and_only_what_is_needed():
    assert LITE.ancestors("log") == ()
    assert LITE.ancestors("stone") == ("log", "planks", "stick", "table", "wooden_pickaxe")
    assert set(LITE.ancestors("diamond")) == set(LITE.index) - {"diamond", "torch", "sword", "axe", "chest"}


def test_users_come_before_what_they_use():
    at = {LITE.formulas[i].item: position for position, i in enumerate(LITE.order)}
    for f in LITE.formulas:
        assert all(at[f.item] < at[name] for name in f.requires)


@pytest.mark.parametrize(
    ("error", "formulas", "words"),
    [
        (BadFormulaError, [], "no formula"),
        (BadFormulaError, [Formula("Log", "mine", terrain="wood")], "'Log'"),
        (BadFormulaError, [Formula("craft", "mine", terrain="wood")], "'craft'"),
        (BadFormulaError, [Formula("log", "mine")], "terrain"),
        (BadFormulaError, [Formula("log", "mine", 0, terrain="wood")], "makes=0"),
        (BadFormulaError, [LOG, Formula("planks", "craft", 1, (("log", -1),))], "log=-1"),
        (BadFormulaError, [LOG, Formula("planks", "craft", 1, (("log", 1), ("log", 1)))], "twice"),
        (BadFormulaError, [LOG, Formula("planks", "craft")], "needs"),
        (BadFormulaError, [LOG, Formula("planks", "weave", 1, (("log", 1),))], "weave"),  # type: ignore[arg-type]
        (BadFormulaError, [*LITE.formulas, Formula("desk", "craft", 1, (("table", 1),))], "uses up table"),
        (BadFormulaError, [*LITE.formulas, Formula("junk", "craft", 1, (("stone_pickaxe", 1),))], "durable"),
        (DuplicateFormulaError, [LOG, Formula("log", "mine", terrain="rock")], "log"),
        (DuplicateFormulaError, [LOG, Formula("logs", "mine", terrain="rock")], "logs"),
        (DuplicateFormulaError, [LOG, Formula("forest", "mine", terrain="rock")], "forest"),
        (UnobtainableItemError, [LOG, ROPE], "no formula makes vine"),
        (UnobtainableItemError, [Formula("log", "mine", tool="axe", terrain="wood")], "no formula makes axe"),
        (CyclicFormulaError, [Formula("egg", "craft", 1, (("hen", 1),)), Formula("hen", "craft", 1, (("egg", 1),))],
         "egg needs hen needs egg"),
        (CyclicFormulaError, [LOG, Formula("axe", "craft", 1, (("log", 1),), tool="axe")], "axe needs axe"),
    ],
)  # fmt: skip
def test_bad_tables_are_refused_by_name(error, formulas, words):
    assert issubclass(error, FormulaError)
    assert issubclass(error, ValueError)
    with pytest.raises(error, match=words):
        FormulaTable(formulas)


def test_an_added_item_can_be_played():
    table = LITE.extended(VINE, ROPE)
    env = CraftingEnv(goal="rope", count=3, formulas=table, map="hidden", info_level="full")
    text, info = env.reset(seed=1)
    assert "rope: craft 2 from 3 vine at table" in text
    assert "vine: mine" in text
    for _ in range(info["optimal_steps"]):
        _, _, terminated, _, info = env.step(env.optimal_action())
    assert terminated
    assert info["is_success"]


def test_a_whole_table_from_json():
    rows = json.loads(
        """[{"item": "clay", "kind": "mine", "makes": 2, "terrain": "bog"},
            {"item": "kiln", "kind": "craft", "needs": {"clay": 4}},
            {"item": "brick", "kind": "smelt", "makes": 3, "needs": [["clay", 1]], "station": "kiln"}]"""
    )
    env = gymnasium.make("Crafting-v0", formulas=rows, goal="brick", count=5, places=4).unwrapped
    text, _ = env.reset(seed=5)
    assert "\nbog" in text
    done = False
    while not done:
        _, _, done, _, info = env.step(env.optimal_action())  # type: ignore[attr-defined]
    assert info["is_success"]
    with pytest.raises(BadFormulaError, match="colour"):
        as_table([{"item": "clay", "kind": "mine", "terrain": "bog", "colour": "red"}])
    with pytest.raises(BadFormulaError, match="not a Formula"):
        as_table([3])  # type: ignore[list-item]


def test_own_formulas_without_a_goal_of_the_tier_ask_for_one():
    with pytest.raises(ValueError, match="goal="):
        CraftingEnv(formulas=[LOG])
    assert CraftingEnv(formulas=[LOG], tier=5).reset(seed=0)[0]
    with pytest.raises(ValueError, match="full"):
        CraftingEnv(formulas=[LOG], goal="log", quantities="full")


def test_perturbed_quantities_stay_in_bounds_and_vary():
    drawn = [perturbed(LITE, np.random.default_rng(seed)) for seed in range(50)]
    worst = dearest(LITE)
    for table in drawn:
        for f, low, high in zip(table.formulas, LITE.formulas, worst.formulas, strict=True):
            assert all(a <= b <= c for (_, a), (_, b), (_, c) in zip(low.needs, f.needs, high.needs, strict=True))
            assert high.makes <= f.makes <= low.makes + 1
        assert table.names is LITE.names  # the parser's cache is shared
    assert len({table["planks"].makes for table in drawn}) == 3


def test_formula_text():
    assert formula_text(LITE, "planks") == "planks: craft 2 from 1 log"
    assert formula_text(LITE, "log") == "log: mine"
    assert formula_text(LITE, "stone") == "stone: mine with wooden_pickaxe"
    assert formula_text(FULL, "iron_ingot") == "iron_ingot: smelt 1 from 1 iron_ore, 1 coal at furnace"


def test_perturbed_quantities_are_printed():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        env = CraftingEnv(tier=2, quantities="perturbed")
    for seed in range(20):
        text, _ = env.reset(seed=seed)
        assert env.task is not None
        for item in env.task.shown:
            assert formula_text(env.task.world.table, item) in text.splitlines()
