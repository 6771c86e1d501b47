#!/usr/bin/env bash
# two_clients.sh CLIENT_FS LFM2_STAGE SHARDS MPIRUN: --replicas that write one output through two page caches, as ranks
# on two hosts do: each rank sees the folder through a mount of its own. Also tests a folder that is not shared at all.
# Ends with 77 where there is no FUSE.
set -eu
client_fs=$1 program=$2 shards=$3 mpirun=$4
skip() { echo "Skipped: $1"; exit 77; }
[ "$(id -u)" -eq 0 ] || skip "mounts need root"
[ -e /dev/fuse ] || skip "no /dev/fuse here"
[ -x "$client_fs" ] || skip "client_fs is not built: it needs libfuse3"
command -v fusermount3 >/dev/null || skip "no fusermount3 here"
# Mounts and file systems end with this process, however it ends.
if [ "${LFM2_TEST_NAMESPACE:-}" != 1 ]; then
  space=(unshare --mount --pid --fork --kill-child --mount-proc)
  error=$("${space[@]}" true 2>&1) || skip "no namespaces: $error"
  # shellcheck disable=SC2016  # expanded inside
  LFM2_TEST_NAMESPACE=1 exec "${space[@]}" sh -c '"$@"; exit $?' init "$0" "$@"
fi
folder=$(mktemp -d)
trap 'umount -l "$folder/A" "$folder/B" 2>/dev/null; rm -rf "$folder"' EXIT
mkdir "$folder"/{store,plain,plain/A,plain/B,A,B,seen}
for client in A B; do
  "$client_fs" "$folder/store" "$folder/$client" -f 2>/dev/null &
  for ((i = 0; i < 100; ++i)); do
    mountpoint -q "$folder/$client" && break
    sleep 0.05
  done
  mountpoint -q "$folder/$client" || skip "FUSE mounts are not allowed here"
done
# on-A, plain-on-A ...: the program, with $folder/seen as that client has it.
for client in A B; do
  for kind in "" plain-; do
    cat >"$folder/on-$kind$client" <<END
#!/usr/bin/env bash
exec unshare --mount bash -c 'mount --bind "$folder/${kind:+plain/}$client" "$folder/seen" && exec "\$@"' run "$program" "\$@"
END
    chmod +x "$folder/on-$kind$client"
  done
done
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
# both KIND OPTION...: runs a replica on each client.
both() {
  local kind=$1
  shift
  timeout 60 "$mpirun" --bind-to none -np 1 "$folder/on-$kind"A "${options[@]}" --replicas 2 "$@" : \
    -np 1 "$folder/on-$kind"B "${options[@]}" --replicas 2 "$@" >"$folder/out.log" 2>"$folder/err.log"
}
fail() {
  echo "FAILED: $1"
  cat "$folder/out.log" "$folder/err.log"
  exit 1
}
for job in "bin --samples 4000 --length 3" "bin --samples 40 --length 8" "h5 --samples 40 --length 8 --top-logprobs 3" \
  "h5 --samples 1500 --length 5 --logits all --top-logprobs 7" "h5 --samples 300 --length 2 --logits all"; do
  form=${job%% *}
  # shellcheck disable=SC2206  # a list of options
  options=(--weights "$shards" --threads 1 --device cpu --progress off ${job#* })
  timeout 60 "$program" "${options[@]}" --output "$folder/one.$form" >/dev/null
  both "" --output "$folder/seen/two.$form" || fail "$job: exit code $?"
  cmp "$folder/one.$form" "$folder/store/two.$form" || fail "$job: other bytes than one rank wrote"
  # A run that is stopped once something is finished: the run that resumes it finds some rows.
  (
    until [ "$(stat -c %s "$folder/store/stopped.$form.journal" 2>/dev/null || echo 0)" -gt 800 ]; do sleep 0.01; done
    pkill -USR1 -x "$(basename "$program")" || true
  ) &
  stopper=$!
  code=0
  both "" --output "$folder/seen/stopped.$form" --micro-batch 2 || code=$?
  kill $stopper 2>/dev/null || true
  [ $code -eq 0 ] || [ $code -eq 75 ] || fail "$job: stopped with exit code $code"
  [ $code -eq 0 ] || both "" --output "$folder/seen/stopped.$form" --resume || fail "$job: resumed with exit code $?"
  cmp "$folder/one.$form" "$folder/store/stopped.$form" || fail "$job: other bytes when stopped (exit code $code) and resumed"
  echo "$job: the same bytes; $([ $code -eq 75 ] && echo "stopped and resumed" || echo "not stopped in time"): the same bytes"
done

# A folder that each host has for itself: the rows go to the first host. The second host's files stay.
options=(--weights "$shards" --threads 1 --device cpu --progress off --samples 40 --length 8)
timeout 60 "$program" "${options[@]}" --output "$folder/alone.bin" >/dev/null
: >"$folder/plain/B/o.bin.partial"
both plain- --output "$folder/seen/o.bin" || fail "a folder of each host's own: exit code $?"
cmp "$folder/alone.bin" "$folder/plain/A/o.bin" || fail "a folder of each host's own: other bytes"
[ "$(ls "$folder/plain/B")" = o.bin.partial ] && [ ! -s "$folder/plain/B/o.bin.partial" ] || fail "the second host's files"
echo "a folder of each host's own: the same bytes"
