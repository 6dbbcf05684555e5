#!/usr/bin/env python3
"""Overlap is real: on an FFN rank with paced links, transfers of both directions run under compute.

  overlap.py --moec MOEC --work DIR [--serial]

The spec gives FFN about twice the work of attention, so that what the FFN rank waits for can only be its transfers; beside
an equal attention rank its idle time would follow from that rank's pace, and the share below from the machine's load.
A first run without paced links measures the FFN rank's compute time C per step; the second paces every port so that the
rank's M2N transfers, laid end to end, take 40 % of transfers plus compute. Every compute op lasts SCALE times its own CPU
time, so two processes on two cores, and their progress threads, behave like four cores' worth. From the measured trace of
the FFN rank:
  - some moment has a send, a receive and a compute op at once;
  - at least 80 % of the time in which an M2N transfer is under way, compute is under way too.
The best of RUNS attempts counts: other load on the machine can only make overlap look worse. With --serial the same
program runs without its progress thread, and the test passes if the check then fails.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys

SCALE = 4
SHARE = 0.4
WANTED = 0.8
RUNS = 3
M2N = ("DISPATCH", "COMBINE", "DISPATCH_B", "COMBINE_B")

SPEC = """
gpu g { flops = 50 GFLOPS; memory = 4 GiB; hbm = 10 GB/s; launch = 2 us }
node n { gpu = g; gpus = 2; nics = 2; nvlink = 200 MB/s; nic = 200 MB/s; nvlink_latency = 5 us; nic_latency = 5 us }
model m { layers = 4;  hidden = 128;  vocab = 256;  norm_eps = 1e-6
  attention { heads = 4;  kv_heads = 2;  head_dim = 32;  qk_norm = head;  rope { theta = 1e4 } }
  moe       { experts = 8;  top_k = 2;  hidden = 384;  router = softmax_renorm } }
cluster c { nodes = 1;  node = n }
shape s { seq = 256;  micro_batch = 1;  global_batch = 16 }
train { dtype = fp32;  optimizer adamw { lr = 3e-3 }  seed = 1 }
plan { schedule = af_pipe;  replicas = 1;  stages = 1;  attention_gpus = 1;  ffn_gpus = 1;  in_flight = 6 }
"""


def union(spans):
    out = []
    for begin, end in sorted(spans):
        if out and begin <= out[-1][1]:
            out[-1][1] = max(out[-1][1], end)
        else:
            out.append([begin, end])
    return out


def both(a, b):
    """Intersection of two unions."""
    out, i, j = [], 0, 0
    while i < len(a) and j < len(b):
        begin, end = max(a[i][0], b[j][0]), min(a[i][1], b[j][1])
        if begin < end:
            out.append([begin, end])
        if a[i][1] < b[j][1]:
            i += 1
        else:
            j += 1
    return out


def length(spans):
    return sum(end - begin for begin, end in spans)


def ffn_rank(path, rank=1):
    """Unions of compute, M2N sends and M2N receives of one rank, in microseconds."""
    compute, sends, recvs = [], [], []
    for event in json.load(open(path))["traceEvents"]:
        if event.get("ph") != "X" or event["pid"] != rank:
            continue
        span = (event["ts"], event["ts"] + event["dur"])
        words = event["name"].split()
        if words[0] in ("SEND", "RECV"):
            if words[1] in M2N:
                (sends if words[0] == "SEND" else recvs).append(span)
        elif words[-1].startswith("m"):
            compute.append(span)
    return union(compute), sends, recvs


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--moec", required=True)
    parser.add_argument("--work", required=True)
    parser.add_argument("--serial", action="store_true")
    args = parser.parse_args()
    work = os.path.join(args.work, "overlap-serial" if args.serial else "overlap")
    shutil.rmtree(work, ignore_errors=True)
    os.makedirs(work)
    env = dict(os.environ, MOEC_CACHE=os.path.join(args.work, "objects"))
    spec, bundle, trace = (os.path.join(work, x) for x in ("o.moespec", "bundle", "trace.json"))
    text = os.path.join(work, "text")
    with open(spec, "w") as f:
        f.write(SPEC)
    with open(text, "wb") as f:
        f.write(bytes((i * i // 7 + i) % 251 for i in range(100000)))
    subprocess.run([args.moec, "build", spec, "-o", bundle], check=True, env=env, stdout=subprocess.DEVNULL)

    def train(*more):
        subprocess.run([f"{bundle}/train", "--data", text, "--holdout", "0", "--steps", "3", "--trace", trace,
                        "--compute-scale", str(SCALE), *more], check=True, env=env, stderr=subprocess.DEVNULL,
                       stdout=subprocess.DEVNULL, timeout=200)
        return ffn_rank(trace)

    compute, _, _ = train()
    # 4 layers x 16 micro-batches, forward and backward, 256 rows of 128 floats each way
    volume = 4 * 16 * 2 * 256 * 128 * 4
    transfers_us = SHARE / (1 - SHARE) * length(compute)
    rate = 2 * volume / (transfers_us * 1e-6)
    if args.serial:
        env["MOE_TEST_SERIAL"] = "1"
    best = (0.0, False)
    for _ in range(1 if args.serial else RUNS):
        compute, sends, recvs = train("--link", f"{rate / 1e6:.1f}MB/s")
        moving = union(sends + recvs)
        hidden = length(both(moving, compute)) / length(moving)
        at_once = length(both(both(union(sends), union(recvs)), compute))
        total = sum(end - begin for begin, end in sends + recvs)
        print(f"compute {length(compute) / 1e3:.0f} ms, transfers {total / 1e3:.0f} ms at {rate / 1e6:.0f} MB/s "
              f"(share {total / (total + length(compute)):.0%}), under compute {hidden:.0%}, "
              f"send + receive + compute at once {at_once / 1e3:.1f} ms", flush=True)
        best = max(best, (hidden, at_once > 0))
        if best[0] >= WANTED and best[1]:
            break
    good = best[0] >= WANTED and best[1]
    if args.serial:
        print("a serial executor fails the check, as it must" if not good else "a serial executor passes: the check is blind")
        good = not good
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
