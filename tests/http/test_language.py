"""Language models: what PyTorch computes, the laws on tokens, sampling, stops, checkpoints."""

import json
import shutil

import numpy as np
import pytest

import contract
from data import bits, golden, same_bits
from language import (
    GOLDENS,
    bytes_tokenizer,
    edit_json,
    flags_of,
    ids_of,
    log_softmax,
    text_of,
    words_tokenizer,
    write_golden,
    write_tokenizer,
)
from process import KERNELS, refuses_kernels, run
from waiting import all_at_once, eventually

import make_checkpoint
import safetensors_io

WORDS = "words"  # llama-gqa with a tokenizer, whose every id is text of its own
PROMPT = golden("lm-llama-gqa")[0]["prompt"].tolist()
GREEDY = golden("lm-llama-gqa")[0]["greedy"].tolist()
TOKENS = golden("lm-llama-gqa")[0]["tokens"].tolist()
VOCAB = 320
CONTEXT = 512
SAMPLING = {
    "temperature": 0.9,
    "top_k": 50,
    "top_p": 0.95,
    "min_p": 0.01,
    "repetition_penalty": 1.1,
    "ignore_eos": True,
}


@pytest.fixture(scope="module")
def zoo(launch_for_module, tmp_path_factory):
    """A server with every golden model, from checkpoints, and with some more."""
    top = tmp_path_factory.mktemp("zoo")
    folders = [write_golden(name, top / name) for name in GOLDENS]
    folders += [
        write_golden(name, top / f"{name}.shards", 3) for name in ("llama-gqa", "qwen3-moe")
    ]
    words = write_golden("llama-gqa", top / WORDS)
    folders.append(write_tokenizer(words, words_tokenizer(VOCAB)))
    # Its greedy run meets an eos id at its third token.
    eos = write_golden("llama-gqa", top / "eos")
    edit_json(eos / "generation_config.json", eos_token_id=[319, GREEDY[2]])
    folders.append(eos)
    return launch_for_module(*flags_of(folders), "--threads", 2, "--kv-memory", "256MiB").client


def prefill(client, session, model=WORDS, tokens=PROMPT, **fields):
    return client.prefill(session=session, model=model, tokens=tokens, **fields)


# ------------------------------------------------------------------------------- the reference


@pytest.mark.parametrize("name", GOLDENS)
def test_logits(zoo, sid, name):
    """Raw logits behind the golden rows, reached by prefills from one to the next."""
    tensors, _ = golden(f"lm-{name}")
    found, done = [], 0
    for row in tensors["rows"].tolist():
        tokens = tensors["tokens"][done : row + 1].tolist()
        reply = prefill(zoo, sid, name, tokens, logits=True)
        assert (reply["length"], reply["appended"]) == (row + 1, len(tokens))
        assert reply["tokens"] == tokens
        found.append(reply["logits"])
        done = row + 1
    found = np.asarray(found)
    assert np.abs(found - tensors["logits"]).max() <= 1e-4
    exact = tensors["logits64"]
    assert np.square(found - exact).sum() / np.square(exact).sum() < 1e-9
    zoo.delete(sid)


@pytest.mark.parametrize("name", GOLDENS)
def test_greedy(zoo, sid, name):
    tensors, _ = golden(f"lm-{name}")
    prompt, greedy = tensors["prompt"].tolist(), tensors["greedy"].tolist()
    for form in ("plain", contract.NDJSON, contract.SSE):
        session = f"{sid}.{form[-3:]}"
        first = prefill(zoo, session, name, prompt)
        assert "output" not in first and "logits" not in first
        assert first["next"][0]["token"] == greedy[0]
        if form == "plain":
            done = zoo.decode(session=session, steps=len(greedy))
            steps = done["events"]
        else:
            stream = zoo.stream(session=session, steps=len(greedy), accept=form)
            steps, done = stream.rest(), stream.done
        assert ids_of(steps) == greedy
        assert [step["position"] for step in steps] == list(range(8, 8 + len(greedy)))
        assert (done["reason"], done["steps"], done["length"]) == ("length", 16, 24)
        kept = zoo.get(f"/sessions/{session}/tokens").ok()
        assert kept == {"length": 24, "tokens": prompt + greedy}
        assert zoo.verify(session)["bit_identical"]
        zoo.delete(session)


@pytest.mark.parametrize("name", ["llama-gqa", "qwen3-moe"])
def test_shards(zoo, sid, name):
    """A checkpoint in several files is the same model."""
    tokens = golden(f"lm-{name}")[0]["tokens"].tolist()[:50]
    one, many = (
        prefill(zoo, f"{sid}.{model}", model, tokens, logits=True)["logits"]
        for model in (name, f"{name}.shards")
    )
    assert same_bits(one, many)


