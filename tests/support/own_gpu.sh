#!/usr/bin/env bash
# own_gpu.sh COMMAND...: a rank of mpirun that sees one of LFM2_TEST_GPUS GPUs alone, as under Slurm's --gpus-per-task=1. The
# driver starts programs one after the other, and a program that sees four GPUs takes longer (docs/performance.md).
set -eu
IFS=, read -ra seen <<<"${CUDA_VISIBLE_DEVICES:-}"
number=$((OMPI_COMM_WORLD_LOCAL_RANK % LFM2_TEST_GPUS))
export CUDA_VISIBLE_DEVICES=${seen[number]:-$number}
exec "$@"
