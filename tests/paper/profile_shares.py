#!/usr/bin/env python3
"""Shares of attention, experts and communication in the time of one layer, against the paper's profile of Qwen3-235B on
8 nodes, and the fit of the constants in specs/hardware/h800_fitted.moespec.

  profile_shares.py --moec build/moec          the six shares, and the share of communication from one node to eight
  profile_shares.py --moec build/moec --fit    fits the constants again and prints them; --write puts them into the file

Times are read from the schedule of megatron without overlap, flat copies: of one micro-batch, the ops of layer 1. A
message's time is the wait between the op before it and the op after it.
"""
import argparse
import os
import re
import sys

from runs import PAPER as SPECS
from runs import ROOT, run_json

PROFILE = os.path.join(SPECS, "profile.moespec")
LIBRARY = os.path.join(ROOT, "specs", "hardware", "h800_fitted.moespec")

PAPER = {"s4k": (0.2838, 0.1922, 0.5240), "s32k": (0.5026, 0.1396, 0.3578)}
PARTS = ("attention", "experts", "communication")
TOLERANCE = 0.03
CONSTANTS = ("FIT_GEMM", "FIT_CORE", "FIT_NIC")
PARTS_OF = {"ATT_FWD": 0, "ATT_DGRAD": 0, "ATT_WGRAD": 0, "FFN_FWD": 1, "FFN_DGRAD": 1, "FFN_WGRAD": 1}


def layer_times(moec, shape, defines, layer=1):
    """Nanoseconds of attention, experts and communication of one layer and micro-batch: forward, and with backward."""
    command = [moec, "schedule", PROFILE, "--json", "--shape", shape]
    sums = {"forward": [0, 0, 0], "whole": [0, 0, 0]}
    for op in run_json(command, {"MEM": 1000, **defines})["ops"]:
        if op["group"] != 0 or op["mb"] != 0 or op["layer"] != layer:
            continue
        kind = op["kind"].split()
        part = 2 if kind[0] == "RECV" else PARTS_OF.get(kind[0])
        if part is None:
            continue
        ns = op["end_ns"] - op["start_ns"]
        forward = op["stream"] == "fwd" or (kind[0] == "RECV" and not kind[1].endswith("_B"))
        sums["whole"][part] += ns
        sums["forward"][part] += ns if forward else 0
    return sums


def shares(times):
    return [t / sum(times) for t in times]


def fit(moec, defines, span, start):
    """Least squares over the six shares: a search by halves of the step, in the logarithms of the constants."""
    def error(values):
        given = dict(defines, **{n: f"{v:.5g}" for n, v in zip(CONSTANTS, values)})
        return sum((have - want) ** 2 for shape, wanted in PAPER.items()
                   for have, want in zip(shares(layer_times(moec, shape, given)[span]), wanted))

    values, step = list(start), 0.5
    best = error(values)
    while step > 0.002:
        moved = False
        for i in range(len(values)):
            for factor in (1 + step, 1 / (1 + step)):
                tried = list(values)
                tried[i] *= factor
                if CONSTANTS[i] == "FIT_GEMM" and tried[i] > 0.9:
                    continue
                e = error(tried)
                if e < best:
                    values, best, moved = tried, e, True
        step = step if moved else step / 2
    return values, best


def write_constants(values):
    text = open(LIBRARY, encoding="utf-8").read()
    for name, value in zip(CONSTANTS, values):
        text = re.sub(rf"(let {name}\s*= )[0-9.]+", rf"\g<1>{value:.3g}", text)
    with open(LIBRARY, "w", encoding="utf-8") as out:
        out.write(text)


def print_shares(moec, defines, span):
    worst = 0
    print(f"{'':8}" + "".join(f"{p:>26}" for p in PARTS))
    for shape, wanted in PAPER.items():
        have = shares(layer_times(moec, shape, defines)[span])
        worst = max(worst, max(abs(h - w) for h, w in zip(have, wanted)))
        print(f"{shape:8}" + "".join(f"{100 * h:12.1f} % ({100 * w:4.1f} %)" + " " * 4 for h, w in zip(have, wanted)))
    print(f"largest gap {100 * worst:.1f} points; in brackets the paper")
    return worst


def print_curve(moec):
    """Communication's share of a layer at 4Ki as the experts spread from one node to eight."""
    print("nodes  experts over  forward  with backward   (paper: 22 % at one node, 78 % at eight)")
    for nodes in (1, 2, 4, 8):
        times = layer_times(moec, "s4k", {"NODES": nodes, "EP": 8 * nodes})
        forward, whole = (100 * shares(times[span])[2] for span in ("forward", "whole"))
        print(f"{nodes:5}  {8 * nodes:12}  {forward:5.1f} %  {whole:11.1f} %")


def show(moec, span="whole", defines=None):
    worst = print_shares(moec, defines or {}, span)
    print_curve(moec)
    return worst


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--moec", required=True)
    parser.add_argument("--fit", action="store_true")
    parser.add_argument("--write", action="store_true", help="with --fit: into the library file")
    parser.add_argument("--ep", type=int, default=16)
    parser.add_argument("--span", choices=("forward", "whole"), default="whole")
    args = parser.parse_args()
    defines = {"EP": args.ep}
    if args.fit:
        values, error = fit(args.moec, defines, args.span, (0.3, 0.8, 30))
        found = ", ".join(f"{n} = {v:.3g}" for n, v in zip(CONSTANTS, values))
        print(f"experts over {args.ep}, {args.span}: {found}; root of the mean square {100 * (error / 6) ** 0.5:.2f} points")
        defines.update({n: f"{v:.3g}" for n, v in zip(CONSTANTS, values)})
        if args.write:
            write_constants(values)
        worst = print_shares(args.moec, defines, args.span)
    else:
        worst = show(args.moec, args.span, defines)
    return 0 if worst <= TOLERANCE else 1


if __name__ == "__main__":
    sys.exit(main())
