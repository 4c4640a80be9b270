"""From a reply to one command.

The rule, in order:
1. Only the visible text counts: what follows the last closed think block, code-fence marks removed.
2. Marked commands count, wherever they stand on their line: `Action: mine log`, `Command: ...`,
   `<action>mine log</action>`, `{"action": "mine log"}`. Only where there are none do bare ones count, and a bare
   command must begin its line; prose, an echoed goal or an echoed observation holds no command.
3. The first command is taken. Whatever commands come after it are left undone, and that is flagged (`several`).

Case, articles, `_` or space, plurals, quotes, list marks and a final period do not matter. Synonyms: get, chop,
collect, gather, dig, pick up → mine; make, build → craft; put → place; cook → smelt; move, walk, travel → go.
A number is accepted where it is 1, or what one command gives ("craft 2 planks"): one command is one action.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

from agent_envs.crafting.formulas import FormulaTable, Names
from agent_envs.crafting.world import GIVE_UP, Command
from agent_envs.text import visible_text


class Parsed(NamedTuple):
    """What a reply says.

    command: the command, or None. error: None, or why there is none: "no_command", "unknown_item", "unknown_place",
    "bad_count", "unfinished_thought". several: more commands followed the first. count: the number given, or None.
    """

    command: Command | None
    error: str | None
    several: bool = False
    count: int | None = None


VERB_WORDS = {
    **dict.fromkeys(("mine", "get", "chop", "collect", "gather", "dig", "pick up"), "mine"),
    **dict.fromkeys(("craft", "make", "build"), "craft"),
    **dict.fromkeys(("smelt", "cook"), "smelt"),
    **dict.fromkeys(("place", "put"), "place"),
    **dict.fromkeys(("go", "move", "walk", "travel"), "go"),
}
ALIASES = {"wood": "log", "plank": "planks", "cobblestone": "stone", "crafting_table": "table", "workbench": "table"}
MAX_LINE = 120  # a command is short; a longer line is prose
_CACHED_LENGTH = 120  # replies up to this long are remembered, so that the cache stays small whatever is sent

_MARKED = re.compile(
    r"""(?:^|[\s*`"'>])(?:action|command)[*`"']{0,3}[ \t]*:[*`"'{ \t]{0,6}([^\n"}]*)
    | <action>([^<\n]*)</action>
    """,
    re.IGNORECASE | re.VERBOSE,
)
_LIST_MARK = re.compile(r"^(?:[-*>•#]+|[0-9]{1,2}[.)])[ \t]+|^[>$]")
_SPLIT = re.compile(r"[;,.!?][ \t]+|[;,]|[ \t](?:and then|then|and)[ \t]")
_FILLER = frozenset(("a", "an", "the", "some", "one", "to", "into", "towards", "down", "back", "more", "another"))
_TAIL = re.compile(r" (?:here|now|from|with|using|at|in|on|by)(?: .*)?$")
_VERB = re.compile(f"({'|'.join(sorted(VERB_WORDS, key=len, reverse=True))})(?: (.*))?")
_NUMBER = re.compile(r"[+-]?[0-9]+(?:\.[0-9]+)?x?")


def parse_command(reply: str, table: FormulaTable) -> Parsed:
    """The one command a reply holds, or why it holds none (see the module's rule)."""
    names = table.names
    parsed = _remembered(reply, names) if len(reply) <= _CACHED_LENGTH else _parse(reply, names)
    if parsed.count is not None and parsed.command is not None:  # depends on the quantities, not on the words
        verb, name = parsed.command
        gives = 1 if verb in ("go", "place") else table[name].makes
        if parsed.count not in (1, gives):
            return Parsed(None, "bad_count", parsed.several, parsed.count)
    return parsed


def _parse(reply: str, names: Names) -> Parsed:
    text = visible_text(reply)
    if text is None:
        return Parsed(None, "unfinished_thought")
    marked = [next(filter(None, match.groups()), "") for match in _MARKED.finditer(text)]
    lines = marked or text.splitlines()
    first: Parsed | None = None
    error = "no_command"
    for line in lines:
        if len(line) > MAX_LINE:
            continue
        parts = _SPLIT.split(_clean(line))
        head = _read(parts[0], names)
        if head.command is None:
            # The most telling error of all lines: a verb with a wrong name says more than prose.
            error = error if error != "no_command" else head.error or error
            continue
        if first is not None:
            return first._replace(several=True)
        first = head
        if any(_read(part.strip(), names).command for part in parts[1:]):
            return first._replace(several=True)
    return first or Parsed(None, error)


_remembered = lru_cache(maxsize=8192)(_parse)


_MARKS = str.maketrans({**dict.fromkeys("*`\"'", None), **dict.fromkeys("_[]()", " ")})


def _clean(line: str) -> str:
    """A line without list marks, quotes and emphasis, in lower case and with single spaces."""
    line = _LIST_MARK.sub("", line.strip())
    return " ".join(line.lower().translate(_MARKS).split())


def _read(text: str, names: Names) -> Parsed:
    """One cleaned piece of text as a command: all of it, or it is none."""
    text = text.rstrip(" .!")
    if text in ("give up", "giveup", "i give up"):
        return Parsed(GIVE_UP, None)
    match = _VERB.fullmatch(text)
    if match is None:
        return Parsed(None, "no_command")
    verb, rest = VERB_WORDS[match[1]], match[2] or ""
    words = [word for word in rest.split() if word not in _FILLER]
    count: int | None = None
    if words and _NUMBER.fullmatch(words[0]):
        digits = words[0].rstrip("x")
        # Any other number is wrong whatever its size; -1 stands for it, so that huge ones cost nothing.
        count = int(digits) if digits.isdecimal() and len(digits) < 5 else -1
        words = words[1:]
    known = _words_of(names)
    kind, missing = (1, "unknown_place") if verb == "go" else (0, "unknown_item")
    phrase = " ".join(words)
    name = _lookup(phrase, known[kind]) or _lookup(_TAIL.sub("", phrase), known[kind])
    if name is None:
        return Parsed(None, missing if words else "no_command")
    return Parsed(Command(verb, name), None, False, count)


def _lookup(phrase: str, known: dict[str, str]) -> str | None:
    """The name a phrase means, plural endings aside."""
    for form in (phrase, phrase[:-1] if phrase.endswith("s") else "", phrase[:-2] if phrase.endswith("es") else ""):
        if form in known:
            return known[form]
    return None


@lru_cache(maxsize=64)
def _words_of(names: Names) -> tuple[dict[str, str], dict[str, str]]:
    """(spoken form → item, spoken form → place)."""
    items = {item.replace("_", " "): item for item in names.items}
    for alias, item in ALIASES.items():
        if item in names.items:
            items.setdefault(alias.replace("_", " "), item)
    for item in names.items:  # "plank" for an item called "planks"
        if item.endswith("s"):
            items.setdefault(item[:-1].replace("_", " "), item)
    places = {place.replace("_", " "): place for place in names.places}
    return items, places
