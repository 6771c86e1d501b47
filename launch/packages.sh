#!/usr/bin/env bash
# Sourced by demo.sh and test.sh. Installs missing packages on Debian and Ubuntu, and names them first; on other systems
# it only names them.

lfm2_packages=(build-essential cmake ninja-build pkg-config libopenmpi-dev openmpi-bin libhdf5-dev libcli11-dev nlohmann-json3-dev
  libfmt-dev libxxhash-dev libpcre2-dev zlib1g-dev libzstd-dev libboost-dev)
lfm2_test_packages=(curl file libgtest-dev hdf5-tools python3 python3-h5py python3-hypothesis python3-jinja2 python3-matplotlib
  python3-numpy)
lfm2_fuzz_packages=(clang libclang-rt-dev)
lfm2_ci_packages=(ccache clang-format-14)
# Without these some tests are skipped.
lfm2_cluster_packages=(slurm-wlm munge)
lfm2_hosts_packages=(iproute2)
lfm2_page_cache_packages=(libfuse3-dev fuse3)

# install_packages NAME...: asks nothing. Needs root or sudo only where a package is missing.
install_packages() {
  local missing=() name
  if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
    echo "This is neither Debian nor Ubuntu. Needed, by their Debian names: $*" >&2
    return 0
  fi
  for name in "$@"; do
    [ "$(dpkg-query -W -f='${db:Status-Status}' "$name" 2>/dev/null)" = installed ] || missing+=("$name")
  done
  [ ${#missing[@]} -eq 0 ] && return 0
  echo "Installing Debian packages: ${missing[*]}"
  local as_root=()
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || { echo "Neither root nor sudo: please have these installed: ${missing[*]}" >&2; return 69; }
    as_root=(sudo)
  fi
  local install=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "${missing[@]}")
  "${install[@]}" >/dev/null 2>&1 || { "${as_root[@]}" apt-get update -q >/dev/null && "${install[@]}" >/dev/null; } ||
    { echo "apt-get could not install: ${missing[*]}" >&2; return 69; }
}

# show_progress: reads the output of a build, and prints its counter every half minute.
show_progress() {
  local line counter='' begin=$SECONDS last=$SECONDS
  while :; do
    if IFS= read -r -t 5 line; then
      if [[ $line =~ ^\[([0-9]+)/([0-9]+)\] ]]; then counter="${BASH_REMATCH[1]} of ${BASH_REMATCH[2]} steps "; fi
    elif (($? <= 128)); then  # the end, no time-out
      return 0
    fi
    if ((SECONDS - last >= 30)); then
      last=$SECONDS
      echo "  ${counter}after $((last - begin)) s"
    fi
  done
}

# build PRESET [CMAKE_OPTION...]: configures where needed, and builds all targets of the preset into build/PRESET, or
# those in LFM2_TARGETS. Several sources are compiled as one (CMake's unity build), in half of the time; cmake --preset by
# hand compiles each by itself. Shows the build's own counter on a terminal and a line every half minute elsewhere, and
# further output only where something fails. Uses ccache where it is installed, so that files that any earlier build
# compiled in the same way are not compiled again.
build() {
  local preset=$1 log language status=0
  shift
  if command -v ccache >/dev/null; then
    # Paths relative to this, so that another clone finds the same objects, but for tests, which use a precompiled header.
    export CCACHE_BASEDIR=${CCACHE_BASEDIR:-$PWD}
    # A file is known by what the compiler says that it includes, without preprocessing it first, which takes a third
    # of the time of compiling it.
    export CCACHE_DEPEND=${CCACHE_DEPEND:-true}
    # Without these it would compile everything again that uses a precompiled header.
    export CCACHE_SLOPPINESS=${CCACHE_SLOPPINESS:-pch_defines,time_macros}
    for language in C CXX CUDA; do set -- "-DCMAKE_${language}_COMPILER_LAUNCHER=ccache" "$@"; done
  fi
  log=$(mktemp)
  echo "Building build/$preset"
  # shellcheck disable=SC2206  # a list of targets
  local make=(cmake --build --preset "$preset" ${LFM2_TARGETS:+--target $LFM2_TARGETS})
  if ! cmake --preset "$preset" -DCMAKE_UNITY_BUILD=ON -DCMAKE_UNITY_BUILD_BATCH_SIZE=48 "$@" >"$log" 2>&1; then
    status=1
    cat "$log" >&2
  elif [ -t 1 ]; then
    "${make[@]}" || status=1
  elif ! (set -o pipefail; "${make[@]}" 2>&1 | tee "$log" | show_progress); then
    status=1
    cat "$log" >&2
  fi
  rm -f "$log"
  return "$status"
}
