#!/usr/bin/env python3
"""A job of many hours under faults: preemptions, lost ranks and hosts, full disks, stalls, and a wall clock that jumps.

    long_job.py --stage PROGRAM --shards DIR --work DIR --faults IO_FAULTS.so --clock FAST_CLOCK.so [--hours 24] [--json FILE]

A run that is left alone, by the machine's clock, makes the reference. Then the same job runs by a clock that is so much faster that
the reference and the starts of all runs would have taken --hours. Whenever another share of the output is written, a fault ends the run, and --resume continues
it. At random instants the wall clock jumps by up to three days, forward or back. Expected: each run ends with the exit code of its
fault, within the limit, with no process left; the whole takes at least --hours by the fast clock; all faults hit; and the output is
the reference, byte for byte. The result is JSON, the exit code 1 where something else happened.
"""
import argparse, filecmp, json, os, pathlib, random, shutil, signal, struct, sys, time

import campaign

TIMEOUT = 2        # --timeout of each run in real seconds: a rank on a loaded machine may wait for its turn
RUN_LIMIT = 120    # real seconds that a run may take until its fault, and the last one until its end
JUMP = 3 * 86400   # seconds
# fault: (how often in 60 preemptions, exit codes); 137: mpirun reports a killed rank; 70, 76: another rank noticed it first
FAULTS = {"preemption": (60, {75}), "lost rank": (6, {137, 70, 76}), "lost host": (6, {137, 70, 76}), "full disk": (6, {73, 74}), "stalled rank": (2, {76})}


class Clock:
    """The clock of the preloaded library, which reads this file again and again."""

    def __init__(self, path, speed):
        self.path, self.speed, self.jumps = path, speed, []
        self.origin = (time.monotonic_ns(), time.time_ns())
        self.set(0)

    def set(self, off_seconds):
        data = struct.pack("=4q", self.speed, *self.origin, int(off_seconds * 1e9))
        with open(self.path, "r+b" if self.path.exists() else "w+b", buffering=0) as file:
            file.write(data)

    def jump(self, off_seconds):
        self.jumps.append(round(off_seconds))
        self.set(off_seconds)

    def hours(self):
        return (time.monotonic_ns() - self.origin[0]) * self.speed / 3600e9


