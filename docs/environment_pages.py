"""The pages under docs/environments: one for each family of ids, and their index."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec

import agent_envs
from agent_envs import bandits, number_search, sorting
from agent_envs.crafting import commands, tiers
from agent_envs.play import named_policy, policy_names
from docs import crafting_parts
from docs.docstrings import SECTIONS, arguments, body, environment_sections, summary
from docs.markdown import code, fenced, keywords, page, table

EPISODES = 1000  # at least so many for each line of a table of players

VERSIONS = "The number after `-v` goes up when rules, texts or rewards change: results under one id stay comparable."


@dataclass(frozen=True)
class Family:
    """One page: the ids that begin with `prefix`.

    name: of the page. transcript: the id and the seed that the solver is shown with. more: (section, title, module or
    function) triples; the docstring follows the section under the title. arguments_of: a class whose `Args:` say more
    than the environment's. parts: makes further sections. players: whether to play and count; the crafting world has
    its own table.
    """

    name: str
    title: str
    prefix: str
    transcript: tuple[str, int]
    more: tuple[tuple[str, str, Any], ...] = ()
    arguments_of: type | None = None
    parts: Callable[[], tuple[str, ...]] = tuple
    players: bool = True


_REPLIES = ("Action", "Accepted replies")
_LETTERS = ((*_REPLIES, bandits.parse_choice), ("Rules", "The two ids of this environment", bandits))
FAMILIES = (
    Family(
        "number_search",
        "Number Search",
        "NumberSearch",
        ("NumberSearch-v0", 3),
        ((*_REPLIES, number_search.parse_guess),),
    ),
    Family(
        "crafting",
        "Crafting",
        "Crafting",
        ("Crafting-v0", 1),
        ((*_REPLIES, commands),),
        tiers.Settings,
        crafting_parts.parts,
        players=False,
    ),
    Family("bandit", "Two-armed bandit", "TwoArmedBandit", ("TwoArmedBandit-v0", 0), _LETTERS),
    Family("two_state", "Two states", "TwoState", ("TwoState-v0", 0), _LETTERS),
    Family(
        "sort",
        "Sort",
        "Sort",
        ("Sort-v0", 0),
        ((*_REPLIES, sorting.parse_numbers), ("Reward", "The loophole", sorting)),
    ),
)


def pages() -> dict[str, Callable[[], str]]:
    """Path under docs → what makes the page."""
    made: dict[str, Callable[[], str]] = {
        f"environments/{family.name}.md": lambda family=family: environment_page(family) for family in FAMILIES
    }
    return {**made, "environments/README.md": index_page}


def specs_of(family: Family) -> list[EnvSpec]:
    """The specs of a family's ids, in the order they were registered."""
    return [spec for spec in _all_specs() if spec.name.startswith(family.prefix)]


def _all_specs() -> list[EnvSpec]:
    return [gymnasium.spec(id) for id in agent_envs.registered_ids()]


def _class_of(spec: EnvSpec) -> Any:
    module, _, name = str(spec.entry_point).partition(":")
    return getattr(import_module(module), name)


# --- The index -------------------------------------------------------------------------------------------------------


def index_page() -> str:
    """A line an id.

    Raises:
        ValueError: an id that no family's page, or more than one, is about.
    """
    rows = []
    for family in FAMILIES:
        for spec in specs_of(family):
            turns = _make(spec.id).max_turns
            rows.append((code(spec.id), f"[{family.title}]({family.name}.md)", keywords(spec.kwargs), turns))
    listed = sorted(row[0] for row in rows)
    registered = sorted(code(spec.id) for spec in _all_specs())
    if listed != registered:
        raise ValueError(f"the pages are about {listed}, registered are {registered}; add a Family to {__file__}")
    about = [f"- [{family.title}]({family.name}.md): {summary(_class_of(specs_of(family)[0]))}" for family in FAMILIES]
    return page(
        "# Environments",
        "Every id after `import agent_envs`. All speak text, all have a solver, and all run batched with "
        "`gymnasium.make_vec` ([vector.md](../vector.md)).",
        table(("id", "page", "arguments", "turns at most"), rows),
        "\n".join(about),
        VERSIONS,
        "`python -m agent_envs.play ID` plays any of them in a terminal; `--policy optimal` shows the solver at it.",
    )


# --- A family's page -------------------------------------------------------------------------------------------------


