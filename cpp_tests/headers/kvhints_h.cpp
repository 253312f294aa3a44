// The C header alone, and twice, in C++.
#include "kvhints.h"
#include "kvhints.h"

static_assert(KVH_OK == 0 && KVH_ERR_POISONED == -80, "statuses keep their numbers");
