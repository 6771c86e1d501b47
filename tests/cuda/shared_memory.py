#!/usr/bin/env python3
"""Every kernel of LIBRARY, of lfm2_cuda, has shared memory that fits into a thread block's on the GPU that it is compiled for: 163 KB on sm_80, 227 KB from sm_90 on.

Usage: shared_memory.py LIBRARY. Static shared memory comes from the sections of the machine code in the library, dynamic shared memory
from the names of its instances of allow_shared_bytes (src/kernels/cuda/common/shared_memory.cuh): of a kernel's instances, the largest of
each. A kernel that asks for no dynamic shared memory there may have 48 KB in all, as CUDA says; where its launcher gives it dynamic
shared memory without asking, a static_assert beside the launch holds that to 48 KB. Needs no GPU.
"""
import re, struct, subprocess, sys

EM_CUDA = 190
FAT_BINARY = re.escape(struct.pack("<I", 0xBA55ED50))
MACHINE_CODE = 2  # the kind of an image of a fat binary; PTX is 1
COMPRESSED = 1 << 15  # among the flags of an image
KB = 1024
WITHOUT_ASKING = 48 * KB
KERNELS_THAT_ASK = {80: 6, 90: 15}  # the fewest of each architecture


def strings_at(data, offset):
    return data[offset:data.index(b"\0", offset)].decode()


def compressed_images(data):
    """How many images of machine code in the fat binaries of the library are compressed, as nvcc does with those of more than 10 MB."""
    count = 0
    for match in re.finditer(FAT_BINARY, data):
        header_size, size = struct.unpack_from("<HQ", data, match.start() + 6)
        at = match.start() + header_size
        end = at + size
        while at < end:
            kind, image_header_size, image_size = struct.unpack_from("<HxxIQ", data, at)
            flags, = struct.unpack_from("<Q", data, at + 40)
            count += kind == MACHINE_CODE and bool(flags & COMPRESSED)
            at += image_header_size + image_size
    return count


def shared_sections(data):
    """Yields (architecture, mangled name of a kernel, bytes) from all ELF images of machine code that lie uncompressed in the library."""
    for match in re.finditer(rb"\x7fELF\x02\x01", data):
        start = match.start()
        if struct.unpack_from("<H", data, start + 18)[0] != EM_CUDA:
            continue
        sections_at, flags = struct.unpack_from("<QI", data, start + 40)
        size, count, names = struct.unpack_from("<HHH", data, start + 58)
        headers = [struct.unpack_from("<IIQQQQIIQQ", data, start + sections_at + i * size) for i in range(count)]
        for header in headers:
            name = strings_at(data, start + headers[names][4] + header[0])
            if name.startswith(".text."):
                yield flags >> 8 & 0xFF, name[len(".text."):], 0
            elif name.startswith(".nv.shared.") and not name.endswith(".reserved.0"):
                yield flags >> 8 & 0xFF, name[len(".nv.shared."):], header[5]


def largest(pairs):
    result = {}
    for key, value in pairs:
        result[key] = max(value, result.get(key, 0))
    return result


def kernels_of(mangled):
    """The names of the kernels in mangled names, in order, without namespaces and parameters; None where a name is not a kernel's."""
    plain = subprocess.run(["c++filt"], input="\n".join(mangled), check=True, capture_output=True, text=True).stdout.splitlines()
    return [match[1] if (match := re.search(r"\b(\w+_kernel)[<(]", name)) else None for name in plain]


def main():
    library = sys.argv[1]
    names = subprocess.run(["nm", "-C", library], check=True, capture_output=True, text=True).stdout
    dynamic = largest((kernel, int(size)) for kernel, size in re.findall(r"allow_shared_bytes<.*?(\w+_kernel)\b.*, (\d+)>\(int\)", names))
    with open(library, "rb") as file:
        data = file.read()
    if compressed := compressed_images(data):
        sys.exit(f"{library}: compressed images of machine code: {compressed}; their sizes cannot be read: build with CMAKE_CUDA_FLAGS=--no-compress")
    sections = list(shared_sections(data))
    kernels = kernels_of([mangled for _, mangled, _ in sections])
    static = largest(((architecture, kernel), size) for (architecture, _, size), kernel in zip(sections, kernels, strict=True) if kernel)
    missing = dynamic.keys() - {kernel for _, kernel in static}
    expected = max(KERNELS_THAT_ASK.get(architecture, 0) for architecture, _ in static) if static else 1
    if len(static) < 30 or len(dynamic) < expected or min(dynamic.values()) < KB or missing:
        sys.exit(f"{library}: {len(static)} kernels and {len(dynamic)} dynamic sizes found, no code of {missing}: this script no longer reads them")
    found = 0
    for (architecture, kernel), size in sorted(static.items()):
        # From sm_90 on, a section counts the 1 KB of each block that CUDA keeps beside the 227.
        own = size - KB if architecture >= 90 and size >= KB else size
        limit = WITHOUT_ASKING if kernel not in dynamic else (227 if architecture >= 90 else 163) * KB
        if own + dynamic.get(kernel, 0) > limit:
            found += 1
            print(f"{kernel}, sm_{architecture}: {own} bytes of static and {dynamic.get(kernel, 0)} of dynamic shared memory; a block may have {limit}")
    print(f"{len(static)} kernels, {len(dynamic)} with dynamic shared memory, {found} with too much")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
