"""The environments in GEM: registered under `agent_envs:<id>`, so `gem.make` and `gem.make_vec` find them.

from agent_envs.adapters.gem import register_all
register_all()
env = gem.make("agent_envs:NumberSearch-v0")
envs = gem.make_vec(["agent_envs:NumberSearch-v0"] * 8, seed=0)
"""

# pyright: reportAttributeAccessIssue=false
# (pyright takes this very file for the framework of the same name)

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np

import agent_envs

try:
    import gem  # pyright: ignore[reportMissingImports]
except ImportError as error:
    raise ImportError("agent_envs.adapters.gem needs GEM; install it with: pip install gem-llm") from error

PREFIX = "agent_envs:"


class GemEnv(gem.Env):
    """One environment as GEM sees it.

    GEM's own base class seeds Python's and NumPy's global generators on reset, which makes environments in one process
    depend on each other; this one keeps to the environment's own generator.

    Args:
        gym_id: a registered id.
        seed: where the stream of unseeded resets starts; `gem.make_vec` gives each environment one of its own.
        options: reset options, the same each episode.
        settings: for `gymnasium.make`.
    """

    def __init__(
        self, gym_id: str, seed: int | None = None, options: dict[str, Any] | None = None, **settings: Any
    ) -> None:
        super().__init__()
        self.gym_id, self.options, self.settings = gym_id, options, settings
        self.env = gymnasium.make(gym_id, disable_env_checker=True, **settings)
        self._next_seed = seed
        self._actions = np.random.default_rng(None if seed is None else [seed, 2])

    def reset(self, seed: int | None = None) -> tuple[str, dict[str, Any]]:
        # The seed given at the start counts once; the resets after it go on in its stream.
        seed, self._next_seed = (self._next_seed if seed is None else seed), None
        return self.env.reset(seed=seed, options=self.options)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        return observation, float(reward), terminated, truncated, info

    def sample_random_action(self) -> str:
        draw = getattr(self.env.unwrapped, "random_action", None)
        return self.env.action_space.sample() if draw is None else draw(self._actions)

    def spawn(self, same_state: bool = False, **kwargs: Any) -> GemEnv:
        """Another environment with the same settings, in the same state if asked."""
        other = GemEnv(**{"gym_id": self.gym_id, "options": self.options, **self.settings, **kwargs})
        if same_state:
            other.env.reset()  # so that the wrappers know that an episode is under way
            other.env.unwrapped.set_state(self.env.unwrapped.get_state())  # type: ignore[attr-defined]
        return other


def register_all() -> list[str]:
    """Register every id of this package with GEM, once; returns GEM's names for them."""
    from gem.envs.registration import ENV_REGISTRY  # pyright: ignore[reportMissingImports]

    ids = sorted(agent_envs.registered_ids())
    for id in ids:
        if PREFIX + id not in ENV_REGISTRY:
            entry = "agent_envs.adapters.gem:GemEnv"
            gem.register(PREFIX + id, entry, gym_id=id)
    return [PREFIX + id for id in ids]
