"""The mathematics of an `attention` model in PyTorch: short, slow, and the judge of the engine.

A model is a chain of attention layers and nothing else: no residuals, no feed-forward, no norms
but the optional QK-norm; the output rows of one layer are the input rows of the next. One layer,
for input rows x, heads h of width d and the KV head g(h) = h / (heads / kv_heads):

    q_h = x Wq_h^T    k_g = x Wk_g^T    v_g = x Wv_g^T
    q_h, k_g = RMSNorm over d, if qk_norm            Zhang, Sennrich 2019; on Q and K: Henry 2020
    q_h, k_g = rotated by their positions            RoPE: Su et al. 2021, pairs (i, i + d/2)
    z_h = softmax(q_h k_g^T / sqrt(d) + mask) v_g    Vaswani et al. 2017, eq. 1; GQA: Ainslie 2023
    y   = concat_h(z_h) Wo^T

The cache holds K after RoPE, and V.

In float32 this is PyTorch's own arithmetic. In float64 the weights, the inputs and the RoPE tables
are the same float32 numbers and every operation on them is carried out in double: the two modes
differ by the rounding of the arithmetic alone.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch

MASKED = float("-inf")


@dataclass(frozen=True)
class Config:
    """The shape of an `attention` model, under its config.json's names made short."""

    hidden_size: int
    heads: int
    kv_heads: int
    head_dim: int
    layers: int
    rope_theta: float
    rms_norm_eps: float
    qk_norm: bool

    @classmethod
    def from_dict(cls, config):
        """config: a parsed config.json."""
        return cls(
            hidden_size=config["hidden_size"],
            heads=config["num_attention_heads"],
            kv_heads=config["num_key_value_heads"],
            head_dim=config["head_dim"],
            layers=config["num_hidden_layers"],
            rope_theta=config["rope_theta"],
            rms_norm_eps=config["rms_norm_eps"],
            qk_norm=config["qk_norm"],
        )


