"""TRL's environment_factory: the tools play the same game, and the stock GRPOTrainer trains with them."""

import inspect
import json
from functools import partial
from typing import Any

import equality
import pytest

import agent_envs
from agent_envs.adapters.trl import trl_environment, trl_rows
from agent_envs.crafting.commands import parse_command
from agent_envs.crafting.formulas import LITE
from agent_envs.number_search import parse_guess

# Qwen's format of tool calls, worded anew; append-only, as TRL needs for its mask.
TEMPLATE = """
{%- if tools %}<|im_start|>system
Tools:
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}<|im_end|>
{% endif %}
{%- for message in messages %}
{%- if message.role == 'assistant' %}<|im_start|>assistant
{{ message.content or '' }}
{%- for call in message.tool_calls or [] %}<tool_call>
{{ call.function | tojson }}
</tool_call>{% endfor %}<|im_end|>
{% else %}<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
RESPONSE = {
    "defaults": {"role": "assistant"},
    "start_anchor": "<|im_start|>assistant\n",
    "fields": {
        "tool_calls": {
            "open": "<tool_call>",
            "close_pattern": r"</tool_call>\s*",
            "repeats": True,
            "content": "json",
            "transform": {"type": "function", "function": "{content}"},
        },
        "content": {"close_pattern": r"<\|im_end\|>\s*", "content": "text"},
    },
}


def call(env, action):
    """The tool call that a text action stands for; a reply that holds no action is no call."""
    if hasattr(env, "guess"):
        number, _ = parse_guess(action)
        return None if number is None else partial(env.guess, number)
    command = parse_command(action, LITE).command
    if command is None:
        return None
    method = getattr(env, command.verb)
    return partial(method, command.name) if command.name else method


@pytest.mark.parametrize("id", equality.IDS)
def test_same_rewards_and_ends(id):
    env: Any = trl_environment(id)()
    for episode in equality.episodes(id, junk=0.0):
        assert env.reset(seed=episode.seed, options=json.dumps(episode.options), prompt="?") == episode.first
        for i, turn in enumerate(episode.turns):
            tool: Any = call(env, turn.action)
            assert tool() == turn.observation
            assert env.get_reward() == pytest.approx(sum(episode.rewards[: i + 1]))
            assert env._done == turn.done


def test_the_end_is_final():
    env: Any = trl_environment("NumberSearch-v0")()
    assert "over" in env.guess(1)
    env.reset(seed=0, options={"target": 8})
    env.guess(8)
    assert "over" in env.guess(8)
    assert env.get_reward() == 1.0


def test_rows_choose_the_task():
    task = agent_envs.task_set("NumberSearch-v0", "train")[5]
    env: Any = trl_environment("NumberSearch-v0")()
    (row,) = trl_rows([task])
    env.reset(**row)
    assert env._info["target"] == task.options["target"]
    with pytest.raises(ValueError, match="seed"):
        env.reset(prompt="?")
    with pytest.raises(ValueError, match="one factory per environment"):
        env.reset(env_id="Crafting-v0", seed=0)


def test_tools_are_typed_and_documented():
    utils = pytest.importorskip("transformers.utils.chat_template_utils")
    tools = {"NumberSearch-v0": {"guess"}, "Crafting-v0": {"go", "mine", "craft", "place", "smelt", "give_up"}}
    for id, names in {**tools, "Sort-v0": {"act"}}.items():
        members = dict(inspect.getmembers(trl_environment(id), inspect.isfunction))
        found = {name for name in members if not name.startswith("_")} - {"reset", "get_reward"}
        assert found == names
        for name in found:
            schema = utils.get_json_schema(getattr(trl_environment(id)(), name))["function"]
            assert schema["description"]
            assert all(field["description"] for field in schema["parameters"].get("properties", {}).values())


def make_model(path, id, calls):
    """A tiny Qwen-like model and its tokenizer, made here and taught in seconds to make tool calls at all."""
    import numpy as np
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    torch.set_num_threads(1)
    env: Any = trl_environment(id)()
    members = inspect.getmembers(type(env), inspect.isfunction)
    tools = [
        getattr(env, name) for name, _ in members if not name.startswith("_") and name not in ("reset", "get_reward")
    ]
    rows = trl_rows(agent_envs.task_set(id, "train", 16))
    prompts = [row["prompt"][0]["content"] + env.reset(**row) for row in rows]

    marks = ["<|pad|>", "<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>"]
    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # type: ignore[assignment]
    raw.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    trainer = trainers.BpeTrainer(
        vocab_size=700,  # type: ignore[call-arg]
        special_tokens=marks[:3],  # type: ignore[call-arg]
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),  # type: ignore[call-arg]
    )
    texts = [*prompts, *map(json.dumps, calls), TEMPLATE, *(str(tool.__doc__) for tool in tools)]
    raw.train_from_iterator(texts * 4, trainer)
    tokenizer: Any = PreTrainedTokenizerFast(
        tokenizer_object=raw, eos_token=marks[2], pad_token=marks[0], padding_side="left"
    )
    tokenizer.add_tokens(marks[3:])
    tokenizer.chat_template = TEMPLATE
    tokenizer.response_template = RESPONSE
    model = Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=len(tokenizer),
            hidden_size=48,
            intermediate_size=96,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=12,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )
    # A few conversations of random calls, only the model's own tokens carrying loss.
    optimizer, rng = torch.optim.AdamW(model.parameters(), lr=5e-3), np.random.default_rng(0)
    opening = tokenizer.encode("<|im_start|>assistant\n")
    for _ in range(80):
        messages: list[dict[str, Any]] = [{"role": "user", "content": prompts[int(rng.integers(len(prompts)))]}]
        for _ in range(5):
            made = {"type": "function", "function": calls[int(rng.integers(len(calls)))]}
            messages += [{"role": "assistant", "tool_calls": [made]}, {"role": "tool", "content": "higher"}]
        ids = tokenizer.apply_chat_template(messages[:-1], tools=tools)["input_ids"]
        labels, i = [-100] * len(ids), 0
        while i < len(ids):
            if ids[i : i + len(opening)] == opening:
                end = ids.index(tokenizer.eos_token_id, i) + 1
                labels[i + len(opening) : end] = ids[i + len(opening) : end]
                i = end
            i += 1
        loss = model(input_ids=torch.tensor([ids]), labels=torch.tensor([labels])).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    print(f"taught to call, loss {loss.item():.2f}")
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return model, tokenizer, rows


def test_stock_grpo_trainer_trains(tmp_path):
    trl = pytest.importorskip("trl")
    from datasets import Dataset

    id = "NumberSearch-v0"
    calls = [{"name": "guess", "arguments": {"number": n}} for n in range(1, 17)]
    model, tokenizer, rows = make_model(tmp_path / "model", id, calls)
    before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    args = trl.GRPOConfig(
        str(tmp_path / "run"),
        max_steps=2,
        per_device_train_batch_size=8,
        num_generations=4,
        max_completion_length=600,
        max_tool_calling_iterations=4,
        learning_rate=1e-3,
        logging_steps=1,
        report_to="none",
        save_strategy="no",
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        disable_tqdm=True,
    )
    factory = trl_environment(id)
    trainer = trl.GRPOTrainer(
        model=model,
        args=args,
        train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer,
        environment_factory=factory,
    )
    trainer.train()
    logs = [log for log in trainer.state.log_history if "loss" in log]
    print([{k: v for k, v in log.items() if "tools" in k or "reward" in k} for log in logs])
    assert len(logs) == 2
    assert any(log["tools/call_frequency"] > 0 for log in logs), "the model never called a tool"
    assert all(f"rewards/{factory.__name__}/mean" in log for log in logs)
    targets = [environment._info.get("target") for environment in trainer.environments]
    assert targets[0] == targets[1] == targets[2] == targets[3], "a group must play one task"
    if any(log["reward_std"] > 0 for log in logs):
        moved = max((weight - before[name]).abs().max() for name, weight in trainer.model.named_parameters())
        assert moved > 0
