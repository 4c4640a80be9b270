"""Number Search: find a hidden whole number with few guesses, told only `higher` or `lower`.

Rules first (pure functions), then the exact solver, then the environment.

With n numbers still possible and k guesses left, the best success rate is V*(n, k) = min(1, (2^k - 1) / n): k guesses
separate at most 2^k - 1 numbers. For the standard task (1..16, four guesses) that is 15/16 = 0.9375.
"""

from __future__ import annotations

import math
import re
from functools import lru_cache
from typing import Any, Literal

import numpy as np

from agent_envs.text import FreeText, Info, TextEnv, check_options, visible_text

Invalid = Literal["consume", "terminate", "retry"]

# --- Rules -----------------------------------------------------------------------------------------------------------

# Marked forms count anywhere in a reply; a bare number only where it is all there is on its line.
_GUESS = re.compile(
    r"""\bguess\(\s*([+-]?[0-9]+)\s*\)
    | \\boxed\{\s*([+-]?[0-9]+)\s*\}
    | <guess>\s*([+-]?[0-9]+)\s*</guess>
    | \{\s*"guess"\s*:\s*([+-]?[0-9]+)\s*\}
    | ^[ \t]*(?:(?:guess|action)[ \t]*:[ \t]*)?([+-]?[0-9]+)[ \t]*\.?[ \t\r]*$
    """,
    re.IGNORECASE | re.VERBOSE | re.MULTILINE,
)
MAX_DIGITS = 18  # a longer number is out of every range; int() itself refuses very long ones


@lru_cache(maxsize=4096)
def parse_guess(reply: str) -> tuple[int | None, str | None]:
    """The one guess a reply holds, or why it holds none.

    Accepted: `guess(8)`, `8`, `Guess: 8`, `\\boxed{8}`, `<guess>8</guess>`, `{"guess": 8}`, also inside a code fence,
    after `Action:` or after a closed think block. The same guess twice is one guess; two different guesses are none.

    Returns:
        (guess, None), or (None, reason) with reason "no_guess", "ambiguous" or "unfinished_thought".
    """
    text = visible_text(reply)
    if text is None:
        return None, "unfinished_thought"
    guesses = {_to_int(next(filter(None, match.groups()))) for match in _GUESS.finditer(text)}
    if not guesses:
        return None, "no_guess"
    if len(guesses) > 1:
        return None, "ambiguous"
    return guesses.pop(), None


def _to_int(digits: str) -> int:
    sign, digits = (-1 if digits[0] == "-" else 1), digits.lstrip("+-").lstrip("0") or "0"
    return sign * (int(digits) if len(digits) <= MAX_DIGITS else 10**MAX_DIGITS)


def narrow(low: int, high: int, guess: int, target: int) -> tuple[int, int]:
    """The numbers still possible after a wrong guess, given those before it (low..high, both included)."""
    return (max(low, guess + 1), high) if target > guess else (low, min(high, guess - 1))


# --- Solver ----------------------------------------------------------------------------------------------------------


def value(n: int, k: int) -> float:
    """V*: the best success rate with n equally likely numbers and k guesses left, min(1, (2^k - 1) / n)."""
    return min(n, (1 << k) - 1) / n


def q_value(low: int, high: int, guess: int, k: int) -> float:
    """Q*: the success rate of one guess (k guesses left, this one included) followed by optimal play.

    A guess outside low..high only wastes itself. Inside, it wins at once for one number and leaves the `left` numbers
    below or the `right` numbers above it, of which k - 1 guesses find at most 2^(k-1) - 1.
    """
    n = high - low + 1
    if k <= 0:
        return 0.0
    if not low <= guess <= high:
        return value(n, k - 1)
    reach = (1 << (k - 1)) - 1
    return (1 + min(guess - low, reach) + min(high - guess, reach)) / n


def optimal_guesses(low: int, high: int, k: int) -> list[int]:
    """All guesses in low..high that attain V*, in rising order (k guesses left)."""
    return list(_optimal_range(low, high, k))


def _optimal_range(low: int, high: int, k: int) -> range:
    """The optimal guesses, from the closed form.

    With reach = 2^(k-1) - 1, the best guess leaves at most `reach` numbers on each side where that is possible, and at
    least as many where it is not: either way it lies between low + reach and high - reach.
    """
    reach = (1 << max(k - 1, 0)) - 1 if k > 0 else high - low
    first, last = sorted((low + reach, high - reach))
    return range(max(low, first), min(high, last) + 1)


# --- Environment -----------------------------------------------------------------------------------------------------


