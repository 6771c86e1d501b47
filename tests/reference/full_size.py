#!/usr/bin/env python3
"""The full-size model in transformers: makes a random LFM2-8B-A1B of fixed seed, runs it in fp32 and bf16, writes what lfm2_stage is compared with.

    full_size.py make DIR [--tiny]      DIR/model (Hugging Face checkpoint, bf16), DIR/inputs.h5, DIR/reference.h5; needs one GPU with 45 GB
                                        (--tiny: a small model of the same kind, on any machine, to try the script itself)
    full_size.py compare DIR FP32 BF16  our last-position logits (.h5) against DIR/reference.h5; exit code 1 where a bound is broken

Weights: normal, 1 / sqrt(fan in) for matrices, norms around 1, so that activations stay near 1 and logits are lively; every value is exactly bf16.
Samples: 64 of 32 tokens and two of 4096. The reference keeps, for every sample, the smallest gap between the last chosen and the first
rejected expert over all tokens and layers: where it is under 1e-5 rounding alone may choose the other.
"""
import argparse
import json
import pathlib
import sys
import time

import h5py
import numpy as np

ATTENTION = (2, 6, 10, 14, 18, 21)
LENGTHS = [32] * 64 + [4096] * 2
NEAR_TIE = 1e-5
TOLERANCE = 1e-3


def make(folder: pathlib.Path, tiny: bool) -> None:
    import torch
    from transformers import AutoModelForCausalLM, Lfm2MoeConfig

    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    device = "cuda:0" if torch.cuda.is_available() else "cpu"
    small = dict(hidden_size=64, intermediate_size=112, moe_intermediate_size=16, num_attention_heads=8, num_key_value_heads=2, vocab_size=512)
    config = Lfm2MoeConfig(**(small if tiny else {}), num_hidden_layers=24, layer_types=["full_attention" if i in ATTENTION else "conv" for i in range(24)],
                           max_position_embeddings=128000)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").eval()
    torch.set_default_dtype(torch.float32)
    generator = torch.Generator(device).manual_seed(20)
    with torch.no_grad():
        for name, tensor in list(model.named_parameters()) + [(n, b) for n, b in model.named_buffers() if "expert_bias" in n]:
            if "expert_bias" in name:
                tensor.uniform_(-0.05, 0.05, generator=generator)
            elif "norm" in name:
                tensor.normal_(1.0, 0.1, generator=generator)
            elif "embed_tokens" in name:
                tensor.normal_(0.0, 4.0 / config.hidden_size ** 0.5, generator=generator)
            else:
                tensor.normal_(0.0, 1.0 / tensor.shape[-1] ** 0.5, generator=generator)
    start = time.time()
    model.save_pretrained(folder / "model")
    print(f"checkpoint written in {time.time() - start:.1f} s", flush=True)

    rng = np.random.default_rng(20)
    samples = [rng.integers(0, config.vocab_size, length, dtype=np.int32) for length in LENGTHS]
    with h5py.File(folder / "inputs.h5", "w") as file:
        file["input_ids"] = np.concatenate(samples)
        file["offsets"] = np.cumsum([0] + LENGTHS)

    gaps = []

    def watch_router(gate, inputs, output):
        router_logits, bias = output[0], inputs[1]
        scores = router_logits.sigmoid() + (bias if bias is not None else 0)
        top = scores.topk(config.num_experts_per_tok + 1, dim=-1).values
        gaps.append((top[:, -2] - top[:, -1]).min())

    def run(model):
        rows, smallest = [], []
        with torch.inference_mode():
            for ids in samples:
                gaps.clear()
                rows.append(model(torch.from_numpy(ids[None].astype(np.int64)).to(device), use_cache=False, logits_to_keep=1).logits[0, -1].float().cpu().numpy())
                smallest.append(float(torch.stack(gaps).min()))
        return np.stack(rows), np.array(smallest)

    for module in model.modules():
        if hasattr(module, "gate") and hasattr(module, "experts"):
            module.gate.register_forward_hook(watch_router)
    bf16, _ = run(model)
    model.float()
    fp32, smallest_gap = run(model)
    with h5py.File(folder / "reference.h5", "w") as file:
        file["logits"], file["logits_bf16"], file["smallest_gap"] = fp32, bf16, smallest_gap
    print(f"reference: logits of std {fp32.std():.3f}, largest {np.abs(fp32).max():.2f}; {int((smallest_gap < NEAR_TIE).sum())} of {len(samples)} samples "
          f"have a router gap under {NEAR_TIE}; smallest gap {smallest_gap.min():.2e}")


def mean_kl(reference: np.ndarray, other: np.ndarray) -> float:
    def log_softmax(x):
        x = x.astype(np.float64)
        x -= x.max(-1, keepdims=True)
        return x - np.log(np.exp(x).sum(-1, keepdims=True))
    p, q = log_softmax(reference), log_softmax(other)
    return float((np.exp(p) * (p - q)).sum(-1).mean())


def compare(folder: pathlib.Path, fp32_file: str, bf16_file: str) -> int:
    with h5py.File(folder / "reference.h5") as file:
        reference, their_bf16, gap = file["logits"][:], file["logits_bf16"][:], file["smallest_gap"][:]
    with h5py.File(fp32_file) as file:
        fp32 = file["logits"][:]
    with h5py.File(bf16_file) as file:
        bf16 = file["logits"][:]
    difference = np.abs(fp32 - reference).max(-1)
    top1 = fp32.argmax(-1) == reference.argmax(-1)
    excused = (difference > TOLERANCE) & (gap < NEAR_TIE)
    for sample in np.flatnonzero(excused):
        print(f"sample {sample} ({LENGTHS[sample]} tokens): difference {difference[sample]:.2e}, router gap {gap[sample]:.1e}")
    our_kl, their_kl = mean_kl(reference, bf16), mean_kl(reference, their_bf16)
    result = {"fp32_largest_difference": float(difference[~excused].max()), "fp32_excused_near_ties": int(excused.sum()),
              "fp32_top1_equal": int(top1.sum()), "samples": len(top1), "bf16_mean_kl": our_kl, "transformers_bf16_mean_kl": their_kl,
              "bf16_top1_equal": int((bf16.argmax(-1) == reference.argmax(-1)).sum()),
              "transformers_bf16_top1_equal": int((their_bf16.argmax(-1) == reference.argmax(-1)).sum())}
    result["right"] = bool(result["fp32_largest_difference"] <= TOLERANCE and (top1 | excused).all() and our_kl <= 1.1 * their_kl)
    print(json.dumps(result))
    return 0 if result["right"] else 1


parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
commands = parser.add_subparsers(dest="command", required=True)
make_parser = commands.add_parser("make")
make_parser.add_argument("folder", type=pathlib.Path)
make_parser.add_argument("--tiny", action="store_true")
compare_parser = commands.add_parser("compare")
compare_parser.add_argument("folder", type=pathlib.Path)
compare_parser.add_argument("fp32")
compare_parser.add_argument("bf16")
arguments = parser.parse_args()
if arguments.command == "make":
    arguments.folder.mkdir(parents=True, exist_ok=True)
    make(arguments.folder, arguments.tiny)
else:
    sys.exit(compare(arguments.folder, arguments.fp32, arguments.bf16))
