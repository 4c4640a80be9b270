"""A small text crafting world: places, tools, stations, an exact solver and six tiers.

Read it in this order: `formulas` (what things are made of), `world` (what a command does), `commands` (from free text
to a command), `render` (from state to text), `solver`, `tiers` and `generate` (from a seed to a task), `baselines`, and
`env`, the shell that puts them together.
"""

from agent_envs.crafting.env import CraftingEnv
from agent_envs.crafting.formulas import FULL, LITE, Formula, FormulaError, FormulaTable

__all__ = ["FULL", "LITE", "CraftingEnv", "Formula", "FormulaError", "FormulaTable"]
