#!/usr/bin/env python3
"""Golden cases, jobs and a server on ranks of two hosts: the bytes of one rank alone on one host.

    jobs_on_two_hosts.py RUN_SH LFM2_STAGE SHARDS_FOLDER GOLDEN_FOLDER [golden_cases|jobs|server|stamps ...]

SHARDS_FOLDER is that of tests/support/split_golden.sh. Also stops a rank of either host and looks for the stamps of its host. Ends with 77,
and a line that names the reason, where in_two_hosts.sh can make no hosts.
"""
import filecmp, json, os, pathlib, signal, subprocess, sys, time

import host_faults

FOUR, TWO = host_faults.SLOTS[4], host_faults.SLOTS[2]
CASES = {"tiny-moe-4": FOUR, "mini-24-4": FOUR, "kjv-moe-4": FOUR, "tiny-bf16-4": FOUR, "tiny-dense-4": FOUR, "tiny-lfm3-4": FOUR,
         "tiny-fp8-channel-2": TWO, "tiny-fp8-block-2": TWO, "tiny-fp8-hf-2": TWO}
# shards, output, options of all runs, ways over two hosts
JOBS = [
    ("mini-24-4", "o.bin", "--samples 1024 --length 32", ["", "--virtual-stages 0", "--balance", "--replicas 2", "--replicas 4"]),
    ("mini-24-4", "o.h5", "--samples 64 --length 32 --logits all --top-logprobs 5", ["", "--virtual-stages 2", "--replicas 2"]),
    ("kjv-moe-4", "o.jsonl", "--samples 64 --length 20 --max-tokens 48 --temperature 1.1 --max-num-seqs 16", ["", "--balance", "--replicas 2"]),
    ("kjv-moe-4", "o.h5", "--samples 32 --length 40 --max-tokens 32 --draft ngram --top-logprobs 2", ["", "--replicas 2"]),
]
REQUESTS = [{"prompt": "In the beginning", "max_tokens": 40, "temperature": 0.9, "seed": seed, "logprobs": 2} for seed in range(8)]
STAMPS_LIMIT = 3


