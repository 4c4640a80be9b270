"""The corpus of the embedded base: novice games and small questions, made from a seed.

Never optimal play: games are played by `novice_policy` alone, and no question asks for a middle or a half. The
questions are there so that numbers and words become sharp: a base that has only seen novice games keeps the
embeddings of neighbouring numbers close together, and LoRA, which leaves embeddings and head alone, cannot part them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import gymnasium
import numpy as np

import agent_envs
from trl_plugins.tiny_base.corpus_crafting import CraftingCorpus

Message = dict[str, str]
Rng = np.random.Generator

TOP = 100  # numbers run from 0 to TOP, each a token of its own

WORDS = (
    "red blue green black white one two three tree river house road hill lake sand fire water wind cold warm day night "
    "open close left right up down fast slow big small new old good bad full empty near far north south east west "
    "log planks stick table stone coal furnace iron diamond torch sword axe chest pickaxe ore ingot forest cave ridge "
    "swamp meadow desert valley shore mine craft place smelt go give take find make"
).split()
OPPOSITES = (
    "higher lower,up down,left right,open close,fast slow,big small,new old,good bad,full empty,near far,north south,"
    "east west,cold warm,day night,black white,more less,first last,yes no"
).split(",")


def _two(rng: Rng, top: int = TOP) -> tuple[int, int]:
    a, b = rng.choice(top + 1, size=2, replace=False)
    return int(a), int(b)


def _top(rng: Rng) -> int:
    """Half the questions stay with small numbers, where the standard game is played."""
    return 20 if rng.random() < 0.5 else TOP


# --- Number questions: each returns (question, answer) ---------------------------------------------------------------


def copy_number(rng: Rng) -> tuple[str, str]:
    n = int(rng.integers(_top(rng) + 1))
    return f"Say {n}.", str(n)


def successor(rng: Rng) -> tuple[str, str]:
    n = int(rng.integers(_top(rng)))
    return f"What comes after {n}?", str(n + 1)


def predecessor(rng: Rng) -> tuple[str, str]:
    n = int(rng.integers(_top(rng))) + 1
    return f"What comes before {n}?", str(n - 1)


def larger(rng: Rng) -> tuple[str, str]:
    a, b = _two(rng, _top(rng))
    return f"Which is larger, {a} or {b}?", str(max(a, b))


def smaller(rng: Rng) -> tuple[str, str]:
    a, b = _two(rng, _top(rng))
    return f"Which is smaller, {a} or {b}?", str(min(a, b))


def compare(rng: Rng) -> tuple[str, str]:
    a, b = _two(rng, _top(rng))
    return f"Is {a} higher or lower than {b}?", "higher" if a > b else "lower"


def is_higher(rng: Rng) -> tuple[str, str]:
    a, b = _two(rng, _top(rng))
    return f"Is {a} higher than {b}?", "yes" if a > b else "no"


def in_range(rng: Rng) -> tuple[str, str]:
    low, high = sorted(_two(rng, _top(rng)))
    return f"Name a number from {low} to {high}.", str(int(rng.integers(low, high + 1)))


def above_below(rng: Rng) -> tuple[str, str]:
    low, high = sorted(_two(rng, _top(rng)))
    if high - low < 2:
        return f"Name a number from {low} to {high}.", str(int(rng.integers(low, high + 1)))
    return f"Name a number higher than {low} and lower than {high}.", str(int(rng.integers(low + 1, high)))


def add_few(rng: Rng) -> tuple[str, str]:
    n, k = int(rng.integers(_top(rng) - 4)), int(rng.integers(1, 5))
    return f"What is {n} plus {k}?", str(n + k)


def take_few(rng: Rng) -> tuple[str, str]:
    n, k = int(rng.integers(4, _top(rng) + 1)), int(rng.integers(1, 5))
    return f"What is {n} minus {k}?", str(n - k)


def count(rng: Rng) -> tuple[str, str]:
    low, length = int(rng.integers(_top(rng) - 5)), int(rng.integers(2, 6))
    return f"Count from {low} to {low + length - 1}.", " ".join(str(low + i) for i in range(length))


def extreme(rng: Rng) -> tuple[str, str]:
    numbers = [int(n) for n in rng.choice(_top(rng) + 1, size=int(rng.integers(3, 6)), replace=False)]
    listed = ", ".join(map(str, numbers))
    if rng.random() < 0.5:
        return f"Which is largest: {listed}?", str(max(numbers))
    return f"Which is smallest: {listed}?", str(min(numbers))


# --- Word questions --------------------------------------------------------------------------------------------------


def _words(rng: Rng, low: int = 2, high: int = 5) -> list[str]:
    return [str(w) for w in rng.choice(WORDS, size=int(rng.integers(low, high + 1)), replace=False)]


def copy_words(rng: Rng) -> tuple[str, str]:
    words = " ".join(_words(rng, 1, 4))
    return f"Say {words}.", words


def first_or_last(rng: Rng) -> tuple[str, str]:
    words = _words(rng)
    which, answer = ("first", words[0]) if rng.random() < 0.5 else ("last", words[-1])
    return f"Which word is {which}: {', '.join(words)}?", answer


def how_many(rng: Rng) -> tuple[str, str]:
    words = _words(rng, 1, 6)
    return f"How many words: {', '.join(words)}?", str(len(words))


def opposite(rng: Rng) -> tuple[str, str]:
    pair = str(rng.choice(OPPOSITES)).split()
    a, b = pair if rng.random() < 0.5 else pair[::-1]
    return f"What is the opposite of {a}?", b


def is_listed(rng: Rng) -> tuple[str, str]:
    words = _words(rng)
    listed = rng.random() < 0.5
    word = str(rng.choice(words)) if listed else str(rng.choice([w for w in WORDS if w not in words]))
    return f"Is {word} in this list: {', '.join(words)}?", "yes" if listed else "no"


def pick_word(rng: Rng) -> tuple[str, str]:
    words = _words(rng)
    return f"Name one of these: {', '.join(words)}.", str(rng.choice(words))


NUMBER_QUESTIONS: tuple[Callable[[Rng], tuple[str, str]], ...] = (
    copy_number,
    successor,
    predecessor,
    larger,
    smaller,
    compare,
    is_higher,
    in_range,
    above_below,
    add_few,
    take_few,
    count,
    extreme,
)
WORD_QUESTIONS = (copy_words, first_or_last, how_many, opposite, is_listed, pick_word)


# --- Dialogues -------------------------------------------------------------------------------------------------------


def questions(rng: Rng) -> list[Message]:
    """A dialogue of 2 to 5 unrelated questions, four in five about numbers."""
    messages: list[Message] = []
    for _ in range(int(rng.integers(2, 6))):
        pool = NUMBER_QUESTIONS if rng.random() < 0.8 else WORD_QUESTIONS
        question, answer = pool[int(rng.integers(len(pool)))](rng)
        messages += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    return messages


def number_search_options(rng: Rng) -> dict[str, int]:
    """Half standard games (1..16, four guesses), half with other ranges inside 0..TOP and one to eight guesses."""
    if rng.random() < 0.5:
        return {}
    size = int(rng.integers(2, 33)) if rng.random() < 0.6 else int(rng.integers(33, TOP + 1))
    low = 1 if rng.random() < 0.5 else int(rng.integers(0, TOP - size + 2))
    return {"low": low, "high": low + size - 1, "max_guesses": int(rng.integers(1, 9))}


def dialogues(seed: int, crafting: bool = False) -> Iterator[list[Message]]:
    """An endless stream of dialogues: 45% novice games of Number Search, 55% questions about numbers and words.

    With `crafting`, a quarter of the dialogues is about the crafting world instead: two in five novice games, the
    others questions about what is seen in one.
    """
    rng = np.random.default_rng(seed)
    env = gymnasium.make("NumberSearch-v0", disable_env_checker=True).unwrapped
    world = CraftingCorpus() if crafting else None
    while True:
        if world is not None and rng.random() < 0.25:
            yield world.game(rng) if rng.random() < 0.4 else world.questions(rng)
        elif rng.random() < 0.45:
            yield agent_envs.demonstrations(
                env, 1, int(rng.integers(2**31)), agent_envs.novice_policy, number_search_options(rng)
            )[0]["messages"]
        else:
            yield questions(rng)
