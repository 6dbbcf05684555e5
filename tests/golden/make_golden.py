#!/usr/bin/env python3
"""Makes the golden values: tiny random models of every architecture, run by PyTorch and Transformers on one CPU thread.

    V=$(tests/golden/torch_venv.py VENV) && $V tests/golden/make_golden.py

writes, for each architecture, tests/golden/NAME/ with
    config.json          as Hugging Face knows it
    model.safetensors    weights under the names and in the shapes of published checkpoints, bf16
    golden.safetensors   tokens [n * seq + 1] (sample k covers k * seq .. k * seq + seq), logits, and the gradient of every
                         tensor, fp32
    golden.json          loss, smallest router margin, and how far PyTorch's own bf16 runs are from fp32 ones
The tests that read them need no Python package. DeepSeek-MoE has no class in Transformers (its code comes with its
checkpoint), so it is written out here.

Chosen so that mistakes show: gains far from 1, biases and sinks far from 0, heads * head_dim != hidden (but for OLMoE,
whose norms forbid it), expert hidden != hidden, sequences longer than the window and than YaRN's original context, a
clamp that bites. A search over seeds keeps the K-th and the next router score apart, so that rounding never changes a
choice.

Known defects of the reference that the goldens stay clear of:
  - the auxiliary losses of Qwen3, Mixtral, OLMoE and gpt-oss (in several releases a softmax of a softmax, or of scattered
    scores) are off; only DeepSeek-MoE's per-sequence loss is on, and is defined here;
  - no padding: masks and means over padded tokens differ between releases, and the row of a padding token in the
    embedding table gets no gradient, wherever it stands;
  - many releases mask the groups of DeepSeek-V3 with 0.0 rather than minus infinity: all scores with bias are positive;
  - in bf16 the router of DeepSeek-V3 runs in fp32, with fp32 bias, as published.
"""
import argparse
import json
import math
import os
import sys

import torch
import torch.nn.functional as F
import transformers
from safetensors.torch import save_file
from torch import nn

SEQS, SEQ, VOCAB = 4, 20, 40
# Of the bf16 runs: batches, sequences of each, and how many sequences those are picked from.
BATCHES, BATCH, CANDIDATES = 8, 64, 20000
HIDDEN = 24

COMMON = dict(vocab_size=VOCAB, hidden_size=HIDDEN, num_attention_heads=4, num_key_value_heads=2, num_hidden_layers=2,
              max_position_embeddings=256, tie_word_embeddings=False, pad_token_id=None, attn_implementation="eager",
              experts_implementation="eager")
# DeepSeek-V3 and Kimi-K2 are one class.
V3 = dict(COMMON, num_key_value_heads=4, num_hidden_layers=3, first_k_dense_replace=1, intermediate_size=28, moe_intermediate_size=12,
          kv_lora_rank=10, qk_nope_head_dim=6, qk_rope_head_dim=8, v_head_dim=5, n_shared_experts=1, norm_topk_prob=True,
          rope_interleave=True)

