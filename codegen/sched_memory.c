/* Memory of a plan as a schedule really uses it: the slots of its pools and channels instead of the room that the plan
   had to have for any schedule. What a rank of a program allocates. */
#include "codegen/plan_int.h"
#include "codegen/sched.h"
#include "runtime/moe_layout.h"

enum { SCALARS_SLOT = 192 }; /* its head, the message's head and a line of numbers */

/* Slots of one channel on a rank of its receiving group. */
static int64_t chan_bytes(const Spec *spec, const Plan *plan, const MoeChan *chan, MemIn in)
{
  const PlanGroup *src = &plan->groups[chan->src];
  MoeEdge edge = (MoeEdge)chan->edge;
  int senders = src->n_ranks;
  switch (edge) {
  case MOE_EDGE_DISPATCH:
  case MOE_EDGE_DISPATCH_AGAIN:
  case MOE_EDGE_COMBINE_B:
    in.att_seqs = (int)moe_part_max(plan->mb_seqs, src->n_ranks);
    break;
  case MOE_EDGE_COMBINE:
  case MOE_EDGE_DISPATCH_B:
    in.ffn_ranks = src->n_ranks;
    break;
  case MOE_EDGE_PIPE: /* every sequence comes from one rank */
  case MOE_EDGE_PIPE_B:
    senders = 1;
    break;
  default:
    senders = in.node_ranks;
    break;
  }
  return (int64_t)chan->slots * senders * memory_message(spec, &in, edge);
}

void sched_memory(const Spec *spec, const Schedule *sched, Plan *plan)
{
  for (int i = 0; i < plan->n_groups; i++) {
    PlanGroup *g = &plan->groups[i];
    const SchedGroup *s = &sched->groups[i];
    const MemSlots slots = {s->att_saved, s->att_work, s->ffn_saved, s->ffn_work};
    MemIn in = plan_mem_in(spec, plan, g, sched->in_flight);
    in.slots = &slots;
    memory_terms(spec, &in, g->role, &g->memory);
    int64_t more = i == 0 ? (int64_t)SCALARS_SLOT * in.total_ranks : SCALARS_SLOT;
    for (int c = 0; c < sched->n_chans; c++) {
      more += sched->chans[c].dst == i ? chan_bytes(spec, plan, &sched->chans[c], in) : 0;
    }
    g->memory.buffers += more;
    g->memory.total += more;
  }
}
