#include "tests/sched/mkplan.h"

#include "runtime/moe_layout.h"

void mk_spec(const MkPlan *mk, Spec *spec)
{
  *spec = (Spec){.path = "test", .hash = 1};
  ModelSpec *m = &spec->model;
  m->name = "test";
  m->layers = mk->layers;
  m->hidden = 4096;
  m->vocab = mk->vocab ? mk->vocab : 151936;
  m->tied = mk->tied;
  m->attention.heads = 64;
  m->attention.kv_heads = 4;
  m->attention.head_dim = 128;
  m->attention.qk_norm = QK_NORM_HEAD;
  m->moe.experts = 128;
  m->moe.top_k = 8;
  m->moe.hidden = 1536;
  m->moe.groups = m->moe.top_groups = 1;
  m->moe.router_scale = 1;
  m->dense.layers = mk->dense;
  m->dense.hidden = 12288;
  ClusterSpec *c = &spec->cluster;
  c->name = "lab";
  c->nodes = 16;
  c->gpus = c->nics = 8;
  c->nvlink = 160e9;
  c->nic = 46e9;
  c->nvlink_ns = 3300;
  c->nic_ns = 5600;
  c->gpu = (GpuSpec){.name = "h800",
                     .flops = 989.4e12,
                     .memory = 80LL * 1000 * 1000 * 1000,
                     .hbm = 3.35e12,
                     .launch_ns = 5000,
                     .eff_gemm = 0.7,
                     .eff_grouped = 0.6,
                     .eff_grouped_dgrad = 1,
                     .eff_grouped_wgrad = 1,
                     .eff_attention = 0.5,
                     .eff_memory = 0.85};
  spec->train.dtype = DTYPE_BF16;
}

static int ranks_of(const int *list, int g)
{
  int n = 1;
  for (int i = 0; i <= g && i < MK_MAX_GROUPS; i++) {
    n = list[i] ? list[i] : n;
  }
  return n;
}

/* Layer by layer to the next group of its side. */
static void map_in_turn(Arena *arena, const MkPlan *mk, Plan *plan)
{
  size_t layers = (size_t)mk->layers;
  plan->ways = plan->chunks = 1;
  plan->att_group = arena_new_array(arena, int, layers + 1);
  plan->ffn_group = arena_new_array(arena, int, layers);
  plan->combine_group = plan->att_group + 1;
  for (int layer = 0; layer <= mk->layers; layer++) {
    plan->att_group[layer] = layer % mk->p_att;
    if (layer < mk->layers) {
      bool both = mk->colocated || layer < mk->dense;
      plan->ffn_group[layer] = both ? layer % mk->p_att : mk->p_att + (layer - mk->dense) % mk->p_ffn;
    }
  }
}

/* Runs of layers to the pipeline ranks, in both directions where the system has two. */
static void map_stages(Arena *arena, const MkPlan *mk, Plan *plan)
{
  int p = mk->p_att, v = mk->virtual_stages ? mk->virtual_stages : 1, layers = mk->layers;
  plan->ways = mk->system == SYSTEM_DUALPIPE ? 2 : 1;
  plan->chunks = mk->chunks ? mk->chunks : 1;
  plan->mb_group = mk->mb_group;
  plan->n_stages = mk->system == SYSTEM_DUALPIPE ? p : mk->system == SYSTEM_DUALPIPEV ? 2 * p : p * v;
  plan->att_group = arena_new_array(arena, int, (size_t)(plan->ways * (layers + 1)));
  plan->ffn_group = arena_new_array(arena, int, (size_t)(plan->ways * layers));
  plan->combine_group = plan->ffn_group;
  for (int way = 0; way < plan->ways; way++) {
    for (int layer = 0; layer <= layers; layer++) {
      int at = layer < layers ? layer : layers - 1;
      int group = plan_stage_group(plan, way, (int)moe_part_of(layers, plan->n_stages, at));
      plan->att_group[way * (layers + 1) + layer] = group;
      if (layer < layers) {
        plan->ffn_group[way * layers + layer] = group;
      }
    }
  }
}

