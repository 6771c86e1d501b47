#!/usr/bin/env python3
"""The batch scripts of launch/ with stand-ins for the batch systems' commands, the launcher and the program.

    tests/hosts/batch_scripts.py [UNITTEST OPTION...]

What stands in for the launcher ends by USR1 until it listens, and may lose the first one; so does the program."""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

LAUNCH = pathlib.Path(__file__).resolve().parents[2] / "launch"
SYSTEMS = {"slurm": "slurm/job.sbatch", "pbs": "pbs/job.pbs", "lsf": "lsf/job.lsf"}
SERVE = "slurm/serve.sbatch"

LAUNCHER = """
words = sys.argv[1:]
while os.path.basename(words[0]) not in ("env", "bash", "lfm2_stage"):
    words.pop(0)
note("starting", words)
time.sleep(setting("start"))
lose = [1] * int(setting("lose"))
rank = []
signal.signal(signal.SIGUSR1, lambda *_: lose.pop() if lose else [each.send_signal(signal.SIGUSR1) for each in rank])
rank.append(subprocess.Popen(words))
code = rank[0].wait()
os._exit(code if code >= 0 else 128 - code)  # sys.exit would restore the default action before it ends
"""
PROGRAM = """
if sys.argv[1:] == ["--help"]:
    note("help", [])
    time.sleep(setting("help"))
    print("--resume")
    sys.exit(0)
note("running", sys.argv[1:])
time.sleep(setting("listen"))
if setting("progress"):
    with open("out.bin.journal", "ab") as journal:
        journal.write(bytes(64))
if setting("dies"):
    os.kill(os.getpid(), signal.SIGUSR1)
else:
    signal.signal(signal.SIGUSR1, lambda *_: os._exit(75))
signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR1})
note("listening", [])
time.sleep(setting("work"))
"""
COMMON = """#!%s
import json, os, signal, subprocess, sys, time
def note(what, words):
    with open(os.environ["TEST_NOTES"], "a") as notes:
        notes.write(json.dumps([what, words]) + "\\n")
def setting(name):
    return float(os.environ.get("TEST_" + name.upper(), 0))
""" % sys.executable


