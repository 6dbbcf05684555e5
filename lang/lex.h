/* Scanner of one text; see lex.l. */
#ifndef LANG_LEX_H
#define LANG_LEX_H

#include "lang/parse_ctx.h"

void *lex_open(ParseCtx *);
void lex_close(void *scanner);

/* Reports the token that the grammar could not use; `wanted` says what would have been right, NULL: unknown. */
void parse_complain(ParseCtx *, Span, const char *wanted);

#endif
