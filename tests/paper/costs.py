"""Arithmetic of its own for the bounds: the sizes of a spec, FLOPs and times of its ops, bytes that a rank must hold.
Shares no code with the compiler; results.py compares the times with those in its schedules."""
import math
import os
import re

UNITS = {"GB/s": 1e9, "TB/s": 1e12, "Gbit/s": 1.25e8, "TFLOPS": 1e12, "GB": 1e9, "GiB": 2.0 ** 30, "us": 1e-6,
         "ns": 1e-9, "ms": 1e-3}
SUFFIXES = {"Ki": 2 ** 10, "Mi": 2 ** 20, "K": 10 ** 3, "M": 10 ** 6}


class Reader:
    """Reads the part of the language that the paper's specs use: nested blocks of key = value, `let`, `use`."""

    def __init__(self, path, defines=None):
        self.lets, self.defines = {}, dict(defines or {})
        self.blocks = []
        self.read(path)

    def read(self, path):
        text = re.sub(r"#[^\n]*", "", open(path, encoding="utf-8").read())
        for name in re.findall(r'use\s+"([^"]+)"', text):
            self.read(os.path.join(os.path.dirname(path), name))
        text = re.sub(r'use\s+"[^"]+"', "", text)
        tokens = re.findall(r"[{}]|[^{};\n]+", text)
        stack = [{"kind": "file", "inner": []}]
        for token in (t.strip() for t in tokens):
            if not token:
                continue
            if token == "{":
                continue
            if token == "}":
                stack.pop()
                continue
            if "=" not in token:
                words = token.split()
                block = {"kind": words[0], "name": words[1] if len(words) > 1 else "", "inner": []}
                stack[-1]["inner"].append(block)
                stack[-1].setdefault(words[0], block)
                stack.append(block)
                continue
            key, value = (part.strip() for part in token.split("=", 1))
            if key.startswith("let "):
                name = key.split()[1]
                self.lets[name] = self.value(str(self.defines.get(name, value)))
            else:
                stack[-1][key] = self.value(value)
        self.blocks += stack[0]["inner"]

    def value(self, text):
        if re.search(r"\d\w*\s*:", text):
            return [(self.value(p.split(":")[0].strip()), self.value(p.split(":")[1].strip())) for p in text.split(",")]
        for unit, factor in sorted(UNITS.items(), key=lambda u: -len(u[0])):
            text = re.sub(rf"(?<=[\d\s]){re.escape(unit)}(?![\w/])", f"*{factor!r}", text)
        for suffix, factor in SUFFIXES.items():
            text = re.sub(rf"(?<=\d){suffix}\b", f"*{factor}", text)
        try:
            return eval(text, {"__builtins__": {}}, dict(self.lets))  # numbers, names of lets and arithmetic
        except (NameError, SyntaxError, TypeError):
            return text

    def block(self, kind, name=None):
        return next(b for b in self.blocks if b["kind"] == kind and name in (None, b["name"]))


def curve(points, x):
    """Linear in log2 of x, constant outside."""
    if x <= points[0][0]:
        return points[0][1]
    for (x0, y0), (x1, y1) in zip(points, points[1:]):
        if x <= x1:
            return y0 + (y1 - y0) * math.log2(x / x0) / math.log2(x1 / x0)
    return points[-1][1]


