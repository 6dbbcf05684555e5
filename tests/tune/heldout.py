#!/usr/bin/env python3
"""Calibrate on some shapes, predict others, execute them: what the model is worth on this machine.

  heldout.py --moec MOEC --work DIR [--smoke]

Four ranks on the cpu target. They share cores, so every compute op lasts SCALE times its own CPU time and every rank's
port is paced to one rate (`train --compute-scale --link`): then ranks take the time that they would take alone. Runs of
a few specs are traced and `moec calibrate` makes a hardware file of them; with it the steps of other specs are
predicted, in other sizes, splits and systems, before they run. Limits: a step within 15 %, systems of one model in the
predicted order (unless they are within 3 % of each other), the share of communication that is overlapped within 5
points: what of it does not lengthen the step beyond that of a run with free messages. Tokens are random and nothing is
learnt, so that experts are chosen evenly, as the model takes it. Every figure is printed; which limits are missed is said at the end and in the exit code.
"""

import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys

STEP, TIE, SHARE = 15.0, 3.0, 5.0

GUESS = """gpu g { flops = 50 GFLOPS;  memory = 4 GiB;  hbm = 10 GB/s;  launch = 2 us }
node machine { gpu = g;  gpus = 4;  nics = 4;  nvlink = 100 MB/s;  nic = 100 MB/s;  nvlink_latency = 5 us;  nic_latency = 5 us }
"""

SPEC = """{use}
model m {{ layers = {layers};  hidden = {hidden};  vocab = 256;  norm_eps = 1e-6;  init_std = 0.005
  attention {{ heads = {heads};  kv_heads = 2;  head_dim = 32;  qk_norm = head;  rope {{ theta = 1e4 }} }}
  moe       {{ experts = {experts};  top_k = 2;  hidden = {ffn};  router = softmax_renorm }} }}
cluster c {{ nodes = 1;  node = {node} }}
shape s {{ seq = {seq};  micro_batch = 1;  global_batch = {batch} }}
train {{ dtype = fp32;  optimizer adamw {{ lr = 0 }}  seed = 1 }}
plan {{ schedule = {system};  replicas = 1;  dedup = rank;  recompute = none;  {pins} }}
"""

PINS = {
    "af_pipe": "stages = 1;  attention_gpus = 2;  ffn_gpus = 2;  in_flight = 6",
    "af_pipe_1_3": "stages = 1;  attention_gpus = 1;  ffn_gpus = 3;  in_flight = 6",
    "af_pipe_3_1": "stages = 1;  attention_gpus = 3;  ffn_gpus = 1;  in_flight = 6",
    "af_pipe_2x1": "stages = 2;  attention_gpus = 1;  ffn_gpus = 1;  in_flight = 6",
    "megatron": "stages = 2;  expert_parallel = 2;  virtual_stages = 2",
    "tutel": "stages = 2;  expert_parallel = 2;  virtual_stages = 2;  chunks = 2",
    "dualpipe": "stages = 2;  expert_parallel = 2",
}

BASE = dict(layers=4, hidden=128, heads=4, experts=8, ffn=192, seq=256, batch=16)
KNOWN = [dict(), dict(hidden=256, heads=8, seq=512, ffn=256, batch=8), dict(hidden=96, seq=128, experts=16, ffn=128)]
OTHERS = [
    ("seq 384", dict(seq=384), ("af_pipe", "megatron", "tutel", "dualpipe")),
    ("hidden 192, 6 heads", dict(hidden=192, heads=6, seq=192), ("af_pipe", "megatron", "tutel", "dualpipe")),
    ("16 experts of 128", dict(experts=16, ffn=128, hidden=160), ("af_pipe", "megatron", "tutel", "dualpipe")),
    ("experts of 384, 1 + 3", dict(ffn=384, batch=12), ("af_pipe_1_3",)),
    ("seq 512, 3 + 1", dict(seq=512, hidden=96, batch=12), ("af_pipe_3_1",)),
    ("6 layers, 2 x 1 + 2 x 1", dict(layers=6, batch=12), ("af_pipe_2x1",)),
]


def run(command, **more):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **more)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def compute_us(trace):
    """Compute time of the micro-batches' ops, of the busiest rank."""
    total = {}
    for event in json.load(open(trace, encoding="ascii"))["traceEvents"]:
        if event.get("ph") == "X" and event["args"]["mb"] >= 0 and event["cat"] not in ("SEND", "RECV"):
            total[event["pid"]] = total.get(event["pid"], 0) + event["dur"]
    return max(total.values())