def test_models(zoo):
    models = {model["name"]: model for model in zoo.get("/models").ok()["models"]}
    dtypes = {name: models[name]["torch_dtype"] for name in GOLDENS}
    assert dtypes.pop("qwen3-tied-bf16") == "bfloat16"
    assert dtypes.pop("minimind-dense-f16") == "float16"
    assert set(dtypes.values()) == {"float32"}
    for name in GOLDENS:
        model = models[name]
        config = make_checkpoint.read_config(golden(f"lm-{name}")[1]["model"])
        for field in ("model_type", "vocab_size", "hidden_size", "num_hidden_layers"):
            assert model[field] == config[field]
        assert model["vocab_size"] == golden(f"lm-{name}")[0]["logits"].shape[1]
        assert not model["tokenizer"]
        assert ("num_experts" in model) == ("moe" in name)
        assert model["input_bytes_per_position"] == 4
    assert (models["qwen3-moe"]["num_experts"], models["qwen3-moe"]["num_experts_per_tok"]) == (
        5,
        3,
    )
    assert models["llama-bias"]["attention_bias"] and models["llama-bias"]["tie_word_embeddings"]
    assert not models["llama-gqa"]["tie_word_embeddings"]
    assert models[WORDS]["tokenizer"]
    assert "vocab_size" not in models["seed-attention"]


def test_every_example_works(zoo):
    for model in zoo.get("/models").ok()["models"]:
        reply = zoo.prefill(**model["example"])
        assert reply["model"] == model["name"]
        zoo.delete(reply["session"])


# ------------------------------------------------------------------------------- splitting


def logits_behind(client, session, tokens):
    """The bits of the logits behind one more token of a session."""
    return bits(client.prefill(session=session, tokens=tokens, logits=True)["logits"])


@pytest.mark.parametrize("name", ["llama-gqa", "qwen3-moe", "minimind-yarn"])
def test_splitting(zoo, sid, name):
    """Prefills in any chunks, steps of one token and steps of many: the same bits."""
    tokens = golden(f"lm-{name}")[0]["tokens"].tolist()[:120]
    whole = bits(prefill(zoo, sid, name, tokens, logits=True)["logits"])
    for size in (1, 7, 16, 119):
        session = f"{sid}.{size}"
        for at in range(0, 119, size):
            prefill(zoo, session, name, tokens[at : min(at + size, 119)])
        assert (logits_behind(zoo, session, tokens[119:]) == whole).all()
    session = f"{sid}.steps"
    prefill(zoo, session, name, tokens[:1])
    reply = zoo.decode(session=session, token=tokens[1])
    assert (reply["token"], reply["events"][0]["token"], reply["length"]) == (
        tokens[1],
        tokens[1],
        2,
    )
    assert "seed" not in reply
    reply = zoo.decode(session=session, tokens=tokens[2:60])
    assert ids_of(reply["events"]) == tokens[2:60]
    assert "token" not in reply
    stream = zoo.stream(session=session, tokens=tokens[60:119])
    assert ids_of(stream.rest()) == tokens[60:119]
    assert (stream.done["length"], stream.done["steps"]) == (119, 59)
    assert (logits_behind(zoo, session, tokens[119:]) == whole).all()
    assert zoo.verify(session)["bit_identical"]


def test_hidden_rows(zoo, sid):
    """`output` gives the final hidden rows, and changes nothing."""
    every = prefill(zoo, f"{sid}.all", tokens=TOKENS[:40], output="all", logits=True)
    last = prefill(zoo, f"{sid}.last", tokens=TOKENS[:40], output="last", logits=True)
    none = prefill(zoo, f"{sid}.none", tokens=TOKENS[:40], output="none", logits=True)
    assert np.shape(every["output"]) == (40, 64)
    assert same_bits(every["output"][-1:], last["output"])
    assert "output" not in none
    assert same_bits(every["logits"], none["logits"]) and same_bits(last["logits"], none["logits"])
    text = zoo.prefill(session=f"{sid}.text", model=WORDS, text="rated on the shore", output="all")
    assert np.shape(text["output"]) == (len(text["tokens"]), 64)


# -------------------------------------------------------------------------------- sampling


@pytest.fixture(scope="module")
def sampled(zoo):
    """What a session alone samples: 40 ids behind TOKENS[:30], with seed 7."""
    prefill(zoo, "sampled", tokens=TOKENS[:30])
    reply = zoo.decode(session="sampled", steps=40, seed=7, **SAMPLING)
    zoo.delete("sampled")
    assert reply["seed"] == 7
    return ids_of(reply["events"])


def test_a_seed_is_a_run(zoo, sampled, sid):
    for name, seed in (("same", 7), ("other", 8)):
        prefill(zoo, f"{sid}.{name}", tokens=TOKENS[:30])
        reply = zoo.decode(session=f"{sid}.{name}", steps=40, seed=seed, **SAMPLING)
        assert (ids_of(reply["events"]) == sampled) == (seed == 7)
    assert len(set(sampled)) > 10


