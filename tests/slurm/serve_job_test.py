#!/usr/bin/env python3
"""launch/slurm/serve.sbatch under a real Slurm: the address, the end before the time limit, the next start, a rank that is lost.

    tests/slurm/serve_job_test.py LFM2_STAGE MPIRUN SHARDS_FOLDER [UNITTEST OPTION...]

Ends with 77 where Slurm is not installed."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time
import unittest
import urllib.error
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import cluster as slurm  # noqa: E402
import slurm_test  # noqa: E402
from slurm_test import LAUNCHERS, ROOT, ended, run, spool, state, wait_for  # noqa: E402

JOB = str(ROOT / "launch/slurm/serve.sbatch")


def processes(job_folder):
    """The processes of the server that serves from this folder, by rank."""
    ranks = {}
    for entry in pathlib.Path("/proc").iterdir():
        try:
            if not entry.name.isdigit() or (entry / "comm").read_text().strip() != "lfm2_stage" or str(job_folder).encode() not in (entry / "cmdline").read_bytes():
                continue
            variables = dict(line.split(b"=", 1) for line in (entry / "environ").read_bytes().split(b"\0") if b"=" in line)
            ranks[int(variables.get(b"OMPI_COMM_WORLD_RANK", variables.get(b"PMIX_RANK")))] = int(entry.name)
        except OSError:
            continue
    return ranks


class ServeJobTest(slurm_test.JobTest):

    def start(self, launcher, *options):
        self.address = self.folder / "address"
        variables = dict(os.environ, LFM2_STAGE=slurm_test.program, LFM2_LAUNCHER=launcher, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
        done = run("sbatch", "--parsable", "--cpus-per-task=1", f"--chdir={self.folder}", "--output=job-%j.log", *options, JOB, "--weights", slurm_test.shards,
                   "--threads", "1", "--device", "cpu", "--address-file", self.address, env=variables)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout.strip()

    def ask(self):
        """The address that is in the file, once it has answered a completion."""
        wait_for(self.address.exists, f"address: {self.logs()}")
        url = self.address.read_text().strip()
        body = json.dumps({"prompt": "In the beginning", "max_tokens": 5, "temperature": 0}).encode()
        with urllib.request.urlopen(urllib.request.Request(f"{url}/v1/completions", body), timeout=20) as answer:
            self.assertEqual(json.load(answer)["usage"]["completion_tokens"], 5)
        return url

    def expect_served_again(self, job, first):
        wait_for(lambda: state(job)[0] == "PENDING" and state(job)[1] == 1, f"requeue: {state(job)} {self.logs()}")
        self.assertFalse(self.address.exists())
        with self.assertRaises(urllib.error.URLError):
            urllib.request.urlopen(f"{first}/health", timeout=5)
        wait_for(lambda: not list(spool().glob(f"spool.*/stepd.*.{state(job)[3]}.*")), "end of the first run's daemons")
        time.sleep(1.5)  # see slurm_test
        self.assertEqual(run("scontrol", "update", f"JobId={job}", "StartTime=now").returncode, 0)
        self.ask()
        run("scancel", job)
        wait_for(lambda: ended(job), "end")
        self.assertEqual(state(job)[:2], ("CANCELLED", 1), self.logs())
        self.assertFalse(self.address.exists())

    def each_launcher(self, test):
        for launcher in LAUNCHERS:
            with self.subTest(launcher=launcher):
                test(launcher)

    def test_drains_on_request_and_is_queued_again(self):
        def test(launcher):
            job = self.start(launcher)
            first = self.ask()
            run("scancel", "--batch", "--signal=USR1", job)
            wait_for(lambda: state(job)[1] == 1, f"requeue: {state(job)} {self.logs()}")
            self.assertIn("queued again", self.logs())
            self.expect_served_again(job, first)

        self.each_launcher(test)

    def test_time_limit(self):
        job = self.start("srun", "--time=1", "--signal=B:USR1@50")
        first = self.ask()
        self.expect_served_again(job, first)

    def test_lost_rank_starts_anew(self):
        def test(launcher):
            job = self.start(launcher)
            self.ask()
            ranks = processes(self.folder)
            self.assertEqual(sorted(ranks), [0, 1, 2, 3])
            os.kill(ranks[2], signal.SIGKILL)
            wait_for(lambda: not self.address.exists(), f"end of the first run: {self.logs()}")
            self.ask()
            self.assertEqual(state(job)[:2], ("RUNNING", 0))
            self.assertIn("started again, 1", self.logs())
            run("scancel", job)
            wait_for(lambda: ended(job), "end")

        self.each_launcher(test)

    def test_server_that_never_answers_is_not_started_again(self):
        done = subprocess.run(["sbatch", "--wait", "--parsable", "--cpus-per-task=1", f"--chdir={self.folder}", "--output=job-%j.log", JOB, "--weights",
                               str(self.folder / "nowhere")], capture_output=True, text=True, env=dict(os.environ, LFM2_STAGE=slurm_test.program))
        self.assertEqual(done.returncode, 66, self.logs())
        self.assertNotIn("anew", self.logs())


if __name__ == "__main__":
    sys.exit(slurm_test.main())  # of the tests in this file
