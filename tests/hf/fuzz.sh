#!/bin/sh
# Runs the fuzzer of files and configs: fuzz.sh FUZZER WORK_FOLDER SOURCE_FOLDER RUNS
# The same seed and number of runs find the same every time. What it finds is left in WORK_FOLDER.
set -e
fuzzer=$1
work=$2
source=$3
runs=$4
rm -rf "$work/corpus"
mkdir -p "$work/corpus"
printf '"%s"\n' '\"dtype\":' '\"shape\":' '\"data_offsets\":' '\"__metadata__\":' BF16 F32 F4 U8 \
  $(sed -n 's/^HF_KEY([^"]*"\([a-z_0-9]*\)".*/\1/p' "$source/codegen/hf_config.def") model_type rope_scaling rope_parameters \
  rope_type yarn factor layer_types sliding_window mlp_only_layers norm_topk_prob > "$work/dictionary"
exec "$fuzzer" -dict="$work/dictionary" -seed=1 -runs="$runs" -max_len=4096 -timeout=10 -rss_limit_mb=1024 \
  -artifact_prefix="$work/" -print_final_stats=1 -verbosity=0 "$work/corpus" "$source/tests/hf/corpus"
