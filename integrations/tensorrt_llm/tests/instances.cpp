// Every template of the adapter in whole, for compilers to find fault with what no test calls.
#include "host.hpp"

template class kvhints::trtllm::ReuseMirror<host::Host>;
template class kvhints::trtllm::ArbiterEvictionPolicy<host::Host>;
template class kvhints::trtllm::HostPins<host::Host>;
template class kvhints::trtllm::CacheTransceiver<host::Host>;
