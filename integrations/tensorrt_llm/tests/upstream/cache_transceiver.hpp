// Stand-in for the cache transceiver: a generation-only request gets the blocks of its prompt out of
// another worker's reuse tree, whose state it carries. Inside one process; a worker's state is its number.
//
// With the original's ways: the receiver's key has no salt and the extra keys of its last block alone; all
// or nothing; nothing is verified; what goes wrong in the sender's thread ends the sender for all.
#pragma once

#include "kv_cache_manager.hpp"

#include <future>
#include <unordered_set>

namespace tensorrt_llm::batch_manager {

using kv_cache_manager::BaseKVCacheManager;
using kv_cache_manager::BlockKey;
using kv_cache_manager::KVCacheManager;
using RequestVector = std::vector<std::shared_ptr<LlmRequest>>;

class ContextProgress;

struct RequestStatuses {
  std::unordered_set<LlmRequest::RequestIdType> completedRequestIds;
  std::unordered_set<LlmRequest::RequestIdType> errorRequestIds;
};

class BaseCacheTransceiver {
 public:
  virtual ~BaseCacheTransceiver() = default;
  virtual void respondAndSendAsync(std::shared_ptr<LlmRequest> llmRequest) = 0;
  virtual void respondAndSendLayerWise(RequestVector const &requests,
                                       std::shared_ptr<ContextProgress> const &progress) = 0;
  virtual void requestAndReceiveSync(std::shared_ptr<LlmRequest> llmRequest) = 0;
  virtual void requestAndReceiveAsync(std::shared_ptr<LlmRequest> llmRequest) = 0;
  virtual RequestStatuses checkContextTransferStatus(std::optional<int> const &atLeastRequestNum = std::nullopt,
                                                     bool markComplete = false) = 0;
  // Without a number it waits for all; with 0 it only looks.
  virtual void checkGenTransferStatus(std::optional<int> const &atLeastRequestNum = std::nullopt) = 0;
  [[nodiscard]] virtual bool checkGenTransferComplete() const = 0;
  virtual bool cancelRequest(std::shared_ptr<LlmRequest> llmRequest) = 0;
  [[nodiscard]] virtual std::vector<char> getSerializedDataTransceiverState() const { return {}; }
  [[nodiscard]] virtual bool hasPoisonedTransferBuffer() const { return false; }
};

class CacheTransceiver : public BaseCacheTransceiver {
 public:
  explicit CacheTransceiver(KVCacheManager *cacheManager) : mCacheManager(cacheManager) {
    std::lock_guard const lock(directory().mutex);
    mSelf = static_cast<char>(directory().workers.size());
    directory().workers.push_back(this);
  }
  ~CacheTransceiver() override {
    std::lock_guard const lock(directory().mutex);
    directory().workers.at(static_cast<std::size_t>(mSelf)) = nullptr;
  }

  void respondAndSendAsync(std::shared_ptr<LlmRequest> request) override {
    request->setState(LlmRequestState::kDISAGG_CONTEXT_TRANS_IN_PROGRESS);
    mResponses.push_back(std::move(request));
  }
  void respondAndSendLayerWise(RequestVector const &requests, std::shared_ptr<ContextProgress> const &) override {
    for (auto const &request : requests) {
      respondAndSendAsync(request);
    }
  }
  void requestAndReceiveSync(std::shared_ptr<LlmRequest> request) override {
    receive(*request);
    request->setState(LlmRequestState::kDISAGG_GENERATION_TRANS_COMPLETE);
  }
  void requestAndReceiveAsync(std::shared_ptr<LlmRequest> request) override {
    common::check(request != nullptr && request->isGenerationOnlyRequest(), "only generation-only requests receive");
    for (auto const &[waiting, future] : mRequesterFutures) {
      if (waiting->mRequestId == request->mRequestId) {
        return;
      }
    }
    mRequesterFutures.emplace_back(request, std::async(std::launch::async, [this, request] { receive(*request); }));
    request->setState(LlmRequestState::kDISAGG_GENERATION_TRANS_IN_PROGRESS);
  }
  RequestStatuses checkContextTransferStatus(std::optional<int> const &, bool markComplete) override {
    RequestStatuses statuses;
    for (auto const &request : mResponses) {
      statuses.completedRequestIds.insert(request->mRequestId);
      if (markComplete) {
        request->setState(LlmRequestState::kDISAGG_CONTEXT_COMPLETE);
      }
    }
    mResponses.clear();
    return statuses;
  }
  void checkGenTransferStatus(std::optional<int> const &atLeastRequestNum = std::nullopt) override {
    auto toWaitFor = atLeastRequestNum ? static_cast<std::size_t>(*atLeastRequestNum) : mRequesterFutures.size();
    for (auto at = mRequesterFutures.begin(); at != mRequesterFutures.end();) {
      auto &[request, future] = *at;
      if (toWaitFor == 0 && future.wait_for(std::chrono::seconds(0)) != std::future_status::ready) {
        ++at;
        continue;
      }
      toWaitFor -= toWaitFor > 0 ? 1 : 0;
      try {
        future.get();
        request->setState(LlmRequestState::kDISAGG_GENERATION_TRANS_COMPLETE);
      } catch (std::exception const &) {
        request->setState(LlmRequestState::kDISAGG_TRANS_ERROR);
      }
      at = mRequesterFutures.erase(at);
    }
  }
  [[nodiscard]] bool checkGenTransferComplete() const override { return mRequesterFutures.empty(); }
  bool cancelRequest(std::shared_ptr<LlmRequest>) override { return false; }
  [[nodiscard]] std::vector<char> getSerializedDataTransceiverState() const override { return {mSelf}; }
  [[nodiscard]] bool isSenderAlive() const { return mIsSenderAlive; }