def test_the_seed_is_told(zoo, sid):
    """A run whose seed the server chose can be had again."""
    prefill(zoo, sid)
    first = zoo.decode(session=sid, steps=30, **SAMPLING)
    zoo.truncate(sid, len(PROMPT))
    other = zoo.decode(session=sid, steps=30, **SAMPLING)
    assert first["seed"] != other["seed"]
    assert ids_of(first["events"]) != ids_of(other["events"])
    zoo.truncate(sid, len(PROMPT))
    stream = zoo.stream(session=sid, steps=30, seed=first["seed"], **SAMPLING)
    assert ids_of(stream.rest()) == ids_of(first["events"])
    assert stream.done["seed"] == first["seed"]


def test_largest_seed(zoo, sid):
    prefill(zoo, sid)
    assert zoo.decode(session=sid, steps=2, seed=2**53 - 1, temperature=1)["seed"] == 2**53 - 1


@pytest.mark.parametrize("chunk", [1, 5, 20, 39])
def test_sampled_runs_split(zoo, sampled, sid, chunk):
    """decode(40) = 40 single steps = any others, streamed or not, also after a truncate."""
    prefill(zoo, sid, tokens=TOKENS[:11])
    prefill(zoo, sid, tokens=TOKENS[11:30])
    found = []
    while len(found) < 40:
        fields = {"steps": min(chunk, 40 - len(found)), "seed": 7, **SAMPLING}
        if len(found) % 2:
            found += ids_of(zoo.stream(session=sid, **fields).rest())
        else:
            found += ids_of(zoo.decode(session=sid, **fields)["events"])
    assert found == sampled
    zoo.truncate(sid, 45)
    assert ids_of(zoo.decode(session=sid, steps=25, seed=7, **SAMPLING)["events"]) == sampled[15:]
    assert zoo.verify(sid)["bit_identical"]


def test_greedy_however_it_is_asked_for(zoo, sid):
    for i, fields in enumerate(
        [{}, {"temperature": 0}, {"temperature": 2, "top_k": 1}, {"temperature": 1, "top_p": 1e-9},
         {"temperature": 1, "min_p": 1}, {"seed": 3}, {"temperature": 1e-30, "seed": 1},
         {"temperature": 0, "top_k": 2**53, "logprobs": 0, "stop_token_ids": [2**53, 10**9]}]
    ):  # fmt: skip
        prefill(zoo, f"{sid}.{i}")
        assert ids_of(zoo.decode(session=f"{sid}.{i}", steps=16, **fields)["events"]) == GREEDY


def test_the_filters_filter(zoo, sid):
    """Each keeps what it says: sampled tokens lie among those that may be."""
    reply = prefill(zoo, sid, logits=True)
    order = np.argsort(-np.asarray(reply["logits"]), kind="stable")
    probability = np.exp(log_softmax(reply["logits"]))
    by_mass = order[: np.searchsorted(np.cumsum(probability[order]), 0.2) + 1]
    allowed = {
        "top_k": (3, set(order[:3].tolist())),
        "top_p": (0.2, set(by_mass.tolist())),
        "min_p": (0.8, set(np.flatnonzero(probability >= 0.8 * probability.max()).tolist())),
    }
    for field, (value, tokens) in allowed.items():
        seen = set()
        for seed in range(40):
            step = zoo.decode(session=sid, temperature=1, seed=seed, **{field: value})
            seen.add(step["token"])
            zoo.truncate(sid, len(PROMPT))
        assert seen <= tokens, field
        assert len(seen) > 1 or len(tokens) == 1, field


def test_repetition_penalty(zoo, sid):
    """A heavy penalty never repeats a token of the session."""
    prefill(zoo, sid)
    reply = zoo.decode(session=sid, steps=60, repetition_penalty=100, ignore_eos=True)
    ids = PROMPT + ids_of(reply["events"])
    assert len(set(ids[len(set(PROMPT)) :])) >= 50


def test_logprobs(zoo, sid):
    """The most probable tokens of the plain softmax, best first, whatever the sampling."""
    logits = prefill(zoo, sid, logits=True)
    exact = log_softmax(logits["logits"])
    order = np.argsort(-exact, kind="stable")
    assert [one["token"] for one in logits["next"]] == order[:5].tolist()
    for count in (1, 5, 20):
        step = zoo.decode(session=sid, logprobs=count, temperature=5, seed=1, top_k=3)["events"][0]
        zoo.truncate(sid, len(PROMPT))
        found = step["logprobs"]
        assert [one["token"] for one in found] == order[:count].tolist()
        assert np.abs([one["logprob"] for one in found] - exact[order[:count]]).max() < 1e-5
        assert found[:5] == logits["next"][:count]
    stream = zoo.stream(session=sid, steps=16, logprobs=4)
    for step, token in zip(stream.rest(), GREEDY):
        values = [one["logprob"] for one in step["logprobs"]]
        assert step["token"] == step["logprobs"][0]["token"] == token
        assert step["text"] == step["logprobs"][0]["text"]
        assert values == sorted(values, reverse=True) and len(values) == 4
        assert np.exp(values).sum() <= 1
    zoo.truncate(sid, len(PROMPT))
    assert "logprobs" not in zoo.decode(session=sid, logprobs=0)["events"][0]
    assert "logprobs" not in zoo.decode(session=sid)["events"][0]


