// Stand-in for the KV cache manager: one radix tree for all windows, blocks with ids of their own in each
// window, requests that claim and store them, eviction with offload to host memory, and pins that are bare
// reference counts: whoever knows an id can end one.
//
// Beams, sliding windows' holes and recurrent states are left out.
#pragma once

#include "eviction_policy.hpp"

#include <cstring>
#include <mutex>

namespace tensorrt_llm::batch_manager::kv_cache_manager {

using common::OptionalRef;
using eviction_policy::BaseEvictionPolicy;
using eviction_policy::LRUEvictionPolicy;

// Primary and secondary blocks of each window.
using BlocksPerWindow = std::map<SizeType32, std::tuple<SizeType32, SizeType32>>;
// Gives the policy of one window. Upstream makes an LRUEvictionPolicy itself; this is where a host lets
// another one in.
using PolicyFactory = std::function<std::shared_ptr<BaseEvictionPolicy>(SizeType32 windowSize)>;

struct WindowSizeMetadata {
  SizeType32 numPrimaryBlocks;
  SizeType32 numSecondaryBlocks;
};

// The nodes of all windows, and the lock that all of block management takes. Recursive: eviction runs
// inside admission.
class UnifiedBlockTree {
 public:
  std::recursive_mutex &getMutex() { return mMutex; }
  ReuseNode &root() { return mRoot; }

  // Takes a block out, and every node that is left with nothing.
  void detach(BlockPtr const &block, SizeType32 windowSize) {
    ReuseNode *node = block->node();
    if (node == nullptr) {
      return;
    }
    block->detach();
    node->values.erase(windowSize);
    while (node != &mRoot && node->values.empty() && node->children.empty()) {
      ReuseNode *const parent = node->parent;
      parent->children.erase(BlockKey(node->key));
      node = parent;
    }
  }

 private:
  std::recursive_mutex mMutex;
  ReuseNode mRoot;
};

class WindowBlockManager {
 public:
  using IdType = KVCacheBlock::IdType;
  using RequestIdType = LlmRequest::RequestIdType;

  WindowBlockManager(SizeType32 windowSize, WindowSizeMetadata metadata, SizeType32 tokensPerBlock,
                     std::size_t blockBytes, UnifiedBlockTree &tree, std::shared_ptr<BaseEvictionPolicy> policy)
      : mWindowSize(windowSize),
        mMetadata(metadata),
        mTokensPerBlock(tokensPerBlock),
        mBlockBytes(blockBytes),
        mTree(tree),
        mPolicy(std::move(policy)),
        mRoot(std::make_shared<KVCacheBlock>(KVCacheBlock::kCachedBlocksRootId, windowSize, true, -1)),
        mPrimaryPool(blockBytes * static_cast<std::size_t>(metadata.numPrimaryBlocks)),
        mSecondaryPool(blockBytes * static_cast<std::size_t>(metadata.numSecondaryBlocks)) {
    auto const [primary, secondary] = metadata;
    for (IdType id = 0; id < primary + secondary; ++id) {
      bool const isPrimary = id < primary;
      mAllBlocksById.push_back(
          std::make_shared<KVCacheBlock>(id, windowSize, isPrimary, isPrimary ? id : id - primary));
    }
    mPolicy->initialize(mAllBlocksById, {primary, secondary}, std::nullopt);
  }

  [[nodiscard]] WindowSizeMetadata const &metadata() const { return mMetadata; }
  [[nodiscard]] BlockPtr const &getBlockById(IdType id) const { return mAllBlocksById.at(static_cast<std::size_t>(id)); }
  [[nodiscard]] std::size_t getMaxNumBlocks() const { return mAllBlocksById.size(); }
  [[nodiscard]] SizeType32 getNumFreeBlocks() const {
    std::lock_guard const lock(mTree.getMutex());
    return mPolicy->getNumFreeBlocks(kPrimaryLevel);
  }
  [[nodiscard]] std::vector<std::uint8_t> &primaryPool() { return mPrimaryPool; }
  [[nodiscard]] std::size_t blockBytes() const { return mBlockBytes; }
  [[nodiscard]] std::shared_ptr<BaseEvictionPolicy> const &policy() const { return mPolicy; }

