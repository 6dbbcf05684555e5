#!/usr/bin/env python3
"""Hugging Face files -> ranks' buckets -> Hugging Face files, for every family and layout, bit by bit.

  round_trip.py HF_DRIVE WORK

Chunks of a few hundred bytes make tensors fall into pieces that end in the middle of everything.
"""

import array
import os
import resource
import shutil
import struct
import subprocess
import sys

import files
import models

drive, work = sys.argv[1:3]
failures = []


def run(family, tables, source, name, shard_bytes=10**9, dtype="BF16", before=None, chunk=700):
    own, out = f"{work}/{name}.own", f"{work}/{name}.out"
    shutil.rmtree(out, ignore_errors=True)
    done = subprocess.run([drive, family, dtype, tables, source, own, out, str(shard_bytes), str(chunk)], capture_output=True, text=True,
                          preexec_fn=before)
    return done, own, out


def check(good, what):
    if not good:
        failures.append(what)
        print("FAIL:", what)


def compare(got, want, what):
    check(sorted(got) == sorted(want), f"{what}: names differ: {sorted(set(got) ^ set(want))[:4]}")
    for name in want:
        if name in got and got[name] != want[name]:
            check(False, f"{what}: {name} is {got[name][:2]}, expected {want[name][:2]}; equal bytes: {got[name][2] == want[name][2]}")
            return


def good(family, tables, source, name, want_own, want_files, **more):
    done, own, out = run(family, tables, source, name, **more)
    check(done.returncode == 0, f"{name}: {done.stderr}")
    if done.returncode == 0:
        compare(files.read_file(own)[0], want_own, name + ", own")
        compare(files.read_folder(out, more.get("shard_bytes", 10**9)), want_files, name + ", files")


def bad(family, tables, tensors, name, *reasons, **more):
    source = f"{work}/{name}"
    shutil.rmtree(source, ignore_errors=True)
    files.write_folder(source, tensors)
    done, own, out = run(family, tables, source, name, **more)
    check(done.returncode != 0, f"{name}: accepted")
    for reason in reasons:
        check(reason in done.stderr, f"{name}: '{reason}' is not in: {done.stderr}")
    check(not os.path.exists(own) and not os.path.exists(out), f"{name}: left output")
    check(not [f for f in os.listdir(work) if ".tmp" in f], f"{name}: left temporary files")


def converted(tensors, dtype):
    """The same numbers as F32; as F16 the same bits, subnormals and infinities among them, but no NaN."""
    out = {}
    for name, (kind, shape, raw) in tensors.items():
        bits = array.array("H", raw)
        if kind == "BF16" and dtype == "F32":
            raw = array.array("I", (b << 16 for b in bits)).tobytes()
        elif kind == "BF16":
            raw = array.array("H", (b if b & 0x7c00 != 0x7c00 else b & 0xfc00 if b % 2 else b & 0x83ff for b in bits)).tobytes()
        out[name] = (dtype if kind == "BF16" else kind, shape, raw)
    return out


def halves_as_f32(tensors):
    """Python's own reading of F16."""
    return {name: (("F32", shape, struct.pack(f"<{len(raw) // 2}f", *struct.unpack(f"<{len(raw) // 2}e", raw))) if kind == "F16"
                   else (kind, shape, raw)) for name, (kind, shape, raw) in tensors.items()}


def round_trips(family):
    own = models.random_own(family, family)
    there = models.as_files(family, own)
    for shards in (1, 3):
        files.write_folder(f"{work}/{family}.{shards}", there, shards)
    for att, ffn in ((1, 1), (2, 2), (3, 2), (1, 4)):
        tables = f"{work}/{family}.{att}x{ffn}"
        models.tables(tables, family, att, ffn)
        good(family, tables, f"{work}/{family}.1", f"{family}.{att}x{ffn}.one", models.own_f32(own), there, chunk=[1, 700, 10**6][ffn % 3])
    good(family, f"{work}/{family}.2x2", f"{work}/{family}.3", f"{family}.shards", models.own_f32(own), there, shard_bytes=20000)
    good(family, f"{work}/{family}.2x2", f"{work}/{family}.3", f"{family}.single", models.own_f32(own), there, shard_bytes=1)


