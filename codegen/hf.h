/* A model in the terms of Hugging Face: its family, and its configuration in both directions. */
#ifndef CODEGEN_HF_H
#define CODEGEN_HF_H

#include <stdio.h>

#include "lang/spec.h"

/* The spec's family; auto: the one whose features the model has, the plainest (mixtral) if it has none of any. */
Family hf_family(const ModelSpec *);

/* "qwen3_moe", and the Transformers class that loads it. */
const char *hf_family_name(Family);
const char *hf_family_class(Family);

/* Text of a config.json for the spec's model and family, or NULL, with in *why what the family does not have. */
const char *hf_config_text(Arena *, const Spec *, const char **why);

/* What a config.json says. */
typedef struct HfImport {
  ModelSpec model;
  Dtype dtype;
  int64_t positions;  /* max_position_embeddings; 0: not said */
  const char **notes; /* what has no equivalent, one line each */
  int n_notes;
} HfImport;

/* Reads the text of a config.json. Reports everything that is missing, wrong or has no equivalent that could be left
   out, and returns false if there was any. path: for messages, and the model's name. */
bool hf_import(Arena *, Diag *, const char *path, const char *text, size_t n, HfImport *);

/* The .moespec of it: the model, and a cluster of `nodes` machines, a shape and training, to be replaced. library: path
   of the hardware file, as `use` takes it. */
void hf_import_print(const HfImport *, const char *path, const char *library, int nodes, FILE *);

#endif
