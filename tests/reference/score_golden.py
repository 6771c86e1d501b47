#!/usr/bin/env python3
"""score_golden.py WEIGHTS_TOOLS: writes tests/golden/scores.json, what --score must give for the golden cases.

- `cases`: of each case's `greedy`, whose last tokens are the top-1 ones, the log-probability of every token after the first, by transformers in
  fp64, and whether it is the top-1 token; perplexity and its standard error, by NumPy from those; and by how much transformers' own fp32 differs
  from them (`own_error`): mini-24's logits are so large that this is more than 1e-4 with some processors' instructions.
- `windows`: the same for texts that are longer than the model (tiny-dense with fewer positions), as transformers' guide to perplexity cuts them.
- `texts`: lines with and without a target, through the small tokenizer and the model that `weights-tools synth` makes of `config` (those of the
  cases have too few tokens), with the bytes of what is scored.
- `targets`: texts and targets as ids, joined and cut by the rule of lm-evaluation-harness (api/model.py, TemplateLM._encode_pair).

Needs torch, transformers >= 5, tokenizers, h5py.
"""
import json
import pathlib
import subprocess
import sys
import tempfile

import h5py
import numpy as np
import tokenizers
import torch
import transformers
from transformers import AutoModelForCausalLM

GOLDEN = pathlib.Path(__file__).parents[1] / "golden"
CASES = ("kjv-moe", "tiny-moe", "mini-24", "tiny-bf16", "tiny-lfm3", "tiny-dense")
MAX_POSITIONS, STRIDE = 6, 4
TEXT_CONFIG = {"model_type": "lfm2", "vocab_size": 1280, "hidden_size": 32, "num_hidden_layers": 4,
               "layer_types": ["conv", "full_attention", "conv", "full_attention"], "num_attention_heads": 2, "num_key_value_heads": 1,
               "intermediate_size": 48, "block_auto_adjust_ff_dim": False, "conv_L_cache": 3, "max_position_embeddings": 512,
               "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"}, "eos_token_id": 4, "initializer_range": 0.2,
               "tie_word_embeddings": True}
CONTEXTS = ["The capital of France is", "The capital of France is ", "a", "", "  ", "It is 12", "It is 1 234 ", "Hello,", "one\n\n", "end.\t", "日本", "日本 ",
            "wide\u3000", "no-break\u00a0", "unit\x1f", "é", "<|im_start|>user\n", "tens", "pyth", "Mathia", "x  ", "It's", "I'"]
TARGETS = [" Paris", "Paris", "s", "34", "345 and more", " ", "語です", "\n", "!", " world, and the rest of it", "or", "on", "<|im_end|>", "'m"]


def load(folder, dtype=torch.float32):
    return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="eager", experts_implementation="eager").eval()


def synthesize():
    with tempfile.TemporaryDirectory() as name:
        config, model = pathlib.Path(name) / "config.json", pathlib.Path(name) / "model"
        config.write_text(json.dumps(TEXT_CONFIG))
        subprocess.run([sys.argv[1], "synth", "--config", config, "--dtype", "fp32", "--out", model, "-q"], check=True)
        return load(model)


def score(model, ids, scored):
    """Log-probabilities of the last `scored` of these ids, and whether each is the top-1 token."""
    with torch.inference_mode():
        logits = model(torch.tensor([ids]), use_cache=False).logits[0].double()
    rows, targets = logits[len(ids) - 1 - scored : -1], torch.tensor(ids[len(ids) - scored :])
    return rows.log_softmax(-1).gather(1, targets[:, None])[:, 0].tolist(), (rows.argmax(-1) == targets).tolist()


def score_windows(model, ids, length, stride):
    values, greedy, done = [], [], 1
    for begin in range(0, len(ids), stride):
        end = min(begin + length, len(ids))
        more, are = score(model, ids[begin:end], end - done)
        values, greedy, done = values + more, greedy + are, end
        if end == len(ids):
            return values, greedy


