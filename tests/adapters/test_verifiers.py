"""verifiers: `vf-eval` itself, as a subprocess, against a scripted model that streams."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import equality
import pytest
from chat_server import bisecting, chat_server, text_of

pytest.importorskip("verifiers.v1")

VF_EVAL = Path(sys.executable).with_name("vf-eval")


def vf_eval(tmp_path: Path, model: Any, *arguments: str) -> tuple[list[dict[str, Any]], Any]:
    """The episodes that a run wrote, and the server that was asked."""
    with chat_server(model) as server:
        run = subprocess.run(
            [
                *(VF_EVAL, "agent-envs-verifiers", "--client.base-url", server.url, "-m", "scripted", "--no-push"),
                *("--output-dir", str(tmp_path), *arguments),
            ],
            capture_output=True,
            text=True,
            timeout=900,
            env={**os.environ, "PRIME_API_KEY": "unused"},
            check=False,
        )
    assert run.returncode == 0, run.stderr[-3000:]
    (traces,) = tmp_path.glob("*/traces.jsonl")
    return [json.loads(line) for line in traces.read_text().splitlines()], server


def test_vf_eval_bisects_fifteen_of_sixteen(tmp_path):
    episodes, server = vf_eval(tmp_path, bisecting)
    assert len(episodes) == 16
    assert sorted(e["task"]["data"]["options"]["target"] for e in episodes) == list(range(1, 17))
    assert all(e["ok"] for e in episodes), [e["errors"] for e in episodes]
    solved = sum(e["traces"][0]["metrics"]["is_success"] for e in episodes)
    print(f"vf-eval, NumberSearch-v0: {solved:.0f} of 16")
    assert solved == 15
    assert sum(e["traces"][0]["rewards"]["episode_return"]["score"] for e in episodes) == 15
    assert all(request["stream"] for _, request in server.requests)


@pytest.mark.parametrize("id", equality.IDS)
def test_same_rewards_and_ends(tmp_path, id):
    expected = equality.conversations(id)
    played, _ = vf_eval(
        tmp_path,
        lambda messages: equality.reply_to([text_of(m) for m in messages]),
        "--env.taskset.env", id, "--env.taskset.size", str(len(expected)), "--max-concurrent", "16",
    )  # fmt: skip
    by_seed = {e["task"]["data"]["seed"]: e["traces"][0] for e in played}
    assert len(by_seed) == len(expected) == 200
    for episode in expected:
        trace = by_seed[episode.seed]
        assert trace["rewards"]["episode_return"]["score"] == pytest.approx(episode.total)
        assert trace["metrics"]["turns"] == len(episode.turns)
        said = [node["message"]["content"] for node in trace["nodes"]]
        assert said[0] == episode.first
        assert said[1::2] == [turn.action for turn in episode.turns]
        assert said[2::2] == [turn.observation for turn in episode.turns[:-1]]


def test_absent_framework_is_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "verifiers.v1", None)
    monkeypatch.delitem(sys.modules, "agent_envs.adapters.verifiers", raising=False)
    with pytest.raises(ImportError, match="pip install verifiers"):
        import agent_envs.adapters.verifiers  # noqa: F401
