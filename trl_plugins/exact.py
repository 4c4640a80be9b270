"""Exact success and exact gradients: the sum over every episode a policy can play, instead of a sample of them.

A deterministic text environment and a language model make a tree whose nodes are contexts where a token is sampled.
All tasks that look alike so far share a node, so sixteen hidden numbers cost one tree. `walk` visits the nodes that are
reached with probability above epsilon; what it leaves out is counted, and bounds the error.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from agent_envs.tasks import Task
from agent_envs.text import TextEnv
from trl_plugins.chat import Chat
from trl_plugins.rollout import Env


@dataclass
class Node:
    """A context where a token is sampled. `members`: the tasks that look alike here, with their episodes' states."""

    ids: list[int]
    said: int
    """Tokens of the present turn so far."""
    turn: int
    members: list[tuple[int, Any]]
    share: float
    """Probability of being here, averaged over all tasks: the policy's part times the members' share."""
    path: list[tuple[int, int]] = field(default_factory=list)
    """(index of the node, token) of every token sampled on the way here."""


@dataclass
class Tree:
    """What `walk` found. Sums over edges of probability x payoff give exact expectations."""

    contexts: list[list[int]] = field(default_factory=list)
    """Of every node, by index."""
    edges: list[tuple[float, list[tuple[int, int]], float, float]] = field(default_factory=list)
    """(policy's probability, path, mean over ALL tasks of the reward paid, and of success) of every edge that pays."""
    unexplored: float = 0.0
    """Probability left out because it was below epsilon or past the last turn."""


def walk(
    model: Any,
    chat: Chat,
    tasks: Sequence[Task],
    make_env: Callable[[str], Env],
    *,
    max_turns: int,
    max_turn_tokens: int,
    epsilon: float = 1e-5,
    temperature: float = 1.0,
    system_prompt: str | None = None,
    batch: int = 256,
) -> Tree:
    """Visit every context reached with probability above `epsilon` (averaged over the tasks).

    Args:
        tasks: weighted equally. Their environments must be deterministic given seed, options and actions.
        make_env: one environment for each task's id; episodes are saved and restored in it.
        max_turns, max_turn_tokens: as in the rollout; a turn cut by the cap is played as what it says.
    """
    envs = {env_id: make_env(env_id) for env_id in dict.fromkeys(task.env_id for task in tasks)}
    tree, frontier = Tree(), _roots(tasks, envs, chat, system_prompt)
    device = next(model.parameters()).device
    was_training = model.training
    model.eval()
    try:
        while frontier:
            part, frontier = frontier[:batch], frontier[batch:]
            first = len(tree.contexts)
            tree.contexts += [node.ids for node in part]
            with torch.no_grad():
                probabilities = next_token_logps(model, [n.ids for n in part], temperature, device).exp().cpu()
            for offset, (node, row) in enumerate(zip(part, probabilities, strict=True)):
                chosen = (row * node.share > epsilon).nonzero()[:, 0].tolist()
                kept = row[chosen].double().sum().item()
                tree.unexplored += node.share * max(0.0, 1.0 - kept)
                for token in chosen:
                    step = [*node.path, (first + offset, token)]
                    frontier += _expand(
                        tree, node, token, float(row[token]), step, tasks, envs, chat, max_turns, max_turn_tokens
                    )
    finally:
        model.train(was_training)
    return tree


def _roots(tasks: Sequence[Task], envs: dict[str, Env], chat: Chat, system_prompt: str | None) -> list[Node]:
    openings: dict[tuple[int, ...], list[tuple[int, Any]]] = {}
    for i, task in enumerate(tasks):
        observation, _ = envs[task.env_id].reset(seed=task.seed, options=dict(task.options))
        ids = chat.opening_ids(chat.opening_messages(observation, system_prompt))
        openings.setdefault(tuple(ids), []).append((i, _save(envs[task.env_id])))
    return [Node(list(ids), 0, 0, members, len(members) / len(tasks)) for ids, members in openings.items()]


