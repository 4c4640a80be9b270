"""What a base knows: `python -m trl_plugins.tiny_base.examine [--model FOLDER]` prints the table of MODEL_CARD.md.

Each kind of question is asked many times (greedy answers, fresh questions); the games are sampled at temperature 1.
"""

from __future__ import annotations

import argparse
import re

import numpy as np
from transformers import AutoModelForCausalLM, AutoTokenizer

import agent_envs
from trl_plugins.chat import Chat, end_token_ids
from trl_plugins.policies import TransformersPolicy
from trl_plugins.rollout import EnvPool, collect_rollouts
from trl_plugins.tiny_base import corpus, tiny_base_path

ASKED = 200
OPEN = {"in_range", "above_below", "pick_word"}  # many answers are right


def is_right(kind: str, question: str, answer: str, said: str) -> bool:
    """Whether an answer is right: the one answer, or for an open question any that fits."""
    if kind not in OPEN:
        return said == answer
    if kind == "pick_word":
        return said in question.removeprefix("Name one of these: ").rstrip(".").split(", ")
    low, high = map(int, re.findall(r"\d+", question))
    inside = (low + 1, high - 1) if "higher than" in question else (low, high)
    return said.isdigit() and inside[0] <= int(said) <= inside[1]


def examine(path: str) -> list[tuple[str, float]]:
    """Accuracy of each kind of question, then the sampled success of the games."""
    tokenizer, model = AutoTokenizer.from_pretrained(path), AutoModelForCausalLM.from_pretrained(path)
    ends = end_token_ids(tokenizer, model.generation_config)
    chat, rng = Chat(tokenizer, ends), np.random.default_rng(12345)
    table = []
    greedy = TransformersPolicy(model, ends, max_turn_tokens=24, temperature=0.0)
    for ask in (*corpus.NUMBER_QUESTIONS, *corpus.WORD_QUESTIONS):
        asked = [ask(rng) for _ in range(ASKED)]
        prompts = [chat.opening_ids([{"role": "user", "content": question}]) for question, _ in asked]
        greedy.start(prompts, seed=0)
        said = [chat.said(sample.ids) for sample in greedy.act(range(ASKED), prompts)]
        right = [is_right(ask.__name__, q, a, s) for (q, a), s in zip(asked, said, strict=True)]
        table.append((ask.__name__, sum(right) / ASKED))
    sampling = TransformersPolicy(model, ends, max_turn_tokens=8)
    for env_id in ("NumberSearch-v0", "NumberSearchEasy-v0", "NumberSearchHard-v0"):
        tasks = [task for task in agent_envs.task_set(env_id) for _ in range(1600 // len(agent_envs.task_set(env_id)))]
        games = collect_rollouts(tasks, EnvPool().lend(), sampling, chat, max_turns=7, seed=0)
        table.append((f"{env_id}, sampled", sum(game.is_success for game in games) / len(games)))
    for tier in (0, 1):
        tasks = list(agent_envs.task_set("Crafting-v0", "test", 200, tier=tier))
        games = collect_rollouts(tasks, EnvPool().lend(), sampling, chat, max_turns=40, seed=0)
        table.append((f"Crafting-v0, tier {tier}, sampled", sum(game.is_success for game in games) / len(games)))
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=tiny_base_path(), help="a model folder; the shipped base by default")
    print("| asked | right |\n|---|---|")
    for name, share in examine(parser.parse_args().model):
        print(f"| {name} | {share:.3f} |")


if __name__ == "__main__":
    main()
