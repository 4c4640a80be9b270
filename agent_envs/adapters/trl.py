"""The environments as TRL's own `environment_factory`: the actions are tools, the trainer stays the stock one.

    rows = trl_rows(task_set("NumberSearch-v0", "train"))
    GRPOTrainer(model, environment_factory=trl_environment("NumberSearch-v0"), train_dataset=Dataset.from_list(rows),
                args=GRPOConfig(max_tool_calling_iterations=4, ...))

TRL makes one instance a rollout, takes every public method but `reset` and `get_reward` for a tool, and writes the
tools' names, types and docstrings into the prompt. So the docstrings below are what the model reads.

This needs a model whose chat template knows tools. For one that does not, and for rewards per turn, use the trainer of
`trl_plugins`. Nothing here imports TRL.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import gymnasium

from agent_envs.crafting.env import CraftingEnv
from agent_envs.number_search import NumberSearchEnv
from agent_envs.tasks import Task

PROMPT = "Play by calling the tools, one call at a time.\n"


class ToolEnvironment:
    """What the tools share. Public methods of subclasses are tools, so everything else here starts with `_`."""

    _env_id: str
    _settings: dict[str, Any]

    def __init__(self) -> None:
        self._env = gymnasium.make(self._env_id, disable_env_checker=True, **self._settings)
        self._done, self._return, self._info = True, 0.0, {}

    def reset(self, **row: Any) -> str:
        """Start the task of a dataset row.

        Args:
            row: the columns; `seed` and `options` (a dict, or JSON as in `Task.row()`) choose the task, `env_id` must
                be this environment's, all others are ignored.

        Returns:
            The first observation, which TRL appends to the prompt.

        Raises:
            ValueError: no seed (each member of a group would get a task of its own), or another environment's row.
        """
        if row.get("env_id", self._env_id) != self._env_id:
            raise ValueError(f"a row of {row['env_id']} was given to {self._env_id}; use one factory per environment")
        if row.get("seed") is None:
            raise ValueError(f"{self._env_id}: the row has no seed; trl_rows(task_set(...)) gives each row one")
        options = row.get("options")
        options = json.loads(options) if isinstance(options, str) else options
        observation, self._info = self._env.reset(seed=int(row["seed"]), options=options or None)
        self._done, self._return = False, 0.0
        return observation

    def get_reward(self) -> float:
        """The episode's return so far: the sum of its turns' rewards."""
        return self._return

    def _act(self, action: str) -> str:
        if self._done:  # a model may go on calling; that must neither raise nor pay
            return "The episode is over."
        observation, reward, terminated, truncated, self._info = self._env.step(action)
        self._return += float(reward)
        self._done = terminated or truncated
        return observation


class NumberSearchTools(ToolEnvironment):
    """Number Search with one tool."""

    def guess(self, number: int) -> str:
        """
        Guess the hidden number.

        Args:
            number: Your guess.

        Returns:
            correct, or whether the hidden number is higher or lower than your guess.
        """
        return self._act(f"guess({number})")


class CraftingTools(ToolEnvironment):
    """The crafting world, a tool per verb."""

    def go(self, place: str) -> str:
        """
        Go to a neighbouring place.

        Args:
            place: The name of an exit of the place you are at.

        Returns:
            What you see there.
        """
        return self._act(f"go {place}")

    def mine(self, item: str) -> str:
        """
        Mine one of the things that are here.

        Args:
            item: The name of the item.

        Returns:
            What happened, and what you see.
        """
        return self._act(f"mine {item}")

    def craft(self, item: str) -> str:
        """
        Craft an item from things you have.

        Args:
            item: The name of the item.

        Returns:
            What happened, and what you see.
        """
        return self._act(f"craft {item}")

    def place(self, station: str) -> str:
        """
        Place a station that you have, here.

        Args:
            station: The name of the station, for instance table or furnace.

        Returns:
            What happened, and what you see.
        """
        return self._act(f"place {station}")

    def smelt(self, item: str) -> str:
        """
        Smelt an item at a furnace that is here.

        Args:
            item: The name of the item.

        Returns:
            What happened, and what you see.
        """
        return self._act(f"smelt {item}")

    def give_up(self) -> str:
        """
        Give up: right only where something needed is nowhere to be found.

        Returns:
            Whether giving up was right.
        """
        return self._act("give up")


class TextTools(ToolEnvironment):
    """Any other environment: one tool that takes the action's text."""

    def act(self, action: str) -> str:
        """
        Take one action.

        Args:
            action: The action, worded as the task asks.

        Returns:
            The environment's answer.
        """
        return self._act(action)


def trl_environment(env_id: str, **settings: Any) -> type[ToolEnvironment]:
    """The class to give to TRL as `environment_factory`.

    Args:
        env_id: a registered id, of this package or any other text environment.
        settings: for `gymnasium.make`, the same for each episode.

    Returns:
        A class whose public methods are the tools; TRL logs its reward under the class's name, `NumberSearch` here.
    """
    base = gymnasium.make(env_id, disable_env_checker=True, **settings).unwrapped
    tools = TextTools
    if isinstance(base, NumberSearchEnv):
        tools = NumberSearchTools
    elif isinstance(base, CraftingEnv):
        tools = CraftingTools
    name = env_id.split("/")[-1].rsplit("-v", 1)[0]
    made: Any = type(name, (tools,), {"__doc__": tools.__doc__, "_env_id": env_id, "_settings": settings})
    return made


def trl_rows(tasks: Iterable[Task], prompt: str = PROMPT) -> list[dict[str, Any]]:
    """Dataset rows for `environment_factory`: the task's own row, and a prompt that its first observation follows."""
    return [{"prompt": [{"role": "user", "content": prompt}], **task.row()} for task in tasks]