 private:
  struct Directory {
    std::mutex mutex;
    std::vector<CacheTransceiver *> workers;
  };
  static Directory &directory() {
    static Directory directory;
    return directory;
  }

  void receive(LlmRequest const &request) {
    auto const &tokens = request.getUniqueTokens(0);
    auto const tokensPerBlock = mCacheManager->getTokensPerBlock();
    auto const numTokens = static_cast<std::int32_t>(tokens.size());
    BlockKey const lastBlockKey(
        request.getInputTokensExtraIds().has_value(), request.getLoraTaskId(), tokens,
        kv_cache_manager::generateBlockHashExtraKeys(request, numTokens / tokensPerBlock * tokensPerBlock, numTokens));
    auto const windowSize = mCacheManager->getBlockManager().getWindowSizesMetadata().begin()->first;
    auto &window = mCacheManager->blockManager().window(windowSize);
    auto const ids = window.blockIds(request.mRequestId);
    auto const skipped = static_cast<std::size_t>(request.getPrepopulatedPromptLen() / tokensPerBlock);
    std::lock_guard const lock(directory().mutex);
    auto const &state = request.getContextPhaseParams()->opaqueState;
    CacheTransceiver *const peer = directory().workers.at(static_cast<std::size_t>(state.at(0)));
    common::check(peer != nullptr && peer->mIsSenderAlive, "the sender is gone");
    peer->send(lastBlockKey, skipped, ids, window);
  }
  void send(BlockKey const &lastBlockKey, std::size_t skipped, std::vector<std::int32_t> const &to,
            kv_cache_manager::WindowBlockManager &destination) {
    auto const windowSize = mCacheManager->getBlockManager().getWindowSizesMetadata().begin()->first;
    auto &source = mCacheManager->blockManager().window(windowSize);
    std::vector<std::int32_t> pinned;
    auto const found = mCacheManager->findBlocksInReuseTreeByBlockKey(lastBlockKey, windowSize, pinned);
    if (found == nullptr || pinned.empty()) {
      throw std::runtime_error("not ready");
    }
    if (pinned.size() > to.size()) {
      mIsSenderAlive = false;
      mCacheManager->unpinBlocksById(pinned);
      throw std::runtime_error("more blocks than were asked for");
    }
    for (std::size_t at = skipped; at < pinned.size(); ++at) {
      auto const place = [](auto &window, std::int32_t id) {
        return window.primaryPool().data() +
               static_cast<std::size_t>(window.getBlockById(id)->getMemoryPoolBlockIndex()) * window.blockBytes();
      };
      std::memcpy(place(destination, to[at]), place(source, pinned[at]), source.blockBytes());
    }
    mCacheManager->unpinBlocksById(pinned);
  }

  KVCacheManager *mCacheManager;
  char mSelf = 0;
  bool mIsSenderAlive = true;
  RequestVector mResponses;
  std::vector<std::pair<std::shared_ptr<LlmRequest>, std::future<void>>> mRequesterFutures;
};

}  // namespace tensorrt_llm::batch_manager
