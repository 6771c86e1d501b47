#!/usr/bin/env bash
# each-rank.sh TOOL FOLDER PROGRAM OPTION...: runs PROGRAM under TOOL, with separate files for each rank in FOLDER. It
# goes between the launcher and the program:
#   mpirun -np 4 launch/each-rank.sh nsys profile/ lfm2_stage --weights shards/
#   LFM2_WRAP="launch/each-rank.sh memcheck checks/" launch/run.sh -n 4 --weights shards/
# TOOL: log              stderr and stdout of the rank: rank-N.log
#       nsys, ncu        timeline, or kernels in detail (NVIDIA): rank-N.nsys-rep, rank-N.ncu-rep
#       perf             CPU samples with call graphs: rank-N.perf
#       memcheck, racecheck, initcheck, synccheck   compute-sanitizer: rank-N.log
#       asan             settings for a program built with LFM2_SANITIZE: rank-N.asan.PID
#       valgrind, strace, gdb (where it crashed)    rank-N.log
# LFM2_RANKS="0 3" wraps only these ranks. LFM2_TOOL_OPTIONS are passed to TOOL.
set -eu
if [ $# -lt 3 ]; then
  sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$0" >&2
  exit 64
fi
tool=$1 folder=$2
shift 2
rank=${OMPI_COMM_WORLD_RANK:-${PMIX_RANK:-${PMI_RANK:-${SLURM_PROCID:-0}}}}
case " ${LFM2_RANKS:-$rank} " in *" $rank "*) ;; *) exec "$@" ;; esac
mkdir -p "$folder"
file=$folder/rank-$rank
# shellcheck disable=SC2206  # a list of options
options=(${LFM2_TOOL_OPTIONS:-})

need() {
  command -v "$1" >/dev/null || { [ "$rank" -ne 0 ] || echo "each-rank.sh: $1 is not installed" >&2; exit 69; }
}
case $tool in
  log) exec "$@" >"$file.log" 2>&1 ;;
  nsys)
    need nsys
    exec nsys profile --output "$file" --force-overwrite true --trace cuda,nvtx,osrt --cuda-memory-usage true "${options[@]}" "$@" ;;
  # All kernels of a job would take hours; --launch-skip and --launch-count, or -k, in LFM2_TOOL_OPTIONS choose others.
  ncu)
    need ncu
    exec ncu --export "$file" --force-overwrite --set full "${options[@]:---launch-count=50}" "$@" ;;
  perf)
    need perf
    exec perf record --output "$file.perf" --call-graph dwarf "${options[@]}" -- "$@" ;;
  memcheck | racecheck | initcheck | synccheck)
    need compute-sanitizer
    exec compute-sanitizer --tool "$tool" --log-file "$file.log" --error-exitcode 70 --report-api-errors no "${options[@]}" "$@" ;;
  asan)  # MPI libraries never free some of their memory, so leaks that lie entirely inside them are ignored.
    suppressions=$file.suppressions
    printf 'leak:%s\n' libopen-pal libopen-rte libmpi.so libpmix mca_ libibverbs libfabric libucp libevent libhwloc >"$suppressions"
    export ASAN_OPTIONS="log_path=$file.asan:exitcode=70:fast_unwind_on_malloc=0:${ASAN_OPTIONS:-}"
    export UBSAN_OPTIONS="log_path=$file.asan:print_stacktrace=1:${UBSAN_OPTIONS:-}"
    export LSAN_OPTIONS="suppressions=$suppressions:print_suppressions=0:${LSAN_OPTIONS:-}"
    exec "$@" ;;
  valgrind)
    need valgrind
    suppressions=/usr/share/openmpi/openmpi-valgrind.supp
    [ ! -f "$suppressions" ] || options+=("--suppressions=$suppressions")
    exec valgrind --log-file="$file.log" --error-exitcode=70 "${options[@]}" "$@" ;;
  strace)
    need strace
    exec strace --output="$file.log" -f -tt "${options[@]}" "$@" ;;
  gdb)
    need gdb
    exec gdb --batch --return-child-result -ex 'set pagination off' -ex 'set logging redirect on' -ex "set logging file $file.log" -ex 'set logging enabled on' \
      -ex run -ex 'thread apply all backtrace' "${options[@]}" --args "$@" ;;
  *)
    [ "$rank" -ne 0 ] || echo "each-rank.sh: $tool: expected log, nsys, ncu, perf, memcheck, racecheck, initcheck, synccheck, asan, valgrind, strace or gdb" >&2
    exit 64 ;;
esac
