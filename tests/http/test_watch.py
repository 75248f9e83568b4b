"""/watch: live events of all sessions and tensors of one, to watchers quick and slow."""

import re
import threading

import numpy as np
import pytest

import contract
from data import PAGE_BYTES, make_model, model_flags, outputs_of, rows, same_bits
from language import byte_ids, bytes_tokenizer, flags_of, write_golden, write_tokenizer
from test_tokenize import VOCAB
from waiting import SLOWDOWN, all_at_once, eventually, seconds
from watching import ENCODINGS, FRAMES, Watch, safetensors_io


X = rows(40)
PATTERN = "blocks.0.attn.hook_pattern"
LITTLE = 4096  # a receive buffer that a few events fill

encodings = pytest.mark.parametrize("accept", ENCODINGS)


@pytest.fixture(scope="module")
def own(launch_for_module):
    """A server whose sessions and watchers are this module's."""
    return launch_for_module("--threads", 2, "--kv-memory", "256MiB").client


@pytest.fixture(scope="module")
def layers(launch_for_module, tmp_path_factory):
    """A server with a model of several layers and grouped heads, the default one."""
    folder = tmp_path_factory.mktemp("models") / "layers"
    flags = make_model(folder, 3, hidden=64, heads=8, kv_heads=4, head_dim=16)
    return launch_for_module(*flags, "--threads", 2, "--kv-memory", "512MiB").client


def watchers(client):
    return client.metrics().get_value("attnd_watchers")


def dropped(client):
    return client.metrics().get_value("attnd_watch_frames_dropped_total")


def run(client, session, steps):
    """Decodes; what comes back is left unread, being much."""
    connection = client.send("POST", "/decode", {"session": session, "steps": steps})
    response = connection.getresponse()
    assert response.status == 200
    response.read()
    connection.close()


def names(events):
    return [event["event"] for event in events]


def tensor(client, session, name, **query):
    """The tensor as GET gives it."""
    text = "&".join(f"{key}={value}" for key, value in query.items())
    reply = client.get(
        f"/sessions/{session}/tensors/{name}?{text}", Accept="application/x-safetensors"
    )
    assert reply.status == 200, reply.body
    return safetensors_io.unpack(reply.body)[0][name]


# -------------------------------------------------------------------------------- the events


@encodings
def test_events(own, sid, accept):
    """What happens to sessions, in the order it happens."""
    other, short = f"{sid}-fork", f"{sid}-short"
    own.prefill(session=sid, inputs=X[:3])
    with Watch(own, accept, session=sid, tensors="hook_pattern", fps=0) as watch:
        known = watch.hello()
        assert known[sid] == {
            "session": sid,
            "model": "seed-attention",
            "length": 3,
            "kv_bytes": PAGE_BYTES,
            "state": "idle",
        }
        own.prefill(session=sid, inputs=X[3:5])
        steps = own.decode(session=sid, inputs=X[5:8])["events"]
        own.post(f"/sessions/{sid}/fork", {"as": other, "at": 2}).ok(201)
        own.truncate(sid, 4)
        own.prefill(session=short, inputs=X[:1], ttl_s=1)
        own.delete(other)
        own.delete(sid)
        events = watch.until("deleted", session=sid)
        assert names(events) == ["prefill", *["step"] * 3, "forked", "truncated", "created",
                                 "prefill", "deleted", "deleted"]  # fmt: skip
        about = [(event["session"], event["length"]) for event in events]
        assert about == [(sid, 5), (sid, 6), (sid, 7), (sid, 8), (other, 2), (sid, 4), (short, 0),
                         (short, 1), (other, 0), (sid, 0)]  # fmt: skip
        assert events[0]["processed"] == events[0]["total"] == 2
        assert events[4]["from"] == sid
        for step, event in zip(steps, events[1:4], strict=True):
            assert (event["step"], event["position"]) == (step["step"], step["position"])
            assert event["kv_bytes"] == PAGE_BYTES
            weights = event["tensors"][PATTERN]
            assert weights.shape == (4, 1, step["length"]) and weights.dtype == np.float32
            assert np.allclose(weights.sum(-1), 1, atol=1e-6)
        assert watch.skip("expired")["session"] == short
        stats = watch.skip("stats")
        assert stats["watchers"] == watchers(own) == 1
    eventually(lambda: watchers(own) == 0, "the watcher has left")


