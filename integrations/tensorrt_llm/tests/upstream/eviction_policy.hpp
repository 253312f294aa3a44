// Stand-in for a KV block, the tree's node that it hangs on, and the eviction policy: one queue of free
// blocks for each level and priority.
#pragma once

#include "block_key.hpp"

#include <chrono>
#include <deque>
#include <map>
#include <tuple>
#include <unordered_map>

namespace tensorrt_llm::executor {

using RetentionPriority = std::int32_t;

}  // namespace tensorrt_llm::executor

namespace tensorrt_llm::batch_manager::kv_cache_manager {

using executor::RetentionPriority;

constexpr SizeType32 kPrimaryLevel = 0;
constexpr SizeType32 kSecondaryLevel = 1;
constexpr RetentionPriority kDefaultRetentionPriority = 35;
constexpr RetentionPriority kDefaultSecondaryOffloadMinPriority = 30;

class KVCacheBlock;
using BlockPtr = std::shared_ptr<KVCacheBlock>;

// One block of tokens; all windows share the nodes, and each has a block of its own there, or none.
struct ReuseNode {
  ReuseNode *parent = nullptr;
  BlockKey key;
  std::unordered_map<BlockKey, std::unique_ptr<ReuseNode>, BlockKeyHasher> children;
  std::map<SizeType32, BlockPtr> values;
};

// Keeps its id for life. Its place in the pools changes when it goes to host memory or comes back, so
// an id is no pool index.
class KVCacheBlock {
 public:
  using IdType = std::int32_t;
  static constexpr IdType kCachedBlocksRootId = -1;

  KVCacheBlock(IdType blockId, SizeType32 windowSize, bool primary, SizeType32 poolIndex)
      : mBlockId(blockId), mWindowSize(windowSize), mIsPrimary(primary), mPoolIndex(poolIndex) {}

  [[nodiscard]] IdType getBlockId() const { return mBlockId; }
  [[nodiscard]] bool isPrimary() const { return mIsPrimary; }
  [[nodiscard]] bool isPlaceholder() const { return mBlockId < kCachedBlocksRootId; }
  [[nodiscard]] SizeType32 getMemoryPoolBlockIndex() const { return mPoolIndex; }
  void swapMemoryPoolBlockOffset(BlockPtr const &other) {
    std::swap(mIsPrimary, other->mIsPrimary);
    std::swap(mPoolIndex, other->mPoolIndex);
  }

  [[nodiscard]] bool hasRefs() const { return mRefCount > 0; }
  void incRefCount() { ++mRefCount; }
  void decRefCount() {
    common::check(mRefCount > 0, "a block without users was released");
    --mRefCount;
  }

  [[nodiscard]] bool isAttached() const { return mNode != nullptr; }
  [[nodiscard]] bool isLeaf() const { return mNode == nullptr || mNode->children.empty(); }
  [[nodiscard]] bool isFull() const { return mIsFull; }
  [[nodiscard]] std::size_t getHash() const { return mHash; }
  [[nodiscard]] VecUniqueTokens const &getUniqueTokens() const { return mKey.uniqueTokens; }
  // The block of this window one level up; none at the root, or where that level has lost its block.
  [[nodiscard]] BlockPtr getPrevBlock() const {
    if (mNode == nullptr) {
      return nullptr;
    }
    auto const found = mNode->parent->values.find(mWindowSize);
    return found == mNode->parent->values.end() ? nullptr : found->second;
  }

  [[nodiscard]] RetentionPriority getPriority() const { return mPriority; }
  void setPriority(RetentionPriority priority) { mPriority = priority; }
  [[nodiscard]] std::optional<std::chrono::milliseconds> getDurationMs() const { return mDurationMs; }
  void setDurationMs(std::optional<std::chrono::milliseconds> duration) { mDurationMs = duration; }
  [[nodiscard]] std::optional<std::chrono::steady_clock::duration> getExpirationTime() const { return mExpirationTime; }
  void setExpirationTime(std::optional<std::chrono::steady_clock::duration> time) { mExpirationTime = time; }

  // The tree's side.
  void attach(ReuseNode *node, bool full, std::size_t hash) {
    mNode = node;
    mKey = node->key;
    mIsFull = full;
    mHash = hash;
  }
  void detach() { mNode = nullptr; }
  [[nodiscard]] ReuseNode *node() const { return mNode; }

 private:
  IdType mBlockId;
  SizeType32 mWindowSize;
  bool mIsPrimary;
  SizeType32 mPoolIndex;
  int mRefCount = 0;
  ReuseNode *mNode = nullptr;
  BlockKey mKey;
  bool mIsFull = false;
  std::size_t mHash = 0;
  RetentionPriority mPriority = kDefaultRetentionPriority;
  std::optional<std::chrono::milliseconds> mDurationMs;
  std::optional<std::chrono::steady_clock::duration> mExpirationTime;
};

}  // namespace tensorrt_llm::batch_manager::kv_cache_manager

namespace tensorrt_llm::batch_manager::eviction_policy {

using kv_cache_manager::BlockPtr;
using kv_cache_manager::SizeType32;

class BaseEvictionPolicy {
 public:
  virtual ~BaseEvictionPolicy() = default;

