#!/usr/bin/env python3
"""The jobs whose speed on GPUs is kept, in one or several states of the program, with clocks, power and ceilings of the same run.

    gpu_jobs.py one SHARDS OUT --program new=build/cuda/bin/lfm2_stage [--program old=PATH ...] [--rounds 1] [--fp32-shards DIR]
    gpu_jobs.py all SHARDS OUT --program new=build/cuda/bin/lfm2_stage [--fp32-shards DIR]

one: each job on one GPU, the programs in turn; where there are several GPUs, each takes the next job, so their figures are from as many GPUs at work. all: each
job on all GPUs, a rank on each, under mpirun. SHARDS is a split of LFM2-8B-A1B in bf16 (`weights-tools synth --config lfm2-8b-a1b --dtype
bf16`) or in fp8, DIR one with fp32 weights that are not those of bf16. OUT, a folder, gets jobs.jsonl, in the form of tests/bench/baselines, and each job's report; outputs go to --outputs
(default /dev/shm) and are removed. launch/gpu-bench.sh runs this beside the benches of operators and channels.

Prints a line a job: median speed of --repeat runs after one that warms up, the slowest and the fastest run, the first digits of the results'
hash, idle share, seconds of loading, micro-batches, the least, median and highest clock while more than 250 W flowed, the most watts. Ends with 1 where a job
failed or was not run, or programs gave different hashes. --only NAME,... runs these jobs alone, --seconds N begins no job after N seconds, --options '...' goes to every job. The
ceilings come from PyTorch, where it is there: a copy of 4 GiB (bytes read and written), and cuBLAS in bf16 8192^3, 20 and 2000 products; and from twelve dd that write the folder
of the outputs at once, for `all`. CUDA_VISIBLE_DEVICES, numbers of nvidia-smi, leaves out other GPUs.
"""
import argparse, json, os, pathlib, queue, random, re, shlex, subprocess, sys, threading, time

BUSY_WATTS = 250

# Options have their older spellings in this file (--generate, --fp32): programs of older commits run, too, and know no others.

def scoring(samples, length, dtype="auto", more=""):
    return f"--dtype {dtype} --samples {samples} --length {length} {more}"


def decoding(sequences, length=32, new=64, more=""):
    return f"--dtype auto --samples {sequences} --length {length} --generate {new} --ignore-eos {more}"


# Prompts of 16 to 1024 tokens. The ends of the texts are drawn: one token in 128 of the vocabulary ends a text, at 512 tokens at the latest.
RAGGED = "--dtype auto --input {ragged} --generate 512 --temperature 1 --eos " + ",".join(map(str, range(0, 65536, 128)))
PLAIN = {"headline-fp32 plain": (scoring(1024, 32, "fp32", "--fp32 simt"), 5, False), "1024x32 all positions": (scoring(1024, 32, more="--logits all"), 5, False)}

# name: (options, runs, whether the weights are those of --fp32-shards)
ONE = {
    "long": (decoding(32, 8192, 2048), 5, False),
    "headline": (scoring(1024, 32), 7, False),
    "16384x32": (scoring(16384, 32), 5, False),
    "64x2048": (scoring(64, 2048), 7, False),
    "32x8192": (scoring(32, 8192), 5, False),
    "1x65536": (scoring(1, 65536), 5, False),
    "headline-fp32": (scoring(1024, 32, "fp32"), 5, False),
    "headline-fp32-general": (scoring(1024, 32, "fp32"), 5, True),
    **{f"d{n}": (decoding(n), 7 if n in (1, 8, 256) else 5, False) for n in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)},
    **PLAIN,
}
ALL = {
    "headline": (scoring(1024, 32), 7, False),
    "headline stages chosen": (scoring(1024, 32, more="--virtual-stages 0"), 7, False),
    **{f"headline {v} pieces": (scoring(1024, 32, more=f"--virtual-stages {v} --balance"), 7, False) for v in (1, 2, 3, 4)},
    "headline a pipeline a GPU": (scoring(1024, 32, more="--replicas {gpus}"), 7, False),
    "65536x32": (scoring(65536, 32), 3, False),
    "65536x32 balanced": (scoring(65536, 32, more="--balance"), 5, False),
    "65536x32 stages chosen": (scoring(65536, 32, more="--virtual-stages 0"), 5, False),
    "headline-fp32 stages chosen": (scoring(1024, 32, "fp32", "--virtual-stages 0"), 7, False),
    "headline-fp32-general stages chosen": (scoring(1024, 32, "fp32", "--virtual-stages 0"), 7, True),
    "8x2048 stages chosen": (scoring(8, 2048, more="--virtual-stages 0"), 7, False),
    "64x2048 stages chosen": (scoring(64, 2048, more="--virtual-stages 0"), 3, False),
    "32x8192 stages chosen": (scoring(32, 8192, more="--virtual-stages 0"), 3, False),
    "1x65536 balanced": (scoring(1, 65536, more="--balance"), 7, False),
    "1x65536 stages chosen": (scoring(1, 65536, more="--virtual-stages 0"), 7, False),
    **{f"d{n}": (decoding(n, more="--balance"), 7, False) for n in (1, 256, 1024, 4096)},
    **{f"{name} peer copies": (options + " --virtual-stages 0 --transport peer", runs, False) for name, options, runs in (
        ("headline", scoring(1024, 32), 7), ("65536x32", scoring(65536, 32), 3), ("8x2048", scoring(8, 2048), 7), ("1x65536", scoring(1, 65536), 7))},
    **{f"d{n} a pipeline a GPU": (decoding(n, more="--replicas {gpus}"), 7, False) for n in (256, 1024, 4096)},
    "4096 ragged": (RAGGED + " --balance", 1, False),
    **PLAIN,
}


