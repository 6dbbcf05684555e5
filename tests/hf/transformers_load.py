#!/usr/bin/env python3
"""What moec saves, read by Transformers themselves, and the other way: for the tiny random models of tests/golden

  - trained for some steps in fp32 and saved with --save-hf, a model loads without missing, unexpected or mismatched
    tensors, and has the logits and the loss of moec's own next step on the same tokens;
  - saved by Transformers in bf16, imported, and saved by moec again, it has the same files' tensors bit for bit, and so
    has the model that Transformers make of them.

  transformers_load.py --moec MOEC --venv V --work DIR [NAME...]
"""
import argparse
import json
import os
import random
import re
import shutil
import struct
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
GOLDEN = os.path.join(HERE, "..", "golden")
SPECS = os.path.abspath(os.path.join(HERE, "..", "..", "specs"))
sys.path.insert(0, GOLDEN)
import torch_venv

NAMES = ("qwen3_moe", "mixtral", "olmoe", "gpt_oss", "deepseek_v3", "kimi_k2")
STEPS = 5  # of training; and so many batches are compared
VOCAB, SEQ, BATCH = 40, 20, 4
RTOL = 2e-5  # of losses, and of logits as norms: fp32 sums in other orders: 1e-7 per operation, a few hundred operations deep; as tests/golden/check.py

REST = f"""
cluster c {{ nodes = 1;  node = cpu_host }}
shape s {{ seq = {SEQ};  micro_batch = 1;  global_batch = {BATCH} }}
plan {{ schedule = af_pipe;  replicas = 1;  stages = 2;  attention_gpus = 1;  ffn_gpus = 2 }}
"""


def run(*command):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=600)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}")


def losses_of(log):
    with open(log, encoding="ascii") as f:
        return [row["loss"] for row in map(json.loads, f) if "loss" in row]


def build(moec, folder, dtype):
    """The imported model as a program of that type."""
    with open(os.path.join(folder, "imported.moespec"), encoding="ascii") as f:
        block = re.search(r"^model \w+ \{.*?^\}\n", f.read(), re.S | re.M).group(0)
    spec = os.path.join(folder, f"{dtype}.moespec")
    with open(spec, "w", encoding="ascii") as f:
        f.write(f'use "{SPECS}/hardware/cpu.moespec"\n{block}{REST}train {{ dtype = {dtype};  optimizer adamw {{ lr = 3e-3 }} }}\n')
    run(moec, "build", spec, "-q", "-o", os.path.join(folder, dtype))
    return os.path.join(folder, dtype, "train")


def read_file(path):
    """{name: (dtype, shape, bytes)} of a safetensors file."""
    with open(path, "rb") as f:
        data = f.read()
    n = struct.unpack("<Q", data[:8])[0]
    entries = json.loads(data[8:8 + n])
    entries.pop("__metadata__", None)
    return {name: (e["dtype"], e["shape"], data[8 + n + e["data_offsets"][0]:8 + n + e["data_offsets"][1]])
            for name, e in entries.items()}


def read_files(folder):
    out = {}
    for file in os.listdir(folder):
        if file.endswith(".safetensors"):
            out.update(read_file(os.path.join(folder, file)))
    return out


def same(got, want, what):
    other = sorted(key for key in set(got) | set(want) if got.get(key) != want.get(key))
    if other:
        raise RuntimeError(f"of the {what}'s {len(want)} tensors {len(other)} differ: {', '.join(other[:4])}")


