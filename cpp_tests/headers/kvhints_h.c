/* The C header alone, and twice, in C. */
#include "kvhints.h"
#include "kvhints.h"

uint32_t header_is_usable_in_c(void);
uint32_t header_is_usable_in_c(void) { return KVH_ABI_VERSION; }
