"""The carried cache against full recomputation: the same tokens, the same log-probabilities, each token once."""

from typing import Any

import pytest
import torch

import agent_envs
from agent_envs.tasks import Task
from trl_plugins.chat import Chat
from trl_plugins.policies import PADDING, TransformersPolicy, VLLMPolicy, _stop, cache_can_be_carried
from trl_plugins.rollout import EnvPool, Trajectory, collect_rollouts

# Invalid replies and several ids make replies of different lengths: ragged turns and ragged prompts.
TASKS = [
    *agent_envs.task_set("NumberSearch-v0"),
    *agent_envs.task_set("NumberSearchHard-v0", size=8),
    *[Task("NumberSearch-v0", 0, {"target": 3})] * 8,
]
CRAFTING = list(agent_envs.task_set("Crafting-v0", size=12, tier=0))  # no two answers are as long as each other


def rollout(
    model: Any, tokenizer: Any, seed: int = 0, tasks: list[Task] = TASKS, **settings: Any
) -> tuple[list[Trajectory], TransformersPolicy]:
    ends = [tokenizer.eos_token_id]
    given: dict[str, Any] = {"max_turn_tokens": 3 if tasks is TASKS else 8} | settings
    policy = TransformersPolicy(model, ends, **given)
    lend = EnvPool().lend()
    return collect_rollouts(tasks, lend, policy, Chat(tokenizer, ends), max_turns=7, seed=seed), policy


def tokens(games: list[Trajectory]) -> list[list[int]]:
    return [game.completion_ids for game in games]


@pytest.mark.parametrize("tasks", [TASKS, CRAFTING], ids=["numbers", "crafting"])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_greedy_tokens_equal_full_recomputation(tiny: tuple[Any, Any], attention: str, tasks: list[Task]) -> None:
    model, tokenizer = tiny
    model.set_attn_implementation(attention)
    try:
        carried, _ = rollout(model, tokenizer, temperature=0.0, tasks=tasks)
        recomputed, _ = rollout(model, tokenizer, temperature=0.0, carry_cache=False, tasks=tasks)
    finally:
        model.set_attn_implementation("sdpa")
    assert tokens(carried) == tokens(recomputed)


@pytest.mark.parametrize("tasks", [TASKS, CRAFTING], ids=["numbers", "crafting"])
@pytest.mark.parametrize("temperature", [1.0, 1.7])
def test_logprobs_equal_one_forward_pass_over_the_finished_episode(
    tiny: tuple[Any, Any], temperature: float, tasks: list[Task]
) -> None:
    model, tokenizer = tiny
    games, _ = rollout(model, tokenizer, temperature=temperature, tasks=tasks)
    assert len({len(ids) for ids in tokens(games)}) > 3, "the rollout was meant to be ragged"
    worst = 0.0
    for game in games:
        ids = torch.tensor([game.prompt_ids + game.completion_ids])
        with torch.no_grad():
            logps = (model(ids).logits[0, :-1] / temperature).log_softmax(-1)
        whole = logps.gather(-1, ids[0, 1:, None])[len(game.prompt_ids) - 1 :, 0]
        sampled = torch.tensor(game.env_mask).bool()
        worst = max(worst, (whole - torch.tensor(game.logprobs))[sampled].abs().max().item())
    assert worst < 1e-4


@pytest.mark.parametrize("lengths", [[5], [3, 3, 4], [1, 40], [57, 60, 63, 66, 140], [2, 2, 2, 30]])
def test_a_pass_holds_little_padding(lengths: list[int]) -> None:
    left, passes = lengths, 0
    while left:
        stop, passes = _stop(left), passes + 1
        assert sum(max(stop - n, 0) for n in left) <= PADDING * sum(min(n, stop) for n in left)
        left = [n - stop for n in left if n > stop]
    assert passes <= 2


@pytest.mark.parametrize("tasks", [TASKS, CRAFTING], ids=["numbers", "crafting"])
def test_every_token_passes_through_the_model_once(tiny: tuple[Any, Any], tasks: list[Task]) -> None:
    games, policy = rollout(*tiny, tasks=tasks)
    distinct_prompts = {tuple(game.prompt_ids) for game in games}
    fed = sum(map(len, distinct_prompts)) + sum(len(ids) - 1 for ids in tokens(games))
    # Of a turn cut by the cap at the very end, and of each episode's last token, nothing more is needed.
    assert policy.tokens_computed == fed
    turns = sum(len(game.turns) for game in games)
    assert policy.tokens_computed <= sum(map(len, distinct_prompts)) + sum(map(len, tokens(games))) + turns


