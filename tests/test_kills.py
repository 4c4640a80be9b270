"""kill -9 at random moments: a Dr. GRPO run that goes on from its last whole checkpoint ends as if nothing happened."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from recipes.common import checkpoint_of
from trl_plugins.report import read_metrics

ROOT = Path(__file__).parent.parent
COMMAND = [
    sys.executable,
    *("-m", "recipes.drgrpo", "--config", "recipes/number_search_tiny.yaml", "--max_steps", "12", "--probe_tasks", "0"),
    *("--per_device_train_batch_size", "32", "--num_generations", "8", "--eval_steps", "4", "--eval_samples", "1"),
    *("--final_eval_samples", "1", "--save_strategy", "steps", "--save_steps", "1", "--advantage", "running_mean"),
]


def start(folder: Path) -> subprocess.Popen[bytes]:
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    words = [*COMMAND, "--output_dir", str(folder), "--resume_from_checkpoint", "true"]
    return subprocess.Popen(
        words, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )


def killed_and_resumed(folder: Path, kills: list[tuple[int, float]]) -> None:
    """For each (step, seconds): start, wait for that step's checkpoint and so much longer, kill -9. Then let it end.

    An epoch is four steps, so that the runs go on in the first epoch and in later ones.
    """
    for step, seconds in kills:
        process = start(folder)
        while process.poll() is None and not (folder / f"checkpoint-{step}").exists():
            time.sleep(0.01)
        time.sleep(seconds)
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert start(folder).wait() == 0


def assert_same_run(folder: Path, other: Path) -> None:
    name = "adapter/adapter_model.safetensors"
    assert (folder / name).read_bytes() == (other / name).read_bytes()
    clock = {"step_time", "eval_runtime"}
    rows, others = (
        [
            {k: v for k, v in row.items() if k not in clock and not k.endswith("_per_second")}
            for row in read_metrics(path / "metrics.jsonl")
        ]
        for path in (folder, other)
    )
    assert [row["step"] for row in rows] == [row["step"] for row in others] == list(range(13))
    assert [row.get("return") for row in rows] == [row.get("return") for row in others]
    assert rows[-1]["eval_success_sampled"] == others[-1]["eval_success_sampled"]


def test_killed_twice_it_ends_with_the_same_adapter(tmp_path: Path) -> None:
    assert start(tmp_path / "whole").wait() == 0
    killed_and_resumed(tmp_path / "killed", [(2, 0.1), (6, 0.2)])
    assert_same_run(tmp_path / "killed", tmp_path / "whole")


@pytest.mark.full
def test_killed_at_ten_random_moments_it_ends_with_the_same_adapter(tmp_path: Path) -> None:
    assert start(tmp_path / "whole").wait() == 0
    draw = random.Random(0)
    steps = sorted(draw.choices(range(1, 12), k=10))
    killed_and_resumed(tmp_path / "killed", [(step, draw.uniform(0.0, 0.5)) for step in steps])
    assert_same_run(tmp_path / "killed", tmp_path / "whole")


def test_half_a_checkpoint_and_half_a_row_are_passed_over(tmp_path: Path) -> None:
    assert checkpoint_of(tmp_path, "true") is None
    for step, state in ((3, json.dumps({"global_step": 3})), (12, json.dumps({"global_step": 12})), (20, '{"global_')):
        (tmp_path / f"checkpoint-{step}").mkdir()
        (tmp_path / f"checkpoint-{step}" / "trainer_state.json").write_text(state)
    (tmp_path / "checkpoint-30").mkdir()
    assert checkpoint_of(tmp_path, True) == str(tmp_path / "checkpoint-12")
    assert checkpoint_of(tmp_path, "somewhere/checkpoint-3") == "somewhere/checkpoint-3"
    assert checkpoint_of(tmp_path, None) is checkpoint_of(tmp_path, "false") is None
    (tmp_path / "metrics.jsonl").write_text('{"step": 0}\n{"step": 1}\n{"st')
    assert read_metrics(tmp_path / "metrics.jsonl") == [{"step": 0}, {"step": 1}]
