"""`python -m agent_envs.evaluate`: right numbers from a scripted endpoint, whatever goes wrong on the way."""

import json
import os
import subprocess
import sys

import equality
import pytest
from chat_server import bisecting, chat_server, text_of

import agent_envs
from agent_envs.chat_client import ChatClient, EndpointError, OutOfRetries, Reply
from agent_envs.evaluate import evaluate, main, play, summarise, wilson

HELLO = [{"role": "user", "content": "Find the hidden number from 1 to 16."}]


def client(server, **settings):
    return ChatClient(server.url, "scripted", **{"backoff": 0.01, "timeout": 5.0, **settings})


def test_wilson_against_known_values():
    # Worked by hand from Wilson's formula.
    assert wilson(15, 16) == pytest.approx((0.7167, 0.9889), abs=1e-4)
    assert wilson(0, 10) == pytest.approx((0.0, 0.2775), abs=1e-4)
    assert wilson(0, 0) == (0.0, 1.0)
    low, high = wilson(10, 10)
    assert high == pytest.approx(1.0)
    assert low == pytest.approx(1 - 0.2775, abs=1e-4)


@pytest.mark.parametrize("id", equality.IDS)
def test_same_rewards_and_ends(id):
    """A model that says the scripted actions plays the same game."""
    for episode in equality.episodes(id):
        script = [turn.action for turn in episode.turns]

        class Said(ChatClient):
            def complete(self, messages, script=script):
                return Reply(script[len(messages) // 2])

        task = agent_envs.Task(id, episode.seed, episode.options)
        played = play(Said("", ""), task, {})
        assert played["rewards"] == episode.rewards
        assert (played["terminated"], played["truncated"]) == episode.ends[-1]
        assert [m["content"] for m in played["messages"][::2]] == [
            episode.first,
            *(turn.observation for turn in episode.turns[:-1]),
        ]


@pytest.mark.parametrize("stream", [False, True])
def test_a_bisecting_model_wins_15_of_16(stream, tmp_path, capsys):
    with chat_server(latency=0.01) as server:
        argv = ["--env", "NumberSearch-v0", "--base-url", server.url, "--model", "scripted", "--out", str(tmp_path)]
        assert main([*argv, "--concurrency", "4", *(["--stream"] if stream else [])]) == 0
        assert 2 <= server.most_active <= 4
    out = capsys.readouterr()
    assert "success 0.938" in out.out
    assert "16/16" in out.err
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert (summary["successes"], summary["episodes"], summary["errors"]) == (15, 16, 0)
    assert summary["success_95"] == pytest.approx([0.7167, 0.9889], abs=1e-4)
    rows = [json.loads(line) for line in (tmp_path / "episodes.jsonl").read_text().splitlines()]
    assert sorted(row["options"]["target"] for row in rows) == list(range(1, 17))
    assert all(row["turns"] == len(row["rewards"]) == len(row["messages"]) / 2 for row in rows)
    assert summary["tokens"] == 3 * sum(row["turns"] for row in rows)


FAULTS = [
    (429, {"Retry-After": "0.02"}),
    (429, {"Retry-After": "Wed, 21 Oct 2026 07:28:00 GMT"}),
    (500, {}),
    (503, {}),
    "malformed",
    "not an object",
    "no choices",
    "error in 200",
    "short body",
    "drop",
]


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_one_fault_is_survived(fault):
    with chat_server(faults=[fault]) as server:
        reply = client(server).complete(HELLO)
    assert reply.text == "guess(8)"
    assert len(reply.failures) == 1


@pytest.mark.parametrize(("fault", "stream"), [("hang", False), ("hang", True), ("trickle", True)])
def test_a_time_out_is_survived(fault, stream):
    with chat_server(faults=[fault]) as server:
        reply = client(server, timeout=0.4, stream=stream).complete(HELLO)
    assert reply.text == "guess(8)"
    assert "no answer within 0.4 s" in reply.failures[0]


def test_half_a_stream_is_no_reply():
    with chat_server(faults=["half a stream", "half a stream"]) as server:
        reply = client(server, stream=True).complete(HELLO)
    assert reply.text == "guess(8)"
    assert len(reply.failures) == 2


def test_all_faults_at_once_change_no_number():
    with chat_server(faults=FAULTS * 2) as server:
        episodes = evaluate(client(server), agent_envs.task_set("NumberSearch-v0", "test"), concurrency=4)
    summary = summarise(episodes)
    assert (summary["successes"], summary["errors"]) == (15, 0)
    assert summary["failed_tries"] == len(FAULTS) * 2
    assert [episode["index"] for episode in episodes] == list(range(16))


def test_waits_grow_and_honour_retry_after():
    waits = []
    with chat_server(faults=[(429, {"Retry-After": "7"}), *[(500, {})] * 5]) as server:
        client(server, backoff=1.0, sleep=waits.append).complete(HELLO)
    assert waits[0] == 7.0
    assert all(0 <= wait <= 2**n for n, wait in enumerate(waits[1:], start=1))


def test_an_endpoint_that_stays_broken_is_an_error_not_a_failure(tmp_path, capsys):
    with chat_server(faults=[(500, {})] * 3) as server:
        argv = ["--env", "NumberSearch-v0", "--base-url", server.url, "--model", "scripted", "--out", str(tmp_path)]
        assert main([*argv, "--retries", "0", "--concurrency", "1"]) == 1
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert (summary["episodes"], summary["errors"]) == (13, 3)
    assert "3 episodes could not be finished" in capsys.readouterr().out
    with chat_server(faults=[(500, {})] * 3) as server, pytest.raises(OutOfRetries, match="3 tries"):
        client(server, retries=2).complete(HELLO)


def test_a_refusal_ends_the_run_at_once(tmp_path, capsys):
    with chat_server(faults=[(401, {})] * 99) as server:
        with pytest.raises(EndpointError, match="401"):
            client(server).complete(HELLO)
        argv = ["--env", "NumberSearch-v0", "--base-url", server.url, "--model", "scripted", "--out", str(tmp_path)]
        assert main(argv) == 2
        assert len(server.requests) <= 1 + 16
    assert "401" in capsys.readouterr().err


def test_no_server_at_all():
    with pytest.raises(OutOfRetries, match="connection failed"):
        ChatClient("http://127.0.0.1:9/v1", "none", retries=1, backoff=0.01).complete(HELLO)


def test_the_request_holds_what_was_asked_for(monkeypatch, tmp_path):
    monkeypatch.setenv("MY_KEY", "sesame")
    with chat_server() as server:
        argv = ["--env", "NumberSearch-v0", "--base-url", server.url + "/", "--model", "m", "--out", str(tmp_path)]
        argv += ["--tasks", "2", "--samples", "3", "--sampling", "temperature=0.5", "--system", "Be brief."]
        assert main([*argv, "--option", "target=3", "--api-key-env", "MY_KEY"]) == 0
        headers, request = server.requests[0]
    assert headers["Authorization"] == "Bearer sesame"
    assert (request["model"], request["temperature"]) == ("m", 0.5)
    assert [message["role"] for message in request["messages"]] == ["system", "user"]
    rows = [json.loads(line) for line in (tmp_path / "episodes.jsonl").read_text().splitlines()]
    assert len(rows) == 6
    assert {row["options"]["target"] for row in rows} == {3}
    assert "sesame" not in (tmp_path / "episodes.jsonl").read_text() + (tmp_path / "summary.json").read_text()


def test_replies_without_an_action_are_counted():
    with chat_server(model=lambda messages: "I would rather not.") as server:
        episodes = evaluate(client(server), agent_envs.task_set("NumberSearch-v0", "test", 2))
    summary = summarise(episodes)
    assert (summary["successes"], summary["unreadable_replies"]) == (0, 1.0)


def test_errors_of_the_command_line(capsys):
    base = ["--base-url", "http://127.0.0.1:9/v1", "--model", "m"]
    assert main(["--env", "NoSuch-v0", *base]) == 2
    assert "NoSuch" in capsys.readouterr().err
    for bad in (["--tasks", "0"], ["--option", "target"]):
        with pytest.raises(SystemExit):
            main(["--env", "NumberSearch-v0", *base, *bad])


def test_needs_the_standard_library_only():
    code = "import sys, agent_envs.evaluate; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ}, check=True)
    assert not {"torch", "requests", "httpx", "openai", "aiohttp"} & set(done.stdout.split())


def test_the_scripted_model_plays_as_the_solver():
    env = equality.gymnasium.make("NumberSearch-v0").unwrapped
    observation, _ = env.reset(seed=1)
    messages = [{"role": "user", "content": observation}]
    while env.guesses_left and observation != "correct":  # type: ignore[attr-defined]
        assert bisecting(messages) == f"guess({env.optimal_action()})"  # type: ignore[attr-defined]
        messages.append({"role": "assistant", "content": bisecting(messages)})
        observation, *_ = env.step(text_of(messages[-1]))
        messages.append({"role": "user", "content": observation})
