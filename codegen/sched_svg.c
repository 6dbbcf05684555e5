/* The schedule as a picture: per group one lane each for compute, sending and receiving, time from left to right. */
#include "codegen/sched.h"

enum { WIDTH = 1600, LEFT = 60, LANE = 16, GAP = 10, TOP = 40 };

static const char *colour(const MoeOp *op)
{
  switch ((MoeOpKind)op->kind) {
  case MOE_OP_SEND:
  case MOE_OP_RECV:
    return op->bucket != MOE_BUCKET_NONE ? "#c9c2b8" : "#e0a96d";
  case MOE_OP_ATT_FWD:
  case MOE_OP_FFN_FWD:
  case MOE_OP_EMBED_FWD:
  case MOE_OP_JOIN_FWD:
    return "#5b8def";
  case MOE_OP_ATT_DGRAD:
  case MOE_OP_FFN_DGRAD:
  case MOE_OP_JOIN_DGRAD:
    return "#3fa66b";
  case MOE_OP_ATT_WGRAD:
  case MOE_OP_FFN_WGRAD:
  case MOE_OP_EMBED_WGRAD:
    return "#a3d5b1";
  case MOE_OP_HEAD:
    return "#8a63d2";
  default:
    return "#9aa0a6";
  }
}

static int lane(const MoeOp *op)
{
  return op->stream == MOE_STREAM_SEND ? 1 : op->stream == MOE_STREAM_RECV ? 2 : 0;
}

static void draw_op(const Schedule *sched, const SchedGroup *group, int i, int top, FILE *out)
{
  const MoeOp *op = &group->ops[i];
  double scale = (double)(WIDTH - LEFT - 10) / (double)(sched->step_ns > 0 ? sched->step_ns : 1);
  double x = LEFT + (double)group->start_ns[i] * scale;
  double width = (double)(group->end_ns[i] - group->start_ns[i]) * scale;
  char title[80];
  moe_op_title(op, title, sizeof title);
  fprintf(out,
          "<rect x=\"%.2f\" y=\"%d\" width=\"%.2f\" height=\"%d\" fill=\"%s\"><title>%s, %.1f us at %.1f "
          "us</title></rect>\n",
          x, top + lane(op) * LANE, width > 0.3 ? width : 0.3, LANE - 2, colour(op), title,
          (double)(group->end_ns[i] - group->start_ns[i]) * 1e-3, (double)group->start_ns[i] * 1e-3);
}

void sched_print_svg(const Spec *spec, const Plan *plan, const Schedule *sched, FILE *out)
{
  int block = 3 * LANE + GAP;
  fprintf(out,
          "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" font-family=\"sans-serif\" "
          "font-size=\"11\">\n"
          "<rect width=\"100%%\" height=\"100%%\" fill=\"#ffffff\"/>\n<text x=\"%d\" y=\"16\">%s, %s, shape %s: step "
          "%.3f ms as "
          "modelled. Lanes of a group: compute, send, receive.</text>\n",
          WIDTH, TOP + plan->n_groups * block, LEFT, spec->model.name, plan->system, plan->shape->name,
          (double)sched->step_ns * 1e-6);
  static const char *const legend[][2] = {
      {"#5b8def", "forward"},         {"#8a63d2", "head"}, {"#3fa66b", "input gradient"},
      {"#a3d5b1", "weight gradient"}, {"#e0a96d", "M2N"},  {"#c9c2b8", "gradients, weights"}};
  for (int i = 0; i < 6; i++) {
    fprintf(out, "<rect x=\"%d\" y=\"22\" width=\"10\" height=\"10\" fill=\"%s\"/><text x=\"%d\" y=\"31\">%s</text>\n",
            LEFT + i * 130, legend[i][0], LEFT + 14 + i * 130, legend[i][1]);
  }
  for (int g = 0; g < sched->n_groups; g++) {
    int top = TOP + g * block;
    const char *side = plan->groups[g].role == PLAN_A ? "A" : plan->groups[g].role == PLAN_F ? "F" : "AF";
    fprintf(
        out,
        "<text x=\"8\" y=\"%d\">%s%d</text>\n<rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" fill=\"#f4f4f4\"/>\n",
        top + LANE - 4, side, plan->groups[g].index, LEFT, top, WIDTH - LEFT - 10, 3 * LANE);
    for (int i = 0; i < sched->groups[g].n_ops; i++) {
      draw_op(sched, &sched->groups[g], i, top, out);
    }
  }
  fprintf(out, "</svg>\n");
}
