"""Remedies for groups that fail: the parts by hand, then each through the real trainer."""

import dataclasses
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

import agent_envs
from agent_envs.tasks import Task
from trl_plugins import remedies
from trl_plugins.config import MultiTurnGRPOConfig
from trl_plugins.rollout import Trajectory, Turn
from trl_plugins.weights import tied_groups


def rows(*difficulties: float) -> list[dict[str, Any]]:
    return [{"env_id": "X-v0", "seed": i, "difficulty": d} for i, d in enumerate(difficulties)]


def finished(reward: float, success: bool | None = None) -> Trajectory:
    turn = Turn([1], [0.0], reward, [], "stop")
    return Trajectory(Task("X-v0", 0), [], [0], [turn], is_success=reward > 0 if success is None else success)


def test_curriculum_weighs_levels_by_how_learnable_they_are() -> None:
    curriculum = remedies.Curriculum(rows(1, 1, 2, 3), floor=0.02, decay=0.5)
    assert curriculum.probabilities() == {"X-v0 1": 1 / 3, "X-v0 2": 1 / 3, "X-v0 3": 1 / 3}
    curriculum.observe([("X-v0 1", 1.0), ("X-v0 3", 0.0), ("X-v0 3", 0.0)])
    assert curriculum.success == {"X-v0 1": 0.75, "X-v0 2": 0.5, "X-v0 3": 0.125}
    weights = np.array([0.1875, 0.25, 0.109375])
    assert list(curriculum.probabilities().values()) == pytest.approx(list(weights / weights.sum()))
    for _ in range(50):
        curriculum.observe([("X-v0 3", 0.0)])
    assert curriculum.probabilities()["X-v0 3"] == pytest.approx(0.02 / (0.1875 + 0.25 + 0.02))  # the floor


def test_curriculum_draws_as_it_weighs_and_uniformly_within_a_level() -> None:
    curriculum = remedies.Curriculum(rows(1, 1, 2), floor=0.0, decay=0.0)
    curriculum.observe([("X-v0 2", 0.1)])  # 0.09 beside 0.25
    rng = np.random.default_rng(0)
    counts = np.bincount([curriculum.draw(rng) for _ in range(4000)], minlength=3) / 4000
    assert counts == pytest.approx([0.25 / 0.34 / 2, 0.25 / 0.34 / 2, 0.09 / 0.34], abs=0.03)


def test_a_hint_fades_to_nothing() -> None:
    assert [remedies.faded(0.8, 0.5, step, 100) for step in (0, 25, 50, 75)] == [0.8, 0.4, 0.0, 0.0]
    assert remedies.faded(1.0, 0.0, 0, 100) == 0.0


def test_number_search_hints_at_a_quarter_that_holds_the_number() -> None:
    env: Any = gymnasium.make("NumberSearch-v0").unwrapped
    for target in range(1, 17):
        env.reset(seed=0, options={"target": target})
        words = env.hint().rstrip(".").split()
        low, high = int(words[-3]), int(words[-1])
        assert low <= target <= high
        assert high - low == 3


def test_following_the_crafting_hint_wins() -> None:
    env: Any = gymnasium.make("Crafting-v0").unwrapped
    env.reset(seed=5)
    reward = 0.0
    for command in env.hint().removeprefix("Hint: ").rstrip(".").split(", "):
        _, reward, *_ = env.step(command)
    assert reward == 1.0


def test_an_environment_without_a_hint_says_so() -> None:
    env: Any = gymnasium.make("Sort-v0").unwrapped
    with pytest.raises(TypeError, match="offers no hint"):
        env.hint()


def test_tied_and_failing_groups() -> None:
    groups = [0.0, 0.0, 1.0, 0.0, 1.0, 1.0, 0.5, 0.25]
    trajectories = [finished(r, success=r == 1.0) for r in groups]
    assert tied_groups(torch.tensor(groups), 2).tolist() == [True, False, True, False]
    assert remedies.failing_groups(trajectories, 2) == [0, 3]


def test_off_policy_factors_by_hand() -> None:
    logprobs = torch.tensor([1.0, 0.5, 0.1]).log()
    assert remedies.off_policy_factors("plain", logprobs).tolist() == [1.0, 1.0, 1.0]
    torch.testing.assert_close(remedies.off_policy_factors("importance", logprobs), torch.tensor([1.0, 0.5, 0.1]))
    shaped = torch.tensor([0.1 / 1.21, 0.05 / 0.36, 0.01 / 0.04])
    torch.testing.assert_close(remedies.off_policy_factors("shaped", logprobs), shaped)
    p = torch.tensor(0.3, dtype=torch.double, requires_grad=True)  # the gradient of p/(p+0.1) over that of log p
    (p / (p + 0.1)).backward()
    assert p.grad is not None
    factor = remedies.off_policy_factors("shaped", p.detach().log())
    torch.testing.assert_close(factor, p.grad * p.detach())


