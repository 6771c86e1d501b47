#!/usr/bin/env bash
# run.sh [-n RANKS] [--hosts HOST:RANKS,...| --hostfile FILE] [OPTION...]: runs lfm2_stage under Open MPI's mpirun, here
# or on the named hosts. Every other option goes to lfm2_stage unchanged.
#   launch/run.sh -n 4 --weights shards/ --input inputs.bin --output outputs.bin
#   launch/run.sh --hosts node1:4,node2:4 --weights /shared/shards --output outputs.bin
#   launch/run.sh -n 4 doctor --weights shards/
#   launch/run.sh -n 4 chat --weights shards/         # Ctrl-C ends the answer, twice the program
# Hosts are reached by ssh without a password, and have program and shards at the same paths. Environment: LFM2_STAGE
# (the program), LFM2_WRAP (a command before it, such as each-rank.sh), LFM2_MPIRUN_OPTIONS, LFM2_LOST_SECONDS (60:
# mpirun is killed once all ranks of this host have been dead for so long; 0: never).
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
  # On the CPU it is fine to have more ranks than cores.
  [ "$ranks" -le "$(nproc)" ] || options+=(--oversubscribe)
fi
[ -z "$ranks" ] || options+=(-np "$ranks")  # without -n, a rank for each slot of the hosts
[ "$(id -u)" -ne 0 ] || options+=(--allow-run-as-root)  # containers usually run as root
if [ ${#places[@]} -gt 0 ]; then  # other hosts do not get the environment by themselves
  for name in PATH LD_LIBRARY_PATH $(compgen -e | grep -E '^(NCCL_|LFM2_|CUDA_)' || true); do
    [ -z "${!name+set}" ] || options+=(-x "$name")
  done
fi
progress=()
# Ranks see a pipe and not the terminal.
case ${1:-} in doctor | chat | serve) ;; *) [ ! -t 2 ] || progress=(--progress on) ;; esac
for option in "$@"; do
  case $option in --progress | --progress=*) progress=() ;; esac
