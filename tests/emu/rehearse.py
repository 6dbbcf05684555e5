#!/usr/bin/env python3
"""Executed against simulated: rehearses clusters on this machine and prints how far the two step times are apart.

  rehearse.py --moec MOEC --work DIR [--ranks 8,16,32] [--systems a,b] [--steps N] [--scale X] [--limit PERCENT] [SPEC ...]

Every system runs on clusters of 8, 16 and 32 GPUs in nodes of 4 or 8 (specs given on the command line take the place of
these): built for target emu, its schedule, executor, slots and transports are the real ones, ops take their modelled
durations and links the modelled bandwidth, slowed down by the time scale. Two figures are compared with the simulator's:
the step on the ranks' common timeline, on which lateness of this machine does not add up, and, divided by the scale, the
time that really passed. A row fails if the first is further off than LIMIT (5 %). The second depends on how busy the
machine is; it is shown. Exit code 1 if a row fails.
"""

import argparse
import json
import os
import re
import subprocess
import sys

SYSTEMS = ("af_pipe", "afd", "megatron", "megatron_overlap", "tutel", "comet", "dualpipe", "dualpipev")
DISAGGREGATED = ("af_pipe", "afd")

# A small GPU cluster with the proportions of a large one: NICs at a quarter of NVLink, a message about as long as an op.
SPEC = """
gpu g {{ flops = 400 TFLOPS;  memory = 2 TB;  hbm = 3 TB/s;  launch = 5 us }}
node n {{ gpu = g;  gpus = {gpus};  nics = {nics};  nvlink = 160 GB/s;  nic = {nic} GB/s
         nvlink_latency = 3 us;  nic_latency = 6 us }}
model m {{ layers = {layers};  hidden = 2048;  vocab = 32000;  norm_eps = 1e-6
  attention {{ heads = 32;  kv_heads = 4;  head_dim = 128;  rope {{ theta = 1e6 }} }}
{dense}  moe {{ experts = 32;  top_k = 4;  hidden = 1024;  router = softmax_renorm{shared} }} }}
cluster c {{ nodes = {nodes};  node = n }}
shape s {{ seq = 4Ki;  micro_batch = {seqs};  global_batch = {batch} }}
train {{ dtype = bf16;  optimizer adamw {{ lr = 3e-4 }}  seed = 1 }}
plan {{ schedule = {system};  replicas = {replicas};  {pins} }}
"""

# Groups per side and ranks per group of the disaggregated layouts; pipeline ranks and expert parallelism of the others.
# All systems of a cluster run the same global batch.
LAYOUTS = {
    8: dict(gpus=4, nodes=2, stages=2, size=2, pp=2, ep=4, batch=32),
    16: dict(gpus=8, nodes=2, stages=2, size=4, pp=4, ep=4, batch=48),
    32: dict(gpus=8, nodes=4, stages=2, size=8, pp=4, ep=8, batch=96),
}


def spec_of(system, ranks, layers=8, nic=40, nics=None, dense=0, shared=0, dedup=None, replicas=1, placement=None,
            sizes=None, recompute=None, seqs=1, batch=None):
    """sizes: GPUs of one attention and one FFN group, batch: sequences of a replica, in place of the layout's; seqs: of a
    micro-batch, on each attention rank."""
    lay = LAYOUTS[ranks]
    if system in DISAGGREGATED:
        stages = 1 if system == "afd" else lay["stages"]
        size = lay["size"] * lay["stages"] // stages
        pins = f"stages = {stages};  attention_gpus = {size};  ffn_gpus = {size};  in_flight = 6"
        if sizes:
            pins = f"stages = 1;  attention_gpus = {sizes[0]};  ffn_gpus = {sizes[1]};  in_flight = 6"
        if placement:
            pins += f";  placement = {placement}"
    else:
        pins = f"stages = {lay['pp']};  expert_parallel = {lay['ep']}"
        if system in ("megatron", "megatron_overlap", "tutel", "comet"):
            pins += ";  virtual_stages = 2"
        if system == "tutel":
            pins += ";  chunks = 2"
    if dedup:
        pins += f";  dedup = {dedup}"
    if recompute:
        pins += f";  recompute = {recompute}"
    return SPEC.format(gpus=lay["gpus"], nodes=lay["nodes"] * replicas, nics=nics or lay["gpus"], nic=nic, layers=layers,
                       dense=f"  dense {{ layers = {dense};  hidden = 4096 }}\n" if dense else "",
                       shared=f";  shared = {shared}" if shared else "",
                       batch=(batch or lay["batch"]) * replicas, system=system, replicas=replicas, pins=pins, seqs=seqs)


