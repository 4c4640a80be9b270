"""A numeric view of the text environments, for classical RL: Stable-Baselines3, CleanRL-like code, RLlib.

    view = NumericView("NumberSearch-v0")
    observation, info = view.reset(seed=0)        # float32 vector
    view.step(7)                                  # guesses 8
    view.action_masks()                           # what sb3-contrib's MaskablePPO asks for

Actions are numbers from 0 and stand for a text each, which the text environment gets as it would from a model, so
rewards, episode ends and infos are the same. The observation holds what an agent may know from the text so far and
nothing else: never the hidden number, never a place that a hidden map has not shown. It needs gymnasium and numpy only.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

import gymnasium
import numpy as np

from agent_envs.crafting.env import CraftingEnv
from agent_envs.crafting.formulas import LITE
from agent_envs.crafting.tiers import TIERS
from agent_envs.crafting.world import Command, State, admissible
from agent_envs.number_search import NumberSearchEnv
from agent_envs.text import Info


class View(Protocol):
    """What one environment's numbers mean."""

    texts: list[str]
    """(actions,) the text that each action stands for now."""
    size: int

    def begin(self) -> None:
        """A new episode has started."""

    def observe(self) -> np.ndarray:
        """(size,) float32, at least 0, a fresh array: what the agent may know."""
        ...

    def mask(self) -> np.ndarray:
        """(actions,) bool: which actions make sense, as far as the agent may know."""
        ...


class NumericView(gymnasium.Env[np.ndarray, int]):
    """A text environment with `Discrete` actions and a `Box` observation.

    Args:
        env: an id to make, or an environment. Number Search and Crafting have a view.
        kwargs: for `gymnasium.make`, if `env` is an id.

    Raises:
        TypeError: an environment that has no numeric view.
    """

    def __init__(self, env: str | gymnasium.Env[str, str], **kwargs: Any) -> None:
        if isinstance(env, str):
            # The bare environment: the wrappers' checks are this view's too, and they would cost half of a step.
            env = gymnasium.make(env, disable_env_checker=True, **kwargs).unwrapped
        base = env.unwrapped
        if isinstance(base, NumberSearchEnv):
            self.view: View = NumberSearchView(base)
        elif isinstance(base, CraftingEnv):
            self.view = CraftingView(base)
        else:
            raise TypeError(f"{type(base).__name__} has no numeric view; Number Search and Crafting have one")
        self.env = env
        self.metadata, self.render_mode = env.metadata, env.render_mode
        self.action_space = gymnasium.spaces.Discrete(len(self.view.texts))  # type: ignore[assignment]
        self.observation_space = gymnasium.spaces.Box(0.0, np.inf, (self.view.size,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, Info]:
        super().reset(seed=seed)
        _, info = self.env.reset(seed=seed, options=options)
        self.view.begin()
        return self.view.observe(), info

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, Info]:
        if action < 0:
            raise ValueError(f"action {action} is not in 0..{len(self.view.texts) - 1}")
        _, reward, terminated, truncated, info = self.env.step(self.view.texts[action])
        return self.view.observe(), reward, terminated, truncated, info  # type: ignore[return-value]

    def action_text(self, action: int) -> str:
        """What an action says to the text environment now (places get their numbers anew each episode)."""
        return self.view.texts[action]

    def action_masks(self) -> np.ndarray:
        """(n,) bool for MaskablePPO: the guesses the answers still allow; the commands that would not be refused."""
        return self.view.mask()

    def render(self) -> Any:
        return self.env.render()

    def close(self) -> None:
        self.env.close()


# --- Number Search ---------------------------------------------------------------------------------------------------


class NumberSearchView:
    """Action a guesses low + a. Observation: a flag per number still possible, then guesses left as one of k + 1.

    After the right guess the range stays as it was: the observation tells no more than the text did.
    """

    def __init__(self, env: NumberSearchEnv) -> None:
        self.env = env
        self.low, self.high, self.max_guesses = env.low, env.high, env.max_guesses
        self.texts = [str(number) for number in range(self.low, self.high + 1)]
        self.size = len(self.texts) + self.max_guesses + 1
        self._rows: dict[tuple[int, int, int], np.ndarray] = {}  # one per (range, guesses left), made when first met

    def begin(self) -> None:
        env = self.env
        if env.low < self.low or env.high > self.high or env.max_guesses > self.max_guesses:
            raise ValueError(
                f"options ask for {env.low}..{env.high} in {env.max_guesses} guesses, this view was made for "
                f"{self.low}..{self.high} in {self.max_guesses}; give the larger sizes when you make it"
            )

    def observe(self) -> np.ndarray:
        env = self.env
        key = env.range_low, env.range_high, env.guesses_left
        row = self._rows.get(key)
        if row is None:
            row = self._rows[key] = self._make_row(*key)
        return row.copy()

    def _make_row(self, low: int, high: int, left: int) -> np.ndarray:
        row = np.zeros(self.size, np.float32)
        row[low - self.low : high - self.low + 1] = 1.0
        row[len(self.texts) + left] = 1.0
        return row

    def mask(self) -> np.ndarray:
        mask = np.zeros(len(self.texts), bool)
        mask[self.env.range_low - self.low : self.env.range_high - self.low + 1] = True
        return mask


