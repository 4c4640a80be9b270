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
import gymnasium.wrappers

import agent_envs

try:
    import textarena  # pyright: ignore[reportMissingImports]
except ImportError as error:
    raise ImportError(
        "agent_envs.adapters.textarena needs TextArena; install it with: pip install textarena"
    ) from error

PREFIX = "agent_envs:"
PLAYER_ACTION, GAME_MESSAGE = textarena.ObservationType.PLAYER_ACTION, textarena.ObservationType.GAME_MESSAGE


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
        # A step is to cost little more than the environment's own; OrderEnforcing only checks that reset came first.
        inner = self.env.env if isinstance(self.env, gymnasium.wrappers.OrderEnforcing) else self.env
        self._step = inner.step

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
        state = self.state
        observation, reward, terminated, truncated, self.info = self._step(action)
        reward = float(reward)
        self.total += reward
        # What two calls of state.add_observation would do, in half the time: role tags of the player are no message.
        said, seen = (0, action.replace("[Player]", "")), (textarena.GAME_ID, observation)
        state.logs += (said, seen)
        state.observations[0] += ((*said, PLAYER_ACTION), (*seen, GAME_MESSAGE))
        state.step_info = {**self.info, "reward": reward, "terminated": terminated, "truncated": truncated}
        if terminated or truncated:
            state.game_info[0]["is_success"] = bool(self.info.get("is_success", False))
            state.set_outcome(reward=self.total, reason=observation)
        return state.step()


def register_all() -> list[str]:
    """Register every id of this package with TextArena, once; returns TextArena's names for them.

    Each is wrapped so that an observation is one string, the game so far; `<name>-raw` gives TextArena's messages.
    """
    from textarena.envs.registration import ENV_REGISTRY, register  # pyright: ignore[reportMissingImports]

    ids = sorted(agent_envs.registered_ids())
    for id in ids:
        for name, wrappers in ((PREFIX + id, [textarena.wrappers.LLMObservationWrapper]), (PREFIX + id + "-raw", [])):
            if name not in ENV_REGISTRY:
                register(name, "agent_envs.adapters.textarena:TextArenaEnv", default_wrappers=wrappers, gym_id=id)
    return [PREFIX + id for id in ids]
