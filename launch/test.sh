#!/usr/bin/env bash
# Every test that this machine can run: installs what is missing, builds, runs ctest. Says what it skips and why.
# LFM2_TEST_PRESET=cpu-asan runs the same under AddressSanitizer and UBSan; LFM2_TEST_EXCLUDE="slurm|fuzz" leaves out tests by label.
set -eu
cd "$(dirname "$0")/.."
. launch/packages.sh
install_packages "${lfm2_packages[@]}" "${lfm2_test_packages[@]}"
exclude=${LFM2_TEST_EXCLUDE:-}
[[ $exclude == *fuzz* ]] || install_packages "${lfm2_fuzz_packages[@]}" || echo "No clang with libFuzzer: the fuzzers are skipped, their corpus is not."
# Not on a machine that belongs to a Slurm cluster already.
if [[ $exclude != *slurm* && ! -e /etc/slurm/slurm.conf ]]; then install_packages "${lfm2_cluster_packages[@]}" || echo "Without them the tests under Slurm are skipped."; fi
install_packages "${lfm2_file_system_packages[@]}" || echo "Without them the test of two page caches is skipped."
preset=${LFM2_TEST_PRESET:-cpu}
python=()
if [ -x /usr/bin/python3 ]; then python=(-DPython3_EXECUTABLE=/usr/bin/python3); fi  # the one that the packages belong to
build "$preset" -DLFM2_TESTS=ON "${python[@]}" ${CI:+-DLFM2_WERROR=ON}
command -v nvidia-smi >/dev/null 2>&1 || echo "No GPU on this machine: the CUDA tests are skipped."
ctest --test-dir "build/$preset" --output-on-failure --no-tests=error -j "$(nproc)" ${exclude:+-LE "$exclude"}
