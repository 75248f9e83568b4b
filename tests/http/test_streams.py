"""Streams, and clients that leave, stall, crowd in or share a session; signals."""

import select
import signal
import threading
import time

import pytest

import contract
from client import hang_up
from data import make_model, model_flags, outputs_of, rows, same_bits, short_rows
from waiting import eventually, seconds

X = rows(40)
LITTLE = 4096  # a receive buffer that a few lines fill


@pytest.fixture(scope="module")
def wide(launch_for_module):
    """A server whose lines are long (8 KB) and whose steps are quick: streams soon park."""
    return launch_for_module(*model_flags("minimind-layer"), "--kv-memory", "1GiB").client


@pytest.fixture(scope="module")
def heavy(launch_for_module, tmp_path_factory):
    """A server whose steps and prefills take a while."""
    folder = tmp_path_factory.mktemp("models") / "heavy"
    return launch_for_module(*make_model(folder, 8), "--kv-memory", "1GiB").client


def in_flight(client, session):
    return client.session(session)["in_flight"]


def idle(client, session):
    """Waits until nothing of the session runs; returns the session."""
    eventually(lambda: not in_flight(client, session), "the session becomes idle")
    return client.session(session)


def parked(client, session):
    """Waits until a decode runs but makes no progress; returns its length."""
    seen = []

    def still():
        seen.append(client.session(session))
        assert seen[-1]["in_flight"]
        return len(seen) > 20 and len({one["length"] for one in seen[-20:]}) == 1

    eventually(still, "the stream parks", within=20)
    return seen[-1]["length"]


def same_as_fresh(client, session, inputs):
    """The session equals a fresh prefill of its committed rows: the next step has the same bits."""
    length = client.session(session)["length"]
    fresh = f"{session}.fresh"
    client.prefill(session=fresh, inputs=inputs[:length], output="none")
    row = inputs[length]
    left = client.decode(session=session, input=row)["output"]
    right = client.decode(session=fresh, input=row)["output"]
    assert same_bits(left, right)
    assert client.verify(session)["bit_identical"]
    client.delete(fresh)
    client.delete(session)


# ----------------------------------------------------------------------------- one stream


@pytest.mark.slow
@pytest.mark.parametrize("accept", [contract.NDJSON, contract.SSE])
def test_steps_arrive_as_they_are_computed(heavy, sid, accept):
    """The first step is read while nearly all of the run is still to be computed."""
    heavy.prefill(session=sid, inputs=short_rows(1), output="none")
    stream = heavy.stream(session=sid, steps=300, accept=accept)
    for i in range(3):
        assert stream.next()["step"] == i
    session = heavy.session(sid)
    assert session["state"] == "decode" and session["in_flight"]
    assert session["length"] < 150
    heavy.cancel(sid)
    stream.rest()
    assert stream.done["reason"] == "cancelled"
    heavy.delete(sid)


def test_a_parked_stream_goes_on_where_it_stopped(wide, sid):
    """A reader that rests loses nothing: all steps come, once, in order, with the same bits."""
    wide.prefill(session=sid, inputs=short_rows(1), output="none")
    wide.prefill(session=f"{sid}.other", inputs=short_rows(1), output="none")
    count = 300
    stream = wide.stream(session=sid, steps=count, receive_bytes=LITTLE)
    assert parked(wide, sid) < count
    steps = stream.rest()
    assert [step["step"] for step in steps] == list(range(count))
    assert [step["length"] for step in steps] == list(range(2, count + 2))
    tail = wide.stream(session=f"{sid}.other", steps=200).rest()
    assert outputs_of(tail) == outputs_of(steps[:200])
    wide.delete(sid)


# ---------------------------------------------------------------------- clients that leave


@pytest.mark.parametrize("reset", [False, True], ids=["FIN", "RST"])
@pytest.mark.parametrize("read", [1, 20])
def test_leaves_a_decode(wide, sid, reset, read):
    inputs = short_rows(900)
    wide.prefill(session=sid, inputs=inputs[:3], output="none")
    stream = wide.stream(session=sid, inputs=inputs[3:-1], receive_bytes=LITTLE)
    for _ in range(read):
        stream.next()
    assert in_flight(wide, sid)
    stream.hang_up(reset)
    session = idle(wide, sid)
    assert 3 + read <= session["length"] < 899
    assert session["kv"]["reserved_bytes"] == 0
    same_as_fresh(wide, sid, inputs)


