// The C++ header alone, and twice.
#include "kvhints.hpp"
#include "kvhints.hpp"

static_assert(sizeof(kvhints::Context) == sizeof(void *), "a wrapper is as small as its handle");
