/* A plan in words: what binds each side, how evenly the sides are loaded, what deduplication saves, what memory leaves,
   and what the next best candidate lacks. Every number is the planner's own. */
#include "codegen/plan_explain.h"

#include <math.h>
#include <string.h>

#include "codegen/human.h"
#include "codegen/plan_int.h"
#include "runtime/moe_layout.h"

/* ---- one side ---- */

/* Of a layer and micro-batch, and the side that does it. */
static const struct {
  MoeOpKind kind;
  int role;
} ops[] = {{MOE_OP_ATT_FWD, PLAN_A}, {MOE_OP_ATT_AGAIN, PLAN_A}, {MOE_OP_ATT_DGRAD, PLAN_A}, {MOE_OP_ATT_WGRAD, PLAN_A},
           {MOE_OP_FFN_FWD, PLAN_F}, {MOE_OP_FFN_DGRAD, PLAN_F}, {MOE_OP_FFN_WGRAD, PLAN_F}};
enum { N_OPS = sizeof ops / sizeof *ops };

typedef struct Traffic {
  double out_nvlink, out_nic, in_nvlink, in_nic; /* ns on the busiest rank's ports */
  double bytes, nic_bytes;                       /* of all ranks, both directions */
} Traffic;

/* Adds a class of messages as its sender or its receiver sees it. */
static void add(Traffic *t, const Plan *plan, MsgCost c, bool sends, bool receives)
{
  double d = plan->chunks;
  t->out_nvlink += sends ? d * (double)c.out_nvlink : 0;
  t->out_nic += sends ? d * (double)c.out_nic : 0;
  t->in_nvlink += receives ? d * (double)c.in_nvlink : 0;
  t->in_nic += receives ? d * (double)c.in_nic : 0;
  t->bytes += d * c.bytes;
  t->nic_bytes += d * c.nic_bytes;
}

static double op_ns(const Spec *spec, const Plan *plan, MoeOpKind kind, int layer)
{
  bool ffn = kind == MOE_OP_FFN_FWD || kind == MOE_OP_FFN_DGRAD || kind == MOE_OP_FFN_WGRAD;
  return (double)cost_op_ns(spec, plan, kind, layer) * (ffn ? plan->chunks : 1);
}

static double op_flops(const Spec *spec, const Plan *plan, MoeOpKind kind, int layer)
{
  bool ffn = kind == MOE_OP_FFN_FWD || kind == MOE_OP_FFN_DGRAD || kind == MOE_OP_FFN_WGRAD;
  return cost_op_work(spec, plan, kind, layer).flops * (ffn ? plan->chunks : 1);
}

SideView plan_side(const Spec *spec, const Plan *plan, int role)
{
  static const struct {
    MoeEdge edge;
    int from; /* role of the sender */
  } edges[] = {{MOE_EDGE_DISPATCH, PLAN_A},
               {MOE_EDGE_COMBINE_B, PLAN_A},
               {MOE_EDGE_DISPATCH_AGAIN, PLAN_A},
               {MOE_EDGE_DISPATCH_B, PLAN_F},
               {MOE_EDGE_COMBINE, PLAN_F}};
  int l = spec->model.dense.layers;
  const PlanGroup *g = &plan->groups[role == PLAN_A ? plan_att(spec, plan, 0, l) : plan_ffn(spec, plan, 0, l)];
  role = g->role;
  Traffic t = {0};
  SideView v = {.role = role, .peak = spec->cluster.gpu.flops};
  /* layers with and without a window take turns: the mean of two */
  int kinds = spec->model.attention.window_layers != LAYERS_ALL && l + 1 < spec->model.layers ? 2 : 1;
  for (int i = 0; i < N_OPS; i++) {
    for (int k = 0; k < kinds; k++) {
      v.flops += ops[i].role & role ? op_flops(spec, plan, ops[i].kind, l + k) / kinds : 0;
      v.compute_ns += ops[i].role & role ? op_ns(spec, plan, ops[i].kind, l + k) / kinds : 0;
    }
  }
  for (size_t i = 0; i < sizeof edges / sizeof *edges; i++) {
    int to = edges[i].from == PLAN_A ? PLAN_F : PLAN_A;
    if (edges[i].edge == MOE_EDGE_DISPATCH_AGAIN && !cost_again(spec, plan->recompute, l)) {
      continue;
    }
    add(&t, plan, cost_msg(spec, plan, edges[i].edge, l), edges[i].from & role, to & role);
  }
  double nic = fmax(t.out_nic, t.in_nic), nvlink = fmax(t.out_nvlink, t.in_nvlink);
  double share = g->nic_share > 0 ? g->nic_share : (double)(g->nics > 0 ? g->nics : 1) / g->n_ranks;
  v.nic = nic >= nvlink && nic > 0;
  v.rate = v.nic ? spec->cluster.nic * share : spec->cluster.nvlink;
  v.network_ns = fmax(nic, nvlink);
  v.bytes = v.network_ns * v.rate / 1e9;
  v.intensity = v.bytes > 0 ? v.flops / v.bytes : INFINITY;
  v.turning = v.peak / v.rate;
  return v;
}

