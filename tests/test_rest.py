"""ReST: the filter by hand-made tables, the exact tokens into SFT, nothing lost when nothing is kept or when killed."""

import json
import math
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset, load_from_disk
from safetensors.torch import load_file

import agent_envs
from trl_plugins import rest as rest_module
from trl_plugins.kept import conversation, labelled, select
from trl_plugins.rest import NothingKept, RestArguments, load_policy, read_state, run_rest

NAN = math.nan
SMALL: dict[str, Any] = {"iterations": 2, "grow_samples": 4, "improve_epochs": 1, "improve_batch": 16}


def small(**changes: Any) -> RestArguments:
    given: dict[str, Any] = {**SMALL, **changes}
    return RestArguments(**given)


# --- The filter ------------------------------------------------------------------------------------------------------


def test_threshold_keeps_what_reaches_it_and_never_a_failed_game() -> None:
    assert select([1.0, 0.5, NAN, 0.0, 0.5], "aabbb", threshold=0.5) == [0, 1, 4]


@pytest.mark.parametrize(("share", "kept"), [(0.25, [4]), (0.5, [1, 4]), (1.0, [0, 1, 3, 4])])
def test_top_share_keeps_the_best_of_the_sound_games(share: float, kept: list[int]) -> None:
    assert select([0.0, 0.75, NAN, 0.5, 1.0], "abcde", top_share=share) == kept


def test_at_most_k_a_task_and_the_best_of_them() -> None:
    returns = [0.1, 0.9, 0.5, 0.7, 0.3]
    assert select(returns, "aaabb", max_per_task=1) == [1, 3]
    assert select(returns, "aaabb", max_per_task=2) == [1, 2, 3, 4]


def test_threshold_and_share_must_both_be_passed() -> None:
    assert select([1.0, 0.0, 0.0, 0.0], "abcd", threshold=1.0, top_share=0.5) == [0]


def test_ties_are_chosen_by_the_seed_alone() -> None:
    drawn = [select([1.0] * 20, ["a"] * 20, max_per_task=5, seed=seed) for seed in (0, 0, 1)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert all(len(kept) == 5 for kept in drawn)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "em"}, "use one of rest, rest_em"),
        ({"dataset": "append"}, "use one of add, replace"),
        ({"iterations": 0}, "iterations=0"),
        ({"top_share": 1.5}, "top_share=1.5"),
        ({"threshold": 1.0, "thresholds": [1.0]}, "give one of them"),
        ({"thresholds": [0.5, 0.1]}, "must rise"),
    ],
)
def test_bad_options_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RestArguments(**options)


def test_the_thresholds_of_an_iteration() -> None:
    assert RestArguments().steps() == [1.0]
    assert RestArguments(top_share=0.2).steps() == [-math.inf]
    assert RestArguments(thresholds=[0.5, 1.0]).steps() == [0.5, 1.0]


# --- The loop --------------------------------------------------------------------------------------------------------


def tasks() -> list[Any]:
    return agent_envs.task_set("NumberSearch-v0", "train")[:8]


def weights_in(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "adapter_model.safetensors")


def same(a: Path, b: Path) -> bool:
    one, two = weights_in(a), weights_in(b)
    return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


@pytest.fixture
def trainer(make_trainer: Any) -> Any:
    return make_trainer(max_turn_tokens=4, eval_samples=1)


@pytest.fixture
def games_of_sft(monkeypatch: pytest.MonkeyPatch) -> list[Dataset]:
    """Collects what goes into each SFT run."""
    seen: list[Dataset] = []
    original = rest_module.fine_tune

    def spy(model: Any, tokenizer: Any, dataset: Dataset, *args: Any, **settings: Any) -> Any:
        seen.append(dataset)
        return original(model, tokenizer, dataset, *args, **settings)

    monkeypatch.setattr(rest_module, "fine_tune", spy)
    return seen


