#!/usr/bin/env bash
# gpu-check.sh [FOLDER]: everything that needs GPUs, as one command with one summary. Runs the builds, the CUDA tests,
# the MPI tests over NCCL, those of the channel over peer copies and over MPI, compute-sanitizer, then the full-size
# model against transformers. Device buffers are tested where packaging/openmpi-cuda.sh was run. FOLDER (default
# /tmp/lfm2-gpu-check) takes about 40 GB. LFM2_SKIP names parts to leave out, of "build cuda nccl peer mpi sanitizer
# full-size"; where "build" is left out, the build of the preset is used as it is, also one from another machine with the
# same paths. LFM2_CMAKE_OPTIONS holds further options for CMake, and LFM2_TEST_PRESET another preset: cuda-sm80. With
# four GPUs the checks of one GPU run side by side, the MPI tests after them, and the headline job alone at the end.
set -u
cd "$(dirname "$0")/.." || exit
folder=${1:-/tmp/lfm2-gpu-check}
skip=" ${LFM2_SKIP:-} "
mkdir -p "$folder"
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 NCCL_NVLS_ENABLE=${NCCL_NVLS_ENABLE:-0}
gpus=$(nvidia-smi --list-gpus | wc -l)
[ "$gpus" -gt 0 ] || { echo "gpu-check.sh: nvidia-smi lists no GPU, expected at least one" >&2; exit 69; }  # tests would be skipped
ranks=$((gpus < 4 ? gpus : 4))
preset=${LFM2_TEST_PRESET:-cuda}
build=build/$preset bin=build/$preset/bin
options=()
cuda_mpi=$PWD/.local/openmpi-cuda
if [ -x "$cuda_mpi/bin/mpirun" ]; then
  options=(-U 'MPI*' "-DCMAKE_PREFIX_PATH=$cuda_mpi")  # a build folder may know another MPI
  export OPAL_PREFIX=$cuda_mpi LD_LIBRARY_PATH=$cuda_mpi/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} PATH=$cuda_mpi/bin:$PATH
fi
names=()

# start NAME COMMAND...: runs the command, beside the others where there are enough GPUs, and keeps its log and exit
# code.
start() {
  local name=$1 log="$folder/${1// /-}.log" result="$folder/${1// /-}.result"
  shift
  names+=("$name")
  rm -f "$result"
  if [ "$gpus" -ge 4 ]; then
    run_step "$name" "$log" "$result" "$@" &
  else
    run_step "$name" "$log" "$result" "$@"
  fi
}
run_step() {
  local name=$1 log=$2 result=$3 begin=$SECONDS word=FAILED
  shift 3
  if "$@" >"$log" 2>&1; then word=ok; else tail -n 40 "$log"; fi
  printf '%-7s %-28s %4d s\n' "$word" "$name" $((SECONDS - begin)) >"$result"
}
# Waits for all commands that must have ended before the next step begins.
all_done() {
  wait
  for name in "${names[@]}"; do
    grep -qE '^(ok|skipped)' "$folder/${name// /-}.result" || return 1
  done
}
skipped() {
  names+=("$1")
  printf 'skipped %-28s %s\n' "$1" "$2" >"$folder/${1// /-}.result"
}
stage() { timeout 300 mpirun --bind-to none -np "$ranks" "$bin/lfm2_stage" "$@"; }

with_gpu() {
  local -x CUDA_VISIBLE_DEVICES=$1
  shift
  "$@"
}

