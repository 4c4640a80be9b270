"""Policies for `collect_rollouts`: on transformers with the cache carried across turns, on vLLM, and scripted."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Sequence
from typing import Any

import torch
from transformers.cache_utils import Cache
from transformers.generation.logits_process import (
    LogitsProcessorList,
    MinPLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from trl_plugins.ragged_cache import RaggedCache
from trl_plugins.rollout import Sample

logger = logging.getLogger(__name__)


PADDING = 0.25  # most padding in a pass, as a share of its tokens that count


def _stop(lengths: Sequence[int]) -> int:
    """How far to take rows of these lengths in one pass: to the longest length whose padding stays within PADDING."""
    best = min(lengths)
    for stop in sorted(set(lengths)):
        padding = sum(max(stop - n, 0) for n in lengths)
        if padding <= PADDING * sum(min(n, stop) for n in lengths):
            best = stop
    return best


class TransformersPolicy:
    """Samples from a transformers model. No token of an episode passes through the model twice.

    The prompt is computed once for each distinct prompt. Each turn feeds what is new in a context (the last sampled
    token, the environment's words), then decodes. Rows of different lengths stand side by side in the cache without
    padding (see `RaggedCache`); a pass that adds different numbers of tokens to them is padded for that pass alone.

    Args:
        model: a causal language model, PEFT-wrapped or not; its mode (train or eval) is restored after each call.
        end_ids: the tokens that end a turn.
        max_turn_tokens: most tokens a turn.
        temperature: 0 takes the most likely token.
        top_k, top_p, min_p: as in transformers; off by default.
        carry_cache: False recomputes each context from the start (slow; the yardstick of the tests). None carries it
            where the model's attention allows.
        micro_batch: most rows a forward pass; None for all.

    Attributes:
        tokens_computed: tokens of the episodes passed through the model since the last `start`.
        padding_computed: tokens of padding passed through beside them.
    """

    def __init__(
        self,
        model: Any,
        end_ids: Sequence[int],
        max_turn_tokens: int,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float = 1.0,
        min_p: float | None = None,
        carry_cache: bool | None = None,
        micro_batch: int | None = None,
    ) -> None:
        if max_turn_tokens < 1:
            raise ValueError(f"max_turn_tokens={max_turn_tokens}: a turn has at least one token")
        if temperature < 0:
            raise ValueError(f"temperature={temperature} is negative; 0 is greedy")
        self.model, self.temperature, self.max_turn_tokens = model, temperature, max_turn_tokens
        self.end_ids = torch.tensor(sorted(set(end_ids)))
        self._truncate = LogitsProcessorList()
        if top_k:
            self._truncate.append(TopKLogitsWarper(top_k))
        if top_p < 1.0:
            self._truncate.append(TopPLogitsWarper(top_p))
        if min_p:
            self._truncate.append(MinPLogitsWarper(min_p))
        self.carry_cache = cache_can_be_carried(model) if carry_cache is None else carry_cache
        self.micro_batch = micro_batch
        self.tokens_computed = self.padding_computed = 0

    def start(self, prompts: Sequence[list[int]], seed: int) -> None:
        self._device = next(self.model.parameters()).device
        self._generator = torch.Generator(self._device).manual_seed(seed)
        self.tokens_computed = self.padding_computed = 0
        self._prompts = [tuple(p) for p in prompts]
        self._cache: RaggedCache | None = None
        self._slot: dict[int, int] = {}

    @torch.no_grad()
    def act(self, rows: Sequence[int], contexts: Sequence[list[int]]) -> list[Sample]:
        was_training = self.model.training
        self.model.eval()
        try:
            size = self.micro_batch or len(rows)
            if not self.carry_cache:
                chunks = range(0, len(rows), size)
                return [
                    s for i in chunks for s in self._turn(None, range(len(rows[i : i + size])), contexts[i : i + size])
                ]
            first = self._settle(rows)
            samples: list[Sample] = []
            for i in range(0, len(rows), size):
                slots = [self._slot[row] for row in rows[i : i + size]]
                logits = None if first is None else first[i : i + size]
                samples += self._turn(self._cache, slots, contexts[i : i + size], logits)
            return samples
        finally:
            self.model.train(was_training)

    def _settle(self, rows: Sequence[int]) -> torch.Tensor | None:
        """Give each live row its slot. On the first turn this computes each distinct prompt once and returns the
        logits (B, V) after each row's own; later it drops the rows that have finished."""
        logits = None
        if self._cache is None:
            distinct = list(dict.fromkeys(self._prompts[row] for row in rows))
            self._cache = RaggedCache(self.model.config)
            self._cache.allocate(len(distinct))
            once = self._feed(self._cache, list(range(len(distinct))), [list(p) for p in distinct])
            index = {p: i for i, p in enumerate(distinct)}
            owner = [index[self._prompts[row]] for row in rows]
            self._cache.keep(owner)
            logits = once[torch.tensor(owner, device=once.device)]
        elif len(rows) < len(self._slot):
            self._cache.keep([self._slot[row] for row in rows])
        self._slot = {row: slot for slot, row in enumerate(rows)}
        return logits

    def _turn(
        self,
        cache: RaggedCache | None,
        slots: Sequence[int],
        contexts: Sequence[list[int]],
        logits: torch.Tensor | None = None,
    ) -> list[Sample]:
        """Sample one reply for each slot, token by token, until an end token or the cap; `logits` (B, V) after the
        contexts where they are known already."""
        ids: list[list[int]] = [[] for _ in slots]
        logprobs: list[list[float]] = [[] for _ in slots]
        finish: list[Any] = ["length"] * len(slots)
        going = list(range(len(slots)))
        for _ in range(self.max_turn_tokens):
            if cache is None:
                logits = self._recompute([[*contexts[i], *ids[i]] for i in going])
            elif logits is None:
                new = [([*contexts[i], *ids[i]])[int(cache.lengths[slots[i]]) :] for i in going]
                logits = self._feed(cache, [slots[i] for i in going], new)
            tokens, logps = self._sample(logits)
            logits = None
            ended = torch.isin(tokens, self.end_ids.to(tokens.device)).tolist()
            for i, token, logp in zip(going, tokens.tolist(), logps.tolist(), strict=True):
                ids[i].append(token)
                logprobs[i].append(logp)
            for i, end in zip(going, ended, strict=True):
                if end:
                    finish[i] = "stop"
            going = [i for i, end in zip(going, ended, strict=True) if not end]
            if not going:
                break
        return [Sample(i, p, f) for i, p, f in zip(ids, logprobs, finish, strict=True)]

    def _feed(self, cache: RaggedCache, slots: list[int], new: list[list[int]]) -> torch.Tensor:
        """Pass each slot's new tokens through the model; logits (B, V) after each slot's last token.

        One pass does for rows of about the same length. A pass ends where padding the shorter rows any further would
        cost more than PADDING of it; what the longer rows still have follows in the next.
        """
        done, logits = 0, None
        order = list(range(len(slots)))
        while order := [i for i in order if len(new[i]) > done]:
            upto = _stop([len(new[i]) - done for i in order]) + done
            last = self._pass(cache, {slots[i]: new[i][done:upto] for i in order})
            if logits is None:
                logits = last.new_empty(len(slots), last.shape[-1])
            at = [k for k, i in enumerate(order) if len(new[i]) <= upto]
            logits[[order[k] for k in at]] = last[at]
            done = upto
        assert logits is not None
        return logits

    def _pass(self, cache: RaggedCache, new: dict[int, list[int]]) -> torch.Tensor:
        """One forward pass of each slot's tokens, padded at the right; logits (B, V) after each slot's last."""
        slots, everyone = list(new), range(len(cache.lengths))
        if len(slots) < len(everyone) <= 2 * len(slots):
            slots = list(everyone)  # the others pass with nothing new: cheaper than gathering the cache of these
        lengths = [len(new.get(slot, ())) for slot in slots]
        ids = torch.zeros(len(slots), max(lengths), dtype=torch.long)
        for row, slot in enumerate(slots):
            ids[row, : lengths[row]] = torch.tensor(new.get(slot, ()), dtype=torch.long)
        self.tokens_computed += sum(lengths)
        self.padding_computed += ids.numel() - sum(lengths)
        mask, positions = (t.to(self._device) for t in cache.begin(slots, lengths, self.model.config))
        last = torch.tensor([max(n - 1, 0) for n in lengths])
        ends = last.unique()  # the head computes logits where some row ends, nowhere else
        out = self._forward(
            ids.to(self._device),
            attention_mask=mask,
            position_ids=positions,
            cache=cache,
            logits_to_keep=ends.to(self._device),
        )
        cache.advance()
        place = {slot: row for row, slot in enumerate(slots)}
        rows = torch.tensor([place[slot] for slot in new])
        return out.logits[rows, torch.searchsorted(ends, last[rows])].float()

    def _recompute(self, contexts: list[list[int]]) -> torch.Tensor:
        """Logits after each whole context, left-padded in one batch, nothing cached."""
        width = max(map(len, contexts))
        ids = torch.zeros(len(contexts), width, dtype=torch.long, device=self._device)
        mask = torch.zeros_like(ids)
        for i, context in enumerate(contexts):
            ids[i, width - len(context) :] = torch.tensor(context, device=self._device)
            mask[i, width - len(context) :] = 1
        self.tokens_computed += ids.numel()
        positions = (mask.cumsum(-1) - 1).clamp(min=0)
        out = self._forward(ids, attention_mask=mask, position_ids=positions, use_cache=False, logits_to_keep=1)
        return out.logits[:, -1].float()

    def _forward(self, ids: torch.Tensor, cache: Cache | None = None, **inputs: Any) -> Any:
        if cache is not None:
            inputs[_cache_argument(self.model)] = cache
            inputs["use_cache"] = True
        return self.model(input_ids=ids, **inputs)

    def _sample(self, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Tokens (B,) and their log-probabilities (B,) at the temperature, before top-k, top-p or min-p cut anything:
        that is the distribution whose gradient the trainer takes."""
        if self.temperature == 0:
            tokens = logits.argmax(-1)
            return tokens, logits.log_softmax(-1).gather(-1, tokens[:, None])[:, 0]
        logps = (logits / self.temperature).log_softmax(-1)
        kept = self._truncate(torch.empty(0), logps) if self._truncate else logps  # type: ignore[arg-type]
        tokens = torch.multinomial(kept.softmax(-1), 1, generator=self._generator)
        return tokens[:, 0], logps.gather(-1, tokens)[:, 0]


def _cache_argument(model: Any) -> str:
    """transformers renamed `past_key_values` to `cache`; the name its forward takes."""
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    return "cache" if "cache" in inspect.signature(type(inner).forward).parameters else "past_key_values"


# Families with plain attention over rotary or learned positions whose carried cache was tried against recomputation.
CARRIES = ("llama", "qwen2", "qwen3", "gpt2", "gpt_neox", "gpt_neo", "opt", "smollm3", "mistral", "deepseek_v3")


def cache_can_be_carried(model: Any) -> bool:
    """Whether the model is of a family that was tried, with full attention in an implementation that takes a mask of
    our own; if not, warn."""
    config = model.config.get_text_config()
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    window = getattr(config, "sliding_window", None) if getattr(config, "use_sliding_window", True) else None
    attention = getattr(config, "_attn_implementation", "sdpa")
    full = kinds <= {"full_attention"} and not (window and "layer_types" not in vars(config))
    if config.model_type in CARRIES and full and attention in ("sdpa", "eager"):
        return True
    logger.warning(
        "the key-value cache is not carried across turns for %s (family %s, layers %s, attention %s): each token is "
        "recomputed; the fast way is for %s with full attention and attn_implementation='sdpa'",
        type(model).__name__,
        config.model_type,
        ", ".join(sorted(kinds)),
        attention,
        ", ".join(CARRIES),
    )
    return False


class VLLMPolicy:
    """Samples with TRL's vLLM backend, whose own prefix cache keeps earlier turns from being computed again.

    Args:
        generation: TRL's `VLLMGeneration`; it owns the sampling settings.
        temperature: in place of the generation's own; 0 is greedy.
        end_ids: the tokens that end a turn.
        max_turn_tokens: most tokens a turn.
    """

    def __init__(
        self, generation: Any, end_ids: Sequence[int], max_turn_tokens: int, temperature: float | None = None
    ) -> None:
        self.generation, self.end_ids, self.max_turn_tokens = generation, frozenset(end_ids), max_turn_tokens
        self.temperature = generation.temperature if temperature is None else temperature

    def start(self, prompts: Sequence[list[int]], seed: int) -> None:
        pass  # vLLM seeds itself from the training arguments

    def act(self, rows: Sequence[int], contexts: Sequence[list[int]]) -> list[Sample]:
        was = self.generation.max_completion_length, self.generation.temperature
        self.generation.max_completion_length, self.generation.temperature = self.max_turn_tokens, self.temperature
        try:
            _, completions, logprobs, _ = self.generation.generate(
                prompts=[list(c) for c in contexts], images=None, num_generations=1
            )
        finally:
            self.generation.max_completion_length, self.generation.temperature = was
        return [
            Sample(list(ids), [lp[0] for lp in lps], "stop" if ids and ids[-1] in self.end_ids else "length")
            for ids, lps in zip(completions, logprobs, strict=True)
        ]


class ScriptedPolicy:
    """Says what a function says: `say(row, turn) -> text`, tokenised and closed with an end token. For tests."""

    def __init__(self, encode: Callable[[str], list[int]], end_id: int, say: Callable[[int, int], str]) -> None:
        self._encode, self._end_id, self._say = encode, end_id, say

    def start(self, prompts: Sequence[list[int]], seed: int) -> None:
        self._turns = [0] * len(prompts)

    def act(self, rows: Sequence[int], contexts: Sequence[list[int]]) -> list[Sample]:
        samples = []
        for row in rows:
            ids = [*self._encode(self._say(row, self._turns[row])), self._end_id]
            self._turns[row] += 1
            samples.append(Sample(ids, [0.0] * len(ids), "stop"))
        return samples


__all__ = ["ScriptedPolicy", "TransformersPolicy", "VLLMPolicy", "cache_can_be_carried"]