def test_no_texts_without_a_tokenizer(zoo, sid):
    reply = prefill(zoo, sid, "llama-gqa")
    assert all(set(one) == {"token", "logprob"} for one in reply["next"])
    reply = zoo.decode(session=sid, logprobs=2)
    assert "text" not in reply and "text" not in reply["events"][0]
    assert all(set(one) == {"token", "logprob"} for one in reply["events"][0]["logprobs"])
    assert "text" not in zoo.get(f"/sessions/{sid}/tokens").ok()


# --------------------------------------------------------------------------------- company


def test_company(zoo, sampled, sid):
    """32 sessions at once, of other models and with other fields too: nobody notices."""
    others = ["qwen3-moe", "minimind-dense", "llama-gqa"]

    def mine(i):
        prefill(zoo, f"{sid}.{i}", tokens=TOKENS[:30])
        stream = zoo.stream(session=f"{sid}.{i}", steps=40, seed=7, logprobs=i % 3, **SAMPLING)
        return ids_of(stream.rest())

    def other(i):
        model = others[i % len(others)]
        prefill(zoo, f"{sid}.o{i}", model, TOKENS[: 20 + 5 * i])
        zoo.decode(session=f"{sid}.o{i}", steps=60, temperature=1.5, ignore_eos=True)

    jobs = [lambda i=i: mine(i) for i in range(16)] + [lambda i=i: other(i) for i in range(16)]
    for ids in all_at_once(jobs)[:16]:
        assert ids == sampled
    for i in range(16):
        assert zoo.verify(f"{sid}.{i}")["bit_identical"]


def test_a_fork_samples_on(zoo, sampled, sid):
    prefill(zoo, sid, tokens=TOKENS[:30])
    zoo.decode(session=sid, steps=20, seed=7, **SAMPLING)
    zoo.post(f"/sessions/{sid}/fork", {"as": f"{sid}.b", "at": 42}).ok(201)
    reply = zoo.decode(session=f"{sid}.b", steps=28, seed=7, **SAMPLING)
    assert ids_of(reply["events"]) == sampled[12:]


# -------------------------------------------------------------------------- the end of a run

STORY = {"steps": 60, "seed": 21, **SAMPLING}


@pytest.fixture(scope="module")
def story(zoo):
    """A run behind PROMPT: ids, and the text of each."""
    prefill(zoo, "story")
    reply = zoo.decode(session="story", **STORY)
    zoo.delete("story")
    ids, texts = ids_of(reply["events"]), [step["text"] for step in reply["events"]]
    assert reply["text"] == "".join(texts)
    assert len(set(ids)) > 30 and len(reply["text"]) > 100
    return ids, texts


def expect_stop(texts, stops):
    """The text before the first match, and how many tokens are appended: the oracle."""
    text = ""
    for count, piece in enumerate(texts):
        text += piece
        found = [text.index(stop) for stop in stops if stop in text]
        if found:
            return text[: min(found)], count
    return text, len(texts)


def stop_cases(texts):
    """Stop texts of every kind about the run's 6th to 9th token."""
    whole = "".join(texts)
    start = len("".join(texts[:6]))
    yield from ([whole[start + a : start + a + n]] for a in range(4) for n in (1, 2, 3, 5, 8))
    yield [whole[start : start + 4], whole[start + 1 : start + 3]]
    yield ["no such text", whole[start + 2 : start + 6], "neither"]
    yield [whole[start : start + 7] + "#"]  # held back, then let go
    yield ["#"]
    yield [f"{i}#" for i in range(15)] + [whole[start + 3 : start + 5]]


def test_stop_texts(zoo, story, sid):
    ids, texts = story
    prefill(zoo, sid)
    for stops in stop_cases(texts):
        wanted, count = expect_stop(texts, stops)
        reason = "length" if count == len(texts) else "stop"
        fields = {**STORY, "stop": stops[0] if len(stops) == 1 else stops}
        reply = zoo.decode(session=sid, **fields)
        assert (reply["reason"], reply["steps"], reply["text"]) == (reason, count, wanted), stops
        assert ids_of(reply["events"]) == ids[:count]
        assert reply["length"] == len(PROMPT) + count
        if count < len(texts):  # the completing token was not appended: it comes next
            assert zoo.decode(**{**STORY, "session": sid, "steps": 1})["token"] == ids[count]
        zoo.truncate(sid, len(PROMPT))
        stream = zoo.stream(session=sid, **fields)
        steps = stream.rest()
        assert text_of(steps, stream.done) == wanted, stops
        assert (stream.done["reason"], ids_of(steps)) == (reason, ids[:count])
        assert stream.done.get("text") != ""
        zoo.truncate(sid, len(PROMPT))


