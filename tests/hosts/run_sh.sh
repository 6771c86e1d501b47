#!/usr/bin/env bash
# run_sh.sh RUN_SH LFM2_STAGE SHARDS TEXT_SHARDS: which lines launch/run.sh lets through to stderr, of its own errors and
# of mpirun's, that signals which are sent to it reach the ranks, and that a server of serve.sh ends what it has begun.
# Also: what run.sh does around faults of mpirun. TEXT_SHARDS are those of a model with a tokenizer.
set -eu
run=$1 program=$2 shards=$3 text_shards=$4
folder=$(mktemp -d)
servers=()  # processes that a failure leaves behind
# shellcheck disable=SC2317  # called by the trap
clean_up() {
  [ ${#servers[@]} -eq 0 ] || kill "${servers[@]}" 2>/dev/null || true
  rm -rf "$folder"
}
trap clean_up EXIT
export LFM2_STAGE=$program
job=(--weights "$shards" --device cpu --threads 1 -q)
endless=("${job[@]}" --samples 400000 --micro-batch 4 --output "$folder/o.bin")
fail() { echo "$1; stderr was:"; cat "$folder/error"; exit 1; }
expect_code() { [ "$code" = "$1" ] || fail "$2: exit code $code, expected $1"; }
expect_lines() { [ "$(wc -l <"$folder/error")" = "$1" ] || fail "$2: $(wc -l <"$folder/error") lines, expected $1"; }
expect_said() { grep -q -e "$1" "$folder/error" || fail "$2: nothing says \"$1\""; }

user=()  # a command that runs run.sh as another user
# Reads stderr through a pipe, whose end says that nothing more will come.
foreground() {
  code=0
  { timeout 60 "${user[@]}" "$run" "$@" 2>&1 >/dev/null || echo $? >"$folder/code"; } | cat >"$folder/error"
  [ ! -e "$folder/code" ] || { code=$(cat "$folder/code"); rm "$folder/code"; }
}
# interrupted SIGNAL WHOM COMMAND...: sends the signal to WHOM (run.sh or a rank) once the job has begun to write. To
# nohup, which started run.sh, HUP is sent before.
interrupted() {
  local signal=$1 whom=$2 rank=none nohup=()
  [ "$whom" != nohup ] || nohup=(nohup)
  shift 2
  rm -f "$folder"/o.bin*
  mkfifo "$folder/stderr"
  cat "$folder/stderr" >"$folder/error" &
  local reader=$!
  "${nohup[@]}" "$run" "$@" >/dev/null 2>"$folder/stderr" &
  local launcher=$!
  for ((i = 0; i < 600; ++i)); do
    [ "$(stat -c %s "$folder/o.bin.journal" 2>/dev/null || echo 0)" -le 400 ] || break
    sleep 0.05
  done
  [ "$whom" = nohup ] || rank=$(for child in $(cat /proc/"$launcher"/task/*/children); do
    ! grep -qz "^OMPI_COMM_WORLD_RANK=1" "/proc/$child/environ" 2>/dev/null || echo "$child"
  done)
  [ -n "$rank" ] || fail "mpirun does not run in the place of run.sh"
  case $whom in
    launcher) kill "-$signal" "$launcher" ;;
    rank) kill "-$signal" "$rank" ;;
    nohup)
      kill -HUP "$launcher"
      sleep 0.3
      kill "-$signal" "$launcher" ;;
  esac
  code=0
  wait "$launcher" || code=$?
  wait $reader
  rm "$folder/stderr"
}

# ADDRESS PID SIGNAL: prints the stream of sixteen texts, a second of work or more, and sends the signal behind its first
# piece.
stream='
import http.client, json, os, signal, sys
link = http.client.HTTPConnection(sys.argv[1].removeprefix("http://"), timeout=60)
link.request("POST", "/v1/completions", json.dumps({"prompt": "In the beginning", "max_tokens": 400, "ignore_eos": True, "n": 16, "stream": True}))
answer = link.getresponse()
first = answer.read1(1 << 16)
os.kill(int(sys.argv[2]), signal.Signals["SIG" + sys.argv[3]])
sys.stdout.buffer.write(first + answer.read())
'
# served SIGNAL [-n RANKS]: sends the signal to serve.sh while answers are streamed, and expects the rest of them.
served() {
  local signal=$1 what="serve.sh and $*" client launcher
  shift
  rm -f "$folder/address" "$folder/answer"
  "$(dirname "$run")/serve.sh" "$@" --weights "$text_shards" --device cpu --threads 1 -q --port 0 \
    --address-file "$folder/address" >/dev/null 2>"$folder/error" &
  launcher=$! servers=($!)
  for ((i = 0; i < 600; ++i)); do
    [ ! -s "$folder/address" ] || break
    kill -0 "$launcher" 2>/dev/null || break
    sleep 0.05
  done
  read -r -a servers <"/proc/$launcher/task/$launcher/children" || true  # mpirun is one of them
  servers+=("$launcher")
  [ -s "$folder/address" ] || fail "$what: no address"
  # A session of its own: Linux shares processors among sessions first, and the ranks, which have one too, would be done
  # before a client among many other tests sees the first piece.
  setsid python3 -c "$stream" "$(cat "$folder/address")" "$launcher" "$signal" >"$folder/answer" &
  client=$!
  code=0
  wait "$client" || fail "$what: the client says $?: $(tail -n 2 "$folder/answer")"
  [ "$(grep -c '"finish_reason":"length"' "$folder/answer")" = 16 ] || fail "$what: not a whole answer"
  tail -n 2 "$folder/answer" | grep -q '^data: \[DONE\]' || fail "$what: not a whole stream"
  wait "$launcher" || code=$?
  expect_code 0 "$what"
  expect_said '^lfm2_stage: ending: [1-9]' "$what"  # requests ran when the signal came
  servers=()
}

# They stand in for mpirun: the children of one are dead, and it does not end; one has a living child; one serves.
mkdir "$folder"/{lost,alive,serving}
printf '#!/usr/bin/env python3\nimport subprocess, time\nchild = subprocess.Popen(["true"])\ntime.sleep(60)\n' >"$folder/lost/mpirun"
printf '#!/usr/bin/env bash\nsleep 3.5\nexit 9\n' >"$folder/alive/mpirun"
printf '#!/usr/bin/env bash\ntrap "" USR1\ntrap "exit 5" TERM\nsleep 20 &\nwait\n' >"$folder/serving/mpirun"
chmod +x "$folder"/{lost,alive,serving}/mpirun
for kind in lost alive; do  # they take seconds, in which the other tests run
  LFM2_LOST_SECONDS=1 PATH=$folder/$kind:$PATH "$run" -n 2 >/dev/null 2>"$folder/$kind/error" &
  servers+=($!)
done
(
  PATH=$folder/serving:$PATH "$run" serve >/dev/null 2>&1 &
  for seconds in 0.5 2.2; do
    sleep $seconds
    kill -TERM $!
  done
  wait $!
) &
servers+=($!)
stand_ins=("${servers[@]}")

foreground -n 2 "${job[@]}" --samples 4
expect_code 0 'a run'
expect_lines 0 'a run'

foreground -n 2 "${job[@]}" --no-such-option
expect_code 64 'wrong usage'
expect_lines 1 'wrong usage'
echo nonsense >"$folder/in.jsonl"
foreground -n 4 "${job[@]}" --input "$folder/in.jsonl"
expect_code 65 'bad input'
expect_lines 1 'bad input'
expect_said '^lfm2_stage: .*in.jsonl: line 1' 'bad input'

interrupted KILL rank -n 2 "${endless[@]}"
expect_code 137 'a killed rank'
expect_said 'process rank 1 .*exited on signal 9' 'a killed rank'
! grep -q 'Primary job' "$folder/error" || fail 'a killed rank: an echo'

interrupted USR1 launcher -n 2 "${endless[@]}"
expect_code 75 USR1
expect_lines 2 USR1  # one line is mpirun's own: that it forwards the signal
expect_said '^lfm2_stage: stopped at ' USR1
interrupted USR1 nohup -n 2 "${endless[@]}"
expect_code 75 'HUP under nohup, then USR1'
for signal in TERM INT; do  # mpirun itself answers 1, unless the ranks end first
  interrupted $signal launcher -n 2 "${endless[@]}"
  case $code in 1 | 75) ;; *) fail "$signal: exit code $code, expected 1 or 75" ;; esac
done

# mpirun reports the exit code of a program that ends at once only sometimes.
printf '#!/bin/sh\nsleep 0.7\nexit 9\n' >"$folder/nine"
chmod +x "$folder/nine"
LFM2_STAGE=$folder/nine foreground -n 2
expect_code 9 'a code of another program'
expect_said 'Exit code: *9' 'a code of another program'
LFM2_MPIRUN_OPTIONS='--host localhost:1' foreground -n 2 "${job[@]}"
expect_said 'not enough slots' 'too few places'

# The descriptor that run.sh gives mpirun must not reach the ranks. USR1, USR2 and XCPU wait until they listen: bash, unlike
# dash, keeps signals blocked.
# shellcheck disable=SC2016  # expanded when it runs
printf '#!/usr/bin/env bash\n[ -z "$OPAL_OUTPUT_STDERR_FD" ] && [ ! -e /proc/self/fd/9 ] && grep -q "^SigBlk:.*[89a-f]..[abef]..$" /proc/self/status\n' >"$folder/look"
chmod +x "$folder/look"
LFM2_STAGE=$folder/look foreground -n 2
expect_code 0 'what ranks inherit'
if [ "$(id -u)" -eq 0 ]; then
  user=(setpriv --reuid 12345 --regid 12345 --clear-groups env -u HOME)
  LFM2_STAGE=true foreground -n 2
  expect_code 0 'a user without an entry in passwd and without HOME'
  user=()
fi

code=0
wait "${stand_ins[0]}" || code=$?
cp "$folder/lost/error" "$folder/error"
expect_code 137 'an mpirun whose ranks are dead'
expect_said 'all ranks have been dead for 1 s' 'an mpirun whose ranks are dead'
code=0
wait "${stand_ins[1]}" || code=$?
cp "$folder/alive/error" "$folder/error"
expect_code 9 'an mpirun with a living rank'
expect_lines 0 'an mpirun with a living rank'
code=0
wait "${stand_ins[2]}" || code=$?
expect_code 5 'a server that is asked a second time'
servers=()

served TERM -n 2
served HUP  # four ranks; INT is ignored by whatever a script starts in the background
echo "one line of ours, and what only mpirun can say; servers end what they have begun"
