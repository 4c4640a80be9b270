"""OpenEnv: the environment in process, and a real server with many sessions over WebSockets."""

import asyncio
import json
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import equality
import pytest

pytest.importorskip("openenv.core")

from agent_envs.adapters.openenv import GameAction, GameClient, GameEnvironment

SESSIONS = 32


@pytest.mark.parametrize("id", equality.IDS)
def test_same_rewards_and_ends(id):
    env = GameEnvironment(id)
    for episode in equality.episodes(id):
        assert env.reset(seed=episode.seed, options=episode.options).text == episode.first
        for turn in episode.turns:
            seen = env.step(GameAction(text=turn.action))
            assert (seen.text, seen.reward, seen.terminated, seen.truncated) == (
                turn.observation, turn.reward, turn.terminated, turn.truncated,
            )  # fmt: skip
            assert seen.done == turn.done


def test_tasks_and_their_errors():
    env = GameEnvironment("NumberSearch-v0")
    assert env.list_splits() == ["train", "test"]
    assert env.num_tasks("test") == len(env.list_tasks("test")) == 16
    assert env.get_task("test", 3)["seed"] == 7
    assert [task["index"] for task in env.get_task_range("test", 14)] == [14, 15]
    with pytest.raises(IndexError):
        env.get_task("test", 16)
    for wrong in ({"split": "test"}, {"seed": 1, "split": "test", "index": 0}, {"sead": 1}):
        with pytest.raises(ValueError, match=r"give|takes"):
            env.reset(**wrong)
    env.reset(split="test", index=10)  # target 11
    assert env.step(GameAction(text="11")).is_success


@pytest.fixture(scope="module")
def url():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = subprocess.Popen(
        [sys.executable, "-m", "agent_envs.adapters.openenv", "--env", "CraftingEasy-v0", "--port", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    address = f"http://127.0.0.1:{port}"
    try:
        for _ in range(600):
            try:
                urllib.request.urlopen(f"{address}/health", timeout=2).read()
                break
            except OSError:
                assert server.poll() is None, "the server ended"
                time.sleep(0.1)
        yield address
    finally:
        server.terminate()
        server.wait(20)


def test_many_sessions_at_once_play_correctly(url):
    """Every session plays its own seeds while all the others play theirs; two sessions share each seed."""
    episodes = equality.episodes("CraftingEasy-v0", SESSIONS)

    async def play(number: int) -> int:
        played = 0
        async with GameClient(base_url=url) as client:
            await barrier.wait()  # all connected before anyone plays
            for at in (number // 2, SESSIONS // 2 + number // 2):
                episode = episodes[at]
                result = await client.reset(seed=episode.seed, options=episode.options)
                assert result.observation.text == episode.first
                for turn in episode.turns:
                    result = await client.step(GameAction(text=turn.action))
                    seen = result.observation
                    assert (seen.text, result.reward, result.done) == (turn.observation, turn.reward, turn.done)
                state = await client.state()
                assert (state.step_count, state.seed) == (len(episode.turns), episode.seed)
                played += 1
        return played

    async def everyone() -> list[int]:
        nonlocal barrier
        barrier = asyncio.Barrier(SESSIONS)
        return await asyncio.wait_for(asyncio.gather(*map(play, range(SESSIONS))), 300)

    barrier: asyncio.Barrier
    assert asyncio.run(everyone()) == [2] * SESSIONS
    print(f"{SESSIONS} sessions over WebSockets, {2 * SESSIONS} games: all as on the plain environment")


def test_tasks_over_http(url):
    request = urllib.request.Request(
        f"{url}/CraftingEasy-v0/task",
        data=json.dumps({"split": "test", "index": 2}).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=20) as answer:
        found = json.load(answer)
    assert (found["task"]["seed"], found["task"]["index"]) == (5, 2)


def test_openenv_validate_passes(url):
    command = Path(sys.executable).with_name("openenv")
    run = subprocess.run(
        [command, "validate", "--url", url, "--json"], capture_output=True, text=True, timeout=120, check=False
    )
    report = json.loads(run.stdout[run.stdout.index("{") :])
    failed = [c["id"] for c in report["criteria"] if not c["passed"]]
    print(f"openenv validate: {len(report['criteria']) - len(failed)} of {len(report['criteria'])} criteria pass")
    assert (run.returncode, report["passed"], failed) == (0, True, [])


def test_absent_framework_is_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "openenv.core", None)
    monkeypatch.delitem(sys.modules, "agent_envs.adapters.openenv", raising=False)
    with pytest.raises(ImportError, match="pip install openenv"):
        import agent_envs.adapters.openenv  # noqa: F401