  // Claims what matches, then fetches from host memory, copies and allocates the rest. Gives how many
  // tokens are there.
  SizeType32 addSequence(RequestIdType requestId, SizeType32 inputLength, LlmRequest const &request) {
    std::lock_guard const lock(mTree.getMutex());
    auto chopped = chopVectorIntoBlocks<UniqueToken>(request.getUniqueTokens(0), inputLength - 1, mTokensPerBlock, true);
    auto keys = buildBlockKeys(chopped, request);
    if (inputLength % mTokensPerBlock == 1 || mTokensPerBlock == 1) {
      keys.emplace_back();
    }
    auto &blocks = mAllocatedBlocksPerSeq[requestId];
    common::check(blocks.empty(), "the sequence was added before");
    try {
      return allocate(keys, blocks);
    } catch (...) {
      release(blocks);
      mAllocatedBlocksPerSeq.erase(requestId);
      throw;
    }
  }

  void addToken(RequestIdType requestId, SizeType32 numTokens) {
    std::lock_guard const lock(mTree.getMutex());
    auto &blocks = mAllocatedBlocksPerSeq.at(requestId);
    while (static_cast<SizeType32>(blocks.size()) * mTokensPerBlock < numTokens) {
      blocks.push_back(takeFreeBlock(std::nullopt, std::nullopt));
    }
  }

  [[nodiscard]] std::vector<IdType> blockIds(RequestIdType requestId) const {
    std::lock_guard const lock(mTree.getMutex());
    return idsOf(mAllocatedBlocksPerSeq.at(requestId));
  }

  // Stores a request's blocks; gives those that the tree holds at these positions, pinned if asked for.
  std::vector<IdType> storeBlocks(LlmRequest const &request, SizeType32 usableTokens, bool allowPartial, bool pin) {
    std::lock_guard const lock(mTree.getMutex());
    auto chopped = chopVectorIntoBlocks<UniqueToken>(request.getUniqueTokens(0), usableTokens, mTokensPerBlock, allowPartial);
    auto const keys = buildBlockKeys(chopped, request);
    auto const &blocks = mAllocatedBlocksPerSeq.at(request.mRequestId);
    ReuseNode *node = &mTree.root();
    std::size_t parentHash = 0;
    std::vector<BlockPtr> held;
    for (std::size_t at = 0; at < keys.size() && at < blocks.size(); ++at) {
      auto &child = node->children[keys[at]];
      if (child == nullptr) {
        child = std::make_unique<ReuseNode>();
        child->parent = node;
        child->key = keys[at];
      }
      node = child.get();
      BlockPtr &slot = node->values[mWindowSize];
      if (slot == nullptr) {
        BlockPtr const block = blocks[at];
        if (block->node() != node) {
          mTree.detach(block, mWindowSize);
        }
        slot = block;
        bool const isFull = static_cast<SizeType32>(keys[at].uniqueTokens.size()) == mTokensPerBlock;
        block->attach(node, isFull, BlockKeyHasher::hash(keys[at], parentHash));
      }
      parentHash = slot->getHash();
      held.push_back(slot);
    }
    if (pin) {
      for (BlockPtr const &block : held) {
        pinBlock(block);
      }
    }
    return idsOf(held);
  }

  void releaseBlocks(RequestIdType requestId) {
    std::lock_guard const lock(mTree.getMutex());
    release(mAllocatedBlocksPerSeq.at(requestId));
    mAllocatedBlocksPerSeq.erase(requestId);
  }

