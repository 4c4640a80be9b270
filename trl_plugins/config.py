"""Training arguments: TRL's GRPOConfig and what a multi-turn run adds to it."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from peft import LoraConfig
from trl import GRPOConfig

from trl_plugins.weights import CREDITS, NORMALISERS, PER_TURN, SINGLE


def default_lora() -> LoraConfig:
    """LoRA on all linear layers but the head (rank 16, alpha 32)."""
    return LoraConfig(r=16, lora_alpha=32, lora_dropout=0.0, target_modules="all-linear", task_type="CAUSAL_LM")


@dataclass
class MultiTurnGRPOConfig(GRPOConfig):
    """GRPOConfig for episodes of several turns.

    `max_completion_length` is not set by hand: it is max_turns x max_turn_tokens, the most tokens a policy can sample
    in an episode, and Dr. GRPO's constant. `loss_type` follows from `advantage` unless given.

    Raises:
        ValueError: an unknown method, sizes that do not fit together; each message names the remedy.
    """

    advantage: str = field(
        default="dr_grpo", metadata={"help": f"The method, by its weight: {', '.join(NORMALISERS)}."}
    )
    grpo_std: str = field(
        default="sample", metadata={"help": "Standard deviation of advantage grpo: sample (as TRL) or population."}
    )
    baseline: float = field(default=0.0, metadata={"help": "b of advantage constant; the threshold of advantage rest."})
    baseline_decay: float = field(
        default=0.9, metadata={"help": "Decay a step of advantage running_mean's average (saved in checkpoints)."}
    )
    credit: str | None = field(
        default=None,
        metadata={
            "help": "trajectory: a trajectory's tokens share its weight; reward_to_go: each turn has its own, compared "
            "with the same turn of the group; turn_group: with turns taken in the same history or state. Unset: "
            "reward_to_go for the methods value and oracle, else trajectory."
        },
    )
    discount: float = field(default=1.0, metadata={"help": "Discount of credit by turns, per turn."})
    turn_group_by: str = field(
        default="history",
        metadata={
            "help": "Which turns credit turn_group compares: history (same tokens so far) or state (same task "
            "in the same environment state)."
        },
    )
    gigpo_omega: float | None = field(
        default=None,
        metadata={"help": "Credit turn_group: weight = trajectory's weight + omega x turn's. Unset: the turn's alone."},
    )
    gae_lambda: float = field(default=1.0, metadata={"help": "lambda of advantage value (GAE over turns)."})
    value_learning_rate: float = field(default=1e-3, metadata={"help": "Of the value head of advantage value (Adam)."})
    value_epochs: int = field(default=8, metadata={"help": "Passes of the value head over each batch."})
    max_turns: int = field(default=8, metadata={"help": "Most turns an episode; one still running is truncated."})
    max_turn_tokens: int = field(default=64, metadata={"help": "Most tokens the policy may sample in one turn."})
    max_completion_length: int | None = field(
        default=None, metadata={"help": "Derived: max_turns x max_turn_tokens. Leave it unset."}
    )
    loss_type: str | None = field(  # type: ignore[assignment]
        default=None, metadata={"help": "TRL's loss type. Unset, it follows from `advantage`."}
    )
    learning_rate: float = field(default=1e-4, metadata={"help": "Suits LoRA; full fine-tuning wants a tenth of it."})
    system_prompt: str | None = field(default=None, metadata={"help": "Put before an episode's first observation."})
    reply_role: str = field(default="user", metadata={"help": "Role in which the environment answers: user or tool."})
    chat_template: str | None = field(
        default=None, metadata={"help": "A jinja file, or 'chatml', in place of the tokenizer's own template."}
    )
    entropy_bonus: float = field(
        default=0.0,
        metadata={
            "help": "Bonus on the entropy of each sampled token in episodes with a weight, with the loss's own "
            "normaliser; fades to 0."
        },
    )
    entropy_bonus_failing: bool = field(
        default=False, metadata={"help": "Give the entropy bonus to groups where nobody succeeds, too."}
    )
    entropy_bonus_until: float = field(
        default=0.8, metadata={"help": "Share of training after which the entropy bonus has faded to 0."}
    )
    curriculum: bool = field(
        default=False,
        metadata={"help": "Draw training tasks by how learnable their level (environment, difficulty) is: p(1 - p)."},
    )
    curriculum_floor: float = field(
        default=0.02, metadata={"help": "Least weight of a level beside p(1 - p), which is at most 0.25."}
    )
    curriculum_decay: float = field(default=0.9, metadata={"help": "Decay a group of a level's average success p."})
    hint_share: float = field(
        default=0.0, metadata={"help": "Share of groups that start with the environment's hint; fades to 0."}
    )
    hint_until: float = field(default=0.5, metadata={"help": "Share of training after which no group has a hint."})
    resample_rounds: int = field(
        default=0, metadata={"help": "Groups whose returns tie are played again with other tasks, so often at most."}
    )
    demonstrations: str = field(
        default="none",
        metadata={
            "help": "Where nobody in a group succeeds, the solver's episode takes the last place, its tokens' weights "
            "times 1 (plain), their probability p (importance) or 0.1 p / (p + 0.1)^2 (shaped); none: never."
        },
    )
    max_failed_share: float = field(
        default=0.5, metadata={"help": "Stop when more than this share of a batch's environments raise."}
    )
    eval_samples: int = field(default=16, metadata={"help": "Sampled games a task in evaluate(); one more is greedy."})
    eval_exact_epsilon: float = field(
        default=0.0,
        metadata={"help": "Above 0, evaluate() also sums success over all episodes more likely than this (1e-5, say)."},
    )
    eval_seed: int = field(default=20_000, metadata={"help": "Seed of evaluate()'s sampling, the same each time."})

    def __post_init__(self) -> None:
        if self.advantage not in NORMALISERS:
            raise ValueError(f"advantage={self.advantage!r} is unknown; use one of {', '.join(NORMALISERS)}")
        _one_of("grpo_std", self.grpo_std, ("sample", "population"))
        self.credit = self.credit or credit_of(self.advantage)
        _one_of("credit", self.credit, tuple(CREDITS))
        self._check_credit()
        _one_of("turn_group_by", self.turn_group_by, ("history", "state"))
        _one_of("reply_role", self.reply_role, ("user", "tool"))
        _one_of("demonstrations", self.demonstrations, ("none", "plain", "importance", "shaped"))
        if self.resample_rounds < 0:
            raise ValueError(f"resample_rounds={self.resample_rounds} is negative; 0 turns it off")
        if self.temperature <= 0:
            raise ValueError(f"temperature={self.temperature} must be above 0; evaluate() plays greedily besides")
        if self.max_steps == 0:
            raise ValueError("max_steps=0 trains nothing; set a number of steps, or leave it unset for epochs")
        if self.remove_unused_columns:
            raise ValueError("remove_unused_columns would drop the rows' env_id, seed and options; leave it false")
        if self.entropy_bonus < 0:
            raise ValueError(f"entropy_bonus={self.entropy_bonus} is negative; 0 turns it off")
        if self.entropy_bonus_failing and not self.entropy_bonus:
            raise ValueError("entropy_bonus_failing says where the entropy bonus goes; set entropy_bonus above 0, too")
        for name in (
            "max_turns",
            "max_turn_tokens",
            "eval_samples",
            "num_generations",
            "per_device_train_batch_size",
            "value_epochs",
        ):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} must be at least 1")
        for name in (
            "max_failed_share",
            "entropy_bonus_until",
            "discount",
            "baseline_decay",
            "gae_lambda",
            "curriculum_floor",
            "curriculum_decay",
            "hint_share",
            "hint_until",
        ):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name}={getattr(self, name)} is a share, so between 0 and 1")
        most = self.max_turns * self.max_turn_tokens
        if self.max_completion_length not in (None, most):
            raise ValueError(
                f"max_completion_length={self.max_completion_length} is derived as max_turns x max_turn_tokens = "
                f"{most}; leave it unset and set those two"
            )
        self.max_completion_length = most
        if self.loss_type is None:
            self.loss_type = loss_type_of(self.advantage)
        if self.repetition_penalty != 1.0:
            raise ValueError("repetition_penalty is not offered in multi-turn rollouts; leave it at 1.0")
        if self.num_generations_eval is None:
            self.num_generations_eval = 1  # evaluate() plays its own games; TRL's size checks then always pass
        self._check_groups()
        self._check_remedies()
        single = self.num_generations == 1
        if single and self.advantage not in SINGLE:
            raise ValueError(
                f"advantage={self.advantage!r} compares a group's members, so num_generations must be at least 2; "
                f"with one trajectory a task use {', '.join(SINGLE)}"
            )
        # TRL refuses groups of one, which its own advantages could not use; ours can.
        self.num_generations = max(self._batch(), 2) if single else self.num_generations
        super().__post_init__()
        self.num_generations = 1 if single else self.num_generations

    def _check_remedies(self) -> None:
        on = [n for n in ("curriculum", "hint_share", "resample_rounds") if getattr(self, n)]
        on += ["demonstrations"] if self.demonstrations != "none" else []
        local, group = self._batch() // int(os.environ.get("WORLD_SIZE", "1")), self.num_generations or 1
        if on and local % group:
            raise ValueError(f"{on[0]} needs whole groups on each process: {local} episodes do not hold {group} each")
        if self.resample_rounds and group == 1:
            raise ValueError("resample_rounds looks for groups that tie, so num_generations must be at least 2")
        if self.demonstrations != "none" and self.use_vllm:
            raise ValueError(
                "demonstrations are not offered with use_vllm: TRL would compare them with vLLM's sampling"
            )

    def _check_credit(self) -> None:
        if self.advantage in PER_TURN and self.credit != "reward_to_go":
            raise ValueError(
                f"advantage={self.advantage!r} compares with the value of a turn's history, so credit={self.credit!r} "
                "does not go with it; leave credit unset"
            )
        if self.credit == "turn_group" and self.advantage in SINGLE:
            grouped = ", ".join(name for name in NORMALISERS if name not in SINGLE)
            raise ValueError(
                f"credit='turn_group' compares turns with each other and advantage={self.advantage!r} does not; "
                f"use one of {grouped}"
            )

    def _batch(self) -> int:
        """Episodes generated at a time, over all processes."""
        local = self.per_device_train_batch_size * (self.steps_per_generation or self.gradient_accumulation_steps)
        return self.generation_batch_size or local * int(os.environ.get("WORLD_SIZE", "1"))

    def _check_groups(self) -> None:
        """TRL checks this too, without saying what to do."""
        batch, group = self._batch(), self.num_generations or 0
        if group > 1 and batch % group:
            raise ValueError(
                f"num_generations={group} does not divide the {batch} episodes generated at a time "
                "(per_device_train_batch_size x processes x steps_per_generation); make one a multiple of the other"
            )


def credit_of(advantage: str) -> str:
    """The credit a method has where none is asked for."""
    return "reward_to_go" if advantage in PER_TURN else "trajectory"


def use_method(args: MultiTurnGRPOConfig, advantage: str) -> None:
    """Switch arguments to another method, with the credit and the loss type that follow from it."""
    args.advantage, args.credit, args.loss_type = advantage, credit_of(advantage), loss_type_of(advantage)


def loss_type_of(advantage: str) -> str:
    """TRL's loss type that divides as the method does; the trainer sets what "dr_grpo" divides by."""
    return "grpo" if NORMALISERS[advantage] == "own_length" else "dr_grpo"


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"{name}={value!r} is unknown; use one of {', '.join(allowed)}")
