"""A small client for OpenAI-compatible chat endpoints, on the standard library: time-outs, retries, streams.

A request is tried again where that can help (no connection, a time-out, 408, 409, 425, 429, 5xx, an answer that is not
what was promised, a stream that breaks off), with exponential backoff and full jitter, and no sooner than the server's
Retry-After. Anything else (a wrong key, an unknown model) raises `EndpointError` at once.
"""

from __future__ import annotations

import http.client
import json
import random
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

Messages = Sequence[dict[str, str]]

RETRIED = (408, 409, 425, 429)
MAX_WAIT = 60.0  # seconds before a retry, whatever the server asks for
_CHUNK = 1 << 16


class EndpointError(Exception):
    """The endpoint refused a request, and asking again would not help."""


class OutOfRetries(Exception):
    """The last of the tries failed too."""


class _Failed(Exception):
    """One try failed in a way that may pass. `after`: seconds the server asked to wait."""

    def __init__(self, why: str, after: float = 0.0) -> None:
        super().__init__(why)
        self.after = after


@dataclass
class Reply:
    """What the model said. failures: why earlier tries failed. tokens: the server's count of sampled tokens, or 0."""

    text: str
    finish: str | None = None
    tokens: int = 0
    seconds: float = 0.0
    failures: list[str] = field(default_factory=list)


@dataclass
class ChatClient:
    """One endpoint and model; safe to share between threads.

    Args:
        base_url: up to and without `/chat/completions`, for instance `http://localhost:8000/v1`.
        model: the model's name there.
        api_key: sent as a bearer token if given.
        sampling: further fields of the request (`temperature`, `max_tokens`, ...).
        stream: ask for a stream; the reply is the same.
        timeout: seconds for a whole try, its stream included.
        retries: tries after the first.
        backoff: seconds; the n-th wait is drawn between 0 and backoff · 2^n.
        sleep: how to wait; a test replaces it.
    """

    base_url: str
    model: str
    api_key: str | None = None
    sampling: dict[str, Any] = field(default_factory=dict)
    stream: bool = False
    timeout: float = 120.0
    retries: int = 6
    backoff: float = 0.5
    sleep: Callable[[float], None] = time.sleep

    def complete(self, messages: Messages) -> Reply:
        """The model's next message.

        Raises:
            EndpointError: the request itself is refused. OutOfRetries: every try failed.
        """
        failures: list[str] = []
        start = time.monotonic()
        while True:
            try:
                reply = self._try(messages)
            except _Failed as failed:
                failures.append(str(failed))
                if len(failures) > self.retries:
                    raise OutOfRetries(f"{len(failures)} tries failed, the last: {failures[-1]}") from failed
                jitter = random.random() * self.backoff * 2 ** (len(failures) - 1)
                self.sleep(min(MAX_WAIT, max(jitter, failed.after)))
                continue
            reply.failures, reply.seconds = failures, time.monotonic() - start
            return reply

    def _try(self, messages: Messages) -> Reply:
        body = {"model": self.model, "messages": list(messages), "stream": self.stream, **self.sampling}
        headers = {"Content-Type": "application/json", "Accept": "text/event-stream" if self.stream else "*/*"}
        if self.api_key:
            headers["Authorization"] = f"Bearer {self.api_key}"
        url = f"{self.base_url.rstrip('/')}/chat/completions"
        request = urllib.request.Request(url, json.dumps(body).encode(), headers)
        deadline = time.monotonic() + self.timeout
        try:
            with urllib.request.urlopen(request, timeout=self.timeout) as response:
                chunks = _until(response, deadline)
                if "text/event-stream" in response.headers.get("Content-Type", ""):
                    return _from_stream(chunks)
                return _from_json(b"".join(chunks))
        except urllib.error.HTTPError as error:
            why = f"HTTP {error.code}: {_text_of(error)}"
            if error.code in RETRIED or error.code >= 500:
                raise _Failed(why, _seconds(error.headers.get("Retry-After"))) from error
            raise EndpointError(f"{url} answered {why}") from error
        except TimeoutError as error:
            raise _Failed(f"no answer within {self.timeout:g} s") from error
        except (OSError, http.client.HTTPException) as error:  # URLError is an OSError
            reason = getattr(error, "reason", None) or error
            if isinstance(reason, TimeoutError):
                raise _Failed(f"no answer within {self.timeout:g} s") from error
            raise _Failed(f"connection failed: {reason!r}") from error


def _until(response: Any, deadline: float) -> Iterator[bytes]:
    """The body, chunk by chunk; a server that sends a byte now and then does not hold a try for ever."""
    while chunk := response.read1(_CHUNK):
        yield chunk
        if time.monotonic() > deadline:
            raise TimeoutError


def _from_json(body: bytes) -> Reply:
    data = _object(body)
    choice = _choice(data)
    message = choice.get("message")
    if not isinstance(message, dict):
        raise _Failed(f"an answer without a message: {body[:200]!r}")
    return Reply(_content(message), choice.get("finish_reason"), _tokens(data))


def _from_stream(chunks: Iterator[bytes]) -> Reply:
    """Server-sent events put together. A stream ends with [DONE] or a finish_reason; without either it broke off."""
    reply, rest, complete = Reply(""), b"", False
    for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            if not line.startswith(b"data:"):
                continue  # empty lines, comments, event names
            data = line[5:].strip()
            if data == b"[DONE]":
                return reply
            event = _object(data)
            reply.tokens = _tokens(event) or reply.tokens
            if not event.get("choices"):
                continue  # the usage at the end
            choice = _choice(event)
            reply.text += _content(choice.get("delta") or {})
            reply.finish = choice.get("finish_reason") or reply.finish
            complete = complete or reply.finish is not None
    if not complete:
        raise _Failed(f"the stream broke off after {len(reply.text)} characters")
    return reply


def _object(body: bytes) -> dict[str, Any]:
    try:
        data = json.loads(body)
    except ValueError as error:
        raise _Failed(f"an answer that is no JSON: {body[:200]!r}") from error
    if not isinstance(data, dict):
        raise _Failed(f"an answer that is no object: {body[:200]!r}")
    if data.get("error"):  # some servers report failures with status 200, or within a stream
        raise _Failed(f"the server reports {str(data['error'])[:200]}")
    return data


def _choice(data: dict[str, Any]) -> dict[str, Any]:
    choices = data.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        raise _Failed(f"an answer without choices: {str(data)[:200]}")
    return choices[0]


def _content(message: dict[str, Any]) -> str:
    """A message's text; models that only thought, or only called tools, say null."""
    content = message.get("content")
    if isinstance(content, list):
        content = "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else ""


def _tokens(data: dict[str, Any]) -> int:
    usage = data.get("usage")
    tokens = usage.get("completion_tokens") if isinstance(usage, dict) else None
    return tokens if isinstance(tokens, int) else 0


def _text_of(error: urllib.error.HTTPError) -> str:
    try:
        return error.read(_CHUNK).decode(errors="replace")[:300].strip()
    except (OSError, http.client.HTTPException):
        return error.reason


def _seconds(header: str | None) -> float:
    """Retry-After in seconds; a date is ignored, the backoff serves as well."""
    try:
        return max(0.0, float(header or 0))
    except ValueError:
        return 0.0