void mk_plan(Arena *arena, const MkPlan *mk, const Spec *spec, Plan *plan)
{
  bool origin = plan_system_colocated(mk->system), both = origin || mk->colocated;
  *plan = (Plan){.system = mk->system, .placement = both ? PLACE_COLOCATED : PLACE_SEPARATE};
  int seqs = mk->seqs ? mk->seqs : 1, most = 0;
  plan->replicas = mk->replicas ? mk->replicas : 1;
  plan->p_att = mk->p_att;
  plan->p_ffn = both ? mk->p_att : mk->p_ffn;
  plan->ranks_per_node = mk->ranks_per_node ? mk->ranks_per_node : 8;
  plan->n_groups = both ? mk->p_att : mk->p_att + mk->p_ffn;
  plan->groups = arena_new_array(arena, PlanGroup, (size_t)plan->n_groups);
  for (int g = 0; g < plan->n_groups; g++) {
    PlanGroup *group = &plan->groups[g];
    bool att = g < mk->p_att;
    group->id = g;
    group->role = both ? PLAN_A | PLAN_F : att ? PLAN_A : PLAN_F;
    group->index = att ? g : g - mk->p_att;
    group->first_rank = plan->replica_ranks;
    group->n_ranks = att ? ranks_of(mk->m, g) : ranks_of(mk->n, g - mk->p_att);
    group->nics = group->n_ranks;
    plan->replica_ranks += group->n_ranks;
    most = att && group->n_ranks > most ? group->n_ranks : most;
  }
  plan->nic_ranks = arena_new_array(arena, int, (size_t)plan->replica_ranks);
  plan->seat = arena_new_array(arena, int, (size_t)plan->replica_ranks);
  plan->n_nics = plan->replica_ranks;
  for (int i = 0; i < plan->n_nics; i++) {
    plan->nic_ranks[i] = i;
  }
  int n = plan->replica_ranks, att = 0, given = 0;
  for (int g = 0; mk->mixed && g < mk->p_att; g++) {
    att += plan->groups[g].n_ranks;
  }
  for (int seat = 0; seat < n; seat++) { /* to the side that is behind its share */
    bool mine = (seat + 1) * att / n > given;
    plan->seat[!mk->mixed ? seat : mine ? given : att + seat - given] = seat;
    given += mine;
  }
  if (origin) {
    map_stages(arena, mk, plan);
  } else {
    map_in_turn(arena, mk, plan);
  }
  plan->dedup = mk->node ? DEDUP_NODE : DEDUP_RANK;
  plan->recompute = mk->again ? RECOMPUTE_FULL : RECOMPUTE_NONE;
  plan->mb_seqs = seqs * most;
  plan->micro_batches = mk->micro_batches;
  plan->in_flight = mk->in_flight ? mk->in_flight : mk->micro_batches;
  ShapeSpec *shape = arena_new_of(arena, ShapeSpec);
  *shape = (ShapeSpec){.name = "s", .seq = mk->seq ? mk->seq : 4096, .micro_batch = seqs, .weight = 1};
  shape->global_batch = plan->mb_seqs * mk->micro_batches * plan->replicas;
  plan->shape = shape;
  (void)spec;
}

bool mk_schedule(Built *b)
{
  Diag *diag = diag_new(b->arena, stderr);
  return sched_build(b->arena, diag, &b->spec, &b->plan, &b->sched) && sched_check(diag, &b->spec, &b->plan, &b->sched);
}

bool mk_build(const MkPlan *mk, Built *b)
{
  b->arena = arena_new();
  mk_spec(mk, &b->spec);
  mk_plan(b->arena, mk, &b->spec, &b->plan);
  return mk_schedule(b);
}
