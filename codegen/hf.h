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

#endif