class Bench:
    def __init__(self, args):
        self.args = args
        self.scale = args.scale or max(2.0, 2.0 * 4 / os.cpu_count())
        shutil.rmtree(args.work, ignore_errors=True)
        os.makedirs(args.work)
        self.env = dict(os.environ, MOEC_CACHE=os.path.join(args.work, "objects"))
        self.text = self.path("text")
        with open(self.text, "wb") as out:
            out.write(random.Random(1).randbytes(200000))
        with open(self.path("guess.moespec"), "w", encoding="ascii") as out:
            out.write(GUESS)

    def path(self, name):
        return os.path.join(self.args.work, name)

    def spec(self, name, sizes, system, library="guess", node="machine"):
        values = dict(BASE, **sizes)
        with open(self.path(f"{name}.moespec"), "w", encoding="ascii") as out:
            out.write(SPEC.format(use=f'use "{library}.moespec"', node=node, system="af_pipe" if system.startswith("af_") else system, pins=PINS[system], **values))
        return self.path(f"{name}.moespec")

    def build(self, name):
        run([self.args.moec, "build", self.path(f"{name}.moespec"), "-o", self.path(name), "-q"], env=self.env)

    def execute(self, name, rate):
        """Median step in ms of a bundle, its ports paced or, with rate 0, free. The last paced step is traced."""
        log = self.path(f"{name}.jsonl")
        words = [os.path.join(self.path(name), "train"), "--data", self.text, "--holdout", "0", "--steps",
                 str(self.args.steps), "--log", log, "--trace", self.path(f"{name}.json" if rate else f"{name}.free.json"),
                 "--compute-scale", str(self.scale)]
        run(words + (["--link", f"{rate / 1e6:.3f}MB/s"] if rate else []), timeout=900)
        return statistics.median([json.loads(line)["step_ms"] for line in open(log, encoding="ascii")][2:])

    def predict(self, name, system):
        """Step, communication, and by how much messages lengthen the step, in ms."""
        out = json.loads(run([self.args.moec, "compare", self.path(f"{name}.moespec"), "--systems", system, "--json", "-q"]))
        row = out["rows"][0]
        comm = row["overlapped_comm_ns"] + row["exposed_comm_ns"]
        return row["step_ns"] * 1e-6, comm * 1e-6, row["exposed_step_ns"] * 1e-6


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--moec", required=True)
    parser.add_argument("--work", required=True)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--scale", type=float)
    parser.add_argument("--share", type=float, default=0.4, help="of messages, of the first run's busiest rank")
    parser.add_argument("--smoke", action="store_true", help="one run to learn from, one other; limits are not held")
    args = parser.parse_args()
    if args.smoke:
        args.steps = 3
        BASE.update(layers=2, batch=4, seq=128)
    bench = Bench(args)
    known, others = KNOWN, OTHERS
    if args.smoke: # of one model, so that kernels are compiled once
        known, others = KNOWN[:1], [("1 + 3", dict(), ("af_pipe_1_3",))]

    bench.spec("rate", dict(), "af_pipe")
    bench.build("rate")
    bench.execute("rate", 0)
    compute = compute_us(bench.path("rate.free.json")) * 1e-6
    volume = BASE["layers"] * BASE["batch"] * BASE["seq"] * BASE["hidden"] * 4 * 2
    rate = volume / (compute * args.share / (1 - args.share))
    runs = []
    for i, sizes in enumerate(known):
        bench.spec(f"known{i}", sizes, "af_pipe")
        bench.build(f"known{i}")
        bench.execute(f"known{i}", rate)
        runs += ["--run", f"{bench.path(f'known{i}.moespec')},{bench.path(f'known{i}.json')}"]
    run([args.moec, "calibrate", *runs, "--name", "here", "-o", bench.path("here.moespec")])
    print(open(bench.path("here.moespec"), encoding="ascii").read())

    print(f"compute x {bench.scale:g}, ports {rate / 1e6:.2f} MB/s, medians of {args.steps - 2} steps")
    print(f"{'spec':<26} {'system':<13} {'predicted':>12} {'measured':>12} {'off':>8} {'overlapped':>11} {'measured':>9}")
    missed, total = [], 0
    for what, sizes, systems in others:
        times = []
        for system in systems:
            name = f"{what}-{system}".replace(" ", "_").replace(",", "").replace("+", "and")
            bench.spec(name, sizes, system, "here", "here_node")
            predicted, comm, exposed = bench.predict(name, "af_pipe" if system.startswith("af_") else system)
            bench.build(name)
            free, measured = bench.execute(name, 0), bench.execute(name, rate)
            a, b = 100 * (1 - exposed / comm), 100 * (1 - (measured - free) / comm)
            off = 100 * (predicted / measured - 1)
            times.append((system, predicted, measured))
            print(f"{what:<26} {system:<13} {predicted:>9.1f} ms {measured:>9.1f} ms {off:>+6.1f} % {a:>9.1f} % {b:>7.1f} %",
                  flush=True)
            total += 1
            if abs(off) > STEP:
                missed.append(f"{what}, {system}: the step is off by {off:+.1f} %")
            if abs(a - b) > SHARE:
                missed.append(f"{what}, {system}: the overlapped share is off by {a - b:+.1f} points")
        for i, (x, px, mx) in enumerate(times):
            for y, py, my in times[i + 1:]:
                if (px < py) != (mx < my) and abs(mx / my - 1) * 100 > TIE:
                    missed.append(f"{what}: {x} and {y} are predicted {px:.1f} and {py:.1f} ms, measured {mx:.1f} and {my:.1f}")
    print(f"{total} runs, {len(missed)} limits missed")
    for line in missed:
        print(" ", line)
    sys.exit(1 if missed and not args.smoke else 0)


if __name__ == "__main__":
    main()
