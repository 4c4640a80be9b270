"""What every text environment shares: the text space, the base class, the way from a reply to its visible text.

A model's reply is free text, so it is never an error to step with any `str`: a reply that holds no action is an
invalid action with a stated consequence. Only programming errors raise (a non-string action, a step after the end).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import gymnasium
import numpy as np

Info = dict[str, Any]


class FreeText(gymnasium.Space[str]):
    """All strings. `sample()` draws one of `examples`, so that `env.action_space.sample()` is a legal action.

    Not a `gymnasium.spaces.Text`: that one has a fixed alphabet and a length limit, which a model's reply breaks.
    """

    def __init__(self, examples: Sequence[str] = ("",), seed: int | np.random.Generator | None = None) -> None:
        self.examples = tuple(examples)
        super().__init__(dtype=str, seed=seed)

    @property
    def is_np_flattenable(self) -> bool:
        return False

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        if mask is not None or probability is not None:
            raise ValueError("FreeText.sample takes no mask and no probability: draw from `examples` yourself")
        return self.examples[int(self.np_random.integers(len(self.examples)))]

    def contains(self, x: Any) -> bool:
        return isinstance(x, str)

    def __repr__(self) -> str:
        return f"FreeText({len(self.examples)} examples)"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FreeText) and self.examples == other.examples


class TextEnv(gymnasium.Env[str, str]):
    """Base of every environment here: what a trainer, a solver face and a transcript may rely on.

    Every `info` holds `is_success` (bool), `parse_error` (str or None, why the reply held no action).
    Subclasses set `STATE_FIELDS` (JSON-safe attributes that make up the state) and `max_turns`, and offer
    `optimal_action`, `novice_action(rng)`, `random_action(rng)` where they have a solver.
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["ansi"], "render_fps": 1}
    STATE_FIELDS: ClassVar[tuple[str, ...]] = ()
    max_turns: int
    """Most turns an episode can last under the present options; a trainer with a smaller cap would cut it short."""

    def __init__(self, render_mode: str | None = None) -> None:
        if render_mode not in (None, "ansi"):
            raise ValueError(f"render_mode={render_mode!r} is not offered; use 'ansi' or None")
        self.render_mode = render_mode
        self._transcript: list[str] = []
        self._done = True

    def render(self) -> str | None:  # type: ignore[override]
        """The episode so far as text, `> ` before each of the agent's actions (render_mode "ansi", else None)."""
        return "\n".join(self._transcript) if self.render_mode == "ansi" else None

    def _record(self, observation: str, action: str | None = None) -> None:
        if self.render_mode == "ansi":
            if action is None:
                self._transcript = [observation]
            else:
                self._transcript += [f"> {action}", observation]

    def _refuse_finished(self) -> None:
        if self._done:
            raise gymnasium.error.ResetNeeded(
                f"{type(self).__name__}: the episode is over (or never began); call reset()"
            )

    def get_state(self) -> dict[str, Any]:
        """The whole state as JSON-safe data, the random generator included; `set_state` takes it back."""
        state = {name: getattr(self, name) for name in (*self.STATE_FIELDS, "_done", "_transcript")}
        rng = None if self._np_random is None else self._np_random.bit_generator.state
        return json.loads(json.dumps({**state, "rng": rng, "np_random_seed": self._np_random_seed}))

    def hint(self) -> str:
        """One line of help with the episode that has just begun, for a prompt; never part of an observation.

        Raises:
            TypeError: this environment offers none.
        """
        raise TypeError(f"{type(self).__name__} offers no hint")

    def state_key(self) -> str:
        """A short name of the state: equal for two episodes (of one task) that cannot be told apart from here on."""
        fields = json.dumps([getattr(self, name) for name in self.STATE_FIELDS], sort_keys=True)
        return hashlib.sha256(fields.encode()).hexdigest()[:16]

    def set_state(self, state: dict[str, Any]) -> None:
        """Continue from what `get_state` returned, here or in another process.

        Raises:
            ValueError: fields are missing or unknown.
        """
        expected = {*self.STATE_FIELDS, "_done", "_transcript", "rng", "np_random_seed"}
        if set(state) != expected:
            raise ValueError(f"state has fields {sorted(state)}, {type(self).__name__} needs {sorted(expected)}")
        state = json.loads(json.dumps(state))  # the caller's lists stay the caller's
        for name in (*self.STATE_FIELDS, "_done", "_transcript"):
            setattr(self, name, state[name])
        self._np_random, self._np_random_seed = None, state["np_random_seed"]
        if state["rng"] is not None:
            generator = np.random.PCG64()
            generator.state = state["rng"]
            self._np_random = np.random.Generator(generator)


def check_options(options: dict[str, Any] | None, allowed: Sequence[str], env: str) -> dict[str, Any]:
    """Reset options as a dict, with an error that names an unknown one."""
    options = dict(options or {})
    unknown = sorted(set(options) - set(allowed))
    if unknown:
        raise ValueError(f"{env}: unknown reset option {unknown[0]!r}; known: {', '.join(allowed)}")
    return options


# --- From a reply to its visible text --------------------------------------------------------------------------------

_THINK_TAG = re.compile(r"<(/?)think(?:ing)?>", re.IGNORECASE)
_FENCE = re.compile(r"```(?:[A-Za-z][A-Za-z0-9_+-]*)?[ \t]*(?=\n|$)|```")


def visible_text(reply: str) -> str | None:
    """The part of a reply that counts: what follows the last closed think block, code-fence marks removed.

    Returns None where a think block was opened and never closed: the reply is all reasoning, no action.
    """
    if "<" in reply:
        tags = list(_THINK_TAG.finditer(reply))
        if tags:
            if not tags[-1].group(1):
                return None
            reply = reply[tags[-1].end() :]
    if "```" in reply:
        reply = _FENCE.sub("\n", reply)
    return reply


# --- One face for every environment's solver -------------------------------------------------------------------------

TextPolicy = Callable[[], str]
"""A policy bound to one environment: called, it returns the next action's text for the environment's present state."""
