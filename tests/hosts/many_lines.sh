#!/usr/bin/env bash
# many_lines.sh LFM2_STAGE WEIGHTS_TOOLS MPIRUN [LINES [FOLDER]]: a file of many prompts through a tiny model on two
# ranks: once through, once stopped and once killed in the middle and resumed to the same bytes. No rank's memory may
# grow by more than 100 bytes a line, short names and token ids included. From four million lines on also a file of long
# names and faults alone: the first 64 MB of names and of errors are in memory and would be most of a smaller file's.
# The files take some hundred bytes a line in FOLDER, else in TMPDIR.
set -eu
program=$1 tools=$2 mpirun=$3 lines=${4:-400000}
limit=100 # bytes a line
folder=$(mktemp -d ${5:+-p "$5"})
ranks_of() { ps -o pid= --ppid "$1"; }
job=
clean() {
  # shellcheck disable=SC2046  # one word a process
  [ -z "$job" ] || kill -9 $(ranks_of "$job") "$job" 2>/dev/null || true
  rm -rf "$folder"
}
trap clean EXIT
fail() {
  echo "FAILED: $1"
  cat "$folder/err"
  exit 1
}
cat >"$folder/config.json" <<'END'
{"model_type": "lfm2", "vocab_size": 1280, "hidden_size": 8, "num_hidden_layers": 2, "layer_types": ["conv", "conv"], "num_attention_heads": 1,
 "num_key_value_heads": 1, "intermediate_size": 8, "block_auto_adjust_ff_dim": false, "conv_L_cache": 2, "max_position_embeddings": 128,
 "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"}, "tie_word_embeddings": true}
END
"$tools" synth --config "$folder/config.json" --out "$folder/model" -q
cp "$(dirname "$0")/../golden/text/tokenizer.json" "$folder/model"
"$tools" split "$folder/model" --stages 2 --out "$folder/shards" -q
# Names, prompts of several lengths, and one or two tokens to add: samples finish out of order.
make_lines() {
  seq "$1" | awk '{ printf "{\"id\": \"n%d\", \"prompt\": \"%d%s\", \"max_tokens\": %d}\n", $1, $1 % 97, $1 % 3 ? " of" : "", 1 + $1 * 7 % 5 % 2 }'
}
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
make_faulty_lines() {
  seq "$1" | awk '{ printf "{\"custom_id\": \"a name of fifty bytes for a line of a batch %08d\", \"method\": \"POST\", \"url\": \"/v1/completions\", \"body\": {\"prompt\": 7.5}}\n", $1 }'
}
# start LINES OUTPUT OPTION...: starts two ranks, `job` is the process that started them.
start() {
  "$mpirun" --bind-to none -np 2 "$program" --weights "$folder/shards" --device cpu --progress off --ignore-eos --max-batched-tokens 1024 \
    --input "$folder/$1.jsonl" --output "$folder/$2.jsonl" --report "$folder/$2.json" "${@:3}" >"$folder/out" 2>"$folder/err" &
  job=$!
}
# finish: the exit code of the job.
finish() {
  code=0
  wait "$job" || code=$?
  job=
}
# run LINES OUTPUT OPTION...: a job that is to succeed. Says what it took.
run() {
  local begin=$SECONDS
  start "$@"
  finish
  [ "$code" -eq 0 ] || fail "$2: exit code $code"
  [ -e "$folder/$2.jsonl" ] || fail "$2: no output"
  echo "$2: $1 lines, $((SECONDS - begin)) s, peaks of memory $(peaks "$2") bytes"
}
peaks() { /usr/bin/env python3 -c 'import json, sys; print(*(stage["peak_host_bytes"] for stage in json.load(open(sys.argv[1]))["stages"]))' "$folder/$1.json"; }
# begin LINES OUTPUT: starts a job and waits until half of its samples are finished: a journal has 64 bytes for each.
begin() {
  start "$1" "$2"
  until [ "$(stat -c %s "$folder/$2.jsonl.journal" 2>/dev/null || echo 0)" -gt $(($1 * 32)) ]; do
    kill -0 "$job" 2>/dev/null || { finish; fail "$2: ended with $code before it could be interrupted"; }
    sleep 0.05
  done
}
few=$((lines / 10))
for count in "$lines" "$few"; do
  make_lines "$count" >"$folder/$count.jsonl"
  run "$count" "whole-$count"
  begin "$count" "stopped-$count"
  kill -USR1 "$job"
  finish
  [ "$code" -eq 75 ] || fail "stopped-$count: exit code $code, expected 75"
  [ -e "$folder/stopped-$count.jsonl.partial" ] || fail "stopped-$count: it was finished before it could be stopped"
  run "$count" "stopped-$count" --resume
  begin "$count" "killed-$count"
  # shellcheck disable=SC2046  # one word a rank
  kill -9 $(ranks_of "$job")
  finish
  [ "$code" -ne 0 ] || fail "killed-$count: it was finished before it could be killed"
  [ -e "$folder/killed-$count.jsonl.partial" ] || fail "killed-$count: nothing is left"
  run "$count" "killed-$count" --resume
  for way in stopped killed; do
    cmp "$folder/whole-$count.jsonl" "$folder/$way-$count.jsonl" || fail "$way-$count: other bytes than of a whole run"
    rm "$folder/$way-$count.jsonl"
  done
  [ "$(wc -l <"$folder/whole-$count.jsonl")" -eq "$count" ] || fail "$count lines in, another number out"
done
ways="whole stopped killed"
if [ "$lines" -ge 4000000 ]; then
  ways+=" faulty"
  for count in "$lines" "$few"; do
    rm -f "$folder"/*.jsonl
    make_faulty_lines "$count" >"$folder/$count.jsonl"
    run "$count" "faulty-$count"
    [ "$(grep -c '"status_code":400' "$folder/faulty-$count.jsonl")" -eq "$count" ] || fail "faulty-$count: not every line was answered with an error"
  done
else
  echo "Fewer than four million lines: faulty lines with long names are left out."
fi
for way in $ways; do
  /usr/bin/env python3 - "$way" "$((lines - few))" "$limit" "$(peaks "$way-$few")" "$(peaks "$way-$lines")" <<'END' || fail "$way: more than $limit bytes a line"
import sys
way, lines, limit = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
few, many = ([int(peak) for peak in peaks.split()] for peaks in sys.argv[4:])
each = [(b - a) / lines for a, b in zip(few, many)]
print(f"{way}:", ", ".join(f"rank {rank} {bytes:.0f} bytes a line" for rank, bytes in enumerate(each)))
sys.exit(max(each) > limit)
END
done
