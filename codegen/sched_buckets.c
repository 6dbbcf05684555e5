#include "codegen/sched_buckets.h"

#include <stdlib.h>

static int ascending(const void *a, const void *b)
{
  return *(const int *)a - *(const int *)b;
}

static void add(SchedNet *net, MoeBucketKind kind, int layer)
{
  bool of_experts = kind == MOE_BUCKET_EXPERTS || kind == MOE_BUCKET_SHARED;
  if ((of_experts && spec_layer_is_dense(net->spec, layer)) ||
      (kind == MOE_BUCKET_SHARED && net->spec->model.moe.shared == 0)) {
    return;
  }
  SchedBucket *b = &net->buckets[net->n_buckets];
  *b = (SchedBucket){.kind = kind, .layer = layer, .set = -1};
  b->n_groups = cost_bucket_groups(net->spec, net->plan, kind, layer, b->groups);
  qsort(b->groups, (size_t)b->n_groups, sizeof *b->groups, ascending);
  b->exchanged = cost_bucket_parties(net->spec, net->plan, kind, layer) > 1;
  b->reduce_ns = cost_bucket_op_ns(net->spec, net->plan, MOE_OP_GRAD_REDUCE, kind, layer);
  b->msg = cost_bucket_msg(net->spec, net->plan, MOE_EDGE_REDUCE, kind, layer);
  net->bucket_of[(int)kind * net->n_layers + layer] = net->n_buckets++;
}

int sched_bucket_sets(const SchedNet *net)
{
  return net->n_groups * MOE_BUCKET_COUNT;
}

/* Are the sets of groups that hold a layer's bucket of this kind equal or disjoint? */
static bool sets_are_apart(Arena *arena, const SchedNet *net, MoeBucketKind kind)
{
  int *set = arena_new_array(arena, int, (size_t)net->n_groups);
  for (int i = 0; i < net->n_buckets; i++) {
    const SchedBucket *b = &net->buckets[i];
    for (int k = 0; b->kind == kind && k < b->n_groups; k++) {
      int *of = &set[b->groups[k]], now = 1 + b->groups[0] + net->n_groups * b->groups[b->n_groups - 1];
      if (*of && *of != now) {
        return false;
      }
      *of = now;
    }
  }
  return true;
}

void sched_buckets(Arena *arena, SchedNet *net)
{
  static const MoeBucketKind of_layer[] = {MOE_BUCKET_EXPERTS, MOE_BUCKET_SHARED, MOE_BUCKET_ATT};
  enum { PER_LAYER = sizeof of_layer / sizeof *of_layer };
  net->buckets = arena_new_array(arena, SchedBucket, (size_t)((PER_LAYER + 1) * net->n_layers + 2));
  net->bucket_of = arena_new_array(arena, int, (size_t)(MOE_BUCKET_COUNT * net->n_layers));
  for (int layer = net->n_layers - 1; layer >= 0; layer--) {
    add(net, MOE_BUCKET_GAIN, layer);
  }
  add(net, MOE_BUCKET_HEAD, 0);
  for (int layer = net->n_layers - 1; layer >= 0; layer--) {
    for (int i = 0; i < PER_LAYER; i++) {
      add(net, of_layer[i], layer);
    }
  }
  add(net, MOE_BUCKET_EMBED, 0);
  for (int i = 0; i < PER_LAYER; i++) {
    bool apart = sets_are_apart(arena, net, of_layer[i]);
    for (int k = 0; apart && k < net->n_buckets; k++) {
      SchedBucket *b = &net->buckets[k];
      b->set = b->kind == of_layer[i] ? b->groups[0] * MOE_BUCKET_COUNT + (int)b->kind : b->set;
    }
  }
}

int sched_adds(const SchedNet *net, SchedTask task, int layer, int numbers[SCHED_MAX_ADDS])
{
  static const struct {
    SchedTask task;
    MoeBucketKind kind;
  } adders[] = {
      {TASK_HEAD, MOE_BUCKET_HEAD},      {TASK_FFN_WGRAD, MOE_BUCKET_EXPERTS}, {TASK_FFN_WGRAD, MOE_BUCKET_SHARED},
      {TASK_FFN_DGRAD, MOE_BUCKET_GAIN}, {TASK_ATT_DGRAD, MOE_BUCKET_GAIN},    {TASK_ATT_DGRAD, MOE_BUCKET_ATT},
      {TASK_ATT_WGRAD, MOE_BUCKET_ATT},  {TASK_EMBED_WGRAD, MOE_BUCKET_EMBED}, {TASK_HEAD, MOE_BUCKET_EMBED},
  };
  int n = 0;
  for (size_t i = 0; i < sizeof adders / sizeof *adders; i++) {
    bool tie = task == TASK_HEAD && adders[i].kind == MOE_BUCKET_EMBED;
    bool none = adders[i].kind == MOE_BUCKET_SHARED && net->spec->model.moe.shared == 0;
    if (adders[i].task == task && !none && (!tie || net->spec->model.tied)) {
      numbers[n++] = net->bucket_of[(int)adders[i].kind * net->n_layers + (task == TASK_HEAD ? 0 : layer)];
    }
  }
  return n;
}

void sched_bucket_slot(const SchedBucket *b, int32_t *turns, int32_t *slot_p, int32_t *use_p)
{
  *slot_p = b->set < 0 ? b->layer : turns[b->set] % BUCKET_TURNS;
  *use_p = b->set < 0 ? 0 : turns[b->set]++ / BUCKET_TURNS;
}
