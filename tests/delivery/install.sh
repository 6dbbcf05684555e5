#!/usr/bin/env bash
# What is installed works away from the trees that it came from: a bundle is built and trains where neither can be read.
#   install.sh BUILD SOURCE WORK          `cmake --install`, and the tree moved elsewhere
#   install.sh BUILD SOURCE WORK package  the Debian package: its contents, its dependencies, unpacked
set -euo pipefail
build=$1 source=$2 work=$3/${4:-install}
rm -rf "$work"
mkdir -p "$work"
fail() { echo "FAIL: $1"; exit 1; }
passed=0
ok() { passed=$((passed + 1)); }

# outside of both trees, which are about to be hidden
away=$(mktemp -d "${TMPDIR:-/tmp}/moec-install.XXXXXX")
trap 'rm -rf "$away"' EXIT

if [ "${4:-}" = package ]; then
  (cd "$work" && cpack --config "$build/CPackConfig.cmake" >log 2>&1) || fail "cpack: $(cat "$work/log")"
  deb=$(echo "$work"/moec_*.deb)
  dpkg-deb -I "$deb" >"$work/about"
  for package in gcc libc6-dev libjansson-dev libopenblas-dev libglpk40 libjansson4 'libc6 (>='; do
    grep '^ Depends: ' "$work/about" | grep -qF "$package" || fail "the package does not depend on $package: $(cat "$work/about")"
  done
  dpkg-deb -c "$deb" >"$work/contents"
  if grep -vE '^[d-][rwx-]{9} root/root ' "$work/contents"; then fail "files of somebody else than root"; fi
  for file in bin/moec lib/moec/libmoert.a share/man/man1/moec.1.gz share/bash-completion/completions/moec share/doc/moec/copyright; do
    grep -q " ./usr/$file\$" "$work/contents" || fail "the package has no $file: $(cat "$work/contents")"
  done
  dpkg -x "$deb" "$away/root"
  prefix=$away/root/usr
else
  cmake --install "$build" --prefix "$away/first" >"$work/log"
  mkdir "$away/a b"
  mv "$away/first" "$away/a b/ü" # it may be moved
  prefix=$away/a\ b/ü
fi
ok

if grep -rlF -e "$source" -e "$build" "$prefix"; then fail "installed files know where they were built"; fi
[ -z "$(find "$prefix" -type l)" ] || fail "a link is installed, which may lead back"
ok

cat >"$away/work.sh" <<'END'
set -euo pipefail
prefix=$1
cd "$2"
export MOEC_CACHE=$2/cache
moec=$prefix/bin/moec
spec=$prefix/share/moec/specs/tiny.moespec
"$moec" build "$spec" -o tiny -q
seq 20000 >text
tiny/train --data text --steps 3 --log log.jsonl 2>err
"$moec" build "$spec" -o rehearsal --target emu -q
rehearsal/train --steps 1 2>>err
"$moec" build "$spec" -o gpu --target cuda --sources-only -q
[ -e "$prefix/share/moec/specs/jobs/slurm.sbatch" ]
"$moec" compare "$spec" --systems af_pipe,megatron --html page.html >/dev/null
for file in "$prefix"/share/moec/specs/*/*.moespec; do
  case $file in */hardware/*) ;; *) "$moec" check "$file" ;; esac
done
mkdir model
echo '{"model_type": "mixtral", "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4,
 "num_key_value_heads": 2, "num_hidden_layers": 2, "num_local_experts": 4, "num_experts_per_tok": 2, "vocab_size": 256,
 "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": false, "hidden_act": "silu"}' >model/config.json
"$moec" import model -o model.moespec
"$moec" check model.moespec
END
# where root, an empty file system lies over both trees
hide=()
if [ "$(id -u)" = 0 ] && unshare -m true 2>/dev/null; then
  # shellcheck disable=SC2016 # for the inner shell
  hide=(unshare -m bash -c 'for d in "$1" "$2"; do if [ -d "$d" ]; then mount -t tmpfs none "$d"; fi; done; shift 2; exec "$@"' - "$source" "$build")
  if "${hide[@]}" test -e "$source/README.md" -o -e "$build/moec"; then fail "the trees are not hidden"; fi
fi
mkdir "$away/run"
"${hide[@]}" bash "$away/work.sh" "$prefix" "$away/run" || fail "installed moec: $(cat "$away/run/err" 2>/dev/null)"
[ "$(grep -c '"loss"' "$away/run/log.jsonl")" = 3 ] || fail "3 steps did not train"
ok
if grep -rlF -e "$source" -e "$build" "$away/run"; then fail "what was built knows of the trees"; fi
ok

# without its files it says where they should be
cp "$prefix/bin/moec" "$away/alone"
if "$away/alone" build "$prefix/share/moec/specs/tiny.moespec" -o "$away/x" 2>"$away/err"; then fail "moec built without its files"; fi
grep -q "cannot read $away/share/moec/templates" "$away/err" || fail "a lone moec: $(cat "$away/err")"
ok
echo "$passed passed, 0 failed"
