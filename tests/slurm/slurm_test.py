#!/usr/bin/env python3
"""launch/slurm/job.sbatch under a real Slurm: results, arrays, dependencies, nodes, exit codes, stop and requeue.

    tests/slurm/slurm_test.py LFM2_STAGE MPIRUN SHARDS_FOLDER [UNITTEST OPTION...]

Ends with 77 where Slurm is not installed."""

import concurrent.futures
import ctypes
import filecmp
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import cluster as slurm  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
JOB = str(ROOT / "launch/slurm/job.sbatch")
STAND_IN = str(ROOT / "tests/slurm/stand_in.sh")
LAUNCHERS = ["srun", "mpirun"]
SECONDS = 60  # limit for any of these jobs

program, mpirun, shards = "", "", ""


def run(*command, **options):
    return subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=SECONDS, **options)


def wait_for(condition, what):
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        if condition():
            return
        time.sleep(0.1)
    raise AssertionError(f"after {SECONDS} s still no {what}")


def state(job):
    """State of a job, how often it was queued again, its exit code and, for an array's task, its real number."""
    words = run("scontrol", "show", "job", "-o", job).stdout.split()
    facts = dict(word.split("=", 1) for word in words if "=" in word)
    return facts.get("JobState"), int(facts.get("Restarts", 0)), facts.get("ExitCode"), facts.get("JobId")


def spool():
    return pathlib.Path(os.environ["SLURM_CONF"]).parent.parent


def ended(job):
    return not run("squeue", "-h", "-j", job).stdout.strip()


