#!/usr/bin/env python3
"""Faults against runs of lfm2_stage: every case is a job, a fault, an instant and a rank, drawn from a seed.

After each fault: the exit code that the README's table says, within the limit, no process left, nothing under the
final name unless it is whole, at most one line that names the cause; then --resume until done, equal to the file of a run that
was left alone. The result is JSON; the exit code is 1 where a case failed.

    campaign.py --stage PROGRAM --shards DIR --work DIR [--seed N] [--cases N | --kills N] [--faults PRELOADED.so]
"""
import argparse, filecmp, json, os, pathlib, random, shutil, signal, subprocess, sys, time

LIMIT = 60         # seconds that a run may take
END_LIMIT = 10     # from the fault to the end of the launcher, and of every process
STOP_SIGNALS = {"usr1": signal.SIGUSR1, "term": signal.SIGTERM, "int": signal.SIGINT}
# name: output, ranks, options
JOBS = {
    "bin": ("o.bin", 3, "--samples 4000 --micro-batch 16"),
    "h5": ("o.h5", 2, "--samples 1500 --micro-batch 16 --logits all --top-logprobs 3"),
    "jsonl": ("o.jsonl", 4, "--samples 2500 --micro-batch 16"),
    "replicas": ("o.h5", 4, "--samples 4000 --micro-batch 16 --replicas 2"),
    "text": ("o.jsonl", 2, "--samples 160 --length 5 --generate 40 --temperature 1.1 --max-sequences 12"),
    "text.h5": ("o.h5", 3, "--samples 160 --length 5 --generate 40 --max-sequences 12 --top-logprobs 2"),
}
# fault: (exit codes, part of the path that it hits)
IO_FAULTS = {"enospc": ({73, 74}, "/o."), "eio": ({74}, "/o."), "fsync": ({74}, "/o."), "slow": ({0}, "stage-")}
FILE_FAULTS = {"flip": {65}, "truncate": {65}, "missing shard": {65, 66}, "no folder": {73}, "bad line": {65},
               "missing input": {66}}
PHASES = {"start": (0.02, 0.35), "run": (0.35, 0.9), "end": (0.9, 1.05)}


