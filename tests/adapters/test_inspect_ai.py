"""Inspect AI: the task, run by `eval` against its own scripted model and by the command against a local server."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import equality
import gymnasium
import pytest
from chat_server import bisecting, chat_server

inspect_ai = pytest.importorskip("inspect_ai")

from inspect_ai.log import read_eval_log  # type: ignore[reportMissingImports]  # noqa: E402
from inspect_ai.model import ModelOutput, ModelUsage, get_model  # type: ignore[reportMissingImports]  # noqa: E402
from inspect_ai.solver import generate  # type: ignore[reportMissingImports]  # noqa: E402

from agent_envs.adapters.inspect_ai import game  # noqa: E402


def output(text: str) -> Any:
    """A scripted reply. Without a usage of its own, Inspect would fetch a tokenizer to count the words."""
    made = ModelOutput.from_content("mockllm", text)
    made.usage = ModelUsage(input_tokens=5, output_tokens=3, total_tokens=8)
    return made


def run(tmp_path: Path, task: Any, outputs: Any, **settings: Any) -> Any:
    """The log of a run against Inspect's mock model; outputs: texts in order, or a function of the conversation."""
    said: Any = list(map(output, outputs)) if isinstance(outputs, list) else lambda input, *_: output(outputs(input))
    model = get_model("mockllm/model", custom_outputs=said, memoize=False)
    (log,) = inspect_ai.eval(task, model=model, display="none", log_dir=str(tmp_path), log_realtime=False, **settings)
    return log


def bisect(input: Any) -> str:
    return bisecting([{"role": message.role, "content": message.text} for message in input])


@pytest.mark.parametrize("id", equality.IDS)
def test_same_rewards_and_ends(tmp_path, id):
    """One sample at a time, so that the script of all episodes in a row is the script of each."""
    expected = equality.episodes(id)
    script = [turn.action for episode in expected for turn in episode.turns]
    log = run(tmp_path, game(id, size=len(expected)), script, max_samples=1)
    assert log.status == "success", log.error
    assert len(log.samples) == len(expected) == 200
    for episode, sample in zip(expected, log.samples, strict=True):
        assert sample.metadata == {"env": id, "seed": episode.seed, "options": episode.options}
        played = sample.scores["episode"].metadata
        assert played["rewards"] == episode.rewards
        assert (played["terminated"], played["truncated"]) == episode.ends[-1]
        assert played["last_observation"] == episode.turns[-1].observation
        texts = [message.text for message in sample.messages]
        assert texts[0] == sample.input == episode.first
        assert texts[1::2] == [turn.action for turn in episode.turns]
        assert texts[2::2] == [turn.observation for turn in episode.turns[:-1]]
        assert [message.role for message in sample.messages] == ["user", "assistant"] * len(episode.turns)
        assert sample.scores["episode"].value["episode_return"] == pytest.approx(episode.total)
        assert sample.scores["episode"].value["turns"] == len(episode.turns)


def metrics(log: Any) -> dict[str, dict[str, float]]:
    return {score.name: {name: m.value for name, m in score.metrics.items()} for score in log.results.scores}


def test_bisection_solves_fifteen_of_sixteen(tmp_path):
    log = run(tmp_path, game("NumberSearch-v0"), bisect)
    found = metrics(log)
    print(f"mockllm, NumberSearch-v0: {found}")
    assert found["is_success"]["mean"] == 15 / 16
    # The standard error of 15 ones and a zero, by hand: sqrt(p (1 - p) / (n - 1)).
    assert found["is_success"]["stderr"] == pytest.approx((15 / 16 / 16 / 15) ** 0.5)
    assert found["episode_return"]["mean"] == 15 / 16
    assert found["turns"]["mean"] == sum(sample.scores["episode"].value["turns"] for sample in log.samples) / 16
    assert found["invalid"]["mean"] == 0


def test_replies_without_an_action_are_played_not_raised(tmp_path):
    log = run(tmp_path, game("NumberSearch-v0"), lambda input: "", epochs=2)
    assert log.status == "success"
    assert len(log.samples) == 32
    assert metrics(log)["is_success"]["mean"] == 0
    assert metrics(log)["invalid"]["mean"] == metrics(log)["turns"]["mean"] > 0


def test_a_limit_ends_an_episode_early_and_it_is_scored(tmp_path):
    log = run(tmp_path, game("NumberSearch-v0"), bisect, message_limit=4)
    assert log.status == "success"
    ended = [sample for sample in log.samples if sample.limit]
    # Bisection finds one of sixteen with its first guess, and two with its second.
    assert len(ended) == 13
    assert {sample.scores["episode"].value["turns"] for sample in ended} == {2}
    assert metrics(log)["is_success"]["mean"] == 3 / 16


def test_another_solver_is_refused(tmp_path):
    log = run(tmp_path, game("NumberSearch-v0", size=1), bisect, solver=generate())
    assert log.status == "error"
    assert "play()" in log.error.message


def test_settings_and_options_reach_the_environment(tmp_path):
    task = game("Crafting-v0", "train", 3, {"tier": 0}, {"show_admissible": True})
    log = run(tmp_path, task, lambda input: "look around")
    assert [sample.id for sample in log.samples] == [0, 2, 4]
    env = gymnasium.make("Crafting-v0", show_admissible=True)
    for sample in log.samples:
        assert sample.metadata["options"]["tier"] == 0
        first, _ = env.reset(seed=sample.id, options=sample.metadata["options"])
        second = env.step("look around")[0]
        assert "Can: " in second
        assert [message.text for message in sample.messages[:3]] == [first, "look around", second]


def test_inspect_eval_command(tmp_path):
    """The command of the documentation, against a local server: needs the package's entry point to be installed."""
    with chat_server(bisecting) as server:
        command = [Path(sys.executable).with_name("inspect"), "eval", "agent_envs/game", "-T", "env=NumberSearch-v0"]
        command += ["--model", "openai-api/local/scripted", "--log-dir", tmp_path, "--display", "plain"]
        env = {**os.environ, "LOCAL_BASE_URL": server.url, "LOCAL_API_KEY": "unused"}
        ran = subprocess.run(
            list(map(str, command)), capture_output=True, text=True, timeout=600, env=env, cwd=tmp_path, check=False
        )
        asked = len(server.requests)
    print(ran.stdout)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    (path,) = tmp_path.glob("*.eval")
    log = read_eval_log(str(path))
    assert metrics(log)["is_success"]["mean"] == 15 / 16
    assert asked == sum(sample.scores["episode"].value["turns"] for sample in log.samples)


def test_absent_framework_is_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "inspect_ai", None)
    monkeypatch.delitem(sys.modules, "agent_envs.adapters.inspect_ai", raising=False)
    with pytest.raises(ImportError, match="pip install inspect-ai"):
        import agent_envs.adapters.inspect_ai  # noqa: F401
