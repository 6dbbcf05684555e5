"""Tiny models of each family: parameters under moec's own names, and the same as Hugging Face files hold them. Written
from the published layouts; it shares nothing with runtime/hf_names.def."""

import array
import random
import struct

LAYERS, HIDDEN, VOCAB, HEADS, KV_HEADS, HEAD_DIM = 3, 64, 40, 4, 2, 16
EXPERTS, FFN, DENSE, SHARED = 5, 32, 96, 64
Q_LORA, KV_LORA, NOPE, ROPE, V_DIM = 24, 16, 16, 8, 12
FAMILIES = ["qwen3_moe", "mixtral", "olmoe", "deepseek", "deepseek_v3", "kimi_k2", "gpt_oss"]


def attention(family):
    q, kv = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
    p = "self_attn."
    if family in ("deepseek_v3", "kimi_k2"):
        return {p + "q_a_proj.weight": (Q_LORA, HIDDEN), p + "q_a_layernorm.weight": (Q_LORA,),
                p + "q_b_proj.weight": (HEADS * (NOPE + ROPE), Q_LORA),
                p + "kv_a_proj_with_mqa.weight": (KV_LORA + ROPE, HIDDEN), p + "kv_a_layernorm.weight": (KV_LORA,),
                p + "kv_b_proj.weight": (HEADS * (NOPE + V_DIM), KV_LORA), p + "o_proj.weight": (HIDDEN, HEADS * V_DIM)}
    own = {p + "q_proj.weight": (q, HIDDEN), p + "k_proj.weight": (kv, HIDDEN), p + "v_proj.weight": (kv, HIDDEN),
           p + "o_proj.weight": (HIDDEN, q)}
    if family == "qwen3_moe":
        own.update({p + "q_norm.weight": (HEAD_DIM,), p + "k_norm.weight": (HEAD_DIM,)})
    if family == "olmoe":
        own.update({p + "q_norm.weight": (q,), p + "k_norm.weight": (kv,)})
    if family == "gpt_oss":
        own.update({p + "q_proj.bias": (q,), p + "k_proj.bias": (kv,), p + "v_proj.bias": (kv,), p + "o_proj.bias": (HIDDEN,),
                    p + "sinks": (HEADS,)})
    return own


def mlp(prefix, width):
    return {prefix + "gate_proj.weight": (width, HIDDEN), prefix + "up_proj.weight": (width, HIDDEN),
            prefix + "down_proj.weight": (HIDDEN, width)}


def expert(family, e):
    own = mlp(f"mlp.experts.{e}.", FFN)
    if family == "gpt_oss":
        own.update({f"mlp.experts.{e}.gate_proj.bias": (FFN,), f"mlp.experts.{e}.up_proj.bias": (FFN,),
                    f"mlp.experts.{e}.down_proj.bias": (HIDDEN,)})
    return own


