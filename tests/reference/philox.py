"""Counter-based random numbers: philox4x32-10, and the tensors attnd's --random draws from it.

Source: Salmon, Moraes, Dror, Shaw, "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011.

Element `index` (row-major) of the tensor `name` in a model of seed `seed` is made of

    key     = (seed low 32 bits, seed high 32 bits)
    counter = (block low 32 bits, block high 32 bits, hash low 32 bits, hash high 32 bits)
    block   = index / 4,  hash = FNV-1a 64 of the name's bytes
    word    = output word (index % 4) of philox4x32-10(counter, key)
    uniform = 2 u - 1,  u = (word >> 8) * 2^-24       (exact in float32, in [-1, 1))
    weight  = uniform * (float)(1 / sqrt((double)fan_in))                (one float32 product)

with fan_in = shape[1]. One-dimensional tensors: norms (`.weight`) are all 1, and an element of a
bias (`.bias`) is uniform * 0.1f, one float32 product. No element depends on any other.
"""

import math

import numpy as np

MASK = np.uint64(0xFFFFFFFF)
SHIFT = np.uint64(32)
MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
KEY_STEPS = (0x9E3779B9, 0xBB67AE85)  # the golden ratio; the square root of 3, less 1
ROUNDS = 10
BIAS_BOUND = np.float32(0.1)


def philox4x32(counter, key):
    """philox4x32-10 of many counters under one key.

    Shapes: counter [..., 4], key [2], both of 32-bit words; returns uint32 [..., 4].
    """
    c0, c1, c2, c3 = np.moveaxis(np.asarray(counter, dtype=np.uint64), -1, 0)
    k0, k1 = int(key[0]), int(key[1])
    for _ in range(ROUNDS):
        # A product of two 32-bit words fits in 64 bits: nothing overflows here.
        p0 = c0 * MULTIPLIERS[0]
        p1 = c2 * MULTIPLIERS[1]
        c0, c1, c2, c3 = (
            (p1 >> SHIFT) ^ c1 ^ np.uint64(k0),
            p1 & MASK,
            (p0 >> SHIFT) ^ c3 ^ np.uint64(k1),
            p0 & MASK,
        )
        k0 = (k0 + KEY_STEPS[0]) & 0xFFFFFFFF
        k1 = (k1 + KEY_STEPS[1]) & 0xFFFFFFFF
    return np.stack([c0, c1, c2, c3], axis=-1).astype(np.uint32)


def fnv1a64(text):
    """FNV-1a, 64 bits, of text's UTF-8 bytes."""
    value = 0xCBF29CE484222325
    for byte in text.encode():
        value = ((value ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return value


def uniform(seed, name, shape):
    """float32 array of `shape` in [-1, 1): the tensor `name` before any scaling."""
    n = math.prod(shape)
    name_hash = fnv1a64(name)
    block = np.arange((n + 3) // 4, dtype=np.uint64)
    counter = np.empty((block.size, 4), dtype=np.uint64)
    counter[:, 0] = block & MASK
    counter[:, 1] = block >> SHIFT
    counter[:, 2] = name_hash & 0xFFFFFFFF
    counter[:, 3] = name_hash >> 32
    words = philox4x32(counter, (seed & 0xFFFFFFFF, seed >> 32)).reshape(-1)[:n]
    u = (words >> np.uint32(8)).astype(np.float32) * np.float32(2.0**-24)
    return (np.float32(2) * u - np.float32(1)).reshape(shape)


def weight(seed, name, shape):
    """float32 weight matrix `name` of `shape` [out, in], uniform in ±1/sqrt(in)."""
    return uniform(seed, name, shape) * np.float32(1.0 / math.sqrt(shape[1]))


def tensor(seed, name, shape):
    """The float32 tensor `name` of a random model, by the rules above: a matrix, norm or bias."""
    if len(shape) == 2:
        return weight(seed, name, shape)
    if name.endswith(".bias"):
        return uniform(seed, name, shape) * BIAS_BOUND
    return np.ones(shape, dtype=np.float32)


def attention_weights(seed, config):
    """Every tensor, by name, of a random `attention` model; config: its config.json, parsed."""
    hidden, head_dim = config["hidden_size"], config["head_dim"]
    q_width = config["num_attention_heads"] * head_dim
    kv_width = config["num_key_value_heads"] * head_dim
    shapes = {
        "q_proj": (q_width, hidden),
        "k_proj": (kv_width, hidden),
        "v_proj": (kv_width, hidden),
        "o_proj": (hidden, q_width),
    }
    weights = {}
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}.self_attn."
        for short, shape in shapes.items():
            name = f"{prefix}{short}.weight"
            weights[name] = weight(seed, name, shape)
        if config["qk_norm"]:
            for short in ("q_norm", "k_norm"):
                weights[f"{prefix}{short}.weight"] = np.ones(head_dim, dtype=np.float32)
    return weights
