"""Text in and out: /tokenize, /detokenize, /sessions/{id}/tokens, texts of steps; a real story."""

import itertools
import json

import pytest

import contract
from data import HIDDEN, rows
from language import (
    BOS,
    bytes_tokenizer,
    byte_ids,
    copy_model,
    edit_json,
    flags_of,
    ids_of,
    real_model,
    text_of,
    words_tokenizer,
    write_golden,
    write_tokenizer,
)
from waiting import all_at_once

VOCAB = 320
UTF8 = "h\u00e9llo \u65e5\u672c \U0001f600 \t"

STORY = (
    "Once upon a time, there was a little girl named Lily. She loved to play outside in the park. "
    "One day, she saw a big, red ball. She wanted to play with it, but it was too high.\n"
    "Lily's mom said, \"Lily, let's go to the park.\" Lily was sad and didn't know what to do. "
    'She said, "I want to play with your ball, but I can\'t find it."\n'
    "Lily was sad and didn't know what to do. She said, \"I'm sorry, Lily. I didn't know what to "
    'do."\n'
    "Lily didn't want to help her mom, so she said, \"I'm sorry, mom. I didn't know what to do.\" "
    "Her mom said, \"Don't worry, Lily. We can help you."
)


@pytest.fixture(scope="module")
def texts(launch_for_module, tmp_path_factory):
    """A server with two tokenizers on one model: `bytes` (the default) and `words`; and `mute`."""
    top = tmp_path_factory.mktemp("texts")
    bytes_ = write_tokenizer(write_golden("llama-gqa", top / "bytes"), bytes_tokenizer(VOCAB))
    words = write_tokenizer(write_golden("llama-gqa", top / "words"), words_tokenizer(VOCAB))
    mute = write_golden("llama-gqa", top / "mute")
    return launch_for_module(*flags_of([bytes_, words, mute]), "--kv-memory", "256MiB").client


def tokenize(client, text, **fields):
    return client.post("/tokenize", {"text": text, **fields}).ok()["tokens"]


def detokenize(client, tokens, **fields):
    return client.post("/detokenize", {"tokens": tokens, **fields}).ok()["text"]


@pytest.mark.parametrize(
    "text",
    ["", "a", " ", "  two  spaces ", "aeiou", UTF8, "\n\t\"\\", "x" * 50_000, UTF8 * 3000],
    ids=lambda text: f"{len(text)} {text[:6]!r}",
)  # fmt: skip
def test_round_trip(texts, text):
    for special in (None, True):
        fields = {} if special is None else {"add_special": special}
        ids = tokenize(texts, text, **fields)
        assert ids[0] == BOS and all(0 <= token < VOCAB for token in ids)
        assert detokenize(texts, ids) == text
    plain = tokenize(texts, text, add_special=False)
    assert BOS not in plain
    # Without what begins a text its first word has no space, and loses one when decoded.
    assert detokenize(texts, plain) == text.removeprefix(" ")


def test_ids(texts):
    """By hand: BOS, the space before the first word, letters, a merged pair, bytes."""
    letters = {letter: 259 + i for i, letter in enumerate("\u2581abcdefghijklmnopqrstuvwxyz")}
    pairs = {a + b: 286 + i for i, (a, b) in enumerate(itertools.product("aeiou", repeat=2))}
    space = letters["\u2581"]
    assert tokenize(texts, "") == [BOS]
    assert tokenize(texts, "b d") == [BOS, space, letters["b"], space, letters["d"]]
    assert tokenize(texts, "bead") == [BOS, space, letters["b"], pairs["ea"], letters["d"]]
    assert tokenize(texts, "\u00e9", add_special=False) == byte_ids("\u00e9".encode())
    assert tokenize(texts, "Z", model="bytes") == [BOS, space, *byte_ids(b"Z")]
    assert detokenize(texts, []) == ""
    assert detokenize(texts, [BOS, 0, 2]) == ""
    assert detokenize(texts, byte_ids(b"\xff\xfea")) == "\ufffd\ufffd\ufffd"
    assert detokenize(texts, byte_ids(b"\xe6\x97")).strip("\ufffd") == ""


