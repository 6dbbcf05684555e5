#!/bin/bash
# Runs a fuzzer from inputs of the repository:
#   fuzz.sh FUZZER WORK_FOLDER RUNS|SECONDSs DICTIONARY_COMMAND INPUTS... [-OPTION=...]
# With a number of runs the same inputs every time: a fixed seed, seed inputs in a fixed order, addresses not randomized.
# With seconds ("600s") a random seed, which is printed (MOEC_FUZZ_SEED takes it again); what earlier such runs found new
# is kept in WORK_FOLDER/corpus and used. An input that fails is left in WORK_FOLDER. The fuzzer runs in a folder of its
# own, in memory if that is possible. Options of libFuzzer come after those that are set here.
set -e
fuzzer=$(realpath "$1")
work=$2
length=$3
dictionary=$4
shift 4
mkdir -p "$work"
work=$(realpath "$work")
export LC_ALL=C
sh -c "$dictionary" > "$work/dictionary"
options=(-max_len=4096 -timeout=300 -rss_limit_mb=1024 -artifact_prefix="$work/" -print_final_stats=1 -verbosity=0)
if [ -s "$work/dictionary" ]; then
  options+=(-dict="$work/dictionary")
fi
folders=()
for word; do
  case $word in
  -*) options+=("$word") ;;
  *) folders+=("$(realpath "$word")") ;;
  esac
done
options+=(-seed_inputs="$(find "${folders[@]}" -type f | sort | paste -sd,)")
scratch=$(mktemp -d -p /dev/shm 2> /dev/null || mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cd "$scratch"
if [ "$length" = "${length%s}" ]; then
  # Where the kernel refuses fixed addresses, the inputs differ a little from run to run.
  fixed=
  if setarch -R true 2> /dev/null; then
    fixed="setarch -R"
  fi
  # shellcheck disable=SC2086 # none or two words
  $fixed "$fuzzer" "${options[@]}" -seed=1 -runs="${MOEC_FUZZ_RUNS:-$length}"
else
  seed=${MOEC_FUZZ_SEED:-$(od -An -N4 -tu4 /dev/urandom | tr -d ' ')}
  echo "MOEC_FUZZ_SEED = $seed"
  mkdir -p "$work/corpus"
  "$fuzzer" "${options[@]}" -seed="$seed" -max_total_time="${length%s}" "$work/corpus"
fi
