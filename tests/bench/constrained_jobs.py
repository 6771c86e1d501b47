#!/usr/bin/env python3
"""What constraints cost a generation: the same prompts with and without JSON schemas, in turn.

    constrained_jobs.py PROGRAM SHARDS [--sequences N,...] [--tokens N] [--rounds N] [--options '...']

SHARDS have a tokenizer. The answers are arrays of objects under 32 schemas that differ in their keys, types and bounds; none of them ends before --tokens
(256). Prints for each number of sequences (256,1) the median tokens/s of both jobs in --rounds (3), and their ratio. Ends with 1 where a job fails,
or its hash differs between rounds.
"""
import argparse, json, pathlib, random, shlex, statistics, subprocess, sys, tempfile

WORDS = "the of a river answer number tree market summer letter house science".split()
NAMES = ["id", "title", "amount", "state", "created", "note"]


def leaf(i):
    return [{"type": "string", "maxLength": 12}, {"type": "integer", "minimum": i, "maximum": 10 ** (3 + i % 9)}, {"enum": ["red", "green", i, None]},
            {"type": "number", "minimum": -i, "maximum": i + 0.5}, {"type": "string", "pattern": "^[A-Z][a-z]{2,8}-[0-9]{%d}$" % (1 + i % 4)}, {"type": "boolean"},
            {"type": "string", "format": "date-time"}, {"anyOf": [{"type": "null"}, {"type": "string", "maxLength": 5}]}][i % 8]


def schema(number):
    properties = {f"{name}_{number}": leaf(number + i) for i, name in enumerate(NAMES[: 3 + number % 4])}
    item = {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}
    return {"type": "array", "minItems": 300, "items": {"$ref": "#/$defs/item"}, "$defs": {"item": item}}


def write_lines(path, sequences, tokens, constrained):
    generator = random.Random(7)
    with open(path, "w") as file:
        for i in range(sequences):
            line = {"prompt": " ".join(generator.choice(WORDS) for _ in range(30)), "seed": i, "temperature": 0.8, "max_tokens": tokens}
            if constrained:
                line["structured_outputs"] = {"json": schema(i % 32), "disable_any_whitespace": True}
            file.write(json.dumps(line) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("shards")
    parser.add_argument("--sequences", default="256,1")
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--options", default="")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        for sequences in map(int, args.sequences.split(",")):
            speeds, hashes = {"free": [], "constrained": []}, {"free": set(), "constrained": set()}
            for job in speeds:
                write_lines(folder / f"{job}.jsonl", sequences, args.tokens, job == "constrained")
            for _ in range(args.rounds):
                for job in speeds:
                    run = subprocess.run([args.program, "--weights", args.shards, "--input", folder / f"{job}.jsonl", "--output", folder / "out.jsonl", "--ignore-eos",
                                          "--report", folder / "report.json", "--quiet", *shlex.split(args.options)], capture_output=True, text=True)
                    if run.returncode != 0:
                        sys.exit(f"constrained_jobs.py: {job}, {sequences} sequences: {run.stderr.strip()}")
                    report = json.loads((folder / "report.json").read_text())
                    speeds[job].append(report["generated_tokens_per_second"])
                    hashes[job].add(report["results_xxh3"])
                    (folder / "out.jsonl").unlink()
            if any(len(one) > 1 for one in hashes.values()):
                sys.exit(f"constrained_jobs.py: {sequences} sequences: other bytes in another round")
            free, constrained = (statistics.median(speeds[job]) for job in ("free", "constrained"))
            print(f"{sequences:>5} sequences: {free:9.1f} tokens/s, constrained {constrained:9.1f}, {constrained / free:.3f}", flush=True)


if __name__ == "__main__":
    main()