def test_stats(own, sid):
    """At once when something has changed, else once a second."""
    own.prefill(session=sid, inputs=X[:3])
    with Watch(own) as watch:
        watch.hello()
        while (first := watch.skip("stats"))["totals"] != own.totals():
            pass
        assert watch.next()["totals"] == first["totals"]
        own.decode(session=sid, inputs=X[3:8])
        while (now := watch.skip("stats"))["decode_steps"] == first["decode_steps"]:
            pass
        while now["decode_steps"] < first["decode_steps"] + 5:
            now = watch.skip("stats")
        assert now["totals"]["positions"] >= first["totals"]["positions"] + 5
        assert now["in_flight"] == {"prefill": 0, "decode": 0, "verify": 0, "tensor": 0}


def test_keep_alive_is_not_needed(own):
    """Stats come each second; they keep proxies content in every encoding."""
    with Watch(own, contract.SSE) as watch:
        watch.hello()
        assert names(watch.next() for _ in range(3)) == ["stats"] * 3
        assert watch.keep_alives == 0


def test_many_sessions(launch):
    """Hello comes in pieces; what there was is listed once each."""
    client = launch("--kv-memory", "256MiB").client
    made = {f"many-{i}" for i in range(600)}
    for session in made:
        client.prefill(session=session, inputs=X[:1], output="none")
    with Watch(client) as watch:
        assert set(watch.hello()) == made
        assert watch.seq == 3
    with Watch(client, FRAMES) as watch:
        assert set(watch.hello()) == made


def test_others_are_merged(own, sid):
    """The last of another session's steps in a tenth of a second; nothing of it comes later."""
    own.prefill(session=sid, inputs=X[:3])
    with Watch(own) as all_, Watch(own, session=sid) as one:
        own.decode(session=sid, steps=400)
        own.truncate(sid, 2)
        every = one.until("truncated", session=sid)
        assert names(every) == ["step"] * 400 + ["truncated"]
        assert [event["step"] for event in every[:-1]] == list(range(400))
        assert not any("merged" in event or "tensors" in event for event in every)
        merged = all_.until("truncated", session=sid)[:-1]
        assert 1 <= len(merged) < 400
        assert sum(event.get("merged", 1) for event in merged) == 400
        assert merged[-1]["length"] == 403


# ------------------------------------------------------------------------------- the tensors


def test_selections(layers, sid):
    """Watchers of one session get what they chose, and the bits that GET gives."""
    x = rows(12, hidden=64)
    layers.prefill(session=sid, inputs=x[:5])
    asked = [
        dict(tensors="hook_pattern", layers="0,2", heads="0-3"),
        dict(tensors="hook_rot_q,hook_rot_k,hook_z", layers="1", heads="2,5-6"),
        dict(tensors="hook_attn_scores,hook_attn_out", layers="2"),
        dict(tensors="hook_pattern,hook_v", dtype="U8"),
        {},
    ]
    watches = [
        Watch(layers, ENCODINGS[i % 3], session=sid, **query, **({"fps": 0} if query else {}))
        for i, query in enumerate(asked)
    ]
    layers.decode(session=sid, inputs=x[5:9])
    seen = [watch.until("step", step=3) for watch in watches]
    expected_names = [
        {f"blocks.{i}.attn.hook_pattern" for i in (0, 2)},
        {f"blocks.1.attn.hook_{name}" for name in ("rot_q", "rot_k", "z")},
        {"blocks.2.attn.hook_attn_scores", "blocks.2.hook_attn_out"},
        {f"blocks.{i}.attn.hook_{name}" for i in range(3) for name in ("pattern", "v")},
    ]
    for events, query, expected in zip(seen, asked, expected_names):
        assert names(events) == ["step"] * 4
        for event in events:
            assert set(event["tensors"]) == expected
            q = event["position"]
            for name, found in event["tensors"].items():
                heads = query.get("heads")
                if heads and re.search("rot_k", name):
                    heads = "1-3"  # KV heads that 2, 5 and 6 read
                options = {"q": f"{q}:{q + 1}", **({"heads": heads} if heads else {})}
                if query.get("dtype") and "pattern" in name:
                    options["dtype"] = "U8"
                wanted = tensor(layers, sid, name, **options)
                assert found.dtype == wanted.dtype and found.shape == wanted.shape, name
                assert found.tobytes() == wanted.tobytes(), name
    assert not any("tensors" in event for event in seen[4])
    for watch in watches:
        watch.hang_up()


