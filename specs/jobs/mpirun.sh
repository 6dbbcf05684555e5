#!/usr/bin/env bash
# Open MPI (or, with MPIRUN=mpiexec.hydra, MPICH) starts a process for each rank. On one host:
#   RANKS=4 ./mpirun.sh
# On several, whose first is 10.0.0.1; Open MPI hands MOE_* on:
#   RANKS=16 MOE_ADDRESS=10.0.0.1:29500 MOE_TOKEN_FILE=$PWD/token ./mpirun.sh -x MOE_ADDRESS -x MOE_TOKEN_FILE --hostfile hosts
set -euo pipefail
exec "${MPIRUN:-mpirun}" -n "$RANKS" "$@" \
  "${TRAIN:-out/model/train}" --data "${DATA:-data/tokens}" --steps "${STEPS:-1000}" --save "${SAVE:-checkpoints}" --save-every 100 \
  --resume "${SAVE:-checkpoints}"
