#!/usr/bin/env bash
# test.sh [--all]: installs what is missing, builds, and runs the tests that a change needs. With --all it runs every
# test that this machine can run: its own Slurm, searching fuzzers and the whole campaign of faults take an hour more.
# With CI=true it also runs what a change seldom needs and takes minutes, the tests with the label ci.
# Prints what it skips and why, and what it leaves out. LFM2_TEST_PRESET=cpu-asan runs the same under AddressSanitizer and UBSan.
set -eu
case $#,${1:-} in
  0,) all= ;;
  1,--all) all=yes ;;
  *) echo "Usage: launch/test.sh [--all]" >&2; exit 64 ;;
esac
cd "$(dirname "$0")/.."
. launch/packages.sh
install_packages "${lfm2_packages[@]}" "${lfm2_test_packages[@]}"
if [ "${CI:-}$all" ]; then
  install_packages "${lfm2_hosts_packages[@]}" || echo "Without it the test of two hosts is skipped."
  install_packages "${lfm2_page_cache_packages[@]}" || echo "Without them the test of two page caches is skipped."
fi
if [ "$all" ]; then
  install_packages "${lfm2_fuzz_packages[@]}" || echo "No clang with libFuzzer: the fuzzers are skipped, their corpus is not."
  # A machine that belongs to a Slurm cluster gets no Slurm of its own.
  [ -e /etc/slurm/slurm.conf ] || install_packages "${lfm2_cluster_packages[@]}" || echo "Without them the tests under Slurm are skipped."
fi
preset=${LFM2_TEST_PRESET:-cpu}
python=()
# The Python that the packages belong to.
if [ -x /usr/bin/python3 ]; then python=(-DPython3_EXECUTABLE=/usr/bin/python3); fi
stand_ins=OFF  # not compiled where its tests do not run
[ -z "${CI:-}$all" ] || stand_ins=ON
build "$preset" -DLFM2_TESTS=ON "-DLFM2_STAND_IN_TESTS=$stand_ins" "${python[@]}" ${CI:+-DLFM2_WERROR=ON} ${all:+-DCMAKE_UNITY_BUILD=OFF}  # --all: each source by itself
command -v nvidia-smi >/dev/null 2>&1 || echo "No GPU on this machine: the CUDA tests are skipped."
# Every rank that starts reads the configuration of every PCI device, which takes most of the start in a virtual machine
# and which no test needs. -opencl as launch/run.sh.
export HWLOC_COMPONENTS=${HWLOC_COMPONENTS--opencl,-pci,-linuxio}
# The ranks of a test share a host, so that MPI need not look for networks, which takes half of the start of each mpirun.
export OMPI_MCA_pml=${OMPI_MCA_pml-ob1}
# Two tests for each core, because tests of several ranks mostly wait.
selection=(-LE '^(long|ci)$')
[ -z "${CI:-}" ] || selection=(-LE '^long$')
[ -z "$all" ] || selection=()
status=0
ctest --test-dir "build/$preset" --output-on-failure --no-tests=error -j $(($(nproc) * 2)) "${selection[@]}" || status=$?
left_out="the tests under a real Slurm, the searching fuzzers, the campaign of faults, long runs of the server"
[ "${CI:-}" ] || left_out+=", stalled ranks, faults of the server's clients, limits of memory, two page caches, answers of 64 MiB, \
the kernel for AMX, NCCL and peer copies on stand-ins, other libraries' fp8, the perplexity in fp8, the DEB, random models, patterns, templates and \
conversations, hostile templates, launch/run.sh, two hosts, batch scripts, two command lines, similar stops and golden models, the table of bits"
[ "$all" ] || echo "Left out: $left_out. launch/test.sh --all runs them too."
exit $status
