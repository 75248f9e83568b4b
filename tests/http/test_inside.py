"""Looking inside: every tensor of every position, exactly, without changing any bit."""

import json

import numpy as np
import pytest

from client import hang_up
from data import bits, golden, make_model, model_flags, outputs_of, rows, same_bits
from inside import (
    MIB,
    SAFETENSORS,
    close,
    get,
    get_json,
    is_cache,
    kinds_of,
    path,
    same,
    strongest,
    traced,
)
from language import flags_of, ids_of, write_golden
from waiting import eventually

SEED = "seed-attention"
PATTERN = "blocks.0.attn.hook_pattern"
SCORES = "blocks.0.attn.hook_attn_scores"
Z = "blocks.0.attn.hook_z"
KEY = "past_key_values.0.key"
LANGUAGE = ["minimind-dense", "llama-bias", "qwen3-untied"]
ROWS_IN = ["chain3", "mha-nonorm", "many-heads", "minimind-layer", "mqa"]
X = rows(40)


def has_keys(name):
    return is_cache(name) or name.endswith(("hook_attn_scores", "hook_pattern"))


def ranges(name, first, end):
    """What of a tensor belongs to the positions [first, end)."""
    if is_cache(name):
        return {"k": f"0:{end}"}
    return {"q": f"{first}:{end}", **({"k": f"0:{end}"} if has_keys(name) else {})}


def check_same_by_get(client, session, tensors, first, end):
    """Each tensor comes with the same bits as safetensors and, if it is small, as JSON."""
    for name, array in tensors.items():
        found, metadata = get(client, session, name, **ranges(name, first, end))
        assert same(found, array), name
        assert metadata["session"] == session
        listed, reply = get_json(client, session, name, **ranges(name, first, end))
        assert same(listed, array), name
        if "q" in reply:
            assert reply["q"] == [first, end]
        if "k" in reply:
            assert reply["k"] == [0, end]


def check_pattern(scores, pattern, first):
    """Rows sum to 1; what causality hides is -inf and 0, exactly."""
    assert np.abs(pattern.sum(axis=-1, dtype=np.float64) - 1).max() < 1e-6
    n_queries, n_keys = pattern.shape[1:]
    hidden = np.arange(n_keys)[None, :] > first + np.arange(n_queries)[:, None]
    assert (pattern[:, hidden] == 0).all() and np.isneginf(scores[:, hidden]).all()
    assert np.isfinite(scores[:, ~hidden]).all() and (pattern >= 0).all()


# --------------------------------------------------------------------------------- reference


def test_example6(client, sid):
    """A prefill and three steps: every tensor is PyTorch's, traced and asked for later alike."""
    tensors, _ = golden("example6")
    trace = {"tensors": kinds_of(client, SEED)}
    inputs = [tensors[f"call{i}.inputs"][0] for i in range(4)]
    replies = [client.prefill(session=sid, inputs=inputs[0], output="all", trace=trace)]
    replies += [client.decode(session=sid, input=row[0], trace=trace) for row in inputs[1:]]
    first = 0
    for i, reply in enumerate(replies):
        end = reply["length"]
        found, metadata = traced(reply["events"][0] if i else reply)
        assert metadata["position"] == str(first) and metadata["first_key"] == "0"
        assert metadata["heads"] == "0,1,2,3" and metadata["kv_heads"] == "0,1"
        expected = {
            key.split(".", 1)[1]: array[0]
            for key, array in tensors.items()
            if key.startswith(f"call{i}.") and "hook" in key or f"call{i}.past" in key
        }
        cache = [name for name in expected if is_cache(name)]
        cache = {name: get(client, sid, name, k=f"0:{end}")[0] for name in cache}
        check_same_by_get(client, sid, cache, first, end)
        assert set(expected) | {"hook_embed", "blocks.0.hook_resid_pre"} == {*found, *cache}
        for name, array in expected.items():
            close((cache if is_cache(name) else found)[name], array)
        check_pattern(found[SCORES], found[PATTERN], first)
        assert same(found["hook_embed"], inputs[i])
        # What feeds the output has its bits.
        output = [reply["output"]] if i else reply["output"]
        assert same_bits(found["blocks.0.hook_attn_out"], output)
        assert same(found["blocks.0.attn.hook_rot_k"], cache[KEY][first:])
        assert same(found["blocks.0.attn.hook_v"], cache["past_key_values.0.value"][first:])
        check_same_by_get(client, sid, found, first, end)
        first = end


