"""Bodies of safetensors, both ways: what JSON says, bit for bit, and what it refuses."""

import json
import struct

import numpy as np
import pytest

from data import HIDDEN, bits, make_model, rows, same_bits
from inside import SAFETENSORS, get, same, traced
from language import ids_of, words_tokenizer, write_golden, write_tokenizer
from waiting import all_at_once

import safetensors_io

X = rows(40)
TYPE = {"Content-Type": SAFETENSORS}
PATTERN = "blocks.0.attn.hook_pattern"


def metadata_of(fields):
    """Fields as strings: strings as they are, JSON text of the rest."""
    return {k: v if isinstance(v, str) else json.dumps(v) for k, v in fields.items()}


def pack(tensors=None, **fields):
    return safetensors_io.pack(tensors or {}, metadata_of(fields))


def post(client, path, tensors=None, **fields):
    """A request whose body is safetensors, with a reply of JSON."""
    return client.post(path, pack(tensors, **fields), **TYPE)


def fetch(client, path, body, **headers):
    """(tensors, metadata) of a reply of safetensors; the metadata's JSON texts are read."""
    reply = client.post(path, body, **headers, Accept=SAFETENSORS)
    assert reply.status == 200, reply.body[:500]
    assert reply.content_type == SAFETENSORS
    tensors, metadata = safetensors_io.unpack(reply.body)
    text = ("session", "model", "reason", "text", "position", "first_key", "heads", "kv_heads")
    return tensors, {
        k: v if k in text or k.startswith("quant.") else json.loads(v) for k, v in metadata.items()
    }


@pytest.fixture(scope="module")
def words(launch_for_module, tmp_path_factory):
    """A server with a language model, whose every id is text of its own."""
    folder = write_golden("llama-gqa", tmp_path_factory.mktemp("models") / "words")
    write_tokenizer(folder, words_tokenizer(320))
    return launch_for_module("--model", folder, "--threads", 2, "--kv-memory", "64MiB").client


# ------------------------------------------------------------------------------------- there


def test_requests(client, sid):
    """A prefill and steps, by tensors and by JSON: the same replies."""
    trace = {"tensors": ["hook_pattern"], "top_k": 2}
    fields = {"output": "all", "if_length": 0, "kv_dtype": "f16", "ttl_s": 500, "trace": trace}
    left = client.prefill(session=f"{sid}.a", inputs=X[:6], **fields)
    right = post(client, "/prefill", {"inputs": X[:6]}, session=f"{sid}.b", **fields).ok()
    assert same_bits(left["output"], right["output"])
    assert (left["tensors"], left["top_k"]) == (right["tensors"], right["top_k"])
    assert left["kv"] == right["kv"]
    for tensors, more in (
        ({"inputs": X[6:9]}, {}),
        ({"input": X[9]}, {}),
        ({}, {"steps": 3}),
        ({}, {}),
    ):
        a = client.decode(session=f"{sid}.a", **tensors, **more)
        b = post(client, "/decode", tensors, session=f"{sid}.b", **more).ok()
        assert same_bits(*(sum((step["output"] for step in run["events"]), []) for run in (a, b)))
        assert a["length"] == b["length"]
    about = client.session(f"{sid}.b")
    assert (about["ttl_s"], about["kv"]["dtype"]) == (500, "f16")


def test_streams(client, sid):
    """A stream that safetensors asked for comes as NDJSON."""
    client.prefill(session=sid, inputs=X[:3])
    client.post(f"/sessions/{sid}/fork", {"as": f"{sid}.f"}).ok(201)
    body = pack({"inputs": X[3:9]}, session=sid, stream=True)
    connection = client.send("POST", "/decode", body, TYPE)
    response = connection.getresponse()
    assert response.headers["Content-Type"] == "application/x-ndjson"
    lines = [json.loads(line) for line in response.read().splitlines()]
    connection.close()
    steps = client.decode(session=f"{sid}.f", inputs=X[3:9])["events"]
    assert lines[:-1] == steps and lines[-1]["done"]


