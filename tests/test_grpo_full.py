"""GRPO in full, by TRL's own options, on episodes of several turns: inner iterations, clipping, KL to the base."""

from typing import Any

import pytest
import torch


def train_and_watch(make_trainer: Any, **settings: Any) -> tuple[Any, list[dict[str, Any]]]:
    """Two optimizer steps; for each, what the loss was given (`inputs`), the policy's log-probabilities (N, C), and
    the loss."""
    trainer = make_trainer(max_steps=2, advantage="dr_grpo", **settings)
    steps: list[dict[str, Any]] = []
    score, loss = trainer._get_per_token_logps_and_entropies, trainer._compute_loss
    rows_that_pull = trainer._rows_that_pull

    def spy_rows(inputs: dict[str, Any]) -> dict[str, Any]:
        steps.append({"inputs": rows_that_pull(inputs), "all_rows": len(inputs["completion_ids"])})
        return steps[-1]["inputs"]

    def spy_score(*args: Any, **kwargs: Any) -> Any:
        result = score(*args, **kwargs)
        if kwargs.get("compute_entropy"):  # the loss asks for it; scoring old and reference policies does not
            steps[-1]["logps"] = result[0].detach()
        return result

    def spy_loss(*args: Any, **kwargs: Any) -> torch.Tensor:
        value = loss(*args, **kwargs)
        steps[-1]["loss"] = value.item()
        return value

    trainer._rows_that_pull, trainer._compute_loss = spy_rows, spy_loss
    trainer._get_per_token_logps_and_entropies = spy_score
    trainer.train()
    assert len(steps) == 2
    return trainer, steps


def mask_of(inputs: dict[str, Any]) -> torch.Tensor:
    return inputs["completion_mask"] * inputs["tool_mask"]


def expected_loss(trainer: Any, step: dict[str, Any]) -> float:
    """-mean over all rows of sum over sampled tokens of min(r w, clip(r) w) - beta k3, over C. Written from the papers
    (Shao et al. 2024, eq. 3 and 4; Dr. GRPO's constant)."""
    inputs, args = step["inputs"], trainer.args
    weight = inputs["advantages"].view(len(inputs["advantages"]), -1)
    old = inputs.get("old_per_token_logps", step["logps"])
    ratio = (step["logps"] - old).exp()
    high = args.epsilon if args.epsilon_high is None else args.epsilon_high
    gain = torch.minimum(ratio * weight, ratio.clamp(1 - args.epsilon, 1 + high) * weight)
    if args.beta:
        gain = gain - args.beta * k3(step)
    total = (gain * mask_of(inputs)).sum() / step["all_rows"]
    return -total.item() / (args.max_turns * args.max_turn_tokens)


def k3(step: dict[str, Any]) -> torch.Tensor:
    """r - 1 - log r with r = reference over policy, (N, C)."""
    gap = step["inputs"]["ref_per_token_logps"] - step["logps"]
    return gap.exp() - 1 - gap


def test_several_inner_iterations_on_one_batch(make_trainer: Any) -> None:
    trainer, (first, second) = train_and_watch(make_trainer, num_iterations=2)
    for key in ("completion_ids", "old_per_token_logps", "advantages"):
        assert torch.equal(first["inputs"][key], second["inputs"][key]), f"{key}: both steps train on one batch"
    mask = mask_of(first["inputs"]).bool()
    assert (~mask & first["inputs"]["completion_mask"].bool()).any(), "the episodes have several turns"
    old = first["inputs"]["old_per_token_logps"]
    assert ((first["logps"] - old).exp()[mask] - 1).abs().max() < 1e-5
    assert ((second["logps"] - old).exp()[mask] - 1).abs().max() > 1e-3
    for step in (first, second):
        assert step["loss"] == pytest.approx(expected_loss(trainer, step), abs=1e-6)


def test_clipping_stops_what_has_moved_too_far(make_trainer: Any) -> None:
    narrow = {"num_iterations": 2, "epsilon": 1e-4, "epsilon_high": 2e-4, "learning_rate": 1e-2}
    trainer, (_, second) = train_and_watch(make_trainer, **narrow)
    log = [row["clip_ratio/region_mean"] for row in trainer.state.log_history if "clip_ratio/region_mean" in row]
    assert log[0] == 0.0
    assert log[1] > 0.0
    inputs = second["inputs"]
    ratio, weight = (second["logps"] - inputs["old_per_token_logps"]).exp(), inputs["advantages"][:, None]
    clipped = ((ratio < 1 - 1e-4) & (weight < 0)) | ((ratio > 1 + 2e-4) & (weight > 0))
    mask = mask_of(inputs)
    assert log[1] == pytest.approx(((clipped * mask).sum() / mask.sum()).item(), abs=1e-6)
    assert second["loss"] == pytest.approx(expected_loss(trainer, second), abs=1e-6)


def test_kl_to_the_base_is_zero_at_first_and_then_pulls_back(make_trainer: Any) -> None:
    trainer, (first, second) = train_and_watch(make_trainer, beta=0.5, learning_rate=1e-2)
    assert trainer.ref_model is None, "the reference is the same model with its adapter off"
    kl = [row["kl"] for row in trainer.state.log_history if "kl" in row]
    assert kl[0] == 0.0
    assert kl[1] > 0.0
    mask = mask_of(second["inputs"])
    assert kl[1] == pytest.approx(((k3(second) * mask).sum() / mask.sum()).item(), abs=1e-6)
    for step in (first, second):
        assert step["loss"] == pytest.approx(expected_loss(trainer, step), abs=1e-6)
    # The reference does not move with the policy: scored again with the adapter off, it is what it was.
    inputs = second["inputs"]
    ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
    attention = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1)
    with torch.no_grad(), trainer.model.disable_adapter():
        again, _, _ = trainer._get_per_token_logps_and_entropies(
            trainer.model, ids, attention, inputs["completion_ids"].shape[1]
        )
    gap = (again - inputs["ref_per_token_logps"]) * mask
    assert gap.abs().max() < 1e-5


def test_without_inner_iterations_and_kl_nothing_more_is_computed(make_trainer: Any) -> None:
    _, steps = train_and_watch(make_trainer)
    for step in steps:
        assert not {"old_per_token_logps", "ref_per_token_logps"} & step["inputs"].keys()
