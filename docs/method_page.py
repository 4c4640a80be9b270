"""docs/methods.md, from `trl_plugins/weights.py`. The file is read, not imported: the docs need no torch."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from docs.markdown import code, page, table

WEIGHTS = Path(__file__).parents[1] / "trl_plugins" / "weights.py"

DIVISORS = {
    "constant": "the constant C = max_turns × max_turn_tokens",
    "own_length": "the trajectory's own number of sampled tokens",
    "none": "nothing",
}


class Method(NamedTuple):
    """What the docstring `w = FORMULA ... (SOURCE, YEAR).` of a weight function says."""

    name: str
    formula: str
    source: str


def pages() -> dict[str, Callable[[], str]]:
    return {"methods.md": method_page}


def method_page() -> str:
    """The table of methods.

    Raises:
        ValueError: a method without a docstring of the form above, or a normaliser that has no words in DIVISORS.
    """
    module = ast.parse(WEIGHTS.read_text(encoding="utf-8"))
    normalisers: dict[str, str] = ast.literal_eval(_assigned(module, "NORMALISERS"))
    functions = {node.name: ast.get_docstring(node) or "" for node in module.body if isinstance(node, ast.FunctionDef)}
    rows = []
    for name, divisor in normalisers.items():
        method = read_method(name, functions.get(name, ""))
        if divisor not in DIVISORS:
            raise ValueError(f"normaliser {divisor!r} of {name} has no words in {__file__}")
        rows.append((code(name), f"w = {method.formula}", DIVISORS[divisor], method.source, code(f"advantage: {name}")))
    credits: dict[str, str] = ast.literal_eval(_assigned(module, "CREDITS"))
    credit_rows = [(code(name), what, code(f"credit: {name}")) for name, what in credits.items()]
    about = (ast.get_docstring(module) or "").split("\n\n")
    return page(
        "# Methods",
        *about,
        table(("method", "weight of a trajectory with return R", "the loss divides by", "source", "config line"), rows),
        "Which tokens a weight stands on is a choice of its own; `value` and `oracle` always go turn by turn:",
        table(("credit", "what a token is weighted by", "config line"), credit_rows),
        "The config line goes into the YAML of a recipe, or as a keyword to `MultiTurnGRPOConfig`. The functions "
        "are in [trl_plugins/weights.py](../trl_plugins/weights.py).",
    )


_FORMULA = re.compile(r"w = (?P<formula>.+?)(?=;|\.(?:\s|$)|\s\([^()]*\b(?:19|20)\d\d\b)", re.DOTALL)
_SOURCE = re.compile(r"\(([^()]*\b(?:19|20)\d\d\b[^()]*)\)")


def read_method(name: str, doc: str) -> Method:
    """The formula and the source in the first paragraph of a weight function's docstring."""
    first = " ".join(doc.split("\n\n")[0].split())
    formula, source = _FORMULA.search(first), _SOURCE.search(first)
    if formula is None:
        raise ValueError(f"the docstring of weights.{name} does not say `w = ...`")
    return Method(name, formula["formula"], source[1] if source else "–")


def _assigned(module: ast.Module, name: str) -> ast.expr:
    for node in module.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id == name:
            assert node.value is not None
            return node.value
    raise ValueError(f"{WEIGHTS} does not assign {name}")
