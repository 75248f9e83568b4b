"""Checks the built-in story model's files and golden, and the scripts that measure such models.

Run: /usr/bin/python3 -m pytest tests/reference
"""

import json
import math
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

HERE = Path(__file__).resolve().parent
MODEL = HERE.parents[1] / "engine" / "models" / "stories"
sys.path.insert(0, str(HERE / "stories"))

import safetensors_io  # noqa: E402
from decoder import Decoder, greedy  # noqa: E402
from decoder_config import Config, tensor_shapes, widen  # noqa: E402
from evaluate import evaluate, read_model  # noqa: E402
from heads import head_scores, repeated  # noqa: E402
from make_checkpoint import checkpoint_tensors, read_config  # noqa: E402
from tokenizer import BOS, EOS, LETTERS, Tokenizer  # noqa: E402

# ---- the model ----


def test_the_files():
    config = Config.from_dict(json.loads((MODEL / "config.json").read_text()))
    weights, _ = safetensors_io.read(MODEL / "model.safetensors")
    assert {name: array.shape for name, array in weights.items()} == tensor_shapes(config)
    assert {array.dtype for array in weights.values()} == {safetensors_io.BF16}
    assert all(np.isfinite(widen(array)).all() for array in weights.values())
    tokenizer = Tokenizer(MODEL / "tokenizer.json")
    assert sorted(tokenizer.vocab.values()) == list(range(config.vocab_size))
    assert (config.bos, config.eos) == (BOS, (EOS,))


def test_the_golden():
    golden, texts = safetensors_io.read(HERE / "goldens" / "stories.safetensors")
    exact = read_model(MODEL, torch.float64)
    tokenizer = Tokenizer(MODEL / "tokenizer.json")
    assert golden["prompt"].tolist() == [BOS, *tokenizer.encode(texts["text"])]
    ids, margins = greedy(exact, golden["prompt"].tolist(), len(golden["greedy"]))
    assert ids == golden["greedy"].tolist() and min(margins) > 1e-3
    assert np.allclose(margins, golden["greedy_margin"], rtol=0, atol=1e-9)
    symbols = {number: symbol for symbol, number in tokenizer.vocab.items()}
    told = "".join(symbols[number] for number in ids)
    assert told == "".join(LETTERS[byte] for byte in texts["told"].encode())


# ---- evaluate.py ----


def a_decoder(scale=1.0):
    """A random language model, its weights times `scale`."""
    config = Config.from_dict(read_config("llama-gqa"))
    stored = checkpoint_tensors("llama-gqa", 42, "f32", "ones")
    return Decoder(config, {name: scale * array for name, array in stored.items()})


def test_a_model_that_knows_nothing():
    """Its logits are all 0: each token has log2(vocab_size) bits."""
    decoder = a_decoder(0.0)
    stories, ids = ["ab", "cdefg"], [[1, 5], [1, 6, 7, 8]]
    found = evaluate(decoder, stories, ids, 2)
    bits = (2 + 4) * math.log2(decoder.config.vocab_size) / (3 + 6)
    assert (found["stories"], found["left_out"]) == (2, 0)
    assert (found["characters"], found["tokens"]) == (9, 6)
    assert found["bits_per_character"] == pytest.approx(bits, rel=1e-6)
    assert found["perplexity_per_character"] == pytest.approx(2**bits, rel=1e-5)


def test_bits_of_each_token():
    """Stories of different lengths in one batch, and what they are one token at a time."""
    decoder = a_decoder()
    draw = np.random.default_rng(0)
    lengths = [3, 30, 1, 17, 9]
    ids = [[1, *draw.integers(3, decoder.config.vocab_size, n).tolist()] for n in lengths]
    stories = ["x" * n for n in lengths]
    bits = 0.0
    for sequence in ids:
        cache = None
        for token, target in zip(sequence, [*sequence[1:], 2]):
            logits, cache = decoder.forward(torch.tensor([[token]]), cache)
            bits -= float(torch.log_softmax(logits[0, 0].double(), -1)[target]) / math.log(2)
    bits /= sum(lengths) + len(lengths)
    for batch in (1, 2, 16):
        found = evaluate(decoder, stories, ids, 2, batch)
        assert found["bits_per_character"] == pytest.approx(bits, rel=1e-5)


def test_stories_that_are_too_long():
    decoder = a_decoder(0.0)
    limit = decoder.config.max_positions
    ids = [[1] * (limit - 1), [1] * limit]
    found = evaluate(decoder, ["a" * limit, "b"], ids, 2)
    assert (found["stories"], found["left_out"], found["tokens"]) == (1, 1, limit - 1)
    assert math.isnan(evaluate(decoder, ["b"], ids[1:], 2)["bits_per_character"])


# ---- heads.py ----


class Heads:
    """Four heads in a layer: to the token before; to what followed; to the first; to all alike."""

    config = SimpleNamespace(layers=1, heads=4, vocab_size=300, bos=1)

    def forward(self, tokens, cache=None, trace=None):
        ids = tokens[0].tolist()
        weights = torch.zeros(1, 4, len(ids), len(ids))
        for p, token in enumerate(ids):
            before = [c for c in range(p) if ids[c] == token]
            weights[0, 0, p, max(p - 1, 0)] = 1
            weights[0, 1, p, before[-1] + 1 if before else 0] = 1
            weights[0, 2, p, 0] = 1
            weights[0, 3, p, : p + 1] = 1 / (p + 1)
        trace["blocks.0.attn.hook_pattern"] = weights


def test_heads_that_are_known():
    ids = [1, *range(10, 29)]  # no token twice
    before, induction, first, uniform = head_scores(Heads(), [ids, ids[:10]])
    assert before == {"layer": 0, "head": 0, "previous": 1, "induction": 0, "first": 0}
    assert (induction["previous"], induction["induction"], induction["first"]) == (0, 1, 1)
    assert (first["previous"], first["induction"], first["first"]) == (0, 0, 1)
    rows = [*range(2, 20), *range(2, 10)]
    assert uniform["previous"] == pytest.approx(np.mean([1 / (p + 1) for p in rows]), abs=1e-4)
    rows = [*range(8, 20), *range(8, 10)]
    assert uniform["first"] == pytest.approx(np.mean([1 / (p + 1) for p in rows]), abs=1e-4)
    copied = np.mean([1 / (p + 1) for p in range(51, 151)])
    assert uniform["induction"] == pytest.approx(copied, abs=1e-4)


def test_repeated_tokens():
    decoder = Heads()
    ids = repeated(decoder, 3)
    assert ids == repeated(decoder, 3) != repeated(decoder, 4)
    assert len(ids) == 151 and ids[0] == 1
    assert len(set(ids[1:51])) == 50 and min(ids[1:]) >= 3
    assert ids[1:51] == ids[51:101] == ids[101:]


def test_real_patterns():
    """Of a random model: rows of weights that add up to 1, the same scores every time."""
    decoder = a_decoder()
    ids = [[1, *range(3, 40)]]
    scores = head_scores(decoder, ids)
    assert scores == head_scores(decoder, ids)
    assert len(scores) == decoder.config.layers * decoder.config.heads
    for score in scores:
        assert 0 < score["previous"] < 1 and 0 < score["first"] < 1
