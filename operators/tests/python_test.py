"""The operators from Python against NumPy: random shapes, strides, axes and dtypes (hypothesis), golden cases, refusals.

python_test.py LIBRARY [cpu|cuda] [GOLDEN_FOLDER]: LFM2_EXAMPLES is the number of examples a test (default 150). On cuda the
same host arrays are copied to the GPU with their strides; arrays of PyTorch and CuPy are used in place where those are installed.
Exit code 77: skipped, with the reason.
"""
import math
import os
import sys
import unittest
import warnings

try:
    import hypothesis
    import numpy as np
    from hypothesis import strategies as st
except ImportError as error:
    print(f"skipped: {error} (Debian: python3-numpy python3-hypothesis)")
    sys.exit(77)

os.environ["LFM2_KERNELS_LIBRARY"] = os.path.abspath(sys.argv[1])
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "python"))
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))  # where only these files were copied
import lfm2_kernels as lk  # noqa: E402

ON_GPU = len(sys.argv) > 2 and sys.argv[2] == "cuda"
GOLDEN = sys.argv[3] if len(sys.argv) > 3 else None
DEVICE = 0 if ON_GPU else None
if ON_GPU and lk.device_count() == 0:
    print("skipped: no GPU")
    sys.exit(77)

DTYPES = [np.dtype(np.float32), np.dtype(np.float16)]
try:
    import ml_dtypes
    DTYPES.append(np.dtype(ml_dtypes.bfloat16))
except ImportError:
    pass

random_shapes = hypothesis.settings(max_examples=int(os.environ.get("LFM2_EXAMPLES", "150")), deadline=None, database=None,
                                    derandomize=True, suppress_health_check=list(hypothesis.HealthCheck))


def unit(dtype):
    return {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}[dtype.name]


def smallest(dtype):
    return {"float32": 2.0**-140, "float16": 2.0**-25, "bfloat16": 2.0**-130}[dtype.name]


def expect_close(actual, expected, allowed, dtype, what=""):
    """|actual - expected| <= allowed (in fp64) and one rounding to the dtype."""
    actual = np.asarray(actual, np.float64)
    expected = np.asarray(expected, np.float64)
    assert actual.shape == expected.shape, f"{what}: shape {actual.shape} instead of {expected.shape}"
    with np.errstate(all="ignore"):
        # 16-bit functions on a GPU: near 2^-17 beside the rounding.
        approximate = 2.0**-16 if dtype.itemsize == 2 else 0
        allowed = allowed + (unit(dtype) + approximate) * np.abs(expected) + smallest(dtype)
        same = (actual == expected) | (np.isnan(actual) & np.isnan(expected)) | (np.abs(actual - expected) <= allowed)
        largest = {"float32": 3.4e38, "float16": 65504.0, "bfloat16": 3.38e38}[dtype.name]
        same |= (np.abs(expected) > largest * (1 - 2 * unit(dtype))) & np.isinf(actual)  # overflow of the type
    if not np.all(same):
        worst = tuple(np.argwhere(~same)[0])
        raise AssertionError(f"{what}: {(~same).sum()} of {same.size} differ, first at {worst}: {actual[worst]} instead of {expected[worst]}")


# ---- strategies: shapes small enough for thousands of examples, often 0 and 1, sometimes long ----

extents = st.one_of(st.integers(0, 2), st.integers(1, 9), st.integers(1, 70))
seeds = st.integers(0, 2**32 - 1)
dtypes = st.sampled_from(DTYPES)


def shapes(least, most, most_elements=60000):
    return st.lists(extents, min_size=least, max_size=most).map(tuple).filter(lambda s: math.prod(s) <= most_elements)


def values(rng, shape, dtype, low=-2.0, high=2.0):
    return rng.uniform(low, high, shape).astype(np.float32).astype(dtype)


