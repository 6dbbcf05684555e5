#!/usr/bin/env python3
"""Sets the fp64 reference, and programs that moec compiles, against the golden values: loss, logits, every gradient.

    check.py ref|cpu --ref REF_TRAIN --compare COMPARE_TENSORS --work DIR [--moec MOEC] [NAME...]

Golden tensors have the names of published checkpoints; the reference has the compiler's own. The conversion here is
written for itself, so that it also holds the compiler's (runtime/hf_names.def) to account."""
import argparse
import array
import json
import os
import re
import shutil
import struct
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
SPECS = os.path.join(HERE, "..", "..", "specs", "models")
sys.path.insert(0, os.path.join(HERE, "..", "e2e"))

from layouts import PUBLISHED, Runner  # noqa: E402

# The golden values are fp32 sums: rounding of 1e-7 per operation, a few hundred operations deep.
LOSS, GRADS = 2e-5, "1e-4"


def read_tensors(path):
    """name: (shape, array of floats), from F32, BF16, I32 and F64."""
    with open(path, "rb") as f:
        data = f.read()
    n = struct.unpack("<Q", data[:8])[0]
    out = {}
    for name, entry in json.loads(data[8:8 + n]).items():
        if name == "__metadata__":
            continue
        begin, end = (8 + n + x for x in entry["data_offsets"])
        raw = data[begin:end]
        if entry["dtype"] == "BF16":
            raw = b"".join(b"\0\0" + raw[i:i + 2] for i in range(0, len(raw), 2))
        values = array.array({"F32": "f", "BF16": "f", "I32": "i", "F64": "d"}[entry["dtype"]])
        values.frombytes(raw)
        out[name] = (tuple(entry["shape"]), values)
    return out


def write_tensors(path, tensors):
    header, at = {}, 0
    for name, (shape, values) in tensors.items():
        header[name] = dict(dtype="F32", shape=list(shape), data_offsets=[at, at + 4 * len(values)])
        at += 4 * len(values)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for _, values in tensors.values():
            f.write(array.array("f", values).tobytes())


def own(tensors):
    """Published names and layouts to the compiler's own."""
    out = {}
    for name, (shape, x) in tensors.items():
        if ".mlp.experts.gate_up_proj" in name or ".mlp.experts.down_proj" in name:  # gpt-oss
            unpack(name, shape, x, out)
            continue
        for old, new in ((".block_sparse_moe.", ".mlp."), (".w1.", ".gate_proj."), (".w3.", ".up_proj."),
                         (".w2.", ".down_proj."), (".mlp.router.", ".mlp.gate.")):
            name = name.replace(old, new)
        out[name] = (shape, x)
    return out


def unpack(name, shape, x, out):
    """[E, in, out] to one [out, in] per expert; gate in the even columns, up in the odd ones; biases [E, out] alike."""
    prefix, last = name.rsplit(".", 1)
    bias = last.endswith("_bias")
    rows, columns = (1, shape[1]) if bias else shape[1:]
    parts = (("down_proj", 0, 1),) if last.startswith("down") else (("gate_proj", 0, 2), ("up_proj", 1, 2))
    for e in range(shape[0]):
        base = e * rows * columns
        for part, first, step in parts:
            picked = range(first, columns, step)
            values = array.array("f", (x[base + r * columns + c] for c in picked for r in range(rows)))
            out[f"{prefix}.{e}.{part}.{'bias' if bias else 'weight'}"] = \
                ((len(picked),) if bias else (len(picked), rows), values)


def in_files(name, key):
    """Own name of a tensor to the published one that holds it."""
    if name == "mixtral":
        key = key.replace(".mlp.", ".block_sparse_moe.")
        for own_part, part in (("gate_proj", "w1"), ("up_proj", "w3"), ("down_proj", "w2")):
            key = key.replace(own_part, part)
    if name == "gpt_oss":
        key = re.sub(r"experts\.\d+\.(gate|up)_proj", "experts.gate_up_proj", key)
        key = re.sub(r"experts\.\d+\.down_proj", "experts.down_proj", key)
        if ".experts." in key:
            key = key.replace(".weight", "").replace(".bias", "_bias")
        key = key.replace(".mlp.gate.", ".mlp.router.")
    return key


