#!/usr/bin/env python3
"""The predictions of `weights-tools plan --machine` beside measured times, job by job, on the machine at hand.

    plan_check.py PROGRAMS SHARDS FOLDER [--ranks 1,2,4,8] [--device cpu|cuda] [--machine FILE.json] [--repeat 3] [--only TEXT,...]
                  [--scale X] [--search] [--median 5] [--worst 10]

PROGRAMS holds lfm2_stage and weights-tools. FOLDER gets machine.json, which `doctor --save` on the largest number of ranks writes unless
--machine names one, and checks.jsonl, a line for each job. The jobs are scoring and generation for each number of ranks: equal and balanced
cuts, interleaved stages, replicas, given and chosen micro-batches, short and long samples. Each is predicted, then runs once to warm up and
--repeat times; the median counts. --scale multiplies the numbers of samples. --only names jobs by parts of their names.

--search runs, for each number of ranks, all layouts and several micro-batches of one scoring job, and compares the layout that plan calls best
with the fastest.

Prints a line for each job, then the median and the worst error. Ends with 1 if the median is above --median percent, the worst above --worst,
the layout of plan takes over 5 % longer than the fastest one, or a job fails.
"""
import argparse, json, os, pathlib, statistics, subprocess, sys

LAUNCHER = pathlib.Path(__file__).resolve().parents[2] / "launch" / "run.sh"


