"""Play a model behind an OpenAI-compatible endpoint and say how well it does, with confidence intervals.

    python -m agent_envs.evaluate --env NumberSearch-v0 --base-url http://localhost:8000/v1 --model my-model

Episodes run concurrently. Every finished one is a line of `episodes.jsonl` (the task, the conversation, rewards);
`summary.json` holds the numbers. An episode whose requests fail for good counts as an error, not as a failure of the
model: it is left out of the rates, and the exit code is 1. The API key is read from OPENAI_API_KEY (`--api-key-env`).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from math import sqrt
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import gymnasium

from agent_envs.chat_client import ChatClient, EndpointError, OutOfRetries
from agent_envs.tasks import Task, task_set

Z95 = 1.959964  # two-sided 95 % of a normal distribution


# --- Numbers ---------------------------------------------------------------------------------------------------------


def wilson(successes: int, n: int, z: float = Z95) -> tuple[float, float]:
    """Wilson's interval for a rate: unlike the plain normal one, right also near 0 and 1 and for small n."""
    if n == 0:
        return 0.0, 1.0
    rate, spread = successes / n, z * z / n
    centre = (rate + spread / 2) / (1 + spread)
    half = z / (1 + spread) * sqrt(rate * (1 - rate) / n + spread / (4 * n))
    return max(0.0, centre - half), min(1.0, centre + half)


