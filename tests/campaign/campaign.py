#!/usr/bin/env python3
"""Faults against runs of lfm2_stage: every case is a job, a fault, an instant and a rank, drawn from a seed.

After each fault: the exit code that docs/formats.md says, within the limit, no process left, nothing under the
final name unless it is whole, at most one line that names the cause; then --resume until done, equal to the file of a run that
was left alone. The result is JSON; the exit code is 1 where a case failed.

    campaign.py --stage PROGRAM --shards DIR --work DIR [--seed N] [--cases N | --kills N] [--faults PRELOADED.so]
    tests/slurm/cluster.py campaign.py --launchers mpirun,srun,none ...     # a Slurm of its own
"""
import argparse, filecmp, json, os, pathlib, random, re, shutil, signal, subprocess, sys, time

LIMIT = 60         # seconds that a run may take
END_LIMIT = 10     # from the fault to the end of the launcher, and of every process
START_LIMIT = 14    # until another rank says that MPI does not start
GPU_LIMIT = 15      # until GPU memory is as it was before
SLOW_PAUSES = 20
# So many stops are enough for one of them to hit, on fast machines too; a whole campaign has as many of each kind.
ENOUGH_STOPS = 8
STOP_SIGNALS = {"usr1": signal.SIGUSR1, "term": signal.SIGTERM, "int": signal.SIGINT}
# name: output, ranks, options
JOBS = {
    "bin": ("o.bin", 3, "--samples 4000 --micro-batch 16"),
    "h5": ("o.h5", 2, "--samples 1500 --micro-batch 16 --logits all --top-logprobs 3"),
    "jsonl": ("o.jsonl", 4, "--samples 2500 --micro-batch 16"),
    "replicas": ("o.h5", 4, "--samples 4000 --micro-batch 16 --replicas 2"),
    "text": ("o.jsonl", 2, "--samples 160 --length 5 --max-tokens 40 --temperature 1.1 --max-num-seqs 12"),
    "text.replicas": ("o.jsonl", 4, "--samples 160 --length 5 --max-tokens 40 --temperature 1.1 --max-num-seqs 6 --replicas 2"),
    "text.h5": ("o.h5", 3, "--samples 160 --length 5 --max-tokens 40 --max-num-seqs 12 --top-logprobs 2"),
}
EXIT = 9  # exit code of a rank that ends by itself
# fault: (exit codes, part of the path that it hits)
IO_FAULTS = {"enospc": ({73, 74}, "/o."), "eio": ({73, 74}, "/o."), "fsync": ({74}, "/o."), "slow disk": ({0}, "stage-"),
             "exit while loading": ({EXIT}, "stage-"), "exit while writing": ({EXIT}, "/o."), "unlink": ({EXIT}, "/o."), "nofallocate": ({0}, "/o.")}
FILE_FAULTS = {"flip": {65}, "truncate": {65}, "missing shard": {65, 66}, "swapped shards": {65}, "no folder": {73},
               "bad line": {65}, "missing input": {66}, "output not writable": {73}, "shard not readable": {74},
               "input not readable": {74}}
NOBODY_NOTICES = ("kill the launcher", "stop for good")  # without a launcher, nobody notices these
NOBODY = 65534  # a user other than root, who may read and write everything
SRUN_JOBS = ["bin", "text"]  # few, because a step of Slurm takes long to start
ONE_RANK_JOBS = ["bin", "text"]
PHASES = {"start": (0.02, 0.35), "run": (0.35, 0.9), "end": (0.9, 1.05)}


