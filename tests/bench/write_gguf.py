#!/usr/bin/env python3
"""write_gguf.py MODEL DTYPE OUT.gguf: a model's folder (`weights-tools synth`) as a file for llama.cpp's benches, with the very same weights.

It has no vocabulary but its size, so llama.cpp computes with it and reads no text. Norms, convolution kernels, routers and their biases become
fp32, as llama.cpp's own converter stores them; all else stays as it is. DTYPE (fp32, bf16, fp16) is only what the file says of itself.
A GGUF is a header, key-values, the tensors' names, shapes and places, and their bytes.
"""
import collections
import concurrent.futures
import json
import math
import os
import pathlib
import re
import struct
import sys
import threading
import typing


class Tensor(typing.NamedTuple):
    dtype: str
    shape: list
    begin: int  # of its bytes in the file
    end: int


GGUF_ALIGNMENT = 32
PIECE_BYTES = 8 << 20  # copied at a time by a thread
thread_memory = threading.local()
GGML_TYPES = {"F32": (0, 4), "F16": (1, 2), "BF16": (30, 2)}  # as safetensors calls them: llama.cpp's number, bytes of an element
FILE_TYPES = {"fp32": 0, "fp16": 1, "bf16": 32}
FEED_FORWARD = {"w1": "ffn_gate", "w2": "ffn_down", "w3": "ffn_up"}
NAMES = {"model.embed_tokens.weight": "token_embd.weight", "model.embedding_norm.weight": "token_embd_norm.weight", "lm_head.weight": "output.weight"}
LAYER_NAMES = {"operator_norm": "attn_norm", "ffn_norm": "ffn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
               "self_attn.v_proj": "attn_v", "self_attn.out_proj": "attn_output", "self_attn.q_layernorm": "attn_q_norm",
               "self_attn.k_layernorm": "attn_k_norm", "conv.conv": "shortconv.conv", "conv.in_proj": "shortconv.in_proj",
               "conv.out_proj": "shortconv.out_proj", "feed_forward.gate": "ffn_gate_inp",
               **{f"feed_forward.{ours}": theirs for ours, theirs in FEED_FORWARD.items()}}


def read_safetensors(path):
    """The tensors of a file by their names."""
    with open(path, "rb") as file:
        size, = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(size))
    header.pop("__metadata__", None)
    return {name: Tensor(one["dtype"], one["shape"], *(8 + size + offset for offset in one["data_offsets"])) for name, one in header.items()}


def llama_name(name):
    """What llama.cpp calls a tensor, and which expert of that tensor this one is."""
    if name in NAMES:
        return NAMES[name], 0
    layer, part = re.fullmatch(r"model\.layers\.(\d+)\.(.+?)(?:\.weight)?", name).groups()
    if part == "feed_forward.expert_bias":
        return f"blk.{layer}.exp_probs_b.bias", 0
    if expert := re.fullmatch(r"feed_forward\.experts\.(\d+)\.(w[123])", part):
        return f"blk.{layer}.{FEED_FORWARD[expert[2]]}_exps.weight", int(expert[1])
    return f"blk.{layer}.{LAYER_NAMES[part]}.weight", 0


def gguf_string(text):
    return struct.pack("<Q", len(text.encode())) + text.encode()


def gguf_value(value):
    """A key's value, behind the number of its type: string, int32 array, float32 or uint32."""
    if isinstance(value, str):
        return struct.pack("<I", 8) + gguf_string(value)
    if isinstance(value, list):
        return struct.pack(f"<IIQ{len(value)}i", 9, 5, len(value), *value)
    return struct.pack("<If", 6, value) if isinstance(value, float) else struct.pack("<II", 4, value)


def gguf_keys(config, tensors, dtype):
    """What llama.cpp asks of an LFM2 model. Sizes that the tensors show are taken from them, not from the configuration."""
    experts, layers = "num_experts" in config, config["num_hidden_layers"]
    heads_kv = [config["num_key_value_heads"] if f"model.layers.{layer}.self_attn.k_proj.weight" in tensors else 0 for layer in range(layers)]
    theta = config["rope_theta"] if "rope_theta" in config else config["rope_parameters"]["rope_theta"]
    of_model = {"block_count": layers, "context_length": config["max_position_embeddings"], "embedding_length": config["hidden_size"],
                "feed_forward_length": tensors["model.layers.0.feed_forward.w1.weight"].shape[0],
                "attention.head_count": config["num_attention_heads"], "attention.head_count_kv": heads_kv,
                "attention.layer_norm_rms_epsilon": float(config["norm_eps"]), "rope.freq_base": float(theta),
                "vocab_size": config["vocab_size"], "shortconv.l_cache": config["conv_L_cache"]}
    if experts:
        sigmoid = 2
        of_model |= {"expert_count": config["num_experts"], "expert_used_count": config["num_experts_per_tok"],
                     "expert_feed_forward_length": config["moe_intermediate_size"], "leading_dense_block_count": config["num_dense_layers"],
                     "expert_gating_func": sigmoid}
    name = "lfm2moe" if experts else "lfm2"
    return {"general.architecture": name, "general.name": "random", "general.file_type": FILE_TYPES[dtype],
            "tokenizer.ggml.model": "no_vocab", **{f"{name}.{key}": value for key, value in of_model.items()}}


