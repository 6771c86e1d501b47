#!/usr/bin/env python3
"""What is installed and packed works where it lies, and its manual pages and completions know every option.

    tests/install/install_test.py BUILD_FOLDER SHARDS_FOLDER Installed|Deb"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

PROGRAMS = {"lfm2_stage": ["doctor"], "weights-tools": ["split", "synth", "merge", "verify", "inspect", "plan", "quantize", "tokenize"]}
SECONDS = 100

build, shards = "", ""


def run(*command, **options):
    words = [str(word) for word in command]
    return subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=SECONDS, cwd="/", **options)


def options_of(program, command):
    done = run(program, *([command] if command else []), "--help")
    assert done.returncode == 0, done.stdout
    return {name for line in re.findall(r"^  ((?:-\w, )?-\S+)", done.stdout, re.MULTILINE) for name in line.split(", ")}


class Case(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="lfm2-install-"))
        cls.addClassCleanup(shutil.rmtree, cls.folder, True)

    def expect_running(self, prefix):
        for program in PROGRAMS:
            done = run(prefix / "bin" / program, "--version")
            self.assertEqual(done.returncode, 0, done.stdout)
            self.assertRegex(done.stdout, rf"^{program} [0-9.]+$")
        # The script must find the installed program: beside the installed script there is no build folder.
        environment = dict(os.environ, PATH=f"{prefix}/bin:{os.environ['PATH']}", OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
        environment.pop("LFM2_STAGE", None)
        done = run(prefix / "share/lfm2-stage/launch/run.sh", "-n", "2", "--weights", shards, "--device", "cpu", "--samples", "4", env=environment)
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertIn("4 samples", done.stdout)

    def pack(self, form):
        done = run("cpack", "--config", f"{build}/CPackConfig.cmake", "-G", form, "-B", self.folder / form)
        self.assertEqual(done.returncode, 0, done.stdout)
        packages = [path for path in (self.folder / form).iterdir() if path.is_file()]
        self.assertEqual(len(packages), 1, packages)
        return packages[0]


class Installed(Case):

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        done = run("cmake", "--install", build, "--component", "lfm2_stage", "--prefix", cls.folder / "prefix")
        assert done.returncode == 0, done.stdout

    def test_programs_run_where_they_were_installed(self):
        self.expect_running(self.folder / "prefix")
        for name in ("slurm/job.sbatch", "slurm/serve.sbatch", "pbs/job.pbs", "lsf/job.lsf", "serve.sh", "each-rank.sh", "README.md"):
            self.assertTrue((self.folder / "prefix/share/lfm2-stage/launch" / name).exists(), name)
        self.assertTrue((self.folder / "prefix/share/lfm2-stage/python/lfm2_stage_eval.py").exists())
        for name in ("README.md", "LICENSE", "NOTICE", "copyright", "docs/formats.md"):
            self.assertTrue((self.folder / "prefix/share/doc/lfm2-stage" / name).exists(), name)

    def test_manual_pages_name_every_option(self):
        for program, commands in PROGRAMS.items():
            page = self.folder / f"prefix/share/man/man1/{program}.1"
            text = page.read_text().replace("\\-", "-")
            sections = dict(re.findall(r"^\.SH ([^\n]*)\n(.*?)(?=^\.SH |\Z)", text, re.MULTILINE | re.DOTALL))
            for command in [None, *commands]:
                section = sections[command.upper() if command else "OPTIONS"]
                for option in options_of(self.folder / "prefix/bin" / program, command):
                    self.assertIn(f"\\fB{option}\\fR", section, f"{program} {command}")
            if shutil.which("groff"):
                done = run("groff", "-man", "-Tascii", "-ww", "-z", page)
                self.assertEqual((done.returncode, done.stdout), (0, ""))

    def complete(self, program, *words):
        function = "_" + program.replace("-", "_")
        script = f'compopt() {{ :; }}; . "$1"; COMP_WORDS=("${{@:2}}"); COMP_CWORD=$(($# - 2)); {function}; printf "%s\\n" "${{COMPREPLY[@]}}"'
        done = run("bash", "-c", script, "bash", self.folder / "prefix/share/bash-completion/completions" / program, program, *words)
        self.assertEqual(done.returncode, 0, done.stdout)
        return set(done.stdout.split())

    def test_completions_know_every_option(self):
        for program, commands in PROGRAMS.items():
            self.assertEqual(self.complete(program, ""), set(commands))
            for command in [None, *commands]:
                words = [command] if command else []
                expected = options_of(self.folder / "prefix/bin" / program, command)
                self.assertGreater(len(expected), 2)
                self.assertEqual(self.complete(program, *words, "-"), expected, f"{program} {command}")
        self.assertEqual(self.complete("lfm2_stage", "--logits", ""), {"last", "all", "none"})
        self.assertEqual(self.complete("lfm2_stage", "doctor", "--device", "c"), {"cuda", "cpu"})
        self.assertEqual(self.complete("lfm2_stage", "--threads", ""), set())
        self.assertIn("/etc", self.complete("lfm2_stage", "--weights", "/et"))
        self.assertIn("/etc", self.complete("weights-tools", "verify", "--against", "/et"))

    def test_tgz(self):
        package = self.pack("TGZ")
        self.assertEqual(run("tar", "xzf", package, "-C", self.folder).returncode, 0)
        self.expect_running(self.folder / package.name[:-len(".tar.gz")])


class Deb(Case):

    def test_deb(self):
        package = self.pack("DEB")
        depends = run("dpkg-deb", "--field", package, "Depends").stdout
        for library in ("openmpi-bin", "libopenmpi", "libhdf5", "libfmt", "libc6"):
            self.assertIn(library, depends)
        self.assertEqual(run("dpkg-deb", "--extract", package, self.folder / "system").returncode, 0)
        self.expect_running(self.folder / "system/usr")


if __name__ == "__main__":
    build, shards = sys.argv[1:3]
    missing = [tool for tool in ("dpkg-shlibdeps", "file") if shutil.which(tool) is None]
    if "Deb" in sys.argv and missing:
        print(f"Skipped: no {', '.join(missing)} here (Debian packages dpkg-dev, file)")
        sys.exit(77)
    unittest.main(argv=sys.argv[:1] + sys.argv[3:], verbosity=2)
