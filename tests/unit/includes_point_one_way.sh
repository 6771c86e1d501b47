#!/usr/bin/env bash
# includes_point_one_way.sh SOURCE: src/stage includes src/comm includes src/kernels, never back; CUDA headers only where they belong.
set -u
cd "$1" || exit 1
failed=0
forbid() { # PATTERN WHERE... : no line of the pattern in these files
  local pattern=$1; shift
  if grep -nE "$pattern" -r "$@" --include='*.h' --include='*.cpp' --include='*.cu' --include='*.cuh'; then failed=1; fi
}
forbid '#include "(comm|stage|weights-tools)/' src/kernels
forbid '#include <(mpi|hdf5)\.h>' src/kernels
forbid '#include "(comm|stage|weights-tools)/' src/operators
forbid '#include "kernels/[^d]' src/operators
forbid '#include <(mpi|hdf5|fmt/.*)\.h>' src/operators
forbid '#include <cuda' src/operators/*.h src/operators/*.cpp
forbid '#include "(stage|weights-tools)/' src/comm/*.h src/comm/*.cpp
forbid '#include <hdf5\.h>' src/comm
forbid '#include "weights-tools/' src/stage
cuda=$(grep -rlE '#include <(cuda|cublas|nccl|nvtx)' src weights-tools --include='*.h' --include='*.cpp' | grep -vE '^src/kernels/cuda/|^src/comm/nccl_channel')
if [ -n "$cuda" ]; then echo "CUDA headers outside src/kernels/cuda and src/comm/nccl_channel: $cuda"; failed=1; fi
exit $failed
