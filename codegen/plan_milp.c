/* The mixed-integer program of one tuple, and the only place that knows GLPK. One binary per column; exactly one column
   of each side; ranks within the budget; z above both sides' times; a column only together with the other side's counts
   it was priced for. Phase 1 minimises z; phase 2 keeps it and minimises ranks, then the sum of both times. The solver
   stops by nodes or gap, never by a clock, and its status is read, not its return code. A greedy choice is made first,
   so that there is a plan whatever the limit is. */
#include <glpk.h>
#include <math.h>
#include <stdlib.h>

#include "codegen/plan_int.h"

enum { ROW_ATT = 1, ROW_FFN, ROW_RANKS, ROW_Z_ATT, ROW_Z_FFN, ROW_FFN_LO, ROW_FFN_HI, ROW_ATT_LO, ROW_ATT_HI, N_ROWS };

static const double SAME = 1e-9; /* relative; times closer than this are equal */

typedef struct NodeCount {
  int limit;
  bool hit;
} NodeCount;

static bool fits(const Milp *m, int ia, int jf)
{
  const Column *a = &m->columns[ia], *f = &m->columns[jf];
  if (ia == jf) {
    return a->att && a->ffn && (m->exact ? a->ranks == m->ranks : a->ranks <= m->ranks);
  }
  int ranks = a->ranks + f->ranks;
  return a->att && !a->ffn && f->ffn && !f->att && (m->exact ? ranks == m->ranks : ranks <= m->ranks) &&
         f->ffn_n >= a->lo && f->ffn_n <= a->hi && a->att_n >= f->lo && a->att_n <= f->hi;
}

static double z_of(const Milp *m, int ia, int jf)
{
  const Column *a = &m->columns[ia], *f = &m->columns[jf];
  double z_ffn = ia == jf ? a->z_ffn : a->z_ffn + f->z_ffn;
  return fmax(m->floor, fmax(a->z_att, z_ffn));
}

static int ranks_of(const Milp *m, int ia, int jf)
{
  return m->columns[ia].ranks + (ia == jf ? 0 : m->columns[jf].ranks);
}

/* Secondary goal in one number: ranks, then the sum of the times; z_max scales the sum below one rank. */
static double waste(const Milp *m, int ia, int jf, double z_max)
{
  const Column *a = &m->columns[ia], *f = &m->columns[jf];
  double sum = a->z_att + a->z_ffn + (ia == jf ? 0 : f->z_ffn);
  return ranks_of(m, ia, jf) + 0.5 * sum / (2 * z_max);
}

static bool improves(const Milp *m, int ia, int jf, const MilpResult *r)
{
  double z = z_of(m, ia, jf);
  if (fabs(z - r->z) > SAME * r->z) {
    return z < r->z;
  }
  return waste(m, ia, jf, r->z) < waste(m, r->att, r->ffn, r->z) - SAME;
}

/* Each attention column with the largest FFN columns that still fit: good, not always best. */
static bool greedy(const Milp *m, MilpResult *r)
{
  bool found = false;
  for (int i = 0; i < m->n; i++) {
    if (!m->columns[i].att) {
      continue;
    }
    int tried = 0;
    for (int j = m->columns[i].ffn ? i : m->n - 1; j >= 0 && tried < 3; j--) {
      if (!fits(m, i, j)) {
        if (m->columns[i].ffn) {
          break;
        }
        continue;
      }
      tried++;
      if (!found || improves(m, i, j, r)) {
        r->att = i;
        r->ffn = j;
        r->z = z_of(m, i, j);
        found = true;
      }
      if (m->columns[i].ffn) {
        break;
      }
    }
  }
  return found;
}

static void count_nodes(glp_tree *tree, void *info)
{
  NodeCount *count = info;
  int total = 0;
  glp_ios_tree_size(tree, NULL, NULL, &total);
  if (total > count->limit) {
    count->hit = true;
    glp_ios_terminate(tree);
  }
}

