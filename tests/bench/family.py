#!/usr/bin/env python3
"""Models of the family at full size with random weights: how fast they load, score and decode on one device, and how far they are from transformers.

    family.py PROGRAMS DIR MODEL... [--device cuda] [--shards DIR] [--no-reference] [--json FILE]
    family.py PROGRAMS DIR lfm3-1.7b --lengths 1000 100000 [--device cuda] [--json FILE]

PROGRAMS holds lfm2_stage and weights-tools. MODEL is a built-in configuration or a config.json. DIR gets the checkpoint of one model at a time, in bf16, and
the folder of --shards (default: DIR) its shards; each is removed after its last use, so a model of 48 GB needs 48 GB in each of two places.

Prints a row of a table for each model: seconds of loading, samples/s of 1024 x 32, new tokens/s of 1 and of 256 sequences (prompts of 32, 64 new), the share
of its floor that one sequence reaches (bytes of the weights that a token meets, at copy speed), and the largest difference of a logit in fp32: last positions
of samples of 32 tokens and one of 512. A sample is left out of the difference and counted as a tie where an expert that is chosen lies within 1e-5 of
one that is not, because rounding alone may choose the other. Needs numpy, and for the difference torch, transformers (5.24 for lfm3) and h5py. Ends with 1 where a difference is
over 1e-3 of the largest logit.

With --lengths, a row instead for each kind of token mixer that the model has: of eight such layers, after a prompt of each length, the milliseconds of a
token of one sequence and the bytes of the caches. Layers with a window cost the same after every length. Ends with 1 where their token takes over 1.2
times as long after the last length as after the first.
"""
import argparse, json, os, pathlib, shutil, subprocess, sys

import numpy as np

from gpu_jobs import ceilings

NEAR_TIE, TOLERANCE = 1e-5, 1e-3
LENGTHS = [32] * 8 + [512]