def test_arrays_as_text(client, sid):
    """Numbers may be text in the metadata too."""
    reply = post(client, "/prefill", session=sid, inputs=X[:2].tolist(), output="last").ok()
    left = client.prefill(session=f"{sid}.j", inputs=X[:2])
    assert same_bits(reply["output"], left["output"])


def test_odd_strings(client, sid):
    """Escapes, spaces around values, and a session's name are read as what they say."""
    header = (
        b'{ "__metadata__" : {"sess\\u0069on":"%s","output":"n\\u006fne" , "if_length":" 0 ", '
        b'"keep_inputs":"\\u0066alse"} ,"inputs":{"shape":[1, 16],"data_offsets":[0,64],'
        b'"dtype":"F\\u00332"}}   \n' % sid.encode()
    )
    body = struct.pack("<Q", len(header)) + header + X[0].tobytes()
    reply = client.post("/prefill", body, **TYPE).ok()
    assert (reply["session"], reply["length"]) == (sid, 1) and "output" not in reply


@pytest.mark.parametrize("shift", range(8))
def test_any_alignment(client, sid, shift):
    """The data is read wherever it lies."""
    body = pack({"inputs": X[:4]}, session=sid, output="all")
    (n,) = struct.unpack_from("<Q", body)
    body = struct.pack("<Q", n + shift) + body[8 : 8 + n] + b" " * shift + body[8 + n :]
    left = client.prefill(session=f"{sid}.j", inputs=X[:4], output="all")
    assert same_bits(client.post("/prefill", body, **TYPE).ok()["output"], left["output"])


def test_every_float(client, sid):
    """Subnormals, -0 and the largest numbers arrive as they are."""
    values = np.array(
        [0, 0x80000000, 1, 0x807FFFFF, 0x00800000, 0x7F7FFFFF, 0xFF7FFFFF, 0x3F800001] * 2,
        np.uint32,
    ).view(np.float32)[None, :]
    post(client, "/prefill", {"inputs": values * np.float32(1)}, session=sid, output="none").ok()
    kept, _ = get(client, sid, "hook_embed")
    assert same(kept, values)


@pytest.mark.parametrize("dtype", [np.int32, np.uint32, np.int64])
def test_tokens(words, sid, dtype):
    """Token ids of three dtypes; sampling fields as text."""
    ids = [1, 5, 9, 13]
    left = words.prefill(session=f"{sid}.a", tokens=ids, logits=True)
    right = post(
        words, "/prefill", {"tokens": np.array(ids, dtype)}, session=f"{sid}.b", logits=True
    ).ok()
    assert right["tokens"] == ids and right["next"] == left["next"]
    assert same_bits(left["logits"], right["logits"])
    fields = {
        "steps": 8,
        "temperature": 0.7,
        "top_k": 50,
        "top_p": 0.9,
        "min_p": 1e-3,
        "repetition_penalty": 1.25,
        "seed": 11,
        "stop": ["zzz", '"'],
        "ignore_eos": True,
        "logprobs": 2,
    }
    a = words.decode(session=f"{sid}.a", **fields, stop_token_ids=[])
    stop_ids = {"stop_token_ids": np.array([], dtype)}
    b = post(words, "/decode", stop_ids, session=f"{sid}.b", **fields).ok()
    assert a["events"] == b["events"] and a["text"] == b["text"]
    a = words.decode(session=f"{sid}.a", tokens=[7, 8])
    b = post(words, "/decode", {"tokens": np.array([7, 8], dtype)}, session=f"{sid}.b").ok()
    assert ids_of(a["events"]) == ids_of(b["events"]) == [7, 8]


def test_text(words, sid):
    """Text that looks like JSON is text."""
    for text in ("et a", '"', '{"a":1}', "3", "true", "null", "日\u00e9\n"):
        left = words.prefill(text=text, session=f"{sid}.{len(text)}.a")
        right = post(words, "/prefill", text=text, session=f"{sid}.{len(text)}.b").ok()
        assert left["tokens"] == right["tokens"]
        for side in "ab":
            words.delete(f"{sid}.{len(text)}.{side}")


