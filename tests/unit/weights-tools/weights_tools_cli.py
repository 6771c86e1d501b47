#!/usr/bin/env python3
"""weights_tools_cli.py PROGRAM GOLDEN_DIR: the command line of weights-tools as a user meets it, and its shards through h5py."""
import contextlib
import json
import os
import pathlib
import re
import resource
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import unittest

try:
    import h5py
    import numpy
except ImportError as missing:
    print(f"skipped: {missing} (packages python3-h5py, python3-numpy)")
    sys.exit(77)

PROGRAM, GOLDEN = sys.argv[1], pathlib.Path(sys.argv[2])
CASES = ["tiny-moe", "mini-24", "tiny-bf16", "tiny-dense", "tiny-lfm3", "kjv-moe"]
TIMEOUT = 120


def run(*arguments, **options):
    result = subprocess.run([PROGRAM, *map(str, arguments)], capture_output=True, timeout=TIMEOUT, **options)
    # Decoded here, because text=True hides \r.
    result.stdout, result.stderr = result.stdout.decode(), result.stderr.decode()
    return result


def read_safetensors(path):
    """Name -> (dtype, shape, bytes), by the format's description."""
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    header.pop("__metadata__", None)
    return {
        name: (entry["dtype"], entry["shape"], data[8 + length + entry["data_offsets"][0] : 8 + length + entry["data_offsets"][1]])
        for name, entry in header.items()
    }


def write_safetensors(path, tensors):
    header, data = {}, b""
    for name, (dtype, shape, content) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def as_float32(dtype, data):
    if dtype == "BF16":
        return (numpy.frombuffer(data, "<u2").astype(numpy.uint32) << 16).view(numpy.float32)
    return numpy.frombuffer(data, {"F32": "<f4", "F16": "<f2"}[dtype]).astype(numpy.float32)


class CliTest(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="lfm2-cli-"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)

    def succeed(self, *arguments):
        result = run(*arguments)
        self.assertEqual(result.returncode, 0, result.stderr)
        return result

    def refuse(self, code, parts, *arguments, **options):
        """The exit code, one line on stderr that holds every part, and nothing on stdout."""
        result = run(*arguments, **options)
        self.assertEqual(result.returncode, code, result.stderr)
        self.assertEqual(result.stdout, "")
        self.assertEqual(result.stderr.count("\n"), 1, result.stderr)
        self.assertTrue(result.stderr.startswith("weights-tools: "), result.stderr)
        for part in parts:
            self.assertIn(part, result.stderr)

    def split(self, case="tiny-moe", name="shards", *arguments):
        self.succeed("split", GOLDEN / case, "--out", self.folder / name, *arguments)
        return self.folder / name

    def contents(self):
        return {path: path.read_bytes() for path in self.folder.rglob("*") if path.is_file()}

    def names(self, folder=None):
        return sorted(path.name for path in (folder or self.folder).iterdir())


