"""Trains the built-in story model: a MiniMind decoder of about a million parameters.

    OPENBLAS_CORETYPE=Haswell train.py --tokenizer tokenizer.json --text composed.txt=0.9 \
        --text kept.txt=0.1 --held-out name=file ... --steps 4000 --state state.pt --out folder

Rows of `--context` tokens are packed with stories, <s> story </s> each, drawn from the text files
with the given shares. A part of the rows (`--repeats`) is <s> and random tokens that come again and
again; only what can be copied counts as loss there. They teach induction (Olsson et al., 2022).

Two heads are told what to look at, `--teach` times -log of the weight that they give it, added to
the loss: head 0 of block 1 the token before, head 0 of block 3 (in repeated rows) what followed the
current token when it came before. Both arise by themselves in longer training; so they come soon,
and at a place that is known.

AdamW for embeddings and norms, Muon (Jordan, 2024: momentum, made orthogonal by Newton-Schulz
steps) for the matrices. The rate is constant and falls to zero over the last `--decay` steps, so a
run can be resumed with a larger `--steps`, up to there. Every draw comes from the step's number:
the same arguments give the same model on one machine, interrupted or not. (`--seed` is that of the
first weights.) Other arguments may be given when a run is resumed: other shares, a longer context.

Writes config.json, model.safetensors (bf16, rounded to nearest even) and tokenizer.json to the
folder, and a line of held-out bits per character to standard error, every `--every` steps.
"""

import argparse
import json
import math
import random
import shutil
import sys
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy, silu

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import safetensors_io  # noqa: E402
from tokenizer import BOS, EOS, Tokenizer, read_stories  # noqa: E402

CONFIG = {
    "architectures": ["MiniMindForCausalLM"],
    "model_type": "minimind",
    "hidden_size": 128,
    "intermediate_size": 288,
    "num_hidden_layers": 5,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": 1536,
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
    "bos_token_id": BOS,
    "eos_token_id": EOS,
    "torch_dtype": "bfloat16",
}
HIDDEN, LAYERS, HEAD_DIM = CONFIG["hidden_size"], CONFIG["num_hidden_layers"], CONFIG["head_dim"]
HEADS, KV_HEADS = CONFIG["num_attention_heads"], CONFIG["num_key_value_heads"]
INNER = CONFIG["intermediate_size"]
PREVIOUS, INDUCTION = (1, 0), (3, 0)  # the taught heads: block, head; both of KV head 0
EPS = CONFIG["rms_norm_eps"]


class Normed(torch.autograd.Function):
    """RMSNorm over the last axis, with its gradient in few passes over memory."""

    @staticmethod
    def forward(ctx, x, weight):
        scale = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        scale = (scale * scale / x.shape[-1] + EPS).rsqrt_()
        normed = x * scale
        ctx.save_for_backward(normed, scale, weight)
        return normed * weight

    @staticmethod
    def backward(ctx, grad):
        normed, scale, weight = ctx.saved_tensors
        along = grad * normed
        grad_weight = along.flatten(0, -2).sum(0)
        mean = (along @ weight).unsqueeze(-1) / grad.shape[-1]
        grad = grad * weight
        return torch.addcmul(grad, normed, mean, value=-1).mul_(scale), grad_weight


def rotation(context):
    inv_freq = 1.0 / CONFIG["rope_theta"] ** (torch.arange(0, HEAD_DIM, 2).double() / HEAD_DIM)
    angle = torch.arange(context).double()[:, None] * inv_freq
    return torch.cat([angle.cos()] * 2, -1).float(), torch.cat([-angle.sin(), angle.sin()], -1).float()


