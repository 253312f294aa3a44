// The host's own eviction policy, which asks the mirror before it hands a block out: it still picks the
// victims, and one that a peer has pinned is passed over.
//
// Guards that no block is handed out under a pin, and that none is counted as free which cannot be taken.
// All calls come under the host's lock, as those of any of its policies.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef KVHINTS_TENSORRT_LLM_EVICTION_POLICY_HPP
#define KVHINTS_TENSORRT_LLM_EVICTION_POLICY_HPP

#include "reuse_mirror.hpp"

#include <chrono>
#include <tuple>

namespace kvhints::trtllm {

template <typename Host>
class ArbiterEvictionPolicy : public Host::BaseEvictionPolicy {
 public:
  using BlockPtr = typename Host::BlockPtr;
  using RetentionPriority = typename Host::RetentionPriority;
  using Level = std::int32_t;

  explicit ArbiterEvictionPolicy(std::shared_ptr<typename Host::BaseEvictionPolicy> inner) : inner_(std::move(inner)) {}

  // The policy is made before the manager, and the mirror after it. Without one, NULL, this is the inner
  // policy. The mirror outlives the policy or is taken away before. False, and nothing changed, while a pin
  // of the present one is live.
  bool set_mirror(ReuseMirror<Host> *mirror) {
    if (mirror_ != nullptr) {
      unpark();
      if (mirror_->protected_count() > 0) {
        return false;
      }
    }
    mirror_ = mirror;
    return true;
  }

  void initialize(std::vector<BlockPtr> &all_blocks_by_id, std::vector<Level> sizes,
                  std::optional<RetentionPriority> secondary_offload_min_priority) override {
    inner_->initialize(all_blocks_by_id, std::move(sizes), secondary_offload_min_priority);
  }

  std::tuple<BlockPtr, bool> getFreeBlock(Level level) override {
    if (mirror_ == nullptr || level != primary_level) {
      return inner_->getFreeBlock(level);
    }
    for (;;) {
      // Blocks whose pins have ended meanwhile are better than none.
      if (inner_->getNumFreeBlocks(level) == 0) {
        unpark();
      }
      auto victim = inner_->getFreeBlock(level);
      const BlockPtr &block = std::get<0>(victim);
      if (mirror_->hand_out(block) != KVH_BUSY) {
        return victim;
      }
      // Its own priority and duration, because a claim without them clears the duration.
      inner_->claimBlock(block, block->getPriority(), block->getDurationMs());
      parked_.push_back(block);
    }
  }

  void releaseBlock(BlockPtr block) override { inner_->releaseBlock(std::move(block)); }
  void releaseBlock(BlockPtr block, bool to_front) override { inner_->releaseBlock(std::move(block), to_front); }

  // Never too many. Too few while peers read blocks that requests here use, because those are protected
  // and not free anyway.
  Level getNumFreeBlocks(Level level) override {
    const Level free = inner_->getNumFreeBlocks(level);
    if (mirror_ == nullptr || level != primary_level) {
      return free;
    }
    const auto pinned = static_cast<Level>(mirror_->protected_count());
    const auto parked = static_cast<Level>(parked_.size());
    return std::max<Level>(0, free - std::max<Level>(0, pinned - parked));
  }

  void claimBlock(BlockPtr block) override {
    take_from_parked(block);
    inner_->claimBlock(std::move(block));
  }
  void claimBlock(BlockPtr block, std::optional<RetentionPriority> priority,
                  std::optional<std::chrono::milliseconds> duration) override {
    take_from_parked(block);
    inner_->claimBlock(std::move(block), priority, duration);
  }

  // Once an iteration: what was passed over comes back to where it was, at the front.
  void refresh() override {
    unpark();
    inner_->refresh();
  }
  bool verifyQueueIntegrity() override { return inner_->verifyQueueIntegrity(); }

 private:
  static constexpr Level primary_level = 0;

  void take_from_parked(const BlockPtr &block) {
    parked_.erase(std::remove(parked_.begin(), parked_.end(), block), parked_.end());
  }
  void unpark() {
    if (parked_.empty()) {
      return;
    }
    std::vector<BlockPtr> still;
    for (auto block = parked_.rbegin(); block != parked_.rend(); ++block) {
      if (mirror_->is_protected(*block)) {
        still.push_back(*block);
      } else {
        inner_->releaseBlock(*block, true);
      }
    }
    parked_.assign(still.rbegin(), still.rend());
  }

  std::shared_ptr<typename Host::BaseEvictionPolicy> inner_;
  ReuseMirror<Host> *mirror_ = nullptr;
  // Free blocks under a pin, out of the inner policy's queues, oldest first.
  std::vector<BlockPtr> parked_;
};

}  // namespace kvhints::trtllm

#endif  // KVHINTS_TENSORRT_LLM_EVICTION_POLICY_HPP
