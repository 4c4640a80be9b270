"""Inspect AI: evaluations with its own mock model, scripted."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import equality
import pytest
from chat_server import bisecting, chat_server

pytest.importorskip("inspect_ai")

from inspect_ai import eval
from inspect_ai.log import read_eval_log
from inspect_ai.model import ModelOutput, get_model

from agent_envs.adapters.inspect_ai import game


def scripted(reply: Any) -> Any:
    def output(messages: Any, *_: Any) -> Any:
        return ModelOutput.from_content("mockllm/model", reply([(m.role, m.text) for m in messages]))

    return get_model("mockllm/model", custom_outputs=output)


def run(tmp_path: Path, reply: Any, **arguments: Any) -> Any:
    (log,) = eval(game(**arguments), model=scripted(reply), log_dir=str(tmp_path), display="none")
    assert log.status == "success", log.error
    return log


def test_bisection_solves_fifteen_of_sixteen(tmp_path):
    log = run(tmp_path, lambda said: bisecting([{"role": role, "content": text} for role, text in said]))
    metrics = {score.name: score.metrics["mean"].value for score in log.results.scores}
    assert metrics == {"episode_return": 15 / 16, "is_success": 15 / 16}


@pytest.mark.parametrize("id", equality.IDS)
def test_same_rewards_and_ends(tmp_path, id):
    expected = equality.conversations(id)
    log = run(tmp_path, lambda said: equality.reply_to([text for _, text in said]), env=id, size=len(expected))
    samples = {sample.id: sample for sample in log.samples}
    assert len(samples) == len(expected) == 200
    for episode in expected:
        sample = samples[episode.seed]
        found = sample.metadata["episode"]
        assert (found["episode_return"], found["turns"]) == (pytest.approx(episode.total), len(episode.turns))
        said = [message.text for message in sample.messages]
        assert said[0] == episode.first
        assert said[1::2] == [turn.action for turn in episode.turns]
        assert said[2::2] == [turn.observation for turn in episode.turns]


def test_the_command(tmp_path):
    with chat_server() as server:
        done = subprocess.run(
            [
                *(Path(sys.executable).with_name("inspect"), "eval", "agent_envs/game", "-T", "env=NumberSearch-v0"),
                *("--model", "openai-api/scripted/scripted", "--model-base-url", server.url),
                *("--log-dir", str(tmp_path), "--display", "none"),
            ],
            capture_output=True,
            text=True,
            timeout=300,
            env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "SCRIPTED_API_KEY": "unused"},
            check=False,
        )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    (path,) = tmp_path.glob("*.eval")
    scores = read_eval_log(str(path)).results.scores
    print(f"inspect eval, NumberSearch-v0: {scores[1].metrics['mean'].value * 16:.0f} of 16")
    assert [score.metrics["mean"].value for score in scores] == [15 / 16, 15 / 16]


def test_absent_framework_is_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "inspect_ai", None)
    monkeypatch.delitem(sys.modules, "agent_envs.adapters.inspect_ai", raising=False)
    with pytest.raises(ImportError, match="pip install inspect-ai"):
        import agent_envs.adapters.inspect_ai  # noqa: F401
