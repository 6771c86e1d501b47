#!/usr/bin/env bash
# split_golden.sh WEIGHTS_TOOLS GOLDEN_DIR SHARDS_DIR: splits every golden case for one and for four stages.
set -eu
mkdir -p "$3"
for case in tiny-moe mini-24 tiny-bf16 tiny-dense kjv-moe; do
  for stages in 1 4; do
    "$1" split "$2/$case" --stages "$stages" --out "$3/$case-$stages" --force --quiet
  done
done
