#!/usr/bin/env bash
# A compiled model as jobs of several processes: losses, gradients and weights are those of one process, bit by bit.
#   jobs.sh MOEC SPECS WORK
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$3/jobs"
"$1" build "$2/tiny.moespec" -o "$3/jobs/tiny" >"$3/jobs/build.log" 2>&1 || { cat "$3/jobs/build.log"; exit 1; }
exec python3 "$here/../runtime/job_test.py" "$3/jobs/tiny/train" model
