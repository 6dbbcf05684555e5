#!/bin/sh
# Dictionary of the fuzzer of files and configs: words.sh HF_CONFIG_DEF
sed -n 's/^HF_KEY([^"]*"\([a-z_0-9]*\)".*/"\1"/p' "$1" | sort -u
printf '"%s"\n' '\"dtype\":' '\"shape\":' '\"data_offsets\":' '\"__metadata__\":' BF16 F32 F4 U8 model_type rope_scaling \
  rope_parameters rope_type yarn factor layer_types sliding_window mlp_only_layers norm_topk_prob