def summarise(episodes: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Rates and means of finished episodes; `errors` counts those left out."""
    done = [episode for episode in episodes if episode["error"] is None]
    returns = [episode["return"] for episode in done]
    wins, n = sum(episode["is_success"] for episode in done), len(done)
    turns = sum(episode["turns"] for episode in done)
    unread = sum(reason is not None for episode in done for reason in episode["parse_errors"])
    return {
        "episodes": n,
        "errors": len(episodes) - n,
        "successes": wins,
        "success_rate": wins / n if n else None,
        "success_95": wilson(wins, n),
        "return_mean": mean(returns) if n else None,
        "return_95_half": Z95 * stdev(returns) / sqrt(n) if n > 1 else None,
        "turns_mean": turns / n if n else None,
        "unreadable_replies": unread / turns if turns else None,
        "truncated": sum(episode["truncated"] for episode in done),
        "failed_tries": sum(episode["failed_tries"] for episode in episodes),
        "tokens": sum(episode["tokens"] for episode in episodes),
    }


def report(summary: dict[str, Any]) -> str:
    """The summary in a few lines for a person."""
    if not summary["episodes"]:
        return f"no episode finished; {summary['errors']} errors (see episodes.jsonl)"
    low, high = summary["success_95"]
    lines = [
        f"success {summary['success_rate']:.3f}  (95 %: {low:.3f} to {high:.3f}; "
        f"{summary['successes']} of {summary['episodes']})",
        f"return  {summary['return_mean']:.3f}"
        + (f" ± {summary['return_95_half']:.3f}" if summary["return_95_half"] is not None else ""),
        f"turns   {summary['turns_mean']:.1f} an episode; {summary['unreadable_replies']:.1%} of replies unreadable",
    ]
    if summary["failed_tries"] or summary["errors"]:
        lines.append(f"{summary['failed_tries']} tries failed, {summary['errors']} episodes could not be finished")
    return "\n".join(lines)


# --- Playing ---------------------------------------------------------------------------------------------------------


def play(client: ChatClient, task: Task, settings: dict[str, Any], system: str | None = None) -> dict[str, Any]:
    """One episode as a conversation: observations are the user's messages, replies are the actions.

    Raises:
        EndpointError: the endpoint refuses requests like these.
    """
    env = gymnasium.make(task.env_id, disable_env_checker=True, **settings)
    observation, info = env.reset(seed=task.seed, options=task.options or None)
    messages = [{"role": "system", "content": system}] if system else []
    episode: dict[str, Any] = {**task.row(), "options": task.options, "messages": messages, "rewards": []}
    episode |= {"parse_errors": [], "terminated": False, "truncated": False, "error": None}
    tokens = failed = 0
    start = time.monotonic()
    while not (episode["terminated"] or episode["truncated"]):
        messages.append({"role": "user", "content": observation})
        try:
            reply = client.complete(messages)
        except OutOfRetries as error:
            episode["error"] = str(error)
            failed += client.retries + 1
            break
        messages.append({"role": "assistant", "content": reply.text})
        tokens, failed = tokens + reply.tokens, failed + len(reply.failures)
        observation, reward, episode["terminated"], episode["truncated"], info = env.step(reply.text)
        episode["rewards"].append(float(reward))
        episode["parse_errors"].append(info.get("parse_error"))
    episode |= {"last_observation": observation, "return": sum(episode["rewards"]), "turns": len(episode["rewards"])}
    episode |= {"is_success": bool(info.get("is_success", False)), "tokens": tokens, "failed_tries": failed}
    env.close()
    return {**episode, "seconds": round(time.monotonic() - start, 3)}


def evaluate(
    client: ChatClient,
    tasks: Sequence[Task],
    samples: int = 1,
    concurrency: int = 8,
    settings: dict[str, Any] | None = None,
    system: str | None = None,
    on_episode: Callable[[dict[str, Any]], None] = lambda episode: None,
) -> list[dict[str, Any]]:
    """Play every task `samples` times.

    Args:
        on_episode: called with each episode as it ends, one at a time.

    Returns:
        The episodes in the order of the tasks.

    Raises:
        EndpointError: the endpoint refuses requests like these; episodes not yet begun are dropped.
    """
    jobs = [(index, sample) for index in range(len(tasks)) for sample in range(samples)]
    found: dict[tuple[int, int], dict[str, Any]] = {}
    with ThreadPoolExecutor(concurrency) as pool:
        futures = {pool.submit(play, client, tasks[job[0]], settings or {}, system): job for job in jobs}
        try:
            for future in as_completed(futures):
                index, sample = futures[future]
                found[index, sample] = episode = {"index": index, "sample": sample, **future.result()}
                on_episode(episode)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return [found[job] for job in jobs]


class Progress:
    """A bar on a terminal, a line every tenth elsewhere; writes to stderr."""

    def __init__(self, total: int) -> None:
        self.total, self.done, self.wins, self.errors = total, 0, 0, 0
        self.start, self.live = time.monotonic(), sys.stderr.isatty()
        self.lock = threading.Lock()

    def __call__(self, episode: dict[str, Any]) -> None:
        with self.lock:
            before, self.done = self.done * 10 // self.total, self.done + 1
            self.errors += episode["error"] is not None
            self.wins += episode["error"] is None and episode["is_success"]
            if not self.live and before == self.done * 10 // self.total:
                return
            played = self.done - self.errors
            bar = ("#" * (24 * self.done // self.total)).ljust(24, ".")
            left = (time.monotonic() - self.start) / self.done * (self.total - self.done)
            text = f"[{bar}] {self.done}/{self.total}  success {self.wins / played if played else 0:.3f}"
            text += f"  errors {self.errors}  {left:.0f} s left"
            print(f"\r{text}\x1b[K" if self.live else text, end="" if self.live else "\n", file=sys.stderr, flush=True)
            if self.live and self.done == self.total:
                print(file=sys.stderr)


# --- Command line ----------------------------------------------------------------------------------------------------


def _pair(text: str) -> tuple[str, Any]:
    """`name=value`; the value as JSON where it is JSON, else as it stands."""
    name, _, value = text.partition("=")
    if not name or not _:
        raise argparse.ArgumentTypeError(f"{text!r} is not name=value")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not at least 1")
    return number


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="python -m agent_envs.evaluate", description=(__doc__ or "").split("\n")[0])
    add = made.add_argument
    add("--env", required=True, help="a registered id, for instance NumberSearch-v0")
    add("--base-url", required=True, help="up to and without /chat/completions")
    add("--model", required=True, help="the model's name at that endpoint")
    add("--split", choices=("train", "test"), default="test")
    add("--tasks", type=_positive, help="how many tasks (default: the environment's own number)")
    add("--samples", type=_positive, default=1, help="episodes a task")
    add("--option", type=_pair, action="append", default=[], metavar="NAME=VALUE", help="a reset option")
    add("--setting", type=_pair, action="append", default=[], metavar="NAME=VALUE", help="for gymnasium.make")
    add("--system", help="a system message")
    add("--sampling", type=_pair, action="append", default=[], metavar="NAME=VALUE", help="such as temperature=0.7")
    add("--concurrency", type=_positive, default=8, help="episodes at a time")
    add("--timeout", type=float, default=120.0, help="seconds for one try of a request")
    add("--retries", type=int, default=6, help="tries after the first")
    add("--stream", action="store_true", help="ask for streamed replies")
    add("--api-key-env", default="OPENAI_API_KEY", help="the variable that holds the key")
    add("--out", type=Path, default=Path("runs/evaluate"), help="folder for episodes.jsonl and summary.json")
    return made


def main(argv: Sequence[str] | None = None) -> int:
    args = parser().parse_args(argv)
    try:
        tasks = list(task_set(args.env, args.split, args.tasks, **dict(args.option)))
        gymnasium.make(args.env, disable_env_checker=True, **dict(args.setting)).close()
    except (ValueError, TypeError, gymnasium.error.Error) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    key = os.environ.get(args.api_key_env)
    client = ChatClient(
        args.base_url, args.model, key, dict(args.sampling), args.stream, args.timeout, retries=args.retries
    )
    args.out.mkdir(parents=True, exist_ok=True)
    progress = Progress(len(tasks) * args.samples)
    with (args.out / "episodes.jsonl").open("w", encoding="utf-8") as file:

        def save(episode: dict[str, Any]) -> None:
            # A lone surrogate cannot be written as UTF-8; JSON's own escapes can.
            file.write(json.dumps(episode) + "\n")
            file.flush()
            progress(episode)

        try:
            episodes = evaluate(
                client, tasks, args.samples, args.concurrency, dict(args.setting), args.system, on_episode=save
            )
        except EndpointError as error:
            print(f"\nerror: {error}", file=sys.stderr)
            return 2
    summary = {"env": args.env, "model": args.model, "split": args.split, "samples": args.samples}
    summary |= {"options": dict(args.option), "settings": dict(args.setting), "sampling": dict(args.sampling)}
    summary |= summarise(episodes)
    (args.out / "summary.json").write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    print(report(summary))
    return 1 if summary["errors"] else 0


if __name__ == "__main__":
    sys.exit(main())