def test_frames_per_second(own, sid):
    """All steps come; of those of one second at most one has tensors."""
    own.prefill(session=sid, inputs=X[:3])
    with Watch(own, session=sid, tensors="hook_pattern", fps=1) as watch:
        own.decode(session=sid, steps=300)
        steps = watch.until("step", step=299)
        assert len(steps) == 300
        with_tensors = [event for event in steps if "tensors" in event]
        assert with_tensors[0] is steps[0]
        assert len(with_tensors) <= 1 + seconds(10)


def test_watched_bits(layers, sid):
    """A run has the same bits whoever watches it."""
    x = rows(60, hidden=64, seed=3)
    plain, watched = f"{sid}-plain", f"{sid}-watched"
    for session in (plain, watched):
        layers.prefill(session=session, inputs=x[:20])
    alone = layers.decode(session=plain, inputs=x[20:])["events"]
    everything = "hook_q,hook_pattern,hook_attn_scores,hook_z,hook_attn_out"
    with Watch(layers, FRAMES, session=watched, tensors=everything, fps=0) as watch:
        seen = layers.decode(session=watched, inputs=x[20:])["events"]
        assert len(watch.until("step", step=39)) == 40
    assert same_bits(outputs_of(alone), outputs_of(seen))
    assert layers.verify(watched)["bit_identical"]


def test_made_again(own, layers, sid):
    """A watcher is of an id: of its next session too, without tensors that its model lacks."""
    own.prefill(session=sid, inputs=X[:2])
    with Watch(own, session=sid, tensors="hook_pattern", fps=0) as watch:
        own.decode(session=sid, inputs=X[2:4])
        own.delete(sid)
        own.prefill(session=sid, inputs=X[:3])
        own.decode(session=sid, inputs=X[3:5])
        events = watch.until("step", step=1, length=5)
        assert names(events) == ["step", "step", "deleted", "created", "prefill", "step", "step"]
        assert all("tensors" in event for event in events if event["event"] == "step")
    x = rows(8, hidden=64)
    layers.prefill(session=sid, inputs=x[:2])
    with Watch(layers, session=sid, tensors="hook_z", layers="2", fps=0) as watch:
        layers.delete(sid)
        layers.prefill(session=sid, model="seed-attention", inputs=X[:3])
        layers.decode(session=sid, inputs=X[3:5])
        layers.delete(sid)
        layers.prefill(session=sid, inputs=x[:2])
        layers.decode(session=sid, inputs=x[2:4])
        steps = [e for e in watch.until("step", step=1, length=4) if e["event"] == "step"]
        assert ["tensors" in step for step in steps] == [False, False, True, True]


# ---------------------------------------------------------------------------------- language


@encodings
def test_texts(launch, tmp_path, accept):
    """Whatever a step's text holds, the event is what it should be."""
    folder = write_tokenizer(write_golden("llama-gqa", tmp_path / "bytes"), bytes_tokenizer(VOCAB))
    client = launch(*flags_of([folder]), "--kv-memory", "64MiB").client
    client.prefill(session="a", text="x")
    said = b'"\\\x00\x1f\n\x7f\xff\xfe' + "\u00e9\u65e5\U0001f600".encode() + b"\xe6</script>"
    with Watch(client, accept, session="a", tensors="hook_rot_q", layers="0", fps=0) as watch:
        ids = byte_ids(said)
        steps = client.decode(session="a", tokens=ids)["events"]
        sampled = client.decode(session="a", steps=30, temperature=3.0, seed=5)["events"]
        steps += sampled
        seen = watch.until("step", step=len(sampled) - 1, length=steps[-1]["length"])
        assert [event["token"] for event in seen] == [step["token"] for step in steps]
        assert [event["text"] for event in seen] == [step["text"] for step in steps]
        assert "\ufffd" in "".join(event["text"] for event in seen)
        assert all(event["tensors"] for event in seen)


