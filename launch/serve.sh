#!/usr/bin/env bash
# serve.sh [-n RANKS] [--hosts HOST:RANKS,... | --hostfile FILE] [OPTION...]: lfm2_stage serve under mpirun, here or on the named hosts.
# Every other option goes to the server unchanged. TERM, INT and HUP end it once its running requests have ended.
#   launch/serve.sh -n 4 --weights shards/ --port 8000
set -eu
ranks=()
while :; do
  case ${1:-} in
    -n | --hosts | --hostfile) ranks+=("$1" "${2:?serve.sh: $1 needs a value}") ;;
    *) break ;;
  esac
  shift 2
done
exec "$(dirname "$0")/run.sh" "${ranks[@]}" serve "$@"