def strided(rng, shape, dtype, low=-2.0, high=2.0, zero_strides=True):
    """An array of this shape whose memory is permuted, has gaps, runs backwards, misses alignment or repeats by stride 0."""
    rank = len(shape)
    order = rng.permutation(rank) if rng.integers(2) else np.arange(rank)
    steps = [int(rng.integers(1, 4)) if rng.integers(4) == 0 else 1 for _ in shape]
    turned = [rng.integers(5) == 0 for _ in shape]
    repeated = [zero_strides and rng.integers(8) == 0 for _ in shape]
    stored = [1 if repeated[a] else shape[a] * steps[a] for a in order]
    base = values(rng, int(np.prod(stored)) + 3, dtype, low, high)
    offset = int(rng.integers(0, 3))
    array = base[offset:offset + int(np.prod(stored))].reshape(stored)
    array = array.transpose(np.argsort(order))
    index = tuple(slice(None) if repeated[a] else slice(None, None, steps[a]) for a in range(rank))
    array = array[index]
    array = array[tuple(slice(None, None, -1) if turned[a] else slice(None) for a in range(rank))]
    return np.broadcast_to(array, shape)


def output_like(rng, shape, dtype):
    """Where to write: new memory, or a view with gaps, turned round."""
    if rng.integers(3) > 0 or len(shape) == 0:
        return None
    wide = np.full([extent * 2 for extent in reversed(shape)], 7, np.float32).astype(dtype).transpose()
    return wide[tuple(slice(None, None, -2) for _ in shape)]


def exact(array):
    return np.asarray(array, np.float64)


FUNCTIONS = {
    "identity": lambda x: x, "neg": np.negative, "abs": np.abs, "sign": np.sign, "square": np.square, "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x), "inv": lambda x: 1 / x, "exp": np.exp, "log": np.log, "sin": np.sin, "cos": np.cos,
    "tanh": np.tanh, "sigmoid": lambda x: 1 / (1 + np.exp(-x)), "relu": lambda x: np.maximum(x, 0), "silu": lambda x: x / (1 + np.exp(-x)),
    "gelu": lambda x: 0.5 * x * np.vectorize(math.erfc, otypes=[np.float64])(-x / math.sqrt(2)) if x.size else x,
}
PAIRS = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "max": np.maximum, "min": np.minimum, "pow": np.power,
    "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal, "eq": np.equal, "ne": np.not_equal,
}


