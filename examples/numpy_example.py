"""A softmax and a small convolution with NumPy arrays; on GPU 0 as well where there is one.

    PYTHONPATH=python LFM2_KERNELS_LIBRARY=build/cpu/lib/liblfm2_kernels.so python3 examples/numpy_example.py
"""
import lfm2_kernels as lk
import numpy as np


def softmax(x, device=None):
    largest = lk.reduce("max", x, -1, keepdims=True, device=device)
    exponents = lk.map("exp", lk.zip("sub", x, largest, device=device), device=device)
    return lk.zip("div", exponents, lk.reduce("sum", exponents, -1, keepdims=True, device=device), device=device)


rng = np.random.default_rng(0)
x = rng.standard_normal((4, 1000)).astype(np.float32)
signal = rng.standard_normal((2, 8, 100)).astype(np.float32)
taps = rng.standard_normal((8, 4)).astype(np.float32)
for device in [None, *range(min(lk.device_count(), 1))]:
    y = softmax(x, device)
    expected = np.exp(x - x.max(-1, keepdims=True))
    expected /= expected.sum(-1, keepdims=True)
    print("CPU" if device is None else f"GPU {device}", "softmax differs by at most", np.abs(y - expected).max())
    direct = lk.causal_conv1d(signal, taps, activation="silu", device=device)
    product = lk.causal_conv1d(signal, taps, activation="silu", method="gemm", device=device)
    print("    the two causal convolutions differ by at most", np.abs(direct - product).max())
    assert np.abs(y - expected).max() < 1e-6 and np.abs(direct - product).max() < 1e-5
