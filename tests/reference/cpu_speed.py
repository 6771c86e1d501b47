#!/usr/bin/env python3
"""The CPU backend beside transformers: the same random model, the same job, the same cores, in turn. Prints samples/s of both and the ratio.

    cpu_speed.py PROGRAMS DIR [--config lfm2-350m] [--dtype fp32] [--samples 16] [--length 32] [--threads N] [--rounds 5]

PROGRAMS holds lfm2_stage and weights-tools. DIR/model and DIR/shards are made where they are missing (fp32 LFM2-350M: 1.4 GB each).
A round is three forwards of transformers, then three of ours in a process of its own (one more before each three, not counted), so both see
the machine in the same minute. Both give last-position logits, which are compared too. Needs torch, transformers >= 5, h5py.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import time

import h5py
import numpy as np

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("programs", type=pathlib.Path)
parser.add_argument("folder", type=pathlib.Path)
parser.add_argument("--config", default="lfm2-350m")
parser.add_argument("--dtype", default="fp32", choices=("fp32", "bf16"))
parser.add_argument("--samples", type=int, default=16)
parser.add_argument("--length", type=int, default=32)
parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
parser.add_argument("--rounds", type=int, default=5)
arguments = parser.parse_args()
folder, repeats = arguments.folder, 3

model_folder, shards = folder / "model", folder / "shards"
if not shards.exists():
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run([arguments.programs / "weights-tools", "synth", "--config", arguments.config, "--dtype", arguments.dtype, "--out", model_folder], check=True)
    subprocess.run([arguments.programs / "weights-tools", "split", model_folder, "--stages", "1", "--out", shards], check=True)

import torch  # imported late, because that takes seconds and the arguments may be wrong
from transformers import AutoModelForCausalLM  # noqa: E402

torch.set_num_threads(arguments.threads)
model = AutoModelForCausalLM.from_pretrained(model_folder, dtype={"fp32": torch.float32, "bf16": torch.bfloat16}[arguments.dtype],
                                             attn_implementation="sdpa").eval()
ids = np.random.default_rng(20).integers(0, model.config.vocab_size, (arguments.samples, arguments.length), dtype=np.int32)
with h5py.File(folder / "inputs.h5", "w") as file:
    file["input_ids"] = ids
tokens = torch.from_numpy(ids.astype(np.int64))


def theirs():
    start = time.perf_counter()
    with torch.inference_mode():
        logits = model(tokens, use_cache=False, logits_to_keep=1).logits[:, -1].float().numpy()
    return time.perf_counter() - start, logits


def ours():
    command = [arguments.programs / "lfm2_stage", "--weights", shards, "--device", "cpu", "--dtype", arguments.dtype, "--threads", str(arguments.threads),
               "--input", folder / "inputs.h5", "--output", folder / "logits.h5", "--benchmark", "--warmup", "1", "--repeat", str(repeats),
               "--report", folder / "report.json", "--quiet"]
    subprocess.run(command, check=True)
    return json.loads((folder / "report.json").read_text())


rounds = []
for _ in range(arguments.rounds):
    theirs()
    runs = [theirs() for _ in range(repeats)]
    their_speed = arguments.samples / statistics.median(seconds for seconds, _ in runs)
    report = ours()
    our_speed = report["samples_per_second"]
    rounds.append((our_speed, their_speed, our_speed / their_speed))
    print(f"lfm2_stage {our_speed:6.2f} samples/s, transformers {their_speed:6.2f} samples/s, ratio {our_speed / their_speed:.2f}", flush=True)

with h5py.File(folder / "logits.h5") as file:
    found = file["logits"][:]
expected = runs[-1][1]
our_median, their_median, ratio = (statistics.median(column) for column in zip(*rounds))
print(json.dumps({"samples_per_second": our_median, "transformers_samples_per_second": their_median, "median_ratio": ratio, "dtype": arguments.dtype,
                  "device": report["stages"][0]["device"], "torch_threads": torch.get_num_threads(), "torch": torch.__version__,
                  "largest_difference": float(np.abs(found - expected).max()), "rms_logit": float(np.sqrt((expected ** 2).mean())),
                  "top1_equal": int((found.argmax(-1) == expected.argmax(-1)).sum()), "samples": arguments.samples}))
