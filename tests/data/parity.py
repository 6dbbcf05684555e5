#!/usr/bin/env python3
"""Training on token sets with masked labels, against the fp64 reference and between layouts.

Every layout trains three steps on the same indexed set, in which some labels are an id outside the vocabulary (as -100 is)
and others follow the end of a document. Of the last step the batch is dumped, tokens and labels are made of it here by the
two rules, and the reference says what loss and gradients they have. Tolerances are those of tests/e2e/layouts.py. Losses
of all steps agree between layouts within 1e-5: sums in fp32 in another order, about 1e-6 per step.
"""

import argparse
import json
import os
import random
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "e2e"))

from layouts import LAYOUT, MIN_MARGIN, MODEL, RTOL, Runner  # noqa: E402
from sets import indexed, packed, put  # noqa: E402

MASK, END, STEPS, SEQ = -100, 5, 3, 16
# the same global batch of 12 sequences in all: mbs x ranks of an attention group x replicas
CASES = [dict(ratio=(1, 1), mbs=12), dict(ratio=(3, 2), p_att=2, p_ffn=3, mbs=4), dict(ratio=(2, 4), node=2, replicas=2, mbs=3),
         dict(ratio=(2, 2), place="colocated", p_att=2, mbs=6), dict(system="tutel", chunks=3, p=2, ep=2, mbs=6),
         dict(system="dualpipe", p=2, ep=2, mbs=6, layers=5)]


def write_set(path):
    """Documents of random length, skewed tokens; a third of the labels is masked, unevenly: some samples lose all."""
    rng = random.Random(8)
    documents = []
    for d in range(300):
        text = [int(MODEL["vocab"] * rng.random() ** 2) for _ in range(rng.randrange(1, 40))]
        text = [6 if t == END else t for t in text]
        if d % 5 == 0:
            text = [MASK] * len(text)
        elif d % 2 == 0:
            half = len(text) // 2
            text[:half] = [MASK] * half
        documents.append(text + [END])
    indexed(path, documents)


def rows_of(path):
    with open(path, "rb") as f:
        data = f.read()
    values = [int.from_bytes(data[i:i + 4], "little", signed=True) for i in range(0, len(data), 4)]
    return [values[i:i + SEQ + 1] for i in range(0, len(values), SEQ + 1)]


def check(runner, c, data, losses):
    spec, bundle = runner.build(c)
    masks = ("--mask-token", str(MASK), "--mask-after", str(END))

    def train(*args):
        runner.run(f"{bundle}/train", "--data", data, "--holdout", "0", *masks, *args)

    train("--steps", str(STEPS - 1), "--dump-weights", bundle + ".w")  # before the last step: the set has only one epoch
    train("--steps", str(STEPS), "--dump-grads", bundle + ".grads", "--dump-batch", bundle + ".batch", "--log", bundle + ".log")
    rows = rows_of(bundle + ".batch")
    tokens = [t if 0 <= t < c["vocab"] else 0 for row in rows for t in row[:-1]]
    labels = [-1 if row[i + 1] == MASK or row[i] == END else row[i + 1] for row in rows for i in range(SEQ)]
    counted = sum(label >= 0 for label in labels)
    assert len(rows) == 12 and len(labels) / 3 < counted < 3 * len(labels) / 4, (len(rows), counted)
    put(bundle + ".tokens", packed("i", tokens))
    put(bundle + ".labels", packed("i", labels))
    with open(bundle + ".log") as f:
        mine = [json.loads(line) for line in f]
    out = runner.run(runner.args.ref, "--config", spec, "--weights", bundle + ".w", "--tokens", bundle + ".tokens", "--labels",
                     bundle + ".labels", "--grads", bundle + ".ref", "--min-margin")
    ref = json.loads(next(x for x in out.splitlines() if '"loss"' in x))
    assert ref["tokens"] == counted, (ref, counted)
    assert ref["min_margin"] >= MIN_MARGIN, ref
    for key in ("loss", "balance_loss"):
        assert abs(mine[-1][key] - ref[key]) <= 1e-5 * max(1.0, abs(ref[key])), (key, mine[-1], ref)
    runner.run(runner.args.compare, bundle + ".grads", bundle + ".ref", "--rtol", RTOL)
    losses.append([row["loss"] for row in mine])
    assert len(losses[-1]) == STEPS
    assert all(abs(a - b) <= 1e-5 * a for a, b in zip(losses[0], losses[-1])), losses


def main():
    parser = argparse.ArgumentParser()
    for flag in ("--moec", "--ref", "--compare", "--work"):
        parser.add_argument(flag, required=True)
    args = parser.parse_args()
    runner = Runner(args, "layouts-data")
    data = os.path.join(runner.work, "set")
    write_set(data)
    losses = []
    for c in CASES:
        c = {**MODEL, **LAYOUT, "seq": SEQ, **c}
        try:
            check(runner, c, data, losses)
        except (RuntimeError, AssertionError) as error:
            runner.failed.append(str(c))
            print(f"FAIL {c}\n{error}", flush=True)
        runner.done += 1
    runner.finish(f"{runner.done - len(runner.failed)} passed")


if __name__ == "__main__":
    main()
