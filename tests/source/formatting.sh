#!/usr/bin/env bash
# formatting.sh [--fix]: every C, C++ and CUDA file has the form that clang-format gives it with the .clang-format of
# the root; --fix gives it that form. Ends with 77 without a clang-format of Debian 12's version, because other versions
# break lines differently.
set -eu
version=14
cd "$(dirname "$0")/../.."
program=
for candidate in clang-format-$version clang-format; do
  if "$candidate" --version 2>/dev/null | grep -q "version $version\."; then program=$candidate; break; fi
done
[ -n "$program" ] || { echo "Skipped: no clang-format $version here (package clang-format-$version)"; exit 77; }
files() { find src operators weights-tools include tests examples -type f -regex '.*\.\(c\|cpp\|cu\|cuh\|h\)' -print0; }
case ${1:-} in
  --fix) files | xargs -0 "$program" -i ;;
  "")
    status=0
    output=$(files | xargs -0 -n 16 -P "$(nproc)" "$program" --dry-run -Werror 2>&1) || status=$?
    differing=$(sed -n 's/^\(.*\):[0-9]*:[0-9]*: error: code should be clang-formatted.*/\1/p' <<<"$output" | sort -u)
    if [ -n "$differing" ]; then
      echo "$differing"
      echo "$(wc -l <<<"$differing") of $(files | tr -cd '\0' | wc -c) files are not as clang-format $version writes them: tests/source/formatting.sh --fix"
      exit 1
    fi
    [ "$status" -eq 0 ] || { echo "$output"; exit 1; }
    ;;
  *) echo "Usage: $0 [--fix]" >&2; exit 64 ;;
esac
