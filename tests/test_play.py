"""`python -m agent_envs.play`: driven through stdin, and watching each policy play."""

import io
import subprocess
import sys
import time
from pathlib import Path

import gymnasium
import pytest

import agent_envs
from agent_envs import play
from agent_envs.text import FreeText

ROOT = Path(__file__).parents[1]
IDS = agent_envs.registered_ids()


def run(capsys, *argv: str) -> str:
    play.main(list(argv))
    return capsys.readouterr().out


def typed(monkeypatch, text: str) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))


def refused(capsys, *argv: str) -> str:
    with pytest.raises(SystemExit) as left:
        play.main(list(argv))
    assert left.value.code == 2
    return capsys.readouterr().err


def test_without_an_id_the_ids_are_listed(capsys):
    assert run(capsys).split() == IDS
    assert "NumberSearch-v0" in IDS


def test_a_person_plays_to_the_end(capsys, monkeypatch):
    typed(monkeypatch, "8\n?\nwhat?\nguess(12)\n14\n")
    out = run(capsys, "NumberSearch-v0", "--options", '{"target": 14, "max_guesses": 4}', "--seed", "3")
    lines = out.splitlines()
    assert lines[0] == "NumberSearch-v0, seed 3, played by human."
    assert lines[4:8] == ["> 8", "higher", "> ?", "The solver's choice: 12"]  # and it took no guess:
    assert lines[-2:] == ["correct  [reward 1]", "Success: return 1 in 4 turns."]


def test_the_end_of_the_input_leaves_the_game(capsys, monkeypatch):
    typed(monkeypatch, "8\n")
    assert run(capsys, "NumberSearch-v0", "--seed", "0").endswith("\nLeft after 1 turn.\n")


def test_ctrl_c_leaves_the_game(capsys, monkeypatch):
    def interrupt(prompt: str) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr("builtins.input", interrupt)
    assert run(capsys, "NumberSearch-v0", "--seed", "0").endswith("\nLeft after 0 turns.\n")


@pytest.mark.parametrize("id", IDS)
@pytest.mark.parametrize("policy", ["optimal", "novice", "random"])
def test_any_id_can_be_watched_and_a_seed_repeats_the_game(capsys, id, policy):
    first = run(capsys, id, "--policy", policy, "--seed", "5")
    assert first == run(capsys, id, "--policy", policy, "--seed", "5")
    assert "\n> " in first
    assert first.splitlines()[-1].partition(":")[0] in ("Success", "No success")


def test_the_optimal_game_is_the_demonstration(capsys):
    env = gymnasium.make("CraftingEasy-v0")
    (row,) = agent_envs.demonstrations(env, 1, seed=7)
    said = [message["content"] for message in row["messages"] if message["role"] == "assistant"]
    out = run(capsys, "CraftingEasy-v0", "--policy", "optimal", "--seed", "7")
    assert [line[2:] for line in out.splitlines() if line.startswith("> ")] == said
    assert out.endswith(f"Success: return 1 in {len(said)} turns.\n")


@pytest.mark.parametrize("name", ["novice", "random"])
def test_named_policies_are_those_of_the_package(name):
    env = gymnasium.make("NumberSearch-v0")
    env.reset(seed=1)
    ours, theirs = play.named_policy(env, name, 1), getattr(agent_envs, f"{name}_policy")(env, seed=1)
    assert [ours() for _ in range(20)] == [theirs() for _ in range(20)]


def test_an_environments_own_player_can_be_watched(capsys):
    out = run(capsys, "Sort-v0", "--policy", "loophole", "--seed", "0")
    assert out.endswith("wrong\nNo success: return 0 in 1 turn.\n")


def test_a_seed_left_out_is_drawn_and_shown(capsys):
    first = run(capsys, "Sort-v0", "--policy", "optimal")
    seed = first.split("seed ")[1].split(",")[0]
    assert run(capsys, "Sort-v0", "--policy", "optimal", "--seed", seed) == first


def test_delay(capsys):
    start = time.perf_counter()
    run(capsys, "Sort-v0", "--policy", "optimal", "--delay", "0.05")
    assert time.perf_counter() - start >= 0.05


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (("Nope-v0",), "The ids of this package: NumberSearch-v0"),
        (("nowhere:Nope-v0",), "The ids of this package: NumberSearch-v0"),
        (("CartPole-v1",), "CartPole-v1 does not speak text"),
        (("Sort-v0", "--policy", "wise"), "policy 'wise' is not offered; use human, optimal, loophole, novice, random"),
        (("Sort-v0", "--options", "[1"), "--options '[1' is not JSON"),
        (("Sort-v0", "--options", "[1]"), "--options '[1]' is not a JSON object"),
        (("Sort-v0", "--options", '{"size": 3}'), "unknown reset option 'size'; known: numbers, n"),
        (("Sort-v0", "--seed", "-1"), "Seed must be greater or equal to zero"),
        (("Sort-v0", "--delay", "-1"), "--delay -1 is negative"),
    ],
)
def test_wrong_arguments_are_explained(capsys, argv, message):
    assert message in " ".join(refused(capsys, *argv).split())


class Echo(gymnasium.Env[str, str]):
    """A text environment of somebody else's, without players."""

    def __init__(self) -> None:
        self.observation_space = self.action_space = FreeText()

    def reset(self, *, seed=None, options=None):
        return "Say something.", {}

    def step(self, action):
        return action, 0.0, False, True, {}


def test_a_text_environment_without_a_solver(capsys, monkeypatch):
    gymnasium.register("EchoForPlay-v0", lambda **kwargs: Echo(**kwargs))
    try:
        typed(monkeypatch, "?\n")
        out = run(capsys, "EchoForPlay-v0", "--seed", "0")
        assert "solver" not in out
        assert out.endswith("\n?\nOver: return 0 in 1 turn.\n")
        assert "EchoForPlay-v0 has no policy of its own" in refused(capsys, "EchoForPlay-v0", "--policy", "optimal")
    finally:
        del gymnasium.registry["EchoForPlay-v0"]


def test_as_a_command_with_bytes_that_are_no_text():
    command = [sys.executable, "-m", "agent_envs.play", "NumberSearch-v0", "--seed", "3"]
    done = subprocess.run(command, cwd=ROOT, input=b"\xff\xfe\n8\n", capture_output=True)
    assert done.returncode == 0, done.stderr
    assert b"It cost a guess." in done.stdout
    assert b"Left after 2 turns." in done.stdout