  // One key with all tokens: cut here, with the extra keys copied to every piece.
  BlockPtr find(BlockKey const &key, std::vector<IdType> *pinned) {
    std::lock_guard const lock(mTree.getMutex());
    std::vector<BlockKey> keys;
    for (auto &tokens : chopVectorIntoBlocks<UniqueToken>(key.uniqueTokens, static_cast<SizeType32>(key.uniqueTokens.size()),
                                                          mTokensPerBlock, true)) {
      keys.emplace_back(key.usesExtraIds, key.loraTaskId, std::move(tokens), key.extraKeys, key.cacheSalt);
    }
    return find(keys, pinned);
  }
  // Every piece must be there in whole. With `pinned`, in primary memory as well, and pinned: all or none.
  BlockPtr find(std::vector<BlockKey> const &keys, std::vector<IdType> *pinned) {
    std::lock_guard const lock(mTree.getMutex());
    ReuseNode *node = &mTree.root();
    BlockPtr last = mRoot;
    for (BlockKey const &key : keys) {
      auto const match = findMatchingBlock(*node, key, true, true);
      bool const isWhole = match.block != nullptr && match.tokens == static_cast<SizeType32>(key.uniqueTokens.size());
      if (!isWhole || (pinned != nullptr && !match.block->isPrimary())) {
        if (pinned != nullptr) {
          unpinBlocksById(*pinned);
          pinned->clear();
        }
        return nullptr;
      }
      last = match.block;
      node = last->node();
      if (pinned != nullptr) {
        pinBlock(last);
        pinned->push_back(last->getBlockId());
      }
    }
    return last;
  }

  void pinBlocks(RequestIdType requestId) {
    std::lock_guard const lock(mTree.getMutex());
    for (BlockPtr const &block : mAllocatedBlocksPerSeq.at(requestId)) {
      pinBlock(block);
    }
  }
  void pinBlocksById(std::vector<IdType> const &ids) {
    std::lock_guard const lock(mTree.getMutex());
    for (IdType id : ids) {
      pinBlock(checkedBlock(id));
    }
  }
  // Each id is looked at as it is reached: a bad one throws when those before it are unpinned already.
  void unpinBlocksById(std::vector<IdType> const &ids) {
    std::lock_guard const lock(mTree.getMutex());
    for (IdType id : ids) {
      if (id == KVCacheBlock::kCachedBlocksRootId) {
        continue;
      }
      BlockPtr const block = checkedBlock(id);
      block->decRefCount();
      if (!block->hasRefs()) {
        mPolicy->releaseBlock(block);
      }
    }
  }

  void refreshBlocks() {
    std::lock_guard const lock(mTree.getMutex());
    mPolicy->refresh();
  }
  void resetReuseState() {
    std::lock_guard const lock(mTree.getMutex());
    for (BlockPtr const &block : mAllBlocksById) {
      mTree.detach(block, mWindowSize);
    }
  }

 private:
  struct Match {
    BlockPtr block;
    SizeType32 tokens = 0;
  };

  static std::vector<IdType> idsOf(std::vector<BlockPtr> const &blocks) {
    std::vector<IdType> ids;
    for (BlockPtr const &block : blocks) {
      ids.push_back(block->getBlockId());
    }
    return ids;
  }
  [[nodiscard]] BlockPtr checkedBlock(IdType id) const {
    common::check(id >= 0 && static_cast<std::size_t>(id) < mAllBlocksById.size(), "block id is out of range");
    return mAllBlocksById[static_cast<std::size_t>(id)];
  }

