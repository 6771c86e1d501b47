#!/usr/bin/env bash
# split_golden.sh WEIGHTS_TOOLS GOLDEN_DIR SHARDS_DIR: splits every golden case for one and for four stages, those in fp8,
# which have fewer layers, for one and for two; two of them also with adapters. Quantises two cases: CASE.SCHEME-MODULES.
set -eu
mkdir -p "$3"
split() {
  "$1" split "$2/$4" --stages "$5" --out "$3/$4-$5" --force --quiet
}
adapt() {
  "$1" split "$2/$4" --adapter "$2/$5" --stages "$6" --out "$3/$5-$6" --force --quiet
}
quantize() {
  local case=${4%.*} how=${4#*.}
  "$1" quantize "$2/$case" --to fp8 --scheme "${how%-*}" --modules "${how#*-}" --out "$3/$4" --force --quiet
  for stages in 1 4; do split "$1" "$3" "$3" "$4" "$stages"; done
}
for case in tiny-moe mini-24 tiny-bf16 tiny-dense tiny-lfm3 kjv-moe; do
  for stages in 1 4; do split "$@" "$case" "$stages"; done
done
for stages in 1 4; do
  adapt "$@" tiny-dense adapter-dense "$stages"
  adapt "$@" tiny-moe adapter-moe "$stages"
done
for case in tiny-fp8-channel tiny-fp8-block tiny-fp8-hf; do
  for stages in 1 2; do split "$@" "$case" "$stages"; done
done
for case in mini-24.block-all kjv-moe.channel-experts kjv-moe.channel-all kjv-moe.block-experts kjv-moe.block-all; do
  quantize "$@" "$case"
done