def smi(*query):
    try:
        return subprocess.run(["nvidia-smi", *query], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return ""


class Watch:
    """Clocks and watts of all GPUs, every 50 ms."""

    def __init__(self):
        self.samples, self.process = [], None
        if smi("-L"):
            command = ["nvidia-smi", "--query-gpu=index,clocks.sm,power.draw", "--format=csv,noheader,nounits", "-lms", "50"]
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            threading.Thread(target=self.read, daemon=True).start()

    def read(self):
        for line in self.process.stdout:
            try:
                gpu, clock, watts = line.split(", ")
                self.samples.append((time.time(), gpu, float(clock), float(watts)))
            except ValueError:
                pass  # a line that was cut off, or a GPU that does not say

    def between(self, begin, end, gpus):
        found = [s for s in self.samples if begin <= s[0] <= end and s[1] in gpus and s[3] > BUSY_WATTS]
        clocks = sorted(s[2] for s in found)
        if not clocks:
            return {}
        return {"clock_mhz": [int(clocks[0]), int(clocks[len(clocks) // 2]), int(clocks[-1])], "watts_at_most": round(max(s[3] for s in found))}

    def stop(self):
        if self.process:
            self.process.kill()


def ceilings(gpus):
    """What each GPU copies and multiplies, all of them at once; nothing without PyTorch."""
    try:
        import torch
    except ImportError:
        return {}
    if not torch.cuda.is_available():
        return {}
    found = {}

    def measure(gpu):
        torch.cuda.set_device(gpu)
        a = torch.randn(8192, 8192, device=f"cuda:{gpu}", dtype=torch.bfloat16)
        b = torch.randn_like(a)
        x = torch.empty(4 << 30, dtype=torch.uint8, device=a.device).random_(0, 255)
        y = torch.empty_like(x)

        def seconds(work, times):
            work()
            torch.cuda.synchronize(gpu)
            stream = torch.cuda.current_stream(gpu)
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record(stream)
            for _ in range(times):
                work()
            end.record(stream)
            end.synchronize()
            return begin.elapsed_time(end) / 1e3 / times

        copy = 2 * x.numel() / seconds(lambda: y.copy_(x), 10) / 1e9
        few, many = (2 * 8192**3 / seconds(lambda: torch.mm(a, b), times) / 1e12 for times in (20, 2000))
        found[str(gpu)] = f"copy {copy:.0f} GB/s, cuBLAS {few:.0f} and {many:.0f} TFLOP/s (20 and 2000 products)"

    threads = [threading.Thread(target=measure, args=(int(gpu),)) for gpu in gpus]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def write_speeds(folder):
    """GB/s at which twelve files of 734 MB are written at once, new and once more."""
    paths, speeds = [folder / f"lfm2-written-{os.getpid()}-{number}" for number in range(12)], []
    for _ in range(2):
        begin = time.time()
        writers = [subprocess.Popen(["dd", "if=/dev/zero", f"of={path}", "bs=1M", "count=700", "conv=notrunc", "status=none"]) for path in paths]
        failed = any([writer.wait() for writer in writers])
        speeds.append(0 if failed else 12 * 0.734003 / (time.time() - begin))
    for path in paths:
        path.unlink(missing_ok=True)
    return speeds


def write_ragged(path):
    drawn = random.Random(1)
    with open(path, "w") as lines:
        for _ in range(4096):
            lines.write(json.dumps({"input_ids": [drawn.randrange(65536) for _ in range(drawn.randint(16, 1024))]}) + "\n")


class Jobs:
    def __init__(self, args, gpus):
        self.args, self.gpus, self.watch, self.lock = args, gpus, Watch(), threading.Lock()
        self.begun, self.failed, self.hashes = time.time(), False, {}
        self.out = pathlib.Path(args.out)
        (self.out / "reports").mkdir(parents=True, exist_ok=True)
        self.programs = dict(args.program)
        self.ceilings = ceilings(gpus)
        for gpu in self.ceilings:
            print(f"GPU {gpu}: {self.ceilings[gpu]}", flush=True)
        outputs = pathlib.Path(args.outputs)
        if args.what == "all":
            print("{}: twelve writers {:.1f} GB/s into new files, {:.1f} into these once more".format(outputs, *write_speeds(outputs)), flush=True)
        self.ragged = outputs / f"lfm2-ragged-{os.getpid()}.jsonl"

    def run(self, name, state, gpus, number):
        options, runs, general = (ONE if self.args.what == "one" else ALL)[name]
        weights = self.args.fp32_shards if general else self.args.shards
        tag = re.sub(r"[^a-z0-9]+", "-", f"{name}-{state}-{number}")
        report, output = self.out / "reports" / f"{tag}.json", pathlib.Path(self.args.outputs) / f"lfm2-{os.getpid()}-{tag}"
        output = output.with_suffix(".jsonl" if "--generate" in options else ".h5" if "--logits all" in options else ".bin")
        if "{ragged}" in options and not self.ragged.exists():
            write_ragged(self.ragged)
        options = options.replace("{gpus}", str(len(gpus))).replace("{ragged}", str(self.ragged))
        command = [] if self.args.what == "one" else ["mpirun", "--bind-to", "none", "--oversubscribe", "-np", str(len(gpus))]
        command += [self.programs[state], "--weights", weights, *shlex.split(options), "--benchmark", "--warmup", "1", "--repeat",
                    str(self.args.repeat or runs), "--quiet", "--report", str(report), "--output", str(output), *shlex.split(self.args.options)]
        if self.args.what == "all":
            command += ["--trace", str(report.with_suffix(".trace.json"))]
        visible = {"CUDA_VISIBLE_DEVICES": ",".join(gpus), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"} if gpus[0] != "-" else {}
        begin = time.time()
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=300, env={**os.environ, **visible})
            told = "" if done.returncode == 0 else f"exit code {done.returncode}: {(done.stderr + done.stdout)[-300:]}"
        except subprocess.TimeoutExpired:
            told = "not done after 300 s"
        for left in output.parent.glob(output.name + "*"):
            left.unlink()
        with self.lock:
            if told:
                self.failed = True
                print(f"FAILED {name}, {state}: {told}", flush=True)
                return
            self.tell(name, state, gpus, json.loads(report.read_text()), self.watch.between(begin, time.time(), gpus))

    def tell(self, name, state, gpus, report, clocks):
        generates, positions = "generation" in report, not name.startswith(("headline", "16384x32", "65536x32", "1024x32"))
        unit = "generated_tokens_per_second" if generates else "tokens_per_second" if positions else "samples_per_second"
        seconds, median = sorted(report["seconds"]), report["median_seconds"]
        amount = report[unit] * median
        ceilings = self.ceilings.get(gpus[0], "ceilings not measured")
        line = {"run": f"{state}; GPU {','.join(gpus)}: {ceilings}", "job": name, "speed": round(report[unit], 1),
                "unit": {"g": "new tokens/s", "t": "tokens/s", "s": "samples/s"}[unit[0]], "runs": len(seconds),
                "spread": [round(amount / seconds[-1], 1), round(amount / seconds[0], 1)], "results": report["results_xxh3"][:12], **clocks}
        if sustained := re.search(r"and (\d+) TFLOP/s", ceilings):
            line["cublas_tflops"] = int(sustained[1])
        if len(gpus) > 1:
            line |= {"idle": report["lost_share"], "schedule": report.get("scheduled_lost_share"), "fill_and_drain": report["ideal_lost_share"],
                     "virtual_stages": report["virtual_stages"], "micro_batches": report["micro_batches"], "load_seconds": report["load_seconds"]}
        with open(self.out / "jobs.jsonl", "a") as lines:
            lines.write(json.dumps(line) + "\n")
        if self.hashes.setdefault(name, line["results"]) != line["results"]:
            self.failed = True
            print(f"FAILED {name}: {state} gives {line['results']}, another run {self.hashes[name]}")
        clock = "/".join(map(str, clocks["clock_mhz"])) + f" MHz, {clocks['watts_at_most']} W" if clocks else ""
        print(f"{name:38} {state:8} GPU {','.join(gpus):8} {line['speed']:>10.1f} {line['unit']:12} ({line['spread'][0]:.0f} to {line['spread'][1]:.0f})  {line['results']}  "
              f"idle {100 * report['lost_share']:.1f} %  load {report['load_seconds']:.2f} s  {report['micro_batches']} x {report['largest_micro_batch']}, "
              f"{report['virtual_stages']} pieces  {clock}", flush=True)

    def leave_out(self, name, why):
        self.failed = True
        print(f"NOT RUN {name}: {why}", flush=True)

    def late(self):
        return 0 < self.args.seconds < time.time() - self.begun

    def all(self):
        left = queue.SimpleQueue()
        jobs = ONE if self.args.what == "one" else ALL
        names = self.args.only.split(",") if self.args.only else list(jobs)
        if unknown := [name for name in names if name not in jobs]:
            sys.exit(f"gpu_jobs.py: --only {','.join(unknown)}: expected some of {', '.join(jobs)}")
        for name in names:
            if jobs[name][2] and not self.args.fp32_shards:
                self.leave_out(name, "needs --fp32-shards")
            else:
                left.put(name)

        def work(gpus):
            while not left.empty() and not self.late():
                try:
                    name = left.get_nowait()
                except queue.Empty:
                    return
                for turn in range(self.args.rounds):
                    for state in self.programs:
                        self.run(name, state, gpus, turn)

        workers = [threading.Thread(target=work, args=(gpus,)) for gpus in ([[gpu] for gpu in self.gpus] if self.args.what == "one" else [self.gpus])]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        self.watch.stop()
        self.ragged.unlink(missing_ok=True)
        while not left.empty():
            self.leave_out(left.get(), f"{self.args.seconds:g} s were over")
        return 1 if self.failed else 0


def named(text):
    name, _, path = text.partition("=")
    if not os.access(path, os.X_OK):
        raise argparse.ArgumentTypeError(f"{text}: expected NAME=PATH of a program")
    return name, path


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["one", "all"])
    parser.add_argument("shards")
    parser.add_argument("out")
    parser.add_argument("--program", action="append", required=True, metavar="NAME=PATH", type=named)
    parser.add_argument("--fp32-shards", metavar="DIR", default="")
    parser.add_argument("--outputs", default="/dev/shm")
    parser.add_argument("--rounds", type=int, default=1, help="of all programs, for each job")
    parser.add_argument("--repeat", type=int, default=0, help="runs of each job, default 3 to 7")
    parser.add_argument("--only", default="")
    parser.add_argument("--seconds", type=float, default=0)
    parser.add_argument("--options", default="")
    args = parser.parse_args()
    gpus = [line.split(":")[0].split()[1] for line in smi("-L").splitlines() if line.startswith("GPU ")] or ["-"]
    if chosen := os.environ.pop("CUDA_VISIBLE_DEVICES", ""):
        os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
        if unknown := set(chosen.split(",")) - set(gpus):
            sys.exit(f"gpu_jobs.py: CUDA_VISIBLE_DEVICES={chosen}: expected some of {', '.join(gpus)}, found {', '.join(sorted(unknown))}")
        gpus = chosen.split(",")
    if gpus == ["-"] and args.what == "all":
        gpus = ["-"] * 2  # without GPUs, to try the script itself: two ranks
    os.environ.setdefault("NCCL_NVLS_ENABLE", "0")
    os.environ.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    sys.exit(Jobs(args, gpus).all())


if __name__ == "__main__":
    main()
