"""OpenEnv: the environment in process, and a real server with many sessions over WebSockets."""

import asyncio
import json
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import equality
import pytest

pytest.importorskip("openenv.core")

import agent_envs
from agent_envs.adapters.openenv import GameAction, GameClient, GameEnvironment, GameObservation

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
    wrongs: list[dict[str, Any]] = [{"split": "test"}, {"seed": 1, "split": "test", "index": 0}, {"sead": 1}]
    for wrong in wrongs:
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
        for _ in range(3000):
            try:
                urllib.request.urlopen(f"{address}/health", timeout=2).read()
                break
            except OSError:
                assert server.poll() is None, "the server ended"
                time.sleep(0.1)
        else:
            pytest.fail("the server does not answer")
        yield address
    finally:
        server.terminate()
        server.wait(20)


def test_many_sessions_at_once_play_correctly(url):
    """Every session plays its own seeds while all the others play theirs; two sessions share each seed."""
    episodes = equality.episodes("CraftingEasy-v0", SESSIONS)

    async def play(client: GameClient, number: int) -> int:
        played = 0
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
        clients = [GameClient(base_url=url, connect_timeout_s=120.0) for _ in range(SESSIONS)]
        try:
            await asyncio.gather(*(client.connect() for client in clients))  # all of them, before anyone plays
            return await asyncio.gather(*map(play, clients, range(SESSIONS)))
        finally:
            await asyncio.gather(*(client.close() for client in clients))

    assert len({episode.first for episode in episodes}) > SESSIONS // 2, "the seeds hardly differ"
    assert asyncio.run(asyncio.wait_for(everyone(), 300)) == [2] * SESSIONS
    print(f"{SESSIONS} sessions over WebSockets, {2 * SESSIONS} games: all as on the plain environment")


def test_one_session_without_asyncio(url):
    """A seed holds after unseeded games, a refused reset and a reply of broken text; a task can be asked for."""
    with GameClient(base_url=url).sync() as client, GameClient(base_url=url).sync() as other:
        first = client.reset(seed=4).observation.text
        assert len({client.reset().observation.text for _ in range(8)}) > 1
        with pytest.raises(RuntimeError, match="together"):
            client.reset(split="test")
        assert client.reset(seed=4).observation.text == other.reset(seed=4).observation.text == first
        result = client.step(GameAction(text="\ud800"))  # half of a character
        assert (result.observation.parse_error, result.done) == ("no_command", False)
        assert other.state().step_count == 0
        by_task, task = client.reset(split="test", index=2), agent_envs.task_set("CraftingEasy-v0", "test")[2]
        assert by_task.observation.text == other.reset(seed=task.seed, options=task.options).observation.text != first


def test_observations_share_nothing():
    env = GameEnvironment("NumberSearch-v0", options={"target": 11})
    env.reset(seed=0)
    seen = [env.step(action) for action in (GameAction(text="8"), "what?", GameAction(text="11"))]
    seen[0].metadata["mine"] = 1
    assert [(o.text, o.metadata) for o in seen[::2]] == [("higher", {"mine": 1}), ("correct", {})]
    for observation in seen:
        fields = {**observation.model_dump(), "metadata": {}}
        assert set(fields) == set(GameObservation.model_fields) == observation.model_fields_set
        assert GameObservation(**fields) == observation.model_copy(update={"metadata": {}})  # made without checks


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
        [command, "validate", "--url", url, "--json", "--timeout", "60"],
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
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
