"""The environments in TextArena, as single-player games.

    from agent_envs.adapters.textarena import register_all
    register_all()
    env = textarena.make("agent_envs:NumberSearch-v0")
    env.reset(num_players=1, seed=0)
    player, observation = env.get_observation()
    done, step_info = env.step("8")
    rewards, game_info = env.close()

TextArena pays once, when the game ends, so the reward is the episode's return. An invalid action keeps the consequence
that the environment itself states; TextArena's own count of errors is left alone.
"""

# pyright: reportAttributeAccessIssue=false
# (pyright takes this very file for the framework of the same name)

from __future__ import annotations

from typing import Any

import gymnasium

import agent_envs  # noqa: F401  registers the ids

try:
    import textarena  # pyright: ignore[reportMissingImports]
except ImportError as error:
    raise ImportError(
        "agent_envs.adapters.textarena needs TextArena; install it with: pip install textarena"
    ) from error

PREFIX = "agent_envs:"


class TextArenaEnv(textarena.Env):
    """One environment as a game for one player.

    Args:
        gym_id: a registered id.
        options: reset options, the same each game.
        settings: for `gymnasium.make`.
    """

    def __init__(self, gym_id: str, options: dict[str, Any] | None = None, **settings: Any) -> None:
        super().__init__()
        self.env = gymnasium.make(gym_id, disable_env_checker=True, **settings)
        self.options = options

    def reset(self, num_players: int = 1, seed: int | None = None) -> None:
        if num_players != 1:
            raise ValueError(f"num_players={num_players}: this is a game for one player")
        observation, self.info = self.env.reset(seed=seed, options=self.options)
        # The seed is not handed on: TextArena's state would seed Python's global generator with it.
        self.state = textarena.SinglePlayerState(
            num_players=1, max_turns=getattr(self.env.unwrapped, "max_turns", None)
        )
        self.state.reset(
            game_state={}, player_prompt_function=lambda player_id, game_state: observation, role_mapping={0: "Player"}
        )
        self.total = 0.0

    def step(self, action: str) -> tuple[bool, dict[str, Any]]:
        types = textarena.ObservationType
        self.state.add_observation(from_id=0, to_id=-1, message=action, observation_type=types.PLAYER_ACTION)
        observation, reward, terminated, truncated, self.info = self.env.step(action)
        self.total += float(reward)
        self.state.add_observation(message=observation, observation_type=types.GAME_MESSAGE)
        self.state.step_info = {**self.info, "reward": float(reward), "terminated": terminated, "truncated": truncated}
        if terminated or truncated:
            self.state.game_info[0]["is_success"] = bool(self.info.get("is_success", False))
            self.state.set_outcome(reward=self.total, reason=observation)
        return self.state.step()


def register_all() -> list[str]:
    """Register every id of this package with TextArena, once; returns TextArena's names for them.

    Each is wrapped so that an observation is one string, the game so far; `<name>-raw` gives TextArena's messages.
    """
    from textarena.envs.registration import ENV_REGISTRY, register  # pyright: ignore[reportMissingImports]

    ids = sorted(id for id, spec in gymnasium.registry.items() if str(spec.entry_point).startswith("agent_envs"))
    for id in ids:
        for name, wrappers in ((PREFIX + id, [textarena.wrappers.LLMObservationWrapper]), (PREFIX + id + "-raw", [])):
            if name not in ENV_REGISTRY:
                register(name, "agent_envs.adapters.textarena:TextArenaEnv", default_wrappers=wrappers, gym_id=id)
    return [PREFIX + id for id in ids]
