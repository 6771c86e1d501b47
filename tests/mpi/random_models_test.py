#!/usr/bin/env python3
"""Small random models of many kinds through weights-tools and lfm2_stage, against an fp64 computation in NumPy.

    random_models_test.py LFM2_STAGE WEIGHTS_TOOLS MPIRUN [--models 20] [--first 0]

For each model: split, verify, merge; logits of all positions by 1, 2 and 3 ranks, whose output files must be equal byte for byte; no logit
may differ from fp64 by more than three times what NumPy's own fp32 does. The same for scores of the samples' own tokens, with perplexity as
NumPy computes it from them. Where 8 does not divide a feed-forward's columns, the same model with zeros up to the next multiple must give
the same bits. With keys and values in fp8 the logits are those of the same rounding in fp64, wherever fp32 cannot round otherwise.
LFM2_TEST_MACHINE ("--device cuda --transport mpi") replaces --device cpu.
Exit code 77: skipped, with the reason.
"""
import argparse
import concurrent.futures
import json
import os
import pathlib
import subprocess
import sys
import tempfile

try:
    import h5py
    import numpy as np
except ImportError as error:
    print(f"skipped: {error} (Debian: python3-numpy python3-h5py)")
    sys.exit(77)

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "reference"))
import lfm2_numpy  # noqa: E402
from random_models import RandomModel  # noqa: E402

MACHINE = os.environ.get("LFM2_TEST_MACHINE", "--device cpu --threads 1").split()
OWN_GPU = [pathlib.Path(__file__).parent.parent / "support" / "own_gpu.sh"] if "LFM2_TEST_GPUS" in os.environ else []
ENVIRONMENT = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
if "LFM2_TEST_MACHINE" not in os.environ:  # as tests/support/program.cpp
    ENVIRONMENT.update(OMPI_MCA_pml="ob1", OMPI_MCA_btl="self,vader")
JOBS = 3  # models at a time; most of a run is waiting for the launcher


class Failure(Exception):
    pass


def run(*command):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=120, env=ENVIRONMENT)
    if done.returncode != 0:
        raise Failure(f"{' '.join(map(str, command))}: exit code {done.returncode}\n{done.stderr[-2000:]}")
    return done.stdout


def read_safetensors(path):
    """{name: (dtype, shape, bytes)}."""
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    header.pop("__metadata__", None)
    return {name: (entry["dtype"], entry["shape"], data[8 + length + entry["data_offsets"][0] : 8 + length + entry["data_offsets"][1]])
            for name, entry in header.items()}


class Programs:
    def __init__(self, args, folder):
        self.args, self.folder = args, folder

    def tools(self, *command):
        return run(self.args.tools, *command)

    def stage(self, ranks, *options):
        launcher = [self.args.mpirun, "--oversubscribe", "--bind-to", "none", "-np", ranks, *OWN_GPU] if ranks > 1 else []
        return run(*launcher, self.args.stage, *MACHINE, *options)

    def shards(self, name, config, tensors, bf16, stages):
        """Splits the model; returns the checkpoint's folder and the shards'."""
        model, shards = self.folder / name, self.folder / f"{name}-shards"
        model.mkdir()
        (model / "config.json").write_text(json.dumps(config))
        lfm2_numpy.write_safetensors(model / "model.safetensors", tensors, bf16)
        self.tools("split", model, "--stages", stages, "--out", shards, "-q")
        return model, shards

    def logits(self, shards, samples, ranks, *options):
        """The output file's bytes, and its logits [tokens, vocab]."""
        lines, output = self.folder / "samples.jsonl", self.folder / f"{shards.name}-{ranks}.h5"
        lines.write_text("".join(json.dumps({"input_ids": ids}) + "\n" for ids in samples))
        self.stage(ranks, "--weights", shards, "--input", lines, "--dtype", "fp32", "--logits", "all", "--micro-batch", "2",
            "--output", output, "--quiet", *options)
        with h5py.File(output) as file:
            return output.read_bytes(), file["logits"][:]

    def ids(self, shards, samples, ids):
        """The ids of an output, from an input that h5py writes with `ids`."""
        source, output = self.folder / "ids.h5", self.folder / "ids-out.h5"
        with h5py.File(source, "w") as file:
            file["input_ids"] = np.concatenate(samples)
            file["offsets"] = np.cumsum([0] + [len(sample) for sample in samples])
            file["ids"] = ids
        self.stage(2, "--weights", shards, "--input", source, "--output", output, "--quiet")
        with h5py.File(output) as file:
            return list(file["ids"].asstr()[:])

    def scores(self, shards, samples, ranks):
        """The output file's bytes, the log-probabilities of all tokens but the first of each sample, and the report's figures."""
        lines, name = self.folder / "scored.jsonl", self.folder / f"{shards.name}-scores-{ranks}"
        lines.write_text("".join(json.dumps({"input_ids": ids}) + "\n" for ids in samples))
        self.stage(ranks, "--weights", shards, "--input", lines, "--dtype", "fp32", "--score", "--micro-batch", "3",
            "--output", f"{name}.jsonl", "--report", f"{name}.json", "--quiet")
        text = pathlib.Path(f"{name}.jsonl").read_bytes()
        found = [value for line in text.splitlines() for value in json.loads(line)["logprobs"]]
        return text, np.array(found, np.float32).astype(np.float64), json.loads(pathlib.Path(f"{name}.json").read_text())["scores"]


