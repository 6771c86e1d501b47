#!/usr/bin/env bash
# drafts.sh SHARDS [ranks] [job options ...]: how much faster a generation is with drafts that are right with a known
# probability, and that its bytes are those without. Needs a build with tests (LFM2_TESTS); LFM2_STAGE names the program.
# One line for each number of sequences and kind of drafts: tokens/s, ratio to no drafts, accepted of drafted tokens.
# SEQUENCES and DRAFTS choose some of them; TOKENS are drawn after prompts of LENGTH tokens. Drafts of "none" repeat the
# job without drafts, so their ratio is that of two equal jobs.
set -eu
[ $# -gt 0 ] || { echo "Usage: drafts.sh SHARDS [ranks] [job options ...]" >&2; exit 64; }
shards=$1 ranks=${2:-1}
shift $(($# < 2 ? $# : 2))
program=${LFM2_STAGE:-lfm2_stage}
folder=$(mktemp -d)
trap 'rm -r "$folder"' EXIT
tokens=${TOKENS:-960} length=${LENGTH:-64}
run() { # NAME SEQUENCES [options ...]
  local name=$1 sequences=$2
  shift 2
  mpirun --oversubscribe -np "$ranks" "$program" --weights "$shards" --samples "$sequences" --length "$length" --max-tokens "$tokens" \
    --ignore-eos --output "$folder/$name.jsonl" --report "$folder/$name.json" --quiet --progress off "$@" >/dev/null
}
status=0
for sequences in ${SEQUENCES:-1 8 32}; do
  run plain "$sequences" "$@"
  for draft in ${DRAFTS:-right@0.5 right@0.7 right@0.9 wrong}; do
    source=(--draft "test:$draft:$folder/plain.jsonl")
    [ "$draft" = none ] && source=()
    run drafted "$sequences" "${source[@]}" "$@"
    cmp -s "$folder/plain.jsonl" "$folder/drafted.jsonl" || { echo "$sequences sequences, $draft: other bytes"; status=1; }
    python3 - "$folder" "$sequences" "$draft" <<'PYTHON'
import json, sys
folder, sequences, draft = sys.argv[1:]
plain, drafted = (json.load(open(f"{folder}/{name}.json")) for name in ("plain", "drafted"))
speed, before = (one["generated_tokens_per_second"] for one in (drafted, plain))
counts = drafted["generation"]
print(f"{sequences:>4} sequences  {draft:<10} {speed:9.1f} tokens/s  {speed / before:5.2f}  "
      f"{counts.get('accepted_tokens', 0)} of {counts.get('draft_tokens', 0)}", flush=True)
PYTHON
  done
done
exit $status
