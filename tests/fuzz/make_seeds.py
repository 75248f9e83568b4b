#!/usr/bin/env python3
"""Writes what the fuzzers begin with: small files of every kind that the parsers know.

usage: make_seeds.py FOLDER    writes FOLDER/<target>/<seed>; run from the repository's root
"""
import json
import pathlib
import struct
import sys

MODELS = pathlib.Path("tests/reference/models")
SEED = pathlib.Path("engine/models/seed-attention")


def safetensors(tensors, dtype="F32", size=4):
    """A file of zeros; tensors: name -> shape."""
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for name, shape in tensors.items():
        n = size
        for dim in shape:
            n *= dim
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + n]}
        at += n
    text = json.dumps(header, separators=(",", ":")).encode()
    return struct.pack("<Q", len(text)) + text + bytes(at)


def make_safetensors():
    yield "seed-attention", (SEED / "model.safetensors").read_bytes()
    yield "small", safetensors({"a": [2, 3], "b": [], "c": [0], "d": [1, 1, 1, 2]})
    yield "half", safetensors({"weight": [4], "bias": [2]}, "BF16", 2)
    yield "empty", struct.pack("<Q", 2) + b"{}"


def make_config():
    for path in sorted(MODELS.glob("*/config.json")) + [SEED / "config.json"]:
        config = json.loads(path.read_text())
        yield path.parent.name, json.dumps(config).encode()
    config = json.loads((MODELS / "qwen3-tied/config.json").read_text())
    generation = {"eos_token_id": [2, 3, 2], "temperature": 0.6}
    yield "generation", json.dumps(config).encode() + b"\0" + json.dumps(generation).encode()


def make_model():
    """The smallest models of each family, and the built-in one."""
    seed = json.dumps(json.loads((SEED / "config.json").read_text())).encode()
    yield "seed-attention", b"\4" + seed + b"\0" + (SEED / "model.safetensors").read_bytes()
    common = {"hidden_size": 2, "num_hidden_layers": 1, "num_attention_heads": 1,
              "num_key_value_heads": 1, "head_dim": 2, "max_position_embeddings": 8}
    attention = {f"model.layers.0.self_attn.{x}_proj.weight": [2, 2] for x in "qkvo"}
    norms = {f"model.layers.0.self_attn.{x}_norm.weight": [2] for x in "qk"}
    biases = {f"model.layers.0.self_attn.{x}_proj.bias": [2] for x in "qkvo"}
    around = {"model.embed_tokens.weight": [3, 2], "model.norm.weight": [2],
              "model.layers.0.input_layernorm.weight": [2],
              "model.layers.0.post_attention_layernorm.weight": [2]}
    head = {"lm_head.weight": [3, 2]}

    def mlp(prefix):
        names = [f"model.layers.0.mlp.{prefix}{x}_proj.weight" for x in ("gate", "up", "down")]
        return {name: [2, 2] for name in names}

    router = {"model.layers.0.mlp.gate.weight": [2, 2]}
    experts = {**router, **mlp("experts.0."), **mlp("experts.1.")}
    decoder = {**common, "vocab_size": 3, "intermediate_size": 2}
    moe = {"num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 2}
    shared = {"use_moe": True, "n_routed_experts": 2, "n_shared_experts": 1,
              "num_experts_per_tok": 1}
    cases = {
        "attention": ({**common, "model_type": "attention"}, {**attention, **norms}),
        "llama": ({**decoder, "model_type": "llama", "attention_bias": True},
                  {**attention, **biases, **around, **mlp(""), **head}),
        "qwen3": ({**decoder, "model_type": "qwen3", "tie_word_embeddings": True},
                  {**attention, **norms, **around, **mlp(""), **head}),
        "qwen3-moe": ({**decoder, **moe, "model_type": "qwen3_moe"},
                      {**attention, **norms, **around, **experts, **head}),
        "minimind2": ({**decoder, **shared, "model_type": "minimind"},
                      {**attention, **around, **experts, **mlp("shared_experts.0.")}),
    }
    for i, (name, (config, tensors)) in enumerate(cases.items()):
        half = i % 2 == 0
        yield name, (bytes([i]) + json.dumps(config).encode() + b"\0" +
                     safetensors(tensors, "F16" if half else "F32", 2 if half else 4))


def make_json():
    bodies = {
        "row": '{"session":"a","input":[1,-2.5,3e-7,0.1,-0,3.4028234e38],"steps":3}',
        "rows": '{"session":"a.b:c-d_e","inputs":[[1,2],[3,4]],"stream":true}',
        "text": r'{"session":"\u00e9\ud83d\ude00\n\"é😀","temperature":0.70,"seed":12,'
                r'"stop":["a","\u0062"]}',
        "tokens": ' { "tokens" : [ 0 , 1, 9007199254740992 ] , "stop":"x", "\\u0073ession":"" } ',
        "deep": '{"other":[[[[{"a":[null,false,true,1.5e+10,"x"]}]]]]}',
        "empty": "",
    }
    for name, body in bodies.items():
        yield name, body.encode()


def make_body():
    row = bytes(range(8))
    def entry(dtype, shape, begin, end):
        return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}
    headers = {
        "rows": ({"__metadata__": {"session": "a", "stream": "true", "steps": " 3 "},
                  "inputs": entry("F32", [1, 2], 0, 8)}, row),
        "row": ({"input": entry("F32", [2], 0, 8), "__metadata__": {"session": "a\"b\u00e9"}}, row),
        "ids": ({"__metadata__": {"session": "a", "stop": '["x","y"]', "trace": '{"a":[1]}',
                                  "temperature": "0.5", "inputs": "[[1,2]]"},
                 "tokens": entry("I64", [1], 8, 16), "input": entry("F32", [2], 0, 8)}, row * 2),
        "u32": ({"tokens": entry("U32", [2], 0, 8), "__metadata__": {"session": ""}}, row),
        "overlap": ({"tokens": entry("I32", [2], 0, 8), "input": entry("F32", [2], 4, 12)},
                    row * 2),
    }
    for name, (header, data) in headers.items():
        text = json.dumps(header).encode()
        yield name, struct.pack("<Q", len(text)) + text + data


