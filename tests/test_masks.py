"""The mask viewer shows the tensors that train; probe's picture and both commands."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import agent_envs
from trl_plugins.masks import (
    MasksArguments,
    TokenView,
    conversation_tokens,
    group_tokens,
    render_html,
    render_text,
    token_logprobs,
    view,
)
from trl_plugins.probe import TaskProbe, probe_picture
from trl_plugins.sft import sft_dataset

TOKENS = [
    TokenView("<|user|>", False, 0.0, None),
    TokenView("8", True, 0.75, -0.5),
    TokenView("<b>", True, -0.25, -1.0),
    TokenView("9", True, 0.0, -2.0),
]


@pytest.mark.parametrize("credit", ["trajectory", "reward_to_go"])
def test_a_group_is_shown_as_it_trains(make_trainer: Any, credit: str) -> None:
    trainer = make_trainer(credit=credit)
    views = group_tokens(trainer, trainer.train_dataset[0])
    assert len(views) == trainer.num_generations
    for tokens, trajectory in zip(views, trainer.last_trajectories, strict=True):
        before = len(trajectory.prompt_ids)
        assert len(tokens) == before + len(trajectory.completion_ids)
        assert [t.sampled for t in tokens] == [False] * before + [bool(m) for m in trajectory.env_mask]
        shown = [t.logprob for t in tokens if t.logprob is not None]
        assert shown == [p for turn in trajectory.turns for p in turn.logprobs]
        assert all(t.weight == 0.0 for t in tokens if not t.sampled)
    # One target, one group: the weights of its four trajectories are centred.
    first = [next(t.weight for t in tokens if t.sampled) for tokens in views]
    assert sum(first) == pytest.approx(0.0, abs=1e-6)


def test_a_demonstration_is_shown_as_sft_masks_it(make_trainer: Any) -> None:
    trainer = make_trainer()
    task = agent_envs.task_set("NumberSearch-v0", "train")[10]
    env = trainer.env_pool.lend()(task.env_id)
    game = agent_envs.demonstrations(env, 1, task.seed, options=task.options)[0]["messages"]
    row = sft_dataset(trainer.chat, [game])[0]
    tokens = conversation_tokens(trainer.chat, trainer.model, game)
    assert [t.sampled for t in tokens] == [label != -100 for label in row["labels"]]
    logprobs = token_logprobs(trainer.model, row["input_ids"])
    assert [t.logprob for t in tokens if t.sampled] == [p for p, t in zip(logprobs, tokens, strict=True) if t.sampled]
    assert {t.weight for t in tokens if t.sampled} == {1.0}


def test_rollout_logprobs_are_the_models(make_trainer: Any) -> None:
    trainer = make_trainer()
    (trajectory,) = trainer.play(agent_envs.task_set("NumberSearch-v0", "train")[:1], seed=0)
    ids = [*trajectory.prompt_ids, *trajectory.completion_ids]
    again = token_logprobs(trainer.model, ids)[len(trajectory.prompt_ids) :]
    for m, p, q in zip(trajectory.env_mask, trajectory.logprobs, again, strict=True):
        assert not m or p == pytest.approx(q, abs=1e-4)


def test_plain_text_has_no_escape_codes_and_marks_what_was_sampled() -> None:
    text = render_text(TOKENS, colour=False)
    assert "\033" not in text
    assert text.splitlines()[0] == "<|user|>«8»«<b>»«9»"
    assert "3 of 4 tokens carry loss" in text


def test_colours_tell_the_signs_of_the_weights_apart() -> None:
    painted = render_text(TOKENS, colour=True).splitlines()[0].split("\033[0m")[:-1]
    assert len({part.split("m")[0] for part in painted}) == 4


def test_the_page_is_whole_and_escapes_the_text() -> None:
    page = render_html(TOKENS, "a & b")
    assert "a &amp; b" in page
    assert "&lt;b&gt;" in page
    assert "<b>" not in page
    assert "http" not in page, "the page must need nothing else"
    assert page.count('class="up" title') == 1


@pytest.mark.parametrize(("options", "message"), [({"index": 99}, "index=99"), ({"show": "nowhere"}, "show='nowhere'")])
def test_what_is_not_there_is_named(make_trainer: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        view(make_trainer(), MasksArguments(**options))


def test_probe_picture(tmp_path: Path) -> None:
    tasks = agent_envs.task_set("NumberSearch-v0", "train")
    returns = [[0.0] * 8, [0.0, 1.0] * 4, [1.0] * 8]
    probes = [TaskProbe(tasks[i], r, int(sum(r))) for i, r in enumerate(returns)]
    probe_picture(probes, tmp_path / "new" / "probe.png", "three verdicts")
    assert (tmp_path / "new" / "probe.png").stat().st_size > 5000


@pytest.mark.full
@pytest.mark.parametrize("command", ["masks", "probe"])
def test_the_commands_take_any_recipes_yaml(tmp_path: Path, command: str) -> None:
    out = {"masks": ["--html", "page.html"], "probe": ["--picture", "probe.png", "--probe_tasks", "2"]}[command]
    for name in ("tiny", "sft", "rest"):
        config = Path(f"recipes/number_search_{name}.yaml").resolve()
        done = subprocess.run(
            [sys.executable, "-m", f"trl_plugins.{command}", "--config", str(config), *out],
            cwd=tmp_path,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        assert (tmp_path / out[1]).exists()
