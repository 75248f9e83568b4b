"""Watchers: streams of /watch in their three encodings, every event held against the contract."""

import base64
import json
import struct
from urllib.parse import urlencode

import contract
import data  # noqa: F401 (makes safetensors_io importable)
from client import Reply, hang_up
from waiting import seconds

import safetensors_io

FRAMES = "application/x-attnd-frames"
ENCODINGS = [contract.NDJSON, contract.SSE, FRAMES]

_TEXTS = {"event", "session", "model", "from", "text", "reason"}
# What describes the tensors of a frame.
_TENSOR_FIELDS = {"first_key", "heads", "kv_heads"}


def unpack(blob):
    """(tensors, metadata) of a blob that starts its data at a multiple of 8."""
    assert struct.unpack_from("<Q", blob)[0] % 8 == 0
    return safetensors_io.unpack(blob)


_seen = set()


def check_event(event):
    """The event is as documented. They are many and alike: the schema sees each kind once, and
    each value of the few that are rare."""
    if event["event"] in ("step", "prefill", "stats"):
        kind = (event["event"], *((name, type(value)) for name, value in event.items()))
        if kind in _seen:
            return
        _seen.add(kind)
    contract.check_schema(event, "components", "schemas", "WatchEvent")


class Watch:
    """One watcher: an iterator of its events. An event's `tensors` are arrays by name, and
    `tensors_metadata` says which."""

    def __init__(self, client, accept=contract.NDJSON, receive_bytes=None, **query):
        target = "/watch" + ("?" + urlencode(query, safe=",-") if query else "")
        headers = {"Accept": accept} if accept else {}
        self._connection = client.send("GET", target, None, headers, receive_bytes)
        self.sock = self._connection.sock
        self._response = self._connection.getresponse()
        reply = Reply(self._response.status, self._response.headers, b"")
        if reply.status != 200:
            reply.body = self._response.read()
            contract.check_reply("GET", target, reply)
            reply.ok()
        self.content_type = reply.content_type
        assert self.content_type == (accept or contract.NDJSON)
        self.headers = reply.headers
        self.seq = 0
        self.keep_alives = 0
        self.ended = False
        self.events = iter(self._checked())

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.hang_up()

    def hang_up(self, reset=False):
        self._response.close()
        hang_up(self.sock, reset)

    def _lines(self):
        while line := self._response.readline():
            assert line.endswith(b"\n"), "a line cut short"
            line = line[:-1].decode()
            if self.content_type == contract.NDJSON:
                yield line
            elif line.startswith("data: "):
                assert self._response.readline() == b"\n"
                yield line[len("data: ") :]
            elif line.startswith(":"):
                self.keep_alives += 1
                assert self._response.readline() == b"\n"
            else:
                assert not line, f"not an event: {line!r}"

    def _from_lines(self):
        for line in self._lines():
            event = contract.parse_json(line)
            check_event(event)
            if "tensors" in event:
                blob = base64.b64decode(event["tensors"], validate=True)
                event["tensors"], event["tensors_metadata"] = unpack(blob)
                assert int(event["tensors_metadata"]["position"]) == event["position"]
            yield event

    def _read(self, count):
        """So many bytes, or none at the stream's end."""
        found = b""
        while len(found) < count:
            piece = self._response.read(count - len(found))
            if not piece:
                assert not found, "a frame cut short"
                return b""
            found += piece
        return found

    def _from_frames(self):
        while head := self._read(4):
            tensors, fields = unpack(self._read(struct.unpack("<I", head)[0]))
            described = {k for k in fields if k in _TENSOR_FIELDS or k.startswith("quant.")}
            event = {
                name: value if name in _TEXTS else json.loads(value)
                for name, value in fields.items()
                if name not in described
            }
            assert tensors or not described
            check_event(event)
            if tensors:
                event["tensors"] = tensors
                event["tensors_metadata"] = {k: fields[k] for k in (*described, "position")}
            yield event

    def _checked(self):
        events = self._from_frames() if self.content_type == FRAMES else self._from_lines()
        for event in events:
            assert not self.ended, "an event after bye"
            assert event["seq"] == self.seq, event
            assert (event["event"] == "hello") == self._in_hello, event
            if self._in_hello:
                self._hello_ended = not event["more"]
            self.seq += 1
            self.ended = event["event"] == "bye"
            yield event

    _hello_ended = False

    @property
    def _in_hello(self):
        return not self._hello_ended

    def next(self):
        return next(self.events)

    def skip(self, *kinds, **fields):
        """The next event of one of these kinds with these fields."""
        for event in self.events:
            if event["event"] in kinds and fields.items() <= event.items():
                return event
        raise AssertionError(f"the stream ended without {kinds} {fields}")

    def hello(self):
        """All sessions that the hello events list, by id."""
        found, more = {}, True
        while more:
            event = self.next()
            more = event["more"]
            for session in event["sessions"]:
                assert session["session"] not in found
                found[session["session"]] = session
            assert ("totals" in event) == ("models" in event) == (event["seq"] == 0)
        return found

    def until(self, kind, **fields):
        """All events up to one of that kind with these fields, hello and stats left out."""
        found = []
        for event in self.events:
            if event["event"] not in ("hello", "stats"):
                found.append(event)
            if event["event"] == kind and fields.items() <= event.items():
                return found
        raise AssertionError(f"the stream ended without {kind} {fields}")

    def set_timeout(self, count):
        self.sock.settimeout(seconds(count))