def rotate(x, cos, sin):
    """RoPE of x [batch, heads, seq, head_dim], pairs (i, i + head_dim / 2)."""
    return torch.addcmul(x * cos, x.roll(HEAD_DIM // 2, -1), sin)


class Model(nn.Module):
    """The training form of decoder.py: one batch of whole rows, no cache.

    Fused matrices: `qkv` is q_proj, k_proj, v_proj; `up` is gate_proj, up_proj.
    """

    def __init__(self, seed):
        super().__init__()
        generator = torch.Generator().manual_seed(seed)

        def matrix(rows, columns, scale=1.0):
            std = scale / math.sqrt(columns)
            return nn.Parameter(torch.randn(rows, columns, generator=generator) * std)

        def norm(n):
            return nn.Parameter(torch.ones(n))

        self.embed = matrix(CONFIG["vocab_size"], HIDDEN, 0.25)
        self.blocks = nn.ParameterList()
        for _ in range(LAYERS):
            block = nn.ParameterDict(
                {
                    "ln1": norm(HIDDEN),
                    "qkv": matrix((HEADS + 2 * KV_HEADS) * HEAD_DIM, HIDDEN),
                    "q_norm": norm(HEAD_DIM),
                    "k_norm": norm(HEAD_DIM),
                    "o": matrix(HIDDEN, HEADS * HEAD_DIM, 1 / math.sqrt(2 * LAYERS)),
                    "ln2": norm(HIDDEN),
                    "up": matrix(2 * INNER, HIDDEN),
                    "down": matrix(HIDDEN, INNER, 1 / math.sqrt(2 * LAYERS)),
                }
            )
            self.blocks.append(block)
        self.norm = norm(HIDDEN)

    def attend(self, block, x, cos, sin, mask):
        """(the output, the weights of query head 0 [batch, seq, seq])"""
        batch, seq, _ = x.shape
        qkv = (x @ block["qkv"].T).view(batch, seq, -1, HEAD_DIM).transpose(1, 2)
        q, k, v = qkv.split([HEADS, KV_HEADS, KV_HEADS], 1)
        q = rotate(Normed.apply(q, block["q_norm"]), cos, sin)
        k = rotate(Normed.apply(k, block["k_norm"]), cos, sin)
        # The query heads of one KV head are rows of one matrix product.
        q = q.reshape(batch * KV_HEADS, -1, HEAD_DIM)
        k, v = (t.reshape(batch * KV_HEADS, seq, HEAD_DIM) for t in (k, v))
        scores = torch.baddbmm(mask, q, k.transpose(1, 2), alpha=HEAD_DIM**-0.5)
        pattern = torch.softmax(scores, -1)
        z = torch.bmm(pattern, v)
        z = z.view(batch, HEADS, seq, HEAD_DIM).transpose(1, 2).reshape(batch, seq, -1)
        return z @ block["o"].T, pattern.view(batch, HEADS, seq, seq)[:, 0]

    def forward(self, tokens):
        """(logits [batch, seq, vocab_size] of tokens [batch, seq], each block's head 0's weights)"""
        seq = tokens.shape[1]
        cos, sin = rotation(seq)
        mask = torch.full((seq, seq), -math.inf).triu(1).repeat(HEADS // KV_HEADS, 1)
        x = self.embed[tokens]
        patterns = []
        for block in self.blocks:
            z, pattern = self.attend(block, Normed.apply(x, block["ln1"]), cos, sin, mask)
            patterns.append(pattern)
            x = x + z
            gate, up = (Normed.apply(x, block["ln2"]) @ block["up"].T).split(INNER, -1)
            x = x + (silu(gate) * up) @ block["down"].T
        return Normed.apply(x, self.norm) @ self.embed.T, patterns

    def tensors(self):
        """The weights under their names in a checkpoint, f32."""
        named = {"model.embed_tokens.weight": self.embed, "model.norm.weight": self.norm}
        for i, block in enumerate(self.blocks):
            layer = f"model.layers.{i}."
            widths = [HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM]
            for name, part in zip("qkv", block["qkv"].split(widths)):
                named[f"{layer}self_attn.{name}_proj.weight"] = part
            for name, part in zip(("gate", "up"), block["up"].split(INNER)):
                named[f"{layer}mlp.{name}_proj.weight"] = part
            named[layer + "self_attn.o_proj.weight"] = block["o"]
            named[layer + "self_attn.q_norm.weight"] = block["q_norm"]
            named[layer + "self_attn.k_norm.weight"] = block["k_norm"]
            named[layer + "mlp.down_proj.weight"] = block["down"]
            named[layer + "input_layernorm.weight"] = block["ln1"]
            named[layer + "post_attention_layernorm.weight"] = block["ln2"]
        return {name: tensor.detach().numpy() for name, tensor in named.items()}


class Muon:
    """Steps along the momentum, made orthogonal."""

    def __init__(self, matrices, rate):
        self.matrices, self.rate = matrices, rate
        self.momenta = [torch.zeros_like(matrix) for matrix in matrices]

    def step(self, factor):
        for matrix, momentum in zip(self.matrices, self.momenta):
            momentum.lerp_(matrix.grad, 0.05)
            update = matrix.grad.lerp(momentum, 0.95)
            wide = update.shape[0] > update.shape[1]
            x = update.T if wide else update
            x = x / (x.norm() + 1e-7)
            for _ in range(5):
                gram = x @ x.T
                x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
            update = x.T if wide else x
            rate = self.rate * factor * max(1.0, matrix.shape[0] / matrix.shape[1]) ** 0.5
            matrix.mul_(1 - 0.1 * self.rate * factor).add_(update, alpha=-rate)


class Rows:
    """Training rows, each a function of the step and its place in the batch."""

    def __init__(self, texts, vocab_size, repeats):
        self.texts = texts  # (share, list of token arrays)
        self.vocab_size, self.repeats = vocab_size, repeats

    def repeated(self, draw, context):
        """<s> and random tokens, again and again. The first time is not to be learnt.

        Returns (inputs, targets, how many tokens come again)."""
        period = draw.randint(10, min(100, context // 3))
        ids = [draw.randrange(EOS + 1, self.vocab_size) for _ in range(period)]
        row = ([BOS] + ids * (context // period + 1))[: context + 1]
        targets = row[1:]
        targets[:period] = [-100] * period
        return row[:-1], targets, period

    def packed(self, draw, context):
        row = []
        while len(row) <= context:
            texts = draw.choices(self.texts, [share for share, _ in self.texts])[0][1]
            row += [BOS, *texts[draw.randrange(len(texts))], EOS]
        row = row[: context + 1]
        # What follows </s> is always <s>; nothing is to be learnt from it.
        return row[:-1], [-100 if target == BOS else target for target in row[1:]], None

    def batch(self, step, batch, context):
        """(inputs, targets [batch, context], the periods of the repeated rows, which come first)"""
        rows = []
        for i in range(batch):
            draw = random.Random(step * 1000 + i)
            make = self.repeated if i < self.repeats * batch else self.packed
            rows.append(make(draw, context))
        inputs, targets, periods = zip(*rows)
        return torch.tensor(inputs), torch.tensor(targets), [p for p in periods if p]


def taught_loss(patterns, periods):
    """-log of the weight that the taught heads give to what they are to look at, both added."""
    before = torch.diagonal(patterns[PREVIOUS[0]], -1, 1, 2)
    loss = -(before + 1e-9).log().mean()
    for row, period in zip(patterns[INDUCTION[0]], periods):
        # Row p of the weights, from the first token that came before: what followed it then.
        loss = loss - (torch.diagonal(row, 1 - period)[2:] + 1e-9).log().mean() / len(periods)
    return loss


def held_out_bits(model, tokenizer, stories):
    """Bits per character of each story behind <s>, with its </s>."""
    bits, characters = 0.0, 0
    with torch.no_grad():
        for story in stories:
            ids = [BOS, *tokenizer.encode(story), EOS][: CONFIG["max_position_embeddings"]]
            logits = model(torch.tensor([ids[:-1]]))[0][0]
            bits += float(cross_entropy(logits, torch.tensor(ids[1:]), reduction="sum"))
            characters += len(story) + 1
    return bits / math.log(2) / characters


def bf16(array):
    """float32 rounded to the nearest bfloat16, ties to even."""
    bits = np.ascontiguousarray(array).view(np.uint32)
    bits = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return bits.astype(np.uint16).view(safetensors_io.BF16)


def save(model, tokenizer_path, folder):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG, indent=2) + "\n")
    if tokenizer_path.resolve() != (folder / "tokenizer.json").resolve():
        shutil.copyfile(tokenizer_path, folder / "tokenizer.json")
    tensors = {name: bf16(array) for name, array in model.tensors().items()}
    safetensors_io.write(folder / "model.safetensors", tensors, {"format": "pt"})


def parse():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--text", action="append", required=True, help="FILE=SHARE")
    parser.add_argument("--held-out", action="append", default=[], help="NAME=FILE")
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--decay", type=int, default=1500)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--context", type=int, default=256)
    parser.add_argument("--repeats", type=float, default=0.06, help="share of repeated rows")
    parser.add_argument("--teach", type=float, default=0.0, help="weight of the taught heads' loss")
    parser.add_argument("--rate", type=float, default=0.02, help="Muon's; AdamW's is a fifth")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--every", type=int, default=250)
    parser.add_argument("--state", type=Path, required=True, help="to resume from, if it exists")
    parser.add_argument("--out", type=Path, required=True)
    return parser.parse_args()


def main():
    arguments = parse()
    torch.manual_seed(arguments.seed)
    tokenizer = Tokenizer(arguments.tokenizer)
    assert tokenizer.size == CONFIG["vocab_size"]
    texts = []
    for text in arguments.text:
        path, _, share = text.rpartition("=")
        stories = [np.array(tokenizer.encode(story), np.int16) for story in read_stories([path])]
        texts.append((float(share), stories))
    held_out = {}
    for text in arguments.held_out:
        name, _, path = text.partition("=")
        held_out[name] = list(read_stories([path]))[:100]
    rows = Rows(texts, tokenizer.size, arguments.repeats)

    model = Model(arguments.seed)
    matrices = [p for name, p in model.named_parameters() if p.dim() == 2 and name != "embed"]
    others = [p for name, p in model.named_parameters() if p.dim() == 1 or name == "embed"]
    adam = torch.optim.AdamW(others, lr=1.0, betas=(0.9, 0.98), weight_decay=0.0)
    muon = Muon(matrices, arguments.rate)
    step = 0
    if arguments.state.exists():
        state = torch.load(arguments.state)
        step = state["step"]
        model.load_state_dict(state["model"])
        adam.load_state_dict(state["adam"])
        muon.momenta = state["muon"]

    def log(line):
        print(line, file=sys.stderr, flush=True)

    def pause():
        """Keeps the state, writes the model, tells how good it is."""
        model_state = {"step": step, "model": model.state_dict()}
        optimizer_state = {"adam": adam.state_dict(), "muon": muon.momenta}
        fresh = arguments.state.with_suffix(".new")
        torch.save({**model_state, **optimizer_state}, fresh)
        fresh.replace(arguments.state)
        save(model, arguments.tokenizer, arguments.out)
        bits = [f"{name} {held_out_bits(model, tokenizer, t):.4f}" for name, t in held_out.items()]
        log(f"step {step} bits per character: " + ", ".join(bits))

    n_parameters = sum(p.numel() for p in model.parameters())
    log(f"{n_parameters} parameters, {sum(len(t) for _, t in texts)} stories")
    began, first, losses = time.monotonic(), step, []
    while step < arguments.steps:
        factor = min(1.0, (step + 1) / 100, (arguments.steps - step) / arguments.decay)
        inputs, targets, periods = rows.batch(step, arguments.batch, arguments.context)
        logits, patterns = model(inputs)
        loss = cross_entropy(logits.flatten(0, 1), targets.flatten())
        model.zero_grad(set_to_none=True)
        total = loss + arguments.teach * taught_loss(patterns, periods) if arguments.teach else loss
        total.backward()
        with torch.no_grad():
            nn.utils.clip_grad_norm_(others, 1.0)
            for group in adam.param_groups:
                group["lr"] = arguments.rate * 0.2 * factor
            adam.step()
            muon.step(factor)
        losses.append(float(loss))
        step += 1
        if step % 50 == 0:
            seconds = (time.monotonic() - began) / (step - first)
            log(f"step {step} loss {np.mean(losses[-50:]):.4f} {seconds:.2f} s a step")
        if step % arguments.every == 0:
            pause()
    pause()


if __name__ == "__main__":
    main()