class UsageTest(CliTest):
    def test_help_and_version(self):
        self.assertRegex(self.succeed("--version").stdout, r"^weights-tools \d+\.\d+\.\d+\n$")
        whole = self.succeed("--help").stdout
        for command in ["split", "synth", "quantize", "inspect", "verify", "merge", "plan"]:
            self.assertIn(command, whole)
            self.assertIn("--help", self.succeed(command, "--help").stdout)

    def test_wrong_usage(self):
        model, out = GOLDEN / "tiny-moe", self.folder / "out"
        on_machine = ["plan", "lfm2-8b-a1b", "--machine", GOLDEN / "../bench/machines/h200-estimate.json", "--ranks"]
        cases = [
            ([], "subcommand"),
            (["slice"], "subcommand"),
            (["split"], "MODEL"),
            (["split", model], "--out"),
            (["split", model, "--out"], "--out"),
            (["split", model, "--out", out, "--color"], "--color"),
            (["split", model, "--out", out, "--stages", "x"], "--stages"),
            (["split", model, "--out", out, "--stages", "0"], "--stages"),
            (["split", model, "--out", out, "--stages", "9"], "1 to 8"),
            (["split", model, "--out", out, "--stages", "-1"], "--stages"),
            (["split", model, "--out", out, "--stages", "99999999999999999999"], "--stages"),
            (["split", model, "--out", out, "--layers", "4,5"], "4,5"),
            (["split", model, "--out", out, "--layers", "4,,4"], "--layers"),
            (["split", model, "--out", out, "--layers", "4,4", "--stages", "2"], "--stages"),
            (["split", model, "--out", out, "--dtype", "int8"], "int8"),
            (["split", model, "--out", out, "--progress", "maybe"], "--progress"),
            (["synth", "--out", out], "--config"),
            (["synth", "--config", "lfm2-tiny", "--out", out, "--seed", "-1"], "--seed"),
            (["synth", "--config", "lfm2-tiny", "--out", out, "--dtype", "keep"], "--dtype"),
            (["plan", "lfm2-tiny", "--gpu-memory", "80XB"], "80XB"),
            (["plan", "lfm2-tiny", "--length", "0"], "--length"),
            ([*on_machine, "1,2", "--replicas", "2"], "several numbers"),
            ([*on_machine, "4", "--layers", "6,6,6,6", "--virtual-stages", "0"], "--virtual-stages 0"),
            ([*on_machine, "2", "--max-tokens", "8", "--score"], "--max-tokens"),
            ([*on_machine, "2", "--page-size", "64"], "--max-tokens"),
            ([*on_machine, "2", "--gpu-memory", "80GB"], "--machine"),
            (["verify", self.folder, "--config", model / "config.json"], "shards"),
        ]
        for arguments, part in cases:
            with self.subTest(arguments=arguments):
                # Verify looks for shards first, which are missing.
                code = 66 if arguments[0:1] == ["verify"] else 64
                self.refuse(code, [part if code == 64 else ".h5"], *arguments)
        self.assertEqual(self.names(), [])

    def test_numbers(self):
        """Every option of --help that takes a number and nothing else: decimal and in its range, or refused by its name."""
        words = {
            "split": [GOLDEN / "tiny-moe", "--out", self.folder / "out", "--quiet", "--force"],
            "synth": ["--config", "lfm2-tiny", "--out", self.folder / "out.bin", "--quiet", "--force"],
            "plan": [GOLDEN / "tiny-moe"],
        }
        found = set()
        for command, rest in words.items():
            for option in re.findall(r"^  (--[a-z-]+) [A-Z]", self.succeed(command, "--help").stdout, re.MULTILINE):
                if option in map(str, rest) or run(command, *rest, option, "x").returncode == 0:
                    continue
                if run(command, *rest, option, "8").returncode != 0 or run(command, *rest, option, "8GB").returncode == 0:
                    continue
                found.add(f"{command} {option}")
                with self.subTest(command=command, option=option):
                    self.succeed(command, *rest, option, "08")
                    for value in ["", " 8", "8 ", "+8", "0x8", "8e0", "8.0", "8x", "-8", "nan", "inf", "8,", "18446744073709551624"]:
                        self.refuse(64, [f'{option}: "{value}", expected '], command, *rest, option, value)
        self.assertEqual(found, {"split --layers", "split --stages", "synth --seed", "plan --layers", "plan --stages", "plan --length", "plan --micro-batch"})
        plan = [json.loads(self.succeed("plan", "lfm2-8b-a1b", "--json", "--length", length).stdout)["length"] for length in ["010", "10", "8"]]
        self.assertEqual(plan, [10, 10, 8])

    def test_names_need_not_be_utf8(self):
        folder = os.fsencode(self.folder) + b"/caf\xe9"
        for arguments in [["split", GOLDEN / "tiny-moe", "--out", folder], ["verify", folder], ["inspect", folder], ["merge", folder, "--out", folder + b".bin"]]:
            with self.subTest(arguments=arguments):
                result = subprocess.run([PROGRAM, *arguments], capture_output=True, timeout=TIMEOUT)
                self.assertEqual(result.returncode, 0, result.stderr)
        result = subprocess.run([PROGRAM, "inspect", "--json", folder], capture_output=True, timeout=TIMEOUT)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertTrue(json.loads(result.stdout)["path"].endswith("/caf\N{REPLACEMENT CHARACTER}"), result.stdout[:200])

    def test_missing_input(self):
        out = self.folder / "out"
        for arguments in [
            ["split", self.folder / "no.bin", "--out", out],
            ["inspect", self.folder / "no.safetensors"],
            ["verify", self.folder / "no"],
            ["merge", self.folder / "no", "--out", out],
            ["plan", self.folder / "no"],
            ["synth", "--config", self.folder / "no.json", "--out", out],
            ["split", GOLDEN / "tiny-moe", "--config", self.folder / "no.json", "--out", out],
        ]:
            with self.subTest(arguments=arguments):
                self.refuse(66, [str(self.folder / "no")], *arguments)
        self.assertEqual(self.names(), [])

    def test_models_where_shards_are_expected(self):
        model = self.folder / "hf"
        shutil.copytree(GOLDEN / "tiny-moe", model, ignore=shutil.ignore_patterns("*.h5"))
        for path in [model, model / "model.safetensors"]:
            hint = f"{path}: is a {'Hugging Face model' if path == model else 'model in one file'}, expected shards: weights-tools split {path} --out shards/"
            self.refuse(65, [hint], "verify", path)
            self.refuse(65, [hint], "merge", path, "--out", self.folder / "m.bin")
            for command in ["inspect", "plan"]:
                self.succeed(command, path)
            self.succeed("verify", "--untrusted", path)
        self.assertEqual(self.names(), ["hf"])

    def test_existing_output_needs_force(self):
        shards = self.split()
        before = (shards / "stage-00-of-04.h5").read_bytes()
        self.refuse(73, [str(shards), "--force"], "split", GOLDEN / "tiny-dense", "--out", shards)
        self.assertEqual((shards / "stage-00-of-04.h5").read_bytes(), before)
        self.split("tiny-dense", "shards", "--force", "--stages", "2")
        self.assertEqual(self.names(shards), ["stage-00-of-02.h5", "stage-01-of-02.h5"])
        self.succeed("verify", shards, "--against", GOLDEN / "tiny-dense")
        for name in ["m.bin", "m.safetensors", "hf"]:
            self.succeed("merge", shards, "--out", self.folder / name)
            self.refuse(73, [name, "--force"], "merge", shards, "--out", self.folder / name)
            self.succeed("merge", shards, "--out", self.folder / name, "--force")
        self.refuse(73, ["no/such"], "merge", shards, "--out", self.folder / "no/such/m.bin")

    def test_folders_on_the_way_are_made(self):
        self.succeed("split", GOLDEN / "tiny-moe", "--out", self.folder / "a/b/c")
        self.succeed("merge", self.folder / "a/b/c", "--out", self.folder / "d/e/")
        self.succeed("verify", self.folder / "a/b/c", "--against", self.folder / "d/e")
        (self.folder / "disk/lost+found").mkdir(parents=True)
        self.succeed("split", GOLDEN / "tiny-moe", "--out", self.folder / "disk")
        (self.folder / "file").write_text("")
        self.refuse(73, ["file/g"], "split", GOLDEN / "tiny-moe", "--out", self.folder / "file/g/h")
        self.assertEqual(self.names(), ["a", "d", "disk", "file"])

    def test_two_commands_write_into_one_folder(self):
        for number in range(6):
            out = self.folder / f"two-{number}"
            started = [subprocess.Popen([PROGRAM, "split", GOLDEN / "mini-24", "--out", out, "-q", "--force", "--stages", stages],
                                        stderr=subprocess.PIPE, text=True) for stages in "24"]  # fmt: skip
            ended = [(process.communicate(timeout=TIMEOUT)[1], process.returncode) for process in started]
            self.assertIn(0, [code for _, code in ended])
            for errors, code in ended:
                self.assertIn(code, [0, 73], errors)
                self.assertIn("another weights-tools is writing into it" if code == 73 else "", errors)
            self.succeed("verify", out)

    def test_input_is_not_replaced(self):
        shards = self.split()
        (self.folder / "link").symlink_to(shards)
        config = self.folder / "hf/model.safetensors"
        config.parent.mkdir()
        shutil.copy(GOLDEN / "tiny-moe/config.json", config)
        shutil.copy(GOLDEN / "tiny-moe/config.json", self.folder / "config.bin")
        before = self.contents()
        for out in [shards, self.folder / "link", self.folder / "hf/../shards"]:
            for stages in ["2", "4"]:
                self.refuse(64, [f"--out {out}: would replace"], "split", shards, "--out", out, "--stages", stages, "--force")
        self.refuse(64, ["would replace"], "synth", "--config", config, "--out", config.parent, "--force")
        self.refuse(64, ["would replace"], "synth", "--config", config, "--out", config, "--force")
        self.refuse(64, ["would replace"], "synth", "--config", self.folder / "config.bin", "--out", self.folder / "config.bin", "--force")
        self.assertEqual(self.contents(), before)

        model = self.folder / "model"  # files beside the model are left alone
        shutil.copytree(GOLDEN / "tiny-moe", model, ignore=shutil.ignore_patterns("*.h5"))
        before = self.contents()
        self.succeed("split", model, "--out", model, "--force")
        self.succeed("merge", shards, "--out", self.folder / "shards/..", "--force")
        self.succeed("synth", "--config", model / "config.json", "--out", model / "m.bin")
        after = self.contents()
        self.assertEqual({path: after[path] for path in before}, before)

    def test_talks_only_where_it_should(self):
        quiet = self.succeed("split", GOLDEN / "tiny-moe", "--out", self.folder / "a", "--quiet")
        self.assertEqual(quiet.stdout + quiet.stderr, "")
        plain = self.succeed("split", GOLDEN / "tiny-moe", "--out", self.folder / "b")
        self.assertEqual(plain.stdout, "")
        self.assertEqual(plain.stderr.count("\n"), 1)
        self.assertNotIn("\r", plain.stderr)  # a log has no progress bar
        bar = self.succeed("split", GOLDEN / "tiny-moe", "--out", self.folder / "c", "--progress", "on")
        self.assertIn("\r", bar.stderr)
        self.assertIn("100 %", bar.stderr)


