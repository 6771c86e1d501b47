#!/usr/bin/env bash
# run.sh [SECONDS [TARGET...]]: builds the fuzzers with clang++, and runs each for SECONDS (10) from the corpus. Ends
# with 1 and the offending input where one finds something, and with 77 and a reason where there is no clang++ with
# libFuzzer. LFM2_FUZZ_BUILD is the build folder (build/fuzz), LFM2_FUZZ_FOUND the folder for new inputs (one in the
# build).
set -eu
source_dir=$(cd "$(dirname "$0")/../.." && pwd)
build=${LFM2_FUZZ_BUILD:-$source_dir/build/fuzz}
seconds=${1:-10}
[ $# -gt 0 ] && shift
targets=("$@")
[ ${#targets[@]} -gt 0 ] || targets=(model_bin safetensors fp8_safetensors index_json config_json adapter adapter_config inputs_bin inputs_npy inputs_packed inputs_jsonl inputs_text inputs_h5 h5_scan shards journal
  chat_template tokenizer_json tokenizer_text http multipart openai_request embeddings_request call_reader thought_reader
  schema pattern gbnf call_list)
compiler=${LFM2_FUZZ_CXX:-clang++}

command -v "$compiler" >/dev/null || { echo "skipped: no $compiler (package clang)"; exit 77; }
probe=$(mktemp -d)
trap 'rm -rf "$probe"' EXIT
echo 'extern "C" int LLVMFuzzerTestOneInput(const unsigned char*, unsigned long) { return 0; }' >"$probe/probe.cpp"
if ! "$compiler" -fsanitize=fuzzer,address,undefined "$probe/probe.cpp" -o "$probe/probe" 2>"$probe/log"; then
  echo "skipped: $compiler has no libFuzzer (package libclang-rt-dev)"
  exit 77
fi

mkdir -p "$build"
if ! { cmake -S "$source_dir" -B "$build" -DCMAKE_C_COMPILER="${compiler/clang++/clang}" -DCMAKE_CXX_COMPILER="$compiler" -DLFM2_FUZZ=ON \
  -DLFM2_TESTS=OFF -DLFM2_CUDA=OFF -DCMAKE_BUILD_TYPE=RelWithDebInfo && cmake --build "$build" --target fuzzers; } >"$build/build.log" 2>&1; then
  tail -40 "$build/build.log"
  exit 1
fi

# HDF5 leaks memory where a file is damaged. A parser that allocates more than 2 GB does so because of a number in the
# file.
export ASAN_OPTIONS=${ASAN_OPTIONS:-detect_leaks=0:allocator_may_return_null=0} UBSAN_OPTIONS=print_stacktrace=1
failed=0
for target in "${targets[@]}"; do
  found=${LFM2_FUZZ_FOUND:-$build/found}/$target
  mkdir -p "$found" "$build/artifacts"
  log=$build/$target.log
  if "$build/bin/fuzz_$target" -max_total_time="$seconds" -timeout=20 -rss_limit_mb=2048 -max_len=65536 -print_final_stats=1 \
    -artifact_prefix="$build/artifacts/$target-" "$found" "$source_dir/tests/fuzz/corpus/$target" >"$log" 2>&1; then
    runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
    echo "$target: $runs inputs in $seconds s, nothing found"
  else
    failed=1
    echo "$target: FOUND, log $log"
    grep -E '^(==|SUMMARY|.*runtime error|.*artifact_prefix|    #[0-9])|exit code' "$log" | head -20
  fi
done
exit $failed
