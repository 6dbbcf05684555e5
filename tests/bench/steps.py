#!/usr/bin/env python3
"""CPU time of a training step over all ranks against that of its matrix products alone.

The CPU time of all ranks' threads is read when the first step has ended and again some steps later, before the last, so
that starting, evaluating and ending do not count. Both programs run in turn; the ratio is the median over rounds of the
ratio within a round.
"""
import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
SPECS = os.path.join(HERE, "..", "..", "specs")


def run(command, **more):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **more)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def read(path):
    with open(path, encoding="ascii") as file:
        return file.read()


def cpu_seconds(launcher):
    """Of all threads of all ranks: in all, and the system's part (in ticks of the kernel's clock)."""
    total = system = 0.0
    for rank in read(f"/proc/{launcher}/task/{launcher}/children").split():
        for thread in os.listdir(f"/proc/{rank}/task"):
            total += int(read(f"/proc/{rank}/task/{thread}/schedstat").split()[0]) * 1e-9
        stat = read(f"/proc/{rank}/stat").rsplit(")", 1)[1].split()
        system += int(stat[12]) / os.sysconf("SC_CLK_TCK")
    return total, system


def write_text(path):
    rng = random.Random(1)
    words = ["".join(rng.choice("etaoinshrdlu") for _ in range(rng.randint(2, 8))) for _ in range(500)]
    with open(path, "w", encoding="ascii") as out:
        out.write(" ".join(rng.choice(words) for _ in range(60000)))


def train_command(folder, steps, log):
    return [os.path.join(folder, "out", "train"), "--data", os.path.join(folder, "text"), "--steps", str(steps), "--log",
            log]


def train(folder, steps):
    """CPU seconds of a step, the system's part, and tokens per step."""
    log = os.path.join(folder, "log.jsonl")
    with open(log, "w", encoding="ascii"):
        pass
    samples = {}
    errors = os.path.join(folder, "errors")
    with open(errors, "w", encoding="ascii") as err:
        job = subprocess.Popen(train_command(folder, steps + 2, log), stdout=subprocess.DEVNULL, stderr=err)
        while job.poll() is None:
            n = read(log).count("\n")
            if n in (1, 1 + steps) and n not in samples:
                samples[n] = cpu_seconds(job.pid)
            time.sleep(0.002)
    lines = [line for line in map(json.loads, read(log).splitlines()) if "loss" in line]
    if job.returncode != 0 or len(lines) != steps + 2 or len(samples) != 2:
        sys.exit(f"the training run ended with {job.returncode} after {len(lines)} steps:\n{read(errors)}")
    if not all(0 < line["loss"] < 20 and line["grad_norm"] > 0 for line in lines):
        sys.exit(f"the training run logged something else: {lines}")
    cpu, system = ((samples[1 + steps][i] - samples[1][i]) / steps for i in (0, 1))
    return cpu, system, lines[-1]["tokens"]


def measure(args, spec, folder):
    rounds = []
    for _ in range(args.rounds):
        cpu, system, tokens = train(folder, args.steps)
        gemm, gflop = map(float, run([args.gemm, spec, "1"] + (["check"] if args.smoke else [])).split())
        rounds.append({"train": cpu, "system": system, "gemm": gemm, "gflop": gflop, "tokens": tokens})
    return rounds


def show(rounds):
    middle = {name: statistics.median(r[name] for r in rounds) for name in rounds[0]}
    ratios = [r["train"] / r["gemm"] for r in rounds]
    print(f"{middle['tokens']:.0f} tokens and {middle['gflop']:.1f} GFLOP of matrix products per step; medians of {len(rounds)}")
    print(f"{'':24}{'CPU s per step':>15}{'system':>8}{'GFLOP/s':>9}")
    print(f"{'training, all ranks':24}{middle['train']:>15.3f}{middle['system']:>8.3f}"
          f"{middle['gflop'] / middle['train']:>9.1f}")
    print(f"{'matrix products alone':24}{middle['gemm']:>15.3f}{'':8}{middle['gflop'] / middle['gemm']:>9.1f}")
    print(f"ratio {statistics.median(ratios):.2f} (of the rounds: {', '.join(f'{x:.2f}' for x in ratios)})")


def profile(folder, steps):
    """Where a run's CPU time goes: shares by library and the functions of at least 0.5 %. Start and end count here."""
    if not shutil.which("perf"):
        print("no profile: perf is not installed")
        return
    data = os.path.join(folder, "perf.data")
    run(["perf", "record", "-q", "-F", "500", "-o", data, "--"]
        + train_command(folder, steps, os.path.join(folder, "profile.jsonl")))
    for sort in ("dso", "dso,sym"):
        out = run(["perf", "report", "-i", data, "--no-children", "-s", sort, "--percent-limit", "0.5", "--stdio"])
        print(f"\nprofile of {steps} steps, start and end included, by {sort}:")
        print("\n".join(line.rstrip() for line in out.splitlines() if line.strip() and not line.startswith("#")))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--moec", required=True)
    parser.add_argument("--gemm", required=True, help="the steps_gemm program")
    parser.add_argument("--spec", help="with one attention and one FFN rank (default: specs/bench.moespec)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=2, help="measured steps per run")
    parser.add_argument("--profile", action="store_true", help="one more run under perf")
    parser.add_argument("--smoke", action="store_true", help="a moment, on the small model, checking the products")
    args = parser.parse_args()
    if args.smoke:
        args.rounds, args.steps = 1, 4
    spec = args.spec or os.path.join(SPECS, "tiny.moespec" if args.smoke else "bench.moespec")
    with tempfile.TemporaryDirectory() as folder:
        write_text(os.path.join(folder, "text"))
        run([args.moec, "build", spec, "-q", "-o", os.path.join(folder, "out")])
        show(measure(args, spec, folder))
        if args.profile:
            profile(folder, 1 + args.steps)


if __name__ == "__main__":
    main()
