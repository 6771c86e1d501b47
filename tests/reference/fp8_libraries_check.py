#!/usr/bin/env python3
"""Checkpoints with fp8 that llm-compressor, compressed-tensors and transformers write here and now, through weights-tools.

    fp8_libraries_check.py build/cpu/bin/weights-tools

Makes small random models of transformers, quantises them with each library that is installed, and checks for every file: split and verify accept it,
merge gives the same tensors back, and split --dtype fp32 gives the values that NumPy finds. transformers must read what quantize writes. Skips by name
what is not installed, and libraries that fail themselves; ends with 77 where nothing was checked. Needs torch, transformers >= 5, numpy, h5py, and llmcompressor or compressed-tensors for their
forms. Seen with llm-compressor 0.14.0.1, compressed-tensors 0.20.1, transformers 5.24.0 and torch 2.14.0.
"""
import importlib
import json
import pathlib
import struct
import subprocess
import sys
import tempfile

PROGRAM = pathlib.Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else sys.exit(__doc__)
try:
    import h5py
    import numpy
    import torch
    import transformers
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)


def installed(name):
    try:
        return importlib.import_module(name)
    except ImportError as missing:
        print(f"skipped: {name}: {missing}")
        return None


def small_model(folder, dtype, moe=True, hidden=256, ffn=384, expert_ffn=128):
    """A random model in Hugging Face's form; sides that 128 does not divide come by other arguments."""
    shape = dict(vocab_size=160, hidden_size=hidden, intermediate_size=ffn, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
                 max_position_embeddings=128, layer_types=["conv", "full_attention", "conv"], tie_word_embeddings=True)  # fmt: skip
    if moe:
        config = transformers.Lfm2MoeConfig(**shape, moe_intermediate_size=expert_ffn, num_dense_layers=1, num_experts=3, num_experts_per_tok=2)
        config.hidden_act = "silu"  # FineGrainedFP8 asks for it
        model = transformers.Lfm2MoeForCausalLM(config)
    else:
        config = transformers.Lfm2Config(**shape, block_auto_adjust_ff_dim=False)
        model = transformers.Lfm2ForCausalLM(config)
    torch.manual_seed(3)
    for name, value in model.named_parameters():
        torch.nn.init.normal_(value, 1.0 if "norm" in name else 0.0, 0.1)
    model.to(dtype).save_pretrained(folder)
    return folder


def with_llm_compressor(source, out, scheme, ignore):
    llmcompressor = importlib.import_module("llmcompressor")
    modifier = importlib.import_module("llmcompressor.modifiers.quantization").QuantizationModifier(targets="Linear", scheme=scheme, ignore=ignore)
    model = transformers.AutoModelForCausalLM.from_pretrained(source, dtype="auto")
    llmcompressor.oneshot(model=model, recipe=modifier)
    model.save_pretrained(out, save_compressed=True)


def with_compressed_tensors(source, out, scheme, ignore):
    quantization = importlib.import_module("compressed_tensors.quantization")
    compressors = importlib.import_module("compressed_tensors.compressors")
    model = transformers.AutoModelForCausalLM.from_pretrained(source, dtype="auto")
    config = quantization.QuantizationConfig(config_groups={scheme: ["Linear"]}, ignore=ignore, quantization_status="initialized")
    quantization.apply_quantization_config(model, config)
    for module in model.modules():
        if getattr(module, "quantization_scheme", None) is None or not hasattr(module, "weight_scale"):
            continue
        largest = module.weight.detach().float()
        if module.quantization_scheme.weights.strategy == "channel":
            scale = largest.abs().amax(dim=1, keepdim=True) / 448
        else:
            rows, columns = module.weight_scale.shape
            scale = torch.stack([torch.stack([b.abs().max() for b in band.split(128, dim=1)]) for band in largest.split(128, dim=0)]) / 448
            assert scale.shape == (rows, columns)
        module.weight_scale.data.copy_(scale)
    compressor = compressors.ModelCompressor.from_pretrained_model(model)
    compressor.compress_model(model)
    model.save_pretrained(out)
    compressor.update_config(out)


def with_transformers(source, out):
    fine_grained = importlib.import_module("transformers.quantizers.quantizer_finegrained_fp8").FineGrainedFP8HfQuantizer
    fine_grained.validate_environment = lambda *arguments, **options: None  # asks for a GPU, which saving does not need
    config = transformers.FineGrainedFP8Config(weight_block_size=(128, 128))
    model = transformers.AutoModelForCausalLM.from_pretrained(source, dtype="auto", quantization_config=config, device_map="cpu")
    model.save_pretrained(out)


def read_folder(folder):
    """Name -> (dtype, shape, bytes) of all files of a folder."""
    tensors = {}
    for path in sorted(folder.glob("*.safetensors")):
        data = path.read_bytes()
        (length,) = struct.unpack("<Q", data[:8])
        for name, entry in json.loads(data[8 : 8 + length]).items():
            if name != "__metadata__":
                begin, end = entry["data_offsets"]
                tensors[name] = (entry["dtype"], entry["shape"], data[8 + length + begin : 8 + length + end])
    return tensors


