#!/usr/bin/env bash
# What `moec build` promises: same input, same bytes; nothing half written; nothing compiled twice; any path.
#   bundle.sh MOEC SPECS WORK
set -euo pipefail
moec=$1 specs=$2 work=$3/bundle
rm -rf "$work"
mkdir -p "$work"
cd "$work"
export MOEC_CACHE=$work/cache
fail() { echo "FAIL: $1"; exit 1; }
passed=0
ok() { passed=$((passed + 1)); }
spec=$specs/tiny.moespec

# same bytes in another folder, another time zone, another locale
"$moec" build "$spec" -o one --sources-only >/dev/null
# shellcheck disable=SC2016 # the dollar sign is meant
odd='a b/ü"$x'
mkdir -p "$odd"
TZ=Asia/Tokyo LC_ALL=C.UTF-8 "$moec" build "$spec" -o "$odd/two" --sources-only >/dev/null
diff -r one "$odd/two" >/dev/null || fail "two builds of one spec differ"
ok

# the header that the templates compile with in the tree is the one that is written for the tiny spec
diff one/moe_config.h "$specs/../templates/moe_config.h" || fail "templates/moe_config.h is not what moec writes"
ok

# a build in an odd folder runs
"$moec" build "$spec" -o "$odd/two" >built
grep -q '0 reused' built || fail "the first build reused something: $(cat built)"
head -c 20000 "$moec" >text
"$odd/two/train" --data text --steps 1 --holdout 0 >/dev/null 2>&1 || fail "a program in an odd folder does not train"
ok

# a changed shape compiles no kernel: only the tables and the groups' schedules
"$moec" build "$spec" -D S=64 -o three >built
compiled=$(sed -n 's/.* \([0-9]*\) sources compiled.*/\1/p' built)
groups=$(find three -name 'moe_ops_*.c' | wc -l)
[ "$compiled" -le $((groups + 1)) ] || fail "a changed sequence length compiled $compiled sources, of which $groups are schedules"
"$moec" build "$spec" -o four >built
grep -q ' 0 sources compiled' built || fail "an unchanged spec compiled something: $(cat built)"
ok

# what the user keeps beside the program stays; an old bundle is replaced
echo mine >four/notes
touch -d '2001-01-01' four/train
"$moec" build "$spec" -D S=32 -o four -q >said 2>&1
[ ! -s said ] || fail "build -q says: $(cat said)"
[ "$(cat four/notes)" = mine ] || fail "a rebuild removed a file of the user"
[ four/train -nt four/notes ] || [ "$(stat -c %Y four/train)" -gt 1000000000 ] || fail "a rebuild kept the old program"
ok

# a plan that fits with recomputation alone is built as it was planned
cat >lean.moespec <<'EOF'
model m { layers = 4;  hidden = 64;  vocab = 256;  norm_eps = 1e-6
  attention { heads = 4;  kv_heads = 2;  head_dim = 16;  rope { theta = 1e4 } }
  moe { experts = 8;  top_k = 2;  hidden = 128;  router = softmax_renorm } }
gpu g { flops = 50 GFLOPS;  memory = 24 MiB;  hbm = 10 GB/s }
node n { gpu = g;  gpus = 4;  nics = 4;  nvlink = 4 GB/s;  nic = 4 GB/s }
cluster c { nodes = 1;  node = n }
shape s { seq = 512;  micro_batch = 2;  global_batch = 13 }
train { dtype = fp32;  optimizer adamw { lr = 1e-3 } }
plan { schedule = megatron;  replicas = 1;  stages = 4;  expert_parallel = 1 }
EOF
"$moec" plan lean.moespec 2>/dev/null >planned || fail "a plan with recomputation was not found"
grep -q 'selective recomputation' planned || fail "the planner keeps everything: $(cat planned)"
"$moec" build lean.moespec -o lean --sources-only -q >said 2>err || fail "a planned recomputation was not built: $(cat err)"
[ ! -s said ] || fail "build --sources-only -q says: $(cat said)"
grep -q '^#define MOE_RECOMPUTE *1 ' lean/moe_config.h || fail "the program recomputes otherwise than was planned"
ok

# failures leave what was there
before=$(cd four && find . -type f -exec sha1sum {} + | sort)
if MOEC_CACHE=$work/empty "$moec" build "$spec" -o four --cc false -q 2>err; then fail "a failing compiler went unnoticed"; fi
[ "$before" = "$(cd four && find . -type f -exec sha1sum {} + | sort)" ] || fail "a failed build changed the bundle"
if MOEC_CACHE=$work/empty "$moec" build "$spec" -o five --cc no-such-compiler -q 2>err; then fail "a missing compiler went unnoticed"; fi
[ ! -e five ] || fail "a failed build left a bundle"
grep -q 'no-such-compiler' err || fail "the message does not name the compiler: $(cat err)"
sed 's/top_k = 2/top_k = 9/' "$spec" >bad.moespec
sed -i "s#\"hardware#\"$specs/hardware#" bad.moespec
if "$moec" build bad.moespec -o five 2>err; then fail "a wrong spec was built"; fi
[ ! -e five ] || fail "a wrong spec left a bundle"
mkdir theirs
echo x >theirs/file
if "$moec" build "$spec" -o theirs 2>err; then fail "a folder of somebody else was taken over"; fi
[ "$(ls theirs)" = file ] || fail "a folder of somebody else was changed"
find . -maxdepth 1 -name '*.tmp-*' | grep -q . && fail "temporary folders are left"
ok

# a link stays a link and a pipe a pipe
cp -r "$specs/hardware" .
sed 's/layers = 4;/layers=4;/' "$spec" >ugly.moespec
ln -s ugly.moespec link.moespec
"$moec" fmt -w link.moespec
[ -L link.moespec ] || fail "fmt -w replaced a link"
"$moec" fmt --check ugly.moespec || fail "fmt -w did not follow a link"
mkfifo pipe
timeout 20 cat pipe >drawn &
timeout 20 "$moec" schedule "$spec" --svg pipe >/dev/null
wait $!
[ -p pipe ] || fail "--svg replaced a pipe"
grep -q '</svg>' drawn || fail "--svg did not write to a pipe"
ok

# what calibrate reads stays
echo '[]' >run.json
for out in lean.moespec run.json; do
  if "$moec" calibrate --run lean.moespec,run.json -o $out 2>err; then fail "calibrate wrote over $out"; fi
  grep -q 'it is what .moec calibrate. reads' err || fail "calibrate over $out: $(cat err)"
done
ok

# wrong usage
for words in "" "bogus" "check" "check a b" "build $spec --target gpu" "plan $spec --nonsense"; do
  code=0
  # shellcheck disable=SC2086
  "$moec" $words >/dev/null 2>err || code=$?
  [ "$code" = 2 ] || fail "moec $words: exit code $code, 2 expected"
  [ -s err ] || fail "moec $words: no message"
done
"$moec" --help >help
grep -q usage help || fail "no help"
ok

echo "$passed passed, 0 failed"
