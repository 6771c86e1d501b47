#!/usr/bin/env bash
# gpu-bench.sh SHARDS [FOLDER]: runs every bench and job whose speed is tracked on this machine's GPUs, and prints one
# table. SHARDS is a split of LFM2-8B-A1B in bf16; SHARDS-fp32, where it exists, is one with fp32 weights. FOLDER
# (default /tmp/lfm2-gpu-bench) keeps reports, traces and bench.jsonl; tests/bench/compare.py compares bench.jsonl with
# tests/bench/baselines/. LFM2_BENCH_SKIP names parts to leave out, of "ops channel jobs".
set -u
cd "$(dirname "$0")/.." || exit
shards=${1:?folder of shards}
folder=${2:-/tmp/lfm2-gpu-bench}
skip=" ${LFM2_BENCH_SKIP:-} "
mkdir -p "$folder"
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 NCCL_NVLS_ENABLE=${NCCL_NVLS_ENABLE:-0}
bin=build/cuda/bin
gpus=$(nvidia-smi --list-gpus | wc -l)
ranks=$((gpus < 4 ? gpus : 4))
rm -f "$folder/bench.jsonl" "$folder/table.txt"
failed=0

# job NAME UNIT RUNS OPTIONS...: reports the median of RUNS runs, after one run that warms up.
job() {
  local name=$1 unit=$2 runs=$3 report="$folder/${1// /-}"
  shift 3
  if ! timeout 120 mpirun --bind-to none -np "$ranks" "$bin/lfm2_stage" --benchmark --warmup 1 --repeat "$runs" --quiet --report "$report.json" \
    --trace "$report.trace.json" "$@" >"$report.log" 2>&1; then
    printf 'FAILED  %-44s %s\n' "$name" "$(tail -n 1 "$report.log")" | tee -a "$folder/table.txt"
    failed=1
    return
  fi
  python3 - "$report.json" "$name" "$unit" "$folder/bench.jsonl" <<'PY' | tee -a "$folder/table.txt"
import json, sys
report, name, unit, lines = json.load(open(sys.argv[1])), *sys.argv[2:5]
rate = report[{"samples/s": "samples_per_second", "tokens/s": "tokens_per_second", "new/s": "generated_tokens_per_second"}[unit]]
amount = report["generation"]["tokens"] if unit == "new/s" else report["samples" if unit == "samples/s" else "tokens"]
spread = [amount / max(report["seconds"]), amount / min(report["seconds"])]
sending = sum(s["sending_seconds"] for s in report["stages"])
hidden = sum(s["sending_under_compute_seconds"] for s in report["stages"])
memory = max(s["weight_bytes"] + s["activation_bytes"] + s["cache_bytes"] for s in report["stages"]) / 1e9
print(f"{name:<44} {rate:>10.0f} {unit:<9} ({spread[0]:.0f} to {spread[1]:.0f})  load {report['load_seconds']:.2f} s  idle {100 * report['lost_share']:.1f} %"
      f"  sends under compute {100 * hidden / sending if sending else 100:.0f} %  {memory:.1f} GB a rank  {report['micro_batches']} x {report['largest_micro_batch']}")
open(lines, "a").write(json.dumps({"bench": name, "seconds": report["median_seconds"]}) + "\n")
PY
}

# The ceiling of the output: how fast twelve writers at once fill new files in the output's folder, and then overwrite
# them.
disk() {
  local begin end kind
  for kind in new again; do
    begin=$(date +%s.%N)
    for i in 1 2 3 4 5 6 7 8 9 10 11 12; do
      dd if=/dev/zero of="$1/lfm2-disk-$i" bs=1M count=700 conv=notrunc status=none &
    done
    wait
    end=$(date +%s.%N)
    printf 'disk, twelve files, %-5s %44.1f GB/s\n' "$kind" "$(python3 -c "print(12 * 0.734003 / ($end - $begin))")" | tee -a "$folder/table.txt"
  done
  rm -f "$1"/lfm2-disk-*
}