@pytest.mark.parametrize("reset", [False, True], ids=["FIN", "RST"])
def test_leaves_a_parked_decode(wide, sid, reset):
    before = wide.metrics().total("attnd_cancelled_total", reason="client_gone")
    wide.prefill(session=sid, inputs=short_rows(3), output="none")
    stream = wide.stream(session=sid, steps=5000, receive_bytes=LITTLE)
    length = parked(wide, sid)
    stream.hang_up(reset)
    assert idle(wide, sid)["length"] >= length
    after = wide.metrics().total("attnd_cancelled_total", reason="client_gone")
    assert after == before + 1
    assert wide.verify(sid)["bit_identical"]
    wide.delete(sid)


@pytest.mark.parametrize("reset", [False, True], ids=["FIN", "RST"])
def test_leaves_a_decode_that_is_not_streamed(client, sid, reset):
    client.prefill(session=sid, inputs=X[:4])
    connection = client.send("POST", "/decode", {"session": sid, "steps": 30000})
    eventually(lambda: client.session(sid)["length"] > 10, "the decode runs")
    assert in_flight(client, sid)
    hang_up(connection.sock, reset)
    assert 10 < idle(client, sid)["length"] < 30004
    client.truncate(sid, 10)
    assert client.verify(sid)["bit_identical"]
    client.delete(sid)


@pytest.mark.slow
@pytest.mark.parametrize("reset", [False, True], ids=["FIN", "RST"])
@pytest.mark.parametrize("new", [False, True], ids=["existing", "new"])
def test_leaves_a_prefill(heavy, sid, reset, new):
    """A prefill without its client never was; nor was the session it would have made."""
    inputs = short_rows(1000)
    if not new:
        heavy.prefill(session=sid, inputs=inputs[:2], output="none")
    before = heavy.totals()
    connection = heavy.send("POST", "/prefill", {"session": sid, "inputs": inputs})
    in_prefill = lambda: heavy.get(f"/sessions/{sid}").json.get("state") == "prefill"
    eventually(in_prefill, "the prefill runs", within=30)
    hang_up(connection.sock, reset)
    eventually(lambda: heavy.totals() == before, "the prefill is undone")
    if new:
        assert not heavy.exists(sid)
    else:
        assert idle(heavy, sid)["length"] == 2
        same_as_fresh(heavy, sid, inputs)


@pytest.mark.parametrize("reset", [False, True], ids=["FIN", "RST"])
@pytest.mark.parametrize("path", ["/prefill", "/decode"])
def test_leaves_the_queue(wide, sid, path, reset):
    """A request that waits for its session is gone with its client; the one before it is not."""
    inputs = short_rows(4)
    wide.prefill(session=sid, inputs=inputs[:3], output="none")
    stream = wide.stream(session=sid, steps=300, receive_bytes=LITTLE)
    parked(wide, sid)
    assert wide.metrics().get_value("attnd_queue_depth") == 0
    fields = {"session": sid, "inputs": inputs[3:], "wait_ms": 60000}
    connection = wide.send("POST", path, fields)
    eventually(lambda: wide.metrics().get_value("attnd_queue_depth") == 1, "the request waits")
    hang_up(connection.sock, reset)
    eventually(lambda: wide.metrics().get_value("attnd_queue_depth") == 0, "it is gone")
    assert in_flight(wide, sid)
    assert len(stream.rest()) == 300
    assert idle(wide, sid)["length"] == 303
    wide.delete(sid)


def test_leaves_in_the_middle_of_a_body(client, sid):
    for reset in (False, True):
        sock = client.connect()
        sock.sendall(
            b"POST /prefill HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b'Content-Length: 1000\r\n\r\n{"session":"%s","inputs":[[' % sid.encode()
        )
        hang_up(sock, reset)
    assert client.get("/health").ok()
    assert not client.exists(sid)


def test_leaves_between_requests(client):
    for reset in (False, True):
        sock = client.connect()
        sock.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert sock.recv(4096).startswith(b"HTTP/1.1 200 ")
        hang_up(sock, reset)
    assert client.get("/health").ok()


# ---------------------------------------------------------------------- one busy session