def part(n, parts, i):
    return range(n * i // parts, n * (i + 1) // parts)


def buckets(family, att, ffn, tied=False):
    """[(layer, holders, {own name: shape})]: attention on `att` ranks, experts dealt to `ffn` more."""
    a, f = list(range(att)), list(range(att, att + ffn))
    dense = 1 if family in ("deepseek", "deepseek_v3", "kimi_k2") else 0
    out = [(0, a, {"model.embed_tokens.weight": (VOCAB, HIDDEN)})]
    for l in range(LAYERS):
        own = {"input_layernorm.weight": (HIDDEN,), **attention(family)}
        if l < dense:
            own.update(mlp("mlp.", DENSE))
        else:
            own["mlp.gate.weight"] = (EXPERTS, HIDDEN)
            if family == "gpt_oss":
                own["mlp.gate.bias"] = (EXPERTS,)
            if family in ("deepseek_v3", "kimi_k2"):
                own["mlp.gate.e_score_correction_bias"] = (EXPERTS,)
        out.append((l, a, {f"model.layers.{l}.{name}": shape for name, shape in own.items()}))
        out.append((l, a + f, {f"model.layers.{l}.post_attention_layernorm.weight": (HIDDEN,)}))
        if dense and l >= dense:
            out.append((l, f, {f"model.layers.{l}.{name}": s for name, s in mlp("mlp.shared_experts.", SHARED).items()}))
        for i in range(ffn if l >= dense else 0):
            own = {}
            for e in part(EXPERTS, ffn, ffn - 1 - i): # later experts first: no rank may count on the order
                own.update({f"model.layers.{l}.{name}": shape for name, shape in expert(family, e).items()})
            out.append((l, [f[i]], own))
    out.append((0, a, {"model.norm.weight": (HIDDEN,), **({} if tied else {"lm_head.weight": (VOCAB, HIDDEN)})}))
    return out


def tables(path, family, att, ffn, tied=False):
    with open(path, "w") as f:
        f.write(f"model {EXPERTS} {LAYERS} {int(tied)}\n")
        for layer, holders, own in buckets(family, att, ffn, tied):
            f.write(f"bucket {layer} {' '.join(map(str, holders))}\n")
            for name, shape in own.items():
                f.write(f"param {name} {shape[0]} {shape[1] if len(shape) > 1 else 0}\n")


def is_f32(name):
    return name.endswith("e_score_correction_bias")


def random_own(family, seed, tied=False):
    """{own name: (shape, array of bf16 bits, or of fp32 bits where files keep fp32)}: any bits but NaN."""
    rng = random.Random(seed)
    own = {}
    for _, _, params in buckets(family, 1, 1, tied):
        for name, shape in params.items():
            n = shape[0] * (shape[1] if len(shape) > 1 else 1)
            bits = array.array("I" if is_f32(name) else "H")
            while len(bits) < n:
                x = rng.getrandbits(32 if is_f32(name) else 16)
                top = x >> 16 if is_f32(name) else x
                if top & 0x7f80 != 0x7f80 or top in (0x7f80, 0xff80) and not is_f32(name):
                    bits.append(x)
            own[name] = (shape, bits)
    return own


def raw(bits):
    return bits.tobytes()


def own_f32(own):
    """What a dump of all parameters as F32 holds."""
    return {name: ("F32", shape, raw(bits if is_f32(name) else array.array("I", (b << 16 for b in bits))))
            for name, (shape, bits) in own.items()}


def matrices(own, layer, what):
    return [own[f"model.layers.{layer}.mlp.experts.{e}.{what}"][1] for e in range(EXPERTS)]


def interleaved_columns(gate, up):
    """[F, H] twice -> [H, 2F], g0 u0 g1 u1 ..."""
    out = array.array("H")
    for h in range(HIDDEN):
        for f in range(FFN):
            out.append(gate[f * HIDDEN + h])
            out.append(up[f * HIDDEN + h])
    return out


def interleaved(gate, up):
    out = array.array("H")
    for g, u in zip(gate, up):
        out.extend((g, u))
    return out


def turned(down):
    """[H, F] -> [F, H]"""
    return array.array("H", (down[h * FFN + f] for f in range(FFN) for h in range(HIDDEN)))


def stack(parts):
    out = array.array("H")
    for p in parts:
        out.extend(p)
    return out


def gpt_oss_experts(own, l, files):
    gates, ups, downs = (matrices(own, l, f"{k}_proj.weight") for k in ("gate", "up", "down"))
    gb, ub, db = (matrices(own, l, f"{k}_proj.bias") for k in ("gate", "up", "down"))
    p = f"model.layers.{l}.mlp.experts."
    files[p + "gate_up_proj"] = ((EXPERTS, HIDDEN, 2 * FFN), stack(map(interleaved_columns, gates, ups)))
    files[p + "down_proj"] = ((EXPERTS, FFN, HIDDEN), stack(map(turned, downs)))
    files[p + "gate_up_proj_bias"] = ((EXPERTS, 2 * FFN), stack(map(interleaved, gb, ub)))
    files[p + "down_proj_bias"] = ((EXPERTS, HIDDEN), stack(db))


def file_name(family, name):
    if family == "mixtral":
        for own, theirs in ((".mlp.gate.", ".block_sparse_moe.gate."), (".mlp.experts.", ".block_sparse_moe.experts."),
                            (".gate_proj.", ".w1."), (".up_proj.", ".w3."), (".down_proj.", ".w2.")):
            name = name.replace(own, theirs)
    if family == "gpt_oss":
        name = name.replace(".mlp.gate.", ".mlp.router.")
    return name


def tensors(files):
    return {name: ("F32" if is_f32(name) else "BF16", shape, raw(bits)) for name, (shape, bits) in files.items()}


def as_files(family, own):
    """As Transformers save it, in bf16."""
    files = {}
    for name, (shape, bits) in own.items():
        if not (family == "gpt_oss" and ".mlp.experts." in name):
            files[file_name(family, name)] = (shape, bits)
    for l in range(LAYERS if family == "gpt_oss" else 0):
        gpt_oss_experts(own, l, files)
    return tensors(files)


def as_fused(own):
    """As Transformers 5 holds it in memory: gate rows, then up rows, of all experts."""
    files = {name: value for name, value in own.items() if ".mlp.experts." not in name}
    for l in range(LAYERS):
        p = f"model.layers.{l}.mlp.experts."
        if p + "0.gate_proj.weight" in own:
            gates, ups, downs = (matrices(own, l, f"{k}_proj.weight") for k in ("gate", "up", "down"))
            files[p + "gate_up_proj"] = ((EXPERTS, 2 * FFN, HIDDEN), stack(x for pair in zip(gates, ups) for x in pair))
            files[p + "down_proj"] = ((EXPERTS, HIDDEN, FFN), stack(downs))
    return tensors(files)


E2M1 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0]


