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

from layouts import PUBLISHED, Runner, read  # noqa: E402

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

    def compare(self, grads):
        """The gradients, without those of selection biases: they have none, and so no golden one."""
        mine = {k: v for k, v in read_tensors(self.path(grads)).items() if "e_score_correction_bias" not in k}
        write_tensors(self.path("own-grads"), mine)
        out = self.run(self.args.compare, self.path("own-grads"), self.path("golden-grads"), "--rtol", GRADS)
        print("  gradients:", out.strip().splitlines()[-1])

    def reference(self, spec, weights, tokens, n):
        """One step of the reference on n sequences; its line of the log. Gradients and logits go to files."""
        seq = self.golden["seq"]
        with open(self.path("tokens"), "wb") as f:
            for k in range(n):
                f.write(array.array("i", tokens[k * seq:(k + 1) * seq + 1]).tobytes())
        out = self.run(self.args.ref, "--config", spec, "--weights", weights, "--tokens", self.path("tokens"),
                       "--grads", self.path("ref-grads"), "--logits", self.path("ref-logits"))
        return json.loads(out.splitlines()[0])

    def own_weights(self, name):
        write_tensors(self.path("own-weights"), own(read_tensors(os.path.join(HERE, name, "model.safetensors"))))
        return self.path("own-weights")

    def ref(self, name):
        step = self.reference(self.spec, self.own_weights(name), self.tensors["tokens"][1], self.golden["sequences"])
        self.hold_losses(step)
        self.hold_logits(relative(read_tensors(self.path("ref-logits"))["logits"][1], self.tensors["logits"][1]), LOSS)
        self.compare("ref-grads")

    def build(self, spec):
        self.run(self.args.moec, "build", spec, "-o", self.path("bundle"))

    def train(self, name, tokens):
        """One step of the bundle that begins with the published files. The order of samples differs, but not what is summed
        over all of them. Returns its line of the log."""
        with open(self.path("tokens"), "wb") as f:
            f.write(array.array("H", tokens).tobytes())
        self.run(os.path.join(self.path("bundle"), "train"), "--data", self.path("tokens"), "--format", "uint16", "--holdout", "0",
                 "--init", os.path.join(HERE, name), "--steps", "1", "--dump-grads", self.path("grads"), "--log",
                 self.path("log"), "--dump-weights", self.path("weights"), "--dump-logits", self.path("logits"),
                 "--dump-batch", self.path("batch"))
        with open(self.path("log")) as f:
            return json.loads(f.readline())

    def logits_error(self, tokens, golden):
        """How far the dumped logits are from those, each sequence put where its tokens stand among the others."""
        seq, n = self.golden["seq"], (len(tokens) - 1) // self.golden["seq"]
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
        return relative([x for row in own for x in row], golden)

    def hold_logits(self, error, tolerance):
        print(f"  logits: error {error:.2g}")
        if not error <= tolerance:
            raise RuntimeError(f"logits differ from the golden ones by {error}, more than {tolerance}")

    def cpu(self, name):
        tokens = self.tensors["tokens"][1]
        self.build(self.spec)
        self.hold_losses(self.train(name, tokens))
        self.hold_logits(self.logits_error(tokens, self.tensors["logits"][1]), LOSS)
        self.selection_bias(name)
        self.compare("grads")

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
        """bf16 storage strays from exact values at most twice as far as PyTorch's own bf16 runs do: loss, logits, and every
        gradient tensor, as root mean squares over the batches that make_golden.py chose. Exact are the reference's values,
        which other tests hold to PyTorch's fp32 ones within 2e-5 and 1e-4; these errors are about 2e-2."""
        theirs = self.golden["bf16"]
        text = read(self.spec).decode()
        for old, new in (("dtype = fp32", "dtype = bf16"), ('"../hardware', f'"{SPECS}/../hardware'),
                         (f"global_batch = {self.golden['sequences']}", f"global_batch = {theirs['sequences']}")):
            if old not in text:
                raise RuntimeError(f"the spec has no {old}")
            text = text.replace(old, new)
        spec, weights, sums = self.path("bf16.moespec"), self.own_weights(name), {}
        with open(spec, "w") as f:
            f.write(text)
        self.build(spec)
        for row in theirs["tokens"]:
            for key, error in self.bf16_errors(name, spec, weights, [*bytes.fromhex(row), 1]).items():
                sums[key] = sums.get(key, 0.0) + error * error
        wanted = dict(theirs["grads"], **{k: theirs[k] for k in ("loss", "logits", "all_grads")})
        if set(sums) != set(wanted):
            raise RuntimeError(f"other tensors than golden ones: {sorted(set(sums) ^ set(wanted))[:4]}")
        ratios = {k: (sums[k] / len(theirs["tokens"])) ** 0.5 / error if error > 0 else sums[k] for k, error in wanted.items()}
        worst = max(theirs["grads"], key=ratios.get)
        print("  over PyTorch's errors:", *(f"{k} {ratios[k]:.2f}," for k in ("loss", "logits", "all_grads")),
              f"worst tensor {ratios[worst]:.2f} ({worst})")
        over = [f"{k} {x:.2f} times" for k, x in ratios.items() if not x <= 2]
        if over:
            raise RuntimeError(f"more than twice as far off as PyTorch's bf16: {', '.join(over)}")

    def bf16_errors(self, name, spec, weights, tokens):
        """Relative errors of one step on these tokens, gradients under their names in files."""
        exact = self.reference(spec, weights, tokens, (len(tokens) - 1) // self.golden["seq"])
        step = self.train(name, tokens)
        mine, golden = read_tensors(self.path("grads")), read_tensors(self.path("ref-grads"))
        error2, norm2 = {}, {}
        for key, (_, x) in golden.items():
            if "e_score_correction_bias" not in key:
                file_key = in_files(name, key)
                error2[file_key] = error2.get(file_key, 0) + sum((a - b) ** 2 for a, b in zip(mine[key][1], x))
                norm2[file_key] = norm2.get(file_key, 0) + sum(b * b for b in x)
        out = {k: (error2[k] / norm2[k]) ** 0.5 if norm2[k] > 0 else error2[k] for k in error2}
        out["all_grads"] = (sum(error2.values()) / sum(norm2.values())) ** 0.5
        out["loss"] = abs(step["loss"] / exact["loss"] - 1)
        out["logits"] = self.logits_error(tokens, read_tensors(self.path("ref-logits"))["logits"][1])
        return out


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
