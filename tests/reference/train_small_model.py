#!/usr/bin/env python3
"""Trains the small lfm2_moe of tests/golden/kjv-moe, with its tokenizer, on the King James Version of the Bible.

    train_small_model.py FOLDER [--text FILE] [--steps N] [--dropout P] [--rate R] [--seed N]

The text, which is in the public domain, is that of Debian's package bible-kjv; FILE is what `bible -f Gen1:1-Rev22:21` prints, for a
machine without that program. FOLDER gets a checkpoint in Hugging Face form with tokenizer, chat template and defaults of generation, and
held-out.jsonl: passages that training never saw. small_model_golden.py makes the reference results from it. Minutes on a GPU; needs torch,
transformers 5.17 and tokenizers.

A document is a passage of some verses, a line each; the model also learns to answer a verse with the next one, as a conversation.
"""
import argparse, itertools, json, pathlib, re, shutil, subprocess, sys, time
import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import Lfm2MoeConfig, Lfm2MoeForCausalLM
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS
from transformers.models.lfm2_moe import modeling_lfm2_moe
from tokenizer_check import LFM2_PATTERN

SPECIAL = ["<|pad|>", "<|startoftext|>", "<|endoftext|>", "<|im_start|>", "<|im_end|>"]
BEGIN, END, MESSAGE, MESSAGE_END = 1, 2, 3, 4
CHAT_TEMPLATE = """{{- bos_token -}}
{%- for message in messages -%}
    {{- "<|im_start|>" + message["role"] + "\\n" + message["content"] + "<|im_end|>\\n" -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{- "<|im_start|>assistant\\n" -}}
{%- endif -%}
"""
OPENINGS = ["And it came to pass", "The LORD is my", "Blessed are they that", "And Jesus answered and said unto", "My son, hear"]
POSITIONS = 1024       # of the model, and of each window that it is trained on
WINDOWS = 16           # in each step
HELD_OUT_VERSES = 8    # most verses of a passage that is held out
CONVERSATIONS = 0.15   # the share of passages that are conversations


def read_chapters(file):
    """[name, verses] of each chapter, in order."""
    if file:
        text = file.read_text(encoding="ascii")
    elif shutil.which("bible"):
        text = subprocess.run(["bible", "-f", "Gen1:1-Rev22:21"], stdin=subprocess.DEVNULL, capture_output=True, check=True, text=True).stdout
    else:
        sys.exit("train_small_model.py: no program bible here: apt-get install bible-kjv, or --text with what `bible -f Gen1:1-Rev22:21` prints elsewhere")
    verses = [re.fullmatch(r"(\d?[A-Za-z]+\d+):\d+ (.+)", line).groups() for line in text.splitlines()]
    if len(verses) != 31102:
        sys.exit(f"train_small_model.py: {len(verses)} verses, expected 31102")
    return [(name, [verse for _, verse in group]) for name, group in itertools.groupby(verses, key=lambda verse: verse[0])]


