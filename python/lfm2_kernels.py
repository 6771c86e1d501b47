"""General tensor operators on CPU and GPU: the C library lfm2_kernels through ctypes.

    import numpy as np, lfm2_kernels as lk
    lk.matmul(a, b)                        # NumPy arrays, on the CPU
    lk.matmul(a, b, device=0)              # copied to GPU 0 and the result back
    lk.matmul(torch_a, torch_b)            # device arrays of PyTorch, CuPy, ...: no copy, on their current stream

Arrays are fp32, fp16 or bf16 (ml_dtypes.bfloat16, torch.bfloat16), of any strides unless a function says "dense". Device arrays
are what has __cuda_array_interface__; results come back in the same library's type, or as DeviceArray. Every function takes
`out` (an array to write to), `device` (host arrays only) and `stream` (device arrays: a number; default: the library's current
stream). dtypes, devices and shapes are checked before the call: TypeError, ValueError. What the library itself refuses, or what CUDA
reports, is an Error with the status.

The library is found through LFM2_KERNELS_LIBRARY (a file), beside this file, in ../lib and ../../lib from here, or by the loader.
"""

import builtins
import ctypes
import os
import sys

import numpy as np

MAX_RANK = 8
CPU = -1
UNARY = ("identity", "neg", "abs", "sign", "square", "sqrt", "rsqrt", "inv", "exp", "log", "sin", "cos", "tanh", "sigmoid", "relu",
         "silu", "gelu")
BINARY = ("add", "sub", "mul", "div", "max", "min", "pow", "lt", "le", "gt", "ge", "eq", "ne")
REDUCTIONS = ("sum", "prod", "max", "min", "mean")
ACTIVATIONS = ("none", "relu", "silu", "gelu")

__all__ = ["concat", "concat_backward", "bias", "bias_backward", "map", "zip", "reduce", "matmul", "causal_conv1d",
           "causal_conv1d_unfold", "causal_conv1d_expand", "DeviceArray", "Error", "device_count", "to_device", "synchronize",
           "version", "UNARY", "BINARY", "REDUCTIONS", "ACTIVATIONS"]

_FP32, _BF16, _FP16 = 0, 1, 2
_SIZES = {_FP32: 4, _BF16: 2, _FP16: 2}
_NAMES = {_FP32: "fp32", _BF16: "bf16", _FP16: "fp16"}


class _Tensor(ctypes.Structure):
    """The struct lfm2_tensor of the C API."""
    _fields_ = [("data", ctypes.c_void_p), ("dtype", ctypes.c_int32), ("device", ctypes.c_int32), ("rank", ctypes.c_int32),
                ("dims", ctypes.c_int64 * MAX_RANK), ("strides", ctypes.c_int64 * MAX_RANK)]


class Error(RuntimeError):
    """The status that the library returned instead of doing the work."""

    def __init__(self, function, status):
        super().__init__(f"{function}: {_library().lfm2_status_string(status).decode()} (status {status})")
        self.status = status


_loaded = None


def _library():
    global _loaded  # the library is loaded on first use and never changes afterwards
    if _loaded is None:
        _loaded = _load()
    return _loaded


