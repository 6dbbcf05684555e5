/* Metrics in words. */
#include "codegen/human.h"
#include "codegen/metrics.h"

static void print_split(const char *name, const TimeSplit *s, FILE *out)
{
  char text[HUMAN_MAX];
  const double parts[] = {s->compute_ns, s->exposed_ns, s->bubble_ns, s->overlapped_ns};
  fprintf(out, "%-6s", name);
  for (int i = 0; i < 4; i++) {
    fprintf(out, " %9s %5.1f %%", human_time(text, parts[i]), s->step_ns > 0 ? 100 * parts[i] / s->step_ns : 0);
  }
  fprintf(out, "\n");
}

void metrics_print(const Spec *spec, const Plan *plan, const Schedule *sched, const Metrics *m, FILE *out)
{
  enum { MOST_GROUPS = 16 };
  char text[HUMAN_MAX], other[HUMAN_MAX];
  const TimeSplit *w = &m->whole;
  fprintf(out, "%s, %s, shape %s: a step of %s in %d micro-batch%s, at most %d in flight\n", spec->model.name,
          plan_system_name(plan->system), plan->shape->name, human_time(text, w->step_ns), plan->micro_batches,
          plan->micro_batches == 1 ? "" : "es", sched->in_flight);
  fprintf(out, "%-6s %17s %17s %17s %17s\n", "", "compute", "exposed comm.", "bubble", "overlapped comm.");
  for (int g = 0; g < m->n_groups && g < MOST_GROUPS; g++) {
    const PlanGroup *group = &plan->groups[g];
    char name[32];
    snprintf(name, sizeof name, "%s%d", plan_role_letters(group->role), group->index);
    print_split(name, &m->groups[g], out);
  }
  if (m->n_groups > MOST_GROUPS) {
    fprintf(out, "... %d more groups\n", m->n_groups - MOST_GROUPS);
  }
  print_split("mean", w, out);
  fprintf(
      out,
      "with messages that take no time, the same order would need %s: %.1f %% of the step is exposed communication\n",
      human_time(text, w->step_ns - m->exposed_step_ns), w->step_ns > 0 ? 100 * m->exposed_step_ns / w->step_ns : 0);
  fprintf(out, "after the last micro-batch %.1f %% of the step: gradients and optimizer\n", 100 * m->grad_tail);
  fprintf(out, "MFU %.1f %%, %.1f tokens/s per GPU (%.1f over all GPUs of the cluster)\n", 100 * m->mfu,
          m->tokens_per_s_gpu, m->tokens_per_s_cluster_gpu);
  fprintf(out, "memory of the fullest rank %s of %s\n", human_bytes(text, (double)m->peak_memory),
          human_bytes(other, (double)m->memory_limit));
  const Traffic *t = &m->traffic;
  fprintf(out, "a token moves, forward through all layers, %s in dispatches, ", human_bytes(text, t->dispatch));
  fprintf(out, "%s in combines, ", human_bytes(text, t->combine));
  fprintf(out, "%s from stage to stage; ", human_bytes(text, t->p2p));
  fprintf(out, "%s of it between nodes\n", human_bytes(text, t->nic));
}
