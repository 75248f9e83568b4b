"""Requests to language models that are wrong: each is refused by name and changes nothing."""

from collections import namedtuple

import pytest

from data import HIDDEN, rows
from language import flags_of, ids_of, words_tokenizer, write_golden, write_tokenizer

VOCAB, CONTEXT = 320, 512
WITNESS = "witness"
PROMPT = [5, 6, 7, 8]
ROWS = [[0.5] * 64]

Case = namedtuple("Case", "path body status code param")

NOT_TEXT = [None, 1, True, [], {}, ["a"]]
NOT_BOOL = [None, 0, 1, "true", [], {}]
NOT_WHOLE = [None, -1, 1.5, 1.0, "1", True, [], {}, [1], 2**53 + 1]
NOT_NUMBER = [None, "1", True, [], {}, [1], 1e39]
NOT_IDS = [None, 1, "1", {}, True, [], [None], ["1"], [1.5], [-1], [[1]], [True], [2**53 + 1]]
NOT_TEXTS = [None, 1, True, {}, [], [1], [None], [["x"]], ["x", 1], "", [""], ["x", ""]]
NOT_TEXTS += [["x"] * 17, "x" * 1025, ["a", "x" * 1025]]


def prefill(param, fields, code="invalid_request", status=400):
    """A prefill of a new session that is wrong for these fields."""
    return Case("/prefill", {"session": "bad", **fields}, status, code, param)


def decode(param, fields, code="invalid_request", status=400):
    """A decode of the witness that is wrong for these fields."""
    return Case("/decode", {"session": WITNESS, **fields}, status, code, param)


def each(make, param, values, **others):
    return [make(param, {**others, param: value}) for value in values]


OUT_OF_RANGE = (VOCAB, 2**31, 2**32 - 1, 2**32, 2**32 + 5, 2**53)
SAMPLING = {
    "temperature": 0.5,
    "top_k": 3,
    "top_p": 0.5,
    "min_p": 0.1,
    "repetition_penalty": 1.1,
    "seed": 7,
    "stop": "x",
    "stop_token_ids": [1],
    "ignore_eos": True,
    "logprobs": 3,
}

PREFILL = [
    *each(prefill, "tokens", NOT_IDS),
    *each(prefill, "text", NOT_TEXT),
    *each(prefill, "add_special", NOT_BOOL, text="a tale"),
    *each(prefill, "logits", NOT_BOOL, tokens=PROMPT),
    *each(prefill, "output", [None, 1, "", "some"], tokens=PROMPT),
    prefill("tokens", {}),
    prefill("inputs", {"inputs": ROWS}),
    prefill("tokens", {"inputs": ROWS, "tokens": PROMPT}),
    prefill("text", {"inputs": ROWS, "text": "a"}),
    prefill("text", {"tokens": PROMPT, "text": "a"}),
    prefill("tokens", {"inputs": ROWS, "tokens": PROMPT, "text": "a"}),
    prefill("add_special", {"tokens": PROMPT, "add_special": True}),
    prefill("add_special", {"add_special": True}),
    prefill("keep_inputs", {"tokens": PROMPT, "keep_inputs": False}),
    prefill("text", {"model": "mute", "text": "a"}),
    prefill("text", {"model": "seed-attention", "text": "a"}),
    prefill("tokens", {"model": "seed-attention", "tokens": PROMPT}),
    prefill("logits", {"model": "seed-attention", "inputs": rows(1).tolist(), "logits": True}),
    prefill("model", {"model": "nobody", "tokens": PROMPT}, "model_not_found", 404),
    prefill("model", {"model": "nobody"}, "model_not_found", 404),
    prefill(None, {"tokens": PROMPT, "temperature": 1}),
    prefill(None, {"tokens": PROMPT, "token": 1}),
    *[prefill("tokens", {"tokens": [0, token]}, "token_out_of_range") for token in OUT_OF_RANGE],
    prefill("tokens", {"tokens": [1] * (CONTEXT + 1)}, "context_length_exceeded"),
    prefill("text", {"text": "on the shore " * 200}, "context_length_exceeded"),
    prefill("model", {"session": WITNESS, "model": "mute", "tokens": [1]}, "model_mismatch", 409),
    prefill("inputs", {"session": WITNESS, "inputs": ROWS}),
    prefill("if_length", {"session": WITNESS, "text": "a", "if_length": 3}, "length_mismatch", 409),
]