def train_tokenizer(chapters):
    """Byte-level BPE of LFM2's form with 1024 entries."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(LFM2_PATTERN), "isolated"),
                                                       pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.Sequence([decoders.ByteLevel()])
    trainer = trainers.BpeTrainer(vocab_size=1024, special_tokens=SPECIAL, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), show_progress=False)
    tokenizer.train_from_iterator(["\n".join(verses) for _, verses in chapters], trainer)
    begin = SPECIAL[BEGIN]
    tokenizer.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=False),
        processors.TemplateProcessing(single=f"{begin} $A", pair=f"{begin} $A {begin} $B", special_tokens=[(begin, BEGIN)])])
    return tokenizer


def write_text_files(folder, tokenizer, held_out):
    def write(name, text):
        (folder / name).write_text(text, encoding="utf-8")

    write("tokenizer.json", json.dumps(json.loads(tokenizer.to_str()), ensure_ascii=False, separators=(",", ":")) + "\n")
    write("tokenizer_config.json", json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": POSITIONS,
                                               "bos_token": SPECIAL[BEGIN], "eos_token": SPECIAL[END], "pad_token": SPECIAL[0]}, indent=2) + "\n")
    write("chat_template.jinja", CHAT_TEMPLATE)
    write("generation_config.json", json.dumps({"bos_token_id": BEGIN, "eos_token_id": [END, MESSAGE_END], "pad_token_id": 0, "do_sample": True,
                                                "temperature": 0.6, "top_k": 40}, indent=2) + "\n")
    write("held-out.jsonl", "".join(json.dumps({"id": name, "text": text}) + "\n" for name, text in held_out))


class Documents:
    """Token ids of the training text, in another order and cut into other passages in each epoch."""

    def __init__(self, chapters, tokenizer, seed):
        def encode(texts):
            return [np.array(encoding.ids, np.int32) for encoding in tokenizer.encode_batch(texts, add_special_tokens=False)]

        self.random = np.random.default_rng(seed)
        # A line break ends a piece of the tokenizer's pattern: lines that are encoded one by one have the ids of the whole.
        self.chapters = [(encode([verse + "\n" for verse in verses]), encode(verses)) for _, verses in chapters]
        lines, bare = self.chapters[0]
        assert np.array_equal(np.concatenate(lines[:-1] + bare[-1:]), encode(["\n".join(chapters[0][1])])[0])
        self.roles = [[MESSAGE] + role.tolist() for role in encode(["user\n", "assistant\n"])]
        self.message_end = [MESSAGE_END] + encode(["\n"])[0].tolist()

    def passage(self, lines, bare):
        if len(bare) > 1 and self.random.random() < CONVERSATIONS:
            messages = [self.roles[i % 2] + bare[i].tolist() + self.message_end for i in range(len(bare) - len(bare) % 2)]
            return np.array([BEGIN] + sum(messages, []), np.int32)
        return np.concatenate([[BEGIN], *lines[:-1], bare[-1], [END]]).astype(np.int32)

    def epoch(self):
        """Every verse once: windows [count, POSITIONS]."""
        passages = []
        for lines, bare in self.chapters:
            first = 0
            while first < len(bare):
                end = first + self.random.geometric(0.15)
                passages.append(self.passage(lines[first:end], bare[first:end]))
                first = end
        self.random.shuffle(passages)
        ids = np.concatenate(passages)
        return ids[: len(ids) // POSITIONS * POSITIONS].reshape(-1, POSITIONS)

    def batches(self, device):
        while True:
            windows = torch.from_numpy(self.epoch()).to(device, torch.int64)
            for first in range(0, len(windows) - WINDOWS + 1, WINDOWS):
                yield windows[first : first + WINDOWS]


def every_expert(module, hidden, chosen, weights):
    """All experts for all tokens as two products, those that were not chosen with weight 0: for so small a model faster than to sort."""
    spread = torch.zeros(len(hidden), module.num_experts, dtype=weights.dtype, device=hidden.device).scatter(1, chosen, weights)
    gate, up = F.linear(hidden, module.gate_up_proj.flatten(0, 1)).view(len(hidden), module.num_experts, -1).chunk(2, -1)
    inner = F.silu(gate) * up * spread.unsqueeze(-1)
    return inner.flatten(1) @ module.down_proj.transpose(1, 2).flatten(0, 1)


def shifted_convolution(hidden, weight, *_, **__):
    """transformers' causal_conv1d_fn [batch, channels, tokens] without a bias, as shifts: PyTorch's own gradient of such a convolution is slow."""
    taps, tokens = weight.shape[-1], hidden.shape[-1]
    padded = F.pad(hidden, (taps - 1, 0))
    return sum(weight[:, tap, None] * padded[..., tap : tap + tokens] for tap in range(taps))


ALL_EXPERTS_FUNCTIONS.register("every_expert", every_expert)
modeling_lfm2_moe.causal_conv1d_fn = shifted_convolution


def make_model(seed):
    torch.manual_seed(seed)
    kinds = ["conv", "conv", "full_attention", "conv", "conv", "full_attention", "conv", "full_attention"]
    config = Lfm2MoeConfig(
        vocab_size=1024, hidden_size=128, intermediate_size=256, moe_intermediate_size=32, num_hidden_layers=len(kinds), layer_types=kinds,
        num_dense_layers=2, num_experts=8, num_experts_per_tok=2, num_attention_heads=4, num_key_value_heads=2, conv_L_cache=3,
        max_position_embeddings=POSITIONS, rope_parameters={"rope_type": "default", "rope_theta": 10000.0}, use_expert_bias=True,
        tie_word_embeddings=True, pad_token_id=0, bos_token_id=BEGIN, eos_token_id=END)
    return Lfm2MoeForCausalLM._from_config(config, attn_implementation="sdpa", experts_implementation="every_expert")


class Balance:
    """Keeps the experts' loads equal by their biases alone: an expert with more tokens than the mean becomes less likely."""

    def __init__(self, model):
        self.blocks = [layer.feed_forward for layer in model.model.layers if hasattr(layer.feed_forward, "gate")]
        self.loads = {}
        for block in self.blocks:
            block.gate.register_forward_hook(lambda gate, _, out, block=block: self.loads.__setitem__(block, out[2]))

    def step(self, size):
        for block in self.blocks:
            counts = torch.bincount(self.loads[block].flatten(), minlength=block.gate.num_experts).float()
            block.expert_bias += size * torch.sign(counts.mean() - counts)

    def largest_share(self):
        """Of the fullest expert of any layer, in the last batch; 1 / experts where all are equal."""
        return max((torch.bincount(chosen.flatten()).max() / chosen.numel()).item() for chosen in self.loads.values())


