#!/usr/bin/env python3
"""lfm2_numpy.py against transformers, both in fp64, for the random models of random_models.py: the largest difference of logits.

    check_lfm2_numpy.py [MODELS]

transformers computes RMSNorm in fp32 even in a model of fp64: here its two norm classes stay in fp64, everything else is its own
(attention by sdpa, which stays in fp64). Cosines and sines of RoPE are fp32 by definition, and torch's are not always the nearest
ones: the second column gives transformers the tables of lfm2_numpy. Needs torch and transformers.
"""
import copy
import sys

import numpy as np
import torch
from transformers import Lfm2Config, Lfm2ForCausalLM, Lfm2MoeConfig, Lfm2MoeForCausalLM, Lfm3Config, Lfm3ForCausalLM
from transformers.models.lfm2 import modeling_lfm2
from transformers.models.lfm2_moe import modeling_lfm2_moe
from transformers.models.lfm3 import modeling_lfm3

import lfm2_numpy
from random_models import RandomModel


def norm_in_fp64(self, x):
    return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon))


modeling_lfm2.Lfm2RMSNorm.forward = modeling_lfm2_moe.Lfm2MoeRMSNorm.forward = modeling_lfm3.Lfm3RMSNorm.forward = norm_in_fp64

CLASSES = {"lfm2": (Lfm2Config, Lfm2ForCausalLM), "lfm2_moe": (Lfm2MoeConfig, Lfm2MoeForCausalLM), "lfm3": (Lfm3Config, Lfm3ForCausalLM)}


def as_proportional(config):
    """transformers reads `default` without its factor; see frequencies() in lfm2_numpy.py."""
    config = copy.deepcopy(config)
    for rope in config["rope_parameters"].values() if config["model_type"] == "lfm3" else ():
        if "partial_rotary_factor" in rope:
            rope["rope_type"] = "proportional"
    return config


def state_of(tensors, config):
    """The tensors as transformers holds them: experts fused."""
    state = {name: torch.from_numpy(value).double() for name, value in tensors.items() if ".experts." not in name}
    for layer in {name.split("experts.")[0] for name in tensors if ".experts." in name}:
        def of(expert, part):
            return torch.from_numpy(tensors[f"{layer}experts.{expert}.{part}.weight"]).double()

        experts = range(config["num_experts"])
        state[layer + "experts.gate_up_proj"] = torch.stack([torch.cat([of(e, "w1"), of(e, "w3")]) for e in experts])
        state[layer + "experts.down_proj"] = torch.stack([of(e, "w2") for e in experts])
    return state


def logits_of(model, samples):
    with torch.inference_mode():
        return np.concatenate([model(torch.tensor([ids]), use_cache=False).logits[0].numpy() for ids in samples])


worst = np.zeros(2)
for number in range(int(sys.argv[1]) if len(sys.argv) > 1 else 40):
    made = RandomModel(number)
    config_class, model_class = CLASSES[made.config["model_type"]]
    config = config_class.from_dict(as_proportional(made.config))
    config._attn_implementation, config._experts_implementation = "sdpa", "eager"
    model = model_class(config).double().eval()
    state = {name.replace(".gate_proj.", ".g_proj."): value for name, value in state_of(made.tensors, made.config).items()}
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not unexpected and set(missing) <= {"lm_head.weight"}, (missing, unexpected)
    model.tie_weights()
    own = logits_of(model, made.samples)
    ours = lfm2_numpy.Model(made.config, made.tensors, np.float64)
    rotary = next(part for part in model.modules() if type(part).__name__.endswith("RotaryEmbedding"))
    rotary.forward = lambda x, position_ids, layer_type="full_attention": [
        torch.from_numpy(np.tile(table, 2))[None] for table in ours.cosines_and_sines(x.shape[1], layer_type)]
    differences = [np.abs(logits - made.exact).max() for logits in (own, logits_of(model, made.samples))]
    plain = np.abs(made.plain - made.exact).max()
    print(f"{number:3} {made.config['model_type']:8} {differences[0]:.2e} {differences[1]:.2e}  (NumPy in fp32: {plain:.2e})")
    worst = np.maximum(worst, differences)
print(f"largest      {worst[0]:.2e} {worst[1]:.2e}")
