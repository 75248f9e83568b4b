"""The shape of a language model: config.json as Hugging Face means it, tensor names, RoPE.

`llama`, `qwen3` and `minimind` are one architecture, a decoder of pre-normed blocks, with different
defaults and options; `qwen3_moe` is the form in which MiniMind publishes its mixture of experts.
README.md has the same facts as tables. numpy only.

What a config.json says beyond this is either without effect on the result (training, dropout,
initialisation, dtype) and ignored, or refused here by its name.
"""

import math
from dataclasses import dataclass

import numpy as np

import philox

# What a missing field means, where families differ. MiniMind 2 is MiniMind before QK-norm.
DEFAULTS = {
    "llama": {
        "num_key_value_heads": None,
        "head_dim": None,
        "max_position_embeddings": 2048,
        "rope_theta": 1e4,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
    },
    "qwen3": {
        "num_key_value_heads": 32,
        "head_dim": 128,
        "max_position_embeddings": 32768,
        "rope_theta": 1e4,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": False,
        "bos_token_id": None,
        "eos_token_id": None,
    },
    "minimind": {
        "num_key_value_heads": 4,
        "head_dim": None,
        "max_position_embeddings": 32768,
        "rope_theta": 1e6,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": True,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "num_experts": 4,
        "num_experts_per_tok": 1,
        "norm_topk_prob": True,
    },
}
DEFAULTS["qwen3_moe"] = {
    **DEFAULTS["qwen3"],
    "num_key_value_heads": 4,
    "head_dim": None,
    "moe_intermediate_size": 768,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "norm_topk_prob": False,
}
DEFAULTS["minimind2"] = {
    **DEFAULTS["minimind"],
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
}

# MiniMind's YaRN: where its config.json says so with inference_rope_scaling, and not how.
MINIMIND_YARN = {
    "factor": 16,
    "original_max_position_embeddings": 2048,
    "beta_fast": 32,
    "beta_slow": 1,
    "attention_factor": 1.0,
}

# Fields that would change the result, and the values that do not.
REFUSED_UNLESS = {
    "mlp_bias": (False,),
    "use_sliding_window": (False,),
    "partial_rotary_factor": (1.0,),
    "decoder_sparse_step": (1,),
    "mlp_only_layers": ([],),
    "scoring_func": ("softmax",),
    "quantization_config": (),
}
ACTIVATIONS = ("silu", "gelu")
ROPE_TYPES = ("default", "linear", "llama3", "yarn")


@dataclass(frozen=True)
class Config:
    """The shape of a decoder; names are those of seed_attention.Config where it has them."""

    family: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    max_positions: int
    rope_theta: float
    rope: dict  # rope_type and its numbers, all present
    rms_norm_eps: float
    hidden_act: str
    attention_bias: bool
    qk_norm: bool
    tied: bool
    experts: int  # 0: a dense model
    experts_per_token: int
    expert_size: int
    shared_experts: int
    norm_topk: bool
    bos: int  # or None
    eos: tuple  # none, one or several ids

    @classmethod
    def from_dict(cls, config):
        """config: a parsed config.json. ValueError names the field that cannot be served."""
        model_type = config.get("model_type")
        family = model_type
        if model_type == "minimind" and "n_routed_experts" in config:
            family = "minimind2"
        if family not in DEFAULTS:
            raise ValueError(f"model_type: {model_type}")
        for field, allowed in REFUSED_UNLESS.items():
            if config.get(field) is not None and config[field] not in allowed:
                raise ValueError(f"{field}: {config[field]}")
        if set(config.get("layer_types") or ()) - {"full_attention"}:
            raise ValueError("layer_types: not full_attention alone")

        def field(name):
            """The field's value; a null is not a missing field."""
            return config[name] if name in config else DEFAULTS[family].get(name)

        hidden, heads = config["hidden_size"], config["num_attention_heads"]
        head_dim = field("head_dim") or hidden // heads
        if family == "minimind2":
            head_dim = hidden // heads
        kv_heads = field("num_key_value_heads") or heads
        if heads % kv_heads:
            raise ValueError("num_key_value_heads: not a divisor of num_attention_heads")
        if head_dim % 2:
            raise ValueError("head_dim: odd")
        hidden_act = config.get("hidden_act", "silu")
        if hidden_act not in ACTIVATIONS:
            raise ValueError(f"hidden_act: {hidden_act}")
        intermediate = config.get("intermediate_size") or _default_intermediate(family, hidden)
        eos = field("eos_token_id")
        theta, rope = _rope_parameters(family, config, field("max_position_embeddings"))

        sparse = family == "qwen3_moe" or config.get("use_moe", False)
        count = "n_routed_experts" if family == "minimind2" else "num_experts"
        per_token = field("num_experts_per_tok") if sparse else 0
        if sparse and not 1 <= per_token <= field(count):
            raise ValueError("num_experts_per_tok: out of range")
        norm_topk = bool(sparse and field("norm_topk_prob"))
        if family == "minimind2":
            norm_topk = norm_topk and per_token > 1
        return cls(
            family=family,
            vocab_size=config["vocab_size"],
            hidden_size=hidden,
            intermediate_size=intermediate,
            layers=config["num_hidden_layers"],
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            max_positions=field("max_position_embeddings"),
            rope_theta=theta,
            rope=rope,
            rms_norm_eps=field("rms_norm_eps"),
            hidden_act=hidden_act,
            attention_bias=not family.startswith("minimind")
            and bool(config.get("attention_bias", False)),
            qk_norm=family in ("qwen3", "qwen3_moe", "minimind"),
            tied=family == "minimind2" or field("tie_word_embeddings"),
            experts=field(count) if sparse else 0,
            experts_per_token=per_token,
            expert_size=_expert_size(family, field, intermediate) if sparse else 0,
            shared_experts=field("n_shared_experts") if sparse and family == "minimind2" else 0,
            norm_topk=norm_topk,
            bos=field("bos_token_id"),
            eos=tuple(eos) if isinstance(eos, list) else () if eos is None else (eos,),
        )


