"""Forks and cache dtypes over HTTP."""

import pytest

from data import HIDDEN, PAGE_BYTES, outputs_of, rows, same_bits
from waiting import eventually

X = rows(60)
# K and V of the seed's two KV heads of 8 elements, by dtype.
BYTES = {"f32": 128, "bf16": 64, "f16": 64, "q8": 48}


def fork(client, session, **fields):
    return client.post(f"/sessions/{session}/fork", fields)


def test_fork_shares_pages(client, sid):
    client.prefill(session=sid, inputs=X[:40])
    copy = fork(client, sid, **{"as": f"{sid}.b"}).ok(201)
    assert (copy["session"], copy["length"], copy["state"]) == (f"{sid}.b", 40, "idle")
    assert copy["kv"]["pages"] == 3
    assert copy["kv"]["shared_bytes"] == client.session(sid)["kv"]["shared_bytes"] == 2 * PAGE_BYTES
    client.delete(sid)
    assert client.session(f"{sid}.b")["kv"]["shared_bytes"] == 0
    assert client.verify(f"{sid}.b")["bit_identical"]


@pytest.mark.parametrize("at", [1, 15, 16, 17, 39, 40])
def test_fork_at(client, sid, at):
    """Both sides go on as if alone."""
    client.prefill(session=sid, inputs=X[:40])
    assert fork(client, sid, **{"as": f"{sid}.b", "at": at}).ok(201)["length"] == at
    client.prefill(session=f"{sid}.alone", inputs=X[:at])
    forked = client.decode(session=f"{sid}.b", steps=6)["events"]
    alone = client.decode(session=f"{sid}.alone", steps=6)["events"]
    assert same_bits(outputs_of(forked), outputs_of(alone))
    client.prefill(session=f"{sid}.whole", inputs=X[:40])
    parent = client.decode(session=sid, steps=6)["events"]
    whole = client.decode(session=f"{sid}.whole", steps=6)["events"]
    assert same_bits(outputs_of(parent), outputs_of(whole))
    assert client.verify(sid)["bit_identical"] and client.verify(f"{sid}.b")["bit_identical"]


def test_fork_of_a_busy_session(client, sid):
    client.prefill(session=sid, inputs=X[:4])
    stream = client.stream(session=sid, steps=20000)
    stream.next()
    copy = fork(client, sid, **{"as": f"{sid}.b"}).ok(201)
    assert copy["length"] >= 5
    stream.hang_up()
    eventually(lambda: not client.session(sid)["in_flight"], "the stream to end")
    assert client.verify(f"{sid}.b")["bit_identical"]


def test_fork_refusals(client, sid):
    client.prefill(session=sid, inputs=X[:4])
    fork(client, sid, **{"as": sid}).error(409, "session_exists", "as")
    fork(client, sid, **{"as": ".."}).error(400, "invalid_request", "as")
    fork(client, sid).error(400, "invalid_request", "as")
    fork(client, sid, **{"as": "x", "at": 5}).error(400, "invalid_request", "at")
    fork(client, sid, **{"as": "x", "at": -1}).error(400, "invalid_request", "at")
    fork(client, sid, **{"as": "x", "at": None}).error(400, "invalid_request", "at")
    fork(client, sid, **{"as": "x", "if_length": 3}).error(409, "length_mismatch", "if_length")
    fork(client, sid, **{"as": "x", "model": "y"}).error(400, "invalid_request", None)
    fork(client, f"{sid}.nobody", **{"as": "x"}).error(404, "session_not_found")
    assert not client.exists("x")
    assert client.session(sid)["length"] == 4


@pytest.mark.parametrize("dtype", BYTES)
def test_kv_dtype(client, sid, dtype):
    whole = client.prefill(session=sid, inputs=X, kv_dtype=dtype, output="all")
    assert whole["kv"]["dtype"] == dtype
    assert whole["kv"]["bytes"] == 4 * 16 * BYTES[dtype]
    part = f"{sid}.parts"
    outputs = []
    for first in range(0, len(X), 13):
        reply = client.prefill(
            session=part, inputs=X[first : first + 13], kv_dtype=dtype, output="all"
        )
        outputs += reply["output"]
    assert same_bits(outputs, whole["output"])
    assert client.verify(sid)["bit_identical"]
    copy = fork(client, sid, **{"as": f"{sid}.b", "at": 30}).ok(201)
    assert copy["kv"]["dtype"] == dtype
    again = client.prefill(session=f"{sid}.b", inputs=X[30:], output="all")
    assert same_bits(again["output"], whole["output"][30:])


def test_kv_dtype_must_match(client, sid):
    client.prefill(session=sid, inputs=X[:4], kv_dtype="q8")
    body = {"session": sid, "inputs": X[4:5], "kv_dtype": "f32"}
    client.post("/prefill", body).error(409, "session_exists", "kv_dtype")


def test_models_tell_the_bytes(client):
    assert HIDDEN == 16
    assert client.get("/models/seed-attention").ok()["kv_bytes_per_position"] == BYTES
