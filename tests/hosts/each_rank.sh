#!/usr/bin/env bash
# each_rank.sh LAUNCH_FOLDER: launch/each-rank.sh gives every rank files of its own, and passes exit codes on. Scripts
# that print how they were called stand in for the tools.
set -eu
each=$1/each-rank.sh
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
mkdir "$folder/bin"
for tool in nsys ncu perf compute-sanitizer valgrind strace gdb; do
  # shellcheck disable=SC2016  # expanded when it runs
  printf '#!/bin/sh\necho "%s $*"\n' $tool >"$folder/bin/$tool"
  chmod +x "$folder/bin/$tool"
done
expect() {  # EXPECTED COMMAND...: EXPECTED must be a part of what the command prints
  local wanted=$1 found
  shift
  found=$("$@")
  case $found in *"$wanted"*) ;; *) echo "$*: printed \"$found\", expected \"$wanted\""; exit 1 ;; esac
}
export PATH=$folder/bin:$PATH OMPI_COMM_WORLD_RANK=3
out=$folder/out
expect "nsys profile --output $out/rank-3 " "$each" nsys "$out" true --option
expect "ncu --export $out/rank-3 " "$each" ncu "$out" true
expect "perf record --output $out/rank-3.perf" "$each" perf "$out" true
for tool in memcheck racecheck initcheck synccheck; do
  expect "compute-sanitizer --tool $tool --log-file $out/rank-3.log" "$each" $tool "$out" true
done
expect "valgrind --log-file=$out/rank-3.log" "$each" valgrind "$out" true
expect "strace --output=$out/rank-3.log" "$each" strace "$out" true
expect "--args program --option" "$each" gdb "$out" program --option
expect "--print-gpu-trace program" env LFM2_TOOL_OPTIONS="--print-gpu-trace" "$each" nsys "$out" program
expect "log_path=$out/rank-3.asan" "$each" asan "$out" env
expect plain env LFM2_RANKS="0 1" "$each" nsys "$out" echo plain
env -u OMPI_COMM_WORLD_RANK SLURM_PROCID=5 "$each" log "$out" echo five
[ "$(cat "$out/rank-5.log")" = five ]
code=0
"$each" log "$out" sh -c 'exit 65' || code=$?
[ $code = 65 ] || { echo "exit code $code, expected 65"; exit 1; }
code=0
"$each" no-such-tool "$out" true 2>/dev/null || code=$?
[ $code = 64 ] || { echo "exit code $code, expected 64"; exit 1; }
