"""Sums over every episode: against values by hand, against sampling, and the estimators against the true gradient."""

import copy
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from recipes import estimators
from recipes.tabular import TabularLearner
from trl_plugins.chat import Chat
from trl_plugins.exact import exact_return, exact_success, restrict_to, walk
from trl_plugins.policies import TransformersPolicy
from trl_plugins.rollout import EnvPool, collect_rollouts
from trl_plugins.tiny_base import tiny_base_path

ONE_TOKEN: dict[str, Any] = {"max_turns": 2, "max_turn_tokens": 1, "epsilon": 0.0}


def restricted(uniform: bool = False) -> tuple[Any, Any, Chat]:
    model: Any = AutoModelForCausalLM.from_pretrained(tiny_base_path())
    tokenizer: Any = AutoTokenizer.from_pretrained(tiny_base_path())
    restrict_to(model, [tokenizer.convert_tokens_to_ids(str(n)) for n in (1, 2, 3, 4)])
    if uniform:
        torch.nn.init.zeros_(model.get_output_embeddings().weight)
    return model, tokenizer, Chat(tokenizer, [tokenizer.eos_token_id])


def test_a_uniform_policy_by_hand() -> None:
    model, _, chat = restricted(uniform=True)
    tree = walk(model, chat, estimators.TASKS, EnvPool().lend(), **ONE_TOKEN)
    assert len(tree.contexts) == 7  # the start; higher after 1, 2, 3; lower after 2, 3, 4
    assert exact_return(model, tree).item() == pytest.approx(1 / 4 + 3 / 4 * 1 / 4)
    found = exact_success(model, chat, estimators.TASKS, EnvPool().lend(), **ONE_TOKEN)
    assert found.success == pytest.approx(0.4375)
    assert found.error == pytest.approx(0.0, abs=1e-6)


def test_the_exact_gradient_equals_finite_differences() -> None:
    model, _, chat = restricted()
    model = model.double()
    tree = walk(model, chat, estimators.TASKS, EnvPool().lend(), **ONE_TOKEN)
    weight = model.model.layers[1].mlp.up_proj.weight
    model.zero_grad()
    exact_return(model, tree).backward()
    direction = torch.randn(weight.shape, generator=torch.Generator().manual_seed(0), dtype=torch.double)
    along = (weight.grad * direction).sum().item()
    values = []
    for sign in (1, -1):
        moved = copy.deepcopy(model)
        with torch.no_grad():
            moved.model.layers[1].mlp.up_proj.weight += sign * 2e-3 * direction
        values.append(exact_return(moved, tree).item())
    # RMSNorm computes in fp32 whatever the weights, hence the coarse step.
    assert (values[0] - values[1]) / 4e-3 == pytest.approx(along, rel=5e-3)


@pytest.mark.parametrize("games", [2_000, pytest.param(20_000, marks=pytest.mark.full)])
def test_exact_success_agrees_with_sampling(tiny: tuple[Any, Any], games: int) -> None:
    model, tokenizer = tiny
    chat, ends = Chat(tokenizer, [tokenizer.eos_token_id]), [tokenizer.eos_token_id]
    found = exact_success(model, chat, estimators.TASKS, EnvPool().lend(), max_turns=2, max_turn_tokens=3, epsilon=1e-5)
    tasks = estimators.TASKS * (games // 4)
    played = collect_rollouts(tasks, EnvPool().lend(), TransformersPolicy(model, ends, 3), chat, max_turns=2, seed=1)
    sampled = sum(game.is_success for game in played) / games
    error = (sampled * (1 - sampled) / games) ** 0.5
    assert found.error < 0.01
    assert found.success - 3 * error <= sampled <= found.success + found.error + 3 * error


def test_a_larger_epsilon_leaves_out_more_and_says_so(tiny: tuple[Any, Any]) -> None:
    model, tokenizer = tiny
    chat = Chat(tokenizer, [tokenizer.eos_token_id])
    limits: dict[str, Any] = {"max_turns": 2, "max_turn_tokens": 3}
    fine = exact_success(model, chat, estimators.TASKS, EnvPool().lend(), epsilon=1e-5, **limits)
    coarse = exact_success(model, chat, estimators.TASKS, EnvPool().lend(), epsilon=1e-2, **limits)
    assert coarse.contexts < fine.contexts
    assert coarse.success <= fine.success <= coarse.success + coarse.error + 1e-6


def test_evaluate_offers_it(make_trainer: Any) -> None:
    trainer = make_trainer({"eval_dataset": estimators.TASKS}, eval_exact_epsilon=1e-3)
    metrics = trainer.evaluate()
    assert 0 < metrics["eval_success_exact"] <= metrics["eval_success_exact"] + metrics["eval_success_exact_error"] <= 1


@pytest.mark.parametrize("policy", ["language_model", "tabular"])
def test_the_estimators_against_the_true_gradient(tmp_path: Any, monkeypatch: pytest.MonkeyPatch, policy: str) -> None:
    monkeypatch.setattr(estimators, "CHECKED", 1)
    policies = {"language_model": lambda: estimators.LanguageModelLearner(str(tmp_path), seed=0)}
    learner = policies.get(policy, lambda: TabularLearner(seed=0))()
    value, truth = learner.true_gradient()
    assert 0 < value < 1
    found, worst = estimators.measure(learner, 40 * estimators.BATCH, truth, seed=0)
    assert worst < 1e-4, "the added-up gradient must be that of the whole batch's loss"
    for estimate in found:
        if not estimators.known_bias(estimate.method, estimate.credit):
            assert abs(estimate.bias) < 2 * estimate.interval, estimate
            assert estimate.cosine > 0.98
    by_name = {(e.method, e.credit): e for e in found}
    assert by_name["batch_norm", "trajectory"].bias > 5 * by_name["batch_norm", "trajectory"].interval
    assert by_name["constant", "trajectory"].variance_ratio < 1.0