def check_scores(programs, shards, made, plain):
    """--score against the log-softmax of the fp64 logits, whose error is at most twice that of the logits; perplexity against NumPy."""
    expected, samples, begin = [], [], 0
    for ids in made.samples:
        rows = made.exact[begin : begin + len(ids) - 1]
        begin += len(ids)
        if len(ids) < 2:
            continue
        samples.append(ids)
        largest = rows.max(axis=1, keepdims=True)
        log_sums = largest[:, 0] + np.log(np.exp(rows - largest).sum(axis=1))
        expected.extend(rows[np.arange(len(rows)), ids[1:]] - log_sums)
    text, found, report = programs.scores(shards, samples, 1)
    if len(found) != len(expected):
        raise Failure(f"{len(found)} scores, expected {len(expected)}")
    error = np.abs(found - expected).max()
    if not error <= 6 * plain:
        raise Failure(f"a log-probability differs by {error:.2e}, expected at most 6 x {plain:.2e}")
    perplexity = np.exp(-found.mean())
    numpy = {"value": perplexity, "standard_error": perplexity * found.std(ddof=1) / np.sqrt(len(found))}
    for name, value in numpy.items():
        if not abs(report["perplexity"]["token"][name] / value - 1) <= 1e-8:
            raise Failure(f"perplexity: {name} is {report['perplexity']['token'][name]}, NumPy's is {value}")
    if programs.scores(shards, samples, 3)[::2] != (text, report):
        raise Failure("3 ranks give other scores than one")
    return error


def check_fp8_cache(programs, shards, made, plain):
    model = lfm2_numpy.Model(made.config, made.tensors, np.float64, fp8_cache=True)
    rows, stable = [], []
    for ids in made.samples:
        rows.append(model.forward(ids))
        stable.append(model.stable)
    expected, stable = np.concatenate(rows), np.concatenate(stable)
    if not stable.any() or not np.abs(expected - made.exact)[stable].max() > 3 * plain:
        raise Failure("no token tells whether keys and values are rounded")
    first, logits = programs.logits(shards, made.samples, 1, "--cache-dtype", "fp8")
    error = np.abs(logits - expected)[stable].max()
    if not error <= 3 * plain:
        raise Failure(f"with keys and values in fp8 a logit differs by {error:.2e}, expected at most 3 x {plain:.2e}")
    if programs.logits(shards, made.samples, 3, "--cache-dtype", "fp8")[0] != first:
        raise Failure("with keys and values in fp8 3 ranks write another file than one")
    return error


def check_ids(programs, shards, samples):
    texts = ["", *(f"é {i}" for i in range(1, len(samples)))]
    for ids in (texts, [text.encode() for text in texts], np.arange(len(samples), dtype=np.uint64) + 2**63):
        expected = texts if isinstance(ids, list) else [str(number) for number in ids]
        if (found := programs.ids(shards, samples, ids)) != expected:
            raise Failure(f"the ids are {found}, expected {expected}")


def check_files(programs, model, shards):
    """What the other commands of weights-tools make of the model."""
    programs.tools("verify", shards, "--against", model, "-q")
    merged = programs.folder / "merged"
    programs.tools("merge", shards, "--out", merged, "-q")
    tensors = read_safetensors(model / "model.safetensors")
    if read_safetensors(merged / "model.safetensors") != tensors:
        raise Failure("merge: other tensors than were split")
    shapes = {name: shape for name, (_, shape, _) in tensors.items()}
    if {entry["name"]: entry["shape"] for entry in json.loads(programs.tools("inspect", model, "--json"))["tensors"]} != shapes:
        raise Failure("inspect: other tensors than the model's")
    programs.tools("plan", shards, "--stages", "2")
    synthetic = programs.folder / "synthetic"
    programs.tools("synth", "--config", model / "config.json", "--dtype", "fp32", "--out", synthetic, "-q")
    if {name: shape for name, (_, shape, _) in read_safetensors(synthetic / "model.safetensors").items()} != shapes:
        raise Failure("synth: other tensors than the model's")


