#!/usr/bin/env bash
# serve_rates.sh SHARDS [ranks] [server options ...]: what a server's clients wait for, for prompts of 64 and of 1024 tokens with 96 new ones.
# Measures the tokens/s of 256 closed streams first, then lets requests arrive at 50, 70 and 90 % of this rate (serve_load.py --rate).
# LFM2_STAGE names the program. SECONDS_EACH is the length of a measurement, STREAMS the number of closed streams, PROMPTS the lengths of
# prompts, and VOCAB the bound of their ids.
set -eu
[ $# -gt 0 ] || { echo "Usage: serve_rates.sh SHARDS [ranks] [server options ...]" >&2; exit 64; }
shards=$1 ranks=${2:-1} seconds=${SECONDS_EACH:-15} tokens=96
shift $(($# < 2 ? $# : 2))
folder=$(mktemp -d)
mpirun --oversubscribe -np "$ranks" "${LFM2_STAGE:-lfm2_stage}" serve --weights "$shards" --port 0 --address-file "$folder/address" --max-num-seqs 512 \
  --quiet "$@" >"$folder/log" 2>&1 &
server=$!
trap 'kill -USR1 $server 2>/dev/null; wait $server || true; rm -r "$folder"' EXIT
for ((tries = 0; tries < 600; ++tries)); do
  [ ! -e "$folder/address" ] || break
  kill -0 $server 2>/dev/null || { cat "$folder/log" >&2; exit 1; }
  sleep 0.2
done
load() { # PROMPT [serve_load.py OPTION ...]
  local prompt=$1
  shift
  python3 "$(dirname "$0")/serve_load.py" "$(cat "$folder/address")" --vocab "${VOCAB:-64000}" --tokens $tokens --prompt "$prompt" --seconds "$seconds" "$@"
}
for prompt in ${PROMPTS:-64 1024}; do
  echo "prompts of $prompt tokens"
  load "$prompt" --streams 8 --seconds 3 >/dev/null  # the first steps are slower
  closed=$(load "$prompt" --streams "${STREAMS:-256}")
  echo "$closed"
  rates=$(awk -v tokens=$tokens '{for (i = 2; i <= NF; ++i) if ($i ~ /^tokens/) {rate = $(i - 1) / tokens; printf "%.1f,%.1f,%.1f", 0.5 * rate, 0.7 * rate, 0.9 * rate; exit}}' <<<"$closed")
  load "$prompt" --rate "$rates"
done