def tools(*arguments):
    result = subprocess.run([PROGRAM, *map(str, arguments)], capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr
    return result


def e4m3(content):
    bits = numpy.frombuffer(content, numpy.uint8).astype(int)
    exponent, mantissa = bits >> 3 & 15, bits & 7
    magnitude = numpy.where(exponent == 0, mantissa * 2.0**-9, (8 + mantissa) * 2.0 ** (exponent - 10))
    return numpy.where(bits & 128, -magnitude, magnitude)


def check(model, work):
    """Everything that weights-tools does with one checkpoint; returns how many weights are fp8."""
    shards, back, values = work / "shards", work / "back", work / "values"
    left_out = [word.rstrip(",") for word in tools("split", model, "--out", shards, "--stages", "2").stderr.split() if "weight_scale" in word]
    tools("verify", shards, "--against", model)
    tools("merge", shards, "--out", back)
    before, after = read_folder(model), read_folder(back)
    assert set(after) == set(before) - set(left_out), set(before) ^ set(after)
    for name in after:
        assert before[name] == after[name], name
    tools("split", model, "--out", values, "--dtype", "fp32", "--stages", "1")
    tools("verify", values, "--against", model)
    stored, exact = {}, {}
    for folder, datasets in [(shards, stored), (values, exact)]:
        for path in folder.glob("*.h5"):
            with h5py.File(path) as file:
                datasets.update({name: dataset[()] for name, dataset in file.items()})
    weights = [name for name, value in stored.items() if value.dtype == numpy.uint8]
    for name in weights:
        shape, scale = stored[name].shape, stored[name + "_scale"].astype(float)
        if scale.shape != (shape[0], 1):
            scale = scale.repeat(128, axis=0)[: shape[0]].repeat(128, axis=1)[:, : shape[1]]
        product = e4m3(stored[name].tobytes()).reshape(shape) * scale
        assert numpy.array_equal(exact[name], product.astype(numpy.float32)), name
    return len(weights), len(left_out)


def check_quantize(work, scheme):
    """transformers finds every weight and every scale of a dense model that quantize wrote; returns how many scales."""
    source, out = small_model(work / "source", torch.bfloat16, moe=False), work / "quantised"
    tools("quantize", source, "--to", "fp8", "--scheme", scheme, "--modules", "all", "--out", out)
    model, found = transformers.AutoModelForCausalLM.from_pretrained(out, output_loading_info=True)
    assert not any(found.values()), found
    written = read_folder(out)
    weights = {name: value for name, value in model.state_dict().items() if name + "_scale" in written}
    assert weights and all(value.dtype == torch.float8_e4m3fn for value in weights.values())
    for name, value in weights.items():
        assert value.view(torch.uint8).numpy().tobytes() == written[name][2], name
    return len(weights)


def main():
    versions = " ".join(f"{name} {importlib.import_module(name).__version__}" for name in ("torch", "transformers"))
    print(versions)
    careful = ["lm_head", "re:.*self_attn.*", r"re:.*\.conv\..*", r"re:.*feed_forward\.gate$"]
    cases = []
    for library, quantise in [("llmcompressor", with_llm_compressor), ("compressed_tensors", with_compressed_tensors)]:
        if installed(library) is None:
            continue
        for scheme in ("FP8_DYNAMIC", "FP8_BLOCK"):
            for name, options in [("moe", {}), ("dense", {"moe": False}), ("fp32", {"dtype": torch.float32})]:
                ignore = careful if name == "moe" else ["lm_head", r"re:.*feed_forward\.gate$"]
                cases.append((f"{library} {scheme} {name}", options, lambda s, o, q=quantise, c=scheme, i=ignore: q(s, o, c, i)))
    cases.append(("transformers fp8 moe", {}, with_transformers))
    cases.append(("transformers fp8 dense", {"moe": False, "hidden": 128, "ffn": 320}, with_transformers))
    checked = failed = 0
    for title, options, quantise in cases:
        with tempfile.TemporaryDirectory(prefix="lfm2-fp8-") as folder:
            work = pathlib.Path(folder)
            source = small_model(work / "source", **{"dtype": torch.bfloat16, **options})
            try:
                quantise(source, work / "model")
            except Exception as error:  # another version of the library; what it writes is the subject, not whether it does
                print(f"{title}: skipped, the library itself fails: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}")
                continue
            checked += 1
            try:
                fp8, left_out = check(work / "model", work)
                print(f"{title}: {fp8} weights in fp8, {left_out} scales left out: right")
                failed += fp8 == 0
            except AssertionError as error:
                failed += 1
                print(f"{title}: WRONG: {error}")
    if installed("compressed_tensors") is not None:
        for scheme in ("channel", "block"):
            checked += 1
            with tempfile.TemporaryDirectory(prefix="lfm2-fp8-") as folder:
                print(f"quantize --scheme {scheme}: transformers reads {check_quantize(pathlib.Path(folder), scheme)} weights in fp8: right")
    if checked == 0:
        print("skipped: no library wrote a checkpoint")
        return 77
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
