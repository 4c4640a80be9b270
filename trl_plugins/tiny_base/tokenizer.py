"""The tokenizer of the embedded base: byte-level BPE (no text is out of reach), every number 0..100 one token."""

from __future__ import annotations

from collections.abc import Iterable

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

SPECIAL = ("<|pad|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>", "<|tool|>")

# One marker opens a message, <|end|> closes it; nothing else, so that a turn costs few tokens.
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|' + message['role'] + '|>' }}"
    "{% if message['role'] == 'assistant' %}"
    "{% generation %}{{ message['content'] + '<|end|>' }}{% endgeneration %}"
    "{% else %}{{ message['content'] + '<|end|>' }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)

# Digits never share a token with a space or a letter, so a number is the same token wherever it stands.
_PIECES = Regex(r"\d+| ?[A-Za-z]+| ?[^\sA-Za-z\d]+|\s+")


def train_tokenizer(texts: Iterable[str], top_number: int, vocab_size: int) -> PreTrainedTokenizerFast:
    """Byte-level BPE over `texts`; the numbers 0..top_number are made frequent enough to be one token each.

    Raises:
        RuntimeError: a number did not become one token (the vocabulary is too small).
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(_PIECES, behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    numbers = [" ".join(map(str, range(top_number + 1)))] * 20_000
    tokenizer.train_from_iterator([*texts, *numbers], trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<|pad|>",
        eos_token="<|end|>",
        additional_special_tokens=list(SPECIAL[2:]),
        chat_template=CHAT_TEMPLATE,
        padding_side="left",
        model_max_length=2048,
        clean_up_tokenization_spaces=False,
    )
    for number in range(top_number + 1):
        if len(fast.encode(str(number))) != 1:
            raise RuntimeError(f"{number} is not one token; raise vocab_size above {vocab_size}")
    return fast
