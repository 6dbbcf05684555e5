#!/usr/bin/env bash
# What `moec build --target cuda` promises: what it does not know is refused by name and place, and nothing is written;
# nothing is compiled twice; a GPU's program says in one line that there is none.
#   cuda.sh refuse|gpu MOEC SPECS WORK
set -euo pipefail
case=$1 moec=$2 specs=$3 work=$4/cuda-$1
rm -rf "$work"
mkdir -p "$work"
cd "$work"
export MOEC_CACHE=$work/../objects
fail() { echo "FAIL: $1"; exit 1; }
passed=0
ok() { passed=$((passed + 1)); }
spec=$specs/tiny.moespec

# refused FILE TEXT...: each text in its own error, with its place; no folder
refused() {
  local file=$1 code=0
  shift
  "$moec" build "$file" --target cuda -o out >/dev/null 2>err || code=$?
  [ "$code" = 1 ] || fail "$file: exit code $code, 1 expected"
  [ ! -e out ] || fail "$file: something was written"
  for text in "$@"; do
    grep -qE "^$file:[0-9]+:[0-9]+: error: target cuda has no kernels for $text\$" err || fail "$file: no '$text' in $(cat err)"
  done
}

if [ "$case" = refuse ]; then
  refused "$specs/models/tiny_deepseek_v3.moespec" "latent attention" "dense layers" "shared experts" "a sigmoid router"
  refused "$specs/models/tiny_gpt_oss.moespec" "biases in attention" "attention sinks" "a bias of the router" "biases in experts"
  refused "$specs/models/tiny_olmoe.moespec" "a norm over all heads of q and of k"
  ok
  for words in "--target cuda --device tpu" "--target cpu --device gpu" "--arch sm_80" "--target emu --nvcc nvcc"; do
    code=0
    # shellcheck disable=SC2086
    "$moec" build "$spec" $words -o out >/dev/null 2>err || code=$?
    if [ "$code" != 2 ] || [ ! -s err ] || [ -e out ]; then fail "$words: exit code $code: $(cat err)"; fi
  done
  if "$moec" build "$spec" --target cuda --arch 90 -o out >/dev/null 2>err; then fail "an odd architecture was taken"; fi
  grep -q "sm_90 is one" err || fail "an odd architecture: $(cat err)"
  if MOEC_CACHE=$work/empty "$moec" build "$spec" --target cuda --nvcc no-such-nvcc -o out -q >/dev/null 2>err; then
    fail "a missing nvcc went unnoticed"
  fi
  grep -q "no-such-nvcc" err || fail "the message does not name nvcc: $(cat err)"
  [ ! -e out ] || fail "a failed build left a bundle"
  code=0
  "$moec" tune "$spec" --target cuda -q >/dev/null 2>err || code=$?
  [ "$code" = 2 ] || fail "tune --target cuda: exit code $code"
  ok
  # one bundle for both devices; a second build compiles nothing
  "$moec" build "$spec" --target cuda -o gpu --sources-only >/dev/null
  "$moec" build "$spec" --target cuda --device emulated -o emulated -q >/dev/null
  diff -r gpu emulated | grep -v "^Only in emulated: train$" && fail "the sources depend on the device"
  "$moec" build "$spec" --target cuda --device emulated -o again >built
  grep -q ' 0 sources compiled' built || fail "an unchanged spec compiled something: $(cat built)"
  ok
  echo "$passed passed, 0 failed"
  exit 0
fi

nvcc=$(command -v nvcc || ls /usr/local/cuda/bin/nvcc 2>/dev/null) || { echo "SKIPPED: nvcc is not here"; exit 77; }
"$moec" build "$spec" --target cuda --nvcc "$nvcc" -o gpu -q >/dev/null
if ldd gpu/train | grep -q 'libcuda'; then fail "the program is linked with the driver: $(ldd gpu/train)"; fi
ok
head -c 20000 "$moec" >text
ms=1000000
for _ in 1 2 3; do # the fastest: others may have the machine, and libraries must be read for the first time
  code=0
  begin=$(date +%s%N)
  gpu/train --data text --steps 2 --holdout 0 >out 2>err || code=$?
  took=$((($(date +%s%N) - begin) / 1000000))
  ms=$((took < ms ? took : ms))
done
if [ "$code" = 0 ]; then
  echo "a GPU is here: two steps were trained"
else
  [ "$code" = 4 ] || fail "exit code $code without a GPU: $(cat err)"
  [ "$(grep -c . err)" = 1 ] || fail "more than one line: $(cat err)"
  grep -q "this machine has none" err || fail "$(cat err)"
  [ "$ms" -lt 1000 ] || fail "it took $ms ms to say so"
fi
"$work/gpu/train" --memory >/dev/null || fail "--memory needs a GPU"
ok
echo "$passed passed, 0 failed"
