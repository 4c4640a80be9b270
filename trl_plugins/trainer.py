"""MultiTurnGRPOTrainer: TRL's GRPOTrainer over Gymnasium text environments. The only file that touches TRL's internals.

One step: dataset row {env_id, seed, options} -> TRL repeats it G times -> each environment is reset with the row's own
seed and options, so a group is one task instance -> `collect_rollouts` -> TRL pads and logs -> `weights.py` on the
returns of all processes replaces TRL's advantages -> TRL's loss.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import gymnasium
import numpy as np
import torch
from accelerate.utils import gather_object
from datasets import Dataset, IterableDataset
from peft import PeftConfig
from torch.utils.data import Sampler
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase
from trl import GRPOTrainer

from agent_envs.tasks import Task
from agent_envs.tasks import row_task as row_task
from trl_plugins.chat import Chat, end_token_ids, load_chat_template
from trl_plugins.config import MultiTurnGRPOConfig, default_lora
from trl_plugins.critic import Critic, turn_features
from trl_plugins.exact import ExactSuccess, exact_success
from trl_plugins.policies import TransformersPolicy, VLLMPolicy
from trl_plugins.remedies import Remedies, SolverPolicy, faded, failing_groups, off_policy_factors
from trl_plugins.rollout import EnvFn, EnvPool, Policy, Trajectory, collect_rollouts
from trl_plugins.weights import (
    NORMALISERS,
    next_running_mean,
    playing,
    shared_turn_weights,
    trajectory_weights,
    turn_weights,
    zero_variance_share,
)

logger = logging.getLogger(__name__)

BASELINE_FILE = "baseline.json"
CRITIC_FILE = "critic.pt"


def episode_return(episode_return: list[float | None], **_: Any) -> list[float | None]:
    """TRL's reward function: the returns that the rollout already knows (None where the environment failed)."""
    return episode_return


