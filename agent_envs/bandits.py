"""The two smallest tasks there are: one choice, one reward. The lecture's worked examples of a gradient's spread.

- `TwoArmedBandit-v0`: one state; A pays 1, B pays 0.
- `TwoState-v0`: two states that no choice leads out of; A and B pay 11 and 9 in the first, 0 and 2 in the second. The
  raw rewards prefer the worse action of the first state (9) to the better one of the second (2); the rewards minus
  their state's mean do not.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from agent_envs.text import FreeText, Info, TextEnv, check_options, visible_text

Rewards = tuple[tuple[float, ...], ...]
"""rewards[state][action]; action 0 is the letter A."""

# --- Rules -----------------------------------------------------------------------------------------------------------

# Marked forms count anywhere in a reply; a bare letter only where it is all there is on its line.
_CHOICE = re.compile(
    r"""choose\(\s*([a-z])\s*\)
    | \\boxed\{\s*([a-z])\s*\}
    | <choice>\s*([a-z])\s*</choice>
    | \{\s*"choice"\s*:\s*"([a-z])"\s*\}
    | ^[ \t]*(?:(?:choice|action)[ \t]*:[ \t]*)?([a-z])[ \t]*\.?[ \t\r]*$
    """,
    re.IGNORECASE | re.VERBOSE | re.MULTILINE | re.ASCII,
)


@lru_cache(maxsize=4096)
def parse_choice(reply: str) -> tuple[str | None, str | None]:
    """The one letter a reply chooses, or why it chooses none.

    Accepted: `A`, `a`, `Choice: A`, `choose(A)`, `\\boxed{A}`, `<choice>A</choice>`, `{"choice": "A"}`, also inside a
    code fence, after `Action:` or after a closed think block. Two different letters are none.

    Returns:
        (letter, None), or (None, reason) with reason "no_choice", "ambiguous" or "unfinished_thought".
    """
    text = visible_text(reply)
    if text is None:
        return None, "unfinished_thought"
    letters = {next(filter(None, match.groups())).upper() for match in _CHOICE.finditer(text)}
    if not letters:
        return None, "no_choice"
    if len(letters) > 1:
        return None, "ambiguous"
    return letters.pop(), None


def letter(action: int) -> str:
    """The letter of an action: A, B, C, ..."""
    return chr(ord("A") + action)


def best_actions(pays: Sequence[float]) -> list[int]:
    """The actions that pay most, in rising order."""
    most = max(pays)
    return [action for action, pay in enumerate(pays) if pay == most]


def invalid_pay(pays: Sequence[float]) -> float:
    """What a reply without a choice pays: nothing, and never more than the worst action."""
    return min(0.0, *pays)


# --- Environment -----------------------------------------------------------------------------------------------------


class BanditEnv(TextEnv):
    """One of a few states, one choice among lettered actions, one fixed reward.

    Rules: the state is drawn uniformly, and each letter pays a fixed amount in it. What pays is not told: it is for the
    agent to find out.

    Observation: the state (where there are several) and the letters at reset, then what the choice paid.

    Action: free text that holds one letter (see `parse_choice`). A reply without one of the letters is an invalid
    choice.

    Reward: `rewards[state][action]`. An invalid choice pays 0, or what the worst action pays where that is less.

    Episode end: terminated after one reply, whatever it is; never truncated.

    Info:
    - `is_success`: the choice was a best one.
    - `parse_error`: None, "no_choice", "ambiguous", "unfinished_thought" or "unknown_choice".
    - `state`: 0, 1, ... (the observation counts from 1).
    - `choice`: the letter, or None.
    - `best_choice`: the first of the letters that pay most.

    Reset options: `state` (0, 1, ...), else drawn uniformly.

    Solver: exact; it reads the rewards.

    Args:
        rewards: one row a state, one number an action; two to 26 actions, as many in each state.
        render_mode: "ansi" for `render()` to return the episode as text.

    Raises:
        ValueError: rows of different or unfit length, a reward that is not finite, a state that does not exist.
    """

    STATE_FIELDS = ("state",)
    max_turns = 1

    def __init__(self, rewards: Sequence[Sequence[float]] = ((1.0, 0.0),), render_mode: str | None = None) -> None:
        super().__init__(render_mode)
        self.rewards: Rewards = tuple(tuple(float(pay) for pay in pays) for pays in rewards)
        if not self.rewards or not 2 <= len(self.rewards[0]) <= 26:
            raise ValueError(f"rewards={rewards!r}: give at least one state with two to 26 actions")
        if any(len(pays) != len(self.rewards[0]) for pays in self.rewards):
            raise ValueError(f"rewards={rewards!r}: the states have different numbers of actions")
        if not np.isfinite(self.rewards).all():
            raise ValueError(f"rewards={rewards!r}: every reward must be a finite number")
        self.letters = [letter(action) for action in range(len(self.rewards[0]))]
        self._accepted = f"{', '.join(self.letters[:-1])} or {self.letters[-1]}"
        self.observation_space = FreeText()
        self.action_space = FreeText(self.letters)
        self.state = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, Info]:
        super().reset(seed=seed)
        options = check_options(options, ("state",), "Bandit")
        # Drawn even where `state` is given, so that an option never shifts the stream of later episodes.
        drawn = int(self.np_random.integers(len(self.rewards)))
        state = options.get("state", drawn)
        if isinstance(state, bool) or not isinstance(state, (int, np.integer)) or not 0 <= state < len(self.rewards):
            raise ValueError(f"Bandit: state={state!r} is not a whole number in 0..{len(self.rewards) - 1}")
        self.state = int(state)
        self._done = False
        where = f"You are in state {self.state + 1} of {len(self.rewards)}. " if len(self.rewards) > 1 else ""
        observation = f"{where}Choose {self._accepted}. One choice pays best. Reply with one letter."
        self._record(observation)
        return observation, self._info(None, None, False)

    def step(self, action: str) -> tuple[str, float, bool, bool, Info]:
        if self._done:
            self._refuse_finished()
        if not isinstance(action, str):
            raise TypeError(f"Bandit takes text as its action, got {type(action).__name__}; use one letter")
        choice, parse_error = parse_choice(action)
        if choice is not None and choice not in self.letters:
            parse_error = "unknown_choice"
        self._done = True
        pays = self.rewards[self.state]
        if choice is None or parse_error is not None:
            reward, success = invalid_pay(pays), False
            observation = f"Invalid choice: {self._accepted} was asked for. It pays {reward:g}."
        else:
            index = self.letters.index(choice)
            reward, success = pays[index], index in best_actions(pays)
            observation = f"{choice} pays {reward:g}."
        if self.render_mode is not None:
            self._record(observation, action)
        return observation, reward, True, False, self._info(choice, parse_error, success)

    def _info(self, choice: str | None, parse_error: str | None, success: bool) -> Info:
        return {
            "state": self.state,
            "choice": choice,
            "best_choice": self.optimal_action(),
            "is_success": success,
            "parse_error": parse_error,
        }

    # For agent_envs.tasks: every state in turn.

    def default_tasks(self, options: dict[str, Any]) -> int:
        return len(self.rewards)

    def task_options(self, index: int, options: dict[str, Any]) -> dict[str, Any]:
        return {"state": index % len(self.rewards), **options}

    # The solver's face: see agent_envs.policies.

    def optimal_action(self) -> str:
        """The first of the letters that pay most."""
        return letter(best_actions(self.rewards[self.state])[0])

    def novice_action(self, rng: np.random.Generator) -> str:
        """With probability 0.3 a best letter, else any."""
        return self.optimal_action() if rng.random() < 0.3 else self.random_action(rng)

    def random_action(self, rng: np.random.Generator) -> str:
        """Uniform over the letters."""
        return self.letters[int(rng.integers(len(self.letters)))]
