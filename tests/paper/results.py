#!/usr/bin/env python3
"""Makes specs/paper/RESULTS.md: the paper's comparisons over the paper's specs, each table with the command behind it.

  results.py --moec build/moec --work DIR     runs what DIR does not hold yet for this compiler and these specs, and writes
                                              the page: three quarters of an hour of one core, of which the twelve
                                              points take 20 minutes, once per node 4, the ablations 21
  results.py ... --parts profile,published    some parts only, on the screen
"""
import argparse
import os
import subprocess
import sys

import ablations
import tables
from runs import ROOT, Runs

PARTS = ("profile", "published", "fitted", "node", "ablations")
HEAD = """# The paper's results, examined

Written by `tests/paper/results.py --moec build/moec --work DIR`
at {commit}; nothing here is typed in. The paper:
DisagMoE, arXiv 2605.11005; its figures in brackets or in columns called so. All systems share one cost model, one network
and one simulator; of the twelve points (three models, sequences of 4Ki to 32Ki, 128 H800, the batch of
[lib/setting.moespec](lib/setting.moespec)) each system takes the settings that are fastest among those that fit its
memory. `selective recompute` makes the experts' inner activations again; `full recompute` keeps of a layer only its input
and its router's choices, runs attention again and dispatches the rows once more. The colocated systems divide experts over
16 GPUs and move flat copies, as in the paper; af_pipe and afd choose how a token travels. Results for published and for
fitted constants stand apart.
"""


def commit():
    """The commit of this tree in words; the page itself does not count as a change."""
    def git(*arguments):
        done = subprocess.run(("git",) + arguments, cwd=ROOT, capture_output=True, text=True, check=False)
        return done.stdout.strip() if done.returncode == 0 else None

    try:
        name = git("rev-parse", "--short", "HEAD")
        changed = git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!specs/paper/RESULTS.md")
    except FileNotFoundError:
        name = None
    if not name:
        return "an unknown commit"
    return f"commit {name}" + (" with local changes" if changed else "")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--moec", required=True)
    parser.add_argument("--work", required=True)
    parser.add_argument("--keep", action="store_true", help="leave the page in DIR instead of specs/paper")
    parser.add_argument("--parts", help="of " + ", ".join(PARTS))
    parser.add_argument("--models", help="some of the models")
    parser.add_argument("--shapes", help="some of the shapes")
    args = parser.parse_args()
    parts = args.parts.split(",") if args.parts else PARTS
    runs = Runs(args.moec, args.work)
    models = tuple(args.models.split(",")) if args.models else tables.MODELS
    shapes = tuple(args.shapes.split(",")) if args.shapes else tables.SHAPES
    page, failures = [HEAD.format(commit=commit())], []
    if "profile" in parts:
        page += tables.profile_part(args.moec)
    for constants in ("published", "fitted"):
        if constants in parts:
            page += tables.points_part(runs, constants, models, shapes)
    if "node" in parts:
        page += tables.node_part(runs, models, shapes)
    if "ablations" in parts:
        page += ablations.part(runs, failures)
    text = "\n".join(page) + "\n"
    if args.parts or args.models or args.shapes:
        print(text)
    else:
        folder = args.work if args.keep else os.path.join(ROOT, "specs", "paper")
        with open(os.path.join(folder, "RESULTS.md"), "w", encoding="utf-8") as out:
            out.write(text)
    for failure in failures:
        print(f"failed: {failure}", file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
