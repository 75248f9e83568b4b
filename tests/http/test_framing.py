"""HTTP below the level of routes: broken framing, half requests, bodies that are too large."""

import select
import socket
from contextlib import ExitStack

import pytest

import contract
from client import Reply, encode
from data import HIDDEN, rows
from waiting import eventually, seconds
from witness import GOOD, ROW

SMUGGLED = b"DELETE /sessions/witness HTTP/1.1\r\nHost: localhost\r\n\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n"


def post(headers, body, version=b"1.1", host=b"Host: localhost\r\n"):
    return (
        b"POST /prefill HTTP/%s\r\n" % version
        + host
        + b"Content-Type: application/json\r\n"
        + headers
        + b"\r\n"
        + body
    )


# Name: bytes, and the statuses that may answer; None: the connection may be closed without one.
FRAMING = {
    "CL and TE": (post(b"Content-Length: 5\r\n" + CHUNKED, b"0\r\n\r\n" + SMUGGLED), {400}),
    "TE and CL": (post(CHUNKED + b"Content-Length: 5\r\n", b"0\r\n\r\n" + SMUGGLED), {400}),
    "two CL": (post(b"Content-Length: 2\r\nContent-Length: 60\r\n", b"{}" + SMUGGLED), {400}),
    "two equal CL": (post(b"Content-Length: 2\r\nContent-Length: 2\r\n", b"{}" + SMUGGLED), {400}),
    "CL list": (post(b"Content-Length: 2, 2\r\n", b"{}" + SMUGGLED), {400}),
    "space before colon": (post(b"Content-Length : 60\r\n", SMUGGLED), {400}),
    "tab before colon": (post(b"Content-Length\t: 60\r\n", SMUGGLED), {400}),
    "TE space before colon": (post(b"Transfer-Encoding : chunked\r\n", SMUGGLED), {400}),
    "negative CL": (post(b"Content-Length: -1\r\n", SMUGGLED), {400, 413}),
    "plus CL": (post(b"Content-Length: +2\r\n", b"{}" + SMUGGLED), {400}),
    "hex CL": (post(b"Content-Length: 0x2\r\n", b"{}" + SMUGGLED), {400}),
    "empty CL": (post(b"Content-Length: \r\n", SMUGGLED), {400}),
    "fraction CL": (post(b"Content-Length: 2.0\r\n", b"{}" + SMUGGLED), {400}),
    "CL of 2^64": (post(b"Content-Length: 18446744073709551616\r\n", b"{}"), {400, 413}),
    "CL of 30 digits": (post(b"Content-Length: " + b"9" * 30 + b"\r\n", b"{}"), {400, 413}),
    "TE gzip": (post(b"Transfer-Encoding: gzip\r\n", SMUGGLED), {501}),
    "TE gzip, chunked": (post(b"Transfer-Encoding: gzip, chunked\r\n", b"0\r\n\r\n"), {501}),
    "TE chunked, chunked": (
        post(b"Transfer-Encoding: chunked, chunked\r\n", b"0\r\n\r\n"),
        {400, 501},
    ),
    "TE xchunked": (post(b"Transfer-Encoding: xchunked\r\n", b"0\r\n\r\n"), {501}),
    "TE identity": (post(b"Transfer-Encoding: identity\r\n", SMUGGLED), {501}),
    "two TE": (post(CHUNKED + b"Transfer-Encoding: identity\r\n", b"0\r\n\r\n" + SMUGGLED), {400}),
    "two equal TE": (post(CHUNKED + CHUNKED, b"0\r\n\r\n" + SMUGGLED), {400}),
    "TE in HTTP/1.0": (post(CHUNKED, b"0\r\n\r\n", b"1.0"), {400}),
    "bad chunk size": (post(CHUNKED, b"zz\r\n{}\r\n0\r\n\r\n"), {400, None}),
    "negative chunk size": (post(CHUNKED, b"-2\r\n{}\r\n0\r\n\r\n"), {400, None}),
    "huge chunk size": (post(CHUNKED, b"f" * 16 + b"\r\n{}"), {400, 413, None}),
    "chunk size of 40 digits": (post(CHUNKED, b"1" * 40 + b"\r\n{}"), {400, 413, None}),
    "chunk too long": (post(CHUNKED, b"2\r\n{}xx\r\n0\r\n\r\n"), {400, None}),
    "chunk without end": (post(CHUNKED, b"2\r\n{}" + b"0\r\n\r\n"), {400, None}),
    "GET with CL and TE": (
        b"GET /health HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n"
        + CHUNKED
        + b"\r\n0\r\n\r\n"
        + SMUGGLED,
        {400},
    ),
    "GET of no route with two CL": (
        b"GET /nowhere HTTP/1.1\r\nHost: localhost\r\n"
        b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n"
        b"xx" + SMUGGLED,
        {400},
    ),
    "no Host": (b"GET /health HTTP/1.1\r\n\r\n", {400}),
    "two Hosts": (b"GET /health HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n", {400}),
    "two different Hosts": (
        b"GET /health HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n",
        {400},
    ),
    "header without colon": (
        b"GET /health HTTP/1.1\r\nHost: localhost\r\nnonsense\r\n\r\n",
        {400, None},
    ),
    # The library takes such a line for the end of the head.
    "empty header name": (
        b"GET /health HTTP/1.1\r\nHost: localhost\r\n: x\r\n\r\n",
        {200, 400, None},
    ),
    "control in a header name": (
        b"GET /health HTTP/1.1\r\nHost: localhost\r\na\x01b: x\r\n\r\n",
        {400, None},
    ),
    "long URL": (
        b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
        {404, 414, None},
    ),
    "long header": (
        b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 100_000 + b"\r\n\r\n",
        {431, None},
    ),
    "many headers": (
        b"GET /health HTTP/1.1\r\nHost: localhost\r\n" + b"X: y\r\n" * 20_000 + b"\r\n",
        {431, None},
    ),
    "HTTP/2 preface": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", {400, 405, 505, None}),
    "HTTP/0.9": (b"GET /health\r\n\r\n", {400, None}),
    "HTTP/9.9": (b"GET /health HTTP/9.9\r\nHost: localhost\r\n\r\n", {400, 505, None}),
    "binary": (bytes(range(256)) * 4 + b"\r\n\r\n", {400, None}),
    "space in the URL": (
        b"GET /hea lth HTTP/1.1\r\nHost: localhost\r\n\r\n",
        {400, 404, 505, None},
    ),
    "NUL in the URL": (
        b"GET /nowhere\0/health HTTP/1.1\r\nHost: localhost\r\n\r\n",
        {400, 404, None},
    ),
    "NUL in a header": (
        b"GET /sessions HTTP/1.1\r\nHost: localhost\0evil\r\n\r\n",
        {200, 400, 403, None},
    ),
    "no method": (b" /health HTTP/1.1\r\nHost: localhost\r\n\r\n", {400, 405, None}),
    "CONNECT": (b"CONNECT localhost:80 HTTP/1.1\r\nHost: localhost\r\n\r\n", {400, 404, 405, None}),
    "OPTIONS *": (b"OPTIONS * HTTP/1.1\r\nHost: localhost\r\n\r\n", {204, 400, 404, None}),
}


