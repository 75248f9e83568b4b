"""POST /prefill and POST /decode: every field, and every form of the reply."""

import json
import re
import threading

import numpy as np
import pytest

import contract
from data import HIDDEN, INPUT_BYTES, PAGE_BYTES, bits, make_model, outputs_of, rows, same_bits
from waiting import eventually

X = rows(24)


# ---------------------------------------------------------------------------- prefill


def test_creates_and_appends(client, sid):
    first = client.prefill(session=sid, inputs=X[:3])
    assert (first["session"], first["model"]) == (sid, "seed-attention")
    assert (first["length"], first["appended"]) == (3, 3)
    assert np.shape(first["output"]) == (1, HIDDEN)
    second = client.prefill(session=sid, inputs=X[3:5])
    assert (second["length"], second["appended"]) == (5, 2)
    assert client.session(sid)["length"] == 5


def test_output_selection(client, sid):
    every = client.prefill(session=f"{sid}.all", inputs=X, output="all")
    last = client.prefill(session=f"{sid}.last", inputs=X, output="last")
    default = client.prefill(session=f"{sid}.default", inputs=X)
    none = client.prefill(session=f"{sid}.none", inputs=X, output="none")
    assert np.shape(every["output"]) == (len(X), HIDDEN)
    assert same_bits(last["output"], every["output"][-1:])
    assert same_bits(default["output"], last["output"])
    assert not none.get("output")
    fed = [client.decode(session=f"{sid}.{name}")["output"] for name in ("all", "last", "none")]
    assert same_bits(fed[0], fed[1]) and same_bits(fed[0], fed[2])


def test_server_makes_an_id(client):
    made = {client.prefill(inputs=X[:1])["session"] for _ in range(8)}
    assert len(made) == 8
    for session in made:
        assert re.fullmatch(r"[A-Za-z0-9._:-]{1,64}", session)
        assert client.session(session)["length"] == 1
        client.delete(session)


def test_every_legal_id(client):
    for session in ("a", "Z", "0", "...", "-", "_:.-", "x" * 64, "a.b:c_d-e"):
        assert client.prefill(session=session, inputs=X[:1])["session"] == session
        assert client.session(session)["length"] == 1
        client.delete(session)


def test_if_length(client, sid):
    assert client.prefill(session=sid, inputs=X[:2], if_length=0)["length"] == 2
    retry = client.post("/prefill", {"session": sid, "inputs": X[:2], "if_length": 0})
    error = retry.error(409, "length_mismatch", "if_length")
    assert error["details"]["length"] == 2
    assert client.prefill(session=sid, inputs=X[2:3], if_length=2)["length"] == 3
    decode = {"session": sid, "input": X[3], "if_length": 2}
    client.post("/decode", decode).error(409, "length_mismatch", "if_length")
    assert client.decode(**{**decode, "if_length": 3})["length"] == 4


def test_if_length_of_a_new_session(client, sid):
    reply = client.post("/prefill", {"session": sid, "inputs": X[:2], "if_length": 5})
    reply.error(409, "length_mismatch", "if_length")
    assert not client.exists(sid)


def test_creation_options(client, sid):
    client.prefill(session=sid, inputs=X[:1], kv_dtype="f32", ttl_s=600, keep_inputs=False)
    assert client.session(sid)["ttl_s"] == 600
    assert client.session(sid)["inputs_bytes"] == 0
    again = {"session": sid, "inputs": X[1:2]}
    assert client.prefill(**again)["length"] == 2
    same = {"model": "seed-attention", "kv_dtype": "f32", "ttl_s": 600, "keep_inputs": False}
    assert client.prefill(**again, **same)["length"] == 3
    for field, value in {"ttl_s": 601, "keep_inputs": True}.items():
        client.post("/prefill", {**again, field: value}).error(409, "session_exists", field)
    assert client.session(sid)["length"] == 3


def test_unknown_model(client, sid):
    reply = client.post("/prefill", {"session": sid, "inputs": X[:1], "model": "nobody"})
    reply.error(404, "model_not_found", "model")
    assert not client.exists(sid)


