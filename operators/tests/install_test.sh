#!/usr/bin/env bash
# install_test.sh BUILD SOURCE PYTHON: installs lfm2_kernels into an empty folder, builds the examples against it, runs them.
set -eu
build=$1 source=$2 python=$3
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cmake --install "$build" --component lfm2_kernels --prefix "$folder/prefix" >/dev/null
cmake -S "$source/examples" -B "$folder/examples" -DCMAKE_PREFIX_PATH="$folder/prefix" -DCMAKE_BUILD_TYPE=Release ${LFM2_TEST_LINK_FLAGS:+-DCMAKE_EXE_LINKER_FLAGS=$LFM2_TEST_LINK_FLAGS} >/dev/null
cmake --build "$folder/examples" >/dev/null
"$folder/examples/two_tensors"
"$folder/examples/linear_layer"
"$folder/prefix/bin/causal_conv1d_check" --channels 8 --length 100 --device cpu | tail -n 1 | grep -x valid
if "$python" -c 'import numpy' 2>/dev/null; then
  PYTHONPATH="$folder/prefix/share/lfm2_kernels" "$python" "$source/examples/numpy_example.py"
else
  echo "numpy_example.py: skipped, NumPy is not installed"
fi
