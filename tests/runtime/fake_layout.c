/* Layouts of the fake bundle as text. */
#include <stdio.h>
#include <string.h>

#include "tests/runtime/fake.h"

static const FakeLayout defaults = {.a = 1,
                                    .f = 1,
                                    .pa = 1,
                                    .pf = 1,
                                    .replicas = 1,
                                    .layers = 2,
                                    .mbs = 2,
                                    .seqs = 2,
                                    .seq = 8,
                                    .ways = 1,
                                    .chunks = 1,
                                    .row_bytes = 8,
                                    .turn = 1};

static bool parse_shape(FakeLayout *l, const char *text)
{
  struct {
    const char *key;
    int *value;
  } keys[] = {{"a", &l->a},
              {"f", &l->f},
              {"pa", &l->pa},
              {"pf", &l->pf},
              {"replicas", &l->replicas},
              {"layers", &l->layers},
              {"mbs", &l->mbs},
              {"seqs", &l->seqs},
              {"short", &l->short_by},
              {"seq", &l->seq},
              {"rpn", &l->rpn},
              {"mixed", &l->mixed},
              {"relay", &l->relay},
              {"colocated", &l->colocated},
              {"join", &l->join},
              {"ways", &l->ways},
              {"chunks", &l->chunks},
              {"row", &l->row_bytes},
              {"turn", &l->turn},
              {"done", &l->done},
              {"spin", &l->spin_us},
              {"nan", &l->nan_step},
              {"stop", &l->stop_on_nan},
              {"wrong", &l->wrong_step},
              {"fail", &l->fail_step},
              {"exit", &l->exit_step},
              {"hash", &l->hash}};
  char key[32];
  int value, used;
  while (sscanf(text, " %31[a-z]=%d%n", key, &value, &used) == 2) {
    bool known = false;
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
      if (strcmp(key, keys[i].key) == 0) {
        *keys[i].value = value;
        known = true;
      }
    }
    if (!known) {
      return false;
    }
    text += used;
  }
  return text[strspn(text, " ")] == '\0';
}

int fake_parse(FakeLayout *layouts, const char *text)
{
  int n = 0;
  char shape[512];
  for (;; text++) {
    size_t length = strcspn(text, ";");
    if (n == FAKE_SHAPES || length >= sizeof shape) {
      return 0;
    }
    snprintf(shape, sizeof shape, "%.*s", (int)length, text);
    layouts[n] = n == 0 ? defaults : layouts[0];
    if (!parse_shape(&layouts[n++], shape)) {
      return 0;
    }
    text += length;
    if (*text == '\0') {
      return n;
    }
  }
}
