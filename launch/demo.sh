#!/usr/bin/env bash
# From a fresh machine to a checked run. Installs what is missing, builds, splits the 24-layer golden checkpoint into
# four shards, and runs it on four ranks against the logits of transformers (VALID). Then runs the built-in job on a
# synthetic model, the same comparison with a small trained model, and generates texts with that model.
set -eu
cd "$(dirname "$0")/.."
. launch/packages.sh
install_packages "${lfm2_packages[@]}"
build cpu -DLFM2_TESTS=OFF
tools=build/cpu/bin/weights-tools
golden=tests/golden/mini-24

echo "Splitting $golden into four shards"
mkdir -p demo
"$tools" split "$golden" --stages 4 --out demo/mini-24 --force
echo "Scoring its samples on four ranks, comparing with transformers"
launch/run.sh -n 4 --weights demo/mini-24 --input "$golden/golden.h5" --output demo/outputs.h5 --reference "$golden/golden.h5"
echo "VALID: four ranks, each with 6 of the 24 layers, gave the logits that transformers gives, to 0.001."

echo
echo "The built-in job on a synthetic model"
[ -f demo/tiny/model.safetensors ] || "$tools" synth --config lfm2-tiny --out demo/tiny
"$tools" split demo/tiny --stages 4 --out demo/tiny-shards --force
launch/run.sh -n 4 --weights demo/tiny-shards
echo "This was a benchmark: the table shows how fast four ranks scored 1024 random samples, and what each rank waited for."

# Trained on the King James Bible: tests/golden/README.md.
small=tests/golden/kjv-moe
echo
echo "Scoring with a small trained model, comparing with transformers"
"$tools" split "$small" --stages 4 --out demo/kjv --force
launch/run.sh -n 4 --weights demo/kjv --dtype fp32 --input "$small/golden.h5" --logits all --reference "$small/golden.h5"
echo "VALID: with trained weights, too, the logits at all positions are those of transformers."

echo
echo "Log-probabilities of texts that it was not trained on, compared with transformers"
launch/run.sh -n 4 --weights demo/kjv --dtype fp32 --input "$small/scored.jsonl" --score --output demo/scores.h5 --reference "$small/scores.h5"
echo "VALID: every token has the log-probability that transformers gives it. The perplexity in the table is that of the texts."

echo
echo "Continuing texts with it: each line is a prompt and its continuation"
launch/run.sh -n 4 --weights demo/kjv --dtype fp32 --input "$small/openings.txt" --max-tokens 40 --output demo/texts.jsonl --quiet
cmp demo/texts.jsonl "$small/openings.expected.jsonl"
paste -d '\0' "$small/openings.txt" <(sed -E 's/.*"text":"(([^"\\]|\\.)*)".*/\1/; s/\\n/ \/ /g' demo/texts.jsonl)
echo "These greedy continuations are those of transformers, byte for byte."

echo
echo "A text that is drawn token by token (--prompt)"
printf 'And it came to pass'
launch/run.sh -n 4 --weights demo/kjv --prompt "And it came to pass" --seed 4
echo "This text was streamed as its tokens were drawn; the same seed draws the same text on any number of ranks."
