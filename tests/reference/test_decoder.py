"""Checks the reference of language models: configs, checkpoints, the mathematics, its goldens.

Run: /usr/bin/python3 -m pytest tests/reference
With ATTND_TEST_MODELS set to a folder that has stories260K/, also that model's published text.
"""

import json
import math
import os
from pathlib import Path

import numpy as np
import pytest

import make_checkpoint
import philox
import safetensors_io
from decoder_config import Config, rope_frequencies, round_to, tensor_shapes, widen
from make_checkpoint import MODELS, checkpoint_tensors, read_config, write_checkpoint

GOLDENS = Path(__file__).resolve().parent / "goldens"
LM_GOLDENS = sorted(path.stem for path in GOLDENS.glob("lm-*"))
NAMES = sorted(
    path.parent.name
    for path in MODELS.glob("*/config.json")
    if json.loads(path.read_text())["model_type"] != "attention"
)

STORY = (
    "Once upon a time, there was a little girl named Lily. She loved to play outside in the park. "
    "One day, she saw a big, red ball. She wanted to play with it, but it was too high.\n"
    'Lily\'s mom said, "Lily, let\'s go to the park." Lily was sad and didn\'t know what to do. '
    'She said, "I want to play with your ball, but I can\'t find it."\n'
    "Lily was sad and didn't know what to do. She said, \"I'm sorry, Lily. I didn't know what to "
    'do."\n'
    "Lily didn't want to help her mom, so she said, \"I'm sorry, mom. I didn't know what to do.\" "
    'Her mom said, "Don\'t worry, Lily. We can help you.'
)


def config_of(name, **changes):
    """models/<name> with some fields changed, as a Config."""
    return Config.from_dict({**read_config(name), **changes})


# ---- config.json ----


def test_the_smallest_config_of_each_family():
    shape = {
        "vocab_size": 10,
        "hidden_size": 768,
        "num_hidden_layers": 1,
        "num_attention_heads": 8,
    }
    llama = Config.from_dict({"model_type": "llama", "intermediate_size": 4, **shape})
    assert (llama.kv_heads, llama.head_dim, llama.rope_theta) == (8, 96, 1e4)
    assert (llama.max_positions, llama.qk_norm, llama.tied) == (2048, False, False)
    assert (llama.bos, llama.eos) == (1, (2,))
    with pytest.raises(ValueError, match="intermediate_size"):
        Config.from_dict({"model_type": "llama", **shape})

    qwen3 = {"model_type": "qwen3", "intermediate_size": 4, **shape, "num_key_value_heads": None}
    qwen3 = Config.from_dict(qwen3)
    assert (qwen3.kv_heads, qwen3.head_dim, qwen3.rope_theta) == (8, 128, 1e4)
    assert (qwen3.max_positions, qwen3.qk_norm, qwen3.tied) == (32768, True, False)
    assert (qwen3.bos, qwen3.eos) == (None, ())

    minimind = Config.from_dict({"model_type": "minimind", **shape})
    assert (minimind.kv_heads, minimind.head_dim, minimind.rope_theta) == (4, 96, 1e6)
    assert (minimind.intermediate_size, minimind.qk_norm, minimind.tied) == (2432, True, True)
    assert (minimind.rms_norm_eps, minimind.experts) == (1e-6, 0)

    older = Config.from_dict({"model_type": "minimind", "n_routed_experts": 4, **shape})
    assert (older.kv_heads, older.rms_norm_eps, older.qk_norm) == (2, 1e-5, False)
    assert (older.intermediate_size, older.experts, older.tied) == (2048, 0, True)


