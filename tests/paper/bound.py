"""The feasible bound of af_pipe: over all integer splits of the GPUs, the least time of a step in which every message
is hidden. A split is: replicas, groups per side, GPUs per group, recomputation. Of each split the bound is the largest of
  busy    a group's compute, after the chain that reaches its first layer (fill), with the optimizer's part behind it;
  flight  the chain of one micro-batch, forward and back; or the time for which micro-batches hold what their backward
          pass needs of a layer, from the layer's forward to its gradient, over the layers that memory holds at once.
Memory here is what no layout can do without: weights, gradients, an even part of the optimizer's state over all GPUs,
and what the backward pass needs of the micro-batches in flight; not buffers, not workspace. So the bound is from below.
Beside it the same with links: no group's NICs can move less than its rows, one per token and node of the receiving
group, each GPU with one NIC and no node of both sides."""
from collections import namedtuple

Split = namedtuple("Split", "replicas p_att att p_ffn ffn recompute")
Bound = namedtuple("Bound", "seconds linked split terms")

GPUS_PER_NODE = 8


def layers_of(costs, p_att, p_ffn):
    att = [[] for _ in range(p_att)]
    ffn = [[] for _ in range(p_ffn)]
    for layer in range(costs.layers):
        att[layer % p_att].append(layer)
        if layer >= costs.dense:
            ffn[(layer - costs.dense) % p_ffn].append(layer)
    return att, ffn


def node_rows(costs, ranks):
    """Nodes that one token goes to, of a group of so many ranks."""
    total, first = 0, 0
    while first < ranks:
        last = min(ranks, first + GPUS_PER_NODE)
        hits, miss = costs.experts * last // ranks - costs.experts * first // ranks, 1.0
        for i in range(costs.k):
            miss *= max(0, costs.experts - hits - i) / (costs.experts - i)
        total, first = total + 1 - miss, last
    return total


def links_of(costs, split, layers, n_mbs, att):
    """Seconds that the NICs of one group move rows, in each direction: two forward or two backward classes a layer."""
    moved = n_mbs * layers * 2 * node_rows(costs, split.ffn) * costs.seq * 2 * costs.h
    return moved / costs.nic * (1 if att else split.att / split.ffn * costs.imbalance)