def widened(data, dtype):
    """The same numbers in fp32."""
    if dtype == "F16":
        return struct.pack(f"<{len(data) // 2}f", *struct.unpack(f"<{len(data) // 2}e", data))
    if dtype == "BF16":
        wide = bytearray(2 * len(data))
        wide[2::4], wide[3::4] = data[0::2], data[1::2]
        return wide
    return data


def copy_part(files, from_offset, to_offset, count):
    """Copies bytes from file to file through memory that this thread keeps: neither maps the files, whose page faults would cost more."""
    source, target = files
    memory = memoryview(thread_memory.__dict__.setdefault("piece", bytearray(PIECE_BYTES)))
    while count > 0:
        found = os.preadv(source, [memory[:min(count, PIECE_BYTES)]], from_offset)
        if found == 0:
            raise EOFError("the model's file is shorter than it says")
        written = os.pwrite(target, memory[:found], to_offset)
        from_offset, to_offset, count = from_offset + written, to_offset + written, count - written


def write_gguf(model, dtype, path):
    """Makes a GGUF of a model's folder."""
    source = model / "model.safetensors"
    tensors = read_safetensors(source)
    groups = collections.defaultdict(list)  # the tensors of one name in the GGUF: one, or all experts
    for name, tensor in tensors.items():
        llama, expert = llama_name(name)
        groups[llama].append((expert, tensor))
    keys = gguf_keys(json.loads((model / "config.json").read_text()), tensors, dtype)
    head = b"GGUF" + struct.pack("<IQQ", 3, len(groups), len(keys)) + b"".join(gguf_string(key) + gguf_value(value) for key, value in keys.items())
    places, offset = [], 0
    for name, members in groups.items():
        first = members[0][1]
        shape = [size for size in first.shape if size > 1]  # a convolution's kernel is [hidden, 1, length]
        wide = len(shape) == 1 or "shortconv.conv" in name or "ffn_gate_inp" in name
        number, element = GGML_TYPES["F32" if wide else first.dtype]
        shape = [len(members)] * ("_exps" in name) + shape
        head += gguf_string(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *reversed(shape), number, offset)
        places.append((wide, offset, [tensor for _, tensor in sorted(members)]))
        offset += -(-math.prod(shape) * element // GGUF_ALIGNMENT) * GGUF_ALIGNMENT
    first_byte, partial = -(-len(head) // GGUF_ALIGNMENT) * GGUF_ALIGNMENT, path.with_suffix(".partial")
    with open(source, "rb") as data, open(partial, "wb") as output, concurrent.futures.ThreadPoolExecutor(min(8, os.cpu_count())) as threads:
        files, copies = (data.fileno(), output.fileno()), []
        os.pwrite(output.fileno(), head, 0)
        os.ftruncate(output.fileno(), first_byte + offset)  # what nobody writes, between tensors, is zero
        for wide, offset, members in places:
            target = first_byte + offset
            for tensor in members:
                count = tensor.end - tensor.begin
                if wide:
                    part = widened(os.pread(data.fileno(), count, tensor.begin), tensor.dtype)
                    target += os.pwrite(output.fileno(), part, target)
                    continue
                copies += [threads.submit(copy_part, files, tensor.begin + done, target + done, min(PIECE_BYTES, count - done))
                           for done in range(0, count, PIECE_BYTES)]
                target += count
        for copy in copies:
            copy.result()
    partial.rename(path)


if __name__ == "__main__":
    if len(sys.argv) != 4 or sys.argv[2] not in FILE_TYPES:
        sys.exit(__doc__)
    write_gguf(pathlib.Path(sys.argv[1]), sys.argv[2], pathlib.Path(sys.argv[3]))
