#!/usr/bin/env python3
"""Every folder includes only from the folders that are named for it here; no circles, but for the one that is named. CUDA, MPI and HDF5
headers stand only where they belong. Then the same on a small tree with wrong includes, each of which must be found.

    includes_point_one_way.py [ROOT]    # of the repository; this script's own where no other one is named
"""
import pathlib, re, sys, tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]

# What a folder may include from: folders, single headers, and itself. Rows of src/stage include from rows above their own.
BASE = ["base", "base/json"]
KERNELS = ["base", "kernels"]
ENGINE = [*BASE, "kernels"]
ALLOWED = {
    "base": ["base/json"],
    "base/json": ["base"],
    "base/options": ["base"],
    "kernels": ["base"],
    "kernels/cpu/simd": KERNELS,
    "kernels/cpu": KERNELS + ["kernels/cpu/simd"],
    "kernels/reference": KERNELS,
    "kernels/cuda/common": KERNELS,
    "kernels/cuda/ptx": KERNELS,
    "kernels/cuda/gemm": KERNELS + ["kernels/cuda/common", "kernels/cuda/ptx"],
    "kernels/cuda/attention": KERNELS + ["kernels/cuda/common", "kernels/cuda/ptx"],
    "kernels/cuda/rows": KERNELS + ["kernels/cuda/common", "kernels/cuda/ptx"],
    "kernels/cuda/experts": KERNELS + ["kernels/cuda/common", "kernels/cuda/ptx", "kernels/cuda/rows"],
    "kernels/cuda/fused": KERNELS + [*(f"kernels/cuda/{folder}" for folder in ("common", "ptx", "gemm", "attention", "rows", "experts"))],
    "kernels/cuda/sampling": KERNELS + ["kernels/cuda/common", "kernels/cuda/ptx"],
    "kernels/cuda": KERNELS + [*(f"kernels/cuda/{folder}" for folder in ("common", "gemm", "attention", "rows", "experts", "fused", "sampling"))],
    "operators": ["base"],
    "operators/cuda": ["base", "operators", "kernels/cuda/common"],  # element types alone: everything else there is its own
    "operators/tests": ["base", "operators", "support"],
    "comm": KERNELS,
    "comm/gpu": KERNELS + ["kernels/cuda", "kernels/cuda/common", "comm"],
    "stage/hdf5": ENGINE,
    "stage/model": ENGINE,
    "stage/model/configs": ENGINE + ["stage/model"],
    "stage/shards": ENGINE + ["stage/hdf5", "stage/model"],
    "stage/dspark": ENGINE + ["stage/model", "stage/shards"],
    "stage/io/lines": BASE,
    # Requests and answers as JSON: of the engine it knows three headers and what they include, and no job, no files and no transport.
    "openai": BASE + ["grammar", "grammar/expression", "kernels/sampling.h", "stage/pipeline/request.h", "stage/pipeline/completion.h", "text", "text/unicode", "openai/answer"],
    "openai/answer": BASE + ["text", "text/chat"],
    "openai/responses": BASE + ["openai"],
    "stage/io/samples": ENGINE,
    "stage/io/inputs": ENGINE + ["openai", "stage/hdf5", "stage/io/lines", "stage/io/samples"],
    "stage/io": ENGINE + ["openai", "stage/pipeline/completion.h", "stage/pipeline/request_source.h", "stage/hdf5", "stage/model", "stage/io/inputs", "stage/io/lines", "stage/io/samples", "text"],  # results need no shards
    "stage/pipeline": ENGINE + ["comm", "stage/model"],
    "stage/scoring": ENGINE + ["comm", "stage/model", "stage/io", "stage/io/inputs", "stage/io/samples", "stage/pipeline"],
    "stage/scoring/planning": ENGINE + ["comm", "stage/model", "stage/io", "stage/io/samples", "stage/pipeline", "stage/scoring"],
    # Scoring and generation never include each other.
    "stage/generation": ENGINE + ["comm", "grammar", "stage/model", "stage/dspark", "stage/pipeline", "text"],
}
JINJA = [*BASE, "text/jinja/values"]
ALLOWED["text/unicode"] = BASE
ALLOWED |= {
    "text": [*BASE, "text/chat", "text/unicode"],
    "text/chat": [*BASE, "text/jinja", "text/jinja/values", "text/jinja/builtins", "text/jinja/syntax"],
    "text/jinja/values": [*BASE, "text/unicode"],
    "text/jinja/builtins": JINJA,
    "text/jinja/syntax": JINJA + ["text/jinja/builtins"],
    "text/jinja": JINJA + ["text/jinja/builtins", "text/jinja/syntax"],
}
# Constrained output knows text, no model and no transport.
GRAMMAR = [*BASE, "text", "text/unicode"]
ALLOWED["grammar/expression"] = GRAMMAR
ALLOWED["grammar/matcher"] = GRAMMAR + ["grammar/expression"]
ALLOWED["grammar/schema"] = ALLOWED["grammar/matcher"] + ["grammar/matcher"]
ALLOWED["grammar"] = ALLOWED["grammar/schema"] + ["grammar/schema"]
# The transport knows no model, no MPI and no OpenAI.
ALLOWED["serve/http"] = BASE
# Over scoring and generation, whose times it predicts.
ALLOWED["stage/planning"] = ENGINE + ["comm", "stage/model", "stage/io", "stage/io/samples", "stage/pipeline", "stage/scoring", "stage/scoring/planning", "stage/generation"]
STAGE = ["grammar", "openai", "openai/answer", "openai/responses", "stage/hdf5", "stage/model", "stage/shards", "stage/dspark", "stage/io", "stage/io/inputs", "stage/io/lines", "stage/io/samples", "stage/pipeline", "stage/scoring", "stage/scoring/planning",
         "stage/generation", "text"]