class RoundTripTest(CliTest):
    def test_split_verify_merge(self):
        for case in CASES:
            with self.subTest(case=case):
                shards = self.split(case, case + "-shards")
                self.assertIn("every element", self.succeed("verify", shards, "--against", GOLDEN / case).stdout)
                back = self.folder / case
                self.succeed("merge", shards, "--out", back)
                for name in ["model.safetensors", "config.json"]:
                    self.assertEqual((back / name).read_bytes(), (GOLDEN / case / name).read_bytes())

    def test_synth_is_one_model_in_every_form(self):
        for name in ["a.bin", "a.safetensors", "hf"]:
            self.succeed("synth", "--config", "lfm2-tiny", "--seed", "5", "--out", self.folder / name)
        self.assertEqual(self.names(), ["a.bin", "a.safetensors", "config.json", "hf"])
        self.assertEqual((self.folder / "a.safetensors").read_bytes(), (self.folder / "hf/model.safetensors").read_bytes())
        self.succeed("split", self.folder / "a.bin", "--out", self.folder / "shards", "--dtype", "bf16")
        self.succeed("verify", self.folder / "shards", "--against", self.folder / "hf")
        self.succeed("synth", "--config", "lfm2-tiny", "--seed", "6", "--out", self.folder / "other")
        self.refuse(65, ["differs first at ["], "verify", self.folder / "shards", "--against", self.folder / "other")

    def test_verify_names_the_first_difference(self):
        shards = self.split("tiny-bf16")
        model = self.folder / "model"
        shutil.copytree(GOLDEN / "tiny-bf16", model)
        data = bytearray((model / "model.safetensors").read_bytes())
        (length,) = struct.unpack("<Q", data[:8])
        name = "model.layers.3.feed_forward.w1.weight".replace("w1", "experts.5.w2")
        entry = json.loads(data[8 : 8 + length])[name]
        at = 8 + length + entry["data_offsets"][0] + 2 * (7 * entry["shape"][1] + 11)
        struct.pack_into("<H", data, at, 0x4049)  # 3.140625
        (model / "model.safetensors").write_bytes(data)
        self.refuse(65, [name, "[7, 11]", "3.140625"], "verify", shards, "--against", model)
        self.refuse(65, ["configuration differs"], "verify", shards, "--against", GOLDEN / "tiny-dense")

    def test_verify_finds_a_flipped_bit(self):
        shards = self.split("mini-24")
        tensor = json.loads(self.succeed("inspect", shards, "--json").stdout)["tensors"][1000]
        path = shards / self.names(shards)[tensor["stage"]]
        with open(path, "r+b") as file:
            file.seek(tensor["offset"] + 17)
            byte = file.read(1)[0]
            file.seek(tensor["offset"] + 17)
            file.write(bytes([byte ^ 32]))
        self.refuse(65, [path.name, tensor["name"], "checksum"], "verify", shards)
        self.refuse(65, [path.name, tensor["name"], "checksum"], "merge", shards, "--out", self.folder / "m.bin")
        self.assertEqual(self.names(), ["shards"])

    def test_verify_of_files_from_strangers(self):
        shards = self.split("tiny-dense")
        # The child may not write to files, yet its answer must get into one.
        with open(self.folder / "out", "wb") as out:
            subprocess.run([PROGRAM, "verify", "--untrusted", shards], stdout=out, stderr=out, check=True, timeout=TIMEOUT)
        self.assertIn("every checksum is right", (self.folder / "out").read_text())
        self.assertIn("no checksums", self.succeed("verify", "--untrusted", GOLDEN / "tiny-moe").stdout)
        path = shards / self.names(shards)[0]
        path.write_bytes(path.read_bytes()[:1000])
        self.refuse(65, [path.name, "truncated"], "verify", "--untrusted", shards)
        (self.folder / "out").unlink()
        odd = self.folder / "odd"
        odd.mkdir()
        (odd / "\x1b[31m.h5").write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(100))
        self.refuse(65, ["\\x1b[31m.h5"], "verify", "--untrusted", odd)


