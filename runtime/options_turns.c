/* The order of shapes: "a:10,b:5" is ten steps on shape a, then five on b, and over again; without a number, one step.
 */
#include <stdio.h>
#include <string.h>

#include "runtime/log.h"
#include "runtime/options.h"

static MoeStatus add_turn(MoeOptions *o, const MoeBundle *b, const char *name, size_t n, int64_t steps)
{
  int32_t shape = 0;
  const MoeBundle *found = b;
  if (n == 0) {
    moe_error("--shapes %s: the name of a shape is empty", o->shapes);
    return MOE_EINVAL;
  }
  while (found != NULL && (strlen(found->shape) != n || strncmp(found->shape, name, n) != 0)) {
    found = found->next;
    shape++;
  }
  if (found == NULL) {
    char known[256] = "";
    for (const MoeBundle *s = b; s != NULL && strlen(known) + strlen(s->shape) + 3 < sizeof known; s = s->next) {
      strcat(known, s == b ? "" : ", ");
      strcat(known, s->shape);
    }
    moe_error("this program has no shape %.*s; it has: %s", (int)n, name, known);
    return MOE_EINVAL;
  }
  if (o->n_turns == MOE_MAX_TURNS) {
    moe_error("--shapes has more than %d parts", MOE_MAX_TURNS);
    return MOE_EINVAL;
  }
  o->turns[o->n_turns++] = (MoeTurn){shape, steps};
  return MOE_OK;
}

MoeStatus moe_options_parse_turns(MoeOptions *o, const MoeBundle *b)
{
  if (o->shape != NULL && o->shapes != NULL) {
    moe_error("--shape and --shapes say different things; choose one");
    return MOE_EINVAL;
  }
  if (o->shape != NULL || o->shapes == NULL) {
    const char *name = o->shape != NULL ? o->shape : b->shape;
    return add_turn(o, b, name, strlen(name), 1);
  }
  for (const char *p = o->shapes;; p++) {
    size_t n = strcspn(p, ":,");
    const char *name = p;
    int64_t steps = 1;
    p += n;
    if (*p == ':') {
      char count[24] = "";
      size_t digits = strcspn(p + 1, ",");
      snprintf(count, sizeof count, "%.*s", (int)digits, p + 1);
      if (digits >= sizeof count || !moe_parse_count(count, &steps) || steps < 1 || steps > 1000000000) {
        moe_error("--shapes %s: expected a number of steps after %.*s:", o->shapes, (int)n, name);
        return MOE_EINVAL;
      }
      p += 1 + digits;
    }
    MOE_TRY(add_turn(o, b, name, n, steps));
    if (*p == '\0') {
      return MOE_OK;
    }
  }
}

int32_t moe_options_turn(const MoeOptions *o, int64_t t)
{
  int64_t cycle = 0;
  int32_t at = 0;
  for (int32_t i = 0; i < o->n_turns; i++) {
    cycle += o->turns[i].steps;
  }
  int64_t left = t % cycle;
  while (left >= o->turns[at].steps) {
    left -= o->turns[at++].steps;
  }
  return o->turns[at].shape;
}

int64_t moe_options_steps_of(const MoeOptions *o, int32_t shape, int64_t end)
{
  int64_t cycle = 0, own = 0, n = 0;
  for (int32_t i = 0; i < o->n_turns; i++) {
    cycle += o->turns[i].steps;
    own += o->turns[i].shape == shape ? o->turns[i].steps : 0;
  }
  n = end / cycle * own;
  int64_t left = end % cycle;
  for (int32_t i = 0; i < o->n_turns && left > 0; i++) {
    int64_t some = o->turns[i].steps < left ? o->turns[i].steps : left;
    n += o->turns[i].shape == shape ? some : 0;
    left -= some;
  }
  return n;
}
