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
cmake --build --preset dev
ctest --test-dir build/dev --output-on-failure -j 2 --no-tests=error "${exclude[@]}" "$@"