class AdapterTest(CliTest):
    def test_split_verify_inspect(self):
        shards, adapter = self.folder / "shards", GOLDEN / "adapter-dense"
        twice = ["--adapter", adapter, "--adapter", adapter]
        self.succeed("split", GOLDEN / "tiny-dense", *twice, "--out", shards)
        against = ["verify", shards, "--against", GOLDEN / "tiny-dense"]
        self.succeed(*against, *twice)
        self.succeed(*against, *twice, "--untrusted")
        self.refuse(65, ["adapter-dense", "expected none", "--adapter"], *against)
        self.refuse(65, ["expected", "--adapter"], *against, "--adapter", adapter)
        self.refuse(64, ["--adapter", "--against"], "verify", shards, *twice)
        self.assertEqual(self.succeed("inspect", shards).stdout.count("\nadapter    adapter-dense, config "), 2)
        listed = json.loads(self.succeed("inspect", shards, "--json").stdout)["adapters"]
        self.assertEqual([entry["name"] for entry in listed], ["adapter-dense"] * 2)

    def test_other_text_files_beside_an_adapter_are_named(self):
        adapter = self.folder / "adapter"
        shutil.copytree(GOLDEN / "adapter-moe", adapter)
        shutil.copy(GOLDEN / "kjv-moe/chat_template.jinja", adapter)
        split = ["split", GOLDEN / "tiny-moe", "--adapter", adapter, "--out", self.folder / "shards", "--force"]
        said = self.succeed(*split).stderr
        self.assertIn(f"split: {adapter}/chat_template.jinja is not that of the model", said)
        self.assertIn(f"--tokenizer {adapter}", said)
        self.assertEqual(self.succeed(*split, "--quiet").stderr, "")

    def test_a_refused_adapter_leaves_nothing(self):
        shards = self.folder / "shards"
        self.refuse(65, ["adapter-moe", "tensor base_model.model."], "split", GOLDEN / "tiny-dense", "--adapter", GOLDEN / "adapter-moe", "--out", shards)
        self.assertFalse(shards.exists())
        shutil.copytree(GOLDEN / "adapter-dense", shards)
        self.refuse(64, ["--out", "which is read"], "split", GOLDEN / "tiny-dense", "--adapter", shards, "--out", shards, "--force")


class SeveralFormsTest(CliTest):
    def test_shards_beside_the_model_they_were_split_from(self):
        both = self.folder / "both"
        both.mkdir()
        for name in ["config.json", "model.safetensors"]:
            shutil.copy(GOLDEN / "tiny-moe" / name, both)
        self.succeed("split", both, "--out", both, "--force", "--dtype", "bf16")
        self.assertEqual(json.loads(self.succeed("inspect", "--json", both).stdout)["form"], "shards")
        self.assertIn("activations in bf16", self.succeed("plan", both).stdout)
        self.assertIn("every element", self.succeed("verify", both, "--against", both).stdout)
        self.succeed("merge", both, "--out", self.folder / "merged")
        self.assertEqual({t[0] for n, t in read_safetensors(self.folder / "merged/model.safetensors").items() if "bias" not in n}, {"BF16"})
        self.succeed("split", both, "--out", self.folder / "again")  # of the fp32 model
        self.assertIn("activations in fp32", self.succeed("plan", self.folder / "again").stdout)
        with open(both / "stage-01-of-04.h5", "r+b") as file:
            file.seek(9000)
            byte = file.read(1)[0]
            file.seek(9000)
            file.write(bytes([byte ^ 32]))
        for arguments in [["verify", both], ["verify", "--untrusted", both], ["merge", both, "--out", self.folder / "m"]]:
            self.refuse(65, ["stage-01-of-04.h5"], *arguments)

    def test_hidden_files_are_passed_over(self):
        # Such as macOS writes beside each file on exFAT, on SMB and into archives.
        shards = self.split()
        for name in ["._stage-02-of-04.h5", "._model.safetensors"]:
            (shards / name).write_bytes(b"\0\5\26\7Mac OS X")
        self.succeed("verify", shards)
        self.assertEqual(json.loads(self.succeed("inspect", "--json", shards).stdout)["form"], "shards")
        self.succeed("split", GOLDEN / "tiny-moe", "--out", shards, "--force", "--stages", "2")
        self.assertEqual(self.names(shards), ["._model.safetensors", "._stage-02-of-04.h5", "stage-00-of-02.h5", "stage-01-of-02.h5"])
        (shards / "stage-00-of-02.h5").unlink(), (shards / "stage-01-of-02.h5").unlink()
        self.refuse(66, ["no .h5 file found"], "verify", shards)