# ------------------------------------------------------------------------------------- back


def test_prefill_replies(client, sid):
    trace = {"tensors": ["hook_pattern", "hook_z"], "top_k": 3, "dtype": "U8"}
    for output in ("last", "all", "none"):
        fields = {"inputs": X[:7], "output": output, "trace": trace}
        left = client.prefill(session=f"{sid}.{output}.a", **fields)
        tensors, metadata = fetch(client, "/prefill", {"session": f"{sid}.{output}.b", **fields})
        inside, about = traced(left)
        for name, array in inside.items():
            assert same(tensors.pop(name), array)
        if output != "none":
            assert (bits(tensors.pop("output")) == bits(left["output"])).all()
        assert not tensors
        assert metadata["session"] == f"{sid}.{output}.b"
        assert metadata["top_k"] == left["top_k"] and metadata["kv"] == left["kv"]
        assert metadata["model"] == left["model"]
        assert (metadata["length"], metadata["appended"]) == (7, 7)
        assert metadata["timing"]["compute_ms"] >= 0
        assert metadata[f"quant.{PATTERN}"] == "sqrt255"
        assert about["position"] == metadata["position"] == "0"


def test_decode_replies(client, sid):
    """Several steps; one with its inside; both ways at once."""
    client.prefill(session=sid, inputs=X[:3])
    client.post(f"/sessions/{sid}/fork", {"as": f"{sid}.f"}).ok(201)
    left = client.decode(session=sid, inputs=X[3:9])
    body = pack({"inputs": X[3:9]}, session=f"{sid}.f")
    tensors, metadata = fetch(client, "/decode", body, **TYPE)
    assert list(tensors) == ["output"]
    assert (bits(tensors["output"]) == bits([step["output"] for step in left["events"]])).all()
    assert metadata.pop("timing")["queue_ms"] >= 0
    assert metadata == {
        "done": True,
        "session": f"{sid}.f",
        "reason": "length",
        "length": 9,
        "steps": 6,
    }
    trace = {"tensors": ["hook_pattern"], "top_k": 2}
    left = client.decode(session=sid, trace=trace)["events"][0]
    tensors, metadata = fetch(client, "/decode", {"session": f"{sid}.f", "trace": trace})
    assert (bits(tensors["output"][0]) == bits(left["output"])).all()
    assert same(tensors[PATTERN], traced(left)[0][PATTERN])
    assert metadata["top_k"] == left["top_k"] and metadata["position"] == "9"
    reply = client.post("/decode", {"session": sid, "steps": 2, "trace": trace}, Accept=SAFETENSORS)
    reply.error(400, "invalid_request", "trace")
    reply = client.post("/decode", {"session": sid, "stream": True}, Accept=SAFETENSORS)
    reply.error(406, "not_acceptable", None)
    assert client.session(sid)["length"] == 10
    stream = client.send(
        "POST",
        "/decode",
        {"session": sid, "stream": True, "trace": trace, "steps": 2},
        {"Accept": f"{SAFETENSORS}, application/x-ndjson"},
    )
    response = stream.getresponse()
    assert response.headers["Content-Type"] == "application/x-ndjson"
    assert len(response.read().splitlines()) == 3
    stream.close()


