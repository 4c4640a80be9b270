"""The solver against plain breadth-first search, its plans against the rules, its proofs, and its bound."""

import numpy as np
import pytest

from agent_envs.crafting import LITE, CraftingEnv
from agent_envs.crafting.generate import generate
from agent_envs.crafting.solver import MAX_EXPANSIONS, lower_bound, remaining_work, solve
from agent_envs.crafting.tiers import TIERS, Settings, check_settings
from agent_envs.crafting.world import admissible, apply


def breadth_first(world, state, goal, count):
    """Fewest commands by trying every admissible one, with no idea of what is useful."""
    wanted, seen, layer, steps = world.table.index[goal], {state}, [state], 0
    if state.inventory[wanted] >= count:
        return 0
    while True:
        steps, fresh = steps + 1, []
        for at in layer:
            for command in admissible(world, at)[:-1]:
                after = apply(world, at, command).state
                if after.inventory[wanted] >= count:
                    return steps
                if after not in seen:
                    seen.add(after)
                    fresh.append(after)
        layer = fresh


def replay(task, state, plan):
    """Play a plan: every command succeeds, and only the last one reaches the goal."""
    wanted = task.world.table.index[task.goal]
    for command in plan:
        assert state.inventory[wanted] < task.count
        state, failed, _, _ = apply(task.world, state, command)
        assert failed is None, (command, failed)
    assert state.inventory[wanted] >= task.count


CASES = [(tier, goal, q) for tier in range(3) for goal, _ in TIERS[tier].goals for q in ("lite", "full")]


def check_against_breadth_first(tier, goal, quantities, seeds):
    settings = check_settings(Settings(tier=tier, goal=goal, quantities=quantities), None)
    for seed in seeds:
        task = generate(seed, settings)
        found = solve(task.world, task.start, goal, task.count)
        assert found.status == "solved"
        assert found.steps == len(found.plan) == task.reference_steps
        assert found.steps == breadth_first(task.world, task.start, goal, task.count), (tier, goal, quantities, seed)
        replay(task, task.start, found.plan)
    return len(seeds)


@pytest.mark.parametrize(("tier", "goal", "quantities"), CASES)
def test_equals_breadth_first_search(tier, goal, quantities):
    check_against_breadth_first(tier, goal, quantities, range(1 if (goal, quantities) == ("furnace", "full") else 8))


@pytest.mark.full
def test_equals_breadth_first_search_on_360_tasks():
    checked = sum(check_against_breadth_first(*case, range(100, 130)) for case in CASES)
    print(f"solver equals breadth-first search on {checked} of {checked} tasks")
    assert checked >= 300


def check_midway(tier, quantities, seeds):
    """From states that a random player left behind, scarce and surplus items included."""
    settings = check_settings(Settings(tier=tier, quantities=quantities), None)
    checked = 0
    for seed in seeds:
        task, rng = generate(seed, settings), np.random.default_rng([seed, 5])
        state = task.start
        for _ in range(int(rng.integers(1, 25))):
            commands = admissible(task.world, state)[:-1]
            state = apply(task.world, state, commands[int(rng.integers(len(commands)))]).state
        found = solve(task.world, state, task.goal, task.count)
        assert found.steps == breadth_first(task.world, state, task.goal, task.count), (tier, quantities, seed)
        replay(task, state, found.plan)
        checked += 1
    return checked


@pytest.mark.parametrize(("tier", "quantities"), [(0, "perturbed"), (1, "lite"), (1, "perturbed"), (2, "lite")])
def test_equals_breadth_first_search_midway(tier, quantities):
    check_midway(tier, quantities, range(15))


@pytest.mark.full
def test_equals_breadth_first_search_midway_on_500_states():
    cases = [(0, "lite"), (0, "perturbed"), (1, "lite"), (1, "full"), (2, "lite")]
    print(f"midway: equal on all of {sum(check_midway(*case, range(1000, 1100)) for case in cases)} states")


