"""OpenAI completions over plain sockets, for the client of this benchmark: HTTP/1.1, one connection per stream."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator
from pathlib import Path

from bench.fanout.client import Body, receive
from bench.fanout.load import Arrival, Load
from bench.fanout.words import LENGTH, words

_EVENT = re.compile(rb"data: (\{.*\})\n")
_LAST_CHUNK = b"\r\n0\r\n\r\n"


class CompletionConnection:
    """One connection with one stream."""

    def __init__(self, port: int, load: Load, stream: int, model: str) -> None:
        self.num_open = 0
        self.bodies: list[Body] = []
        self._load, self._stream, self._model = load, stream, model
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._begin()
        self._socket.setblocking(False)

    def _begin(self) -> None:
        prompts, _ = words(Path(self._model))  # a word, so that no text begins in mid-character
        body = Body(self._load.num_tokens(self._stream, len(self.bodies)))
        self.bodies.append(body)
        self.num_open = 1
        asked = {
            "model": self._model,
            "prompt": [prompts[self._stream % len(prompts)]],
            "max_tokens": body.num_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        text = json.dumps(asked).encode()
        head = (
            f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(text)}"
        )
        self._socket.sendall(head.encode() + b"\r\n\r\n" + text)

    def fileno(self) -> int:
        """For a selector."""
        return self._socket.fileno()

    def read(self, now_s: float, *, go_on: bool) -> None:
        """As in `Connection`."""
        body = self.bodies[-1]
        body.add(receive(self._socket), now_s)
        if body.data.endswith(_LAST_CHUNK):
            self.num_open = 0
            if go_on:
                self._begin()

    def close(self) -> None:
        """Ends it."""
        self._socket.close()


def read_arrivals(body: Body, model: Path, whole: bool) -> Iterator[Arrival]:
    """The events of one answer. Raises ValueError unless its words are those of consecutive steps and, if it is to be
    whole, as many as were asked for. Steps are counted from 0, and the first is taken to be in the first round of the
    words."""
    if not body.data and not whole:
        return  # it waits to be taken in
    if not body.data.startswith(b"HTTP/1.1 200"):
        raise ValueError(bytes(body.data[:300]))
    _, texts = words(model)
    place = {text: number for number, text in enumerate(texts)}
    step = -1
    seen, completion_tokens = 0, 0
    for match in _EVENT.finditer(body.data):
        event = json.loads(match[1])
        if event.get("usage"):
            completion_tokens = event["usage"]["completion_tokens"]
        text = "".join(choice["text"] for choice in event["choices"])
        for begin in range(0, len(text), LENGTH):
            number = place[text[begin : begin + LENGTH]]
            if seen and number != (step + 1) % len(texts):
                raise ValueError(f"token {seen} is of step {number}, not {(step + 1) % len(texts)}")
            step = step + 1 if seen else number
            seen += 1
        if text:
            yield Arrival(body.time_of(match.end()), len(text) // LENGTH, step)
    if whole and not seen == completion_tokens == body.num_tokens:
        raise ValueError(f"{seen} tokens came, usage says {completion_tokens}, asked for {body.num_tokens}")