class Scripted:
    """Plays a task as its seed says: even seeds tie, odd ones do not."""

    def __init__(self) -> None:
        self.seen: list[list[Task]] = []

    def __call__(self, tasks: list[Task], seed: int) -> list[Trajectory]:
        self.seen.append(tasks)
        played = [finished(float(task.seed % 2 and i % 2)) for i, task in enumerate(tasks)]
        return [dataclasses.replace(t, task=task) for t, task in zip(played, tasks, strict=True)]


def demonstrated(tasks: list[Task], seed: int) -> list[Trajectory]:
    return [dataclasses.replace(finished(1.0), task=task) for task in tasks]


def player(dataset: list[dict[str, Any]] | None, **settings: Any) -> tuple[remedies.Remedies, Scripted]:
    defaults: dict[str, Any] = {
        f.name: f.default for f in dataclasses.fields(MultiTurnGRPOConfig) if f.default is not dataclasses.MISSING
    }
    args = SimpleNamespace(**{**defaults, "num_generations": 2, **settings})
    play = Scripted()
    return remedies.Remedies(args, dataset, play, demonstrated, lambda x: x), play


def test_without_a_remedy_the_rows_are_played_as_they_are() -> None:
    given = [row for row in rows(1, 1, 1) for _ in range(2)]
    one, play = player(rows(1, 1, 1))
    batch = one.play_batch(given, seed=5, step=0, steps=10)
    assert batch.rows == given
    assert [t.seed for t in play.seen[0]] == [0, 0, 1, 1, 2, 2]
    assert not any(t.hint for t in play.seen[0])
    assert batch.facts == {}