def test_what_is_held_back_comes_later(zoo, story, sid):
    """Nothing is lost of a text that seemed to begin a stop text, however long it is."""
    _, texts = story
    whole = "".join(texts)
    prefill(zoo, sid)
    for length in (1, 10, 45, 90):
        stream = zoo.stream(session=sid, stop=whole[:length] + "#", **STORY)
        steps = stream.rest()
        assert text_of(steps) == whole
        longest = max(len(step["text"]) for step in steps)
        assert longest >= length
        zoo.truncate(sid, len(PROMPT))
    # The same when something else ends the run: the done object has it.
    ids = story[0]
    end = next(i for i in range(8, 60) if ids[i] not in ids[:i])
    stop = "".join(texts[:end]) + "#"
    stream = zoo.stream(session=sid, stop=stop, stop_token_ids=[ids[end]], **STORY)
    steps = stream.rest()
    assert "".join(step["text"] for step in steps) == ""
    assert (stream.done["reason"], stream.done["text"]) == ("stop", "".join(texts[:end]))


def test_eos(zoo, sid):
    prefill(zoo, sid, "eos")
    reply = zoo.decode(session=sid, steps=16)
    assert (reply["reason"], reply["steps"], reply["length"]) == ("stop", 2, len(PROMPT) + 2)
    assert ids_of(reply["events"]) == GREEDY[:2]
    again = zoo.decode(session=sid, steps=16)
    assert (again["reason"], again["steps"], again["events"]) == ("stop", 0, [])
    stream = zoo.stream(session=sid, steps=16)
    assert stream.rest() == [] and stream.done["reason"] == "stop"
    assert ids_of(zoo.decode(session=sid, steps=14, ignore_eos=True)["events"]) == GREEDY[2:]
    # One that is given is appended like any other.
    assert zoo.decode(session=sid, token=GREEDY[2])["reason"] == "length"


def test_stop_token_ids(zoo, sid):
    prefill(zoo, sid)
    for end in (0, 3, 9):
        ids = [7, GREEDY[end], 2**32 + 5]
        reply = zoo.decode(session=sid, steps=16, stop_token_ids=ids)
        wanted = GREEDY.index(GREEDY[end])
        assert (reply["reason"], ids_of(reply["events"])) == ("stop", GREEDY[:wanted])
        zoo.truncate(sid, len(PROMPT))


def test_to_the_end_of_the_context(zoo, sid):
    """As many steps as fit, in one reply; not one more."""
    prefill(zoo, sid)
    room = CONTEXT - len(PROMPT)
    for field, value in (("steps", room + 1), ("tokens", [1] * (room + 1))):
        error = zoo.post("/decode", {"session": sid, field: value}).error(
            400, "context_length_exceeded", field
        )
        assert error["details"] == {"length": 8, "requested": room + 1, "limit": CONTEXT}
    body = {"session": sid, "tokens": [1] * (room + 1)}
    zoo.post("/prefill", body).error(400, "context_length_exceeded", "tokens")
    body = {"session": sid, "text": "a" * 2 * CONTEXT}
    zoo.post("/prefill", body).error(400, "context_length_exceeded", "text")
    reply = zoo.decode(session=sid, steps=room, ignore_eos=True, logprobs=20)
    assert (reply["reason"], reply["steps"], reply["length"]) == ("length", room, CONTEXT)
    zoo.post("/decode", {"session": sid}).error(400, "context_length_exceeded")


def test_a_slow_reader_loses_nothing(zoo, sid):
    """Long lines, a little socket: the stream parks and goes on."""
    model = "minimind-dense"
    prompt = golden(f"lm-{model}")[0]["prompt"].tolist()
    fields = {"steps": 500, "ignore_eos": True, "logprobs": 20, "temperature": 1, "seed": 5}
    prefill(zoo, sid, model, prompt)
    prefill(zoo, f"{sid}.b", model, prompt)
    stream = zoo.stream(session=sid, receive_bytes=4096, **fields)
    stream.next()
    wanted = zoo.decode(session=f"{sid}.b", **fields)["events"]
    assert zoo.session(sid)["in_flight"]
    assert stream.rest() == wanted[1:]
    assert stream.done["steps"] == 500


def test_cancel_and_go_on(zoo, sid):
    """A cancelled run leaves what it committed; the rest is as if it had not stopped."""
    prefill(zoo, sid, "minimind-dense", [1, 2, 3])
    prefill(zoo, f"{sid}.b", "minimind-dense", [1, 2, 3])
    fields = {"seed": 9, "temperature": 1, "ignore_eos": True}
    stream = zoo.stream(session=sid, steps=20000, receive_bytes=4096, **fields)
    stream.next()
    zoo.cancel(sid)
    steps = stream.rest()
    assert stream.done["reason"] == "cancelled"
    length = zoo.session(sid)["length"]
    assert length == stream.done["length"] == 3 + 1 + len(steps)
    more = ids_of(zoo.decode(session=sid, steps=20, **fields)["events"])
    whole = ids_of(zoo.decode(session=f"{sid}.b", steps=length - 3 + 20, **fields)["events"])
    assert whole[-20:] == more
    kept = zoo.get(f"/sessions/{sid}/tokens").ok()["tokens"]
    assert kept == [1, 2, 3] + whole


