#!/usr/bin/env python3
"""Memory that `moec plan` promises against what the ranks of the built program allocate.

Plans of one shape and of many: disaggregated and colocated, on one node and through relays, replicas, groups of unequal
size, several chunks, stages in both directions. Per rank, the estimate of its group (`moec plan --json`, of the schedule
that is built) must lie within 2 % of `train --memory`, term by term for parameters. Specs are fp32, where the cpu target and a
GPU keep the same bytes per parameter. One bf16 plan shows the documented difference: the cpu target
keeps 4 bytes of a weight, a GPU 2.
"""

import argparse
import json
import os
import re
import subprocess
import sys

TOLERANCE = 0.02

SPEC = """
gpu core {{ flops = 50 GFLOPS;  memory = 8 GiB;  hbm = 10 GB/s;  launch = 2 us
           efficiency {{ gemm = 0.7;  grouped_gemm = 0.6;  attention = 0.3;  memory = 0.8 }} }}
node host {{ gpu = core;  gpus = 16;  nics = 16;  nvlink = 4 GB/s;  nic = 4 GB/s }}
model small {{ layers = {layers};  hidden = {hidden};  vocab = {vocab};  norm_eps = 1e-6
  attention {{ heads = 4;  kv_heads = 2;  head_dim = 16;  qk_norm = head;  rope {{ theta = 1e4 }} }}
  moe {{ experts = 8;  top_k = 2;  hidden = {ffn};  router = softmax_renorm }} }}
cluster desk {{ nodes = 1;  node = host }}
shape s {{ seq = {seq};  micro_batch = {micro_batch};  global_batch = {batch} }}
train {{ dtype = {dtype} }}
plan {{ {plan};  recompute = {recompute} }}
"""

# One model for most cases, so that its kernels are compiled once.
DEFAULTS = dict(layers=6, hidden=64, vocab=256, ffn=128, seq=64, micro_batch=1, batch=16, dtype="fp32",
                recompute="none")

CASES = {
    "pipe": dict(plan="schedule = af_pipe;  replicas = 1;  stages = 2;  attention_gpus = 1;  ffn_gpus = 2"),
    "wide_vocab": dict(plan="schedule = af_pipe;  replicas = 2;  stages = 1;  attention_gpus = 2;  ffn_gpus = 2",
                       vocab=20000, batch=32),
    "unequal": dict(plan="schedule = af_pipe;  replicas = 1;  attention_gpus = 2, 1;  ffn_gpus = 1, 2, 3"),
    "relays": dict(plan="schedule = af_pipe;  replicas = 1;  stages = 1;  attention_gpus = 2;  ffn_gpus = 4;  "
                        "ranks_per_node = 2;  dedup = node", micro_batch=2),
    "pools": dict(plan="schedule = afd;  replicas = 2;  attention_gpus = 1;  ffn_gpus = 2"),
    "interleaved": dict(plan="schedule = megatron;  replicas = 1;  stages = 2;  expert_parallel = 2;  "
                             "virtual_stages = 2", batch=32),
    "chunks": dict(plan="schedule = tutel;  replicas = 2;  stages = 2;  expert_parallel = 2;  chunks = 2;  dedup = rank",
                   batch=32),
    "both_ways": dict(plan="schedule = dualpipe;  replicas = 1;  stages = 4;  expert_parallel = 1", batch=24),
    "folded": dict(plan="schedule = dualpipev;  replicas = 1;  stages = 2;  expert_parallel = 3", batch=36),
    "selective": dict(plan="schedule = af_pipe;  replicas = 1;  stages = 2;  attention_gpus = 1;  ffn_gpus = 2",
                      recompute="selective"),
    "full": dict(plan="schedule = af_pipe;  replicas = 1;  attention_gpus = 2, 1;  ffn_gpus = 1, 2, 3", recompute="full"),
    "full_relays": dict(plan="schedule = af_pipe;  replicas = 1;  stages = 1;  attention_gpus = 2;  ffn_gpus = 4;  "
                             "ranks_per_node = 2;  dedup = node", micro_batch=2, recompute="full"),
    "full_interleaved": dict(plan="schedule = megatron;  replicas = 1;  stages = 2;  expert_parallel = 2;  "
                                  "virtual_stages = 2", batch=32, recompute="full"),
    "full_both_ways": dict(plan="schedule = dualpipe;  replicas = 1;  stages = 4;  expert_parallel = 1", batch=24,
                           recompute="full"),
}

BF16 = dict(plan="schedule = af_pipe;  replicas = 1;  stages = 1;  attention_gpus = 1;  ffn_gpus = 2", dtype="bf16")

TERMS = ["weights", "gradients", "optimizer", "activations", "buffers", "workspace", "total"]


def run(command):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: exit {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def measure(args, name, case):
    """Per rank: the terms its group is said to need, and those it allocates."""
    work = os.path.join(args.work, "memory_" + name)
    os.makedirs(work, exist_ok=True)
    spec = os.path.join(work, "memory.moespec")
    with open(spec, "w") as out:
        out.write(SPEC.format(**{**DEFAULTS, **case}))
    plan = json.loads(run([args.moec, "plan", spec, "--json"]))
    bundle = os.path.join(work, "bundle")
    run([args.moec, "build", spec, "-q", "-o", bundle])
    said = [None] * plan["replicas"] * sum(len(g["ranks"]) for g in plan["groups"])
    per_replica = len(said) // plan["replicas"]
    for q in range(plan["replicas"]):
        for g in plan["groups"]:
            for r in g["ranks"]:
                said[q * per_replica + r] = g["memory"]
    lines = [line.split() for line in run([os.path.join(bundle, "train"), "--memory"]).splitlines()]
    rows = [dict(zip(TERMS, map(int, line[2:]))) for line in lines if re.fullmatch(r"\d+", line[0])]
    if len(rows) != len(said) or None in said:
        sys.exit(f"{name}: {len(said)} ranks planned, {len(rows)} in the program")
    return said, rows


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--moec", required=True)
    parser.add_argument("--work", required=True)
    args = parser.parse_args()
    failed = False
    for name, case in CASES.items():
        said, rows = measure(args, name, case)
        # the plan speaks of the fullest rank of a group
        fullest = {}
        for promise, row in zip(said, rows):
            old = fullest.get(id(promise))
            if old is None or row["total"] > old[1]["total"]:
                fullest[id(promise)] = (promise, row)
        worst = max(fullest.values(), key=lambda pair: abs(pair[0]["total"] / pair[1]["total"] - 1))
        off = worst[0]["total"] / worst[1]["total"] - 1
        held = ("weights", "gradients", "optimizer")
        exact = all(abs(p[t] - r[t]) <= 0.005 * r[t] for p, r in fullest.values() for t in held)
        print(f"{name}: {len(rows)} ranks, furthest {100 * off:+.1f} %", *(
            f"{t} {worst[0][t]}/{worst[1][t]}" for t in TERMS))
        if abs(off) > TOLERANCE or not exact:
            failed = True
            print(f"  {name}: off by more than {100 * TOLERANCE:.0f} %, or parameters are miscounted")
    said, rows = measure(args, "bf16", BF16)
    for promise, row in zip(said, rows):
        slack = 0.01 * row["weights"] + 4096
        if abs(2 * promise["weights"] - row["weights"]) > slack or abs(promise["gradients"] - row["gradients"]) > slack:
            failed = True
            print(f"bf16: weights {promise['weights']} of 2 bytes planned, {row['weights']} of 4 bytes held")
    print("bf16: the cpu target keeps 4 bytes of a weight, the plan counts a GPU's 2")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
