"""Between a conversation and its tokens: the opening, and the glue between two turns. Tokens are only ever appended.

A rollout never renders a conversation twice. The opening is tokenised once; from then on the context grows by the
tokens the policy sampled, as it sampled them, and by the glue: what the chat template puts between the end of a reply
and the start of the next, with the environment's words in it. That is right only for a template that leaves earlier
turns as they were, which is checked here, at start-up.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, Literal

from jinja2 import TemplateError

Message = dict[str, str]
Tokenizer = Any  # a transformers tokenizer; its own annotations are too loose to be of use
Finish = Literal["stop", "length"]

# Stand-ins for what is said; plain words, so that no template trims or escapes them.
_ASKED, _SAID, _ANSWERED, _SAID_AGAIN, _ANSWERED_AGAIN = "Qfirst", "Sfirst", "Qsecond", "Ssecond", "Qthird"
_THOUGHT = "<think>Tfirst</think>"

SHIPPED_TEMPLATES = {"chatml": Path(__file__).parent / "chatml.jinja"}


def load_chat_template(name: str) -> str:
    """A shipped template ("chatml") or a file's text.

    Raises:
        ValueError: neither a shipped name nor a file.
    """
    path = SHIPPED_TEMPLATES.get(name, Path(name))
    if not path.is_file():
        raise ValueError(f"chat_template={name!r} is neither a file nor one of {', '.join(SHIPPED_TEMPLATES)}")
    return path.read_text()


class Chat:
    """One tokenizer's chat template as append-only token pieces.

    Args:
        tokenizer: with a chat template.
        end_ids: every token that ends a turn (the generation config's end tokens and the tokenizer's).
        reply_role: the role in which the environment answers, "user" or "tool".
        template_kwargs: passed on to the template.

    Raises:
        ValueError: no chat template, or one that rewrites earlier turns, with the way out.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        end_ids: Collection[int],
        reply_role: Literal["user", "tool"] = "user",
        template_kwargs: dict[str, Any] | None = None,
    ) -> None:
        name = getattr(tokenizer, "name_or_path", "") or type(tokenizer).__name__
        if not tokenizer.chat_template:
            raise ValueError(
                f"the tokenizer of {name} has no chat template; set chat_template to a jinja file, or to 'chatml' "
                "where the vocabulary has <|im_start|> and <|im_end|>"
            )
        self.tokenizer, self._name = tokenizer, name
        marker = "<|im_end|>"
        if marker in tokenizer.chat_template and len(tokenizer.encode(marker, add_special_tokens=False)) != 1:
            raise ValueError(f"the chat template writes {marker}, no token of {name}; set another chat_template")
        self.end_ids = frozenset(end_ids)
        self.reply_role = reply_role
        self.template_kwargs = dict(template_kwargs or {})
        self._specials = sorted(map(str, tokenizer.get_added_vocab()), key=len, reverse=True)
        between = self._check_appends(name)
        self._before, self._after = between.split(_ANSWERED)
        self._split_end()

    def _render(self, messages: Sequence[Message]) -> str:
        try:
            return str(
                self.tokenizer.apply_chat_template(
                    list(messages), tokenize=False, add_generation_prompt=True, **self.template_kwargs
                )
            )
        except TemplateError as error:
            roles = ", ".join(message["role"] for message in messages)
            raise ValueError(
                f"the chat template of {self._name} refuses a conversation of {roles} ({error}); leave system_prompt "
                "unset, set reply_role to 'user', or set chat_template to one that takes these roles"
            ) from error

    def _check_appends(self, name: str) -> str:
        """The text between a reply and the next one's start; an error where a template rewrites history."""
        ask: Message = {"role": "user", "content": _ASKED}
        opening = self._render([ask])
        between = ""
        for said in (_SAID, _THOUGHT + _SAID):
            first = [ask, {"role": "assistant", "content": said}, {"role": self.reply_role, "content": _ANSWERED}]
            second = [
                *first,
                {"role": "assistant", "content": _SAID_AGAIN},
                {"role": self.reply_role, "content": _ANSWERED_AGAIN},
            ]
            rendered, longer = self._render(first), self._render(second)
            if not rendered.startswith(opening + said) or not longer.startswith(rendered + _SAID_AGAIN):
                what = "drops or moves the reasoning of" if "think" in said else "rewrites"
                raise ValueError(
                    f"the chat template of {name} {what} earlier turns when a later one is added, so the tokens a "
                    "policy sampled would not be the tokens it is later shown; set chat_template to one that only "
                    "appends ('chatml' is shipped and fits models with <|im_start|> markers, such as Qwen and SmolLM)"
                )
            between = rendered[len(opening + said) :]
        if between.count(_ANSWERED) != 1:
            raise ValueError(f"the chat template of {name} does not show a {self.reply_role!r} message's words")
        return between

    def _split_end(self) -> None:
        """Find the end-of-turn token the template itself writes after a reply, if it writes one."""
        ids = self._encode(self._before)
        at = next((i for i, token in enumerate(ids) if token in self.end_ids), None)
        self._template_end = None if at is None else ids[at]
        ended = "" if at is None else self.tokenizer.decode(ids[: at + 1], skip_special_tokens=False)
        if not self._before.startswith(ended):  # a decoder that does not give back the text: keep the template's end
            self._template_end, ended = None, ""
        self._before_ended = self._before[len(ended) :]

    def _encode(self, text: str) -> list[int]:
        return list(self.tokenizer.encode(text, add_special_tokens=False))

    def _defuse(self, text: str) -> str:
        """Break up special tokens in the environment's words: its text must never become a turn marker."""
        for special in self._specials:
            if len(special) > 2 and special.strip() and special in text:
                text = text.replace(special, special[0] + " " + special[1:])
        return text

    def opening_messages(self, observation: str, system_prompt: str | None = None) -> list[Message]:
        """The conversation the policy first sees."""
        system = [{"role": "system", "content": system_prompt}] if system_prompt else []
        return [*system, {"role": "user", "content": self._defuse(observation)}]

    def check_opening(self, system_prompt: str | None) -> None:
        """Raises ValueError where the template refuses the system prompt."""
        self._render(self.opening_messages(_ASKED, system_prompt))

    def opening_ids(self, messages: Sequence[Message]) -> list[int]:
        """Tokens of the opening, up to where the first reply starts."""
        encoded = self.tokenizer.apply_chat_template(
            list(messages), tokenize=True, add_generation_prompt=True, return_dict=True, **self.template_kwargs
        )
        return list(encoded["input_ids"])  # type: ignore[index]

    def glue_ids(self, action_ids: Sequence[int], reply: str) -> list[int]:
        """Tokens from the end of a sampled reply to the start of the next, the environment's words inside.

        They start with the template's own end of turn where the policy did not sample it (its turn was cut by the cap,
        or it ended with another end token).
        """
        ended = self._template_end is not None and bool(action_ids) and action_ids[-1] == self._template_end
        before = self._before_ended if ended else self._before
        return self._encode(before + self._defuse(reply) + self._after)

    def conversation(self, messages: Sequence[Message]) -> tuple[list[int], list[int]]:
        """A whole conversation as a rollout would have made it: ids (T,) and mask (T,), 1 on the assistant's tokens.

        The assistant's end of turn counts as said. Raises ValueError where the last message is not the assistant's.
        """
        if not messages or messages[-1]["role"] != "assistant":
            raise ValueError("a demonstration ends with the assistant's message")
        first = next(i for i, message in enumerate(messages) if message["role"] == "assistant")
        ids = self.opening_ids(messages[:first])
        mask = [0] * len(ids)
        for i in range(first, len(messages), 2):
            action = self.saying_ids(messages[i]["content"])
            glue = self.glue_ids(action, messages[i + 1]["content"]) if i + 1 < len(messages) else []
            ids += [*action, *glue]
            mask += [1] * len(action) + [0] * len(glue)
        return ids, mask

    def saying_ids(self, text: str) -> list[int]:
        """Tokens of a reply as a policy would sample it, the end of turn included."""
        return [*self._encode(text), self._template_end if self._template_end is not None else min(self.end_ids)]

    def said(self, action_ids: Sequence[int]) -> str:
        """The text of a sampled reply, its end token and other special tokens left out."""
        ids = list(action_ids)
        if ids and ids[-1] in self.end_ids:  # some end tokens are not marked special
            ids.pop()
        return str(self.tokenizer.decode(ids, skip_special_tokens=True))


def end_token_ids(tokenizer: Tokenizer, generation_config: Any) -> list[int]:
    """Every token that ends a turn: those of the generation config (one or several) and the tokenizer's own."""
    ids = getattr(generation_config, "eos_token_id", None)
    ids = [] if ids is None else [ids] if isinstance(ids, int) else list(ids)
    if tokenizer.eos_token_id is not None and tokenizer.eos_token_id not in ids:
        ids.insert(0, tokenizer.eos_token_id)
    if not ids:
        raise ValueError("neither the tokenizer nor the generation config names an end-of-sequence token")
    return ids