# One test runs out of memory on purpose, so failed API calls are not reported. The large tests would take hours.
sanitize() {
  local tool=$1 slow=
  shift
  [ "$tool" = racecheck ] && slow=":CudaNormRouteTest.LaunchesBackToBack*"
  compute-sanitizer --tool "$tool" --report-api-errors no "$@" "$bin/cuda_tests" --gtest_brief=1 \
    --gtest_filter='-*Long*:*Invariance*:*Bits*:*FarPositions:*ShapeAndLength:*AnyK*:*OddSizes*:*ManyBlocks:*DeathTest*:*LoseNoMore*:*Upload*:*LargeScores:*WgmmaTest.EverySplit:*WgmmaTest.Many*:*LosesNoMore*:*ShapeAndPage*:*ManySequences*:CudaSampleTest.AgreesWithSorting:CudaSampleTest.InfinitiesAndNans:*DenormalsInEvery*'"$slow"
}
# racecheck does not follow the barriers of cuBLASLt's kernels (nvjet), and reports hazards inside them; any other
# hazard is an error. (racecheck's own way of leaving kernels out breaks the test that captures a graph.) One test alone
# would take longer than all others. They take ten minutes, so each GPU has a part of them.
racecheck() {
  local part parts=$gpus log failed=0 running=()
  for ((part = 0; part < parts; ++part)); do
    GTEST_TOTAL_SHARDS=$parts GTEST_SHARD_INDEX=$part with_gpu "$part" sanitize racecheck >"$folder/racecheck-part-$part.log" 2>&1 &
    running+=($!)
  done
  for ((part = 0; part < parts; ++part)); do
    log="$folder/racecheck-part-$part.log"
    wait "${running[part]}" || failed=1
    cat "$log"
    grep -q 'RACECHECK SUMMARY' "$log" || failed=1
    if grep 'Race reported' "$log" | grep -v nvjet; then failed=1; fi
  done
  return $failed
}
# The general operators: the tests of both devices, Python with many examples, the sanitizers over everything except the
# sizes past 2^31, and the check program.
operators_tests() {
  local library=$PWD/$build/lib/liblfm2_kernels.so tool
  "$bin/operator_tests" cuda --gtest_brief=1 || return 1
  LFM2_EXAMPLES=${LFM2_EXAMPLES:-1000} python3 operators/tests/python_test.py "$library" cuda tests/golden || [ $? -eq 77 ] || return 1
  "$bin/causal_conv1d_check" --channels 64 --length 2048 --filter 4 --device cuda || return 1
  [[ $skip == *" sanitizer "* ]] && return 0
  for tool in memcheck racecheck; do
    compute-sanitizer --tool "$tool" --report-api-errors no --error-exitcode 70 "$bin/operator_tests" cuda --gtest_brief=1 \
      --gtest_filter='Cuda/*:CudaGraph*:CudaBits*' || return 1
  done
}
configure_and_build() {
  # shellcheck disable=SC2086  # a list of options
  cmake --preset "$preset" "${options[@]}" ${LFM2_CMAKE_OPTIONS:-} && cmake --build --preset "$preset" -j "$(nproc)"
}
# mpi_tests TRANSPORT TESTS: those tests that match and that LFM2_TEST_MACHINE brings to the GPUs; the others of that label
# are launch/test.sh's. The driver starts and ends one program at a time, so with more of them at once all run past their
# times, and one that sees a single GPU starts sooner. Refusals and stalls are timed; they and doctor see all GPUs.
mpi_tests() {
  local -x LFM2_TEST_MACHINE="--device cuda --transport $1"
  local failed=0 at_once=$((gpus < 4 ? 4 : 12))
  LFM2_TEST_GPUS=$gpus ctest --test-dir "$build" -L mpi -LE long -R "$2" -E 'RefusalTest|DoctorTest' -j $at_once \
    --output-on-failure --no-tests=error || failed=1
  ctest --test-dir "$build" -R 'RefusalTest|DoctorTest|/StallTest' -j 3 --output-on-failure --no-tests=error || failed=1
  return $failed
}
# What differs between these ways is the channel, and what is planned and told of it.
channel_tests='(Golden|Bits|Generation|Trace|Begun).*Test\.'
staged_tests() {
  local -x OMPI_MCA_opal_cuda_support=0
  mpi_tests mpi "$channel_tests"
}
device_buffers_tests() {
  mpirun --bind-to none --oversubscribe -np 2 "$bin/lfm2_stage" doctor --device cuda --transport mpi | tee /dev/stderr |
    grep -q 'MPI, device buffers' && mpi_tests mpi "$channel_tests"
}
full_size_reference() {
  [ -f "$folder/reference.h5" ] || python3 tests/reference/full_size.py make "$folder" || return 1
  [ -d "$folder/shards" ] || "$bin/weights-tools" split "$folder/model" --out "$folder/shards"
}
full_size() {
  for dtype in fp32 bf16; do
    stage --weights "$folder/shards" --input "$folder/inputs.h5" --dtype "$dtype" --output "$folder/$dtype.h5" || return 1
  done
  python3 tests/reference/full_size.py compare "$folder" "$folder/fp32.h5" "$folder/bf16.h5"
}
# Calls that allocate or wait for the device must not become more frequent with more micro-batches.
calls_in_the_loop() {
  local counter=$build/tests/libcuda_call_counter.so rank
  for samples in 256 1024; do
    rm -f "$folder/calls-$samples".*
    LFM2_CUDA_CALLS="$folder/calls-$samples" CUDA_INJECTION64_PATH="$PWD/$counter" \
      stage --weights "$folder/shards" --samples "$samples" --micro-batch 16 --quiet || return 1
  done
  local waits='^cu(Mem(Alloc|Free|HostAlloc|AllocHost|FreeHost|HostRegister|Create|Map|AddressReserve)|Ctx(Synchronize|Create)|StreamSynchronize|EventSynchronize|ModuleLoad|LibraryLoad|Memcpy[A-Za-z0-9]*_v2(_ptds)? )'
  for ((rank = 0; rank < ranks; ++rank)); do
    echo "rank $rank, calls with 16 and with 64 micro-batches:"
    grep -E 'cuLaunchKernel|cuEventRecord' "$folder/calls-256.$rank" "$folder/calls-1024.$rank" | sed 's/.*calls-/  /'
    diff <(grep -E "$waits" "$folder/calls-256.$rank" | grep -v Async) <(grep -E "$waits" "$folder/calls-1024.$rank" | grep -v Async) || return 1
    grep -E "$waits" "$folder/calls-1024.$rank" | grep -v Async | sed 's/^/  equal: /'
  done
}
headline() {
  for dtype in bf16 fp32; do
    stage --weights "$folder/shards" --dtype "$dtype" --output "$folder/headline.bin" --benchmark --warmup 1 --repeat 5 \
      --report "$folder/headline-$dtype.json" --trace "$folder/trace-$dtype.json" || return 1
  done
}