def test_waiting_for_a_busy_session(zoo, sid):
    """A request that waited has its tokens, texts and stops still, and begins no text anew."""
    prefill(zoo, sid, "minimind-dense", [1, 2, 3])
    zoo.get(f"/sessions/{sid}/tokens").ok()
    busy = zoo.stream(session=sid, steps=20000, receive_bytes=4096, ignore_eos=True)
    busy.next()
    zoo.get(f"/sessions/{sid}/tokens").error(409, "session_busy", "session")
    jobs = [
        lambda: zoo.prefill(session=sid, tokens=[5, 6, 7] * 50, wait_ms=60000),
        lambda: zoo.decode(session=sid, steps=4, stop_token_ids=[400, 401], wait_ms=60000),
        lambda: (
            eventually(lambda: zoo.metrics().total("attnd_queue_depth") >= 2, "both wait"),
            zoo.cancel(sid),
        ),
    ]
    prefilled, decoded, _ = all_at_once(jobs)
    assert busy.rest() is not None and busy.done["reason"] == "cancelled"
    assert prefilled["tokens"] == [5, 6, 7] * 50
    assert decoded["reason"] in ("length", "stop")


def test_waiting_with_a_text(launch, tmp_path, sid):
    """The same with text: its stop texts still hold."""
    folder = write_golden("minimind-dense", tmp_path / "m")
    write_tokenizer(folder, words_tokenizer(400))
    client = launch("--model", folder).client
    client.prefill(session=sid, text="a tale")
    busy = client.stream(session=sid, steps=20000, receive_bytes=4096, ignore_eos=True)
    busy.next()
    text = "on the shore " * 200  # long enough to be read off the loop
    continued = client.post("/tokenize", {"text": text, "add_special": False}).ok()["tokens"]
    jobs = [
        lambda: client.prefill(session=sid, text=text, wait_ms=60000, output="all"),
        lambda: client.decode(session=sid, steps=4, stop=["no such", "text"], wait_ms=60000),
        lambda: (
            eventually(lambda: client.metrics().total("attnd_queue_depth") >= 2, "both wait"),
            client.cancel(sid),
        ),
    ]
    prefilled, decoded, _ = all_at_once(jobs)
    busy.rest()
    assert prefilled["tokens"] == continued
    assert np.shape(prefilled["output"]) == (len(continued), 80)
    assert decoded["reason"] in ("length", "stop")


def test_reply_sizes(launch, tmp_path, sid):
    """What would be larger than --max-body is refused before any work."""
    folder = write_golden("llama-gqa", tmp_path / "m")
    write_tokenizer(folder, words_tokenizer(VOCAB))
    client = launch("--model", folder, "--max-body", "4KiB").client
    body = {"session": sid, "tokens": PROMPT}
    client.post("/prefill", {**body, "logits": True}).error(413, "tensor_too_large", "logits")
    client.post("/prefill", {**body, "output": "all"}).error(413, "tensor_too_large", "output")
    text = {"session": sid, "text": "a tale of the sea", "output": "all"}
    client.post("/prefill", text).error(413, "tensor_too_large", "output")
    assert not client.exists(sid)
    client.prefill(**body, output="last")
    client.post("/decode", {"session": sid, "steps": 100}).error(413, "tensor_too_large", "steps")
    client.post("/decode", {"session": sid, "steps": 20, "logprobs": 20}).error(
        413, "tensor_too_large", "steps"
    )
    client.post("/decode", {"session": sid, "steps": 2**53 - 1}).error(413, "tensor_too_large")
    assert client.session(sid)["length"] == len(PROMPT)
    assert client.decode(session=sid, steps=20, ignore_eos=True)["steps"] == 20


# -------------------------------------------------------------- weights and instruction sets


def everything(client):
    """The bits that a server's models give, and the ids."""
    found = []
    for model in ("llama-bias", "qwen3-tied-bf16", "qwen3-moe", "minimind-dense-f16"):
        tokens = golden(f"lm-{model}")[0]["tokens"].tolist()[:60]
        found.append(bits(prefill(client, model, model, tokens, logits=True)["logits"]).tolist())
        reply = client.decode(session=model, steps=12, seed=3, **SAMPLING)
        found.append(ids_of(reply["events"]))
        assert client.verify(model)["bit_identical"]
    return found


@pytest.fixture(scope="module")
def zoo_folders(tmp_path_factory):
    top = tmp_path_factory.mktemp("weights")
    names = ("llama-bias", "qwen3-tied-bf16", "qwen3-moe", "minimind-dense-f16")
    return [write_golden(name, top / name) for name in names]