class OddElementsTest(CliTest):
    NAME = "model.layers.0.feed_forward.w1.weight"

    def model(self, *values):
        model = self.folder / "model"
        model.mkdir()
        shutil.copy(GOLDEN / "tiny-moe/config.json", model)
        tensors = read_safetensors(GOLDEN / "tiny-moe/model.safetensors")
        dtype, shape, data = tensors[self.NAME]
        elements = as_float32(dtype, data).copy().reshape(shape)
        elements[1, 2 : 2 + len(values)] = values
        tensors[self.NAME] = (dtype, shape, elements.tobytes())
        write_safetensors(model / "model.safetensors", tensors)
        return model

    def test_finite_values_do_not_become_infinite(self):
        model = self.model(-100000)
        self.refuse(65, ["model.safetensors", self.NAME, "is -100000 at [1, 2]", "fp16"], "split", model, "--dtype", "fp16", "--out", self.folder / "out/deep")
        self.assertEqual(self.names(), ["model"])
        self.succeed("split", model, "--dtype", "bf16", "--out", self.folder / "out")
        self.succeed("split", GOLDEN / "tiny-moe", "--dtype", "fp16", "--out", self.folder / "fp16")
        self.refuse(65, [self.NAME, "is -100000 at [1, 2]", "fp16"], "verify", self.folder / "fp16", "--against", model)

    def test_largest_finite_values(self):
        for name, value, dtype, code in [("a", 65519, "fp16", 0), ("b", 65520, "fp16", 65), ("c", 3.39e38, "bf16", 0), ("d", 3.4e38, "bf16", 65)]:
            result = run("split", self.model(value), "--dtype", dtype, "--out", self.folder / name)
            self.assertEqual(result.returncode, code, result.stderr)
            shutil.rmtree(self.folder / "model")

    def test_nan_and_infinity_are_counted(self):
        model = self.model(numpy.nan, numpy.inf, -numpy.inf)
        line = f"3 elements are NaN or infinite, the first in tensor {self.NAME} at [1, 2]\n"
        for dtype in ["keep", "fp16"]:
            said = self.succeed("split", model, "--dtype", dtype, "--out", self.folder / dtype)
            self.assertTrue(said.stderr.endswith("split: " + line), said.stderr)
            for arguments in [[], ["--untrusted"], ["--against", model]]:
                said = self.succeed("verify", self.folder / dtype, *arguments)
                self.assertTrue(said.stdout.endswith("; " + line), said.stdout)
        self.assertEqual(self.succeed("split", model, "-q", "--out", self.folder / "quiet").stderr, "")
        self.assertNotIn("NaN", self.succeed("verify", self.split()).stdout)


class OtherFilesTest(CliTest):
    LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:01\nsize 25\n"

    def test_files_of_another_kind(self):
        shutil.copy(GOLDEN / "tiny-moe/config.json", self.folder)
        kinds = {"Git LFS pointer": self.LFS, "GGUF": b"GGUF\3\0\0\0" + bytes(100), "HTML": b"<!DOCTYPE html><html></html>"}
        for kind, content in kinds.items():
            for name in ["model.safetensors", "model.bin", "stage-00-of-01.h5", "model.gguf"]:
                with self.subTest(kind=kind, name=name):
                    (self.folder / name).write_bytes(content)
                    folder = name.endswith(".h5")
                    self.refuse(65, [f"{name}: is ", kind], "verify" if folder else "inspect", self.folder if folder else self.folder / name)
                    (self.folder / name).unlink()
        (self.folder / "pytorch_model.bin").write_bytes(b"PK\3\4" + bytes(100))
        self.refuse(65, ["is a PyTorch checkpoint"], "inspect", self.folder / "pytorch_model.bin")
        # The first two bytes of gzip, which here are a length.
        (self.folder / "m.safetensors").write_bytes(struct.pack("<Q", 0x8B1F) + b"x" * 0x8B1F)
        self.refuse(65, ["does not start with '{'"], "inspect", self.folder / "m.safetensors")

    def test_what_lies_in_the_place_of_a_model(self):
        shutil.copy(GOLDEN / "tiny-moe/config.json", self.folder)
        one = self.folder / "model.safetensors"
        one.symlink_to("../blobs/0123")
        for path in [self.folder, one]:
            self.refuse(66, [f"{one}: is a link to ../blobs/0123, which does not exist"], "inspect", path)
        one.unlink()
        part = self.folder / "model-00001-of-00002.safetensors"
        shutil.copy(GOLDEN / "tiny-moe/model.safetensors", part)
        self.refuse(66, [f"holds {part.name} and no model.safetensors: name {part} itself"], "inspect", self.folder)
        part.rename(self.folder / "consolidated.safetensors")
        self.succeed("inspect", self.folder / "consolidated.safetensors")
        part.write_bytes(b"")
        self.refuse(66, ["2 .safetensors files without model.safetensors.index.json"], "inspect", self.folder)

    def test_shards_that_are_missing_doubled_or_empty(self):
        shards = self.split()
        first, second = shards / "stage-01-of-04.h5", shards / "stage-01-of-04 (1).h5"
        shutil.copy(first, second)
        self.refuse(65, [f"stage 1 stands in {second.name} and in {first.name}"], "verify", shards)
        second.unlink()
        for number in range(4):
            path = shards / f"stage-0{number}-of-04.h5"
            path.rename(self.folder / "aside")
            self.refuse(66, [f"stage {number} of 4 is missing", path.name], "verify", shards)
            path.write_bytes(b"")
            self.refuse(65, [f"{path}: is empty"], "verify", shards)
            (self.folder / "aside").rename(path)
        self.succeed("verify", shards)