def tokenizer(model, text="", **parts):
    added = [{"id": i, "content": content, "single_word": False, "lstrip": False, "rstrip": False,
              "normalized": False, "special": True, **flags}
             for i, content, flags in parts.pop("added", [])]
    whole = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added,
             "normalizer": None, "pre_tokenizer": None, "post_processor": None, "decoder": None,
             "model": {"type": "BPE", **model}, **parts}
    json_text = json.dumps(whole, ensure_ascii=False, separators=(",", ":"))
    return json_text.encode() + (b"\xff" + text.encode() if text else b"")


def bpe(first, merges, **more):
    tokens = list(first) + ["".join(pair) for pair in merges]
    vocab = {token: i for i, token in enumerate(dict.fromkeys(tokens))}
    return {"vocab": vocab, "merges": [list(pair) for pair in merges], **more}


def make_tokenizer():
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True,
                  "use_regex": True}
    no_regex = {**byte_level, "use_regex": False}
    words = bpe("HWehlorwd!Ġ1234'sĊÃ©", [("l", "l"), ("h", "e"), ("Ġ", "w"), ("he", "ll")])
    words["merges"] = [" ".join(pair) for pair in words["merges"]]
    yield "gpt2", tokenizer(words, "hello world's 12", pre_tokenizer={**byte_level,
                            "add_prefix_space": True}, decoder=byte_level,
                            post_processor=byte_level, added=[(30, "<|end|>", {})])
    pattern = (r"(?i:'s|'t)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+|"
               r"\s*[\r\n]+|\s+(?!\S)|\s+")
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated",
             "invert": False}
    template = {"type": "TemplateProcessing", "single": [
        {"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [], "special_tokens": {"<s>": {"id": "<s>", "ids": [30], "tokens": ["<s>"]}}}
    yield "llama3", tokenizer(
        {**words, "ignore_merges": True}, "hello  1234\n\n", normalizer={"type": "NFC"},
        pre_tokenizer={"type": "Sequence", "pretokenizers": [split, no_regex]},
        post_processor={"type": "Sequence", "processors": [byte_level, template]},
        decoder=byte_level, added=[(30, "<s>", {})])
    marked = bpe(["<unk>", "<s>", "</s>", "<0x0A>", "<0xC3>", "<0xA9>", "<0x20>", *"▁Hehlowrd"],
                 [("▁", "w"), ("l", "l"), ("ll", "o")], unk_token="<unk>", fuse_unk=True,
                 byte_fallback=True)
    steps = {"type": "Sequence", "decoders": [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"},
        {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}
    yield "llama2", tokenizer(
        marked, "hello\n é<s> w", decoder=steps,
        normalizer={"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": "▁"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]},
        post_processor=template,
        added=[(1, "<s>", {"normalized": True}), (30, "[X]", {"lstrip": True, "rstrip": True})])
    for scheme in ("first", "always", "never"):
        space = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme,
                 "add_prefix_space": scheme != "never", "split": scheme != "first"}
        yield f"metaspace-{scheme}", tokenizer(
            marked, "hello world é</s>", pre_tokenizer=space, decoder=space,
            added=[(2, "</s>", {"single_word": True, "special": False})])
    for i, behavior in enumerate(["Removed", "Isolated", "MergedWithPrevious", "MergedWithNext",
                                  "Contiguous"]):
        split = {"type": "Split", "pattern": {"String": "l"} if i % 2 else {"Regex": "l+|\\d"},
                 "behavior": behavior, "invert": i > 2}
        yield f"split-{behavior}", tokenizer(
            words, "hello ll 12", decoder=byte_level, pre_tokenizer={
                "type": "Sequence", "pretokenizers": [
                    {"type": "Digits", "individual_digits": i % 2 == 0}, split, no_regex]})
    yield "replace", tokenizer(
        words, "héllo", decoder=byte_level, normalizer={"type": "Sequence", "normalizers": [
            {"type": "Replace", "pattern": {"Regex": "[é\\u00e8\\x{ea}]|\\s+$"}, "content": "e"},
            {"type": "NFC"}]}, pre_tokenizer=byte_level)


def main():
    out = pathlib.Path(sys.argv[1])
    for target, make in {"body": make_body, "config": make_config, "json": make_json, "model": make_model,
                         "safetensors": make_safetensors, "tokenizer": make_tokenizer}.items():
        (out / target).mkdir(parents=True, exist_ok=True)
        for name, data in make():
            (out / target / name).write_bytes(data)


if len(sys.argv) != 2:
    sys.exit(__doc__)
main()
