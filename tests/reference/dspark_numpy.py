#!/usr/bin/env python3
"""DSpark drafters in NumPy, in fp64, written from their published description; recomputes the goldens of tests/golden/dspark.

    dspark_numpy.py DRAFTER TARGET    # folders; ends with 1 where golden.h5 or rounds.json differ
"""
import json
import pathlib
import struct
import sys

import numpy as np

from lfm2_numpy import Model, sigmoid


def read_safetensors(path):
    """Tensors of fp32 or bf16 by name, as fp64, without the prefix `model.` that drafters may have."""
    raw = path.read_bytes()
    size = struct.unpack("<Q", raw[:8])[0]
    tensors = {}
    for name, entry in json.loads(raw[8 : 8 + size]).items():
        if name == "__metadata__":
            continue
        first, end = entry["data_offsets"]
        data = raw[8 + size + first : 8 + size + end]
        values = np.frombuffer(data, "<f4") if entry["dtype"] == "F32" else (np.frombuffer(data, "<u2").astype(np.uint32) << 16).view(np.float32)
        tensors[name] = values.reshape(entry["shape"]).astype(np.float64)
    return tensors


def norm(x, weight, eps):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight


class Drafter:
    def __init__(self, folder, target):
        self.config = json.loads((folder / "config.json").read_text())
        self.own = {**self.config, **self.config.get("dflash_config", {})}
        self.tensors = {name.removeprefix("model."): value for name, value in read_safetensors(folder / "model.safetensors").items()}
        self.embedding = target.tensors["model.embed_tokens.weight"]
        self.heads, self.kv_heads, self.head_dim = (self.config[key] for key in ("num_attention_heads", "num_key_value_heads", "head_dim"))
        self.eps, self.block_size = self.config["rms_norm_eps"], self.own["block_size"]

    def rope(self, x, positions):
        """x [rows, heads, head_dim]; pairs (2i, 2i + 1), or (i, i + head_dim / 2) with rope_is_neox_style."""
        half = self.head_dim // 2
        angles = np.asarray(positions)[:, None] * float(self.config["rope_theta"]) ** (-np.arange(half) / half)
        cosines, sines = np.cos(angles)[:, None], np.sin(angles)[:, None]
        neox = self.config.get("rope_is_neox_style", True)
        first, second = (slice(0, half), slice(half, None)) if neox else (slice(0, None, 2), slice(1, None, 2))
        out = np.empty_like(x)
        out[..., first] = x[..., first] * cosines - x[..., second] * sines
        out[..., second] = x[..., first] * sines + x[..., second] * cosines
        return out

    def heads_of(self, x, layer, part, count):
        return (x @ self.tensors[f"layers.{layer}.self_attn.{part}_proj.weight"].T).reshape(len(x), count, self.head_dim)

    def turned(self, x, layer, part, count, positions):
        return self.rope(norm(self.heads_of(x, layer, part, count), self.tensors[f"layers.{layer}.self_attn.{part}_norm.weight"], self.eps), positions)

    def context(self, hidden):
        """The normed rows of all positions, and the keys and values of each layer."""
        taps = np.concatenate([hidden[layer] for layer in self.own["target_layer_ids"]], -1)
        rows = norm(taps @ self.tensors["fc.weight"].T, self.tensors["hidden_norm.weight"], self.eps)
        cached = [(self.turned(rows, layer, "k", self.kv_heads, np.arange(len(rows))), self.heads_of(rows, layer, "v", self.kv_heads))
                  for layer in range(self.config["num_hidden_layers"])]
        return rows, cached

    def block(self, anchor, cached, start):
        """Hidden states [block_size, hidden] of [anchor, mask ...] from position `start` on; every row reads the whole block."""
        positions = start + np.arange(self.block_size)
        x = self.embedding[[anchor] + [self.own["mask_token_id"]] * (self.block_size - 1)]
        for layer, (keys, values) in enumerate(cached):
            prefix = f"layers.{layer}."
            normed = norm(x, self.tensors[prefix + "input_layernorm.weight"], self.eps)
            q = self.turned(normed, layer, "q", self.heads, positions)
            k = np.concatenate([keys[:start], self.turned(normed, layer, "k", self.kv_heads, positions)])
            v = np.concatenate([values[:start], self.heads_of(normed, layer, "v", self.kv_heads)])
            out = np.empty_like(q)
            for head in range(self.heads):
                group = head // (self.heads // self.kv_heads)
                scores = q[:, head] @ k[:, group].T / np.sqrt(self.head_dim)
                weights = np.exp(scores - scores.max(-1, keepdims=True))
                out[:, head] = weights / weights.sum(-1, keepdims=True) @ v[:, group]
            x = x + out.reshape(len(x), -1) @ self.tensors[prefix + "self_attn.o_proj.weight"].T
            normed = norm(x, self.tensors[prefix + "post_attention_layernorm.weight"], self.eps)
            gate, up, down = (self.tensors[f"{prefix}mlp.{part}_proj.weight"].T for part in ("gate", "up", "down"))
            x = x + (normed @ gate * sigmoid(normed @ gate) * (normed @ up)) @ down
        return norm(x, self.tensors["norm.weight"], self.eps)

    def draft(self, anchor, cached, start):
        """Drafts [block_size] and their logits."""
        base = self.block(anchor, cached, start) @ self.embedding.T
        before, drafts, logits = int(anchor), [], []
        for row in base:
            logits.append(row + self.tensors["markov_head.markov_w2.weight"] @ self.tensors["markov_head.markov_w1.weight"][before])
            before = int(logits[-1].argmax())
            drafts.append(before)
        return drafts, np.array(logits)