class RandomTest(unittest.TestCase):

    @random_shapes
    @hypothesis.given(shapes(0, 8), dtypes, st.sampled_from(lk.UNARY), seeds)
    def test_map(self, shape, dtype, function, seed):
        rng = np.random.default_rng(seed)
        x = strided(rng, shape, dtype, 0.05 if function in ("sqrt", "rsqrt", "log") else -4, 4)
        out = output_like(rng, shape, dtype)
        result = lk.map(function, x, out=out, device=DEVICE)
        with np.errstate(all="ignore"):
            expected = FUNCTIONS[function](exact(x))
        expect_close(result, expected, 8 * 2.0**-24 * (np.abs(expected) + 0.1), dtype, function)
        if out is not None and out.size > 0:
            base = out.base
            while base.base is not None:
                base = base.base
            assert np.count_nonzero(exact(base) == 7) >= base.size - out.size, "written between the elements"

    @random_shapes
    @hypothesis.given(shapes(0, 8), dtypes, st.sampled_from(lk.BINARY), seeds)
    def test_zip(self, shape, dtype, function, seed):
        rng = np.random.default_rng(seed)
        low = 0.2 if function in ("div", "pow") else -2

        def operand():
            own = [1 if rng.integers(4) == 0 else extent for extent in shape]
            return strided(rng, own[int(rng.integers(len(own) + 1)) if rng.integers(3) == 0 else 0:], dtype, low)

        a, b = operand(), operand()
        if rng.integers(4) == 0:
            b = np.broadcast_to(a, np.broadcast_shapes(a.shape, b.shape))  # equal elements, zero strides
        out = output_like(rng, np.broadcast_shapes(a.shape, b.shape), dtype)
        result = lk.zip(function, a, b, out=out, device=DEVICE)
        with np.errstate(all="ignore"):
            expected = exact(PAIRS[function](exact(a), exact(b)))
        expect_close(result, expected, 8 * 2.0**-24 * (np.abs(expected) + 2.0**-24), dtype, function)

    @random_shapes
    @hypothesis.given(shapes(0, 8), dtypes, st.sampled_from(lk.REDUCTIONS), st.booleans(), seeds)
    def test_reduce(self, shape, dtype, function, keepdims, seed):
        rng = np.random.default_rng(seed)
        if rng.integers(6) == 0 and shape:  # a long axis
            shape = tuple(min(e, 3) for e in shape[:2])
            shape = shape[:1] + (int(rng.integers(1000, 30000)),) + shape[1:]
        x = strided(rng, shape, dtype, 0.9 if function == "prod" else -2, 1.1 if function == "prod" else 2)
        axes = None if rng.integers(5) == 0 else tuple(int(a) for a in range(len(shape)) if rng.integers(2))
        wide = exact(x)
        numpy_axes = tuple(range(len(shape))) if axes is None else axes
        length = math.prod(shape[a] for a in numpy_axes)
        if function in ("max", "min") and length == 0:
            if math.prod(e for a, e in enumerate(shape) if a not in numpy_axes) > 0:
                with self.assertRaises(ValueError):
                    lk.reduce(function, x, axes, device=DEVICE)
            return
        result = lk.reduce(function, x, axes, keepdims=keepdims, device=DEVICE)
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the mean of nothing
            expected = getattr(wide, function)(axis=numpy_axes, keepdims=keepdims)
            magnitude = np.abs(wide).sum(axis=numpy_axes, keepdims=keepdims)
        allowed = {"sum": 64 * 2.0**-24 * magnitude, "mean": 64 * 2.0**-24 * magnitude / max(length, 1),
                   "prod": (length + 1) * 2.0**-24 * np.abs(expected)}.get(function, 0)
        expect_close(result, expected, allowed, dtype, f"{function} {shape} {axes}")

    @random_shapes
    @hypothesis.given(st.integers(0, 80), st.integers(0, 80), st.integers(0, 80), st.lists(st.integers(0, 4), max_size=4), dtypes, seeds)
    def test_matmul(self, m, k, n, batch, dtype, seed):
        rng = np.random.default_rng(seed)

        def operand(rows, columns):
            own = [1 if rng.integers(3) == 0 else extent for extent in batch]
            own = own[int(rng.integers(len(own) + 1)) if rng.integers(3) == 0 else 0:]
            if rng.integers(3) == 0:
                return strided(rng, [*own, columns, rows], dtype).swapaxes(-1, -2)
            return strided(rng, [*own, rows, columns], dtype)

        a, b = operand(m, k), operand(k, n)
        result = lk.matmul(a, b, device=DEVICE, out=output_like(rng, np.broadcast_shapes(a.shape[:-2], b.shape[:-2]) + (m, n), dtype))
        expect_close(result, exact(a) @ exact(b), (k + 1) * 2.0**-24 * (np.abs(exact(a)) @ np.abs(exact(b))), dtype, f"{a.shape} {b.shape}")

    @random_shapes
    @hypothesis.given(shapes(1, 4, 20000), dtypes, st.integers(1, 7), st.booleans(), seeds)
    def test_concat(self, shape, dtype, count, overwrite, seed):
        rng = np.random.default_rng(seed)
        axis = int(rng.integers(-len(shape), len(shape)))
        if rng.integers(40) == 0:
            count, shape = 1100, tuple(min(e, 2) for e in shape)
        arrays, gradients = [], []
        for _ in range(count):
            own = list(shape)
            own[axis] = int(rng.integers(0, shape[axis] + 2))
            gap = int(rng.integers(0, 3))
            arrays.append(values(rng, math.prod(own) + gap, dtype)[gap:].reshape(own))
            gradients.append(values(rng, math.prod(own) + gap, dtype)[gap:].reshape(own))
        if DEVICE is not None and count > 100:
            hypothesis.assume(rng.integers(4) == 0)  # thousands of allocations
        joined = lk.concat(arrays, axis, device=DEVICE)
        expected = np.concatenate(arrays, axis)
        assert joined.dtype == expected.dtype and joined.tobytes() == expected.tobytes(), "concat must copy bits"
        before = [exact(g) for g in gradients]
        lk.concat_backward(joined, gradients, axis, overwrite=overwrite, device=DEVICE)
        for was, x, gradient in zip(before, arrays, gradients):
            expect_close(gradient, exact(x) + (0 if overwrite else was), 0, dtype, "gradient")

    @random_shapes
    @hypothesis.given(st.integers(0, 40), extents, st.integers(0, 9), dtypes, st.sampled_from(lk.ACTIVATIONS), seeds)
    def test_bias(self, rows, columns, rows_per_sample, dtype, activation, seed):
        rng = np.random.default_rng(seed)
        rows = rows * max(1, rows_per_sample)
        x = values(rng, (rows, columns), dtype)
        b = values(rng, rows_per_sample or columns, dtype)
        shift = exact(b)[np.arange(rows) % rows_per_sample, None] if rows_per_sample else exact(b)[None, :]
        allowed = 8 * 2.0**-24 * (np.abs(exact(x)) + np.abs(shift))
        expected = FUNCTIONS["identity" if activation == "none" else activation](exact(x) + shift)
        out = x if rng.integers(2) else None
        result = lk.bias(x, b, rows_per_sample=rows_per_sample, activation=activation, out=out, device=DEVICE)
        expect_close(result, expected, allowed, dtype, activation)
        gradient, total = lk.bias_backward(result, rows_per_sample=rows_per_sample, device=DEVICE)
        assert gradient is result
        if rows_per_sample:
            parts = exact(result).reshape(rows // rows_per_sample, rows_per_sample, columns).swapaxes(0, 1).reshape(rows_per_sample, -1)
        else:
            parts = exact(result).T
        expect_close(total, parts.sum(axis=1), 64 * 2.0**-24 * np.abs(parts).sum(axis=1), dtype, "gradient")

    @random_shapes
    @hypothesis.given(st.integers(0, 3), st.integers(1, 70), st.integers(0, 150), st.one_of(st.integers(1, 6), st.integers(1, 80)), dtypes,
                      st.booleans(), st.sampled_from(("none", "silu")), seeds)
    def test_causal_conv1d(self, samples, channels, time, taps, dtype, with_bias, activation, seed):
        rng = np.random.default_rng(seed)
        x, w = strided(rng, (samples, channels, time), dtype), strided(rng, (channels, taps), dtype)
        b = strided(rng, (channels,), dtype) if with_bias else None
        padded = np.concatenate([np.zeros((samples, channels, taps - 1)), exact(x)], axis=2)
        unfolded = np.stack([padded[:, :, j:j + time] for j in range(taps)], axis=0)  # [taps, samples, channels, time]
        expected = np.einsum("jnct,cj->nct", unfolded, exact(w))
        allowed = (taps + 8) * 2.0**-23 * np.einsum("jnct,cj->nct", np.abs(unfolded), np.abs(exact(w)))
        if with_bias:
            expected = expected + exact(b)[None, :, None]
            allowed = allowed + 8 * 2.0**-24 * np.abs(exact(b))[None, :, None]
        if activation == "silu":
            expected = FUNCTIONS["silu"](expected)
        expect_close(lk.causal_conv1d(x, w, b, activation=activation, device=DEVICE), expected, allowed, dtype, "direct")
        x, w = np.ascontiguousarray(x), np.ascontiguousarray(w)
        b = np.ascontiguousarray(b) if with_bias else None
        wide = np.moveaxis(unfolded, (0, 1, 2, 3), (2, 0, 3, 1)).reshape(samples, time, taps * channels)
        assert np.array_equal(exact(lk.causal_conv1d_unfold(x, taps, device=DEVICE)), wide)
        sparse = np.einsum("cj,cd->cjd", exact(w), np.eye(channels)).reshape(channels, -1)
        assert np.array_equal(exact(lk.causal_conv1d_expand(w, device=DEVICE)), sparse)
        if dtype == np.float32:
            result = lk.causal_conv1d(x, w, b, activation=activation, method="gemm", device=DEVICE)
            expect_close(result, expected, allowed, dtype, "gemm")


class SpecialTest(unittest.TestCase):

    def test_nan_and_infinity(self):
        special = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 3e38, 1e-45], np.float32)
        a, b = (np.ascontiguousarray(m) for m in np.meshgrid(special, special))
        with np.errstate(all="ignore"):
            for name, function in PAIRS.items():
                expected = exact(function(a, b))
                expect_close(lk.zip(name, a, b, device=DEVICE), expected, 1e-6 * np.abs(np.where(np.isfinite(expected), expected, 0)), a.dtype, name)
            for name in ("max", "min", "sum"):
                for axis in (0, 1):
                    expect_close(lk.reduce(name, a, axis, device=DEVICE), getattr(a, name)(axis=axis), 1e-6, a.dtype, name)
            for name in ("exp", "tanh", "sigmoid", "relu", "abs", "neg", "sqrt", "log"):
                expect_close(lk.map(name, special, device=DEVICE), FUNCTIONS[name](special.astype(np.float64)), 1e-6, a.dtype, name)

        assert np.array_equal(lk.map("gelu", special[:3], device=DEVICE), [np.nan, np.inf, 0], equal_nan=True)

    def test_the_same_bits_again(self):
        rng = np.random.default_rng(5)
        x = values(rng, (3, 50001, 5), np.dtype(np.float32))
        for axis in (0, 1, 2, (0, 1), (1, 2), None):
            first = lk.reduce("sum", x, axis, device=DEVICE)
            for _ in range(3):
                assert np.array_equal(first, lk.reduce("sum", x, axis, device=DEVICE))

    def test_rank_8(self):
        x = np.random.default_rng(1).standard_normal((2, 1, 3, 2, 1, 2, 3, 2)).astype(np.float32)
        y = x.transpose(7, 0, 3, 2, 1, 6, 5, 4)
        assert np.array_equal(lk.map("neg", y, device=DEVICE), -y)
        expect_close(lk.reduce("sum", y, (0, 3, 5), device=DEVICE), exact(y).sum(axis=(0, 3, 5)), 1e-5, x.dtype)

    def test_refusals(self):
        f = np.ones((2, 3), np.float32)
        for call, kind in [
            (lambda: lk.map("neg", f.astype(np.float64)), TypeError),
            (lambda: lk.concat_backward(f, [f.tolist(), f.tolist()]), TypeError),
            (lambda: lk.map("nothing", f), ValueError),
            (lambda: lk.zip("add", f, f.astype(np.float16)), TypeError),
            (lambda: lk.zip("add", f, np.ones(4, np.float32)), ValueError),
            (lambda: lk.map("neg", np.ones((1,) * 9, np.float32)), ValueError),
            (lambda: lk.map("neg", f, out=np.empty((2, 2), np.float32)), ValueError),
            (lambda: lk.map("neg", np.ones(3, np.float32), out=np.broadcast_to(np.float32(0), (3,))), ValueError),
            (lambda: lk.matmul(f, f), ValueError),
            (lambda: lk.matmul(np.ones(3, np.float32), f), ValueError),
            (lambda: lk.concat([]), ValueError),
            (lambda: lk.concat([f, np.ones((3, 3), np.float32)], 1), ValueError),
            (lambda: lk.concat([f, f], 2), ValueError),
            (lambda: lk.concat([f.T, f.T], 0), ValueError),
            (lambda: lk.concat([np.ones((1, 1, 1, 1, 1), np.float32)], 0), ValueError),
            (lambda: lk.bias(f, np.ones(2, np.float32)), ValueError),
            (lambda: lk.bias(np.ones((4, 3), np.float32), np.ones(3, np.float32), rows_per_sample=3), ValueError),
            (lambda: lk.bias(f, np.ones(3, np.float32), activation="tan"), ValueError),
            (lambda: lk.reduce("sum", f, 2), ValueError),
            (lambda: lk.reduce("sum", f, (0, 0)), ValueError),
            (lambda: lk.reduce("max", np.ones((0, 3), np.float32), 0), ValueError),
            (lambda: lk.causal_conv1d(f[None], np.ones((3, 2), np.float32)), ValueError),
            (lambda: lk.causal_conv1d(f, f), ValueError),
        ]:
            with self.assertRaises(kind):
                call()
        # Overlapping output: only the library sees it.
        wide = np.lib.stride_tricks.as_strided(np.zeros(8, np.float32), (4, 4), (4, 4))
        with self.assertRaises(lk.Error) as caught:
            lk.map("neg", np.ones((4, 4), np.float32), out=wide)
        assert caught.exception.status == 1 and "invalid" in str(caught.exception)