  // The exact child, or else the one with the longest head in common.
  [[nodiscard]] Match findMatchingBlock(ReuseNode const &node, BlockKey const &key, bool enablePartial,
                                        bool copyOnPartial) const {
    if (key.uniqueTokens.empty()) {
      return {};
    }
    if (auto const exact = node.children.find(key); exact != node.children.end()) {
      auto const value = exact->second->values.find(mWindowSize);
      // Without a block of this window no other child is looked at.
      return value == exact->second->values.end() || value->second == nullptr
                 ? Match{}
                 : Match{value->second, static_cast<SizeType32>(key.uniqueTokens.size())};
    }
    Match best;
    if (!enablePartial || !key.supportsPartialMatching()) {
      return best;
    }
    for (auto const &[childKey, child] : node.children) {
      auto const value = child->values.find(mWindowSize);
      SizeType32 const common = key.numMatchingTokens(childKey);
      if (value != child->values.end() && value->second != nullptr && common > best.tokens &&
          (copyOnPartial || (!value->second->hasRefs() && value->second->isLeaf()))) {
        best = {value->second, common};
      }
    }
    return best;
  }

  SizeType32 allocate(std::vector<BlockKey> const &keys, std::vector<BlockPtr> &blocks) {
    ReuseNode *node = &mTree.root();
    SizeType32 matchedTokens = 0;
    Match partial;
    for (BlockKey const &key : keys) {
      Match const match = findMatchingBlock(*node, key, true, true);
      if (match.block == nullptr) {
        break;
      }
      matchedTokens += match.tokens;
      if (match.tokens < mTokensPerBlock || !match.block->isFull()) {
        partial = match;
        break;
      }
      node = match.block->node();
      claim(match.block);
      blocks.push_back(match.block);
    }
    bool const isTakenOver = partial.block != nullptr && !partial.block->hasRefs() && partial.block->isLeaf();
    if (partial.block != nullptr) {
      // Claimed until it is copied, too: nothing below may evict it.
      claim(partial.block);
    }
    if (isTakenOver) {
      mTree.detach(partial.block, mWindowSize);
      blocks.push_back(partial.block);
    }
    try {
      for (BlockPtr const &block : blocks) {
        onboard(block);
      }
      if (partial.block != nullptr && !isTakenOver) {
        BlockPtr const fresh = takeFreeBlock(partial.block->getPriority(), partial.block->getDurationMs());
        std::memcpy(bytes(fresh), bytes(partial.block), mBlockBytes);
        blocks.push_back(fresh);
        unclaim(partial.block);
        partial.block = nullptr;
      }
      while (blocks.size() < keys.size()) {
        blocks.push_back(takeFreeBlock(std::nullopt, std::nullopt));
      }
    } catch (...) {
      if (partial.block != nullptr && !isTakenOver) {
        unclaim(partial.block);
      }
      throw;
    }
    return matchedTokens;
  }

  void claim(BlockPtr const &block) {
    if (!block->hasRefs()) {
      mPolicy->claimBlock(block, block->getPriority(), block->getDurationMs());
    }
    block->incRefCount();
  }
  void unclaim(BlockPtr const &block) {
    block->decRefCount();
    if (!block->hasRefs()) {
      mPolicy->releaseBlock(block);
    }
  }
  void pinBlock(BlockPtr const &block) { claim(block); }

  // Last to first; what is in no tree any more is taken next.
  void release(std::vector<BlockPtr> const &blocks) {
    for (auto block = blocks.rbegin(); block != blocks.rend(); ++block) {
      (*block)->decRefCount();
      if (!(*block)->hasRefs()) {
        mPolicy->releaseBlock(*block, !(*block)->isAttached());
      }
    }
  }

  // Only the victim leaves the tree; what hangs below it stays, and is not found until its place is
  // taken again.
  BlockPtr takeFreeBlock(std::optional<RetentionPriority> priority, std::optional<std::chrono::milliseconds> duration) {
    auto [block, canOffload] = mPolicy->getFreeBlock(kPrimaryLevel);
    if (canOffload && block->isAttached() && mPolicy->getNumFreeBlocks(kSecondaryLevel) > 0) {
      BlockPtr const victim = block;
      BlockPtr const host = std::get<0>(mPolicy->getFreeBlock(kSecondaryLevel));
      mPolicy->claimBlock(victim, victim->getPriority(), victim->getDurationMs());
      mPolicy->claimBlock(host, host->getPriority(), host->getDurationMs());
      mTree.detach(host, mWindowSize);
      std::memcpy(bytes(host), bytes(victim), mBlockBytes);
      victim->swapMemoryPoolBlockOffset(host);
      mPolicy->releaseBlock(victim);
      block = host;
    }
    mTree.detach(block, mWindowSize);
    mPolicy->claimBlock(block, priority.value_or(kDefaultRetentionPriority), duration);
    block->incRefCount();
    return block;
  }