done
# look PID: sets `state` and `parent` of a process.
look() {
  local stat=''
  { IFS= read -r stat <"/proc/$1/stat"; } 2>/dev/null || true
  read -r state parent _ <<<"${stat##*) }"
}
# Open MPI 4 may wait forever for a lock of PMIx where ranks die while they start, or for a host that no longer answers.
# Ranks on other hosts are no children. A child without a rank's environment is the ssh to another host.
lost_seconds=${LFM2_LOST_SECONDS:-60}
# count_lost MPIRUN: called each second. Counts in `lost` for how many of them all ranks have been dead, and kills mpirun.
count_lost() {
  local file child state parent children=()
  lost=$((lost + had_ranks))
  for file in "/proc/$1"/task/*/children; do  # without a final line break
    read -r -a children 2>/dev/null <"$file" || true
    for child in "${children[@]}"; do
      [ "$child" != "$BASHPID" ] || continue
      look "$child"
      case $state in
        Z | X | '') had_ranks=1 ;;
        *) ! grep -qsz '^OMPI_COMM_WORLD_RANK=' "/proc/$child/environ" || lost=-1 had_ranks=1 ;;  # the first look at dead ones counts as 0
      esac
    done
  done
  [ "$lost" -ge "$lost_seconds" ] || return 0
  lost=0
  echo "run.sh: all ranks have been dead for $lost_seconds s, but mpirun does not end: killed (docs/operations.md, \"Stalls\")"
  kill -KILL "$1" || true
}
# When a program ends with an error, mpirun explains that in paragraphs between dashed lines, although the program has
# said it in a line of its own. This filter removes these paragraphs. It keeps what only mpirun can say: a rank that was
# killed, hosts that cannot be reached, an exit code that the program does not have.
ours='(errorcode|Exit code:) +(1|6[4-9]|7[0-6])($|[^0-9])'
without_echoes() {
  trap '' HUP INT QUIT TERM USR1 USR2  # the filter must outlive mpirun, and ends when its input does
  local line part='' block='' within=no code state parent lost=0 had_ranks=0
  look self
  local mpirun=$parent
  while :; do
    code=0
    IFS= read -r -t 1 line || code=$?
    line=$part$line part=''
    if [ "$code" -gt 128 ]; then  # a second without a whole line
      part=$line
      [ "$lost_seconds" = 0 ] || count_lost "$mpirun"
      continue
    fi
    [ "$code" -eq 0 ] || [ -n "$line" ] || break
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
      # mpirun itself may stumble over such a paragraph while it gathers those of several ranks.
      *'ORTE_ERROR_LOG: '*' in file '*show_help.c*) ;;
      *'help-mpi-api.txt / mpi-abort'* | *'Set MCA parameter "orte_base_help_aggregate"'*) ;;
      *) printf '%s\n' "$line" ;;
    esac
  done
  [ $within = no ] || printf '%s\n' "$block"
}
export HOME=${HOME:-/}  # without it, and for a user without an entry in passwd, Open MPI 4 reads through a null pointer
# mpirun looks for devices through hwloc, which asks OpenCL drivers. One with LLVM in it (PoCL) takes the signals: mpirun would not pass USR1 on.
export HWLOC_COMPONENTS=${HWLOC_COMPONENTS--opencl}
# Open MPI 4 writes such messages to the descriptor that OPAL_OUTPUT_STDERR_FD names, apart from the stderr of the
# ranks, which have other files under that number. Other versions ignore the variable. exec lets signals reach mpirun.
export OPAL_OUTPUT_STDERR_FD=9
between=(env -u OPAL_OUTPUT_STDERR_FD)
# These signals would end a rank that does not listen to them yet: they wait until it does.
blocked=--block-signal=USR1,USR2,XCPU
! env "$blocked" true 2>/dev/null || between+=("$blocked")  # coreutils since 8.31
# shellcheck disable=SC2206  # lists of options
command=(mpirun "${options[@]}" "${places[@]}" ${LFM2_MPIRUN_OPTIONS:-} "${between[@]}" ${LFM2_WRAP:-} "$program" "${progress[@]}" "$@")
# follow JOB: waits for its end, whatever signals come, and ends with its exit code.
follow() {
  local code=0
  while kill -0 "$1" 2>/dev/null; do wait "$1" || true; done
  wait "$1" || code=$?
  return "$code"
}
# pass_on JOB SIGNAL...: passes each of these signals on.
pass_on() {
  local job=$1 signal
  shift
  # shellcheck disable=SC2064  # expanded now
  for signal in "$@"; do trap "kill -$signal $job 2>/dev/null" "$signal"; done
}
first_request=''
# end_server JOB: the first time lets it finish what it has begun, more than a second later ends it at once.
# shellcheck disable=SC2317  # called by the trap
end_server() {
  local signal=USR1
  [ -z "$first_request" ] || [ $((SECONDS - first_request)) -lt 2 ] || signal=TERM
  first_request=${first_request:-$SECONDS}
  kill "-$signal" "$1" 2>/dev/null
}
case ${1:-} in
  chat) ;;
  # TERM, and INT from a terminal, end mpirun, which kills its ranks a second later. USR1 lets a server finish what it has begun.
  serve)
    setsid "${command[@]:0:1}" --quiet "${command[@]:1}" </dev/null 9> >(without_echoes >&2) &
    job=$!
    pass_on "$job" USR1
    trap 'end_server "$job"' INT TERM HUP
    follow "$job" && exit || exit $? ;;
  *)
    # mpirun ends its ranks at HUP even where nohup has it ignored. In a session of its own it gets none.
    [ -n "$(trap -p HUP)" ] || exec "${command[@]}" 9> >(without_echoes >&2)
    setsid "${command[@]}" <&0 9> >(without_echoes >&2) &
    pass_on $! USR1 USR2 INT TERM
    follow $! && exit || exit $? ;;
esac
# Ctrl-C ends mpirun and all ranks with it. In a conversation it is to end the answer: mpirun gets a session of its own,
# where the terminal's signals do not reach it, and is told by USR2, which it passes on. It does not read from the
# terminal there, so cat does.
exec 8<&0
exec 7< <(trap '' INT; exec cat <&8)
reader=$!
setsid "${command[@]:0:1}" --quiet "${command[@]:1}" <&7 8<&- 9> >(without_echoes >&2) &
job=$!
trap 'kill -USR2 "$job" 2>/dev/null' INT
trap 'kill -TERM "$job" 2>/dev/null' TERM HUP
code=0
follow "$job" || code=$?
kill "$reader" 2>/dev/null || true
exit "$code"