def test_models_have_their_own(texts):
    assert tokenize(texts, "on the", model="words") != tokenize(texts, "on the", model="bytes")
    assert detokenize(texts, tokenize(texts, "on the", model="words"), model="words") == "on the"
    texts.post("/tokenize", {"text": "a", "model": "mute"}).error(501, "not_supported", "model")
    body = {"tokens": [1], "model": "seed-attention"}
    texts.post("/detokenize", body).error(501, "not_supported", "model")


NOT_TEXT = [None, 1, True, [], {}, ["a"]]
NOT_IDS = [None, 1, "1", {}, True, [None], ["1"], [1.5], [-1], [[1]], [True], [2**53 + 1]]


@pytest.mark.parametrize(
    "path, body, status, code, param",
    [
        *[("/tokenize", {"text": value}, 400, "invalid_request", "text") for value in NOT_TEXT],
        ("/tokenize", {}, 400, "invalid_request", "text"),
        ("/tokenize", b"", 400, "invalid_request", "text"),
        ("/tokenize", b'{"text":"\xff"}', 400, "invalid_json", None),
        ("/tokenize", b'{"text":"\\ud800"}', 400, "invalid_json", None),
        ("/tokenize", b'{"text":"a\\u0000"}', 400, "invalid_json", None),
        ("/tokenize", {"text": "a", "add_special": 1}, 400, "invalid_request", "add_special"),
        ("/tokenize", {"text": "a", "model": 1}, 400, "invalid_request", "model"),
        ("/tokenize", {"text": "a", "model": "nobody"}, 404, "model_not_found", "model"),
        ("/tokenize", {"text": "a", "tokens": [1]}, 400, "invalid_request", None),
        *[
            ("/detokenize", {"tokens": value}, 400, "invalid_request", "tokens")
            for value in NOT_IDS
        ],
        ("/detokenize", {}, 400, "invalid_request", "tokens"),
        ("/detokenize", {"tokens": [1], "model": "nobody"}, 404, "model_not_found", "model"),
        ("/detokenize", {"tokens": [1], "text": "a"}, 400, "invalid_request", None),
        ("/detokenize", {"tokens": [1] * (2**20 + 1)}, 400, "invalid_request", "tokens"),
    ],
)
def test_refused(texts, path, body, status, code, param):
    texts.post(path, body).error(status, code, param)


def test_too_long_a_text(texts):
    for path in ("/tokenize", "/prefill"):
        text = "a " * (2 << 20) + "x"
        texts.post(path, {"text": text}).error(400, "invalid_request", "text")


@pytest.mark.parametrize("token", [VOCAB, 2**31, 2**32, 2**32 + 1, 2**53])
def test_ids_out_of_range(texts, token):
    reply = texts.post("/detokenize", {"tokens": [5, 6, token]})
    error = reply.error(400, "token_out_of_range", "tokens")
    assert error["details"] == {"index": 2, "limit": VOCAB}


# -------------------------------------------------------------------------------- sessions


def test_text_in(texts, sid):
    """A text begins where a session does, and continues one otherwise, unless told."""
    text = "a tale of "
    first = texts.prefill(session=sid, text=text)
    assert first["tokens"] == tokenize(texts, text)
    assert first["appended"] == first["length"] == len(first["tokens"])
    more = texts.prefill(session=sid, text="the sea")
    assert more["tokens"] == tokenize(texts, "the sea", add_special=False)
    kept = texts.get(f"/sessions/{sid}/tokens").ok()
    assert kept["tokens"] == first["tokens"] + more["tokens"]
    assert kept["length"] == len(kept["tokens"]) == more["length"]
    assert kept["text"] == "a tale of the sea"
    again = texts.prefill(session=sid, text="the sea", add_special=True)
    assert again["tokens"] == tokenize(texts, "the sea")
    plain = texts.prefill(session=f"{sid}.b", text="the sea", add_special=False)
    assert plain["tokens"] == more["tokens"]
    texts.truncate(sid, 0)
    assert texts.prefill(session=sid, text=text)["tokens"] == first["tokens"]


def test_text_and_tokens_are_the_same(texts, sid):
    text = "a tale of the sea"
    by_text = texts.prefill(session=f"{sid}.a", text=text, logits=True)
    by_ids = texts.prefill(session=f"{sid}.b", tokens=tokenize(texts, text), logits=True)
    for field in ("tokens", "next", "logits"):
        assert by_text[field] == by_ids[field]


