#!/usr/bin/env python3
"""CPU time of a training step over all ranks against that of its matrix products alone.

A step's CPU time is the difference of two runs of unequal length, so starting, evaluating and ending do not count. Both
programs run in turn; the ratio is the median over rounds of the ratio within a round.
"""
import argparse
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
SPECS = os.path.join(HERE, "..", "..", "specs")


def run(command):
    """Output, and user and system seconds of the command and all its children."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout, after.ru_utime - before.ru_utime, after.ru_stime - before.ru_stime


def write_text(path):
    rng = random.Random(1)
    words = ["".join(rng.choice("etaoinshrdlu") for _ in range(rng.randint(2, 8))) for _ in range(500)]
    with open(path, "w", encoding="ascii") as out:
        out.write(" ".join(rng.choice(words) for _ in range(60000)))


def train(folder, steps):
    log = os.path.join(folder, "log.jsonl")
    if os.path.exists(log):
        os.remove(log)
    command = [os.path.join(folder, "out", "train"), "--data", os.path.join(folder, "text"), "--steps", str(steps),
               "--log", log]
    _, user, system = run(command)
    with open(log, encoding="ascii") as lines:
        steps_done = [line for line in map(json.loads, lines) if "loss" in line]
    if len(steps_done) != steps or not all(0 < line["loss"] < 20 and line["grad_norm"] > 0 for line in steps_done):
        sys.exit(f"the run of {steps} steps logged something else: {steps_done}")
    return user, system, steps_done[-1]["tokens"]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--moec", required=True)
    parser.add_argument("--gemm", required=True, help="the steps_gemm program")
    parser.add_argument("--spec", help="with one attention and one FFN rank (default: specs/bench.moespec)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=2, help="measured steps per run")
    parser.add_argument("--smoke", action="store_true", help="a moment, on the small model, checking the products")
    args = parser.parse_args()
    if args.smoke:
        args.rounds, args.steps = 1, 1
    spec = args.spec or os.path.join(SPECS, "tiny.moespec" if args.smoke else "bench.moespec")
    with tempfile.TemporaryDirectory() as folder:
        write_text(os.path.join(folder, "text"))
        run([args.moec, "build", spec, "-q", "-o", os.path.join(folder, "out")])
        rounds = []
        for _ in range(args.rounds):
            short = train(folder, 1)
            out, _, _ = run([args.gemm, spec, "1"] + (["check"] if args.smoke else []))
            gemm, gflop = map(float, out.split())
            long = train(folder, 1 + args.steps)
            user, system = ((long[i] - short[i]) / args.steps for i in (0, 1))
            rounds.append((user + system, gemm, user, system, gflop, long[2]))
    middle = [statistics.median(r[i] for r in rounds) for i in range(6)]
    print(f"tokens per step {middle[5]:.0f}, matrix products {middle[4]:.1f} GFLOP per step")
    print(f"{'':24}{'CPU s per step':>15}{'user':>8}{'system':>8}{'GFLOP/s':>9}")
    print(f"{'training, all ranks':24}{middle[0]:>15.3f}{middle[2]:>8.3f}{middle[3]:>8.3f}{middle[4] / middle[0]:>9.1f}")
    print(f"{'matrix products alone':24}{middle[1]:>15.3f}{'':16}{middle[4] / middle[1]:>9.1f}")
    print("ratio " + f"{statistics.median(r[0] / r[1] for r in rounds):.2f}" + " (of the rounds: "
          + ", ".join(f"{r[0] / r[1]:.2f}" for r in rounds) + ")")


if __name__ == "__main__":
    main()