@pytest.mark.parametrize("name", ROWS_IN)
def test_random_models(launch, sid, name):
    client = launch(*model_flags(name), "--threads", 2, "--kv-memory", "64MiB").client
    tensors, _ = golden(name)
    inputs = tensors["inputs"][:18]
    check_golden_trace(client, sid, name, name, {"inputs": inputs[:15]}, {"inputs": inputs[15:]})


@pytest.fixture(scope="module")
def zoo(launch_for_module, tmp_path_factory):
    """A server with language models."""
    top = tmp_path_factory.mktemp("zoo")
    folders = [write_golden(name, top / name) for name in LANGUAGE]
    return launch_for_module(*flags_of(folders), "--threads", 2, "--kv-memory", "128MiB").client


@pytest.mark.parametrize("name", LANGUAGE)
def test_language_models(zoo, sid, name):
    tokens = golden(f"lm-{name}")[0]["tokens"][:18].tolist()
    check_golden_trace(
        zoo, sid, name, f"lm-{name}", {"tokens": tokens[:15]}, {"tokens": tokens[15:]}
    )


def check_golden_trace(client, sid, model, file, before, traced_positions):
    expected, metadata = golden(f"trace-{file}")
    assert metadata["first_row"] == "15"
    trace = {"tensors": kinds_of(client, model)}
    client.prefill(session=sid, model=model, **before)
    found, _ = traced(client.prefill(session=sid, **traced_positions, trace=trace))
    for name, array in expected.items():
        close(get(client, sid, name, k="15:18")[0] if is_cache(name) else found[name], array)
    assert {name for name in expected if not is_cache(name)} <= set(found)
    for name in found:
        if name.endswith("hook_pattern"):
            check_pattern(found[name.replace("pattern", "attn_scores")], found[name], 15)
    check_same_by_get(client, sid, found, 15, 18)


def test_language_steps(zoo, sid):
    """Sampled steps are traced too, and nothing changes for it."""
    fields = {"steps": 6, "temperature": 0.8, "seed": 5, "ignore_eos": True}
    trace = {"tensors": ["hook_pattern", "hook_resid_post"], "layers": [1], "top_k": 3}
    runs = []
    for session, more in ((sid, {}), (f"{sid}.traced", {"trace": trace})):
        zoo.prefill(session=session, model="llama-bias", tokens=[1, 2, 3, 4])
        runs.append(zoo.decode(session=session, **fields, **more))
    plain, run = runs
    assert ids_of(run["events"]) == ids_of(plain["events"])
    for step in run["events"]:
        found, metadata = traced(step)
        assert set(found) == {"blocks.1.attn.hook_pattern", "blocks.1.hook_resid_post"}
        assert metadata["position"] == str(step["position"])
        check_same_by_get(zoo, f"{sid}.traced", found, step["position"], step["length"])


# ---------------------------------------------------------------------------------- the forms


def test_models_list_their_tensors(client, zoo):
    """Each listed name, with a layer in it, can be asked for and has those axes."""
    for server, model, more in (
        (client, SEED, {"inputs": X[:5]}),
        (zoo, "qwen3-untied", {"tokens": [1, 2, 3, 4, 5]}),
        (zoo, "llama-bias", {"tokens": [1, 2, 3, 4, 5]}),
    ):
        about = server.get(f"/models/{model}").ok()
        session = f"axes.{model}"
        server.prefill(session=session, model=model, **more)
        size = {
            "queries": 5,
            "keys": 5,
            "heads": about["num_attention_heads"],
            "kv_heads": about["num_key_value_heads"],
            "head_dim": about["head_dim"],
            "hidden_size": about["hidden_size"],
        }
        names = [entry["name"] for entry in about["tensors"]]
        assert len(set(names)) == len(names)
        assert any("normed" in name for name in names) == about["qk_norm"]
        assert any("mlp" in name for name in names) == (model != SEED)
        for entry in about["tensors"]:
            array, _ = get(server, session, entry["name"].replace("{l}", "0"))
            assert list(array.shape) == [size[axis] for axis in entry["axes"]]
        server.delete(session)


def test_u8(client, sid):
    """U8 is round(255 sqrt(p)) in every form; the rest of a trace stays F32."""
    trace = {"tensors": ["hook_pattern", "hook_z"], "dtype": "U8"}
    reply = client.prefill(session=sid, inputs=X[:20], trace=trace)
    exact, _ = get(client, sid, PATTERN)
    expected = (np.float32(255) * np.sqrt(exact) + np.float32(0.5)).astype(np.uint8)
    found, metadata = traced(reply)
    assert same(found[PATTERN], expected)
    assert metadata[f"quant.{PATTERN}"] == "sqrt255"
    assert same(found[Z], get(client, sid, Z)[0])
    found, metadata = get(client, sid, PATTERN, dtype="U8")
    assert same(found, expected) and metadata[f"quant.{PATTERN}"] == "sqrt255"
    assert same(get_json(client, sid, PATTERN, dtype="U8")[0], expected)


