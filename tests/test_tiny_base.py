"""The embedded base: loads anywhere, speaks any text, and is not too good at what it is to learn."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer

from trl_plugins.tiny_base import corpus, tiny_base_path
from trl_plugins.tiny_base.__main__ import batches_of

TOKENIZER = AutoTokenizer.from_pretrained(tiny_base_path())


@given(st.text(max_size=60))
def test_no_text_is_out_of_reach(text: str) -> None:
    ids = TOKENIZER.encode(text, add_special_tokens=False, split_special_tokens=True)
    assert TOKENIZER.decode(ids, skip_special_tokens=False) == text


def test_numbers_are_one_token_wherever_they_stand() -> None:
    for number in range(corpus.TOP + 1):
        (token,) = TOKENIZER.encode(str(number))
        assert token in TOKENIZER.encode(f"from 1 to {number}.")


def test_it_is_small() -> None:
    assert sum(f.stat().st_size for f in Path(tiny_base_path()).iterdir()) < 8e6


def test_labels_are_what_the_assistant_says() -> None:
    talk = [{"role": "user", "content": "Say 7."}, {"role": "assistant", "content": "7"}]
    (batch,) = batches_of(TOKENIZER, [talk])
    labelled = batch["input_ids"][batch["weights"] == 1]
    assert TOKENIZER.decode(labelled) == "7<|end|>"


@pytest.mark.parametrize("question", [*corpus.NUMBER_QUESTIONS, *corpus.WORD_QUESTIONS])
def test_every_question_has_an_answer_and_numbers_stay_in_range(question: Any) -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        asked, answer = question(rng)
        assert asked
        assert answer
        assert all(0 <= int(word) <= corpus.TOP for word in answer.split() if word.isdigit())


def test_the_corpus_is_reproducible() -> None:
    first, second = corpus.dialogues(3), corpus.dialogues(3)
    assert [next(first) for _ in range(50)] == [next(second) for _ in range(50)]


def test_the_trainers_template_and_the_corpus_agree() -> None:
    messages = [{"role": "user", "content": "Say 7."}, {"role": "assistant", "content": "7"}]
    (batch,) = batches_of(TOKENIZER, [messages])
    rendered = TOKENIZER.apply_chat_template(messages, return_dict=True)["input_ids"]
    assert batch["input_ids"][0].tolist() == rendered


def test_before_training_it_is_a_novice(make_trainer: Any) -> None:
    assert make_trainer(eval_samples=30).evaluate()["eval_success_sampled"] <= 0.45