def test_language_replies(words, sid):
    left = words.prefill(session=f"{sid}.a", text="et", logits=True, output="all")
    tensors, metadata = fetch(
        words, "/prefill", {"session": f"{sid}.b", "text": "et", "logits": True, "output": "all"}
    )
    assert tensors["tokens"].dtype == np.int32 and tensors["tokens"].tolist() == left["tokens"]
    assert (bits(tensors["logits"]) == bits(left["logits"])).all()
    assert (bits(tensors["output"]) == bits(left["output"])).all()
    assert metadata["next"] == left["next"]
    fields = {"steps": 9, "temperature": 1, "seed": 3, "logprobs": 2, "ignore_eos": True}
    left = words.decode(session=f"{sid}.a", **fields)
    tensors, metadata = fetch(words, "/decode", {"session": f"{sid}.b", **fields})
    assert tensors["tokens"].dtype == np.int32
    assert tensors["tokens"].tolist() == ids_of(left["events"])
    assert metadata["text"] == left["text"] and metadata["seed"] == 3
    assert metadata["logprobs"] == [step["logprobs"] for step in left["events"]]
    stop = words.decode(session=f"{sid}.a", steps=3, stop_token_ids=list(range(320)))
    assert stop["steps"] == 0
    tensors, metadata = fetch(
        words, "/decode", {"session": f"{sid}.b", "steps": 3, "stop_token_ids": list(range(320))}
    )
    assert tensors["tokens"].shape == (0,) and metadata["reason"] == "stop"


def test_errors_are_json(client, sid):
    reply = client.post("/decode", {"session": sid}, Accept=SAFETENSORS)
    reply.error(404, "session_not_found", "session")


def test_large_bodies(launch, tmp_path):
    """Bodies and replies of megabytes, several at once, off the loop."""
    flags = make_model(tmp_path / "wide", 1, hidden=512, heads=4, kv_heads=1, head_dim=16)
    client = launch(*flags, "--threads", 2, "--kv-memory", "128MiB").client
    x = rows(1024, 512)

    def both(i):
        body = pack({"inputs": x}, session=f"s{i}", output="all")
        return lambda: fetch(client, "/prefill", body, **TYPE)

    replies = all_at_once([both(i) for i in range(4)])
    for tensors, _ in replies[1:]:
        assert same(tensors["output"], replies[0][0]["output"])
    assert replies[0][0]["output"].shape == (1024, 512)


# ------------------------------------------------------------------------------------ refused


