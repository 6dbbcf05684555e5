/* The planner's memory terms against the kernels' own layout, for the model that templates/moe_config.h describes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "codegen/memory.h"
#include "templates/moe_slots.h"
#include "tests/plan/specs.h"

static Spec config_spec(ShapeSpec *shape)
{
  Spec spec = small_spec(shape);
  spec.model.layers = MOE_LAYERS;
  spec.model.hidden = MOE_HIDDEN;
  spec.model.vocab = MOE_VOCAB;
  spec.model.attention.heads = MOE_HEADS;
  spec.model.attention.kv_heads = MOE_KV_HEADS;
  spec.model.attention.head_dim = MOE_HEAD_DIM;
  spec.model.moe.experts = MOE_EXPERTS;
  spec.model.moe.top_k = MOE_TOP_K;
  spec.model.moe.hidden = MOE_FFN_HIDDEN;
  spec.train.dtype = MOE_BF16 ? DTYPE_BF16 : DTYPE_FP32;
  return spec;
}

static MemoryTerms terms(const Spec *spec, MemIn in, int in_flight, int role)
{
  MemoryTerms m = {0};
  in.in_flight = in_flight;
  if (role == PLAN_A) {
    memory_att(spec, &in, &m);
  } else {
    memory_ffn(spec, &in, &m);
  }
  return m;
}

static int64_t largest(int64_t a, int64_t b)
{
  return a > b ? a : b;
}

static void attention_slots_match(void **state)
{
  (void)state;
  for (int seqs = 1; seqs <= 5; seqs++) {
    for (int senders = 1; senders <= 8; senders += 3) {
      ShapeSpec shape;
      Spec spec = config_spec(&shape);
      MemIn in = {.seq = 48, .mb_seqs = 2 * seqs, .att_seqs = seqs, .att_ranks = 2, .ffn_ranks = senders};
      in.own_ranks = in.replicas = in.att_moe = in.node_ranks = 1;
      in.experts = (int)moe_part_max(MOE_EXPERTS, senders);
      in.combine_from = 1;
      MemoryTerms one = terms(&spec, in, 1, PLAN_A), two = terms(&spec, in, 2, PLAN_A);
      MoeAttSaved saved;
      MoeAttWork work;
      MoeAttScratch scratch;
      size_t t = (size_t)seqs * 48, n = (size_t)senders;
      size_t slot = moe_att_saved_carve(NULL, (size_t)seqs, 48, n, &saved), used = moe_att_work_carve(NULL, t, &work);
      assert_int_equal(two.activations - one.activations, slot);
      assert_int_equal((one.activations - (int64_t)slot) % (int64_t)used, 0);
      assert_int_equal(one.workspace, 2 * moe_att_scratch_carve(NULL, t, 48, n, &scratch));
      assert_int_equal(one.buffers % (int64_t)moe_align64(moe_msg_size(t, MOE_TOKEN_HEAD, 0, 0)), 0);
      MoeHeadScratch head;
      in.head = true;
      MemoryTerms with_head = terms(&spec, in, 1, PLAN_A);
      assert_int_equal(with_head.workspace,
                       largest(one.workspace, (int64_t)(2 * moe_head_scratch_carve(NULL, n, &head))));
    }
  }
}

static void ffn_slots_match(void **state)
{
  (void)state;
  for (int seqs = 1; seqs <= 5; seqs++) {
    for (int ranks = 1; ranks <= 8; ranks += 3) {
      ShapeSpec shape;
      Spec spec = config_spec(&shape);
      MemIn in = {.seq = 48, .mb_seqs = seqs, .att_seqs = seqs, .att_ranks = 1, .ffn_ranks = ranks};
      in.own_ranks = in.replicas = in.ffn_layers = in.dispatch_from = in.node_ranks = 1;
      in.experts = (int)moe_part_max(MOE_EXPERTS, ranks);
      MoeFfnSaved saved;
      MoeFfnWork work;
      MoeFfnScratch scratch;
      MoeList relay;
      size_t t = (size_t)seqs * 48, k = MOE_TOP_K < in.experts ? MOE_TOP_K : (size_t)in.experts;
      size_t slot = moe_ffn_saved_carve(NULL, t, t * k, &saved), used = moe_ffn_work_carve(NULL, t, t * k, &work);
      MemoryTerms one = terms(&spec, in, 1, PLAN_F), two = terms(&spec, in, 2, PLAN_F);
      assert_int_equal(two.activations - one.activations, slot);
      assert_int_equal((one.activations - (int64_t)slot) % (int64_t)used, 0);
      assert_int_equal(one.workspace, 2 * moe_ffn_scratch_carve(NULL, t, &scratch));
      size_t message = moe_align64(moe_msg_size(t, MOE_LIST_HEAD, t * k, MOE_LIST_PAIR));
      assert_int_equal(one.buffers % (int64_t)message, 0);
      in.relayed = true;
      in.node_ranks = ranks;
      MemoryTerms relays = terms(&spec, in, 1, PLAN_F), more = terms(&spec, in, 2, PLAN_F);
      assert_int_equal(more.activations - relays.activations, slot + moe_relay_carve(NULL, t, &relay));
    }
  }
}

int main(void)
{
  const struct CMUnitTest tests[] = {cmocka_unit_test(attention_slots_match), cmocka_unit_test(ffn_slots_match)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