def build(moec, spec, folder, system, env):
    words = [moec, "build", spec, "--target", "emu", "-o", folder, "-q"] + (["--system", system] if system else [])
    done = subprocess.run(words, env=env, capture_output=True, text=True)
    if done.returncode:
        return done.stderr.strip().splitlines()[0] if done.stderr.strip() else f"exit code {done.returncode}"
    return None


def rehearse(folder, steps, scale, trace=None):
    """The rows of the program's log."""
    log = os.path.join(folder, "log.jsonl")
    words = [os.path.join(folder, "train"), "--steps", str(steps), "--log", log, "--timeout", "60"]
    words += ["--scale", str(scale)] if scale else []
    words += ["--trace", trace] if trace else []
    done = subprocess.run(words, capture_output=True, text=True, timeout=900)
    if done.returncode:
        raise RuntimeError(done.stderr.strip().splitlines()[-1])
    return [json.loads(line) for line in open(log)]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--moec", required=True)
    parser.add_argument("--work", required=True)
    parser.add_argument("--ranks", default="8,16,32")
    parser.add_argument("--systems", default=",".join(SYSTEMS))
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--scale", type=float)
    parser.add_argument("--limit", type=float, default=5.0)
    parser.add_argument("specs", nargs="*")
    args = parser.parse_args()
    os.makedirs(args.work, exist_ok=True)
    env = dict(os.environ, MOEC_CACHE=os.path.join(args.work, "objects"))
    jobs = []
    for spec in args.specs:
        jobs += [(os.path.splitext(os.path.basename(spec))[0], system, spec) for system in args.systems.split(",")]
    for ranks in (int(n) for n in args.ranks.split(",") if not args.specs):
        for system in args.systems.split(","):
            spec = os.path.join(args.work, f"{system}-{ranks}.moespec")
            with open(spec, "w") as f:
                f.write(spec_of(system, ranks))
            jobs.append((f"{ranks} ranks", system, spec))
    print(f"{'cluster':<12} {'system':<17} {'simulated':>12} {'executed':>12} {'off':>8} {'real':>12} {'off':>8} {'scale':>7} "
          f"{'real step':>10}")
    failed = 0
    for name, system, spec in jobs:
        folder = os.path.join(args.work, re.sub(r"\W", "_", f"{name}-{system}"))
        error = build(args.moec, spec, folder, system, env)
        if error:
            failed += 1
            print(f"{name:<12} {system:<17} {error}", flush=True)
            continue
        try:
            rows = rehearse(folder, args.steps, args.scale)
        except (RuntimeError, subprocess.TimeoutExpired) as problem:
            failed += 1
            print(f"{name:<12} {system:<17} {problem}", flush=True)
            continue
        worst = max(rows, key=lambda r: abs(r["executed_ms"] - r["modelled_ms"]))
        real = min(r["real_ms"] / r["scale"] for r in rows)
        modelled = worst["modelled_ms"]
        off = 100 * (worst["executed_ms"] / modelled - 1)
        wrong = abs(off) > args.limit
        failed += wrong
        print(f"{name:<12} {system:<17} {modelled:>9.3f} ms {worst['executed_ms']:>9.3f} ms {off:>+6.2f} % {real:>9.3f} ms "
              f"{100 * (real / modelled - 1):>+6.2f} % {worst['scale']:>7g} {real * worst['scale'] / 1e3:>8.2f} s"
              f"{'  <- more than ' + str(args.limit) + ' %' if wrong else ''}", flush=True)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
