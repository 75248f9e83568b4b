"""A client of the server that holds every reply against the contract."""

import gzip
import http.client
import json
import re
import socket
import struct
from collections import namedtuple

import numpy as np

import contract
from waiting import seconds

TIMEOUT_S = seconds(30)


class Reply:
    """A whole HTTP reply."""

    def __init__(self, status, headers, body):
        self.status, self.headers, self.body = status, headers, body
        self._json = None

    @property
    def content_type(self):
        return (self.headers["Content-Type"] or "").split(";")[0].strip()

    @property
    def text(self):
        packed = self.headers["Content-Encoding"] == "gzip"
        return (gzip.decompress(self.body) if packed else self.body).decode()

    @property
    def json(self):
        if self._json is None:
            self._json = contract.parse_json(self.text)
        return self._json

    def ok(self, status=200):
        """The body of a reply that must be a success."""
        assert self.status == status, f"{self.status}: {self.body[:1000]}"
        return self.json if self.body else None

    def error(self, status, code, *param):
        """The error of a reply that must be this one; param is compared if given."""
        found = f"{self.status}: {self.body[:1000]}"
        assert self.status == status, found
        error = self.json["error"]
        assert error["code"] == code, found
        if param:
            assert error["param"] == param[0], found
        return error


class Sample(namedtuple("Sample", "name labels")):
    """One series of /metrics: labels is a frozenset of (name, value)."""


class Metrics(dict):
    """Values of /metrics by Sample."""

    def get_value(self, name, **labels):
        """The value of that one series; 0 if it is not there (a counter nobody counted yet)."""
        return self.get(Sample(name, frozenset(labels.items())), 0.0)

    def total(self, name, **labels):
        """Sum over the series of that name that carry at least these labels."""
        wanted = set(labels.items())
        return sum(v for key, v in self.items() if key.name == name and wanted <= key.labels)


def parse_metrics(text):
    """Prometheus text to Metrics. Strict: every line is a comment or a sample."""
    line_re = re.compile(r"([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)")
    label_re = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"(?:,|$)')
    metrics = Metrics()
    for line in text.splitlines():
        if not line or line.startswith("#"):
            continue
        match = line_re.fullmatch(line)
        assert match, f"not a sample: {line!r}"
        labels = match[2] or ""
        found = label_re.findall(labels)
        assert "".join(f'{k}="{v}",' for k, v in found).rstrip(",") == labels.rstrip(","), line
        key = Sample(match[1], frozenset(found))
        assert key not in metrics, f"twice: {line!r}"
        metrics[key] = float(match[3])
    return metrics


def encode(value):
    """A request body: bytes as they are, anything else as JSON."""
    if value is None or isinstance(value, bytes):
        return value
    return json.dumps(value, default=lambda array: np.asarray(array).tolist()).encode()


def hang_up(sock, reset=False):
    """Closes a socket at once, with RST if asked."""
    if reset:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


class Stream:
    """A streamed /decode reply: an iterator of step objects, and `done` once they have ended."""

    def __init__(self, connection, response, sock):
        self._connection, self._response, self.sock = connection, response, sock
        self.status, self.headers = response.status, response.headers
        self.content_type = (self.headers["Content-Type"] or "").split(";")[0].strip()
        self.done = None
        self.comments = []  # of SSE

    def __iter__(self):
        for event in self._events():
            assert self.done is None, "an object after the done object"
            contract.check_event(event)
            if "done" in event:
                self.done = event
            else:
                yield event
        assert self.done is not None, "the stream ended without a done object"
        self._connection.close()

    def next(self):
        """The next step object."""
        return next(self._iterator)

    def rest(self):
        """All step objects that are left. `done` is set then."""
        return list(self._iterator)

    @property
    def _iterator(self):
        if not hasattr(self, "_steps"):
            self._steps = iter(self)
        return self._steps

    def _events(self):
        sse = self.content_type == contract.SSE
        while line := self._response.readline():
            assert line.endswith(b"\n"), "a line cut short"
            line = line[:-1].decode()
            if not sse:
                yield contract.parse_json(line)
            elif line.startswith("data: "):
                assert self._response.readline() == b"\n"
                yield contract.parse_json(line[len("data: ") :])
            else:
                assert line.startswith(":"), f"not an event: {line!r}"
                assert self._response.readline() == b"\n"
                self.comments.append(line)

    def hang_up(self, reset=False):
        """Leaves in the middle."""
        self._response.close()
        hang_up(self.sock, reset)


class Client:
    """Every request is a connection of its own."""

    def __init__(self, host, port):
        self.host, self.port = host, port

    def connect(self, receive_bytes=None, timeout=TIMEOUT_S):
        """A connected socket, with a small receive buffer if asked."""
        sock = socket.socket(socket.AF_INET6 if ":" in self.host else socket.AF_INET)
        if receive_bytes:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        sock.settimeout(timeout)
        sock.connect((self.host, self.port))
        return sock

    def send(self, method, target, body=None, headers=None, receive_bytes=None):
        """Sends a request; returns its HTTPConnection, whose reply has not been read."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=TIMEOUT_S)
        connection.sock = self.connect(receive_bytes)
        body = encode(body)
        headers = dict(headers or {})
        if body is not None:
            headers.setdefault("Content-Type", "application/json")
        try:
            connection.request(method, target, body, headers)
        except BrokenPipeError:
            pass  # answered and closed before all of the body was sent
        return connection

    def request(self, method, target, body=None, headers=None):
        """Sends a request and reads its reply, which must be as documented."""
        connection = self.send(method, target, body, headers)
        try:
            return self.receive(connection, method, target)
        finally:
            connection.close()

    def receive(self, connection, method, target):
        """Reads the reply of a request that was sent."""
        response = connection.getresponse()
        reply = Reply(response.status, response.headers, response.read())
        contract.check_reply(method, target, reply)
        return reply

    def get(self, target, **headers):
        return self.request("GET", target, headers=headers)

    def post(self, target, body=None, **headers):
        return self.request("POST", target, body, headers)

    def prefill(self, **fields):
        return self.post("/prefill", fields).ok()

    def decode(self, **fields):
        return self.post("/decode", fields).ok()

    def stream(self, accept=contract.NDJSON, receive_bytes=None, **fields):
        """Starts a streamed /decode, which must be accepted."""
        fields["stream"] = True
        headers = {"Accept": accept} if accept else {}
        connection = self.send("POST", "/decode", fields, headers, receive_bytes)
        sock = connection.sock
        response = connection.getresponse()
        if response.status != 200:
            reply = Reply(response.status, response.headers, response.read())
            contract.check_reply("POST", "/decode", reply)
            reply.ok()
        stream = Stream(connection, response, sock)
        assert stream.content_type == (accept or contract.NDJSON)
        return stream

    def session(self, session):
        return self.get(f"/sessions/{session}").ok()

    def exists(self, session):
        return self.get(f"/sessions/{session}").status == 200

    def delete(self, session):
        self.request("DELETE", f"/sessions/{session}").ok(204)

    def truncate(self, session, length):
        return self.post(f"/sessions/{session}/truncate", {"length": length}).ok()

    def cancel(self, session):
        return self.post(f"/sessions/{session}/cancel").ok()

    def verify(self, session):
        return self.post(f"/sessions/{session}/verify").ok()

    def totals(self):
        return self.get("/sessions?limit=1").ok()["totals"]

    def metrics(self):
        reply = self.get("/metrics")
        reply_text = reply.text
        assert reply.status == 200
        return parse_metrics(reply_text)
