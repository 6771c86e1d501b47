#!/usr/bin/env python3
"""Greedy continuations with a repetition penalty by transformers: what ours must equal token for token. Writes tests/golden/penalties.json.

    penalty_goldens.py [GOLDEN_DIR]

For each golden case the prompts of golden.h5, continued by TOKENS tokens: repeated full forward in fp64, and transformers' own
RepetitionPenaltyLogitsProcessor on the last position's logits. `margin` is the smallest distance between the best two penalized logits: where it
is far above the error of fp32, the continuation does not depend on rounding. Needs torch, transformers >= 5, h5py.
"""
import json
import pathlib
import sys

import h5py
import torch
import transformers
from transformers import AutoModelForCausalLM
from transformers.generation.logits_process import RepetitionPenaltyLogitsProcessor

TOKENS, PENALTIES = 24, (1.05, 1.5)
golden = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parents[1] / "golden")


def continuations(model, prompts, penalty):
    processor, margin, ids = RepetitionPenaltyLogitsProcessor(penalty), float("inf"), prompts
    with torch.inference_mode():
        for _ in range(TOKENS):
            scores = processor(ids, model(ids, use_cache=False).logits[:, -1])
            best = scores.topk(2).values
            margin = min(margin, float((best[:, 0] - best[:, 1]).min()))
            ids = torch.cat([ids, scores.argmax(-1, keepdim=True)], dim=1)
    return ids[:, prompts.shape[1]:].tolist(), margin


cases = []
for case in ("tiny-moe", "tiny-dense", "tiny-bf16", "mini-24", "tiny-lfm3", "kjv-moe"):
    model = AutoModelForCausalLM.from_pretrained(golden / case, dtype=torch.float64, attn_implementation="eager",
                                                 experts_implementation="eager").eval()
    with h5py.File(golden / case / "golden.h5") as file:
        prompts = torch.from_numpy(file["input_ids"][:].astype("int64"))
    for penalty in PENALTIES:
        tokens, margin = continuations(model, prompts, penalty)
        print(f"{case}, penalty {penalty}: {len(tokens)} prompts, margin {margin:.2e}")
        cases.append({"case": case, "penalty": penalty, "margin": margin, "tokens": tokens})
document = {"torch": str(torch.__version__), "transformers": transformers.__version__, "cases": cases}
(golden / "penalties.json").write_text(json.dumps(document) + "\n")