def _load():
    name, here = "liblfm2_kernels.so", os.path.dirname(os.path.abspath(__file__))
    named = os.environ.get("LFM2_KERNELS_LIBRARY")
    places = [named] if named else [os.path.join(here, *steps, name) for steps in ((), ("..", "lib"), ("..", "..", "lib"), ("..", "..", "lib64"))]
    library = None
    for place in places:
        if os.path.exists(place):
            library = ctypes.CDLL(place)
            break
    if library is None:
        if named:
            raise OSError(f"LFM2_KERNELS_LIBRARY: {named} does not exist")
        library = ctypes.CDLL(name)
    tensor, pointer, size = ctypes.POINTER(_Tensor), ctypes.c_void_p, ctypes.c_size_t
    integer, long, sizes = ctypes.c_int, ctypes.c_int64, ctypes.POINTER(ctypes.c_size_t)
    signatures = {
        "lfm2_concat": (tensor, long, tensor, integer, pointer),
        "lfm2_concat_backward": (tensor, tensor, long, integer, integer, pointer),
        "lfm2_bias": (tensor, tensor, tensor, long, integer, pointer),
        "lfm2_bias_backward": (tensor, tensor, tensor, long, pointer, size, pointer),
        "lfm2_bias_backward_workspace": (tensor, long, sizes),
        "lfm2_map": (integer, tensor, tensor, pointer),
        "lfm2_zip": (integer, tensor, tensor, tensor, pointer),
        "lfm2_reduce": (integer, tensor, tensor, ctypes.c_uint32, pointer, size, pointer),
        "lfm2_reduce_workspace": (tensor, ctypes.c_uint32, sizes),
        "lfm2_matmul": (tensor, tensor, tensor, pointer),
        "lfm2_causal_conv1d": (tensor, tensor, tensor, tensor, integer, pointer),
        "lfm2_causal_conv1d_gemm": (tensor, tensor, tensor, tensor, integer, pointer, size, pointer),
        "lfm2_causal_conv1d_gemm_workspace": (tensor, tensor, sizes),
        "lfm2_causal_conv1d_unfold": (tensor, long, tensor, pointer),
        "lfm2_causal_conv1d_expand": (tensor, tensor, pointer),
        "lfm2_device_count": (),
        "lfm2_allocate": (integer, size, ctypes.POINTER(pointer)),
        "lfm2_release": (integer, pointer),
        "lfm2_copy": (integer, pointer, pointer, size, pointer),
        "lfm2_synchronize": (integer, pointer),
        "lfm2_pointer_device": (pointer, ctypes.POINTER(integer)),
    }
    for function, arguments in signatures.items():
        getattr(library, function).argtypes = arguments
        getattr(library, function).restype = integer
    library.lfm2_status_string.argtypes, library.lfm2_status_string.restype = (integer,), ctypes.c_char_p
    library.lfm2_kernels_version.argtypes, library.lfm2_kernels_version.restype = (), ctypes.c_char_p
    return library


def _run(function, *arguments):
    status = getattr(_library(), function)(*arguments)
    if status != 0:
        raise Error(function, status)


def version():
    return _library().lfm2_kernels_version().decode()


def device_count():
    """The number of GPUs that the library can use; 0 where it was built without CUDA."""
    return _library().lfm2_device_count()


def synchronize(device=0, stream=None):
    """Waits for the work that was queued."""
    _run("lfm2_synchronize", device, stream)


# ---- arrays ----


class _Memory:
    """Memory of a GPU, released with the object. (Releasing waits for the GPU, so queued work keeps its memory.)"""

    def __init__(self, device, size):
        self.device, self.size, self.pointer = device, size, 0
        memory = ctypes.c_void_p()
        _run("lfm2_allocate", device, max(size, 1), ctypes.byref(memory))
        self.pointer = memory.value

    def __del__(self):
        if self.pointer and _loaded is not None:
            _loaded.lfm2_release(self.device, self.pointer)


class DeviceArray:
    """An array on a GPU for use without PyTorch or CuPy; they can view it through __cuda_array_interface__."""

    def __init__(self, shape, dtype=np.float32, device=0):
        self.shape, self.dtype, self.device = tuple(shape), np.dtype(dtype), device
        _dtype_of(self.dtype)
        self.memory = _Memory(device, int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize)

    @property
    def __cuda_array_interface__(self):
        typestr = "<V2" if self.dtype.name == "bfloat16" else self.dtype.str
        return {"shape": self.shape, "typestr": typestr, "data": (self.memory.pointer, False), "strides": None, "version": 3}

    def numpy(self):
        """A copy on the host. Waits only for the default stream: call synchronize() first where work is on another one."""
        array = np.empty(self.shape, self.dtype)
        _run("lfm2_copy", self.device, array.ctypes.data, self.memory.pointer, array.nbytes, None)
        return array


