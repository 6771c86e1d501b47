#!/usr/bin/env python3
"""Adapters of every kind that is computed, made and merged by PEFT, against the weights of weights-tools split --adapter.

    adapter_check.py WEIGHTS_TOOLS [KIND ...]

Each kind is a small random model with a random adapter, or two. PEFT merges them in fp32; the shards must hold the same bits in
fp32, and in bf16 those of one rounding of the sum. The last column counts elements that differ; the exit code is 1 if any does.
With PEFT before 0.20 the kinds of experts check its older order of factors. Needs torch, transformers, peft and h5py.
"""
import pathlib
import subprocess
import sys
import tempfile

import h5py
import torch
import transformers
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, Lfm2Config, Lfm2MoeConfig

transformers.utils.logging.disable_progress_bar()

TOOLS, CHOSEN = sys.argv[1], sys.argv[2:]
COMMON = dict(vocab_size=160, hidden_size=64, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2, intermediate_size=96,
              block_auto_adjust_ff_dim=False, max_position_embeddings=256, layer_types=["conv", "full_attention", "conv", "full_attention"])
MOE = dict(COMMON, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=48, num_dense_layers=1)
LINEAR = ["q_proj", "k_proj", "v_proj", "out_proj", "in_proj", "w1", "w2", "w3"]
GATE_UP, DOWN = "feed_forward.experts.gate_up_proj", "feed_forward.experts.down_proj"

# Kind -> configuration of the model, those of the adapters.
KINDS = {
    "linear": (COMMON, [dict(r=4, lora_alpha=7, target_modules=LINEAR)]),
    "all-linear": (COMMON, [dict(r=3, lora_alpha=8, target_modules="all-linear")]),
    "rslora": (COMMON, [dict(r=5, lora_alpha=3, target_modules=LINEAR, use_rslora=True, rank_pattern={"w2": 3})]),
    "patterns": (COMMON, [dict(r=4, lora_alpha=7, target_modules=LINEAR, rank_pattern={r"layers\.1\..*": 2, "w2": 6, r"^model\.layers\.2\.conv\.in_proj": 1},
                               alpha_pattern={"q_proj|k_proj": 1, "w": 99, "feed_forward.w1": 5})]),
    "large rank": (COMMON, [dict(r=48, lora_alpha=16, target_modules=LINEAR)]),
    "two adapters": (COMMON, [dict(r=4, lora_alpha=7, target_modules=LINEAR), dict(r=2, lora_alpha=1, target_modules=["w1", "in_proj"])]),
    "untied head": (dict(COMMON, tie_word_embeddings=False), [dict(r=4, lora_alpha=7, target_modules=["q_proj", "lm_head"])]),
    "weights as parameters": (COMMON, [dict(r=4, lora_alpha=7, target_modules=[], target_parameters=["q_proj.weight", "w2.weight"],
                                            rank_pattern={"w2.weight": 2, "q_proj": 3})]),
    "experts": (MOE, [dict(r=3, lora_alpha=4, target_modules=LINEAR, target_parameters=[GATE_UP, DOWN], rank_pattern={"experts.down_proj": 2})]),
    "gate_up_proj": (MOE, [dict(r=3, lora_alpha=4, target_modules=["q_proj"], target_parameters=[GATE_UP], use_rslora=True)]),
    "down_proj": (MOE, [dict(r=3, lora_alpha=4, target_modules=["q_proj"], target_parameters=[DOWN], alpha_pattern={"experts.down_proj": 9})]),
    "square experts": (dict(MOE, moe_intermediate_size=32), [dict(r=3, lora_alpha=4, target_modules=["q_proj"], target_parameters=[GATE_UP, DOWN])]),
    "saved modules": (MOE, [dict(r=2, lora_alpha=4, target_modules=["q_proj"], modules_to_save=["operator_norm", "conv.conv", "w1", "feed_forward.experts"])]),
    "saved head": (COMMON, [dict(r=2, lora_alpha=4, target_modules=["q_proj"], modules_to_save=["lm_head"])]),
    "saved embedding": (COMMON, [dict(r=2, lora_alpha=4, target_modules=["q_proj"], modules_to_save=["embed_tokens"])]),
    "saved both": (COMMON, [dict(r=2, lora_alpha=4, target_modules=["q_proj"], modules_to_save=["embed_tokens", "lm_head"])]),
    "saved and tied": (COMMON, [dict(r=2, lora_alpha=4, target_modules=["q_proj"], modules_to_save=["embed_tokens"], ensure_weight_tying=True)]),
    "trained tokens": (COMMON, [dict(r=2, lora_alpha=4, target_modules=["q_proj"], trainable_token_indices=[7, 150, 0])]),
    "trained tokens, untied": (dict(COMMON, tie_word_embeddings=False),
                               [dict(r=2, lora_alpha=4, target_modules=["q_proj"], trainable_token_indices={"embed_tokens": [3]})]),
    "biases": (dict(COMMON, conv_bias=True), [dict(r=2, lora_alpha=4, target_modules=["in_proj", "q_proj"], bias="all")]),
    "biases of adapted": (dict(COMMON, conv_bias=True), [dict(r=2, lora_alpha=4, target_modules=["in_proj"], bias="lora_only")]),
    "router": (MOE, [dict(r=2, lora_alpha=4, target_modules=["q_proj"], target_parameters=["feed_forward.gate.weight"], rank_pattern={"gate.weight": 1})]),
}


