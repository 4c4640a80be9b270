"""The crafting world as a Gymnasium environment: a thin shell around the rules, the parser, the text and the solver."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from typing import Any, Literal

import numpy as np
from gymnasium.utils import seeding

from agent_envs.crafting import baselines
from agent_envs.crafting.commands import parse_command
from agent_envs.crafting.formulas import LITE, FormulaTable
from agent_envs.crafting.generate import Task, generate, max_turns
from agent_envs.crafting.render import COMMANDS, Lines, observation, rules_text
from agent_envs.crafting.solver import Solution, solve
from agent_envs.crafting.tiers import OPTIONS, Map, Quantities, Reward, Settings, check_settings, goals_of, own_table
from agent_envs.crafting.world import GIVE_UP, Command, State, admissible, apply, state_from_json, state_to_json
from agent_envs.text import FreeText, Info, TextEnv, check_options

InfoLevel = Literal["minimal", "full"]

MILESTONES_TOTAL = 0.5  # all milestones of an episode together; below the 1 that the goal pays
_SEEDS = 2**62

_NOT_UNDERSTOOD = {
    "no_command": f"no command; use {COMMANDS}",
    "unknown_item": "no such item",
    "unknown_place": "no such place",
    "bad_count": "one command is one action, leave the number out",
    "unfinished_thought": "no command after the thought",
}


class CraftingEnv(TextEnv):
    """Gather, craft and place stations among a few places until the goal item is in the pack.

    Rules: ways between places go both ways, and a resource never runs out where it lies. A formula's ingredients are
    used up; a tool must be in the pack and stays there; a station (table, furnace) must have been placed where you are.
    No command makes the goal impossible. In a share of the upper tiers' tasks it is so from the start: a needed
    resource is nowhere on the map.

    Observation: at reset the rules (commands, formulas, on a known map every place), then, every turn, four lines:

        Goal: iron_pickaxe. Step 7/56.
        At cave: stone, coal. Table at forest. Exits: forest, ridge.
        Have: 2 planks, 3 stick, 1 wooden_pickaxe.
        Last: mined 1 stone.

    Action: free text that holds one of `go X`, `mine X`, `craft X`, `smelt X`, `place X`, `give up` (what is accepted:
    `agent_envs.crafting.commands`). Every reply costs a turn, understood or not, refused or not.

    Reward: 1 on success, else 0 (`reward="sparse"`). Besides that, "milestone" pays 0.5 / m for the first of each of
    the goal's m ancestors that is obtained, each once an episode; "potential" pays Φ(s') - Φ(s), where Φ(s) is
    -(fewest commands from s) / (fewest from the start), so 0 at the goal; on every other ending Φ stays as it is, so
    that failing is never paid. It is 0 throughout a task that is impossible.

    Episode end: terminated when the goal is in the pack, or on `give up`; truncated when the budget is used up, which
    is no success. Giving up is right, and then a success, only where a needed resource is nowhere on the map, and under
    a hidden map only once every place was visited.

    Info:
    - `is_success`: the goal is in the pack, or giving up was right.
    - `parse_error`: None, "no_command", "unknown_item", "unknown_place", "bad_count" or "unfinished_thought".
    - `precondition_failed`: None, or what is missing, in words.
    - `command`: what was understood, or None.
    - `several_commands`: the first of several was taken.
    - `step`, `budget`: turns taken, and turns in the episode.
    - `admissible` (only with `info_level="full"`, as all that follow): the commands that would not be refused.
    - `optimal_steps`: fewest commands from the start knowing the whole map, so a lower bound under a hidden one; left
      out where the task is impossible.
    - `remaining_steps`: the same from here.
    - `value`: success rate from here under optimal play, 1 or 0; only where that is known: on a known map, with the
      sparse reward.

    Reset options: every argument below from `tier` to `show_admissible`, for this episode alone.

    Solver: exact A* to the fewest commands from any state, knowing the whole map (`agent_envs.crafting.solver`). On a
    hidden map no player can match it; `explore_action` knows only what was seen.

    Args:
        tier: 0 to 5, see `agent_envs.crafting.tiers`.
        goal, count, places, map, quantities, budget, impossible_fraction, distractors: fixed instead of the tier's.
        reward: "sparse", "milestone" or "potential".
        show_admissible: end each observation with a line `Can: ...` of the commands that would not be refused.
        formulas: your own table (`FormulaTable`, or formulas as objects or mappings) instead of the standard one.
        info_level: "minimal" or "full".
        render_mode: "ansi" for `render()` to return the episode as text.

    Raises:
        ValueError: a setting out of range. FormulaError (a ValueError): a table that breaks a rule.
    """

    STATE_FIELDS = ("snapshot",)

    def __init__(
        self,
        tier: int = 1,
        goal: str | None = None,
        count: int | None = None,
        places: int | None = None,
        map: Map | None = None,
        quantities: Quantities | None = None,
        reward: Reward = "sparse",
        budget: int | None = None,
        impossible_fraction: float | None = None,
        distractors: int | None = None,
        show_admissible: bool = False,
        formulas: FormulaTable | Iterable[Any] | None = None,
        info_level: InfoLevel = "minimal",
        render_mode: str | None = None,
    ) -> None:
        super().__init__(render_mode)
        if info_level not in ("minimal", "full"):
            raise ValueError(f"info_level={info_level!r} is unknown; use 'minimal' or 'full'")
        self.info_level: InfoLevel = info_level
        self._own_table = own_table(formulas)
        given = Settings(
            tier=tier,
            goal=goal,
            count=count,
            places=places,
            map=map,
            quantities=quantities,
            reward=reward,
            budget=budget,
            impossible_fraction=impossible_fraction,
            distractors=distractors,
            show_admissible=show_admissible,
        )
        self._defaults = self.settings = check_settings(given, self._own_table)
        self.max_turns = max_turns(self.settings, self._own_table)
        table = self._own_table or LITE
        self.observation_space = FreeText()
        self.action_space = FreeText([f"{f.kind} {f.item}" for f in table.formulas])
        self.task: Task | None = None

    # --- Episode -----------------------------------------------------------------------------------------------------

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, Info]:
        """Start the task of the seed, or of the next draw. `max_turns` then bounds this episode's settings."""
        super().reset(seed=seed)
        settings = self._merged(options)
        self._begin(int(self.np_random.integers(_SEEDS)), settings)
        assert self.task is not None
        self._done = False
        text = f"{rules_text(self.task, self._lines)}\n{self._observe()}"
        self._record(text)
        return text, self._info(None, None, None, False, False)

    def _merged(self, options: dict[str, Any] | None) -> Settings:
        if not options:
            return self._defaults
        options = check_options(options, OPTIONS, "Crafting")
        return check_settings(Settings(**{**self._defaults.__dict__, **options}), self._own_table)

    def _begin(self, task_seed: int, settings: Settings) -> None:
        self._task_seed, self.settings = task_seed, settings
        self.max_turns = max_turns(settings, self._own_table)
        self.task = task = generate(task_seed, settings, self._own_table)
        self._lines = Lines(task)
        self.state: State = task.start
        self.visited = 1 << task.start.place
        self.steps = 0
        self._last = "started"
        self._goal_index = task.world.table.index[task.goal]
        self._unpaid = list(task.world.table.ancestors(task.goal)) if settings.reward == "milestone" else []
        self._milestone = MILESTONES_TOTAL / len(self._unpaid) if self._unpaid else 0.0
        self._solved: tuple[State, Solution] | None = None
        self._start_solution: Solution | None = None

    def step(self, action: str) -> tuple[str, float, bool, bool, Info]:
        if self._done:
            self._refuse_finished()
        if not isinstance(action, str):
            raise TypeError(f"Crafting takes text as its action, got {type(action).__name__}")
        task, before = self.task, self.state
        assert task is not None
        command, parse_error, several, _ = parse_command(action, task.world.table)
        self.steps += 1
        success = terminated = False
        failed, reward = None, 0.0
        if command is None:
            said = _NOT_UNDERSTOOD[parse_error or "no_command"]
        elif command == GIVE_UP:
            success, terminated = self._may_give_up(task), True
            said = "gave up, rightly: it is impossible" if success else "gave up. Goal not reached"
        else:
            potential = self._potential() if self.settings.reward == "potential" else 0.0
            self.state, failed, said, gained = apply(task.world, before, command)
            self.visited |= 1 << self.state.place
            if failed is not None:
                said = f"refused, {failed}"
            elif gained >= 0:
                success = terminated = self.state.inventory[self._goal_index] >= task.count
                reward += self._milestone_for(gained)
            if self.settings.reward == "potential":
                reward += self._potential() - potential
        truncated = not terminated and self.steps >= task.budget
        self._done = terminated or truncated
        if success:
            reward += 1.0
        if several:
            said += " (first of several commands)"
        if self._done:
            said += ". Out of steps" if truncated else ". Goal reached" if success and command != GIVE_UP else ""
        self._last = said
        text = self._observe()
        if self.render_mode is not None:
            self._record(text, action)
        return text, reward, terminated, truncated, self._info(command, parse_error, failed, several, success)

    def _may_give_up(self, task: Task) -> bool:
        everywhere = (1 << len(task.world.places)) - 1
        return task.impossible and (not task.hidden or self.visited == everywhere)

    def _milestone_for(self, gained: int) -> float:
        if not self._unpaid or self.task is None:
            return 0.0
        name = self.task.world.table.formulas[gained].item
        if name not in self._unpaid:
            return 0.0
        self._unpaid.remove(name)
        return self._milestone

    def _potential(self) -> float:
        """Φ of the present state, -1 at the start and 0 at the goal."""
        whole, left = self._solution_at_start().steps, self._solution().steps
        return -left / whole if whole and left is not None else 0.0

    def _observe(self) -> str:
        assert self.task is not None
        return observation(
            self._lines, self.task, self.state, self.steps, self._last, self.settings.show_admissible and not self._done
        )

    def _info(
        self, command: Command | None, parse_error: str | None, failed: str | None, several: bool, success: bool
    ) -> Info:
        info: Info = {
            "is_success": success,
            "parse_error": parse_error,
            "precondition_failed": failed,
            "command": None if command is None else str(command),
            "several_commands": several,
            "step": self.steps,
            "budget": self.task.budget if self.task else 0,
        }
        if self.info_level == "full":
            info["admissible"] = [] if self._done else self.admissible()
            for name, steps in (("optimal_steps", self.optimal_steps()), ("remaining_steps", self.remaining_steps())):
                if steps is not None:  # no number, no key: Gymnasium's vector infos hold ints or None, not both
                    info[name] = steps
            if self.task and not self.task.hidden and self.settings.reward == "sparse":
                info["value"] = 0.0 if self._done else self._value(self.task)
        return info

    def _value(self, task: Task) -> float:
        needed = 1 if task.impossible else self.remaining_steps()
        return float(needed is not None and self.steps + needed <= task.budget)

    # --- What the solver knows, computed when asked for --------------------------------------------------------------

    def _begun(self) -> Task:
        if self.task is None:
            self._refuse_finished()
        assert self.task is not None
        return self.task

    def _solution(self) -> Solution:
        task = self._begun()
        if self._solved is None or self._solved[0] != self.state:
            self._solved = self.state, solve(task.world, self.state, task.goal, task.count)
        return self._solved[1]

    def _solution_at_start(self) -> Solution:
        task = self._begun()
        if self._start_solution is None:
            self._start_solution = solve(task.world, task.start, task.goal, task.count)
        return self._start_solution

    def admissible(self) -> list[str]:
        """The commands that would not be refused now, in a fixed order; `give up` is the last."""
        return [str(command) for command in admissible(self._begun().world, self.state)]

    def optimal_steps(self) -> int | None:
        """Fewest commands from the start to the goal knowing the whole map; None if impossible (or unsolved)."""
        found = self._solution_at_start()
        return found.steps if found.status == "solved" else None

    def remaining_steps(self) -> int | None:
        """Fewest commands from here to the goal knowing the whole map; None if impossible (or unsolved)."""
        found = self._solution()
        return found.steps if found.status == "solved" else None

    # --- Players: see agent_envs.policies ----------------------------------------------------------------------------

    def optimal_action(self) -> str:
        """The first command of a shortest plan. It knows the whole map, also a hidden one: no player can match it
        there; `explore_action` is the one to learn from. In an impossible task it gives up as soon as that is right.
        """
        task, found = self._begun(), self._solution()
        if found.plan:
            return str(found.plan[0])
        step = baselines.toward_unvisited(task.world, self.state, self.visited) if task.hidden else None
        return str(step or baselines.last_resort(task.world, self.state, found))

    def explore_action(self) -> str:
        """Explore, then plan: the best command given only what was seen so far."""
        return str(baselines.explore_then_plan(self._begun(), self.state, self.visited))

    def novice_action(self, rng: np.random.Generator) -> str:
        """Half-attentive: now and then a useful command, else any it has heard of, refused or not; never gives up."""
        return str(baselines.novice(self._begun(), self.state, self.visited, rng))

    def random_action(self, rng: np.random.Generator) -> str:
        """Uniform over the commands that would not be refused, giving up aside."""
        return str(baselines.random_admissible(self._begun(), self.state, rng))

    def hint(self) -> str:
        """A shortest plan from the start, knowing the whole map."""
        plan = self._solution_at_start().plan
        return f"Hint: {', '.join(map(str, plan)) if plan else 'give up'}."

    # --- For agent_envs.tasks: every goal in turn; harder is what takes more commands -------------------------------

    def task_options(self, index: int, options: dict[str, Any]) -> dict[str, Any]:
        """Reset options of task `index`: its goal, unless `options` names one."""
        goals = goals_of(self._merged(options), self._own_table or LITE)
        return {"goal": goals[index % len(goals)][0], **options}

    def task_difficulty(self, seed: int, options: dict[str, Any]) -> float:
        """Fewest commands to the goal of the task that `reset(seed=seed, options=options)` starts."""
        settings = self._merged({**options, "budget": None})  # a budget of its own would leave L* unknown
        task = generate(int(seeding.np_random(seed)[0].integers(_SEEDS)), settings, self._own_table)
        return float(task.reference_steps or 0)

    # --- State -----------------------------------------------------------------------------------------------------

    @property
    def snapshot(self) -> dict[str, Any] | None:
        """The episode as JSON-safe data (without the random generator), None before the first reset."""
        if self.task is None:
            return None
        world = self.task.world
        return {
            "task_seed": self._task_seed,
            "settings": dict(self.settings.__dict__),
            "state": state_to_json(world, self.state),
            "visited": [name for i, name in enumerate(world.places) if self.visited >> i & 1],
            "step": self.steps,
            "unpaid": list(self._unpaid),
            "last": self._last,
        }

    @snapshot.setter
    def snapshot(self, data: dict[str, Any] | None) -> None:
        if data is None:
            self.task = None
            return
        self._begin(data["task_seed"], check_settings(Settings(**data["settings"]), self._own_table))
        assert self.task is not None
        world = self.task.world
        self.state = state_from_json(world, data["state"])
        self.visited = sum(1 << world.place_index[name] for name in data["visited"])
        self.steps, self._unpaid, self._last = data["step"], list(data["unpaid"]), data["last"]

    def state_key(self) -> str:
        """Place, pack and stations (and what milestones are still to be paid); the steps used up do not count."""
        return str((*self.state, self._unpaid))

    def state_hash(self) -> str:
        """SHA-256 of the episode's state, the same in every process and on every machine."""
        text = json.dumps(self.snapshot, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()
