#!/usr/bin/env python3
"""Says whether a run's last held-out loss lies below the bigram entropy of the held-out text.

  bigram.py TEXT LOG.jsonl

The bigram entropy is that of the held-out bytes (the last tenth) given the byte before, by the counts of the held-out
text itself: the best that any model can do that sees one byte of context, even one that knows the answer.
"""

import collections
import json
import math
import sys


def bigram_entropy(data):
    pairs = collections.Counter(zip(data, data[1:]))
    firsts = collections.Counter(data[:-1])
    total = len(data) - 1
    return -sum(n / total * math.log(n / firsts[a]) for (a, _), n in pairs.items())


def main():
    data = open(sys.argv[1], "rb").read()
    held_out = data[len(data) - len(data) // 10:]
    losses = [row["eval_loss"] for row in map(json.loads, open(sys.argv[2])) if "eval_loss" in row]
    if not losses:
        sys.exit("the log has no held-out loss")
    entropy = bigram_entropy(held_out)
    below = losses[-1] < entropy
    print(f"held-out loss {losses[-1]:.3f} nats per byte, bigram entropy of that text {entropy:.3f}: "
          f"{'below' if below else 'NOT below'}")
    sys.exit(0 if below else 1)


if __name__ == "__main__":
    main()
