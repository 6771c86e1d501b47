#!/usr/bin/env python3
"""fp8_cli.py PROGRAM GOLDEN_DIR: checkpoints with fp8 through weights-tools, and their shards through h5py and NumPy."""
import json
import os
import resource
import shutil
import sys
import unittest

from weights_tools_cli import GOLDEN, CliTest, as_float32, h5py, numpy, read_safetensors, run, write_safetensors

CASES = ["tiny-fp8-channel", "tiny-fp8-block", "tiny-fp8-hf"]
JUNK = [f"model.layers.0.feed_forward.{w}.weight_scale_inv" for w in ("w1", "w2", "w3")] + [
    f"model.layers.1.self_attn.{p}.weight_scale_inv" for p in ("k_proj", "v_proj")
]


def e4m3_values():
    """The value of each of the 256 bytes, by the format's description."""
    bits = numpy.arange(256)
    exponent, mantissa = bits >> 3 & 15, bits & 7
    magnitude = numpy.where(exponent == 0, mantissa * 2.0**-9, (8 + mantissa) * 2.0 ** (exponent - 10))
    magnitude[bits & 127 == 127] = numpy.nan
    return numpy.where(bits & 128, -magnitude, magnitude)


E4M3 = e4m3_values()


def spread(scales, shape):
    """The scale of each element of a weight of this shape."""
    if scales.shape == (shape[0], 1):
        return numpy.broadcast_to(scales, shape)
    return scales.repeat(128, axis=0)[: shape[0]].repeat(128, axis=1)[:, : shape[1]]


def shards_of(folder):
    """Name -> dataset, and the root attributes of the first file."""
    tensors, attributes = {}, None
    for path in sorted(folder.glob("*.h5")):
        with h5py.File(path) as file:
            attributes = attributes or dict(file.attrs)
            for name, dataset in file.items():
                tensors[name] = (dataset[()], dict(dataset.attrs))
    return tensors, attributes


