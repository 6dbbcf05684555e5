#!/usr/bin/env python3
"""Time of a training step against PyTorch and Transformers on two cores: forward, backward, clipping, AdamW, in fp32.

Both begin with one model that Transformers saved, and take the same tokens, which moec dumps step by step. Two threads on
each side: two of PyTorch's, or the ranks of one layout, which are processes of one thread. A first round tries what each
side offers, moec its layouts and Transformers their ways to run experts and attention; the fastest of each then run in
turn, and the ratio is that of the medians. The losses of all steps must agree within 1e-4.

    pytorch.py --moec MOEC --venv V [--model tiny|wide] [--rounds N]

V is a virtual environment, filled on first use (tests/golden/torch_venv.py)."""
import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
SPECS = os.path.abspath(os.path.join(HERE, "..", "..", "specs"))
sys.path.insert(0, os.path.join(HERE, "..", "golden"))
import torch_venv

# layers, hidden, vocab, heads, kv_heads, head_dim, experts, top_k, expert hidden, sequence, sequences in a step
MODELS = {"tiny": (4, 64, 256, 4, 2, 16, 8, 2, 128, 512, 4), "wide": (2, 1024, 1024, 16, 8, 64, 8, 2, 1024, 512, 4)}
SPEC = """use "{specs}/hardware/cpu.moespec"
model m {{ layers = {layers};  hidden = {hidden};  vocab = {vocab};  norm_eps = 1e-6;  family = qwen3_moe
  attention {{ heads = {heads};  kv_heads = {kv_heads};  head_dim = {head_dim};  qk_norm = head;  rope {{ theta = 1e4 }} }}
  moe {{ experts = {experts};  top_k = {top_k};  hidden = {ffn};  router = softmax_renorm }} }}
cluster c {{ nodes = 1;  node = cpu_host }}
shape s {{ seq = {seq};  micro_batch = {micro_batch};  global_batch = {batch} }}
train {{ dtype = fp32;  optimizer adamw {{ lr = {lr};  betas = 0.9, 0.95;  weight_decay = 0.1;  clip = 1.0 }} }}
plan {{ {pins} }}
"""
LR = 1e-4
# name: micro-batch, pins
LAYOUTS = {
    "1 attention + 1 FFN": (1, "schedule = af_pipe;  replicas = 1;  stages = 1;  attention_gpus = 1;  ffn_gpus = 1"),
    "2 colocated": (2, "schedule = megatron;  replicas = 1;  stages = 1;  expert_parallel = 2"),
    "2 replicas of 1": (2, "schedule = megatron;  replicas = 2;  stages = 1;  expert_parallel = 1"),
}


def run(*command):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=900)
    return done.returncode, done.stdout


class Moec:
    """One layout's program."""

    def __init__(self, moec, work, name, sizes, start, folder=None):
        self.name, self.work, self.start = name, work, start
        micro_batch, pins = LAYOUTS[name]
        spec, self.folder = (os.path.join(work, (folder or name.replace(" ", "")) + end) for end in (".moespec", ""))
        with open(spec, "w", encoding="ascii") as f:
            f.write(SPEC.format(specs=SPECS, micro_batch=micro_batch, pins=pins, lr=LR, **sizes))
        code, self.why = run(moec, "build", spec, "-q", "-o", self.folder)
        self.works = code == 0

    def steps(self, n):
        """Milliseconds and losses of n steps."""
        log = os.path.join(self.work, "log")
        code, text = run(os.path.join(self.folder, "train"), "--data", os.path.join(self.work, "data"), "--holdout", "0",
                         "--init", self.start, "--steps", str(n), "--log", log)
        if code != 0:
            sys.exit(f"{self.name} ended with {code}:\n{text}")
        with open(log, encoding="ascii") as f:
            rows = [row for row in map(json.loads, f) if "loss" in row]
        return [row["step_ms"] for row in rows], [row["loss"] for row in rows]

    def batches(self, n, shape):
        import torch
        out = []
        for step in range(1, n + 1):
            path = os.path.join(self.work, "batch")
            code, text = run(os.path.join(self.folder, "train"), "--data", os.path.join(self.work, "data"), "--holdout", "0",
                             "--steps", str(step), "--dump-batch", path)
            if code != 0:
                sys.exit(text)
            with open(path, "rb") as f:
                out.append(torch.frombuffer(bytearray(f.read()), dtype=torch.int32).view(shape).long())
        return out


class PyTorch:
    """One way to run the experts and attention of Transformers."""

    def __init__(self, start, experts, attention, threads):
        self.name = f"{experts} experts, {attention} attention, {threads} threads"
        self.start, self.experts, self.attention, self.threads = start, experts, attention, threads

    def steps(self, batches):
        import torch
        import transformers
        torch.set_num_threads(self.threads)
        model = transformers.AutoModelForCausalLM.from_pretrained(
            self.start, dtype=torch.float32, experts_implementation=self.experts, attn_implementation=self.attention)
        model.train()
        decayed = [p for p in model.parameters() if p.dim() > 1]
        plain = [p for p in model.parameters() if p.dim() <= 1]
        adam = torch.optim.AdamW([dict(params=decayed), dict(params=plain, weight_decay=0.0)], lr=LR, betas=(0.9, 0.95),
                                 eps=1e-8, weight_decay=0.1, fused=True)
        times, losses = [], []
        for batch in batches:
            begin = time.perf_counter()
            logits = model(batch[:, :-1], use_cache=False).logits
            loss = torch.nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), batch[:, 1:].reshape(-1))
            adam.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            adam.step()
            losses.append(loss.item())
            times.append(1e3 * (time.perf_counter() - begin))
        return times, losses


