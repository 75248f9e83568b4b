"""What the server holds: listing, looking, rewinding, checking, expiring, counting, refusing."""

import threading

import pytest

from data import (
    HIDDEN,
    INPUT_BYTES,
    PAGE_BYTES,
    PAGE_POSITIONS,
    POSITION_BYTES,
    make_model,
    outputs_of,
    rows,
    same_bits,
    short_rows,
)
from waiting import eventually

X = rows(40)


# ------------------------------------------------------------------------------- looking


def test_get(client, sid):
    client.prefill(session=sid, inputs=X[:17], ttl_s=77)
    session = client.session(sid)
    assert session["session"] == sid
    assert session["model"] == "seed-attention"
    assert (session["length"], session["state"], session["in_flight"]) == (17, "idle", False)
    assert session["kv"]["pages"] == 2
    assert session["kv"]["bytes"] == 2 * PAGE_BYTES
    assert session["kv"]["reserved_bytes"] == session["kv"]["shared_bytes"] == 0
    assert session["ttl_s"] == 77
    assert 0 <= session["last_used"] - session["created"] < 3600


def test_get_nobody(client, sid):
    for method, path in (
        ("GET", ""),
        ("DELETE", ""),
        ("POST", "/cancel"),
        ("POST", "/verify"),
    ):
        client.request(method, f"/sessions/{sid}{path}").error(404, "session_not_found")
    reply = client.post(f"/sessions/{sid}/truncate", {"length": 0})
    reply.error(404, "session_not_found")


def test_paging(launch):
    client = launch().client
    names = {f"s{i:03}" for i in range(25)}
    for name in names:
        client.prefill(session=name, inputs=X[:1])

    def pages(limit, after_page=lambda page: None):
        found, after = [], ""
        while True:
            page = client.get(f"/sessions?limit={limit}{after}").ok()
            assert len(page["sessions"]) <= limit
            found += [session["session"] for session in page["sessions"]]
            if page["next"] is None:
                return found
            assert len(page["sessions"]) == limit
            after_page(page)
            after = f"&after={page['next']}"

    whole = client.get("/sessions").ok()
    order = [session["session"] for session in whole["sessions"]]
    assert set(order) == names and len(order) == 25 and whole["next"] is None
    for limit in (1, 4, 24, 25, 26, 1000):
        assert pages(limit) == order

    # The id a page ended with may be gone by the time the next one is asked for.
    gone = []

    def delete_last(page):
        gone.append(page["next"])
        client.delete(page["next"])

    assert pages(5, delete_last) == order
    assert len(gone) == 4
    left = [name for name in order if name not in gone]
    assert pages(7) == left
    assert pages(7, lambda page: client.prefill(inputs=X[:1])) >= left[:1]
    assert client.get("/sessions?after=nobody.knows.me").status == 200


@pytest.mark.parametrize("query", ["limit=0", "limit=1001", "limit=-1", "limit=ten", "limit="])
def test_limit_bounds(client, query):
    client.get(f"/sessions?{query}").error(400, "invalid_request", "limit")


# ------------------------------------------------------------------------------ memory