def send_all(sock, data):
    """Sends and closes our side; the server may have enough before it has all."""
    try:
        sock.sendall(data)
        sock.shutdown(socket.SHUT_WR)
    except OSError:
        pass


def first_reply(sock):
    """The first reply on the socket, read until the connection is closed; None if none came."""
    data = b""
    try:
        while piece := sock.recv(65536):
            data += piece
    except ConnectionError:
        pass
    if not data:
        return None
    head, _, body = data.partition(b"\r\n\r\n")
    lines = head.split(b"\r\n")
    assert lines[0].startswith(b"HTTP/1."), lines[0]
    headers = {}
    for line in lines[1:]:
        name, _, value = line.decode("latin-1").partition(":")
        headers[name.strip()] = value.strip()
    length = int(headers.get("Content-Length", 0))
    return Reply(int(lines[0].split()[1]), Headers(headers), body[:length])


class Headers(dict):
    def __missing__(self, key):
        return None


@pytest.mark.parametrize("name", FRAMING)
def test_framing(witness, name):
    """Answered or closed, and never is what follows taken for a request."""
    request, statuses = FRAMING[name]
    with witness.client.connect() as sock:
        send_all(sock, request)
        reply = first_reply(sock)
    status = reply.status if reply else None
    assert status in statuses, f"{status}: {reply.body if reply else b''}"
    if reply and reply.status >= 400 and reply.content_type == "application/json":
        contract.check_error(reply)
        if reply.status in (400, 501):
            codes = {400: {"invalid_request"}, 501: {"not_supported"}}
            assert reply.json["error"]["code"] in codes[reply.status]
    witness.check()