DECODE = [
    *each(decode, "token", NOT_WHOLE),
    *each(decode, "tokens", NOT_IDS),
    *each(decode, "temperature", NOT_NUMBER + [-1, -0.001, 100.1]),
    *each(decode, "top_k", NOT_WHOLE),
    *each(decode, "top_p", NOT_NUMBER + [0, -1, 1.001, 1e-60]),
    *each(decode, "min_p", NOT_NUMBER + [-0.1, 1.1]),
    *each(decode, "repetition_penalty", NOT_NUMBER + [0, -1, 0.009, 101]),
    *each(decode, "seed", NOT_WHOLE + [2**53]),
    *each(decode, "logprobs", NOT_WHOLE + [21, 2**32, 2**53]),
    *each(decode, "stop", NOT_TEXTS),
    *each(decode, "stop_token_ids", [value for value in NOT_IDS if value != []] + [[1] * 1025]),
    *each(decode, "ignore_eos", NOT_BOOL),
    decode("input", {"input": ROWS[0]}),
    decode("inputs", {"inputs": ROWS}),
    decode("inputs", {"inputs": ROWS, "stream": True}),
    decode("text", {"text": "a"}),
    decode("logits", {"logits": True}),
    decode("tokens", {"token": 1, "tokens": [1]}),
    decode("token", {"input": ROWS[0], "token": 1}),
    decode("steps", {"token": 1, "steps": 1}),
    decode("steps", {"tokens": [1], "steps": 1}),
    *[decode(field, {"token": 1, field: value}) for field, value in SAMPLING.items()],
    *[decode(field, {"tokens": [1, 2], field: value}) for field, value in SAMPLING.items()],
    *[decode("token", {"token": token}, "token_out_of_range") for token in OUT_OF_RANGE],
    *[decode("tokens", {"tokens": [0, token]}, "token_out_of_range") for token in OUT_OF_RANGE],
    decode("steps", {"steps": CONTEXT}, "context_length_exceeded"),
    decode("steps", {"steps": 2**53, "stream": True}, "context_length_exceeded"),
    decode("tokens", {"tokens": [1] * CONTEXT}, "context_length_exceeded"),
    decode("stop", {"session": "mute", "steps": 2, "stop": "x"}),
    decode(None, {"add_special": True}),
    decode("if_length", {"steps": 2, "if_length": 3}, "length_mismatch", 409),
    decode("model", {"steps": 2, "model": "mute"}, "model_mismatch", 409),
    decode("model", {"steps": 2, "model": "nobody"}, "model_not_found", 404),
    decode("session", {"session": "nobody", "token": 1}, "session_not_found", 404),
    *[decode(field, {"session": "rows", field: value}) for field, value in SAMPLING.items()],
    decode("token", {"session": "rows", "token": 1}),
    decode("tokens", {"session": "rows", "tokens": [1]}),
    decode("tokens", {"session": "empty"}),
    decode("tokens", {"session": "empty", "steps": 3, "temperature": 1}),
]

CASES = PREFILL + DECODE


@pytest.fixture(scope="module")
def server(launch_for_module, tmp_path_factory):
    """A server whose sessions stay as they are: `words` has a tokenizer, `mute` none."""
    top = tmp_path_factory.mktemp("requests")
    words = write_tokenizer(write_golden("llama-gqa", top / "words"), words_tokenizer(VOCAB))
    mute = write_golden("llama-gqa", top / "mute")
    client = launch_for_module(*flags_of([words, mute]), "--kv-memory", "64MiB").client
    client.prefill(session=WITNESS, tokens=PROMPT)
    client.prefill(session="mute", model="mute", tokens=PROMPT)
    client.prefill(session="rows", model="seed-attention", inputs=rows(4, HIDDEN))
    client.prefill(session="empty", tokens=PROMPT)
    client.truncate("empty", 0)
    return client


@pytest.fixture(scope="module")
def wanted(server):
    """What the witness says next."""
    return say(server)


def say(server):
    ids = ids_of(server.decode(session=WITNESS, steps=3, ignore_eos=True)["events"])
    server.truncate(WITNESS, len(PROMPT))
    return ids


def test_there_are_enough():
    assert len(CASES) >= 200


@pytest.mark.parametrize(
    "case", CASES, ids=lambda case: f"{case.path[1:]}-{case.param}-{case.code}"
)
def test_refused(server, wanted, case):
    server.post(case.path, case.body).error(case.status, case.code, case.param)
    assert not server.exists("bad")
    assert server.session(WITNESS)["length"] == len(PROMPT)
    assert server.totals()["sessions"] == 4
    assert say(server) == wanted


def test_details_of_a_token_out_of_range(server):
    for path in ("/prefill", "/decode"):
        error = server.post(path, {"session": WITNESS, "tokens": [1, 2, 2**40, VOCAB]}).json[
            "error"
        ]
        assert error["details"] == {"index": 2, "limit": VOCAB}


def test_an_empty_session_takes_what_is_given(server, wanted):
    """Length 0 has nothing to go on from; given tokens begin it."""
    reply = server.decode(session="empty", tokens=PROMPT)
    assert reply["length"] == len(PROMPT)
    assert ids_of(server.decode(session="empty", steps=3, ignore_eos=True)["events"]) == wanted
    server.truncate("empty", 0)