def test_a_busy_session_refuses(wide, sid):
    inputs = short_rows(1)
    wide.prefill(session=sid, inputs=inputs, output="none")
    stream = wide.stream(session=sid, steps=300, receive_bytes=LITTLE)
    stream.next()
    requests = {
        "/prefill": {"session": sid, "inputs": inputs},
        "/decode": {"session": sid},
        f"/sessions/{sid}/truncate": {"length": 0},
        f"/sessions/{sid}/verify": None,
    }
    for path, fields in requests.items():
        reply = wide.post(path, fields)
        reply.error(409, "session_busy", "session")
        assert int(reply.headers["Retry-After"]) >= 1
    assert in_flight(wide, sid)
    assert len(stream.rest()) == 299
    assert stream.done["reason"] == "length"
    assert idle(wide, sid)["length"] == 301
    wide.delete(sid)


def test_many_wait_for_one_session(client, sid):
    """Each of the waiting requests happens once."""
    client.prefill(session=sid, inputs=X[:1])
    replies = []

    def ask():
        replies.append(client.decode(session=sid, input=X[1], wait_ms=60000)["length"])

    threads = [threading.Thread(target=ask) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(replies) == list(range(2, 22))
    assert client.verify(sid)["bit_identical"]


# ----------------------------------------------------------------------------- slow readers


class SlowReaders(threading.Thread):
    """Reads every stream of a list at about 100 bytes a second until told to stop."""

    def __init__(self, streams):
        super().__init__()
        self.socks = [stream.sock for stream in streams]
        self.stop = threading.Event()

    def run(self):
        while not self.stop.wait(0.1):
            for sock in select.select(self.socks, [], [], 0)[0]:
                try:
                    sock.recv(10)
                except ConnectionError:
                    self.socks.remove(sock)


@pytest.mark.slow
def test_slow_readers(launch):
    """64 readers at 100 bytes a second disturb nobody, and are given up in the end."""
    flags = model_flags("minimind-layer")
    client = launch(*flags, "--kv-memory", "1GiB", "--stall-timeout", 2).client
    row = short_rows(1)
    names = [f"slow{i}" for i in range(64)]
    for name in names:
        client.prefill(session=name, inputs=row, output="none")
    streams = [client.stream(session=name, steps=1000, receive_bytes=LITTLE) for name in names]
    readers = SlowReaders(streams)
    readers.start()
    try:
        expected = None
        for i in range(20):
            assert client.get("/health").ok()
            client.prefill(session="quick", inputs=row, output="none")
            step = client.stream(session="quick", steps=10).rest()
            expected = expected or step
            assert outputs_of(step) == outputs_of(expected)
            client.delete("quick")
        # As stalled, or as gone where a step takes so long that the connection is given up first.
        given_up = lambda: client.metrics().total("attnd_cancelled_total")
        eventually(lambda: given_up() == 64, "the stalled streams end", within=60)
    finally:
        readers.stop.set()
        readers.join()
    for name in names:
        session = idle(client, name)
        assert 1 < session["length"] < 1001
        assert session["kv"]["reserved_bytes"] == 0
    assert client.verify(names[0])["bit_identical"]
    for stream in streams:
        stream.hang_up()


def test_a_stalled_stream_ends(launch):
    """A reader that comes back after the timeout finds the committed steps and the reason."""
    flags = model_flags("minimind-layer")
    client = launch(*flags, "--stall-timeout", 1).client
    client.prefill(session="a", inputs=short_rows(1), output="none")
    stream = client.stream(session="a", steps=5000, receive_bytes=LITTLE)
    session = idle(client, "a")
    assert 1 < session["length"] < 5001
    assert client.metrics().total("attnd_cancelled_total", reason="stalled") == 1
    steps = stream.rest()
    assert stream.done["reason"] == "stalled"
    assert stream.done["steps"] == len(steps)
    assert stream.done["length"] == session["length"] == 1 + len(steps)
    assert client.decode(session="a")["length"] == session["length"] + 1


# --------------------------------------------------------------------------- many clients


def answers(server, socks, request):
    """Sends a request on every socket while the server is stopped; returns their first lines."""
    server.signal(signal.SIGSTOP)
    try:
        for sock in socks:
            sock.sendall(request)
    finally:
        server.signal(signal.SIGCONT)
    lines = []
    for sock in socks:
        data = b""
        while b"\r\n\r\n" not in data:
            piece = sock.recv(4096)
            assert piece, "closed without an answer"
            data += piece
        lines.append(data.split(b"\r\n", 1)[0])
    return lines


@pytest.fixture(scope="module")
def crowd(launch_for_module):
    return launch_for_module("--threads", 2)


@pytest.mark.parametrize("count", [127, 128, 129, 256, 300])
def test_clients_ready_at_one_moment(crowd, count):
    """All of them are answered, whatever their number is a multiple of."""
    client = crowd.client
    client.prefill(session="crowd", inputs=X[:1])
    socks = [client.connect() for _ in range(count)]
    try:
        # Connections that have been used: their sockets alone become ready, not the listener.
        get = b"GET /sessions/crowd HTTP/1.1\r\nHost: localhost\r\n\r\n"
        for _ in range(2):
            lines = answers(crowd, socks, get)
            assert lines == [b"HTTP/1.1 200 OK"] * count
        body = b'{"session":"crowd","if_length":0,"inputs":[[%s]]}' % b",".join([b"1"] * 16)
        post = (
            b"POST /prefill HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n%s" % (len(body), body)
        )
        for line in answers(crowd, socks, post):
            assert line.startswith(b"HTTP/1.1 409 ")
    finally:
        for sock in socks:
            sock.close()
    assert client.session("crowd")["length"] >= 1


def test_connections_come_at_one_moment(crowd):
    """The listener, too: 300 connections and requests that wait when the server comes to look."""
    client = crowd.client
    get = b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    crowd.signal(signal.SIGSTOP)
    try:
        socks = [client.connect() for _ in range(300)]
        for sock in socks:
            sock.sendall(get)
    finally:
        crowd.signal(signal.SIGCONT)
    for sock in socks:
        with sock, sock.makefile("rb") as file:
            assert file.read().startswith(b"HTTP/1.1 200 OK\r\n")


@pytest.mark.slow
def test_streams_at_one_moment(crowd):
    """200 streams that run together: every step of every one of them arrives."""
    client = crowd.client
    names = [f"s{i}" for i in range(200)]
    for name in names:
        client.prefill(session=name, inputs=X[:2], output="none")
    streams = [client.stream(session=name, steps=50) for name in names]
    expected = None
    for stream in streams:
        steps = stream.rest()
        assert stream.done["reason"] == "length" and len(steps) == 50
        expected = expected or steps
        assert outputs_of(steps) == outputs_of(expected)
    for name in names:
        client.delete(name)


def test_more_connections_than_allowed(launch):
    """Those beyond --max-connections wait or are turned away until some leave."""
    client = launch("--max-connections", 8).client
    socks = [client.connect(timeout=seconds(5)) for _ in range(8)]
    for sock in socks:
        sock.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert sock.recv(4096).startswith(b"HTTP/1.1 200 ")
    for sock in socks:
        sock.close()
    assert client.get("/health").ok()


# --------------------------------------------------------------------------------- signals


class Reader(threading.Thread):
    """Reads a stream to its end."""

    def __init__(self, stream):
        super().__init__()
        self.stream, self.steps = stream, []
        self.start()

    def run(self):
        self.steps = self.stream.rest()


@pytest.mark.slow
def test_silence_is_filled(launch):
    """When an SSE stream has been silent for 5 s, a comment comes; in NDJSON there is none."""
    model = contract.ROOT / "tests" / "bench" / "models" / "minimind3"  # each step takes a while
    server = launch("--model", model, "--random", 1)
    client = server.client
    readers = {}
    for name, accept in (("sse", contract.SSE), ("ndjson", contract.NDJSON)):
        client.prefill(session=name, tokens=[1, 2])
        stream = client.stream(accept, session=name, steps=20000, ignore_eos=True)
        readers[name] = Reader(stream)

    def commented():
        """Lets nothing come for long enough. A step may still be faster than the comment."""
        server.signal(signal.SIGSTOP)
        time.sleep(6)
        server.signal(signal.SIGCONT)
        client.get("/health").ok()
        return readers["sse"].stream.comments

    eventually(commented, "a keep-alive comment", within=60)
    for name, reader in readers.items():
        client.cancel(name)
        reader.join()
        assert reader.stream.done["reason"] == "cancelled"
    assert set(readers["sse"].stream.comments) == {": keep-alive"}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["TERM", "INT"])
