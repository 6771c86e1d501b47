#!/usr/bin/env python3
"""Makes tests/golden/CASE/golden.h5 again from its `input_ids`: what transformers gives in fp32 and fp64 on a CPU.

    golden.py FOLDER...

Needs torch, transformers 5.17, h5py. The experts run in their eager form, since the fused one has no fp64.
"""
import json, pathlib, sys
import h5py
import numpy as np
import torch
import transformers
from transformers import AutoModelForCausalLM

GREEDY = 12  # tokens of the greedy continuation


def load(folder, dtype):
    moe = "moe" in json.loads((folder / "config.json").read_text())["model_type"]
    return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="eager",
                                                **({"experts_implementation": "eager"} if moe else {})).eval()


@torch.inference_mode()
def continued(model, ids, tokens):
    """ids [samples, length] with greedy tokens behind them, by a full forward for each."""
    for _ in range(tokens):
        ids = torch.cat([ids, model(ids, use_cache=False).logits[:, -1].argmax(-1, keepdim=True)], 1)
    return ids


@torch.inference_mode()
def write(folder, ids):
    single, double = load(folder, torch.float32), load(folder, torch.float64)
    exact = double(ids, use_cache=False, output_hidden_states=True)
    with h5py.File(folder / "golden.h5", "w") as file:
        def put(name, values):
            file.create_dataset(name, data=values, track_times=False)

        put("input_ids", ids.numpy().astype(np.int32))
        put("logits", single(ids, use_cache=False).logits.numpy())
        put("logits_f64", exact.logits.numpy())
        for number, state in enumerate(exact.hidden_states):
            put(f"hidden_states/{number:02}", state.numpy())
        put("greedy", continued(double, ids, GREEDY).numpy().astype(np.int32))
        file.attrs["torch"], file.attrs["transformers"] = str(torch.__version__), transformers.__version__


def main():
    for folder in map(pathlib.Path, sys.argv[1:]):
        with h5py.File(folder / "golden.h5") as file:
            ids = torch.from_numpy(file["input_ids"][:].astype("int64"))
        write(folder, ids)


if __name__ == "__main__":
    main()