def rounds_of(drafter, target, prompt, new):
    """Each round's start, drafts and how many the target draws, too."""
    ids, rounds = list(prompt), []
    ids.append(int(target.forward(ids)[-1].argmax()))
    while len(ids) < len(prompt) + new:
        start, left = len(ids) - 1, len(prompt) + new - len(ids)
        target.forward(ids)
        drafts = drafter.draft(ids[-1], drafter.context(target.hidden)[1], start)[0][: max(left - 1, 0)]
        own = target.forward(ids + drafts)[start:].argmax(-1)
        accepted = next((i for i, draft in enumerate(drafts) if draft != own[i]), len(drafts))
        rounds.append({"start": start, "drafts": drafts, "accepted": accepted})
        ids += [int(token) for token in own[: accepted + 1]]
    return ids, rounds


def main():
    import h5py

    folder, target_folder = map(pathlib.Path, sys.argv[1:])
    target = Model(json.loads((target_folder / "config.json").read_text()), read_safetensors(target_folder / "model.safetensors"), np.float64)
    drafter, same = Drafter(folder, target), True
    for run in json.loads((folder / "rounds.json").read_text()):
        ids, rounds = rounds_of(drafter, target, run["prompt"], len(run["text"]) - len(run["prompt"]))
        same &= ids == run["text"] and rounds == run["rounds"]
    print("rounds.json", "is equal" if same else "differs")
    if (folder / "golden.h5").exists():
        golden = h5py.File(folder / "golden.h5")
        worst = 0
        for (text, start), drafts, logits in zip(golden["blocks"][:], golden["drafts"][:], golden["logits"][:]):
            ids = golden["texts"][text]
            target.forward(ids)
            rows, cached = drafter.context(target.hidden)
            found, own = drafter.draft(ids[start], cached, start)
            same &= found == list(drafts)
            worst = max(worst, np.abs(own - logits).max(), np.abs(rows - golden["context"][text]).max())
        print(f"golden.h5: largest difference {worst:.1e}")
        same &= worst < 1e-4
    sys.exit(not same)


if __name__ == "__main__":
    main()