def environment_page(family: Family) -> str:
    specs = specs_of(family)
    cls = _class_of(specs[0])
    found = environment_sections(cls)
    _check_info(family, found["Info"])
    blocks = [f"# {family.title}", found[""], "## Versions", _versions(specs), VERSIONS]
    for name in SECTIONS:
        blocks += [f"## {name}", found[name]]
        for section, title, thing in family.more:
            if section == name:
                blocks += [f"### {title}", body(thing)]
        if name == "Reset options":
            blocks += ["## Arguments", "Of `gymnasium.make(id, ...)`.", _arguments(cls, family.arguments_of)]
            blocks += [f"Raises {' '.join(found['Raises'].split())}"]
    blocks += ["It comes with these players:", _players(_make(specs[0].id))]
    if family.players:
        blocks += [*_results(specs)]
    return page(*blocks, *family.parts(), "## A game of the solver", *_transcript(*family.transcript))


def _versions(specs: list[EnvSpec]) -> str:
    rows = []
    for spec in specs:
        env = _make(spec.id)
        tasks = len(agent_envs.task_set(spec.id))
        rows.append((code(spec.id), keywords(spec.kwargs), env.max_turns, tasks))
    return table(("id", "arguments", "turns at most", "tasks in `task_set(id)`"), rows)


def _arguments(cls: Any, more: type | None) -> str:
    described = {**arguments(cls), **(arguments(more) if more else {})}
    hints = typing.get_type_hints(cls.__init__)
    rows = []
    for parameter in list(inspect.signature(cls.__init__).parameters.values())[1:]:
        if parameter.name not in described:
            raise ValueError(f"the docstring of {cls.__name__} does not describe {parameter.name}")
        kind = type_text(hints[parameter.name])
        rows.append((code(parameter.name), kind, code(repr(parameter.default)), described[parameter.name]))
    return table(("argument", "type", "default", "meaning"), rows)


def type_text(hint: Any) -> str:
    """A type as a reader says it: `"a"` or `"b"`, int or None."""
    if typing.get_origin(hint) is typing.Literal:
        return ", ".join(code(f'"{value}"') for value in typing.get_args(hint))
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return " or ".join(type_text(part) for part in typing.get_args(hint))
    if hint is type(None):
        return "None"
    if hint is Any:
        return "Any"
    name = getattr(hint, "__name__", str(hint))
    inner = ", ".join(type_text(part) for part in typing.get_args(hint))
    return f"{name}[{inner}]" if inner else name


def _players(env: Any) -> str:
    return "\n".join(f"- `{name}`: {summary(getattr(env, f'{name}_action'))}" for name in policy_names(env))


def _results(specs: list[EnvSpec]) -> tuple[str, str]:
    rows = []
    for spec in specs:
        env = _make(spec.id)
        # Whole rounds through the environment's tasks, so that each counts equally often.
        default = len(agent_envs.task_set(spec.id, "test"))
        tasks = agent_envs.task_set(spec.id, "test", size=default * -(-EPISODES // default))
        for name in policy_names(env):
            played = [_play(env, name, task.seed, task.options) for task in tasks]
            wins, returns = (sum(column) / len(tasks) for column in zip(*played, strict=True))
            rows.append((code(spec.id), code(name), len(tasks), f"{wins:.3f}", f"{returns:.3f}"))
    header = ("id", "player", "episodes", "success", "mean return")
    return 'Played by `python -m docs.build` on the tasks of `task_set(id, "test")`:', table(header, rows)


def _play(env: Any, name: str, seed: int, options: dict[str, Any]) -> tuple[bool, float]:
    """(success, return) of one episode."""
    _, info = env.reset(seed=seed, options=options)
    act, total, done = named_policy(env, name, seed), 0.0, False
    while not done:
        _, reward, terminated, truncated, info = env.step(act())
        total, done = total + reward, terminated or truncated
    return info["is_success"], total


def _transcript(id: str, seed: int) -> tuple[str, str, str]:
    env = gymnasium.make(id, render_mode="ansi")
    success, total = _play(env, "optimal", seed, {})
    end = f"The return is {total:g}; `is_success` is {success}."
    return f"`python -m agent_envs.play {id} --seed {seed} --policy optimal`", fenced(str(env.render())), end


def _check_info(family: Family, text: str) -> None:
    """Every key that an episode's infos hold must be named in the docstring."""
    env = gymnasium.make(family.transcript[0])
    if hasattr(env.unwrapped, "info_level"):
        env = gymnasium.make(family.transcript[0], info_level="full")
    keys = set(env.reset(seed=family.transcript[1])[1])
    keys |= set(env.step(env.unwrapped.optimal_action())[4])  # type: ignore[attr-defined]
    missing = sorted(key for key in keys if code(key) not in text)
    if missing:
        raise ValueError(f"the Info section of {type(env.unwrapped).__name__} does not name {', '.join(missing)}")


def _make(id: str) -> Any:
    return gymnasium.make(id).unwrapped
