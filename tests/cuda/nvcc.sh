#!/usr/bin/env bash
# Every kernel as nvcc compiles it, without a warning, and attention without registers that spill; nothing is run.
#   nvcc.sh NVCC CONFIG ARCH...
set -euo pipefail
nvcc=$1 config=$2
shift 2
cd "$(dirname "$0")/../.."
targets=()
for arch in "$@"; do
  targets+=(-gencode "arch=compute_$arch,code=sm_$arch")
done
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
for kernel in templates/*.cu; do
  spills=()
  [ "$kernel" != templates/attention.cu ] || spills=(-Xptxas -warn-spills -Xptxas -Werror)
  "$nvcc" -std=c++17 -Werror all-warnings "${spills[@]}" "${targets[@]}" -Iruntime -Itemplates -Itests/kernels/configs \
    -include "$config" -c "$kernel" -o "$out/kernel.o"
done