@pytest.mark.slow
@pytest.mark.parametrize("weights", ["auto", "f32", "bf16", "f16", "q8"])
def test_weights(launch, zoo_folders, weights):
    """However weights are kept, every instruction set gives the same bits."""
    found = {}
    for kernels in KERNELS:
        if refuses_kernels(kernels):
            continue
        client = launch(*flags_of(zoo_folders), "--weights", weights, "--kernels", kernels).client
        models = client.get("/models").ok()["models"]
        dtypes = {model["name"]: model["torch_dtype"] for model in models}
        if weights == "auto":
            assert dtypes["qwen3-moe"] == "float32"
            assert dtypes["qwen3-tied-bf16"] == "bfloat16"
            assert dtypes["minimind-dense-f16"] == "float16"
        else:
            names = {"f32": "float32", "bf16": "bfloat16", "f16": "float16", "q8": "q8"}
            assert set(dtypes.values()) == {names[weights]}
        found[kernels] = everything(client)
    assert "scalar" in found
    for kernels, other in found.items():
        assert other == found["scalar"], kernels


@pytest.mark.slow
def test_wider_weights_change_nothing(launch, zoo_folders):
    """bf16 and f16 files, kept as they are or as f32: the same bits."""
    as_files = everything(launch(*flags_of(zoo_folders)).client)
    as_f32 = everything(launch(*flags_of(zoo_folders), "--weights", "f32").client)
    assert as_files == as_f32


# ------------------------------------------------------------------------ broken checkpoints


def tensors_of(folder):
    return safetensors_io.read(folder / "model.safetensors")


def change_tensors(change):
    def apply(folder):
        tensors, metadata = tensors_of(folder)
        change(tensors)
        safetensors_io.write(folder / "model.safetensors", tensors, metadata)

    return apply


Q_PROJ = "model.layers.1.self_attn.q_proj.weight"
DOWN = "model.layers.2.mlp.down_proj.weight"
NORM = "model.norm.weight"


def without(name):
    return change_tensors(lambda tensors: tensors.pop(name))


def replace(name, edit):
    return change_tensors(lambda tensors: tensors.update({name: edit(tensors[name])}))


def not_finite(array):
    array = array.copy()
    array.flat[5] = np.inf
    return array


def edit_config(**fields):
    return lambda folder: edit_json(folder / "config.json", **fields)


def edit_file(name, edit):
    return lambda folder: (folder / name).write_bytes(edit((folder / name).read_bytes()))


