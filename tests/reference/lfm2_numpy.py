"""LFM2, LFM2-MoE and LFM3 in NumPy, in fp64 or fp32, written from the published description of the model and from nothing of this project.

Used by tests/mpi/random_models_test.py; check_lfm2_numpy.py compares it with transformers. Plain and slow: one sample at a time, every
sum as NumPy makes it.
"""
import json
import struct

import numpy as np


def round_to_bf16(x):
    """The nearest values of bf16, ties to even, as fp32."""
    bits = np.asarray(x, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)


def write_safetensors(path, tensors, bf16=()):
    """fp32 tensors by name; those named in `bf16`, which hold values of bf16, are stored so."""
    header, parts, offset = {}, [], 0
    for name, value in tensors.items():
        if name in bf16:
            data, dtype = (value.view(np.uint32) >> 16).astype("<u2").tobytes(), "BF16"
        else:
            data, dtype = value.astype("<f4").tobytes(), "F32"
        header[name] = {"dtype": dtype, "shape": list(value.shape), "data_offsets": [offset, offset + len(data)]}
        parts.append(data)
        offset += len(data)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(parts))


def is_lfm3(config):
    return config["model_type"] == "lfm3"


def layer_types(config):
    if config.get("layer_types") is not None:
        return config["layer_types"]
    if is_lfm3(config):
        return [("conv" if i == 0 else "sliding_attention", "conv", "full_attention", "conv")[i % 4] for i in range(config["num_hidden_layers"])]
    attention = config.get("full_attn_idxs")
    layers = range(config["num_hidden_layers"])
    return ["full_attention" if attention is None or i in attention else "conv" for i in layers]


