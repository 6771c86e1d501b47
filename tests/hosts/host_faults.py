#!/usr/bin/env python3
"""Faults between two hosts: jobs of ranks on both, a fault in one of them or in the link, then --resume until done.

    in_two_hosts.sh host_faults.py RUN_SH LFM2_STAGE SHARDS [--cases N] [--seed N] [--json FILE]

Each case is a job, a fault, and an instant, in an order drawn from the seed: a rank of either host is killed or stopped for good, the link goes down for
good, the link loses 1 % of its packets. Expected: the exit code that docs/formats.md says, within the limit; a line that names the rank or the host; no
rank left on either host; nothing under the final name unless it is whole; and after --resume the bytes of a run that was left alone. A link that loses
packets only makes a job slower. The result is JSON, the exit code 1 where a case failed, and 77 where the kernel drops no packets.
"""
import argparse, filecmp, json, os, pathlib, random, re, signal, subprocess, sys, time

A, B = 0, 1
TIMEOUT = 3    # --timeout of every job, in seconds
LIMIT = 60     # seconds that a run may take
END_LIMIT = 25  # from a fault to the end of every rank on both hosts: the timeout, the head starts of four ranks, and Open MPI's own end
START_LIMIT = 10 * TIMEOUT + END_LIMIT  # while a rank may be loading (kDiskFactor)
END_LIMIT_OF_REPLICAS = 20 * TIMEOUT + END_LIMIT  # where the other host waits for one that may be writing (kSilentTimeoutsOfRank0)
SLOTS = {4: "10.213.77.1:2,10.213.77.2:2", 2: "10.213.77.1:1,10.213.77.2:1"}
# name: output, ranks (half of them on each host), options
JOBS = {
    "scoring": ("o.bin", 4, "--samples 40000 --micro-batch 16"),
    "scoring.replicas": ("o.h5", 4, "--samples 40000 --micro-batch 16 --replicas 2"),
    "text": ("o.jsonl", 4, "--samples 1200 --length 5 --max-tokens 40 --temperature 1.1 --max-num-seqs 12"),
    "text.replicas": ("o.jsonl", 4, "--samples 1200 --length 5 --max-tokens 40 --temperature 1.1 --max-num-seqs 6 --replicas 2"),
}
FAULTS = ("kill on a", "kill on b", "stop on a", "stop on b", "link down", "link loses packets")
INSTANTS = {"early": 0.35, "middle": 0.6, "late": 0.8}  # of the seconds that the job takes when it is left alone


class Hosts:
    """The namespaces of both hosts, and the ranks in them."""

    def __init__(self):
        self.agents = [int(agent) for agent in os.environ["LFM2_HOSTS"].split()]

    def on(self, host, *command, **options):
        return subprocess.run(["nsenter", "--target", str(self.agents[host]), "--net", "--uts", "--mount", *command], **options)

    def namespace(self, process):
        try:
            return os.readlink(f"/proc/{process}/ns/net")
        except OSError:
            return None

    def ranks(self):
        """Host, rank and process of each rank that has not ended."""
        spaces, found = [self.namespace(agent) for agent in self.agents], []
        for process in filter(str.isdigit, os.listdir("/proc")):
            try:
                environment = pathlib.Path(f"/proc/{process}/environ").read_bytes().split(b"\0")
                name, state = pathlib.Path(f"/proc/{process}/comm").read_text().strip(), pathlib.Path(f"/proc/{process}/stat").read_text().rsplit(")")[1].split()[0]
            except OSError:
                continue
            rank = [entry for entry in environment if entry.startswith(b"OMPI_COMM_WORLD_RANK=")]
            space = self.namespace(process)
            if rank and space in spaces and name == "lfm2_stage" and state != "Z":
                found.append((spaces.index(space), int(rank[0].split(b"=")[1]), int(process)))
        return sorted(found)

    def link(self, up):
        self.on(A, "ip", "link", "set", "va", "up" if up else "down", check=True)

    def lose_packets(self, lose):
        rules = ["flush ruleset"]
        if lose:
            rules += ["add table ip t", "add chain ip t in { type filter hook input priority 0 ; }", 'add rule ip t in iifname "v*" numgen random mod 100 < 1 counter drop']
        for host in (A, B):
            self.on(host, "nft", "-f", "-", input="\n".join(rules), text=True, check=True)

    def lost_packets(self):
        listings = (self.on(host, "nft", "list", "ruleset", capture_output=True, text=True).stdout for host in (A, B))
        return sum(int(count) for listing in listings for count in re.findall(r"counter packets (\d+)", listing))

    def mend(self):
        self.link(True)
        self.lose_packets(False)
        time.sleep(1)  # a link that came up passes packets a moment later


