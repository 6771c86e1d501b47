#!/usr/bin/env python3
"""The tables of results in docs/performance.md, made from tests/bench/baselines/MACHINE/current.jsonl.

    results_table.py                                    # prints the tables
    results_table.py --check docs/performance.md        # ends with 1 where the page differs from the files
    results_table.py --write docs/performance.md        # puts the tables into the page
    results_table.py --merge MACHINE COMMIT NEW.jsonl   # takes new lines of gpu_jobs.py, cpu_peers.py --json or a bench into MACHINE's file

Each line of a file is one measurement and has the commit that was measured. --merge replaces lines of the same name and keeps the others;
NEW.jsonl has one line for each name.
"""
import argparse
import json
import pathlib
import re
import statistics
import sys

BASELINES = pathlib.Path(__file__).resolve().parent / "baselines"
BEGIN, END = "<!-- made by tests/bench/results_table.py -->", "<!-- end of what results_table.py made -->"

# Heading, folder, number of GPUs.
GPUS = [("1 H200", "h200", 1), ("2 H200", "h200x2", 2), ("4 H200", "h200x4", 4)]
# Heading, folder, --simd.
CPUS = [("16 cores, AMX", "cpu-16-amx", "auto"), ("2 cores, AVX-512", "cpu-2-avx512", "auto"),
        ("the same, AVX2", "cpu-2-avx512", "avx2"), ("2 cores, AVX2", "cpu-2-avx2", "auto")]
# What a row says, and the names of its job; of several names the first one that a machine has counts.
GPU_ROWS = [
    ("1024 x 32, samples/s", ["headline stages chosen", "headline"]),
    ("the same, peer copies", ["headline peer copies"]),
    ("the same, `--replicas`: a whole model a GPU", ["headline a pipeline a GPU"]),
    ("65 536 x 32 (one GPU: 16 384 x 32), samples/s", ["65536x32 stages chosen", "16384x32"]),
    ("the same, peer copies", ["65536x32 peer copies"]),
    ("1024 x 32, all positions, samples/s", ["1024x32 all positions"]),
    ("1024 x 32, fp32, weights are bf16 values", ["headline-fp32 stages chosen", "headline-fp32"]),
    ("1024 x 32, fp32, weights are fp32 values", ["headline-fp32-general stages chosen", "headline-fp32-general"]),
    ("8 x 2048, tokens/s", ["8x2048 stages chosen"]),
    ("64 x 2048, tokens/s", ["64x2048 stages chosen", "64x2048"]),
    ("32 x 8192, tokens/s", ["32x8192 stages chosen", "32x8192"]),
    ("1 x 65 536, tokens/s", ["1x65536 stages chosen", "1x65536"]),
    ("decode, 1 sequence, new tokens/s", ["d1"]),
    ("decode, 8 sequences", ["d8"]),
    ("decode, 32 sequences", ["d32"]),
    ("decode, 256 sequences", ["d256"]),
    ("decode, 1024 sequences", ["d1024"]),
    ("decode, 4096 sequences", ["d4096"]),
    ("decode, 1024 sequences, `--replicas`", ["d1024 a pipeline a GPU"]),
    ("32 prompts of 8192, 2048 new tokens each", ["long"]),
]
CPU_ROWS = [
    ("LFM2-350M, prompt of 512, bf16", "lfm2-350m prompt-bf16 1"),
    ("LFM2-350M, prompt of 512, fp32", "lfm2-350m prompt-fp32 1"),
    ("LFM2-350M, 16 x 32, bf16", "lfm2-350m batch-bf16 1"),
    ("LFM2-350M, 16 x 32, fp32", "lfm2-350m batch-fp32 1"),
    ("LFM2-350M, decode, bf16", "lfm2-350m decode-bf16 1"),
    ("LFM2-350M, decode, fp32", "lfm2-350m decode-fp32 1"),
    ("LFM2-350M, decode 8, bf16", "lfm2-350m decode8-bf16 1"),
    ("LFM2-8B-A1B, 4 ranks, prompt of 512, bf16", "lfm2-8b-a1b prompt-bf16 4"),
    ("LFM2-8B-A1B, 4 ranks, decode, bf16", "lfm2-8b-a1b decode-bf16 4"),
]
# Ceilings of LFM2-8B-A1B in bf16. Products of a token of a sample of 32: twice the weights that it meets.
FLOPS_A_TOKEN, SHORT_JOBS = 2.855e9, ("headline", "65536x32", "16384x32")
# New tokens/s if a step took as long as reading its weights once, at a copy speed of 4256 GB/s: docs/lab/h200.md.
DECODE_FLOOR = {"d1": 1310, "d8": 2880, "d32": 7900, "d256": 62000, "d1024": 130000}


