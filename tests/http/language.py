"""Language models for the tests: checkpoints with and without tokenizers, and what a run says."""

import itertools
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from data import REFERENCE, golden

import make_checkpoint  # of REFERENCE

GOLDENS = sorted(path.stem[3:] for path in (REFERENCE / "goldens").glob("lm-*.safetensors"))
SPACE = "\u2581"
BOS = 1


def write_golden(name, folder, n_shards=1):
    """The checkpoint that goldens/lm-<name> belongs to; returns its folder."""
    _, metadata = golden(f"lm-{name}")
    seed, dtype, norms = int(metadata["seed"]), metadata["dtype"], metadata["norms"]
    make_checkpoint.write_checkpoint(metadata["model"], folder, seed, dtype, norms, n_shards)
    return folder


def edit_json(path, **fields):
    """Changes fields of a JSON file; None takes one away."""
    value = {**json.loads(path.read_text()), **fields}
    path.write_text(json.dumps({k: v for k, v in value.items() if v is not None}))


def tokenizer_json(pieces, merges):
    """The tokenizer.json of a Llama model with these pieces behind <unk>, <s> and </s>."""
    special = ["<unk>", "<s>", "</s>"]
    added = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    begin = [{"SpecialToken": {"id": "<s>", "type_id": 0}}]
    sequence = [{"Sequence": {"id": name, "type_id": 0}} for name in "AB"]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": i, "content": text, **added, "special": True} for i, text in enumerate(special)
        ],
        "normalizer": {
            "type": "Sequence",
            "normalizers": [
                {"type": "Prepend", "prepend": SPACE},
                {"type": "Replace", "pattern": {"String": " "}, "content": SPACE},
            ],
        },
        "pre_tokenizer": None,
        "post_processor": {
            "type": "TemplateProcessing",
            "single": begin + sequence[:1],
            "pair": begin + sequence,
            "special_tokens": {"<s>": {"id": "<s>", "ids": [BOS], "tokens": ["<s>"]}},
        },
        "decoder": {
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"String": SPACE}, "content": " "},
                {"type": "ByteFallback"},
                {"type": "Fuse"},
                {"type": "Strip", "content": " ", "start": 1, "stop": 0},
            ],
        },
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": "<unk>",
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": True,
            "byte_fallback": True,
            "vocab": {text: i for i, text in enumerate(special + pieces)},
            "merges": [f"{left} {right}" for left, right in merges],
        },
    }


LETTERS = [SPACE, *"etaoinshrdlu", "\u00e9", "\u65e5", "\U0001f600"]


def words_tokenizer(vocab_size):
    """Every id is text of its own: letters, then pairs of them."""
    count = vocab_size - 3 - len(LETTERS)
    pairs = list(itertools.islice(itertools.product(LETTERS, repeat=2), count))
    pairs += [(pair[0] + pair[1], "a") for pair in pairs[: count - len(pairs)]]
    return tokenizer_json(LETTERS + ["".join(pair) for pair in pairs], pairs)


def bytes_tokenizer(vocab_size):
    """Ids of every byte, then letters."""
    pieces = [f"<0x{byte:02X}>" for byte in range(256)] + [SPACE, *"abcdefghijklmnopqrstuvwxyz"]
    pieces += [f"{left}{right}" for left, right in itertools.product("aeiou", repeat=2)]
    merges = list(itertools.product("aeiou", repeat=2))
    assert len(pieces) + 3 <= vocab_size
    return tokenizer_json(pieces, merges)


def byte_ids(data):
    """The ids of bytes_tokenizer (and of stories260K) for these bytes."""
    return [3 + byte for byte in data]


def write_tokenizer(folder, tokenizer):
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    return folder


def real_model(name):
    """The folder of a model that the project does not contain; skips when it is not there."""
    folder = os.environ.get("ATTND_TEST_MODELS")
    if not folder:
        pytest.skip(f"ATTND_TEST_MODELS is not set: no {name}")
    return Path(folder) / name


def copy_model(source, folder):
    shutil.copytree(source, folder)
    return folder


def flags_of(folders):
    """Flags that serve these folders under their own names."""
    return [flag for folder in folders for flag in ("--model", folder)]


def ids_of(steps):
    return [step["token"] for step in steps]


def text_of(steps, done=None):
    """What a stream said: its steps, and what its done object still had."""
    return "".join(step["text"] for step in steps) + (done or {}).get("text", "")


def log_softmax(logits):
    logits = np.asarray(logits, dtype=np.float64)
    shifted = logits - logits.max()
    return shifted - np.log(np.exp(shifted).sum())
