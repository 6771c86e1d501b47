#!/usr/bin/env python3
"""The CPU backend beside llama.cpp: the same weights, the same tokens, the same cores, in turn. Prints the tokens/s of both and their ratio.

    cpu_peers.py PROGRAMS LLAMA FOLDER [--lines prompt-bf16,...] [--threads N] [--rounds 5] [--simd auto] [--json FILE]
                 [--config lfm2-350m] [--ours 1xN,4xN] [--llama t=N,N ub=512] [--others 0.03] [--seconds S]

PROGRAMS holds lfm2_stage and weights-tools, LLAMA llama-bench, llama-batched-bench and llama-completion (from llama.cpp's source: `cmake -B
build -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON -DLLAMA_OPENSSL=OFF -DLLAMA_BUILD_SERVER=OFF -DLLAMA_BUILD_TESTS=OFF` and `cmake --build
build --target` with the three names). FOLDER/CONFIG-DTYPE/ gets what is missing there: a random model, its shards, and a GGUF of the
very same weights (write_gguf.py). Each of the three is as large as the model.

--ours names what of lfm2_stage is measured, RANKSxTHREADS each: 1x16,4x4 is one rank with 16 threads, and four under mpirun with 4 each.
LFM2_MPIRUN_OPTIONS goes to mpirun (launch/run.sh). Any number of ranks takes the same shards.

A line is KIND-DTYPE, DTYPE one of fp32, bf16, fp16:

    prompt   one sequence of 512 tokens; logits of the last position
    batch    16 sequences of 32 tokens, all in one forward where the program likes; logits of each one's last position
    decode   one sequence: 64 tokens after a prompt of 8
    decode8  eight sequences, one token of each in a step: 64 steps after prompts of 8

Tokens/s of prompt and batch are all tokens of the prompts over the seconds from the first to the last logit: of a whole job of lfm2_stage
(`seconds` of its report), of `llama-bench -p 512`, and of `llama-batched-bench -npp 32 -npl 16` (T_PP). It must be that one for batch: it puts
all sequences into one call, which computes them together as far as -ub allows, while `llama-bench -p 32` computes one sequence of 32 at a time.

Tokens/s of decode and decode8 are 64 (512) tokens over the seconds of their 64 steps, without the prompt: a sequence has 9 positions in the
first step, 72 in the last. Ours: a job that generates 65 tokens, since the first one comes out of the prompt; its `seconds` less the median
`first_token_seconds` of its report. llama.cpp: `llama-bench -n 64 -d 8`, `llama-batched-bench -npp 8 -ntg 64 -npl 8` (T_TG). Both compute
the logits of every step; lfm2_stage also finds the top-1 token, where llama.cpp's benches continue with a token drawn blindly.

Every process runs its job once more, before the runs that count. llama.cpp's cache of keys and values is its default, fp16; ours has the
line's type. Ahead of a line's first round, llama.cpp's settings (threads, micro-batch, flash attention, how weights are loaded; what it
repacks is its own choice) are tried one after the other, the best of each being kept; the rounds use what was found. --llama names other
values to try, by llama.cpp's own names. A round runs every line, ours and theirs one after the other, and the next round in the other order.
Columns are medians over the rounds, with the least and the largest; the ratio is the median of the rounds' ratios.

Other load slows the two unequally. So a measurement during which other processes take over --others (0.03) of all cores' time is made
again, twice at most, and the least disturbed one counts; the last column is the most that they took during any that counts. Systems that
count no such time (gVisor) show "unknown". After --seconds whatever runs is ended, and the table has the rounds that were complete.
"""
import argparse
import collections
import concurrent.futures
import contextlib
import json
import math
import os
import pathlib
import platform
import re
import resource
import signal
import statistics
import subprocess
import sys
import time

from write_gguf import read_safetensors

Job = collections.namedtuple("Job", "sequences length new")
Line = collections.namedtuple("Line", "name kind dtype job")
Ours = collections.namedtuple("Ours", "ranks threads")  # threads of each rank

JOBS = {"prompt": Job(1, 512, 0), "batch": Job(16, 32, 0), "decode": Job(1, 8, 64), "decode8": Job(8, 8, 64)}
DTYPES = ("fp32", "bf16", "fp16")
DEFAULT_LINES = "prompt-bf16,prompt-fp32,batch-bf16,batch-fp32,decode-bf16,decode-fp32,decode8-bf16"
LAUNCHER = pathlib.Path(__file__).resolve().parents[2] / "launch" / "run.sh"
GGUF_WRITER = pathlib.Path(__file__).resolve().with_name("write_gguf.py")


