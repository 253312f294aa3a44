// What the adapter needs to know of its host, as one struct of types that the host fills in: see Host below.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef KVHINTS_TENSORRT_LLM_HOST_HPP
#define KVHINTS_TENSORRT_LLM_HOST_HPP

namespace kvhints::trtllm {

// The host's scoped profiler range, where it has none: nothing is recorded. A range is made from the name
// of a call and ends with its scope; nvtx3::scoped_range is one.
struct NoRange {
  explicit NoRange(const char * /*name*/) noexcept {}
};

// Each template of the adapter takes one parameter, Host, a struct with these members (docs/integration.md
// shows one):
//
//   LlmRequest, LlmRequestState             the request and its states
//   BaseKVCacheManager                      block management, with one attention window
//   BlockPtr                                a shared pointer to a block
//   BaseEvictionPolicy, RetentionPriority   what picks victims
//   BaseCacheTransceiver, RequestStatuses,
//   RequestVector, ContextProgress          what moves blocks
//   Range                                   a scoped profiler range, or NoRange
//   static block_keys(request, token_count, tokens_per_block)
//                                           the keys of the blocks of a request's first tokens, a short
//                                           last one included, in a std::vector: chopVectorIntoBlocks and
//                                           buildBlockKeys

}  // namespace kvhints::trtllm

#endif  // KVHINTS_TENSORRT_LLM_HOST_HPP
