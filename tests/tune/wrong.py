#!/usr/bin/env python3
"""A constant of the hardware file is wrong by a factor of 2; tuning on measured steps makes up for it.

  wrong.py --moec MOEC --work DIR [--thin] [CASE ...]     some of the cases below, or all; thin: fewer plans to beat

Measured steps are those that moec simulates with the right constant: the launch command of `moec tune` plans a trial's
pins again under it. The best of all plans is found by going through them, stages, GPUs of both sides, and micro-batches
in flight. What tune ends with must be within 3 % of that after its 8 trials.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys

LIMIT = 3.0

SPEC = """
gpu g {{ flops = 100 TFLOPS;  memory = 80 GiB;  hbm = 2 TB/s;  launch = 4 us
  efficiency {{ gemm = 0.6;  grouped_gemm = 0.5;  attention = 0.4;  memory = 0.8 }} }}
node n {{ gpu = g;  gpus = {gpus};  nics = {gpus};  nvlink = {nvlink} GB/s;  nic = {nic} GB/s
         nvlink_latency = 4 us;  nic_latency = 6 us }}
model m {{ layers = 8;  hidden = 1024;  vocab = 8192;  norm_eps = 1e-6
  attention {{ heads = 16;  kv_heads = 4;  head_dim = 64;  qk_norm = head;  rope {{ theta = 1e4 }} }}
  moe       {{ experts = 32;  top_k = 4;  hidden = 1024;  router = softmax_renorm }} }}