  void onboard(BlockPtr const &block) {
    if (block->isPrimary()) {
      return;
    }
    BlockPtr const fresh = takeFreeBlock(std::nullopt, std::nullopt);
    std::memcpy(bytes(fresh), bytes(block), mBlockBytes);
    block->swapMemoryPoolBlockOffset(fresh);
    fresh->decRefCount();
    mPolicy->releaseBlock(fresh);
  }

  [[nodiscard]] std::uint8_t *bytes(BlockPtr const &block) {
    auto &pool = block->isPrimary() ? mPrimaryPool : mSecondaryPool;
    return pool.data() + static_cast<std::size_t>(block->getMemoryPoolBlockIndex()) * mBlockBytes;
  }

  SizeType32 mWindowSize;
  WindowSizeMetadata mMetadata;
  SizeType32 mTokensPerBlock;
  std::size_t mBlockBytes;
  UnifiedBlockTree &mTree;
  std::shared_ptr<BaseEvictionPolicy> mPolicy;
  BlockPtr mRoot;
  std::vector<std::uint8_t> mPrimaryPool;
  std::vector<std::uint8_t> mSecondaryPool;
  std::vector<BlockPtr> mAllBlocksById;
  std::map<RequestIdType, std::vector<BlockPtr>> mAllocatedBlocksPerSeq;
};

class BlockManager {
 public:
  BlockManager(BlocksPerWindow const &blocksPerWindow, SizeType32 tokensPerBlock, std::size_t blockBytes,
               PolicyFactory const &policyFactory)
      : mTokensPerBlock(tokensPerBlock) {
    for (auto const &[windowSize, counts] : blocksPerWindow) {
      mWindowSizesMetadata[windowSize] = {std::get<0>(counts), std::get<1>(counts)};
      mWindows.try_emplace(windowSize, windowSize, mWindowSizesMetadata[windowSize], tokensPerBlock, blockBytes, mTree,
                           policyFactory ? policyFactory(windowSize) : std::make_shared<LRUEvictionPolicy>());
    }
  }

  [[nodiscard]] std::map<SizeType32, WindowSizeMetadata> const &getWindowSizesMetadata() const {
    return mWindowSizesMetadata;
  }
  [[nodiscard]] SizeType32 getTokensPerBlock() const { return mTokensPerBlock; }
  [[nodiscard]] BlockPtr const &getBlockById(KVCacheBlock::IdType id, SizeType32 windowSize) const {
    return mWindows.at(windowSize).getBlockById(id);
  }
  [[nodiscard]] WindowBlockManager &window(SizeType32 windowSize) { return mWindows.at(windowSize); }
  [[nodiscard]] WindowBlockManager const &window(SizeType32 windowSize) const { return mWindows.at(windowSize); }
  [[nodiscard]] std::map<SizeType32, WindowBlockManager> &windows() { return mWindows; }
  [[nodiscard]] UnifiedBlockTree &tree() { return mTree; }

 private:
  SizeType32 mTokensPerBlock;
  std::map<SizeType32, WindowSizeMetadata> mWindowSizesMetadata;
  UnifiedBlockTree mTree;
  std::map<SizeType32, WindowBlockManager> mWindows;
};

class BaseKVCacheManager {
 public:
  using RequestIdType = LlmRequest::RequestIdType;
  using IdType = KVCacheBlock::IdType;

  virtual ~BaseKVCacheManager() = default;