class Campaign:
    def __init__(self, args):
        self.args, self.random = args, random.Random(args.seed)
        self.work = pathlib.Path(args.work)
        shutil.rmtree(self.work, ignore_errors=True)
        self.work.mkdir(parents=True)
        self.seconds = {}
        self.launchers_left = 0  # launchers that were left with all ranks gone
        self.victim = None  # the rank that was stopped for good
        self.before_main = False  # whether the last signal came before main()
        self.on_gpus = "cuda" in args.machine
        self.gpu_memory_before = self.gpu_mebibytes()

    def command(self, job, output, extra=(), weights=None, launcher="mpirun"):
        _, ranks, options = JOBS[job]
        options = re.sub(r"(?<=--samples )\d+", lambda number: str(int(number[0]) * self.args.scale), options)
        launch = {"mpirun": [self.args.mpirun, "-np", str(ranks), "--oversubscribe", "--bind-to", "none"],
                  "srun": ["srun", "--mpi=pmix", "--nodes=1", f"--ntasks={ranks}", "--quiet"], "none": []}[launcher]
        return ([*launch, self.args.stage, "--weights", str(weights or self.args.shards), *self.args.machine.split(), "-q",
                 "--output", str(output), *options.split(), *extra])

    def start(self, command, env=None):
        log = open(self.work / "log", "w+b")
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                                   env={**os.environ, **(env or {})})
        return process, log

    def only_has_to_exit(self, victim, output):
        """A process that was stopped after its last message to the others: they have ended, and only its launcher waits for it."""
        return victim is not None and self.ranks() == [victim] and output.exists()

    def wait(self, process, limit):
        """Exit code. Open MPI's launcher sometimes waits for ever where a rank was killed in its start; then no rank is left."""
        until, alone = time.time() + limit, 0
        while time.time() < until:
            try:
                return process.wait(0.25)
            except subprocess.TimeoutExpired:
                alone = 0 if self.ranks() else alone + 1
            if alone * 0.25 > END_LIMIT:
                self.launchers_left += 1
                for pid in self.processes():
                    os.kill(pid, signal.SIGKILL)
                return process.wait()
        raise subprocess.TimeoutExpired(process.args, limit)

    def finish(self, process, log, limit=LIMIT, output=None):
        """Exit code, the program's own lines, and whether it ended in time with all its processes. The exit code is None where the
        launcher was left waiting for a process that was stopped for good when it had nothing left to do."""
        victim, self.victim, self.hanging = self.victim, None, []
        try:
            code, in_time = self.wait(process, limit), True
        except subprocess.TimeoutExpired:
            in_time = self.only_has_to_exit(victim, output)
            self.hanging = [self.describe(pid) for pid in self.processes()]
            for pid in self.processes():
                os.kill(pid, signal.SIGKILL)
            code = process.wait()
            code = None if in_time else code
        until = time.time() + END_LIMIT
        while (left := self.processes()) and time.time() < until:
            time.sleep(0.01)
        self.hanging += [self.describe(pid) for pid in left]
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        until = time.time() + GPU_LIMIT
        while (memory_left := self.gpu_mebibytes() > self.gpu_memory_before + 64) and time.time() < until:
            time.sleep(0.2)
        log.seek(0)
        lines = [line for line in log.read().decode(errors="replace").splitlines() if line.startswith("lfm2_stage: ")]
        log.close()
        return code if code is None or code >= 0 else 128 - code, lines, in_time and not left and not memory_left

    def gpu_mebibytes(self):
        if not self.on_gpus:
            return 0
        told = subprocess.run(["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"], text=True,
                              capture_output=True, check=True)
        return sum(map(int, told.stdout.split()))

    def processes(self):
        """The processes of this campaign: those that write into its folder."""
        found, mark = [], f"--output\0{self.work}/".encode()
        for entry in pathlib.Path("/proc").iterdir():
            try:
                line = (entry / "cmdline").read_bytes() if entry.name.isdigit() else b""
                state = (entry / "stat").read_text().rsplit(")", 1)[1].split()[0] if mark in line else "Z"
            except OSError:
                continue
            if state != "Z" and mark in line:
                found.append(int(entry.name))
        return found

    @staticmethod
    def describe(pid):
        """Program, rank, state and, where the kernel tells it, the call that each thread waits in."""
        try:
            entry = pathlib.Path(f"/proc/{pid}")
            rank = re.search(rb"OMPI_COMM_WORLD_RANK=(\d+)", (entry / "environ").read_bytes())
            waits = [(task / "wchan").read_text() for task in (entry / "task").iterdir()]
            name = (entry / "cmdline").read_bytes().split(b"\0")[0].decode()
            state = (entry / "stat").read_text().rsplit(")", 1)[1].split()[0]
            return f"{pid} {name} rank {rank[1].decode() if rank else '-'} {state} {waits}"
        except OSError as error:
            return f"{pid} {error}"

    def ranks(self):
        def program(pid):
            try:
                return pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0].decode()
            except OSError:
                return ""
        return sorted(pid for pid in self.processes() if program(pid) == self.args.stage)

    def reference(self, job):
        path = self.work / f"reference-{job}{pathlib.Path(JOBS[job][0]).suffix}"
        if not path.exists():
            start = time.time()
            code, lines, _ = self.finish(*self.start(self.command(job, path)))
            assert code == 0, lines
            self.seconds[job] = time.time() - start
        return path

    def fresh(self):
        folder = self.work / "out"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        return folder

    def leftovers(self, output):
        return [p.name for p in output.parent.iterdir() if p != output]

    def resume(self, job, output, case):
        """An undisturbed --resume ends with the reference's bytes, and nothing beside them but the mark that it is finished."""
        code, lines, in_time = self.finish(*self.start(self.command(job, output, ["--resume"])))
        if code != 0 or not in_time:
            case["failures"].append(f"resume ended with {code}: {lines}")
        elif not filecmp.cmp(output, self.reference(job), shallow=False):
            case["failures"].append("another file than the reference")
        elif (left := self.leftovers(output)) != [f"{output.name}.finished"]:
            case["failures"].append(f"left behind: {left}, expected the mark that it is finished")

    def check(self, case, code, codes, lines, in_time, output, job):
        case["exit_code"] = code
        if code not in codes:
            case["failures"].append(f"exit code {code}, expected one of {sorted(codes)}: {lines}")
        if not in_time:
            case["failures"].append(f"not all processes ended in time: {self.hanging}")
        if len(lines) > 1:
            case["failures"].append(f"{len(lines)} lines: {lines}")
        if output.exists() and not filecmp.cmp(output, self.reference(job), shallow=False):
            case["failures"].append("a file under the final name that is not whole")

    @staticmethod
    def handles(pid, number):
        """Whether main() has set its handlers: with CUDA's libraries it takes a second until main() begins."""
        status = pathlib.Path(f"/proc/{pid}/status").read_text()
        return int(re.search(r"SigCgt:\s*(\w+)", status)[1], 16) >> (number - 1) & 1

    def interrupt(self, process, fault, job, phase, rank):
        low, high = PHASES[phase]
        self.before_main, self.victim = False, None
        time.sleep(self.seconds[job] * self.random.uniform(low, high))
        if fault in STOP_SIGNALS or fault == "kill the launcher":
            process.send_signal(STOP_SIGNALS.get(fault, signal.SIGKILL))
            return
        ranks = self.ranks()
        if not ranks:
            return
        victim = ranks[rank % len(ranks)]
        try:
            if fault == "kill":
                os.kill(victim, signal.SIGKILL)
            elif fault == "usr1 to one rank":
                self.before_main = not self.handles(victim, signal.SIGUSR1)
                os.kill(victim, signal.SIGUSR1)
            else:  # stopped, and continued unless it is stopped for good
                for _ in range(SLOW_PAUSES if fault == "slow rank" else 1):
                    os.kill(victim, signal.SIGSTOP)
                    time.sleep(0.3 if fault == "pause" else 0.05)
                    if fault == "stop for good":
                        self.victim = victim
                        return
                    os.kill(victim, signal.SIGCONT)
                    time.sleep(0.02)
        except (ProcessLookupError, FileNotFoundError):
            pass

    # 1 is mpirun's code after TERM and INT. Before main() has set its handlers, a signal ends a rank with 128 and more.
    CODES = {"usr1": {0, 75}, "usr1 to one rank": {0, 75}, "term": {0, 1, 75}, "int": {0, 1, 75}, "kill": {0},
             "pause": {0}, "slow rank": {0}, "stop for good": {0, 76}, "kill the launcher": {0}}
    OF_ONE_RANK = ("kill", "pause", "usr1 to one rank", "slow rank", "stop for good")

    def signal_case(self, job, fault, phase, rank, launcher):
        case = {"job": job, "fault": fault, "phase": phase, "rank": rank, "launcher": launcher, "failures": []}
        self.reference(job)
        output = self.fresh() / JOBS[job][0]
        extra = ["--timeout", str(self.args.stall)] if fault == "stop for good" else []
        process, log = self.start(self.command(job, output, extra, launcher=launcher))
        self.interrupt(process, fault, job, phase, rank)
        at = time.time()
        code, lines, in_time = self.finish(process, log, END_LIMIT + self.args.stall + 5 * self.seconds[job] +
                                          (START_LIMIT if phase == "start" else 0), output)
        case["seconds"] = round(time.time() - at, 3)
        killed = phase == "start" or self.before_main or "kill" in fault or (launcher == "srun" and fault in ("term", "int"))
        case["stopped at the exit"] = code is None
        self.check(case, 0 if code is None else code, self.CODES[fault] | ({1, *range(128, 166)} if killed else set()), lines, in_time, output,
                   job)
        if fault == "stop for good" and code == 76:
            stamps = output.with_name(output.name + ".stall.txt")
            if lines and "no progress" in lines[0] and not stamps.exists():
                case["failures"].append("no stamps")
            stamps.unlink(missing_ok=True)
        self.resume(job, output, case)
        return case

    def io_case(self, job, fault):
        codes, part = IO_FAULTS[fault]
        case = {"job": job, "fault": fault, "phase": "write", "rank": "any", "launcher": "mpirun", "failures": []}
        self.reference(job)
        output = self.fresh() / JOBS[job][0]
        call = 1 if fault == "nofallocate" else self.random.choice([1, 2, 3, 5, 20])
        env = {"LD_PRELOAD": self.args.faults, "IO_FAULT": f"{fault.split()[0]}:{part}:{call}"}
        code, lines, in_time = self.finish(*self.start(self.command(job, output), env))
        case["call"] = call
        codes = codes | {0}  # 0: the run has fewer such calls
        if fault.startswith("exit") or fault == "unlink":
            codes |= {1, 137}  # the exit codes that the launcher gives the others
        self.check(case, code, codes, lines, in_time, output, job)
        self.resume(job, output, case)
        return case

    def file_case(self, fault):
        case = {"job": "bin", "fault": fault, "phase": "start", "rank": "any", "launcher": "mpirun", "failures": []}
        self.reference("bin")
        output, extra, shards = self.fresh() / "o.bin", [], self.work / "shards"
        shutil.rmtree(shards, ignore_errors=True)
        shutil.copytree(self.args.shards, shards)
        shard = self.random.choice(sorted(shards.glob("*.h5")))
        data = bytearray(shard.read_bytes())
        if fault == "flip":
            data[self.random.randrange(len(data) // 2, len(data) - 4096)] ^= 0x20
            shard.write_bytes(data)
        elif fault == "truncate":
            shard.write_bytes(data[:self.random.randrange(len(data))])
        elif fault == "missing shard":
            shard.unlink()
        elif fault == "no folder":
            output = self.work / "absent" / "o.bin"
        elif fault == "bad line":
            (self.work / "in.jsonl").write_text('{"input_ids": [1, 2]}\n{"input_ids": [-1]}\n')
            extra = ["--input", str(self.work / "in.jsonl")]
        elif fault == "missing input":
            extra = ["--input", str(self.work / "nowhere.jsonl")]
        elif fault == "swapped shards":
            other = self.random.choice([path for path in shards.glob("*.h5") if path != shard])
            shard.rename(shards / "third")
            other.rename(shard)
            (shards / "third").rename(other)
        elif fault == "output not writable":
            output.parent.chmod(0o555)
        elif fault == "shard not readable":
            shard.chmod(0)
        else:
            (self.work / "in.jsonl").write_text('{"input_ids": [1, 2]}\n')
            (self.work / "in.jsonl").chmod(0)
            extra = ["--input", str(self.work / "in.jsonl")]
        command = self.command("bin", output, extra, shards)
        if fault.endswith("able") and os.geteuid() == 0:
            if not fault.startswith("output"):
                output.parent.chmod(0o777)
            home = self.work / "home"  # CUDA writes there
            home.mkdir(exist_ok=True)
            home.chmod(0o777)
            command = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "env", f"HOME={home}", *command]
        code, lines, in_time = self.finish(*self.start(command))
        # 0: the changed byte lies between two tensors.
        codes = FILE_FAULTS[fault] | ({0} if fault == "flip" else set())
        self.check(case, code, codes, lines, in_time, output, "bin")
        (self.work / "in.jsonl").unlink(missing_ok=True)
        if code != 0 and output.parent.exists() and self.leftovers(output):
            case["failures"].append(f"left behind: {self.leftovers(output)}")
        return case

    def kills(self, count):
        """kill -9 of a random rank at random instants, resuming each time, until `count` kills have hit."""
        results, hit, begun = [], 0, time.time()
        while hit < count and not self.is_late(begun):
            job = self.random.choice(sorted(JOBS))
            case = {"job": job, "fault": "kill", "launcher": "mpirun", "kills": 0, "runs": 0, "failures": []}
            self.reference(job)
            output = self.fresh() / JOBS[job][0]
            while not output.exists() and case["runs"] < 20:
                process, log = self.start(self.command(job, output, ["--resume"]))
                self.interrupt(process, "kill", job, self.random.choice(["start", "run", "run", "end"]),
                               self.random.randrange(8))
                code, lines, in_time = self.finish(process, log)
                case["runs"] += 1
                case["kills"] += code >= 128
                if not in_time or (code != 0 and (code < 128 or lines)):
                    case["failures"].append(f"exit code {code}: {lines} {self.hanging}")
            hit += case["kills"]
            if not output.exists():
                self.resume(job, output, case)
            elif not filecmp.cmp(output, self.reference(job), shallow=False):
                case["failures"].append("another file than the reference")
            results.append(self.told(case))
        return results

    def told(self, case):
        if case["failures"] or self.args.verbose:
            print(json.dumps(case), file=sys.stderr, flush=True)
        return case

    def all_cases(self):
        cases = [("signal", job, fault, phase, rank, launcher) for launcher in self.args.launchers.split(",")
                 for job in (JOBS if launcher == "mpirun" else ONE_RANK_JOBS if launcher == "none" else SRUN_JOBS)
                 for fault in self.CODES for phase in PHASES if launcher != "none" or fault not in NOBODY_NOTICES
                 for rank in (range(JOBS[job][1]) if fault in self.OF_ONE_RANK and launcher != "none" else [0])]
        cases += [("file", fault) for fault in FILE_FAULTS for _ in range(3)]
        if self.args.faults:
            cases += [("io", job, fault) for job in JOBS for fault in IO_FAULTS for _ in range(3)]
        if self.args.only:
            cases = [case for case in cases if case[1] == self.args.only or case[2:] and case[2] == self.args.only]
        self.random.shuffle(cases)
        part, parts = map(int, self.args.part.split("/"))
        return cases[part - 1::parts]

    def unanswered(self, results):
        """Each run may be done before its signal comes; not all of them."""
        found = []
        for fault in ("usr1", "usr1 to one rank"):
            codes = [case["exit_code"] for case in results if (case["fault"], case.get("phase")) == (fault, "run")]
            if len(codes) >= ENOUGH_STOPS and 75 not in codes:
                found.append(self.told({"fault": fault, "phase": "run", "failures": [f"stopped none of {len(codes)} runs"]}))
        return found

    def is_late(self, begun):
        return 0 < self.args.seconds < time.time() - begun

    def run(self):
        start = time.time()
        if self.args.kills:
            results = self.kills(self.args.kills)
        else:
            kinds = {"signal": self.signal_case, "io": self.io_case, "file": self.file_case}
            results = []
            for kind, *rest in self.all_cases()[:self.args.cases or None]:
                if self.is_late(start):
                    break
                results.append(self.told(kinds[kind](*rest)))
        cases = len(results)
        results += self.unanswered(results)
        failed = sum(bool(case["failures"]) for case in results)
        summary = {"seed": self.args.seed, "cases": cases, "failed": failed,
                   "launchers left alone": self.launchers_left, "kills": sum(case.get("kills", 0) for case in results), "seconds": round(time.time() - start, 1),
                   "results": results}
        if self.args.json:
            pathlib.Path(self.args.json).write_text(json.dumps(summary, indent=1) + "\n")
        print({key: value for key, value in summary.items() if key != "results"})
        shutil.rmtree(self.work, ignore_errors=True)
        return 1 if failed or not cases else 0


def prepare_process():
    # A launcher passes on only signals that are not blocked, and inherits the mask from here.
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    os.environ.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    os.environ.setdefault("HWLOC_COMPONENTS", "-opencl")  # as launch/run.sh: else mpirun may not pass signals on


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stage", required=True)
    parser.add_argument("--shards", required=True)
    parser.add_argument("--work", required=True, help="a folder of this campaign's own: it is emptied")
    parser.add_argument("--mpirun", default="mpirun")
    parser.add_argument("--launchers", default="mpirun,none", help="of mpirun, srun, none")
    parser.add_argument("--machine", default="--device cpu --threads 1", help="options of every run")
    parser.add_argument("--faults", help="the library of tests/support/io_faults.c")
    parser.add_argument("--stall", type=float, default=2, help="--timeout of runs with a rank that is stopped for good")
    parser.add_argument("--scale", type=int, default=1, help="so many times the samples of each job")
    parser.add_argument("--only", help="a single fault, by its name")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--cases", type=int, default=0, help="only so many, drawn from all")
    parser.add_argument("--seconds", type=float, default=0, help="begin no case after so many")
    parser.add_argument("--part", default="1/1", help="K/N: every Nth case from the Kth on, for campaigns side by side")
    parser.add_argument("--kills", type=int, default=0, help="instead: so many kill -9, resuming each time")
    parser.add_argument("--json", help="where the results go")
    parser.add_argument("--verbose", action="store_true")
    args = parser.parse_args()
    prepare_process()
    sys.exit(Campaign(args).run())


if __name__ == "__main__":
    main()