def test_tied_groups_are_played_again_up_to_the_bound() -> None:
    one, play = player(rows(*[1] * 8), resample_rounds=3)
    batch = one.play_batch([r for r in rows(1, 1, 1, 1) for _ in range(2)], seed=0, step=0, steps=10)
    assert 2 <= len(play.seen) <= 4
    assert len(play.seen[1]) == 4  # the two groups that tied, of two members each
    for i, row in enumerate(batch.rows):
        assert batch.trajectories[i].task.seed == row["seed"]
    stuck = [row["seed"] % 2 for row in batch.rows].count(0) // 2
    assert len(play.seen) == 4 or stuck == 0
    assert batch.facts["resampled_groups"] == sum(len(s) // 2 for s in play.seen[1:]) / 4


def test_a_demonstration_takes_the_last_place_where_nobody_succeeds() -> None:
    one, _ = player(rows(1, 1), demonstrations="plain")
    batch = one.play_batch([r for r in rows(1, 1) for _ in range(2)], seed=0, step=0, steps=10)
    assert [t.demonstration for t in batch.trajectories] == [False, True, False, False]
    assert batch.facts["demonstrated_share"] == 0.5
    assert batch.trajectories[1].task.seed == 0


def test_whole_groups_get_the_hint() -> None:
    one, play = player(rows(*[1] * 40), hint_share=0.5)
    batch = one.play_batch([r for r in rows(*[1] * 40) for _ in range(2)], seed=1, step=0, steps=10)
    hints = [t.hint for t in play.seen[0]]
    assert hints[::2] == hints[1::2]
    assert 0.2 < batch.facts["hinted_share"] == np.mean(hints) < 0.8


def test_the_curriculum_comes_back_from_its_state() -> None:
    one, _ = player(rows(1, 2, 3), curriculum=True)
    for seed in range(5):
        one.play_batch([r for r in rows(1, 2, 3) for _ in range(2)], seed, step=0, steps=10)
    other, _ = player(rows(1, 2, 3), curriculum=True)
    other.load_state_dict(one.state_dict())
    assert other.curriculum is not None
    assert one.curriculum is not None
    assert other.curriculum.success == one.curriculum.success != {"X-v0 1": 0.5, "X-v0 2": 0.5, "X-v0 3": 0.5}


# --- Through the trainer ----------------------------------------------------------------------------------------------


def test_a_demonstration_is_the_solvers_game_token_by_token(make_trainer: Any) -> None:
    trainer = make_trainer()
    (shown,) = trainer.demonstrate([Task("NumberSearch-v0", 0, {"target": 11})])
    assert [trainer.chat.said(turn.action_ids) for turn in shown.turns] == ["8", "12", "10", "11"]
    assert all(turn.action_ids[-1] in trainer.eos_token_ids for turn in shown.turns)
    assert shown.is_success
    (game,) = agent_envs.demonstrations(gymnasium.make("NumberSearch-v0"), 1, 0, options={"target": 11})
    ids, mask = trainer.chat.conversation(game["messages"])
    assert shown.prompt_ids + shown.completion_ids == ids
    assert [0] * len(shown.prompt_ids) + shown.env_mask == mask


@pytest.mark.parametrize("kind", ["plain", "importance", "shaped"])
def test_only_the_demonstrations_tokens_are_corrected(make_trainer: Any, kind: str) -> None:
    hopeless = {"low": 1, "high": 100, "max_guesses": 1}
    tasks = agent_envs.task_set("NumberSearch-v0", "train", 4, **hopeless)
    trainer = make_trainer({"train_dataset": tasks, "eval_dataset": tasks}, demonstrations=kind)
    inputs = [row for row in trainer.train_dataset for _ in range(4)]
    output = trainer._generate_and_score_completions(inputs)
    shown = [i for i, t in enumerate(trainer.last_trajectories) if t.demonstration]
    assert shown, "no group failed"
    returns = torch.tensor([t.total_return for t in trainer.last_trajectories])
    plain = trainer.weights(trainer.last_trajectories, returns)
    assert output["advantages"].shape == output["completion_ids"].shape
    for row, advantages in enumerate(output["advantages"]):
        if row not in shown:
            assert advantages.tolist() == [plain[row].item()] * len(advantages)
            continue
        ids = torch.tensor([trainer.last_trajectories[row].prompt_ids + trainer.last_trajectories[row].completion_ids])
        with torch.no_grad():
            logps = trainer.model(input_ids=ids).logits[0, -3:-1].log_softmax(-1)
        p = logps.gather(1, ids[0, -2:, None])[:, 0].exp()
        expected = plain[row] * {"plain": p * 0 + 1, "importance": p, "shaped": 0.1 * p / (p + 0.1) ** 2}[kind]
        torch.testing.assert_close(advantages[:2], expected, rtol=1e-4, atol=1e-6)
    assert trainer._metrics["train"]["demonstrated_share"] == [len(shown) / 4]
    assert trainer._metrics["train"]["success"] == [
        pytest.approx(np.mean([t.is_success for t in trainer.last_trajectories if not t.demonstration]))
    ]


def test_the_hint_stands_in_the_prompt_and_evaluation_has_none(make_trainer: Any) -> None:
    trainer = make_trainer(hint_share=1.0, hint_until=1.0)
    output = trainer._generate_and_score_completions([r for r in list(trainer.train_dataset)[:4] for _ in range(4)])
    for row, trajectory in enumerate(trainer.last_trajectories):
        prompt = trainer.processing_class.decode(output["prompt_ids"][row])
        assert "Hint: it lies from" in prompt
        assert trajectory.messages[-1]["content"].endswith(".")
    assert trainer._metrics["train"]["hinted_share"] == [1.0]
    assert trainer.evaluate()["eval_games_sampled"] == 32
    (plain,) = trainer.play([Task("NumberSearch-v0", 0)], 0)
    assert "Hint" not in plain.messages[-1]["content"]


@pytest.mark.parametrize(
    "settings",
    [
        {"curriculum": True},
        {"resample_rounds": 2},
        {"hint_share": 0.5},
        {"demonstrations": "shaped"},
        {"demonstrations": "plain", "advantage": "value"},
        {"curriculum": True, "resample_rounds": 1, "hint_share": 0.5, "demonstrations": "importance"},
    ],
)
def test_two_steps_with_each_remedy_resume_as_they_were(make_trainer: Any, tmp_path: Any, settings: Any) -> None:
    mix = [*agent_envs.task_set("NumberSearchEasy-v0", "train"), *agent_envs.task_set("NumberSearch-v0", "train")]
    given = {"train_dataset": mix}
    settings = {**settings, "max_steps": 3, "save_strategy": "steps", "save_steps": 1}
    whole = make_trainer(given, **settings)
    whole.train()
    resumed = make_trainer(given, **settings)
    resumed.train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-2"))
    for (name, a), (_, b) in zip(whole.model.named_parameters(), resumed.model.named_parameters(), strict=True):
        assert torch.equal(a, b), name
    if whole._remedies.curriculum:
        assert whole._remedies.curriculum.success == resumed._remedies.curriculum.success


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"entropy_bonus_failing": True}, "set entropy_bonus above 0"),
        ({"demonstrations": "many"}, "demonstrations='many' is unknown; use one of none, plain, importance, shaped"),
        ({"resample_rounds": -1}, "resample_rounds=-1 is negative"),
        ({"resample_rounds": 1, "num_generations": 1, "advantage": "reinforce"}, "num_generations must be at least 2"),
        ({"hint_share": 2.0}, "hint_share=2.0 is a share"),
    ],
)
def test_settings_that_do_not_fit_are_named(make_trainer: Any, settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make_trainer(**settings)
