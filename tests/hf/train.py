#!/usr/bin/env python3
"""The way of a user: a Hugging Face folder -> moec import -> moec build -> train --init, --save-hf -> the same folder, in
one rank per side and in two, and after training another one.

  train.py MOEC WORK [FAMILY...]
"""

import json
import os
import re
import shutil
import subprocess
import sys

import files
import models

moec, work, families = os.path.abspath(sys.argv[1]), sys.argv[2], sys.argv[3:]

CONFIG = dict(hidden_act="silu", num_hidden_layers=models.LAYERS, hidden_size=models.HIDDEN, vocab_size=models.VOCAB,
              rms_norm_eps=1e-6, num_attention_heads=models.HEADS, num_key_value_heads=models.KV_HEADS, num_experts_per_tok=2,
              rope_theta=10000.0, max_position_embeddings=64, torch_dtype="bfloat16", head_dim=models.HEAD_DIM)
DENSE = dict(first_k_dense_replace=1, intermediate_size=models.DENSE, n_routed_experts=models.EXPERTS,
             moe_intermediate_size=models.FFN, n_shared_experts=models.SHARED // models.FFN)
LATENT = dict(q_lora_rank=models.Q_LORA, kv_lora_rank=models.KV_LORA, qk_nope_head_dim=models.NOPE, qk_rope_head_dim=models.ROPE,
              v_head_dim=models.V_DIM, n_group=1, topk_group=1, routed_scaling_factor=2.5,
              num_key_value_heads=models.HEADS) # as their publishers write it: every head has keys of its own
CONFIGS = dict(
    qwen3_moe=dict(CONFIG, model_type="qwen3_moe", num_experts=models.EXPERTS, moe_intermediate_size=models.FFN, norm_topk_prob=True),
    mixtral=dict(CONFIG, model_type="mixtral", num_local_experts=models.EXPERTS, intermediate_size=models.FFN),
    olmoe=dict(CONFIG, model_type="olmoe", num_experts=models.EXPERTS, intermediate_size=models.FFN, norm_topk_prob=False),
    deepseek=dict(CONFIG, model_type="deepseek", **DENSE, norm_topk_prob=False, scoring_func="softmax"),
    deepseek_v3=dict({**CONFIG, **LATENT}, model_type="deepseek_v3", **DENSE),
    gpt_oss=dict(CONFIG, model_type="gpt_oss", num_local_experts=models.EXPERTS, intermediate_size=models.FFN, attention_bias=True,
                 sliding_window=8, rope_scaling=dict(rope_type="yarn", factor=32.0, original_max_position_embeddings=4096, truncate=False)))
PLANS = {"1x1": "plan { schedule = af_pipe;  stages = 1;  attention_gpus = 1;  ffn_gpus = 1;  replicas = 1 }",
         "2x2": "plan { schedule = af_pipe;  stages = 1;  attention_gpus = 2;  ffn_gpus = 2;  replicas = 1 }",
         "1x1x2": "plan { schedule = af_pipe;  stages = 2;  attention_gpus = 1;  ffn_gpus = 1;  replicas = 1 }"}


def run(*command, code=0):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != code:
        sys.exit(f"FAIL: {' '.join(command)} ended with {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout + done.stderr


def model_block(path):
    """Between the name and the examples."""
    with open(path) as f:
        return re.search(r"model \w+ (\{.*\n\})", f.read(), re.S).group(1)


def same(got, want, what):
    for name in sorted(set(got) | set(want)):
        if got.get(name) != want.get(name):
            sys.exit(f"FAIL: {what}: {name} differs")


def try_family(family):
    home = f"{work}/{family}"
    there = models.as_files(family, quiet(models.random_own(family, 3)))
    files.write_folder(f"{home}/hf", there, 2)
    with open(f"{home}/hf/config.json", "w") as f:
        json.dump(CONFIGS[family], f)
    run(moec, "import", f"{home}/hf", "-o", f"{home}/imported.moespec")
    run(moec, "fmt", "--check", f"{home}/imported.moespec")
    run(moec, "check", f"{home}/imported.moespec")
    block = model_block(f"{home}/imported.moespec")
    specs = os.path.relpath(f"{os.path.dirname(os.path.abspath(__file__))}/../../specs", home)
    for name, plan in PLANS.items():
        spec = f"{home}/{name}.moespec"
        with open(spec, "w") as f:
            f.write(f'use "{specs}/hardware/cpu.moespec"\nmodel m {block}\ncluster c {{ nodes = 1;  node = cpu_host }}\n'
                    f"shape s {{ seq = 16;  micro_batch = 1;  global_batch = 4 }}\ntrain {{ dtype = bf16 }}\n{plan}\n")
        run(moec, "build", spec, "-o", f"{home}/{name}", "-q")
        train = f"{home}/{name}/train"
        out = f"{home}/{name}.hf"
        left = f"{out}.tmp{dead_pid()}" # as a run that was killed leaves it
        files.write_folder(left, there)
        said = run(train, "--steps", "0", "--init", f"{home}/hf", "--save-hf", out, "--shard-bytes", "60000")
        same(files.read_folder(out, 60000), there, f"{family} {name}")
        if os.path.exists(left) or "which a run that was killed had left" not in said:
            sys.exit(f"FAIL: {left} is still there: {said}")
        run(moec, "import", out, "-o", f"{home}/again.moespec")
        if model_block(f"{home}/again.moespec") != block:
            sys.exit(f"FAIL: {family} {name}: the config that was saved says another model")
    # it trains from there: other weights, and every layout's losses are those of the first
    with open(f"{home}/data", "wb") as f:
        f.write(bytes(i * i % models.VOCAB for i in range(4000)))
    losses = []
    for name in PLANS:
        log = f"{home}/{name}.log"
        run(f"{home}/{name}/train", "--steps", "1", "--init", f"{home}/hf", "--data", f"{home}/data", "--holdout", "0",
            "--log", log, "--save-hf", f"{home}/{name}.trained")
        with open(log) as f:
            losses.append(json.loads(f.readline())["loss"])
        trained = files.read_folder(f"{home}/{name}.trained", 10**10)
        moved = sum(trained[t] != there[t] for t in there)
        if set(trained) != set(there) or moved < len(there) // 2:
            sys.exit(f"FAIL: {family} {name}: after a step {moved} of {len(there)} tensors are others")
    if max(losses) - min(losses) > 0.01: # bf16 messages, sums in another order
        sys.exit(f"FAIL: {family}: the layouts' losses from the same weights are {losses}")
    print(f"{family}: {len(there)} tensors equal in {len(PLANS)} layouts, loss {losses[0]:.3f}")
    scaled = "rope_scaling" in CONFIGS[family]
    # the tensors fit, but the model is another: it says so, and in what
    text = run(f"{home}/1x1/train", "--steps", "0", "--init", f"{home}/hf")
    if "says" in text:
        sys.exit(f"FAIL: the same config: {text}")
    with open(f"{home}/hf/config.json", "w") as f:
        json.dump(dict(CONFIGS[family], num_hidden_layers=9, sliding_window=None, layer_types=["full_attention"], num_attention_heads=8, head_dim=8, rope_theta=5e5, num_experts_per_tok=1,
                       rope_scaling=None if scaled else dict(type="yarn", factor=4)), f)
    text = run(f"{home}/1x1/train", "--steps", "0", "--init", f"{home}/hf")
    window = ("sliding_window = 0, this model has 8", "layer_types") if "sliding_window" in CONFIGS[family] else ()
    for part in (*window, f"num_hidden_layers = 9, this model has {models.LAYERS}", "num_attention_heads = 8, this model has 4", "rope_theta = 500000, this model has 10000",
                 "num_experts_per_tok = 1, this model has 2", "does not scale RoPE, this model does" if scaled else "scales RoPE, this model does not"):
        if part not in text:
            sys.exit(f"FAIL: another config: {part} is not in: {text}")
    wrong = dict(there)
    del wrong["lm_head.weight"]
    files.write_folder(f"{home}/wrong", wrong)
    text = run(f"{home}/1x1/train", "--steps", "0", "--init", f"{home}/wrong", "--save-hf", f"{home}/none", code=1)
    if "missing in" not in text or "lm_head.weight" not in text or os.path.exists(f"{home}/none"):
        sys.exit(f"FAIL: a missing tensor: {text}")


def dead_pid():
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


def quiet(own):
    """Random bits are numbers up to 1e38; a model that can run has small ones: exponents from 2^-20 to 2^-5, gains near 1."""
    for name, (shape, bits) in own.items():
        for i, b in enumerate(bits):
            bits[i] = (0x3f80 | b & 0x3f) if "norm" in name else b & 0x807f | 0x3580 + (b >> 7 & 15) * 0x80
    return own


def refuse():
    """A model that is not known: its file stays as it was."""
    os.makedirs(f"{work}/llama")
    with open(f"{work}/llama/config.json", "w") as f:
        json.dump(dict(CONFIG, model_type="llama"), f)
    with open(f"{work}/kept", "w") as f:
        f.write("kept\n")
    text = run(moec, "import", f"{work}/llama", "-o", f"{work}/kept", code=1)
    with open(f"{work}/kept") as f:
        if 'model_type "llama" is not known' not in text or f.read() != "kept\n":
            sys.exit(f"FAIL: an unknown model: {text}")
    with open(f"{work}/llama/config.json", "w") as f:
        json.dump(CONFIGS["mixtral"], f)
    os.symlink("llama/config.json", f"{work}/same")
    for out in (f"{work}/llama/config.json", f"{work}/same"):
        text = run(moec, "import", f"{work}/llama", "-o", out, code=1)
        with open(f"{work}/llama/config.json") as f:
            if "it is what `moec import` reads" not in text or json.load(f) != CONFIGS["mixtral"]:
                sys.exit(f"FAIL: over its own input: {text}")
    run(moec, "import", f"{work}/llama", "-o", f"{work}/kept")  # as every verb's -o, it replaces a file
    with open(f"{work}/kept") as f:
        if "family = mixtral" not in f.read():
            sys.exit("FAIL: an old spec was not replaced")
    if "No such file" not in run(moec, "import", f"{work}/none", code=1):
        sys.exit("FAIL: a folder that is not there")


shutil.rmtree(work, ignore_errors=True)
os.makedirs(work)
refuse()
for each in families or CONFIGS:
    try_family(each)