def _expand(
    tree: Tree,
    node: Node,
    token: int,
    probability: float,
    path: list[tuple[int, int]],
    tasks: Sequence[Task],
    envs: dict[str, Env],
    chat: Chat,
    max_turns: int,
    max_turn_tokens: int,
) -> list[Node]:
    """The nodes that follow a token; where it ends the turn, the environments of all members are stepped."""
    reached = node.share * probability
    if token not in chat.end_ids and node.said + 1 < max_turn_tokens:
        return [Node([*node.ids, token], node.said + 1, node.turn, node.members, reached, path)]
    action = [*node.ids[len(node.ids) - node.said :], token]
    alike: dict[str, list[tuple[int, Any]]] = {}
    paid = won = 0.0
    for i, state in node.members:
        env = _restore(envs[tasks[i].env_id], state)
        observation, reward, terminated, truncated, info = env.step(chat.said(action))
        paid += float(reward) / len(tasks)
        over = terminated or truncated
        won += float(over and bool(info.get("is_success"))) / len(tasks)
        if not over:
            alike.setdefault(observation, []).append((i, _save(env)))
    policy_share = reached * len(tasks) / len(node.members)  # the policy's part alone
    if paid or won:
        tree.edges.append((policy_share, path, paid, won))
    following = []
    for observation, members in alike.items():
        share = policy_share * len(members) / len(tasks)
        if node.turn + 1 < max_turns:
            ids = [*node.ids, token, *chat.glue_ids(action, observation)]
            following.append(Node(ids, 0, node.turn + 1, members, share, path))
    return following


def next_token_logps(model: Any, contexts: Sequence[list[int]], temperature: float, device: Any) -> torch.Tensor:
    """(B, V) log-probabilities after each context, right-padded, differentiable."""
    width = max(map(len, contexts))
    ids = torch.zeros(len(contexts), width, dtype=torch.long, device=device)
    mask = torch.zeros_like(ids)
    for row, context in enumerate(contexts):
        ids[row, : len(context)] = torch.tensor(context, device=device)
        mask[row, : len(context)] = 1
    logits = model(input_ids=ids, attention_mask=mask, use_cache=False).logits
    last = logits[torch.arange(len(contexts), device=device), mask.sum(-1) - 1]
    last = last.to(torch.promote_types(last.dtype, torch.float32))  # half precision is too coarse for sums
    return (last / temperature).log_softmax(-1)


@dataclass(frozen=True)
class ExactSuccess:
    """The true success rate lies between `success` and `success + error`."""

    success: float
    error: float
    contexts: int


def exact_success(
    model: Any, chat: Chat, tasks: Sequence[Task], make_env: Callable[[str], Env], **limits: Any
) -> ExactSuccess:
    """The success rate of sampling, without sampling (see `walk` for the arguments).

    Returns:
        the success of all episodes visited, and as its error bound the probability of those left out.
    """
    tree = walk(model, chat, tasks, make_env, **limits)
    success = sum(probability * won for probability, _, _, won in tree.edges)
    return ExactSuccess(success, tree.unexplored, len(tree.contexts))


def exact_return(model: Any, tree: Tree, temperature: float = 1.0) -> torch.Tensor:
    """J(theta), the mean return of the tree's episodes, differentiable: `.backward()` gives its exact gradient.

    Sound for a tree walked with epsilon 0 over finitely many tokens (see `restrict_to`).
    """
    device = next(model.parameters()).device
    logps = next_token_logps(model, tree.contexts, temperature, device)
    total = logps.new_zeros(())
    for _, path, paid, _ in tree.edges:
        nodes, tokens = zip(*path, strict=True)
        total = total + paid * logps[list(nodes), list(tokens)].sum().exp()
    return total


def restrict_to(model: Any, token_ids: Sequence[int]) -> None:
    """Make `token_ids` the only tokens the model can say, by a bias on its head: the tree of episodes is then finite,
    for sampling and for the loss alike. Changes the model in place; call it before PEFT wraps the model."""
    old = model.get_output_embeddings()
    new = torch.nn.Linear(old.in_features, old.out_features, bias=True, dtype=old.weight.dtype)
    bias = torch.full((old.out_features,), -1e4)
    bias[list(token_ids)] = 0.0
    with torch.no_grad():
        new.weight.copy_(old.weight)
        new.bias.copy_(bias)
    model.set_output_embeddings(new)


def _save(env: Env) -> Any:
    """The episode's state: the environment's own where it offers one, else a copy of the whole environment."""
    inner = env.unwrapped
    return inner.get_state() if isinstance(inner, TextEnv) else copy.deepcopy(env)


def _restore(env: Env, state: Any) -> Env:
    inner = env.unwrapped
    if isinstance(inner, TextEnv):
        inner.set_state(state)
        return inner
    return copy.deepcopy(state)
