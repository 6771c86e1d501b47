#!/usr/bin/env python3
"""hidden_golden.py: writes tests/golden/hidden.h5, the hidden states that --hidden must give for the golden cases.

A group for each case, with samples of unequal lengths (the beginnings of its first `greedy` rows): `input_ids`, `offsets`, and of all positions, in
fp32 by transformers, the states [tokens, hidden] `final` (last_hidden_state: behind the final norm) and `layer_N`: the residual stream behind layer
N, for the first layer, the middle one and the last. The last one is not in transformers' hidden_states, whose last entry is behind the final norm:
it is what goes into that norm.

Needs torch, transformers >= 5, h5py.
"""
import pathlib

import h5py
import numpy as np
import torch
import transformers
from transformers import AutoModelForCausalLM

GOLDEN = pathlib.Path(__file__).parents[1] / "golden"
CASES = ("kjv-moe", "tiny-moe", "mini-24", "tiny-bf16", "tiny-lfm3", "tiny-dense")


def states_of(model, ids):
    """The states of all positions, by the name of their dataset."""
    into_norm = []
    hook = model.model.embedding_norm.register_forward_pre_hook(lambda _, inputs: into_norm.append(inputs[0]))
    with torch.inference_mode():
        found = model.model(torch.tensor([ids]), use_cache=False, output_hidden_states=True)
    hook.remove()
    layers = model.config.num_hidden_layers
    assert len(found.hidden_states) == layers + 1 and len(into_norm) == 1
    assert torch.equal(found.hidden_states[-1], found.last_hidden_state)
    states = {"final": found.last_hidden_state, f"layer_{layers}": into_norm[0]}
    for layer in (1, layers // 2):
        states[f"layer_{layer}"] = found.hidden_states[layer]
    return {name: state[0].numpy() for name, state in states.items()}


def main():
    with h5py.File(GOLDEN / "hidden.h5", "w") as file:
        file.attrs["versions"] = f"transformers {transformers.__version__}, torch {torch.__version__}"
        for case in CASES:
            model = AutoModelForCausalLM.from_pretrained(GOLDEN / case, dtype=torch.float32, attn_implementation="eager").eval()
            with h5py.File(GOLDEN / case / "golden.h5") as golden:
                rows = golden["greedy"][:3]
            length = rows.shape[1]
            samples = [[int(i) for i in row[:count]] for row, count in zip(rows, (length, 1, length // 2))]
            states = [states_of(model, ids) for ids in samples]
            group = file.create_group(case)
            group["input_ids"] = np.concatenate(samples).astype(np.int32)
            group["offsets"] = np.cumsum([0] + [len(ids) for ids in samples]).astype(np.int64)
            for name in states[0]:
                group[name] = np.concatenate([one[name] for one in states])
                print(f"{case}/{name}: {group[name].shape}, largest {np.abs(group[name][:]).max():.3g}")


main()