class JobTest(unittest.TestCase):

    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="lfm2-slurm-test-"))
        self.addCleanup(shutil.rmtree, self.folder, True)

    def batch(self, *arguments, launcher="srun", options=(), environment=None, wait=True):
        variables = dict(os.environ, LFM2_STAGE=program, LFM2_LAUNCHER=launcher, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
        variables.update(environment or {})
        return run("sbatch", "--parsable", "--cpus-per-task=1", f"--chdir={self.folder}", "--output=job-%j.log", *(["--wait"] if wait else []), *options, JOB,
                   *arguments, env=variables)

    def logs(self):
        tails = [f"{log.name}: {''.join(log.read_text().splitlines(keepends=True)[-40:])}" for log in sorted((spool() / "log").glob("slurm*.log"))]
        return "\n".join([f"{log.name}: {log.read_text()}" for log in sorted(self.folder.glob("job-*.log"))] + tails)

    def plain_run(self, output, *arguments, samples=24):
        done = run(mpirun, "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-np", "1", program, *self.common(samples), "--output", output,
                   *arguments)
        self.assertEqual(done.returncode, 0, done.stderr)
        return output

    @staticmethod
    def common(samples=24):
        return ["--weights", shards, "--samples", samples, "--threads", "1", "--device", "cpu", "--quiet"]

    def together(self, calls):
        with concurrent.futures.ThreadPoolExecutor(len(calls)) as pool:
            return list(pool.map(lambda call: call(), calls))


class ResultsTest(JobTest):
    """Whatever started the ranks, the results are those of a run without Slurm."""

    def test_one_node_two_nodes_and_replicas(self):
        reference = self.plain_run(self.folder / "reference.bin")
        wrap = self.folder / "wrap.sh"
        wrap.write_text('#!/bin/sh\ntouch "$LFM2_TEST_SEEN-$SLURMD_NODENAME-$CUDA_VISIBLE_DEVICES-'
                        '${OMPI_COMM_WORLD_RANK:-$PMIX_RANK}"\nexec "$@"\n')
        wrap.chmod(0o755)
        ways = {"one": ["--nodes=1"], "two": ["--nodes=2", "--ntasks-per-node=2"], "replicas": ["--nodes=2", "--ntasks-per-node=2"]}
        names = [(way, launcher) for way in ways for launcher in LAUNCHERS]

        def job(way, launcher):
            extra = ["--replicas", "2"] if way == "replicas" else []
            name = self.folder / f"{way}-{launcher}"
            done = self.batch(*self.common(), *extra, "--output", f"{name}.bin", launcher=launcher, options=ways[way], wait=False,
                              environment={"LFM2_WRAP": str(wrap), "LFM2_TEST_SEEN": f"{name}.seen"})
            wait_for(lambda: ended(done.stdout.strip()), f"end of {name}")
            return state(done.stdout.strip())

        for (way, launcher), done in zip(names, self.together([lambda n=n: job(*n) for n in names])):
            with self.subTest(way=way, launcher=launcher):
                self.assertEqual(done[:3], ("COMPLETED", 0, "0:0"), self.logs())
                self.assertTrue(filecmp.cmp(reference, self.folder / f"{way}-{launcher}.bin", shallow=False))
                seen = [path.name.split("-")[-3:] for path in self.folder.glob(f"{way}-{launcher}.seen-*")]
                self.assertEqual(len({rank for _, _, rank in seen}), 4, seen)
                self.assertEqual({node for node, _, _ in seen}, {"n0", "n1"} if way != "one" else {seen[0][0]})
                self.assertEqual({gpus for _, gpus, _ in seen}, {"0,1,2,3"})

    def test_array(self):
        for task, seed in enumerate([5, 6, 7]):
            self.plain_run(self.folder / f"reference-{task}.bin", "--seed", seed)
        # The seed is the number of the array's task, for which %a stands.
        done = self.batch(*self.common(), "--seed", "%a", "--output", self.folder / "out-%a.bin", options=["--array=5-7%2"])
        self.assertEqual(done.returncode, 0, done.stderr + self.logs())
        for task, seed in enumerate([5, 6, 7]):
            self.assertTrue(filecmp.cmp(self.folder / f"reference-{task}.bin", self.folder / f"out-{seed}.bin", shallow=False))

    def test_exit_codes(self):
        damaged = self.folder / "damaged"
        shutil.copytree(shards, damaged)
        last = sorted(damaged.iterdir())[-1]
        content = bytearray(last.read_bytes())
        content[len(content) // 2] ^= 0x10
        last.write_bytes(content)
        cases = [(0, self.common()), (64, self.common() + ["--no-such-option"]), (65, ["--weights", damaged, "--device", "cpu"]),
                 (66, ["--weights", self.folder / "nowhere"]), (73, self.common() + ["--output", "/proc/nowhere/out.bin"])]
        names = [(code, arguments, launcher) for code, arguments in cases for launcher in LAUNCHERS]
        ends = self.together([lambda n=n: self.batch(*n[1], launcher=n[2], options=["--gres=gpu:1"]) for n in names])
        for (code, _, launcher), done in zip(names, ends):
            with self.subTest(code=code, launcher=launcher):
                self.assertEqual(done.returncode, code, done.stderr + self.logs())

    def test_doctor(self):
        ends = self.together([lambda n=launcher: self.batch("doctor", "--weights", shards, "--device", "cpu", launcher=n, options=["--nodes=2", "--ntasks-per-node=2"])
                              for launcher in LAUNCHERS])
        for launcher, done in zip(LAUNCHERS, ends):
            with self.subTest(launcher=launcher):
                self.assertEqual(done.returncode, 0, done.stderr + self.logs())
        for link in ("0 to 1  same host", "1 to 2  other host", "2 to 3  same host"):
            self.assertEqual(self.logs().count(link), len(LAUNCHERS), self.logs())

    def test_more_ranks_than_layers(self):
        done = self.batch(*self.common(), options=["--nodes=2", "--ntasks-per-node=8"])
        self.assertEqual(done.returncode, 69, done.stderr + self.logs())
        self.assertIn("16 ranks for the 8 layers", self.logs())

    def test_launch_that_fails(self):
        # srun of Slurm 22.05 does not report that its step cannot start, here because of the name of a socket.
        job = self.batch(*self.common(), options=["--hold"], wait=False).stdout.strip()
        for node in ("n0", "n1"):
            (spool() / f"spool.{node}/stepd.slurm.pmix.{job}.0").mkdir()
        run("scontrol", "release", job)
        wait_for(lambda: ended(job), "end")
        self.assertEqual(state(job)[:3], ("FAILED", 0, "69:0"), self.logs())
        self.assertIn("no rank was started", self.logs())


def compressed(data):
    library = ctypes.CDLL("libzstd.so.1")
    library.ZSTD_compress.restype = ctypes.c_size_t
    frame = ctypes.create_string_buffer(len(data) + 1024)
    size = library.ZSTD_compress(frame, ctypes.c_size_t(len(frame)), data, ctypes.c_size_t(len(data)), 1)
    return frame.raw[:size]


class ExamplesTest(JobTest):
    """The commands for arrays and dependencies, read from docs/recipes.md and from the head of job.sbatch."""

    def setUp(self):
        super().setUp()
        (self.folder / "launch").symlink_to(ROOT / "launch")
        (self.folder / "job.sbatch").symlink_to(JOB)
        (self.folder / "shards").symlink_to(shards)
        (self.folder / "collect.sbatch").write_text("#!/bin/sh\ncat answers-*.jsonl >collected.jsonl\n")

    @staticmethod
    def example(document, wanted):
        found = re.findall(rf"^#? +(sbatch .*{wanted}.*)$", (ROOT / document).read_text(), re.MULTILINE)
        assert len(found) == 1, (document, wanted, found)
        return found[0].split("#")[0]

    def submit(self, command):
        words = shlex.split(command)
        own = ["--parsable", "--cpus-per-task=1", "--output=job-%A-%a.log"]  # the nodes have eight processors
        done = run(words[0], *own, *words[1:], cwd=self.folder, env=dict(os.environ, LFM2_STAGE=program))
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout.strip()

    def lines(self, part, count):
        return "".join(json.dumps({"input_ids": [1 + part, 2 + k % 40, 3] * 8}) + "\n" for k in range(count)).encode()

    def test_array_and_the_job_that_depends_on_it(self):
        beside, stopped, expected = 6, 7, b""  # tasks of the array; the last one has the number of the array
        for task in range(8):
            (self.folder / f"part-{task}.jsonl.zst").write_bytes(compressed(self.lines(task, {beside: 60000, stopped: 30000}.get(task, 20))))
            reference = self.folder / f"reference-{task}.jsonl"
            done = run(program, "--weights", "shards", "--device", "cpu", "--quiet", "--input", f"part-{task}.jsonl.zst", "--output", reference, cwd=self.folder)
            self.assertEqual(done.returncode, 0, done.stderr)
            expected += reference.read_bytes()
        array = self.submit(self.example("docs/recipes.md", "--array"))
        collect = self.submit(self.example("docs/recipes.md", "--dependency").replace("ARRAY_JOB", array))
        journal = self.folder / f"answers-{stopped}.jsonl.journal"
        wait_for(lambda: journal.exists() and journal.stat().st_size > 2000, f"first answers {self.logs()}")
        run("scancel", "--batch", "--signal=USR1", f"{array}_{stopped}")
        StopTest.expect_completed_after_requeue(self, f"{array}_{stopped}", lambda: self.assertEqual(state(collect)[0], "PENDING"))
        wait_for(lambda: ended(collect), f"end of the job that depends on the array {run('squeue').stdout}")
        self.assertEqual([state(f"{array}_{task}")[1] for task in range(8)], [0] * 7 + [1], self.logs())
        self.assertEqual(state(collect)[0], "COMPLETED", self.logs())
        self.assertEqual((self.folder / "collected.jsonl").read_bytes(), expected)

    def test_no_job_depends_on_an_array_that_failed(self):
        (self.folder / "part-0.jsonl").write_bytes(self.lines(0, 20))  # and no other part
        array = self.submit(self.example("launch/slurm/job.sbatch", "--array"))
        collect = self.submit(self.example("docs/recipes.md", "--dependency").replace("ARRAY_JOB", array))
        wait_for(lambda: ended(array), f"end of the array {self.logs()}")
        self.assertEqual([state(f"{array}_{task}")[::2] for task in range(2)], [("COMPLETED", "0:0"), ("FAILED", "66:0")], self.logs())
        self.assertEqual([path.name for path in self.folder.glob("out-*")], [f"out-{array}-0.jsonl"])
        wait_for(lambda: "DependencyNeverSatisfied" in run("squeue", "-h", "-j", collect, "-o", "%r").stdout, "end of the wait")
        run("scancel", collect)
        self.assertFalse((self.folder / "collected.jsonl").exists())


class StopTest(JobTest):
    """Stop, requeue and resume: with a stand-in for the program, which tells what it was given, and with the program itself."""

    def start(self, launcher="srun", options=(), plain=False, arguments=()):
        job_folder = pathlib.Path(tempfile.mkdtemp(dir=self.folder))
        done = self.batch(job_folder, "--output", "out.bin", *arguments, launcher=launcher, options=["--nodes=1", *options], wait=False,
                          environment={"LFM2_STAGE": STAND_IN, "LFM2_STAND_IN": "plain" if plain else ""})
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout.strip(), job_folder

    def wait_for_ranks(self, job_folder):
        wait_for(lambda: len(list(job_folder.glob("runs-*"))) == 4, "start of the ranks")

    def expect_completed_after_requeue(self, job, meanwhile=lambda: None):
        # Slurm lets a requeued job wait for two minutes. Within the second in which a run ends, its credential counts
        # as revoked.
        wait_for(lambda: state(job)[0] == "PENDING" and run("squeue", "-h", "-j", job, "-o", "%T").stdout == "PENDING\n", "pending job")
        wait_for(lambda: not list(spool().glob(f"spool.*/stepd.*.{state(job)[3]}.*")), "end of the first run's daemons")
        time.sleep(1.5)
        meanwhile()
        self.assertEqual(run("scontrol", "update", f"JobId={job}", "StartTime=now").returncode, 0)
        wait_for(lambda: ended(job), "end")
        self.assertEqual(state(job)[0], "COMPLETED", self.logs())

    def expect_queued_again_and_resumed(self, job, job_folder, signal):
        wait_for(lambda: state(job)[1] == 1, f"requeue: {state(job)} {self.logs()}")
        # Slurm and mpirun both pass TERM on, so a rank may get it twice.
        self.assertEqual({line for path in job_folder.glob("signals-*") for line in path.read_text().splitlines()}, {signal})
        self.expect_completed_after_requeue(job)
        for rank in range(4):
            lines = (job_folder / f"runs-{rank}").read_text().splitlines()
            self.assertEqual([line.split(" on ")[0] for line in lines], ["--output out.bin", "--output out.bin --resume"], f"rank {rank}\n{self.logs()}")

    def test_usr1(self):
        jobs = self.together([lambda n=launcher: self.start(n) for launcher in LAUNCHERS])
        for job, job_folder in jobs:
            self.wait_for_ranks(job_folder)
            run("scancel", "--batch", "--signal=USR1", job)
        for job, job_folder in jobs:
            self.expect_queued_again_and_resumed(job, job_folder, "USR1")

    def test_the_program_itself_ends_with_the_same_file(self):
        samples = 60000  # enough work until a job with a higher priority comes
        reference = self.plain_run(self.folder / "reference.bin", samples=samples)

        def job(launcher, how):
            output = self.folder / f"{launcher}-{how}.bin"
            place = ["--exclusive", f"--nodelist=n{LAUNCHERS.index(launcher)}"] if how == "preemption" else []
            done = self.batch(*self.common(samples), "--micro-batch", "16", "--output", output, launcher=launcher, options=["--nodes=1", *place],
                              wait=False)
            self.assertEqual(done.returncode, 0, done.stderr)
            return done.stdout.strip(), output

        for how in ("usr1", "preemption"):
            jobs = self.together([lambda n=launcher: job(n, how) for launcher in LAUNCHERS])
            for number, output in jobs:
                journal = output.with_name(output.name + ".journal")
                wait_for(lambda j=journal: j.exists() and j.stat().st_size > 2000, f"first results of {output.name}\n{self.logs()}")
                if how == "usr1":
                    run("scancel", "--batch", "--signal=USR1", number)
                else:
                    run("sbatch", "--partition=high", f"--nodelist=n{jobs.index((number, output))}", "--exclusive", "--output=/dev/null", "--wrap=true")
            for number, output in jobs:
                with self.subTest(output=output.name):
                    wait_for(lambda n=number: state(n)[1] == 1, f"requeue: {state(number)} {self.logs()}")
                    self.assertFalse(output.exists())
                    self.expect_completed_after_requeue(number)
                    self.assertTrue(filecmp.cmp(reference, output, shallow=False))
                    self.assertEqual([path.name for path in self.folder.glob(output.name + ".*")], [output.name + ".finished"])

    def test_time_limit(self):
        jobs = self.together([lambda n=launcher: self.start(n, ["--time=1", "--signal=B:USR1@55"]) for launcher in LAUNCHERS])
        for job, job_folder in jobs:
            self.expect_queued_again_and_resumed(job, job_folder, "USR1")

    def test_preemption(self):
        places = [["--exclusive", f"--nodelist={node}"] for node in ("n0", "n1")]
        jobs = self.together([lambda n=launcher, p=place: self.start(n, p) for launcher, place in zip(LAUNCHERS, places)])
        for _, job_folder in jobs:
            self.wait_for_ranks(job_folder)
        urgent = [run("sbatch", "--parsable", "--partition=high", *place, "--output=/dev/null", "--wrap=true").stdout.strip() for place in places]
        for job, job_folder in jobs:
            self.expect_queued_again_and_resumed(job, job_folder, "TERM")
        self.assertEqual([state(job)[0] for job in urgent], ["COMPLETED"] * 2)

    def test_array_task(self):
        done, job_folder = self.start(options=["--array=3"])
        self.wait_for_ranks(job_folder)
        run("scancel", "--batch", "--signal=USR1", f"{done}_3")
        self.expect_queued_again_and_resumed(f"{done}_3", job_folder, "USR1")

    def test_cancelled_stays_cancelled(self):
        jobs = self.together([lambda n=launcher: self.start(n) for launcher in LAUNCHERS])
        for job, job_folder in jobs:
            self.wait_for_ranks(job_folder)
            run("scancel", job)
        for job, _ in jobs:
            wait_for(lambda j=job: ended(j), f"end of {job}: {run('squeue').stdout}")
            self.assertEqual(state(job)[:2], ("CANCELLED", 0), self.logs())

    def test_program_without_resume_goes_on(self):
        job, job_folder = self.start(plain=True)
        self.wait_for_ranks(job_folder)
        run("scancel", "--batch", "--signal=USR1", job)
        wait_for(lambda: "it continues" in self.logs(), "word about it")
        (job_folder / "finish").touch()
        wait_for(lambda: ended(job), "end")
        self.assertEqual(state(job)[:3], ("COMPLETED", 0, "0:0"), self.logs())
        self.assertFalse(list(job_folder.glob("signals-*")))


def main():
    global program, mpirun, shards
    program, mpirun, shards = sys.argv[1:4]
    try:
        slurm.end_with_this_process()
        with slurm.Cluster():
            return 0 if unittest.main(argv=sys.argv[:1] + sys.argv[4:], exit=False, verbosity=2).result.wasSuccessful() else 1
    except slurm.Unavailable as reason:
        print(f"Skipped: {reason}")
        return 77


if __name__ == "__main__":
    sys.exit(main())
