#!/usr/bin/env python3
"""What fp8 costs: quantises a model by each scheme and choice of modules, and prints a table of what that changes.

    fp8_cost.py BIN MODEL WORK [--only channel-experts,...] [--samples N] [--length N] [--score FILE] [-- OPTIONS]

BIN holds lfm2_stage and weights-tools. MODEL is a checkpoint, or lfm2-8b-a1b, lfm2-350m or lfm2-tiny with random weights. WORK is an
empty folder: three times the bf16 model fits. OPTIONS go to every run of lfm2_stage.

Mean KL divergence and top-1 agreement are those of all positions of random samples, against the same model with --dtype fp32. With
--score, perplexity by token is that of the texts of FILE. "weights only" is --dtype bf16 of the same shards.
"""
import argparse
import json
import pathlib
import shutil
import subprocess
import sys

BUILT_IN = ("lfm2-8b-a1b", "lfm2-350m", "lfm2-tiny")
KINDS = [(scheme, modules) for scheme in ("channel", "block") for modules in ("experts", "all")]


class Bench:
    def __init__(self, arguments, options):
        self.arguments, self.options = arguments, options
        self.work = arguments.work

    def tools(self, *words):
        subprocess.run([self.arguments.bin / "weights-tools", *words, "--quiet"], check=True)

    def split(self, model, out):
        """Splits a model for one rank, and removes it if it lies in the work folder."""
        self.tools("split", model, "--stages", "1", "--out", out)
        if model.parent == self.work:
            shutil.rmtree(model)

    def run(self, shards, dtype, *words):
        report = self.work / "report.json"
        subprocess.run([self.arguments.bin / "lfm2_stage", "--weights", shards, "--dtype", dtype, "--report", report, "--quiet", *words,
                        *self.options], check=True)
        return json.loads(report.read_text())

    def logits(self, shards, dtype, *words):
        arguments = self.arguments
        return self.run(shards, dtype, "--samples", str(arguments.samples), "--length", str(arguments.length), "--logits", "all", *words)

    def row(self, shards, dtype):
        """What a table shows of one way to compute."""
        verdict = self.logits(shards, dtype, "--reference", self.work / "reference.h5", "--tolerance", "1e30")["validation"]
        cells = [f"{verdict['mean_kl_divergence']:.3g}", f"{100 * verdict['top1_equal'] / verdict['rows']:.1f} %"]
        if self.arguments.score:
            scores = self.run(shards, dtype, "--input", self.arguments.score, "--score")["scores"]
            value = scores["perplexity"]["token"]["value"]
            self.first = getattr(self, "first", value)
            cells.append(f"{value:.4f} ({100 * (value / self.first - 1):+.2f} %)")
        return cells


def main():
    words = sys.argv[1:]
    split_at = words.index("--") if "--" in words else len(words)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bin", type=pathlib.Path)
    parser.add_argument("model")
    parser.add_argument("work", type=pathlib.Path)
    parser.add_argument("--only", default=",".join("-".join(kind) for kind in KINDS))
    parser.add_argument("--samples", type=int, default=32)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--score", type=pathlib.Path)
    arguments = parser.parse_args(words[:split_at])
    bench = Bench(arguments, words[split_at + 1:])
    work = arguments.work
    work.mkdir(parents=True, exist_ok=True)
    model = pathlib.Path(arguments.model)
    if arguments.model in BUILT_IN:
        model = work / "model"
        bench.tools("synth", "--config", arguments.model, "--out", model)
    bench.split(model, work / "bf16")
    bench.logits(work / "bf16", "fp32", "--output", work / "reference.h5")
    print("| weights | computed in | mean KL divergence | top-1 agreement |" + (" perplexity |" if arguments.score else ""))
    print("|---|---|---|---|" + ("---|" if arguments.score else ""), flush=True)

    def print_row(weights, computed, shards, dtype):
        print("| " + " | ".join([weights, computed, *bench.row(shards, dtype)]) + " |", flush=True)

    print_row("bf16", "bf16", work / "bf16", "bf16")
    for kind in arguments.only.split(","):
        scheme, modules = kind.split("-")
        bench.tools("quantize", work / "bf16", "--to", "fp8", "--scheme", scheme, "--modules", modules, "--out", work / "quantised")
        bench.split(work / "quantised", work / "fp8")
        print_row(f"fp8 {scheme}, {modules}", "fp8", work / "fp8", "fp8")
        print_row("", "bf16 (weights only)", work / "fp8", "bf16")
        shutil.rmtree(work / "fp8")
    shutil.rmtree(work / "bf16")
    (work / "reference.h5").unlink()


if __name__ == "__main__":
    main()