if [[ $skip != *" ops "* ]]; then
  "$bin/bench_gpu_ops" "$folder/bench.jsonl" | tee "$folder/ops.txt" || failed=1
  "$bin/bench_operators" "$folder/bench.jsonl" | tee "$folder/operators.txt" || failed=1
fi
if [[ $skip != *" channel "* && $gpus -gt 1 ]]; then
  timeout 240 mpirun --bind-to none -np "$ranks" "$bin/bench_channel" "$folder/bench.jsonl" | tee "$folder/channel.txt" || failed=1
fi
if [[ $skip != *" jobs "* ]]; then
  files=${LFM2_BENCH_TMPFS:-/dev/shm}
  out=$files/lfm2-out.bin
  job "headline bf16" samples/s 7 --weights "$shards" --dtype bf16 --output "$out"
  job "steady bf16, 65536 samples" samples/s 5 --weights "$shards" --dtype bf16 --samples 65536 --output "$out"
  job "headline fp32, bf16-valued weights" samples/s 7 --weights "$shards" --dtype fp32 --output "$out"
  [ -d "$shards-fp32" ] && job "headline fp32, fp32 weights" samples/s 5 --weights "$shards-fp32" --dtype fp32 --output "$out"
  job "headline fp32, plain" samples/s 5 --weights "$shards" --dtype fp32 --fp32 simt --output "$out"
  job "prefill 8 x 2048, bf16" tokens/s 7 --weights "$shards" --dtype bf16 --samples 8 --length 2048 --output "$out"
  job "1 x 65536, bf16" tokens/s 1 --weights "$shards" --dtype bf16 --samples 1 --length 65536 --output "$out"
  job "all positions to .h5, bf16" samples/s 5 --weights "$shards" --dtype bf16 --logits all --output "$files/lfm2-all.h5"
  disk "$files"
  [ "$ranks" -gt 1 ] && job "headline bf16, a pipeline a GPU" samples/s 7 --weights "$shards" --dtype bf16 --replicas "$ranks" --output "$out"
  # Pieces and cut by what the layers cost, where equal cuts in one piece leave the last stage idle.
  if [ "$ranks" -gt 1 ]; then
    job "headline bf16, stages chosen" samples/s 7 --weights "$shards" --dtype bf16 --virtual-stages 0 --output "$out"
    job "headline fp32, stages chosen" samples/s 5 --weights "$shards" --dtype fp32 --virtual-stages 0 --output "$out"
    job "1 x 65536, bf16, balanced" tokens/s 3 --weights "$shards" --dtype bf16 --samples 1 --length 65536 --balance --output "$out"
  fi
  texts=$files/lfm2-out.jsonl
  generate=(--weights "$shards" --dtype bf16 --balance --ignore-eos --output "$texts")
  job "generate 1 x 64, bf16" new/s 5 "${generate[@]}" --samples 1 --length 32 --generate 64
  job "generate 256 x 64, bf16" new/s 5 "${generate[@]}" --samples 256 --length 32 --generate 64
  job "generate 1024 x 64, bf16" new/s 5 "${generate[@]}" --samples 1024 --length 32 --generate 64
  # Prompts of 16 to 1024 tokens. The ends of the 4096 texts are drawn: one token in 128 of the vocabulary ends a text,
  # at 512 tokens at the latest.
  python3 - "$files/lfm2-ragged.jsonl" <<'PY'
import json, random, sys
random.seed(1)
with open(sys.argv[1], "w") as out:
    for _ in range(4096):
        out.write(json.dumps({"input_ids": [random.randrange(65536) for _ in range(random.randint(16, 1024))]}) + "\n")
PY
  job "generate 4096 ragged, bf16" new/s 1 --weights "$shards" --dtype bf16 --balance --output "$texts" --input "$files/lfm2-ragged.jsonl" \
    --generate 512 --temperature 1 --eos "$(seq -s, 0 128 65535)"
  rm -f "$files/lfm2-all.h5" "$files/lfm2-ragged.jsonl" "$texts" "$out"
  echo "---"
  cat "$folder/table.txt"
fi
exit $failed