# ---------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    "query, status, code, param",
    [
        ("session=nobody", 404, "session_not_found", "session"),
        ("session=", 404, "session_not_found", "session"),
        ("session=..", 404, "session_not_found", "session"),
        ("session=a%00b", 404, "session_not_found", "session"),
        ("tensors=hook_pattern", 400, "invalid_request", "tensors"),
        ("layers=0", 400, "invalid_request", "layers"),
        ("fps=3", 400, "invalid_request", "fps"),
        ("dtype=U8", 400, "invalid_request", "dtype"),
        ("session={}&heads=0", 400, "invalid_request", "heads"),
        ("session={}&fps=1", 400, "invalid_request", "fps"),
        ("session={}&tensors=", 400, "invalid_request", "tensors"),
        ("session={}&tensors=hook_nothing", 400, "invalid_request", "tensors"),
        ("session={}&tensors=hook_z,hook_z", 400, "invalid_request", "tensors"),
        ("session={}&tensors=key", 400, "invalid_request", "tensors"),
        ("session={}&tensors=hook_z,", 400, "invalid_request", "tensors"),
        ("session={}&tensors=hook_mlp_out", 404, "tensor_not_found", "tensors"),
        ("session={}&tensors=hook_z&layers=1", 404, "tensor_not_found", "layers"),
        ("session={}&tensors=hook_z&layers=99", 404, "tensor_not_found", "layers"),
        ("session={}&tensors=hook_z&layers=", 400, "invalid_request", "layers"),
        ("session={}&tensors=hook_z&layers=1-0", 400, "invalid_request", "layers"),
        ("session={}&tensors=hook_z&layers=1000000000", 400, "invalid_request", "layers"),
        ("session={}&tensors=hook_z&heads=4", 404, "tensor_not_found", "heads"),
        ("session={}&tensors=hook_z&heads=-1", 400, "invalid_request", "heads"),
        ("session={}&tensors=hook_z&heads=x", 400, "invalid_request", "heads"),
        ("session={}&tensors=hook_z&dtype=F16", 400, "invalid_request", "dtype"),
        ("session={}&tensors=hook_z&dtype=", 400, "invalid_request", "dtype"),
        ("session={}&tensors=hook_z&fps=", 400, "invalid_request", "fps"),
        ("session={}&tensors=hook_z&fps=1001", 400, "invalid_request", "fps"),
        ("session={}&tensors=hook_z&fps=-1", 400, "invalid_request", "fps"),
        ("session={}&tensors=hook_z&fps=1.5", 400, "invalid_request", "fps"),
        ("session={}&session={}", 400, "invalid_request", "session"),
        ("other=1", 400, "invalid_request", None),
    ],
)
def test_refusals(own, sid, query, status, code, param):
    own.prefill(session=sid, inputs=X[:1])
    own.get("/watch?" + query.replace("{}", sid)).error(status, code, param)
    assert watchers(own) == 0


def test_accept(own):
    own.get("/watch", Accept="application/json").error(406, "not_acceptable")
    own.get("/watch", Accept="image/png").error(406, "not_acceptable")
    for accept, expected in [
        (None, contract.NDJSON),
        ("*/*", contract.NDJSON),
        ("text/event-stream, */*", contract.SSE),
        (f"{FRAMES}, text/event-stream;q=0.1", FRAMES),
        (f"{FRAMES};q=0.1, text/event-stream;q=0.2", contract.SSE),
        (f"{FRAMES};q=0.1, text/event-stream;q=0.2, {contract.NDJSON};q=0.3", contract.NDJSON),
    ]:
        connection = own.send("GET", "/watch", None, {"Accept": accept} if accept else {})
        response = connection.getresponse()
        assert response.headers["Content-Type"] == expected
        assert response.headers["Cache-Control"] == "no-store"
        assert response.headers["X-Accel-Buffering"] == "no"
        connection.close()
    own.request("POST", "/watch", {}).error(405, "method_not_allowed")
    eventually(lambda: watchers(own) == 0, "the watchers have left")


def test_head(own):
    """HEAD says what GET would begin with, and the connection lives on."""
    connection = own.send("HEAD", "/watch")
    for _ in range(2):
        response = connection.getresponse()
        assert response.status == 200 and response.read() == b""
        assert response.headers["Content-Type"] == contract.NDJSON
        connection.request("HEAD", "/watch")
    assert connection.getresponse().status == 200
    connection.close()
    eventually(lambda: watchers(own) == 0, "nobody watches")


def test_http_1_0(own):
    sock = own.connect()
    sock.sendall(b"GET /watch HTTP/1.0\r\nHost: localhost\r\n\r\n")
    found = b""
    while found.count(b"\n{") < 2:
        found += sock.recv(65536)
    assert b'{"event":"hello","seq":0' in found and b"chunked" not in found
    sock.close()


