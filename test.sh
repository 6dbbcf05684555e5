#!/usr/bin/env bash
# Installs what is missing, builds, and runs the suite.
#   ./test.sh [--slow] [ctest options, such as -L e2e]
set -euo pipefail
cd "$(dirname "$0")"

.ci/install test
exclude=(-LE 'slow')
if [ "${1:-}" = --slow ]; then
  exclude=(-L 'slow')
  shift
fi
cmake --preset dev >/dev/null
quiet=()
[ -t 1 ] || quiet=(-- --quiet)
cmake --build --preset dev "${quiet[@]}"
log=build/dev/test.log
ctest --test-dir build/dev --output-on-failure -j 2 --no-tests=error "${exclude[@]}" "$@" | tee "$log"

awk 'NR == FNR { if ($1 !~ /^#/ && NF == 2) budget[$1] = $2; next }
     $2 == "=" && $4 ~ /^sec/ && ($1 in budget) && $3 > budget[$1] {
       printf "over budget: label %s took %d s of core time, %d are planned (tests/budgets.txt)\n", $1, $3, budget[$1]
     }' tests/budgets.txt "$log"