/* ---- words ---- */

static void print_side(const Spec *spec, const SideView *v, FILE *out)
{
  char flops[HUMAN_MAX], bytes[HUMAN_MAX], ratio[HUMAN_MAX], turn[HUMAN_MAX], compute[HUMAN_MAX], network[HUMAN_MAX];
  char sustained[HUMAN_MAX];
  if (v->bytes <= 0) {
    fprintf(out, "  %s: no message leaves a rank; compute of %s per layer and micro-batch\n", plan_role_name(v->role),
            human_time(compute, v->compute_ns));
    return;
  }
  if (spec->costs.given) { /* times without a rate behind them have no roofline */
    fprintf(out, "  %s: the spec's own times: compute %s, network %s per layer and micro-batch: the %s binds\n",
            plan_role_name(v->role), human_time(compute, v->compute_ns), human_time(network, v->network_ns),
            v->compute_ns >= v->network_ns ? "compute" : "network");
    return;
  }
  fprintf(
      out,
      "  %s: %sFLOP on %s of %s traffic per rank and layer, intensity %s FLOP/byte\n"
      "    turning point %s FLOP/byte at the peak, %s at the sustained rate; compute %s, network %s: the %s binds\n",
      plan_role_name(v->role), human_count(flops, v->flops), human_bytes(bytes, v->bytes), v->nic ? "NIC" : "NVLink",
      human_count(ratio, v->intensity), human_count(turn, v->turning),
      human_count(sustained, v->flops / v->compute_ns * 1e9 / v->rate), human_time(compute, v->compute_ns),
      human_time(network, v->network_ns), v->compute_ns >= v->network_ns ? "compute" : "network");
}

/* Layers of attention, the head, and layers of experts of a group in all directions. */
static Pace pace_of(const Spec *spec, const Plan *plan, int group)
{
  int layers = spec->model.layers, exchanges = 0;
  Pace p = {.group = group};
  for (int w = 0; w < plan->ways; w++) {
    for (int l = 0; l < layers; l++) {
      bool mine = plan_att(spec, plan, w, l) == group, dense = spec_layer_is_dense(spec, l);
      bool experts = !dense && plan_ffn(spec, plan, w, l) == group;
      for (int i = 0; i < N_OPS; i++) {
        p.compute_ns += (ops[i].role == PLAN_A ? mine : experts) ? op_ns(spec, plan, ops[i].kind, l) : 0;
      }
      exchanges += !dense && (mine || experts);
    }
    p.compute_ns += plan_att(spec, plan, w, layers) == group ? op_ns(spec, plan, MOE_OP_HEAD, layers) : 0;
  }
  p.compute_ns /= plan->ways;
  p.network_ns = plan_side(spec, plan, plan->groups[group].role & PLAN_A ? PLAN_A : PLAN_F).network_ns * exchanges;
  p.network_ns /= plan->ways;
  return p;
}

double pace_ns(Pace p)
{
  return fmax(p.compute_ns, p.network_ns);
}

Pace plan_pace(const Spec *spec, const Plan *plan, int role)
{
  Pace slow = {.group = -1};
  for (int g = 0; g < plan->n_groups; g++) {
    if (plan->groups[g].role & role) {
      Pace p = pace_of(spec, plan, g);
      slow = slow.group < 0 || pace_ns(p) > pace_ns(slow) ? p : slow;
    }
  }
  return slow;
}

const char *pace_binds(Pace p)
{
  return p.compute_ns >= p.network_ns ? "compute" : "network";
}

static void print_balance(const Spec *spec, const Plan *plan, FILE *out)
{
  Pace att = plan_pace(spec, plan, PLAN_A), ffn = plan_pace(spec, plan, PLAN_F);
  Pace slow = pace_ns(att) >= pace_ns(ffn) ? att : ffn, other = pace_ns(att) >= pace_ns(ffn) ? ffn : att;
  char text[HUMAN_MAX], share[HUMAN_MAX];
  fprintf(out, "  the %s side sets the pace: %s per micro-batch, its %s; the %s side is busy %s of that\n",
          plan_role_name(plan->groups[slow.group].role), human_time(text, pace_ns(slow)), pace_binds(slow),
          plan_role_name(plan->groups[other.group].role), human_percent(share, pace_ns(other) / pace_ns(slow)));
}

