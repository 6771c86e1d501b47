#!/usr/bin/env python3
"""What transformers makes of texts with the small trained model: golden.h5, and texts with their results (tests/golden/README.md).

    small_model_golden.py FOLDER        tests/golden/kjv-moe

The passages are some of held-out.jsonl. Where two experts' scores nearly tie, rounding may choose either: such passages are left out by the
rule below, never by a tolerance. Needs torch, transformers 5.17, h5py; two minutes on a CPU.
"""
import json, pathlib, sys
import h5py
import numpy as np
import torch
from transformers import AutoTokenizer
import golden
from train_small_model import END, MESSAGE_END, OPENINGS

SAMPLES, LENGTH = 4, 8   # of golden.h5
PASSAGES = 10            # of scores.h5
CONVERSATIONS = 4        # tried for messages.jsonl
GREEDY_TOKENS = 40       # at most, behind each opening and each conversation
SMALLEST_GAP = 1e-5      # of the scores of a chosen and a refused expert; fp32 computes scores to about 1e-6
SMALLEST_BF16_GAP = 1e-2 # the same where bf16 is compared; it computes scores to some 1e-3
SMALLEST_LEAD = 1e-3     # of a greedy token's logit over the next one


class Gaps:
    """The smallest difference of a chosen and a refused expert's score in the forwards since `smallest` was last set."""

    def __init__(self, model):
        self.smallest = np.inf
        for block in (layer.feed_forward for layer in model.model.layers if hasattr(layer.feed_forward, "gate")):
            block.gate.register_forward_hook(lambda gate, inputs, out: self.see(out[0].sigmoid() + inputs[1], gate.top_k))

    def see(self, scores, top_k):
        best = scores.topk(top_k + 1, dim=-1).values
        self.smallest = min(self.smallest, (best[:, -2] - best[:, -1]).min().item())


@torch.inference_mode()
def log_probs(model, ids):
    """Of each token after the first, and whether it was the top-1 token."""
    logits = model(ids[None], use_cache=False).logits[0, :-1]
    return logits.log_softmax(-1).gather(1, ids[1:, None])[:, 0].numpy(), (logits.argmax(-1) == ids[1:]).numpy()


@torch.inference_mode()
def is_robust(double, gaps, ids, prompt):
    """Whether no rounding of fp32 changes an expert of these ids, or, behind the first `prompt` of them, a greedy token."""
    gaps.smallest = np.inf
    best = double(ids[None], use_cache=False).logits[0, prompt - 1 :].topk(2, dim=-1).values
    return gaps.smallest > SMALLEST_GAP and (best[:, 0] - best[:, 1]).min() > SMALLEST_LEAD


@torch.inference_mode()
def write_samples(folder, double, gaps, texts):
    """golden.h5, of pieces of passages, at most one of each, whose experts are the same in bf16."""
    found = []
    for text in texts:
        for ids in text[1:].split(LENGTH)[:-1]:  # without the token that begins every text: its experts nearly tie
            gaps.smallest = np.inf
            double.model(ids[None], use_cache=False)
            if gaps.smallest > SMALLEST_BF16_GAP and is_robust(double, gaps, golden.continued(double, ids[None], golden.GREEDY)[0], LENGTH):
                found.append(ids)
                break
        if len(found) == SAMPLES:
            return golden.write(folder, torch.stack(found))
    sys.exit(f"small_model_golden.py: only {len(found)} samples whose experts do not tie")


def write_scores(folder, double, gaps, passages):
    """scored.jsonl, texts, and scores.h5: their ids, and for sample i from offsets[i] - i on the log-probabilities of its tokens after the first."""
    single = golden.load(folder, torch.float32)
    lines, all_ids, in_single, in_double, is_greedy = [], [], [], [], []
    for line, ids in passages:
        gaps.smallest = np.inf
        exact, best = log_probs(double, ids)
        if gaps.smallest > SMALLEST_GAP and len(lines) < PASSAGES:
            lines.append(line), all_ids.append(ids.numpy().astype(np.int32))
            in_double.append(exact), in_single.append(log_probs(single, ids)[0]), is_greedy.append(best)
    exact = np.concatenate(in_double)
    with h5py.File(folder / "scores.h5", "w") as file:
        for name, values in (("input_ids", np.concatenate(all_ids)), ("offsets", np.cumsum([0] + [len(ids) for ids in all_ids])),
                             ("logprobs", np.concatenate(in_single)), ("logprobs_f64", exact), ("is_greedy", np.concatenate(is_greedy).astype(np.int8))):
            file.create_dataset(name, data=values, track_times=False)
        file.attrs["perplexity"] = np.exp(-exact.mean())
    (folder / "scored.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    print(f"{len(lines)} passages, {sum(map(len, all_ids))} tokens, perplexity {np.exp(-exact.mean()):.6f}, "
          f"fp32 differs by at most {np.abs(exact - np.concatenate(in_single)).max():.1e}")


@torch.inference_mode()
def write_greedy(path, double, gaps, tokenizer, prompts):
    """The text behind each line of prompts, {line: ids}, up to an end or GREEDY_TOKENS tokens: path, and, with .expected.jsonl, the output of a job."""
    lines, expected = [], []
    for line, prompt in prompts.items():
        whole = golden.continued(double, torch.tensor(prompt)[None], GREEDY_TOKENS)[0]
        ends = [at for at in range(len(prompt), len(whole)) if whole[at] in (END, MESSAGE_END)]
        whole = whole[: ends[0] + 1] if ends else whole
        if not is_robust(double, gaps, whole[:-1], len(prompt)):
            print(f"left out, nearly tied: {line}")
            continue
        ids = whole[len(prompt) :].tolist()
        lines.append(line + "\n")
        expected.append(json.dumps({"id": len(expected), "token_ids": ids, "text": tokenizer.decode(ids, skip_special_tokens=True),
                                    "finish_reason": "stop" if ends else "length"}, separators=(",", ":")) + "\n")
    path.write_text("".join(lines), encoding="utf-8")
    path.with_suffix(".expected.jsonl").write_text("".join(expected), encoding="utf-8")


def main():
    folder = pathlib.Path(sys.argv[1])
    tokenizer = AutoTokenizer.from_pretrained(folder)
    lines = [json.loads(line) for line in (folder / "held-out.jsonl").read_text(encoding="utf-8").splitlines()]
    texts = [torch.tensor(tokenizer.encode(line["text"])) for line in lines]
    lines, passages = lines[::7], list(zip(lines, texts))[::7]  # from all over the book
    double = golden.load(folder, torch.float64)
    gaps = Gaps(double)
    write_samples(folder, double, gaps, texts)
    write_scores(folder, double, gaps, passages)
    write_greedy(folder / "openings.txt", double, gaps, tokenizer, {opening: tokenizer.encode(opening) for opening in OPENINGS})
    conversations = [[{"role": "user", "content": line["text"].split("\n")[0]}] for line in lines]
    write_greedy(folder / "messages.jsonl", double, gaps, tokenizer,
                 {json.dumps({"messages": messages}): tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
                  for messages in conversations[:CONVERSATIONS]})


if __name__ == "__main__":
    main()