def save_start(sizes, folder):
    import torch
    import transformers
    torch.manual_seed(1)
    model = transformers.Qwen3MoeForCausalLM(transformers.Qwen3MoeConfig(
        vocab_size=sizes["vocab"], hidden_size=sizes["hidden"], num_hidden_layers=sizes["layers"],
        num_attention_heads=sizes["heads"], num_key_value_heads=sizes["kv_heads"], head_dim=sizes["head_dim"],
        num_experts=sizes["experts"], num_experts_per_tok=sizes["top_k"], moe_intermediate_size=sizes["ffn"],
        intermediate_size=sizes["ffn"], norm_topk_prob=True, rms_norm_eps=1e-6, tie_word_embeddings=False,
        rope_parameters=dict(rope_type="default", rope_theta=1e4), pad_token_id=None, max_position_embeddings=4096))
    model.save_pretrained(folder)


def compare(model, args, work):
    keys = ("layers", "hidden", "vocab", "heads", "kv_heads", "head_dim", "experts", "top_k", "ffn", "seq", "batch")
    sizes = dict(zip(keys, MODELS[model]))
    start = os.path.join(work, "start")
    save_start(sizes, start)
    with open(os.path.join(work, "data"), "wb") as f:
        f.write(random.Random(1).randbytes(200000))  # every expert gets its share
    programs = [Moec(args.moec, work, name, sizes, start) for name in LAYOUTS]
    for p in programs:
        if not p.works:
            print(f"  {p.name}: not built: {p.why.strip().splitlines()[0]}")
    programs = [p for p in programs if p.works]
    # The tokens of a step depend on the shape alone, so a small model's program writes them.
    small = Moec(args.moec, work, next(iter(LAYOUTS)), dict(sizes, hidden=64, ffn=64), None, "tokens")
    batches = small.batches(args.steps, (sizes["batch"], sizes["seq"] + 1))
    experts = ["eager", "grouped_mm"]
    if 2 * sizes["hidden"] * sizes["ffn"] * sizes["seq"] * sizes["batch"] * sizes["top_k"] < 2**30:
        experts.append("batched_mm")  # it copies the weights for every token
    ways = [PyTorch(start, e, "sdpa", threads) for threads in (2, 1) for e in experts] + [PyTorch(start, "eager", "eager", 2)]
    best, first = {}, None
    for side, tried in (("moec", programs), ("PyTorch", ways)):
        for x in tried:
            try:
                times, losses = x.steps(args.steps if side == "moec" else batches)
            except (RuntimeError, ValueError, NotImplementedError) as error:
                print(f"  {side}, {x.name}: does not run: {str(error).splitlines()[0][:100]}", flush=True)
                continue
            first = first or losses
            apart = max(abs(a / b - 1) for a, b in zip(losses, first))
            print(f"  {side}, {x.name}: {min(times[1:]):.1f} ms at best, losses within {apart:.1e}", flush=True)
            if not apart <= 1e-4:
                sys.exit(f"FAIL: losses {losses} and {first}")
            if side not in best or min(times[1:]) < best[side][0]:
                best[side] = (min(times[1:]), x)
    times = {"moec": [], "PyTorch": []}
    for _ in range(args.rounds):
        for side, (_, x) in best.items():
            times[side].append(statistics.median(x.steps(args.steps if side == "moec" else batches)[0][1:]))
    ratios = [b / a for a, b in zip(times["moec"], times["PyTorch"])]
    tokens = sizes["seq"] * sizes["batch"]
    for side in times:
        middle = statistics.median(times[side])
        print(f"{model}: {side} ({best[side][1].name}): {middle:.1f} ms per step, {1e3 * tokens / middle:.0f} tokens/s")
    print(f"{model}: moec {statistics.median(times['PyTorch']) / statistics.median(times['moec']):.2f} times as fast "
          f"(rounds: {', '.join(f'{r:.2f}' for r in ratios)})", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--moec", required=True)
    parser.add_argument("--venv", required=True)
    parser.add_argument("--model", choices=MODELS, help="default: both")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=5, help="of a run; the first does not count")
    parser.add_argument("--smoke", action="store_true", help="one short round of the small model")
    args = parser.parse_args()
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # threads that spin lose more on a machine with other work
    torch_venv.enter(args.venv)
    import transformers
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    args.moec = os.path.abspath(args.moec)
    if args.smoke:
        args.model, args.rounds, args.steps = "tiny", 1, 2
    for model in [args.model] if args.model else MODELS:
        with tempfile.TemporaryDirectory() as work:
            compare(model, args, work)


if __name__ == "__main__":
    main()
