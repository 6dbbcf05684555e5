/* The mixed-integer program alone, on random columns, against a look at every pair. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "codegen/plan_int.h"
#include "tests/plan/specs.h"

enum { CASES = 600, COLUMNS = 80 };

typedef struct Answer {
  double z, sum;
  int ranks;
  bool any;
} Answer;

static Answer look_at_all(const Milp *m)
{
  Answer best = {0};
  for (int i = 0; i < m->n; i++) {
    for (int j = 0; j < m->n; j++) {
      const Column *a = &m->columns[i], *f = &m->columns[j];
      bool both = a->att && a->ffn;
      if (!a->att || !f->ffn || (both || (f->att && f->ffn) ? i != j : false)) {
        continue;
      }
      int ranks = a->ranks + (both ? 0 : f->ranks);
      bool valid = both || (f->ffn_n >= a->lo && f->ffn_n <= a->hi && a->att_n >= f->lo && a->att_n <= f->hi);
      if (!valid || (m->exact ? ranks != m->ranks : ranks > m->ranks)) {
        continue;
      }
      double z_ffn = a->z_ffn + (both ? 0 : f->z_ffn), z = fmax(m->floor, fmax(a->z_att, z_ffn)),
             sum = a->z_att + z_ffn;
      bool less = !best.any || z < best.z || (z == best.z && ranks < best.ranks) ||
                  (z == best.z && ranks == best.ranks && sum < best.sum);
      if (less) {
        best = (Answer){z, sum, ranks, true};
      }
    }
  }
  return best;
}

/* Small integers as times, so that ties are common and exact. */
static int fill(unsigned long long *seed, Column *columns)
{
  int n = in_range(seed, 0, 1) ? in_range(seed, 2, 12) : in_range(seed, 40, COLUMNS);
  for (int i = 0; i < n; i++) {
    int kind = in_range(seed, 0, 9), lo = in_range(seed, 1, 8);
    Column *c = &columns[i];
    *c = (Column){.att = kind < 5 || kind == 9, .ffn = kind >= 5, .lo = lo, .hi = in_range(seed, lo, 12)};
    c->att_n = c->att ? in_range(seed, 1, 12) : 0;
    c->ffn_n = c->ffn ? in_range(seed, 1, 12) : 0;
    c->ranks = 2 * (c->att_n + c->ffn_n);
    c->z_att = c->att ? in_range(seed, 1, 40) : 0;
    c->z_ffn = c->ffn ? in_range(seed, 1, 40) : in_range(seed, 0, 2);
  }
  return n;
}

static void program_finds_the_best_pair(void **state)
{
  (void)state;
  unsigned long long seed = 42;
  int feasible = 0, paired = 0;
  for (int i = 0; i < CASES; i++) {
    Column columns[COLUMNS];
    Milp m = {.columns = columns, .ranks = in_range(&seed, 4, 40), .exact = in_range(&seed, 0, 4) == 0};
    m.n = fill(&seed, columns);
    m.floor = in_range(&seed, 1, 5);
    m.node_limit = 100000;
    MilpResult r;
    Answer want = look_at_all(&m);
    assert_int_equal(milp_solve(&m, &r), want.any);
    if (!want.any) {
      continue;
    }
    const Column *a = &columns[r.att], *f = &columns[r.ffn];
    int ranks = a->ranks + (r.att == r.ffn ? 0 : f->ranks);
    double sum = a->z_att + a->z_ffn + (r.att == r.ffn ? 0 : f->z_ffn);
    assert_true(r.proved);
    assert_true(r.z == want.z);
    assert_int_equal(ranks, want.ranks);
    assert_true(sum == want.sum);
    feasible++;
    paired += r.att != r.ffn;
  }
  assert_true(feasible > CASES / 4 && paired > CASES / 8);
}

/* Whatever the limit is, an answer is feasible, and a higher limit's is not worse. */
static void limits_only_help(void **state)
{
  (void)state;
  unsigned long long seed = 7;
  for (int i = 0; i < CASES / 4; i++) {
    Column columns[COLUMNS];
    Milp m = {.columns = columns, .ranks = in_range(&seed, 4, 40), .floor = 1};
    m.n = fill(&seed, columns);
    double last = INFINITY;
    for (int limit = 0; limit <= 1000; limit = limit * 10 + 1) {
      MilpResult r;
      m.node_limit = limit;
      if (milp_solve(&m, &r)) {
        assert_true(r.z <= last);
        last = r.z;
      } else {
        assert_true(isinf(last));
      }
    }
    assert_true(isinf(last) || last == look_at_all(&m).z);
  }
}

int main(void)
{
  const struct CMUnitTest tests[] = {cmocka_unit_test(program_finds_the_best_pair), cmocka_unit_test(limits_only_help)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
