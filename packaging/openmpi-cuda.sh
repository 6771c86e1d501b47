#!/usr/bin/env bash
# openmpi-cuda.sh [PREFIX]: builds an Open MPI that sends and receives GPU memory itself, from the source package of the
# distribution (Debian 12: 4.1.4, Ubuntu 24.04: 4.1.6), into PREFIX (default: .local/openmpi-cuda of this project). The
# distribution's own is built without CUDA. Takes some minutes, and cuda.h of a toolkit ($CUDA_HOME or /usr/local/cuda); a
# GPU and its driver are needed only where it runs, root or sudo only where a package is missing.
set -u
root=$(cd "$(dirname "$0")/.." && pwd)
. "$root/launch/packages.sh"
name=openmpi-cuda.sh
max_mib=64

# fail CODE TEXT...: one line. Where `keep` is set, the folder of the build stays, for its log.
fail() { local code=$1; shift; echo "$name: $*" >&2; exit "$code"; }
# quietly WHAT COMMAND...: what the command prints goes to the log.
quietly() {
  local what=$1
  shift
  "$@" >>"$work/log" 2>&1 || { keep=1; fail 70 "$what failed: see the end of $work/log"; }
}

if [ $# -gt 1 ] || [[ ${1:-} == -* ]]; then fail 64 "usage: $name [PREFIX]"; fi
prefix=$(realpath -m -- "${1:-$root/.local/openmpi-cuda}")
[[ $prefix =~ ^[A-Za-z0-9/._+-]+$ ]] || fail 64 "$prefix: Open MPI cannot be built for a path with such characters"

# cuda_aware FOLDER: whether the Open MPI there takes GPU memory. It may have been built for another folder.
cuda_aware() {
  OPAL_PREFIX=$1 LD_LIBRARY_PATH=$1/lib "$1/bin/ompi_info" --parsable --all 2>/dev/null | grep -q 'mpi_built_with_cuda_support:value:true'
}
explain() {
  cat <<END
Build the project against it:  cmake --preset cuda -DCMAKE_PREFIX_PATH=$prefix   (and -U 'MPI*' where build/cuda knows another MPI)
Run with its launcher:         PATH=$prefix/bin:\$PATH launch/run.sh -n 4 --transport mpi --weights shards/ ...
Moved to another FOLDER:       export OPAL_PREFIX=FOLDER LD_LIBRARY_PATH=FOLDER/lib PATH=FOLDER/bin:\$PATH
END
}
if [ -x "$prefix/bin/ompi_info" ]; then
  cuda_aware "$prefix" || fail 73 "$prefix holds an Open MPI that was built without CUDA: remove it, or name another folder"
  echo "$prefix is there."
  explain
  exit 0
fi
[ ! -e "$prefix" ] || rmdir "$prefix" 2>/dev/null || fail 73 "$prefix holds something else than an Open MPI: name another folder"

cuda=${CUDA_HOME:-/usr/local/cuda}
[ -f "$cuda/include/cuda.h" ] || fail 66 "no $cuda/include/cuda.h: CUDA_HOME names no CUDA toolkit"
command -v apt-get >/dev/null || fail 69 "no apt-get here: the source package is one of Debian or Ubuntu"
install_packages build-essential zlib1g-dev xz-utils ca-certificates || exit
mkdir -p "$prefix" 2>/dev/null || fail 73 "$prefix cannot be made"
work=$(mktemp -d) || fail 73 "no temporary folder"
keep=
trap 'rmdir "$prefix" 2>/dev/null; [ -n "$keep" ] || rm -rf "$work"' EXIT

# The system's package sources, but for source packages, with lists of their own: nothing of the system changes.
mkdir -p "$work/sources" "$work/lists/partial" "$work/cache" "$work/image"
for file in /etc/apt/sources.list /etc/apt/sources.list.d/*.list /etc/apt/sources.list.d/*.sources; do
  [ -f "$file" ] || continue
  sed -E 's/^[[:space:]]*deb([[:space:]])/deb-src\1/; s/^[Tt]ypes:.*/Types: deb-src/' "$file" >"$work/sources/$(basename "$file")"
done
apt=(apt-get -q -o "Dir::Etc::sourcelist=/dev/null" -o "Dir::Etc::sourceparts=$work/sources" -o "Dir::State::lists=$work/lists"
  -o "Dir::Cache=$work/cache" -o APT::Sandbox::User=root)
echo "Fetching the source package openmpi"
"${apt[@]}" update >>"$work/log" 2>&1 || true  # a further package source may have no source packages
cd "$work" || exit
# The authors' own archive alone, which comes with its configure script. What the distribution's patches change is paths,
# manual pages, other processors, and defaults of components that are left out here.
quietly "apt-get source openmpi" "${apt[@]}" source --download-only --tar-only openmpi
archive=$(echo openmpi_4.1.*.orig.tar.*)
[ -f "$archive" ] || fail 69 "$(echo openmpi_*.orig.tar.*) is not Open MPI 4.1: known are those of Debian 12 and Ubuntu 24.04"
mkdir source
quietly "tar" tar -xf "$archive" -C source --strip-components=1
[ -x source/configure ] || fail 69 "$archive has no configure script"

# Between ranks of one host GPU memory goes through smcuda, and between hosts in pieces through the host and TCP. UCX and
# libfabric are left out: those of Debian 12 and Ubuntu 24.04 are built without CUDA, and would be given GPU memory that
# they cannot read. Open MPI's own hwloc, libevent and PMIx, so that PREFIX needs nothing but zlib and the C library.
# ROMIO and OpenSHMEM are used by nothing here.
options=(--prefix="$prefix" --with-cuda="$cuda" --without-ucx --without-ofi --without-verbs --without-psm --without-psm2
  --without-knem --without-xpmem --with-hwloc=internal --with-libevent=internal --with-pmix=internal --disable-static
  --disable-mpi-fortran --disable-mpi-java --disable-oshmem --disable-io-romio --disable-debug)
echo "Building Open MPI $(sed 's/^openmpi_//; s/\.orig.*//' <<<"$archive") with CUDA for $prefix"
cd source || exit
quietly configure ./configure "${options[@]}" CFLAGS=-O2 CXXFLAGS=-O2
quietly make make -j "$(nproc)"
quietly "make install" make install-strip DESTDIR="$work/image"
image=$work/image$prefix
rm -rf "$image/share/man" "$image/share/doc"
find "$image" -name '*.la' -delete  # libtool's notes of other libraries' places; nothing reads them
# Machines without a driver are no news: the ranks of a run on the CPU would each say so.
echo "opal_warn_on_missing_libcuda = 0" >>"$image/etc/openmpi-mca-params.conf"

cuda_aware "$image" || { keep=1; fail 70 "what was built has no CUDA support: see $work/log"; }
mib=$(du -sm "$image" | cut -f1)
[ "$mib" -lt "$max_mib" ] || { keep=1; fail 70 "$image takes $mib MiB, expected less than $max_mib"; }
{ rmdir "$prefix" && mv "$image" "$prefix"; } || fail 74 "$prefix cannot be written"
echo "$prefix is there: $mib MiB, $(OPAL_PREFIX=$prefix "$prefix/bin/ompi_info" --parsable --all | grep -m1 mpi_built_with_cuda_support:value:true)"
explain
