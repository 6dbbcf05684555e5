"""Published orders and step times from the command line: specs that give their own times, through the planner.

Each spec in specs/golden says its step time in its first line. The others are written here: stages of one layer, or
more, and the times that the published check values are for.
"""
import argparse
import glob
import json
import os
import re
import subprocess
import sys
import tempfile

ORDERS = {
    "megatron_p2_v2_m4": [
        "F0.0 F1.0 F0.2 F1.2 F2.0 B0.2 F3.0 B1.2 F2.2 B0.0 F3.2 B1.0 B2.2 B3.2 B2.0 B3.0",
        "F0.1 F1.1 F0.3 B0.3 F1.3 B1.3 F2.1 B0.1 F3.1 B1.1 F2.3 B2.3 F3.3 B3.3 B2.1 B3.1",
    ],
    "dualpipe_p4_c8": [
        "F0.0 F1.0 F2.0 F4.3 b4.3 w4.3 F5.3 F3.0&B5.3 F6.3&B0.0 B6.3 F7.3&B1.0 B7.3 b2.0 w2.0 b3.0 w3.0",
        "F0.1 F4.2 F1.1 F5.2 F2.1 B4.2 F6.2&B0.1 F3.1&B5.2 F7.2&B1.1 B6.2 B2.1 b7.2 b3.1 w7.2 w3.1",
        "F4.1 F0.2 F5.1 F1.2 F6.1 B0.2 F2.2&B4.1 F7.1&B1.2 F3.2&B5.1 B2.2 B6.1 b3.2 b7.1 w3.2 w7.1",
        "F4.0 F5.0 F6.0 F0.3 b0.3 w0.3 F1.3 F7.0&B1.3 F2.3&B4.0 B2.3 F3.3&B5.0 B3.3 b6.0 w6.0 b7.0 w7.0",
    ],
}

# system, pipeline ranks, virtual stages, micro-batches, us. Forward 1 us, backward 2 us; a merged pair 2 us of which
# all messages are hidden, or 3 us without messages.
PLAIN = "attention_forward = 500 ns;  ffn_forward = 500 ns"
HIDDEN = (
    "attention_forward = 250 ns;  ffn_forward = 250 ns;  attention_input = 375 ns;  attention_weight = 375 ns;  "
    "ffn_input = 375 ns;  ffn_weight = 375 ns;  dispatch = 250 ns;  combine = 250 ns"
)
STEPS = [
    ("megatron", 8, 2, 16, 117, PLAIN),
    ("tutel", 4, 2, 8, 57, PLAIN),
    ("megatron_overlap", 4, 2, 8, 46, HIDDEN),
    ("megatron_overlap", 4, 4, 16, 150, HIDDEN),
    ("megatron_overlap", 8, 2, 16, 94, HIDDEN),
    ("megatron_overlap", 8, 4, 32, 302, HIDDEN),
    ("dualpipe", 8, 1, 20, 66, PLAIN),
    ("dualpipe", 16, 1, 32, 110, PLAIN),
]

SPEC = """use "{hardware}"
model unit {{
  layers = {layers};  hidden = 64;  vocab = 256
  attention {{ heads = 4;  head_dim = 16 }}
  moe {{ experts = 4;  top_k = 2;  hidden = 64 }}
}}
cluster desk {{ nodes = {ranks};  node = cpu_host }}
shape s {{ seq = 64;  micro_batch = 1;  global_batch = {batch} }}
costs {{ {costs} }}
plan {{ schedule = {system};  stages = {ranks};  expert_parallel = 1;  replicas = 1{virtual} }}
"""


def run(moec, *args):
    done = subprocess.run([moec, "schedule", *args], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"moec schedule {' '.join(args)}: exit {done.returncode}\n{done.stderr}")
    return done.stdout


def pipe_us(moec, path):
    """End of the micro-batches' last op, to the nearest microsecond: what no time is given for takes 1 ns."""
    ops = json.loads(run(moec, path, "--json"))["ops"]
    return round(max(op["end_ns"] for op in ops if op["mb"] is not None and op["mb"] >= 0) / 1000)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--moec", required=True)
    parser.add_argument("--specs", required=True)
    args = parser.parse_args()
    failures = 0

    def expect(what, got, want):
        nonlocal failures
        if got != want:
            print(f"{what}: {got}, want {want}")
            failures += 1

    paths = sorted(glob.glob(os.path.join(args.specs, "golden", "*.moespec")))
    names = [os.path.splitext(os.path.basename(path))[0] for path in paths]
    for name in ORDERS:
        expect(f"spec {name}", name in names, True)
    for name, path in zip(names, paths):
        with open(path, encoding="utf-8") as file:
            says = re.search(r"(\d+) us", file.readline())
        if says:
            expect(name, pipe_us(args.moec, path), int(says.group(1)))
        if name in ORDERS:
            lines = run(args.moec, path, "--orders").splitlines()
            expect(name, lines, [f"rank {r}: {order}" for r, order in enumerate(ORDERS[name])])

    with tempfile.TemporaryDirectory() as work:
        path = os.path.join(work, "case.moespec")
        for system, ranks, virtual, batch, us, costs in STEPS:
            text = SPEC.format(
                hardware=os.path.abspath(os.path.join(args.specs, "hardware", "cpu.moespec")),
                layers=ranks * virtual,
                ranks=ranks,
                batch=batch,
                costs=costs,
                system=system,
                virtual="" if system == "dualpipe" else f";  virtual_stages = {virtual}",
            )
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
            expect(f"{system} {ranks} x {virtual}, {batch} micro-batches", pipe_us(args.moec, path), us)
    print(f"{len(paths)} golden specs, {len(STEPS)} more, {failures} failures")
    return failures != 0


if __name__ == "__main__":
    sys.exit(main())