# What is done to the checkpoint: and what the one line on stderr names.
BROKEN = {
    "tensor missing": (without(Q_PROJ), ["model.safetensors", Q_PROJ]),
    "embedding missing": (without("model.embed_tokens.weight"), ["model.embed_tokens.weight"]),
    "head missing": (without("lm_head.weight"), ["lm_head.weight"]),
    "norm missing": (without(NORM), [NORM]),
    "one too many": (
        change_tensors(lambda t: t.update({"model.layers.3.mlp.gate.weight": np.ones((2, 2))})),
        ["model.layers.3.mlp.gate.weight"],
    ),
    "bias where none is": (
        change_tensors(
            lambda t: t.update({"model.layers.0.self_attn.q_proj.bias": np.ones(64, np.float32)})
        ),
        ["model.layers.0.self_attn.q_proj.bias"],
    ),
    "transposed": (replace(DOWN, lambda a: np.ascontiguousarray(a.T)), ["model.safetensors", DOWN]),
    "a row short": (replace(Q_PROJ, lambda a: a[:-1].copy()), [Q_PROJ]),
    "other rank": (replace(Q_PROJ, lambda a: a[None].copy()), [Q_PROJ]),
    "norm too long": (replace(NORM, lambda a: np.ones(65, np.float32)), [NORM]),
    "integers": (replace(Q_PROJ, lambda a: a.astype(np.int32)), [Q_PROJ, "I32"]),
    "doubles": (replace(Q_PROJ, lambda a: a.astype(np.float64)), [Q_PROJ, "F64"]),
    "not finite": (replace(Q_PROJ, not_finite), [Q_PROJ]),
    "cut in the data": (edit_file("model.safetensors", lambda d: d[:-100]), ["model.safetensors"]),
    "cut in the header": (edit_file("model.safetensors", lambda d: d[:99]), ["model.safetensors"]),
    "empty": (edit_file("model.safetensors", lambda d: b""), ["model.safetensors"]),
    "longer": (edit_file("model.safetensors", lambda d: d + b"\0\0"), ["model.safetensors"]),
    "more layers": (edit_config(num_hidden_layers=4), ["model.layers.3"]),
    "fewer layers": (edit_config(num_hidden_layers=2), ["model.layers.2"]),
    "other vocabulary": (edit_config(vocab_size=321), ["model.embed_tokens.weight"]),
    "other width": (edit_config(hidden_size=128), ["model.safetensors", "[128, 128]"]),
    "other heads": (edit_config(num_key_value_heads=4), ["k_proj.weight"]),
    "other MLP": (edit_config(intermediate_size=192), ["mlp.", "_proj.weight"]),
    "biases asked for": (edit_config(attention_bias=True), ["q_proj.bias"]),
    "norms asked for": (edit_config(model_type="qwen3", head_dim=8), ["q_norm.weight"]),
    "experts asked for": (
        edit_config(
            model_type="qwen3_moe",
            head_dim=8,
            num_experts=4,
            num_experts_per_tok=2,
            moe_intermediate_size=8,
        ),
        ["model.layers.0"],
    ),
    "more experts chosen than there are": (
        edit_config(model_type="qwen3_moe", num_experts=4, num_experts_per_tok=5),
        ["config.json", "num_experts_per_tok"],
    ),
    "no vocabulary": (edit_config(vocab_size=None), ["config.json", "vocab_size"]),
    "no layers": (edit_config(num_hidden_layers=0), ["config.json", "num_hidden_layers"]),
    "huge vocabulary": (edit_config(vocab_size=2**31), ["vocab_size"]),
    "text for a number": (edit_config(intermediate_size="176"), ["intermediate_size"]),
    "unknown activation": (edit_config(hidden_act="relu"), ["config.json", "hidden_act"]),
    "unknown type": (edit_config(model_type="gpt2"), ["config.json", "model_type"]),
    "unknown scaling": (
        edit_config(rope_scaling={"rope_type": "dynamic", "factor": 2.0}),
        ["config.json", "rope"],
    ),
    "quantized": (edit_config(quantization_config={"bits": 4}), ["quantization_config"]),
    "eos past the vocabulary": (
        lambda folder: edit_json(folder / "generation_config.json", eos_token_id=[2, "x"]),
        ["generation_config.json"],
    ),
    "tokenizer cut": (
        lambda folder: (folder / "tokenizer.json").write_text(
            json.dumps(bytes_tokenizer(VOCAB))[:500]
        ),
        ["tokenizer.json"],
    ),
    "tokenizer with more ids than the model": (
        lambda folder: write_tokenizer(folder, words_tokenizer(VOCAB + 1)),
        ["tokenizer.json", "vocab_size"],
    ),
    "tokenizer of a kind unknown": (
        lambda folder: write_tokenizer(folder, {"model": {"type": "Unigram", "vocab": []}}),
        ["tokenizer.json"],
    ),
}

INDEX = "model.safetensors.index.json"


def edit_index(edit):
    def apply(folder):
        index = json.loads((folder / INDEX).read_text())
        edit(index["weight_map"])
        (folder / INDEX).write_text(json.dumps(index))

    return apply


SECOND = "model-00002-of-00003.safetensors"
BROKEN_SHARDS = {
    "shard missing": (lambda folder: (folder / SECOND).unlink(), [SECOND]),
    "names a shard that is not there": (
        edit_index(lambda m: m.update({NORM: "model-00004-of-00003.safetensors"})),
        ["model-00004-of-00003.safetensors"],
    ),
    "names another shard": (
        edit_index(lambda m: m.update({"model.embed_tokens.weight": SECOND})),
        [SECOND, "model.embed_tokens.weight"],
    ),
    "leads out of the folder": (
        edit_index(lambda m: m.update({NORM: "../model.safetensors"})),
        [INDEX],
    ),
    "is no JSON": (edit_file(INDEX, lambda d: d[:-9]), [INDEX]),
    "is empty": (edit_index(lambda m: m.clear()), [INDEX]),
    "shard cut": (edit_file(SECOND, lambda d: d[:-4]), [SECOND]),
    "shard without its tensor": (
        lambda folder: shutil.copy(folder / "model-00001-of-00003.safetensors", folder / SECOND),
        [SECOND],
    ),
}


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    """A checkpoint to break, in one file and in three."""
    top = tmp_path_factory.mktemp("good")
    return {n: write_golden("llama-gqa", top / f"{n}", n) for n in (1, 3)}


def check_broken(folder, good, case):
    change, names = case
    shutil.copytree(good, folder)
    change(folder)
    result = run("--model", folder, "--port", "0")
    assert (result.returncode, result.stdout) == (1, ""), result
    assert result.stderr.count("\n") == 1 and result.stderr.startswith("attnd: "), result.stderr
    for name in names:
        assert name in result.stderr, result.stderr


@pytest.mark.parametrize("case", BROKEN.values(), ids=BROKEN.keys())
def test_broken_checkpoint(tmp_path, good, case):
    check_broken(tmp_path / "broken", good[1], case)


@pytest.mark.parametrize("case", BROKEN_SHARDS.values(), ids=BROKEN_SHARDS.keys())
def test_broken_shards(tmp_path, good, case):
    check_broken(tmp_path / "broken", good[3], case)
