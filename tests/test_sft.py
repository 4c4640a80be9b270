"""The cold start: demonstrations of any player, learnt, saved as an adapter and as a merged model."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import agent_envs
from recipes import sft as recipe
from recipes.sft import ColdStartArguments, demonstrations
from trl_plugins.launch import load_policy_model
from trl_plugins.sft import sft_dataset


def test_optimal_games_follow_the_solver_on_the_training_tasks() -> None:
    tasks = agent_envs.task_set("NumberSearch-v0", "train")
    games = demonstrations(tasks, ColdStartArguments(sft_games=20, sft_only_successes=True))
    assert len(games) == 19  # 15 of 16 targets can be found in four guesses, and the next four are among them
    assert {game[1]["content"] for game in games} <= {"8", "9"}


def test_novice_games_differ_from_each_other_even_on_one_task() -> None:
    tasks = agent_envs.task_set("NumberSearch-v0", "train")[:1]
    games = demonstrations(tasks, ColdStartArguments(sft_games=8, sft_player="novice"))
    assert len({json.dumps(game) for game in games}) > 1


def test_any_environment() -> None:
    games = demonstrations(agent_envs.task_set("Sort-v0", "train", 2), ColdStartArguments(sft_games=2))
    assert [game[-1]["role"] for game in games] == ["assistant"] * 2


def test_a_hint_stands_under_the_first_observation() -> None:
    tasks = agent_envs.task_set("NumberSearch-v0", "train")
    plain, hinted = (demonstrations(tasks, ColdStartArguments(sft_games=4, sft_hint=hint)) for hint in (False, True))
    for task, without, game in zip(tasks, plain, hinted, strict=False):
        target = int(task.options["target"])
        first = 1 + (target - 1) // 4 * 4
        hint = f"\nHint: it lies from {first} to {first + 3}."
        assert game == [{"role": "user", "content": without[0]["content"] + hint}, *without[1:]]
    with pytest.raises(ValueError, match=r"sft_hint: SortEnv offers no hint; .* or no sft_hint"):
        demonstrations(agent_envs.task_set("Sort-v0", "train", 1), ColdStartArguments(sft_games=1, sft_hint=True))


def test_an_unknown_player_is_named() -> None:
    with pytest.raises(ValueError, match="use one of optimal, novice, random"):
        ColdStartArguments(sft_player="expert")


def test_only_what_the_player_said_is_learnt(make_trainer: Any) -> None:
    chat = make_trainer().chat
    game = demonstrations(agent_envs.task_set("NumberSearch-v0", "train")[:1], ColdStartArguments(sft_games=1))[0]
    row = sft_dataset(chat, [game])[0]
    labels = [label for label in row["labels"] if label != -100]
    said = "".join(m["content"] + "<|end|>" for m in game if m["role"] == "assistant")
    assert chat.tokenizer.decode(labels) == said


def test_the_recipe_leaves_an_adapter_and_the_same_model_merged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    words = ["--config", "recipes/number_search_sft.yaml", "--output_dir", str(folder), "--eval_samples", "4"]
    words += ["--final_eval_samples", "4", "--sft_steps", "20"]
    monkeypatch.setattr(sys, "argv", ["sft", *words])
    recipe.main()
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["after"]["eval_success_sampled"] > summary["before"]["eval_success_sampled"] + 0.15
    assert "success sampled" in capsys.readouterr().out
    assert "carry loss" in (folder / "masks.html").read_text()
    merged = AutoModelForCausalLM.from_pretrained(folder / "model")
    adapted, tokenizer = load_policy_model(str(folder / "adapter"))
    ids = torch.tensor([tokenizer.encode("<|user|>Find it.<|end|><|assistant|>")])
    torch.testing.assert_close(merged(ids).logits, adapted(ids).logits, atol=1e-4, rtol=1e-4)
    assert AutoTokenizer.from_pretrained(folder / "model").chat_template
    assert any(p.requires_grad for p in adapted.parameters())
    with pytest.raises(FileExistsError, match="already holds a run"):
        recipe.main()