class Costs:
    def __init__(self, path, shape, defines=None):
        read = Reader(path, defines)
        model, cluster = read.block("model"), read.block("cluster")
        node = read.block("node", cluster["node"])
        self.gpu = read.block("gpu", node["gpu"])
        self.eff = self.gpu["efficiency"]
        self.gpus, self.memory, self.nic = cluster["nodes"] * node["gpus"], self.gpu["memory"], node["nic"]
        self.nvlink, self.nvlink_latency, self.nic_latency = (node[k] for k in ("nvlink", "nvlink_latency", "nic_latency"))
        self.shape = read.block("shape", shape)
        self.seq, self.batch = self.shape["seq"], self.shape["global_batch"]
        self.layers, self.h, self.vocab = model["layers"], model["hidden"], model["vocab"]
        att, moe = model["attention"], model["moe"]
        self.nq, self.nkv, self.d = att["heads"], att["kv_heads"], att["head_dim"]
        self.window = att.get("window", 0)
        dense = model.get("dense", {"layers": 0, "hidden": 0})
        self.dense, self.dense_hidden = dense["layers"], dense["hidden"]
        self.experts, self.k, self.f = moe["experts"], moe["top_k"], moe["hidden"]
        self.shared, self.imbalance = moe.get("shared", 0), moe.get("imbalance", 1)
        self.bias = 2 * self.f + self.h if moe.get("bias") == "true" else 0
        self.expert_params = 3 * self.h * self.f + self.bias
        self.shared_params = 3 * self.h * self.shared
        self.projections = self.h * self.d * (2 * self.nq + 2 * self.nkv)
        self._att, self._ffn = {}, {}

    def seconds(self, gemm=0, grouped=0, rows=1, core=0, core_back=0, moved=0):
        eff = self.eff
        flop = gemm / eff["gemm"]
        flop += grouped / curve(eff["grouped_gemm_rows"], max(rows, 1)) if grouped else 0
        flop += core / curve(eff["attention_seq"], self.seq) + core_back / curve(eff["attention_back_seq"], self.seq)
        return max(flop / self.gpu["flops"], moved / (self.gpu["hbm"] * eff["memory"])) + self.gpu["launch"]

    def attention(self, layer):
        """Forward, input gradient, weight gradient of a layer, one sequence on a rank, nothing recomputed; and what
        full recomputation adds: the forward in an op of its own, or as part of a dense layer's input gradient."""
        dense, windowed = layer < self.dense, self.window and layer % 2 == 0
        key = dense, windowed
        if key not in self._att:
            t, w = self.seq, min(self.seq, self.window) if windowed else self.seq
            core = 2 * (t * w - w * (w - 1) / 2) * self.nq * 2 * self.d
            weights = self.projections + (3 * self.h * self.dense_hidden if dense else self.experts * self.h)
            acts = 2 * t * (6 * self.h + 2 * (self.nq + 2 * self.nkv) * self.d)
            acts += 6 * t * self.dense_hidden if dense else 4 * t * self.experts
            forward = self.seconds(2 * t * weights, core=core, moved=2 * weights + acts)
            again = self.seconds(4 * t * weights, core=core, core_back=2.5 * core, moved=4 * weights + 3 * acts)
            back = self.seconds(2 * t * weights, core_back=2.5 * core, moved=2 * weights + 2 * acts)
            wgrad = self.seconds(2 * t * weights, moved=8 * weights + acts)
            self._att[key] = (forward, back, wgrad, again - back if dense else forward)
        return self._att[key]

    def head(self):
        t = self.seq
        moved = 12 * self.h * self.vocab + t * (8 * self.vocab + 8 * self.h)
        return self.seconds(6 * t * self.h * self.vocab, moved=moved)

    def embed(self):
        return self.seconds(moved=4 * self.seq * self.h) + self.seconds(moved=10 * self.seq * self.h)

    def optimizer(self):
        """A rank's even part: gradient, master copy and two moments read, three of them and the weight written."""
        return 32 * self.params() / self.gpus / (self.gpu["hbm"] * self.eff["memory"])

    def fullest(self, seqs, ranks):
        """Of the fullest of `ranks` ranks, `seqs` sequences in all: experts, tokens that come, their pairs, own tokens."""
        hits, t = -(-self.experts // ranks), seqs * self.seq
        miss = 1.0
        for i in range(self.k):
            miss *= max(0, self.experts - hits - i) / (self.experts - i)
        rows = t * min(1, (1 - miss) * self.imbalance)
        pairs = t * min(self.k, hits, self.k * hits / self.experts * self.imbalance)
        return hits, rows, pairs, t / ranks

    def ffn(self, seqs, ranks):
        """Forward, input gradient, weight gradient of a layer on the fullest of `ranks` ranks, `seqs` sequences in all;
        and what recomputing gate and up adds."""
        key = seqs, ranks
        if key not in self._ffn:
            hits, rows, pairs, home = self.fullest(seqs, ranks)
            weights = hits * self.expert_params + self.shared_params
            acts = 2 * (3 * rows * self.h + pairs * (2 * self.h + 3 * self.f) + home * 3 * self.shared)
            gemm, grouped, each = 6 * home * self.h * self.shared, 6 * pairs * self.h * self.f, pairs / hits
            dgrad, wgrad = (grouped / self.eff.get("grouped_gemm_" + kind, 1) for kind in ("dgrad", "wgrad"))
            back = self.seconds(gemm, dgrad, each, moved=2 * acts + 2 * weights)
            again = self.seconds(gemm * 5 / 3, dgrad + grouped * 2 / 3, each, moved=2 * acts + 2 * weights)
            self._ffn[key] = (self.seconds(gemm, grouped, each, moved=acts + 2 * weights), back,
                              self.seconds(gemm, wgrad, each, moved=acts + 8 * weights), again - back)
        return self._ffn[key]

    # ---- memory: what no layout can do without ----

    def state(self, att_layers, ffn_layers, experts, tables, ranks=1):
        """Bytes of weights and gradients (2 + 4 per parameter) on so many ranks together, and their even part of the
        optimizer's state."""
        n = att_layers * (self.projections + self.experts * self.h)
        n += ffn_layers * (experts * self.expert_params + self.shared_params) + tables * self.h * self.vocab
        return 6 * n + 12 * self.params() * ranks / self.gpus

    def params(self):
        moe = self.layers - self.dense
        experts = self.experts * (self.expert_params + self.h) + self.shared_params
        return (self.layers * self.projections + moe * experts + self.dense * 3 * self.h * self.dense_hidden +
                2 * self.h * self.vocab)

    def saved_att(self, layer, recompute):
        """Bytes of one layer and sequence that its backward pass needs: x, expert and weight of every choice; unless
        all else is made again, a, q, k, v and out, the router's probabilities or a dense layer's gate and up."""
        dense = layer < self.dense
        n = 2 * self.h + (0 if dense else 6 * self.k)
        if recompute != "full":
            n += 2 * self.h + 2 * (2 * self.nq + 2 * self.nkv) * self.d + 4 * self.nq
            n += 4 * self.dense_hidden if dense else 4 * self.experts
        return n * self.seq

    def saved_ffn(self, seqs, ranks, recompute):
        """The same of a layer's experts: tokens, experts and weights of what came; the rows, unless they come again;
        gate and up, if nothing is made again."""
        _, rows, pairs, home = self.fullest(seqs, ranks)
        n = 4 * rows + 6 * pairs + (0 if recompute == "full" else 2 * rows * self.h)
        return n + (4 * pairs * self.f + 4 * home * self.shared if recompute == "none" else 0)