def bound_of(costs, split):
    """Seconds of one split and its terms; None where memory does not hold it."""
    full, none = split.recompute == "full", split.recompute == "none"
    att, ffn = layers_of(costs, split.p_att, split.p_ffn)
    seqs = -(-costs.batch // split.replicas)
    if seqs < split.att:
        return None
    n_mbs = -(-seqs // split.att)  # a sequence on each rank of an attention group; the fullest rank has one in each
    parts = seqs / split.att       # experts have less to do in a short one
    f = costs.ffn(split.att, split.ffn)
    ffn_all = sum(f[:3]) + (0 if none else f[3])
    reach_att, reach_ffn, starts, at = {}, {}, {}, 0
    for layer in range(costs.layers):
        reach_att.setdefault(layer % split.p_att, at)
        starts["A", layer] = at
        at += costs.attention(layer)[0]
        if layer >= costs.dense:
            reach_ffn.setdefault((layer - costs.dense) % split.p_ffn, at)
            starts["F", layer] = at
            at += f[0]
    chain, held = at + costs.head(), {}
    for layer in reversed(range(costs.layers)):
        if layer >= costs.dense:
            chain += f[1]
            held["F", layer] = chain - starts["F", layer]
        chain += costs.attention(layer)[1]
        held["A", layer] = chain - starts["A", layer]
    busy, fill, caps, links, flight = {}, {}, [], 0, chain
    for g, mine in enumerate(att):
        each = sum(sum(costs.attention(l)[:3 + full]) for l in mine) + (costs.embed() if g == 0 else 0)
        head = costs.layers % split.p_att == g
        busy["A", g] = n_mbs * (each + (costs.head() if head else 0))
        fill["A", g] = reach_att[g]
        room = costs.memory - costs.state(len(mine), 0, 0, (g == 0) + head)
        caps.append(room / (len(mine) * costs.saved_att(full)))
        flight = max(flight, n_mbs * sum(held["A", l] for l in mine) * costs.saved_att(full) / max(room, 1))
        links = max(links, links_of(costs, split, sum(l >= costs.dense for l in mine), parts, True))
    for g, mine in enumerate(ffn):
        busy["F", g] = parts * len(mine) * ffn_all
        fill["F", g] = reach_ffn[g]
        room = costs.memory - costs.state(0, len(mine), -(-costs.experts // split.ffn), 0)
        saved = costs.saved_ffn(split.att, split.ffn, none)
        caps.append(room / (len(mine) * saved))
        flight = max(flight, parts * sum(held["F", l] for l in mine) * saved / max(room, 1))
        links = max(links, links_of(costs, split, len(mine), parts, False))
    if min(caps) < 1:
        return None
    worst = max(busy, key=lambda g: busy[g] + fill[g])
    seconds = max(busy[worst] + fill[worst], flight) + costs.optimizer()
    return Bound(seconds, max(seconds, links), split,
                 {"busy": busy[worst], "fill": fill[worst], "flight": flight, "optimizer": costs.optimizer(),
                  "cap": int(min(caps)), "group": "%s%d" % worst, "links": links})


def perfect(costs):
    """Seconds if all compute were spread evenly over all GPUs: nothing recomputed, experts at the rate of large ones."""
    seqs = 64
    best = min(n * sum(costs.ffn(seqs, n)[:3]) for n in range(1, costs.experts + 1) if costs.experts % n == 0)
    att = sum(sum(costs.attention(l)[:3]) for l in range(costs.layers)) + costs.head() + costs.embed()
    return costs.batch * (att + (costs.layers - costs.dense) * best / seqs) / costs.gpus


def least(costs, replicas, p_att, att):
    """Of the attention side alone, from below."""
    each = sum(sum(costs.attention(l)[:3]) for l in range(costs.layers)) + costs.head()
    return costs.batch / (replicas * att * p_att) * each


class Best:
    """The best splits so far by one figure."""

    def __init__(self, most, figure):
        self.most, self.figure, self.list = most, figure, []

    def cut(self):
        return self.figure(self.list[-1]) if len(self.list) == self.most else float("inf")

    def add(self, b):
        if self.figure(b) < self.cut():
            self.list = sorted(self.list + [b], key=self.figure)[:self.most]


def bounds(costs, most=4, groups=12):
    """The best splits by the bound, and by the bound with links."""
    hidden, linked = Best(most, lambda b: b.seconds), Best(most, lambda b: b.linked)
    for replicas in range(1, costs.gpus // 2 + 1):
        budget = costs.gpus // replicas
        for p_att in range(1, min(groups, costs.layers) + 1):
            for att in range(budget // p_att, 0, -1):
                if least(costs, replicas, p_att, att) > linked.cut():  # never below the other cut
                    break
                n_mbs = costs.batch / (replicas * att)
                for p_ffn in range(1, groups + 1):
                    ffn = min((budget - p_att * att) // p_ffn, costs.experts)
                    if ffn < 1:
                        break
                    # more ranks than `few` hold no fewer experts; whole nodes cut rows
                    few = -(-costs.experts // -(-costs.experts // ffn))
                    for n in {ffn, few, max(few, ffn // GPUS_PER_NODE * GPUS_PER_NODE)}:
                        deepest = -(-(costs.layers - costs.dense) // p_ffn)
                        if n_mbs * deepest * sum(costs.ffn(att, n)[:3]) > linked.cut():
                            continue
                        for recompute in ("none", "selective", "full"):
                            b = bound_of(costs, Split(replicas, p_att, att, p_ffn, n, recompute))
                            if b:
                                hidden.add(b)
                                linked.add(b)
                                if b.terms["flight"] < b.terms["busy"]:
                                    break  # more recomputation only costs
    return hidden.list, linked.list