# Over scoring and generation, whose figures it puts together.
ALLOWED["stage/report"] = ENGINE + ["comm", *STAGE]
# "stage" is for version.h.
ALLOWED["stage/job"] = ENGINE + ["base/options", "kernels/cpu", "kernels/cuda", "kernels/cuda/common", "comm", "comm/gpu", "stage", "stage/report", *STAGE]
ALLOWED["stage/doctor"] = ALLOWED["stage/job"] + ["stage/job", "stage/planning"]
# Over a job, as a generation whose requests come from clients.
ALLOWED["serve/page"] = ["serve/http"]
ALLOWED["serve/batches"] = ENGINE + ["serve/http", "openai", "stage/io/lines", "stage/pipeline", "text"]
ALLOWED["serve"] = ENGINE + ["serve/batches", "serve/http", "serve/page", "comm", "openai", "openai/responses", "stage", "stage/io", "stage/pipeline", "stage/job", "text"]
ALLOWED["app"] = [*BASE, "comm", "serve", "stage/job", "stage/doctor"]
TOOLS = [*ENGINE, "base/options", "stage/hdf5", "stage/model", "stage/shards", "stage/dspark"]
# A circle: model_writer makes the files of model_bin, whose layout needs a writer's types.
ALLOWED["weights-tools/model"] = TOOLS + ["kernels/cpu/simd", "weights-tools/formats"]
# An adapter's patterns are regular expressions.
ALLOWED["weights-tools/formats"] = TOOLS + ["grammar/expression", "weights-tools/model"]
# comm is for the number of buffers.
ALLOWED["weights-tools/commands"] = TOOLS + ["comm", "stage/io", "stage/planning", "stage/scoring", "stage/scoring/planning", "text", "weights-tools/model", "weights-tools/formats"]
ALLOWED["weights-tools"] = TOOLS + ["weights-tools/commands", "weights-tools/model"]

# The folders in which headers of libraries may be included.
LIBRARIES = {
    r"<(cuda|cublas|nccl|nvtx|cupti)": r"kernels/cuda(/|$)|operators/(cuda|tests)$|comm/gpu$",
    r"<mpi(-ext)?\.h>": r"comm$",
    r"<hdf5\.h>": r"stage/hdf5$",
    r"<pcre2\.h>": r"text$",
    r"<boost/": r"serve/http$",
    r"<CLI/": r"operators$|base/options$|stage/job$|weights-tools",
}
HTTP_WITH_BOOST = ("request_parser.cpp", "server.cpp")  # each file more costs seconds of every build


