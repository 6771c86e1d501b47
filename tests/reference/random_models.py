"""Small random models of many kinds, each from its number alone, with samples whose routing no rounding of fp32 can change.

Used by tests/mpi/random_models_test.py and check_lfm2_numpy.py.
"""
import numpy as np

import lfm2_numpy

# Smallest difference of the scores of a chosen and a refused expert; fp32 computes scores to about 1e-6.
SMALLEST_GAP = 1e-4


def pick(random, *choices):
    return choices[random.integers(len(choices))]


def random_lfm3_config(random):
    """Windows shorter and longer than the samples, every switch, and each spelling of the rotations."""
    heads_per_key, kv_heads = pick(random, 1, 2, 3, 4), pick(random, 1, 2, 3)
    layers = int(random.integers(3, 7))
    types = [pick(random, "conv", "full_attention", "sliding_attention") for _ in range(layers)]
    types[random.integers(layers)] = "sliding_attention"
    share = pick(random, 0.25, 0.5, 0.75, 1.0)
    config = {
        "model_type": "lfm3",
        "vocab_size": pick(random, 33, 97, 128, 251),
        "hidden_size": pick(random, 24, 48, 50, 64, 96),
        "head_dim": pick(random, 8, 10, 16, 24, 32),
        "num_hidden_layers": layers,
        "num_attention_heads": heads_per_key * kv_heads,
        "num_key_value_heads": kv_heads,
        "intermediate_size": pick(random, 12, 100, 30, 96, 151),
        "max_position_embeddings": 256,
        pick(random, "norm_eps", "rms_norm_eps"): pick(random, 1e-5, 1e-6, 1e-3),
        "conv_bias": bool(random.integers(2)),
        "sliding_window": int(random.integers(1, 31)),
        "use_sandwich_norm": bool(random.integers(4)),
        "use_attention_gate": bool(random.integers(4)),
        "attention_bias": bool(random.integers(2)),
        "tie_word_embeddings": bool(random.integers(2)),
        "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
        "rope_theta": 777.0,  # of a kind without its own
        "rope_parameters": {
            "full_attention": {"rope_type": pick(random, "proportional", "default"), "partial_rotary_factor": share,
                               "rope_theta": pick(random, 500000.0, 1000000.0)},
            "sliding_attention": pick(random, {"rope_theta": 10000.0}, {"type": "default"},
                                      {"rope_type": "proportional", "factor": 4.0, "rope_theta": 10000.0}),
        },
    }
    if random.integers(4):
        config["conv_L_cache"] = int(random.integers(2, 9))
    if random.integers(4):
        config["layer_types"] = types
    else:
        config["num_hidden_layers"] = 5
    return config