class MultiTurnGRPOTrainer(GRPOTrainer):
    """GRPOTrainer whose completions are whole episodes in Gymnasium text environments.

    Args:
        model: a path, a hub id, or a loaded causal language model.
        args: the training arguments.
        train_dataset: rows `env_id`, `seed`, `options` (JSON text); or tasks (a `TaskSet`, or a list of several).
        eval_dataset: the same, the fixed held-out tasks that `evaluate()` plays.
        env_fn: makes the environment for every row; left out, each row's `env_id` is made by `gymnasium.make`.
        processing_class: the tokenizer; left out, the model's own.
        peft_config: "lora" (default) for LoRA on all linear layers, any PEFT config, or None for full fine-tuning.
        **kwargs: passed on to GRPOTrainer (callbacks, optimizers, quantization_config).

    Attributes:
        last_trajectories: this process's trajectories of the latest training rollout, in TRL's row order.

    Raises:
        ValueError: before any compute is spent: an unknown environment id, a tokenizer without a usable chat template,
            max_turns below what an environment needs, nothing to train.
    """

    _tag_names = ["trl", "grpo", "multi-turn"]  # noqa: RUF012
    args: MultiTurnGRPOConfig  # type: ignore[assignment]
    model: Any
    num_generations: int

    def __init__(
        self,
        model: Any,
        args: MultiTurnGRPOConfig,
        train_dataset: Dataset | IterableDataset | Sequence[Task],
        eval_dataset: Dataset | Sequence[Task] | None = None,
        env_fn: EnvFn | None = None,
        processing_class: PreTrainedTokenizerBase | None = None,
        peft_config: PeftConfig | Literal["lora"] | None = "lora",
        **kwargs: Any,
    ) -> None:
        self.env_pool = EnvPool(env_fn)
        self.last_trajectories: list[Trajectory] = []
        self._rollouts_at: tuple[int, int] = (-1, 0)
        self.running_mean: float | None = None
        self._critic: Critic | None = None
        train_dataset, eval_dataset = _as_dataset(train_dataset), _as_dataset(eval_dataset)
        for dataset in (train_dataset, eval_dataset):
            if isinstance(dataset, Dataset):
                check_environments(dataset, env_fn)
        if isinstance(model, str):
            processing_class = processing_class or AutoTokenizer.from_pretrained(model)
            load: Any = args.model_init_kwargs or {}
            model = AutoModelForCausalLM.from_pretrained(model, **load)
            args.model_init_kwargs = None
        tokenizer = processing_class or AutoTokenizer.from_pretrained(model.config._name_or_path)
        if args.chat_template is not None:
            tokenizer.chat_template = load_chat_template(args.chat_template)
        ends = end_token_ids(tokenizer, model.generation_config)
        self.chat = Chat(tokenizer, ends, args.reply_role, args.chat_template_kwargs)  # type: ignore[arg-type]
        self.chat.check_opening(args.system_prompt)
        if peft_config == "lora":
            peft_config = None if hasattr(model, "peft_config") else default_lora()
        super().__init__(
            model=model,
            reward_funcs=[episode_return],
            args=args,
            train_dataset=self._with_prompts(train_dataset, args),
            eval_dataset=self._with_prompts(eval_dataset, args),
            processing_class=tokenizer,
            peft_config=peft_config,
            rollout_func=self._play_rows,
            **kwargs,
        )
        groups = args.generation_batch_size // args.num_generations  # type: ignore[operator]
        if isinstance(self.train_dataset, Dataset) and len(self.train_dataset) < groups:
            raise ValueError(
                f"{len(self.train_dataset)} training tasks do not fill one batch of {groups} groups, and TRL would "
                "train nothing; give more tasks (train_tasks), larger groups (num_generations) or a smaller batch"
            )
        fixed = self.train_dataset if isinstance(self.train_dataset, Dataset) else None
        self._remedies = Remedies(args, fixed, self.play, self.demonstrate, gather_object)
        if not any(p.requires_grad for p in self.model.parameters()):
            raise ValueError(
                "the model has no trainable parameter (a PeftModel loaded for inference?); load it with "
                "is_trainable=True, or pass peft_config"
            )
        self.max_completion_length = self.loss_divisor()
        text_config = self.model.config.get_text_config()
        positions = getattr(text_config, "max_position_embeddings", None)
        if self.use_vllm and args.vllm_max_model_length is not None:
            positions = min(positions or args.vllm_max_model_length, args.vllm_max_model_length)
        # What a context may hold, so that a whole turn still fits behind it.
        self._max_context = None if positions is None else positions - args.max_turn_tokens
        self._entropies: torch.Tensor | None = None

    def loss_divisor(self) -> int:
        """What TRL's "dr_grpo" loss divides by (it calls it max_completion_length): Dr. GRPO's constant C = max_turns x
        max_turn_tokens, or 1 for methods that divide by nothing."""
        none = NORMALISERS[self.args.advantage] == "none"
        return 1 if none else self.args.max_turns * self.args.max_turn_tokens

    # --- Rows and rollouts -------------------------------------------------------------------------------------------

    def _with_prompts(self, dataset: Any, args: MultiTurnGRPOConfig) -> Any:
        """Add what the policy will first see as TRL's `prompt` column."""
        if dataset is None:
            return None

        def prompt(row: dict[str, Any]) -> dict[str, Any]:
            task = row_task(row)
            env = self.env_pool.lend()(task.env_id)
            try:
                observation, _ = env.reset(seed=task.seed, options=dict(task.options))
            except Exception as error:  # the rollout will mark and count it, with its seed
                self.env_pool.discard(env)
                return {"prompt": self.chat.opening_messages(f"(reset failed: {error!r})", args.system_prompt)}
            check_turns(env, task, args.max_turns)
            return {"prompt": self.chat.opening_messages(observation, args.system_prompt)}

        if isinstance(dataset, Dataset):  # not `map`: it would hash and cache a closure over environments
            return Dataset.from_list([{**row, **prompt(row)} for row in dataset])  # type: ignore[dict-item]
        return dataset.map(prompt)

    def _policy(self, temperature: float) -> Policy:
        if self.use_vllm:
            several = self.accelerator.num_processes > 1
            if several and (self.vllm_mode == "server" or self.args.vllm_tensor_parallel_size > 1):
                raise ValueError(
                    "vLLM in server mode, or split over GPUs, is not offered with several processes: they would wait "
                    "for each other's turns; use vllm_mode='colocate' with vllm_tensor_parallel_size=1"
                )
            if self.state.global_step != self._last_loaded_step:  # TRL syncs before training rollouts alone
                self.vllm_generation.sync_weights()
                self._last_loaded_step = self.state.global_step
            return VLLMPolicy(self.vllm_generation, self.eos_token_ids, self.args.max_turn_tokens, temperature)
        return TransformersPolicy(
            self.accelerator.unwrap_model(self.model_wrapped),
            self.eos_token_ids,
            self.args.max_turn_tokens,
            temperature=temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            min_p=self.min_p,
        )

    def play(self, tasks: Sequence[Task], seed: int, temperature: float | None = None) -> list[Trajectory]:
        """Play one episode of each task with the present policy; `temperature` 0 is greedy, None the training one.

        No global random generator is touched, and the model's mode is left as it was.
        """
        policy = self._policy(self.temperature if temperature is None else temperature)
        with self.accelerator.autocast():
            return self._collect(tasks, self.env_pool.lend(), policy, seed)

    def demonstrate(self, tasks: Sequence[Task], seed: int = 0) -> list[Trajectory]:
        """The solver's episode of each task, as tokens and masks like the policy's own (log-probabilities 0).

        Raises:
            TypeError: an environment without a solver (`optimal_action`).
        """
        solver = SolverPolicy(self.chat, self.env_pool.lend())
        return self._collect(tasks, solver.lend, solver, seed)

    def _collect(self, tasks: Sequence[Task], make_env: Any, policy: Policy, seed: int) -> list[Trajectory]:
        trajectories = collect_rollouts(
            tasks,
            make_env,
            policy,
            self.chat,
            max_turns=self.args.max_turns,
            seed=seed,
            system_prompt=self.args.system_prompt,
            max_context=self._max_context,
            max_failed_share=self.args.max_failed_share,
            state_keys=self.args.credit == "turn_group" and self.args.turn_group_by == "state",
            discard=self.env_pool.discard,
        )
        for t in trajectories:
            if t.failed:
                logger.warning(
                    "environment failed: %s seed %s options %s: %r", t.task.env_id, t.task.seed, t.task.options, t.error
                )
        return trajectories

    def _rollout_seed(self) -> int:
        """A seed of its own for each rollout, from the step alone, so that a resumed run samples what it would have."""
        step, count = self.state.global_step, 0
        if self._rollouts_at[0] == step:
            count = self._rollouts_at[1] + 1
        self._rollouts_at = (step, count)
        return derive_seed(self.args.seed, step, count, self.accelerator.process_index)

    def _get_train_sampler(self, dataset: Any = None) -> Any:
        return EpochOrder(super()._get_train_sampler(dataset), lambda: int(self.state.epoch or 0))

    def _play_rows(self, prompts: list[Any], trainer: Any) -> dict[str, Any]:
        """TRL's rollout_func: the episodes that `_generate_and_score_completions` has played."""
        return tokens_for_trl(self.last_trajectories, self.eos_token_ids[0])

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        # Played before TRL begins, since a remedy may put other tasks in the place of its rows.
        batch = self._remedies.play_batch(
            inputs, self._rollout_seed(), self.state.global_step, self.state.max_steps or self.args.max_steps
        )
        self.last_trajectories = batch.trajectories
        output = super()._generate_and_score_completions(batch.rows)
        trajectories, device = self.last_trajectories, self.accelerator.device
        keys = gather_object([(t.task.env_id, t.task.seed, json.dumps(t.task.options)) for t in trajectories])
        check_groups(keys, self.num_generations)
        local = torch.tensor([t.total_return for t in trajectories], dtype=torch.float32, device=device)
        returns: Any = self.accelerator.gather(local)
        mine = slice(self.accelerator.process_index * len(local), (self.accelerator.process_index + 1) * len(local))
        weights = self.weights(trajectories, returns)
        output["advantages"] = weights[mine]
        if self.args.credit != "trajectory":
            output["advantages"] = spread_over_tokens(
                weights[mine], [t.turn_index for t in trajectories], output["completion_ids"].shape[1]
            )
        if any(t.demonstration for t in trajectories):
            output["advantages"] = self._off_policy(output, trajectories)
        if self.args.entropy_bonus_failing:
            failing = failing_groups(trajectories, self.num_generations)
            groups = torch.arange(len(trajectories), device=device) // self.num_generations
            output["failing"] = torch.isin(groups, torch.tensor(failing, device=device, dtype=groups.dtype))
        self._log_rollout(trajectories, returns, weights)
        for name, value in batch.facts.items():
            self._metrics["train"][name].append(statistics.fmean(gather_object([value])))
        return output

    def _off_policy(self, output: dict[str, Any], trajectories: list[Trajectory]) -> torch.Tensor:
        """The advantages as token weights (B, C), those of demonstrations corrected (`remedies.off_policy_factors`)."""
        width, advantages = output["completion_ids"].shape[1], output["advantages"]
        if advantages.dim() == 1:
            advantages = advantages[:, None].repeat(1, width)
        rows = [row for row, t in enumerate(trajectories) if t.demonstration]
        ids = torch.cat([output["prompt_ids"][rows], output["completion_ids"][rows]], dim=1)
        mask = torch.cat([output["prompt_mask"][rows], output["completion_mask"][rows]], dim=1)
        with torch.no_grad():
            logprobs, *_ = self._get_per_token_logps_and_entropies(
                self.model, ids, mask, width, self.args.per_device_train_batch_size
            )
        advantages[rows] *= off_policy_factors(self.args.demonstrations, logprobs)
        return advantages

    def weights(self, trajectories: list[Trajectory], returns: torch.Tensor) -> torch.Tensor:
        """The method's weights for all processes' trajectories: (N,), or (N, max_turns) with a weight for each turn.

        `trajectories` are this process's, `returns` (N,) those of all.
        """
        args, baseline, group = self.args, self._baseline(returns), self.num_generations
        if args.credit == "trajectory":
            return trajectory_weights(args.advantage, returns, group, args.grpo_std, baseline)
        rewards, lengths = self._rewards(trajectories)
        if args.credit == "turn_group":
            weights = shared_turn_weights(
                args.advantage, rewards, self._turn_keys(trajectories), args.discount, args.grpo_std
            )
            if args.gigpo_omega is None:
                return weights
            whole = trajectory_weights(args.advantage, returns, group, args.grpo_std)
            return whole[:, None] * playing(lengths, args.max_turns) + args.gigpo_omega * weights
        values = None
        if args.advantage == "oracle":
            values = self._oracle_values(trajectories)
        elif args.advantage == "value":
            features = self._features(trajectories)
            values = self._learned_values(features, lengths)
        weights = turn_weights(
            args.advantage, rewards, lengths, group, args.discount, args.grpo_std, baseline, values, args.gae_lambda
        )
        if args.advantage == "value":
            self._teach_critic(features, values + weights, rewards, lengths)  # type: ignore[operator, possibly-undefined]
        return weights

    def _baseline(self, returns: torch.Tensor) -> float:
        """The number a method compares with, before this batch moves the running mean on."""
        if self.args.advantage != "running_mean":
            return self.args.baseline
        before = self.running_mean
        self.running_mean = next_running_mean(before, returns, self.args.baseline_decay)
        return 0.0 if before is None else before

    def _rewards(self, trajectories: list[Trajectory]) -> tuple[torch.Tensor, torch.Tensor]:
        """Rewards (N, max_turns) and lengths (N,) of all processes' trajectories."""
        rewards = torch.zeros(len(trajectories), self.args.max_turns, device=self.accelerator.device)
        for row, trajectory in enumerate(trajectories):
            for t, turn in enumerate(trajectory.turns):
                rewards[row, t] = turn.reward
            if trajectory.failed:
                rewards[row] = math.nan
        lengths = torch.tensor([len(t.turns) for t in trajectories], device=self.accelerator.device)
        return self.accelerator.gather((rewards, lengths))  # type: ignore[return-value]

    def _turn_keys(self, trajectories: list[Trajectory]) -> torch.Tensor:
        """(N, max_turns) one number a history, or a task's state, over all processes; -1 after an episode's end."""
        names = gather_object([turn_keys(t, self.args.turn_group_by) for t in trajectories])
        numbers = {name: number for number, name in enumerate(dict.fromkeys(n for row in names for n in row))}
        keys = torch.full((len(names), self.args.max_turns), -1, device=self.accelerator.device)
        for row, named in enumerate(names):
            keys[row, : len(named)] = torch.tensor([numbers[n] for n in named], device=keys.device)
        return keys

    def _oracle_values(self, trajectories: list[Trajectory]) -> torch.Tensor:
        """V* (N, max_turns) of all processes' turns, as their environments told it."""
        values = torch.zeros(len(trajectories), self.args.max_turns, device=self.accelerator.device)
        for row, trajectory in enumerate(trajectories):
            for t, turn in enumerate(trajectory.turns):
                if math.isnan(turn.state_value) and not trajectory.failed:
                    raise ValueError(
                        f"advantage='oracle' needs the value of optimal play, and {trajectory.task.env_id} does not "
                        "tell it (info['value'] at reset and after each step)"
                    )
                values[row, t] = turn.state_value
        return self.accelerator.gather(values)  # type: ignore[return-value]

    def _features(self, trajectories: list[Trajectory]) -> torch.Tensor:
        model = self.accelerator.unwrap_model(self.model_wrapped)
        with self.accelerator.autocast():
            features = turn_features(model, trajectories, self.args.max_turns)
        return self.accelerator.gather(features)  # type: ignore[return-value]

    @property
    def critic(self) -> Critic:
        """The value head of advantage value, the same on every process."""
        if self._critic is None:
            args, width = self.args, self.model.config.get_text_config().hidden_size
            self._critic = Critic(
                width, args.value_learning_rate, args.value_epochs, args.seed, self.accelerator.device
            )
        return self._critic

    def _learned_values(self, features: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        return self.critic.values(features) * playing(lengths, self.args.max_turns)

    def _teach_critic(
        self, features: torch.Tensor, targets: torch.Tensor, rewards: torch.Tensor, lengths: torch.Tensor
    ) -> None:
        """Move V towards the lambda-returns of this batch, after its weights are settled."""
        counts = playing(lengths, self.args.max_turns) & ~rewards.isnan()
        error = self.critic.learn(features, targets, counts)
        self._metrics["train"]["value_loss"].append(error)
        spread = targets[counts].var(unbiased=False).item() if bool(counts.any()) else 0.0
        self._metrics["train"]["value_explained"].append(1 - error / spread if spread else 0.0)

    def _log_rollout(self, trajectories: list[Trajectory], returns: torch.Tensor, weights: torch.Tensor) -> None:
        log, own = self._metrics["train"], [t for t in trajectories if not t.demonstration]
        for name, value in summarise(gather_object([_facts(t) for t in own])).items():
            log[name].append(value)
        log["zero_variance_share"].append(zero_variance_share(returns, self.num_generations))
        log["mean_abs_weight"].append(weights.abs().mean().item())
        # TRL's `entropy` is over the rows of the update; this is its estimate, -log p, over every sampled token.
        said = [p for t in own if not t.failed for turn in t.turns for p in turn.logprobs]
        totals = gather_object([(-sum(said), len(said))])
        log["entropy_sampled"].append(sum(t for t, _ in totals) / max(sum(n for _, n in totals), 1))
        if self.is_world_process_zero():  # TRL filled this log with its own advantages
            self._logs["advantages"].clear()
            self._logs["advantages"].extend(weights.reshape(len(weights), -1).sum(-1).tolist())

    # --- Training state beside the model's: the running mean, the curriculum, the value head -------------------------

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        super()._save_optimizer_and_scheduler(output_dir)
        if self.args.should_save:  # here, since the Trainer's own state, written after this, says a checkpoint is whole
            state = {"running_mean": self.running_mean, **self._remedies.state_dict()}
            (Path(output_dir) / BASELINE_FILE).write_text(json.dumps(state))
            if self._critic is not None:
                torch.save(self._critic.state_dict(), Path(output_dir) / CRITIC_FILE)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is not None and (Path(checkpoint) / BASELINE_FILE).is_file():
            saved = json.loads((Path(checkpoint) / BASELINE_FILE).read_text())
            self.running_mean = saved["running_mean"]
            self._remedies.load_state_dict(saved)
        if checkpoint is not None and (Path(checkpoint) / CRITIC_FILE).is_file():
            state = torch.load(Path(checkpoint) / CRITIC_FILE, map_location=self.accelerator.device, weights_only=True)
            self.critic.load_state_dict(state)

    # --- Loss --------------------------------------------------------------------------------------------------------

    def _get_per_token_logps_and_entropies(self, *args: Any, **kwargs: Any) -> Any:
        result = super()._get_per_token_logps_and_entropies(*args, **kwargs)
        if kwargs.get("compute_entropy"):
            self._entropies = result[1]
        return result

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> torch.Tensor:
        rows = len(inputs["completion_ids"])
        inputs = self._rows_that_pull(inputs)
        # TRL's loss is a mean over the rows it sees; the share keeps it the mean over all.
        return self._loss_with_bonus(model, inputs) * (len(inputs["completion_ids"]) / rows)

    def _rows_that_pull(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """Leave out rows of weight 0 (tied groups, mostly): they have no policy gradient, and late in training they
        are most of the batch. Only where that is exact: a loss that averages over rows and has no other term, one
        process (TRL gathers per-row metrics, whose sizes must agree between processes)."""
        exact = (
            self.loss_type in ("dr_grpo", "grpo")
            and self.beta == 0.0
            and self.top_entropy_quantile == 1.0
            and not self._entropy_bonus_enabled  # TRL's own, over every row; ours leaves solved tasks alone
            and not self.aux_loss_enabled
            and self.accelerator.num_processes == 1
        )
        pulls = self._counts(inputs)
        if not exact or not self.model.training or bool(pulls.all()):
            return inputs
        if not bool(pulls.any()):
            pulls[0] = True  # a graph to go backward through; its weight is 0, and so is its gradient
        rows = len(pulls)
        return {
            key: value[pulls] if isinstance(value, torch.Tensor) and value.shape[:1] == (rows,) else value
            for key, value in inputs.items()
        }

    def _counts(self, inputs: dict[str, Any]) -> torch.Tensor:
        """(B,) bool: rows with a gradient. Those with a weight, and by `entropy_bonus_failing` those of groups where
        nobody succeeds, whose policy has to try something else; a task that is always solved keeps its peace."""
        pulls = _pulls(inputs)
        return pulls | inputs["failing"] if "failing" in inputs and self.entropy_bonus_now() else pulls

    def _loss_with_bonus(self, model: Any, inputs: dict[str, Any]) -> torch.Tensor:
        loss = super()._compute_loss(model, inputs)
        bonus = self.entropy_bonus_now()
        if bonus == 0.0:
            return loss
        assert self._entropies is not None
        # On the rows that count, whether or not the others were left out, so that the sum does not depend on how a
        # batch is split. (TRL's own entropy_coef is a mean over each micro-batch's tokens, which does.)
        mask = inputs["completion_mask"] * inputs["tool_mask"]
        entropy = (self._entropies * mask).sum(-1) * self._counts(inputs)
        own_length = NORMALISERS[self.args.advantage] == "own_length"
        divisor = mask.sum(-1).clamp(min=1) if own_length else self.max_completion_length
        return loss - bonus * (entropy / divisor).mean() / self.current_gradient_accumulation_steps

    def entropy_bonus_now(self) -> float:
        """`entropy_bonus`, fading linearly to 0 at `entropy_bonus_until` of the run's steps."""
        args, state = self.args, self.state
        return faded(args.entropy_bonus, args.entropy_bonus_until, state.global_step, state.max_steps)

    # --- Evaluation --------------------------------------------------------------------------------------------------

    def evaluate(
        self, eval_dataset: Any = None, ignore_keys: Any = None, metric_key_prefix: str = "eval"
    ) -> dict[str, float]:
        """Play the held-out tasks: once greedily, and `eval_samples` times each at the training temperature.

        Training goes on bit-identically: sampling has a generator of its own (seed `eval_seed`).

        Returns:
            success_greedy, success_sampled and its standard error, return_sampled, turns, invalid_share, cut_share,
            games_sampled, each behind `metric_key_prefix`.
        """
        dataset = (
            self.eval_dataset if eval_dataset is None else self._with_prompts(_as_dataset(eval_dataset), self.args)
        )
        if dataset is None:
            raise ValueError("evaluate() needs an eval_dataset: pass one here or to the trainer")
        tasks = [row_task(row) for row in dataset]  # type: ignore[union-attr]
        sampled = self._evaluate_games([t for t in tasks for _ in range(self.args.eval_samples)], None)
        summary = summarise(sampled)
        metrics = {f"{name}_sampled": summary[name] for name in ("success", "return")}
        metrics["success_sampled_stderr"] = math.sqrt(
            summary["success"] * (1 - summary["success"]) / max(len(sampled), 1)
        )
        metrics |= {name: summary[name] for name in ("turns", "invalid_share", "cut_share", "failed_share")}
        metrics["games_sampled"] = len(sampled)
        metrics["success_greedy"] = summarise(self._evaluate_games(tasks, 0.0))["success"]
        if self.args.eval_exact_epsilon:
            exact = self.exact_success(tasks)
            metrics |= {"success_exact": exact.success, "success_exact_error": exact.error}
        metrics = {f"{metric_key_prefix}_{name}": float(value) for name, value in metrics.items()}
        was_training = self.model.training
        self.model.eval()  # TRL's log() reads the mode: an evaluation must not flush the training metrics
        try:
            self.log(metrics)
            self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        finally:
            self.model.train(was_training)
        return metrics

    def exact_success(self, tasks: Sequence[Task]) -> ExactSuccess:
        """Success summed over every episode more likely than `eval_exact_epsilon` (see `trl_plugins.exact`)."""
        return exact_success(
            self.accelerator.unwrap_model(self.model_wrapped),
            self.chat,
            tasks,
            self.env_pool.lend(),
            max_turns=self.args.max_turns,
            max_turn_tokens=self.args.max_turn_tokens,
            epsilon=self.args.eval_exact_epsilon,
            temperature=self.temperature,
            system_prompt=self.args.system_prompt,
        )

    def _evaluate_games(self, tasks: list[Task], temperature: float | None) -> list[dict[str, float]]:
        """One game of each task, shared out over the processes; the facts of all of them."""
        index, count = self.accelerator.process_index, self.accelerator.num_processes
        mine = tasks[index::count]
        seed = derive_seed(self.args.eval_seed, 0, 0, index)
        trajectories = self.play(mine, seed, temperature) if mine else []
        return gather_object([_facts(t) for t in trajectories])


# --- Small parts -----------------------------------------------------------------------------------------------------


def tokens_for_trl(trajectories: Sequence[Trajectory], end_id: int) -> dict[str, list[Any]]:
    """Trajectories as TRL's rollout output. TRL pads a short mask with 1 and breaks on an empty completion: both are
    ruled out here (an episode without a turn, whose environment failed at once, becomes one unsampled end token)."""
    output: dict[str, list[Any]] = {"prompt_ids": [], "completion_ids": [], "env_mask": [], "logprobs": []}
    output["episode_return"] = [None if t.failed else t.total_return for t in trajectories]
    for trajectory in trajectories:
        ids, mask, logprobs = trajectory.completion_ids, trajectory.env_mask, trajectory.logprobs
        if not len(ids) == len(mask) == len(logprobs):
            raise RuntimeError(f"{trajectory.task}: {len(ids)} tokens, {len(mask)} mask, {len(logprobs)} logprobs")
        if not ids:
            ids, mask, logprobs = [end_id], [0], [0.0]
        output["prompt_ids"].append(trajectory.prompt_ids)
        output["completion_ids"].append(ids)
        output["env_mask"].append(mask)
        output["logprobs"].append(logprobs)
    return output


def _pulls(inputs: dict[str, Any]) -> torch.Tensor:
    """(B,) bool: rows with a weight other than 0."""
    weights = inputs["advantages"]
    return (weights if weights.dim() == 1 else weights.abs().amax(-1)) != 0


def spread_over_tokens(weights: torch.Tensor, turn_index: Sequence[list[int]], width: int) -> torch.Tensor:
    """Turn weights (N, T) as token weights (N, width): each token has its turn's, padding 0."""
    index = torch.zeros(len(weights), width, dtype=torch.long, device=weights.device)
    real = torch.zeros(len(weights), width, device=weights.device)
    for row, turns in enumerate(turn_index):
        index[row, : len(turns)] = torch.tensor(turns, device=weights.device)
        real[row, : len(turns)] = 1
    return weights.gather(1, index) * real


def turn_keys(trajectory: Trajectory, by: str) -> list[str]:
    """A name for what each turn is grouped by: the tokens before it ("history"), or its task and state ("state")."""
    task = trajectory.task
    if by == "state":
        where = f"{task.env_id} {task.seed} {json.dumps(task.options, sort_keys=True)} "
        return [where + turn.state_key for turn in trajectory.turns]
    digest, names = hashlib.sha256(repr(trajectory.prompt_ids).encode()), []
    for turn in trajectory.turns:
        names.append(digest.hexdigest())
        digest.update(repr((turn.action_ids, turn.reply_ids)).encode())
    return names


def check_groups(keys: Sequence[Any], group_size: int) -> None:
    """A group is one task instance: the same environment id, seed and options. Anything else is an error."""
    for start in range(0, len(keys), group_size):
        group = keys[start : start + group_size]
        if len(group) != group_size or any(key != group[0] for key in group):
            raise RuntimeError(
                f"rows {start}..{start + group_size - 1} are not one task instance: {sorted(set(group))}"
            )


def check_environments(dataset: Dataset, env_fn: EnvFn | None) -> None:
    """Every environment id exists; one line says which does not."""
    if env_fn is None and "env_id" not in dataset.column_names:
        raise ValueError("the dataset has no `env_id` column; add one, or pass env_fn")
    env_ids = sorted(set(dataset["env_id"])) if env_fn is None else [""]
    for env_id in env_ids:
        try:
            if env_fn is None:
                gymnasium.make(env_id, disable_env_checker=True)
        except (gymnasium.error.Error, ModuleNotFoundError) as error:
            raise ValueError(
                f"environment id {env_id!r} is not registered ({error}); import its package first, or fix the id"
            ) from error


def check_turns(env: gymnasium.Env[str, str], task: Task, max_turns: int) -> None:
    """An episode of the task can end within `max_turns`, as far as its environment says how long it lasts."""
    needed = getattr(env.unwrapped, "max_turns", None) or getattr(env.spec, "max_episode_steps", None)
    if needed is not None and needed > max_turns:
        name = task.env_id or type(env.unwrapped).__name__
        raise ValueError(f"max_turns={max_turns} cuts {name} short, whose episodes last up to {needed}; raise it")


class EpochOrder(Sampler[int]):
    """TRL's sampler, with the order of an epoch told by its number alone.

    TRL draws each epoch's order from a generator that no checkpoint holds, so that a run resumed in a later epoch would
    go through the first one's order again (seen in TRL 1.16). The orders are those of a run without a break.
    """

    def __init__(self, sampler: Any, epochs_done: Callable[[], int]) -> None:
        self.sampler, self.epochs_done = sampler, epochs_done

    def __iter__(self) -> Iterator[int]:
        if self.sampler.shuffle:
            self.sampler.generator.manual_seed(self.sampler.seed)
            for _ in range(self.epochs_done()):
                next(iter(self.sampler))  # TRL's own draw of an order
        return iter(self.sampler)

    def __len__(self) -> int:
        return len(self.sampler)


def derive_seed(*parts: int) -> int:
    """One 63-bit seed from several numbers."""
    low, high = np.random.SeedSequence([part & 0xFFFFFFFF for part in parts]).generate_state(2)
    return (int(low) << 31) ^ int(high)


def _facts(trajectory: Trajectory) -> dict[str, float]:
    turns = trajectory.turns
    return {
        "return": trajectory.total_return,
        "success": float(trajectory.is_success and not trajectory.failed),
        "failed": float(trajectory.failed),
        "turns": len(turns),
        "invalid": sum(turn.invalid for turn in turns),
        "cut": sum(turn.finish == "length" for turn in turns),
    }


def summarise(facts: Sequence[dict[str, float]]) -> dict[str, float]:
    """Means over episodes: success, return, turns, failed_share (failed ones count in that alone), and over turns:
    invalid_share (no action found in the reply) and cut_share (cut by the token cap)."""
    sound = [f for f in facts if not f["failed"]]
    turns = max(sum(f["turns"] for f in sound), 1)

    def mean(name: str) -> float:
        return statistics.fmean(f[name] for f in sound) if sound else math.nan

    return {
        "success": mean("success"),
        "return": mean("return"),
        "turns": mean("turns"),
        "invalid_share": sum(f["invalid"] for f in sound) / turns,
        "cut_share": sum(f["cut"] for f in sound) / turns,
        "failed_share": sum(f["failed"] for f in facts) / max(len(facts), 1),
    }


def _as_dataset(dataset: Any) -> Any:
    if isinstance(dataset, Sequence) and dataset and isinstance(dataset[0], Task):
        return Dataset.from_list([task.row() for task in dataset])
    return dataset