def check(number, args):
    """Returns the largest error over that of NumPy's fp32, and the largest error of a log-probability."""
    made = RandomModel(number)
    with tempfile.TemporaryDirectory(prefix="lfm2-random-") as name:
        programs = Programs(args, pathlib.Path(name))
        model, shards = programs.shards("model", made.config, made.tensors, made.bf16, 3)
        check_files(programs, model, shards)
        first, logits = programs.logits(shards, made.samples, 1)
        if logits.shape != made.exact.shape or logits.dtype != np.float32:
            raise Failure(f"logits {logits.dtype} {logits.shape}, expected float32 {made.exact.shape}")
        errors, plain = np.abs(logits - made.exact), np.abs(made.plain - made.exact).max()
        worst = np.unravel_index(np.argmax(errors), errors.shape)
        ratio = errors[worst] / plain
        if not ratio <= 3:
            raise Failure(f"token {worst[0]}, logit {worst[1]}: {logits[worst]}, expected {made.exact[worst]} within 3 x {plain:.2e}")
        for ranks in (2, 3):
            if programs.logits(shards, made.samples, ranks)[0] != first:
                raise Failure(f"{ranks} ranks write another file than one")
        score_error = check_scores(programs, shards, made, plain)
        ratio = max(ratio, check_fp8_cache(programs, shards, made, plain) / plain)
        if number % 10 == 0:
            check_ids(programs, shards, made.samples)
        if any(columns % 8 for columns in made.feed_forwards()):
            _, padded = programs.shards("padded", *made.padded(), made.bf16, 1)
            if programs.logits(padded, made.samples, 1)[1].tobytes() != logits.tobytes():
                raise Failure("other bits than with the zeros in the file")
        return ratio, score_error


def expect_many_kinds(models):
    """The models of a run cover what they are there for."""
    def values(key):
        return {model.config.get(key) for model in models}

    kinds = {
        "all classes": len(values("model_type")) == 3,
        "numbers of taps": {lfm2_numpy.conv_length(model.config) for model in models} >= {2, 3, 4, 5, 7},
        "windows": len(values("sliding_window")) >= 4,
        "without gates and norms": values("use_attention_gate") >= {False, True} and values("use_sandwich_norm") >= {False, True},
        "biases of attention": values("attention_bias") >= {False, True},
        "with and without biases": values("conv_bias") == {False, True},
        "tied and untied": {lfm2_numpy.is_tied(model.config) for model in models} == {False, True},
        "expert biases": values("use_expert_bias") >= {False, True},
        "weights not normalised": values("norm_topk_prob") >= {False, True},
        "scaled weights": 2.5 in values("routed_scaling_factor"),
        "bf16 and fp32": {bool(model.bf16) for model in models} == {False, True},
        "odd feed-forwards": sum(any(columns % 8 for columns in model.feed_forwards()) for model in models) >= len(models) / 4,
        "head sizes": len({lfm2_numpy.head_dim(model.config) for model in models}) >= 4,
        "query heads of a key head": len({model.config["num_attention_heads"] // model.config["num_key_value_heads"] for model in models}) >= 4,
        "bases": len({lfm2_numpy.rope_theta(model.config) for model in models if not lfm2_numpy.is_lfm3(model.config)}) >= 3,
    }
    missing = [kind for kind, there in kinds.items() if not there]
    if missing:
        raise Failure(f"the models do not cover: {', '.join(missing)}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("stage")
    parser.add_argument("tools")
    parser.add_argument("mpirun")
    parser.add_argument("--models", type=int, default=20)
    parser.add_argument("--first", type=int, default=0)
    args = parser.parse_args()
    numbers = range(args.first, args.first + args.models)
    if args.models >= 20:
        expect_many_kinds([RandomModel(number) for number in numbers])

    def outcome(number):
        try:
            return check(number, args)
        except (Failure, subprocess.TimeoutExpired) as failure:
            return f"FAILED: {failure}\n  {json.dumps(RandomModel(number).config)}"

    failures, worst, worst_score = 0, 0.0, 0.0
    with concurrent.futures.ThreadPoolExecutor(JOBS) as pool:
        for number, found in zip(numbers, pool.map(outcome, numbers)):
            failed = isinstance(found, str)
            failures += failed
            if not failed:
                ratio, score_error = found
                worst, worst_score = max(worst, ratio), max(worst_score, score_error)
                found = f"error {ratio:.2f} times that of fp32 in NumPy, of scores {score_error:.1e}"
            print(f"model {number}: {found}", flush=True)
    print(f"{args.models} models, {failures} failed, largest error {worst:.2f} times that of fp32 in NumPy, of a score {worst_score:.1e}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