# name: (class, config, seed found with --search)
MODELS = {
    "deepseek_moe": ("DeepseekMoe", dict(
        COMMON, head_dim=8, num_hidden_layers=3, first_k_dense_replace=1, intermediate_size=28, moe_intermediate_size=14,
        n_routed_experts=6, n_shared_experts=2, num_experts_per_tok=3, norm_topk_prob=False, aux_loss_alpha=0.3,
        seq_aux=True, rms_norm_eps=1e-6, rope_theta=1e4), 575),
    "gpt_oss": ("GptOss", dict(
        COMMON, head_dim=8, num_hidden_layers=3, intermediate_size=20, num_local_experts=6, num_experts_per_tok=2,
        sliding_window=5, rms_norm_eps=1e-5, swiglu_limit=1.5, swiglu_alpha=1.702, attention_bias=True,
        rope_parameters=dict(rope_type="yarn", rope_theta=100.0, factor=4.0, original_max_position_embeddings=16,
                             beta_fast=1.5, beta_slow=0.3, truncate=False)), 202),
    "qwen3_moe": ("Qwen3Moe", dict(
        COMMON, head_dim=8, intermediate_size=28, moe_intermediate_size=20, num_experts=6, num_experts_per_tok=2,
        norm_topk_prob=True, rms_norm_eps=1e-6, rope_parameters=dict(rope_type="default", rope_theta=1e6)), 427),
    "mixtral": ("Mixtral", dict(
        COMMON, head_dim=8, intermediate_size=20, num_local_experts=5, num_experts_per_tok=2, rms_norm_eps=1e-5,
        sliding_window=None, rope_parameters=dict(rope_type="default", rope_theta=1e6)), 411),
    "olmoe": ("Olmoe", dict(
        COMMON, intermediate_size=20, num_experts=6, num_experts_per_tok=3, norm_topk_prob=False, rms_norm_eps=1e-5,
        clip_qkv=1.1, rope_parameters=dict(rope_type="default", rope_theta=1e4)), 551),
    "deepseek_v3": ("DeepseekV3", dict(
        V3, n_routed_experts=8, num_experts_per_tok=3, n_group=4, topk_group=2, routed_scaling_factor=2.5, q_lora_rank=14,
        rms_norm_eps=1e-6,
        rope_parameters=dict(rope_type="yarn", rope_theta=50.0, factor=4.0, original_max_position_embeddings=16,
                             beta_fast=2.0, beta_slow=0.5, mscale=1.0, mscale_all_dim=0.7)), 60),
    "kimi_k2": ("DeepseekV3", dict(
        V3, n_routed_experts=6, num_experts_per_tok=2, n_group=1, topk_group=1, routed_scaling_factor=2.827,
        q_lora_rank=None, rms_norm_eps=1e-5,
        rope_parameters=dict(rope_type="yarn", rope_theta=50.0, factor=4.0, original_max_position_embeddings=16,
                             beta_fast=1.0, beta_slow=1.0, mscale=1.0, mscale_all_dim=1.0)), 117),
}


# ---- DeepSeek-MoE ----

class Norm(nn.Module):
    def __init__(self, n, eps):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(n)), eps

    def forward(self, x):
        y = x.float()
        return self.weight * (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + self.eps)).to(x.dtype)


