"""Each recipe as a user launches it: a two-step run, and every mistake in one line."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

ROOT = Path(__file__).parent.parent
CONFIG = ROOT / "recipes/number_search_tiny.yaml"
SMALL = (
    "--max_steps 2 --per_device_train_batch_size 8 --num_generations 4 --eval_samples 1 --final_eval_samples 1 "
    "--probe_tasks 2 --eval_steps 1"
).split()


def run(*words: str, module: str = "recipes.drgrpo", launcher: tuple[str, ...] = ("-m",)) -> Any:
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, *launcher, module, *words]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def test_drgrpo_leaves_a_whole_run_folder(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    done = run("--config", str(CONFIG), *SMALL, "--output_dir", str(folder))
    assert done.returncode == 0, done.stderr[-2000:]
    assert "success sampled" in done.stdout
    assert {p.name for p in folder.iterdir()} >= {
        "adapter",
        "metrics.jsonl",
        "learning_curve.png",
        "trajectories.txt",
        "config.yaml",
        "config_full.json",
        "summary.json",
    }
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [0, 1, 2]
    assert all("eval_success_sampled" in row and "eval_success_greedy" in row for row in rows)
    assert all("return" in row for row in rows[1:])
    assert "«" in (folder / "trajectories.txt").read_text()
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["best_possible"] == 0.9375
    assert (folder / "learning_curve.png").stat().st_size > 10_000

    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    from trl_plugins.tiny_base import tiny_base_path

    PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(tiny_base_path()), folder / "adapter")
    again = run("--config", str(folder / "config.yaml"))
    assert again.returncode == 2
    assert again.stderr.strip().splitlines()[-1].startswith(f"error: {folder} already holds a run; choose another")


def test_a_resumed_run_has_one_row_a_step(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    words = [
        "--config",
        str(CONFIG),
        *SMALL,
        "--output_dir",
        str(folder),
        "--save_strategy",
        "steps",
        "--save_steps",
        "1",
    ]
    assert run(*words).returncode == 0
    whole = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    resumed = run(*words, "--resume_from_checkpoint", str(folder / "checkpoint-1"))
    assert resumed.returncode == 0, resumed.stderr[-2000:]
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [0, 1, 2]
    assert rows[-1]["eval_success_sampled"] == whole[-1]["eval_success_sampled"]
    config = (folder / "config.yaml").read_text()
    nowhere = run(*words, "--resume_from_checkpoint", str(folder / "nowhere"), "--learning_rate", "0.5")
    assert nowhere.returncode == 2
    assert "there is no such checkpoint folder" in nowhere.stderr
    assert (folder / "config.yaml").read_text() == config


def test_two_processes_train_one_run(tmp_path: Path) -> None:
    words = ["--nproc_per_node", "2", "-m", "recipes.drgrpo", "--config", str(CONFIG), *SMALL, "--use_cpu", "true"]
    done = run(*words, "--output_dir", str(tmp_path / "run"), module="torch.distributed.run")
    assert done.returncode == 0, done.stderr[-2000:]
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [0, 1, 2]
    assert rows[0]["eval_games_sampled"] == 16


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--env_id", "NumberSerch-v0"],
            "env_id='NumberSerch-v0' is not a registered environment; near it: NumberSearch",
        ),
        (["--num_generations", "3"], "num_generations=3 does not divide the 8 episodes"),
        (["--max_turns", "2"], "max_turns=2 cuts NumberSearch-v0 short"),
        (["--model_name_or_path", "/nowhere/model"], "/nowhere/model"),
        (["--dtype", "float33"], "dtype='float33' is unknown"),
        (["--env_id", "no_such_module:X-v0"], "env_id='no_such_module:X-v0' cannot be made"),
    ],
)
def test_mistakes_are_one_line(tmp_path: Path, words: list[str], message: str) -> None:
    folder = tmp_path / "run"
    failed = run("--config", str(CONFIG), *SMALL, "--output_dir", str(folder), *words)
    last = failed.stderr.strip().splitlines()[-1]
    assert failed.returncode == 2
    assert last.startswith("error: ")
    assert message in last
    assert "Traceback" not in failed.stderr
    assert not folder.exists()


def test_an_unknown_config_key_is_named(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(yaml.safe_load(CONFIG.read_text()) | {"max_turnz": 4}))
    failed = run("--config", str(path))
    assert failed.returncode == 2
    assert failed.stderr.strip().splitlines()[-1] == (
        "error: the config file has unknown keys: --max_turnz; see --help for the known ones"
    )


def test_crafting_and_number_search_in_one_run(tmp_path: Path) -> None:
    config = yaml.safe_load((ROOT / "recipes/crafting_tiny.yaml").read_text())
    config["train_mix"] = [
        {"env_id": "Crafting-v0", "size": 4, "tier": 0, "reward": "potential", "budget": 5},
        {"env_id": "NumberSearch-v0", "size": 4},
    ]
    config["test_mix"] = [
        {"env_id": "Crafting-v0", "size": 2, "tier": 0, "budget": 5},
        {"env_id": "NumberSearch-v0", "size": 2},
    ]
    path, folder = tmp_path / "mixed.yaml", tmp_path / "run"
    path.write_text(yaml.safe_dump(config))
    done = run("--config", str(path), *SMALL, "--max_turns", "16", "--output_dir", str(folder))
    assert done.returncode == 0, done.stderr[-2000:]
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [0, 1, 2]
    shown = (folder / "trajectories.txt").read_text()
    assert "=== Crafting-v0" in shown
    assert "=== NumberSearch-v0" in shown


def test_ceiling_prints_before_after_and_the_best_possible() -> None:
    done = run("--config", str(CONFIG), *SMALL[:8], "--sft_steps", "2", "--sft_games", "16", module="recipes.ceiling")
    assert done.returncode == 0, done.stderr[-2000:]
    lines = done.stdout.strip().splitlines()[-3:]
    assert [line.split()[0] for line in lines] == ["before", "after", "best"]
    assert lines[2].endswith("0.9375")


def test_compare_runs_each_method_and_resumes(tmp_path: Path) -> None:
    words = [
        *("--config", str(ROOT / "recipes/number_search_compare.yaml"), "--output_dir", str(tmp_path / "run")),
        *("--methods", "dr_grpo", "reinforce", "--seeds", "0", "--max_steps", "1", "--eval_steps", "1"),
        *("--eval_samples", "1", "--per_device_train_batch_size", "8", "--num_generations", "4"),
    ]
    first = run(*words, module="recipes.compare")
    assert first.returncode == 0, first.stderr[-2000:]
    assert {p.name for p in (tmp_path / "run").iterdir()} >= {"dr_grpo-0.json", "comparison.png", "table.md"}
    again = run(*words, "--resume_from_checkpoint", "true", module="recipes.compare")
    assert again.returncode == 0
    assert "dr_grpo seed 0" not in again.stderr, "nothing was left to train"
    assert first.stdout.splitlines()[-4:] == again.stdout.splitlines()[-4:]


@pytest.mark.parametrize("path", sorted(ROOT.glob("recipes/*.yaml")), ids=lambda p: p.name)
def test_every_shipped_config_is_made_of_known_keys(path: Path) -> None:
    text = path.read_text()
    command = next(line for line in text.splitlines() if "python -m recipes." in line)
    module = command.split("python -m ")[1].split()[0]
    keys = yaml.safe_load(text)
    if module == "recipes.remedies":  # its keys are those of the runs it starts
        module = "recipes.drgrpo"
        keys |= {key: None for changed in keys.pop("remedies").values() for key in changed}
    helped = run("--help", module=module)
    unknown = [key for key in keys if f"--{key}" not in helped.stdout]
    assert helped.returncode == 0, helped.stderr[-500:]
    assert not unknown


def test_remedies_run_side_by_side_and_are_not_made_twice(tmp_path: Path) -> None:
    keys = yaml.safe_load(CONFIG.read_text())
    keys |= {"per_device_train_batch_size": 8, "num_generations": 4, "eval_samples": 1, "final_eval_samples": 1}
    keys |= {"probe_tasks": 0, "eval_steps": 1, "remedies": {"plain": None, "shown": {"demonstrations": "plain"}}}
    path, folder = tmp_path / "remedies.yaml", tmp_path / "run"
    path.write_text(yaml.safe_dump(keys))
    words = ["--config", str(path), "--output_dir", str(folder), "--max_steps", "2"]
    done = run(*words, module="recipes.remedies")
    assert done.returncode == 0, done.stderr[-2000:]
    table = (folder / "table.md").read_text()
    assert [line.split(" | ")[0] for line in table.splitlines()[2:]] == ["| plain", "| shown"]
    assert (folder / "remedies.png").stat().st_size > 10_000
    assert yaml.safe_load((folder / "shown" / "config.yaml").read_text())["demonstrations"] == "plain"
    again = run(*words, "--only", "shown", module="recipes.remedies")
    assert again.returncode == 0
    assert "recipes.drgrpo" not in again.stdout
    wrong = run(*words, "--only", "prayer", module="recipes.remedies")
    assert (wrong.returncode, "no such remedy; known: plain, shown" in wrong.stderr) == (2, True)


def test_an_adapters_folder_goes_on_training_that_adapter(make_trainer: Any, tmp_path: Path) -> None:
    from agent_envs.tasks import task_set
    from recipes.common import ModelArguments
    from recipes.drgrpo import build_trainer

    def adapter(trainer: Any) -> dict[str, torch.Tensor]:
        return {name: p.detach() for name, p in trainer.model.named_parameters() if p.requires_grad}

    first = make_trainer()
    with torch.no_grad():
        for parameter in adapter(first).values():
            parameter += 0.01
    first.save_model(str(tmp_path / "adapter"))
    tasks = task_set("NumberSearch-v0", "train")
    again = build_trainer(ModelArguments(str(tmp_path / "adapter")), make_trainer().args, tasks, tasks)
    assert adapter(again).keys() == adapter(first).keys()
    assert all(torch.equal(weight, adapter(again)[name]) for name, weight in adapter(first).items())
