"""The corpus's share of the crafting world: novice games of the two easiest tiers, and questions about what is seen.

The questions only ask what the observation, the map or a formula says; none asks what to do.
"""

from __future__ import annotations

import re

import gymnasium
import numpy as np

import agent_envs

Message = dict[str, str]
Rng = np.random.Generator

TIERS = (0, 1)
MAX_TURNS = 36  # tier 1's largest budget
MAX_TURNS_BEFORE_QUESTIONS = 8

_PLACE = re.compile(r"^At (\w+): (.+?)\. (?:(?:Table|Furnace)[^.]*\. )*Exits: (.+?)\.$", re.MULTILINE)
_HAVE = re.compile(r"^Have: (.+?)\.$", re.MULTILINE)
_GOAL = re.compile(r"^Goal: (.+?)\. Step", re.MULTILINE)
_FORMULA = re.compile(r"^(\w+): ((?:mine|craft|smelt)\b.*)$", re.MULTILINE)
_MAP = re.compile(r"^(\w+): (.+?)\. Exits: (.+?)\.$", re.MULTILINE)
_NEED = re.compile(r"(\d+) (\w+)(?=,| at|$)")


class CraftingCorpus:
    """Draws novice games and questions; one environment, reset for each."""

    def __init__(self) -> None:
        self._env = gymnasium.make("Crafting-v0", disable_env_checker=True).unwrapped

    def game(self, rng: Rng) -> list[Message]:
        """A novice's game."""
        options = {"tier": int(rng.choice(TIERS))}
        played = agent_envs.demonstrations(self._env, 1, int(rng.integers(2**31)), agent_envs.novice_policy, options)
        return played[0]["messages"][: 2 * MAX_TURNS]

    def questions(self, rng: Rng) -> list[Message]:
        """The first turns of a novice's game, then two to five questions about what is seen there."""
        messages = self.game(rng)
        turns = int(rng.integers(min(len(messages) // 2, MAX_TURNS_BEFORE_QUESTIONS + 1)))
        messages = messages[: 2 * turns + 1]
        opening, seen = messages[0]["content"], messages[-1]["content"]
        asked = [_question(opening, seen, rng) for _ in range(int(rng.integers(2, 6)))]
        messages[-1] = {"role": "user", "content": f"{seen}\n{asked[0][0]}"}
        for i, (question, answer) in enumerate(asked):
            if i:
                messages.append({"role": "user", "content": question})
            messages.append({"role": "assistant", "content": answer})
        return messages


def _question(opening: str, seen: str, rng: Rng) -> tuple[str, str]:
    """A question about the observation `seen`, the map or the formulas in `opening`, and its answer."""
    place, here, exits = _PLACE.search(seen).groups()  # type: ignore[union-attr]
    goal = _GOAL.search(seen).group(1)  # type: ignore[union-attr]
    have = _have(seen)
    formulas = dict(_FORMULA.findall(opening[: opening.index("\nMap:")]))
    places = _MAP.findall(opening[opening.index("\nMap:") : opening.index("\nGoal:")])
    kind = int(rng.integers(10))
    if kind == 0:
        return "Where are you?", place
    if kind == 1:
        return "What is here?", here
    if kind == 2:
        return "Name an exit.", str(rng.choice(exits.split(", ")))
    if kind == 3:
        return "What is the goal?", goal
    if kind == 4:
        return "How is the goal made?", formulas[goal.split()[-1]]
    if kind == 5:
        item = str(rng.choice(list(formulas)))
        return f"How is {item} made?", formulas[item]
    if kind == 6:
        item = str(rng.choice(list(formulas)))
        return f"Can {item} be made now?", _yes(_can_make(formulas[item], item, have, here, seen))
    if kind == 7:
        item = str(rng.choice(["log", "stone", "coal", "iron_ore"]))
        holding = [name for name, held, _ in places if item in held.split(", ")]
        return f"Where is {item}?", str(rng.choice(holding)) if holding else "nowhere"
    asked_for = list(have) if have and rng.random() < 0.6 else [*formulas, "coal"]
    item = str(rng.choice(asked_for))
    if kind == 8:
        return f"Do you have {item}?", _yes(item in have)
    return f"How many {item} do you have?", str(have.get(item, 0))


def _can_make(formula: str, item: str, have: dict[str, int], here: str, seen: str) -> bool:
    """Whether everything that a formula names is at hand: parts, tool, station, and for `mine` the resource."""
    if formula.startswith("mine") and item not in here.split(", "):
        return False
    tool, station = re.search(r" with (\w+)", formula), re.search(r" at (\w+)", formula)
    return (
        all(have.get(part, 0) >= int(count) for count, part in _NEED.findall(formula))
        and (tool is None or tool.group(1) in have)
        and (station is None or f"{station.group(1).capitalize()} here." in seen)
    )


def _yes(true: bool) -> str:
    return "yes" if true else "no"


def _have(seen: str) -> dict[str, int]:
    listed = _HAVE.search(seen).group(1)  # type: ignore[union-attr]
    if listed == "nothing":
        return {}
    return {item: int(count) for count, item in (entry.split(" ") for entry in listed.split(", "))}