class Mlp(nn.Module):
    def __init__(self, h, f):
        super().__init__()
        self.gate_proj, self.up_proj = nn.Linear(h, f, bias=False), nn.Linear(h, f, bias=False)
        self.down_proj = nn.Linear(f, h, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class SequenceAttention(nn.Module):
    """Causal grouped-query attention with rotate-half RoPE and no scaling."""

    def __init__(self, c):
        super().__init__()
        self.c, h, d = c, c["hidden_size"], c["head_dim"]
        self.q_proj = nn.Linear(h, c["num_attention_heads"] * d, bias=False)
        self.k_proj = nn.Linear(h, c["num_key_value_heads"] * d, bias=False)
        self.v_proj = nn.Linear(h, c["num_key_value_heads"] * d, bias=False)
        self.o_proj = nn.Linear(c["num_attention_heads"] * d, h, bias=False)

    def forward(self, x):
        n, s, _ = x.shape
        d, groups = self.c["head_dim"], self.c["num_attention_heads"] // self.c["num_key_value_heads"]
        q, k, v = (w(x).view(n, s, -1, d).transpose(1, 2) for w in (self.q_proj, self.k_proj, self.v_proj))
        frequency = self.c["rope_theta"] ** (-torch.arange(0, d, 2).float() / d)
        angle = torch.arange(s).float()[:, None] * torch.cat([frequency, frequency])
        cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
        rotate = lambda y: y * cos + torch.cat([-y[..., d // 2:], y[..., :d // 2]], -1) * sin
        q, k, v = rotate(q), rotate(k).repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
        scores = q @ k.transpose(2, 3) * d ** -0.5
        scores = scores.masked_fill(torch.ones(s, s, dtype=torch.bool).triu(1), float("-inf"))
        p = F.softmax(scores, -1, dtype=torch.float32).to(x.dtype)
        return self.o_proj((p @ v).transpose(1, 2).reshape(n, s, -1))


class Gate(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(c["n_routed_experts"], c["hidden_size"]))


class SharedMoe(nn.Module):
    """Softmax over all experts, the K largest without renormalisation, shared experts as one MLP, and a balance loss per
    sequence: alpha * mean over sequences of sum_e ce_e * mean p_e, ce_e = E / (S K) * choices of e."""

    def __init__(self, c):
        super().__init__()
        self.c, h, f = c, c["hidden_size"], c["moe_intermediate_size"]
        self.gate = Gate(c)
        self.experts = nn.ModuleList(Mlp(h, f) for _ in range(c["n_routed_experts"]))
        self.shared_experts = Mlp(h, f * c["n_shared_experts"])

    def forward(self, x):
        n, s, h = x.shape
        e, k = self.c["n_routed_experts"], self.c["num_experts_per_tok"]
        p = F.softmax(F.linear(x, self.gate.weight), -1)
        weight, choice = p.topk(k, -1)
        picks = F.one_hot(choice, e).sum(2).float()
        ce = picks.mean(1) * e / k
        self.balance = self.c["aux_loss_alpha"] * (ce * p.float().mean(1)).sum(1).mean()
        mixed = (p * picks.to(p.dtype)).unsqueeze(-1) * torch.stack([f(x) for f in self.experts], 2)
        return mixed.sum(2) + self.shared_experts(x)


class SharedLayer(nn.Module):
    def __init__(self, c, i):
        super().__init__()
        h = c["hidden_size"]
        self.input_layernorm, self.post_attention_layernorm = Norm(h, c["rms_norm_eps"]), Norm(h, c["rms_norm_eps"])
        self.self_attn = SequenceAttention(c)
        self.mlp = SharedMoe(c) if i >= c["first_k_dense_replace"] else Mlp(h, c["intermediate_size"])

    def forward(self, x):
        x = x + self.self_attn(self.input_layernorm(x))
        return x + self.mlp(self.post_attention_layernorm(x))


class DeepseekMoe(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.model = nn.Module()
        self.model.embed_tokens = nn.Embedding(c["vocab_size"], c["hidden_size"])
        self.model.layers = nn.ModuleList(SharedLayer(c, i) for i in range(c["num_hidden_layers"]))
        self.model.norm = Norm(c["hidden_size"], c["rms_norm_eps"])
        self.lm_head = nn.Linear(c["hidden_size"], c["vocab_size"], bias=False)

    def forward(self, tokens):
        x = self.model.embed_tokens(tokens)
        for layer in self.model.layers:
            x = layer(x)
        return self.lm_head(self.model.norm(x))


# ---- any of them ----

def build(name):
    kind, config, _ = MODELS[name]
    if kind == "DeepseekMoe":
        return DeepseekMoe(config), dict({k: v for k, v in config.items() if "implementation" not in k},
                                         architectures=["DeepseekForCausalLM"], model_type="deepseek", torch_dtype="bfloat16")
    c = getattr(transformers, kind + "Config")(**config)
    model = getattr(transformers, kind + "ForCausalLM")(c)
    model.train()
    out = {k: v for k, v in c.to_dict().items() if not k.startswith("_") and v is not None or k == "q_lora_rank"}
    out.update(architectures=[kind + "ForCausalLM"], torch_dtype="bfloat16",
               model_type="kimi_k2" if name == "kimi_k2" else out["model_type"])
    out.pop("transformers_version", None), out.pop("dtype", None)
    return model, out


def fill(name, model, seed):
    """Random weights that bf16 holds exactly."""
    random = torch.Generator().manual_seed(seed)
    normal = lambda shape: torch.randn(shape, generator=random)
    tensors = list(model.named_parameters()) + [(n, b) for n, b in model.named_buffers() if "correction_bias" in n]
    for tensor_name, tensor in sorted(tensors, key=lambda x: x[0]):
        shape = tensor.shape
        if "norm" in tensor_name:
            x = 0.4 + 1.4 * torch.rand(shape, generator=random)
        elif "correction_bias" in tensor_name:
            x = 0.1 + 0.5 * torch.rand(shape, generator=random)
        elif "sinks" in tensor_name:
            x = 0.5 + normal(shape)
        elif "bias" in tensor_name:
            x = 0.4 * normal(shape)
        elif "embed" in tensor_name:
            x = normal(shape)
        elif tensor_name.endswith("gate.weight") or "router" in tensor_name:
            x = (1.0 if name in ("deepseek_v3", "kimi_k2") else 2.0) * normal(shape) / math.sqrt(shape[-1])
        else:
            fan_in = shape[1] if name == "gpt_oss" and "experts" in tensor_name else shape[-1]
            x = normal(shape) / math.sqrt(fan_in)
        tensor.data.copy_(x.bfloat16())


def tokens_of(seed):
    random = torch.Generator().manual_seed(seed + 1000)
    return torch.randint(0, VOCAB, (SEQS * SEQ + 1,), generator=random)


def batch_of(tokens):
    """[sequences, SEQ] of tokens that follow each other; the one after the last is only a label."""
    return tokens[:-1].view(-1, SEQ)


def margins(model, batch):
    """For each sequence the smallest gap between the K-th and the next score of any router, of groups too."""
    smallest = torch.full((len(batch),), math.inf)

    def gap(scores, k):
        if k < scores.shape[-1]:
            best = scores.sort(-1, descending=True).values
            gaps = (best[..., k - 1] - best[..., k]).reshape(len(batch), -1).min(1).values
            smallest.copy_(torch.minimum(smallest, gaps))

    def look(module, inputs, _):
        x = inputs[0].reshape(-1, HIDDEN).float()
        z = F.linear(x, module.weight.float(), getattr(module, "bias", None))
        k = module.top_k
        if hasattr(module, "e_score_correction_bias"):
            s = z.sigmoid() + module.e_score_correction_bias
            n, top = module.num_group, module.topk_group
            groups = s.view(len(s), n, -1).topk(2, -1).values.sum(-1)
            gap(groups, top)
            keep = groups.topk(top, -1).indices
            mask = torch.zeros_like(groups).scatter_(1, keep, 1).unsqueeze(-1).expand(-1, -1, s.shape[1] // n)
            s = s.masked_fill(mask.reshape(s.shape) == 0, -math.inf)
            z = s
        gap(z, k)

    hooks = []
    for module_name, module in model.named_modules():
        if isinstance(module, SharedMoe):
            module.gate.top_k = module.c["num_experts_per_tok"]
            hooks.append(module.register_forward_hook(lambda m, i, o: look(m.gate, i, o)))
        elif module_name.endswith((".mlp.gate", ".mlp.router")) and not isinstance(module, Gate):
            hooks.append(module.register_forward_hook(look))
    with torch.no_grad():
        model(batch)
    for hook in hooks:
        hook.remove()
    return smallest


def run(model, tokens):
    """Loss, balance loss, logits, and the gradients in the parameters."""
    labels = tokens[1:]
    logits = model(batch_of(tokens))
    logits = (logits if torch.is_tensor(logits) else logits.logits).float()
    loss = F.cross_entropy(logits.reshape(-1, VOCAB), labels)
    balance = sum((m.balance for m in model.modules() if isinstance(m, SharedMoe)), torch.zeros(()))
    model.zero_grad()
    (loss + balance).backward()
    return loss.item(), balance.item(), logits.detach()


def published(name, tensors):
    """In-memory names and fusions of Transformers to those of checkpoints."""
    out = {}
    for key, x in tensors.items():
        if name == "mixtral":
            key = key.replace(".mlp.", ".block_sparse_moe.")
        fused = name not in ("gpt_oss", "deepseek_moe") and ".experts." in key
        if not fused:
            out[key] = x
            continue
        prefix, last = key.rsplit(".", 1)
        for e in range(x.shape[0]):
            gate, up, down = ("w1", "w3", "w2") if name == "mixtral" else ("gate_proj", "up_proj", "down_proj")
            if last == "gate_up_proj":
                half = x.shape[1] // 2
                out[f"{prefix}.{e}.{gate}.weight"], out[f"{prefix}.{e}.{up}.weight"] = x[e, :half], x[e, half:]
            else:
                out[f"{prefix}.{e}.{down}.weight"] = x[e]
    return {k: v.detach().clone().contiguous() for k, v in out.items()}


def bf16_model(name, seed):
    model, _ = build(name)
    fill(name, model, seed)
    model.to(torch.bfloat16)
    for buffer_name, buffer in model.named_buffers():
        if "correction_bias" in buffer_name:
            buffer.data = buffer.data.float()
        if "inv_freq" in buffer_name:
            buffer.data = buffer.data.float()
    fresh, _ = build(name)  # rotary tables are not rounded
    for (_, mine), (buffer_name, exact) in zip(model.named_buffers(), fresh.named_buffers()):
        if "inv_freq" in buffer_name:
            mine.data = exact.data.clone()
    return model


def steady_batches(model, seed):
    """Sequences that no rounding can send to other experts: those of the widest margins among many."""
    random = torch.Generator().manual_seed(seed + 2000)
    sequences = torch.randint(0, VOCAB, (CANDIDATES, SEQ), generator=random)
    margin = torch.cat([margins(model, part) for part in sequences.split(250)])
    best = margin.argsort(descending=True, stable=True)[:BATCHES * BATCH]
    return margin[best].min().item(), [torch.cat([sequences[b].flatten(), torch.ones(1, dtype=torch.long)]) for b in best.split(BATCH)]


def bf16_errors(name, model, seed):
    """PyTorch in bf16 against PyTorch in fp32, over several batches: root mean squares of relative errors. A single small
    batch would say little: what is near a clamp's border (gpt-oss, OLMoE) is carried over it by one rounding or another,
    and that outweighs all other errors of a tensor by up to ten times, for this run as often as for another."""
    rounded = bf16_model(name, seed)
    margin, batches = steady_batches(model, seed)
    gradients = lambda m: published(name, {k: p.grad.float() for k, p in m.named_parameters() if p.grad is not None})
    flat = lambda tensors: torch.cat([x.flatten() for _, x in sorted(tensors.items())])
    error = lambda a, b: ((a - b).norm() / b.norm()).item() if b.norm() > 0 else 0.0
    rows = []
    for tokens in batches:
        loss, _, logits = run(model, tokens)
        grads = gradients(model)
        bf16_loss, _, bf16_logits = run(rounded, tokens)
        bf16_grads = gradients(rounded)
        rows.append(dict({k: error(bf16_grads[k], x) for k, x in grads.items()}, loss=abs(bf16_loss / loss - 1),
                         logits=error(bf16_logits, logits), all_grads=error(flat(bf16_grads), flat(grads))))
    rms = {k: math.sqrt(sum(row[k] ** 2 for row in rows) / len(rows)) for k in rows[0]}
    return dict({k: rms.pop(k) for k in ("loss", "logits", "all_grads")}, grads=rms, sequences=BATCH, router_margin=margin,
                tokens=[bytes(t.tolist()).hex() for t in batches])


def search(name, seeds):
    best = (0, -1)
    for seed in range(seeds):
        model, _ = build(name)
        fill(name, model, seed)
        best = max(best, (margins(model, batch_of(tokens_of(seed))).min().item(), seed))
    print(name, "best margin", best[0], "seed", best[1], flush=True)


def make(name, folder):
    seed = MODELS[name][2]
    model, config = build(name)
    fill(name, model, seed)
    tokens = tokens_of(seed)
    margin = margins(model, batch_of(tokens)).min().item()
    loss, balance, logits = run(model, tokens)
    grads = published(name, {k: p.grad for k, p in model.named_parameters() if p.grad is not None})
    weights = dict(model.named_parameters())
    weights.update({k: b for k, b in model.named_buffers() if "correction_bias" in k})
    weights = published(name, weights)
    weights = {k: w if "correction_bias" in k else w.bfloat16() for k, w in weights.items()}
    out = os.path.join(folder, name)
    os.makedirs(out, exist_ok=True)
    save_file(weights, os.path.join(out, "model.safetensors"), metadata={"format": "pt"})
    save_file({"tokens": tokens.int(), "logits": logits.reshape(SEQS, SEQ, VOCAB), **{f"grad.{k}": g for k, g in grads.items()}},
              os.path.join(out, "golden.safetensors"), metadata={"format": "pt"})
    with open(os.path.join(out, "config.json"), "w") as f:
        json.dump(config, f, indent=2, sort_keys=True)
        f.write("\n")
    with open(os.path.join(out, "golden.json"), "w") as f:
        json.dump(dict(loss=loss, balance_loss=balance, router_margin=margin, sequences=SEQS, seq=SEQ,
                       bf16=bf16_errors(name, model, seed),
                       made_with=f"torch {torch.__version__.split('+')[0]}, transformers {transformers.__version__}"),
                  f, indent=1)
        f.write("\n")
    size = sum(os.path.getsize(os.path.join(out, f)) for f in os.listdir(out))
    print(f"{name}: loss {loss:.6f} balance {balance:.6f} margin {margin:.3g} {size >> 10} KiB", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", help="architectures (default: all)")
    parser.add_argument("--search", type=int, metavar="N", help="only try N seeds and print the one of largest margin")
    parser.add_argument("--out", default=os.path.dirname(os.path.abspath(__file__)))
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    transformers.logging.set_verbosity_error()
    for name in args.names or MODELS:
        if name not in MODELS:
            sys.exit(f"no architecture {name}; there are {', '.join(MODELS)}")
        if args.search:
            search(name, args.search)
        else:
            make(name, args.out)


if __name__ == "__main__":
    main()
