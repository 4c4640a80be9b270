"""The rules: what each command needs and does, what every refusal says, and the list of admissible commands."""

import numpy as np
import pytest

from agent_envs.crafting import LITE
from agent_envs.crafting.generate import MAX_DIAMETER, generate, max_turns
from agent_envs.crafting.tiers import TIERS, Settings, check_settings
from agent_envs.crafting.world import (
    FAR,
    GIVE_UP,
    Command,
    State,
    World,
    admissible,
    apply,
    start_state,
    state_from_json,
    state_to_json,
)

# forest (log) - cave (stone, coal) - ridge (iron_ore); meadow hangs on the forest.
PLACES = ("cave", "forest", "meadow", "ridge")
HELD = ("stone", "coal"), ("log",), (), ("iron_ore",)
WORLD = World(LITE, PLACES, ((1, 3), (0, 2), (1,), (0,)), tuple(tuple(LITE.index[i] for i in h) for h in HELD))


def state(place, pack=None, **sites) -> State:
    return state_from_json(WORLD, {"place": place, "inventory": pack or {}, "sites": sites})


def pack(at):
    return state_to_json(WORLD, at)["inventory"]


@pytest.mark.parametrize(
    ("at", "command", "said", "after"),
    [
        (state("forest"), "mine log", "mined 1 log", {"log": 1}),
        (state("forest", {"log": 2}), "craft planks", "crafted 2 planks", {"log": 1, "planks": 2}),
        (state("cave", {"planks": 1, "stick": 1}, table="cave"), "craft wooden_pickaxe", "crafted 1 wooden_pickaxe",
         {"wooden_pickaxe": 1}),
        (state("cave", {"wooden_pickaxe": 1}), "mine coal", "mined 1 coal", {"wooden_pickaxe": 1, "coal": 1}),
        (state("ridge", {"iron_ore": 1, "coal": 1}, furnace="ridge"), "smelt iron_ingot", "smelted 1 iron_ingot",
         {"iron_ingot": 1}),
        (state("meadow", {"table": 1}), "place table", "placed table", {}),
        (state("meadow"), "go forest", "went to forest", {}),
    ],
)  # fmt: skip
def test_commands(at, command, said, after):
    verb, name = command.split()
    outcome = apply(WORLD, at, Command(verb, name))
    assert (outcome.failed, outcome.said, pack(outcome.state)) == (None, said, after)


@pytest.mark.parametrize(
    ("at", "command", "why"),
    [
        (state("forest"), "go ridge", "no exit to ridge here"),
        (state("forest"), "go swamp", "no exit to swamp here"),
        (state("forest"), "go forest", "already at forest"),
        (state("meadow"), "mine log", "no log here"),
        (state("cave"), "mine stone", "need wooden_pickaxe"),
        (state("forest"), "mine stone", "no stone here; need wooden_pickaxe"),
        (state("forest"), "craft planks", "need 1 log, have 0"),
        (state("forest", {"planks": 1}), "craft table", "need 2 planks, have 1"),
        (state("forest"), "craft wooden_pickaxe", "need 1 planks, have 0; need 1 stick, have 0; no table here"),
        (state("forest", {"planks": 1, "stick": 1}, table="cave"), "craft wooden_pickaxe", "no table here"),
        (state("forest", {"table": 1}), "craft furnace", "need 2 stone, have 0; no table here"),
        (state("cave"), "smelt iron_ingot", "need 1 iron_ore, have 0; need 1 coal, have 0; no furnace here"),
        (state("cave"), "craft iron_ingot", "iron_ingot is smelted, not crafted"),
        (state("cave"), "mine planks", "planks is crafted, not mined"),
        (state("cave"), "place table", "need 1 table, have 0"),
        (state("cave", {"table": 1}, table="forest"), "place table", "table already at forest"),
        (state("cave", {"stick": 1}), "place stick", "stick cannot be placed"),
    ],
)
def test_refusals_say_what_is_missing_and_change_nothing(at, command, why):
    verb, name = command.split()
    outcome = apply(WORLD, at, Command(verb, name))
    assert (outcome.failed, outcome.state, outcome.gained) == (why, at, -1)