def blob(header, data=b"", n=None):
    """A body of that header (an object, or bytes) and data."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if n is None else n) + text + data


def entry(dtype="F32", shape=(1, HIDDEN), offsets=(0, 64), **more):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets), **more}


ROW = X[0].tobytes()
GOOD = {"__metadata__": {"session": "bad"}, "inputs": entry()}
BAD_FLOATS = [
    ("NaN", 0x7FC00000),
    ("signalling NaN", 0x7F800001),
    ("-NaN", 0xFFC00000),
    ("Infinity", 0x7F800000),
    ("-Infinity", 0xFF800000),
]


def with_word(i, word):
    return ROW[: 4 * i] + struct.pack("<I", word) + ROW[4 * i + 4 :]


def inputs(*args, **kwargs):
    return {"inputs": entry(*args, **kwargs)}


def wide(shape):
    """64 bytes of data, said to be of that shape."""
    return blob(inputs(shape=shape), ROW)


# name -> body, code, param
BODIES = {
    "short": (b"\1\0\0\0\0\0\0", "invalid_request", None),
    "one byte": (b"{", "invalid_request", None),
    "no header": (blob(b""), "invalid_request", None),
    "header of spaces": (blob(b"        "), "invalid_request", None),
    "space before the header": (
        blob(b" " + json.dumps(GOOD).encode(), ROW),
        "invalid_request",
        None,
    ),
    "header length past the body": (blob(GOOD, ROW, 1000), "invalid_request", None),
    "header length 2^63": (blob(GOOD, ROW, 1 << 63), "invalid_request", None),
    "header length 2^64-1": (blob(GOOD, ROW, (1 << 64) - 1), "invalid_request", None),
    "header length 2^64-8": (blob(GOOD, ROW, (1 << 64) - 8), "invalid_request", None),
    "header length too small": (blob(GOOD, ROW, 20), "invalid_json", None),
    "header length too large": (blob(GOOD, ROW, len(json.dumps(GOOD)) + 8), "invalid_json", None),
    "header over 1 MiB": (
        blob(json.dumps(GOOD).encode() + b" " * (1 << 20), ROW),
        "invalid_request",
        None,
    ),
    "not JSON": (blob(b"{]", ROW), "invalid_json", None),
    "a list": (blob(b"[]", ROW), "invalid_request", None),
    "JSON behind": (blob(json.dumps(GOOD).encode() + b"{}", ROW), "invalid_json", None),
    "NUL": (blob(json.dumps(GOOD).encode() + b"\0", ROW), "invalid_json", None),
    "bad UTF-8": (blob(b'{"inp\xffuts":{}}'), "invalid_json", None),
    "too deep": (blob(b'{"inputs":' * 40 + b"1" + b"}" * 40), "invalid_json", None),
    "nothing": (blob({}), "invalid_request", "inputs"),
    "no tensors": (blob({"__metadata__": {"session": "bad"}}), "invalid_request", "inputs"),
    "unknown tensor": (blob({"x": entry()}, ROW), "invalid_request", None),
    "unknown tensor more": (
        blob({**GOOD, "x": entry(offsets=(64, 128))}, ROW * 2),
        "invalid_request",
        None,
    ),
    "scalar as tensor": (blob({**GOOD, "ttl_s": entry()}, ROW), "invalid_request", None),
    "tensor twice": (
        blob(json.dumps(GOOD)[:-1].encode() + b',"inputs":%s}' % json.dumps(entry()).encode(), ROW),
        "invalid_request",
        "inputs",
    ),
    "tensor twice, escaped": (
        blob(json.dumps(GOOD)[:-1].encode() + b',"inp\\u0075ts":{}}', ROW),
        "invalid_request",
        "inputs",
    ),
    "metadata twice": (
        blob(json.dumps(GOOD)[:-1].encode() + b',"__metadata__":{}}', ROW),
        "invalid_request",
        "__metadata__",
    ),
    "tensor and text": (
        blob({**GOOD, "__metadata__": {"inputs": "[[1]]"}}, ROW),
        "invalid_request",
        "inputs",
    ),
    "inputs and tokens": (
        blob({**GOOD, "tokens": entry("I32", [4], (64, 80))}, ROW + b"\0" * 16),
        "invalid_request",
        "tokens",
    ),
    "metadata a list": (blob({**GOOD, "__metadata__": []}, ROW), "invalid_request", "__metadata__"),
    "metadata null": (blob({**GOOD, "__metadata__": None}, ROW), "invalid_request", "__metadata__"),
    "metadata unknown": (blob({**GOOD, "__metadata__": {"x": "1"}}, ROW), "invalid_request", None),
    "metadata number": (
        blob({**GOOD, "__metadata__": {"if_length": 0}}, ROW),
        "invalid_request",
        "if_length",
    ),
    "metadata nested": (
        blob({**GOOD, "__metadata__": {"trace": {}}}, ROW),
        "invalid_request",
        "trace",
    ),
    "metadata name twice": (
        blob(b'{"__metadata__":{"session":"a","session":"b"}}'),
        "invalid_request",
        "session",
    ),
    "metadata NUL": (blob(b'{"__metadata__":{"session":"a\\u0000b"}}'), "invalid_json", None),
    **{
        f"metadata {name} {text!r}": (
            blob({**GOOD, "__metadata__": {name: text}}, ROW),
            "invalid_request",
            name,
        )
        for name, text in (
            ("session", ""),
            ("session", '"a"'),
            ("session", "a b"),
            ("session", "x" * 65),
            ("if_length", ""),
            ("if_length", "x"),
            ("if_length", "-1"),
            ("if_length", "1.0"),
            ("if_length", "0,"),
            ("if_length", '0,"session":"b"'),
            ("if_length", '0,"if_length":0'),
            ("if_length", "0}"),
            ("if_length", "0} {"),
            ("if_length", '"0"'),
            ("if_length", "null"),
            ("if_length", "9007199254740993"),
            ("if_length", "[0]"),
            ("wait_ms", "3600001"),
            ("keep_inputs", "1"),
            ("keep_inputs", "True"),
            ("keep_inputs", '"true"'),
            ("kv_dtype", '"f32"'),
            ("kv_dtype", "F32"),
            ("output", "some"),
            ("trace", "hook_z"),
            ("trace", "[]"),
            ("ttl_s", "4294967296"),
            ("ttl_s", "1 2"),
        )
    },
    "tensor a list": (blob({"inputs": []}), "invalid_request", "inputs"),
    "tensor null": (blob({"inputs": None}), "invalid_request", "inputs"),
    "tensor empty": (blob({"inputs": {}}), "invalid_request", "inputs"),
    "no dtype": (
        blob({"inputs": {"shape": [1, 16], "data_offsets": [0, 64]}}, ROW),
        "invalid_request",
        "inputs",
    ),
    "more in a tensor": (blob(inputs(x=1), ROW), "invalid_request", "inputs"),
    **{
        f"dtype {dtype}": (blob(inputs(dtype=dtype), ROW), "invalid_request", "inputs")
        for dtype in (
            "F64",
            "F16",
            "BF16",
            "I32",
            "U32",
            "f32",
            "",
            "F32 ",
            "F32" * 9,
            32,
            None,
            ["F32"],
        )
    },
    **{
        f"shape {shape}": (wide(shape), "invalid_request", "inputs")
        for shape in (
            [],
            [16],
            [1, 1, 16],
            [16, 1, 1],
            [2, 16],
            [1, 15],
            [1, 17],
            [0, 16],
            [1, 0],
            [0, 0],
            [16, 0],
            [-1, 16],
            [1.0, 16],
            ["1", 16],
            [None, 16],
            [[1], 16],
            [1 << 53, 16],
            [1 << 32, 1 << 32],
            [1 << 53, 1 << 53],
            [(1 << 62) + 1, 16],
            [1 << 64, 16],
            [1] * 20,
        )
    },
    **{
        f"offsets {offsets}": (blob(inputs(offsets=offsets), ROW), "invalid_request", "inputs")
        for offsets in (
            [],
            [0],
            [0, 64, 64],
            [0, 63],
            [0, 65],
            [1, 65],
            [4, 68],
            [64, 0],
            [64, 128],
            [-64, 0],
            [0, 1 << 53],
            [(1 << 53) - 64, 1 << 53],
            [1 << 63, (1 << 63) + 64],
            [0.0, 64],
            ["0", 64],
            [(1 << 64) - 64, 0],
            [None, 64],
        )
    },
    "shape of columns": (wide([16, 1]), "invalid_request", "inputs"),
    "shape of rows": (wide([4, 4]), "invalid_request", "inputs"),
    "no data": (blob(inputs()), "invalid_request", "inputs"),
    "data cut": (blob(inputs(), ROW[:-1]), "invalid_request", "inputs"),
    "data longer": (blob(inputs(), ROW + b"\0"), "invalid_request", None),
    "hole before": (blob(inputs(offsets=(4, 68)), b"\0" * 4 + ROW), "invalid_request", "inputs"),
    "hole between": (
        blob({**GOOD, "tokens": entry("I32", [4], (68, 84))}, ROW + b"\0" * 20),
        "invalid_request",
        "tokens",
    ),
    "overlap": (
        blob({**GOOD, "tokens": entry("I32", [4], (48, 64))}, ROW),
        "invalid_request",
        "tokens",
    ),
    "same place": (
        blob({**GOOD, "tokens": entry("I32", [16], (0, 64))}, ROW),
        "invalid_request",
        "tokens",
    ),
    **{
        f"{name} at {i}": (blob(inputs(), with_word(i, word)), "invalid_request", "inputs")
        for name, word in BAD_FLOATS
        for i in (0, 7, 15)
    },
    "NaN behind a block": (
        blob(inputs(shape=(1, 19), offsets=(0, 76)), ROW + b"\0" * 8 + b"\0\0\xc0\x7f"),
        "invalid_request",
        "inputs",
    ),
    "tokens of rows": (
        blob({"tokens": entry("I32", [1, 4], (0, 16))}, b"\0" * 16),
        "invalid_request",
        "tokens",
    ),
    "tokens F32": (
        blob({"tokens": entry("F32", [4], (0, 16))}, b"\0" * 16),
        "invalid_request",
        "tokens",
    ),
    "tokens U64": (
        blob({"tokens": entry("U64", [2], (0, 16))}, b"\0" * 16),
        "invalid_request",
        "tokens",
    ),
    "tokens U8": (
        blob({"tokens": entry("U8", [4], (0, 4))}, b"\0" * 4),
        "invalid_request",
        "tokens",
    ),
    "no tokens": (blob({"tokens": entry("I32", [0], (0, 0))}), "invalid_request", "tokens"),
    "token -1": (
        blob({"tokens": entry("I32", [2], (0, 8))}, struct.pack("<ii", 0, -1)),
        "invalid_request",
        "tokens",
    ),
    "token -2^63": (
        blob({"tokens": entry("I64", [1], (0, 8))}, struct.pack("<q", -(1 << 63))),
        "invalid_request",
        "tokens",
    ),
    "token 2^53+1": (
        blob({"tokens": entry("I64", [1], (0, 8))}, struct.pack("<q", (1 << 53) + 1)),
        "invalid_request",
        "tokens",
    ),
}


@pytest.mark.parametrize("body, code, param", list(BODIES.values()), ids=list(BODIES))
def test_hostile_bodies(witness, body, code, param):
    client = witness.client
    before = client.totals()
    client.post("/prefill", body, **TYPE).error(400, code, param)
    assert not client.exists("bad")
    assert client.totals() == before
    assert client.get("/health").status == 200


def test_every_prefix(witness):
    """A body cut anywhere is refused; nothing of it is kept."""
    body = blob(GOOD, ROW)
    for n in range(1, len(body), 7):
        assert witness.client.post("/prefill", body[:n], **TYPE).status == 400
    assert not witness.client.exists("bad")


def test_good_one(witness):
    """What the hostile ones were made of is taken; ids are checked by the engine."""
    reply = witness.client.post("/prefill", blob(GOOD, ROW), **TYPE).ok()
    assert reply["length"] == 1
    witness.client.delete("bad")


def test_session_is_needed(witness):
    post(witness.client, "/decode").error(400, "invalid_request", "session")
    post(witness.client, "/decode", session="witness", steps=0).error(
        400, "invalid_request", "steps"
    )
    reply = witness.client.post("/decode", pack(session="witness"), **TYPE, **{"X-Session": "b"})
    reply.error(400, "invalid_request", "session")


def test_token_out_of_range(words, sid):
    for dtype, token in ((np.uint32, 0xFFFFFFFF), (np.int64, 1 << 53), (np.int32, 320)):
        post(words, "/prefill", {"tokens": np.array([1, token], dtype)}, session=sid).error(
            400, "token_out_of_range"
        )
    assert not words.exists(sid)


def test_other_routes_take_json(witness):
    for path in ("/sessions/witness/fork", "/sessions/witness/verify", "/tokenize"):
        reply = witness.client.post(path, pack(text="a"), **TYPE)
        reply.error(415, "unsupported_media_type")
    reply = witness.client.get("/models", Accept=SAFETENSORS)
    reply.error(406, "not_acceptable")


def test_max_body(launch):
    client = launch("--threads", 1, "--kv-memory", "16MiB", "--max-body", "64KiB").client
    body = pack({"inputs": rows(1100)}, session="a")
    client.post("/prefill", body, **TYPE).error(413, "body_too_large")
    body = pack({"inputs": rows(1000)}, session="a", output="all")
    client.post("/prefill", body, **TYPE).error(413, "tensor_too_large", "output")
    tensors, _ = fetch(client, "/prefill", body, **TYPE)
    assert tensors["output"].shape == (1000, HIDDEN)
