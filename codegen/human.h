/* Numbers as people read them. Each returns `text`. */
#ifndef CODEGEN_HUMAN_H
#define CODEGEN_HUMAN_H

enum { HUMAN_MAX = 32 };

char *human_time(char text[HUMAN_MAX], double ns);        /* "12.3 ms" */
char *human_bytes(char text[HUMAN_MAX], double bytes);    /* "1.50 GiB" */
char *human_count(char text[HUMAN_MAX], double n);        /* "12.3K" */
char *human_percent(char text[HUMAN_MAX], double of_one); /* "12.3 %" */

#endif