class OutOfTime(Exception):
    pass


def run_process(options, command, **environment):
    """Runs a program and all that it starts, until --seconds are over; what it printed."""
    process = subprocess.Popen([str(part) for part in command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                               env=dict(os.environ, **environment), start_new_session=True)
    try:
        output, errors = process.communicate(timeout=max(0, options.end - time.monotonic()))
    except BaseException as error:
        with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
            os.killpg(process.pid, signal.SIGTERM)
            process.wait(timeout=3)  # mpirun ends its ranks within a second
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        if isinstance(error, subprocess.TimeoutExpired):
            raise OutOfTime(" ".join(process.args)) from None
        raise
    return process.returncode, output, errors


def expect_success(options, command, **environment):
    code, output, errors = run_process(options, command, **environment)
    if code:
        sys.exit(f"{' '.join(map(str, command))} ended with {code}: {output[-2000:]}{errors[-2000:]}")


def make_models(options, dtype):
    """Makes what is missing of a model, its shards and its GGUF."""
    folder, tools = options.model_folder(dtype), options.programs / "weights-tools"
    folder.mkdir(parents=True, exist_ok=True)
    begin = time.monotonic()
    made = []
    if not (folder / "model" / "model.safetensors").exists():
        expect_success(options, [tools, "synth", "--config", options.config, "--dtype", dtype, "--out", folder / "model", "--quiet"])
        made.append(f"model after {time.monotonic() - begin:.1f} s")

    def made_of_model(what, path, *command):
        if not path.exists():
            expect_success(options, command)
            made.append(f"{what} after {time.monotonic() - begin:.1f} s")
    # Both only read the model and write, so they share the time.
    with concurrent.futures.ThreadPoolExecutor() as pool:
        stages, gguf = max(ours.ranks for ours in options.ours), folder / "model.gguf"
        parts = [pool.submit(made_of_model, "shards", options.shards(dtype), tools, "split", folder / "model", "--stages", str(stages), "--out",
                             options.shards(dtype), "--quiet"),
                 pool.submit(made_of_model, "GGUF", gguf, sys.executable, GGUF_WRITER, folder / "model", dtype, gguf)]
        for part in parts:
            part.result()
    if made:
        print(f"{folder.name}: {', '.join(made)}", flush=True)


# One measurement of each side: tokens/s of each run that counts.

def busy_seconds():
    """Seconds that all processors have worked, or were taken from this machine by others on its host; and those of our own ended processes."""
    user, nice, system, _, _, *interrupts_and_steal = map(int, pathlib.Path("/proc/stat").read_text().split(maxsplit=9)[1:9])
    own = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (user + nice + system + sum(interrupts_and_steal)) / os.sysconf("SC_CLK_TCK"), own.ru_utime + own.ru_stime


def undisturbed(options, measure):
    """Measures until others take little of the machine's time, three times at most. What was measured, and the share that they took, or None."""
    found = []
    while len(found) < 3 and (not found or found[-1][1] > options.others):
        begin, (busy, own) = time.monotonic(), busy_seconds()
        speeds = measure()
        seconds, (busy_after, own_after) = time.monotonic() - begin, busy_seconds()
        if busy_after == 0:
            return speeds, None
        others = (busy_after - busy) - (own_after - own)
        found.append((speeds, max(0, others) / seconds / os.cpu_count()))
    return min(found, key=lambda one: one[1])


def our_speeds(options, line, ours, repeats):
    sequences, length, new = line.job
    report = options.folder / "report.json"
    command = [options.programs / "lfm2_stage"] if ours.ranks == 1 else [LAUNCHER, "-n", ours.ranks]
    command += ["--weights", options.shards(line.dtype), "--device", "cpu", "--dtype", line.dtype, "--simd", options.simd,
                "--threads", ours.threads, "--samples", sequences, "--length", length, "--quiet",
                "--benchmark", "--warmup", 1, "--repeat", repeats, "--report", report]
    if new:
        command += ["--max-tokens", new + 1, "--ignore-eos", "--output", options.folder / "texts.jsonl"]
    expect_success(options, command, LFM2_STAGE=str(options.programs / "lfm2_stage"))
    found = json.loads(report.read_text())
    options.our_side[ours] = {"version": found["version"], "device": found["stages"][0]["device"]}
    if not new:
        return [sequences * length / seconds for seconds in found["seconds"]]
    # The report's time of the first token is that of the last run, so one run a process counts.
    texts = found["generation"]
    if texts["tokens"] != sequences * (new + 1) or len(found["seconds"]) != 1:
        sys.exit(f"lfm2_stage generated {texts['tokens']} tokens in {len(found['seconds'])} runs, expected {sequences * (new + 1)} in one")
    if ours.ranks == 1 and found["micro_batches"] != new + 1:
        sys.exit(f"lfm2_stage needed {found['micro_batches']} steps, expected {new + 1}: not all prompts were in one")
    return [sequences * new / (found["seconds"][0] - texts["first_token_seconds"]["median"])]


def llama_lines(options, program, line, arguments):
    """Runs one of llama.cpp's benches; the lines of JSON that it prints."""
    code, output, errors = run_process(options, [options.llama_programs / program, "-m", options.model_folder(line.dtype) / "model.gguf", *arguments])
    found = [json.loads(text) for text in output.splitlines() if text.startswith("{")]
    if code or not found:
        sys.exit(f"{program} ended with {code}: {errors[-2000:]}{output[-2000:]}")
    return found


def llama_speeds(options, line, settings, repeats):
    """Each run's tokens/s, for each of the settings, which differ in one. One process runs as many of them as its program can."""
    sequences, length, new = line.job
    if sequences > 1 and len(settings) > 1:
        return [llama_speeds(options, line, [one], repeats)[0] for one in settings]
    common = [text for key in settings[0] for text in (f"-{key}", ",".join(str(value) for value in dict.fromkeys(one[key] for one in settings)))]
    if sequences == 1:
        job = ["-p", 0, "-n", new, "-d", length] if new else ["-p", length, "-n", 0]
        found = llama_lines(options, "llama-bench", line, [*common, *job, "-r", repeats + 1, "--no-warmup", "-o", "jsonl"])
        if len(found) != len(settings):
            sys.exit(f"llama-bench ran {len(found)} tests, expected {len(settings)}")
        return [one["samples_ts"][1:] for one in found]
    # Each sequence has a cache of its own, in steps of 256 positions. Where no token is generated, the bench divides by zero, so it is one.
    # There is one run more than needed, because the bench's log may lose its last line when the program ends.
    context = sequences * 256 * -(-(length + max(new, 1)) // 256)
    found = llama_lines(options, "llama-batched-bench", line, [*common, "-c", context, "-npp", ",".join([str(length)] * (repeats + 2)),
                                                               "-ntg", max(new, 1), "-npl", sequences, "--output-format", "jsonl"])[:repeats + 1]
    if len(found) != repeats + 1 or any((one["pl"], one["pp"]) != (sequences, length) for one in found):
        sys.exit(f"llama-batched-bench ran {len(found)} times, expected {repeats + 1} of {sequences} sequences")
    return [[one["speed_tg" if new else "speed_pp"] for one in found[1:]]]


# What both sides are, and llama.cpp at its best.

def identify(options, line):
    """Ends where llama.cpp has another model or lacks an instruction of this machine; what it says of itself."""
    found, = llama_lines(options, "llama-bench", line, ["-p", 1, "-n", 0, "-r", 1, "--no-warmup", "-t", options.threads, "-o", "jsonl"])
    tensors = read_safetensors(options.model_folder(line.dtype) / "model" / "model.safetensors")
    parameters = sum(math.prod(tensor.shape) for tensor in tensors.values())
    if found["model_n_params"] != parameters:
        sys.exit(f"llama.cpp's model has {found['model_n_params']} parameters, ours {parameters}")
    # No bench prints what llama.cpp was built for. llama-completion does, before it reads a prompt cache; a file that is none ends it there.
    command = [options.llama_programs / "llama-completion", "-m", options.model_folder(line.dtype) / "model.gguf", "-t", str(options.threads), "-c", "256",
               "--prompt-cache", options.model_folder(line.dtype) / "model" / "config.json", "-no-cnv", "--no-warmup"]
    system = None
    for _ in range(5):  # its log may lose its last lines when it ends
        code, output, errors = run_process(options, command)
        system = re.search(r"system_info: .*", output + errors)
        if system:
            break
    if not system:
        sys.exit(f"llama-completion ended with {code} before it said what it was built for: {errors[-2000:]}")
    flags = re.search(r"^flags.*", pathlib.Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    if flags and "avx512_bf16" in flags[0] and options.simd not in ("avx2", "portable") and "AVX512_BF16 = 1" not in system[0]:
        sys.exit(f"the processor has AVX512-BF16 and this llama.cpp does not use it: {system[0]}")
    if options.simd == "avx2" and "AVX512 = 1" in system[0]:
        sys.exit(f"--simd avx2: this llama.cpp uses more than that: {system[0]}")
    return {"model": found["model_type"], "parameters": parameters, "llama_commit": found["build_commit"], "processor": found["cpu_info"],
            "system_info": system[0]}


def best_settings(options, line):
    """Tries llama.cpp's settings, one after the other; the best ones, and the best speed of each that was tried."""
    choices = dict(options.llama_choices)
    if line.job.new:
        del choices["ub"]
    best = {key: values[0] for key, values in choices.items()}
    if all(len(values) == 1 for values in choices.values()):
        return best, []  # nothing to choose
    tried = []
    for key, values in choices.items():
        settings = [best | {key: value} for value in values if best | {key: value} not in (one for one, _, _ in tried)]
        if not settings:
            continue
        speeds, others = undisturbed(options, lambda: llama_speeds(options, line, settings, 2))
        tried += [(one, max(found), others) for one, found in zip(settings, speeds)]
        best, speed, _ = max(tried, key=lambda one: one[1])  # a moment's disturbance makes a run slower, never faster
    print(f"{line.name}: llama.cpp's best of {len(tried)} is {' '.join(f'-{key} {value}' for key, value in best.items())} with "
          f"{speed:.1f} tokens/s; the others {', '.join(f'{one:.1f}' for settings, one, _ in tried if settings != best)}"
          f"; other processes took {share([others for _, _, others in tried])} at most", flush=True)
    return best, [{**settings, "tokens_per_second": one, "others": others} for settings, one, others in tried]


# The table.

def spread(values):
    digits = 2 if max(values) < 10 else 1
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def share(others):
    """The most that others took of the machine during some measurements."""
    return "unknown" if None in others else f"{max(others):.0%}"


def print_table(options, rounds):
    print(f"\n| tokens/s, {options.config} | ours | llama.cpp | ours / llama.cpp | others, at most |\n|---|---|---|---|---|")
    for (line, our), found in rounds.items():
        ours, theirs, others = zip(*found)
        ratios = [one / other for one, other in zip(ours, theirs)]
        print(f"| {line.name}, {our.ranks}x{our.threads} | {spread(ours)} | {spread(theirs)} | {spread(ratios)} | {share(others)} |")


def record(options, line, our, found, settings):
    """A line of the table with every figure behind it."""
    ours, theirs, others = zip(*found)
    best, tried = settings
    return {"line": line.name, **line.job._asdict(), "ours": ours, "llama": theirs, "others": others, "config": options.config,
            "ratio": statistics.median(one / other for one, other in zip(ours, theirs)), "threads": options.threads, "ranks": our.ranks,
            "rank_threads": our.threads, "simd": options.simd, **options.our_side[our], "llama_settings": best, "llama_tried": tried}


def read_options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("programs", type=pathlib.Path, metavar="PROGRAMS")
    parser.add_argument("llama_programs", type=pathlib.Path, metavar="LLAMA")
    parser.add_argument("folder", type=pathlib.Path, metavar="FOLDER")
    parser.add_argument("--lines", default=DEFAULT_LINES, help=f"{', '.join(JOBS)}, each with -{', -'.join(DTYPES)}; default {DEFAULT_LINES}")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--llama", nargs="+", default=[], metavar="KEY=VALUE,...", help="settings of llama.cpp to try instead of its usual ones: t, fa, lm, ub")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--simd", default="auto", help="instructions of lfm2_stage; llama.cpp's are those it was built with")
    parser.add_argument("--config", default="lfm2-350m", help="as for weights-tools synth")
    parser.add_argument("--ours", help="RANKSxTHREADS,..., default one rank with --threads")
    parser.add_argument("--seconds", type=float, default=86400, help="of wall time for everything, default a day")
    parser.add_argument("--others", type=float, default=0.03, help="share of the machine's time that others may take, default 0.03")
    parser.add_argument("--json", type=pathlib.Path, help="a line for each line of the table is appended")
    options = parser.parse_args()
    options.end, options.our_side = time.monotonic() + options.seconds, {}
    options.programs, options.llama_programs = options.programs.resolve(), options.llama_programs.resolve()
    options.ours = [Ours(*map(int, one.split("x"))) for one in (options.ours or f"1x{options.threads}").split(",")]
    options.llama_choices = {"t": [str(options.threads)], "fa": ["on", "off"], "lm": ["mmap", "none"], "ub": ["512", "256", "128"]}
    for choice in options.llama:
        key, _, values = choice.partition("=")
        if key not in options.llama_choices or not values:
            parser.error(f"--llama: {choice} is not KEY=VALUE,..., KEY of {', '.join(options.llama_choices)}")
        options.llama_choices[key] = list(dict.fromkeys(values.split(",")))
    options.model_folder = lambda dtype: options.folder / f"{pathlib.Path(options.config).stem}-{dtype}"
    options.shards = lambda dtype: options.model_folder(dtype) / "shards"
    lines = []
    for name in options.lines.split(","):
        kind, _, dtype = name.partition("-")
        if kind not in JOBS or dtype not in DTYPES:
            parser.error(f"--lines: {name} is not KIND-DTYPE, KIND of {', '.join(JOBS)}, DTYPE of {', '.join(DTYPES)}")
        lines.append(Line(name, kind, dtype, JOBS[kind]))
    return options, lines


def measure(options, lines, rounds, settings):
    """Fills `rounds` with (ours, theirs, others) of every line and each of --ours, and `settings` with llama.cpp's of every line."""
    for number in range(options.rounds):
        for line in lines:
            if line not in settings:
                settings[line] = best_settings(options, line)
            repeats = 1 if line.job.new else 3
            sides = {our: lambda our=our: our_speeds(options, line, our, repeats) for our in options.ours}
            sides[None] = lambda: llama_speeds(options, line, [settings[line][0]], repeats)[0]
            order = list(sides) if number % 2 == 0 else list(reversed(sides))
            found = {}
            for side in order:  # each is told at once, for time may be over before the round is complete
                found[side] = undisturbed(options, sides[side])
                name = f"lfm2_stage {side.ranks}x{side.threads}" if side else "llama.cpp"
                print(f"round {number + 1}, {line.name}: {name} {spread(found[side][0])} tokens/s, others {share([found[side][1]])}", flush=True)
            theirs, others = statistics.median(found[None][0]), found[None][1]
            for our in options.ours:
                ours = statistics.median(found[our][0])
                both = None if others is None else max(others, found[our][1])
                rounds[line, our].append((ours, theirs, both))
                print(f"round {number + 1}, {line.name}: ratio of {our.ranks}x{our.threads} {ours / theirs:.2f}", flush=True)


def main():
    options, lines = read_options()
    load, facts, rounds, settings = os.getloadavg()[0], {}, collections.defaultdict(list), {}
    try:
        for line in lines:
            if line.dtype not in facts:
                make_models(options, line.dtype)
                facts[line.dtype] = identify(options, line)
        one = facts[lines[0].dtype]
        print(f"{one['processor']}, {platform.release()}, load {load:.1f} before the start\nllama.cpp {one['llama_commit']}, {one['system_info']}\n"
              f"{', '.join(fact['model'] for fact in facts.values())}: {one['parameters']} parameters on both sides", flush=True)
        measure(options, lines, rounds, settings)
    except OutOfTime as error:
        print(f"out of time: {error}", flush=True)
    if not rounds:
        sys.exit("no round of any line was complete")
    print("\n" + "\n".join(f"{side['version']}, {ours.ranks}x{ours.threads}: {side['device']}" for ours, side in options.our_side.items()))
    print_table(options, rounds)
    if options.json:
        with open(options.json, "a") as file:
            for (line, our), found in rounds.items():
                file.write(json.dumps(record(options, line, our, found, settings[line]) | facts[line.dtype] | {"load": load}) + "\n")


if __name__ == "__main__":
    main()