def test_kept_inputs_are_counted(client, sid):
    client.prefill(session=sid, inputs=X[:5])
    client.decode(session=sid, steps=2)
    session = client.session(sid)
    assert session["inputs_bytes"] >= 7 * INPUT_BYTES
    assert session["kv"]["bytes"] == PAGE_BYTES


def test_prefill_reply_tells_the_cache(client, sid):
    reply = client.prefill(session=sid, inputs=X[:17])
    assert reply["kv"] == {
        "dtype": "f32",
        "bytes": 2 * PAGE_BYTES,
        "shared_bytes": 0,
        "reserved_bytes": 0,
        "pages": 2,
    }
    assert reply["kv"] == client.session(sid)["kv"]


# ----------------------------------------------------------------------------- decode


def test_decode_input(client, sid):
    client.prefill(session=sid, inputs=X[:4])
    reply = client.decode(session=sid, input=X[4])
    assert (reply["done"], reply["reason"], reply["session"]) == (True, "length", sid)
    assert (reply["length"], reply["steps"]) == (5, 1)
    (event,) = reply["events"]
    assert (event["step"], event["position"], event["length"]) == (0, 4, 5)
    assert same_bits(reply["output"], event["output"])
    fresh = client.prefill(session=f"{sid}.fresh", inputs=X[:5])
    assert same_bits([reply["output"]], fresh["output"])


def test_decode_inputs(client, sid):
    client.prefill(session=sid, inputs=X[:4])
    reply = client.decode(session=sid, inputs=X[4:9])
    assert (reply["length"], reply["steps"]) == (9, 5)
    assert [event["step"] for event in reply["events"]] == [0, 1, 2, 3, 4]
    assert [event["position"] for event in reply["events"]] == [4, 5, 6, 7, 8]
    assert "output" not in reply
    fresh = client.prefill(session=f"{sid}.fresh", inputs=X[:9], output="all")
    assert same_bits(outputs_of(reply["events"]), fresh["output"][4:])


def test_one_row_of_inputs_is_a_single_step(client, sid):
    client.prefill(session=sid, inputs=X[:4])
    reply = client.decode(session=sid, inputs=X[4:5])
    assert same_bits(reply["output"], reply["events"][0]["output"])


def test_decode_feeds_its_output_back(client, sid):
    """decode with nothing = decode with the last output as input, bit for bit."""
    prefill = client.prefill(session=sid, inputs=X[:4])
    chained = client.decode(session=sid, steps=6)
    assert (chained["steps"], chained["length"]) == (6, 10)
    other = f"{sid}.fed"
    client.prefill(session=other, inputs=X[:4])
    fed, row = [], prefill["output"][-1]
    for _ in range(6):
        row = client.decode(session=other, input=row)["output"]
        fed.append(row)
    assert same_bits(outputs_of(chained["events"]), fed)


def test_decode_default_is_one_step(client, sid):
    client.prefill(session=sid, inputs=X[:4])
    reply = client.decode(session=sid)
    assert (reply["steps"], reply["length"]) == (1, 5)
    assert same_bits(reply["output"], reply["events"][0]["output"])


def test_decode_continues_a_decode(client, sid):
    """decode(10) = decode(5) + decode(5)."""
    for name in ("whole", "halves"):
        client.prefill(session=f"{sid}.{name}", inputs=X[:4])
    whole = client.decode(session=f"{sid}.whole", steps=10)["events"]
    halves = [client.decode(session=f"{sid}.halves", steps=5)["events"] for _ in range(2)]
    assert same_bits(outputs_of(whole), outputs_of(halves[0] + halves[1]))


def test_decode_of_no_session(client, sid):
    reply = client.post("/decode", {"session": sid, "input": X[0]})
    reply.error(404, "session_not_found", "session")
    assert not client.exists(sid)


def test_decode_at_length_0(client, sid):
    client.prefill(session=sid, inputs=X[:4])
    client.truncate(sid, 0)
    for fields in ({}, {"steps": 3}, {"stream": True}):
        client.post("/decode", {"session": sid, **fields}).error(400, "invalid_request")
    reply = client.decode(session=sid, input=X[0])
    fresh = client.prefill(session=f"{sid}.fresh", inputs=X[:1])
    assert same_bits([reply["output"]], fresh["output"])