def other_types(family):
    tables = f"{work}/{family}.2x2"
    own = models.random_own(family, 5)
    wide = converted(models.as_files(family, own), "F32")
    files.write_folder(f"{work}/{family}.f32", wide)
    good(family, tables, f"{work}/{family}.f32", f"{family}.from_f32", models.own_f32(own), wide, dtype="F32")
    half = converted(models.as_files(family, own), "F16")
    files.write_folder(f"{work}/{family}.f16", half)
    done, _, out = run(family, tables, f"{work}/{family}.f16", f"{family}.from_f16", dtype="F32")
    check(done.returncode == 0, f"{family}.from_f16: {done.stderr}")
    compare(files.read_folder(out, 10**9), halves_as_f32(half), f"{family}.from_f16")


def fused(family):
    own = models.random_own(family, 6)
    files.write_folder(f"{work}/{family}.fused", models.as_fused(own))
    good(family, f"{work}/{family}.2x2", f"{work}/{family}.fused", f"{family}.from_fused", models.own_f32(own),
         models.as_files(family, own))


def mxfp4():
    there, own = models.quantised(models.random_own("gpt_oss", 7), 8)
    files.write_folder(f"{work}/mxfp4", there, 3)
    done, dumped, _ = run("gpt_oss", f"{work}/gpt_oss.2x2", f"{work}/mxfp4", "from_mxfp4", dtype="F32")
    check(done.returncode == 0, f"mxfp4: {done.stderr}")
    compare(files.read_file(dumped)[0], own, "mxfp4")
    name = "model.layers.0.mlp.experts.gate_up_proj"
    blocks, scales = there[name + "_blocks"], there[name + "_scales"]
    # the published check vector: byte 0x5A with scale 126 is (-0.5, +1.5)
    there[name + "_blocks"] = (blocks[0], blocks[1], b"\x5a" + blocks[2][1:])
    there[name + "_scales"] = (scales[0], scales[1], b"\x7e" + scales[2][1:])
    shutil.rmtree(f"{work}/mxfp4")
    files.write_folder(f"{work}/mxfp4", there)
    done, dumped, _ = run("gpt_oss", f"{work}/gpt_oss.2x2", f"{work}/mxfp4", "from_mxfp4", dtype="F32")
    first = files.read_file(dumped)[0]["model.layers.0.mlp.experts.0.gate_proj.weight"][2][:8]
    check(struct.unpack("<2f", first) == (-0.5, 1.5), f"0x5A with scale 126 is {struct.unpack('<2f', first)}")
    tables = f"{work}/gpt_oss.2x2"
    bad("gpt_oss", tables, {k: v for k, v in there.items() if k != name + "_scales"}, "no_scales", f"needs {name}_scales, U8")
    bad("gpt_oss", tables, {**there, name + "_scales": ("U8", (5, 64, 1), scales[2][:320])}, "few_scales", "[5, 64, 1]", "[5, 64, 2]")
    bad("gpt_oss", tables, {**there, name + "_blocks": ("I8", *blocks[1:])}, "signed_blocks", "stored as I8")


def ignored():
    own = models.random_own("qwen3_moe", 9, tied=True)
    there = models.as_files("qwen3_moe", own)
    more = {**there, "lm_head.weight": there["model.embed_tokens.weight"],
            "model.layers.0.self_attn.rotary_emb.inv_freq": ("F32", (8,), bytes(32)),
            "model.layers.3.enorm.weight": ("BF16", (64,), bytes(128)),
            "model.layers.3.eh_proj.weight": ("BF16", (64, 128), bytes(64 * 128 * 2))}
    files.write_folder(f"{work}/tied", more)
    models.tables(f"{work}/tied.2x2", "qwen3_moe", 2, 2, tied=True)
    good("qwen3_moe", f"{work}/tied.2x2", f"{work}/tied", "tied", models.own_f32(own), there)


