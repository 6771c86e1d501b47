#!/usr/bin/env python3
"""tokenizer_speed.py WEIGHTS_TOOLS TOKENIZER_JSON TEXT [--repeat N] [--threads N]: `tokenizers` and `weights-tools tokenize` in turn over the lines of
a file, with one thread and with all (or N), in the same run.

tokenizers (PyPI, 0.23.3) is given all lines in one encode_batch_fast(), and only this call is timed. Ours is the whole process, with reading, writing
the ids as JSON and ending, less what it needs for an empty input. Prints MB/s, the median of N repeats each, and whether the ids are equal.
"""
import argparse, hashlib, json, os, pathlib, statistics, subprocess, sys, time


def theirs(args, threads):
    """Runs tokenizers in a process of its own, because its number of threads is fixed at the first use."""
    environment = dict(os.environ, TOKENIZERS_PARALLELISM="true" if threads > 1 else "false", RAYON_NUM_THREADS=str(threads))
    command = [sys.executable, __file__, args.program, args.tokenizer, str(args.text), "--reference"]
    return json.loads(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout)


def reference(args):
    from tokenizers import Tokenizer
    tokenizer = Tokenizer.from_file(args.tokenizer)
    lines = args.text.read_bytes().decode().split("\n")
    lines = lines[:-1] if not lines[-1] else lines
    begin = time.perf_counter()
    encodings = tokenizer.encode_batch_fast(lines)
    seconds = time.perf_counter() - begin
    digest = hashlib.sha256()
    for encoding in encodings:
        digest.update(json.dumps(encoding.ids, separators=(",", ":")).encode() + b"\n")
    print(json.dumps([seconds, digest.hexdigest(), sum(len(encoding.ids) for encoding in encodings)]))


def ours(args, threads):
    command = [args.program, "tokenize", args.tokenizer, "--threads", str(threads)]
    begin = time.perf_counter()
    subprocess.run(command, stdin=subprocess.DEVNULL, check=True)
    empty = time.perf_counter() - begin
    begin = time.perf_counter()
    with open(args.text, "rb") as text, open(args.output, "wb") as output:
        subprocess.run(command, stdin=text, stdout=output, check=True)
    seconds = time.perf_counter() - begin - empty
    return seconds, hashlib.sha256(pathlib.Path(args.output).read_bytes()).hexdigest()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", metavar="WEIGHTS_TOOLS")
    parser.add_argument("tokenizer", metavar="TOKENIZER_JSON")
    parser.add_argument("text", metavar="TEXT", type=pathlib.Path, help="UTF-8")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--output", default="/dev/shm/tokenizer_speed.jsonl")
    parser.add_argument("--reference", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.reference:
        return reference(args)
    megabytes = args.text.stat().st_size / 1e6
    print(f"{args.text.name}: {megabytes:.1f} MB")
    for threads in sorted({1, args.threads}):
        pairs = [(theirs(args, threads), ours(args, threads)) for _ in range(args.repeat)]
        speeds = [megabytes / statistics.median(pair[side][0] for pair in pairs) for side in (0, 1)]
        same = all(first[1] == second[1] for first, second in pairs)
        print(f"{threads} threads: tokenizers {speeds[0]:.1f} MB/s, weights-tools {speeds[1]:.1f} MB/s: {speeds[1] / speeds[0]:.1f} times; "
              f"{pairs[0][0][2]} ids, {'equal' if same else 'DIFFERENT'}", flush=True)
        if not same:
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
