#include "codegen/fastest.h"

bool same_step(double ns, double other_ns)
{
  double ratio = other_ns / ns;
  return ratio > 0.9995 && ratio < 1.0005;
}

const char *faster_than(Arena *arena, double ns, double slower_ns)
{
  return same_step(ns, slower_ns) ? "as fast as" : arena_printf(arena, "%.3fx faster than", slower_ns / ns);
}

const char *fastest_text(Arena *arena, const Contender *list, int n)
{
  const Contender *best = NULL, *next = NULL;
  for (int i = 0; i < n; i++) {
    best = list[i].step_ns > 0 && (!best || list[i].step_ns < best->step_ns) ? &list[i] : best;
  }
  if (!best) {
    return NULL;
  }
  const char *text = plan_system_name(best->system);
  int equal = 0;
  for (int i = 0; i < n; i++) {
    const Contender *c = &list[i];
    if (c == best || c->step_ns <= 0) {
      continue;
    }
    if (same_step(best->step_ns, c->step_ns)) {
      text = arena_printf(arena, "%s%s%s", text, equal++ ? " and " : ", as fast as ", plan_system_name(c->system));
    } else if (!next || c->step_ns < next->step_ns) {
      next = c;
    }
  }
  if (next) {
    text = arena_printf(arena, "%s, %s %s, the next", text, faster_than(arena, best->step_ns, next->step_ns),
                        plan_system_name(next->system));
  } else if (!equal) {
    text = arena_printf(arena, "%s, the only one that can run this", text);
  }
  return text;
}