def test_top_k(client, sid):
    """The k strongest keys, as numpy finds them; equal weights (equal rows) by key."""
    inputs = X[[0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3]]
    inputs[4:8] = 0  # rows of zeros: their scores are equal
    for k in (1, 3, 12, 200):
        session = f"{sid}.{k}"
        reply = client.prefill(session=session, inputs=inputs, trace={"top_k": k})
        assert "tensors" not in reply
        check_top(client, session, reply["top_k"], 11, k)
        both = {"top_k": k, "tensors": ["hook_z"], "heads": [3, 1]}
        step = client.decode(session=session, input=X[5], trace=both)["events"][0]
        assert set(traced(step)[0]) == {Z}
        check_top(client, session, step["top_k"], 12, k, heads=[1, 3])


def check_top(client, session, top, position, k, heads=range(4)):
    pattern, _ = get(client, session, PATTERN, q=f"{position}:{position + 1}")
    assert [(entry["layer"], entry["head"]) for entry in top] == [(0, head) for head in heads]
    for entry in top:
        keys, weights = strongest(pattern[entry["head"], 0], k)
        assert entry["keys"] == keys
        assert same_bits(entry["weights"], weights)


def test_heads_and_ranges(client, sid):
    """Query head h reads KV head h / 2; parts are parts of the whole, bit for bit."""
    client.prefill(session=sid, inputs=X[:20])
    whole = {name: get(client, sid, name)[0] for name in (PATTERN, SCORES, Z, KEY)}
    trace = {"tensors": ["hook_q", "hook_rot_k", "hook_pattern"], "heads": [3]}
    found, metadata = traced(client.prefill(session=f"{sid}.b", inputs=X[:20], trace=trace))
    assert (metadata["heads"], metadata["kv_heads"]) == ("3", "1")
    assert same(found[PATTERN], whole[PATTERN][3:])
    assert same(found["blocks.0.attn.hook_rot_k"], whole[KEY][:, 1:])
    query = "blocks.0.attn.hook_q"
    assert same(found[query], get(client, sid, query, heads="3")[0])
    for name in (PATTERN, SCORES):
        array, reply = get_json(client, sid, name, q="7:9", k="3:6", heads="0,2-3")
        assert same(array, whole[name][[0, 2, 3], 7:9, 3:6])
        assert (reply["q"], reply["k"], reply["heads"]) == ([7, 9], [3, 6], [0, 2, 3])
        array, metadata = get(client, sid, name, q="7:9", k="3:6", heads="0,2-3")
        assert same(array, whole[name][[0, 2, 3], 7:9, 3:6])
        assert (metadata["position"], metadata["first_key"]) == ("7", "3")
        assert metadata["heads"] == "0,2,3"
        # Without k the keys end where the queries do.
        assert same(get(client, sid, name, q="7:9")[0], whole[name][:, 7:9, :9])
        assert same(get(client, sid, name, q=":3")[0], whole[name][:, :3, :3])
    assert same(get(client, sid, Z, q="19:", heads="2")[0], whole[Z][19:, 2:3])
    array, metadata = get(client, sid, KEY, k="4:7", heads="1")
    assert same(array, whole[KEY][4:7, 1:])
    # The metadata tells of the axes that there are, and of no others.
    told = {"position", "first_key", "heads", "kv_heads"}
    assert {k: metadata[k] for k in told & set(metadata)} == {"first_key": "4", "kv_heads": "1"}
    metadata = get(client, sid, Z, q="5:", heads="2")[1]
    assert {k: metadata[k] for k in told & set(metadata)} == {"position": "5", "heads": "2"}
    # A reply of all heads, by KV group: scores of both query heads come from the same keys.
    q, _ = get(client, sid, "blocks.0.attn.hook_rot_q")
    for head in range(4):
        scores = q[:, head] @ whole[KEY][:, head // 2].T / np.sqrt(np.float32(8))
        hidden = np.isneginf(whole[SCORES][head])
        assert np.abs(scores - whole[SCORES][head])[~hidden].max() < 1e-4


def test_accept_and_head(client, sid):
    client.prefill(session=sid, inputs=X[:2])
    for accept in (
        None,
        "*/*",
        "application/json",
        "application/*",
        f"{SAFETENSORS};q=0.5, application/json",
        f"{SAFETENSORS}; q=0.799, */*;q=0.8",
        f"{SAFETENSORS};q=0, application/*;q=0.1",
        f"{SAFETENSORS};q=0.001, application/json;level=1;Q=0.01",
    ):
        headers = {"Accept": accept} if accept else {}
        assert client.get(path(sid, Z), **headers).content_type == "application/json", accept
    for accept in (
        f"application/json, {SAFETENSORS}",
        f"{SAFETENSORS};q=0.5, application/json;q=0.4",
        f"*/*;q=0.9, {SAFETENSORS};q=1.000",
        f"application/json;q=0, {SAFETENSORS};q=0.001",
        "application/*;q=0.5, application/json;q=0.4",
    ):
        assert client.get(path(sid, Z), Accept=accept).content_type == SAFETENSORS, accept
    client.get(path(sid, Z), Accept="image/png").error(406, "not_acceptable")
    client.get(path(sid, Z), Accept=f"{SAFETENSORS};q=0").error(406, "not_acceptable")
    reply = client.request("HEAD", path(sid, Z), headers={"Accept": SAFETENSORS})
    assert reply.status == 200 and reply.content_type == SAFETENSORS and reply.body == b""
    whole = client.get(path(sid, Z), Accept=SAFETENSORS)
    assert reply.headers["Content-Length"] == str(len(whole.body))


# ----------------------------------------------------------------------------------- the laws


@pytest.mark.parametrize("kv_dtype", ["f32", "q8"])
def test_rows_stay_what_they_were(client, sid, kv_dtype):
    """Looked at after 1,000 further steps, a fork and a truncate: the bits of its own step."""
    trace = {"tensors": kinds_of(client, SEED)}
    client.prefill(session=sid, inputs=X[:4], kv_dtype=kv_dtype)
    then, _ = traced(client.decode(session=sid, input=X[4], trace=trace)["events"][0])
    then = {**then, KEY: get(client, sid, KEY)[0]}
    client.decode(session=sid, steps=1000)
    check_same_by_get(client, sid, then, 4, 5)
    fork = f"{sid}.fork"
    client.post(f"/sessions/{sid}/fork", {"as": fork}).ok(201)
    check_same_by_get(client, fork, then, 4, 5)
    client.truncate(sid, 5)
    check_same_by_get(client, sid, then, 4, 5)
    client.decode(session=sid, input=X[9])
    check_same_by_get(client, sid, then, 4, 5)
    client.delete(sid)
    check_same_by_get(client, fork, then, 4, 5)
    client.truncate(fork, 6)
    check_same_by_get(client, fork, then, 4, 5)


def test_tracing_changes_no_bit(client, sid):
    """L3: prefill, steps, streams and what follows are the same traced and not."""
    trace = {"tensors": kinds_of(client, SEED), "top_k": 4}
    runs = {}
    for name, more in (("plain", {}), ("traced", {"trace": trace})):
        session = f"{sid}.{name}"
        first = client.prefill(session=session, inputs=X[:9], output="all", **more)
        one = client.decode(session=session, inputs=X[9:14], **more)
        many = client.stream(session=session, steps=20, **more).rest()
        get(client, session, PATTERN)
        last = client.decode(session=session, steps=3)
        assert client.verify(session)["bit_identical"]
        runs[name] = first["output"] + outputs_of(one["events"] + many + last["events"])
    assert same_bits(runs["plain"], runs["traced"])


def test_streamed_and_not(client, sid):
    """The same traces whether streamed, as events, or in one reply."""
    trace = {"tensors": ["hook_pattern", "hook_rot_q"], "top_k": 2}
    runs = []
    for form in ("whole", "application/x-ndjson", "text/event-stream"):
        session = f"{sid}.{len(runs)}"
        client.prefill(session=session, inputs=X[:3])
        fields = {"session": session, "inputs": X[3:20], "trace": trace}
        if form == "whole":
            runs.append(client.decode(**fields)["events"])
        else:
            stream = client.stream(accept=form, **fields)
            runs.append(stream.rest())
            assert stream.done["steps"] == 17
    assert runs[0] == runs[1] == runs[2]
    assert traced(runs[0][5])[1]["position"] == "8"


def test_busy_sessions_are_looked_into(client, sid):
    """While a stream runs, or rather waits for its reader."""
    client.prefill(session=sid, inputs=X[:6])
    before = {name: get(client, sid, name)[0] for name in (PATTERN, Z, KEY)}
    stream = client.stream(session=sid, steps=20000, receive_bytes=4096)
    stream.next()
    assert client.session(sid)["in_flight"]
    for name, array in before.items():
        assert same(get(client, sid, name, **ranges(name, 0, 6))[0], array)
    length = client.session(sid)["length"]
    pattern, _ = get(client, sid, PATTERN, q=f"{length - 1}:{length}")
    assert pattern.shape == (4, 1, length)
    client.post("/decode", {"session": sid}).error(409, "session_busy")
    client.cancel(sid)
    stream.rest()
    assert stream.done["reason"] == "cancelled"
    assert same(get(client, sid, PATTERN, q=f"{length - 1}:{length}")[0], pattern)


# ------------------------------------------------------------------------------- large traces


@pytest.fixture(scope="module")
def tight(launch_for_module):
    """A server where little may be in flight, with a session of 1,500 positions."""
    limits = ["--kv-memory", "64MiB", "--body-memory", "32MiB"]
    client = launch_for_module("--threads", 2, *limits).client
    client.prefill(session="long", inputs=rows(1500), output="none")
    return client


LARGE = {"tensors": ["hook_pattern", "hook_attn_scores"]}  # 48 KB a step, and growing


def nothing_is_held(client):
    """All of --body-memory is there again: a request that needs most of it is served."""

    def served():
        reply = client.get(path("long", PATTERN, q="760:1456", k="0:1456"), Accept=SAFETENSORS)
        assert reply.status in (200, 503), reply.body[:500]
        return reply.status == 200 and len(reply.body) > 15 * MIB

    eventually(served, "the memory of requests comes back", within=20)


def test_slow_reader_of_large_lines(tight):
    """Lines made off the loop reach a reader who takes them bit by bit, in order and whole."""
    tight.post("/sessions/long/fork", {"as": "slow"}).ok(201)
    stream = tight.stream(session="slow", steps=30, trace=LARGE, receive_bytes=4096)
    first = stream.next()
    assert tight.get("/health").ok()
    steps = [first, *stream.rest()]
    assert [step["step"] for step in steps] == list(range(30))
    for step in steps[::7]:
        found, _ = traced(step)
        array, _ = get(tight, "slow", PATTERN, q=f"{step['position']}:{step['length']}")
        assert same(found[PATTERN], array)
    tight.delete("slow")
    nothing_is_held(tight)


def test_vanishing_readers_of_large_lines(tight):
    for reset in (False, True) * 4:
        tight.post("/sessions/long/fork", {"as": "gone"}).ok(201)
        stream = tight.stream(session="gone", steps=3000, trace=LARGE, receive_bytes=4096)
        if reset:
            stream.next()
        stream.hang_up(reset)
        eventually(lambda: not tight.session("gone")["in_flight"], "the run ends")
        tight.delete("gone")
    nothing_is_held(tight)


def test_gone_before_the_tensor(tight):
    """Clients that ask for much and leave."""
    for reset in (False, True) * 4:
        target = path("long", PATTERN, q="760:1456")
        connection = tight.send("GET", target, headers={"Accept": SAFETENSORS})
        hang_up(connection.sock, reset)
    nothing_is_held(tight)
    metrics = tight.metrics()
    assert metrics.total("attnd_requests_in_flight") <= 1


# -------------------------------------------------------------------------------- wrong wishes


@pytest.fixture(scope="module")
def many_heads(launch_for_module, tmp_path_factory):
    """A model whose pattern grows quickly: 128 heads."""
    folder = tmp_path_factory.mktemp("models") / "many"
    flags = make_model(folder, 1, hidden=16, heads=128, kv_heads=1, head_dim=2)
    return launch_for_module(*flags, "--threads", 2, "--kv-memory", "64MiB").client


def refuses(client, session, n):
    """The whole pattern of n positions is refused, with its size."""
    error = client.get(path(session, PATTERN, q=f"0:{n}"), Accept=SAFETENSORS).error(
        413, "tensor_too_large"
    )
    assert error["details"]["bytes"] == n * n * 128 * 4 > 16 * MIB
    assert error["details"]["limit"] == 16 * MIB


@pytest.mark.slow
def test_a_billion_cells(many_heads):
    many_heads.prefill(session="b", model="many", inputs=rows(2800), output="none")
    before = many_heads.totals()
    refuses(many_heads, "b", 2800)
    assert many_heads.totals() == before


def test_too_large(many_heads):
    """A little too much is refused at once; a little less is not."""
    client = many_heads
    client.prefill(session="m", model="many", inputs=rows(400), output="none")
    before = client.totals()
    for n in (400, 182):
        refuses(client, "m", n)
    array, _ = get(client, "m", PATTERN, q="0:181")
    assert array.shape == (128, 181, 181)
    # As JSON less.
    error = client.get(path("m", PATTERN, q="0:23")).error(413, "tensor_too_large")
    assert error["details"]["bytes"] == 23 * 23 * 128 * 4
    assert get_json(client, "m", PATTERN, q="0:22")[0].shape == (128, 22, 22)
    # What is not there is missing, however large it would be.
    client.get(path("m", "blocks.0.hook_resid_post")).error(404, "tensor_not_found", "name")
    body = {"session": "n", "inputs": rows(200), "model": "many"}
    whole = {"tensors": ["hook_pattern"], "top_k": 1}
    error = client.post("/prefill", body | {"trace": whole}).error(413, "tensor_too_large", "trace")
    assert error["details"]["bytes"] == 200 * 200 * 128 * 4
    assert not client.exists("n")
    # The strongest keys need the last row alone.
    reply = client.post("/prefill", body | {"trace": {"top_k": 1}}).ok()
    row, _ = get(client, "n", PATTERN, q="199:200")
    assert [top["keys"][0] for top in reply["top_k"]] == row[:, 0].argmax(axis=1).tolist()
    client.delete("n")
    assert client.totals() == before


def wish(name, target, status, code, param, **headers):
    return pytest.param(target, status, code, param, headers, id=name)


def about(name, **query):
    return path("witness", name, **query)


WISHES = [
    wish("no session", path("nobody", Z), 404, "session_not_found", "session"),
    wish("bad session id", "/sessions/a%20b/tensors/" + Z, 404, "session_not_found", "session"),
    wish("layer 99", about("blocks.99.attn.hook_z"), 404, "tensor_not_found", "name"),
    wish("layer 255", about("blocks.255.attn.hook_z"), 404, "tensor_not_found", "name"),
    wish("layer 256", about("blocks.256.attn.hook_z"), 404, "tensor_not_found", "name"),
    wish(
        "layer 999999999", about("past_key_values.999999999.key"), 404, "tensor_not_found", "name"
    ),
    wish("layer too long", about("blocks.4294967296.attn.hook_z"), 404, "tensor_not_found", "name"),
    wish("layer 00", about("blocks.00.attn.hook_z"), 404, "tensor_not_found", "name"),
    wish("layer -1", about("blocks.-1.attn.hook_z"), 404, "tensor_not_found", "name"),
    wish("no layer", about("blocks..attn.hook_z"), 404, "tensor_not_found", "name"),
    wish("kind only", about("hook_pattern"), 404, "tensor_not_found", "name"),
    wish("unknown", about("blocks.0.attn.hook_nothing"), 404, "tensor_not_found", "name"),
    wish("other models' tensor", about("blocks.0.hook_mlp_out"), 404, "tensor_not_found", "name"),
    wish("no block", about("attn.hook_z"), 404, "tensor_not_found", "name"),
    wish("format", about("blocks.%u.attn.hook_z"), 404, "tensor_not_found", "name"),
    wish("1,000 characters", about("b" * 1000), 404, "tensor_not_found", "name"),
    wish("63 characters", about("b" * 63), 404, "tensor_not_found", "name"),
    wish("64 characters", about("b" * 64), 404, "tensor_not_found", "name"),
    wish("trailing space", about(Z + " "), 404, "tensor_not_found", "name"),
    wish("not UTF-8", f"/sessions/witness/tensors/{Z}%ff", 404, "tensor_not_found", "name"),
    wish("NUL", f"/sessions/witness/tensors/{Z}%00", 404, "tensor_not_found", "name"),
    wish("slash", "/sessions/witness/tensors/blocks%2F0", 404, "not_found", None),
    wish("no name", "/sessions/witness/tensors/", 404, "not_found", None),
    *[
        wish(f"q {q!r}", about(Z, q=q), 400, "invalid_request", "q")
        for q in (
            "",
            ":",
            "3",
            "a:b",
            "2:1",
            "2:2",
            "7:",
            "0:8",
            "7:8",
            "-1:3",
            "0:3:4",
            "0 :3",
            "0x1:3",
            "1e3:",
            "99999999999999:",
            "0:9999999999999999999999",
            "0:1.0",
            "0:3 ",
            "+1:3",
        )
    ],
    *[
        wish(f"k {k!r}", about(PATTERN, k=k), 400, "invalid_request", "k")
        for k in ("", ":", "3", "2:1", "2:2", "7:", "0:8", "5:100", "999999999999999:")
    ],
    wish("k past q", about(PATTERN, q="1:3", k="0:4"), 400, "invalid_request", "k"),
    wish("cache past its end", about(KEY, k="0:8"), 400, "invalid_request", "k"),
    wish("q of the cache", about(KEY, q="0:1"), 400, "invalid_request", "q"),
    wish("k of rows", about(Z, k="0:1"), 400, "invalid_request", "k"),
    wish(
        "heads of rows", about("blocks.0.hook_attn_out", heads="0"), 400, "invalid_request", "heads"
    ),
    *[
        wish(f"heads {heads!r}", about(Z, heads=heads), 400, "invalid_request", "heads")
        for heads in ("", "a", "0,", ",0", "3-1", "0-", "-1", "256", "0-256", "99999999999", "0 ,1")
    ],
    wish("head 4", about(Z, heads="4"), 404, "tensor_not_found", "heads"),
    wish("heads to 255", about(Z, heads="0-255"), 404, "tensor_not_found", "heads"),
    wish("KV head 2", about(KEY, heads="2"), 404, "tensor_not_found", "heads"),
    *[
        wish(f"dtype {dtype!r}", about(PATTERN, dtype=dtype), 400, "invalid_request", "dtype")
        for dtype in ("", "f32", "u8", "F16", "BF16", "F32 ", "U8U8")
    ],
    wish("U8 scores", about(SCORES, dtype="U8"), 400, "invalid_request", "dtype"),
    wish("unknown parameter", about(Z, layer="0"), 400, "invalid_request", None),
    wish("q twice", about(Z) + "?q=0:1&q=0:1", 400, "invalid_request", "q"),
    wish("dtype twice", about(Z) + "?dtype=F32&q=0:1&dtype=F32", 400, "invalid_request", "dtype"),
    wish("X-Session of another", about(Z), 400, "invalid_request", "session", **{"X-Session": "b"}),
    wish("as image", about(Z), 406, "not_acceptable", None, Accept="image/png"),
    wish("as frames", about(Z), 406, "not_acceptable", None, Accept="application/x-attnd-frames"),
]


@pytest.mark.parametrize("target, status, code, param, headers", WISHES)
def test_wrong_wishes(witness, target, status, code, param, headers):
    before = witness.client.totals()
    witness.client.get(target, **headers).error(status, code, param)
    assert witness.client.totals() == before
    assert witness.client.get("/health").status == 200


def test_wrong_methods(witness):
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        witness.client.request(method, about(Z)).error(405, "method_not_allowed")
    assert witness.client.request("HEAD", about("blocks.9.attn.hook_z")).status == 404
    assert witness.client.request("OPTIONS", about(Z)).status == 204
    witness.client.request("GET", about(Z), {"q": "0:1"}).error(400, "invalid_request")


def test_foreign_and_former_sessions(launch):
    """Nobody's, deleted and expired sessions are not there; one that keeps no inputs says so."""
    client = launch("--threads", 1, "--kv-memory", "16MiB").client
    client.prefill(session="gone", inputs=X[:3])
    client.delete("gone")
    client.get(path("gone", Z)).error(404, "session_not_found", "session")
    client.prefill(session="brief", inputs=X[:3], ttl_s=1)
    eventually(lambda: not client.exists("brief"), "the session expires")
    client.get(path("brief", Z)).error(404, "session_not_found", "session")
    trace = {"tensors": ["hook_z", "hook_rot_k"]}
    bare = client.prefill(session="bare", inputs=X[:3], keep_inputs=False, trace=trace)
    client.get(path("bare", Z)).error(409, "inputs_not_kept")
    client.get(path("bare", SCORES)).error(409, "inputs_not_kept")
    # The cache is there all the same.
    assert same(get(client, "bare", KEY)[0], traced(bare)[0]["blocks.0.attn.hook_rot_k"])
    client.delete("bare")
    assert client.totals()["sessions"] == 0
    assert client.totals()["available_bytes"] == client.totals()["budget_bytes"]


TRACES = [
    ("a string", "hook_z", 400, "invalid_request", "trace"),
    ("null", None, 400, "invalid_request", "trace"),
    ("a list", ["hook_z"], 400, "invalid_request", "trace"),
    ("nothing", {}, 400, "invalid_request", "tensors"),
    ("no tensors", {"tensors": []}, 400, "invalid_request", "tensors"),
    ("layers only", {"layers": [0]}, 400, "invalid_request", "tensors"),
    ("unknown field", {"tensors": ["hook_z"], "x": 1}, 400, "invalid_request", "trace"),
    ("unknown tensor", {"tensors": ["hook_y"]}, 400, "invalid_request", "tensors"),
    ("the cache", {"tensors": ["key"]}, 400, "invalid_request", "tensors"),
    ("whole name", {"tensors": [Z]}, 400, "invalid_request", "tensors"),
    ("empty name", {"tensors": [""]}, 400, "invalid_request", "tensors"),
    ("long name", {"tensors": ["h" * 1000]}, 400, "invalid_request", "tensors"),
    ("twice", {"tensors": ["hook_z", "hook_z"]}, 400, "invalid_request", "tensors"),
    ("number", {"tensors": [1]}, 400, "invalid_request", "tensors"),
    ("too many", {"tensors": ["hook_z"] * 100}, 400, "invalid_request", "tensors"),
    ("other models' tensor", {"tensors": ["hook_mlp_out"]}, 404, "tensor_not_found", "tensors"),
    ("layer 1", {"tensors": ["hook_z"], "layers": [1]}, 404, "tensor_not_found", "layers"),
    ("layer 255", {"tensors": ["hook_z"], "layers": [0, 255]}, 404, "tensor_not_found", "layers"),
    ("layer 256", {"tensors": ["hook_z"], "layers": [256]}, 400, "invalid_request", "layers"),
    ("no layers", {"tensors": ["hook_z"], "layers": []}, 400, "invalid_request", "layers"),
    ("layer -1", {"tensors": ["hook_z"], "layers": [-1]}, 400, "invalid_request", "layers"),
    ("layer 0.5", {"tensors": ["hook_z"], "layers": [0.5]}, 400, "invalid_request", "layers"),
    ("head 4", {"tensors": ["hook_z"], "heads": [4]}, 404, "tensor_not_found", "heads"),
    ("head 2^53", {"tensors": ["hook_z"], "heads": [1 << 53]}, 400, "invalid_request", "heads"),
    ("no heads", {"tensors": ["hook_z"], "heads": []}, 400, "invalid_request", "heads"),
    ("heads as text", {"tensors": ["hook_z"], "heads": "0-3"}, 400, "invalid_request", "heads"),
    ("top_k 257", {"top_k": 257}, 400, "invalid_request", "top_k"),
    ("top_k 0", {"top_k": 0}, 400, "invalid_request", "tensors"),
    ("top_k true", {"top_k": True}, 400, "invalid_request", "top_k"),
    ("dtype", {"tensors": ["hook_z"], "dtype": "F16"}, 400, "invalid_request", "dtype"),
    ("dtype null", {"tensors": ["hook_z"], "dtype": None}, 400, "invalid_request", "dtype"),
    ("huge", {"tensors": ["hook_z"], "heads": [0] * 20000}, 400, "invalid_request", "trace"),
]


@pytest.mark.parametrize(
    "trace, status, code, param", [case[1:] for case in TRACES], ids=[case[0] for case in TRACES]
)
def test_wrong_traces(witness, trace, status, code, param):
    client = witness.client
    before = client.totals()
    client.post("/prefill", {"session": "bad", "inputs": X[:2], "trace": trace}).error(
        status, code, param
    )
    assert not client.exists("bad")
    for more in ({}, {"stream": True}):
        client.post("/decode", {"session": "witness", "trace": trace, **more}).error(
            status, code, param
        )
    assert client.totals() == before


def test_duplicate_keys_in_a_trace(witness):
    body = json.dumps({"session": "bad", "inputs": X[:2].tolist()})[:-1]
    for trace in ('{"top_k":1,"top_k":1}', '{"top_k":1,"top\\u005fk":1}'):
        reply = witness.client.post("/prefill", f'{body},"trace":{trace}}}'.encode())
        reply.error(400, "invalid_request", "top_k")
    reply = witness.client.post("/prefill", f'{body},"trace":{{"top_k":1}}'.encode())
    reply.error(400, "invalid_json", None)


def test_sessions_see_only_themselves(client, sid):
    """Two sessions of other rows: neither's tensors hold the other's; empty ones hold nothing."""
    client.prefill(session=f"{sid}.a", inputs=X[:4])
    client.prefill(session=f"{sid}.b", inputs=X[4:8])
    a, _ = get(client, f"{sid}.a", "hook_embed")
    b, _ = get(client, f"{sid}.b", "hook_embed")
    assert (bits(a) == bits(X[:4])).all() and (bits(b) == bits(X[4:8])).all()
    client.truncate(f"{sid}.a", 0)
    client.get(path(f"{sid}.a", Z)).error(400, "invalid_request", "q")
    client.get(path(f"{sid}.a", KEY)).error(400, "invalid_request", "k")