if [[ $skip == *" build "* ]]; then
  skipped "build" "as asked"
else
  run_step "build" "$folder/build.log" "$folder/build.result" configure_and_build
  names+=("build")
fi
all_done || { cat "$folder/build.result"; exit 1; }
if [[ $skip == *" full-size "* ]]; then skipped "full size reference" "as asked"; else start "full size reference" full_size_reference; fi
if [[ $skip == *" cuda "* ]]; then
  skipped "cuda tests" "as asked"
else
  start "cuda tests" ctest --test-dir "$build" -L cuda -E operator --output-on-failure --no-tests=error
  start "operators' cuda tests" operators_tests
fi
if [[ $skip == *" sanitizer "* ]]; then
  skipped "memcheck" "as asked"
  skipped "racecheck" "as asked"
else
  start "memcheck" with_gpu $((gpus > 2 ? 2 : 0)) sanitize memcheck --error-exitcode 70
  start "racecheck" racecheck
fi
wait  # the MPI tests write the same files, so they run one after the other
if [[ $skip == *" nccl "* ]]; then
  skipped "mpi tests over NCCL" "as asked"
elif [ "$gpus" -ge 4 ]; then
  start "mpi tests over NCCL" mpi_tests nccl 'Test\.|random_models'
else
  skipped "mpi tests over NCCL" "$gpus GPUs, 4 are needed"
fi
wait
if [[ $skip == *" peer "* ]]; then skipped "mpi tests, peer copies" "as asked"; else start "mpi tests, peer copies" mpi_tests peer "$channel_tests"; fi
wait
if [[ $skip == *" mpi "* ]]; then skipped "mpi tests over MPI, staged" "as asked"; else start "mpi tests over MPI, staged" staged_tests; fi
wait
if [[ $skip == *" mpi "* ]]; then
  skipped "mpi tests, device buffers" "as asked"
elif [ ${#options[@]} -gt 0 ]; then
  start "mpi tests, device buffers" device_buffers_tests
else
  skipped "mpi tests, device buffers" "packaging/openmpi-cuda.sh makes what they need"
fi
if [[ $skip == *" full-size "* ]]; then
  skipped "full size" "as asked"
else
  start "full size" full_size
  wait
  start "calls in the loop" calls_in_the_loop
  wait
  start "headline" headline
  wait
  tail -n 3 "$folder/full-size.log"
  cat "$folder/headline.log"
fi
all_done
failed=$?
for name in "${names[@]}"; do cat "$folder/${name// /-}.result"; done
exit $failed
