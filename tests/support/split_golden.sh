#!/usr/bin/env bash
# split_golden.sh WEIGHTS_TOOLS GOLDEN_DIR SHARDS_DIR: splits every golden case for one and for four stages, those in fp8,
# which have fewer layers, for one and for two.
set -eu
mkdir -p "$3"
split() {
  "$1" split "$2/$4" --stages "$5" --out "$3/$4-$5" --force --quiet
}
for case in tiny-moe mini-24 tiny-bf16 tiny-dense kjv-moe; do
  for stages in 1 4; do split "$@" "$case" "$stages"; done
done
for case in tiny-fp8-channel tiny-fp8-block tiny-fp8-hf; do
  for stages in 1 2; do split "$@" "$case" "$stages"; done
done
