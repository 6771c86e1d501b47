"""PyTorch tensors of a GPU, used where they are: a view with strides, an output of one's own, the current stream.

    PYTHONPATH=python LFM2_KERNELS_LIBRARY=build/cuda/lib/liblfm2_kernels.so python3 examples/torch_example.py
"""
import sys

import lfm2_kernels as lk

try:
    import torch
except ImportError:
    sys.exit("torch_example: PyTorch is not installed")
if not torch.cuda.is_available() or lk.device_count() == 0:
    sys.exit("torch_example: no GPU")

x = torch.randn(64, 512, device="cuda", dtype=torch.bfloat16)
w = torch.randn(256, 512, device="cuda", dtype=torch.bfloat16)
b = torch.randn(256, device="cuda", dtype=torch.bfloat16)
y = lk.matmul(x, w.T)  # the transposed view, no copy
lk.bias(y, b, activation="gelu", out=y)
expected = torch.nn.functional.gelu((x.double() @ w.double().T) + b.double())
print("largest difference from fp64:", (y.double() - expected).abs().max().item(), "of values up to", expected.abs().max().item())
parts = torch.empty(64, 512, device="cuda")
lk.concat([torch.ones(64, 500, device="cuda"), torch.zeros(64, 12, device="cuda")], 1, out=parts)
print("ones:", lk.reduce("sum", parts).item())
