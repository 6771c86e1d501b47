#!/usr/bin/env python3
"""What transformers itself gives in bf16 for the golden cases: the yardstick for ours. Writes tests/golden/CASE/bf16.h5.

    golden_bf16.py FOLDER...            tests/golden/CASE

Dataset `logits_bf16` [samples, length, vocab] fp32: the model converted with .to(bfloat16), attention eager, on the CPU; attributes name the
versions. Needs torch, transformers >= 5, h5py.
"""
import pathlib
import sys

import h5py
import torch
import transformers
from transformers import AutoModelForCausalLM

for case in map(pathlib.Path, sys.argv[1:]):
    model = AutoModelForCausalLM.from_pretrained(case, dtype=torch.bfloat16, attn_implementation="eager").eval()
    with h5py.File(case / "golden.h5") as file:
        ids = torch.from_numpy(file["input_ids"][:].astype("int64"))
        exact = torch.from_numpy(file["logits_f64"][:])
    with torch.inference_mode():
        logits = model(ids, use_cache=False).logits.float()
    with h5py.File(case / "bf16.h5", "w", track_order=False) as file:
        file.create_dataset("logits_bf16", data=logits.numpy(), track_times=False)
        file.attrs["torch"], file.attrs["transformers"] = str(torch.__version__), transformers.__version__
    error = (logits.double() - exact)
    print(f"{case.name}: rms error {error.pow(2).mean().sqrt():.4f}, largest {error.abs().max():.4f}, over rms logit {exact.pow(2).mean().sqrt():.3f}; "
          f"top-1 equal {(logits.argmax(-1) == exact.argmax(-1)).float().mean():.4f}")
