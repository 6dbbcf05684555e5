/* Which files a data path means, and what they are. */
#ifndef MOE_DATA_FIND_H
#define MOE_DATA_FIND_H

#include "runtime/data.h"

/* Fills in format, files with their layout, and of indexed data the index. What was opened before an error is left in
   `d`, for moe_data_close(). */
MoeStatus moe_data_find(MoeData *d);

#endif