def refused():
    tables = f"{work}/qwen3_moe.2x2"
    there = models.as_files("qwen3_moe", models.random_own("qwen3_moe", 10))
    q, k = "model.layers.1.self_attn.q_proj.weight", "model.layers.1.self_attn.k_proj.weight"
    down = "model.layers.1.mlp.experts.2.down_proj.weight"
    raw = there[k][2]
    bad("qwen3_moe", tables, {**there, k: ("BF16", (64, 32), raw)}, "turned", k + " is [64, 32], but this model's is [32, 64]")
    bad("qwen3_moe", tables, {**there, k: ("BF16", (2048,), raw)}, "flat", k + " is [2048], but this model's is [32, 64]")
    bad("qwen3_moe", tables, {**there, down: ("BF16", (32, 64), there[down][2])}, "down", "is [32, 64], but this model's is [64, 32]")
    bad("qwen3_moe", tables, {**there, k: ("I16", (32, 64), raw)}, "type", k + " is stored as I16")
    bad("qwen3_moe", tables, {**there, k: ("F8_E4M3", (32, 64), raw[:2048])}, "fp8", k + " is stored as F8_E4M3")
    lacking = {n: t for n, t in there.items() if n not in (q, down)}
    bad("qwen3_moe", tables, {**lacking, q.replace("weight", "bias"): ("BF16", (64,), bytes(128))}, "names", f": {q}\n", f": {down}\n",
        "2 of 75 tensors are missing, 1 are not of this model", q.replace("weight", "bias") + " [64]", "(qwen3_moe)")
    deeper = "model.layers.3.input_layernorm.weight" # and no layer that predicts further tokens
    bad("qwen3_moe", tables, {**there, deeper: ("BF16", (64,), bytes(128))}, "deeper", deeper + " [64]", "1 are not of this model")
    bad("mixtral", f"{work}/mixtral.2x2", models.as_files("olmoe", models.random_own("olmoe", 1)), "other_family",
        "model.layers.0.self_attn.q_norm.weight [64]", "(mixtral)")
    # gpt-oss with the experts' matrix turned: a wrong layout that has the right number of bytes
    there = models.as_files("gpt_oss", models.random_own("gpt_oss", 11))
    name = "model.layers.0.mlp.experts.down_proj"
    bad("gpt_oss", f"{work}/gpt_oss.2x2", {**there, name: ("BF16", (5, 64, 32), there[name][2])}, "down_turned",
        "[5, 64, 32], but this model's is [5, 32, 64]")


def cannot_write():
    tables, source = f"{work}/qwen3_moe.2x2", f"{work}/qwen3_moe.1"
    limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (30000, 30000))
    done, own, out = run("qwen3_moe", tables, source, "too_large", before=limit)
    check(done.returncode != 0 and not os.path.exists(out), f"a full disk: {done.stderr}")
    shutil.rmtree(f"{work}/taken.out", ignore_errors=True)
    os.makedirs(f"{work}/taken.out/x")
    own, out = f"{work}/taken.own", f"{work}/taken.out"
    done = subprocess.run([drive, "qwen3_moe", "BF16", tables, source, own, out, "1000000", "1000"], capture_output=True, text=True)
    check(done.returncode != 0 and "not an empty folder" in done.stderr and os.listdir(out) == ["x"], f"taken: {done.stderr}")
    os.rmdir(f"{work}/taken.out/x")
    done = subprocess.run([drive, "qwen3_moe", "BF16", tables, source, own, out, "1000000", "1000"], capture_output=True, text=True)
    check(done.returncode == 0, f"an empty folder may be filled: {done.stderr}")
    os.makedirs(f"{work}/links/empty")
    os.symlink("empty", f"{work}/links/to_empty")
    os.symlink("none", f"{work}/links/to_none")
    for link, folder in (("to_empty", "empty"), ("to_none/", "none")):
        done = subprocess.run([drive, "qwen3_moe", "BF16", tables, source, own, f"{work}/links/{link}", "1000000", "1000"], capture_output=True, text=True)
        check(done.returncode == 0 and "config.json" in os.listdir(f"{work}/links/{folder}"), f"a link: {done.stderr}")
    check(sorted(os.listdir(f"{work}/links")) == ["empty", "none", "to_empty", "to_none"], "links: left files")
    os.makedirs(f"{work}/here")
    os.remove(own)
    done = subprocess.run([os.path.abspath(drive), "qwen3_moe", "BF16", os.path.abspath(tables), os.path.abspath(source),
                           os.path.abspath(own), ".", "1000000", "1000"], capture_output=True, text=True, cwd=f"{work}/here")
    check(done.returncode != 0 and "in the place of ." in done.stderr and not os.path.exists(own), f"a folder that cannot be replaced: {done.stderr}")
    check(not os.listdir(f"{work}/here"), "a folder that cannot be replaced: left temporary files")
    done = subprocess.run([drive, "qwen3_moe", "BF16", tables, source, own, f"{work}/no/such", "1000000", "1000"], capture_output=True, text=True)
    check(done.returncode != 0 and "cannot create" in done.stderr, f"no parent: {done.stderr}")


shutil.rmtree(work, ignore_errors=True)
os.makedirs(work)
for name in models.FAMILIES:
    round_trips(name)
other_types("deepseek_v3")
other_types("gpt_oss")
for name in ("qwen3_moe", "mixtral", "deepseek_v3"):
    fused(name)
mxfp4()
ignored()
refused()
cannot_write()
print(f"{len(failures)} failures")
sys.exit(bool(failures))
