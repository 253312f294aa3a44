// One rank of a worker: the host's manager with the adapter beside it, and a transceiver on a hub.
#pragma once

#include "host.hpp"
#include "model.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <numeric>
#include <thread>

namespace worker {

using host::Request;
using RequestPtr = std::shared_ptr<Request>;

constexpr std::int32_t window = 1024;

inline std::vector<std::int32_t> tokens(std::int32_t first, std::size_t count) {
  std::vector<std::int32_t> tokens(count);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

inline RequestPtr request(std::uint64_t id, std::vector<std::int32_t> tokens,
                          host::upstream::LlmRequestType type = host::upstream::LLMREQUEST_TYPE_CONTEXT_AND_GENERATION,
                          std::int32_t max_new_tokens = 1) {
  return std::make_shared<Request>(id, max_new_tokens, std::make_shared<std::vector<std::int32_t>>(std::move(tokens)), type);
}

inline kvhints::trtllm::Naming naming() { return {model::tokens_per_block, model::name, nullptr}; }

// A host's manager whose policy can be given a mirror.
struct HostSide {
  std::shared_ptr<host::Policy> policy =
      std::make_shared<host::Policy>(std::make_shared<host::upstream::eviction_policy::LRUEvictionPolicy>());
  host::Manager manager;

  explicit HostSide(std::int32_t primary, std::int32_t secondary = 0)
      : manager({{window, {primary, secondary}}}, model::tokens_per_block, model::block_bytes,
                [this](std::int32_t) { return policy; }) {}

  std::vector<std::uint8_t> &pool() { return manager.blockManager().window(window).primaryPool(); }
  std::vector<std::int32_t> ids(const Request &request) const {
    return manager.getCacheBlockIds(request.mRequestId, window).at(0);
  }
  void add(Request &request) {
    manager.addSequenceBatch({{request.mRequestId, request.getPromptLen(), 1}}, {std::ref(request)});
  }
};

struct Worker : HostSide {
  kvhints::Context context;
  host::Mirror mirror{context, manager, naming()};
  std::unique_ptr<kvhints::Transceiver> transceiver;
  std::uint32_t rank;

  Worker(const kvhints::Loopback &hub, std::int32_t primary, std::int32_t secondary = 0, std::uint32_t rank_in_worker = 0,
         std::uint32_t ranks = 1)
      : HostSide(primary, secondary), rank(rank_in_worker) {
    EXPECT_TRUE(policy->set_mirror(&mirror));
    const std::uint32_t heads[] = {2, 2};
    auto params = mirror.transceiver_params(pool().data(), model::block_bytes);
    params.transport = KVH_TRANSPORT_LOOPBACK;
    params.loopback = hub.get();
    params.rank = rank;
    params.tensor_parallel = ranks;
    params.kv_heads_per_layer = heads;
    params.layer_count = 2;
    params.head_size = 8;
    params.data_type = KVH_DATA_BFLOAT16;
    params.attention = KVH_ATTENTION_KEYS_AND_VALUES;
    transceiver = std::make_unique<kvhints::Transceiver>(context, mirror.tree(), params);
  }
  ~Worker() {
    transceiver.reset();
    policy->set_mirror(nullptr);
  }

  std::string state() const {
    kvh_buffer_t *state = nullptr;
    kvhints::check(kvh_transceiver_state(transceiver->get(), &state));
    return std::string(kvhints::Buffer(state).text());
  }

  model::Cache cache(const Request &request) { return {pool(), mirror.slots(request.mRequestId, 0)}; }
  std::uint64_t beginning(const Request &request) const { return request.getLoraTaskId().value_or(0) * 1000 + rank; }

  // Computes the KV of the tokens from `from` on that have a place.
  void compute(const Request &request, std::size_t from) {
    model::Cache blocks = cache(request);
    for (std::size_t at = from; at < static_cast<std::size_t>(request.getNumTokens(0)); ++at) {
      blocks.compute(at, request.getTokens(0)[at], beginning(request));
    }
  }
  // The token that follows, out of what lies in the cache.
  std::int32_t next_token(const Request &request) {
    return cache(request).next_token(static_cast<std::size_t>(request.getNumTokens(0)) - 1);
  }

  // A request from its admission to its end, alone; gives its next token. One token more than is stored.
  std::int32_t serve(const RequestPtr &request) {
    add(*request);
    EXPECT_TRUE(mirror.will_write(request->mRequestId,
                                  static_cast<std::size_t>(request->getPrepopulatedPromptLen() / model::tokens_per_block)));
    compute(*request, static_cast<std::size_t>(request->getContextCurrentPosition()));
    request->setContextCurrentPosition(request->getPromptLen());
    const std::int32_t next = next_token(*request);
    request->addNewToken(next, 0);
    finish(*request);
    return next;
  }
  void finish(const Request &request) {
    manager.removeSequence(request.mRequestId, request);
    mirror.store(request);
  }

  std::size_t live_pins() const {
    auto statistics = kvhints::sized<kvh_reuse_tree_statistics_t>();
    kvhints::check(kvh_reuse_tree_statistics(mirror.tree().get(), &statistics));
    return statistics.live_pins;
  }
};

// Waits for what a thread of the library does; only a fault makes it give up.
template <typename Condition>
void wait_until(Condition condition) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (!condition()) {
    ASSERT_LT(std::chrono::steady_clock::now(), end) << "waited in vain";
    std::this_thread::yield();
  }
}

}  // namespace worker
