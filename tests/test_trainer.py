"""The trainer: equal to stock TRL where it should be, independent of how a batch is split, reproducible, and gradients
only where the policy sampled."""

import copy
import math
from typing import Any

import pytest
import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

import agent_envs
from tests.test_rollout import Fragile
from trl_plugins.tiny_base import tiny_base_path
from trl_plugins.trainer import check_groups, episode_return, tokens_for_trl
from trl_plugins.weights import rloo


def rows_of_a_batch(trainer: Any) -> list[dict[str, Any]]:
    return next(iter(trainer.get_train_dataloader()))


def adapter(trainer: Any) -> dict[str, torch.Tensor]:
    return {n: p.detach().clone() for n, p in trainer.model.named_parameters() if p.requires_grad}


def stir(trainer: Any) -> None:
    """LoRA starts at zero; move every trainable weight, so that all gradients are alive."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in trainer.model.parameters():
            if parameter.requires_grad:
                parameter += 0.02 * torch.randn(parameter.shape, generator=generator)


def loss_and_gradients(trainer: Any, inputs: dict[str, Any]) -> tuple[float, dict[str, torch.Tensor]]:
    trainer.model.train()
    trainer.model.zero_grad()
    trainer.current_gradient_accumulation_steps = 1  # set by Trainer.train() otherwise
    loss = trainer.compute_loss(trainer.model, inputs)
    loss.backward()
    return loss.item(), {n: p.grad.clone() for n, p in trainer.model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize(
    ("advantage", "stock_settings"),
    [
        ("grpo", {"loss_type": "grpo", "scale_rewards": "group"}),
        ("dr_grpo", {"loss_type": "dr_grpo", "scale_rewards": "none"}),
    ],
)
def test_equal_to_stock_trl_on_identical_tokens(
    make_trainer: Any, tmp_path: Any, advantage: str, stock_settings: dict[str, Any]
) -> None:
    ours = make_trainer(advantage=advantage)
    stir(ours)
    ours.model.train()
    rows = rows_of_a_batch(ours)
    mine = ours._generate_and_score_completions(copy.deepcopy(rows))
    played = tokens_for_trl(ours.last_trajectories, ours.eos_token_ids[0])
    assert mine["advantages"].abs().max() > 0, "the batch was meant to carry signal"

    args = ours.args
    stock: Any = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(tiny_base_path()),
        reward_funcs=[episode_return],
        args=GRPOConfig(
            str(tmp_path / "stock"),
            num_generations=args.num_generations,
            per_device_train_batch_size=args.per_device_train_batch_size,
            max_completion_length=args.max_turns * args.max_turn_tokens,
            max_steps=2,
            bf16=False,
            gradient_checkpointing=False,
            report_to="none",
            **stock_settings,
        ),
        train_dataset=ours.train_dataset,
        processing_class=ours.chat.tokenizer,
        peft_config=copy.deepcopy(ours.model.peft_config["default"]),
        rollout_func=lambda prompts, trainer: dict(played),
    )
    stock.model.load_state_dict(ours.model.state_dict())
    stock.model.train()
    theirs = stock._generate_and_score_completions(copy.deepcopy(rows))
    for key in ("prompt_ids", "completion_ids", "completion_mask", "tool_mask"):
        assert torch.equal(mine[key], theirs[key]), key
    torch.testing.assert_close(mine["advantages"], theirs["advantages"], atol=1e-6, rtol=0)
    loss, gradients = loss_and_gradients(ours, mine)
    stock_loss, stock_gradients = loss_and_gradients(stock, theirs)
    assert abs(loss - stock_loss) < 1e-6
    assert gradients.keys() == stock_gradients.keys()
    for name, gradient in gradients.items():
        torch.testing.assert_close(gradient, stock_gradients[name], atol=1e-6, rtol=0)


@pytest.mark.parametrize(("advantage", "scale"), [("dr_grpo", 1), ("group_mean", 16)])
def test_group_mean_is_dr_grpo_without_its_constant(make_trainer: Any, advantage: str, scale: int) -> None:
    trainer = make_trainer(advantage=advantage)
    inputs = batch(trainer)
    loss, _ = loss_and_gradients(trainer, inputs)
    mask = inputs["completion_mask"] * inputs["tool_mask"]
    # At ratio 1 the loss is minus the mean over rows of weight x sampled tokens, over C = 4 x 4.
    expected = -(inputs["advantages"][:, None] * mask).sum() / len(mask) / 16 * scale
    assert loss == pytest.approx(expected.item(), abs=1e-6)


def batch(trainer: Any) -> dict[str, Any]:
    stir(trainer)
    trainer.model.train()
    return trainer._generate_and_score_completions(rows_of_a_batch(trainer))


@pytest.mark.parametrize("advantage", ["grpo", "dr_grpo"])
def test_no_gradient_at_tokens_the_policy_did_not_sample(make_trainer: Any, advantage: str) -> None:
    trainer = make_trainer(advantage=advantage, entropy_bonus=0.1)
    inputs = batch(trainer)
    original, seen = trainer._get_per_token_logps_and_entropies, []

    def spy(*args: Any, **kwargs: Any) -> Any:
        logps, entropies, aux = original(*args, **kwargs)
        logps.retain_grad()
        entropies.retain_grad()
        seen.append((logps, entropies))
        return logps, entropies, aux

    trainer._get_per_token_logps_and_entropies = spy
    inputs["advantages"] = torch.where(inputs["advantages"] == 0, 0.5, inputs["advantages"])  # all rows in the update
    loss_and_gradients(trainer, inputs)
    logps, _ = seen[0]
    sampled = (inputs["completion_mask"] * inputs["tool_mask"]).bool()
    assert (~sampled & inputs["completion_mask"].bool()).any(), "environment tokens were meant to be there"
    assert logps.grad[~sampled].abs().max() == 0.0
    assert (logps.grad[sampled] != 0).all()


def test_rloo_equals_stock_trl(make_trainer: Any, tmp_path: Any) -> None:
    from trl import RLOOConfig, RLOOTrainer

    args = RLOOConfig(
        str(tmp_path / "rloo"),
        num_generations=4,
        per_device_train_batch_size=16,
        max_completion_length=4,
        bf16=False,
        report_to="none",
        beta=0.0,
    )
    returns = [float(r) for r in torch.randint(0, 3, (16,), generator=torch.Generator().manual_seed(3))]
    stock: Any = RLOOTrainer(
        model=tiny_base_path(),
        reward_funcs=[lambda completions, **_: returns],  # type: ignore[arg-type]
        args=args,
        train_dataset=Dataset.from_list([{"prompt": [{"role": "user", "content": f"Say {i}."}]} for i in range(4)]),
    )
    stock.model.train()
    output = stock._generate_and_score_completions(rows_of_a_batch(stock))
    torch.testing.assert_close(output["advantages"].flatten(), rloo(torch.tensor(returns), 4), atol=1e-6, rtol=0)


@pytest.mark.parametrize("advantage", ["reinforce", "constant", "running_mean", "rest", "batch_norm"])
def test_one_trajectory_a_task(make_trainer: Any, advantage: str) -> None:
    trainer = make_trainer(advantage=advantage, num_generations=1, baseline=0.5)
    trainer.train()
    assert len(trainer.last_trajectories) == 16
    assert len({t.task.seed for t in trainer.last_trajectories}) == 16


def test_the_running_mean_goes_into_checkpoints(make_trainer: Any) -> None:
    settings: dict[str, Any] = {"advantage": "running_mean", "save_strategy": "steps", "save_steps": 1, "max_steps": 3}
    whole = make_trainer(**settings)
    whole.train()
    resumed = make_trainer(**settings)
    resumed.train(resume_from_checkpoint=str(whole.args.output_dir) + "/checkpoint-1")
    assert resumed.running_mean == whole.running_mean is not None
    for name, weight in adapter(whole).items():
        assert torch.equal(weight, adapter(resumed)[name])


def test_reward_to_go_puts_each_turns_weight_on_its_own_tokens(make_trainer: Any) -> None:
    rows = Dataset.from_list([{"seed": i, "options": {"breaks": -1}} for i in range(4)])
    trainer = make_trainer(
        {"train_dataset": rows, "eval_dataset": None, "env_fn": Fragile}, credit="reward_to_go", advantage="reinforce"
    )
    inputs = batch(trainer)
    for trajectory, weights in zip(trainer.last_trajectories, inputs["advantages"], strict=True):
        index = trajectory.turn_index  # three turns of reward 1: 3, 2 and 1 to go
        assert weights[: len(index)].tolist() == [3.0 - turn for turn in index]
        assert weights[len(index) :].abs().sum() == 0.0


class FirstGradients(TrainerCallback):
    def __init__(self) -> None:
        self.gradients: dict[str, torch.Tensor] = {}

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        if not self.gradients:
            self.gradients = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("advantage", ["grpo", "dr_grpo"])
def test_the_gradient_is_the_same_for_every_split_into_micro_batches(make_trainer: Any, advantage: str) -> None:
    gradients = []
    for size in (16, 8, 4):
        spy = FirstGradients()
        trainer = make_trainer(
            {"callbacks": [spy]},
            advantage=advantage,
            per_device_train_batch_size=size,
            gradient_accumulation_steps=16 // size,
            max_steps=1,
            entropy_bonus=0.05,
            max_grad_norm=1e9,
        )
        stir(trainer)
        trainer.train()
        gradients.append(spy.gradients)
    for other in gradients[1:]:
        for name, gradient in gradients[0].items():
            torch.testing.assert_close(gradient, other[name], atol=1e-6, rtol=1e-4)


def test_leaving_out_rows_of_weight_zero_changes_no_gradient(make_trainer: Any) -> None:
    trainer = make_trainer()
    inputs = batch(trainer)
    inputs["advantages"][: len(inputs["advantages"]) // 2] = 0.0
    loss, gradients = loss_and_gradients(trainer, inputs)
    trainer._rows_that_pull = lambda inputs: inputs
    whole_loss, whole = loss_and_gradients(trainer, inputs)
    assert loss == pytest.approx(whole_loss, abs=1e-7)
    for name, gradient in whole.items():
        torch.testing.assert_close(gradients[name], gradient, atol=1e-7, rtol=1e-4)


def test_the_entropy_bonus_is_the_same_however_the_batch_is_split_and_whoever_is_left_out(make_trainer: Any) -> None:
    trainer = make_trainer(entropy_bonus=0.1)
    inputs = batch(trainer)
    inputs["advantages"] = torch.tensor([0.5, -0.5, 0.25, -0.25] + [0.0] * 12)  # the last three micro-batches are tied
    inputs["failing"] = torch.tensor([False] * 4 + [True] * 4 + [False] * 8)  # one of them since nobody succeeds
    whole_loss, whole = loss_and_gradients(trainer, inputs)
    parts = [loss_and_gradients(trainer, {k: cut(v, i) for k, v in inputs.items()}) for i in range(4)]
    assert whole_loss == pytest.approx(sum(loss for loss, _ in parts) / 4, abs=1e-7)
    for name, gradient in whole.items():
        torch.testing.assert_close(gradient, sum(g[name] for _, g in parts) / 4, atol=1e-7, rtol=1e-4)
    trainer._rows_that_pull = lambda inputs: inputs  # as with several processes
    kept_loss, kept = loss_and_gradients(trainer, inputs)
    assert kept_loss == pytest.approx(whole_loss, abs=1e-7)
    for name, gradient in whole.items():
        torch.testing.assert_close(gradient, kept[name], atol=1e-7, rtol=1e-4)


def cut(value: Any, part: int) -> Any:
    return value[part * 4 : part * 4 + 4] if value.dim() else value


@pytest.mark.parametrize("settings", [{"top_entropy_quantile": 0.5}, {"entropy_coef": 0.1}, {"beta": 0.1}])
def test_no_row_is_left_out_where_the_loss_has_another_term(make_trainer: Any, settings: dict[str, Any]) -> None:
    trainer = make_trainer(**settings)
    inputs = batch(trainer)
    inputs["advantages"].zero_()
    assert len(trainer._rows_that_pull(inputs)["completion_ids"]) == 16


@pytest.mark.parametrize("failing", [True, False])
def test_a_batch_of_solved_tasks_moves_nothing(make_trainer: Any, failing: bool) -> None:
    trainer = make_trainer(entropy_bonus=0.1, entropy_bonus_failing=failing)
    inputs = batch(trainer)
    inputs["advantages"].zero_()
    assert ("failing" in inputs) == failing
    if failing:
        inputs["failing"].zero_()
    loss, gradients = loss_and_gradients(trainer, inputs)
    assert loss == 0.0
    assert max(g.abs().max().item() for g in gradients.values()) == 0.0


def test_the_entropy_bonus_moves_groups_where_nobody_succeeds_until_it_has_faded(make_trainer: Any) -> None:
    trainer = make_trainer(entropy_bonus=0.1, entropy_bonus_failing=True, entropy_bonus_until=0.5)
    inputs = batch(trainer)
    for group in range(4):
        solved = any(t.is_success for t in trainer.last_trajectories[group * 4 : group * 4 + 4])
        assert inputs["failing"][group * 4 : group * 4 + 4].tolist() == [not solved] * 4
    inputs["advantages"].zero_()
    inputs["failing"] = torch.tensor([False] * 12 + [True] * 4)
    trainer.state.max_steps = 100
    loss, gradients = loss_and_gradients(trainer, inputs)
    mask = (inputs["completion_mask"] * inputs["tool_mask"])[12:]
    # Weighed by 0.1, the mean over the batch's 16 rows of the summed entropy, over C = 4 x 4.
    assert loss == pytest.approx(-0.1 * (trainer._entropies * mask).sum().item() / 16 / 16, rel=1e-5)
    assert max(g.abs().max().item() for g in gradients.values()) > 0.0
    trainer.state.global_step = 50
    loss, gradients = loss_and_gradients(trainer, inputs)
    assert loss == 0.0
    assert max(g.abs().max().item() for g in gradients.values()) == 0.0


def test_two_runs_with_one_seed_are_identical_and_evaluation_changes_nothing(make_trainer: Any) -> None:
    runs = []
    for settings in ({}, {}, {"eval_strategy": "steps", "eval_steps": 1, "eval_on_start": True}, {"seed": 1}):
        trainer = make_trainer(**settings)
        trainer.train()
        runs.append(adapter(trainer))
    for name, weight in runs[0].items():
        assert torch.equal(weight, runs[1][name])
        assert torch.equal(weight, runs[2][name])
    assert any(not torch.equal(weight, runs[3][name]) for name, weight in runs[0].items())


def test_what_is_logged_every_step(make_trainer: Any) -> None:
    trainer = make_trainer()
    trainer.train()
    steps = [row for row in trainer.state.log_history if "loss" in row]
    assert len(steps) == 2
    wanted = (
        "success return turns invalid_share zero_variance_share mean_abs_weight grad_norm entropy cut_share "
        "failed_share"
    ).split()
    for row in steps:
        assert all(math.isfinite(float(row[name])) for name in wanted)


def test_evaluate_plays_the_held_out_tasks(make_trainer: Any) -> None:
    trainer = make_trainer()
    metrics = trainer.evaluate()
    assert metrics["eval_games_sampled"] == 32
    assert metrics == trainer.evaluate()
    assert set(metrics) >= {"eval_success_sampled", "eval_success_greedy", "eval_success_sampled_stderr"}
    assert metrics["eval_success_greedy"] * 16 == pytest.approx(round(metrics["eval_success_greedy"] * 16))


def test_the_entropy_bonus_fades(make_trainer: Any) -> None:
    trainer = make_trainer(entropy_bonus=0.1, entropy_bonus_until=0.5, max_steps=100)
    trainer.state.max_steps = 100
    values = []
    for step in (0, 25, 50, 99):
        trainer.state.global_step = step
        values.append(trainer.entropy_bonus_now())
    assert values == [0.1, 0.05, 0.0, 0.0]


def test_the_prompt_column_is_what_the_policy_sees(make_trainer: Any) -> None:
    trainer = make_trainer(system_prompt="Be brief.")
    prompt = trainer.train_dataset[0]["prompt"]
    assert [m["role"] for m in prompt] == ["system", "user"]
    trajectory = trainer.play([agent_envs.task_set("NumberSearch-v0")[0]], seed=0)[0]
    assert trajectory.messages == prompt


def test_an_environment_of_ones_own(make_trainer: Any) -> None:
    rows = Dataset.from_list([{"seed": i, "options": {"breaks": 2 if i == 0 else -1}} for i in range(4)])
    trainer = make_trainer({"train_dataset": rows, "eval_dataset": None, "env_fn": Fragile})
    trainer.train()
    assert trainer.state.log_history[0]["failed_share"] == 0.25
    assert trainer.state.log_history[0]["return"] == 3.0


def test_an_environment_that_fails_at_reset_is_counted_and_training_goes_on(make_trainer: Any) -> None:
    rows = Dataset.from_list([{"seed": i, "options": {"breaks": 0 if i == 0 else -1}} for i in range(4)])
    trainer = make_trainer({"train_dataset": rows, "eval_dataset": None, "env_fn": Fragile})
    trainer.train()
    assert [row["failed_share"] for row in trainer.state.log_history if "failed_share" in row] == [0.25, 0.25]


def test_mixed_environments_train_in_one_run(make_trainer: Any) -> None:
    rows = [task.row() for i in ("NumberSearch-v0", "NumberSearchEasy-v0") for task in agent_envs.task_set(i)[:4]]
    make_trainer({"train_dataset": Dataset.from_list(rows)}).train()


# --- Bad input, before any compute is spent ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"advantage": "ppo"}, "advantage='ppo' is unknown; use one of dr_grpo"),
        ({"per_device_train_batch_size": 128}, "16 training tasks do not fill one batch of 32 groups"),
        ({"temperature": 0.0}, "temperature=0.0 must be above 0"),
        ({"remove_unused_columns": True}, "remove_unused_columns would drop"),
        ({"num_generations": 0}, "num_generations=0 must be at least 1"),
        ({"num_generations": 1}, "advantage='dr_grpo' compares a group's members"),
        ({"num_generations": 3}, "num_generations=3 does not divide the 16 episodes"),
        ({"max_turns": 3}, "max_turns=3 cuts NumberSearch-v0 short, whose episodes last up to 4"),
        ({"max_turns": 0}, "max_turns=0"),
        ({"max_completion_length": 99}, "derived as max_turns x max_turn_tokens = 16"),
        ({"reply_role": "system"}, "reply_role='system'"),
        ({"repetition_penalty": 1.2}, "repetition_penalty is not offered"),
        ({"chat_template": "nowhere.jinja"}, "nowhere.jinja"),
        ({"entropy_bonus_until": 2.0}, "entropy_bonus_until=2.0 is a share"),
    ],
)
def test_bad_settings(make_trainer: Any, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_trainer(**settings)


def test_an_unknown_environment(make_trainer: Any) -> None:
    rows = Dataset.from_list([{"env_id": "NumberSerch-v0", "seed": 0}])
    with pytest.raises(ValueError, match=r"'NumberSerch-v0' is not registered"):
        make_trainer({"train_dataset": rows})


def test_an_unknown_environment_to_evaluate_on(make_trainer: Any) -> None:
    rows = Dataset.from_list([{"env_id": "no_such_module:X-v0", "seed": 0}])
    with pytest.raises(ValueError, match="'no_such_module:X-v0' is not registered"):
        make_trainer({"eval_dataset": rows})


def test_nothing_to_train(make_trainer: Any) -> None:
    model = AutoModelForCausalLM.from_pretrained(tiny_base_path())
    for parameter in model.parameters():
        parameter.requires_grad = False
    with pytest.raises(ValueError, match="no trainable parameter"):
        make_trainer({"model": model, "peft_config": None})


def test_a_group_must_be_one_task_instance() -> None:
    check_groups([("a", 0, "{}")] * 4, 2)
    with pytest.raises(RuntimeError, match=r"rows 2\.\.3 are not one task instance"):
        check_groups([("a", 0, "{}"), ("a", 0, "{}"), ("a", 0, "{}"), ("a", 1, "{}")], 2)