class BatchScriptsTest(unittest.TestCase):

    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="lfm2-batch-test-"))
        self.addCleanup(shutil.rmtree, self.folder, True)
        (self.folder / "bin").mkdir()
        for name in ("srun", "mpirun"):
            self.add_command(name, COMMON + LAUNCHER)
        self.add_command("lfm2_stage", COMMON + PROGRAM)
        note = '#!/bin/sh\necho "[\\"$(basename "$0")\\", [\\"$1\\"]]" >>"$TEST_NOTES"\n'
        self.add_command("scontrol", note + "[ $1 != show ] || echo JobState=RUNNING\n")
        self.add_command("qrerun", note)
        self.add_command("brequeue", note)
        self.add_command("qstat", '#!/bin/sh\n[ -z "$TEST_WALLTIME" ] || echo "    Resource_List.walltime = $TEST_WALLTIME"\n')
        self.add_command("sleep", f"#!/bin/sh\nexec {shutil.which('sleep')} 0.05\n")  # the scripts wait for seconds
        (self.folder / "hosts").write_text("localhost\n")

    def add_command(self, name, text):
        file = self.folder / "bin" / name
        file.write_text(text)
        file.chmod(0o755)

    def start(self, system, arguments=("--output", "out.bin"), environment=None, script=None, **settings):
        """Starts the script; settings are of the stand-ins."""
        self.notes = self.folder / "notes"
        self.notes.unlink(missing_ok=True)
        variables = dict(os.environ, PATH=f"{self.folder}/bin:{os.environ['PATH']}", TEST_NOTES=str(self.notes), TEST_WORK="20")
        variables.update({
            "slurm": {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "1", "SLURM_SUBMIT_DIR": str(self.folder), "SLURM_JOB_NAME": "a&b"},
            "pbs": {"PBS_JOBID": "7.server", "PBS_O_WORKDIR": str(self.folder), "PBS_JOBNAME": "a&b", "PBS_NODEFILE": "hosts"},
            "lsf": {"LSB_JOBID": "7", "LSB_JOBINDEX": "0", "LS_SUBCWD": str(self.folder), "LSB_JOBNAME": "a&b", "LSB_DJOB_HOSTFILE": "hosts"},
        }[system])
        variables.update({f"TEST_{name.upper()}": str(value) for name, value in settings.items()})
        variables.update({"LFM2_LAUNCH": str(LAUNCH)} | (environment or {}))
        variables.pop("LFM2_STAGE", None)
        words = list(arguments)
        if system != "slurm":
            variables["LFM2_ARGUMENTS"] = " ".join(words)
            words = []
        self.process = subprocess.Popen(["bash", str(LAUNCH / (script or SYSTEMS[system])), *words], cwd=self.folder, env=variables, stderr=subprocess.PIPE, text=True)
        self.addCleanup(self.process.kill)

    def noted(self, what):
        lines = self.notes.read_text().splitlines() if self.notes.exists() else []
        return [words for kind, words in map(json.loads, lines) if kind == what]

    def wait_for(self, what):
        end = time.monotonic() + 20
        while not self.noted(what):
            self.assertLess(time.monotonic(), end, what)
            time.sleep(0.01)

    def end(self, signal_number=None, after=None):
        """The exit code and whether the job was queued again."""
        if after:
            self.wait_for(after)
        if signal_number:
            self.process.send_signal(signal_number)
        _, self.errors = self.process.communicate(timeout=30)
        again = [["requeue"] in self.noted("scontrol"), bool(self.noted("qrerun")), bool(self.noted("brequeue"))]
        return self.process.returncode, any(again)

    def each_system(self, test):
        for system in SYSTEMS:
            with self.subTest(system=system):
                (self.folder / "out.bin.fruitless").unlink(missing_ok=True)
                test(system)

    def test_a_stop_before_the_ranks_are_started(self):
        def test(system):
            self.start(system, help=0.2)
            self.assertEqual(self.end(signal.SIGUSR1, "help"), (75, True), self.errors)
            self.assertEqual(self.noted("starting"), [])

        self.each_system(test)

    def test_a_stop_while_they_start_and_one_that_is_lost(self):
        def test(system):
            self.start(system, start=0.2, lose=1, listen=0.3)
            self.assertEqual(self.end(signal.SIGUSR1, "starting"), (75, True), self.errors)
            self.assertEqual(len(self.noted("running")), 1)

        self.each_system(test)

    def test_a_server_that_is_asked_to_end_while_it_starts(self):
        self.start("slurm", script=SERVE, start=0.2, lose=1, listen=0.3)
        self.assertEqual(self.end(signal.SIGUSR1, "starting"), (75, True), self.errors)
        self.assertEqual(len(self.noted("running")), 1)

    def test_a_rank_that_ends_by_the_signal(self):
        self.start("slurm", dies=1, listen=0.3, lose=9)
        self.assertEqual(self.end(signal.SIGUSR1, "running"), (75, True), self.errors)
        self.start("slurm", dies=1)
        self.assertEqual(self.end(), (138, False), self.errors)  # nobody asked

    def test_three_runs_in_a_row_without_a_sample(self):
        count = self.folder / "out.bin.fruitless"
        for before, progress, again, after in (None, 0, True, "1\n"), ("2\n", 1, True, None), ("2\n", 0, False, None):
            if before:
                count.write_text(before)
            self.start("slurm", progress=progress)
            self.assertEqual(self.end(signal.SIGUSR1, "listening"), (75, again), self.errors)
            self.assertEqual(count.read_text() if count.exists() else None, after)
        self.assertIn("three runs in a row", self.errors)

    def test_the_end_of_a_job_is_no_request_to_queue_it_again(self):
        for system in ("pbs", "lsf"):
            with self.subTest(system=system):
                self.start(system)
                self.assertEqual(self.end(signal.SIGTERM, "listening"), (75, False), self.errors)

    def test_pbs_warns_itself(self):
        self.start("pbs", walltime="00:02:00")
        self.assertEqual(self.end(), (75, True), self.errors)
        self.start("pbs", walltime="00:02:01")
        self.wait_for("running")
        self.assertEqual(self.end(), (75, True), self.errors)

    def test_names(self):
        arguments = ["--prompt", "50%j", "--stop=%x", "--output", "out-%A-%a-%j-%x.bin"]
        arrays = {"slurm": {"SLURM_ARRAY_JOB_ID": "5", "SLURM_ARRAY_TASK_ID": "3"}, "pbs": {"PBS_JOBID": "5[3].server", "PBS_ARRAY_INDEX": "3"},
                  "lsf": {"LSB_JOBID": "5", "LSB_JOBINDEX": "3", "LSB_JOBNAME": "a&b[1-8]"}}  # yapf: disable

        def test(system):
            resume = [] if system == "slurm" else ["--resume"]
            job = "7" if system == "slurm" else "5-3"
            self.start(system, arguments, arrays[system], work=0)
            self.assertEqual(self.end(), (0, False), self.errors)
            self.assertEqual(self.noted("running"), [arguments[:-1] + [f"out-5-3-{job}-a&b.bin"] + resume])

        self.each_system(test)
        self.start("slurm", arguments, work=0)  # no array
        self.assertEqual(self.end(), (0, False), self.errors)
        self.assertEqual(self.noted("running"), [arguments[:-1] + ["out-7-%a-7-a&b.bin"]])

    def test_a_restart_resumes(self):
        self.start("slurm", environment={"SLURM_RESTART_COUNT": "2"}, work=0)
        self.assertEqual(self.end(), (0, False), self.errors)
        self.assertEqual(self.noted("running"), [["--output", "out.bin", "--resume"]])

    def test_restarts_are_limited_by_either_name(self):
        for limits, again in (({}, True), ({"MAX": "2"}, False), ({"MAX": "3"}, True), ({"MOST": "2"}, False), ({"MOST": "3"}, True),
                              ({"MAX": "2", "MOST": "3"}, False), ({"MAX": "3", "MOST": "2"}, True)):  # yapf: disable
            environment = {"SLURM_RESTART_COUNT": "2", **{f"LFM2_{name}_RESTARTS": value for name, value in limits.items()}}
            for script in (SYSTEMS["slurm"], SERVE):
                with self.subTest(script=script, **limits):
                    self.start("slurm", environment=environment, script=script, progress=1)
                    self.assertEqual(self.end(signal.SIGUSR1, "listening"), (75, again), self.errors)
                    self.assertEqual("not queued again after 2 restarts" in self.errors, not again)


if __name__ == "__main__":
    unittest.main()