  virtual void initialize(std::vector<BlockPtr> &allBlocksById, std::vector<SizeType32> sizes,
                          std::optional<executor::RetentionPriority> secondaryOffloadMinPriority) = 0;
  // The next victim, and whether it may go to host memory. Only a look: claimBlock takes it.
  virtual std::tuple<BlockPtr, bool> getFreeBlock(SizeType32 cacheLevel) = 0;
  virtual void releaseBlock(BlockPtr block) = 0;
  virtual void releaseBlock(BlockPtr block, bool toFront) = 0;
  virtual SizeType32 getNumFreeBlocks(SizeType32 cacheLevel) = 0;
  virtual void claimBlock(BlockPtr block) = 0;
  virtual void claimBlock(BlockPtr block, std::optional<executor::RetentionPriority> priority,
                          std::optional<std::chrono::milliseconds> durationMs) = 0;
  virtual void refresh() = 0;
  virtual bool verifyQueueIntegrity() = 0;
};

class LRUEvictionPolicy : public BaseEvictionPolicy {
 public:
  void initialize(std::vector<BlockPtr> &allBlocksById, std::vector<SizeType32> /*sizes*/,
                  std::optional<executor::RetentionPriority> secondaryOffloadMinPriority) override {
    mSecondaryOffloadMinPriority =
        secondaryOffloadMinPriority.value_or(kv_cache_manager::kDefaultSecondaryOffloadMinPriority);
    for (BlockPtr const &block : allBlocksById) {
      releaseBlock(block);
    }
  }
  std::tuple<BlockPtr, bool> getFreeBlock(SizeType32 cacheLevel) override {
    for (auto &[place, queue] : mFreeQueues) {
      if (place.first == cacheLevel && !queue.empty()) {
        BlockPtr const &block = queue.front();
        return {block, cacheLevel == kv_cache_manager::kPrimaryLevel &&
                           block->getPriority() >= mSecondaryOffloadMinPriority};
      }
    }
    throw std::runtime_error("no free block is left");
  }
  void releaseBlock(BlockPtr block) override { releaseBlock(std::move(block), false); }
  void releaseBlock(BlockPtr block, bool toFront) override {
    common::check(!block->hasRefs(), "a block with users was released");
    if (block->getDurationMs() && block->getPriority() != kv_cache_manager::kDefaultRetentionPriority) {
      block->setExpirationTime(getTime() + *block->getDurationMs());
    }
    enqueue(block, toFront);
  }
  SizeType32 getNumFreeBlocks(SizeType32 cacheLevel) override {
    std::size_t count = 0;
    for (auto const &[place, queue] : mFreeQueues) {
      count += place.first == cacheLevel ? queue.size() : 0;
    }
    return static_cast<SizeType32>(count);
  }
  void claimBlock(BlockPtr block) override { claimBlock(std::move(block), std::nullopt, std::nullopt); }
  // The duration is overwritten even by none.
  void claimBlock(BlockPtr block, std::optional<executor::RetentionPriority> priority,
                  std::optional<std::chrono::milliseconds> durationMs) override {
    dequeue(block);
    if (priority) {
      block->setPriority(*priority);
    }
    block->setDurationMs(durationMs);
    block->setExpirationTime(std::nullopt);
  }
  void refresh() override {
    auto const now = getTime();
    std::vector<BlockPtr> expired;
    for (auto const &[place, queue] : mFreeQueues) {
      for (BlockPtr const &block : queue) {
        if (block->getExpirationTime() && *block->getExpirationTime() <= now) {
          expired.push_back(block);
        }
      }
    }
    for (BlockPtr const &block : expired) {
      dequeue(block);
      block->setPriority(kv_cache_manager::kDefaultRetentionPriority);
      block->setExpirationTime(std::nullopt);
      enqueue(block, false);
    }
  }
  // In place of the clock, so that tests say what time it is.
  [[nodiscard]] virtual std::chrono::steady_clock::duration getTime() const {
    return std::chrono::steady_clock::now().time_since_epoch();
  }
  bool verifyQueueIntegrity() override {
    for (auto const &[place, queue] : mFreeQueues) {
      for (BlockPtr const &block : queue) {
        if (block->hasRefs() || levelOf(block) != place.first) {
          return false;
        }
      }
    }
    return true;
  }

 private:
  using Place = std::pair<SizeType32, executor::RetentionPriority>;

  static SizeType32 levelOf(BlockPtr const &block) {
    return block->isPrimary() ? kv_cache_manager::kPrimaryLevel : kv_cache_manager::kSecondaryLevel;
  }
  void enqueue(BlockPtr const &block, bool toFront) {
    Place const place{levelOf(block), block->getPriority()};
    auto &queue = mFreeQueues[place];
    queue.insert(toFront ? queue.begin() : queue.end(), block);
    mPlaces[block.get()] = place;
  }
  void dequeue(BlockPtr const &block) {
    auto const found = mPlaces.find(block.get());
    if (found == mPlaces.end()) {
      return;
    }
    auto &queue = mFreeQueues[found->second];
    queue.erase(std::find(queue.begin(), queue.end(), block));
    mPlaces.erase(found);
  }

  std::map<Place, std::deque<BlockPtr>> mFreeQueues;
  std::unordered_map<kv_cache_manager::KVCacheBlock const *, Place> mPlaces;
  executor::RetentionPriority mSecondaryOffloadMinPriority = kv_cache_manager::kDefaultSecondaryOffloadMinPriority;
};

}  // namespace tensorrt_llm::batch_manager::eviction_policy
