#!/usr/bin/env python3
"""Step times of the systems on the cpu target: same kernels, same model, same tokens, same ranks, one run.

Every rank's port is paced to one rate (`--link`), every compute op lasts SCALE times its own CPU time, so that ranks
which share cores take the time that they would take alone (SCALE is at least twice ranks over cores). The rate is set so
that the first system's messages, laid end to end on the busiest rank, take SHARE of messages and compute together. The
systems run in turn, round after round; a step time is the median over rounds of the round's fastest step. All of them
must end with the same losses: they train the same model on the same tokens and differ in the order of sums alone.
"""
import argparse
import json
import math
import os
import random
import shutil
import statistics
import sys
import tempfile

from steps import run

SPEC = """
gpu g {{ flops = 50 GFLOPS;  memory = 4 GiB;  hbm = 10 GB/s;  launch = 2 us }}
node n {{ gpu = g;  gpus = {ranks};  nics = {ranks};  nvlink = {link} MB/s;  nic = {link} MB/s
         nvlink_latency = 5 us;  nic_latency = 5 us }}
model m {{ layers = {layers};  hidden = {hidden};  vocab = 256;  norm_eps = 1e-6
  attention {{ heads = 4;  kv_heads = 2;  head_dim = 32;  qk_norm = head;  rope {{ theta = 1e4 }} }}
  moe       {{ experts = {experts};  top_k = {top_k};  hidden = 72;  router = softmax_renorm }} }}
cluster c {{ nodes = 1;  node = n }}
shape s {{ seq = {seq};  micro_batch = 1;  global_batch = {batch} }}
train {{ dtype = fp32;  optimizer adamw {{ lr = 1e-3 }}  seed = 1 }}
plan {{ schedule = {system};  replicas = 1;  dedup = rank;  {pins} }}
"""

# Half of the ranks on each side, or two pipeline ranks of that many with experts on all.
SYSTEMS = {
    "af_pipe": "stages = 1;  attention_gpus = {half};  ffn_gpus = {half};  in_flight = 6",
    "megatron": "stages = 2;  expert_parallel = {half};  virtual_stages = 2",
    "megatron_overlap": "stages = 2;  expert_parallel = {half};  virtual_stages = 2",
    "tutel": "stages = 2;  expert_parallel = {half};  virtual_stages = 2;  chunks = 2",
    "dualpipe": "stages = 2;  expert_parallel = {half}",
    "dualpipev": "stages = 2;  expert_parallel = {half}",
}
HIDDEN, EXPERTS, TOP_K = 128, 32, 4


def union(spans):
    out = []
    for begin, end in sorted(spans):
        if out and begin <= out[-1][1]:
            out[-1][1] = max(out[-1][1], end)
        else:
            out.append([begin, end])
    return sum(end - begin for begin, end in out)


def compute_us(trace):
    """Compute time of the micro-batches' ops, of the busiest rank."""
    spans = {}
    for event in json.load(open(trace))["traceEvents"]:
        if event.get("ph") == "X" and event["args"]["mb"] >= 0 and event["name"].split()[0] not in ("SEND", "RECV"):
            spans.setdefault(event["pid"], []).append((event["ts"], event["ts"] + event["dur"]))
    return max(union(s) for s in spans.values())


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--moec", required=True)
    parser.add_argument("--systems", default="af_pipe,megatron,tutel,dualpipe")
    parser.add_argument("--ranks", type=int, choices=(4, 8), default=4)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--share", type=float, default=0.4)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--seq", type=int, default=256)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--smoke", action="store_true")
    args = parser.parse_args()
    if args.smoke:
        args.rounds, args.steps, args.seq, args.layers = 1, 2, 64, 4
    systems = args.systems.split(",")
    ranks = args.ranks
    scale = max(2.0, 2.0 * ranks / os.cpu_count())
    work = tempfile.mkdtemp()
    try:
        text, trace, log = (os.path.join(work, name) for name in ("text", "trace", "log"))
        with open(text, "wb") as out:
            out.write(random.Random(1).randbytes(200000))  # every expert gets its share

        def build(link):
            for system in systems:
                spec = os.path.join(work, f"{system}.moespec")
                with open(spec, "w", encoding="ascii") as out:
                    out.write(SPEC.format(ranks=ranks, link=link, layers=args.layers, seq=args.seq, batch=args.batch,
                                          hidden=HIDDEN, experts=EXPERTS, top_k=TOP_K,
                                          system=system, pins=SYSTEMS[system].format(half=ranks // 2)))
                run([args.moec, "build", spec, "-o", os.path.join(work, system), "-q"])

        def train(system, steps, *more):
            run([os.path.join(work, system, "train"), "--data", text, "--holdout", "0", "--steps", str(steps), "--log", log,
                 "--compute-scale", str(scale), *more], timeout=600)
            return [json.loads(line) for line in open(log)]

        # Rows that leave an attention rank: dispatches and the gradients of combines, one per rank that a token visits.
        build(1000)
        train(systems[0], 2, "--trace", trace)
        compute = compute_us(trace)
        half = ranks // 2
        visits = half * (1 - math.comb(EXPERTS - EXPERTS // half, TOP_K) / math.comb(EXPERTS, TOP_K))
        volume = 2 * visits * args.layers * args.batch * args.seq / half * HIDDEN * 4
        rate = volume / (compute * 1e-6 * args.share / (1 - args.share))
        build(max(1, round(rate / 1e6 * scale)))  # the schedule sees links and ops in proportion
        times, losses = {s: [] for s in systems}, {}
        for _ in range(args.rounds):
            for system in systems:
                rows = train(system, args.steps, "--link", f"{rate / 1e6:.2f}MB/s")
                times[system].append(min(row["step_ms"] for row in rows))
                losses[system] = [row["loss"] for row in rows]
        base = statistics.median(times[systems[0]])
        print(f"{ranks} ranks, {os.cpu_count()} cores, compute x {scale:g}, ports {rate / 1e6:.1f} MB/s, {args.layers} layers, "
              f"{args.batch} sequences of {args.seq}; {args.rounds} rounds of {args.steps} steps")
        print(f"{'system':<18} {'step':>10} {'fastest':>10} {'slowest':>10} {'time / ' + systems[0]:>16}   loss of the last step")
        for system in systems:
            median = statistics.median(times[system])
            print(f"{system:<18} {median:>7.0f} ms {min(times[system]):>7.0f} ms {max(times[system]):>7.0f} ms "
                  f"{median / base:>16.2f}   {losses[system][-1]:.6f}")
        worst = max(abs(a / b - 1) for s in systems for a, b in zip(losses[s], losses[systems[0]]))
        print(f"losses agree within {worst:.1e}")
        sys.exit(0 if worst < 1e-3 else 1)
    finally:
        shutil.rmtree(work)


if __name__ == "__main__":
    main()
