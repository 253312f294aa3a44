// A kvhints reuse tree beside the host's own, in arbiter mode: it is told what the host's tree holds, and
// asked before a block is handed out or written. Peers look blocks up and pin them here, without the
// host's lock.
//
// The tree knows blocks by their slot in the host's primary pool, where the transceiver reads them. A
// host's block id is no slot: it stays with a block that goes to host memory.
//
// Never stores, evicts or moves anything of the host's.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef KVHINTS_TENSORRT_LLM_REUSE_MIRROR_HPP
#define KVHINTS_TENSORRT_LLM_REUSE_MIRROR_HPP

#include "host_pins.hpp"
#include "names.hpp"

#include <atomic>

namespace kvhints::trtllm {

// Blocks that are pinned until the range ends, as the host knows them.
struct PinnedMatch {
  BlockRange range;
  // Host's block ids, oldest first.
  std::vector<std::int32_t> block_ids;
};

// match() and pin() may be called from any thread; all else from the thread that stores and evicts in the
// host's tree.
template <typename Host>
class ReuseMirror {
 public:
  using Manager = typename Host::BaseKVCacheManager;
  using LlmRequest = typename Host::LlmRequest;
  using BlockPtr = typename Host::BlockPtr;

  // The manager outlives the mirror. Throws with KVH_ERR_UNSUPPORTED when it has several windows, and with
  // KVH_ERR_INVALID_ARGUMENT when naming has other blocks than it.
  ReuseMirror(const Context &context, Manager &manager, Naming naming)
      : manager_(manager),
        naming_(std::move(naming)),
        host_window_(only_window(manager).first),
        id_of_slot_(static_cast<std::size_t>(only_window(manager).second.numPrimaryBlocks)),
        tree_(context, naming_.tokens_per_block) {
    if (naming_.tokens_per_block != static_cast<std::uint32_t>(manager.getTokensPerBlock())) {
      throw Error(KVH_ERR_INVALID_ARGUMENT, "naming has other tokens per block than the host");
    }
  }

  const Naming &naming() const noexcept { return naming_; }
  const ReuseTree &tree() const noexcept { return tree_; }

  // Call after the host stored blocks of a request: storeContextBlocks, storeNewBlock, removeSequence. Takes
  // over what the host's tree holds of the request's tokens, which may be other requests' blocks; gives how
  // many of these blocks the mirror has. Changes nothing in the host. fence: 0, or the number of the point
  // in the host's work after which the blocks' bytes are complete (kvh_reuse_tree_store_with_fence).
  std::size_t store(const LlmRequest &request, std::uint64_t fence = 0) {
    if (!is_mirroring_) {
      return 0;
    }
    const std::size_t token_count = stored_tokens(request);
    auto keys = Host::block_keys(request, token_count, naming_.tokens_per_block);
    // The tail is stored at a request's end only.
    std::vector<std::int32_t> ids = held_by_host(keys);
    if (ids.empty() && token_count % naming_.tokens_per_block != 0) {
      keys.pop_back();
      ids = held_by_host(keys);
    }
    return take_over(request, ids, fence);
  }

  // The host's storeBlocksForReuse with pins: the blocks of a request that is about to be removed, kept
  // until the pins end, for a send that is still to come.
  HostPins<Host> store_blocks_for_reuse(const LlmRequest &request, std::uint64_t fence = 0) {
    const typename Host::Range range("storeBlocksForReuse");
    HostPins<Host> pins(manager_, manager_.storeBlocksForReuse(request.mRequestId, request, true));
    if (is_mirroring_) {
      take_over(request, pins.block_ids(), fence);
    }
    return pins;
  }

  // Call before blocks of a request are written that others may hold too, from first_block on: when the
  // host admits a request, it may take over a stored leaf whose beginning matches. False while a peer
  // still reads one: ask again, and do not write yet.
  bool will_write(typename Manager::RequestIdType request_id, std::size_t first_block) {
    bool may_write = true;
    for (const std::int32_t slot : slots(request_id, first_block)) {
      may_write = tree_.evict(slot) != KVH_BUSY && may_write;
    }
    return may_write;
  }

  // Call before the host hands a block out. KVH_BUSY: a pin protects it; take another.
  kvh_status_t hand_out(const BlockPtr &block) { return tree_.evict(block->getMemoryPoolBlockIndex()); }

  // Whether a pin protects a block in primary memory.
  bool is_protected(const BlockPtr &block) const {
    auto state = sized<kvh_block_state_t>();
    const std::int32_t slot = block->getMemoryPoolBlockIndex();
    if (check(kvh_reuse_tree_find_id(tree_.get(), KVH_WINDOW_FULL, slot, &state)) == KVH_OK) {
      return state.is_protected != 0;
    }
    // Not in the tree any more, it is either protected or nobody's.
    return tree_.evict(slot) == KVH_BUSY;
  }
  std::size_t protected_count() const {
    std::size_t count = 0;
    check(kvh_reuse_tree_protected_count(tree_.get(), KVH_WINDOW_FULL, &count));
    return count;
  }

  // Off: everything leaves the mirror and nothing enters it. What peers have pinned stays protected until
  // they are done, so go on asking.
  void set_mirroring(bool is_mirroring) {
    is_mirroring_ = is_mirroring;
    if (!is_mirroring) {
      forget();
    }
  }
  // Call with the host's resetReuseState.
  void forget() { check(kvh_reuse_tree_reset(tree_.get())); }