def test_totals_are_exact(launch):
    """Reported bytes = allocated bytes; a deletion returns them before it is answered."""
    client = launch("--kv-memory", "64MiB").client
    empty = client.totals()
    assert empty["sessions"] == empty["positions"] == empty["inputs_bytes"] == 0
    assert empty["kv"]["bytes"] == empty["kv"]["pages"] == 0
    assert empty["budget_bytes"] == 64 << 20
    lengths = {"a": 1, "b": 16, "c": 17, "d": 40}
    for name, length in lengths.items():
        client.prefill(session=name, inputs=X[:length], keep_inputs=name != "d")
    totals = client.totals()
    pages = {name: -(-length // PAGE_POSITIONS) for name, length in lengths.items()}
    assert totals["sessions"] == 4
    assert totals["positions"] == sum(lengths.values())
    assert totals["kv"]["pages"] == sum(pages.values())
    assert totals["kv"]["bytes"] == sum(pages.values()) * 16 * POSITION_BYTES
    assert totals["kv"]["reserved_bytes"] == totals["kv"]["shared_bytes"] == 0
    listed = client.get("/sessions").ok()["sessions"]
    for session in listed:
        assert session["kv"]["bytes"] == pages[session["session"]] * PAGE_BYTES
    assert totals["inputs_bytes"] == sum(session["inputs_bytes"] for session in listed)
    assert totals["inputs_bytes"] >= (1 + 16 + 17) * INPUT_BYTES
    used = totals["budget_bytes"] - totals["available_bytes"]
    assert used >= totals["kv"]["bytes"] + totals["inputs_bytes"]
    metrics = client.metrics()
    assert metrics.get_value("attnd_kv_bytes", state="allocated") == totals["kv"]["bytes"]
    assert metrics.get_value("attnd_inputs_bytes") == totals["inputs_bytes"]
    assert metrics.get_value("attnd_kv_budget_bytes") == 64 << 20
    assert metrics.get_value("attnd_sessions", model="seed-attention") == 4
    for name in lengths:
        client.delete(name)
        assert not client.exists(name)
    assert client.totals() == empty


def test_a_decode_gives_back_what_it_did_not_use(client, sid):
    """What a request reserves beyond what it commits is free again when it ends."""
    client.prefill(session=sid, inputs=X[:4])
    stream = client.stream(session=sid, steps=20000, receive_bytes=4096)
    stream.next()
    busy = client.session(sid)
    assert busy["state"] == "decode" and busy["in_flight"]
    assert busy["kv"]["bytes"] + busy["kv"]["reserved_bytes"] >= 20004 * POSITION_BYTES
    idle = client.cancel(sid)
    assert (idle["state"], idle["in_flight"]) == ("idle", False)
    assert idle["kv"]["reserved_bytes"] == 0
    assert idle["kv"]["pages"] == -(-idle["length"] // PAGE_POSITIONS)
    stream.hang_up()
    client.delete(sid)


def test_budget(launch):
    """What does not fit is refused before any work is done, and nobody else notices."""
    client = launch("--kv-memory", "1MiB").client
    client.prefill(session="witness", inputs=X[:4])
    before = client.totals()
    big = {"session": "big", "inputs": rows(9000), "output": "none"}
    details = client.post("/prefill", big).error(507, "kv_budget_exceeded", "inputs")["details"]
    assert details["needed"] > details["available"] > 0
    assert details["needed"] >= 9000 * (POSITION_BYTES + INPUT_BYTES)
    assert details["available"] <= before["available_bytes"]
    assert not client.exists("big")
    reply = client.post("/decode", {"session": "witness", "steps": 9000})
    details = reply.error(507, "kv_budget_exceeded", "steps")["details"]
    assert details["needed"] > details["available"] > 0
    assert client.session("witness")["length"] == 4
    assert client.totals() == before
    assert client.decode(session="witness", steps=3)["length"] == 7


def test_fill_the_budget_and_empty_it(launch):
    """Sessions until no more fit; every one of them works; deleting them all returns everything."""
    client = launch("--kv-memory", "1MiB").client
    empty = client.totals()
    admitted = []
    while True:
        reply = client.post("/prefill", {"session": f"s{len(admitted)}", "inputs": X})
        if reply.status != 200:
            reply.error(507, "kv_budget_exceeded")
            break
        admitted.append(reply.json)
    assert len(admitted) > 20
    for prefill in admitted:
        assert client.session(prefill["session"])["length"] == len(X)
        assert same_bits(prefill["output"], admitted[0]["output"])
    steps = {
        client.decode(session=prefill["session"], input=X[0])["output"][0] for prefill in admitted
    }
    assert len(steps) == 1
    for prefill in admitted:
        client.delete(prefill["session"])
    assert client.totals() == empty


def test_too_many_sessions(launch):
    client = launch("--max-sessions", 3).client
    for name in "abc":
        client.prefill(session=name, inputs=X[:1])
    client.post("/prefill", {"session": "d", "inputs": X[:1]}).error(429, "too_many_sessions")
    assert client.prefill(session="c", inputs=X[:1])["length"] == 2
    client.delete("a")
    assert client.prefill(session="d", inputs=X[:1])["length"] == 1


def test_queue_full(launch):
    client = launch("--queue", 2).client
    for name in "abc":
        client.prefill(session=name, inputs=X[:1])
    streams = [client.stream(session=name, steps=20000, receive_bytes=4096) for name in "ab"]
    client.post("/decode", {"session": "c"}).error(429, "queue_full")
    client.post("/prefill", {"session": "new", "inputs": X[:1]}).error(429, "queue_full")
    assert not client.exists("new")
    for stream in streams:
        stream.hang_up()
    eventually(lambda: client.post("/decode", {"session": "c"}).status == 200, "room in the queue")


# ---------------------------------------------------------------------------- rewinding


@pytest.mark.parametrize("length", [1, 7, 15, 16, 17, 32, 39])
def test_truncate_and_replay(client, sid, length):
    """Rewound to n, a session is a fresh prefill of n: same next steps, same bits."""
    client.prefill(session=sid, inputs=X)
    client.decode(session=sid, steps=3)
    session = client.truncate(sid, length)
    assert session["length"] == length
    assert session["kv"]["pages"] == -(-length // PAGE_POSITIONS)
    fresh = f"{sid}.fresh"
    client.prefill(session=fresh, inputs=X[:length])
    replayed = client.decode(session=sid, steps=4)["events"]
    expected = client.decode(session=fresh, steps=4)["events"]
    assert same_bits(outputs_of(replayed), outputs_of(expected))
    assert client.verify(sid)["bit_identical"]


def test_truncate_into_decoded_positions(client, sid):
    client.prefill(session=sid, inputs=X[:4])
    steps = outputs_of(client.decode(session=sid, steps=8)["events"])
    client.truncate(sid, 4 + 3)
    assert same_bits(outputs_of(client.decode(session=sid, steps=5)["events"]), steps[3:])


def test_truncate_then_input(client, sid):
    client.prefill(session=sid, inputs=X[:20])
    client.truncate(sid, 10)
    again = client.prefill(session=sid, inputs=X[10:20], output="all")
    fresh = client.prefill(session=f"{sid}.fresh", inputs=X[:20], output="all")
    assert same_bits(again["output"], fresh["output"][10:])


def test_truncate_to_nothing_and_back(client, sid):
    client.prefill(session=sid, inputs=X[:20])
    session = client.truncate(sid, 0)
    assert (session["length"], session["kv"]["bytes"]) == (0, 0)
    assert client.prefill(session=sid, inputs=X[:3])["length"] == 3


def test_truncate_to_the_same_length(client, sid):
    client.prefill(session=sid, inputs=X[:20])
    expected = client.prefill(session=f"{sid}.fresh", inputs=X[:20])["output"]
    client.truncate(sid, 20)
    step = client.decode(session=sid)["output"]
    assert same_bits(step, client.decode(session=f"{sid}.fresh", input=expected[0])["output"])


def test_truncate_refusals(client, sid):
    client.prefill(session=sid, inputs=X[:4])
    path = f"/sessions/{sid}/truncate"
    client.post(path, {"length": 5}).error(400, "invalid_request", "length")
    client.post(path, {}).error(400, "invalid_request", "length")
    reply = client.post(path, {"length": 2, "if_length": 3})
    assert reply.error(409, "length_mismatch", "if_length")["details"]["length"] == 4
    assert client.post(path, {"length": 2, "if_length": 4}).ok()["length"] == 2


def test_inputs_not_kept(client, sid):
    client.prefill(session=sid, inputs=X[:20], keep_inputs=False)
    assert client.decode(session=sid, steps=2)["length"] == 22
    client.post(f"/sessions/{sid}/verify").error(409, "inputs_not_kept")
    client.truncate(sid, 10)
    client.post("/decode", {"session": sid}).error(409, "inputs_not_kept")
    assert client.session(sid)["length"] == 10
    again = client.prefill(session=sid, inputs=X[10:20])
    fresh = client.prefill(session=f"{sid}.fresh", inputs=X[:20])
    assert same_bits(again["output"], fresh["output"])
    assert client.decode(session=sid)["length"] == 21


# --------------------------------------------------------------------- verify, cancel, delete


@pytest.mark.parametrize("length", [1, 16, 33])
def test_verify(client, sid, length):
    client.prefill(session=sid, inputs=X[:length])
    client.decode(session=sid, steps=5)
    before = client.totals()
    expected = {"length": length + 5, "max_abs_diff": 0, "bit_identical": True}
    assert client.verify(sid) == expected
    assert client.totals() == before


def test_verify_nothing(client, sid):
    client.prefill(session=sid, inputs=X[:1])
    client.truncate(sid, 0)
    assert client.verify(sid) == {"length": 0, "max_abs_diff": 0, "bit_identical": True}


def test_cancel_idle(client, sid):
    client.prefill(session=sid, inputs=X[:4])
    assert client.cancel(sid)["length"] == 4


def test_cancel_decode(client, sid):
    client.prefill(session=sid, inputs=X[:4])
    stream = client.stream(session=sid, steps=20000, receive_bytes=4096)
    stream.next()
    session = client.cancel(sid)
    assert not session["in_flight"]
    steps = 1 + len(stream.rest())
    assert stream.done["reason"] == "cancelled"
    assert stream.done["steps"] == steps < 20000
    assert stream.done["length"] == session["length"] == 4 + steps
    assert client.verify(sid)["bit_identical"]
    client.delete(sid)


def test_cancel_unstreamed_decode(client, sid):
    client.prefill(session=sid, inputs=X[:4])
    replies = []
    fields = {"session": sid, "steps": 30000}
    asking = threading.Thread(target=lambda: replies.append(client.post("/decode", fields)))
    asking.start()
    eventually(lambda: client.session(sid)["length"] > 4, "the decode has begun")
    session = client.cancel(sid)
    asking.join()
    done = replies[0].ok()
    assert done["reason"] == "cancelled"
    assert done["length"] == session["length"] == 4 + len(done["events"])
    client.delete(sid)


def test_delete_during_decode(client, sid):
    client.prefill(session=sid, inputs=X[:4])
    stream = client.stream(session=sid, steps=20000, receive_bytes=4096)
    stream.next()
    client.delete(sid)
    assert not client.exists(sid)
    stream.rest()
    assert stream.done["reason"] == "cancelled"


@pytest.mark.slow
def test_cancel_and_delete_during_prefill(launch, tmp_path):
    """A prefill is all or nothing: cancelled, it never was."""
    client = launch(*make_model(tmp_path / "heavy", 8)).client
    inputs = short_rows(1000)
    client.prefill(session="old", inputs=inputs[:1], output="none")
    for name, stop in (
        ("old", lambda: client.cancel("old")),
        ("new", lambda: client.cancel("new")),
        ("new", lambda: client.delete("new")),
    ):
        replies = []
        fields = {"session": name, "inputs": inputs}
        asking = threading.Thread(target=lambda: replies.append(client.post("/prefill", fields)))
        asking.start()
        in_prefill = lambda: client.get(f"/sessions/{name}").json.get("state") == "prefill"
        eventually(in_prefill, "the prefill runs", within=60)
        stop()
        asking.join()
        replies[0].error(409, "cancelled")
        if name == "old":
            assert client.session("old")["length"] == 1
            assert client.verify("old")["bit_identical"]
        else:
            assert not client.exists("new")


def test_ttl(client, sid):
    client.prefill(session=sid, inputs=X[:1], ttl_s=1)
    client.prefill(session=f"{sid}.stays", inputs=X[:1], ttl_s=3600)

    # Looked for in the list: asking for a session itself might count as its use.
    def listed():
        page = client.get("/sessions?limit=1000").ok()
        return {session["session"] for session in page["sessions"]}

    eventually(lambda: sid not in listed(), "the session expires", within=20)
    assert f"{sid}.stays" in listed()
    client.post("/decode", {"session": sid, "input": X[0]}).error(404, "session_not_found")


def test_default_ttl(launch):
    client = launch("--ttl", 1).client
    client.prefill(session="a", inputs=X[:1])
    client.prefill(session="b", inputs=X[:1], ttl_s=0)
    eventually(lambda: client.totals()["sessions"] == 1, "the session expires", within=20)
    assert client.session("b")["ttl_s"] == 0


# -------------------------------------------------------------------- models, health, metrics


def test_models(client):
    found = client.get("/models").ok()
    assert found["default"] == "seed-attention"
    names = [model["name"] for model in found["models"]]
    assert "seed-attention" in names and len(set(names)) == len(names)
    for model in found["models"]:
        assert client.get(f"/models/{model['name']}").ok().keys() == model.keys()
    seed = client.get("/models/seed-attention").ok()
    shape = {
        "model_type": "attention",
        "hidden_size": HIDDEN,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "rope_theta": 10000,
        "max_position_embeddings": 32768,
    }
    assert shape.items() <= seed.items()
    client.get("/models/nobody").error(404, "model_not_found")


def test_model_example_works(client):
    """The example request of every model is a request that works."""
    for model in client.get("/models").ok()["models"]:
        reply = client.prefill(**model["example"])
        assert reply["model"] == model["name"]
        client.delete(reply["session"])


def test_health_and_ready(client):
    for path in ("/health", "/ready"):
        assert client.get(path).ok() == {"status": "ok"}


def test_index(client):
    reply = client.get("/")
    assert reply.status == 200 and reply.content_type == "text/plain"
    assert "curl" in reply.text and "/prefill" in reply.text


def test_head(client, sid):
    client.prefill(session=sid, inputs=X[:1])
    for path in ("/", "/health", "/metrics", "/models", "/openapi.json", f"/sessions/{sid}"):
        head = client.request("HEAD", path)
        assert head.status == 200 and head.body == b""
        assert head.content_type == client.get(path).content_type
    head = client.request("HEAD", f"/sessions/{sid}.nobody")
    assert head.status == 404 and head.body == b""


def test_metrics(client, sid):
    before = client.metrics()
    client.prefill(session=sid, inputs=X[:5])
    client.decode(session=sid, steps=3)
    client.post("/decode", {"session": f"{sid}.nobody"}).error(404, "session_not_found")
    after = client.metrics()

    def grown(name, **labels):
        return after.total(name, **labels) - before.total(name, **labels)

    assert grown("attnd_prefill_tokens_total") == 5
    assert grown("attnd_decode_steps_total") == 3
    assert grown("attnd_requests_total", route="/prefill", code="200") == 1
    assert grown("attnd_requests_total", route="/decode", code="200") == 1
    assert grown("attnd_requests_total", route="/decode", code="404") == 1
    assert after.total("attnd_requests_in_flight") == 0
    (info,) = [key for key in after if key.name == "attnd_build_info"]
    assert {name for name, _ in info.labels} == {"version", "kernels", "numerics"}
    for name in ("batch_size", "queue_seconds", "ttft_seconds", "step_seconds"):
        assert grown(f"attnd_{name}_count") > 0, name
    assert all(key.name.startswith("attnd_") for key in after)


def test_histograms_are_cumulative(client):
    metrics = client.metrics()
    names = {key.name[: -len("_bucket")] for key in metrics if key.name.endswith("_bucket")}
    assert {f"attnd_{n}" for n in ("batch_size", "step_seconds", "http_request_seconds")} <= names
    for name in names:
        series = {}
        for key, value in metrics.items():
            if key.name == f"{name}_bucket":
                labels = dict(key.labels)
                bound = float(labels.pop("le").replace("+Inf", "inf"))
                series.setdefault(frozenset(labels.items()), []).append((bound, value))
        for labels, buckets in series.items():
            counts = [count for _, count in sorted(buckets)]
            assert counts == sorted(counts)
            assert max(buckets)[0] == float("inf")
            assert counts[-1] == metrics.get_value(f"{name}_count", **dict(labels))


def test_metrics_have_help_and_type(client):
    text = client.get("/metrics").text
    described = {line.split()[2] for line in text.splitlines() if line.startswith("# HELP ")}
    typed = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE ")}
    assert described == typed
    for key in client.metrics():
        base = key.name
        for suffix in ("_bucket", "_sum", "_count"):
            if base not in typed and base.endswith(suffix):
                base = base[: -len(suffix)]
        assert base in typed, key.name


def test_raw_paths_are_no_labels(client, sid):
    client.prefill(session=sid, inputs=X[:1])
    client.session(sid)
    client.get(f"/{sid}/nowhere")
    text = client.get("/metrics").text
    assert sid not in text
    assert 'route="/sessions/{id}"' in text


# ------------------------------------------------------------------------ OPTIONS and CORS


def test_options(client):
    for path in ("/prefill", "/decode", "/sessions", "/sessions/a", "/health"):
        reply = client.request("OPTIONS", path)
        assert reply.status == 204
        assert "Access-Control-Allow-Origin" not in reply.headers


def test_cors(launch):
    origin = "https://page.example"
    client = launch("--cors-origin", origin).client
    preflight = client.request(
        "OPTIONS",
        "/prefill",
        headers={
            "Origin": origin,
            "Access-Control-Request-Method": "POST",
            "Access-Control-Request-Headers": "content-type",
        },
    )
    assert preflight.status == 204
    assert preflight.headers["Access-Control-Allow-Origin"] == origin
    allowed = preflight.headers["Access-Control-Allow-Headers"].lower()
    assert "content-type" in allowed and "x-session" in allowed
    assert "POST" in preflight.headers["Access-Control-Allow-Methods"]
    reply = client.get("/health", Origin=origin)
    assert reply.ok() and reply.headers["Access-Control-Allow-Origin"] == origin
    assert "Origin" in reply.headers["Vary"]
    other = client.get("/health", Origin="https://other.example")
    other.error(403, "forbidden_origin")


# ----------------------------------------------------------------------------- not built yet


@pytest.mark.parametrize(
    "method, path",
    [
        ("GET", "/sessions/{}/snapshot"),
        ("PUT", "/sessions/{}/snapshot"),
        ("GET", "/sessions/{}/tokens"),
    ],
)
def test_not_supported(client, sid, method, path):
    client.prefill(session=sid, inputs=X[:1])
    body = b"{}" if method == "POST" else None
    client.request(method, path.format(sid), body).error(501, "not_supported")
    assert client.session(sid)["length"] == 1
