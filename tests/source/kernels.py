#!/usr/bin/env python3
"""The kernels' house rules: an operator's name finds its file and its test, and a kernel's head says what it takes and does.

Every operator of `Ops` has a source in a folder of src/kernels/cuda and a test of its name in the folder of the same name below
tests/cuda; a source may go on after the name (attention_mma.cu). tests/CMakeLists.txt names every test file in
tests/cuda and tests/unit/kernels, because one that it does not name is never compiled. Above every __global__ function stands what its
operands are, what a block and a thread do, and which alignment they need. The first kernel of a source stands before all bodies of
functions, so that it reads from top to bottom: what the kernel calls is declared before it and defined after it. Ends with 1 and a line
for everything that is missing.
"""
import pathlib, re, sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
HEAD = ("- operands:", "- block:", "- thread:", "- alignment:")


def operators():
    text = (ROOT / "src/kernels/ops.h").read_text()
    return re.findall(r"virtual void (\w+)\(", text)


def missing_files(names):
    for name in names:
        sources = [path for path in (ROOT / "src/kernels/cuda").glob("*/*.c*") if re.fullmatch(rf"{name}(_\w+)?\.(cu|cpp)", path.name)]
        folders = {path.parent.name for path in sources}
        if not sources:
            yield f"{name}: no source of this name in a folder of src/kernels/cuda"
        elif not any((ROOT / "tests/cuda" / folder / f"{name}_test.cpp").is_file() for folder in folders):
            yield f"{name}: no {name}_test.cpp in tests/cuda/{' or '.join(sorted(folders))}"


def unlisted_tests():
    lines = (ROOT / "tests/CMakeLists.txt").read_text().splitlines()
    listed = {word.strip("()") for line in lines for word in line.split("#")[0].split()}
    for folder in ("cuda", "unit/kernels"):
        for path in sorted((ROOT / "tests" / folder).rglob("*_test.cpp")):
            if str(path.relative_to(ROOT / "tests")) not in listed:
                yield f"{path.relative_to(ROOT)}: tests/CMakeLists.txt does not name it, so it is not compiled"


def head_of(lines, at):
    """The comment above a declaration, whose template line comes between."""
    while at > 0 and lines[at - 1].startswith("template"):
        at -= 1
    begin = at
    while begin > 0 and lines[begin - 1].startswith("//"):
        begin -= 1
    return "\n".join(lines[begin:at])


def missing_heads(paths):
    for path in paths:
        lines = path.read_text().splitlines()
        for number, line in enumerate(lines):
            if "__global__" not in line or line.lstrip().startswith("//"):
                continue
            head = head_of(lines, number)
            absent = [part for part in HEAD if part not in head]
            if absent:
                yield f"{path.relative_to(ROOT)}:{number + 1}: the kernel's head lacks \"{absent[0]}\""


def bodies_before_kernel(lines):
    """The numbers of lines before the first kernel in which the body of a function begins; methods of one line may stand there."""
    first = next((number for number, line in enumerate(lines) if "__global__" in line and not line.lstrip().startswith("//")), 0)
    for number, line in enumerate(lines[:first]):
        body = r"\)[^;]*\{" if re.match(r"\w", line) else r"\).*\{$"
        if re.search(body, line) and not re.match(r"\s*(//|struct|class|enum|namespace)", line):
            yield number + 1


def late_kernels(paths):
    for path in paths:
        for number in bodies_before_kernel(path.read_text().splitlines()):
            yield f"{path.relative_to(ROOT)}:{number}: a function's body before the first kernel: declare it here, define it after the kernel"


# Lines of a file, and how many of them begin a body before the kernel.
PLANTED = [
    (["__device__ int f(int x) { return x; }", "__global__ void k() {}"], 1),
    (["__device__ int f(int x) {", "  return x;", "}", "__global__ void k() {}"], 1),
    (["struct S {", "  __device__ int f() const { return 1; }", "};", "__device__ int f(int x);", "__global__ void k() {}", "int f() {"], 0),
]


def main():
    names = operators()
    paths = sorted(path for top in ("src", "operators") for path in (ROOT / top).rglob("*.cu*") if path.suffix in (".cu", ".cuh"))
    kernels = sum(path.read_text().count("__global__ void") for path in paths)
    if len(names) < 20 or kernels < 40:
        sys.exit(f"Only {len(names)} operators and {kernels} kernels found: this script no longer reads the source")
    if any(len([*bodies_before_kernel(lines)]) != count for lines, count in PLANTED):
        sys.exit("bodies_before_kernel() does not find what was planted")
    found = [*missing_files(names), *unlisted_tests(), *missing_heads(paths), *late_kernels(path for path in paths if path.suffix == ".cu")]
    print("\n".join(found) or f"{len(names)} operators have their files and tests, {kernels} kernels their heads")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
