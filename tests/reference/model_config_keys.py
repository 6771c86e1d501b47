#!/usr/bin/env python3
"""Lists every key of a config.json that transformers may read for lfm2, lfm2_moe and lfm3: tests/unit/model/model_config_keys.json.

    model_config_keys.py [FILE]

A row is one key of one class. `from` says why it is in the list:
    field      a field of Lfm2Config, Lfm2MoeConfig or Lfm3Config, their bases' fields included; `default` is the class's
    older      a spelling that a class or its base takes besides
    class      a variable of the class, which a config.json can overwrite
    read       an attribute of the configuration that the code of the models, masks, caches or configurations reads
    rope       a key of the object under rope_parameters or rope_scaling
    published  a key of published LFM2 files that transformers takes and never reads
    foreign    a key by which other families name a computation that this one does not have

`verdict`, `example` and `without` are written by hand and kept when the list is made again; a new key gets an empty verdict, which
tests/unit/model/model_config_keys_test.cpp does not accept until somebody has read what the key does:
    computed   the example, put in place of the test's own value, gives another parsed model (or is refused)
    one value  the example is refused, by a message that names the key
    harmless   the example changes nothing: the key has no part in the logits and in the tokens that end a text
`without` names keys that are taken out before the example is put in. Names that begin with _ are left out: code sets those. So are
parameters of generation, which transformers drops when it reads a configuration. Needs transformers.
"""
import ast
import dataclasses
import inspect
import json
import pathlib
import sys
import textwrap

import transformers
from transformers import Lfm2Config, Lfm2MoeConfig, Lfm3Config
from transformers.generation import GenerationConfig
from transformers.modeling_rope_utils import RopeParameters

CLASSES = {"lfm2": Lfm2Config, "lfm2_moe": Lfm2MoeConfig, "lfm3": Lfm3Config}
READERS = ["configuration_utils.py", "modeling_rope_utils.py", "masking_utils.py", "cache_utils.py", "utils/generic.py",
           "integrations/heterogeneity/configuration_utils.py", "modeling_utils.py"]
PUBLISHED = ["auto_map", "block_dim", "block_mlp_init_scale", "block_norm_eps", "block_out_init_scale", "block_use_swiglu",
             "block_use_xavier_init", "conv_dim", "conv_dim_out", "conv_use_xavier_init", "num_heads", "theta", "use_pos_enc"]
FOREIGN = ["attention_bias", "hidden_act", "is_decoder", "mlp_bias", "num_kv_shared_layers", "number_of_conv_states"]


def is_config(node):
    """Whether the expression is a configuration: config, text_config, self.config, config.get_text_config()."""
    if isinstance(node, ast.Name):
        return node.id in ("config", "text_config")
    if isinstance(node, ast.Attribute):
        return node.attr == "config"
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "get_text_config"


def attributes_read(tree, of_self=False):
    """Attributes of configurations that code reads, by name or with getattr, hasattr and in; within their classes, of self too."""
    def is_one(node):
        return is_config(node) or (of_self and isinstance(node, ast.Name) and node.id == "self")

    if not of_self:
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and node.name.endswith(("Config", "ConfigMixin")):
                yield from attributes_read(node, of_self=True)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and is_one(node.value):
            yield node.attr
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("getattr", "hasattr"):
            if is_one(node.args[0]) and isinstance(node.args[1], ast.Constant):
                yield node.args[1].value
        if isinstance(node, ast.Compare) and isinstance(node.left, ast.Constant) and isinstance(node.ops[0], ast.In):
            if isinstance(node.comparators[0], ast.Name) and node.comparators[0].id in ("self", "config_dict"):
                yield node.left.value


def kwargs_taken(function):
    """Keys that a function takes out of its keyword arguments."""
    for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(function)))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("pop", "get"):
            if isinstance(node.func.value, ast.Name) and node.func.value.id == "kwargs" and isinstance(node.args[0], ast.Constant):
                yield node.args[0].value


def rows_of(name, cls):
    rows = {}

    def add(key, origin, **more):
        if isinstance(key, str) and not key.startswith("_") and key not in rows:
            rows[key] = {"class": name, "key": key, "from": origin, **more}

    for field in dataclasses.fields(cls):
        add(field.name, "field", default=field.default)
    for base in cls.__mro__:
        for function in (base.__dict__.get("__post_init__"), base.__dict__.get("convert_rope_params_to_dict")):
            for key in kwargs_taken(function) if function else ():
                add(key, "older")
    for base in cls.__mro__:
        for key in base.__dict__.get("__annotations__", {}):
            add(key, "class")
    root = pathlib.Path(transformers.__file__).parent
    files = [root / file for file in READERS] + sorted((root / "models" / name).glob("*.py"))
    for file in files:
        for key in attributes_read(ast.parse(file.read_text())):
            # Methods are no keys. Neither are parameters of generation, which are dropped, or attributes of other
            # configurations.
            if isinstance(key, str) and not callable(getattr(cls, key, None)) and key not in GenerationConfig().to_dict():
                add(key, "read")
    for key in RopeParameters.__annotations__.keys() | {"type", "full_attention"}:
        add("rope_parameters." + key, "rope")
    for key in PUBLISHED:
        add(key, "published")
    for key in FOREIGN:
        add(key, "foreign")
    return sorted(rows.values(), key=lambda row: (row["from"], row["key"]))


def main():
    file = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parents[1] / "unit" / "model" / "model_config_keys.json")
    known = {(row["class"], row["key"]): row for row in json.loads(file.read_text())["keys"]} if file.exists() else {}
    rows = [row for name, cls in CLASSES.items() for row in rows_of(name, cls)]
    for row in rows:
        hand = known.get((row["class"], row["key"]), {})
        row.update({part: hand[part] for part in ("without", "example", "verdict") if part in hand})
        row.setdefault("verdict", "")
    text = ",\n".join("  " + json.dumps(row) for row in rows)
    file.write_text(f'{{"transformers": "{transformers.__version__}", "keys": [\n{text}\n]}}\n')
    print(f"{file}: {len(rows)} keys, {sum(not row['verdict'] for row in rows)} without a verdict")


if __name__ == "__main__":
    main()
