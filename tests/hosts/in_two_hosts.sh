#!/usr/bin/env bash
# in_two_hosts.sh COMMAND...: runs a command beside two "hosts", which are network namespaces of this machine with host
# names of their own, joined by a virtual cable, so that Open MPI has only TCP between them. Ends with 77 where the kernel
# does not allow that, otherwise with the command's exit code. The command finds:
#
#    LFM2_HOSTS            the processes that hold the namespaces of host-a (10.213.77.1, device va) and host-b (.2, vb)
#    LFM2_MPIRUN_OPTIONS   options with which mpirun, started on host-a, reaches both
#    TMPDIR                a folder that both see
set -eu
skip() { echo "Skipped: $1"; exit 77; }
[ "$(id -u)" -eq 0 ] || skip "network namespaces need root"
for tool in ip unshare nsenter mpirun; do command -v $tool >/dev/null || skip "no $tool here"; done

# Everything lives in namespaces that end with this process, so nothing is left, however it ends.
if [ "${LFM2_TEST_NAMESPACE:-}" != 1 ]; then
  space=(unshare --mount --net --pid --fork --kill-child --mount-proc)
  error=$("${space[@]}" true 2>&1) || skip "no namespaces: $error"
  # The shell is the init of the namespace, and reaps the processes that mpirun leaves.
  # shellcheck disable=SC2016  # expanded inside
  LFM2_TEST_NAMESPACE=1 exec "${space[@]}" sh -c '"$@"; exit $?' init "$0" "$@"
fi
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export TMPDIR=$folder
ip link set lo up
mkdir -p /run/netns
mount -t tmpfs none /run/netns
ip netns add a 2>"$folder/error" || skip "no network namespaces: $(cat "$folder/error")"
ip netns add b
ip link add va netns a type veth peer name vb netns b 2>"$folder/error" || skip "no veth devices: $(cat "$folder/error")"
agents=()
for side in a b; do
  address=10.213.77.$([ $side = a ] && echo 1 || echo 2)
  ip -n $side addr add "$address/24" dev v$side
  ip -n $side link set v$side up
  ip -n $side link set lo up
  # A process that keeps the host's namespaces alive. Shared memory belongs to each host, too.
  # shellcheck disable=SC2016  # expanded inside
  ip netns exec $side unshare --uts --mount sh -c 'hostname "$1" && mount -t tmpfs none /dev/shm && exec sleep infinity' host "host-$side" &
  agents+=($!)
done
for agent in "${agents[@]}"; do  # waits until the process has become the sleep, in its own namespaces
  for ((i = 0; i < 100; ++i)); do
    [ "$(cat "/proc/$agent/comm")" = sleep ] && break
    sleep 0.05
  done
done

# Stands in for ssh: its arguments are the address of a host, and a command.
cat >"$folder/ssh" <<END
#!/usr/bin/env bash
while [ "\${1#-}" != "\$1" ]; do shift; done
case \$1 in *.1) agent=${agents[0]} ;; *.2) agent=${agents[1]} ;; *) exit 255 ;; esac
shift
exec nsenter --target "\$agent" --net --uts --mount sh -c "\$*"
END
chmod +x "$folder/ssh"

export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 LFM2_HOSTS="${agents[*]}"
export LFM2_MPIRUN_OPTIONS="--mca plm_rsh_agent $folder/ssh --mca btl tcp,self,vader --mca btl_tcp_if_include 10.213.77.0/24 --mca oob_tcp_if_include 10.213.77.0/24"
"$@"