def mxfp4(rng, rows, cols):
    """Blocks, scales and the values of a [rows, cols] matrix, as rows of floats."""
    blocks, scales, values = bytearray(), bytearray(), []
    for _ in range(rows):
        row = []
        for _ in range(cols // 32):
            scale = rng.randrange(100, 150)
            scales.append(scale)
            for _ in range(16):
                byte = rng.getrandbits(8)
                blocks.append(byte)
                row += [E2M1[byte & 15] * 2.0 ** (scale - 127), E2M1[byte >> 4] * 2.0 ** (scale - 127)]
        values.append(row)
    return bytes(blocks), bytes(scales), values


def quantised(own, seed):
    """gpt-oss as released: MXFP4 experts. Returns the files and what the own parameters then are, as F32."""
    rng = random.Random(seed)
    files, own = as_files("gpt_oss", own), own_f32(own)
    pack = lambda rows: struct.pack(f"<{sum(map(len, rows))}f", *(x for row in rows for x in row))
    for l in range(LAYERS):
        p = f"model.layers.{l}.mlp.experts."
        del files[p + "gate_up_proj"], files[p + "down_proj"]
        for what, rows, cols in (("gate_up_proj", 2 * FFN, HIDDEN), ("down_proj", HIDDEN, FFN)):
            blocks, scales = b"", b""
            for e in range(EXPERTS):
                b, s, values = mxfp4(rng, rows, cols)
                blocks, scales = blocks + b, scales + s
                if what == "down_proj":
                    own[f"{p}{e}.down_proj.weight"] = ("F32", (HIDDEN, FFN), pack(values))
                else:
                    own[f"{p}{e}.gate_proj.weight"] = ("F32", (FFN, HIDDEN), pack(values[0::2]))
                    own[f"{p}{e}.up_proj.weight"] = ("F32", (FFN, HIDDEN), pack(values[1::2]))
            files[p + what + "_blocks"] = ("U8", (EXPERTS, rows, cols // 32, 16), blocks)
            files[p + what + "_scales"] = ("U8", (EXPERTS, rows, cols // 32), scales)
    return files, own
