"""A scripted OpenAI-compatible server on loopback, with faults on demand; its model bisects Number Search."""

from __future__ import annotations

import json
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Model = Callable[[list[dict[str, Any]]], str]


def text_of(message: dict[str, Any]) -> str:
    content = message.get("content") or ""
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)


def bisecting(messages: list[dict[str, Any]]) -> str:
    """The middle of what the conversation leaves possible (8 first, as the exact solver plays it)."""
    low, high, guess = 1, 16, 0
    for message in messages:
        text = text_of(message)
        if message["role"] == "assistant":
            guess = int(re.findall(r"\d+", text)[-1])
        elif "from" in text and "to" in text:
            low, high = map(int, re.findall(r"from (\d+) to (\d+)", text)[0])
        elif text.startswith("higher"):
            low = max(low, guess + 1)
        elif text.startswith("lower"):
            high = min(high, guess - 1)
    return f"guess({(low + high) // 2})"


class Handler(BaseHTTPRequestHandler):
    """What goes wrong is popped from `server.faults`, a request each; None, or an empty list, is a good answer."""

    protocol_version = "HTTP/1.1"
    server: Any

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        self._send(200, {"object": "list", "data": [{"id": "scripted", "object": "model"}]})

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.server.lock:
            self.server.requests.append((dict(self.headers), request))
            fault = self.server.faults.pop(0) if self.server.faults else None
            self.server.active += 1
            self.server.most_active = max(self.server.most_active, self.server.active)
        time.sleep(self.server.latency)
        # Over before the answer goes out: a client that has it may ask again before this thread is done.
        with self.server.lock:
            self.server.active -= 1
        try:
            self._answer(request, fault)
        except OSError:  # the client gave up
            self.close_connection = True

    def _answer(self, request: dict[str, Any], fault: Any) -> None:
        if fault == "hang":
            self.server.release.wait(20)
            self.close_connection = True
        elif fault == "trickle":
            self._start_stream()
            while not self.server.release.wait(0.05):
                self._chunk(b": still here\n\n")
        elif fault == "drop":
            self.connection.shutdown(socket.SHUT_RDWR)
            self.close_connection = True
        elif fault == "malformed":
            self._raw(b'{"choices": [{"mess')
        elif fault == "not an object":
            self._raw(b"[1, 2]")
        elif fault == "no choices":
            self._send(200, {"choices": []})
        elif fault == "error in 200":
            self._send(200, {"error": {"message": "overloaded"}})
        elif fault == "short body":
            self.send_response(200)
            self.send_header("Content-Length", "1000")
            self.end_headers()
            self.wfile.write(b'{"choices": ')
            self.close_connection = True
        elif isinstance(fault, tuple):
            status, headers = fault
            self._send(status, {"error": {"message": f"scripted {status}"}}, headers)
        elif request.get("stream"):
            self._stream(request, half=fault == "half a stream")
        else:
            usage = {"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8}
            message = {"role": "assistant", "content": self.server.model(request["messages"])}
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            self._send(200, {**self._head("chat.completion", request), "choices": [choice], "usage": usage})

    def _head(self, kind: str, request: dict[str, Any]) -> dict[str, Any]:
        return {"id": "chatcmpl-1", "object": kind, "created": 1, "model": request.get("model", "")}

    def _stream(self, request: dict[str, Any], half: bool) -> None:
        text = self.server.model(request["messages"])
        self._start_stream()
        pieces = [text[i : i + 3] for i in range(0, len(text), 3)]
        for piece in pieces[: len(pieces) // 2] if half else pieces:
            self._event(request, {"role": "assistant", "content": piece}, None)
        if half:
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        self._event(request, {}, "stop")
        usage = {"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8}
        self._data({**self._head("chat.completion.chunk", request), "choices": [], "usage": usage})
        self._chunk(b"data: [DONE]\n\n")
        self._chunk(b"")

    def _start_stream(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

    def _event(self, request: dict[str, Any], delta: dict[str, Any], finish: str | None) -> None:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        self._data({**self._head("chat.completion.chunk", request), "choices": [choice]})

    def _data(self, event: dict[str, Any]) -> None:
        self._chunk(b"data: " + json.dumps(event).encode() + b"\n\n")

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()

    def _raw(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _send(self, status: int, data: dict[str, Any], headers: dict[str, str] | None = None) -> None:
        body = json.dumps(data).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)


class Server(ThreadingHTTPServer):
    request_queue_size = 256  # clients may all connect at once
    daemon_threads = True


@contextmanager
def chat_server(model: Model = bisecting, faults: list[Any] | None = None, latency: float = 0.0) -> Iterator[Any]:
    """The running server; `url` is its base URL, `requests` what it was asked, `most_active` the most at a time."""
    server: Any = Server(("127.0.0.1", 0), Handler)
    server.model, server.faults, server.latency = model, list(faults or []), latency
    server.lock, server.release = threading.Lock(), threading.Event()
    server.requests, server.active, server.most_active = [], 0, 0
    server.url = f"http://127.0.0.1:{server.server_address[1]}/v1"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.release.set()
        server.shutdown()
        server.server_close()
        thread.join()