def test_kept_games_go_into_sft_exactly_as_sampled(trainer: Any, tmp_path: Path, games_of_sft: list[Any]) -> None:
    played: list[Any] = []
    play = trainer.play
    trainer.play = lambda *a, **k: played.append(play(*a, **k)) or played[-1]
    run_rest(trainer, tasks(), small(iterations=1), tmp_path)
    grown = next(batch for batch in played if len(batch) == 32)  # the evaluations play 16
    wins = [t for t in grown if t.total_return == 1.0]
    kept: Any = load_from_disk(str(tmp_path / "iteration_001" / "kept"))
    assert len(kept) == len(wins) > 0
    for row, fed, trajectory in zip(kept, games_of_sft[0], wins, strict=True):
        sampled = [token for turn in trajectory.turns for token in turn.action_ids]
        assert fed["input_ids"] == row["ids"] == trajectory.prompt_ids + trajectory.completion_ids
        assert [label for label in fed["labels"] if label != -100] == sampled
        assert [i for i, m in zip(row["ids"], row["mask"], strict=True) if m] == sampled
        assert (row["return"], row["iteration"]) == (1.0, 1)
        words = [message["content"] for message in row["conversation"]]
        assert words[0].startswith("Find the hidden number")
        assert set(words[2::2]) <= {"higher", "lower"}
        assert words[-1] == str(trajectory.task.options["target"])


def test_labels_are_the_mask() -> None:
    rows = labelled(Dataset.from_list([{"ids": [5, 6, 7], "mask": [0, 1, 0]}]))
    assert rows[0] == {"input_ids": [5, 6, 7], "labels": [-100, 6, -100]}


@pytest.mark.parametrize(("dataset", "parts"), [("add", 2), ("replace", 1)])
def test_add_keeps_earlier_iterations_and_replace_does_not(
    trainer: Any, tmp_path: Path, games_of_sft: list[Any], dataset: str, parts: int
) -> None:
    run_rest(trainer, tasks(), RestArguments(**SMALL, dataset=dataset), tmp_path)
    sizes = [len(load_from_disk(str(tmp_path / f"iteration_00{i}" / "kept"))) for i in (1, 2)]
    assert len(games_of_sft[1]) == sum(sizes[-parts:])


@pytest.mark.parametrize(("method", "starts"), [("rest", "iteration_001/improve_1"), ("rest_em", "base")])
def test_rest_goes_on_and_rest_em_restarts(
    trainer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, starts: str
) -> None:
    loaded: list[str] = []
    original = rest_module.load_policy

    def spy(model: Any, folder: Path) -> None:
        loaded.append(folder.relative_to(tmp_path).as_posix())
        original(model, folder)

    monkeypatch.setattr(rest_module, "load_policy", spy)
    run_rest(trainer, tasks(), RestArguments(**SMALL, method=method), tmp_path)
    # For each iteration: where Improve starts, then what it made; before all, the policy of the run.
    assert loaded == ["base", "base", "iteration_001/improve_1", starts, "iteration_002/improve_1"]


def test_rising_thresholds_improve_several_times_on_one_grow(
    trainer: Any, tmp_path: Path, games_of_sft: list[Any]
) -> None:
    state = run_rest(trainer, tasks(), small(iterations=1, thresholds=[0.0, 1.0]), tmp_path)
    kept: Any = load_from_disk(str(tmp_path / "iteration_001" / "kept"))
    wins = sum(value >= 1.0 for value in kept["return"])
    assert [len(games) for games in games_of_sft] == [32, wins]
    assert state.policy == "iteration_001/improve_2"
    assert not same(tmp_path / "iteration_001" / "improve_1", tmp_path / "iteration_001" / "improve_2")


