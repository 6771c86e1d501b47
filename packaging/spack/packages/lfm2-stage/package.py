# UNTESTED: written after Spack's documentation, never built by us. Use:
#   spack repo add packaging/spack && spack install lfm2-stage ~cuda
from spack.package import *


class Lfm2Stage(CMakePackage, CudaPackage):
    """Scores and continues samples with LFM2 models over a pipeline of MPI ranks."""

    license("Apache-2.0")

    # The checkout that this recipe lies in: spack develop -p CHECKOUT lfm2-stage@=main
    version("main")

    depends_on("c", type="build")
    depends_on("cxx", type="build")
    depends_on("cmake@3.24:", type="build")
    depends_on("ninja", type="build")
    depends_on("pkgconfig", type="build")
    depends_on("python@3.9:", type="build")  # manual pages and completions
    depends_on("mpi@3.1:")
    depends_on("hdf5~mpi")
    depends_on("cli11@2:")
    depends_on("nlohmann-json@3.11:")
    depends_on("fmt@9:")
    depends_on("xxhash@0.8:")
    depends_on("pcre2@10.40: +jit")
    depends_on("zlib-api")
    depends_on("zstd")
    depends_on("boost@1.74:", type="build")  # headers alone
    depends_on("nccl", when="+cuda")
    conflicts("cuda_arch=none", when="+cuda", msg="cuda_arch=90 for H100 and H200, 80 for A100")

    generator("ninja")

    def cmake_args(self):
        arguments = [self.define_from_variant("LFM2_CUDA", "cuda"), self.define("LFM2_TESTS", False)]
        if self.spec.satisfies("+cuda"):
            # Hopper's own instructions exist for sm_90a alone.
            names = ["90a" if name == "90" else name for name in self.spec.variants["cuda_arch"].value]
            arguments.append(self.define("CMAKE_CUDA_ARCHITECTURES", names))
        return arguments
