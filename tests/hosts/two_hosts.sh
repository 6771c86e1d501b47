#!/usr/bin/env bash
# two_hosts.sh RUN_SH LFM2_STAGE SHARDS: launch/run.sh --hosts over two hosts (in_two_hosts.sh).
set -eu
[ -n "${LFM2_HOSTS:-}" ] || exec "$(dirname "$0")/in_two_hosts.sh" "$0" "$@"
run=$1 program=$2 shards=$3 folder=$TMPDIR
read -ra agents <<<"$LFM2_HOSTS"
export LFM2_STAGE=$program
options=(--weights "$shards" --samples 24 --threads 1 --device cpu)
timeout 60 "$run" -n 1 "${options[@]}" --output "$folder/one.bin" >/dev/null
on_a() {
  timeout 60 nsenter --target "${agents[0]}" --net --uts --mount "$run" "$@"
}
hosts=(--hosts '10.213.77.1:2,10.213.77.2:2')
on_a "${hosts[@]}" "${options[@]}" --output "$folder/two.bin" --report "$folder/report.json" | tee "$folder/table"
cmp "$folder/one.bin" "$folder/two.bin"
[ "$(grep -c 'host-a$' "$folder/table")" = 2 ]
[ "$(grep -c 'host-b$' "$folder/table")" = 2 ]
sent=$(nsenter --target "${agents[0]}" --net awk '$1 == "va:" { print $10 }' /proc/net/dev)
[ "$sent" -gt $((24 * 32 * 64 * 4)) ]  # at least the hidden states of each token in fp32
echo "host-a and host-b: the same bytes as one rank alone; $sent bytes went over the cable"
# doctor sees two hosts, named by a hostfile here, and measures the link between them.
printf '10.213.77.%s slots=2\n' 1 2 >"$folder/hosts"
on_a -n 4 --hostfile "$folder/hosts" doctor --weights "$shards" --device cpu --threads 1 >"$folder/doctor"
for wanted in '0 to 1  same host' '1 to 2  other host' '2 to 3  same host' ' host-b$'; do
  grep -q "$wanted" "$folder/doctor" || { cat "$folder/doctor"; echo "doctor does not say: $wanted"; exit 1; }
done
# An error keeps its code and names its host.
code=0
on_a "${hosts[@]}" --weights "$folder/nowhere" 2>"$folder/error" || code=$?
if [ "$code" -ne 66 ] || ! grep -q 'host-a.*nowhere' "$folder/error"; then
  cat "$folder/error"
  echo "ended with $code, expected 66"
  exit 1
fi
# Of two replicas, each alone on its host, the other host names the stopped one, whose stamps it cannot see.
# The process of a rank, which is alone on its host: other jobs of this machine have ranks of the same number.
rank_process() {
  local process
  for process in /proc/[0-9]*; do
    [ "$(readlink "$process/ns/net" || true)" = "$(readlink "/proc/${agents[$1]}/ns/net")" ] || continue
    if grep -qz "^OMPI_COMM_WORLD_RANK=$1\$" "$process/environ" 2>/dev/null; then basename "$process"; fi
  done
}
for rank in 0 1; do
  rm -f "$folder/address"
  on_a --hosts 10.213.77.1:1,10.213.77.2:1 serve --weights "$shards" --threads 1 --device cpu --replicas 2 --port 0 \
    --address-file "$folder/address" --timeout 2 >"$folder/log" 2>"$folder/error" &
  server=$!
  for ((i = 0; i < 300; ++i)); do
    [ ! -s "$folder/address" ] || break
    sleep 0.1
  done
  sleep 1
  kill -STOP "$(rank_process $rank)"
  code=0
  wait $server || code=$?
  if [ "$code" -ne 76 ] || ! grep -q "no word for .* s (--timeout 2) from rank $rank, " "$folder/error"; then
    cat "$folder/error"
    echo "rank $rank stopped: ended with $code, expected 76"
    exit 1
  fi
done