def summary(samples):
    """The scores of a job's samples with their perplexity."""
    values = np.array([value for one, _ in samples for value in one])
    perplexity = np.exp(-values.mean())
    return {"logprobs": [[float(f"{value:.8g}") for value in one] for one, _ in samples], "is_greedy": [are for _, are in samples],
            "perplexity": float(perplexity), "standard_error": float(perplexity * values.std(ddof=1) / np.sqrt(len(values)))}


def join(tokenizer, text, target):
    """Ids, and how many of them are the target's."""
    blanks = len(text) - len(text.rstrip())
    if blanks:
        text, target = text[:-blanks], text[-blanks:] + target
    ids = tokenizer.encode(text + target).ids
    return ids, len(ids) - len(tokenizer.encode(text).ids)


def main():
    golden = {"versions": {"transformers": transformers.__version__, "torch": str(torch.__version__), "tokenizers": tokenizers.__version__}, "cases": {}}
    for case in CASES:
        model = load(GOLDEN / case)
        with h5py.File(GOLDEN / case / "golden.h5") as file:
            samples = [[int(i) for i in sample] for sample in file["greedy"][:]]
        exact_model = load(GOLDEN / case, torch.float64)
        single, exact = ([score(one, sample, len(sample) - 1) for sample in samples] for one in (model, exact_model))
        own_error = max(abs(a - b) for one, other in zip(single, exact) for a, b in zip(one[0], other[0]))
        golden["cases"][case] = {**summary(exact), "own_error": own_error}
        print(f"{case}: fp32 differs from fp64 by {own_error:.2g} at most")
    # The last model is tiny-dense, and so are its samples. One is as long as the windows, one shorter.
    samples += [samples[0][:MAX_POSITIONS], samples[1][:3]]
    golden["windows"] = {"max_positions": MAX_POSITIONS, "stride": STRIDE, "input_ids": samples,
                         **summary([score_windows(model, sample, MAX_POSITIONS, STRIDE) for sample in samples])}
    tokenizer = tokenizers.Tokenizer.from_file(str(GOLDEN / "text/tokenizer.json"))
    golden["targets"] = []
    for text in CONTEXTS:
        for target in TARGETS:
            ids, scored = join(tokenizer, text, target)
            if 1 <= scored < len(ids):
                golden["targets"].append({"text": text, "target": target, "ids": ids, "scored": scored})
    golden["texts"] = []
    whole = [one for one in golden["targets"] if "\ufffd" not in tokenizer.decode(one["ids"][-one["scored"] :], skip_special_tokens=False)]
    for one in whole[::9]:  # those that end and begin with whole characters
        golden["texts"].append(({"text": one["text"], "target": one["target"]}, one["ids"], one["scored"]))
    for text in ("The quick brown fox jumps over the lazy dog.", "日本語 and python", "two\nlines"):
        ids = tokenizer.encode(text).ids
        golden["texts"].append(({"text": text}, ids, len(ids) - 1))
    model = synthesize()
    scores = summary([score(model, ids, scored) for _, ids, scored in golden["texts"]])
    decoded = [tokenizer.decode(ids[len(ids) - scored :], skip_special_tokens=False) for _, ids, scored in golden["texts"]]
    golden["texts"] = {"config": TEXT_CONFIG, "lines": [line for line, _, _ in golden["texts"]], "bytes": [len(text.encode()) for text in decoded],
                       "words": sum(len(text.split()) for text in decoded), **scores}
    (GOLDEN / "scores.json").write_text(json.dumps(golden, ensure_ascii=False, separators=(",", ":")) + "\n", encoding="utf-8")
    for case, found in {**golden["cases"], "windows": golden["windows"], "texts": golden["texts"]}.items():
        print(f"{case}: {sum(map(len, found['logprobs']))} tokens, perplexity {found['perplexity']:.6g} ± {found['standard_error']:.2g}")
    print(f"{len(golden['targets'])} targets")


main()
