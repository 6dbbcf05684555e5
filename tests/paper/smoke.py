#!/usr/bin/env python3
"""What of the paper's results can be checked in seconds: the fitted profile is within 3 points; the arithmetic behind the
bounds gives the times that the compiler's schedules have, recomputation included; a bound lies under what its own split
simulates to."""
import argparse
import os
import sys

import bound
import profile_shares
from costs import Costs
from runs import PAPER, run_json, spec_name

POINTS = (("deepseek_moe", "published", "s8k"), ("gpt_oss_120b", "fitted", "s4k"), ("qwen3_235b", "published", "s16k"))
BATCH = 128  # of 32Ki sequences: the times of ops do not depend on it, if every rank has one


def check_times(moec, model, constants, shape, errors):
    spec, defines = os.path.join(PAPER, spec_name(model, constants)), {"MEM": 4000, "BATCH": BATCH}
    command = [moec, "schedule", spec, "--system", "megatron", "--json", "--shape", shape]
    costs, seen = Costs(spec, shape, defines), {}
    for op in run_json(command, defines)["ops"]:
        if op["mb"] == 0 and op["stream"] in ("fwd", "bwd"):
            seen[op["kind"], op["layer"]] = op["end_ns"] - op["start_ns"]
    wanted = {("HEAD", costs.layers): costs.head()}
    for layer in (0, 1, 2):
        for kind, t in zip(("ATT_FWD", "ATT_DGRAD", "ATT_WGRAD"), costs.attention(layer)):
            wanted[kind, layer] = t
    for kind, t in zip(("FFN_FWD", "FFN_DGRAD", "FFN_WGRAD"), costs.ffn(16, 16)):
        wanted[kind, 2] = t
    for op, t in wanted.items():
        have = seen.get(op)
        if have is None or abs(have / 1e9 - t) > 1e-5 * t:
            errors.append(f"{model} {constants} {shape}: {op} takes {have} ns, by arithmetic {t * 1e9:.0f}")


def check_bound(moec, errors):
    """The ablation's spec pins one split; no schedule of it may be faster than its bound."""
    spec = os.path.join(PAPER, "ablation_split.moespec")
    for shape in ("s4k", "s16k"):
        command = [moec, "compare", "-q", spec, "--systems", "af_pipe", "--json", "--shape", shape]
        row = run_json(command, {"BATCH": 32})["rows"][0]
        costs = Costs(spec, shape, {"BATCH": 32})
        low = min(b.seconds for r in ("none", "selective", "full")
                  for b in [bound.bound_of(costs, bound.Split(1, 1, 16, 1, 16, r))] if b)
        if not row["ran"] or row["step_ns"] / 1e9 < low or row["step_ns"] / 1e9 > 3 * low:
            errors.append(f"ablation_split {shape}: step {row.get('step_ns')} ns against a bound of {low:.3f} s")


def check_recompute(moec, errors):
    """The same split with each recomputation: what its groups compute more, micro-batch by micro-batch, is what the
    arithmetic adds; and none is faster than its bounds."""
    spec, defines, ranks = os.path.join(PAPER, "ablation_split.moespec"), {"BATCH": 16}, 16
    command = [moec, "compare", "-q", spec, "--systems", "af_pipe", "--json", "--shape", "s8k"]
    command += ["--sweep", "recompute=none,selective,full"]
    rows = {row["sweep"]["recompute"]: row for row in run_json(command, defines)["rows"]}
    costs = Costs(spec, "s8k", defines)
    n_mbs = costs.batch // ranks
    att = n_mbs * sum(costs.attention(layer)[3] for layer in range(costs.layers))
    ffn = n_mbs * (costs.layers - costs.dense) * costs.ffn(ranks, ranks)[3]
    for recompute, more in (("none", (0, 0)), ("selective", (0, ffn)), ("full", (att, ffn))):
        row, low = rows[recompute], bound.bound_of(costs, bound.Split(1, 1, ranks, 1, ranks, recompute))
        if not row["ran"] or not low or row["step_ns"] / 1e9 < low.linked:
            errors.append(f"{recompute} recomputation: step {row.get('step_ns')} ns against a bound of {low}")
            continue
        for group, base, t in zip(row["groups"], rows["none"]["groups"], more):
            have = (group["compute_ns"] - base["compute_ns"]) / 1e9
            if abs(have - t) > 1e-5 * max(t, base["compute_ns"] / 1e9):
                errors.append(f"{recompute} recomputation: {have:.6f} s more to compute, by arithmetic {t:.6f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--moec", required=True)
    args = parser.parse_args()
    errors = []
    for shape, wanted in profile_shares.PAPER.items():
        have = profile_shares.shares(profile_shares.layer_times(args.moec, shape, {})["whole"])
        if max(abs(h - w) for h, w in zip(have, wanted)) > profile_shares.TOLERANCE:
            errors.append(f"profile {shape}: {have}, the paper has {wanted}")
    for point in POINTS:
        check_times(args.moec, *point, errors)
    check_bound(args.moec, errors)
    check_recompute(args.moec, errors)
    for error in errors:
        print(error, file=sys.stderr)
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
