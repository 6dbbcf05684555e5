#!/bin/sh
# Runs the fuzzer for a minute (MOEC_FUZZ_SECONDS): fuzz.sh FUZZER LANG_CHECK WORK_FOLDER SOURCE_FOLDER
# What it finds is left in WORK_FOLDER, new inputs in WORK_FOLDER/corpus.
set -e
fuzzer=$1
check=$2
work=$3
source=$4
mkdir -p "$work/corpus"
"$check" dictionary > "$work/dictionary"
exec "$fuzzer" -dict="$work/dictionary" -max_total_time="${MOEC_FUZZ_SECONDS:-60}" -max_len=4096 -timeout=10 -rss_limit_mb=1024 \
  -artifact_prefix="$work/" -print_final_stats=1 -verbosity=0 "$work/corpus" "$source/tests/lang/corpus" "$source/tests/bad" "$source/specs"