def test_programming_errors_raise():
    with pytest.raises(ValueError, match="unobtainium"):
        apply(WORLD, state("cave"), Command("mine", "unobtainium"))
    with pytest.raises(ValueError, match="eat"):
        apply(WORLD, state("cave"), Command("eat", "log"))
    with pytest.raises(KeyError, match="unobtainium"):
        state_from_json(WORLD, {"place": "cave", "inventory": {"unobtainium": 1}, "sites": {}})


def test_giving_up_changes_nothing():
    assert apply(WORLD, state("cave"), GIVE_UP).state == state("cave")


def test_distances():
    assert WORLD.distances[2] == [2, 1, 0, 3]
    assert WORLD.to_source(LITE.index["stone"]) == [0, 1, 2, 1]
    assert WORLD.to_source(LITE.index["diamond"]) == [FAR] * 4


def random_state(world, rng):
    """Any state the types allow: more varied than what play reaches."""
    counts = rng.integers(0, 4, len(world.table.formulas)) * (rng.random(len(world.table.formulas)) < 0.5)
    sites = rng.integers(-1, len(world.places), len(world.table.stations))
    return State(int(rng.integers(len(world.places))), tuple(counts.tolist()), tuple(sites.tolist()))


def every_command(world):
    items = list(world.table.index)
    places = [Command("go", name) for name in world.table.names.places]
    return [*places, *(Command(verb, item) for verb in ("mine", "craft", "smelt", "place") for item in items), GIVE_UP]


def check_admissible(states):
    """Sound: nothing listed is refused. Complete: nothing else is accepted."""
    kinds = [
        check_settings(Settings(tier=tier, quantities=q), None) for tier in (0, 2, 5) for q in ("full", "perturbed")
    ]
    for number in range(states):
        rng = np.random.default_rng([number, 11])
        world = generate(number, kinds[number % len(kinds)]).world
        at = random_state(world, rng)
        listed = admissible(world, at)
        assert len(set(listed)) == len(listed)
        accepted = [c for c in every_command(world) if apply(world, at, c).failed is None]
        assert sorted(listed) == sorted(accepted), (number, at)
        assert state_from_json(world, state_to_json(world, at)) == at
    return states


def test_admissible_is_sound_and_complete():
    check_admissible(300)


@pytest.mark.full
def test_admissible_is_sound_and_complete_on_10_000_states():
    print(f"admissible list sound and complete on {check_admissible(10_000)} random states")


@pytest.mark.parametrize("tier", range(6))
def test_generated_tasks_keep_their_tiers_promises(tier):
    settings = check_settings(Settings(tier=tier), None)
    goals = set()
    for seed in range(200):
        task = generate(seed, settings)
        world, n = task.world, len(task.world.places)
        goals.add(task.goal)
        assert TIERS[tier].places[0] <= n <= TIERS[tier].places[1]
        assert list(world.places) == sorted(set(world.places))
        assert max(map(max, world.distances)) <= MAX_DIAMETER  # also: every place can be reached
        assert all(a in world.exits[b] for a in range(n) for b in world.exits[a]), "a way goes one way only"
        assert all(a not in world.exits[a] for a in range(n))
        assert task.hidden == (TIERS[tier].map == "hidden")
        assert task.start == start_state(world.table, task.start.place)
        assert task.budget <= max_turns(settings)
        assert list(task.shown) == sorted(set(task.shown))
        assert {*world.table.ancestors(task.goal), task.goal} <= set(task.shown)
    assert goals == ({name for name, _ in TIERS[tier].goals} or set(LITE.index))


@pytest.mark.parametrize("quantities", ["lite", "full", "perturbed"])
def test_max_turns_bounds_every_budget(quantities):
    for goal in LITE.index:
        settings = check_settings(Settings(tier=4, goal=goal, count=3, places=8, quantities=quantities), None)
        assert max(generate(seed, settings).budget for seed in range(25)) <= max_turns(settings)


def test_places_are_reproducible_whatever_else_is_fixed():
    a = generate(7, check_settings(Settings(tier=2, goal="furnace"), None))
    b = generate(7, check_settings(Settings(tier=2, goal="furnace", count=3, map="hidden", distractors=0), None))
    assert (a.world.places, a.world.exits, a.start) == (b.world.places, b.world.exits, b.start)
