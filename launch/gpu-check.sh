#!/usr/bin/env bash
# gpu-check.sh [FOLDER]: everything that needs GPUs, as one command and one summary: builds, the CUDA and MPI tests over both transports,
# compute-sanitizer, then the full-size model against transformers. FOLDER (default /tmp/lfm2-gpu-check) takes about 40 GB.
# LFM2_SKIP leaves parts out, of "nccl mpi sanitizer full-size". Extra options for CMake: LFM2_CMAKE_OPTIONS.
set -u
cd "$(dirname "$0")/.."
folder=${1:-/tmp/lfm2-gpu-check}
skip=" ${LFM2_SKIP:-} "
mkdir -p "$folder"
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 NCCL_NVLS_ENABLE=${NCCL_NVLS_ENABLE:-0}
gpus=$(nvidia-smi --list-gpus | wc -l)
ranks=$((gpus < 4 ? gpus : 4))
bin=build/cuda/bin
summary=()
failed=0

# step NAME COMMAND...: runs it, keeps its log, remembers how it ended.
step() {
  local name=$1 log="$folder/${1// /-}.log" start=$SECONDS
  shift
  if "$@" >"$log" 2>&1; then
    summary+=("$(printf 'ok      %-28s %4d s' "$name" $((SECONDS - start)))")
  else
    summary+=("$(printf 'FAILED  %-28s %4d s  %s' "$name" $((SECONDS - start)) "$log")")
    failed=1
    tail -n 40 "$log"
  fi
}
skipped() { summary+=("$(printf 'skipped %-28s %s' "$1" "$2")"); }
stage() { mpirun --bind-to none -np "$ranks" "$bin/lfm2_stage" "$@"; }

# One test runs out of memory on purpose: failed API calls are its business. The large ones would take hours.
sanitize() {
  local tool=$1
  shift
  compute-sanitizer --tool "$tool" --report-api-errors no "$@" "$bin/cuda_tests" --gtest_brief=1 \
    --gtest_filter='-*Long*:*Invariance*:*Bits*:*FarPositions:*ShapeAndLength:*AnyK*:*OddSizes*:*ManyBlocks:*DeathTest*:*LoseNoMore*:*Upload*:*LargeScores'
}
# racecheck does not follow the barriers of cuBLASLt's kernels (nvjet) and reports hazards inside them; any other hazard is ours. (Its own
# way of leaving kernels out breaks the test that captures a graph.)
racecheck() {
  local log="$folder/racecheck-hazards.log"
  sanitize racecheck >"$log" 2>&1 || { cat "$log"; return 1; }
  cat "$log"
  grep -q 'RACECHECK SUMMARY' "$log" && ! grep 'Race reported' "$log" | grep -v nvjet
}
configure_and_build() {
  # shellcheck disable=SC2086  # a list of options
  cmake --preset cuda ${LFM2_CMAKE_OPTIONS:-} && cmake --build --preset cuda -j "$(nproc)"
}
mpi_tests() { LFM2_TEST_MACHINE="--device cuda --transport $1" ctest --test-dir build/cuda -L mpi --output-on-failure --no-tests=error; }
full_size() {
  [ -f "$folder/reference.h5" ] || python3 tests/reference/full_size.py make "$folder" || return 1
  [ -d "$folder/shards" ] || "$bin/weights-tools" split "$folder/model" --out "$folder/shards" || return 1
  for dtype in fp32 bf16; do
    stage --weights "$folder/shards" --input "$folder/inputs.h5" --dtype "$dtype" --output "$folder/$dtype.h5" || return 1
  done
  python3 tests/reference/full_size.py compare "$folder" "$folder/fp32.h5" "$folder/bf16.h5"
}
headline() {
  for dtype in bf16 fp32; do
    stage --weights "$folder/shards" --dtype "$dtype" --output "$folder/headline.bin" --benchmark --warmup 1 --repeat 5 \
      --report "$folder/headline-$dtype.json" || return 1
  done
}

step "build" configure_and_build
step "cuda tests" ctest --test-dir build/cuda -L cuda --output-on-failure --no-tests=error
if [[ $skip == *" nccl "* ]]; then
  skipped "mpi tests over NCCL" "as asked"
elif [ "$gpus" -ge 4 ]; then
  step "mpi tests over NCCL" mpi_tests nccl
else
  skipped "mpi tests over NCCL" "$gpus GPUs, 4 are needed"
fi
if [[ $skip == *" mpi "* ]]; then skipped "mpi tests over MPI" "as asked"; else step "mpi tests over MPI" mpi_tests mpi; fi
if [[ $skip == *" sanitizer "* ]]; then
  skipped "compute-sanitizer" "as asked"
else
  step "memcheck" sanitize memcheck --error-exitcode 70
  step "racecheck" racecheck
fi
if [[ $skip == *" full-size "* ]]; then
  skipped "full size" "as asked"
else
  step "full size" full_size
  step "headline" headline
  tail -n 3 "$folder/full-size.log"
  cat "$folder/headline.log"
fi
printf '%s\n' "${summary[@]}"
exit $failed
