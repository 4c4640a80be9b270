"""Check the loss mask first: one trajectory, token by token. Which tokens carry loss, with what weight?

    python -m trl_plugins.masks --config recipes/number_search_tiny.yaml
    python -m trl_plugins.masks --config recipes/number_search_sft.yaml --show demonstration --html masks.html
    python -m trl_plugins.masks --config recipes/number_search_rest.yaml --show runs/my_run/iteration_001/kept

Takes the YAML of any recipe and LookArguments, MasksArguments and the trainer's arguments on the command line. In a
terminal, sampled tokens of positive weight are green, of negative weight red, of weight 0 yellow, and all others dim;
elsewhere the same table is plain text.
"""

from __future__ import annotations

import html
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from datasets import load_from_disk

import agent_envs
from trl_plugins.chat import Chat, Message
from trl_plugins.config import MultiTurnGRPOConfig
from trl_plugins.launch import LookArguments, one_line_errors, parse_any_recipe, playing_trainer, training_tasks
from trl_plugins.trainer import row_task
from trl_plugins.weights import NORMALISERS


@dataclass(frozen=True)
class TokenView:
    """One token as the loss sees it."""

    text: str
    sampled: bool
    """It is in the loss's mask: the policy sampled it (or a demonstration says it)."""
    weight: float
    """What its log-probability is multiplied by; 0 where it is not in the mask."""
    logprob: float | None
    """At sampling for a rollout, under the present model for a demonstration; None where it is not in the mask."""

    @property
    def kind(self) -> str:
        """prompt-like "given", or "up", "down", "still" by the sign of the weight."""
        if not self.sampled:
            return "given"
        return "up" if self.weight > 0 else "down" if self.weight < 0 else "still"


# --- Three sources, one view -----------------------------------------------------------------------------------------


def token_views(
    ids: Sequence[int], mask: Sequence[int], weights: Sequence[float], logprobs: Sequence[float], tokenizer: Any
) -> list[TokenView]:
    """All arguments (T,); the weight and log-probability of tokens outside the mask are not shown."""
    return [
        TokenView(tokenizer.decode([i]), bool(m), w if m else 0.0, p if m else None)
        for i, m, w, p in zip(ids, mask, weights, logprobs, strict=True)
    ]


def group_tokens(trainer: Any, row: dict[str, Any]) -> list[list[TokenView]]:
    """The tokens of one group of `num_generations` trajectories on a row of the trainer's dataset, padding left out.

    Ids, mask and weights are read off the tensors that the trainer would hand to its loss, whatever the method, so
    this shows what is trained on and not what should be.
    """
    trainer.model.train()  # the trainer scores a batch for training only in this mode
    batch = trainer._generate_and_score_completions([row] * trainer.num_generations)
    weights = batch["advantages"]  # (N,) or (N, C)
    weights = (weights[:, None] if weights.dim() == 1 else weights).expand_as(batch["completion_ids"])
    views = []
    for i, trajectory in enumerate(trainer.last_trajectories):
        prompt = batch["prompt_ids"][i][batch["prompt_mask"][i].bool()].tolist()
        real = batch["completion_mask"][i].bool()
        ids, mask, each = (t[i][real].tolist() for t in (batch["completion_ids"], batch["tool_mask"], weights))
        logprobs = trajectory.logprobs or [0.0]  # an episode that failed at once stands as one unsampled token
        before = len(prompt)
        views.append(
            token_views(
                [*prompt, *ids],
                [0] * before + mask,
                [0.0] * before + each,
                [0.0] * before + logprobs,
                trainer.chat.tokenizer,
            )
        )
    return views


def masked_tokens(ids: Sequence[int], mask: Sequence[int], model: Any, tokenizer: Any) -> list[TokenView]:
    """A kept game's or a demonstration's tokens: weight 1 on the mask, log-probabilities under `model`."""
    return token_views(ids, mask, [1.0] * len(ids), token_logprobs(model, ids), tokenizer)