class Faults:
    def __init__(self, args):
        self.args, self.hosts, self.random = args, Hosts(), random.Random(args.seed)
        self.work = pathlib.Path(os.environ["TMPDIR"])
        self.seconds, self.whole = {}, {}

    def start(self, job, output, *more):
        _, ranks, options = JOBS[job]
        self.log = open(self.work / "log", "w+")
        command = [self.args.run_sh, "--hosts", SLOTS[ranks], "--weights", self.args.shards, "--device", "cpu", "--threads", "1", "-q", "--timeout", str(TIMEOUT),
                   "--output", str(output), *options.split(), *more]
        return subprocess.Popen(["nsenter", "--target", str(self.hosts.agents[A]), "--net", "--uts", "--mount", *command], stdout=self.log, stderr=self.log,
                                stdin=subprocess.DEVNULL, start_new_session=True, env={**os.environ, "LFM2_STAGE": self.args.stage, "LFM2_LOST_SECONDS": "5"})

    def finish(self, process, limit):
        """The exit code, or None where the launcher or a rank outlived the limit; those are killed then."""
        until, code = time.time() + limit, None
        while time.time() < until and (code is None or self.hosts.ranks()):
            code = process.poll()
            time.sleep(0.05)
        left = self.hosts.ranks()
        if code is None or left:
            self.left = [f"rank {rank} on host-{'ab'[host]}" for host, rank, _ in left] + (["the launcher"] if code is None else [])
            for _, _, pid in left:
                os.kill(pid, signal.SIGKILL)
            if code is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            return None
        return code if code >= 0 else 128 - code

    def said(self):
        return (self.work / "log").read_text()

    def run_whole(self, job):
        output = self.work / f"{job}-{JOBS[job][0]}"
        begin = time.time()
        if self.finish(self.start(job, output), LIMIT) != 0:
            sys.exit(f"{job}, left alone, failed:\n{self.said()}")
        self.seconds[job], self.whole[job] = time.time() - begin, output

    def strike(self, fault, job):
        """Carries out the fault. Returns what a line must name, or None where no rank was left to strike."""
        if fault == "link down":
            self.hosts.link(False)
            return "rank [0-9]|host-[ab]"
        if fault == "link loses packets":
            return ""
        ranks = [entry for entry in self.hosts.ranks() if entry[0] == "ab".index(fault[-1])]
        if not ranks:
            return None
        _, rank, process = self.random.choice(ranks)
        os.kill(process, signal.SIGKILL if fault.startswith("kill") else signal.SIGSTOP)
        return f"rank {rank}\\b|host-{fault[-1]}"

    def case(self, job, fault, instant):
        name, result = JOBS[job][0], {"job": job, "fault": fault, "instant": instant, "wrong": []}
        output, wrong = self.work / name, result["wrong"]
        for old in self.work.glob(name + "*"):
            old.unlink()
        for old in self.work.glob("*.stall.txt*"):
            old.unlink()
        if fault == "link loses packets":
            self.hosts.lose_packets(True)
        process = self.start(job, output)
        time.sleep(self.seconds[job] * INSTANTS[instant])
        named, begin = self.strike(fault, job), time.time()
        limit = LIMIT if fault == "link loses packets" else END_LIMIT_OF_REPLICAS if job.endswith("replicas") else START_LIMIT if instant == "early" else END_LIMIT
        code = self.finish(process, limit)
        result |= {"code": code, "seconds": round(time.time() - begin, 1), "said": [line for line in self.said().splitlines() if line.startswith("lfm2_stage")][:3]}
        if fault == "link loses packets":
            result["packets"] = self.hosts.lost_packets()
            if code != 0 or not result["packets"]:
                wrong.append(f"ended with {code} after {result['packets']} lost packets")
        elif code is None and (not output.exists() or len(self.left) > 2):
            wrong.append(f"still there after {limit} s: {', '.join(self.left)}")
        elif named is None or output.exists():
            result["missed"] = True  # the job was done; at most the rank that was struck had still to exit
        else:
            # 137: mpirun says that a rank was killed, or run.sh has killed an mpirun that does not end.
            expected = {76, 70} if fault.startswith("stop") else {137, 76, 70}
            if code not in expected:
                wrong.append(f"ended with {code}, expected one of {sorted(expected)}")
            if not re.search(named, self.said()):
                wrong.append(f"nothing names {named}")
        if output.exists() and not filecmp.cmp(output, self.whole[job], shallow=False):
            wrong.append("a file under the final name that is not whole")
        self.hosts.mend()
        if not output.exists():
            code = self.finish(self.start(job, output, "--resume"), LIMIT)
            if code != 0 or not output.exists() or not filecmp.cmp(output, self.whole[job], shallow=False):
                wrong.append(f"--resume ended with {code}, or with other bytes")
        if wrong:
            result["log"] = self.said()[-2000:]
        return result

    def all(self):
        self.hosts.mend()
        for job in JOBS:
            self.run_whole(job)
        cases = [(job, fault, instant) for job in JOBS for fault in FAULTS for instant in INSTANTS]
        self.random.shuffle(cases)
        cases = [case for case in cases if self.args.only in ", ".join(case)]
        results = []
        for number, case in enumerate(cases[:self.args.cases]):
            results.append(self.case(*case))
            last = results[-1]
            print(f"{number + 1}: {', '.join(case)}: code {last['code']} after {last['seconds']} s{', missed' * last.get('missed', False)} {last['wrong'] or ''}", flush=True)
        return results


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run_sh")
    parser.add_argument("stage")
    parser.add_argument("shards")
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="cases that contain this, as in 'text, link down'")
    parser.add_argument("--json", type=pathlib.Path)
    args = parser.parse_args()
    if "LFM2_HOSTS" not in os.environ:
        starter = pathlib.Path(__file__).with_name("in_two_hosts.sh")
        os.execv(starter, [str(starter), sys.executable, *sys.argv])
    faults = Faults(args)
    try:
        faults.hosts.lose_packets(True)
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"Skipped: nft drops no packets here: {error}")
        sys.exit(77)
    results = faults.all()
    summary = {"cases": len(results), "failed": sum(bool(result["wrong"]) for result in results), "missed": sum(result.get("missed", False) for result in results)}
    print(json.dumps(summary))
    if args.json:
        args.json.write_text(json.dumps({**summary, "results": results}, indent=1))
    sys.exit(summary["failed"] > 0)


if __name__ == "__main__":
    main()
