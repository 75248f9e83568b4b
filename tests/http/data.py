"""Inputs, models and golden vectors, and the comparison of float32 bits."""

import json
import sys

import numpy as np

import contract

REFERENCE = contract.ROOT / "tests" / "reference"
sys.path.insert(0, str(REFERENCE))

import safetensors_io  # noqa: E402

HIDDEN = 16  # of seed-attention, with
POSITION_BYTES = 2 * 1 * 2 * 8 * 4  # K and V, 1 layer, 2 KV heads, head_dim 8, float32
PAGE_POSITIONS = 16
PAGE_BYTES = PAGE_POSITIONS * POSITION_BYTES
INPUT_BYTES = HIDDEN * 4


def rows(count, hidden=HIDDEN, seed=0):
    """count input rows, normally distributed float32."""
    return np.random.default_rng(seed).standard_normal((count, hidden)).astype(np.float32)


def short_rows(count, hidden=768, seed=1):
    """Rows whose JSON text is short, as lists: large bodies of them are quickly made."""
    return np.random.default_rng(seed).uniform(-1, 1, (count, hidden)).round(2).tolist()


def bits(values):
    """The bits of float32 numbers that came as JSON, as nested lists would be shaped."""
    return np.asarray(values, dtype=np.float64).astype(np.float32).view(np.uint32)


def same_bits(left, right):
    left, right = bits(left), bits(right)
    return left.shape == right.shape and bool((left == right).all())


def outputs_of(steps):
    return [step["output"] for step in steps]


def golden(name):
    """(tensors, metadata) of a golden file."""
    return safetensors_io.read(REFERENCE / "goldens" / f"{name}.safetensors")


def model_flags(name):
    """Flags to serve a random model of tests/reference/models as its golden file wants it."""
    _, metadata = golden(name)
    return ["--model", REFERENCE / "models" / name, "--random", metadata["seed"]]


def make_model(folder, layers, hidden=768, heads=8, kv_heads=4, head_dim=96, **more):
    """Makes a model folder without weights, for --random; returns flags that serve it."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "model_type": "attention",
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "num_hidden_layers": layers,
        "rope_theta": 10000.0,
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 32768,
        "qk_norm": True,
        "torch_dtype": "float32",
        **more,
    }
    (folder / "config.json").write_text(json.dumps(config))
    return ["--model", folder, "--random", 1]
