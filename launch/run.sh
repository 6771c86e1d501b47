#!/usr/bin/env bash
# run.sh [-n RANKS] [OPTION...]: lfm2_stage under mpirun on this host; every option goes to lfm2_stage unchanged.
#   launch/run.sh -n 4 --weights shards/ --input inputs.bin --output outputs.bin
# For hosts in a hostfile: LFM2_MPIRUN_OPTIONS="--hostfile hosts" launch/run.sh -n 8 ...
set -eu
here=$(cd "$(dirname "$0")/.." && pwd)
program=${LFM2_STAGE:-}
for candidate in "$here"/build/cuda/bin/lfm2_stage "$here"/build/cpu/bin/lfm2_stage; do
  [ -n "$program" ] || { [ -x "$candidate" ] && program=$candidate; } || true
done
[ -n "$program" ] || program=$(command -v lfm2_stage) || { echo "run.sh: lfm2_stage is not built: launch/demo.sh does it" >&2; exit 69; }
ranks=4
if [ "${1:-}" = -n ]; then
  ranks=${2:?run.sh: -n needs a number of ranks}
  shift 2
fi
options=(-np "$ranks" --bind-to none)
# More ranks than cores is fine on the CPU; root is usual in containers.
[ "$ranks" -le "$(nproc)" ] || options+=(--oversubscribe)
[ "$(id -u)" -ne 0 ] || options+=(--allow-run-as-root)
progress=()
if [ -t 2 ]; then progress=(--progress on); fi  # ranks see a pipe, not the terminal
for option in "$@"; do
  case $option in --progress | --progress=*) progress=() ;; esac
done
# shellcheck disable=SC2086  # a list of options
exec mpirun "${options[@]}" ${LFM2_MPIRUN_OPTIONS:-} "$program" "${progress[@]}" "$@"