class Campaign:
    def __init__(self, args):
        self.args, self.random = args, random.Random(args.seed)
        self.work = pathlib.Path(args.work)
        shutil.rmtree(self.work, ignore_errors=True)
        self.work.mkdir(parents=True)
        self.seconds = {}

    def command(self, job, output, extra=(), weights=None):
        _, ranks, options = JOBS[job]
        return ([self.args.mpirun, "-np", str(ranks), "--oversubscribe", "--bind-to", "none", self.args.stage,
                 "--weights", str(weights or self.args.shards), "--device", "cpu", "--threads", "1", "-q",
                 "--output", str(output), *options.split(), *extra])

    def start(self, command, env=None):
        log = open(self.work / "log", "w+b")
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                                   env={**os.environ, **(env or {})})
        return process, log

    def finish(self, process, log, limit=LIMIT):
        """Exit code, what was said by the program, and whether it ended in time with all its processes."""
        try:
            code, in_time = process.wait(limit), True
        except subprocess.TimeoutExpired:
            in_time = False
            for pid in self.processes():
                os.kill(pid, signal.SIGKILL)
            code = process.wait()
        until = time.time() + END_LIMIT
        while (left := self.processes()) and time.time() < until:
            time.sleep(0.01)
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        log.seek(0)
        lines = [line for line in log.read().decode(errors="replace").splitlines() if line.startswith("lfm2_stage: ")]
        log.close()
        return code if code >= 0 else 128 - code, lines, in_time and not left

    def processes(self):
        """Of this campaign: those that write into its folder."""
        found, mark = [], b"--output\0" + str(self.work).encode()
        for entry in pathlib.Path("/proc").iterdir():
            try:
                line = (entry / "cmdline").read_bytes() if entry.name.isdigit() else b""
                state = (entry / "stat").read_text().rsplit(")", 1)[1].split()[0] if mark in line else "Z"
            except OSError:
                continue
            if state != "Z" and mark in line:
                found.append(int(entry.name))
        return found

    def ranks_of(self, process):
        try:
            children = pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
            return sorted(map(int, children.split()))
        except OSError:
            return []

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
        """--resume, left alone, ends with the reference's bytes and nothing beside them."""
        code, lines, in_time = self.finish(*self.start(self.command(job, output, ["--resume"])))
        if code != 0 or not in_time:
            case["failures"].append(f"resume ended with {code}: {lines}")
        elif not filecmp.cmp(output, self.reference(job), shallow=False):
            case["failures"].append("another file than the reference")
        elif self.leftovers(output):
            case["failures"].append(f"left behind: {self.leftovers(output)}")

    def check(self, case, code, codes, lines, in_time, output, job):
        case["exit_code"] = code
        if code not in codes:
            case["failures"].append(f"exit code {code}, expected one of {sorted(codes)}: {lines}")
        if not in_time:
            case["failures"].append("not all processes ended in time")
        if len(lines) > 1:
            case["failures"].append(f"{len(lines)} lines: {lines}")
        if output.exists() and not filecmp.cmp(output, self.reference(job), shallow=False):
            case["failures"].append("a file under the final name that is not whole")

    def interrupt(self, process, fault, job, phase, rank):
        low, high = PHASES[phase]
        time.sleep(self.seconds[job] * self.random.uniform(low, high))
        if fault in STOP_SIGNALS:
            process.send_signal(STOP_SIGNALS[fault])
            return
        ranks = self.ranks_of(process)
        if not ranks:
            return
        victim = ranks[rank % len(ranks)]
        try:
            if fault == "kill":
                os.kill(victim, signal.SIGKILL)
            elif fault == "usr1 to one rank":
                os.kill(victim, signal.SIGUSR1)
            else:  # stop and go on
                os.kill(victim, signal.SIGSTOP)
                time.sleep(0.3)
                os.kill(victim, signal.SIGCONT)
        except ProcessLookupError:
            pass

    # Before main() has its handlers a signal ends a rank as the system says: 128 and more under mpirun.
    CODES = {"usr1": {0, 75}, "usr1 to one rank": {0, 75}, "term": {0, 1, 75}, "int": {0, 1, 75}, "kill": {0},
             "pause": {0}}

    def signal_case(self, job, fault, phase, rank):
        case = {"job": job, "fault": fault, "phase": phase, "rank": rank, "launcher": "mpirun", "failures": []}
        self.reference(job)
        output = self.fresh() / JOBS[job][0]
        process, log = self.start(self.command(job, output))
        self.interrupt(process, fault, job, phase, rank)
        at = time.time()
        code, lines, in_time = self.finish(process, log, END_LIMIT + 5 * self.seconds[job])
        case["seconds"] = round(time.time() - at, 3)
        killed = {c for c in range(128, 166)} if phase == "start" or fault == "kill" else set()
        self.check(case, code, self.CODES[fault] | killed | ({1} if killed else set()), lines, in_time, output, job)
        self.resume(job, output, case)
        return case

    def io_case(self, job, fault):
        codes, part = IO_FAULTS[fault]
        case = {"job": job, "fault": fault, "phase": "write", "rank": "any", "launcher": "mpirun", "failures": []}
        self.reference(job)
        output = self.fresh() / JOBS[job][0]
        call = self.random.choice([1, 2, 3, 5, 20])
        env = {"LD_PRELOAD": self.args.faults, "IO_FAULT": f"{fault}:{part}:{call}"}
        code, lines, in_time = self.finish(*self.start(self.command(job, output), env))
        case["call"] = call
        self.check(case, code, codes | {0}, lines, in_time, output, job)  # 0: fewer such calls than that
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
        else:
            extra = ["--input", str(self.work / "nowhere.jsonl")]
        code, lines, in_time = self.finish(*self.start(self.command("bin", output, extra, shards)))
        codes = FILE_FAULTS[fault] | ({0} if fault == "flip" else set())  # 0: between two tensors
        self.check(case, code, codes, lines, in_time, output, "bin")
        if code != 0 and output.parent.exists() and self.leftovers(output):
            case["failures"].append(f"left behind: {self.leftovers(output)}")
        return case

    def kills(self, count):
        """kill -9 of a random rank at random instants, resuming each time, until `count` kills have hit."""
        results, hit = [], 0
        while hit < count:
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
                case["kills"] += code != 0
                if not in_time or (code != 0 and (code < 128 or lines)):
                    case["failures"].append(f"exit code {code}: {lines}")
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
        cases = [("signal", job, fault, phase, rank) for job in JOBS for fault in self.CODES for phase in PHASES
                 for rank in (range(JOBS[job][1]) if fault in ("kill", "pause", "usr1 to one rank") else [0])]
        cases += [("file", fault) for fault in FILE_FAULTS for _ in range(3)]
        if self.args.faults:
            cases += [("io", job, fault) for job in JOBS for fault in IO_FAULTS for _ in range(3)]
        self.random.shuffle(cases)
        return cases

    def run(self):
        start = time.time()
        if self.args.kills:
            results = self.kills(self.args.kills)
        else:
            kinds = {"signal": self.signal_case, "io": self.io_case, "file": self.file_case}
            results = []
            for kind, *rest in self.all_cases()[:self.args.cases or None]:
                if self.args.seconds and time.time() - start > self.args.seconds:
                    break
                results.append(self.told(kinds[kind](*rest)))
        failed = [case for case in results if case["failures"]]
        summary = {"seed": self.args.seed, "cases": len(results), "failed": len(failed),
                   "kills": sum(case.get("kills", 0) for case in results), "seconds": round(time.time() - start, 1),
                   "results": results}
        if self.args.json:
            pathlib.Path(self.args.json).write_text(json.dumps(summary, indent=1) + "\n")
        print({key: value for key, value in summary.items() if key != "results"})
        shutil.rmtree(self.work, ignore_errors=True)
        return 1 if failed or not results else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stage", required=True)
    parser.add_argument("--shards", required=True)
    parser.add_argument("--work", required=True, help="a folder of this campaign's own: it is emptied")
    parser.add_argument("--mpirun", default="mpirun")
    parser.add_argument("--faults", help="the library of tests/support/io_faults.c")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--cases", type=int, default=0, help="only so many, drawn from all")
    parser.add_argument("--seconds", type=float, default=0, help="begin no case after so many")
    parser.add_argument("--kills", type=int, default=0, help="instead: so many kill -9, resuming each time")
    parser.add_argument("--json", help="where the results go")
    parser.add_argument("--verbose", action="store_true")
    args = parser.parse_args()
    os.environ.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    sys.exit(Campaign(args).run())


if __name__ == "__main__":
    main()