@pytest.mark.parametrize(
    "name", [n for n, (_, statuses) in FRAMING.items() if None not in statuses]
)
def test_framing_is_answered_without_a_close(witness, name):
    """The answer does not wait for the client to close its side."""
    request, statuses = FRAMING[name]
    with witness.client.connect() as sock:
        sock.sendall(request)
        line = sock.makefile("rb").readline()
    assert int(line.split()[1]) in statuses
    witness.check()


@pytest.mark.parametrize(
    "beginning",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200),  # TLS
        bytes(1000),
        b"POST /prefill HTTP/1.1\r\nHost: localhost\r\nContent-Le",
        post(b"Content-Length: 60\r\n", b"{"),
        post(CHUNKED, b"5\r\n{}"),
    ],
)
def test_half_a_request(witness, beginning):
    """What never becomes a request disturbs nobody while it stands there."""
    with witness.client.connect() as sock:
        sock.sendall(beginning)
        witness.check()


@pytest.mark.slow
def test_what_does_not_come_in_time(witness):
    """The rest of a request is waited for 30 s: a body's absence is answered, a head's is not. A body
    that comes as fast as it should takes as long as it must."""
    large = GOOD[:-1] + b" " * 8_000_000
    beginnings = {
        "nothing": b"",
        "half a head": post(b"", b"")[:40],
        "no second request": b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "half a body": post(b"Content-Length: 60\r\n", b'{"session":"late",'),
        "half a chunk": post(CHUNKED, b"50\r\n{"),
        "no last chunk": post(CHUNKED, b"2\r\n{}\r\n"),
        "a byte now and then": post(b"Content-Length: 100000\r\n", b"{"),
    }
    answers = {name: b"" for name in beginnings}
    with ExitStack() as stack:
        socks = {name: stack.enter_context(witness.client.connect()) for name in beginnings}
        for name, sock in socks.items():
            sock.sendall(beginnings[name])
        fast = stack.enter_context(witness.client.connect())
        fast.sendall(post(b"Content-Length: %d\r\n" % (len(large) + 1), large))

        def all_closed():
            ready, _, _ = select.select(socks.values(), [], [], 0.5)
            for name, sock in list(socks.items()):
                if sock in ready:
                    data = sock.recv(65536)
                    answers[name] += data
                    if not data:
                        del socks[name]
                elif name == "a byte now and then":
                    sock.sendall(b" ")
            return not socks

        eventually(all_closed, "the server closes them", within=60)
        fast.sendall(b"}")
        assert fast.recv(4096).startswith(b"HTTP/1.1 200 ")
    witness.client.delete("bad")
    assert answers.pop("nothing") == answers.pop("half a head") == b""
    assert answers.pop("no second request").count(b"HTTP/1.1 ") == 1
    for name, answer in answers.items():
        head, _, body = answer.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 408 "), f"{name}: {answer}"
        assert contract.parse_json(body.decode())["error"]["code"] == "timeout"
    assert not witness.client.exists("late")
    witness.check()


# ------------------------------------------------------------------------------- large bodies


@pytest.fixture(scope="module")
def small(launch_for_module):
    """A server that takes bodies of 4096 bytes."""
    client = launch_for_module("--max-body", 4096).client
    return client


def padded(size):
    """A good body of that many bytes."""
    return GOOD[:-1] + b" " * (size - len(GOOD)) + b"}"


def chunks(body, size=1000):
    pieces = [body[i : i + size] for i in range(0, len(body), size)]
    return b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"