class TextFilesTest(CliTest):
    TEXTS = {
        "tokenizer.json": (GOLDEN / "text/tokenizer.json").read_bytes(),
        "chat_template.jinja": b"{{ messages }}",
        "additional_chat_templates/tool_use.jinja": b"{{ tools }}",
    }

    def model(self, texts):
        model = self.folder / "model"
        model.mkdir()
        for name in ["config.json", "model.safetensors"]:
            shutil.copy(GOLDEN / "tiny-moe" / name, model)
        for name, content in texts.items():
            (model / name).parent.mkdir(exist_ok=True)
            (model / name).write_bytes(content)
        return model

    def test_from_split_to_merge(self):
        model, shards, back = self.model(self.TEXTS), self.folder / "shards", self.folder / "back"
        self.succeed("split", model, "--out", shards, "--stages", "2")
        listed = json.loads(self.succeed("inspect", "--json", shards).stdout)["text_files"]
        self.assertEqual(sorted(listed), sorted(self.TEXTS))
        for stage in shards.glob("*.h5"):
            with h5py.File(stage) as file:
                self.assertEqual(json.loads(file.attrs["text_files"]), listed)
        shown = self.succeed("inspect", shards).stdout
        for name, checksum in listed.items():
            self.assertRegex(shown, rf"{re.escape(name)} +{checksum}\n")
        self.assertIn("3 text files: every checksum is right", self.succeed("verify", shards, "--against", model).stdout)
        self.succeed("verify", "--untrusted", shards)
        ids = subprocess.run([PROGRAM, "tokenize", shards], input=b"Hello\n", capture_output=True, timeout=TIMEOUT, check=True).stdout
        self.assertTrue(json.loads(ids))
        self.succeed("merge", shards, "--out", back)
        for name, content in self.TEXTS.items():
            self.assertEqual((back / name).read_bytes(), content)
        (shards / "chat_template.jinja").write_bytes(b"{{ message }}")
        self.refuse(65, ["chat_template.jinja: checksum", listed["chat_template.jinja"]], "verify", shards)
        (shards / "chat_template.jinja").unlink()
        self.refuse(66, ["chat_template.jinja: missing", listed["chat_template.jinja"]], "verify", shards)

    def test_without_any(self):
        shards = self.split()
        self.assertEqual(json.loads(self.succeed("inspect", "--json", shards).stdout)["text_files"], {})
        self.assertNotIn("text file", self.succeed("inspect", shards).stdout + self.succeed("verify", shards).stdout)
        with h5py.File(shards / "stage-00-of-04.h5") as file:
            self.assertNotIn("text_files", file.attrs)

    def test_a_broken_tokenizer_is_refused(self):
        broken = self.TEXTS["tokenizer.json"].replace(b'"type":"BPE"', b'"type":"Unigram"', 1)
        self.assertNotEqual(broken, self.TEXTS["tokenizer.json"])
        model = self.model({"tokenizer.json": broken})
        self.refuse(65, [f"{model}/tokenizer.json: ", "Unigram"], "split", model, "--out", self.folder / "shards")
        self.assertEqual(self.names(), ["model"])


class ReportTest(CliTest):
    def test_inspect(self):
        shards = self.split("tiny-bf16", "shards", "--layers", "3,5")
        text = self.succeed("inspect", shards).stdout
        for part in ["8 layers", "8 experts", "stage-01-of-02.h5", "attention + moe", "bf16+fp32", "630064"]:
            self.assertIn(part, text)
        report = json.loads(self.succeed("inspect", shards, "--json").stdout)
        self.assertEqual([s["layer_count"] for s in report["stages"]], [3, 5])
        self.assertEqual(report["config"], json.loads((GOLDEN / "tiny-bf16/config.json").read_text()))
        original = read_safetensors(GOLDEN / "tiny-bf16/model.safetensors")
        self.assertEqual({t["name"]: t["shape"] for t in report["tensors"]}, {n: t[1] for n, t in original.items()})
        self.assertEqual(report["bytes"], sum(len(t[2]) for t in original.values()))
        self.assertEqual(report["parameters"], 630064)
        for tensor in report["tensors"]:
            data = (shards / report["stages"][tensor["stage"]]["file"]).read_bytes()
            self.assertEqual(data[tensor["offset"] : tensor["offset"] + tensor["bytes"]], original[tensor["name"]][2])
        model = json.loads(self.succeed("inspect", GOLDEN / "tiny-dense", "--json").stdout)
        self.assertEqual(model["form"], "safetensors")
        self.assertNotIn("stages", model)

    def test_drafters(self):
        drafter = GOLDEN / "dspark/tiny-dense"
        listed = json.loads(self.succeed("inspect", "--json", drafter).stdout)
        self.assertEqual((listed["form"], listed["taps"], listed["block_size"], listed["parameters"]), ("dspark", [0, 2, 3], 4, 51904))
        self.assertEqual(listed["cache_bytes_for_each_position"]["bf16"], 2 * 2 * 3 * 8 * 2)  # keys and values, layers, heads of 8
        self.assertEqual(len(listed["tensors"]), 3 + 2 * 11 + 2)
        self.assertIn("blocks of 4 drafts", self.succeed("inspect", drafter).stdout)
        without, with_drafter = (json.loads(self.succeed("plan", GOLDEN / "tiny-dense", "--stages", "5", "--json", *more).stdout)
                                 for more in ([], ["--draft", drafter]))
        more = [[b[key] - a[key] for a, b in zip(without["stages"], with_drafter["stages"])] for key in ("weight_bytes", "slot_bytes")]
        self.assertEqual(more[0], [0] * 4 + [listed["bytes"]])
        self.assertEqual(more[1], [without["stages"][0]["slot_bytes"] * taps for taps in (1, 1, 2, 3, 3)])
        self.refuse(64, ["--config"], "inspect", drafter, "--config", drafter / "config.json")
        self.refuse(65, ['"vocab_size" is 200, but the model has 1024'], "plan", GOLDEN / "kjv-moe", "--draft", drafter)

    def test_plan(self):
        plan = json.loads(self.succeed("plan", "lfm2-8b-a1b", "--stages", "4", "--gpu-memory", "4.7GB", "--json").stdout)
        self.assertEqual([s["layer_count"] for s in plan["stages"]], [6, 6, 6, 6])
        self.assertAlmostEqual(sum(s["gflop_per_token"] for s in plan["stages"]), 2.85, delta=0.01)
        self.assertEqual([s["fits"] for s in plan["stages"]], [s["total_bytes"] <= 4.7e9 for s in plan["stages"]])
        # The figure above was chosen so that some stages fit and others do not.
        self.assertEqual(len({s["fits"] for s in plan["stages"]}), 2)
        self.assertIn("does NOT fit", self.succeed("plan", "lfm2-8b-a1b", "--gpu-memory", "1GB").stdout)
        self.assertIn("fits in 80.00 GB", self.succeed("plan", "lfm2-8b-a1b", "--gpu-memory", "80GB").stdout)
        for model in [GOLDEN / "tiny-moe", GOLDEN / "tiny-moe/config.json", self.split()]:
            self.assertIn("0-1", self.succeed("plan", model).stdout)

    def test_activations_have_the_type_of_most_bytes(self):
        mixed = self.folder / "mixed"
        mixed.mkdir()
        shutil.copy(GOLDEN / "tiny-bf16/config.json", mixed)
        tensors = read_safetensors(GOLDEN / "tiny-bf16/model.safetensors")
        largest = max(tensors, key=lambda name: len(tensors[name][2]))
        tensors[largest] = ("F32", tensors[largest][1], as_float32(*tensors[largest][::2]).tobytes())
        write_safetensors(mixed / "model.safetensors", tensors)
        self.assertEqual(json.loads(self.succeed("plan", "--json", mixed).stdout)["activation_dtype"], "bf16")

    def test_full_stdout_is_an_error(self):
        with open("/dev/full", "w") as full:
            result = subprocess.run([PROGRAM, "inspect", GOLDEN / "tiny-moe"], stdout=full, stderr=subprocess.PIPE, text=True)
        self.assertEqual(result.returncode, 74)
        self.assertEqual(result.stderr, "weights-tools: stdout cannot be written\n")