class Checker:
    def __init__(self, args):
        import torch
        import transformers
        import make_golden
        self.golden = make_golden
        torch.set_num_threads(1)
        transformers.logging.set_verbosity_error()
        transformers.logging.disable_progress_bar()
        self.moec, self.work, self.torch, self.transformers = os.path.abspath(args.moec), args.work, torch, transformers

    def load(self, folder, dtype):
        model, info = self.transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=dtype, output_loading_info=True, attn_implementation="eager", experts_implementation="eager")
        for what, names in info.items():
            if names:
                raise RuntimeError(f"{folder}: Transformers tell of {what}: {names}")
        return model

    def there_and_back(self, name, folder):
        """Transformers' model, bf16 -> their files -> moec -> its files, and the model that these give."""
        model, _ = self.golden.build(name)
        self.golden.fill(name, model, self.golden.MODELS[name][2])
        model.to(self.torch.bfloat16)
        for key, buffer in model.named_buffers():
            if "correction_bias" in key:  # published as fp32
                buffer.data = buffer.data.float()
        theirs, back = os.path.join(folder, "theirs"), os.path.join(folder, "back")
        model.save_pretrained(theirs)
        run(self.moec, "import", theirs, "-o", os.path.join(folder, "imported.moespec"))
        train = build(self.moec, folder, "bf16")
        run(train, "--steps", "0", "--init", theirs, "--save-hf", back)
        mine, want = read_files(back), read_files(theirs)
        same(mine, want, "file")
        bits = lambda x: {k: v.contiguous().view(self.torch.uint8).tolist() for k, v in self.load(x, self.torch.bfloat16).state_dict().items()}
        first = bits(theirs)
        same(bits(back), first, "model")
        print(f"  bf16: {len(want)} tensors in files and {len(first)} of the model equal bit by bit", flush=True)

    def saved_loads(self, folder):
        train = build(self.moec, folder, "fp32")
        theirs, saved, log, batch, data, logits = (os.path.join(folder, x) for x in (
            "theirs", "saved", "log", "batch", "data", "logits"))
        rng = random.Random(7)
        with open(data, "wb") as f:
            f.write(bytes(rng.randrange(VOCAB) for _ in range(4000)))
        run(train, "--data", data, "--holdout", "0", "--steps", str(STEPS), "--init", theirs, "--save-hf", saved, "--log", log)
        before, model = losses_of(log), self.load(saved, self.torch.float32)
        untrained = self.load(theirs, self.torch.float32).state_dict()
        if any(x.is_floating_point() and self.torch.equal(x, untrained[key]) for key, x in model.state_dict().items()):
            raise RuntimeError("training left a tensor as it was")
        worst, worst_logits = 0.0, 0.0
        for seed in range(STEPS):  # other tokens each; the loss of a step is that before its update
            run(train, "--data", data, "--holdout", "0", "--steps", "1", "--seed", str(seed), "--init", saved, "--log", log,
                "--dump-batch", batch, "--dump-logits", logits)
            mine, (want, want_logits) = losses_of(log)[-1], self.forward(model, batch)
            worst = max(worst, abs(mine / want - 1))
            worst_logits = max(worst_logits, self.apart(logits, want_logits))
        print(f"  trained from {before[0]:.6f} to {before[-1]:.6f} and saved: on other tokens {mine:.9g}, Transformers {want:.9g}; "
              f"{STEPS} losses agree within {worst:.1e}, logits within {worst_logits:.1e}", flush=True)
        if not max(worst, worst_logits) <= RTOL:
            raise RuntimeError(f"losses are {worst} and logits {worst_logits} apart, more than {RTOL}")

    def apart(self, path, want):
        """Norm of the difference between the dumped logits and Transformers', over the norm of these."""
        dtype, shape, raw = read_file(path)["logits"]
        if dtype != "F32" or tuple(shape) != tuple(want.shape):
            raise RuntimeError(f"logits are {dtype} {shape}, not F32 {list(want.shape)}")
        mine = self.torch.frombuffer(bytearray(raw), dtype=self.torch.float32).view(want.shape)
        return ((mine - want).norm() / want.norm()).item()

    def forward(self, model, batch):
        """Mean cross entropy over the tokens of --dump-batch, balance losses not being part of it, and logits."""
        with open(batch, "rb") as f:
            raw = bytearray(f.read())
        x = self.torch.frombuffer(raw, dtype=self.torch.int32).view(BATCH, SEQ + 1).long()
        with self.torch.no_grad():
            logits = model(x[:, :-1].contiguous(), use_cache=False).logits.float()
        return self.torch.nn.functional.cross_entropy(logits.reshape(-1, VOCAB), x[:, 1:].reshape(-1)).item(), logits


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for flag in ("--moec", "--venv", "--work"):
        parser.add_argument(flag, required=True)
    parser.add_argument("names", nargs="*", default=NAMES)
    args = parser.parse_intermixed_args()
    torch_venv.enter(args.venv)
    checker, failed = Checker(args), 0
    for name in args.names:
        print(name, flush=True)
        folder = os.path.join(args.work, name)
        shutil.rmtree(folder, ignore_errors=True)
        os.makedirs(folder)
        try:
            checker.there_and_back(name, folder)
            checker.saved_loads(folder)
        except (RuntimeError, OSError, KeyError, ValueError, subprocess.TimeoutExpired) as error:
            print(f"FAIL {name}: {error}", flush=True)
            failed += 1
    print(f"{len(args.names) - failed} passed, {failed} failed")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