def rope_tables(positions, head_dim, theta):
    """(cos, sin) of the rotation at each position, float32 [len(positions), head_dim / 2]."""
    pairs = np.arange(head_dim // 2, dtype=np.float64)
    return rotation_tables(positions, 1.0 / np.power(float(theta), 2.0 * pairs / head_dim))


def rotation_tables(positions, inv_freq, factor=1.0):
    """(cos, sin) of position * inv_freq, both times factor: float32 [len(positions), pairs].

    inv_freq is rounded to float32 and the angles are float32; cosine and sine are those of the
    rounded angle, computed and scaled in double and rounded once.
    """
    angles = np.asarray(positions, dtype=np.float32)[:, None] * inv_freq.astype(np.float32)
    angles = angles.astype(np.float64)
    return (
        torch.from_numpy((factor * np.cos(angles)).astype(np.float32)),
        torch.from_numpy((factor * np.sin(angles)).astype(np.float32)),
    )


def rotate(x, cos, sin):
    """RoPE. x [batch, seq, heads, head_dim]; cos, sin [seq, head_dim / 2]: one row a position."""
    half = x.shape[-1] // 2
    first, second = x[..., :half], x[..., half:]
    cos = cos[:, None, :].to(x.dtype)
    sin = sin[:, None, :].to(x.dtype)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


def rms_norm(x, weight, eps):
    """RMSNorm over the last axis."""
    return weight * (x / torch.sqrt(x.square().mean(-1, keepdim=True) + eps))


def attend(config, weights, layer, x, rotation, past, trace):
    """One attention layer: (output rows, all keys, all values) of rows x [batch, seq, hidden].

    weights: every tensor of the model by name; a projection's bias may be among them.
    rotation: (cos, sin) of the rows' positions.
    past: (key, value) of the rows before, each [batch, length, kv_heads, head_dim], or two Nones.
    trace: a dict to be filled with the intermediate tensors by name, or None.
    """
    batch, seq, _ = x.shape
    group = config.heads // config.kv_heads
    past_key, past_value = past
    n_past = 0 if past_key is None else past_key.shape[1]

    def note(name, tensor):
        if trace is not None:
            trace[name] = tensor

    def weight(name):
        return weights[f"model.layers.{layer}.self_attn.{name}.weight"]

    def project(rows, name):
        output = rows @ weight(name).T
        bias = weights.get(f"model.layers.{layer}.self_attn.{name}.bias")
        return output if bias is None else output + bias

    hook = f"blocks.{layer}.attn.hook_"
    q = project(x, "q_proj").view(batch, seq, config.heads, config.head_dim)
    k = project(x, "k_proj").view(batch, seq, config.kv_heads, config.head_dim)
    v = project(x, "v_proj").view(batch, seq, config.kv_heads, config.head_dim)
    note(hook + "q", q)
    note(hook + "k", k)
    note(hook + "v", v)

    if config.qk_norm:
        q = rms_norm(q, weight("q_norm"), config.rms_norm_eps)
        k = rms_norm(k, weight("k_norm"), config.rms_norm_eps)
        note(hook + "q_normed", q)
        note(hook + "k_normed", k)

    q = rotate(q, *rotation)
    k = rotate(k, *rotation)
    note(hook + "rot_q", q)
    note(hook + "rot_k", k)

    if n_past:
        k = torch.cat((past_key, k), dim=1)
        v = torch.cat((past_value, v), dim=1)
    note(f"past_key_values.{layer}.key", k)
    note(f"past_key_values.{layer}.value", v)

    # Query heads in groups that share a KV head: [batch, kv_heads, group, seq, head_dim].
    q = q.view(batch, seq, config.kv_heads, group, config.head_dim).permute(0, 2, 3, 1, 4)
    keys = k.permute(0, 2, 3, 1)[:, :, None]
    values = v.permute(0, 2, 1, 3)[:, :, None]
    scores = q @ keys / math.sqrt(config.head_dim)
    # The query in row i stands at position n_past + i and sees the keys up to itself.
    future = torch.ones(seq, n_past + seq, dtype=torch.bool).triu(n_past + 1)
    scores = scores.masked_fill(future, MASKED)
    pattern = torch.softmax(scores, dim=-1)
    z = (pattern @ values).permute(0, 3, 1, 2, 4)
    z = z.reshape(batch, seq, config.heads, config.head_dim)
    note(hook + "attn_scores", scores.flatten(1, 2))
    note(hook + "pattern", pattern.flatten(1, 2))
    note(hook + "z", z)

    output = project(z.flatten(2), "o_proj")
    note(f"blocks.{layer}.hook_attn_out", output)
    return output, k, v


def to_torch(weights, dtype):
    """float32 arrays by name as tensors of dtype."""
    return {name: torch.from_numpy(np.array(array)).to(dtype) for name, array in weights.items()}


class SeedAttention:
    """A chain of attention layers with fixed weights. Holds no cache: callers pass it in.

    weights: the tensors of model.safetensors by name, as float32 arrays (numpy).
    dtype: torch.float32 or torch.float64, of all arithmetic.
    """

    def __init__(self, config, weights, dtype=torch.float32):
        self.config = config
        self.dtype = dtype
        self.weights = to_torch(weights, dtype)

    def forward(self, inputs, cache=None, trace=None):
        """Attends from new rows to all rows so far. Returns (output, the cache, grown).

        inputs [batch, seq, hidden_size], at the positions just behind the cache's; output alike.
        cache: None at position 0, else what an earlier call returned; it is not changed.
            A list with one (key, value) a layer, each [batch, length, kv_heads, head_dim].
        trace: a dict to be filled with the intermediate tensors by name, or None.
        """
        config = self.config
        x = inputs.to(self.dtype)
        past = cache or [(None, None)] * config.layers
        n_past = cache[0][0].shape[1] if cache else 0
        positions = range(n_past, n_past + x.shape[1])
        rotation = rope_tables(positions, config.head_dim, config.rope_theta)
        grown = []
        for layer in range(config.layers):
            x, key, value = attend(config, self.weights, layer, x, rotation, past[layer], trace)
            grown.append((key, value))
        return x, grown
