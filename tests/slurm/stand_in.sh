#!/usr/bin/env bash
# stand_in.sh FOLDER OPTION...: stands in for the program in the tests of the batch scripts. Writes its arguments to
# FOLDER, runs until a signal stops it (USR1, TERM: ends with 75), and ends with 0 when it is resumed. With
# LFM2_STAND_IN=plain it knows neither stop nor --resume.
[ -n "${LFM2_LISTENS:-}" ] || LFM2_LISTENS=yes exec env --default-signal=USR1 "$0" "$@"  # bash cannot unblock it
if [ "$1" = --help ]; then
  [ "${LFM2_STAND_IN:-}" = plain ] || echo '--resume'
  exit 0
fi
folder=$1
rank=${OMPI_COMM_WORLD_RANK:-${PMIX_RANK:-${SLURM_PROCID:-0}}}
shift
# shellcheck disable=SC2317  # called by the traps
stop() { echo "$1" >>"$folder/signals-$rank"; exit 75; }
if [ "${LFM2_STAND_IN:-}" != plain ]; then
  trap 'stop USR1' USR1
  trap 'stop TERM' TERM
fi
echo "$* on ${SLURMD_NODENAME:-nowhere}" >>"$folder/runs-$rank"
case " $* " in *" --resume "*) exit 0 ;; esac
for ((i = 0; i < 600; ++i)); do
  sleep 0.1
  [ ! -e "$folder/finish" ] || exit 0
done
exit 1