def jobs(ranks, device, scale):
    """(name, options) of the jobs on a number of ranks. Lengths are those that doctor times, and one between."""
    gpu = device == "cuda"
    short, few, many = (int(count * scale) for count in ((1024, 64, 256) if gpu else (96, 8, 32)))
    long = 2048 if gpu else 512
    def scoring(name, samples, length, more=""):
        return name, f"--samples {max(1, samples)} --length {length} {more}".split()
    def decoding(name, sequences, length, new, more=""):
        return name, f"--samples {max(1, sequences)} --length {length} --max-tokens {new} {more}".split()
    found = [scoring("short", short, 32), scoring("long", few, long), scoring("all positions", short // 4, 32, "--logits all"),
             scoring("between", short // 2, 128), scoring("micro-batch", short, 32, f"--micro-batch {max(1, short // 12)}"),
             decoding("decode 1", 1, 32, 64), decoding("decode 8", 8, 32, 64), decoding("decode many", many, 32, 64),
             decoding("prompts", few, long, 8)]
    if ranks > 1:
        found += [scoring("short, pieces", short, 32, "--virtual-stages 0"), scoring("short, balanced", short, 32, "--balance"),
                  scoring("short, replicas", short, 32, f"--replicas {ranks}"), scoring("long, balanced", few, long, "--balance"),
                  scoring("small micro-batch", short, 32, "--micro-batch 2"), decoding("decode 8, balanced", 8, 32, 64, "--balance"),
                  decoding("decode many, replicas", many, 32, 64, f"--replicas {ranks}")]
    return found


def layouts(ranks):
    """The options of the exhaustive search."""
    for replicas in (one for one in range(1, ranks + 1) if ranks % one == 0):
        shape = ["--replicas", str(replicas)]
        stages = ranks // replicas
        cuts = [[]] if stages == 1 else [[], ["--balance"], ["--virtual-stages", "2"], ["--virtual-stages", "0"]]
        for cut in cuts:
            for micro_batch in (0, 1, 2, 4, 8, 16, 32, 64, 128):
                yield [*shape, *cut, "--micro-batch", str(micro_batch)]


class Checker:
    def __init__(self, options):
        self.options = options
        (options.folder / "checks.jsonl").unlink(missing_ok=True)
        self.machine = pathlib.Path(options.machine) if options.machine else options.folder / "machine.json"

    def output_of(self, command):
        done = subprocess.run([str(word) for word in command], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              env=dict(os.environ, LFM2_STAGE=str(self.options.programs / "lfm2_stage")))
        if done.returncode:
            sys.exit(f"{' '.join(map(str, command))} ended with {done.returncode}: {done.stdout[-1500:]}{done.stderr[-1500:]}")
        return done.stdout

    def save_costs(self):
        if self.options.machine:
            return
        self.output_of([LAUNCHER, "-n", max(self.options.ranks), "doctor", "--weights", self.options.shards, "--device", self.options.device,
                        "--save", self.machine])

    def predicted(self, ranks, words):
        text = self.output_of([self.options.programs / "weights-tools", "plan", self.options.shards, "--machine", self.machine, "--ranks", ranks,
                               "--json", *words])
        return json.loads(text)[0]

    def measured(self, ranks, words):
        report = self.options.folder / "report.json"
        generates = ["--ignore-eos"] if "--max-tokens" in words else []
        self.output_of([LAUNCHER, "-n", ranks, "--weights", self.options.shards, "--device", self.options.device, "--quiet", "--benchmark",
                        "--warmup", 1, "--repeat", self.options.repeat, "--report", report, *words, *generates])
        return statistics.median(json.loads(report.read_text())["seconds"])

    def note(self, line):
        with open(self.options.folder / "checks.jsonl", "a") as file:
            file.write(json.dumps(line) + "\n")

    def check(self, ranks, name, words):
        plan = self.predicted(ranks, words)["given"]
        seconds = self.measured(ranks, words)
        error = 100 * (plan["seconds"] / seconds - 1)
        self.note({"ranks": ranks, "job": name, "options": " ".join(words), "predicted": plan["seconds"], "measured": seconds, "error_percent": error})
        print(f"{ranks:>3} ranks  {name:<22} predicted {plan['seconds']:9.4f} s  measured {seconds:9.4f} s  {error:+6.1f} %", flush=True)
        return abs(error)

    def search(self, ranks):
        words = jobs(ranks, self.options.device, self.options.scale)[0][1]
        best = self.predicted(ranks, words)["layouts"][0]
        chosen = [] if best["options"] == "none" else best["options"].split()
        seconds = self.measured(ranks, words + chosen)
        found = {" ".join(layout): self.measured(ranks, words + layout) for layout in layouts(ranks)}
        fastest = min(found, key=found.get)
        ratio = seconds / min(seconds, found[fastest])
        self.note({"ranks": ranks, "search": found, "chosen": best["options"], "seconds": seconds, "ratio": ratio})
        print(f"{ranks:>3} ranks  plan chooses {best['options']}: {seconds:.4f} s, {ratio:.3f} of the fastest ({fastest}: {found[fastest]:.4f} s)", flush=True)
        return ratio


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("programs", type=pathlib.Path)
    parser.add_argument("shards", type=pathlib.Path)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--ranks", default="1,2", type=lambda text: [int(word) for word in text.split(",")])
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--machine")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--only", default="")
    parser.add_argument("--scale", type=float, default=1)
    parser.add_argument("--search", action="store_true")
    parser.add_argument("--median", type=float, default=5)
    parser.add_argument("--worst", type=float, default=10)
    options = parser.parse_args()
    options.programs = options.programs.resolve()
    options.folder.mkdir(parents=True, exist_ok=True)
    checker = Checker(options)
    checker.save_costs()
    wanted = [part for part in options.only.split(",") if part]
    errors, ratios = [], []
    for ranks in options.ranks:
        for name, words in jobs(ranks, options.device, options.scale):
            if not wanted or any(part in name for part in wanted):
                errors.append(checker.check(ranks, name, words))
        if options.search:
            ratios.append(checker.search(ranks))
    if not errors and not ratios:
        sys.exit("no job was checked: --only names none")
    failed = any(ratio > 1.05 for ratio in ratios)
    if errors:
        median, worst = statistics.median(errors), max(errors)
        print(f"{len(errors)} jobs: median error {median:.1f} %, worst {worst:.1f} %")
        failed = failed or median > options.median or worst > options.worst
    sys.exit(failed)


if __name__ == "__main__":
    main()