def dense_columns(config):
    """Columns of a dense feed-forward."""
    if config["model_type"] != "lfm2":
        return config["intermediate_size"]
    columns = config.get("block_ff_dim", config["intermediate_size"])
    if config.get("block_auto_adjust_ff_dim", True):
        columns = int(config.get("block_ffn_dim_multiplier", 1.0) * int(2 * columns / 3))
        multiple = config.get("block_multiple_of", 256)
        columns = -(-columns // multiple) * multiple
    return columns


def dense_layers(config):
    return config.get("num_dense_layers", 2) if config["model_type"] == "lfm2_moe" else config["num_hidden_layers"]


def head_dim(config):
    return config.get("head_dim", 128) if is_lfm3(config) else config["hidden_size"] // config["num_attention_heads"]


def conv_length(config):
    return config.get("conv_L_cache", 7 if is_lfm3(config) else 3)


LFM3_ROPE = {"sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
             "full_attention": {"rope_type": "proportional", "rope_theta": 1000000.0, "partial_rotary_factor": 0.5}}


def frequencies(config, kind):
    """Of each pair of a head, in fp32. LFM3 with `default` and a factor below 1 is read as proportional."""
    size = head_dim(config)
    exponents = (np.arange(0, size, 2, dtype=np.float32) / np.float32(size)).astype(np.float64)
    rope = (config.get("rope_parameters") or LFM3_ROPE)[kind] if is_lfm3(config) else {"rope_theta": rope_theta(config)}
    found = np.float32(1) / np.power(rope.get("rope_theta", config.get("rope_theta", 1000000.0)), exponents).astype(np.float32)
    found[int(rope.get("partial_rotary_factor", 1.0) * size // 2):] = 0
    return found / np.float32(rope.get("factor", 1.0))


def rope_theta(config):
    rope = config.get("rope_scaling") or config.get("rope_parameters") or {}
    return rope.get("rope_theta", config.get("rope_theta", 1000000.0))


def is_tied(config):
    if is_lfm3(config):
        return config.get("tie_word_embeddings", True)
    return config.get("tie_embedding", config.get("tie_word_embeddings", True))


def shapes(config):
    """Every tensor of the model."""
    hidden, vocab = config["hidden_size"], config["vocab_size"]
    size = head_dim(config)
    rows, key_rows = config["num_attention_heads"] * size, config["num_key_value_heads"] * size
    out, q_norm, k_norm = ("o_proj", "q_norm", "k_norm") if is_lfm3(config) else ("out_proj", "q_layernorm", "k_layernorm")
    found = {"model.embed_tokens.weight": (vocab, hidden), "model.embedding_norm.weight": (hidden,)}
    if not is_tied(config):
        found["lm_head.weight"] = (vocab, hidden)

    def feed_forward(prefix, columns):
        found.update({prefix + "w1.weight": (columns, hidden), prefix + "w3.weight": (columns, hidden), prefix + "w2.weight": (hidden, columns)})

    for i, kind in enumerate(layer_types(config)):
        prefix = f"model.layers.{i}."
        found[prefix + "operator_norm.weight"] = found[prefix + "ffn_norm.weight"] = (hidden,)
        if is_lfm3(config) and config.get("use_sandwich_norm", True):
            found[prefix + "post_operator_norm.weight"] = found[prefix + "post_ffn_norm.weight"] = (hidden,)
        if kind == "conv":
            found[prefix + "conv.in_proj.weight"] = (3 * hidden, hidden)
            found[prefix + "conv.conv.weight"] = (hidden, 1, conv_length(config))
            found[prefix + "conv.out_proj.weight"] = (hidden, hidden)
            if config.get("conv_bias", False):
                found.update({prefix + "conv.in_proj.bias": (3 * hidden,), prefix + "conv.conv.bias": (hidden,), prefix + "conv.out_proj.bias": (hidden,)})
        else:
            attention = prefix + "self_attn."
            found.update({attention + "q_proj.weight": (rows, hidden), attention + "k_proj.weight": (key_rows, hidden),
                          attention + "v_proj.weight": (key_rows, hidden), f"{attention}{out}.weight": (hidden, rows),
                          f"{attention}{q_norm}.weight": (size,), f"{attention}{k_norm}.weight": (size,)})
            if is_lfm3(config) and config.get("use_attention_gate", True):
                found[attention + "gate_proj.weight"] = (config["num_attention_heads"], hidden)
            if is_lfm3(config) and config.get("attention_bias", False):
                found.update({attention + "q_proj.bias": (rows,), attention + "k_proj.bias": (key_rows,), attention + "v_proj.bias": (key_rows,),
                              attention + "o_proj.bias": (hidden,)})
        if i < dense_layers(config):
            feed_forward(prefix + "feed_forward.", dense_columns(config))
            continue
        found[prefix + "feed_forward.gate.weight"] = (config["num_experts"], hidden)
        if config.get("use_expert_bias", True):
            found[prefix + "feed_forward.expert_bias"] = (config["num_experts"],)
        for expert in range(config["num_experts"]):
            feed_forward(f"{prefix}feed_forward.experts.{expert}.", config["moe_intermediate_size"])
    return found


def random_tensors(config, random):
    """fp32 weights with a spread that keeps activations near 1 and logits far apart."""
    tensors = {}
    for name, shape in shapes(config).items():
        uniform = random.uniform(-1, 1, shape)
        if name.endswith("norm.weight"):
            value = 1 + 0.2 * uniform
        elif name.endswith("bias"):
            value = 0.2 * uniform
        elif name.endswith(("embed_tokens.weight", "lm_head.weight", "gate.weight", "gate_proj.weight")):
            value = 4 * uniform * np.sqrt(3 / shape[-1])
        else:
            value = uniform * np.sqrt(3 / shape[-1])
        tensors[name] = value.astype(np.float32)
    return tensors


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def round_to_e4m3(x):
    """The nearest multiple of E4M3's steps, ties to even, and how far the nearest tie is. x may exceed 448 by half a step."""
    magnitude = np.abs(x)
    step = 2.0 ** (np.maximum(np.floor(np.log2(np.maximum(magnitude, 2.0**-20))), -6) - 3)
    quotient = magnitude / step
    return np.copysign(np.round(quotient) * step, x), np.abs(quotient - np.floor(quotient) - 0.5) * step


def round_to_fp8(x, error):
    """Keys or values x [tokens, kv_heads, head_dim] as a cache in fp8 has them, and for which tokens no element or scale would be
    another one if x changed by `error` of its head's largest magnitude. Of each head s E4M3(x / s), where s is the least power of two
    from 2^-15 on for which max|x| / s rounds to at most 448: docs/quantization.md."""
    largest = np.abs(x).max(axis=-1, keepdims=True)
    scale = 2.0 ** np.maximum(np.ceil(np.log2(np.maximum(largest, 2.0**-40) / 464)), -15)
    rounded, tie = round_to_e4m3(x / scale)
    of_scale = np.abs(np.log2(np.maximum(largest, 2.0**-40) / 464 / scale) % 1)
    stable = (tie * scale > error * largest).all(axis=(1, 2)) & (np.minimum(of_scale, 1 - of_scale) > 4 * error).all(axis=(1, 2))
    return rounded * scale, stable


class Model:
    """Computes in `dtype`. smallest_gap: between a chosen and a refused expert's score, over all tokens so far.

    With fp8_cache, keys and values are rounded. `stable` [tokens] then tells for which of the last sample's tokens no rounding and no
    choice of experts is so close that errors of fp32 could change it, in the token itself or in those before it."""

    FP32_ERROR = 3e-6  # of keys and values, relative to the largest one of their head

    def __init__(self, config, tensors, dtype, fp8_cache=False):
        self.config, self.dtype, self.fp8_cache = config, dtype, fp8_cache
        self.tensors = {name: value.astype(dtype) for name, value in tensors.items()}
        self.smallest_gap = np.inf

    def add(self, x, y, norm):
        """x + y, or x + the norm of y where the model has it."""
        return x + (self.norm(y, norm) if norm + ".weight" in self.tensors else y)

    def linear(self, x, name):
        y = x @ self.tensors[name + ".weight"].T
        return y + self.tensors[name + ".bias"] if name + ".bias" in self.tensors else y

    def norm(self, x, name):
        eps = self.config.get("rms_norm_eps") if is_lfm3(self.config) else None
        eps = self.dtype(self.config.get("norm_eps", 1e-5) if eps is None else eps)
        return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True, dtype=self.dtype) + eps) * self.tensors[name + ".weight"]

    def short_conv(self, x, prefix):
        b, c, z = np.split(self.linear(x, prefix + "in_proj"), 3, axis=-1)
        taps = self.tensors[prefix + "conv.weight"][:, 0, :]
        inputs = np.concatenate([np.zeros((taps.shape[1] - 1, x.shape[1]), self.dtype), b * z])
        sums = sum(taps[:, j] * inputs[j : j + len(x)] for j in range(taps.shape[1]))
        if prefix + "conv.bias" in self.tensors:
            sums = sums + self.tensors[prefix + "conv.bias"]
        return self.linear(c * sums, prefix + "out_proj")

    def cosines_and_sines(self, tokens, kind="full_attention"):
        """Each [tokens, head_dim / 2]. They and their angles are fp32 in every computation: transformers defines them so."""
        angles = (np.arange(tokens, dtype=np.float32)[:, None] * frequencies(self.config, kind)).astype(np.float64)
        return [f(angles).astype(np.float32).astype(self.dtype) for f in (np.cos, np.sin)]

    def rotate(self, x, kind):
        """x [tokens, heads, head_dim]."""
        half = x.shape[-1] // 2
        cos, sin = (table[:, None, :] for table in self.cosines_and_sines(len(x), kind))
        first, second = x[..., :half], x[..., half:]
        return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)

    def attention(self, x, prefix, kind):
        tokens, heads, kv_heads = len(x), self.config["num_attention_heads"], self.config["num_key_value_heads"]
        q, k, v = (self.linear(x, prefix + part).reshape(tokens, count, -1)
                   for part, count in (("q_proj", heads), ("k_proj", kv_heads), ("v_proj", kv_heads)))
        q_norm, k_norm, out_proj = ("q_norm", "k_norm", "o_proj") if is_lfm3(self.config) else ("q_layernorm", "k_layernorm", "out_proj")
        q, k = self.rotate(self.norm(q, prefix + q_norm), kind), self.rotate(self.norm(k, prefix + k_norm), kind)
        if self.fp8_cache:
            (k, keys_are), (v, values_are) = round_to_fp8(k, self.FP32_ERROR), round_to_fp8(v, self.FP32_ERROR)
            self.stable &= keys_are & values_are
        out = np.empty_like(q)
        places = np.arange(tokens)
        hidden = places[None, :] > places[:, None]
        if kind == "sliding_attention":
            hidden |= places[None, :] <= places[:, None] - self.config.get("sliding_window", 256)
        for head in range(heads):
            group = head // (heads // kv_heads)
            scores = q[:, head] @ k[:, group].T / np.sqrt(self.dtype(q.shape[-1]))
            scores[hidden] = -np.inf
            weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
            out[:, head] = weights / weights.sum(axis=-1, keepdims=True) @ v[:, group]
        if prefix + "gate_proj.weight" in self.tensors:
            out = out * sigmoid(self.linear(x, prefix + "gate_proj"))[:, :, None]
        return self.linear(out.reshape(tokens, -1), prefix + out_proj)

    def swiglu(self, x, prefix):
        gate = self.linear(x, prefix + "w1")
        return self.linear(gate * sigmoid(gate) * self.linear(x, prefix + "w3"), prefix + "w2")

    def mixture(self, x, prefix):
        config, top_k = self.config, self.config["num_experts_per_tok"]
        p = sigmoid(self.linear(x, prefix + "gate"))
        scores = p + self.tensors[prefix + "expert_bias"] if config.get("use_expert_bias", True) else p
        order = np.argsort(-scores, axis=-1, kind="stable")
        out = np.zeros_like(x)
        for token, ids in enumerate(order):
            if top_k < len(ids):
                gap = scores[token, ids[top_k - 1]] - scores[token, ids[top_k]]
                self.smallest_gap = min(self.smallest_gap, gap)
                self.stable[token] &= gap > 1e-4
            weights = p[token, ids[:top_k]]
            if config.get("norm_topk_prob", True):
                weights = weights / (weights.sum() + self.dtype(1e-6))
            weights = weights * self.dtype(config.get("routed_scaling_factor", 1.0))
            for weight, expert in zip(weights, ids[:top_k]):
                out[token] += weight * self.swiglu(x[token : token + 1], f"{prefix}experts.{expert}.")[0]
        return out

    def forward(self, ids):
        """Logits [tokens, vocab] of one sample. `hidden` then has the residual stream after each layer."""
        x = self.tensors["model.embed_tokens.weight"][np.asarray(ids)]
        self.stable, self.hidden = np.ones(len(ids), bool), []
        for i, kind in enumerate(layer_types(self.config)):
            prefix = f"model.layers.{i}."
            normed = self.norm(x, prefix + "operator_norm")
            mixed = self.short_conv(normed, prefix + "conv.") if kind == "conv" else self.attention(normed, prefix + "self_attn.", kind)
            x = self.add(x, mixed, prefix + "post_operator_norm")
            normed = self.norm(x, prefix + "ffn_norm")
            dense = i < dense_layers(self.config)
            x = self.add(x, (self.swiglu if dense else self.mixture)(normed, prefix + "feed_forward."), prefix + "post_ffn_norm")
            self.hidden.append(x)
        self.stable = np.logical_and.accumulate(self.stable)
        head = "model.embed_tokens.weight" if is_tied(self.config) else "lm_head.weight"
        return self.norm(x, "model.embedding_norm") @ self.tensors[head].T