def conversation_tokens(
    chat: Chat, model: Any, messages: Sequence[Message], system_prompt: str | None = None
) -> list[TokenView]:
    """A demonstration's tokens, made as `sft_dataset` makes them."""
    system = [{"role": "system", "content": system_prompt}] if system_prompt else []
    ids, mask = chat.conversation([*system, *messages])
    return masked_tokens(ids, mask, model, chat.tokenizer)


@torch.no_grad()
def token_logprobs(model: Any, ids: Sequence[int]) -> list[float]:
    """(T,) log-probability of each token given those before it, at temperature 1; 0 for the first."""
    was_training = model.training
    model.eval()
    try:
        row = torch.tensor([list(ids)], device=next(model.parameters()).device)
        logps = model(input_ids=row).logits[0, :-1].float().log_softmax(-1)
    finally:
        model.train(was_training)
    return [0.0, *logps.gather(-1, row[0, 1:, None])[:, 0].tolist()]


# --- Three renderings ------------------------------------------------------------------------------------------------

_ANSI = {"given": "\033[2m", "up": "\033[30;42m", "down": "\033[30;41m", "still": "\033[30;43m"}
_RESET = "\033[0m"


def render_text(tokens: Sequence[TokenView], colour: bool) -> str:
    """The whole as running text (sampled tokens in «guillemets» where there is no colour), then a line a token."""

    def paint(token: TokenView, text: str) -> str:
        if colour:
            return f"{_ANSI[token.kind]}{text}{_RESET}"
        return text

    def shown(token: TokenView) -> str:
        return paint(token, token.text if colour or not token.sampled else f"«{token.text}»")

    lines = ["".join(shown(token) for token in tokens), "", f"{'#':>5}  {'token':<24} sampled    weight   logprob"]
    for number, token in enumerate(tokens):
        name = repr(token.text)
        numbers = f"{'yes':<7} {token.weight:>9.4f} {token.logprob:>9.4f}" if token.logprob is not None else "no"
        lines.append(f"{number:>5}  {paint(token, name)}{' ' * max(24 - len(name), 0)} {numbers}")
    lines.append(f"{sum(t.sampled for t in tokens)} of {len(tokens)} tokens carry loss")
    return "\n".join(lines)


_PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{title}</title>
<style>
 body {{ font: 15px/1.9 ui-monospace, Menlo, Consolas, monospace; max-width: 60rem; margin: 2rem auto; padding: 0 1rem;
        color: #222; background: #fff }}
 h1 {{ font-size: 1.1rem }}
 p.text {{ white-space: pre-wrap; overflow-wrap: anywhere }}
 span {{ border-radius: 3px; padding: 1px 1px }}
 .given {{ color: #777 }} .up {{ background: #a8e6a1 }} .down {{ background: #f5b5ae }} .still {{ background: #f6e08f }}
 table {{ border-collapse: collapse }} td, th {{ padding: 0 .8rem; text-align: right; font-weight: normal }}
 td:nth-child(2), th:nth-child(2) {{ text-align: left; white-space: pre }} th {{ border-bottom: 1px solid #bbb }}
</style>
<h1>{title}</h1>
<p><span class="up">weight above 0</span> <span class="down">below 0</span> <span class="still">0</span>
<span class="given">not sampled: no loss</span>; point at a token for its numbers</p>
<p class="text">{text}</p>
<table><tr><th>#<th>token<th>sampled<th>weight<th>log-probability</tr>
{rows}
</table>
<p>{carry} of {total} tokens carry loss</p></html>
"""


def render_html(tokens: Sequence[TokenView], title: str) -> str:
    """A page that needs nothing else: the text with colours and hover numbers, then the table."""
    spans, rows = [], []
    for number, token in enumerate(tokens):
        name = html.escape(repr(token.text)[1:-1])
        numbers = (
            ("yes", f"{token.weight:.4f}", f"{token.logprob:.4f}") if token.logprob is not None else ("no", "", "")
        )
        hover = f"weight {numbers[1]}, log-probability {numbers[2]}" if token.sampled else "not sampled"
        spans.append(f'<span class="{token.kind}" title="{number}: {hover}">{html.escape(token.text)}</span>')
        cells = "".join(f"<td>{value}" for value in numbers)
        rows.append(f'<tr><td>{number}<td><span class="{token.kind}">{name}</span>{cells}</tr>')
    return _PAGE.format(
        title=html.escape(title),
        text="".join(spans),
        rows="\n".join(rows),
        carry=sum(t.sampled for t in tokens),
        total=len(tokens),
    )


# --- The command -----------------------------------------------------------------------------------------------------


@dataclass
class MasksArguments:
    """Which trajectory to show."""

    show: str = field(
        default="policy",
        metadata={"help": "policy: of a group sampled now; demonstration: the solver's; or a ReST run's kept/ folder."},
    )
    task: int = field(default=0, metadata={"help": "Which training task is played."})
    index: int | None = field(
        default=None, metadata={"help": "Which of the group or folder; unset, the first whose weight is not 0."}
    )
    html: str | None = field(default=None, metadata={"help": "Write a self-contained page to this file."})


def view(trainer: Any, arguments: MasksArguments) -> tuple[list[TokenView], str]:
    """The tokens to show and a line about them; the task is the first of the trainer's dataset.

    Raises:
        ValueError: no such trajectory, solver or folder.
    """
    row = trainer.train_dataset[0]
    task = row_task(row)
    where = f"{task.env_id} seed {task.seed}"
    if arguments.show == "demonstration":
        env = trainer.env_pool.lend()(task.env_id)
        try:
            game = agent_envs.demonstrations(env, 1, task.seed, options=task.options)[0]
        except TypeError as error:
            raise ValueError(f"show=demonstration: {error}") from error
        tokens = conversation_tokens(trainer.chat, trainer.model, game["messages"], trainer.args.system_prompt)
        return tokens, f"{where}: a demonstration, return {game['return']:g}; weight 1 (SFT)"
    if arguments.show != "policy":
        return _kept_game(trainer, arguments)
    group = group_tokens(trainer, row)
    pulls = [i for i, tokens in enumerate(group) if any(t.weight for t in tokens)]
    index = _index("index", arguments.index, len(group), pulls[0] if pulls else 0)
    divisor = {
        "constant": f"divided by C = {trainer.args.max_completion_length} tokens",
        "own_length": "divided by the trajectory's number of sampled tokens",
        "none": "divided by nothing",
    }[NORMALISERS[trainer.args.advantage]]
    returns = ", ".join(f"{t.total_return:g}" for t in trainer.last_trajectories)
    title = f"{where}: trajectory {index} of a group with returns {returns}; {trainer.args.advantage}, {divisor}"
    return group[index], title


def _kept_game(trainer: Any, arguments: MasksArguments) -> tuple[list[TokenView], str]:
    if not Path(arguments.show).is_dir():
        raise ValueError(f"show={arguments.show!r} is neither policy, demonstration nor a folder of kept games")
    games: Any = load_from_disk(arguments.show)
    game = games[_index("index", arguments.index, len(games), 0)]
    title = f"{game['env_id']} seed {game['seed']}: kept in iteration {game['iteration']}, return {game['return']:g}"
    return masked_tokens(game["ids"], game["mask"], trainer.model, trainer.chat.tokenizer), title


def _index(name: str, given: int | None, count: int, default: int) -> int:
    if given is not None and not 0 <= given < count:
        raise ValueError(f"{name}={given} is not one of the {count} there are; give 0..{count - 1}")
    return default if given is None else given


def main() -> None:
    look, arguments, args = parse_any_recipe(LookArguments, MasksArguments, MultiTurnGRPOConfig)
    tasks = training_tasks(look)
    task = tasks[_index("task", arguments.task, len(tasks), 0)]
    tokens, title = view(playing_trainer(look, args, [task]), arguments)
    print(title)
    print(render_text(tokens, colour=sys.stdout.isatty()))
    if arguments.html is not None:
        Path(arguments.html).parent.mkdir(parents=True, exist_ok=True)
        Path(arguments.html).write_text(render_html(tokens, title))
        print(f"page: {arguments.html}")


if __name__ == "__main__":
    one_line_errors(main)