# --- Crafting --------------------------------------------------------------------------------------------------------


class CraftingView:
    """Actions: go to place 0, 1, ...; make each item; place each station; give up. I items, M of them mined, P places.

    Places are numbered by name on a known map, in the order they were heard of on a hidden one; going to a number
    that stands for no place yet is no command, and costs the turn. The observation, in this order:

        (I) the goal's count, at the goal · (I) the pack · (1) share of the budget left
        (P) the place one is at · (P) exits from here · (P) visited · (P, P) ways known · (P, M) what is known to be
        where · (stations, P) where stations stand · (I + K) of each formula the task shows, what it makes and needs
    """

    def __init__(self, env: CraftingEnv) -> None:
        self.env = env
        table = env._own_table or LITE
        self.places = p = env.settings.places or TIERS[env.settings.tier].places[1]
        self.mined = [i for i, f in enumerate(table.formulas) if f.kind == "mine"]
        commands = [Command(f.kind, f.item) for f in table.formulas]
        commands += [Command("place", name) for name in table.stations]
        self.index = {command: p + i for i, command in enumerate(commands)}
        self.texts = [*["go"] * p, *map(str, commands), "give up"]
        items, stations = len(table.formulas), len(table.stations)
        told = items + sum(len(row.needs) for row in table.rows)
        sizes = (items, items, 1, p, p, p, p * p, p * len(self.mined), stations * p, told)
        *starts, self.size = np.cumsum(sizes).tolist()
        (self.pack, self.left, self.here, self.exits, self.visited, self.ways, self.held, self.sites) = starts[:8]
        self.told = starts[8]

    def begin(self) -> None:
        task = self.env.task
        assert task is not None
        if len(task.world.places) > self.places:
            raise ValueError(
                f"the options give {len(task.world.places)} places, this view was made for {self.places}; "
                "give tier= or places= when you make it"
            )
        self.task = task
        self.slots: dict[int, int] = {}  # place → its number
        self.texts[: self.places] = ["go"] * self.places
        if not task.hidden:
            self._number(range(len(task.world.places)))
        self._row = np.zeros(self.size, np.float32)
        self._row[task.world.table.index[task.goal]] = task.count
        self._row[self.told :] = self._formulas_told()
        self._shown: State = State(-1, (), ())  # the state that `_row` shows: none yet

    def _number(self, places: Iterable[int]) -> None:
        for place in places:
            if place not in self.slots:
                self.texts[len(self.slots)] = f"go {self.task.world.places[place]}"
                self.slots[place] = len(self.slots)

    def _formulas_told(self) -> list[int]:
        table, shown = self.task.world.table, self.task.shown
        rows = [(row, f.item in shown) for row, f in zip(table.rows, table.formulas, strict=True)]
        makes = [row.makes if told else 0 for row, told in rows]
        return makes + [count if told else 0 for row, told in rows for _, count in row.needs]

    def observe(self) -> np.ndarray:
        # Few numbers change in a turn, and writing one costs more than finding out: only those are written.
        state, shown, row = self.env.state, self._shown, self._row
        if state is not shown:
            if state.place != shown.place:
                self._show_place(state.place)
            if state.inventory is not shown.inventory:
                row[self.pack : self.left] = state.inventory
            if state.sites is not shown.sites:
                self._show_stations(state)
            self._shown = state
        row[self.left] = 1 - self.env.steps / self.task.budget
        return row.copy()

    def _show_place(self, here: int) -> None:
        """The place and its exits; what it adds to the map if it is new."""
        task, row, p = self.task, self._row, self.places
        exits = task.world.exits[here]
        self._number((here, *exits))
        row[self.here : self.visited] = 0.0
        row[self.here + self.slots[here]] = 1.0
        row[[self.exits + self.slots[place] for place in exits]] = 1.0
        if not row[self.visited + self.slots[here]]:
            row[self.visited + self.slots[here]] = 1.0
            for place in (here,) if task.hidden else self.slots:
                slot = self.slots[place]
                for other in task.world.exits[place]:
                    row[self.ways + slot * p + self.slots[other]] = 1.0
                for item in task.world.resources[place]:
                    row[self.held + slot * len(self.mined) + self.mined.index(item)] = 1.0

    def _show_stations(self, state: State) -> None:
        for i, site in enumerate(state.sites):
            if site >= 0:
                self._row[self.sites + i * self.places + self.slots[site]] = 1.0

    def mask(self) -> np.ndarray:
        mask = np.zeros(len(self.texts), bool)
        mask[-1] = True  # giving up
        world = self.task.world
        for command in admissible(world, self.env.state)[:-1]:
            if command.verb == "go":
                mask[self.slots[world.place_index[command.name]]] = True
            else:
                mask[self.index[command]] = True
        return mask
