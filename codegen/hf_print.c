#include "codegen/hf.h"

void hf_import_print(const HfImport *import, const char *path, const char *library, int nodes, FILE *out)
{
  Spec spec = {.model = import->model};
  int64_t seq = import->positions > 0 && import->positions < 4096 ? import->positions : 4096;
  const char *family = hf_family_name(import->model.family);
  fprintf(out, "# The model is that of %s (%s).\n", path, family);
  if (import->n_notes) {
    fprintf(out, "# What that file says beyond it:\n");
  }
  for (int i = 0; i < import->n_notes; i++) {
    fprintf(out, "#   %s\n", import->notes[i]);
  }
  fprintf(out, "use \"%s\"\n\n", library);
  spec_print_model(&spec, out);
  fprintf(out, "\n# Examples: put your machines and your batch here.\n");
  fprintf(out, "cluster mine { nodes = %d; node = %s }\n", nodes,
          import->model.attention.head_dim == 64 ? "hgx_h800_d64" : "hgx_h800");
  fprintf(out, "shape s%lld { seq = %lld; micro_batch = 1; global_batch = %d }\n", (long long)seq, (long long)seq,
          nodes * 32);
  fprintf(out,
          "train { dtype = %s; optimizer adamw { lr = 3e-4; betas = 0.9, 0.95; weight_decay = 0.1; clip = 1.0 } }\n",
          import->dtype == DTYPE_FP32 ? "fp32" : "bf16");
}