def _default_intermediate(family, hidden):
    """MLP width of a config.json without one; only MiniMind has such a rule."""
    if family == "minimind":
        return math.ceil(hidden * math.pi / 64) * 64
    if family == "minimind2":
        return (int(hidden * 8 / 3) + 63) // 64 * 64
    raise ValueError("intermediate_size: missing")


def _expert_size(family, field, intermediate):
    """Width of one expert."""
    return intermediate if family == "minimind2" else field("moe_intermediate_size") or intermediate


def _rope_parameters(family, config, max_positions):
    """(theta, parameters with a rope_type) of config.json's rope_theta, rope_scaling and so on.

    Since its version 5 the transformers library writes rope_parameters, with rope_theta inside,
    instead of rope_scaling and rope_theta; both are read. rope_type was once called type.
    """
    given = config.get("rope_scaling") or config.get("rope_parameters") or {}
    theta = given.get("rope_theta") or config.get("rope_theta") or DEFAULTS[family]["rope_theta"]
    if family.startswith("minimind"):
        if not config.get("inference_rope_scaling", False):
            return theta, {"rope_type": "default"}
        scaling = {key: given.get(key, value) for key, value in MINIMIND_YARN.items()}
        if max_positions <= scaling["original_max_position_embeddings"]:
            return theta, {"rope_type": "default"}
        return theta, {**scaling, "rope_type": "yarn"}

    rope_type = given.get("rope_type") or given.get("type") or "default"
    if rope_type not in ROPE_TYPES:
        raise ValueError(f"rope_type: {rope_type}")
    if given.get("partial_rotary_factor") not in (None, 1.0):
        raise ValueError("partial_rotary_factor: not 1")
    if rope_type == "default":
        return theta, {"rope_type": "default"}
    scaling = {"rope_type": rope_type, "factor": given["factor"]}
    if rope_type == "linear":
        return theta, scaling
    original = given.get("original_max_position_embeddings") or max_positions
    scaling["original_max_position_embeddings"] = original
    if rope_type == "llama3":
        for key in ("low_freq_factor", "high_freq_factor"):
            scaling[key] = given[key]
        return theta, scaling
    for key in ("mscale", "mscale_all_dim", "truncate"):
        if key in given:
            raise ValueError(f"{key}: not supported")
    scaling["beta_fast"] = given.get("beta_fast") or 32
    scaling["beta_slow"] = given.get("beta_slow") or 1
    attention_factor = given.get("attention_factor")
    if attention_factor is None:
        factor = scaling["factor"]
        attention_factor = 0.1 * math.log(factor) + 1.0 if factor > 1 else 1.0
    scaling["attention_factor"] = attention_factor
    return theta, scaling


