#!/usr/bin/env bash
# run.sh [-n RANKS] [--hosts HOST:RANKS,...| --hostfile FILE] [OPTION...]: lfm2_stage under Open MPI's mpirun, here or on the hosts named; every
# other option goes to lfm2_stage unchanged.
#   launch/run.sh -n 4 --weights shards/ --input inputs.bin --output outputs.bin
#   launch/run.sh --hosts node1:4,node2:4 --weights /shared/shards --output outputs.bin
#   launch/run.sh -n 4 doctor --weights shards/
# Hosts are reached by ssh without a password; program and shards lie at the same place on each. From the environment: LFM2_STAGE (the program),
# LFM2_WRAP (a command before it: each-rank.sh), LFM2_MPIRUN_OPTIONS.
set -eu
here=$(cd "$(dirname "$0")/.." && pwd)
program=${LFM2_STAGE:-}
for candidate in "$here"/build/cuda/bin/lfm2_stage "$here"/build/cpu/bin/lfm2_stage; do
  [ -n "$program" ] || { [ -x "$candidate" ] && program=$candidate; } || true
done
[ -n "$program" ] || program=$(command -v lfm2_stage) || { echo "run.sh: lfm2_stage is not built: launch/demo.sh does it" >&2; exit 69; }
ranks='' places=()
while :; do
  case ${1:-} in
    -n) ranks=${2:?run.sh: -n needs a number of ranks} ;;
    --hosts) places=(--host "${2:?run.sh: --hosts needs names, as in node1:4,node2:4}") ;;
    --hostfile) places=(--hostfile "${2:?run.sh: --hostfile needs a file}") ;;
    *) break ;;
  esac
  shift 2
done
options=(--bind-to none)
if [ ${#places[@]} -eq 0 ]; then
  ranks=${ranks:-4}
  # More ranks than cores is fine on the CPU.
  [ "$ranks" -le "$(nproc)" ] || options+=(--oversubscribe)
fi
[ -z "$ranks" ] || options+=(-np "$ranks")  # else as many as the hosts have places
[ "$(id -u)" -ne 0 ] || options+=(--allow-run-as-root)  # usual in containers
if [ ${#places[@]} -gt 0 ]; then  # other hosts get no environment by themselves
  for name in PATH LD_LIBRARY_PATH $(compgen -e | grep -E '^(NCCL_|LFM2_|CUDA_)' || true); do
    [ -z "${!name+set}" ] || options+=(-x "$name")
  done
fi
progress=()
if [ -t 2 ] && [ "${1:-}" != doctor ]; then progress=(--progress on); fi  # ranks see a pipe, not the terminal
for option in "$@"; do
  case $option in --progress | --progress=*) progress=() ;; esac
done
# mpirun explains in paragraphs between dashed lines that a program ended with an error, which the program has said in a line of its own. What only
# mpirun can say stays: a rank that was killed, hosts that cannot be reached, a code that is none of ours.
ours='(errorcode|Exit code:) +(1|6[4-9]|7[0-6])($|[^0-9])'
without_echoes() {
  trap '' HUP INT QUIT TERM USR1 USR2  # it ends when mpirun does
  local line block='' within=no
  while IFS= read -r line || [ -n "$line" ]; do
    case $within:$line in
      no:-----*) within=yes block=$line ;;
      yes:-----*)
        within=no
        case $block in
          *'Primary job  terminated normally'*) ;;
          *'MPI_ABORT was invoked'* | *'exited with non-zero status'*) [[ $block =~ $ours ]] || printf '%s\n%s\n' "$block" "$line" ;;
          *) printf '%s\n%s\n' "$block" "$line" ;;
        esac ;;
      yes:*) block+=$'\n'$line ;;
      *'help-mpi-api.txt / mpi-abort'* | *'Set MCA parameter "orte_base_help_aggregate"'*) ;;
      *) printf '%s\n' "$line" ;;
    esac
  done
  [ $within = no ] || printf '%s\n' "$block"
}
# mpirun looks for devices through hwloc, which asks OpenCL drivers. One with LLVM in it (PoCL) takes the signals: mpirun would not pass USR1 on.
export HWLOC_COMPONENTS=${HWLOC_COMPONENTS--opencl}
# Open MPI 4 writes them where OPAL_OUTPUT_STDERR_FD says, apart from the ranks' stderr; ranks have files of their own under that number. Others ignore
# it. mpirun takes this process over, so that signals reach it.
export OPAL_OUTPUT_STDERR_FD=9
# shellcheck disable=SC2086  # lists of options
exec mpirun "${options[@]}" "${places[@]}" ${LFM2_MPIRUN_OPTIONS:-} env -u OPAL_OUTPUT_STDERR_FD ${LFM2_WRAP:-} "$program" "${progress[@]}" "$@" \
  9> >(without_echoes >&2)