@pytest.mark.parametrize("micro_batch", [1, 5])
def test_the_micro_batch_changes_nothing_but_memory(tiny: tuple[Any, Any], micro_batch: int) -> None:
    whole, _ = rollout(*tiny, temperature=0.0)
    parts, _ = rollout(*tiny, temperature=0.0, micro_batch=micro_batch)
    assert tokens(whole) == tokens(parts)


def test_a_seed_gives_the_same_tokens_and_touches_no_global_generator(tiny: tuple[Any, Any]) -> None:
    before = torch.get_rng_state()
    first, _ = rollout(*tiny, seed=5)
    second, _ = rollout(*tiny, seed=5)
    other, _ = rollout(*tiny, seed=6)
    assert tokens(first) == tokens(second) != tokens(other)
    assert torch.equal(before, torch.get_rng_state())


def test_the_models_mode_is_restored(tiny: tuple[Any, Any]) -> None:
    model = tiny[0]
    model.train()
    try:
        rollout(*tiny, max_turn_tokens=1)
        assert model.training
    finally:
        model.eval()


def test_a_turn_cut_by_the_cap_is_marked_and_played(tiny: tuple[Any, Any]) -> None:
    games, _ = rollout(*tiny, max_turn_tokens=1)
    turns = [turn for game in games for turn in game.turns]
    assert all(len(turn.action_ids) == 1 for turn in turns)
    assert any(turn.finish == "length" and not turn.invalid for turn in turns)


def test_top_k_of_one_is_greedy(tiny: tuple[Any, Any]) -> None:
    assert tokens(rollout(*tiny, top_k=1)[0]) == tokens(rollout(*tiny, temperature=0.0)[0])


def test_top_p_and_min_p_cut_the_tail(tiny: tuple[Any, Any]) -> None:
    free = rollout(*tiny)[0]
    cuts: list[dict[str, Any]] = [{"top_p": 0.1}, {"min_p": 0.9}]
    for cut in cuts:
        games = rollout(*tiny, **cut)[0]

        def mean(games: list[Trajectory]) -> float:
            sampled = [p for g in games for t in g.turns for p in t.logprobs]
            return sum(sampled) / len(sampled)

        assert mean(games) > mean(free)


def test_models_whose_cache_cannot_be_carried_are_recognised(tiny: tuple[Any, Any]) -> None:
    from transformers import Gemma3TextConfig

    class Model:
        config: Any = Gemma3TextConfig(num_hidden_layers=6)

    assert cache_can_be_carried(tiny[0])
    assert not cache_can_be_carried(Model())


@pytest.mark.parametrize(
    ("settings", "word"), [({"max_turn_tokens": 0}, "max_turn_tokens=0"), ({"temperature": -1.0}, "temperature=-1")]
)
def test_bad_settings(tiny: tuple[Any, Any], settings: dict[str, Any], word: str) -> None:
    given: dict[str, Any] = {"max_turn_tokens": 3} | settings
    with pytest.raises(ValueError, match=word):
        TransformersPolicy(tiny[0], [1], **given)


def test_vllm_policy_caps_each_turn_and_reads_the_sampled_logprob() -> None:
    class Generation:
        max_completion_length, temperature = 32, 1.0

        def generate(self, prompts: Any, images: Any, num_generations: int) -> Any:
            assert (self.max_completion_length, self.temperature, num_generations) == (4, 0.0, 1)
            return prompts, [[5, 1], [5, 6]], [[[-0.5], [-0.1]], [[-0.5], [-0.2]]], None

    generation = Generation()
    stopped, cut = VLLMPolicy(generation, [1], 4, temperature=0.0).act([0, 1], [[3], [3]])
    assert (stopped.finish, cut.finish, cut.logprobs) == ("stop", "length", [-0.5, -0.2])
    assert (generation.max_completion_length, generation.temperature) == (32, 1.0)