def test_largest_body(small):
    assert small.request("POST", "/prefill", padded(4096)).ok()["length"] == 1
    with small.connect() as sock:
        sock.sendall(post(CHUNKED + b"Connection: close\r\n", chunks(padded(4096))))
        assert first_reply(sock).ok()["length"] == 2
    small.delete("bad")


@pytest.mark.parametrize("size", [4097, 5000, 100_000, 3_000_000])
def test_body_too_large(small, size):
    small.request("POST", "/prefill", padded(size)).error(413, "body_too_large")
    assert not small.exists("bad")


@pytest.mark.parametrize("size", [4097, 100_000, 3_000_000])
def test_chunked_body_too_large(small, size):
    with small.connect() as sock:
        send_all(sock, post(CHUNKED, chunks(padded(size))))
        reply = first_reply(sock)
    reply.error(413, "body_too_large")
    contract.check_error(reply)
    assert not small.exists("bad")


def test_reply_too_large(small):
    """A reply that would be larger than --max-body is refused before any work is done."""
    small.prefill(session="a", inputs=[ROW])
    reply = small.post("/decode", {"session": "a", "steps": 17})
    assert reply.error(413, "tensor_too_large", "steps")["details"]["bytes"] > 4096
    reply = small.post("/prefill", {"session": "a", "inputs": [[0] * HIDDEN] * 20, "output": "all"})
    reply.error(413, "tensor_too_large", "output")
    assert small.session("a")["length"] == 1
    assert small.decode(session="a", steps=16)["length"] == 17
    assert len(small.stream(session="a", steps=100).rest()) == 100
    small.delete("a")


def test_stated_length_is_enough(small):
    """413 comes before a byte of the body was sent, and without 100 Continue."""
    with small.connect() as sock:
        sock.sendall(post(b"Content-Length: 1000000000\r\nExpect: 100-continue\r\n", b""))
        line = sock.makefile("rb").readline()
    assert line.startswith(b"HTTP/1.1 413 ")


def test_expect_continue(small):
    with small.connect() as sock:
        sock.sendall(post(b"Content-Length: %d\r\nExpect: 100-continue\r\n" % len(GOOD), b""))
        file = sock.makefile("rb")
        assert file.readline().startswith(b"HTTP/1.1 100 ")
        assert file.readline() == b"\r\n"
        sock.sendall(GOOD)
        assert file.readline().startswith(b"HTTP/1.1 200 ")
    small.delete("bad")


def test_bodies_in_flight_are_bounded(launch):
    """Bodies that arrive slowly may hold --body-memory together, not more."""
    server = launch("--body-memory", "100K", "--max-body", "60K")
    client = server.client
    head = post(b"Content-Length: 50000\r\n", b'{"session":"')
    socks = []
    for _ in range(2):
        socks.append(client.connect())
        socks[-1].sendall(head + b"a" * 40000)

    def refused():
        """Is a third body refused, before a byte of it is sent?"""
        with client.connect() as sock:
            sock.sendall(post(b"Content-Length: 50000\r\nExpect: 100-continue\r\n", b""))
            line = sock.makefile("rb").readline()
        assert line.startswith((b"HTTP/1.1 100 ", b"HTTP/1.1 503 ")), line
        return b" 503 " in line

    eventually(refused, "the third body is refused")
    client.request("POST", "/prefill", padded(50000)).error(503, "busy_memory")
    assert client.get("/health").ok()
    for sock in socks:
        sock.close()
    eventually(lambda: not refused(), "the memory is free again")


def test_pipelined_requests(client, sid):
    """Several requests sent in one piece are answered in order."""
    body = encode({"session": sid, "inputs": rows(1)})
    one = (
        b"POST /prefill HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n%s" % (len(body), body)
    )
    last = b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    with client.connect(timeout=seconds(10)) as sock:
        sock.sendall(one * 3 + last)
        with sock.makefile("rb") as file:
            data = file.read()
    assert data.count(b"HTTP/1.1 200 OK\r\n") == 4
    lengths = [data.index(b'"length":%d,' % n) for n in (1, 2, 3)]
    assert lengths == sorted(lengths)
    assert data.rstrip().endswith(b'{"status":"ok"}')
