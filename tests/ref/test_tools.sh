#!/bin/sh
# test_tools.sh REF_TRAIN COMPARE_TENSORS SPEC: the programs as a test uses them, from files to exit codes.
set -eu
train=$1
compare=$2
spec=$3
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"

fail()
{
  echo "FAIL: $*"
  exit 1
}

# expect STATUS COMMAND...: runs it; its output goes to ./out
expect()
{
  want=$1
  shift
  got=0
  "$@" >out 2>&1 || got=$?
  [ "$got" -eq "$want" ] || { cat out; fail "status $got, not $want: $*"; }
}

cat >small.cfg <<END
layers = 2    # a comment
hidden = 16
vocab = 61
balance_coef = 0.1
init_std = 0.3
seq = 6
lr = 0.02
weight_decay = 0.1
clip = 1
END

# 8 sequences of 7 tokens, all below 61
i=0
while [ $i -lt 56 ]; do
  # shellcheck disable=SC2059 # octal escapes are what the format is for
  printf "\\$(printf %o $((i * i % 61)))\\0\\0\\0"
  i=$((i + 1))
done >tokens

# Loss and gradients; the same again gives the same bytes; other weights do not.
expect 0 "$train" --config small.cfg --init-random 1 --tokens tokens --grads g1 --out-weights w1 --min-margin
grep -q '"loss": [0-9.]*, "balance_loss": 0.[0-9]*, .*"tokens": 48, "dropped": 0, "min_margin": 0' out || fail "output"
expect 0 "$train" --config small.cfg --weights w1 --tokens tokens --grads g2
cmp g1 g2 || fail "gradients differ between equal runs"
expect 0 "$compare" g1 g2 --rtol 0
expect 0 "$compare" g1 --ref g2
expect 0 "$train" --config small.cfg --init-random 2 --tokens tokens --grads g3
expect 1 "$compare" g1 g3
grep -q '^DIFFERENT: 45 tensors' out || fail "no summary line"

# F32 files agree to their precision and no better.
expect 0 "$train" --config small.cfg --weights w1 --tokens tokens --grads g1f --f32
expect 0 "$compare" g1f g1 --rtol 1e-7
expect 1 "$compare" g1f g1 --rtol 1e-12

# Missing, extra and misshapen tensors; an expert that should be exactly zero.
expect 0 "$train" --config small.cfg --set tied=1 --init-random 1 --tokens tokens --grads tied
expect 1 "$compare" tied g1
grep -q '^missing: lm_head.weight' out || fail "missing tensor not named"
expect 1 "$compare" g1 tied
grep -q '^extra: lm_head.weight' out || fail "extra tensor not named"
expect 0 "$train" --config small.cfg --set head_dim=4 --init-random 1 --tokens tokens --grads shape
expect 1 "$compare" shape g1
grep -q '^other shape: model.layers.0.self_attn.q_proj.weight' out || fail "shape not named"
expect 0 "$train" --config small.cfg --set route_only=0,1 --init-random 1 --tokens tokens --grads idle
expect 1 "$compare" g1 idle --rtol 100
grep -q 'FAIL norm ratio inf.*experts.3' out || fail "idle expert not held to zero"
expect 0 "$compare" idle idle

# Pinned routing reproduces the run; steps lower the loss on a batch seen over and over.
expect 0 "$train" --config small.cfg --weights w1 --tokens tokens --routing r1
expect 0 "$train" --config small.cfg --weights w1 --tokens tokens --pin-routing r1 --grads g4
cmp g1 g4 || fail "pinned routing gives other gradients"
expect 0 "$train" --config small.cfg --weights w1 --tokens tokens --steps 30 --batch 4 --out-weights w2
[ "$(wc -l <out)" -eq 30 ] || fail "not a line per step"
first=$(sed -n '1s/.*"loss": \([0-9]*\).*/\1/p' out)
last=$(sed -n '$s/.*"loss": \([0-9]*\).*/\1/p' out)
[ "$last" -lt "$first" ] || fail "loss went from $first to $last"
expect 1 "$compare" w2 w1

# Labels of their own: masked ones count neither in the loss nor in the mean.
dd if=tokens bs=4 count=48 of=inputs 2>/dev/null
dd if=tokens bs=4 count=47 of=labels 2>/dev/null
printf '\377\377\377\377' >>labels
expect 0 "$train" --config small.cfg --weights w1 --tokens inputs --labels labels
grep -q '"tokens": 47' out || fail "masked label counted"

# A .moespec gives the same dimensions as the same numbers spelt out.
cat >tiny.cfg <<END
layers = 4
hidden = 64
vocab = 256
heads = 4
kv_heads = 2
head_dim = 16
experts = 8
ffn_hidden = 128
balance_coef = 0.01
END
head -c 516 /dev/zero >zeros
expect 0 "$train" --config tiny.cfg --init-random 4 --out-weights w3 --set seq=128
expect 0 "$train" --config tiny.cfg --weights w3 --tokens zeros --grads g5 --set seq=128
expect 0 "$train" --config "$spec" --weights w3 --tokens zeros --grads g6
cmp g5 g6 || fail "spec and keys disagree"

# Wrong input: one line, status 1; wrong usage: status 2.
for bad in layers=0 top_k=5 kv_heads=3 head_dim=3 router=hash nosuch=1 lr=nan seq=5 route_only=0,0 route_only=9; do
  expect 1 "$train" --config small.cfg --set "$bad" --init-random 1 --tokens tokens
  [ "$(wc -l <out)" -eq 1 ] || fail "--set $bad: more than one line"
done
expect 1 "$train" --config small.cfg --set vocab=60 --init-random 1 --tokens tokens
expect 1 "$train" --config small.cfg --weights g1f --tokens nowhere
expect 1 "$train" --config small.cfg --weights tokens --tokens tokens
expect 1 "$train" --config small.cfg --weights tied --tokens tokens
expect 1 "$train" --config small.cfg --init-random 1 --tokens tokens --batch 3
expect 2 "$train" --config small.cfg --tokens tokens
expect 2 "$train" --nosuch
expect 2 "$compare" g1
expect 2 "$compare" g1 tokens
expect 2 "$compare" g1 g1 --rtol x
echo ok
