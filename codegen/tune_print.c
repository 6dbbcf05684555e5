/* Candidates as text: a whole spec, its plan block, one line. */
#include <string.h>

#include "codegen/tune.h"
#include "lang/printed.h"

static Spec with_pins(const Spec *spec, const TuneCandidate *c)
{
  Spec pinned = *spec;
  pinned.plan = c->pins;
  pinned.n_shapes = 1;
  return pinned;
}

void tune_print_spec(const Spec *spec, const TuneCandidate *c, const char *comment, FILE *out)
{
  Spec pinned = with_pins(spec, c);
  fprintf(out, "# %s\n", comment);
  spec_print(&pinned, out);
}

void tune_print_pins(const Spec *spec, const TuneCandidate *c, FILE *out)
{
  Spec pinned = with_pins(spec, c);
  Printed whole;
  printed_open(&whole);
  spec_print(&pinned, whole.to);
  fflush(whole.to);
  const char *plan = strstr(whole.text, "\nplan {"); /* the last block */
  fputs(plan ? plan + 1 : "", out);
  printed_drop(&whole);
}

/* "2 x 3", "3 + 1" */
static const char *groups(Arena *arena, int stages, const int *gpus, int n)
{
  if (n == 1) {
    return arena_printf(arena, "%d x %d", stages, gpus[0]);
  }
  const char *text = "";
  for (int i = 0; i < n; i++) {
    text = arena_printf(arena, "%s%s%d", text, i ? " + " : "", gpus[i]);
  }
  return text;
}

const char *tune_text(Arena *arena, const TuneCandidate *c)
{
  const PlanSpec *p = &c->pins;
  const char *text = arena_printf(arena, "%s: ", plan_system_name(p->system));
  if (p->replicas > 1) {
    text = arena_printf(arena, "%s%d x ", text, p->replicas);
  }
  if (plan_system_colocated(p->system)) {
    text = arena_printf(arena, "%s%d x %d GPUs", text, p->attention_stages, p->expert_parallel);
    text = p->virtual_stages ? arena_printf(arena, "%s, %d virtual", text, p->virtual_stages) : text;
    text = p->chunks ? arena_printf(arena, "%s, %d chunks", text, p->chunks) : text;
  } else {
    text = arena_printf(arena, "%s%s + %s GPUs", text,
                        groups(arena, p->attention_stages, p->attention_gpus, p->n_attention_gpus),
                        groups(arena, p->ffn_stages, p->ffn_gpus, p->n_ffn_gpus));
    text = c->on_nics ? arena_printf(arena, "%s, %d + %d NICs", text, p->attention_nics, p->ffn_nics) : text;
    text = p->placement == PLACE_MIXED ? arena_printf(arena, "%s, mixed", text) : text;
    text = arena_printf(arena, "%s, %d in flight", text, p->in_flight);
  }
  return p->recompute == RECOMPUTE_NONE
             ? text
             : arena_printf(arena, "%s, %s recompute", text, plan_recompute_name(p->recompute));
}
