"""A key-value cache for rows of different lengths: each token stands where its position says, padding nowhere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers.cache_utils import Cache, CacheLayerMixin


class RaggedCache(Cache):
    """Keys and values of S slots, slot s holding `lengths[s]` tokens in its first columns.

    One forward pass appends tokens to some slots: `begin` says how many to which and gives the mask and the positions
    to call the model with, `advance` counts the tokens as held. Where slots get different numbers, the pass is padded
    at the right; what padding leaves in the cache lies behind a slot's last token, where no token looks before the next
    one has been written over it.
    """

    def __init__(self, config: Any) -> None:
        count = config.get_text_config().num_hidden_layers
        super().__init__(layers=[_RaggedLayer(self) for _ in range(count)])  # type: ignore[arg-type]
        self.lengths: list[int] = []
        self.slots: torch.Tensor | None = None
        self.columns: torch.Tensor | None = None
        self.width = 0

    def allocate(self, slots: int) -> None:
        """Start with so many empty slots."""
        self.lengths = [0] * slots

    def keep(self, slots: Sequence[int]) -> None:
        """Make these the slots 0, 1, ...; a slot may be named many times (a shared prompt) or not at all (dropped)."""
        self.lengths = [self.lengths[s] for s in slots]
        for layer in self.layers:
            layer.keep(slots, max(self.lengths, default=0))  # type: ignore[union-attr]

    def begin(self, slots: Sequence[int], new: Sequence[int], config: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Announce a forward pass of `new[i]` tokens for slot `slots[i]` (B slots, N the largest number).

        Returns:
            mask (B, 1, N, T): which columns each new token may see, in the form the attention implementation takes;
            positions (B, N).
        """
        starts = torch.tensor([self.lengths[s] for s in slots])
        self.active, self.new = list(slots), list(new)
        self.columns = starts[:, None] + torch.arange(max(new))
        self.width = int(starts.max()) + max(new)
        # The whole cache in order needs no gathering.
        self.slots = None if self.active == list(range(len(self.lengths))) else torch.tensor(self.active)
        mask = torch.arange(self.width)[None, None, None, :] <= self.columns[:, None, :, None]
        if getattr(config.get_text_config(), "_attn_implementation", "sdpa") == "eager":
            mask = torch.where(mask, 0.0, torch.finfo(torch.float32).min)
        return mask, self.columns

    def advance(self) -> None:
        for slot, new in zip(self.active, self.new, strict=True):
            self.lengths[slot] += new

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return max(self.lengths, default=0)


class _RaggedLayer(CacheLayerMixin):
    """One layer's keys and values, each (S, heads, columns, size)."""

    is_sliding = False

    def __init__(self, cache: RaggedCache) -> None:
        super().__init__()
        self.cache = cache

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        self.keys = key_states.new_zeros(len(self.cache.lengths), key_states.shape[1], 0, key_states.shape[3])
        self.values = value_states.new_zeros(len(self.cache.lengths), value_states.shape[1], 0, value_states.shape[3])
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        cache = self.cache
        assert self.keys is not None
        assert self.values is not None
        assert cache.columns is not None
        if self.keys.shape[2] < cache.width:
            self.keys, self.values = _widen(self.keys, cache.width), _widen(self.values, cache.width)
        device = self.keys.device
        slots = torch.arange(len(cache.lengths)) if cache.slots is None else cache.slots
        where = (slots[:, None].to(device), slice(None), cache.columns.to(device))
        self.keys[where] = key_states.transpose(1, 2)
        self.values[where] = value_states.transpose(1, 2)
        if cache.slots is None:
            return self.keys[:, :, : cache.width], self.values[:, :, : cache.width]
        chosen = cache.slots.to(device)
        return self.keys[chosen, :, : cache.width], self.values[chosen, :, : cache.width]

    def keep(self, slots: Sequence[int], width: int) -> None:
        if self.keys is not None and self.values is not None:
            chosen = torch.tensor(slots, device=self.keys.device)
            self.keys = self.keys[:, :, :width].index_select(0, chosen)
            self.values = self.values[:, :, :width].index_select(0, chosen)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.cache.width, 0

    def get_seq_length(self) -> int:
        return self.cache.get_seq_length()

    def get_max_length(self) -> int:
        return -1


def _widen(tensor: torch.Tensor, width: int) -> torch.Tensor:
    """Room for `width` columns and half as many again, so that growing stays rare."""
    return torch.nn.functional.pad(tensor, (0, 0, 0, width + width // 2 - tensor.shape[2]))