class LongJob(campaign.Campaign):
    def __init__(self, args):
        super().__init__(args)
        self.clock = None

    def command(self, job, output, extra=(), weights=None, launcher="mpirun"):
        command = super().command(job, output, extra, weights, launcher)
        if self.clock:
            place = command.index(self.args.stage)
            preloaded = f"{self.args.clock}:{self.args.faults}"
            command[place:place] = ["env", f"LD_PRELOAD={preloaded}", f"FAST_CLOCK={self.clock.path}"]
        return command

    def resuming(self, output):
        return self.command(self.args.job, output, ["--resume", "--timeout", str(TIMEOUT * self.clock.speed)])

    def written(self, output):
        """The share of the output that is there."""
        partial = output.with_name(output.name + ".partial")
        try:
            return partial.stat().st_size / self.reference(self.args.job).stat().st_size
        except FileNotFoundError:
            return 0

    def wait_until(self, share, process, output):
        end = time.monotonic() + RUN_LIMIT
        while self.written(output) < share and process.poll() is None and time.monotonic() < end:
            time.sleep(0.01)

    def strike(self, fault, process):
        if fault == "preemption":
            process.send_signal(signal.SIGUSR1)
            return
        ranks = self.ranks()  # in the order of their starts, which is that of their numbers
        half = len(ranks) // 2
        lost = {"lost rank": [self.random.choice(ranks)], "lost host": self.random.choice([ranks[:half], ranks[half:]]),
                "stalled rank": [self.random.choice(ranks)]}[fault]
        for rank in lost:
            os.kill(rank, signal.SIGSTOP if fault == "stalled rank" else signal.SIGKILL)

    def once(self, fault, share, output):
        """A run that this fault ends once `share` of the output is written."""
        run = {"fault": fault, "share": round(share, 3), "failures": []}
        share = max(share, self.written(output) + 0.2 / self.args.preemptions)  # after its start, although more is written than the last fault waited for
        env = {"IO_FAULT": f"enospc:/o.:{self.random.randrange(3, 30)}"} if fault == "full disk" else {}
        process, log = self.start(self.resuming(output), env)
        if self.random.random() < 0.5:
            self.wait_until(share - 0.3 / self.args.preemptions, process, output)
            self.clock.jump(self.random.uniform(-JUMP, JUMP))
        if fault != "full disk":
            self.wait_until(share, process, output)
            if process.poll() is None:
                self.strike(fault, process)
        code, lines, in_time = self.finish(process, log, RUN_LIMIT)
        run |= {"code": code, "lines": lines, "hours": round(self.clock.hours(), 2)}
        if code not in FAULTS[fault][1]:
            run["failures"].append(f"ended with {code}, expected one of {sorted(FAULTS[fault][1])}")
        if not in_time:
            run["failures"].append(f"not all processes ended in time: {self.hanging}")
        if fault == "stalled rank" and not any(f"--timeout {TIMEOUT * self.clock.speed:g}" in line for line in lines):
            run["failures"].append("no line names the time limit")
        output.with_name(output.name + ".stall.txt").unlink(missing_ok=True)
        return run

    def run(self):
        counts = {fault: max(1, count * self.args.preemptions // FAULTS["preemption"][0]) for fault, (count, _) in FAULTS.items()}
        faults = [fault for fault, count in counts.items() for _ in range(count)]
        self.random.shuffle(faults)
        begin = time.monotonic()
        reference = self.reference(self.args.job)
        least = self.seconds[self.args.job] + 0.5 * len(faults)  # each run takes half a second to start MPI, or longer
        self.clock = Clock(self.work / "clock", max(1, round(3600 * self.args.hours / least)))
        output = self.fresh() / campaign.JOBS[self.args.job][0]
        runs = []
        for number, fault in enumerate(faults, 1):
            runs.append(self.once(fault, 0.8 * number / len(faults), output))
            if runs[-1]["failures"] or self.args.verbose:
                print(json.dumps(runs[-1]), file=sys.stderr, flush=True)
            if output.exists():
                break
        code, lines, in_time = self.finish(*self.start(self.resuming(output)), RUN_LIMIT)
        hours = self.clock.hours()
        failures = [f"{run['fault']}: {failure}" for run in runs for failure in run["failures"]]
        if len(runs) < len(faults):
            failures.append(f"the job was done after {len(runs)} of {len(faults)} faults: a larger --scale is needed")
        if code != 0 or not in_time:
            failures.append(f"the last run ended with {code}: {lines}")
        elif not filecmp.cmp(output, reference, shallow=False):
            failures.append("other bytes than the run that was left alone")
        elif (left := self.leftovers(output)) != [f"{output.name}.finished"]:
            failures.append(f"left behind: {left}")
        if hours < self.args.hours:
            failures.append(f"{hours:.1f} hours by the fast clock, expected {self.args.hours}")
        summary = {"job": self.args.job, "seed": self.args.seed, "hours": round(hours, 2), "speed": self.clock.speed, "faults": counts,
                   "clock jumps": len(self.clock.jumps), "seconds": round(time.monotonic() - begin, 1), "failures": failures}
        if self.args.json:
            pathlib.Path(self.args.json).write_text(json.dumps({**summary, "jumps in seconds": self.clock.jumps, "runs": runs}, indent=1) + "\n")
        print(json.dumps(summary))
        shutil.rmtree(self.work, ignore_errors=True)
        return 1 if failures else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stage", required=True)
    parser.add_argument("--shards", required=True)
    parser.add_argument("--work", required=True, help="a folder of this job's own: it is emptied")
    parser.add_argument("--faults", required=True, help="the library of tests/support/io_faults.c")
    parser.add_argument("--clock", required=True, help="the library of tests/support/fast_clock.c")
    parser.add_argument("--mpirun", default="mpirun")
    parser.add_argument("--machine", default="--device cpu --threads 1", help="options of every run")
    parser.add_argument("--job", default="text.replicas", choices=[name for name, (output, _, _) in campaign.JOBS.items() if output.endswith(".jsonl")])
    parser.add_argument("--scale", type=int, default=100, help="multiplies the samples of the job")
    parser.add_argument("--hours", type=float, default=24, help="at least this long by the fast clock")
    parser.add_argument("--preemptions", type=int, default=60, help="other faults come in proportion, each at least once")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", help="where the result goes")
    parser.add_argument("--verbose", action="store_true")
    args = parser.parse_args()
    args.work = str(pathlib.Path(args.work).absolute())
    campaign.prepare_process()
    sys.exit(LongJob(args).run())


if __name__ == "__main__":
    main()
