#!/usr/bin/env python3
"""Vectors of the order in which training goes through indexed sequences, from the published rules of GPT data sets and
numpy's shuffle; written without a look at runtime/data_order.c.

  order.py make FILE    writes the vectors, drawing with numpy (any version: RandomState is frozen)
  order.py check FILE   derives them again, drawing with this language's own MT19937, and compares

A line per case: `case SEED SEQ SAMPLES FIRST LENGTH,LENGTH,...`, FIRST being the sequence at which the part begins (those
before it belong to another); then `total EPOCHS N`, and either a line of seq + 1 tokens per training sequence or, of large
cases, `hash` of all of them. The token at place i of the .bin is i, so that a token says where it came from.
"""

import random
import sys

SEEDS = (1, 1234, 4294967295)


class Numpy:
    def __init__(self, seed):
        import numpy
        self.numpy, self.state = numpy, numpy.random.RandomState(seed)

    def shuffled(self, values):
        array = self.numpy.array(values, dtype=self.numpy.int32)
        self.state.shuffle(array)
        return [int(x) for x in array]


class Plain:
    """MT19937 seeded with one word (Knuth's generator fills the state), Fisher-Yates from the end, rejection under a mask."""

    def __init__(self, seed):
        key = [seed]
        for i in range(1, 624):
            key.append((1812433253 * (key[-1] ^ (key[-1] >> 30)) + i) & 0xFFFFFFFF)
        self.random = random.Random()
        self.random.setstate((3, tuple(key) + (624,), None))

    def below(self, most):
        mask = (1 << most.bit_length()) - 1
        while True:
            x = self.random.getrandbits(32) & mask
            if x <= most:
                return x

    def shuffled(self, values):
        values = list(values)
        for i in range(len(values) - 1, 0, -1):
            j = self.below(i)
            values[i], values[j] = values[j], values[i]
        return values


def order(lengths, first, seq, samples, draw):
    """Token lists in the order of training, and the number of epochs."""
    part = list(range(first, len(lengths)))
    per_epoch = sum(lengths[i] for i in part)
    epochs, tokens = 1, per_epoch
    while tokens < samples * seq + 1:
        epochs, tokens = epochs + 1, tokens + per_epoch
    apart, before = False, 0
    if epochs > 1:
        before = ((epochs - 1) * per_epoch - 1) // seq
        apart = samples - before < int(0.80 * ((per_epoch - 1) // seq))
    if apart:
        documents = draw.shuffled(part * (epochs - 1)) + draw.shuffled(part)
    else:
        documents = draw.shuffled(part * epochs)
    n = (epochs * per_epoch - 1) // seq

    starts, at, offset = [(0, 0)], 0, 0  # one more than there are samples: the end of each is the start of the next
    while len(starts) <= n:
        left = seq + 1
        while left > 0:
            here = lengths[documents[at]] - offset
            left -= here
            if left <= 0:
                offset += left + here - 1
            else:
                at, offset = at + 1, 0
        starts.append((at, offset))

    numbers = draw.shuffled(range(before)) + draw.shuffled(range(before, n)) if apart else draw.shuffled(range(n))
    base = [sum(lengths[:i]) for i in range(len(lengths))] if len(lengths) < 1000 else running(lengths)
    result = []
    for i in numbers:
        (a, from_), (b, to) = starts[i], starts[i + 1]
        text = []
        for k in range(a, b + 1):
            document = documents[k]
            low = from_ if k == a else 0
            high = to + 1 if k == b else lengths[document]
            text += range(base[document] + low, base[document] + high)
        assert len(text) == seq + 1
        result.append(text)
    return result, epochs


def blend(shares, n):
    """(set, number within it) of n samples: the set that is furthest behind its share goes next, the first of equals."""
    counts, out = [0] * len(shares), []
    for i in range(n):
        behind = [share * max(i, 1) - count for share, count in zip(shares, counts)]
        k = behind.index(max(behind))
        out.append((k, counts[k]))
        counts[k] += 1
    return out


def running(lengths):
    out, total = [], 0
    for n in lengths:
        out.append(total)
        total += n
    return out


def cases():
    rng = random.Random(5)
    ragged = [rng.choice((0, 1, 2, 3, 7, 9, 20)) for _ in range(17)] + [0]
    even = [12] * 10
    for seed in SEEDS:
        yield seed, 8, 5, 0, ragged          # less than an epoch
        yield seed, 8, 24, 0, even           # the last epoch by itself: 10 of its 14 samples
        yield seed, 8, 25, 0, even           # with the others: 11 of 14, which is 80 % rounded down
        yield seed, 8, 29, 0, even           # all there are in two epochs
        yield seed, 5, 60, 3, ragged         # many epochs, a part that does not begin at 0
        yield seed, 1, 12, 0, [3, 0, 1]      # the shortest samples
        yield seed, 7, 9000, 0, [rng.randrange(0, 40) for _ in range(1500)]  # several refills of the generator
        yield seed, 31, 700, 100, [rng.randrange(1, 400) for _ in range(130)]


def fnv(samples):
    h = 0xCBF29CE484222325
    for text in samples:
        for token in text:
            h = (h ^ token) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return h


def lines(draw):
    for seed, seq, samples, first, lengths in cases():
        texts, epochs = order(lengths, first, seq, samples, draw(seed))
        yield f"case {seed} {seq} {samples} {first} {','.join(map(str, lengths))}"
        yield f"total {epochs} {len(texts)}"
        if len(texts) > 200:
            yield f"hash {fnv(texts)}"
        else:
            yield from (" ".join(map(str, text)) for text in texts)


def main():
    if len(sys.argv) != 3 or sys.argv[1] not in ("make", "check"):
        sys.exit(__doc__)
    if sys.argv[1] == "make":
        with open(sys.argv[2], "w") as f:
            f.write("".join(line + "\n" for line in lines(Numpy)))
        return
    with open(sys.argv[2]) as f:
        committed = f.read().splitlines()
    derived = list(lines(Plain))
    if committed != derived:
        at = next((i for i, (a, b) in enumerate(zip(committed, derived)) if a != b), min(len(committed), len(derived)))
        sys.exit(f"line {at + 1} differs: {committed[at:at + 1]} and {derived[at:at + 1]}")
    print(f"{len(derived)} lines, 0 failed")


if __name__ == "__main__":
    main()