@unittest.skipIf(GOLDEN is None, "no folder with operators.h5")
class GoldenTest(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        try:
            import h5py
        except ImportError as error:
            raise unittest.SkipTest(str(error))
        cls.file = h5py.File(os.path.join(GOLDEN, "operators.h5"), "r")

    def check(self, folder, result, name="y", allowed=2e-5):
        expected = self.file[folder][name][()]
        assert np.abs(result - expected).max() <= allowed * (1 + np.abs(expected).max()), f"{folder}/{name}"

    def test_every_case(self):
        seen = 0
        for family in ("concat", "bias", "map", "zip", "reduce", "matmul", "causal_conv1d"):
            for name in self.file[family]:
                group, folder = {k: v[()] for k, v in self.file[family][name].items()}, f"{family}/{name}"
                seen += 1
                if family == "concat":
                    count = sum(1 for key in group if key.startswith("x"))
                    arrays, axis = [group[f"x{i}"] for i in range(count)], int(group["axis"])
                    assert np.array_equal(lk.concat(arrays, axis, device=DEVICE), group["y"]), folder
                    gradients = [np.zeros_like(x) for x in arrays]
                    lk.concat_backward(group["gy"], gradients, axis, device=DEVICE)
                    for i, gradient in enumerate(gradients):
                        assert np.array_equal(gradient, group[f"gx{i}"]), folder
                elif family == "bias":
                    rows = 6 if "6" in name else 0
                    self.check(folder, lk.bias(group["x"], group["bias"], rows_per_sample=rows, device=DEVICE))
                    gx, gbias = lk.bias_backward(group["gy"], rows_per_sample=rows, device=DEVICE)
                    assert np.array_equal(gx, group["gx"])
                    self.check(folder, gbias, "gbias")
                elif family == "map":
                    x = group["a"].T if name.endswith("transposed") else group["a"]
                    self.check(folder, lk.map(name.split("_")[0], x, device=DEVICE))
                elif family == "zip":
                    self.check(folder, lk.zip(name.split("_")[0], group["a"], group["b"], device=DEVICE))
                elif family == "reduce":
                    self.check(folder, lk.reduce(name.split("_")[0], group["a"], 1, keepdims=True, device=DEVICE))
                elif family == "matmul":
                    self.check(folder, lk.matmul(group["a"], group["bt"].T if "bt" in group else group["b"], device=DEVICE))
                else:
                    for method in ("direct", "gemm"):
                        self.check(folder, lk.causal_conv1d(group["x"], group["w"], group.get("bias"), method=method, device=DEVICE))
                    if "im2col_sample0" in group:
                        unfolded = lk.causal_conv1d_unfold(group["x"][:1], group["w"].shape[1], device=DEVICE)
                        assert np.array_equal(unfolded[0], group["im2col_sample0"]), folder
        assert seen == 24, f"{seen} golden cases"


@unittest.skipUnless(ON_GPU, "device arrays need a GPU")
class DeviceArrayTest(unittest.TestCase):

    def check_library(self, make, fetch):
        rng = np.random.default_rng(3)
        a, b = values(rng, (5, 40, 30), np.dtype(np.float32)), values(rng, (30, 20), np.dtype(np.float32))
        x, y = make(a), make(b)
        expect_close(fetch(lk.matmul(x, y)), exact(a) @ exact(b), 1e-4, a.dtype, "matmul")
        out = lk.map("exp", x)
        assert type(out) is type(x)
        expect_close(fetch(out), np.exp(exact(a)), 1e-5, a.dtype, "map")
        assert np.array_equal(fetch(lk.concat([x, x], 2)), np.concatenate([a, a], 2))
        expect_close(fetch(lk.reduce("sum", x)), exact(a).sum(), 1e-2, a.dtype, "reduce")
        expect_close(fetch(lk.zip("mul", x, make(a[0]))), exact(a) * exact(a[0]), 1e-6, a.dtype, "zip")
        for result, wanted in ((lk.zip("sub", 1.0, x), 1 - exact(a)), (lk.zip("sub", x, 1.0), exact(a) - 1)):
            assert type(result) is type(x)
            expect_close(fetch(result), wanted, 1e-6, a.dtype, "zip with a number")
        same = lk.bias(make(b), make(b[0]), out=y)
        assert same is y
        expect_close(fetch(y), exact(b) + exact(b[0]), 1e-6, a.dtype, "bias")
        with self.assertRaises(ValueError):
            lk.matmul(x, b)  # host and device
        with self.assertRaises(ValueError):
            lk.matmul(x, y, device=0)

    def test_own_arrays(self):
        self.check_library(lk.to_device, lambda array: array.numpy())

    def test_pytorch(self):
        try:
            import torch
        except ImportError as error:
            self.skipTest(str(error))
        self.check_library(lambda a: torch.from_numpy(a).cuda(), lambda t: t.cpu().numpy())
        x = torch.randn(300, 200, device="cuda")
        assert torch.equal(lk.map("neg", x.T), -x.T)  # strides of a view, no copy
        assert torch.equal(lk.map("neg", x[::2, 1::3]), -x[::2, 1::3])
        out = torch.zeros(200, 300, device="cuda").T
        lk.zip("add", x, x.expand(300, 200), out=out)
        assert torch.equal(out, x + x)
        half = x.bfloat16()
        assert torch.equal(lk.map("neg", half), -half) and lk.map("neg", half).dtype == torch.bfloat16
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            big = torch.randn(4096, 4096, device="cuda")
            y = lk.reduce("sum", lk.map("exp", big), 1)
            wanted = big.exp().double().sum(1)
        stream.synchronize()
        assert torch.allclose(y.double(), wanted, rtol=1e-4)

    def test_cupy(self):
        try:
            import cupy
        except ImportError as error:
            self.skipTest(str(error))
        self.check_library(cupy.asarray, cupy.asnumpy)
        x = cupy.arange(24, dtype=cupy.float32).reshape(4, 6)
        assert (lk.map("neg", x[:, ::-1]) == -x[:, ::-1]).all()


if __name__ == "__main__":
    print(f"NumPy {np.__version__}, hypothesis {hypothesis.__version__}, {', '.join(d.name for d in DTYPES)}, "
          f"{'GPU 0' if ON_GPU else 'CPU'}, {random_shapes.max_examples} examples a test")
    unittest.main(argv=[sys.argv[0]], verbosity=2)