class NumberSearchEnv(TextEnv):
    """Find a hidden whole number; each wrong guess is answered `higher` or `lower`.

    Rules: the number is drawn uniformly from low..high, both ends included, and stays the same all episode. `higher`
    means that it is larger than the guess, `lower` that it is smaller.

    Observation: the task at reset, then the answer to the last guess: `correct`, `higher`, `lower`, or what an invalid
    guess should have looked like.

    Action: free text that holds one guess (see `parse_guess`). A reply without exactly one guess in low..high is an
    invalid guess: `invalid="consume"` (default) uses up a guess, `"terminate"` ends the episode with reward 0,
    `"retry"` costs nothing up to `max_retries` times an episode and a guess from then on.

    Reward: 1 for the right guess, else 0.

    Episode end: terminated on the right guess and when the guesses are used up; never truncated.

    Info:
    - `is_success`: the guess was right.
    - `parse_error`: None, "no_guess", "ambiguous", "unfinished_thought" or "out_of_range".
    - `target`: the hidden number.
    - `guess`: the guess as a number; only where the reply held one.
    - `range`: smallest and largest number the answers still allow.
    - `value`: success rate from here under optimal play; 0 once the episode is over.
    - `guesses_left`: how many guesses remain.

    Reset options: `target`, and `low`, `high`, `max_guesses`, each for this episode alone.

    Solver: exact. Of n numbers still possible, k guesses find at most 2^k - 1, so the best success rate is
    min(1, (2^k - 1) / n) (`value`), and `q_value` gives that of any single guess.

    Args:
        low, high: the range, both ends included.
        max_guesses: guesses in an episode.
        invalid: what an invalid guess does.
        max_retries: free invalid guesses an episode under `invalid="retry"`.
        render_mode: "ansi" for `render()` to return the episode as text.

    Raises:
        ValueError: an empty range, no guesses, an unknown mode, a target outside the range.
    """

    STATE_FIELDS = (
        "low",
        "high",
        "max_guesses",
        "max_turns",
        "target",
        "guesses_left",
        "retries_left",
        "range_low",
        "range_high",
    )

    def __init__(
        self,
        low: int = 1,
        high: int = 16,
        max_guesses: int = 4,
        invalid: Invalid = "consume",
        max_retries: int = 2,
        render_mode: str | None = None,
    ) -> None:
        super().__init__(render_mode)
        if invalid not in ("consume", "terminate", "retry"):
            raise ValueError(f"invalid={invalid!r} is unknown; use 'consume', 'terminate' or 'retry'")
        if max_retries < 0:
            raise ValueError(f"max_retries={max_retries} is negative")
        self.invalid: Invalid = invalid
        self.max_retries = max_retries
        self._defaults = self._check_sizes(low, high, max_guesses)
        self.low, self.high, self.max_guesses = self._defaults
        self.max_turns = self._turns(max_guesses)
        self.observation_space = FreeText()
        self.action_space = FreeText([str(number) for number in range(low, min(high, low + 999) + 1)])
        self.target = self.range_low = self.range_high = low
        self.guesses_left = self.retries_left = 0

    def _turns(self, max_guesses: int) -> int:
        return max_guesses + (self.max_retries if self.invalid == "retry" else 0)

    @staticmethod
    def _check_sizes(low: int, high: int, max_guesses: int) -> tuple[int, int, int]:
        for name, number in (("low", low), ("high", high), ("max_guesses", max_guesses)):
            if isinstance(number, bool) or not isinstance(number, (int, np.integer)):
                raise ValueError(f"{name}={number!r} is not a whole number")
        if high < low:
            raise ValueError(f"the range {low}..{high} is empty; high must be at least low")
        if max_guesses < 1:
            raise ValueError(f"max_guesses={max_guesses} leaves no guess; give at least 1")
        return int(low), int(high), int(max_guesses)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, Info]:
        super().reset(seed=seed)
        low, high, max_guesses = self._defaults
        target: Any = None
        if options:
            options = check_options(options, ("target", "low", "high", "max_guesses"), "NumberSearch")
            low, high, max_guesses = self._check_sizes(
                options.get("low", low), options.get("high", high), options.get("max_guesses", max_guesses)
            )
            target = options.get("target")
        # Drawn even where `target` is given, so that an option never shifts the stream of later episodes.
        drawn = int(self.np_random.integers(low, high + 1))
        if not options or "target" not in options:
            target = drawn
        elif isinstance(target, bool) or not isinstance(target, (int, np.integer)) or not low <= target <= high:
            raise ValueError(f"NumberSearch: target={target!r} is not a whole number in {low}..{high}")
        self.low, self.high, self.max_guesses, self.target = low, high, max_guesses, int(target)
        self.max_turns = self._turns(max_guesses)
        self.guesses_left = self.max_guesses
        self.retries_left = self.max_retries if self.invalid == "retry" else 0
        self.range_low, self.range_high = self.low, self.high
        self._done = False
        observation = (
            f"Find the hidden number from {self.low} to {self.high}. You have {self.max_guesses} "
            f"{'guess' if self.max_guesses == 1 else 'guesses'}. Reply with one number."
        )
        self._record(observation)
        return observation, self._info(None, None, False)

    def step(self, action: str) -> tuple[str, float, bool, bool, Info]:
        if self._done:
            self._refuse_finished()
        if not isinstance(action, str):
            raise TypeError(f"NumberSearch takes text as its action, got {type(action).__name__}; use str(guess)")
        guess, parse_error = parse_guess(action)
        if guess is not None and not self.low <= guess <= self.high:
            parse_error = "out_of_range"
        reward, success = 0.0, False
        if parse_error is not None:
            observation = self._answer_invalid()
        elif guess == self.target:
            self.guesses_left -= 1
            observation, reward, success, self._done = "correct", 1.0, True, True
        else:
            self.guesses_left -= 1
            higher = self.target > guess  # type: ignore[operator]
            self.range_low, self.range_high = narrow(self.range_low, self.range_high, guess, self.target)  # type: ignore[arg-type]
            observation = "higher" if higher else "lower"
            if self.guesses_left == 0:
                self._done = True
                observation += ". No guesses left."
        if self.render_mode is not None:
            self._record(observation, action)
        return observation, reward, self._done, False, self._info(guess, parse_error, success)

    def _answer_invalid(self) -> str:
        accepted = f"Invalid guess. Reply with one number from {self.low} to {self.high}, for instance as guess(N)."
        if self.invalid == "terminate":
            self._done = True
            return accepted + " The game is over."
        if self.retries_left > 0:
            self.retries_left -= 1
            return accepted + " It cost no guess."
        self.guesses_left -= 1
        if self.guesses_left == 0:
            self._done = True
            return accepted + " No guesses left."
        return accepted + " It cost a guess."

    def _info(self, guess: int | None, parse_error: str | None, success: bool) -> Info:
        n = self.range_high - self.range_low + 1
        # No guess, no key: None beside another environment's int is more than Gymnasium's vector infos can hold.
        guessed = {} if guess is None else {"guess": guess}
        return {
            "target": self.target,
            **guessed,
            "is_success": success,
            "parse_error": parse_error,
            "range": (self.range_low, self.range_high),
            "value": 0.0 if self._done else min(n, (1 << self.guesses_left) - 1) / n,
            "guesses_left": self.guesses_left,
        }

    # For agent_envs.tasks: every number of the range in turn, and by default as many tasks as numbers.

    def _range(self, options: dict[str, Any]) -> tuple[int, int]:
        low, high, _ = self._defaults
        return options.get("low", low), options.get("high", high)

    def default_tasks(self, options: dict[str, Any]) -> int:
        low, high = self._range(options)
        return high - low + 1

    def task_options(self, index: int, options: dict[str, Any]) -> dict[str, Any]:
        low, high = self._range(options)
        return {"target": low + index % (high - low + 1), **options}

    def task_difficulty(self, seed: int, options: dict[str, Any]) -> float:
        """Halvings that the range needs, log2 of how many numbers it holds."""
        low, high = self._range(options)
        return round(math.log2(high - low + 1), 2)

    def hint(self) -> str:
        """The quarter of the range that holds the number."""
        size = max(1, (self.high - self.low + 1) // 4)
        first = self.low + (self.target - self.low) // size * size
        return f"Hint: it lies from {first} to {min(first + size - 1, self.high)}."

    # The solver's face: see agent_envs.policies.

    def optimal_action(self) -> str:
        """The lowest of the optimal guesses (8 at the start of the standard task)."""
        return str(_optimal_range(self.range_low, self.range_high, self.guesses_left)[0])

    def novice_action(self, rng: np.random.Generator) -> str:
        """Half-attentive: with probability 0.6 uniform over the numbers still possible, else over all of them."""
        if rng.random() < 0.6:
            return str(int(rng.integers(self.range_low, self.range_high + 1)))
        return self.random_action(rng)

    def random_action(self, rng: np.random.Generator) -> str:
        """Uniform over the whole range."""
        return str(int(rng.integers(self.low, self.high + 1)))