def test_too_large(launch, tmp_path):
    """A selection is refused by what it may become, before anything is sent."""
    flags = make_model(tmp_path / "large", 8, hidden=64, heads=32, kv_heads=4, head_dim=16)
    client = launch(*flags, "--kv-memory", "64MiB").client
    client.prefill(session="a", inputs=rows(2, hidden=64))
    one = 32 * 32768 * 4
    error = client.get("/watch?session=a&tensors=hook_pattern").error(
        413, "tensor_too_large", "tensors"
    )
    assert error["details"]["bytes"] == 8 * one
    with Watch(client, session="a", tensors="hook_pattern", layers="0-3") as watch:
        watch.hello()


def test_body_memory(launch):
    """A watcher's buffers count as bodies in flight."""
    client = launch("--body-memory", "768KiB", "--kv-memory", "64MiB").client
    with Watch(client) as watch:
        watch.hello()
        client.get("/watch").error(503, "busy_memory")
    eventually(lambda: watchers(client) == 0, "the watcher has left")
    with Watch(client) as watch:
        watch.hello()


def test_watchers_leave_memory_to_requests(launch):
    client = launch("--body-memory", "2MiB", "--kv-memory", "64MiB").client
    watches = [Watch(client) for _ in range(3)]
    client.get("/watch").error(503, "busy_memory")
    client.prefill(session="a", inputs=[list(X[0])] * 1500, output="none")
    for watch in watches:
        watch.hang_up()


def test_most_watchers(launch):
    client = launch("--kv-memory", "64MiB").client
    watches = [Watch(client) for _ in range(256)]
    assert watchers(client) == 256
    client.get("/watch").error(429, "queue_full")
    watches[7].hang_up()
    eventually(lambda: watchers(client) == 255, "one watcher has left")
    with Watch(client) as watch:
        watch.hello()
    for watch in watches:
        watch.hang_up()
    eventually(lambda: watchers(client) == 0, "all watchers have left")
    client.prefill(session="a", inputs=X[:1])


# ------------------------------------------------------------------------------ slow and gone


@encodings
def test_gap(launch, accept):
    """Who does not read loses events, is told how many, and goes on."""
    client = launch("--kv-memory", "64MiB").client
    client.prefill(session="a", inputs=X[:3])
    with Watch(client, accept, LITTLE, session="a", tensors="hook_z", fps=0) as watch:
        watch.hello()
        for _ in range(6):
            run(client, "a", 2000)
            client.truncate("a", 3)
        client.decode(session="a", steps=10)
        client.truncate("a", 2)
        events = watch.until("truncated", length=2)
        lost = sum(event["dropped"] for event in events if event["event"] == "gap")
        others = [event for event in events if event["event"] != "gap"]
        assert lost and len(others) + lost == 6 * 2001 + 11
        assert names(events).count("gap") < 10
        assert dropped(client) >= lost
        assert all(("tensors" in step) != ("dropped" in step) for step in others if "step" in step)
        # It has caught up: what comes now is complete.
        client.decode(session="a", steps=5)
        fresh = watch.until("step", step=4)
        assert names(fresh) == ["step"] * 5 and all("tensors" in event for event in fresh)


@pytest.mark.slow
def test_a_reader_that_stops(launch):
    """Thousands of steps later its gap counts exactly what it did not get."""
    client = launch("--kv-memory", "64MiB").client
    client.prefill(session="a", inputs=X[:3])
    with Watch(client, receive_bytes=LITTLE, session="a") as watch:
        quick = Watch(client, session="a")
        watch.hello()
        for _ in range(4):
            run(client, "a", 4000)
            client.truncate("a", 3)
            assert len(quick.until("truncated")) >= 2
        client.decode(session="a", steps=7)
        client.delete("a")
        events = watch.until("deleted")
        gaps = [event for event in events if event["event"] == "gap"]
        assert gaps and len(events) - len(gaps) + sum(gap["dropped"] for gap in gaps) == 4 * 4001 + 8
        assert names(events)[-8:] == ["step"] * 7 + ["deleted"]
        quick.hang_up()


