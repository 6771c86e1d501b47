#!/usr/bin/env bash
# Builds the CUDA backend and its tests by themselves (no MPI, no xxhash), then runs what the arguments name:
#   tests   the tests       sanitize  compute-sanitizer memcheck and racecheck over the smaller tests
#   bench   the bench       Without arguments: all three. ARCH=80 compiles for sm_80.
set -u
root=$(cd "$(dirname "$0")/.." && pwd)
source=$root/build/cuda-dev
arch=${ARCH:-90a}
out=$source/out-$arch
export NCCL_NVLS_ENABLE=0
mkdir -p "$source"
cat > "$source/CMakeLists.txt" <<'CMAKE'
cmake_minimum_required(VERSION 3.24)
project(lfm2_cuda_dev LANGUAGES C CXX CUDA)
set(ROOT ${CMAKE_CURRENT_LIST_DIR}/../..)
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
find_package(Threads REQUIRED)
find_package(fmt REQUIRED)
find_package(CUDAToolkit REQUIRED)
find_package(GTest REQUIRED)
find_package(HDF5 REQUIRED COMPONENTS C)
add_library(lfm2_options INTERFACE)
target_include_directories(lfm2_options INTERFACE ${ROOT}/src)
target_compile_options(lfm2_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wpedantic -Wshadow -Wconversion>)
add_subdirectory(${ROOT}/src/kernels base)
if(NOT TARGET lfm2_cuda)
  add_subdirectory(${ROOT}/src/kernels/cuda cuda)
endif()
file(GLOB tests ${ROOT}/tests/cuda/*.cpp)
add_executable(cuda_tests ${tests} ${ROOT}/tests/support/golden.cpp)
target_include_directories(cuda_tests PRIVATE ${ROOT}/tests ${HDF5_INCLUDE_DIRS})
target_compile_definitions(cuda_tests PRIVATE LFM2_GOLDEN_DIR="${ROOT}/tests/golden")
target_link_libraries(cuda_tests PRIVATE lfm2_cuda GTest::gtest ${HDF5_LIBRARIES})
add_executable(bench_gpu_ops ${ROOT}/tests/bench/bench_gpu_ops.cpp)
target_link_libraries(bench_gpu_ops PRIVATE lfm2_cuda)
CMAKE
nvcc=$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)
cmake -G Ninja -S "$source" -B "$out" -DCMAKE_BUILD_TYPE=Release -DCMAKE_CUDA_ARCHITECTURES="$arch" \
  -DCMAKE_CUDA_COMPILER="$nvcc" > "$out.configure.log" 2>&1 || { cat "$out.configure.log"; exit 1; }
start=$SECONDS
ninja -C "$out" -j "${JOBS:-$(nproc)}" > "$out.build.log" 2>&1 || { grep -E "error|FAILED|undefined" "$out.build.log" | head -40; exit 1; }
echo "built in $((SECONDS - start)) s"
failed=0
for step in ${*:-tests sanitize bench}; do
  echo "== $step"
  case $step in
    build) ;;
    tests) "$out/cuda_tests" --gtest_brief=1 ${FILTER:+--gtest_filter=$FILTER} || failed=1 ;;
    sanitize)
      small='CudaStreamTest.*:CudaBackendTest.Out*:CudaQkNormRopeTest.*:CudaAttentionTest.AgreesWithTransformers:CudaAttentionTest.One*:CudaAttentionTest.NoTokens:CudaRmsNormTest.*:CudaShortConvTest.*:CudaSwigluTest.*:CudaEmbedTest.*:CudaGatherRowsTest.*:CudaCombineExpertsTest.*:CudaRouteTest.*:CudaGroupedMatmulTest.EveryTypeAndSplit:CudaGroupedMatmulTest.ManyExperts:CudaMatmulTest.EveryTypeBiasAndAdd:CudaMatmulTest.AgreesWithTransformers:CudaTopLogProbsTest.*'
      for tool in memcheck racecheck; do
        timeout "${SANITIZE_S:-120}" compute-sanitizer --tool $tool --error-exitcode 9 "$out/cuda_tests" --gtest_brief=1 --gtest_filter="$small" 2>&1 | tail -15
        [ "${PIPESTATUS[0]}" = 0 ] || { echo "$tool: exit not 0"; failed=1; }
      done ;;
    bench) "$out/bench_gpu_ops" || failed=1 ;;
  esac
  echo "($SECONDS s so far)"
done
exit $failed
