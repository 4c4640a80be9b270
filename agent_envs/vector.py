"""Many text environments stepped as one: what `gymnasium.make_vec(id, num_envs=n)` gives for every id of this package.

`TextVectorEnv` gives what Gymnasium's `SyncVectorEnv` gives (same observations, rewards, flags and infos for the same
seeds and actions) without its work per step: no wrapper around each sub-environment, no copying of strings that cannot
change, and one array for each info key instead of one assignment for each key and environment.

Gymnasium's own vector environments work too (`vectorization_mode="sync"` or `"async"`), with one thing to know about
`AsyncVectorEnv`. Its shared memory loses text: for a `gymnasium.spaces.Text` it returns `"000..."` in place of every
observation and says nothing. The environments here have the space `FreeText`, for which `shared_memory=True` (its
default) is refused with a `ValueError`; with `vector_kwargs={"shared_memory": False}` it returns the right text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from importlib import import_module
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from agent_envs.text import Info, TextEnv

Texts = tuple[str, ...]
Step = tuple[Texts, np.ndarray, np.ndarray, np.ndarray, Info]


class TextVectorEnv(VectorEnv[Texts, Texts, np.ndarray]):
    """`num_envs` text environments of one kind, stepped in one plain loop in this process.

    Observations and actions are tuples of `num_envs` strings (a list or an array of strings is taken as actions too).
    Rewards are float64, `terminations` and `truncations` bool arrays. Infos have Gymnasium's vector form: an array for
    each key and a mask `_key` of the environments that gave it.

    What happens to an environment whose episode has ended is `autoreset_mode` (`metadata["autoreset_mode"]`):
    `NEXT_STEP` resets it in the next `step`, whose action for it is ignored and whose reward is 0; `SAME_STEP` resets
    it at once and puts its last observation and info into `final_obs` and `final_info`; `DISABLED` leaves it, and it
    must be reset with `reset(options={"reset_mask": mask})` before the next `step`.

    Args:
        env_class: the environment to run; called with `kwargs`.
        num_envs: how many, at least 1.
        autoreset_mode: an `AutoresetMode`, or its value ("NextStep", "SameStep", "Disabled").
        kwargs: options of every sub-environment, `render_mode` included.

    Raises:
        ValueError: fewer than one environment, or an unknown mode.
    """

    def __init__(
        self,
        env_class: Callable[..., TextEnv],
        num_envs: int = 1,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        **kwargs: Any,
    ) -> None:
        super().__init__()
        if num_envs < 1:
            raise ValueError(f"num_envs={num_envs}: give at least 1")
        self.autoreset_mode = AutoresetMode(autoreset_mode)
        self.envs = [env_class(**kwargs) for _ in range(num_envs)]
        self.num_envs = num_envs
        self.metadata = {**self.envs[0].metadata, "autoreset_mode": self.autoreset_mode}
        self.render_mode = self.envs[0].render_mode
        self.single_observation_space = self.envs[0].observation_space
        self.single_action_space = self.envs[0].action_space
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._observations = [""] * num_envs
        self._ended = [False] * num_envs

    def reset(  # type: ignore[override]
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Texts, Info]:
        """Begin an episode in every environment, or in those of `options["reset_mask"]`.

        Args:
            seed: None; one number s, for the seeds s, s+1, ..., s+num_envs-1; or a list with one seed (or None) each.
            options: reset options of every environment. The key `reset_mask` (bool array, one entry an environment)
                is taken out; environments outside it keep their episode and their last observation.

        Raises:
            ValueError: wrong number of seeds; a mask of the wrong shape or without any True.
            TypeError: a mask that is not a bool array.
        """
        if seed is None:
            seeds: Sequence[int | None] = [None] * self.num_envs
        elif isinstance(seed, (int, np.integer)):
            seeds = [int(seed) + i for i in range(self.num_envs)]
        else:
            seeds = seed
        if len(seeds) != self.num_envs:
            raise ValueError(f"got {len(seeds)} seeds for {self.num_envs} environments")
        chosen: Iterable[int] = range(self.num_envs)
        if options is not None and "reset_mask" in options:
            options = dict(options)  # the caller's dict stays whole; SyncVectorEnv takes the mask out of it
            chosen = np.flatnonzero(self._check_mask(options.pop("reset_mask"))).tolist()
        infos: list[Info | None] = [None] * self.num_envs
        for i in chosen:
            self._observations[i], infos[i] = self.envs[i].reset(seed=seeds[i], options=options)
            self._ended[i] = False
        return tuple(self._observations), _batch(infos)

    def _check_mask(self, mask: Any) -> np.ndarray:
        if not isinstance(mask, np.ndarray) or mask.dtype != np.bool_:
            raise TypeError(f"options['reset_mask'] must be a numpy array of bool, got {type(mask).__name__}")
        if mask.shape != (self.num_envs,):
            raise ValueError(f"options['reset_mask'] has shape {mask.shape}, not ({self.num_envs},)")
        if not mask.any():
            raise ValueError("options['reset_mask'] is False everywhere: it would reset nothing")
        return mask

    def step(self, actions: Sequence[str] | np.ndarray) -> Step:  # type: ignore[override]
        """One turn of every environment.

        Raises:
            TypeError: `actions` is one string rather than one an environment.
            ValueError: wrong number of actions.
            gymnasium.error.ResetNeeded: before the first reset, or (mode `DISABLED`) where an episode has ended.
        """
        if isinstance(actions, str):
            raise TypeError(f"step takes {self.num_envs} strings, one an environment, not a single string")
        if len(actions) != self.num_envs:
            raise ValueError(f"got {len(actions)} actions for {self.num_envs} environments")
        mode, observations, ended = self.autoreset_mode, self._observations, self._ended
        if mode is AutoresetMode.DISABLED and any(ended):
            which = [i for i, over in enumerate(ended) if over]
            raise gymnasium.error.ResetNeeded(f"the episodes of environments {which} are over; reset them (reset_mask)")
        next_step, same_step = mode is AutoresetMode.NEXT_STEP, mode is AutoresetMode.SAME_STEP
        n = self.num_envs
        rewards: list[Any] = [0.0] * n
        terminations, truncations = [False] * n, [False] * n
        infos: list[Info | None] = [None] * n
        finals: list[Info | None] = [None] * n
        for i, env in enumerate(self.envs):
            if next_step and ended[i]:
                observations[i], infos[i] = env.reset()
                ended[i] = False
                continue
            observations[i], rewards[i], terminations[i], truncations[i], infos[i] = env.step(actions[i])
            ended[i] = terminations[i] or truncations[i]
            if same_step and ended[i]:
                finals[i] = {"final_obs": observations[i], "final_info": infos[i]}
                observations[i], infos[i] = env.reset()
        batched = _batch(infos)
        if same_step and any(finals):
            batched.update(_batch(finals))
        flags = np.array(terminations, dtype=np.bool_), np.array(truncations, dtype=np.bool_)
        return tuple(observations), np.array(rewards, dtype=np.float64), *flags, batched

    # The rest of what SyncVectorEnv offers.

    def render(self) -> tuple[Any, ...]:
        """Each environment's `render()`."""
        return tuple(env.render() for env in self.envs)

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Each environment's attribute `name`, called with the arguments where it is callable."""
        found = (env.get_wrapper_attr(name) for env in self.envs)
        return tuple(value(*args, **kwargs) if callable(value) else value for value in found)

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """Each environment's attribute `name` (a method is called without arguments)."""
        return self.call(name)

    def set_attr(self, name: str, values: Any) -> None:
        """Set attribute `name`: one value each where `values` is a list or tuple, else the same value for all."""
        if not isinstance(values, (list, tuple)):
            values = [values] * self.num_envs
        if len(values) != self.num_envs:
            raise ValueError(f"got {len(values)} values for {self.num_envs} environments")
        for env, value in zip(self.envs, values, strict=True):
            env.set_wrapper_attr(name, value)

    @property
    def np_random(self) -> tuple[np.random.Generator, ...]:  # type: ignore[override]
        """The random generators of the environments."""
        return self.get_attr("np_random")

    @property
    def np_random_seed(self) -> tuple[int, ...]:  # type: ignore[override]
        """The seeds of the environments' random generators."""
        return self.get_attr("np_random_seed")

    def close_extras(self, **kwargs: Any) -> None:
        """Close every environment."""
        for env in self.envs:
            env.close()