  virtual void addSequenceBatch(std::vector<std::tuple<RequestIdType, SizeType32, SizeType32>> const &requestInfos,
                                std::vector<std::reference_wrapper<LlmRequest>> const &requests) = 0;
  virtual void addToken(RequestIdType requestId) = 0;
  virtual void removeSequence(RequestIdType requestId, OptionalRef<LlmRequest const> llmRequest = std::nullopt,
                              bool pinOnRelease = false) = 0;
  virtual void storeContextBlocks(LlmRequest const &request) = 0;
  virtual void storeNewBlock(LlmRequest const &request) = 0;
  [[nodiscard]] virtual std::vector<IdType> storeBlocksForReuse(RequestIdType requestId,
                                                                OptionalRef<LlmRequest const> llmRequest,
                                                                bool pinBlocks = false) = 0;
  virtual void pinBlocks(RequestIdType requestId) = 0;
  virtual void pinBlocksById(std::vector<IdType> const &blockIds) = 0;
  virtual void unpinBlocksById(std::vector<IdType> const &blockIds) = 0;
  [[nodiscard]] virtual BlockPtr findBlocksInReuseTreeByBlockKey(BlockKey const &blockKey, SizeType32 windowSize) = 0;
  [[nodiscard]] virtual BlockPtr findBlocksInReuseTreeByBlockKey(BlockKey const &blockKey, SizeType32 windowSize,
                                                                 std::vector<IdType> &pinnedBlockIds) = 0;
  [[nodiscard]] virtual BlockPtr findBlocksInReuseTreeByBlockKeys(std::vector<BlockKey> const &blockKeys,
                                                                  SizeType32 windowSize) = 0;
  [[nodiscard]] virtual std::vector<std::vector<SizeType32>> getCacheBlockIds(RequestIdType requestId,
                                                                              SizeType32 windowSize) const = 0;
  [[nodiscard]] virtual SizeType32 getNumFreeBlocks() const = 0;
  [[nodiscard]] virtual SizeType32 getTokensPerBlock() const = 0;
  virtual void refreshBlocks() = 0;
  virtual void resetReuseState() = 0;
  [[nodiscard]] virtual BlockManager const &getBlockManager() const = 0;
};

class KVCacheManager : public BaseKVCacheManager {
 public:
  KVCacheManager(BlocksPerWindow const &blocksPerWindow, SizeType32 tokensPerBlock, std::size_t blockBytes,
                 PolicyFactory const &policyFactory = nullptr)
      : mBlockManager(blocksPerWindow, tokensPerBlock, blockBytes, policyFactory) {}