cluster c {{ nodes = {nodes};  node = n }}
shape s {{ seq = {seq};  micro_batch = 1;  global_batch = 48 }}
train {{ dtype = bf16 }}
plan {{ schedule = {system};  replicas = 1 }}
"""

# what is wrong: pattern of the setting in the spec that moec writes, and the factor to the truth
CASES = {
    "attention_slow": (dict(nodes=1), "attention", r"(\n    attention += )([0-9.e-]+)", 0.5),
    "attention_fast": (dict(nodes=1), "attention", r"(\n    attention += )([0-9.e-]+)", 2.0),
    "experts_slow": (dict(nodes=1, seq=4096), "grouped_gemm", r"(\n    grouped_gemm += )([0-9.e-]+)", 0.5),
    "dense_slow": (dict(nodes=1, seq=2048), "gemm", r"(\n    gemm += )([0-9.e-]+)", 0.5),
    "nvlink_slow": (dict(nodes=1, nvlink=10), "nvlink", r"(\n  nvlink += )([0-9.e-]+)", 0.5),
    "nic_slow": (dict(nodes=2, gpus=4, nic=40), "nic", r"(\n  nic += )([0-9.e-]+)", 0.5),
    "attention_slow_nodes": (dict(nodes=2, gpus=4), "attention", r"(\n    attention += )([0-9.e-]+)", 0.5),
    "colocated": (dict(nodes=1, system="megatron"), "attention", r"(\n    attention += )([0-9.e-]+)", 0.5),
}


def spec_of(change):
    values = dict(nodes=1, gpus=8, nvlink=80, nic=25, seq=8192, system="af_pipe")
    values.update(change)
    return SPEC.format(**values)


def right(text, pattern, factor):
    changed, n = re.subn(pattern, lambda m: m.group(1) + repr(float(m.group(2)) * factor), text)
    if n != 1:
        sys.exit(f"{n} settings match {pattern}")
    return changed


def step_ms(moec, path, text):
    with open(path, "w", encoding="ascii") as f:
        f.write(text)
    done = subprocess.run([moec, "plan", path, "--json"], capture_output=True, text=True)
    if done.returncode:
        return None, done.stderr.strip().splitlines()[0]
    return json.loads(done.stdout)["step_ns"] * 1e-6, None


def as_launched(args):
    """What a trial runs: five steps as long as the right constant makes them."""
    spec = os.environ["MOEC_TRIAL_SPEC"]
    text = right(open(spec, encoding="ascii").read(), CASES[args.case[0]][2], CASES[args.case[0]][3])
    ms, error = step_ms(args.moec, spec + ".right", text)
    if error:
        sys.exit(error)
    with open(args.measure, "w", encoding="ascii") as log:
        for step in range(5):
            log.write(json.dumps({"step": step + 1, "step_ms": ms * (3 if step < 2 else 1)}) + "\n")


def plan_block(text, pins):
    head, _, _ = text.rpartition("\nplan {")
    return f"{head}\nplan {{ {';  '.join(f'{k} = {v}' for k, v in pins.items())} }}\n"


def every_plan(system, gpus, thin):
    if system == "megatron":
        for stages in range(1, 9):
            for ep in range(1, gpus // stages + 1):
                for virtual in range(1, 8 // stages + 1):
                    yield dict(stages=stages, expert_parallel=ep, virtual_stages=virtual)
        return
    for p_att in range(1, gpus):
        for p_ffn in range(1, gpus - p_att + 1):
            for n_att in range(1, gpus // p_att + 1):
                for n_ffn in range(1, (gpus - p_att * n_att) // p_ffn + 1):
                    if p_att > 8 or p_ffn > 8 or p_att * n_att + p_ffn * n_ffn < gpus - (not thin):
                        continue
                    for cap in (None,) if thin else (None, 2, 4, 6, 8, 12, 16):
                        pins = dict(attention_stages=p_att, ffn_stages=p_ffn, attention_gpus=n_att, ffn_gpus=n_ffn)
                        yield dict(pins, in_flight=cap) if cap else pins


def exhaustive(args, work, text, system, gpus):
    best = None
    for pins in every_plan(system, gpus, args.thin):
        ms, _ = step_ms(args.moec, os.path.join(work, "every.moespec"),
                        plan_block(text, dict(schedule=system, replicas=1, **pins)))
        if ms and (best is None or ms < best[0]):
            best = (ms, pins)
    return best


def run_case(args, case):
    change, _, pattern, factor = CASES[case]
    work = os.path.join(args.work, case)
    shutil.rmtree(work, ignore_errors=True)
    os.makedirs(work)
    spec, tuned = os.path.join(work, "spec.moespec"), os.path.join(work, "tuned.moespec")
    with open(spec, "w", encoding="ascii") as f:
        f.write(spec_of(change))
    launch = f"'{sys.executable}' '{os.path.abspath(__file__)}' --moec '{args.moec}' --work x --measure {{log}} {case}"
    done = subprocess.run([args.moec, "tune", spec, "--launch", launch, "-o", tuned], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{case}: moec tune ended with {done.returncode}\n{done.stdout}{done.stderr}")
    if args.verbose:
        print(done.stdout)
    text = right(open(tuned, encoding="ascii").read(), pattern, factor)
    found, error = step_ms(args.moec, os.path.join(work, "found.moespec"), text)
    seed = float(re.search(r"^ +1 .* (\d[\d.]*) (us|ms|s) +1\.000", done.stdout, re.M).group(1))
    best, pins = exhaustive(args, work, text, change.get("system", "af_pipe"), change.get("gpus", 8) * change["nodes"])
    off = 100 * (found / best - 1)
    print(f"{case:<22} seed {seed:g}, tuned {found:.2f} ms, best {best:.2f} ms ({', '.join(f'{k} {v}' for k, v in pins.items())}): "
          f"{off:+.2f} %{'  <- more than %g %%' % LIMIT if off > LIMIT else ''}", flush=True)
    return off <= LIMIT


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--moec", required=True)
    parser.add_argument("--work", required=True)
    parser.add_argument("--measure")
    parser.add_argument("--thin", action="store_true")
    parser.add_argument("--verbose", action="store_true")
    parser.add_argument("case", nargs="*")
    args = parser.parse_args()
    if args.measure:
        as_launched(args)
        return
    results = [run_case(args, case) for case in args.case or CASES]
    sys.exit(0 if all(results) else 1)


if __name__ == "__main__":
    main()