# --- Infos -----------------------------------------------------------------------------------------------------------


def _batch(infos: list[Info | None]) -> Info:
    """The infos of all environments (None where one gave none) in Gymnasium's vector form.

    As in `VectorEnv._add_info`, the first value of a key decides its array: numbers and bools get an array of their
    type with 0 where the key is missing, dicts become a dict of arrays, all else an object array with None.
    """
    present = [(i, info) for i, info in enumerate(infos) if info is not None]
    if not present:
        return {}
    n, first = len(infos), present[0][1]
    if len(present) == n and all(info.keys() == first.keys() for _, info in present):
        # Every environment gave every key, as in nearly every step: whole columns at a time.
        batched = {}
        for key in first:
            batched[key] = _column([info[key] for _, info in present])
            batched[f"_{key}"] = np.ones(n, dtype=np.bool_)
        return batched
    columns: dict[str, tuple[list[int], list[Any]]] = {}
    for i, info in present:
        for key, value in info.items():
            where, values = columns.setdefault(key, ([], []))
            where.append(i)
            values.append(value)
    batched = {}
    for key, (where, values) in columns.items():
        mask = np.zeros(n, dtype=np.bool_)
        mask[where] = True
        batched[key], batched[f"_{key}"] = _spread(where, values, n), mask
    return batched


def _column(values: list[Any]) -> Any:
    """One key's values where every environment gave one."""
    kind = type(values[0])
    if kind in (int, float, bool) or issubclass(kind, np.number):
        return np.array(values, dtype=kind)
    if issubclass(kind, np.ndarray):
        return np.stack(values)
    if issubclass(kind, dict):
        return _batch(values)
    return np.fromiter(values, dtype=object, count=len(values))


def _spread(where: list[int], values: list[Any], n: int) -> Any:
    """One key's values where only the environments `where` gave one."""
    if isinstance(values[0], dict):
        rows: list[Info | None] = [None] * n
        for i, value in zip(where, values, strict=True):
            rows[i] = value
        return _batch(rows)
    column = _column(values)
    shape = (n, *column.shape[1:])
    spread = np.full(shape, None, dtype=object) if column.dtype == object else np.zeros(shape, column.dtype)
    spread[where] = column
    return spread


def __getattr__(name: str) -> Callable[..., TextVectorEnv]:
    # Gymnasium finds a vector environment by "module:attribute". With `agent_envs.number_search.NumberSearchEnv` as the
    # attribute of this module, one string names both this class and its sub-environment; a callable in the string's
    # place would make `EnvSpec.to_json` fail for the whole id.
    module, _, env_class = name.rpartition(".")
    if not module:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return partial(TextVectorEnv, getattr(import_module(module), env_class))
