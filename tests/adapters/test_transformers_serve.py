"""`agent_envs.evaluate` against a real model server: `transformers serve` with the embedded base model, on loopback."""

import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest

for name in ("torch", "transformers", "fastapi", "uvicorn", "openai"):
    pytest.importorskip(name)

from agent_envs.evaluate import main  # noqa: E402
from trl_plugins.tiny_base import tiny_base_path  # noqa: E402

COMMAND = Path(sys.executable).with_name("transformers")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A copy of the base that may sample: the server ignores a request's temperature unless the model's own settings
    say do_sample (transformers 5.24)."""
    path = tmp_path_factory.mktemp("served") / "base"
    shutil.copytree(tiny_base_path(), path)
    settings = json.loads((path / "generation_config.json").read_text())
    (path / "generation_config.json").write_text(json.dumps({**settings, "do_sample": True}))
    return path


@pytest.fixture(scope="module")
def server(model):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = (model.parent / "serve.log").open("w+")
    command = [str(COMMAND), "serve", str(model), "--host", "127.0.0.1", "--port", str(port), "--device", "cpu"]
    env = {**os.environ, "HF_HUB_OFFLINE": "1"}
    process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=env)
    try:
        for _ in range(300):
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5).close()
                break
            except OSError:
                assert process.poll() is None, Path(log.name).read_text()[-3000:]
                time.sleep(1)
        else:
            pytest.fail(Path(log.name).read_text()[-3000:])
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        process.terminate()
        process.wait(30)
        log.close()


def play(server, model, out, *arguments):
    """The episodes of a run; none may have failed."""
    argv = ["--env", "NumberSearch-v0", "--base-url", server, "--model", str(model), "--out", str(out)]
    assert main([*argv, "--sampling", "max_tokens=8", *arguments]) == 0
    episodes = [json.loads(line) for line in (out / "episodes.jsonl").read_text().splitlines()]
    assert all(e["error"] is None and e["failed_tries"] == 0 for e in episodes)
    assert all(e["terminated"] or e["truncated"] for e in episodes)
    assert all(e["tokens"] > 0 for e in episodes)
    return episodes


@pytest.mark.parametrize("stream", [False, True])
def test_greedy_replies_are_the_models_own(server, model, tmp_path, stream):
    """Every reply that came over HTTP is what the same model says, run here, to the same conversation."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    arguments = ["--sampling", "temperature=0", "--concurrency", "2", *(["--stream"] if stream else [])]
    episodes = play(server, model, tmp_path, *arguments)
    assert sorted(e["options"]["target"] for e in episodes) == list(range(1, 17))
    tokenizer = AutoTokenizer.from_pretrained(model)
    direct: Any = AutoModelForCausalLM.from_pretrained(model)
    said: dict[str, str] = {}
    for episode in episodes:
        messages = episode["messages"]
        for i in range(1, len(messages), 2):
            text = tokenizer.apply_chat_template(messages[:i], add_generation_prompt=True, tokenize=False)
            if text not in said:
                inputs = tokenizer(text, return_tensors="pt", add_special_tokens=False)
                ids = direct.generate(**inputs, do_sample=False, max_new_tokens=8)[0, inputs["input_ids"].shape[1] :]
                said[text] = tokenizer.decode(ids, skip_special_tokens=True)
            assert messages[i]["content"] == said[text]
    print(f"{sum(len(e['messages']) // 2 for e in episodes)} replies equal, {len(said)} different conversations")


def test_sampled_success_is_the_novices(server, model, tmp_path):
    """The base's own rate at temperature 1 is 0.39 (1,600 games); 0.14 to either side is over four standard errors of
    256 games."""
    episodes = play(server, model, tmp_path, "--sampling", "temperature=1.0", "--samples", "16", "--concurrency", "4")
    rate = sum(e["is_success"] for e in episodes) / len(episodes)
    games = {(e["index"], *(m["content"] for m in e["messages"][1::2])) for e in episodes}
    print(f"transformers serve, sampled: {rate:.3f} of {len(episodes)} games, {len(games)} of them different")
    assert len(episodes) == 256
    assert len(games) > 64, "the server does not sample"
    assert 0.25 <= rate <= 0.53
