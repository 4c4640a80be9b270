"""Credit turn by turn through the real trainer: the value head, the oracle, and turns compared with each other."""

import json
import math
from typing import Any

import pytest
import torch

import agent_envs
from trl_plugins.critic import Critic, turn_features
from trl_plugins.trainer import row_task, turn_keys

GROUPED = {"credit": "turn_group", "advantage": "rloo"}


def played(trainer: Any, n: int = 16, seed: int = 0) -> tuple[list[Any], torch.Tensor]:
    tasks = [row_task(row) for row in trainer.train_dataset][: n // 4]
    trajectories = trainer.play([task for task in tasks for _ in range(4)], seed)
    return trajectories, torch.tensor([t.total_return for t in trajectories])


def test_oracle_weights_are_reward_to_go_less_the_value_of_optimal_play(make_trainer: Any) -> None:
    trainer = make_trainer(advantage="oracle")
    trajectories, returns = played(trainer)
    weights = trainer.weights(trajectories, returns)
    assert trainer.args.credit == "reward_to_go"
    env: Any = trainer.env_pool.lend()("NumberSearch-v0")
    for row, trajectory in enumerate(trajectories):
        _, info = env.reset(seed=trajectory.task.seed, options=dict(trajectory.task.options))
        for t, turn in enumerate(trajectory.turns):
            assert weights[row, t].item() == pytest.approx(returns[row].item() - info["value"])
            *_, info = env.step(trainer.chat.said(turn.action_ids))
        assert weights[row, len(trajectory.turns) :].abs().sum() == 0


def test_oracle_refuses_an_environment_that_does_not_tell_its_value(make_trainer: Any) -> None:
    rows = agent_envs.task_set("Sort-v0", "train", 16)
    trainer = make_trainer({"train_dataset": rows, "eval_dataset": rows}, advantage="oracle", max_turn_tokens=16)
    with pytest.raises(ValueError, match=r"Sort-v0 does not tell it \(info\['value'\]"):
        trainer.weights(*played(trainer))


def test_the_oracle_knows_the_crafting_world_where_it_is_asked_to() -> None:
    import gymnasium

    env: Any = gymnasium.make("CraftingEasy-v0", info_level="full").unwrapped
    _, info = env.reset(seed=3)
    assert info["value"] == 1.0
    for _ in range(env.task.budget - info["optimal_steps"]):
        *_, info = env.step("go nowhere")
    assert info["value"] == 1.0  # just enough steps are left
    *_, info = env.step("go nowhere")
    assert info["value"] == 0.0


def test_features_are_the_hidden_states_where_the_policy_speaks(make_trainer: Any) -> None:
    trainer = make_trainer(advantage="value")
    trajectories, _ = played(trainer)
    features = turn_features(trainer.model, trajectories, 4)
    for row in (0, 5, 11):
        trajectory, context = trajectories[row], list(trajectories[row].prompt_ids)
        for t, turn in enumerate(trajectory.turns):
            with torch.no_grad():
                alone = trainer.model(input_ids=torch.tensor([context]), output_hidden_states=True).hidden_states[-1]
            torch.testing.assert_close(features[row, t], alone[0, -1], rtol=1e-4, atol=1e-4)
            context += turn.action_ids + turn.reply_ids
        assert features[row, len(trajectory.turns) :].abs().sum() == 0


def test_weights_come_from_the_head_as_it_was_before_the_batch(make_trainer: Any) -> None:
    trainer = make_trainer(advantage="value")
    trajectories, returns = played(trainer)
    first = trainer.weights(trajectories, returns)
    for row, trajectory in enumerate(trajectories):  # V is 0 at the start: reward-to-go itself
        assert first[row, : len(trajectory.turns)].tolist() == [returns[row].item()] * len(trajectory.turns)
    second = trainer.weights(trajectories, returns)
    expected = first - trainer_values_after_one_lesson(trainer, trajectories, first)
    torch.testing.assert_close(second, expected)


def trainer_values_after_one_lesson(trainer: Any, trajectories: list[Any], targets: torch.Tensor) -> torch.Tensor:
    args = trainer.args
    critic = Critic(trainer.model.config.hidden_size, args.value_learning_rate, args.value_epochs, args.seed)
    features = turn_features(trainer.model, trajectories, args.max_turns)
    playing = torch.tensor([[t < len(x.turns) for t in range(args.max_turns)] for x in trajectories])
    critic.learn(features, targets, playing)
    return critic.values(features) * playing


def test_the_head_learns_a_value_it_can_read() -> None:
    critic = Critic(width=8, learning_rate=1e-2, epochs=300, seed=0)
    features = torch.randn(64, 3, 8, generator=torch.Generator().manual_seed(1))
    targets, counts = (features[..., 0] > 0).float(), torch.ones(64, 3, dtype=torch.bool)
    before = critic.learn(features, targets, counts)
    after = critic.learn(features, targets, counts)
    assert before == pytest.approx(targets.square().mean().item())
    assert after < 0.2 * targets.var().item()


def test_the_value_head_comes_back_from_a_checkpoint(make_trainer: Any, tmp_path: Any) -> None:
    settings: dict[str, Any] = {"advantage": "value", "save_strategy": "steps", "save_steps": 1}
    whole = make_trainer(**settings, max_steps=3)
    whole.train()
    for file in ("critic.pt", "baseline.json"):
        assert (tmp_path / "run" / "checkpoint-2" / file).is_file()
    resumed = make_trainer(**settings, max_steps=3)
    resumed.train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-2"))
    for name, tensor in whole.critic.head.state_dict().items():
        torch.testing.assert_close(resumed.critic.head.state_dict()[name], tensor, rtol=0, atol=0)
    for (name, a), (_, b) in zip(whole.model.named_parameters(), resumed.model.named_parameters(), strict=True):
        assert torch.equal(a, b), name
    losses = [row["value_loss"] for row in whole.state.log_history if "value_loss" in row]
    assert len(losses) == 3
    assert all(math.isfinite(loss) and loss > 0 for loss in losses)


def test_equal_histories_share_a_key_and_equal_states_only_within_a_task(make_trainer: Any) -> None:
    trainer = make_trainer(**GROUPED, turn_group_by="state")
    trajectories, _ = played(trainer, 64)
    histories = [turn_keys(t, "history") for t in trajectories]
    states = [turn_keys(t, "state") for t in trajectories]
    assert len({keys[0] for keys in histories}) == 1  # every task opens alike
    assert len({keys[0] for keys in states}) == len({json.dumps(t.task.options) for t in trajectories}) > 1
    seen: dict[str, tuple[Any, ...]] = {}
    for t, keys in zip(trajectories, histories, strict=True):
        for turn, key in enumerate(keys):
            said = tuple((tuple(x.action_ids), tuple(x.reply_ids)) for x in t.turns[:turn])
            assert seen.setdefault(key, said) == said


def test_turn_group_weights_compare_equal_histories(make_trainer: Any) -> None:
    trainer = make_trainer(**GROUPED)
    trajectories, returns = played(trainer)
    weights = trainer.weights(trajectories, returns)
    others = (returns.sum() - returns) / (len(returns) - 1)
    torch.testing.assert_close(weights[:, 0], returns - others)  # one history at the opening, of all tasks


def test_gigpo_adds_the_trajectory_weight(make_trainer: Any) -> None:
    alone = make_trainer(advantage="dr_grpo", credit="turn_group", turn_group_by="state")
    trajectories, returns = played(alone)
    turns = alone.weights(trajectories, returns)
    alone.args.gigpo_omega = 0.5
    mixed = alone.weights(trajectories, returns)
    alone.args.credit = "trajectory"
    whole = alone.weights(trajectories, returns)
    for row, trajectory in enumerate(trajectories):
        n = len(trajectory.turns)
        torch.testing.assert_close(mixed[row, :n], whole[row] + 0.5 * turns[row, :n])
        assert mixed[row, n:].abs().sum() == 0


@pytest.mark.parametrize(
    "settings",
    [
        {"advantage": "value", "num_generations": 1},
        {"advantage": "oracle", "num_generations": 1},
        {**GROUPED, "turn_group_by": "state"},
        {**GROUPED, "gigpo_omega": 1.0},
    ],
)
def test_two_steps_move_the_adapter(make_trainer: Any, settings: dict[str, Any]) -> None:
    trainer = make_trainer(**settings)
    before = {n: p.detach().clone() for n, p in trainer.model.named_parameters() if p.requires_grad}
    trainer.train()
    assert any(not torch.equal(p, before[n]) for n, p in trainer.model.named_parameters() if n in before)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            {"advantage": "value", "credit": "trajectory"},
            "advantage='value' compares with the value of a turn's history",
        ),
        ({"advantage": "reinforce", "credit": "turn_group"}, "use one of dr_grpo, grpo, group_mean, rloo"),
        ({"credit": "token"}, "credit='token' is unknown"),
        ({**GROUPED, "turn_group_by": "luck"}, "turn_group_by='luck' is unknown; use one of history, state"),
        ({"advantage": "value", "gae_lambda": 1.5}, "gae_lambda=1.5 is a share"),
        ({"advantage": "value", "value_epochs": 0}, "value_epochs=0 must be at least 1"),
    ],
)
def test_settings_that_do_not_fit_are_named(make_trainer: Any, settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make_trainer(**settings)
