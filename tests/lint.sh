#!/usr/bin/env bash
# Rules about the text of the project: who includes whom, layout, file sizes, words that do not belong.
#   lint.sh layers|format|size|names|shell
# shellcheck disable=SC2046 # file names of the tree have no blanks
set -euo pipefail
cd "$(dirname "$0")/.."
failed=0
complain() { echo "$1"; failed=1; }

sources() { find "$@" -type f \( -name '*.c' -o -name '*.h' -o -name '*.l' -o -name '*.y' -o -name '*.def' -o -name '*.cu' -o -name '*.cuh' -o -name '*.cpp' \) | sort; }

case "$1" in
layers)
  contract='moe_(ops|layout|kernels|bundle|status)\.h|(ops|edges|buckets|status)\.def'
  includes() { grep -nE '^ *# *include *"' "$@" /dev/null || true; }
  while IFS= read -r line; do complain "lang/ includes more than lang/: $line"; done < <(
    includes $(sources lang) | grep -vE '"(lang/[a-z_.]+|[a-z_.]+\.(h|def))"')
  while IFS= read -r line; do complain "codegen/ reaches past lang/ and the contract headers: $line"; done < <(
    includes $(sources codegen) | grep -vE "\"((lang|codegen)/[a-z_.]+|runtime/($contract)|runtime/moe_(names|link)\.h)\"")
  while IFS= read -r line; do complain "runtime/ includes more than runtime/: $line"; done < <(
    includes $(sources runtime) | grep -vE '"(runtime/[a-z_.]+|[a-z_]+\.(h|def))"')
  while IFS= read -r line; do complain "templates/ include more than templates/ and the contract headers: $line"; done < <(
    includes $(sources templates) | grep -vE '"[a-z_]+\.(cuh|h|def)"')
  if [ "$(grep -rlE 'include *<glpk\.h>' lang codegen runtime templates)" != codegen/plan_milp.c ]; then
    complain "<glpk.h> belongs in codegen/plan_milp.c alone"
  fi
  while IFS= read -r line; do complain "runtime/ and templates/ know no system by name: $line"; done < <(
    grep -rniE 'megatron|tutel|comet|dualpipe|af_pipe|disagmoe' runtime templates || true)
  ;;
format)
  command -v clang-format >/dev/null || { echo "clang-format is not installed"; exit 1; }
  files=$(find lang codegen runtime templates tests -regex '.*\.\([ch]\|cuh?\|cpp\)' ! -name moe_config.h | sort) # that one is written by moec
  # shellcheck disable=SC2086
  clang-format --dry-run -Werror $files || failed=1
  ;;
size)
  while read -r lines file; do
    if [ "$lines" -gt 600 ] && [ "$file" != total ]; then complain "$file has $lines lines; one idea per file, 600 at most"; fi
  done < <(find lang codegen runtime templates tests -type f \( -name '*.[chly]' -o -name '*.cu' -o -name '*.cuh' -o -name '*.cpp' -o -name '*.sh' -o -name '*.py' \) -exec wc -l {} +)
  ;;
names)
  while IFS= read -r line; do complain "unfinished: $line"; done < <(
    grep -rnE '\b(TODO|FIXME|XXX|HACK)\b' lang codegen runtime templates specs README.md CONTRIBUTING.md || true)
  while IFS= read -r line; do complain "path of a machine: $line"; done < <(
    grep -rnE '/(home|work|root)/[a-z]' lang codegen runtime templates specs README.md CONTRIBUTING.md || true)
  ;;
shell)
  shellcheck run.sh test.sh .ci/run .ci/install specs/jobs/*.sh specs/jobs/*.sbatch $(find tests -name '*.sh') || failed=1
  ;;
*)
  echo "usage: lint.sh layers|format|size|names|shell" >&2
  exit 2
  ;;
esac
exit $failed
