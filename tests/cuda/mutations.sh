#!/usr/bin/env bash
# A test of the tests: kernels with one fault each must fail the tests of their group.
#   mutations.sh CXX SET CONFIG OBJECT... -- LINK...     objects of a test program; what it is linked with
set -euo pipefail
cxx=$1 set=$2 config=$3
shift 3
objects=()
while [ "$1" != -- ]; do
  objects+=("$1")
  shift
done
shift
link=("$@")
cd "$(dirname "$0")/../.."
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
failed=0

# try WHAT GROUP KERNEL FILE SED: the tests of GROUP with KERNEL compiled after SED has been applied to FILE.
try() {
  cp templates/*.cu templates/*.cuh "$dir"
  sed -i -E "$5" "$dir/$4"
  if cmp -s "templates/$4" "$dir/$4"; then
    echo "$1: nothing was changed in $4"
    failed=1
    return
  fi
  "$cxx" -std=gnu++17 -O1 -w -march=native -fno-math-errno -fPIE -include "$config" -Iruntime -Itemplates -Itemplates/simt \
    -Itests/kernels/configs -x c++ -c "$dir/$3" -o "$dir/kernel.o"
  others=()
  for object in "${objects[@]}"; do
    case "$object" in */"$3".o) ;; *) others+=("$object") ;; esac
  done
  "$cxx" "${others[@]}" "$dir/kernel.o" -o "$dir/run" "${link[@]}"
  local rc=0
  "$dir/run" "$2" >"$dir/log" 2>&1 || rc=$?
  if [ "$rc" = 0 ]; then
    echo "$1: not noticed"
    failed=1
  else
    echo "$1: $(grep -m1 -oE 'ERROR: .*' "$dir/log" || tail -n 1 "$dir/log")"
  fi
}

# Removes the n-th line that has the text.
nth() { echo "$2" | awk -v n="$1" -v file="$3" '{ text = $0 } END { while ((getline line < file) > 0) { at++; if (index(line, text) && ++seen == n) { print at "d"; exit } } }'; }

of_any_model() {
  try "no barrier before a block's sum is read" rows norm.cu moe_cuda.cuh "$(nth 1 '__syncthreads' templates/moe_cuda.cuh)"
  try "no barrier before a block's sum is written again" rows norm.cu moe_cuda.cuh "$(nth 2 '__syncthreads' templates/moe_cuda.cuh)"
  try "no barrier in a tree of sums" rows optimizer.cu moe_cuda.cuh "$(nth 5 '__syncthreads' templates/moe_cuda.cuh)"
  try "no barrier after a tile of a product" experts grouped.cu grouped.cu "$(nth 2 '__syncthreads' templates/grouped.cu)"
  try "values that take the keys' place too early" attention attention.cu attention.cu "$(nth 2 '__syncthreads' templates/attention.cu)"
  try "keys that are replaced while queries read them" attention attention.cu attention.cu "$(nth 6 '__syncthreads' templates/attention.cu)"
  try "no barrier before a row of scores is read" attention attention.cu attention.cu "$(nth 2 '__syncwarp' templates/attention.cu)"
  try "scores whose gradient lacks the sum over the row" attention attention.cu attention.cu 's/\(dp - delta\)/dp/'
  try "keys without the queries of a group's last head" attention attention.cu attention.cu 's/head < \(kv \+ 1\) \* G;/head < (kv + 1) * G - 1;/'
  try "no barrier within a warp" messages messages.cu messages.cu "$(nth 1 '__syncwarp' templates/messages.cu)"
  try "a barrier that some threads do not reach" router router.cu router.cu 's/^(    )tile\[threadIdx.x\] = here/\1if (here >= n) { return; }\n&/'
  try "one too few elements of shared memory" experts grouped.cu grouped.cu 's/(tile_a, AREA)/\1 - 2/'
  try "one too many elements of a buffer" rows norm.cu norm.cu 's/i >= columns/i > columns/'
  try "an output that is not written" rows norm.cu norm.cu '/rstd\[blockIdx.x\] = r;/d'
  try "a column that is not written" heads heads.cu heads.cu '0,/i = TURNED \* D \+/s//i = TURNED * D + 1 +/'
  try "no barrier before a block's largest is read" head head.cu moe_cuda.cuh "$(nth 3 '__syncthreads' templates/moe_cuda.cuh)"
  try "sums of a block that shrink with the wrong maximum" head head.cu head.cu 's/sum \* moe_exp\(most - best\)/sum/'
  try "a product that forgets what it is added to" dense dense.cu dense.cu 's/beta > 0.0f \|\| beta < 0.0f/false/'
  try "a bias's gradient without its last part" dense bias.cu bias.cu 's/partial, parts, width/partial, parts - 1, width/'
  try "several blocks that add to the same row" rows embed_head.cu embed_head.cu 's/if \(occurs\(.*/if (false) {/'
  try "a list whose experts are not checked" lists lists.cu lists.cu '/wrong \|= in_pairs/d'
  try "a run that begins a row too early" lists lists.cu lists.cu 's/row \+= before;/row += before \&\& r > 0;/'
  try "pairs for another rank of the node" lists relay.cu relay.cu 's/\.expert\) == rank/.expert) >= rank/'
  try "rows of a node that are not summed" lists relay.cu relay.cu 's/found \? sum \+ v : v/v/'
}

of_latents() {
  try "a turning part that is not summed over all heads" heads latent.cu latent.cu 's/head < HEADS; head\+\+/head < HEADS - 1; head++/'
  try "a latent's gradient without its mean" heads latent.cu latent.cu 's/moe_fma\(-x\[j\], mean, g\[j\]\)/g[j]/'
  try "groups that are chosen by their best expert alone" router router.cu router.cu 's/return SIGMOID .* first;/return first;/'
  try "choices by the sigmoid without its bias" router router.cu router.cu 's/s\[j\] \+ bias\[e\]/s[j]/'
  try "no barrier before a group's scores are read" router router.cu router.cu "$(nth 1 '__syncwarp' templates/router.cu)"
  try "a home that the shared expert leaves out" experts mlp.cu mlp.cu 's/first\[1\] = before/first[1] = before > 0 ? before - 1 : 0/'
}

case "$set" in
  any_model) of_any_model ;;
  latents) of_latents ;;
esac
exit $failed
