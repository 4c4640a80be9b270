"""The carried cache against recomputing each context: `python -m benchmarks.rollout`, both sides in one run.

256 episodes of Number Search by the embedded base, greedy so that both sides sample the same tokens.
"""

from __future__ import annotations

import os
import time

os.environ.setdefault("HF_HUB_OFFLINE", "1")

from transformers import AutoModelForCausalLM, AutoTokenizer

import agent_envs
from trl_plugins.chat import Chat, end_token_ids
from trl_plugins.policies import TransformersPolicy
from trl_plugins.rollout import EnvPool, collect_rollouts
from trl_plugins.tiny_base import tiny_base_path

GROUP = 16
REPEATS = 5


def main() -> None:
    path = tiny_base_path()
    tokenizer, model = AutoTokenizer.from_pretrained(path), AutoModelForCausalLM.from_pretrained(path)
    ends = end_token_ids(tokenizer, model.generation_config)
    chat, pool = Chat(tokenizer, ends), EnvPool()
    tasks = [task for task in agent_envs.task_set("NumberSearch-v0") for _ in range(GROUP)]
    print(f"{'':<12}{'seconds':>9}{'episodes/s':>12}{'tokens through the model':>26}{'an episode':>12}")
    played = []
    for name, carry in (("carried", True), ("recomputed", False)):
        policy = TransformersPolicy(model, ends, max_turn_tokens=8, temperature=0.0, carry_cache=carry)
        best = float("inf")
        tokens, games = 0, []
        for _ in range(REPEATS):
            started = time.perf_counter()
            games = collect_rollouts(tasks, pool.lend(), policy, chat, max_turns=4, seed=0)
            best = min(best, time.perf_counter() - started)
            tokens = policy.tokens_computed
        played.append([game.completion_ids for game in games])
        each = tokens / len(tasks)
        print(f"{name:<12}{best:>9.3f}{len(tasks) / best:>12.0f}{tokens:>26,}{each:>12.1f}")
    print(f"the same tokens on both sides: {played[0] == played[1]}")


if __name__ == "__main__":
    main()