def violations(root):
    found = []
    for top, prefix in (("src", ""), ("operators", "operators/"), ("weights-tools", "weights-tools/")):
        for path in sorted((root / top).rglob("*")):
            if path.suffix not in (".h", ".cpp", ".cu", ".cuh"):
                continue
            folder = (prefix + str(path.parent.relative_to(root / top))).removesuffix("/.").removesuffix("/")
            folder = "" if folder == "." else folder
            for number, line in enumerate(path.read_text().splitlines(), 1):
                where = f"{path.relative_to(root)}:{number}: {line.strip()}"
                if include := re.match(r'\s*#\s*include "([^"]+)"', line):
                    target = str(pathlib.PurePath(include[1]).parent)
                    if target not in (folder, ".") and not {target, include[1]} & set(ALLOWED.get(folder, [])):
                        found.append(f"{where}: {folder} may not include from {target}")
                for header, places in LIBRARIES.items():
                    if re.match(rf"\s*#\s*include {header}", line) and not re.match(places, folder):
                        found.append(f"{where}: not in {folder}")
                if folder == "serve/http" and re.match(r"\s*#\s*include <boost/", line) and path.name not in HTTP_WITH_BOOST:
                    found.append(f"{where}: only in {' and '.join(HTTP_WITH_BOOST)}")
    return found


WRONG = {
    "src/kernels/cpu/a.cpp": '#include "stage/model/stage.h"',
    "src/kernels/cpu/b.cpp": '#include "kernels/cuda/cuda_backend.h"',
    "src/kernels/ops.h": "#include <cuda_runtime.h>",
    "src/kernels/x.cpp": '#include "base/json/json.h"',
    "src/stage/io/y.cpp": '#include "base/options/choice.h"',
    "src/comm/c.cpp": '#include "stage/io/results.h"',
    "src/comm/d.cpp": "#include <nccl.h>",
    "src/stage/model/e.cpp": '#include "stage/shards/shard_reader.h"',
    "src/stage/model/f.cpp": '#include "comm/channel.h"',
    "src/stage/scoring/g.cpp": '#include "stage/generation/generator.h"',
    "src/stage/generation/h.h": '#include "stage/scoring/plan.h"',
    "src/stage/io/i.cpp": '#include "stage/shards/shard_reader.h"',
    "src/stage/io/j.cpp": "#include <hdf5.h>",
    "src/stage/job/k.cpp": '#include "stage/doctor/doctor.h"',
    "operators/l.cpp": '#include "kernels/cpu/simd/simd.h"',
    "weights-tools/model/m.cpp": '#include "weights-tools/commands/commands.h"',
    "src/openai/t.cpp": '#include "stage/pipeline/step.h"',
    "src/openai/u.cpp": '#include "serve/http/message.h"',
    "src/stage/generation/v.cpp": '#include "openai/response.h"',
    "src/grammar/w.cpp": '#include "openai/openai_request.h"',
    "src/text/o.cpp": '#include "stage/model/stage.h"',
    "src/base/p.cpp": "#include <pcre2.h>",
    "src/serve/http/q.cpp": '#include "stage/model/stage.h"',
    "src/serve/http/r.h": "#include <boost/asio/io_context.hpp>",
    "src/stage/job/s.cpp": "#include <boost/beast/http.hpp>",
    "src/new_folder/n.cpp": '#include "kernels/ops.h"',
}


def main():
    found = violations(pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT)
    print("\n".join(found) or "every include points one way")
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        (root / "weights-tools").mkdir()
        for name, line in WRONG.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(line + "\n")
        missed = [name for name in WRONG if not any(text.startswith(f"{name}:1:") for text in violations(root))]
    if missed:
        print("wrong includes that were not found:", *missed)
    sys.exit(bool(found or missed))


if __name__ == "__main__":
    main()