@pytest.mark.slow
def test_sixteen_watchers(layers, sid):
    """Quick ones get all, one that does not read disturbs nobody; nothing stays behind."""
    x = rows(1, hidden=64)
    layers.prefill(session=sid, inputs=x)
    lazy = Watch(layers, FRAMES, LITTLE, session=sid, tensors="hook_pattern", fps=0)
    quick = [
        Watch(layers, ENCODINGS[i % 3], session=sid, tensors="hook_pattern", layers="0", fps=30)
        for i in range(15)
    ]
    assert watchers(layers) == 16
    before = layers.metrics().get_value("attnd_process_resident_memory_bytes")
    jobs = [lambda watch=watch: watch.until("step", step=599) for watch in quick]
    jobs.append(lambda: run(layers, sid, 600) or [])
    for events in all_at_once(jobs)[:-1]:
        assert [event["step"] for event in events] == list(range(600))
        assert any("tensors" in event for event in events)
    # Who did not read is told which steps' tensors it lost.
    late = [event for event in lazy.until("step", step=599) if event["event"] == "step"]
    assert all(("tensors" in step) != ("dropped" in step) for step in late)
    assert "tensors" in late[0] and "dropped" in late[-1]
    after = layers.metrics().get_value("attnd_process_resident_memory_bytes")
    if SLOWDOWN == 1:  # sanitizers have memory of their own
        assert after - before < 128 << 20
    for watch in (lazy, *quick):
        watch.hang_up()
    eventually(lambda: watchers(layers) == 0, "the watchers have left")
    assert not layers.session(sid)["in_flight"]


@encodings
@pytest.mark.parametrize("reset", [False, True])
def test_leaves(own, sid, accept, reset):
    """A watcher that closes is gone at once, in the middle of events, and its session goes on."""
    own.prefill(session=sid, inputs=X[:3])
    for _ in range(5):
        watch = Watch(own, accept, LITTLE, session=sid, tensors="hook_pattern,hook_z", fps=0)
        stream = own.stream(session=sid, steps=1000)
        stream.next()
        watch.skip("step")
        watch.hang_up(reset)
        stream.rest()
        eventually(lambda: watchers(own) == 0, "the watcher has left")
        own.truncate(sid, 3)


def test_come_and_go(own, sid):
    """Watchers that come and go all the time, while sessions are made, run and deleted."""
    stop = threading.Event()

    def watch(number):
        try:
            for i in range(12):
                query = {"session": sid, "tensors": "hook_pattern", "fps": 0} if i % 2 else {}
                with Watch(own, ENCODINGS[(i + number) % 3], **query) as one:
                    one.hello()
                    for _ in range(i):
                        one.next()
        finally:
            stop.set() if number == 0 else None

    def work():
        while not stop.is_set():
            run(own, sid, 50)
            own.truncate(sid, 3)
            own.prefill(session=f"{sid}-x", inputs=X[:2])
            own.delete(f"{sid}-x")

    own.prefill(session=sid, inputs=X[:3])
    all_at_once([lambda n=n: watch(n) for n in range(4)] + [work])
    eventually(lambda: watchers(own) == 0, "all watchers have left")


# ----------------------------------------------------------------------------------- the end


def test_shutdown(launch):
    """Every watcher that reads gets its bye; one that does not is cut off; in time."""
    server = launch("--kv-memory", "64MiB")
    client = server.client
    client.prefill(session="a", inputs=X[:3])
    watches = [Watch(client, accept, session="a") for accept in ENCODINGS for _ in range(3)]
    watches += [Watch(client), Watch(client, session="a", tensors="hook_pattern", fps=0)]
    lazy = Watch(client, FRAMES, LITTLE, session="a", tensors="hook_pattern", fps=0)
    stream = client.stream(session="a", steps=30000)
    stream.next()
    threading.Timer(0.3, server.process.terminate).start()
    jobs = [lambda watch=watch: watch.until("bye") for watch in watches]
    for events in all_at_once([*jobs, lambda: stream.rest() and []])[:-1]:
        assert events[-1]["reason"] == "shutdown"
    assert stream.done["reason"] == "shutdown"
    for watch in watches:
        with pytest.raises(StopIteration):
            watch.next()
    assert server.wait() == 0
    lazy.hang_up()


def test_shutdown_at_once(launch):
    """Also of watchers that came this moment, and of ones that have just left."""
    for _ in range(3):
        server = launch("--kv-memory", "64MiB")
        watches = [Watch(server.client, accept) for accept in ENCODINGS * 3]
        for watch in watches[::2]:
            watch.hang_up()
        server.process.terminate()
        for watch in watches[1::2]:
            assert watch.skip("bye")["reason"] == "shutdown"
        assert server.wait() == 0
