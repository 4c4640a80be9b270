"""The corpus's share of the crafting world: novice games of the two easiest tiers, and questions about what is seen.

The questions only ask what an observation or a formula says; none asks what to do.
"""

from __future__ import annotations

import re

import gymnasium
import numpy as np

import agent_envs

Message = dict[str, str]
Rng = np.random.Generator

TIERS = (0, 1)
MAX_TURNS = 28  # longer games are cut here: enough for most of tier 1, and it keeps the batches short

_PLACE = re.compile(r"^At (\w+): (.+?)\. (?:(?:Table|Furnace)[^.]*\. )*Exits: (.+?)\.$", re.MULTILINE)
_HAVE = re.compile(r"^Have: (.+?)\.$", re.MULTILINE)
_GOAL = re.compile(r"^Goal: (.+?)\. Step", re.MULTILINE)
_FORMULA = re.compile(r"^(\w+): (?:craft|smelt) \d+ from (.+?)(?: at \w+)?$", re.MULTILINE)


class CraftingCorpus:
    """Draws novice games and questions; one environment, reset for each."""

    def __init__(self) -> None:
        self._env = gymnasium.make("Crafting-v0", disable_env_checker=True).unwrapped

    def game(self, rng: Rng) -> list[Message]:
        """A novice's game, its first MAX_TURNS turns."""
        options = {"tier": int(rng.choice(TIERS))}
        played = agent_envs.demonstrations(self._env, 1, int(rng.integers(2**31)), agent_envs.novice_policy, options)
        return played[0]["messages"][: 2 * MAX_TURNS]

    def questions(self, rng: Rng) -> list[Message]:
        """What does this say? One to three questions about an observation somewhere in a game."""
        opening, *later = [m["content"] for m in self.game(rng)[::2]]
        seen = str(rng.choice(later)) if later and rng.random() < 0.8 else opening[opening.index("Goal:") :]
        asked = [self._about(seen, opening, rng) for _ in range(int(rng.integers(1, 4)))]
        messages = []
        for i, (question, answer) in enumerate(asked):
            shown = f"{seen}\n{question}" if i == 0 else question
            messages += [{"role": "user", "content": shown}, {"role": "assistant", "content": answer}]
        return messages

    def _about(self, seen: str, opening: str, rng: Rng) -> tuple[str, str]:
        place, here, exits = _PLACE.search(seen).groups()  # type: ignore[union-attr]
        have = _have(seen)
        kind = int(rng.integers(7))
        if kind == 0:
            return "Where are you?", place
        if kind == 1:
            return "What is here?", here
        if kind == 2:
            return "Name an exit.", str(rng.choice(exits.split(", ")))
        if kind == 3:
            return "What is the goal?", _GOAL.search(seen).group(1)  # type: ignore[union-attr]
        formulas = _FORMULA.findall(opening)
        if kind == 4 and formulas:
            item, needs = formulas[int(rng.integers(len(formulas)))]
            return f"{item} is made from {needs}. What is {item} made from?", needs
        asked_for = [item for item, _ in formulas] + ["log", "stone", "coal"]
        item = str(rng.choice(list(have) if have and rng.random() < 0.6 else asked_for))
        if kind == 5:
            return f"Do you have {item}?", "yes" if have.get(item) else "no"
        return f"How many {item} do you have?", str(have.get(item, 0))


def _have(seen: str) -> dict[str, int]:
    listed = _HAVE.search(seen).group(1)  # type: ignore[union-attr]
    if listed == "nothing":
        return {}
    return {item: int(count) for count, item in (entry.split(" ") for entry in listed.split(", "))}