def to_device(array, device=0):
    """A DeviceArray with a copy of a NumPy array."""
    array = np.ascontiguousarray(array)
    result = DeviceArray(array.shape, array.dtype, device)
    _run("lfm2_copy", device, result.memory.pointer, array.ctypes.data, array.nbytes, None)
    return result


def _dtype_of(dtype):
    if dtype == np.float32:
        return _FP32
    if dtype == np.float16:
        return _FP16
    if dtype.name == "bfloat16":
        return _BF16
    raise TypeError(f"dtype {dtype}: only float32, float16 and bfloat16 are supported")


def _is_device_array(array):
    return not isinstance(array, (np.ndarray, np.generic)) and hasattr(array, "__cuda_array_interface__")


class _View:
    """An argument as the library sees it: pointer, dtype, device, shape, strides in elements."""

    def __init__(self, array):
        self.array = array
        if _is_device_array(array):
            interface = array.__cuda_array_interface__
            typestr = interface["typestr"]
            dtypes = {"<f4": _FP32, "<f2": _FP16, "<V2": _BF16}
            if typestr not in dtypes:
                raise TypeError(f"dtype {typestr}: only float32, float16 and bfloat16 are supported")
            if interface.get("mask") is not None:
                raise TypeError("masked arrays are not supported")
            self.dtype, self.shape = dtypes[typestr], tuple(interface["shape"])
            self.pointer, self.read_only = interface["data"]
            strides = interface.get("strides")
            self.interface_stream = interface.get("stream")
            self.device = self._device_of(array)
        else:
            self.dtype, self.shape = _dtype_of(array.dtype), array.shape
            if not array.dtype.isnative:
                raise TypeError("arrays must have the machine's byte order")
            self.pointer, self.read_only, strides = array.ctypes.data, not array.flags.writeable, array.strides
            self.device = CPU
        if len(self.shape) > MAX_RANK:
            raise ValueError(f"rank {len(self.shape)}: at most {MAX_RANK} axes are supported")
        size = _SIZES[self.dtype]
        if strides is None:
            self.strides, step = [0] * len(self.shape), 1
            for axis in reversed(range(len(self.shape))):
                self.strides[axis] = step
                step *= max(1, self.shape[axis])
        else:
            for extent, stride in builtins.zip(self.shape, strides):
                if stride % size != 0 and extent > 1:
                    raise ValueError(f"a stride of {stride} bytes is no multiple of the element's {size}")
            self.strides = [stride // size for stride in strides]

    def _device_of(self, array):
        # An array without elements may have no pointer, but PyTorch and CuPy still know its device.
        if not self.pointer:
            device = getattr(array, "device", 0)
            number = getattr(device, "index", getattr(device, "id", device))
            return number if isinstance(number, int) else 0
        device = ctypes.c_int()
        _run("lfm2_pointer_device", self.pointer, ctypes.byref(device))
        if device.value == CPU:
            raise ValueError("the array's memory is not on a GPU that the library knows")
        return device.value

    @property
    def empty(self):
        return 0 in self.shape

    @property
    def dense(self):
        step = 1
        for extent, stride in builtins.zip(reversed(self.shape), reversed(self.strides)):
            if extent > 1 and stride != step and not self.empty:
                return False
            step *= extent
        return True

    def span(self):
        """How many elements before its first element, and how many from there on, the view reaches."""
        if self.empty:
            return 0, 0
        reach = [stride * (extent - 1) for extent, stride in builtins.zip(self.shape, self.strides)]
        return -sum(r for r in reach if r < 0), sum(r for r in reach if r > 0) + 1

    def tensor(self, pointer=None, device=None):
        tensor = _Tensor(pointer or self.pointer or None, self.dtype, self.device if device is None else device, len(self.shape))
        for axis, (extent, stride) in enumerate(builtins.zip(self.shape, self.strides)):
            tensor.dims[axis], tensor.strides[axis] = extent, stride
        return tensor


class _Call:
    """One call of an operator: its arguments brought to one device, and the results brought back."""

    def __init__(self, arrays, out, device, stream, first=None):
        """first: the number of the argument whose library and dtype the results have; None: the first argument that is given."""
        arrays = [array if array is None or _is_device_array(array) else np.asarray(array) for array in arrays]
        if out is not None and not _is_device_array(out) and not isinstance(out, np.ndarray):
            raise TypeError(f"out must be an array, not {type(out).__name__}")
        self.views = [None if array is None else _View(array) for array in arrays]
        present = [view for view in self.views if view is not None]
        if not present:
            raise ValueError("no arrays")
        self.first = present[0] if first is None else self.views[first]
        for view in present + ([_View(out)] if out is not None else []):
            if view.dtype != self.first.dtype:
                raise TypeError(f"arrays of {_NAMES[view.dtype]} and {_NAMES[self.first.dtype]}: one dtype is needed")
            if view.device != self.first.device:
                raise ValueError("arrays on different devices")
        self.on_host = self.first.device == CPU
        if device is not None and not self.on_host:
            raise ValueError("device= is for host arrays: device arrays are used where they are")
        self.copies = self.on_host and device is not None and device != CPU
        self.device = device if self.copies else self.first.device
        self.out, self.kept, self.results = out, [], []
        self.given_stream = stream
        self.stream = stream if stream is not None else None if self.on_host else self._current_stream()

    def _library_of_arrays(self):
        name = type(self.first.array).__module__.partition(".")[0]
        return sys.modules.get(name) if name in ("torch", "cupy") else None

    def _current_stream(self):
        library = self._library_of_arrays()
        if library is None:
            return self.first.interface_stream
        if library.__name__ == "torch":
            return library.cuda.current_stream(self.device).cuda_stream
        return library.cuda.get_current_stream().ptr

    # Tensors in the form of the C API.

    def tensor(self, index):
        """The argument with this number, or None."""
        view = self.views[index]
        return None if view is None else ctypes.byref(self._placed(view, True)[0])

    def tensors(self, views, written=False):
        array = (_Tensor * len(views))()
        for i, view in enumerate(views):
            array[i], memory = self._placed(view, True)
            if written:
                self._written(view, memory)
        self.kept.append(array)
        return array

    def result(self, shape):
        """A new array, or `out`, which must have this shape; and its tensor."""
        array = self.out
        if array is None:
            array = self._new(shape)
        view = _View(array)
        if tuple(view.shape) != tuple(shape):
            raise ValueError(f"out has shape {tuple(view.shape)}, the result {tuple(shape)}")
        return array, self.result_in(view)

    def result_in(self, view, read=False):
        # The memory between the elements of a view with gaps must come back unchanged, so it is copied to the device,
        # too.
        tensor, memory = self._placed(view, read or not view.dense)
        self._written(view, memory)
        return ctypes.byref(tensor)

    def _written(self, view, memory):
        if view.read_only:
            raise ValueError("an array to be written is read-only")
        if memory is not None:
            self.results.append((view, memory))

    def _placed(self, view, read):
        if not self.copies or view.empty:
            tensor = view.tensor(device=self.device)
            self.kept.append(tensor)
            return tensor, None
        size = _SIZES[view.dtype]
        before, behind = view.span()
        memory = _Memory(self.device, (before + behind) * size)
        if read:
            _run("lfm2_copy", self.device, memory.pointer, view.pointer - before * size, memory.size, self.stream)
        tensor = view.tensor(memory.pointer + before * size, self.device)
        self.kept += [memory, tensor]
        return tensor, memory

    def _new(self, shape):
        if self.on_host:
            return np.empty(shape, self.first.array.dtype)
        library = self._library_of_arrays()
        if library is None:
            dtype = {_FP32: np.float32, _FP16: np.float16}.get(self.first.dtype)
            return DeviceArray(shape, dtype if dtype is not None else self.first.array.dtype, self.device)
        if library.__name__ == "torch":
            return self.first.array.new_empty(tuple(shape))
        with library.cuda.Device(self.device):
            return library.empty(shape, self.first.array.dtype)

    def workspace(self, function, *arguments):
        """Pointer and size of the memory that `function` asks for."""
        size = ctypes.c_size_t()
        _run(function, *arguments, ctypes.byref(size))
        if size.value == 0:
            return None, 0
        if self.device == CPU:
            memory = np.empty(size.value // 16 + 1, np.complex128)  # 16-byte elements, for the alignment
            pointer = memory.ctypes.data
        elif not self.on_host and self.given_stream is None and getattr(self._library_of_arrays(), "__name__", "") == "torch":
            # PyTorch's allocator orders reuse of the memory by the stream.
            memory = self.first.array.new_empty((size.value // _SIZES[self.first.dtype] + 1,))
            pointer = memory.data_ptr()
        else:
            memory = _Memory(self.device, size.value)
            pointer = memory.pointer
        self.kept.append(memory)
        return pointer, size.value

    def run(self, function, *arguments):
        _run(function, *arguments, self.stream)
        for view, memory in self.results:
            size = _SIZES[view.dtype]
            _run("lfm2_copy", self.device, view.pointer - view.span()[0] * size, memory.pointer, memory.size, self.stream)


def _number_of(name, names, what):
    if name not in names:
        raise ValueError(f"{what} {name!r}: one of {', '.join(names)}")
    return names.index(name)


def _axis(axis, rank):
    if not -rank <= axis < rank:
        raise ValueError(f"axis {axis} of a tensor with {rank} axes")
    return axis % rank


def _need_dense(view, what):
    if not view.dense:
        raise ValueError(f"{what} must be dense (row-major, without gaps)")


def _need_shape(view, shape, what):
    if tuple(view.shape) != tuple(shape):
        raise ValueError(f"{what} has shape {tuple(view.shape)}, expected {tuple(shape)}")


# ---- operators ----


def _check_concat(views, axis):
    rank = len(views[0].shape)
    if not 1 <= rank <= 4:
        raise ValueError(f"concat takes 1 to 4 axes, not {rank}")
    axis = _axis(axis, rank)
    for view in views:
        _need_dense(view, "an array of concat")
        other = tuple(view.shape)
        first = tuple(views[0].shape)
        if len(other) != rank or other[:axis] + other[axis + 1:] != first[:axis] + first[axis + 1:]:
            raise ValueError(f"shapes {first} and {other} differ beside axis {axis}")
    shape = list(views[0].shape)
    shape[axis] = sum(view.shape[axis] for view in views)
    return axis, tuple(shape)


def concat(arrays, axis=0, *, out=None, device=None, stream=None):
    """The arrays, one after the other along `axis`; they are dense and have 1 to 4 axes."""
    call = _Call(list(arrays), out, device, stream)
    axis, shape = _check_concat(call.views, axis)
    array, target = call.result(shape)
    _need_dense(_View(array), "out")
    call.run("lfm2_concat", call.tensors(call.views), len(call.views), target, axis)
    return array


def concat_backward(output_gradient, input_gradients, axis=0, *, overwrite=False, device=None, stream=None):
    """Adds each input's slice of `output_gradient` to its gradient in place; with `overwrite` sets it. Returns the gradients."""
    input_gradients = list(input_gradients)
    for array in input_gradients:
        if not _is_device_array(array) and not isinstance(array, np.ndarray):
            raise TypeError(f"input gradients must be arrays, not {type(array).__name__}")
    call = _Call([output_gradient, *input_gradients], None, device, stream)
    whole, parts = call.views[0], call.views[1:]
    if not parts:
        raise ValueError("no input gradients")
    axis, shape = _check_concat(parts, axis)
    _need_shape(whole, shape, "the output's gradient")
    _need_dense(whole, "the output's gradient")
    call.run("lfm2_concat_backward", call.tensor(0), call.tensors(parts, written=True), len(parts), axis, int(overwrite))
    return input_gradients


def _check_bias(matrix, rows_per_sample):
    if len(matrix.shape) != 2:
        raise ValueError(f"bias takes [rows, columns], not shape {tuple(matrix.shape)}")
    _need_dense(matrix, "an array of bias")
    if rows_per_sample < 0 or (rows_per_sample > 0 and matrix.shape[0] % rows_per_sample != 0):
        raise ValueError(f"{matrix.shape[0]} rows are no multiple of rows_per_sample {rows_per_sample}")
    return (rows_per_sample,) if rows_per_sample > 0 else (matrix.shape[1],)


def bias(x, bias, *, rows_per_sample=0, activation="none", out=None, device=None, stream=None):
    """activation(x[r, c] + bias[c]), or bias[r mod rows_per_sample] where that is not 0. `out` may be x."""
    activation = _number_of(activation, ACTIVATIONS, "activation")
    call = _Call([x, bias], out, device, stream)
    _need_shape(call.views[1], _check_bias(call.views[0], rows_per_sample), "bias")
    _need_dense(call.views[1], "bias")
    array, target = call.result(call.views[0].shape)
    _need_dense(_View(array), "out")
    call.run("lfm2_bias", call.tensor(0), call.tensor(1), target, rows_per_sample, activation)
    return array


def bias_backward(output_gradient, *, rows_per_sample=0, device=None, stream=None):
    """(input_gradient, bias_gradient) of bias without an activation. The first is output_gradient itself."""
    call = _Call([output_gradient], None, device, stream)
    shape = _check_bias(call.views[0], rows_per_sample)
    array, target = call.result(shape)
    gradient = call.tensor(0)
    workspace, size = call.workspace("lfm2_bias_backward_workspace", gradient, rows_per_sample)
    call.run("lfm2_bias_backward", gradient, None, target, rows_per_sample, workspace, size)
    return output_gradient, array


def map(function, x, *, out=None, device=None, stream=None):
    """function(x) element by element; function: one of UNARY. x is broadcast to `out` where that is larger."""
    function = _number_of(function, UNARY, "function")
    call = _Call([x], out, device, stream)
    shape = call.views[0].shape if out is None else _View(out).shape
    if np.broadcast_shapes(call.views[0].shape, shape) != tuple(shape):
        raise ValueError(f"shape {call.views[0].shape} cannot be broadcast to {tuple(shape)}")
    array, target = call.result(shape)
    call.run("lfm2_map", function, call.tensor(0), target)
    return array


def zip(function, a, b, *, out=None, device=None, stream=None):
    """function(a, b) element by element with NumPy's broadcasting; function: one of BINARY. Comparisons give 1 or 0."""
    function = _number_of(function, BINARY, "function")
    first = None
    if isinstance(a, (int, float)):
        a, first = _scalar(a, b), 1
    elif isinstance(b, (int, float)):
        b = _scalar(b, a)
    call = _Call([a, b], out, device, stream, first)
    shape = np.broadcast_shapes(call.views[0].shape, call.views[1].shape)
    if out is not None:
        wanted = tuple(_View(out).shape)
        if np.broadcast_shapes(shape, wanted) != wanted:
            raise ValueError(f"shape {shape} cannot be broadcast to {wanted}")
        shape = wanted
    array, target = call.result(shape)
    call.run("lfm2_zip", function, call.tensor(0), call.tensor(1), target)
    return array


def _scalar(value, other):
    if not _is_device_array(other):
        return np.asarray(value, np.asarray(other).dtype)
    view = _View(other)
    if view.dtype == _BF16:
        raise TypeError("a number beside a bf16 device array: give it as an array")
    return to_device(np.asarray(value, np.float32 if view.dtype == _FP32 else np.float16), view.device)


def reduce(function, x, axis=None, *, keepdims=False, out=None, device=None, stream=None):
    """Reduces x over an axis, a tuple of axes, or all axes (None); function: one of REDUCTIONS."""
    number = _number_of(function, REDUCTIONS, "function")
    call = _Call([x], out, device, stream)
    shape = call.views[0].shape
    rank = len(shape)
    axes = range(rank) if axis is None else axis if isinstance(axis, (tuple, list)) else (axis,)
    axes = [_axis(a, rank) for a in axes]
    if len(set(axes)) != len(axes):
        raise ValueError("an axis is named twice")
    if function in ("max", "min") and any(shape[a] == 0 for a in axes) and all(shape[a] for a in range(rank) if a not in axes):
        raise ValueError(f"{function} over nothing has no value")
    kept = [1 if a in axes else extent for a, extent in enumerate(shape) if keepdims or a not in axes]
    array, target = call.result(kept)
    mask = sum(1 << a for a in axes)
    source = call.tensor(0)
    workspace, size = call.workspace("lfm2_reduce_workspace", source, mask)
    call.run("lfm2_reduce", number, source, target, mask, workspace, size)
    return array


def matmul(a, b, *, out=None, device=None, stream=None):
    """The matrix product over the last two axes, leading axes broadcast, as numpy.matmul for at least two axes."""
    call = _Call([a, b], out, device, stream)
    left, right = (tuple(view.shape) for view in call.views)
    if len(left) < 2 or len(right) < 2:
        raise ValueError("matmul takes tensors with at least two axes")
    if left[-1] != right[-2]:
        raise ValueError(f"shapes {left} and {right}: {left[-1]} columns and {right[-2]} rows")
    shape = np.broadcast_shapes(left[:-2], right[:-2]) + (left[-2], right[-1])
    array, target = call.result(shape)
    call.run("lfm2_matmul", call.tensor(0), call.tensor(1), target)
    return array


def causal_conv1d(x, w, bias=None, *, activation="none", method="direct", out=None, device=None, stream=None):
    """Depthwise causal convolution: x [samples, channels, time], w [channels, filter], bias [channels]. method: "direct", or
    "gemm" (unfolded and multiplied; dense arrays)."""
    activation = _number_of(activation, ACTIVATIONS, "activation")
    _number_of(method, ("direct", "gemm"), "method")
    call = _Call([x, w, bias], out, device, stream)
    views = call.views
    if len(views[0].shape) != 3 or len(views[1].shape) != 2 or views[1].shape[1] < 1:
        raise ValueError("x must be [samples, channels, time], w [channels, filter] with a filter of at least 1")
    channels = views[0].shape[1]
    _need_shape(views[1], (channels, views[1].shape[1]), "w")
    if views[2] is not None:
        _need_shape(views[2], (channels,), "bias")
    array, target = call.result(views[0].shape)
    arguments = [call.tensor(0), call.tensor(1), call.tensor(2), target, activation]
    if method == "direct":
        call.run("lfm2_causal_conv1d", *arguments)
        return array
    for view, what in builtins.zip((*views, _View(array)), ("x", "w", "bias", "out")):
        if view is not None:
            _need_dense(view, what)
    workspace, size = call.workspace("lfm2_causal_conv1d_gemm_workspace", arguments[0], arguments[1])
    call.run("lfm2_causal_conv1d_gemm", *arguments, workspace, size)
    return array


def causal_conv1d_unfold(x, filter, *, out=None, device=None, stream=None):
    """[samples, channels, time] to [samples, time, filter * channels]: [n, t, j * channels + c] = x[n, c, t - (filter - 1) + j]."""
    call = _Call([x], out, device, stream)
    if len(call.views[0].shape) != 3 or filter < 1:
        raise ValueError("x must be [samples, channels, time], and the filter at least 1")
    _need_dense(call.views[0], "x")
    samples, channels, time = call.views[0].shape
    array, target = call.result((samples, time, filter * channels))
    _need_dense(_View(array), "out")
    call.run("lfm2_causal_conv1d_unfold", call.tensor(0), filter, target)
    return array


def causal_conv1d_expand(w, *, out=None, device=None, stream=None):
    """[channels, filter] to the sparse [channels, filter * channels]: [c, j * channels + c] = w[c, j], zero elsewhere."""
    call = _Call([w], out, device, stream)
    if len(call.views[0].shape) != 2 or call.views[0].shape[1] < 1:
        raise ValueError("w must be [channels, filter] with a filter of at least 1")
    _need_dense(call.views[0], "w")
    channels, taps = call.views[0].shape
    array, target = call.result((channels, taps * channels))
    _need_dense(_View(array), "out")
    call.run("lfm2_causal_conv1d_expand", call.tensor(0), target)
    return array
