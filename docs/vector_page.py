"""docs/vector.md, from the docstrings of `agent_envs/vector.py` and two examples that are run."""

from __future__ import annotations

from collections.abc import Callable

from agent_envs import vector
from docs.docstrings import body, sections, summary
from docs.markdown import example, page

_STEP = """
import gymnasium
import agent_envs

envs = gymnasium.make_vec("NumberSearch-v0", num_envs=3)
observations, infos = envs.reset(seed=0)
observations, rewards, terminations, truncations, infos = envs.step(["8", "8", "twelve"])
print(observations[:2])
print(rewards, infos["range"], infos["parse_error"])
"""

_SAME_STEP = """
import gymnasium
import agent_envs

envs = gymnasium.make_vec("TwoArmedBandit-v0", num_envs=2, autoreset_mode="SameStep")
envs.reset(seed=0)
observations, rewards, terminations, truncations, infos = envs.step(["A", "B"])
print(observations[0])
print(infos["final_obs"], rewards)
"""


def pages() -> dict[str, Callable[[], str]]:
    return {"vector.md": vector_page}


def vector_page() -> str:
    # The paragraphs of the module: what it is (the summary), what it spares, what to know about AsyncVectorEnv.
    spares, asynchronous = body(vector).split("\n\n")
    text = sections(vector.TextVectorEnv)[""].split("\n\n")
    form, autoreset = " ".join(text[:-1]), text[-1]
    return page(
        "# Vector environments",
        summary(vector),
        spares,
        example(_STEP),
        form,
        "## When an episode ends",
        autoreset,
        "The mode is an argument of `make_vec`, beside those of the environment:",
        example(_SAME_STEP),
        "## Gymnasium's AsyncVectorEnv",
        asynchronous,
    )