  void addSequenceBatch(std::vector<std::tuple<RequestIdType, SizeType32, SizeType32>> const &requestInfos,
                        std::vector<std::reference_wrapper<LlmRequest>> const &requests) override {
    std::lock_guard const lock(mBlockManager.tree().getMutex());
    for (std::size_t at = 0; at < requestInfos.size(); ++at) {
      auto const [requestId, inputLength, beamWidth] = requestInfos[at];
      common::check(beamWidth == 1, "the stand-in has one beam");
      LlmRequest &request = requests.at(at);
      auto prepopulated = inputLength;
      for (auto &[windowSize, window] : mBlockManager.windows()) {
        prepopulated = std::min(prepopulated, window.addSequence(requestId, inputLength, request));
      }
      request.setPrepopulatedPromptLen(prepopulated, getTokensPerBlock());
      mNumTokens[requestId] = inputLength;
    }
  }
  void addToken(RequestIdType requestId) override {
    auto &numTokens = mNumTokens.at(requestId);
    ++numTokens;
    for (auto &[windowSize, window] : mBlockManager.windows()) {
      window.addToken(requestId, numTokens);
    }
  }
  void removeSequence(RequestIdType requestId, OptionalRef<LlmRequest const> request = std::nullopt,
                      bool pinOnRelease = false) override {
    for (auto &[windowSize, window] : mBlockManager.windows()) {
      if (request.has_value()) {
        window.storeBlocks(*request, storableTokens(*request), true, pinOnRelease);
      }
      window.releaseBlocks(requestId);
    }
    mNumTokens.erase(requestId);
  }
  void storeContextBlocks(LlmRequest const &request) override { storeFullBlocks(request); }
  void storeNewBlock(LlmRequest const &request) override { storeFullBlocks(request); }
  // The last window's ids only.
  std::vector<IdType> storeBlocksForReuse(RequestIdType, OptionalRef<LlmRequest const> request,
                                          bool pinBlocks = false) override {
    common::check(request.has_value(), "what is stored is known by its request");
    std::vector<IdType> ids;
    for (auto &[windowSize, window] : mBlockManager.windows()) {
      ids = window.storeBlocks(*request, storableTokens(*request), true, pinBlocks);
    }
    return ids;
  }
  void pinBlocks(RequestIdType requestId) override {
    for (auto &[windowSize, window] : mBlockManager.windows()) {
      window.pinBlocks(requestId);
    }
  }
  void pinBlocksById(std::vector<IdType> const &blockIds) override { onlyWindow().pinBlocksById(blockIds); }
  void unpinBlocksById(std::vector<IdType> const &blockIds) override { onlyWindow().unpinBlocksById(blockIds); }
  BlockPtr findBlocksInReuseTreeByBlockKey(BlockKey const &blockKey, SizeType32 windowSize) override {
    return mBlockManager.window(windowSize).find(blockKey, nullptr);
  }
  BlockPtr findBlocksInReuseTreeByBlockKey(BlockKey const &blockKey, SizeType32 windowSize,
                                           std::vector<IdType> &pinnedBlockIds) override {
    return mBlockManager.window(windowSize).find(blockKey, &pinnedBlockIds);
  }
  BlockPtr findBlocksInReuseTreeByBlockKeys(std::vector<BlockKey> const &blockKeys, SizeType32 windowSize) override {
    return mBlockManager.window(windowSize).find(blockKeys, nullptr);
  }
  std::vector<std::vector<SizeType32>> getCacheBlockIds(RequestIdType requestId, SizeType32 windowSize) const override {
    return {mBlockManager.window(windowSize).blockIds(requestId)};
  }
  SizeType32 getNumFreeBlocks() const override {
    return mBlockManager.window(mBlockManager.getWindowSizesMetadata().rbegin()->first).getNumFreeBlocks();
  }
  SizeType32 getTokensPerBlock() const override { return mBlockManager.getTokensPerBlock(); }
  void refreshBlocks() override {
    for (auto &[windowSize, window] : mBlockManager.windows()) {
      window.refreshBlocks();
    }
  }
  void resetReuseState() override {
    for (auto &[windowSize, window] : mBlockManager.windows()) {
      window.resetReuseState();
    }
  }
  BlockManager const &getBlockManager() const override { return mBlockManager; }
  BlockManager &blockManager() { return mBlockManager; }

 private:
  // What is computed for sure: the last token's KV never is, once there is one more.
  static SizeType32 storableTokens(LlmRequest const &request) {
    bool const isPrefill = request.getContextCurrentPosition() < request.getPromptLen();
    return isPrefill && request.getContextCurrentPosition() > 0 ? request.getContextCurrentPosition()
                                                                : request.getNumTokens(0) - 1;
  }
  void storeFullBlocks(LlmRequest const &request) {
    for (auto &[windowSize, window] : mBlockManager.windows()) {
      window.storeBlocks(request, storableTokens(request), false, false);
    }
  }
  WindowBlockManager &onlyWindow() {
    common::check(mBlockManager.windows().size() == 1, "pins by id are for one window; ids of windows collide");
    return mBlockManager.windows().begin()->second;
  }

  BlockManager mBlockManager;
  std::map<RequestIdType, SizeType32> mNumTokens;
};

}  // namespace tensorrt_llm::batch_manager::kv_cache_manager