def test_signal_with_live_streams(launch, number):
    """Every run ends with reason shutdown at its committed length; then the process, with 0."""
    server = launch(*model_flags("minimind-layer"), "--kv-memory", "1GiB")
    client = server.client
    row = short_rows(1)
    for name in ("read", "parked", "plain", "sse"):
        client.prefill(session=name, inputs=row, output="none")
    idle_sock = client.connect()
    readers = {
        "read": Reader(client.stream(session="read", steps=30000)),
        "sse": Reader(client.stream(session="sse", steps=30000, accept=contract.SSE)),
    }
    stopped = client.stream(session="parked", steps=30000, receive_bytes=LITTLE)
    plain = []
    asking = threading.Thread(
        target=lambda: plain.append(client.decode(session="plain", steps=4000))
    )
    asking.start()
    parked(client, "parked")
    for name in ("read", "sse", "plain"):
        eventually(lambda name=name: client.session(name)["length"] > 1, f"{name} runs")
    server.signal(number)
    readers["parked"] = Reader(stopped)
    for name, reader in readers.items():
        reader.join(seconds(20))
        assert not reader.is_alive()
        done = reader.stream.done
        assert done["reason"] == "shutdown", name
        assert done["steps"] == len(reader.steps) < 30000
        assert done["length"] == 1 + len(reader.steps)
    asking.join()
    assert plain[0]["reason"] == "shutdown"
    assert server.wait(within=5) == 0
    idle_sock.close()