def test_a_long_text(texts, sid):
    """As long as the context."""
    reply = texts.prefill(session=sid, text="b" * 510)
    assert reply["length"] == 512
    assert texts.get(f"/sessions/{sid}/tokens").ok()["text"] == "b" * 510


def test_empty_texts(texts, sid):
    assert texts.prefill(session=sid, text="")["tokens"] == [BOS]
    texts.post("/prefill", {"session": sid, "text": ""}).error(400, "invalid_request", "text")
    body = {"session": f"{sid}.b", "text": "", "add_special": False}
    texts.post("/prefill", body).error(400, "invalid_request", "text")
    assert not texts.exists(f"{sid}.b")
    assert texts.get(f"/sessions/{sid}/tokens").ok() == {"length": 1, "tokens": [BOS], "text": ""}


def test_tokens_of_nobody(texts, sid):
    texts.get("/sessions/nobody/tokens").error(404, "session_not_found", "session")
    texts.prefill(session=sid, model="seed-attention", inputs=rows(1, HIDDEN))
    texts.get(f"/sessions/{sid}/tokens").error(501, "not_supported", "session")
    body = {"session": f"{sid}.mute", "model": "mute", "text": "a"}
    texts.post("/prefill", body).error(400, "invalid_request", "text")
    assert not texts.exists(f"{sid}.mute")


@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_characters_come_whole(texts, sid, size):
    """A character of several byte tokens comes with its last one, in whatever runs they come."""
    text = UTF8 + "\u00e9" * 3
    ids = byte_ids(text.encode())
    texts.prefill(session=sid, tokens=[BOS, *byte_ids(b"b")])
    found = []
    for at in range(0, len(ids), size):
        stream = texts.stream(session=sid, tokens=ids[at : at + size])
        found += [step["text"] for step in stream.rest()]
        assert "text" not in stream.done
    assert "".join(found) == text
    assert [len(part) <= 1 for part in found] == [True] * len(ids)
    ends = [len(text[: i + 1].encode()) - 1 for i in range(len(text))]
    assert [i for i, part in enumerate(found) if part] == ends
    assert texts.get(f"/sessions/{sid}/tokens").ok()["text"] == "b" + text


def test_whole_text(texts, sid):
    """A reply that is not streamed has the text of the run, of one step also its own."""
    texts.prefill(session=sid, tokens=[BOS])
    reply = texts.decode(session=sid, tokens=byte_ids('\u65e5a"\n'.encode()))
    assert reply["text"] == '\u65e5a"\n'
    assert [step["text"] for step in reply["events"]] == ["", "", "\u65e5", "a", '"', "\n"]
    for byte, text in zip("\u00e9".encode(), ("", "\u00e9")):
        reply = texts.decode(session=sid, token=3 + byte)
        assert (reply["token"], reply["text"]) == (3 + byte, text)


def test_broken_bytes_in_logprobs(texts, sid):
    """A token's own text may be no character: U+FFFD then."""
    texts.prefill(session=sid, tokens=[BOS])
    reply = texts.decode(session=sid, logprobs=20)
    for one in reply["events"][0]["logprobs"]:
        token = one["token"]
        if 3 <= token < 259:
            wanted = bytes([token - 3]).decode(errors="replace")
            assert one["text"] == wanted


def test_the_index_page(texts, client):
    page = texts.get("/").text
    assert '"text":"Once upon a time"' in page and "/decode" in page
    assert '"inputs"' in client.get("/").text


# --------------------------------------------------------------------------- real models


@pytest.fixture(scope="module")
def stories(launch_for_module):
    folder = real_model("stories260K")
    return launch_for_module("--model", folder, "--threads", 2, "--kv-memory", "256MiB").client


def tell(client, session, form):
    """The greedy run of 256 steps from BOS alone: its ids and its text."""
    client.prefill(session=session, tokens=[BOS])
    if form == "plain":
        reply = client.decode(session=session, steps=256)
        assert "".join(step["text"] for step in reply["events"]) == reply["text"]
        return ids_of(reply["events"]), reply["text"]
    stream = client.stream(session=session, steps=256, accept=form)
    steps = stream.rest()
    return ids_of(steps), text_of(steps, stream.done)