def check_tier(tier, seeds):
    settings = check_settings(Settings(tier=tier), None)
    statuses, expansions = {"solved": 0, "impossible": 0, "unsolved": 0}, 0
    for seed in seeds:
        task = generate(seed, settings)
        found = solve(task.world, task.start, task.goal, task.count)
        statuses[found.status] += 1
        expansions = max(expansions, found.expansions)
        assert (found.status == "impossible") == task.impossible
        if task.impossible:
            # The proof: something the goal needs is held by no place.
            needed = (*task.world.table.ancestors(task.goal), task.goal)
            held = {task.world.table.formulas[i].item for here in task.world.resources for i in here}
            assert any(task.world.table[name].kind == "mine" and name not in held for name in needed)
        else:
            assert found.steps == task.reference_steps
            replay(task, task.start, found.plan)
    return statuses, expansions


@pytest.mark.parametrize("tier", range(6))
def test_every_task_is_solved_or_proved_impossible(tier):
    statuses, _ = check_tier(tier, range(150))
    assert statuses["unsolved"] == 0
    assert statuses["impossible"] <= 15


@pytest.mark.full
@pytest.mark.parametrize("tier", range(6))
def test_every_task_is_solved_or_proved_impossible_2000(tier):
    statuses, expansions = check_tier(tier, range(2000))
    print(f"tier {tier}: {statuses}, at most {expansions} expansions of {MAX_EXPANSIONS} allowed")
    assert statuses["unsolved"] == 0
    assert statuses["impossible"] <= 200


@pytest.mark.parametrize("tier", [1, 4])
def test_the_lower_bound_never_overestimates_and_is_consistent(tier):
    settings = check_settings(Settings(tier=tier), None)
    for seed in range(10):
        task, rng = generate(seed, settings), np.random.default_rng(seed)
        if task.impossible:
            continue
        state = task.start

        def bound(at, task=task):
            return lower_bound(task.world, at, remaining_work(task.world.table, at, task.goal, task.count))

        for _ in range(20):
            steps = solve(task.world, state, task.goal, task.count).steps
            assert steps is not None
            assert bound(state) <= steps
            commands = admissible(task.world, state)[:-1]
            after = apply(task.world, state, commands[int(rng.integers(len(commands)))]).state
            assert bound(state) <= 1 + bound(after)
            state = after


def test_unsolved_is_not_impossible():
    task = generate(0, check_settings(Settings(tier=4), None))
    full = solve(task.world, task.start, task.goal, task.count)
    cut = solve(task.world, task.start, task.goal, task.count, max_expansions=2)
    assert (cut.status, cut.plan, cut.expansions) == ("unsolved", (), 2)
    assert cut.steps is not None
    assert full.steps is not None
    assert cut.steps <= full.steps


def test_goal_in_the_pack_needs_no_command():
    task = generate(0, check_settings(Settings(tier=0, goal="stick", count=1), None))
    pack = [0] * len(LITE.formulas)
    pack[LITE.index["stick"]] = 1
    found = solve(task.world, task.start._replace(inventory=tuple(pack)), "stick", 1)
    assert (found.status, found.steps, found.plan) == ("solved", 0, ())


@pytest.mark.parametrize("tier", range(6))
def test_following_the_solver_takes_exactly_optimal_steps(tier):
    env = CraftingEnv(tier=tier, info_level="full", impossible_fraction=0)
    for seed in range(15):
        _, info = env.reset(seed=seed)
        best = info["optimal_steps"]
        for left in range(best - 1, -1, -1):
            _, _, terminated, truncated, info = env.step(env.optimal_action())
            assert (info["remaining_steps"], terminated, truncated) == (left, left == 0, False)
        assert info["is_success"]


def test_large_counts_stay_cheap():
    for quantities in ("lite", "full", "perturbed"):
        settings = check_settings(Settings(tier=4, goal="diamond", count=64, quantities=quantities), None)
        task = generate(3, settings)
        assert solve(task.world, task.start, "diamond", 64).expansions < 2000