class Jobs:
    def __init__(self, run_sh, stage, shards, golden):
        self.run_sh, self.stage, self.shards, self.golden = run_sh, stage, pathlib.Path(shards), pathlib.Path(golden)
        self.hosts, self.folder = host_faults.Hosts(), pathlib.Path(os.environ["TMPDIR"])

    def start(self, place, shards, *options, **streams):
        """On host a, with ranks at a place: --hosts SLOTS, or one rank alone."""
        command = ["nsenter", "--target", str(self.hosts.agents[0]), "--net", "--uts", "--mount", self.run_sh, *place, *options, "--weights", str(self.shards / shards),
                   "--device", "cpu", "--threads", "1"]
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, text=True, env={**os.environ, "LFM2_STAGE": self.stage}, **streams)

    def run(self, place, shards, output, *options):
        process = self.start(place, shards, "--output", str(output), *options, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        said, _ = process.communicate(timeout=120)
        if process.returncode != 0:
            sys.exit(f"{shards} {' '.join(options)} at {' '.join(place)} ended with {process.returncode}:\n{said}")
        return said

    def expect_equal(self, name, one, two):
        if not filecmp.cmp(one, two, shallow=False):
            sys.exit(f"{name}: other bytes than one rank alone")

    def golden_cases(self):
        for shards, slots in CASES.items():
            golden = self.golden / shards[:-2] / "golden.h5"
            options = ["--input", str(golden), "--logits", "all", "--reference", str(golden), "--tolerance", "1e-3"]
            if "fp8" in shards:  # whose references are not those of fp32
                options = options[:4]
            else:
                options += ["--dtype", "fp32"]
            one, two = self.folder / "one.h5", self.folder / "two.h5"
            self.run(["-n", "1"], shards, one, *options)
            said = self.run(["--hosts", slots], shards, two, *options)
            if "--reference" in options and "\nVALID" not in said:
                sys.exit(f"{shards}: not VALID:\n{said}")
            for host in "ab":
                if f"host-{host}\n" not in said:
                    sys.exit(f"{shards}: no rank on host-{host}:\n{said}")
            self.expect_equal(shards, one, two)
        print(f"{len(CASES)} golden cases: the bytes of one rank")

    def jobs(self):
        for shards, name, options, ways in JOBS:
            one, two = self.folder / f"one-{name}", self.folder / f"two-{name}"
            self.run(["-n", "1"], shards, one, *options.split())
            for way in ways:
                self.run(["--hosts", FOUR], shards, two, *options.split(), *way.split())
                self.expect_equal(f"{options} {way}", one, two)
            print(f"{options}: {len(ways)} ways over two hosts, the bytes of one rank")

    def answers(self, place, *options):
        """What the server answers, but for ids and times."""
        address = self.folder / "address"
        address.unlink(missing_ok=True)
        with open(self.folder / "log", "w+") as log:
            server = self.start([*place, "serve"], "kjv-moe-4", "--port", "0", "--address-file", str(address), *options, stdout=log, stderr=log)
            try:
                end = time.monotonic() + 30
                while not address.exists():
                    if server.poll() is not None or time.monotonic() > end:
                        sys.exit(f"no server: {(self.folder / 'log').read_text()}")
                    time.sleep(0.05)
                asked = ["curl", "--silent", "--show-error", "--fail-with-body", "--max-time", "60"]
                clients = [subprocess.Popen(["nsenter", "--target", str(self.hosts.agents[0]), "--net", *asked, "--json", json.dumps(request),
                                             address.read_text().strip() + "/v1/completions"], stdout=subprocess.PIPE, text=True) for request in REQUESTS]
                answers = [json.loads(client.communicate()[0]) for client in clients]
            finally:
                server.send_signal(signal.SIGUSR1)
                code = server.wait(60)
        if code != 0:
            sys.exit(f"the server ended with {code}: {(self.folder / 'log').read_text()}")
        return [{key: answer[key] for key in ("choices", "usage")} for answer in answers]

    def server(self):
        one = self.answers(["-n", "1"])
        for way in [], ["--replicas", "2"]:
            if self.answers(["--hosts", FOUR], *way) != one:
                sys.exit(f"serve {' '.join(way)} over two hosts: other answers than of one rank")
        print(f"{len(one)} answers of a server on two hosts, and of replicas: those of one rank")

    def stamps(self):
        for host in (0, 1):
            output = self.folder / "s.bin"
            process = self.start(["--hosts", FOUR], "tiny-moe-4", "--samples", "1000000", "--micro-batch", "16", "--timeout", str(STAMPS_LIMIT), "--output", str(output),
                                 stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            journal = output.with_name("s.bin.journal")
            while process.poll() is None and not (journal.exists() and journal.stat().st_size > 2000):
                time.sleep(0.05)
            stopped = next(pid for place, _, pid in self.hosts.ranks() if place == host)
            os.kill(stopped, signal.SIGSTOP)
            said, _ = process.communicate(timeout=90)
            file = self.folder / f"s.bin.stall.txt.host-{'ab'[host]}"
            if process.returncode != 76 or str(file) not in said:
                sys.exit(f"a rank of host-{'ab'[host]} stopped: ended with {process.returncode}, and does not name {file}:\n{said}")
            text = file.read_text()
            for rank in (2 * host, 2 * host + 1):
                if f"rank {rank}, process " not in text:
                    sys.exit(f"{file} has no stamps of rank {rank}:\n{text}")
            for old in self.folder.glob("s.bin*"):
                old.unlink()
        print("a stopped rank of either host: its host's file has the stamps of both ranks there")


def main():
    if "LFM2_HOSTS" not in os.environ:
        starter = pathlib.Path(__file__).with_name("in_two_hosts.sh")
        os.execv(starter, [str(starter), sys.executable, *sys.argv])
    jobs = Jobs(*sys.argv[1:5])
    for part in sys.argv[5:] or ["golden_cases", "jobs", "server", "stamps"]:
        getattr(jobs, part)()


if __name__ == "__main__":
    main()