@pytest.mark.parametrize(
    "changes",
    [
        {"model_type": "gpt2"},
        {"hidden_act": "relu"},
        {"mlp_bias": True},
        {"use_sliding_window": True},
        {"layer_types": ["full_attention", "sliding_attention"]},
        {"quantization_config": {}},
        {"partial_rotary_factor": 0.5},
        {"num_key_value_heads": 3},
        {"head_dim": 7},
        {"rope_scaling": {"type": "dynamic", "factor": 2.0}},
        {"rope_scaling": {"rope_type": "yarn", "factor": 2.0, "mscale": 0.7}},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_what_would_change_the_result_is_refused_by_name(changes):
    names = {"rope_scaling": "rope_type|mscale"}
    (field,) = changes
    with pytest.raises(ValueError, match=names.get(field, field)):
        config_of("llama-gqa", **changes)


def test_rope_is_read_in_every_form():
    linear = {"rope_type": "linear", "factor": 4.0}
    expected = config_of("llama-rope-linear")
    assert config_of("llama-rope-linear", rope_scaling=linear) == expected
    moved = {**linear, "rope_theta": 1e4}
    moved = {"rope_scaling": None, "rope_theta": None, "rope_parameters": moved}
    assert config_of("llama-rope-linear", **moved) == expected

    # MiniMind scales where inference_rope_scaling says so, whatever rope_scaling says.
    yarn = config_of("minimind-yarn")
    assert config_of("minimind-yarn", rope_scaling=None) == yarn
    assert config_of("minimind-yarn", inference_rope_scaling=False).rope == {"rope_type": "default"}
    assert config_of("minimind-yarn", max_position_embeddings=2048).rope == {"rope_type": "default"}


def test_rope_scaling_by_hand():
    plain, one = rope_frequencies(config_of("llama-rope-llama3", rope_scaling=None))
    assert one == 1.0
    assert np.array_equal(
        rope_frequencies(config_of("llama-rope-linear"))[0],
        rope_frequencies(config_of("llama-rope-linear", rope_scaling=None))[0] / 4,
    )

    # llama3, original context 256: waves below 64 stay, above 256 are divided by 8.
    scaled, one = rope_frequencies(config_of("llama-rope-llama3"))
    assert one == 1.0
    waves = 2 * np.pi / plain
    assert np.array_equal(scaled[waves < 64], plain[waves < 64])
    assert np.array_equal(scaled[waves > 256], plain[waves > 256] / 8)
    between = (waves > 64) & (waves < 256)
    assert between.any()
    assert np.all(scaled[between] < plain[between])
    assert np.all(scaled[between] > plain[between] / 8)

    # MiniMind, head_dim 24, theta 1e6: pairs 2.0 and 5.03 turn 32 times and once in 2048; a ramp
    # from 2 to 6 follows.
    plain, _ = rope_frequencies(config_of("minimind-yarn", inference_rope_scaling=False))
    scaled, one = rope_frequencies(config_of("minimind-yarn"))
    ramp = np.clip((np.arange(12) - 2) / 4, 0, 1)
    assert one == 1.0
    assert np.allclose(scaled, plain * (1 - ramp) + plain / 16 * ramp, rtol=1e-15)

    # YaRN elsewhere: cos and sin grow with the logarithm of the factor.
    _, factor = rope_frequencies(config_of("qwen3-yarn"))
    assert factor == pytest.approx(0.1 * np.log(4) + 1)


# ---- weights and checkpoints ----


def test_one_dimensional_tensors():
    bias = philox.tensor(3, "a.bias", (9,))
    assert np.array_equal(bias, philox.uniform(3, "a.bias", (9,)) * np.float32(0.1))
    assert np.array_equal(philox.tensor(3, "a_norm.weight", (9,)), np.ones(9, dtype=np.float32))
    assert np.array_equal(philox.tensor(3, "a", (2, 4)), philox.weight(3, "a", (2, 4)))


def test_rounding_is_pytorch_s():
    torch = pytest.importorskip("torch")
    values = philox.uniform(1, "values", (1000,)) * np.float32(3)
    values[:4] = [1 + 2**-8, 1 + 3 * 2**-8, 0.0, -0.0]  # two ties, both zeros
    for dtype, name in ((torch.float16, "f16"), (torch.bfloat16, "bf16")):
        expected = torch.from_numpy(values).to(dtype).float().numpy()
        assert widen(round_to(values, name)).tobytes() == expected.tobytes()
    assert round_to(values, "f32") is values


@pytest.mark.parametrize("dtype, element", [("f32", 4), ("f16", 2), ("bf16", 2)])
def test_checkpoints_hold_every_tensor(tmp_path, dtype, element):
    for name in NAMES:
        shapes = tensor_shapes(config_of(name))
        expected = checkpoint_tensors(name, 5, dtype, "random")
        for n_shards in (1, 3):
            folder = tmp_path / name / str(n_shards)
            write_checkpoint(name, folder, 5, dtype, "random", n_shards)
            tensors = {}
            for file in folder.glob("*.safetensors"):
                part, metadata = safetensors_io.read(file)
                assert part and metadata == {"format": "pt"} and not part.keys() & tensors.keys()
                tensors.update(part)
            assert {key: array.shape for key, array in tensors.items()} == shapes
            for key, array in tensors.items():
                assert array.dtype.itemsize == element
                assert array.tobytes() == expected[key].tobytes()
            index = folder / "model.safetensors.index.json"
            assert index.exists() == (n_shards > 1)
            if n_shards > 1:
                index = json.loads(index.read_text())
                assert index["weight_map"].keys() == shapes.keys()
                assert len(set(index["weight_map"].values())) == n_shards
                n_bytes = sum(array.nbytes for array in tensors.values())
                assert index["metadata"]["total_size"] == n_bytes
            config = json.loads((folder / "config.json").read_text())
            assert Config.from_dict(config) == config_of(name)


def test_checkpoint_command(tmp_path):
    make_checkpoint.main(["llama-gqa", str(tmp_path), "--seed", "42"])
    tensors, _ = safetensors_io.read(tmp_path / "model.safetensors")
    assert np.all(tensors["model.norm.weight"] == 1)
    assert tensors["lm_head.weight"].shape == (320, 64)
    generation = json.loads((tmp_path / "generation_config.json").read_text())
    assert generation["eos_token_id"] == 2


# ---- the mathematics ----


def decoder_of(name, seed=1, norms="random", **changes):
    """A random model of models/<name>, float64, with some fields of its config changed."""
    torch = pytest.importorskip("torch")
    from decoder import Decoder
    from decoder_config import random_weights

    config = config_of(name, **changes)
    return Decoder(config, random_weights(seed, config, norms), torch.float64)


@pytest.mark.parametrize("name", NAMES)
def test_splitting_changes_only_rounding(name):
    torch = pytest.importorskip("torch")
    decoder = decoder_of(name)
    tokens = torch.arange(18).view(2, 9) * 7
    whole, whole_cache = decoder.forward(tokens)
    cache, parts = None, []
    for chunk in tokens.split([4, 1, 3, 1], dim=1):
        logits, cache = decoder.forward(chunk, cache)
        parts.append(logits)
    assert torch.allclose(torch.cat(parts, dim=1), whole, rtol=0, atol=1e-12)
    for layer, layer_whole in zip(cache, whole_cache):
        for tensor, tensor_whole in zip(layer, layer_whole):
            assert torch.allclose(tensor, tensor_whole, rtol=0, atol=1e-12)


def swiglu(weights, prefix, row):
    """One row through the MLP whose tensors start with prefix; numpy arrays."""
    gate, up, down = (weights[f"{prefix}.{name}_proj.weight"] for name in ("gate", "up", "down"))
    gated = gate @ row
    return down @ (gated / (1 + np.exp(-gated)) * (up @ row))


def expected_mlp(config, weights, layer, row):
    """The MLP of a layer as its definition reads, expert by expert; a silu model."""
    prefix = f"model.layers.{layer}.mlp"
    if not config.experts:
        return swiglu(weights, prefix, row)
    logits = weights[f"{prefix}.gate.weight"] @ row
    scores = np.exp(logits) / np.exp(logits).sum()
    chosen = sorted(range(config.experts), key=lambda expert: (-scores[expert], expert))
    chosen = chosen[: config.experts_per_token]
    total = sum(scores[expert] for expert in chosen) if config.norm_topk else 1.0
    output = np.zeros(config.hidden_size)
    for expert in sorted(chosen):
        output += scores[expert] / total * swiglu(weights, f"{prefix}.experts.{expert}", row)
    for expert in range(config.shared_experts):
        output += swiglu(weights, f"{prefix}.shared_experts.{expert}", row)
    return output


def test_mlp_by_hand():
    torch = pytest.importorskip("torch")
    for name in ("llama-gqa", "minimind-moe", "qwen3-moe", "minimind2-moe"):
        decoder = decoder_of(name)
        trace = {}
        decoder.forward(torch.tensor([[3, 1, 4]]), trace=trace)
        rows = trace["blocks.1.ln2.hook_normalized"]
        rows = rows * decoder.weights["model.layers.1.post_attention_layernorm.weight"]
        weights = {key: tensor.numpy() for key, tensor in decoder.weights.items()}
        expected = [expected_mlp(decoder.config, weights, 1, row) for row in rows[0].numpy()]
        assert np.allclose(trace["blocks.1.hook_mlp_out"][0], expected, rtol=0, atol=1e-12)
        resid = trace["blocks.1.hook_resid_mid"] + trace["blocks.1.hook_mlp_out"]
        assert torch.equal(trace["blocks.1.hook_resid_post"], resid)


def test_equal_router_probabilities_choose_the_lower_ids():
    torch = pytest.importorskip("torch")
    decoder = decoder_of("minimind-moe")
    for layer in range(2):
        decoder.weights[f"model.layers.{layer}.mlp.gate.weight"].zero_()
    trace = {}
    decoder.forward(torch.tensor([[3, 1, 4]]), trace=trace)
    assert trace["blocks.0.mlp.hook_expert_indices"].tolist() == [[[0, 1]] * 3]


def test_gelu_is_the_exact_one():
    torch = pytest.importorskip("torch")
    from decoder import ACTIVATIONS

    x = torch.linspace(-4, 4, 9, dtype=torch.float64)
    expected = [v / 2 * (1 + math.erf(v / math.sqrt(2))) for v in x.tolist()]
    assert np.allclose(ACTIVATIONS["gelu"](x), expected, rtol=0, atol=1e-15)


# ---- goldens ----


def test_every_golden_and_every_model_is_there():
    pytest.importorskip("torch")
    from make_decoder_goldens import GOLDENS as TABLE, TRACED

    assert LM_GOLDENS == sorted(f"lm-{name}" for name in TABLE)
    traced = sorted(path.stem for path in GOLDENS.glob("trace-lm-*"))
    assert traced == sorted(f"trace-lm-{name}" for name in TRACED)
    assert {numbers[0] for numbers in TABLE.values()} == set(NAMES)


def read_golden(name):
    """(tensors, model, config, weights) of a golden."""
    tensors, metadata = safetensors_io.read(GOLDENS / f"{name}.safetensors")
    model = metadata["model"]
    stored = checkpoint_tensors(model, int(metadata["seed"]), metadata["dtype"], metadata["norms"])
    weights = {key: widen(array) for key, array in stored.items()}
    return tensors, model, config_of(model), weights


@pytest.mark.parametrize("name", LM_GOLDENS)
def test_golden_is_what_the_reference_computes(name):
    torch = pytest.importorskip("torch")
    from decoder import Decoder, greedy

    golden, _, config, weights = read_golden(name)
    rows = golden["rows"].tolist()
    tokens = torch.from_numpy(golden["tokens"].copy())[None].long()
    # Another machine's matrix product may round differently: close, not equal.
    logits, _ = Decoder(config, weights).forward(tokens)
    assert np.allclose(logits[0, rows], golden["logits"], rtol=0, atol=5e-6)
    exact = Decoder(config, weights, torch.float64)
    logits, _ = exact.forward(tokens)
    assert np.allclose(logits[0, rows], golden["logits64"], rtol=0, atol=1e-11)
    ids, margins = greedy(exact, golden["prompt"].tolist(), len(golden["greedy"]))
    assert ids == golden["greedy"].tolist()
    assert np.allclose(margins, golden["greedy_margin"], rtol=0, atol=1e-11)
    assert min(margins) > 1e-3
    assert not set(ids) & set(config.eos)


@pytest.mark.parametrize("name", sorted(path.stem for path in GOLDENS.glob("trace-lm-*")))
def test_trace_is_what_the_reference_computes(name):
    torch = pytest.importorskip("torch")
    from decoder import Decoder
    from make_goldens import TRACED_LENGTH, last_rows

    golden, _, config, weights = read_golden(name)
    tokens = read_golden(name.removeprefix("trace-"))[0]["tokens"][:TRACED_LENGTH]
    trace = {}
    tokens = torch.from_numpy(tokens.copy())[None].long()
    Decoder(config, weights, torch.float64).forward(tokens, trace=trace)
    rows = last_rows(trace)
    assert rows.keys() == golden.keys()
    for key in golden:
        assert np.allclose(rows[key], golden[key], rtol=1e-6, atol=1e-7), key


@pytest.mark.parametrize(
    "name, changes",
    [
        ("llama-gqa", {"rms_norm_eps": 1e-3}),
        ("llama-gqa", {"rope_theta": 2e4}),
        ("llama-bias", {"attention_bias": False}),
        ("llama-rope-llama3", {"rope_scaling": None}),
        ("llama-rope-linear", {"rope_scaling": None}),
        ("qwen3-yarn", {"rope_scaling": None}),
        ("qwen3-yarn", {"model_type": "llama"}),
        ("qwen3-moe", {"norm_topk_prob": True}),
        ("qwen3-moe", {"num_experts_per_tok": 2}),
        ("minimind-yarn", {"inference_rope_scaling": False}),
        ("minimind-moe", {"norm_topk_prob": False}),
        ("minimind2-moe", {"n_shared_experts": 0}),
        ("minimind2-moe", {"norm_topk_prob": False}),
        ("minimind-dense", {"hidden_act": "gelu"}),
    ],
    ids=lambda value: value if isinstance(value, str) else next(iter(value)),
)
def test_goldens_tell_options_apart(name, changes):
    torch = pytest.importorskip("torch")
    from decoder import Decoder

    golden, model, _, weights = read_golden(f"lm-{name}")
    config = config_of(model, **changes)
    kept = {key: weights[key] for key in tensor_shapes(config)}
    tokens = torch.from_numpy(golden["tokens"].copy())[None].long()
    logits, _ = Decoder(config, kept, torch.float64).forward(tokens)
    wrong = np.abs(logits[0, golden["rows"].tolist()].numpy() - golden["logits64"]).max()
    assert wrong > 1e-3


# ---- a real model ----


def test_stories260k_tells_the_published_story():
    torch = pytest.importorskip("torch")
    from decoder import Decoder, greedy

    folder = os.environ.get("ATTND_TEST_MODELS")
    if not folder:
        pytest.skip("ATTND_TEST_MODELS is not set: no stories260K")
    folder = Path(folder) / "stories260K"
    config = Config.from_dict(json.loads((folder / "config.json").read_text()))
    weights, _ = safetensors_io.read(folder / "model.safetensors")
    assert {key: array.shape for key, array in weights.items()} == tensor_shapes(config)
    vocabulary = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    token_texts = {number: text for text, number in vocabulary.items()}
    for dtype in (torch.float32, torch.float64):
        ids, _ = greedy(Decoder(config, weights, dtype), [config.bos], 256)
        text = "".join(token_texts[number] for number in ids)
        assert text.replace("\u2581", " ").replace("<0x0A>", "\n").lstrip() == STORY