def bytes_on_device(tensors, by_block):
    """What a device holds of a checkpoint with fp8: scales in fp32, by block one for each 8 rows and 128 columns."""
    total = 0
    for name, (dtype, shape, _) in tensors.items():
        if not name.endswith(("_scale", "_scale_inv")):
            total += int(numpy.prod(shape)) * {"F8_E4M3": 1, "BF16": 2, "F32": 4}[dtype]
        if dtype == "F8_E4M3":
            total += 4 * (shape[0] // 8 * -(-shape[1] // 128) if by_block else shape[0])
    return total


class Fp8Test(CliTest):
    def test_shards_through_h5py(self):
        for case in CASES:
            with self.subTest(case=case):
                tensors, root = shards_of(self.split(case, case))
                self.assertEqual(root["schema_version"], 2)
                original = read_safetensors(GOLDEN / case / "model.safetensors")
                weights = {name: value for name, value in tensors.items() if value[0].dtype == numpy.uint8}
                self.assertEqual(len(weights), sum(dtype == "F8_E4M3" for dtype, _, _ in original.values()))
                for name, (weight, attributes) in weights.items():
                    self.assertEqual(attributes["element_type"], b"float8_e4m3fn")
                    theirs = attributes.get("checkpoint_name", name.encode()).decode()
                    self.assertEqual(weight.tobytes(), original[theirs][2], name)
                    self.assertEqual(list(weight.shape), original[theirs][1])
                    scale, attributes = tensors[name + "_scale"]
                    theirs = attributes.get("checkpoint_name", (name + "_scale").encode()).decode()
                    dtype, shape, content = original[theirs]
                    if len(shape) == 3:  # of all experts
                        expert, matrix = int(name.split(".")[5]), name.split(".")[6]
                        content = numpy.frombuffer(content, "<f4").reshape(shape)[expert]
                        content = content if matrix == "w2" else numpy.split(content, 2)[matrix == "w3"]
                        self.assertTrue(numpy.array_equal(scale, content), name)
                    else:
                        self.assertTrue(numpy.array_equal(scale.ravel(), as_float32(dtype, content)), name)

    def test_split_to_fp32_is_the_product(self):
        for case in CASES:
            with self.subTest(case=case):
                fp8, _ = shards_of(self.split(case, case + "-fp8"))
                fp32, root = shards_of(self.split(case, case + "-fp32", "--dtype", "fp32"))
                self.assertEqual(root["schema_version"], 1)
                self.assertNotIn("quantization_config", json.loads(root["config_json"].decode()))
                self.assertEqual(set(fp32), {name for name in fp8 if not name.endswith("_scale")})
                for name, (values, attributes) in fp32.items():
                    self.assertNotIn("checkpoint_name", attributes)
                    if fp8[name][0].dtype != numpy.uint8:
                        self.assertTrue(numpy.array_equal(values, fp8[name][0]), name)
                        continue
                    exact = E4M3[fp8[name][0]] * spread(fp8[name + "_scale"][0].astype(float), values.shape)
                    self.assertTrue(numpy.array_equal(values, exact.astype(numpy.float32)), name)
                self.split(case, case + "-bf16", "--dtype", "bf16")
                for shards in (case + "-fp32", case + "-bf16"):
                    found = self.succeed("verify", self.folder / shards, "--against", GOLDEN / case).stdout
                    self.assertIn("every element", found)

    def test_merge_gives_the_checkpoint_back(self):
        for case in CASES:
            with self.subTest(case=case):
                shards = self.split(case, case)
                self.assertIn("every element", self.succeed("verify", shards, "--against", GOLDEN / case).stdout)
                self.succeed("merge", shards, "--out", self.folder / "back", "--force")
                expected = read_safetensors(GOLDEN / case / "model.safetensors")
                for name in JUNK if case == "tiny-fp8-hf" else []:
                    del expected[name]
                self.assertEqual(read_safetensors(self.folder / "back/model.safetensors"), expected)
                for name in ["config.json", "generation_config.json"]:
                    self.assertEqual((self.folder / "back" / name).read_bytes(), (GOLDEN / case / name).read_bytes())
                shutil.rmtree(self.folder / "back")
                # A model.bin has fp32 alone.
                self.split(case, "fp32", "--dtype", "fp32", "--force")
                for source, name in [(shards, "a"), (self.folder / "fp32", "b")]:
                    (self.folder / name).mkdir(exist_ok=True)
                    self.succeed("merge", source, "--out", self.folder / name / "model.bin", "--force")
                self.assertEqual((self.folder / "a/model.bin").read_bytes(), (self.folder / "b/model.bin").read_bytes())
                shutil.rmtree(self.folder / "a")
                shutil.rmtree(self.folder / "b")

    def test_scales_without_fp8_are_named(self):
        result = self.succeed("split", GOLDEN / "tiny-fp8-hf", "--out", self.folder / "shards")
        self.assertIn("left out 5 scales", result.stderr)
        for name in JUNK:
            self.assertIn(name, result.stderr)
        described = json.loads(self.succeed("inspect", GOLDEN / "tiny-fp8-hf", "--json").stdout)
        self.assertEqual(sorted(described["quantization"]["left_out"]), sorted(JUNK))

    def test_inspect_and_plan(self):
        shards = self.split("tiny-fp8-channel")
        text = self.succeed("inspect", shards).stdout
        for part in ["scales by channel", "compressed-tensors", "bf16+fp8", "bf16+fp32+fp8"]:
            self.assertIn(part, text)
        described = json.loads(self.succeed("inspect", shards, "--json").stdout)
        self.assertEqual(described["quantization"]["scheme"], "channel")
        tensors = {tensor["name"]: tensor for tensor in described["tensors"]}
        name = "model.layers.1.feed_forward.experts.0.w1.weight"
        self.assertEqual((tensors[name]["dtype"], tensors[name]["bytes"]), ("fp8", 96 * 128))
        self.assertEqual((tensors[name + "_scale"]["dtype"], tensors[name + "_scale"]["bytes"]), ("bf16", 96 * 2))
        original = read_safetensors(GOLDEN / "tiny-fp8-channel/model.safetensors")
        parameters = sum(int(numpy.prod(shape)) for name, (_, shape, _) in original.items() if not name.endswith("_scale"))
        self.assertEqual(described["parameters"], parameters)

        def stage(*arguments):
            return json.loads(self.succeed("plan", shards, "--stages", "1", "--json", *arguments).stdout)

        fp8, bf16 = stage(), stage("--dtype", "bf16")
        self.assertEqual(fp8["stages"][0]["weight_bytes"], bytes_on_device(original, by_block=False))
        self.assertEqual(bf16["stages"][0]["weight_bytes"], 2 * parameters + 2 * 3 * 4)  # expert biases are fp32
        self.assertEqual(fp8["stages"][0]["parameters"], parameters)
        self.assertEqual(fp8["activation_dtype"], "bf16")
        for case in ["tiny-fp8-block", "tiny-fp8-hf"]:
            original = read_safetensors(GOLDEN / case / "model.safetensors")
            for model in [GOLDEN / case, self.split(case, case)]:
                stages = json.loads(self.succeed("plan", model, "--stages", "1", "--json").stdout)["stages"]
                self.assertEqual(stages[0]["weight_bytes"], bytes_on_device(original, by_block=True), model)

    def test_verify_finds_what_changed(self):
        shards = self.split("tiny-fp8-block")
        name = "model.layers.0.feed_forward.w1.weight"
        model = self.folder / "model"
        for tensor, at in [(name, "[3, 7]"), (name + "_scale", "[0, 1]")]:
            tensors = read_safetensors(GOLDEN / "tiny-fp8-block/model.safetensors")
            dtype, shape, content = tensors[tensor]
            changed = bytearray(content)
            row, column = json.loads(at)
            size = len(content) // (shape[0] * shape[1])
            changed[(row * shape[1] + column) * size] ^= 1
            tensors[tensor] = (dtype, shape, bytes(changed))
            shutil.rmtree(model, ignore_errors=True)
            model.mkdir()
            shutil.copy(GOLDEN / "tiny-fp8-block/config.json", model)
            write_safetensors(model / "model.safetensors", tensors)
            self.refuse(65, [tensor, f"differs first at {at}"], "verify", shards, "--against", model)
        # The same weight in another type.
        tensors = read_safetensors(GOLDEN / "tiny-fp8-block/model.safetensors")
        query = "model.layers.1.self_attn.q_proj.weight"
        tensors[query] = ("BF16", tensors[query][1], bytes(2 * len(tensors[query][2])))
        write_safetensors(model / "model.safetensors", tensors)
        self.refuse(65, [query, "is fp8, expected bf16"], "verify", shards, "--against", model)
        self.refuse(65, ["configuration differs"], "verify", shards, "--against", GOLDEN / "tiny-bf16")

    def test_every_reader_finds_scales_that_are_not_positive_and_finite(self):
        name = "model.layers.0.feed_forward.w1.weight_scale"
        tensors = read_safetensors(GOLDEN / "tiny-fp8-block/model.safetensors")
        dtype, shape, content = tensors[name]
        tensors[name] = (dtype, shape, content[:6] + b"\x80\xbf")  # -1
        model = self.folder / "model"
        model.mkdir()
        shutil.copy(GOLDEN / "tiny-fp8-block/config.json", model)
        write_safetensors(model / "model.safetensors", tensors)
        parts = [name, "-1 at [1, 1]", "positive"]
        for arguments in [
            ["split", model, "--out", self.folder / "out"],
            ["split", model, "--out", self.folder / "out", "--dtype", "bf16"],
            ["verify", "--untrusted", model],
        ]:
            self.refuse(65, parts, *arguments)
        self.assertEqual(self.names(), ["model"])


class QuantizeTest(CliTest):
    def test_quantize_split_merge(self):
        for scheme in ["channel", "block"]:
            for modules in ["experts", "all"]:
                with self.subTest(scheme=scheme, modules=modules):
                    out = self.folder / f"{scheme}-{modules}"
                    arguments = ["--to", "fp8", "--scheme", scheme, "--modules", modules]
                    result = self.succeed("quantize", GOLDEN / "kjv-moe", *arguments, "--out", out)
                    self.assertEqual(result.stderr.count("\n"), 1)
                    before = read_safetensors(GOLDEN / "kjv-moe/model.safetensors")
                    after = read_safetensors(out / "model.safetensors")
                    fp8 = [name for name, (dtype, _, _) in after.items() if dtype == "F8_E4M3"]
                    self.assertEqual(set(after), set(before) | {name + "_scale" for name in fp8})
                    self.assertEqual(any("self_attn" in name for name in fp8), modules == "all")
                    lines = {line.split()[0]: line.split() for line in result.stdout.splitlines() if line}
                    for name in fp8:
                        exact = as_float32(*before[name][::2]).astype(float).reshape(before[name][1])
                        scale = spread(as_float32(*after[name + "_scale"][::2]).reshape(after[name + "_scale"][1]), exact.shape)
                        error = E4M3[numpy.frombuffer(after[name][2], numpy.uint8)].reshape(exact.shape) * scale.astype(float) - exact
                        rms = numpy.sqrt((error**2).sum() / (exact**2).sum())
                        self.assertAlmostEqual(float(lines[name][-2]), rms, delta=1e-5)
                        self.assertAlmostEqual(float(lines[name][-1]), abs(error).max(), delta=1e-5 * abs(error).max())
                        self.assertLess(rms, 0.04)
                    self.assertEqual(int(lines["all"][1]), len(fp8))
                    config = json.loads((out / "config.json").read_text())["quantization_config"]
                    ignored = set(config["ignore"])
                    self.assertFalse(ignored & {name.removesuffix(".weight") for name in fp8})
                    for text in ["tokenizer.json", "chat_template.jinja", "generation_config.json"]:
                        self.assertEqual((out / text).read_bytes(), (GOLDEN / "kjv-moe" / text).read_bytes())
                    self.succeed("split", out, "--out", self.folder / "shards", "--force")
                    self.succeed("verify", self.folder / "shards", "--against", out)
                    self.succeed("merge", self.folder / "shards", "--out", self.folder / "back")
                    for name in ["model.safetensors", "config.json"]:
                        self.assertEqual((self.folder / "back" / name).read_bytes(), (out / name).read_bytes())
                    shutil.rmtree(self.folder / "back")

    def test_every_form_of_a_model_gives_the_same(self):
        shards = self.split("tiny-bf16")
        for source, name in [(GOLDEN / "tiny-bf16", "a"), (shards, "b")]:
            self.succeed("quantize", source, "--to", "fp8", "--out", self.folder / name)
        self.succeed("quantize", shards, "--to", "fp8", "--out", self.folder / "c.safetensors", "--quiet")
        files = [self.folder / name for name in ["a/model.safetensors", "b/model.safetensors", "c.safetensors"]]
        self.assertEqual(len({path.read_bytes() for path in files}), 1)

    def test_refusals(self):
        out = self.folder / "out"
        model = GOLDEN / "tiny-moe"
        self.refuse(64, ["--to"], "quantize", model, "--out", out)
        self.refuse(64, ["--to", "int4"], "quantize", model, "--to", "int4", "--out", out)
        self.refuse(64, ["--scheme", "tensor"], "quantize", model, "--to", "fp8", "--scheme", "tensor", "--out", out)
        self.refuse(64, ["--modules", "heads"], "quantize", model, "--to", "fp8", "--modules", "heads", "--out", out)
        self.refuse(64, ["model.bin", "fp32"], "quantize", model, "--to", "fp8", "--out", self.folder / "out.bin")
        synth = ["synth", "--config", "lfm2-tiny", "--dtype", "fp8"]
        self.refuse(64, ["model.bin", "fp32"], *synth, "--out", self.folder / "out.bin")
        for dtype in [[], ["--dtype", "bf16"]]:
            for ignored in [["--scheme", "block"], ["--modules", "all"], ["--scheme", "channel", "--modules", "experts"]]:
                self.refuse(64, ["--scheme and --modules need --dtype fp8"], "synth", "--config", "lfm2-tiny", *dtype, *ignored, "--out", out)
        for case in CASES:
            self.refuse(65, ["fp8 already"], "quantize", GOLDEN / case, "--to", "fp8", "--out", out)
            config = GOLDEN / case / "config.json"
            for dtype in ["bf16", "fp8"]:
                self.refuse(65, [str(config), "quantization_config"], "synth", "--config", config, "--dtype", dtype, "--out", out)
            self.refuse(65, [str(config), "quantization_config"], "plan", config)
        self.refuse(66, ["no/such"], "quantize", self.folder / "no/such", "--to", "fp8", "--out", out)
        tensors = read_safetensors(model / "model.safetensors")
        name = "model.layers.5.feed_forward.experts.3.w2.weight"
        dtype, shape, content = tensors[name]
        tensors[name] = (dtype, shape, content[:8] + b"\0\0\xc0\x7f" + content[12:])
        (self.folder / "m").mkdir()
        shutil.copy(model / "config.json", self.folder / "m")
        write_safetensors(self.folder / "m/model.safetensors", tensors)
        self.refuse(65, [name, "[0, 2]", "finite"], "quantize", self.folder / "m", "--to", "fp8", "--out", out)
        self.assertEqual(self.names(), ["m"])
        self.succeed("quantize", model, "--to", "fp8", "--out", out)
        before = (out / "model.safetensors").read_bytes()
        self.refuse(73, [str(out), "--force"], "quantize", model, "--to", "fp8", "--scheme", "block", "--out", out)
        self.assertEqual((out / "model.safetensors").read_bytes(), before)
        self.succeed("quantize", model, "--to", "fp8", "--scheme", "block", "--out", out, "--force")
        self.assertNotEqual((out / "model.safetensors").read_bytes(), before)
        self.refuse(64, ["would replace"], "quantize", self.folder / "m", "--to", "fp8", "--out", self.folder / "m", "--force")

    def test_the_source_is_kept(self):
        model, several, binary = self.folder / "m", self.folder / "several", self.folder / "bin"
        for folder in [model, several, binary]:
            folder.mkdir()
            shutil.copy(GOLDEN / "tiny-moe/config.json", folder)
        shutil.copy(GOLDEN / "tiny-moe/model.safetensors", model)
        self.succeed("merge", self.split(), "--out", binary / "model.bin")
        tensors = list(read_safetensors(model / "model.safetensors").items())
        halves = {f"model-0000{i + 1}-of-00002.safetensors": dict(tensors[i::2]) for i in range(2)}
        for name, half in halves.items():
            write_safetensors(several / name, half)
        index = several / "model.safetensors.index.json"
        index.write_text(json.dumps({"weight_map": {tensor: name for name, half in halves.items() for tensor in half}}))
        config, link = self.folder / "other/config.json", self.folder / "link"
        config.parent.mkdir()
        shutil.copy(GOLDEN / "tiny-moe/config.json", config)
        link.symlink_to(model)
        before = self.contents()
        file, first = model / "model.safetensors", several / "model-00001-of-00002.safetensors"
        beside = "would write a config.json for fp8 beside"
        cases = [
            ("would replace", file, [model, "--out", file]),
            ("would replace", link / "model.safetensors", [link, "--out", file]),
            ("would replace", file, [file, "--out", file]),
            ("would replace", file, [file, "--out", link]),
            ("would replace", first, [several, "--out", first]),
            ("would replace", several, [several, "--out", several]),
            ("would replace", config, [model, "--config", config, "--out", config.parent]),
            ("would replace", config, [model, "--config", config, "--out", config.parent / "q.safetensors"]),
            (beside, file, [model, "--out", model / "q.safetensors"]),
            (beside, file, [file, "--out", link / "q.safetensors"]),
            (beside, file, [file, "--config", config, "--out", model / "q.safetensors"]),
            (beside, first, [several, "--out", several / "model.safetensors"]),
            (beside, binary / "model.bin", [binary, "--out", binary / "q.safetensors"]),
        ]
        for would, kept, arguments in cases:
            with self.subTest(arguments=arguments):
                message = f"--out {arguments[-1]}: {would} {kept}, which is read, expected another "
                self.refuse(64, [message], "quantize", *arguments, "--to", "fp8", "--force")
        synth = ["synth", "--config", model / "config.json", "--dtype", "fp8", "--force"]
        for out in [model, model / "q.safetensors"]:
            self.refuse(64, [f"would replace {model / 'config.json'}, which is read"], *synth, "--out", out)
        for out in [several, several / "model.safetensors"]:
            self.refuse(73, [str(index)], "quantize", model, "--to", "fp8", "--out", out, "--force")
            self.refuse(73, [str(index)], "merge", self.folder / "shards", "--out", out, "--force")
            self.refuse(73, [str(index)], "synth", "--config", "lfm2-tiny", "--out", out, "--force")
        self.assertEqual(self.contents(), before)
        arguments = ["quantize", "model.safetensors", "--to", "fp8", "--out", "q.safetensors", "--force"]
        self.refuse(64, [f"{beside} model.safetensors,"], *arguments, cwd=model)
        self.assertEqual(self.contents(), before)

    def test_a_full_disk_leaves_nothing(self):
        limit = 1 << 19

        def small_files():
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

        result = run("quantize", GOLDEN / "tiny-moe", "--to", "fp8", "--out", self.folder / "out", preexec_fn=small_files)
        self.assertEqual(result.returncode, 74, result.stderr)
        self.assertEqual(self.names(), [])

    def test_synth_makes_fp8(self):
        self.succeed("synth", "--config", "lfm2-tiny", "--dtype", "fp8", "--scheme", "block", "--out", self.folder / "a")
        self.succeed("synth", "--config", "lfm2-tiny", "--out", self.folder / "b")
        self.succeed("quantize", self.folder / "b", "--to", "fp8", "--scheme", "block", "--out", self.folder / "c")
        for name in ["model.safetensors", "config.json"]:
            self.assertEqual((self.folder / "a" / name).read_bytes(), (self.folder / "c" / name).read_bytes())

    def test_talks_only_where_it_should(self):
        quiet = self.succeed("quantize", GOLDEN / "tiny-moe", "--to", "fp8", "--out", self.folder / "a", "-q")
        self.assertEqual(quiet.stdout + quiet.stderr, "")
        self.assertEqual(sorted(os.listdir(self.folder / "a")), ["config.json", "model.safetensors"])


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[3:], verbosity=2)
