/* Units with dimensions, and exact numbers. A number keeps its integer value as long as it has one below 2^63. */
#ifndef LANG_UNITS_H
#define LANG_UNITS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum Dim { DIM_NONE, DIM_BYTES, DIM_RATE, DIM_FLOPS, DIM_TIME, DIM_COUNT } Dim;

typedef struct Unit {
  const char *name;
  Dim dim;
  int64_t num, den;
} Unit;

extern const Unit units[];
extern const int n_units;

typedef struct Number {
  Dim dim;
  bool exact;    /* i holds the value */
  bool overflow; /* a whole number beyond 2^63 - 1 */
  int64_t i;
  double d;
} Number;

const Unit *unit_find(const char *name, size_t length);

/* Whether "<word>/<per>" is meant as one unit ("GB/s", or a misspelling of it) rather than as a division by a let. */
bool unit_takes_rate(const char *word, size_t length, const char *per, size_t per_length);

const char *dim_name(Dim);    /* "a size" */
const char *dim_example(Dim); /* "80 GiB" */

/* Why digits could not be read; NUM_OK if they could. */
typedef enum NumStatus { NUM_OK, NUM_SYNTAX, NUM_LEADING_ZERO, NUM_HUGE, NUM_TINY } NumStatus;

/* digits: "12", "0.5", "1e-6"; unit may be NULL. */
NumStatus number_read(const char *digits, const Unit *unit, Number *);

/* The shortest text that reads back as the same double: "0.1", "1e+04". Returns `text`. */
enum { REAL_MAX = 32 };
char *real_text(char text[REAL_MAX], double);

Number number_of(int64_t);
Number number_neg(Number);
Number number_add(Number, Number); /* same dimension */
Number number_mul(Number, Number); /* at most one with a dimension */
Number number_div(Number, Number); /* divisor not 0; its dimension is none or that of the dividend */

#endif