def key(line):
    """What names a measurement; lines of one name replace each other."""
    if "line" in line:
        return f"{line['config']} {line['line']} {line['ranks']}x{line['rank_threads']} {line['simd']}"
    return line.get("job") or line["bench"]


def read(path):
    lines = []
    for number, text in enumerate(path.read_text().splitlines(), 1):
        line = json.loads(text)
        if not re.fullmatch(r"[0-9a-f]{7,40}", line.get("commit", "")):
            sys.exit(f"{path}:{number}: commit is {line.get('commit')!r}, expected that of the program that was measured")
        lines.append(line)
    names = [key(line) for line in lines]
    if twice := {name for name in names if names.count(name) > 1}:
        sys.exit(f"{path}: has {', '.join(sorted(twice))} more than once, expected one line of each name")
    return lines


def number(value):
    digits = 0 if value >= 1000 else 1 if value < 100 else 0
    return f"{value:,.{digits}f}".replace(",", " ")


def share(line, gpus):
    """Of the ceiling that page and file have for this job, as text with a comma, or nothing."""
    job = line["job"]
    if job.startswith(SHORT_JOBS) and "fp32" not in job and "cublas_tflops" in line:
        return f"{100 * line['speed'] * 32 * FLOPS_A_TOKEN / (gpus * line['cublas_tflops'] * 1e12):.0f} %, "
    if gpus == 1 and job in DECODE_FLOOR:
        return f"{100 * line['speed'] / DECODE_FLOOR[job]:.0f} %, "
    return ""


def table(head, rows):
    return "\n".join([f"| {' | '.join(head)} |", f"|{'---|' * len(head)}", *(f"| {' | '.join(row)} |" for row in rows)])


def tables():
    machines = {folder: {key(line): line for line in read(BASELINES / folder / "current.jsonl")}
                for folder in sorted({folder for _, folder, _ in GPUS + CPUS})}
    rows = []
    for text, jobs in GPU_ROWS:
        cells = []
        for _, folder, gpus in GPUS:
            line = next((machines[folder][job] for job in jobs if job in machines[folder]), None)
            cells.append(f"{number(line['speed'])} ({share(line, gpus)}{line['commit']})" if line else "")
        rows.append([text, *cells])
    gpu = table(["LFM2-8B-A1B, bf16", *(heading for heading, _, _ in GPUS)], rows)
    rows = []
    for text, name in CPU_ROWS:
        cells = []
        for _, folder, simd in CPUS:
            line = next((line for found, line in machines[folder].items() if found.startswith(name + "x") and found.endswith(" " + simd)), None)
            cells.append(f"{number(statistics.median(line['ours']))}, {line['ratio']:.2f} ({line['commit']})" if line else "")
        rows.append([text, *cells])
    cpu = table(["tokens/s", *(heading for heading, _, _ in CPUS)], rows)
    return f"{BEGIN}\n{gpu}\n\n{cpu}\n{END}"


def split(page):
    text = page.read_text()
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(BEGIN) > text.index(END):
        sys.exit(f"{page}: expected one '{BEGIN}' and after it one '{END}'")
    begin, end = text.index(BEGIN), text.index(END) + len(END)
    return text[:begin], text[begin:end], text[end:]


def check(page):
    before, found, _ = split(page)
    found, expected = found.split("\n"), tables().split("\n")
    for offset in range(max(len(found), len(expected))):
        here, there = (lines[offset] if offset < len(lines) else "nothing" for lines in (found, expected))
        if here != there:
            sys.exit(f"{page}:{before.count(chr(10)) + 1 + offset}: found '{here}', expected '{there}' of tests/bench/baselines; "
                     f"tests/bench/results_table.py --write {page} puts it right")


def merge(machine, commit, new):
    path = BASELINES / machine / "current.jsonl"
    added = {}
    for text in pathlib.Path(new).read_text().splitlines():
        line = json.loads(text) | {"commit": commit}
        line.pop("llama_tried", None)
        line.pop("system_info", None)
        if key(line) in added:
            sys.exit(f"{new}: two lines of {key(line)}, expected one: the median of the rounds of one program")
        added[key(line)] = line
    lines = {key(line): line for line in (read(path) if path.exists() else [])} | added
    path.parent.mkdir(exist_ok=True)
    beside = path.with_suffix(".new")
    beside.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines.values()))
    try:
        read(beside)  # refuses a commit that is none
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", metavar="PAGE", type=pathlib.Path)
    parser.add_argument("--write", metavar="PAGE", type=pathlib.Path)
    parser.add_argument("--merge", nargs=3, metavar=("MACHINE", "COMMIT", "NEW.jsonl"))
    options = parser.parse_args()
    if options.merge:
        merge(*options.merge)
    if options.write:
        before, _, after = split(options.write)
        options.write.write_text(before + tables() + after)
    if options.check:
        check(options.check)
    if not (options.merge or options.write or options.check):
        print(tables())


if __name__ == "__main__":
    main()
