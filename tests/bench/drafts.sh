#!/usr/bin/env bash
# drafts.sh SHARDS [ranks] [job options ...]: how much faster a generation is with drafts, and that its bytes are those
# without. Needs a build with tests (LFM2_TESTS); LFM2_STAGE names the program.
# One line for each number of sequences and kind of drafts: tokens/s, ratio to no drafts, accepted of drafted tokens.
# SEQUENCES and DRAFTS choose some of them; TOKENS are drawn after prompts of LENGTH tokens, or after those of INPUT.
# DRAFTS: right@P, right with probability P; wrong; ngram; the folder of a drafter; none, which repeats the job without
# drafts, so its ratio is that of two equal jobs. "=N" after one is its --draft-length, as in ngram=4.
# With ROUNDS, all kinds run in turn that often, and the speeds are medians.
set -eu
[ $# -gt 0 ] || { echo "Usage: drafts.sh SHARDS [ranks] [job options ...]" >&2; exit 64; }
shards=$1 ranks=${2:-1}
shift $(($# < 2 ? $# : 2))
program=${LFM2_STAGE:-lfm2_stage}
folder=$(mktemp -d)
trap 'rm -r "$folder"' EXIT
tokens=${TOKENS:-960} length=${LENGTH:-64}
prompts=(--length "$length")
[ -z "${INPUT:-}" ] || prompts=(--input "$INPUT")
run() { # NAME SEQUENCES [options ...]
  local name=$1 sequences=$2
  shift 2
  mpirun --oversubscribe -np "$ranks" "$program" --weights "$shards" --samples "$sequences" "${prompts[@]}" \
    --max-tokens "$tokens" --ignore-eos --output "$folder/$name.jsonl" --report "$folder/$name.json" --quiet \
    --progress off "$@" >/dev/null
}
status=0
for sequences in ${SEQUENCES:-1 8 32}; do
  for ((round = 1; round <= ${ROUNDS:-1}; ++round)); do
    run plain "$sequences" "$@"
    cp "$folder/plain.json" "$folder/0-plain-$round.json"
    kind=0
    for draft in ${DRAFTS:-right@0.5 right@0.7 right@0.9 wrong}; do
      kind=$((kind + 1)) source=(--draft-length "${draft##*=}")
      [[ $draft == *=* ]] || source=()
      case ${draft%=*} in
        none) source=() ;;
        ngram | */*) source+=(--draft "${draft%=*}") ;;
        *) source+=(--draft "test:${draft%=*}:$folder/plain.jsonl") ;;
      esac
      run drafted "$sequences" "${source[@]}" "$@"
      cmp -s "$folder/plain.jsonl" "$folder/drafted.jsonl" || { echo "$sequences sequences, $draft: other bytes"; status=1; }
      cp "$folder/drafted.json" "$folder/$kind-$(basename "$draft")-$round.json"
    done
  done
  python3 - "$folder" "$sequences" <<'PYTHON'
import glob, json, os, statistics, sys
folder, sequences = sys.argv[1:]
runs = {}
for path in sorted(glob.glob(f"{folder}/[0-9]*-*.json")):
    runs.setdefault(os.path.basename(path).rsplit("-", 1)[0].split("-", 1)[1], []).append(json.load(open(path)))
    os.remove(path)
speeds = {kind: statistics.median(one["generated_tokens_per_second"] for one in all) for kind, all in runs.items()}
for kind, all in runs.items():
    counts = all[-1]["generation"]
    print(f"{sequences:>4} sequences  {kind:<12} {speeds[kind]:9.1f} tokens/s  {speeds[kind] / speeds['plain']:5.2f}  "
          f"{counts.get('accepted_tokens', 0)} of {counts.get('draft_tokens', 0)}", flush=True)
PYTHON
done
exit $status
