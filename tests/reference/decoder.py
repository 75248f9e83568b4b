"""The mathematics of a language model in PyTorch: short, slow, and the judge of the engine.

A decoder of `llama`, `qwen3`, `minimind` or `qwen3_moe` (decoder_config.py). For the token ids t:

    x = E[t]                                             rows of embed_tokens
    x = x + attention(RMSNorm(x))                        input_layernorm; each block in turn
    x = x + mlp(RMSNorm(x))                              post_attention_layernorm
    logits = RMSNorm(x) W^T                              norm; W is lm_head, or E if tied

Attention is that of seed_attention.py, QK-norm where the family has it, biases where the
checkpoint has them. RMSNorm(x) = w x / sqrt(mean(x^2) + eps). The MLP is SwiGLU (Shazeer 2020):

    mlp(x) = (act(x Wgate^T) * x Wup^T) Wdown^T

or, as a mixture of experts, the sum of the best k experts by router probability p:

    p = softmax(x Wr^T)                                  over all experts
    mlp(x) = sum over the chosen e, in id order, of w_e mlp_e(x)   w = p, or p / sum of the chosen p

Equal probabilities: the lower id first. MiniMind 2 adds its shared experts, unweighted, after that.

float32 and float64 as in seed_attention.py: the same float32 weights and RoPE tables.
"""

import torch
from torch.nn.functional import gelu, silu

from decoder_config import rope_frequencies
from seed_attention import attend, rms_norm, rotation_tables, to_torch

ACTIVATIONS = {"silu": silu, "gelu": gelu}


class Decoder:
    """A language model with fixed weights. Holds no cache: callers pass it in.

    weights: the tensors of decoder_config.tensor_shapes by name, as float32 arrays (numpy).
    dtype: torch.float32 or torch.float64, of all arithmetic.
    """

    def __init__(self, config, weights, dtype=torch.float32):
        self.config = config
        self.weights = to_torch(weights, dtype)

    def forward(self, tokens, cache=None, trace=None):
        """The logits behind each of some new tokens. Returns (logits, the cache, grown).

        tokens: ids [batch, seq], at the positions just behind the cache's.
        logits: [batch, seq, vocab_size].
        cache: None at position 0, else what an earlier call returned; it is not changed.
            A list with one (key, value) a layer, each [batch, length, kv_heads, head_dim].
        trace: a dict to be filled with the intermediate tensors by name, or None.
        """
        config = self.config
        past = cache or [(None, None)] * config.layers
        n_past = cache[0][0].shape[1] if cache else 0
        positions = range(n_past, n_past + tokens.shape[1])
        rotation = rotation_tables(positions, *rope_frequencies(config))

        def note(name, tensor):
            if trace is not None:
                trace[name] = tensor

        x = self.weights["model.embed_tokens.weight"][tokens]
        note("hook_embed", x)
        grown = []
        for layer in range(config.layers):
            block, hook = f"model.layers.{layer}.", f"blocks.{layer}."
            note(hook + "hook_resid_pre", x)
            rows = self._norm(x, block + "input_layernorm", hook + "ln1", note)
            output, key, value = attend(
                config, self.weights, layer, rows, rotation, past[layer], trace
            )
            grown.append((key, value))
            x = x + output
            note(hook + "hook_resid_mid", x)
            rows = self._norm(x, block + "post_attention_layernorm", hook + "ln2", note)
            mlp = self._experts if config.experts else self._mlp
            output = mlp(rows, block + "mlp.", hook + "mlp.", note)
            note(hook + "hook_mlp_out", output)
            x = x + output
            note(hook + "hook_resid_post", x)
        x = self._norm(x, "model.norm", "ln_final", note)
        head = "model.embed_tokens" if config.tied else "lm_head"
        return x @ self.weights[head + ".weight"].T, grown

    def _norm(self, x, name, hook, note):
        """RMSNorm of the rows; traced before the weight, as TransformerLens does."""
        weight, eps = self.weights[name + ".weight"], self.config.rms_norm_eps
        note(hook + ".hook_normalized", rms_norm(x, torch.ones_like(weight), eps))
        return rms_norm(x, weight, eps)

    def _mlp(self, x, prefix, hook, note):
        """SwiGLU: the dense MLP, or one expert."""
        gate = x @ self.weights[prefix + "gate_proj.weight"].T
        up = x @ self.weights[prefix + "up_proj.weight"].T
        note(hook + "hook_pre", gate)
        note(hook + "hook_pre_linear", up)
        post = ACTIVATIONS[self.config.hidden_act](gate) * up
        note(hook + "hook_post", post)
        return post @ self.weights[prefix + "down_proj.weight"].T

    def _experts(self, x, prefix, hook, note):
        """The mixture. Every expert sees every row; those not chosen get the weight 0."""
        config = self.config
        scores = torch.softmax(x @ self.weights[prefix + "gate.weight"].T, dim=-1)
        order = torch.sort(scores, dim=-1, descending=True, stable=True).indices
        chosen = order[..., : config.experts_per_token].sort(dim=-1).values
        weights = scores.gather(-1, chosen)
        if config.norm_topk:
            weights = weights / weights.sum(-1, keepdim=True)
        note(hook + "hook_expert_weights", scores)
        note(hook + "hook_expert_indices", chosen)
        weights = torch.zeros_like(scores).scatter(-1, chosen, weights)

        output = torch.zeros_like(x)
        for expert in range(config.experts):
            path = f"experts.{expert}."
            rows = self._mlp(x, prefix + path, hook + path, note)
            output = output + weights[..., expert, None] * rows
        for expert in range(config.shared_experts):
            path = f"shared_experts.{expert}."
            output = output + self._mlp(x, prefix + path, hook + path, note)
        return output


def greedy(decoder, prompt, steps):
    """Greedy continuation of a prompt (a list of ids) through the cache.

    Returns (ids, margins): the best token of each step, the lower id of equals, and how far its
    logit is above the second best. An end-of-sequence id does not end it.
    """
    cache, fed = None, list(prompt)
    ids, margins = [], []
    for _ in range(steps):
        logits, cache = decoder.forward(torch.tensor([fed]), cache)
        best = torch.sort(logits[0, -1], descending=True, stable=True)
        fed = [int(best.indices[0])]
        ids += fed
        margins.append(float(best.values[0] - best.values[1]))
    return ids, margins
