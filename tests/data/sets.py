"""Writes token files of every format that `train` reads, right and wrong ones.

  sets.py lines TEXT PREFIX   an indexed set of a text's lines, each a document of its bytes
  sets.py corpus FOLDER       where a fuzzer may begin
"""

import itertools
import struct
import sys

CODES = {1: "B", 2: "b", 3: "h", 4: "i", 5: "q", 8: "H"}  # of an index
GPT2, LLAMA3 = (20240520, 1, "H"), (20240801, 7, "I")


def packed(letter, tokens):
    return struct.pack(f"<{len(tokens)}{letter}", *tokens)


def put(path, data):
    with open(path, "wb") as f:
        f.write(data)


def index(lengths, code=4, magic=b"MMIDIDX\0\0", version=1, n_seqs=None, n_docs=None, offsets=None, docs=None, modes=b""):
    """The bytes of an .idx; what is given replaces what belongs there."""
    width = struct.calcsize(CODES.get(code, "i"))
    if offsets is None:
        offsets = [width * n for n in itertools.accumulate(lengths, initial=0)][:-1]
    docs = list(range(len(lengths) + 1)) if docs is None else docs
    head = magic + struct.pack("<QBQQ", version, code, len(lengths) if n_seqs is None else n_seqs,
                               len(docs) if n_docs is None else n_docs)
    return head + packed("i", lengths) + packed("q", offsets) + packed("q", docs) + modes


def indexed(prefix, sequences, code=4, **changes):
    put(prefix + ".idx", index([len(s) for s in sequences], code, **changes))
    put(prefix + ".bin", packed(CODES.get(code, "i"), [t for s in sequences for t in s]))


def shard(path, tokens, kind=GPT2, magic=None, version=None, count=None):
    head = [kind[0] if magic is None else magic, kind[1] if version is None else version,
            len(tokens) if count is None else count] + [0] * 253
    put(path, packed("i", head) + packed(kind[2], tokens))


def corpus(folder):
    """Right sets, and one header that promises too much (see fuzz_data.c)."""
    for k, code in enumerate(CODES):
        width = struct.calcsize(CODES[code])
        lengths = [9, 0, 3, 20, 1]
        head = bytes((k % 2, 7, 1, 40, k, k)) + packed("H", [sum(lengths) * width])
        put(f"{folder}/index-{code}", head + index(lengths, code, modes=bytes(5) if code == 3 else b""))
    put(f"{folder}/promise", bytes((0, 7, 1, 5, 0, 0, 132, 0)) + index([9, 0, 3, 20, 1], n_seqs=2**63))
    for k, kind in enumerate((GPT2, LLAMA3)):
        shard(f"{folder}/shard-{k}", list(range(100)), kind)
        with open(f"{folder}/shard-{k}", "rb") as f:
            data = f.read()
        put(f"{folder}/shard-{k}", bytes((2 + k, 7, 1, 9, 2, 0, 0, 0)) + data)


def lines(text, prefix):
    with open(text, "rb") as f:
        indexed(prefix, [list(line) for line in f], 8)


if __name__ == "__main__":
    {"lines": lines, "corpus": corpus}[sys.argv[1]](*sys.argv[2:])
