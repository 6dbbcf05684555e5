/* What each pipeline rank or group computes, in order and nothing else: for colocated systems the stage order in its
   authors' notation, for the others the compute ops of the schedule in the same spirit, with layers for stages. */
#include "codegen/sched.h"

#include "codegen/stage_order.h"

static void print_stages(const Plan *plan, FILE *out)
{
  Arena *arena = arena_new();
  StageIn in = stage_in(plan);
  const StageOrder *orders = stage_orders(arena, &in);
  for (int rank = 0; rank < in.ranks; rank++) {
    fprintf(out, "rank %d: ", rank);
    stage_print(&orders[rank], out);
  }
  arena_free(arena);
}

/* Pass and part of an op: "Fa" forward of attention, "bf" input gradient of the experts; NULL for what is no part of
   a micro-batch's compute. */
static const char *word_of(MoeOpKind kind)
{
  switch (kind) {
  case MOE_OP_EMBED_FWD:
    return "Fe";
  case MOE_OP_ATT_FWD:
    return "Fa";
  case MOE_OP_FFN_FWD:
    return "Ff";
  case MOE_OP_JOIN_FWD:
    return "Fj";
  case MOE_OP_HEAD:
    return "h";
  case MOE_OP_ATT_AGAIN:
    return "Ra";
  case MOE_OP_JOIN_DGRAD:
    return "bj";
  case MOE_OP_FFN_DGRAD:
    return "bf";
  case MOE_OP_ATT_DGRAD:
    return "ba";
  case MOE_OP_FFN_WGRAD:
    return "wf";
  case MOE_OP_ATT_WGRAD:
    return "wa";
  case MOE_OP_EMBED_WGRAD:
    return "we";
  default:
    return NULL;
  }
}

static bool same_part(const MoeOp *dgrad, const MoeOp *wgrad)
{
  bool follows = (dgrad->kind == MOE_OP_FFN_DGRAD && wgrad->kind == MOE_OP_FFN_WGRAD) ||
                 (dgrad->kind == MOE_OP_ATT_DGRAD && wgrad->kind == MOE_OP_ATT_WGRAD);
  return follows && dgrad->mb == wgrad->mb && dgrad->layer == wgrad->layer && dgrad->chunk == wgrad->chunk;
}

static void print_group(const SchedGroup *group, FILE *out)
{
  for (int i = 0; i < group->n_ops; i++) {
    const MoeOp *op = &group->ops[i];
    const char *word = word_of(op->kind);
    if (!word || op->mb < 0) {
      continue;
    }
    int next = i + 1;
    while (next < group->n_ops && (!word_of(group->ops[next].kind) || group->ops[next].mb < 0)) {
      next++;
    }
    if (next < group->n_ops && same_part(op, &group->ops[next])) {
      fprintf(out, " B%s%d.%d", word + 1, (int)op->mb, op->layer);
      i = next;
    } else if (op->kind == MOE_OP_HEAD || op->kind == MOE_OP_EMBED_FWD || op->kind == MOE_OP_EMBED_WGRAD) {
      fprintf(out, " %s%d", word, (int)op->mb);
    } else {
      fprintf(out, " %s%d.%d", word, (int)op->mb, op->layer);
    }
  }
}

void sched_print_orders(const Spec *spec, const Plan *plan, const Schedule *sched, FILE *out)
{
  (void)spec;
  if (plan_system_colocated(plan->system)) {
    print_stages(plan, out);
    return;
  }
  fputs("F forward, R forward again, b input gradient, w weight gradient, B both; a attention, f experts, e embedding, "
        "h head; "
        "micro-batch.layer\n",
        out);
  for (int g = 0; g < sched->n_groups; g++) {
    int role = plan->groups[g].role;
    fprintf(out, "%s%s%d:", role & PLAN_A ? "A" : "", role & PLAN_F ? "F" : "", plan->groups[g].index);
    print_group(&sched->groups[g], out);
    fputc('\n', out);
  }
}
