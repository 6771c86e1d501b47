#!/usr/bin/env bash
# From a fresh machine to a checked run: installs what is missing, builds, splits the 24-layer golden checkpoint into
# four shards, and runs it on four ranks against the logits of transformers (VALID); then runs the built-in job on a
# synthetic model.
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
launch/run.sh -n 4 --weights demo/mini-24 --input "$golden/golden.h5" --output demo/outputs.h5 --answers "$golden/golden.h5"

echo
echo "The built-in job on a synthetic model"
[ -f demo/tiny/model.safetensors ] || "$tools" synth --config lfm2-tiny --out demo/tiny
"$tools" split demo/tiny --stages 4 --out demo/tiny-shards --force
launch/run.sh -n 4 --weights demo/tiny-shards