@pytest.mark.slow
def test_signal_with_a_prefill(launch, tmp_path):
    """A prefill that the shutdown ends is refused as a whole, and so is one that waits."""
    server = launch(*make_model(tmp_path / "heavy", 8), "--kv-memory", "1GiB")
    client = server.client
    inputs = short_rows(1500)
    replies = {}

    def ask(name, fields):
        replies[name] = client.post("/prefill", fields)

    fields = {"session": "a", "inputs": inputs}
    threads = [threading.Thread(target=ask, args=("running", fields))]
    threads[0].start()
    in_prefill = lambda: client.get("/sessions/a").json.get("state") == "prefill"
    eventually(in_prefill, "the prefill runs", within=30)
    waits = {"session": "a", "inputs": inputs[:1], "wait_ms": 60000}
    threads.append(threading.Thread(target=ask, args=("waiting", waits)))
    threads[1].start()
    eventually(lambda: client.metrics().get_value("attnd_queue_depth") == 1, "the other waits")
    server.signal(signal.SIGTERM)
    for thread in threads:
        thread.join(seconds(20))
    for reply in replies.values():
        reply.error(503, "shutting_down")
    assert server.wait(within=5) == 0


def test_signal_with_a_reader_that_never_reads(launch):
    """Nobody can hold up the end for long."""
    server = launch(*model_flags("minimind-layer"))
    client = server.client
    client.prefill(session="a", inputs=short_rows(1), output="none")
    stream = client.stream(session="a", steps=30000, receive_bytes=LITTLE)
    parked(client, "a")
    server.signal(signal.SIGTERM)
    assert server.wait(within=10) == 0
    stream.hang_up()


def test_signal_with_half_a_request(launch):
    server = launch()
    socks = [server.client.connect() for _ in range(3)]
    socks[0].sendall(b"POST /prefill HTT")
    socks[1].sendall(b"POST /prefill HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{")
    eventually(lambda: server.client.get("/health").status == 200, "alive")
    server.signal(signal.SIGTERM)
    assert server.wait(within=10) == 0
    for sock in socks:
        sock.close()


def stopping(client):
    """Has the server closed its listener?"""
    try:
        client.connect().close()
    except ConnectionRefusedError:
        return True
    return False


def test_second_signal(launch):
    """While the end is held up by a reader that never reads, a second signal ends it at once."""
    server = launch(*model_flags("minimind-layer"))
    client = server.client
    client.prefill(session="a", inputs=short_rows(1), output="none")
    stream = client.stream(session="a", steps=30000, receive_bytes=LITTLE)
    parked(client, "a")
    server.signal(signal.SIGTERM)
    eventually(lambda: stopping(client), "the first signal is heard")
    server.signal(signal.SIGTERM)
    server.judged = False
    assert server.wait(within=2) in (0, 128 + signal.SIGTERM)
    stream.hang_up()


def test_signal_at_once(launch):
    """A server that has only just said that it listens stops as cleanly."""
    for number in (signal.SIGTERM, signal.SIGINT):
        server = launch()
        server.signal(number)
        assert server.wait() == 0


def test_broken_pipes(launch):
    """Writing to sockets of clients that have left is no reason to end."""
    server = launch()
    client = server.client
    client.prefill(session="a", inputs=X[:1])
    for _ in range(20):
        sock = client.connect()
        sock.sendall(b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n" * 20)
        hang_up(sock, True)
    assert client.get("/health").ok()