  // Leading tokens of a request that are held, at most all but the last.
  std::size_t match(const LlmRequest &request) const {
    const auto sequence = sequence_of_request(naming_, request);
    const auto tokens = static_cast<std::size_t>(request.getNumTokens(0));
    return sequence ? tree_.match(*sequence, tokens == 0 ? 0 : tokens - 1) : 0;
  }

  // findBlocksInReuseTreeByBlockKey with pins: every block of the key's tokens. Nothing on a miss, for an
  // empty key, and for one with extra keys.
  template <typename BlockKey>
  std::optional<PinnedMatch> pin(const BlockKey &key) const {
    const typename Host::Range range("findBlocksInReuseTreeByBlockKey");
    const auto sequence = sequence_of_key(naming_, key);
    return sequence ? pin(*sequence, 0, sequence->block_count(), Policy::strict) : std::nullopt;
  }
  std::optional<PinnedMatch> pin(const Sequence &sequence, std::size_t first_block, std::size_t block_count,
                                 Policy policy) const {
    if (block_count == 0) {
      return std::nullopt;
    }
    auto range = tree_.pin(sequence, first_block, block_count, policy);
    if (!range) {
      return std::nullopt;
    }
    std::vector<std::int32_t> ids = range->ids();
    for (std::int32_t &id : ids) {
      id = id_of_slot_[static_cast<std::size_t>(id)].load(std::memory_order_acquire);
    }
    return PinnedMatch{std::move(*range), std::move(ids)};
  }

  // Where a request's blocks lie in the primary pool, from first_block on.
  std::vector<std::int32_t> slots(typename Manager::RequestIdType request_id, std::size_t first_block) const {
    const auto beams = manager_.getCacheBlockIds(request_id, host_window_);
    std::vector<std::int32_t> slots;
    for (std::size_t at = first_block; at < beams.at(0).size(); ++at) {
      slots.push_back(block(beams[0][at])->getMemoryPoolBlockIndex());
    }
    return slots;
  }

  // What a transceiver has to know of the tree and the pool: fill in the rest. The host has one primary pool,
  // block after block; memory says where it lies (KVH_MEMORY_*).
  kvh_transceiver_params_t transceiver_params(void *primary_pool, std::size_t block_bytes,
                                              std::uint32_t memory = KVH_MEMORY_HOST) const {
    auto params = sized<kvh_transceiver_params_t>();
    params.namespace_bytes = borrow(as_bytes(naming_.namespace_bytes));
    params.window = KVH_WINDOW_FULL;
    params.pool_memory = memory;
    params.pool_base = primary_pool;
    params.block_bytes = block_bytes;
    params.block_count = id_of_slot_.size();
    return params;
  }

 private:
  const BlockPtr &block(std::int32_t id) const { return manager_.getBlockManager().getBlockById(id, host_window_); }

  // What the host stores of a request: what is computed for sure. The last token's KV never is, once prefill
  // is over.
  static std::size_t stored_tokens(const LlmRequest &request) {
    const auto position = request.getContextCurrentPosition();
    const bool is_prefill = position > 0 && position < request.getPromptLen();
    const auto count = is_prefill ? position : request.getNumTokens(0) - 1;
    return count < 0 ? 0 : static_cast<std::size_t>(count);
  }

  // The blocks that the host's tree holds under these keys; none unless all of them are there.
  template <typename BlockKey>
  std::vector<std::int32_t> held_by_host(const std::vector<BlockKey> &keys) {
    if (keys.empty()) {
      return {};
    }
    auto last = manager_.findBlocksInReuseTreeByBlockKeys(keys, host_window_);
    // A longer block whose beginning matches is not the tail.
    if (last == nullptr || last->getUniqueTokens().size() != keys.back().uniqueTokens.size()) {
      return {};
    }
    std::vector<std::int32_t> ids(keys.size());
    for (auto id = ids.rbegin(); id != ids.rend(); ++id) {
      if (last == nullptr) {
        return {};
      }
      *id = last->getBlockId();
      last = last->getPrevBlock();
    }
    return ids;
  }

  // Blocks of a request from its first on, up to the first one that is not in primary memory.
  std::size_t take_over(const LlmRequest &request, const std::vector<std::int32_t> &ids, std::uint64_t fence) {
    const auto sequence = sequence_of_request(naming_, request, stored_tokens(request));
    if (!sequence) {
      return 0;
    }
    std::vector<std::int32_t> slots;
    for (const std::int32_t id : ids) {
      if (!block(id)->isPrimary()) {
        break;
      }
      const std::int32_t slot = block(id)->getMemoryPoolBlockIndex();
      id_of_slot_[static_cast<std::size_t>(slot)].store(id, std::memory_order_release);
      slots.push_back(slot);
    }
    const auto held = fence == 0 ? tree_.store(*sequence, 0, slots) : tree_.store_with_fence(*sequence, 0, slots, fence);
    std::size_t count = 0;
    while (count < slots.size() && held[count] == slots[count]) {
      ++count;
    }
    return count;
  }

  Manager &manager_;
  Naming naming_;
  std::int32_t host_window_;
  bool is_mirroring_ = true;
  // The block that lies in a slot while the tree holds it.
  std::vector<std::atomic<std::int32_t>> id_of_slot_;
  ReuseTree tree_;
};

}  // namespace kvhints::trtllm

#endif  // KVHINTS_TENSORRT_LLM_REUSE_MIRROR_HPP
