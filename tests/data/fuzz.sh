#!/usr/bin/env bash
# A fixed number of runs of the fuzzer over token sets, with a fixed seed: fuzz.sh FUZZER WORK RUNS
set -euo pipefail
fuzzer=$1 work=$2 runs=$3
rm -rf "$work"
mkdir -p "$work/begin" "$work/found"
python3 "$(dirname "$0")/sets.py" corpus "$work/begin"
files=$(mktemp -d -p /dev/shm 2>/dev/null || mktemp -d) # in memory if that is possible
trap 'rm -rf "$files"' EXIT
cd "$files"
"$fuzzer" -seed=1 -runs="$runs" -max_len=1500 -timeout=10 -rss_limit_mb=1024 -artifact_prefix="$work/" -print_final_stats=1 \
  -verbosity=0 "$work/found" "$work/begin" 2>"$work/said" || { cat "$work/said"; exit 1; }
grep -E 'number_of_executed_units|peak_rss_mb' "$work/said"