class OtherReadersTest(CliTest):
    def test_h5py_reads_what_is_in_the_checkpoint(self):
        for case, dtype in [("tiny-bf16", "keep"), ("tiny-moe", "keep"), ("tiny-moe", "fp16"), ("tiny-dense", "bf16")]:
            with self.subTest(case=case, dtype=dtype):
                shards = self.split(case, f"{case}-{dtype}", "--stages", "3", "--dtype", dtype)
                original = read_safetensors(GOLDEN / case / "model.safetensors")
                seen = set()
                for stage, path in enumerate(sorted(shards.iterdir())):
                    with h5py.File(path) as file:
                        self.assertEqual(file.attrs["format"], b"lfm2-stage-shard")
                        self.assertEqual((file.attrs["stage"], file.attrs["stages"]), (stage, 3))
                        self.assertEqual(file.attrs["config_json"].decode(), (GOLDEN / case / "config.json").read_text())
                        for name, dataset in file.items():
                            seen.add(name)
                            self.check_dataset(dataset, original[name], dtype)
                self.assertEqual(seen, set(original))

    def check_dataset(self, dataset, original, dtype):
        stored, shape, data = original
        self.assertEqual(list(dataset.shape), shape)
        self.assertRegex(dataset.attrs["xxh3_128"].decode(), "^[0-9a-f]{32}$")
        expected = as_float32(stored, data)
        if dtype == "fp16" and not dataset.name.endswith("expert_bias"):
            self.assertEqual(dataset.dtype, numpy.float16)
            expected = expected.astype(numpy.float16).astype(numpy.float32)
        elif dtype == "bf16" and not dataset.name.endswith("expert_bias"):
            bits = expected.view(numpy.uint32)
            bits = (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000
            expected = bits.view(numpy.float32)
        if dtype != "fp16":
            self.assertEqual(dataset.dtype, numpy.float32)
        numpy.testing.assert_array_equal(dataset[()].astype(numpy.float32).ravel(), expected)

    @unittest.skipUnless(shutil.which("h5dump"), "h5dump is not installed (hdf5-tools)")
    def test_h5dump_prints_bf16_as_numbers(self):
        shards = self.split("tiny-bf16")
        name = "model.layers.0.ffn_norm.weight"
        dump = subprocess.run(["h5dump", "-d", name, "-m", "%.9g", "-y", "-w", "1", shards / "stage-00-of-04.h5"],
                              capture_output=True, text=True, check=True).stdout  # fmt: skip
        printed = dump[dump.index("DATA {") :].split("}")[0].split("{")[1].replace(",", " ").split()
        expected = as_float32("BF16", read_safetensors(GOLDEN / "tiny-bf16/model.safetensors")[name][2])
        self.assertEqual([numpy.float32(x) for x in printed], list(expected))


class InterruptionTest(CliTest):
    def interrupt(self, which, *arguments):
        """Sends the signal as soon as a temporary file is there; returns exit code and stderr."""
        with subprocess.Popen([PROGRAM, *map(str, arguments)], stderr=subprocess.PIPE, text=True) as process:
            deadline = time.monotonic() + TIMEOUT
            while not list(self.folder.rglob("*.tmp.*")):
                self.assertIsNone(process.poll(), "ended before it could be interrupted")
                self.assertLess(time.monotonic(), deadline)
                time.sleep(0.001)
            process.send_signal(which)
            _, errors = process.communicate(timeout=TIMEOUT)
        return process.returncode, errors

    def test_a_stop_request_leaves_nothing(self):
        for which in [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]:
            for out in ["m.safetensors", "m.bin", "hf"]:
                with self.subTest(signal=which, out=out):
                    code, errors = self.interrupt(which, "synth", "--config", "lfm2-350m", "--out", self.folder / out)
                    self.assertEqual(code, 75, errors)
                    self.assertEqual(errors, f"weights-tools: stopped by signal {which.value}, nothing was written\n")
                    self.assertEqual(self.names(), [])

    def test_a_kill_leaves_no_final_name(self):
        self.succeed("synth", "--config", "lfm2-350m", "--out", self.folder / "model")
        shards = self.folder / "shards"
        code, _ = self.interrupt(signal.SIGKILL, "split", self.folder / "model", "--out", shards)
        self.assertEqual(code, -signal.SIGKILL)
        self.assertEqual([name for name in self.names(shards) if name.endswith(".h5")], [])
        self.refuse(66, [str(shards)], "verify", shards)
        self.refuse(73, ["--force"], "split", GOLDEN / "tiny-moe", "--out", shards)
        self.succeed("split", GOLDEN / "tiny-moe", "--out", shards, "--force", "--stages", "2")
        self.assertEqual(self.names(shards), ["stage-00-of-02.h5", "stage-01-of-02.h5"])  # leftovers are gone


@contextlib.contextmanager
def small_disk(folder, size):
    folder.mkdir()
    mount = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder], capture_output=True, text=True)
    if mount.returncode != 0:
        raise unittest.SkipTest("a small disk cannot be mounted here: " + mount.stderr.strip())
    try:
        yield folder
    finally:
        subprocess.run(["umount", folder], check=True)
        folder.rmdir()


