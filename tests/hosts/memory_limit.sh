#!/usr/bin/env bash
# memory_limit.sh LFM2_STAGE WEIGHTS_TOOLS MPIRUN: jobs of many tokens in a control group with little memory. 30 million
# tokens need little more than the memory of their ids; where not even that fits, the job is refused before anything is
# computed. Ends with 77 where this user may not make control groups.
set -eu
program=$1 tools=$2 mpirun=$3
skip() { echo "Skipped: $1"; exit 77; }
[ "$(id -u)" -eq 0 ] || skip "control groups need root"
if [ -e /sys/fs/cgroup/memory/memory.limit_in_bytes ]; then
  group=/sys/fs/cgroup/memory/lfm2-test.$$ limit=memory.limit_in_bytes members=cgroup.procs
elif [ -e /sys/fs/cgroup/cgroup.controllers ]; then
  group=/sys/fs/cgroup/lfm2-test.$$ limit=memory.max members=cgroup.procs
else
  skip "no memory controller here"
fi
mkdir "$group" 2>/dev/null || skip "no control group can be made here"
folder=$(mktemp -d)
trap 'rm -rf "$folder"; for i in 1 2 3 4 5; do rmdir "$group" 2>/dev/null && break; sleep 0.2; done' EXIT
cat >"$folder/config.json" <<'END'
{"model_type": "lfm2", "vocab_size": 16, "hidden_size": 8, "num_hidden_layers": 2, "layer_types": ["conv", "conv"], "num_attention_heads": 1,
 "num_key_value_heads": 1, "intermediate_size": 8, "block_auto_adjust_ff_dim": false, "conv_L_cache": 2, "max_position_embeddings": 100000,
 "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"}, "tie_word_embeddings": true}
END
"$tools" synth --config "$folder/config.json" --out "$folder/model" -q
"$tools" split "$folder/model" --stages 2 --out "$folder/shards" -q
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
# limited BYTES OPTION...: runs two ranks in the control group.
limited() {
  echo "$1" >"$group/$limit" 2>/dev/null || skip "this control group takes no limit"
  shift
  # shellcheck disable=SC2016  # expanded inside
  timeout 100 sh -c 'echo $$ >"$1" || exit 99; shift; exec "$@"' in "$group/$members" "$mpirun" --bind-to none \
    -x TMPDIR="${ids_folder:-/var/tmp}" -np 2 "$program" \
    --weights "$folder/shards" --device cpu --progress off "$@" >"$folder/out" 2>"$folder/err"
}
fail() {
  echo "FAILED: $1"
  cat "$folder/out" "$folder/err"
  exit 1
}
code=0
limited 250000000 --samples 300000 --length 100 --logits none --report "$folder/report.json" || code=$?
[ $code -ne 99 ] || skip "no process can be put into a control group here"
[ $code -eq 0 ] || fail "30 million tokens in 250 MB: exit code $code"
/usr/bin/env python3 - "$folder/report.json" <<'END'
import json, sys
peaks = [stage["peak_host_bytes"] for stage in json.load(open(sys.argv[1]))["stages"]]
ids = 4 * 30_000_000
print(f"30 million tokens: rank 0 took {peaks[0] / 1e6:.0f} MB (ids {ids / 1e6:.0f} MB), rank 1 {peaks[1] / 1e6:.0f} MB")
sys.exit(not (peaks[0] < ids + 60e6 and peaks[1] < 60e6))
END
# Samples of many lengths: where each begins is known to rank 0 alone.
peak() { /usr/bin/env python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["stages"][1]["peak_host_bytes"])' "$folder/report.json"; }
for samples in 100 2000000; do
  seq "$samples" | awk '{ print $1 % 2 ? "{\"input_ids\": [1]}" : "{\"input_ids\": [1, 2]}" }' >"$folder/in.jsonl"
  code=0
  limited 2000000000 --input "$folder/in.jsonl" --logits none --report "$folder/report.json" || code=$?
  [ $code -eq 0 ] || fail "$samples samples of two lengths: exit code $code"
  [ "$samples" -ne 100 ] || few=$(peak)
done
echo "rank 1 took $few bytes for 100 samples of two lengths, $(peak) for 2 million"
[ "$(peak)" -lt $((few + 6000000)) ] || fail "rank 1's memory grows with samples of two lengths"
# Ids beyond 64 MB lie in a temporary file where there is room for one.
code=0
limited 110000000 --samples 300000 --length 100 --logits none || code=$?
[ $code -eq 0 ] || fail "ids of 120 MB in 110 MB and a file: exit code $code"
code=0
ids_folder=/nowhere limited 110000000 --samples 300000 --length 100 --logits none || code=$?
[ $code -eq 69 ] || fail "ids of 120 MB in 110 MB: exit code $code, expected 69"
grep -q "^lfm2_stage: rank 0 .*the token ids take 0.12 GB" "$folder/err" || fail "ids of 120 MB in 110 MB: other words"
# A generation notes where each completion lies until all are finished: 24 bytes for each sample.
code=0
limited 200000000 --samples 10000000 --length 1 --max-tokens 1 --output "$folder/o.jsonl" || code=$?
[ $code -eq 69 ] || fail "10 million completions in 200 MB: exit code $code, expected 69"
grep -q "of memory" "$folder/err" || fail "10 million completions in 200 MB: other words"
echo "refused where it does not fit"
