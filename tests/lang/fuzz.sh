#!/bin/bash
# Runs the fuzzer from the inputs of the repository: fuzz.sh FUZZER LANG_CHECK WORK_FOLDER SOURCE_FOLDER [SECONDS]
# Without SECONDS the same inputs every time: a fixed seed and number of runs, seed inputs in a fixed order, addresses not
# randomized. With SECONDS a random seed, which is printed (MOEC_FUZZ_SEED takes it again); what earlier such runs found
# new is kept in WORK_FOLDER/corpus and used. An input that fails is left in WORK_FOLDER.
set -e
fuzzer=$1
check=$2
work=$3
source=$4
seconds=$5
mkdir -p "$work"
export LC_ALL=C
"$check" dictionary > "$work/dictionary"
inputs=$(find "$source/tests/lang/corpus" "$source/tests/bad" "$source/specs" -type f | sort | paste -sd,)
options=(-dict="$work/dictionary" -max_len=4096 -timeout=300 -rss_limit_mb=1024 -artifact_prefix="$work/" -print_final_stats=1
         -verbosity=0 -seed_inputs="$inputs")
if [ -z "$seconds" ]; then
  # Where the kernel refuses fixed addresses, the inputs differ a little from run to run.
  fixed=
  if setarch -R true 2> /dev/null; then
    fixed="setarch -R"
  fi
  # shellcheck disable=SC2086 # none or two words
  exec $fixed "$fuzzer" "${options[@]}" -seed=1 -runs="${MOEC_FUZZ_RUNS:-25000}"
fi
seed=${MOEC_FUZZ_SEED:-$(od -An -N4 -tu4 /dev/urandom | tr -d ' ')}
echo "MOEC_FUZZ_SEED = $seed"
mkdir -p "$work/corpus"
exec "$fuzzer" "${options[@]}" -seed="$seed" -max_total_time="$seconds" "$work/corpus"