def with_random_weights(model, seed):
    torch.manual_seed(seed)
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            torch.nn.init.normal_(parameter, std=0.3)
    return model


def expected_tensors(model):
    """The merged model's tensors under the names of shards."""
    tensors = {}
    for name, value in model.state_dict().items():
        prefix = name.rpartition("experts.")[0] + "experts."
        if name.endswith("gate_up_proj"):
            for expert, matrix in enumerate(value):
                tensors[f"{prefix}{expert}.w1.weight"], tensors[f"{prefix}{expert}.w3.weight"] = matrix.chunk(2)
        elif name.endswith("down_proj"):
            tensors.update({f"{prefix}{expert}.w2.weight": matrix for expert, matrix in enumerate(value)})
        else:
            tensors[name] = value
    return tensors


def differing(shards, expected, dtype):
    count, names = 0, set()
    for path in shards.glob("*.h5"):
        with h5py.File(path) as file:
            for name in file:
                ours, theirs = file[name][()], expected[name].to(dtype).float().numpy()
                names.add(name)
                count += int((ours != theirs).sum())
    missing = set(expected) - names
    assert missing <= {"lm_head.weight"}, missing
    return count


failed = False
for kind, (config, adapters) in KINDS.items():
    if CHOSEN and kind not in CHOSEN:
        continue
    for stored in (torch.float32, torch.bfloat16):
        with tempfile.TemporaryDirectory() as folder:
            work = pathlib.Path(folder)
            base = (Lfm2MoeConfig if "num_experts" in config else Lfm2Config)(**config)
            with_random_weights(AutoModelForCausalLM.from_config(base), 0).to(stored).save_pretrained(work / "base")
            model = AutoModelForCausalLM.from_pretrained(work / "base", dtype=torch.float32)
            options = []
            for number, adapter in enumerate(adapters, 1):
                model = with_random_weights(get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", **adapter)), number)
                model.save_pretrained(work / f"adapter-{number}")
                options += ["--adapter", work / f"adapter-{number}"]
                model = model.merge_and_unload()
            expected = expected_tensors(model)
            subprocess.run([TOOLS, "split", work / "base", *options, "--out", work / "shards", "--quiet"], check=True)
            subprocess.run([TOOLS, "verify", work / "shards", "--against", work / "base", *options, "--quiet"], check=True)
            count = differing(work / "shards", expected, stored)
            failed = failed or count > 0
            print(f"{kind:<24} {str(stored).removeprefix('torch.'):<9} {count:>8}", flush=True)
sys.exit(failed)
