"""From free text to one command: what is understood, which command is taken, and what never counts as one."""

import pytest

from agent_envs.crafting import LITE, CraftingEnv
from agent_envs.crafting.commands import parse_command
from agent_envs.crafting.world import GIVE_UP, Command


def parse(reply):
    return parse_command(reply, LITE)


@pytest.mark.parametrize(
    ("reply", "command"),
    [
        ("mine log", "mine log"),
        ("Mine the log.", "mine log"),
        ("  MINE LOGS!  ", "mine log"),
        ("get wood", "mine log"),
        ("chop a log", "mine log"),
        ("collect some stones", "mine stone"),
        ("gather cobblestone", "mine stone"),
        ("craft wooden_pickaxe", "craft wooden_pickaxe"),
        ("craft wooden pickaxe", "craft wooden_pickaxe"),
        ("make a Wooden Pickaxe here", "craft wooden_pickaxe"),
        ("craft plank", "craft planks"),
        ("craft sticks from planks", "craft stick"),
        ("craft crafting table", "craft table"),
        ("place the table", "place table"),
        ("put table here", "place table"),
        ("smelt iron_ingots", "smelt iron_ingot"),
        ("go forest", "go forest"),
        ("go to the forest", "go forest"),
        ("Move to Forest", "go forest"),
        ("walk into the cave", "go cave"),
        ("go(forest)", "go forest"),
        ("Action: mine log", "mine log"),
        ("**Action:** mine log", "mine log"),
        ("I need wood first.\nAction: mine log", "mine log"),
        ("I need wood. Action: mine log", "mine log"),
        ("<action>mine log</action>", "mine log"),
        ('{"action": "mine log"}', "mine log"),
        ('{"thought": "hm", "action":"go cave"}', "go cave"),
        ("```\nmine log\n```", "mine log"),
        ("```text\nmine log```", "mine log"),
        ("`mine log`", "mine log"),
        ("> mine log", "mine log"),
        ("1. mine log", "mine log"),
        ("- mine log", "mine log"),
        ("<think>craft stick</think>mine log", "mine log"),
        ("<think>\nAction: craft stick\n</think>\nmine log", "mine log"),
        ("Let me see what I have.\n\nmine log", "mine log"),
        ("give up", "give up"),
        ("Give up.", "give up"),
        ("give_up", "give up"),
        ("craft 1 planks", "craft planks"),
        ("craft 2 planks", "craft planks"),
        ("mine 1 log", "mine log"),
        ("craft two-fold\nmine log", "mine log"),
    ],
)
def test_understood(reply, command):
    parsed = parse(reply)
    assert (str(parsed.command), parsed.error, parsed.several) == (command, None, False)


@pytest.mark.parametrize(
    ("reply", "error"),
    [
        ("", "no_command"),
        ("\n\n", "no_command"),
        ("hello", "no_command"),
        ("mine", "no_command"),
        ("go", "no_command"),
        ("I will mine log next", "no_command"),
        ("The goal is to craft stick", "no_command"),
        ("mine unobtainium", "unknown_item"),
        ("craft forest", "unknown_item"),
        ("go nowhere", "unknown_place"),
        ("go log", "unknown_place"),
        ("mine log" + " and more" * 30, "no_command"),
        ("Action: dance\nmine log", "no_command"),
        ("<think>mine log", "unfinished_thought"),
        ("mine log <think> but first", "unfinished_thought"),
        ("craft 0 planks", "bad_count"),
        ("craft -1 planks", "bad_count"),
        ("mine 3 log", "bad_count"),
        ("mine 2.5 log", "bad_count"),
        ("craft 99999999999999999999999999 planks", "bad_count"),
        ("craft " + "9" * 100 + " planks", "bad_count"),
        ("place 2 table", "bad_count"),
        ("give up mining", "no_command"),
        ("I won't give up", "no_command"),
    ],
)
def test_not_understood(reply, error):
    assert parse(reply)[:2] == (None, error)


@pytest.mark.parametrize(
    ("reply", "command"),
    [
        ("mine log\ncraft planks", "mine log"),
        ("mine log, craft planks", "mine log"),
        ("mine log; craft planks; craft stick", "mine log"),
        ("mine log and craft planks", "mine log"),
        ("mine log, and then craft planks", "mine log"),
        ("mine log. Craft planks.", "mine log"),
        ("mine log\nmine log", "mine log"),
        ("Action: craft stick\nAction: mine log", "craft stick"),
        ("craft sword\nLast: crafted 1 sword.\ngo cave", "craft sword"),
    ],
)
def test_the_first_of_several_is_taken_and_flagged(reply, command):
    parsed = parse(reply)
    assert (str(parsed.command), parsed.error, parsed.several) == (command, None, True)


def test_a_marked_command_beats_a_bare_one():
    parsed = parse("mine log\nAction: craft stick")
    assert parsed.command == Command("craft", "stick")
    assert not parsed.several


def test_every_command_of_a_world_is_understood():
    for item, formula in LITE.index.items():
        for command in (Command(LITE.formulas[formula].kind, item), Command("place", item)):
            assert parse(str(command)).command == command
            assert parse(str(command).replace("_", " ").upper() + ".").command == command
    for place in LITE.names.places:
        assert parse(f"go {place}").command == Command("go", place)
    assert parse(str(GIVE_UP)).command == GIVE_UP


@pytest.mark.parametrize("tier", range(6))
def test_an_echoed_observation_holds_no_command(tier):
    env = CraftingEnv(tier=tier, show_admissible=True, budget=50)
    for seed in range(20):
        text, _ = env.reset(seed=seed)
        assert parse_command(text, LITE).command is None, text
        for line in text.splitlines():
            assert parse_command(line, LITE).command is None, line
        for action in ("dance", "mine unobtainium", "craft 7 planks", env.optimal_action()):
            text = env.step(action)[0]
            assert parse_command(text, LITE).command is None, text
