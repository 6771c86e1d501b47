#!/usr/bin/env bash
# gpu-bench.sh SHARDS [FOLDER]: runs every bench and job whose speed is tracked on this machine's GPUs. SHARDS is a split
# of LFM2-8B-A1B in bf16, SHARDS-fp32 one with fp32 weights, without which one job is not run. FOLDER (default
# /tmp/lfm2-gpu-bench) keeps tables, reports, traces and bench.jsonl; tests/bench/compare.py compares bench.jsonl with
# tests/bench/baselines/. LFM2_BENCH_SKIP names parts to leave out, of "ops channel jobs", LFM2_BENCH_JOBS jobs of
# tests/bench/gpu_jobs.py to run alone (NAME,...). With several GPUs each job takes all of them. Ends with 1 where
# anything failed or was not run.
set -uo pipefail
cd "$(dirname "$0")/.." || exit
shards=${1:?folder of shards}
folder=${2:-/tmp/lfm2-gpu-bench}
skip=" ${LFM2_BENCH_SKIP:-} "
mkdir -p "$folder"
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 NCCL_NVLS_ENABLE=${NCCL_NVLS_ENABLE:-0}
bin=build/cuda/bin
gpus=$(nvidia-smi --list-gpus | wc -l)
ranks=$((gpus < 4 ? gpus : 4))
rm -f "$folder/bench.jsonl"
failed=0

if [[ $skip != *" ops "* ]]; then
  "$bin/bench_gpu_ops" "$folder/bench.jsonl" | tee "$folder/ops.txt" || failed=1
  "$bin/bench_operators" "$folder/bench.jsonl" | tee "$folder/operators.txt" || failed=1
fi
if [[ $skip != *" channel "* && $gpus -gt 1 ]]; then
  timeout 240 mpirun --bind-to none -np "$ranks" "$bin/bench_channel" "$folder/bench.jsonl" | tee "$folder/channel.txt" || failed=1
fi
if [[ $skip != *" jobs "* ]]; then
  what=one
  [ "$gpus" -gt 1 ] && what=all
  options=(--outputs "${LFM2_BENCH_TMPFS:-/dev/shm}" --only "${LFM2_BENCH_JOBS:-}")
  [ -d "$shards-fp32" ] && options+=(--fp32-shards "$shards-fp32")
  rm -f "$folder/jobs/jobs.jsonl"
  python3 tests/bench/gpu_jobs.py "$what" "$shards" "$folder/jobs" --program "now=$bin/lfm2_stage" "${options[@]}" |
    tee "$folder/jobs.txt" || failed=1
  [ -f "$folder/jobs/jobs.jsonl" ] && cat "$folder/jobs/jobs.jsonl" >>"$folder/bench.jsonl"
fi
exit $failed