def test_nothing_kept_stops_with_advice_and_loses_nothing(trainer: Any, tmp_path: Path) -> None:
    run_rest(trainer, tasks(), small(iterations=1), tmp_path)
    with pytest.raises(NothingKept, match=r"iteration 2 kept none of 32 games.*lower threshold.*recipes\.sft"):
        run_rest(trainer, tasks(), RestArguments(**SMALL, threshold=2.0), tmp_path)
    assert read_state(tmp_path).iteration == 1
    held = {n: p for n, p in trainer.model.named_parameters() if p.requires_grad}
    for name, value in weights_in(tmp_path / "iteration_001" / "improve_1").items():
        assert torch.equal(held[name.replace(".weight", ".default.weight")], value)
    state = run_rest(trainer, tasks(), RestArguments(**SMALL), tmp_path)  # a threshold within reach: it goes on
    assert state.iteration == 2
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [row["iteration"] for row in rows] == [0, 1, 1, 2, 2]


def test_a_policy_is_put_back_exactly(trainer: Any, tmp_path: Path) -> None:
    trainer.model.save_pretrained(tmp_path / "policy")
    before = {n: p.detach().clone() for n, p in trainer.model.named_parameters()}
    with torch.no_grad():
        for parameter in trainer.model.parameters():
            if parameter.requires_grad:
                parameter += 1.0
    load_policy(trainer.model, tmp_path / "policy")
    assert all(torch.equal(p, before[n]) for n, p in trainer.model.named_parameters())


def test_the_conversation_is_what_was_said(trainer: Any) -> None:
    for trajectory in trainer.play(tasks()[:2], seed=3):
        messages = conversation(trajectory, trainer.chat)
        ids, mask = trainer.chat.conversation(messages)
        assert ids == trajectory.prompt_ids + trajectory.completion_ids
        assert mask == [0] * len(trajectory.prompt_ids) + trajectory.env_mask


# --- Killed ----------------------------------------------------------------------------------------------------------

COMMAND = [
    sys.executable,
    *("-m", "recipes.rest", "--config", "recipes/number_search_rest.yaml", "--iterations", "2"),
    *("--grow_samples", "4", "--improve_epochs", "1", "--eval_samples", "1", "--final_eval_samples", "1"),
]


def start(folder: Path, *extra: str) -> subprocess.Popen[bytes]:
    environment = os.environ | {"HF_HUB_OFFLINE": "1"}
    quiet = subprocess.DEVNULL
    return subprocess.Popen(
        [*COMMAND, "--output_dir", str(folder), *extra], env=environment, stdout=quiet, stderr=quiet
    )


def killed_and_resumed(folder: Path, moments: list[float], began: str) -> None:
    """Start, wait for `began` to exist, kill -9 after each of the moments (seconds), and let the last start finish."""
    for moment in moments:
        process = start(folder, "--resume_from_checkpoint", "true")
        while process.poll() is None and not (folder / began).exists():
            time.sleep(0.02)
        time.sleep(moment)
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert start(folder, "--resume_from_checkpoint", "true").wait() == 0


def assert_same_run(folder: Path, other: Path) -> None:
    assert same(folder / "adapter", other / "adapter")
    clock = {"grow_seconds", "improve_seconds"}
    rows, others = (
        [{k: v for k, v in row.items() if k not in clock} for row in read_state(path).rows] for path in (folder, other)
    )
    assert rows == others
    assert not list(folder.rglob("*.partial"))


def test_killed_once_it_ends_with_the_same_adapter(tmp_path: Path) -> None:
    assert start(tmp_path / "whole").wait() == 0
    killed_and_resumed(tmp_path / "killed", [0.1], "iteration_001/kept")
    assert_same_run(tmp_path / "killed", tmp_path / "whole")


@pytest.mark.full
def test_killed_at_ten_random_moments_it_ends_with_the_same_adapter(tmp_path: Path) -> None:
    assert start(tmp_path / "whole").wait() == 0
    draw = random.Random(0)
    # From the moment the run folder is there: a run lasts a few seconds from then on.
    killed_and_resumed(tmp_path / "killed", [draw.uniform(0.0, 3.0) for _ in range(10)], "config.yaml")
    assert_same_run(tmp_path / "killed", tmp_path / "whole")
