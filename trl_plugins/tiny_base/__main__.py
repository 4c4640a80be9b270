"""Make the embedded base from nothing: corpus, tokenizer, training, check.

`python -m trl_plugins.tiny_base --output runs/tiny_base` writes a model folder and the loss curve; copied over
trl_plugins/tiny_base/ they replace the shipped ones. `python -m trl_plugins.tiny_base.examine` prints what it knows.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm
from transformers import LlamaConfig, LlamaForCausalLM

from trl_plugins.tiny_base.corpus import TOP, dialogues
from trl_plugins.tiny_base.tokenizer import train_tokenizer

BATCH = 96  # dialogues a step
PEAK_LR = 3e-3


def build_model(tokenizer: Any, width: int, layers: int) -> LlamaForCausalLM:
    """A Llama-type model with an untied head: number embeddings and number logits are then free to differ."""
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=width,
        intermediate_size=3 * width,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=4096,
        tie_word_embeddings=False,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
    )
    return LlamaForCausalLM(config)


def batches_of(
    tokenizer: Any, conversations: list[list[dict[str, str]]], user_weight: float = 0.0, max_tokens: int = 3072
) -> Iterator[dict[str, torch.Tensor]]:
    """The conversations as batches of similar length, each of at most about `max_tokens` tokens, right-padded.

    Each batch holds ids (B, T) and `weights` (B, T): 1 on what the assistant says, its end token too, `user_weight` on
    what the user says (a game's answers can be worth predicting), 0 on padding. Padding stands at the right, where a
    causal model needs no attention mask; without one, attention is much faster.
    """
    user, assistant, end = (tokenizer.convert_tokens_to_ids(t) for t in ("<|user|>", "<|assistant|>", "<|end|>"))
    pieces = iter(tokenizer([m["content"] for c in conversations for m in c], add_special_tokens=False)["input_ids"])
    rows = []
    for conversation in conversations:
        ids: list[int] = []
        weights: list[float] = []
        for message in conversation:
            said, speaks = next(pieces), message["role"] == "assistant"
            ids += [assistant if speaks else user, *said, end]
            weights += [0.0 if speaks else user_weight, *[1.0 if speaks else user_weight] * (len(said) + 1)]
        rows.append((ids, weights))
    rows.sort(key=lambda row: len(row[0]))
    while rows:
        count = 1
        while count < len(rows) and len(rows[count][0]) * (count + 1) <= max_tokens:
            count += 1
        part, rows = rows[:count], rows[count:]
        width = len(part[-1][0])
        yield {
            "input_ids": torch.tensor([i + [tokenizer.pad_token_id] * (width - len(i)) for i, _ in part]),
            "weights": torch.tensor([w + [0.0] * (width - len(w)) for _, w in part]),
        }


def step_loss(model: LlamaForCausalLM, batches: list[dict[str, torch.Tensor]]) -> float:
    """Weighted mean loss a token over all batches, its gradient accumulated; returns the assistant's loss a token."""
    total = sum(b["weights"][:, 1:].sum() for b in batches)
    said_loss = said_tokens = 0.0
    for batch in batches:
        logits = model(input_ids=batch["input_ids"]).logits[:, :-1]
        losses = torch.nn.functional.cross_entropy(
            logits.flatten(0, 1), batch["input_ids"][:, 1:].flatten(), reduction="none"
        ).view_as(batch["weights"][:, 1:])
        weights = batch["weights"][:, 1:]
        ((losses * weights).sum() / total).backward()
        said_loss += losses.detach()[weights == 1].sum().item()
        said_tokens += (weights == 1).sum().item()
    return said_loss / max(said_tokens, 1)


def train(
    output: Path,
    steps: int = 2600,
    width: int = 128,
    layers: int = 4,
    vocab_size: int = 768,
    seed: int = 0,
    crafting: bool = True,
    user_weight: float = 0.2,
) -> None:
    torch.manual_seed(seed)
    texts = [m["content"] for c in islice(dialogues(seed + 1, crafting), 20_000) for m in c]
    tokenizer = train_tokenizer(texts, TOP, vocab_size)
    model = build_model(tokenizer, width, layers)
    parameters = sum(p.numel() for p in model.parameters())
    print(f"{parameters:,} parameters, {len(tokenizer)} tokens, {steps} steps of {BATCH} dialogues")
    optimizer = torch.optim.AdamW(model.parameters(), lr=PEAK_LR, betas=(0.9, 0.98), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, PEAK_LR, total_steps=steps, pct_start=0.05, final_div_factor=100
    )
    stream = dialogues(seed, crafting)
    curve, started, bar = [], time.time(), tqdm(range(steps), desc="training the base")
    for step in bar:
        loss = step_loss(model, list(batches_of(tokenizer, list(islice(stream, BATCH)), user_weight)))
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if step % 20 == 0 or step == steps - 1:
            curve.append({"step": step, "loss": round(loss, 4), "seconds": round(time.time() - started, 1)})
            bar.set_postfix(loss=f"{loss:.3f}")
    output.mkdir(parents=True, exist_ok=True)
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    model.save_pretrained(output / "model")
    tokenizer.save_pretrained(output / "model")
    (output / "loss.jsonl").write_text("".join(json.dumps(row) + "\n" for row in curve))
    draw_curve(curve, output / "loss_curve.png")


def draw_curve(curve: list[dict[str, float]], png: Path) -> None:
    """The assistant's loss a token against steps."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    axes.plot([row["step"] for row in curve], [row["loss"] for row in curve], lw=1)
    axes.set(xlabel=f"step of {BATCH} dialogues", ylabel="nats a token said", title="The embedded base", ylim=(0, None))
    axes.grid(alpha=0.25)
    figure.savefig(png, dpi=120)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("runs/tiny_base"))
    parser.add_argument("--steps", type=int, default=2600)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--vocab_size", type=int, default=768)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--crafting", action=argparse.BooleanOptionalAction, default=True, help="let it see the crafting world too"
    )
    parser.add_argument("--user_weight", type=float, default=0.2, help="loss weight of what the user says")
    arguments = parser.parse_args()
    if (arguments.output / "model").exists():
        parser.error(f"{arguments.output / 'model'} exists; give another --output")
    train(**vars(arguments))


if __name__ == "__main__":
    main()