/* Rows of a token that leave its rank in one direction; *far: of them those between nodes. */
static double rows_out(const Spec *spec, const Plan *plan, Dedup dedup, double *far)
{
  Plan view = *plan;
  view.dedup = dedup;
  MsgCost c = cost_msg(spec, &view, MOE_EDGE_COMBINE_B, spec->model.dense.layers); /* rows alone */
  double tokens = (double)plan->mb_seqs * (double)moe_part_max(plan->shape->seq, plan->chunks);
  double row = tokens * (double)cost_row_bytes(spec);
  *far = c.nic_bytes / row;
  return c.bytes / row;
}

/* What deduplication saves of the rows that leave a rank. A rank with experts keeps some of its tokens' rows. */
static void print_dedup(const Spec *spec, const Plan *plan, FILE *out)
{
  int k = spec->model.moe.top_k;
  double far = 0, flat_far = 0, rows = rows_out(spec, plan, plan->dedup, &far);
  double flat = rows_out(spec, plan, DEDUP_FLAT, &flat_far);
  if (flat <= 0) {
    fprintf(out, "  a token never leaves its rank, which has all experts of the layer\n");
    return;
  }
  if (plan->dedup == DEDUP_FLAT) {
    fprintf(out, "  a token travels once per chosen expert: of its %d rows %.3g leave the rank", k, rows);
  } else {
    fprintf(out, "  a token travels once per %s: %.3g rows leave its rank instead of %.3g, one per chosen expert there",
            plan->dedup == DEDUP_NODE ? "node, relayed there" : "rank", rows, flat);
  }
  if (far > 0) {
    fprintf(out, ", %.3g of them between nodes", far);
  }
  fprintf(out, "\n");
}

static const PlanGroup *fullest_group(const Plan *plan)
{
  const PlanGroup *most = &plan->groups[0];
  for (int i = 1; i < plan->n_groups; i++) {
    most = plan->groups[i].memory.total > most->memory.total ? &plan->groups[i] : most;
  }
  return most;
}

static void print_memory(const Spec *spec, const Plan *plan, FILE *out)
{
  static const char *const kept[] = {[RECOMPUTE_NONE] = "all activations are kept",
                                     [RECOMPUTE_SELECTIVE] = "the experts' inner activations are computed again",
                                     [RECOMPUTE_FULL] =
                                         "of a layer only the input is kept, its forward with the dispatch runs again",
                                     [RECOMPUTE_AUTO] = ""};
  static const char *const shards[] = {"with the holders of the weights", "whole with every holder", "on all ranks",
                                       ""};
  const PlanGroup *g = fullest_group(plan);
  const MemoryTerms *m = &g->memory;
  char used[HUMAN_MAX], limit[HUMAN_MAX], left[HUMAN_MAX], state[HUMAN_MAX], acts[HUMAN_MAX];
  fprintf(out, "  memory: the fullest rank, of %s%d, uses %s of %s, %s left; %s of it is model state, %s activations\n",
          plan_role_letters(g->role), g->index, human_bytes(used, (double)m->total),
          human_bytes(limit, (double)m->limit), human_bytes(left, (double)(m->limit - m->total)),
          human_bytes(state, (double)(m->weights + m->gradients + m->optimizer)),
          human_bytes(acts, (double)m->activations));
  fprintf(out, "    %s; optimizer state lies %s", kept[plan->recompute], shards[plan->optimizer_shard]);
  if (plan->n_stages == 0) {
    int need = plan_in_flight_need(spec, plan), want = 2 * need < plan->micro_batches ? 2 * need : plan->micro_batches;
    fprintf(out, "; %d micro-batch%s in flight", plan->in_flight, plan->in_flight == 1 ? "" : "es");
    if (plan->in_flight < want) {
      fprintf(out, " of the %d that would hide every wait (%s)", want, spec->plan.in_flight > 0 ? "pinned" : "memory");
    }
  }
  fprintf(out, "\n");
}

