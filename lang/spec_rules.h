/* Helpers of the rules between keys. */
#ifndef LANG_SPEC_RULES_H
#define LANG_SPEC_RULES_H

#include "lang/spec_keys.h"

bool rule_good(const Reader *, KeyId); /* not known to be wrong: set rightly, or the default */
bool rule_set(const Reader *, KeyId);  /* set, and rightly */
Span rule_at(const Reader *, KeyId);   /* where it is set, else its block */
void rule_note(Reader *, KeyId);
/* A warning, if it is set; the value becomes the default, so that specs that mean the same are the same. Keys of model
   and train only. */
void rule_no_effect(Reader *, KeyId, const char *because);
/* spec_rules_system.c: pins that belong to other systems than the one asked for. Before `stages` is spread to both
   sides. */
void rules_system(Reader *, const PlanKeys *);
void rule_needs(Reader *, KeyId, const char *because); /* an error, if it is not */

#endif