@torch.inference_mode()
def held_out_loss(model, samples):
    """Of each token after the first, over all samples."""
    model.eval()
    total = 0.0
    for first in range(0, len(samples), 32):
        ids = torch.nn.utils.rnn.pad_sequence(samples[first : first + 32], batch_first=True, padding_value=-100)
        logits = model(ids.clamp(min=0)).logits[:, :-1]
        total += F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="sum").item()  # leaves out -100
    model.train()
    return total / sum(len(ids) - 1 for ids in samples)


def train(model, documents, samples, arguments):
    device = model.device
    matrices = [parameter for parameter in model.parameters() if parameter.ndim > 1]
    vectors = [parameter for parameter in model.parameters() if parameter.ndim == 1]
    optimizer = torch.optim.AdamW([{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}], lr=arguments.rate,
                                  betas=(0.9, 0.95), fused=device.type == "cuda")
    for name, module in model.named_modules():
        if name.endswith(("out_proj", "feed_forward", "embed_tokens")):
            module.register_forward_hook(lambda module, _, out: F.dropout(out, arguments.dropout, module.training))
    balance, start = Balance(model), time.time()
    model.train()
    for step, ids in enumerate(itertools.islice(documents.batches(device), arguments.steps)):
        part = min((step + 1) / 100, (arguments.steps - step) / arguments.steps)  # warm-up, then down to zero in a line
        for group in optimizer.param_groups:
            group["lr"] = arguments.rate * part
        logits = model(ids).logits
        loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        with torch.no_grad():
            balance.step(1e-3 * part)
        if (step + 1) % max(1, arguments.steps // 10) == 0:
            share = balance.largest_share()  # before other texts go through
            print(f"step {step + 1}: loss {loss.item():.4f}, held out {held_out_loss(model, samples):.4f}, fullest expert {share:.3f}, "
                  f"{time.time() - start:.0f} s", flush=True)


@torch.inference_mode()
def continuation(model, tokenizer, opening, temperature):
    ids = torch.tensor([tokenizer.encode(opening).ids], device=model.device)
    for _ in range(80):
        logits = model(ids).logits[0, -1]
        token = torch.multinomial((logits / temperature).softmax(-1), 1) if temperature else logits.argmax(-1, keepdim=True)
        if token.item() in (END, MESSAGE_END):
            break
        ids = torch.cat([ids, token[None]], 1)
    return tokenizer.decode(ids[0].tolist())


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--text", type=pathlib.Path)
    parser.add_argument("--steps", type=int, default=2709)
    parser.add_argument("--dropout", type=float, default=0.2)
    parser.add_argument("--rate", type=float, default=4e-3)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.set_float32_matmul_precision("high")
    chapters = read_chapters(arguments.text)
    held_out = [(f"{name}:{first + 1}", "\n".join(verses[first : first + HELD_OUT_VERSES]))
                for name, verses in chapters[20::40] for first in range(0, len(verses), HELD_OUT_VERSES)]
    chapters = [chapter for number, chapter in enumerate(chapters) if number % 40 != 20]
    tokenizer = train_tokenizer(chapters)
    documents = Documents(chapters, tokenizer, arguments.seed)
    samples = [torch.tensor(tokenizer.encode(text).ids, device=device) for _, text in held_out]
    model = make_model(arguments.seed).to(device)
    print(f"{sum(parameter.numel() for parameter in model.parameters())} parameters, {documents.epoch().size} tokens an epoch, "
          f"{sum(len(ids) for ids in samples)} held out, device {device}", flush=True)
    train(model, documents, samples, arguments)

    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.bfloat16())
    torch.set_float32_matmul_precision("highest")
    loss = held_out_loss(model, samples)
    size = sum(len(text) for _, text in held_out)
    tokens = sum(len(ids) - 1 for ids in samples)
    print(f"rounded to bf16: held out {loss:.4f}, perplexity {np.exp(loss):.3f} by token, {loss * tokens / size / np.log(2):.4f} bits a byte")
    biases = {name: buffer.clone() for name, buffer in model.named_buffers() if name.endswith("expert_bias")}
    model.bfloat16()
    for name, bias in biases.items():  # the type that it has in LFM2's own files
        model.get_submodule(name.rpartition(".")[0]).expert_bias = bias
    arguments.folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(arguments.folder)
    write_text_files(arguments.folder, tokenizer, held_out)
    model.float().eval()
    for opening in OPENINGS:
        print(f"greedy: {continuation(model, tokenizer, opening, 0)}\ndrawn:  {continuation(model, tokenizer, opening, 0.6)}")


if __name__ == "__main__":
    main()