class FullDiskTest(CliTest):
    def test_a_full_disk_is_named_and_nothing_stays(self):
        shards = self.split("tiny-moe", "shards")  # 2.5 MB
        commands = {
            "s": ["split", GOLDEN / "tiny-moe"],
            "m.bin": ["merge", shards],
            "m.safetensors": ["merge", shards],
            "hf": ["merge", shards],
            "big": ["synth", "--config", "lfm2-8b-a1b"],
        }
        for size in ["16k", "40k", "64k", "120k", "500k", "1m", "2m"]:
            for out, command in commands.items():
                with self.subTest(size=size, out=out), small_disk(self.folder / "disk", size) as disk:
                    self.refuse(74, [str(disk / out), "No space left"], *command, "--out", disk / out)
                    self.assertEqual(self.names(disk), [])

    def test_a_full_disk_keeps_the_earlier_split(self):
        with small_disk(self.folder / "disk", "4m") as disk:
            self.succeed("split", GOLDEN / "tiny-moe", "--out", disk / "s")
            self.refuse(74, [str(disk / "s")], "split", GOLDEN / "tiny-moe", "--out", disk / "s", "--force", "--stages", "3")
            self.succeed("verify", disk / "s", "--against", GOLDEN / "tiny-moe")
            self.assertEqual(len(self.names(disk / "s")), 4)


class DamagedInputTest(CliTest):
    """One of each kind through the program: the tables of lies are in the C++ tests."""

    def test_exit_codes(self):
        def write(name, data):
            folder = self.folder / name
            folder.mkdir()
            shutil.copy(GOLDEN / "tiny-moe/config.json", folder)
            return folder, data

        good = (GOLDEN / "tiny-moe/model.safetensors").read_bytes()
        files = {
            "huge.safetensors": struct.pack("<Q", 2**63) + good[8:],
            "deep.safetensors": struct.pack("<Q", 200000) + b'{"a":' + b"[" * 199995,
            "cut.safetensors": good[:-1],
            "longer.safetensors": good + b"x",
            "empty.safetensors": b"",
            "count.bin": struct.pack("<I", 2**32 - 1) + bytes(100),
            "name.bin": struct.pack("<II", 1, 2**31) + bytes(100),
            "empty.bin": b"",
        }
        shutil.copy(GOLDEN / "tiny-moe/config.json", self.folder)
        for name, data in files.items():
            with self.subTest(name=name):
                (self.folder / name).write_bytes(data)
                self.refuse(65, [name], "split", self.folder / name, "--out", self.folder / "out")
                self.refuse(65, [name], "inspect", self.folder / name)
        (self.folder / "shards").mkdir()
        (self.folder / "shards/stage-00-of-01.h5").write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(4000))
        for command in [["verify"], ["inspect"], ["merge", "--out", self.folder / "m"], ["split", "--out", self.folder / "o"]]:
            with self.subTest(command=command):
                self.refuse(65, ["stage-00-of-01.h5"], command[0], self.folder / "shards", *command[1:])
        self.assertNotIn("out", self.names())

    def test_bad_configuration(self):
        model = self.folder / "model"
        shutil.copytree(GOLDEN / "tiny-moe", model)
        for text, part in [("{", "JSON"), ('{"model_type": "llama"}', "llama"), ("[" * 100000, "deeper")]:
            (model / "config.json").write_text(text)
            self.refuse(65, ["config.json", part], "inspect", model)
            self.refuse(65, ["config.json", part], "synth", "--config", model / "config.json", "--out", self.folder / "x")

    @unittest.skipUnless(os.environ.get("LFM2_IO_FAULTS"), "LFM2_IO_FAULTS names no library that makes fsync fail")
    def test_a_new_folder_is_durable(self):
        """Its name stands in the folder above, which therefore must be synced: where that fails, the command does."""
        shards = self.split()
        self.folder.joinpath("above").mkdir()
        above = os.fsencode(self.folder.resolve() / "above")
        failing = {**os.environ, "LD_PRELOAD": os.environ["LFM2_IO_FAULTS"], "IO_FAULT": f"fsync:{os.fsdecode(above)}$:1"}
        for command in [["split", GOLDEN / "tiny-moe"], ["merge", shards], ["synth", "--config", "lfm2-tiny"]]:
            for out in [f"above/{command[0]}", f"above/{command[0]}-2/"]:
                with self.subTest(command=command, out=out):
                    self.refuse(74, ["fsync failed"], *command, "--out", out, cwd=self.folder, env=failing)
                    # A folder that existed before needs no sync of its parent.
                    result = run(*command, "--out", out, "--force", "--quiet", cwd=self.folder, env=failing)
                    self.assertEqual(result.returncode, 0, result.stderr)

    @unittest.skipUnless(os.environ.get("LFM2_IO_FAULTS"), "LFM2_IO_FAULTS names no library that makes locks fail")
    def test_a_file_system_without_locks(self):
        failing = {**os.environ, "LD_PRELOAD": os.environ["LFM2_IO_FAULTS"], "IO_FAULT": "nolock:/:1"}
        result = run("split", GOLDEN / "tiny-moe", "--out", self.folder / "out", "--quiet", env=failing)
        self.assertEqual(result.returncode, 0, result.stderr)

    def test_a_limit_of_file_sizes(self):
        def limit():
            resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
        result = run("synth", "--config", "lfm2-tiny", "--out", self.folder / "out", "--quiet", preexec_fn=limit)
        self.assertEqual(result.returncode, 74, result.stderr)
        self.assertIn("File too large (see ulimit -f)", result.stderr)
        self.assertEqual(list((self.folder / "out").glob("*.tmp*")), [])

    @unittest.skipIf(os.geteuid() == 0, "root may read and write everything")
    def test_permissions(self):
        locked = self.folder / "locked"
        locked.mkdir(mode=0o500)
        self.refuse(73, [str(locked)], "split", GOLDEN / "tiny-moe", "--out", locked / "out")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[3:], verbosity=2)
