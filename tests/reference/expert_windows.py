#!/usr/bin/env python3
"""How many distinct experts a layer meets in 1 to 10 consecutive tokens of a text, and in tokens drawn from all texts.

    expert_windows.py MODEL TEXTS.jsonl [LENGTH]

MODEL is a folder with config.json and model.safetensors. TEXTS has lines with "token_ids", as generation jobs write
them, of which the first LENGTH tokens are read (default: 256). A verified draft reads the weights of experts that no
row before it met, so these numbers tell what a draft costs: docs/speculative-decoding.md.
"""
import json
import pathlib
import struct
import sys

import numpy as np

import lfm2_numpy


def read_tensors(path):
    data = path.read_bytes()
    begin = 8 + struct.unpack("<Q", data[:8])[0]
    tensors = {}
    for name, one in json.loads(data[8:begin]).items():
        if name == "__metadata__":
            continue
        raw = data[begin + one["data_offsets"][0] : begin + one["data_offsets"][1]]
        if one["dtype"] == "BF16":
            value = (np.frombuffer(raw, "<u2").astype(np.uint32) << 16).view(np.float32)
        else:
            value = np.frombuffer(raw, {"F32": "<f4", "F16": "<f2"}[one["dtype"]]).astype(np.float32)
        tensors[name] = value.reshape(one["shape"])
    return tensors


class Routed(lfm2_numpy.Model):
    """Keeps the experts of each token of the last sample: one [tokens, experts] of bool for each layer."""

    def forward(self, ids):
        self.met = []
        return super().forward(ids)

    def mixture(self, x, prefix):
        scores = lfm2_numpy.sigmoid(self.linear(x, prefix + "gate"))
        if self.config.get("use_expert_bias", True):
            scores = scores + self.tensors[prefix + "expert_bias"]
        met = np.zeros(scores.shape, bool)
        chosen = np.argsort(-scores, axis=-1, kind="stable")[:, : self.config["num_experts_per_tok"]]
        np.put_along_axis(met, chosen, True, axis=-1)
        self.met.append(met)
        return super().mixture(x, prefix)


folder, texts = pathlib.Path(sys.argv[1]), sys.argv[2]
length = int(sys.argv[3]) if len(sys.argv) > 3 else 256
model = Routed(json.loads((folder / "config.json").read_text()), read_tensors(folder / "model.safetensors"), np.float32)
met = []  # of each text: [layers, tokens, experts]
for line in open(texts, encoding="utf-8"):
    ids = json.loads(line)["token_ids"][:length]
    if ids:
        model.forward(ids)
        met.append(np.array(model.met))
every = np.concatenate(met, axis=1)
random = np.random.default_rng(0)
print(f"{every.shape[1]} tokens of {len(met)} texts, {every.shape[0]} layers of {every.shape[2]} experts")
print("tokens  consecutive  at random")
for count in range(1, 11):
    windows = [text[:, i : i + count].any(axis=1).sum(axis=-1) for text in met for i in range(text.shape[1] - count + 1)]
    others = [every[:, random.integers(every.shape[1], size=count)].any(axis=1).sum(axis=-1) for _ in range(2000)]
    print(f"{count:6}  {np.mean(windows):11.2f}  {np.mean(others):9.2f}")