@pytest.mark.parametrize("form", ["plain", contract.NDJSON, contract.SSE])
def test_the_published_story(stories, sid, form):
    ids, text = tell(stories, sid, form)
    assert ids[:8] == [403, 407, 261, 378, 432, 383, 286, 261]
    assert text == STORY
    kept = stories.get(f"/sessions/{sid}/tokens").ok()
    assert kept == {"length": 257, "tokens": [BOS, *ids], "text": STORY}
    assert stories.verify(sid)["bit_identical"]


@pytest.mark.slow
def test_the_story_in_company(stories, sid):
    """Told to 8 while 32 other sessions are at work, by text and by ids."""

    def other(i):
        stories.prefill(session=f"{sid}.o{i}", text=STORY[: 40 + 20 * i])
        stories.decode(session=f"{sid}.o{i}", steps=100, temperature=1, seed=i, ignore_eos=True)

    jobs = [lambda i=i: other(i) for i in range(32)]
    jobs += [
        lambda i=i: tell(stories, f"{sid}.{i}", ("plain", contract.NDJSON)[i % 2]) for i in range(8)
    ]
    for _, text in all_at_once(jobs)[32:]:
        assert text == STORY


@pytest.mark.slow
def test_the_story_goes_on(stories, sid):
    """Its beginning as ids, in any cut, gives its end."""
    ids, _ = tell(stories, f"{sid}.whole", "plain")
    ids = [BOS, *ids]
    for length in (2, 9, 10, 50, 200):
        stories.prefill(session=f"{sid}.{length}", tokens=ids[:length])
        head = stories.get(f"/sessions/{sid}.{length}/tokens").ok()["text"]
        reply = stories.decode(session=f"{sid}.{length}", steps=257 - length)
        assert head + reply["text"] == STORY
    assert stories.prefill(session=f"{sid}.text", text=STORY[:16])["tokens"] == ids[:5]
    assert stories.decode(session=f"{sid}.text", steps=252)["text"] == STORY[16:]


def test_round_trip_of_the_story(stories):
    ids = tokenize(stories, STORY)
    assert ids[:8] == [BOS, 403, 407, 261, 378, 432, 383, 286]
    assert detokenize(stories, ids) == STORY
    assert detokenize(stories, tokenize(stories, UTF8)) == UTF8


def test_a_stop_in_the_story(stories, sid):
    """A text that lies across tokens, streamed: nothing of it is sent."""
    stories.prefill(session=sid, tokens=[BOS])
    stream = stories.stream(session=sid, steps=256, stop=["Lily's mom", "xyz"])
    steps = stream.rest()
    assert text_of(steps, stream.done) == STORY[: STORY.index("Lily's mom")]
    assert stream.done["reason"] == "stop"


def test_minimind_tokenizer(launch, tmp_path, sid):
    """MiniMind's own tokenizer on a random model: byte-level BPE, added tokens."""
    tokenizer = real_model("minimind-tokenizer")
    folder = copy_model(contract.ROOT / "tests/reference/models/minimind-dense", tmp_path / "m")
    edit_json(folder / "config.json", vocab_size=6400)
    (folder / "tokenizer.json").write_bytes((tokenizer / "tokenizer.json").read_bytes())
    client = launch("--model", folder, "--random", 1).client
    for text in (
        "\u4f60\u597d\uff0c\u4e16\u754c",
        UTF8,
        "<|im_start|>user\nhi<|im_end|>",
        " a  b\n\n",
    ):
        ids = tokenize(client, text, add_special=False)
        assert all(token < 6400 for token in ids)
        decoded = detokenize(client, ids)
        assert decoded == text.replace("<|im_start|>", "").replace("<|im_end|>", "")
    reply = client.prefill(session=sid, text="\u4f60\u597d")
    stream = client.stream(session=sid, steps=200, temperature=1, seed=1, ignore_eos=True)
    steps = stream.rest()
    ids = reply["tokens"] + ids_of(steps)
    assert client.get(f"/sessions/{sid}/tokens").ok()["tokens"] == ids
    json.dumps(text_of(steps)).encode()
