"""The embedded base model: a small Llama-type model that speaks in turns, shipped inside the package.

`AutoModelForCausalLM.from_pretrained(tiny_base_path())` and `AutoTokenizer.from_pretrained(tiny_base_path())` load it
without a network. `python -m trl_plugins.tiny_base` makes it anew. MODEL_CARD.md says what it knows.
"""

from pathlib import Path


def tiny_base_path() -> str:
    """Folder of the shipped model, for any `from_pretrained`."""
    return str(Path(__file__).parent / "model")
