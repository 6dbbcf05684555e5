#!/usr/bin/env bash
# torchrun starts a process for each rank. On each of NODES hosts, with NODE from 0 on:
#   MASTER_ADDR=10.0.0.1 NODES=2 NODE=0 RANKS_PER_NODE=8 ./torchrun.sh
# The token is a secret of the job that every host has: head -c 32 /dev/urandom | base64 >token
set -euo pipefail
export MOE_TOKEN_FILE=${MOE_TOKEN_FILE:-token}
exec torchrun --no-python --nnodes "$NODES" --node-rank "$NODE" --nproc-per-node "$RANKS_PER_NODE" \
  --master-addr "$MASTER_ADDR" --master-port "${MASTER_PORT:-29500}" \
  "${TRAIN:-out/model/train}" --data "${DATA:-data/tokens}" --steps "${STEPS:-1000}" --save "${SAVE:-checkpoints}" --save-every 100 \
  --resume "${SAVE:-checkpoints}"