def test_context_length(launch, tmp_path):
    flags = make_model(
        tmp_path / "short",
        1,
        hidden=16,
        heads=4,
        kv_heads=2,
        head_dim=8,
        max_position_embeddings=20,
    )
    client = launch(*flags).client
    reply = client.post("/prefill", {"session": "a", "inputs": X[:21]})
    details = reply.error(400, "context_length_exceeded")["details"]
    assert details == {"length": 0, "requested": 21, "limit": 20}
    assert not client.exists("a")
    client.prefill(session="a", inputs=X[:18])
    details = client.post("/decode", {"session": "a", "steps": 3}).error(
        400, "context_length_exceeded"
    )["details"]
    assert details == {"length": 18, "requested": 3, "limit": 20}
    assert client.decode(session="a", steps=2)["length"] == 20


# -------------------------------------------------------------------------- forms of the reply


@pytest.mark.parametrize("fields", [{"steps": 5}, {"inputs": X[4:9]}, {"input": X[4]}])
def test_forms_agree(client, sid, fields):
    """NDJSON, SSE and one object carry the same numbers, bit for bit."""
    for name in ("plain", "ndjson", "sse"):
        client.prefill(session=f"{sid}.{name}", inputs=X[:4])
    plain = client.decode(session=f"{sid}.plain", **fields)
    found = {}
    for name, accept in (("ndjson", contract.NDJSON), ("sse", contract.SSE)):
        stream = client.stream(session=f"{sid}.{name}", accept=accept, **fields)
        steps = stream.rest()
        assert [step["step"] for step in steps] == list(range(len(plain["events"])))
        assert stream.done["reason"] == "length"
        assert stream.done["steps"] == len(steps) == plain["steps"]
        assert stream.done["length"] == plain["length"]
        found[name] = steps
    assert found["ndjson"] == found["sse"] == plain["events"]
    assert same_bits(outputs_of(found["sse"]), outputs_of(plain["events"]))


def test_stream_is_ndjson_unless_asked(client, sid):
    client.prefill(session=sid, inputs=X[:4])
    for accept in (
        None,
        "*/*",
        "application/x-ndjson;q=0.5, application/json",
        "text/event-stream;q=0.5, application/x-ndjson;q=0.6",
    ):
        headers = {"Accept": accept} if accept else {}
        connection = client.send("POST", "/decode", {"session": sid, "stream": True}, headers)
        response = connection.getresponse()
        assert response.headers["Content-Type"] == contract.NDJSON, accept
        assert len(response.read().splitlines()) == 2
        connection.close()


def test_stream_headers(client, sid):
    client.prefill(session=sid, inputs=X[:4])
    stream = client.stream(session=sid, steps=1)
    assert stream.headers["Cache-Control"] == "no-store"
    assert stream.headers["X-Accel-Buffering"] == "no"
    stream.rest()


def test_stream_refused_before_its_first_step(client, sid):
    """An error of the first step is a reply, not a stream."""
    reply = client.post("/decode", {"session": sid, "steps": 2, "stream": True})
    reply.error(404, "session_not_found")


def test_floats_are_the_shortest_text(client, sid):
    """Every number reads back to its float32, and no shorter text would."""
    reply = client.post("/prefill", {"session": sid, "inputs": rows(64, seed=3), "output": "all"})
    text = reply.text
    start = text.index('"output":') + len('"output":')
    numbers = re.findall(r"-?[0-9][0-9.eE+-]*", text[start : text.index("]]", start)])
    assert len(numbers) == 64 * HIDDEN
    for number in numbers:
        value = np.float32(number)
        digits = re.sub(r"[eE].*|\D", "", number).strip("0")
        mantissa = np.format_float_scientific(value, unique=True, trim="-").split("e")[0]
        assert digits == re.sub(r"\D", "", mantissa).strip("0"), number