def rope_frequencies(config):
    """(inv_freq, factor): radians a position of each pair, in double, and what cos and sin are
    multiplied by. Rounding inv_freq to float32 comes after the scaling.

    linear: positions are divided by factor. llama3: waves shorter than the original context over
    high_freq_factor stay, longer than over low_freq_factor are divided, between them blended
    (Llama 3.1). yarn: Peng et al. 2023, section 3: the blend goes by the pair's index.
    """
    pairs = np.arange(config.head_dim // 2, dtype=np.float64)
    inv_freq = 1.0 / np.power(float(config.rope_theta), 2.0 * pairs / config.head_dim)
    rope = config.rope
    if rope["rope_type"] == "default":
        return inv_freq, 1.0
    factor = rope["factor"]
    if rope["rope_type"] == "linear":
        return inv_freq / factor, 1.0

    original = rope["original_max_position_embeddings"]
    if rope["rope_type"] == "llama3":
        low, high = rope["low_freq_factor"], rope["high_freq_factor"]
        wavelength = 2.0 * math.pi / inv_freq
        smooth = (original / wavelength - low) / (high - low)
        blended = (1.0 - smooth) * inv_freq / factor + smooth * inv_freq
        scaled = np.where(wavelength > original / low, inv_freq / factor, blended)
        return np.where(wavelength < original / high, inv_freq, scaled), 1.0

    def pair_of(rotations):
        """The (fractional) pair that turns so many times in the original context."""
        turns = original / (rotations * 2.0 * math.pi)
        return config.head_dim * math.log(turns) / (2.0 * math.log(config.rope_theta))

    # MiniMind's last pair is head_dim / 2 - 1; the transformers library's is head_dim - 1.
    last = config.head_dim // 2 - 1 if config.family.startswith("minimind") else config.head_dim - 1
    low = max(math.floor(pair_of(rope["beta_fast"])), 0)
    high = min(math.ceil(pair_of(rope["beta_slow"])), last)
    ramp = np.clip((pairs - low) / max(high - low, 0.001), 0.0, 1.0)
    return inv_freq * (1.0 - ramp + ramp / factor), rope["attention_factor"]


def tensor_shapes(config):
    """The shape of every tensor that a checkpoint of this config holds, by name, in file order."""
    hidden = config.hidden_size
    q_width, kv_width = config.heads * config.head_dim, config.kv_heads * config.head_dim
    projections = {
        "q_proj": (q_width, hidden),
        "k_proj": (kv_width, hidden),
        "v_proj": (kv_width, hidden),
        "o_proj": (hidden, q_width),
    }
    shapes = {"model.embed_tokens.weight": (config.vocab_size, hidden)}

    def add_mlp(prefix, width):
        shapes[f"{prefix}.gate_proj.weight"] = (width, hidden)
        shapes[f"{prefix}.up_proj.weight"] = (width, hidden)
        shapes[f"{prefix}.down_proj.weight"] = (hidden, width)

    for layer in range(config.layers):
        block = f"model.layers.{layer}"
        shapes[f"{block}.input_layernorm.weight"] = (hidden,)
        for name, shape in projections.items():
            shapes[f"{block}.self_attn.{name}.weight"] = shape
            if config.attention_bias:
                shapes[f"{block}.self_attn.{name}.bias"] = shape[:1]
        if config.qk_norm:
            shapes[f"{block}.self_attn.q_norm.weight"] = (config.head_dim,)
            shapes[f"{block}.self_attn.k_norm.weight"] = (config.head_dim,)
        shapes[f"{block}.post_attention_layernorm.weight"] = (hidden,)
        if not config.experts:
            add_mlp(f"{block}.mlp", config.intermediate_size)
            continue
        shapes[f"{block}.mlp.gate.weight"] = (config.experts, hidden)
        for expert in range(config.experts):
            add_mlp(f"{block}.mlp.experts.{expert}", config.expert_size)
        for expert in range(config.shared_experts):
            add_mlp(f"{block}.mlp.shared_experts.{expert}", config.expert_size)
    shapes["model.norm.weight"] = (hidden,)
    if not config.tied:
        shapes["lm_head.weight"] = (config.vocab_size, hidden)
    return shapes


def random_weights(seed, config, norms="ones"):
    """Every tensor of a random decoder by name, float32, as `--random SEED` draws them.

    norms: "ones", as `--random` has them, or "random": 0.5 uniform + 1, for checkpoints in files.
    """
    weights = {}
    for name, shape in tensor_shapes(config).items():
        if name.endswith("norm.weight") and norms == "random":
            uniform = philox.uniform(seed, name, shape)
            weights[name] = np.float32(0.5) * uniform + np.float32(1)
        else:
            weights[name] = philox.tensor(seed, name, shape)
    return weights


def round_to(array, dtype):
    """The float32 array in another dtype, to nearest, ties to even: "f32", "f16" or "bf16".

    numpy has no bfloat16: that one comes back as safetensors_io.BF16 records.
    """
    if dtype == "f32":
        return array
    if dtype == "f16":
        return array.astype(np.float16)
    bits = array.view(np.uint32).astype(np.uint64)
    rounded = (bits + 0x7FFF + ((bits >> np.uint64(16)) & np.uint64(1))) >> np.uint64(16)
    return rounded.astype(np.uint16).view([("bf16", "<u2")])


def widen(array):
    """The float32 values of a tensor read from a checkpoint: exact."""
    if array.dtype.names:
        return (array["bf16"].astype(np.uint32) << np.uint32(16)).view(np.float32)
    return array.astype(np.float32)