def relative(a, b):
    return (sum((x - y) ** 2 for x, y in zip(a, b)) / sum(y * y for y in b)) ** 0.5


class Checker(Runner):
    def check(self, name):
        self.folder = os.path.join(self.work, name)
        os.makedirs(self.folder)
        self.path = lambda file: os.path.join(self.folder, file)
        self.spec = os.path.join(SPECS, f"tiny_{name}.moespec")
        with open(os.path.join(HERE, name, "golden.json")) as f:
            self.golden = json.load(f)
        self.tensors = read_tensors(os.path.join(HERE, name, "golden.safetensors"))
        grads = own({k[5:]: v for k, v in self.tensors.items() if k.startswith("grad.")})
        write_tensors(self.path("golden-grads"), grads)
        getattr(self, self.args.what)(name)
        shutil.rmtree(self.folder)

    def hold(self, what, value, golden, tolerance):
        error = abs(value - golden) / max(abs(golden), 1e-30) if golden else abs(value)
        print(f"  {what} {value:.9g}, golden {golden:.9g}, error {error:.2g}")
        if not error <= tolerance:
            raise RuntimeError(f"{what} {value} differs from the golden {golden} by more than {tolerance}")

    def hold_losses(self, step):
        self.hold("loss", step["loss"], self.golden["loss"], LOSS)
        self.hold("balance loss", step["balance_loss"], self.golden["balance_loss"], LOSS)

    def compare(self):
        """The gradients, without those of selection biases: they have none, and so no golden one."""
        mine = {k: v for k, v in read_tensors(self.path("grads")).items() if "e_score_correction_bias" not in k}
        write_tensors(self.path("own-grads"), mine)
        out = self.run(self.args.compare, self.path("own-grads"), self.path("golden-grads"), "--rtol", GRADS)
        print("  gradients:", out.strip().splitlines()[-1])

    def ref(self, name):
        weights = own(read_tensors(os.path.join(HERE, name, "model.safetensors")))
        write_tensors(self.path("weights"), weights)
        seq, n = self.golden["seq"], self.golden["sequences"]
        tokens = self.tensors["tokens"][1]
        with open(self.path("tokens"), "wb") as f:
            for k in range(n):
                f.write(array.array("i", tokens[k * seq:(k + 1) * seq + 1]).tobytes())
        out = self.run(self.args.ref, "--config", self.spec, "--weights", self.path("weights"), "--tokens",
                       self.path("tokens"), "--grads", self.path("grads"), "--logits", self.path("logits"))
        step = json.loads(out.splitlines()[0])
        self.hold_losses(step)
        self.hold_logits(relative(read_tensors(self.path("logits"))["logits"][1], self.tensors["logits"][1]), LOSS)
        self.compare()

    def train(self, name, spec):
        """One step of a bundle that begins with the published files. The order of samples differs, but not what is summed
        over all of them. Returns its line of the log."""
        bundle = self.path("bundle")
        self.run(self.args.moec, "build", spec, "-o", bundle)
        with open(self.path("tokens"), "wb") as f:
            f.write(array.array("H", self.tensors["tokens"][1]).tobytes())
        self.run(os.path.join(bundle, "train"), "--data", self.path("tokens"), "--format", "uint16", "--holdout", "0",
                 "--init", os.path.join(HERE, name), "--steps", "1", "--dump-grads", self.path("grads"), "--log",
                 self.path("log"), "--dump-weights", self.path("weights"), "--dump-logits", self.path("logits"),
                 "--dump-batch", self.path("batch"))
        with open(self.path("log")) as f:
            return json.loads(f.readline())

    def logits_error(self):
        """How far the dumped logits are from the golden ones, each sequence put where its tokens stand in the golden batch."""
        seq, n, tokens = self.golden["seq"], self.golden["sequences"], list(self.tensors["tokens"][1])
        (rows, _, vocab), mine = read_tensors(self.path("logits"))["logits"]
        batch = array.array("i")
        with open(self.path("batch"), "rb") as f:
            batch.frombytes(f.read())
        if (rows, len(batch)) != (n, n * (seq + 1)):
            raise RuntimeError(f"logits of {rows} sequences and a batch of {len(batch)} tokens, for {n} sequences of {seq}")
        place = {tuple(tokens[k * seq:(k + 1) * seq + 1]): k for k in range(n)}
        own = [None] * n
        for i in range(n):
            own[place[tuple(batch[i * (seq + 1):(i + 1) * (seq + 1)])]] = mine[i * seq * vocab:(i + 1) * seq * vocab]
        return relative([x for row in own for x in row], self.tensors["logits"][1])

    def hold_logits(self, error, tolerance):
        print(f"  logits: error {error:.2g}")
        if not error <= tolerance:
            raise RuntimeError(f"logits differ from the golden ones by {error}, more than {tolerance}")

    def cpu(self, name):
        step = self.train(name, self.spec)
        self.hold_losses(step)
        self.hold_logits(self.logits_error(), LOSS)
        self.selection_bias(name)
        self.compare()

    def selection_bias(self, name):
        """What stands for its gradient is each expert's choices, and from them it moves by 0.001 towards the mean."""
        counts, after = read_tensors(self.path("grads")), read_tensors(self.path("weights"))
        before = own(read_tensors(os.path.join(HERE, name, "model.safetensors")))
        moved = 0
        for key in (k for k in counts if "e_score_correction_bias" in k):
            load, mean = counts[key][1], sum(counts[key][1]) / len(counts[key][1])
            for x, old, new in zip(load, before[key][1], after[key][1]):
                expected = old + 0.001 * ((x < mean) - (x > mean))
                if not abs(new - expected) <= 1e-7:
                    raise RuntimeError(f"{key} of load {x}, mean {mean}, went from {old} to {new}")
                moved += new != old
        if name in ("deepseek_v3", "kimi_k2") and not moved:
            raise RuntimeError("no selection bias moved")

    def bf16(self, name):
        """bf16 storage strays from the golden fp32 values at most twice as far as PyTorch's own bf16 run does: all gradients
        together, and nine of ten tensors. Of the tenth a token may be to blame that is near a border of router or clamp and
        is carried over it by one of the two runs."""
        with open(self.spec) as f:
            text = f.read().replace("dtype = fp32", "dtype = bf16").replace('"../hardware', f'"{SPECS}/../hardware')
        spec = self.path("bf16.moespec")
        with open(spec, "w") as f:
            f.write(text)
        step = self.train(name, spec)
        theirs = self.golden["bf16"]
        self.hold("loss", step["loss"], self.golden["loss"], 2 * max(theirs["loss"], theirs["logits"] / 10))
        mine, golden = read_tensors(self.path("grads")), read_tensors(self.path("golden-grads"))
        error2, norm2 = {}, {}
        for key, (_, x) in golden.items():
            file_key = in_files(name, key)
            error2[file_key] = error2.get(file_key, 0) + sum((a - b) ** 2 for a, b in zip(mine[key][1], x))
            norm2[file_key] = norm2.get(file_key, 0) + sum(b * b for b in x)
        ratio = sorted((error2[k] / norm2[k]) ** 0.5 / e for k, e in theirs["grads"].items() if e > 0)
        every = (sum(error2.values()) / sum(norm2.values())) ** 0.5 / theirs["all_grads"]
        print(f"  gradients: error over PyTorch's {every:.2f}; of tensors at worst {ratio[-1]:.2f}, of nine in ten "
              f"{ratio[len(ratio) * 9 // 10]:.2f}")
        if not (every <= 2 and ratio[len(ratio) * 9 // 10] <= 2):
            raise RuntimeError("bf16 gradients are more than twice as far off as PyTorch's")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["ref", "cpu", "bf16"])
    for flag in ("--ref", "--compare", "--work"):
        parser.add_argument(flag, required=True)
    parser.add_argument("--moec")
    parser.add_argument("names", nargs="*", default=tuple(PUBLISHED))
    args = parser.parse_intermixed_args()
    checker = Checker(args, f"golden-{args.what}")
    for name in args.names:
        print(name)
        try:
            checker.check(name)
        except (RuntimeError, OSError, KeyError, ValueError, subprocess.TimeoutExpired) as error:
            print(f"FAIL {name}: {error}")
            checker.failed.append(name)
        checker.done += 1
    checker.finish(f"{checker.done - len(checker.failed)} passed")


if __name__ == "__main__":
    main()