def test_numbers_may_be_written_in_any_way(client, sid):
    """Integers, exponents, long decimals: the same row."""
    texts = {
        "plain": "0.5,1,-2,0.25,0,0,0,0,3,0.1,100,-0.001,0,0,0,1",
        "odd": "5e-1,1.0,-20E-1,2.5e-1,0.0,0e9,0E-9,0,3.000000000000000000000000,"
        "0.1000000000000000055511151231257827,1e+2,-1e-3,0,0,0,10.0e-1",
    }
    outputs = []
    for name, text in texts.items():
        body = f'{{"session":"{sid}.{name}","inputs":[[{text}]]}}'.encode()
        outputs.append(client.request("POST", "/prefill", body).ok()["output"])
    assert same_bits(*outputs)


def test_largest_and_smallest_floats(client, sid):
    """What rounds to a finite float32 is one: up to half a step past FLT_MAX, down to nothing."""
    row = b"3.4028235677973366e38,-1e-46,1.17549435e-38,1e-45" + b",0" * (HIDDEN - 4)
    body = b'{"session":"%s","inputs":[[%s]]}' % (sid.encode(), row)
    reply = client.request("POST", "/prefill", body)
    assert reply.status in (200, 422)  # its sums may overflow, but it was read


def test_body_layout(client, sid):
    """White space, key order and escaped keys are JSON's business, not ours."""
    row = json.dumps(X[0].tolist())
    bodies = [
        f'{{"inputs":[{row}],"session":"{sid}"}}',
        f'\r\n\t {{ "\\u0073ession" : "{sid}" ,\n "inputs"\t:\n[ {row} ] }} \n',
    ]
    for length, body in enumerate(bodies, 1):
        assert client.request("POST", "/prefill", body.encode()).ok()["length"] == length


@pytest.mark.parametrize(
    "content_type",
    [
        "application/json",
        "application/json; charset=utf-8",
        "Application/JSON",
        "application/x-www-form-urlencoded",
    ],
)
def test_content_types(client, sid, content_type):
    body = json.dumps({"session": sid, "inputs": X[:1].tolist()}).encode()
    reply = client.request("POST", "/prefill", body, {"Content-Type": content_type})
    assert reply.ok()["length"] == 1


def test_x_session(client, sid):
    fields = {"session": sid, "inputs": X[:1]}
    assert client.post("/prefill", fields, **{"X-Session": sid}).ok()["length"] == 1
    assert client.get(f"/sessions/{sid}", **{"X-Session": sid}).ok()["length"] == 1


def test_chunked_body(client, sid):
    body = json.dumps({"session": sid, "inputs": X[:3].tolist()}).encode()
    sock = client.connect()
    sock.sendall(
        b"POST /prefill HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n"
        b"Content-Type: application/json\r\nConnection: close\r\n\r\n"
    )
    for at in range(0, len(body), 100):
        piece = body[at : at + 100]
        sock.sendall(b"%x\r\n%s\r\n" % (len(piece), piece))
    sock.sendall(b"0\r\n\r\n")
    with sock.makefile("rb") as file:
        answer = file.read()
    sock.close()
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert client.session(sid)["length"] == 3


# ------------------------------------------------------------------------- waiting for a busy one


def test_wait_ms(client, sid):
    """A busy session is worth waiting for; both requests then happen, one after the other."""
    client.prefill(session=sid, inputs=X[:4])
    stream = client.stream(session=sid, steps=3000, receive_bytes=4096)
    stream.next()
    client.post("/decode", {"session": sid}).error(409, "session_busy", "session")
    client.post("/prefill", {"session": sid, "inputs": X[:1], "wait_ms": 1}).error(
        409, "session_busy", "session"
    )
    replies = []
    waiting = threading.Thread(
        target=lambda: replies.append(
            client.post("/prefill", {"session": sid, "inputs": X[4:5], "wait_ms": 60000})
        )
    )
    waiting.start()
    eventually(lambda: client.metrics().total("attnd_queue_depth") >= 1, "the request waits")
    steps = 1 + len(stream.rest())
    waiting.join()
    assert steps == 3000
    assert replies[0].ok()["length"] == 4 + 3000 + 1
    assert bits(replies[0].json["output"]).shape == (1, HIDDEN)
    client.delete(sid)