def random_config(number, random):
    """All classes in turn, older and newer spellings, odd widths more often than not."""
    if number % 3 == 2:
        return random_lfm3_config(random)
    heads_per_key, kv_heads, head_dim = pick(random, 1, 2, 3, 4, 7), pick(random, 1, 2, 3), pick(random, 8, 10, 16, 24, 32, 64)
    heads, layers = heads_per_key * kv_heads, int(random.integers(3, 6))
    while heads * head_dim > 192:  # hidden_size
        head_dim //= 2
        head_dim += head_dim % 2
    moe = number % 2 == 0
    types = [pick(random, "conv", "full_attention") for _ in range(layers)]
    types[random.integers(layers)] = "full_attention"
    config = {
        "model_type": "lfm2_moe" if moe else "lfm2",
        "vocab_size": pick(random, 33, 97, 128, 251),
        "hidden_size": heads * head_dim,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "max_position_embeddings": 256,
        "norm_eps": pick(random, 1e-5, 1e-6, 1e-3),
        "conv_bias": bool(random.integers(2)),
        "conv_L_cache": pick(random, 2, 3, 4, 5),
        "intermediate_size": pick(random, 12, 100, 30, 96, 151),
        pick(random, "tie_word_embeddings", "tie_embedding"): bool(random.integers(2)),
    }
    theta = pick(random, 50.0, 10000.0, 500000.0, 1000000.0)
    config.update(pick(random, {"rope_theta": theta}, {"rope_parameters": {"rope_type": "default", "rope_theta": theta}},
                       {"rope_scaling": {"type": "default"}, "rope_theta": theta}))
    if moe or random.integers(2):
        config["layer_types"] = types
    else:
        config["full_attn_idxs"] = [i for i, kind in enumerate(types) if kind == "full_attention"]
    if moe:
        experts = pick(random, 2, 3, 5, 8, 17)
        config.update({
            "num_dense_layers": int(random.integers(layers)),
            "num_experts": experts,
            "num_experts_per_tok": int(random.integers(1, min(experts, 5) + 1)),
            "moe_intermediate_size": pick(random, 12, 20, 9, 32, 57),
            "use_expert_bias": bool(random.integers(2)),
            "norm_topk_prob": bool(random.integers(2)),
            "routed_scaling_factor": pick(random, 1.0, 2.5),
        })
    else:
        config["block_auto_adjust_ff_dim"] = bool(random.integers(2))
        config["block_multiple_of"] = pick(random, 4, 7, 32)
        config["block_ffn_dim_multiplier"] = pick(random, 1.0, 1.3)
        if random.integers(2):
            config["block_ff_dim"] = pick(random, 60, 100)
    return config


class RandomModel:
    """config, tensors, the names of those stored in bf16, samples, and their logits in fp64 and fp32 [tokens, vocab]."""

    def __init__(self, number):
        random = np.random.default_rng(number)
        self.config = random_config(number, random)
        self.tensors = lfm2_numpy.random_tensors(self.config, random)
        self.bf16 = set()
        if random.integers(2):
            self.bf16 = {name for name in self.tensors if not name.endswith("expert_bias")}
            self.tensors.update({name: lfm2_numpy.round_to_bf16(self.tensors[name]) for name in self.bf16})
        self.samples, exact = [], []
        while len(self.samples) < 5:
            ids = random.integers(self.config["vocab_size"], size=random.integers(1, 60 if lfm2_numpy.is_lfm3(self.config) else 24)).tolist()
            model = lfm2_numpy.Model(self.config, self.tensors, np.float64)
            logits = model.forward(ids)
            if model.smallest_gap > SMALLEST_GAP:
                self.samples.append(ids)
                exact.append(logits)
        plain = lfm2_numpy.Model(self.config, self.tensors, np.float32)
        self.exact = np.concatenate(exact)
        self.plain = np.concatenate([plain.forward(ids) for ids in self.samples])

    def feed_forwards(self):
        """Columns of its feed-forwards: dense ones, experts."""
        config = self.config
        dense = [lfm2_numpy.dense_columns(config)] if lfm2_numpy.dense_layers(config) > 0 else []
        return dense + ([config["moe_intermediate_size"]] if config["model_type"] == "lfm2_moe" else [])

    def padded(self):
        """The same model with feed-forwards of whole eights, the new rows and columns zero: configuration and tensors."""
        def more(columns):
            return -columns % 8

        config = dict(self.config, intermediate_size=lfm2_numpy.dense_columns(self.config) + more(lfm2_numpy.dense_columns(self.config)))
        config.pop("block_ff_dim", None)
        if config["model_type"] == "lfm2_moe":
            config["moe_intermediate_size"] += more(config["moe_intermediate_size"])
        elif config["model_type"] == "lfm2":
            config["block_auto_adjust_ff_dim"] = False
        tensors = dict(self.tensors)
        for name, value in tensors.items():
            if name.endswith((".w1.weight", ".w3.weight")):
                tensors[name] = np.pad(value, ((0, more(len(value))), (0, 0)))
            elif name.endswith(".w2.weight"):
                tensors[name] = np.pad(value, ((0, 0), (0, more(value.shape[1]))))
        return config, tensors