/* Rows and columns of both phases; variable n + 1 is z / scale. */
static glp_prob *build(const Milp *m, double scale)
{
  glp_prob *lp = glp_create_prob();
  int z = m->n + 1, index[N_ROWS];
  double value[N_ROWS];
  glp_add_rows(lp, N_ROWS - 1);
  glp_add_cols(lp, m->n + 1);
  glp_set_obj_dir(lp, GLP_MIN);
  glp_set_row_bnds(lp, ROW_ATT, GLP_FX, 1, 1);
  glp_set_row_bnds(lp, ROW_FFN, GLP_FX, 1, 1);
  glp_set_row_bnds(lp, ROW_RANKS, m->exact ? GLP_FX : GLP_UP, m->ranks, m->ranks);
  glp_set_row_bnds(lp, ROW_Z_ATT, GLP_LO, 0, 0);
  glp_set_row_bnds(lp, ROW_Z_FFN, GLP_LO, 0, 0);
  glp_set_row_bnds(lp, ROW_FFN_LO, GLP_LO, 0, 0);
  glp_set_row_bnds(lp, ROW_FFN_HI, GLP_UP, 0, 0);
  glp_set_row_bnds(lp, ROW_ATT_LO, GLP_LO, 0, 0);
  glp_set_row_bnds(lp, ROW_ATT_HI, GLP_UP, 0, 0);
  for (int i = 0; i < m->n; i++) {
    const Column *c = &m->columns[i];
    bool both = c->att && c->ffn;
    const double coef[N_ROWS] = {
        [ROW_ATT] = c->att,
        [ROW_FFN] = c->ffn,
        [ROW_RANKS] = c->ranks,
        [ROW_Z_ATT] = -c->z_att / scale,
        [ROW_Z_FFN] = -c->z_ffn / scale,
        [ROW_FFN_LO] = both     ? 0
                       : c->ffn ? c->ffn_n
                                : -c->lo,
        [ROW_FFN_HI] = both     ? 0
                       : c->ffn ? c->ffn_n
                                : -c->hi,
        [ROW_ATT_LO] = both     ? 0
                       : c->att ? c->att_n
                                : -c->lo,
        [ROW_ATT_HI] = both     ? 0
                       : c->att ? c->att_n
                                : -c->hi,
    };
    int n = 0;
    for (int row = 1; row < N_ROWS; row++) {
      if (coef[row] != 0) {
        index[++n] = row;
        value[n] = coef[row];
      }
    }
    glp_set_col_kind(lp, i + 1, GLP_BV);
    glp_set_mat_col(lp, i + 1, n, index, value);
  }
  index[1] = ROW_Z_ATT;
  index[2] = ROW_Z_FFN;
  value[1] = value[2] = 1;
  glp_set_mat_col(lp, z, 2, index, value);
  glp_set_col_bnds(lp, z, GLP_LO, m->floor / scale, 0);
  glp_set_obj_coef(lp, z, 1);
  return lp;
}

/* Takes the solver's incumbent if it has one that is really feasible and better. */
static void take(const Milp *m, glp_prob *lp, MilpResult *r, bool *found)
{
  int a = -1, f = -1, status = glp_mip_status(lp);
  if (status != GLP_OPT && status != GLP_FEAS) {
    return;
  }
  for (int i = 0; i < m->n; i++) {
    if (glp_mip_col_val(lp, i + 1) > 0.5) {
      a = m->columns[i].att ? i : a;
      f = m->columns[i].ffn ? i : f;
    }
  }
  if (a >= 0 && f >= 0 && fits(m, a, f) && (!*found || improves(m, a, f, r))) {
    r->att = a;
    r->ffn = f;
    r->z = z_of(m, a, f);
    *found = true;
  }
}

/* Branch and bound under the node limit. Returns whether its answer is final; none_p: there is no solution. */
static bool branch(const Milp *m, glp_prob *lp, bool *none_p)
{
  glp_smcp simplex;
  glp_iocp mip;
  NodeCount count = {.limit = m->node_limit};
  *none_p = false;
  glp_init_smcp(&simplex);
  simplex.msg_lev = GLP_MSG_OFF;
  glp_simplex(lp, &simplex);
  if (glp_get_status(lp) == GLP_NOFEAS) {
    *none_p = true;
    return true;
  }
  if (m->node_limit <= 0 || glp_get_status(lp) != GLP_OPT) {
    return false;
  }
  glp_init_iocp(&mip);
  mip.msg_lev = GLP_MSG_OFF;
  mip.mip_gap = m->gap;
  mip.cb_func = count_nodes;
  mip.cb_info = &count;
  glp_intopt(lp, &mip);
  if (count.hit) {
    return false;
  }
  *none_p = glp_mip_status(lp) == GLP_NOFEAS;
  return glp_mip_status(lp) != GLP_UNDEF;
}

/* Phase 2: among the columns that keep z, fewest ranks, then the smallest sum of times. */
static void save_ranks(const Milp *m, glp_prob *lp, double scale, MilpResult *r)
{
  double most = r->z * (1 + SAME);
  bool none, found = true;
  for (int i = 0; i < m->n; i++) {
    const Column *c = &m->columns[i];
    glp_set_obj_coef(lp, i + 1, c->ranks + 0.5 * (c->z_att + c->z_ffn) / (2 * r->z));
    if (c->z_att > most || c->z_ffn > most) {
      glp_set_col_bnds(lp, i + 1, GLP_FX, 0, 0);
    }
  }
  glp_set_obj_coef(lp, m->n + 1, 0);
  glp_set_col_bnds(lp, m->n + 1, GLP_DB, m->floor / scale, fmax(most, m->floor * (1 + SAME)) / scale);
  branch(m, lp, &none);
  take(m, lp, r, &found);
}

bool milp_solve(const Milp *m, MilpResult *r)
{
  bool none, found;
  *r = (MilpResult){.proved = true};
  if (m->n == 0) {
    return false;
  }
  found = greedy(m, r);
  double scale = found ? r->z : m->floor, bound = m->floor;
  glp_term_out(GLP_OFF);
  glp_prob *lp = build(m, scale > 0 ? scale : 1);
  r->proved = branch(m, lp, &none);
  if (glp_get_status(lp) == GLP_OPT) {
    bound = fmax(bound, glp_get_obj_val(lp) * scale);
  }
  take(m, lp, r, &found);
  if (found && !none) {
    save_ranks(m, lp, scale, r);
    r->gap = r->proved ? m->gap : fmax(0, (r->z - bound) / r->z);
  }
  glp_delete_prob(lp);
  glp_free_env();
  return found;
}
