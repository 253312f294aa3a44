// The stand-ins as the adapter's Host, with ranges that are recorded as a profiler would.
#pragma once

#include "upstream/cache_transceiver.hpp"

#include <kvhints/tensorrt_llm.hpp>

#include <map>
#include <string>

namespace host {

namespace upstream = ::tensorrt_llm::batch_manager;
namespace upstream_cache = ::tensorrt_llm::batch_manager::kv_cache_manager;

// What nvtx3::scoped_range is to the host.
class Range {
 public:
  explicit Range(const char *name) : name_(name) {
    ++counts()[name_];
    ++open();
  }
  Range(const Range &) = delete;
  Range &operator=(const Range &) = delete;
  ~Range() { --open(); }

  // How often each was begun, and how many have not ended, on this thread.
  static std::map<std::string, int> &counts() {
    thread_local std::map<std::string, int> counts;
    return counts;
  }
  static int &open() {
    thread_local int open = 0;
    return open;
  }

 private:
  std::string name_;
};

struct Host {
  using LlmRequest = upstream::LlmRequest;
  using LlmRequestState = upstream::LlmRequestState;
  using BaseKVCacheManager = upstream_cache::BaseKVCacheManager;
  using BlockPtr = upstream_cache::BlockPtr;
  using BaseEvictionPolicy = upstream::eviction_policy::BaseEvictionPolicy;
  using RetentionPriority = upstream_cache::RetentionPriority;
  using BaseCacheTransceiver = upstream::BaseCacheTransceiver;
  using RequestStatuses = upstream::RequestStatuses;
  using RequestVector = upstream::RequestVector;
  using ContextProgress = upstream::ContextProgress;
  using Range = host::Range;

  static std::vector<upstream_cache::BlockKey> block_keys(const LlmRequest &request, std::size_t token_count,
                                                          std::size_t tokens_per_block) {
    auto chopped = upstream_cache::chopVectorIntoBlocks<upstream_cache::UniqueToken>(
        request.getUniqueTokens(0), static_cast<std::int32_t>(token_count), static_cast<std::int32_t>(tokens_per_block),
        true);
    return upstream_cache::buildBlockKeys(chopped, request);
  }
};

using Request = upstream::LlmRequest;
using State = upstream::LlmRequestState;
using Manager = upstream_cache::KVCacheManager;
using Mirror = kvhints::trtllm::ReuseMirror<Host>;
using Policy = kvhints::trtllm::ArbiterEvictionPolicy<Host>;
using Pins = kvhints::trtllm::HostPins<Host>;
using Transceiver = kvhints::trtllm::CacheTransceiver<Host>;

}  // namespace host