/* "2 replicas of 4 x 8 attention and 2 x 16 FFN GPUs", or the pipeline of a colocated system. */
static void print_layout(const Plan *p, FILE *out)
{
  fprintf(out, "%d replica%s of ", p->replicas, p->replicas == 1 ? "" : "s");
  if (p->n_stages > 0) {
    fprintf(out, "%d pipeline rank%s of %d GPU%s, %d run%s of layers on each", p->n_groups, p->n_groups == 1 ? "" : "s",
            p->groups[0].n_ranks, p->groups[0].n_ranks == 1 ? "" : "s", p->ways * p->n_stages / p->n_groups,
            p->ways * p->n_stages == p->n_groups ? "" : "s");
  } else if (p->groups[0].role == (PLAN_A | PLAN_F)) {
    fprintf(out, "%d x %d GPUs for attention and experts alike", p->p_att, p->groups[0].n_ranks);
  } else {
    fprintf(out, "%d x %d attention and %d x %d FFN GPUs", p->p_att, p->groups[0].n_ranks, p->p_ffn,
            p->groups[p->p_att].n_ranks);
  }
  if (p->chunks > 1) {
    fprintf(out, ", %d chunks", p->chunks);
  }
}

/* The largest thing that is worse, of those a reader can do something about. */
static void print_lack(const Spec *spec, const Plan *best, const Plan *next, FILE *out)
{
  double tokens0 = best->mb_seqs * (double)best->replicas, tokens1 = next->mb_seqs * (double)next->replicas;
  double att0 = pace_ns(plan_pace(spec, best, PLAN_A)) / tokens0,
         ffn0 = pace_ns(plan_pace(spec, best, PLAN_F)) / tokens0;
  double att1 = pace_ns(plan_pace(spec, next, PLAN_A)) / tokens1,
         ffn1 = pace_ns(plan_pace(spec, next, PLAN_F)) / tokens1;
  bool one_side = next->groups[0].role != PLAN_A, by_att = att1 >= ffn1;
  char text[HUMAN_MAX];
  if (next->recompute != best->recompute) {
    fprintf(out, "it has %s recomputation; ",
            next->recompute == RECOMPUTE_NONE ? "no" : plan_recompute_name(next->recompute));
  }
  if (next->optimizer_shard != best->optimizer_shard) {
    fprintf(out, "its optimizer state lies %s; ",
            next->optimizer_shard == OPT_SHARD_ALL ? "on all ranks" : "with the weights");
  }
  if (fmax(att1, ffn1) > fmax(att0, ffn0) * 1.002) {
    if (one_side) {
      fprintf(out, "its groups take longer per token");
    } else {
      fprintf(out, "its %s side is slower per token", plan_role_name(by_att ? PLAN_A : PLAN_F));
    }
    fprintf(out, " (%s of the chosen plan's)", human_percent(text, by_att ? att1 / att0 : ffn1 / ffn0));
  } else if (next->replicas * next->replica_ranks != best->replicas * best->replica_ranks) {
    fprintf(out, "it uses %d GPUs instead of %d", next->replicas * next->replica_ranks,
            best->replicas * best->replica_ranks);
  } else if (next->micro_batches < best->micro_batches || next->n_groups > best->n_groups) {
    fprintf(out, "its pipeline fills and drains for longer (%d micro-batch%s over %d group%s, not %d over %d)",
            next->micro_batches, next->micro_batches == 1 ? "" : "es", next->n_groups, next->n_groups == 1 ? "" : "s",
            best->micro_batches, best->n_groups);
  } else if (next->in_flight < best->in_flight) {
    fprintf(out, "memory lets it have %d micro-batch%s in flight instead of %d", next->in_flight,
            next->in_flight == 1 ? "" : "es", best->in_flight);
  } else {
    fprintf(out, "%s the same pace; gradient exchange and latencies decide",
            one_side ? "its groups keep" : "both sides keep");
  }
}

void plan_explain(const Spec *spec, const Plan *plans, int n, FILE *out)
{
  const Plan *best = &plans[0];
  char text[HUMAN_MAX];
  fprintf(out, "why: %s, ", plan_system_name(best->system));
  print_layout(best, out);
  fprintf(out, "\n");
  SideView a = plan_side(spec, best, PLAN_A), f = plan_side(spec, best, PLAN_F);
  print_side(spec, &a, out);
  if (a.role == PLAN_A) {
    print_side(spec, &f, out);
    print_balance(spec, best, out);
  } else if (a.bytes > 0) {
    fprintf(out, "  every rank does both: without overlap messages add %s to the compute of a layer\n",
            human_percent(text, a.compute_ns > 0 ? a.network_ns / a.compute_ns : 0));
  }
  print_dedup(spec, best, out);
  print_memory(spec, best, out);
  if (n > 1) {
    fprintf(out, "  next best: ");
    print_layout(&plans[1], out);
    fprintf(out, ", step %s; ", human_time(text, plans[1].step_ns));
    print_lack(spec, best, &plans[1], out);
    fprintf(out, "\n");
  } else {
    fprintf(out, "  no other allocation comes near it under these pins\n");
  }
}