def theirs(folder, samples, device):
    """Logits [samples, vocab] of transformers in fp32 at each last position, and the samples' smallest router gaps."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, device_map=device, attn_implementation="sdpa").eval()
    gaps = []

    def watch_router(gate, inputs, output):
        scores = output[0].float().sigmoid() + (inputs[1] if len(inputs) > 1 and inputs[1] is not None else 0)
        top = scores.topk(model.config.num_experts_per_tok + 1, dim=-1).values
        gaps.append(float((top[:, -2] - top[:, -1]).min()))

    for module in model.modules():
        if hasattr(module, "gate") and hasattr(module, "experts"):
            module.gate.register_forward_hook(watch_router)
    rows, smallest = [], []
    with torch.inference_mode():
        for ids in samples:
            gaps.clear()
            tokens = torch.from_numpy(ids[None].astype(np.int64)).to(device)
            rows.append(model(tokens, use_cache=False, logits_to_keep=1).logits[0, -1].float().cpu().numpy())
            smallest.append(min(gaps, default=1.0))
    return np.stack(rows), np.array(smallest)


def bytes_of_a_token(folder, config):
    """Bytes of the weights that one token meets: of the experts top_k, of an embedding that is not the head one row."""
    total = 0.0
    for file in folder.glob("*.safetensors"):
        with open(file, "rb") as data:
            header = json.loads(data.read(int.from_bytes(data.read(8), "little")))
        for name, tensor in header.items():
            if name == "__metadata__" or name.endswith("embed_tokens.weight") and "lm_head.weight" in header:
                continue
            size = tensor["data_offsets"][1] - tensor["data_offsets"][0]
            total += size * (config["num_experts_per_tok"] / config["num_experts"] if ".experts." in name else 1)
    return total


class Model:
    def __init__(self, args, name):
        self.args, self.name = args, name
        self.folder, self.shards = args.folder / "model", (args.shards or args.folder) / "shards"
        self.remove()

    def remove(self):
        for folder in (self.folder, self.shards):
            shutil.rmtree(folder, ignore_errors=True)

    def tools(self, *arguments):
        subprocess.run([self.args.programs / "weights-tools", *map(str, arguments), "-q"], check=True)

    def run(self, name, *options):
        report, output = self.args.folder / f"{name}.json", self.args.folder / name
        for old in self.args.folder.glob(name + ".*"):
            old.unlink()
        command = [self.args.programs / "lfm2_stage", "--weights", self.shards, "--device", self.args.device, "--quiet", "--report", report, *options]
        if "--output" not in options:
            command += ["--benchmark", "--warmup", "1", "--repeat", "3", "--output", output.with_suffix(".jsonl" if "--max-tokens" in options else ".bin")]
        subprocess.run(list(map(str, command)), check=True)
        return json.loads(report.read_text())

    def difference(self, samples, reference, gaps):
        import h5py

        with h5py.File(self.args.folder / "inputs.h5", "w") as file:
            file["input_ids"], file["offsets"] = np.concatenate(samples), np.cumsum([0] + [len(s) for s in samples])
        output = self.args.folder / "logits.h5"
        self.run("logits", "--dtype", "fp32", "--input", self.args.folder / "inputs.h5", "--output", output)
        with h5py.File(output) as file:
            each = np.abs(file["logits"][:] - reference).max(-1)
        ties = gaps < NEAR_TIE
        return {"difference": float(each[~ties].max(initial=0)), "ties": int(ties.sum()), "largest_logit": float(np.abs(reference).max())}

    def measure(self):
        self.tools("synth", "--config", self.name, "--dtype", "bf16", "--out", self.folder)
        config = json.loads((self.folder / "config.json").read_text())
        read = bytes_of_a_token(self.folder, config)
        rng = np.random.default_rng(20)
        samples = [rng.integers(0, config["vocab_size"], length, dtype=np.int32) for length in LENGTHS]
        compared = not self.args.no_reference
        reference = theirs(self.folder, samples, self.args.device) if compared else None
        self.tools("split", self.folder, "--stages", 1, "--out", self.shards)
        shutil.rmtree(self.folder)
        row = {"model": self.name, "bytes_of_a_token": read}
        if compared:
            row |= self.difference(samples, *reference)
        count = self.args.samples
        scored = self.run("headline", "--samples", count, "--length", 32)
        row |= {"load_seconds": scored["load_seconds"], "samples_per_second": scored["samples_per_second"]}
        for sequences in (1, min(256, count)):
            decoded = self.run(f"d{sequences}", "--samples", sequences, "--length", 32, "--max-tokens", 64, "--ignore-eos")
            row[f"decode_{sequences}"] = decoded["generated_tokens_per_second"]
        return row


def config_of(name):
    path = pathlib.Path(__file__).resolve().parents[2] / "src/stage/model/configs" / f"{name}.json"
    return json.loads((path if path.exists() else pathlib.Path(name)).read_text())


def measure_lengths(args, name):
    """Prints and returns a row for each kind of layer; True where a window costs more after a longer text."""
    config, wrong = config_of(name), False
    kinds = sorted(set(config["layer_types"]))
    print("| eight layers | " + " | ".join(f"after {n}: ms a token | caches, MB" for n in args.lengths) + " |\n|---|" + "---|---|" * len(args.lengths), flush=True)
    for kind in kinds:
        args.folder.joinpath("config.json").write_text(
            json.dumps(config | {"layer_types": [kind] * 8, "num_hidden_layers": 8, "max_position_embeddings": max(args.lengths) + 64}))
        model = Model(args, args.folder / "config.json")
        row = {"model": name, "layers": kind, "lengths": args.lengths, "token_ms": [], "cache_bytes": []}
        try:
            model.tools("synth", "--config", model.name, "--dtype", "bf16", "--out", model.folder)
            model.tools("split", model.folder, "--stages", 1, "--out", model.shards)
            for length in args.lengths:
                report = model.run("length", "--samples", 1, "--length", length, "--max-tokens", 64, "--ignore-eos")
                row["token_ms"].append(1e3 * report["generation"]["next_token_seconds"]["median"])
                row["cache_bytes"].append(report["stages"][0]["cache_bytes"])
        finally:
            model.remove()
        print(f"| {kind} | " + " | ".join(f"{ms:.3f} | {size / 1e6:.2f}" for ms, size in zip(row["token_ms"], row["cache_bytes"])) + " |", flush=True)
        if kind == "sliding_attention":
            wrong |= row["token_ms"][-1] > 1.2 * row["token_ms"][0]
        if args.json:
            with open(args.json, "a") as lines:
                lines.write(json.dumps(row) + "\n")
    return wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("programs", type=pathlib.Path)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--shards", type=pathlib.Path)
    parser.add_argument("--samples", type=int, default=1024, help="of the scoring job, to try the script itself with few")
    parser.add_argument("--no-reference", action="store_true", help="without transformers")
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--lengths", type=int, nargs="+", help="compare kinds of layers after prompts of these lengths instead")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    if args.lengths:
        sys.exit(any([measure_lengths(args, name) for name in args.models]))
    speeds = ceilings(["0"]) if args.device == "cuda" else {}
    copy = float(speeds["0"].split()[1]) * 1e9 if speeds else None
    print(f"ceilings: {speeds.get('0', 'not measured')}\n\n| model | load, s | 1024 x 32, samples/s | decode 1, tokens/s (share of its floor) | 256 | largest difference (largest logit; ties) |\n|---|---|---|---|---|---|", flush=True)
    wrong = False
    for name in args.models:
        model = Model(args, name)
        try:
            row = model.measure()
        finally:
            model.remove()
        few, many = (row[key] for key in row if key.startswith("decode_"))
        share = f" ({100 * few * row['bytes_of_a_token'] / copy:.0f} %)" if copy else ""
        apart = f"{row['difference']:.1e} ({row['largest_logit']:.1f}; {row['ties']})" if "difference" in row else "not compared"
        print(f"| {pathlib.Path(name).name.removesuffix('.json')} | {row['load_seconds']:.2f} | {row['samples_per_second']:.0f} | {few:.0f}{share} | {many:.0f} | {apart} |", flush=True)
        wrong |= row.get("difference", 0) > TOLERANCE * row.get("largest_logit", 0)
        if args.json:
            with open(args.json, "a") as lines:
                lines.write(json.dumps(row) + "\n")
    sys.exit(wrong)


if __name__ == "__main__":
    main()
