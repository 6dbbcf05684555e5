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

static MemoryTerms terms(const Spec *spec, MemIn in, int in_flight, int roles)
{
  MemoryTerms m;
  in.in_flight = in_flight;
  memory_terms(spec, &in, roles, &m);
  return m;
}

static size_t att_scratch(size_t tokens, size_t seq, size_t senders)
{
  MoeAttScratch att;
  MoeHeadScratch head;
  return moe_max(moe_att_scratch_carve(NULL, tokens, seq, senders, &att), moe_head_scratch_carve(NULL, senders, &head));
}

static size_t ffn_scratch(size_t rows)
{
  MoeFfnScratch ffn;
  return moe_ffn_scratch_carve(NULL, rows, &ffn);
}

/* Of every rank, beside the kernels' scratch. */
static size_t sums_and_sample(size_t seq)
{
  return moe_align64(4096 * 4) + moe_align64((seq + 1) * 4);
}

static void attention_slots_match(void **state)
{
  (void)state;
  for (int seqs = 1; seqs <= 5; seqs++) {
    for (int senders = 1; senders <= 8; senders += 3) {
      ShapeSpec shape;
      Spec spec = config_spec(&shape);
      MemIn in = {.seq = 48, .mb_seqs = 2 * seqs, .att_seqs = seqs, .att_ranks = 2, .ffn_ranks = senders};
      in.own_ranks = in.replicas = in.att_moe = in.node_ranks = in.micro_batches = 1;
      in.n_src = senders;
      in.n_join = seqs % 2 ? 0 : senders;
      in.combine_from = 1;
      MemoryTerms one = terms(&spec, in, 1, PLAN_A), two = terms(&spec, in, 2, PLAN_A);
      MoeAttSaved saved;
      MoeAttWork work;
      size_t t = (size_t)seqs * 48, n = (size_t)senders;
      const MoeAttHead head = {.seq = 48,
                               .n_seqs = (uint32_t)seqs,
                               .n_src = (uint32_t)n,
                               .n_join = (uint32_t)in.n_join,
                               .rows = (uint32_t)t};
      size_t slot = moe_att_saved_carve(NULL, &head, &saved), used = moe_att_work_carve(NULL, t, &work);
      assert_int_equal(two.activations - one.activations, slot);
      assert_int_equal((one.activations - (int64_t)slot) % (int64_t)used, 0);
      in.micro_batches = 0;
      MemoryTerms still = terms(&spec, in, 1, PLAN_A);
      assert_int_equal(one.workspace - still.workspace, 2 * moe_align64(4 * t));
      assert_int_equal(still.workspace, att_scratch(t, 48, n) + sums_and_sample(48));
      in.combine_from = 0;
      MemoryTerms deaf = terms(&spec, in, 1, PLAN_A);
      assert_int_equal(one.buffers - deaf.buffers,
                       PLAN_CHAN_SLOTS * n * (64 + moe_align64(moe_msg_size(t, MOE_TOKEN_HEAD, 0, 0))));
    }
  }
}

static void ffn_slots_match(void **state)
{
  (void)state;
  for (int seqs = 1; seqs <= 5; seqs++) {
    for (int ranks = 1; ranks <= 8; ranks += 3) {
      for (int chunks = 1; chunks <= 4; chunks++) {
        ShapeSpec shape;
        Spec spec = config_spec(&shape);
        MemIn in = {.seq = 50, .mb_seqs = seqs, .att_seqs = seqs, .att_ranks = 1, .ffn_ranks = ranks};
        in.own_ranks = in.replicas = in.ffn_layers = in.dispatch_from = in.node_ranks = 1;
        in.experts = (int)moe_part_max(MOE_EXPERTS, ranks);
        in.chunks = chunks;
        MoeFfnSaved saved;
        MoeFfnWork work;
        MoeList relay;
        size_t t = (size_t)(seqs * moe_part_max(50, chunks)),
               k = MOE_TOP_K < in.experts ? MOE_TOP_K : (size_t)in.experts;
        size_t slot = moe_ffn_saved_carve(NULL, t, t * k, &saved), used = moe_ffn_work_carve(NULL, t, t * k, &work);
        MemoryTerms one = terms(&spec, in, 1, PLAN_F), two = terms(&spec, in, 2, PLAN_F);
        assert_int_equal(two.activations - one.activations, slot * (size_t)chunks);
        assert_int_equal((one.activations - (int64_t)slot * chunks) % (int64_t)used, 0);
        assert_int_equal(one.workspace, ffn_scratch(t) + sums_and_sample(50));
        in.dispatch_from = 0;
        MemoryTerms deaf = terms(&spec, in, 1, PLAN_F);
        size_t message = moe_align64(moe_msg_size(t, MOE_LIST_HEAD, t * k, MOE_LIST_PAIR));
        assert_int_equal(one.buffers - deaf.buffers, PLAN_CHAN_SLOTS * (64 + message));
        if (chunks == 1) {
          in.relayed = true;
          in.node_ranks = ranks;
          MemoryTerms relays = terms(&spec, in, 1, PLAN_F), more = terms(&spec, in, 2, PLAN_F);
          assert_int_equal(more.activations - relays.activations, slot + moe_relay_carve(NULL, t, &relay));
          assert_int_equal(relays.workspace - one.workspace, moe_align64((size_t)ranks * sizeof(MoeSource)));
        }
      }
    }
  }
}

/* Rows of a micro-batch beyond a tile add nothing to scratch: of 64 times as many it holds the same. */
static void scratch_is_bounded(void **state)
{
  (void)state;
  for (int roles = PLAN_A; roles <= (PLAN_A | PLAN_F); roles++) {
    for (int seqs = 1; seqs <= 64; seqs *= 4) {
      ShapeSpec shape;
      Spec spec = config_spec(&shape);
      MemIn in = {.seq = 4096, .mb_seqs = seqs, .att_seqs = seqs, .att_ranks = 1, .ffn_ranks = 1};
      in.own_ranks = in.replicas = in.att_moe = in.ffn_layers = in.node_ranks = 1;
      in.experts = MOE_EXPERTS;
      size_t t = (size_t)seqs * 4096, need = roles & PLAN_F ? ffn_scratch(t) : 0;
      need = roles & PLAN_A ? moe_max(need, att_scratch(t, 4096, 1)) : need;
      MemoryTerms m = terms(&spec, in, 1, roles);
      assert_int_equal(m.workspace, need + sums_and_sample(4096));
      assert_true(ffn_scratch(t) == ffn_scratch(4096) && att_scratch(t, 4096, 1) == att_scratch(4096, 4096, 1));
    }
  }
  assert_true(ffn_scratch(16) < ffn_scratch(4096));
}

int main(void)
{
  const struct CMUnitTest tests[] = {cmocka_unit_test(attention_slots_match), cmocka_unit_test(ffn_slots_match),
                                     cmocka_unit_test(scratch_is_bounded)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
