// Stand-in for LlmRequest: the states in their order, and the getters that block management and the
// transceiver call. It decodes nothing.
#pragma once

#include "check.hpp"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace tensorrt_llm::runtime {

using SizeType32 = std::int32_t;
using TokenIdType = std::int32_t;
using TokenExtraIdType = std::uint64_t;
using LoraTaskIdType = std::uint64_t;

struct UniqueToken {
  TokenIdType tokenId;
  TokenExtraIdType tokenExtraId;

  bool operator==(UniqueToken const &other) const noexcept {
    return tokenId == other.tokenId && tokenExtraId == other.tokenExtraId;
  }
};
using VecUniqueTokens = std::vector<UniqueToken>;
using VecTokenExtraIds = std::vector<TokenExtraIdType>;

}  // namespace tensorrt_llm::runtime

namespace tensorrt_llm::executor {

// What a generation-only request knows of its context phase: an id, and the other worker's state.
struct ContextPhaseParams {
  std::uint64_t reqId;
  std::vector<char> opaqueState;
};

}  // namespace tensorrt_llm::executor

namespace tensorrt_llm::batch_manager {

// In chronological order: has a state been reached is a comparison of numbers. Only those from
// kCONTEXT_INIT up to, and without, kGENERATION_TO_COMPLETE are scheduled.
enum class LlmRequestState : std::int32_t {
  kUNKNOWN = 0,
  kENCODER_INIT = 1,
  kDISAGG_GENERATION_INIT = 8,
  kDISAGG_GENERATION_TRANS_IN_PROGRESS = 9,
  kCONTEXT_INIT = 10,
  kDISAGG_CONTEXT_INIT_AND_TRANS = 11,
  kDISAGG_GENERATION_TRANS_COMPLETE = 12,
  kGENERATION_IN_PROGRESS = 13,
  kGENERATION_TO_COMPLETE = 14,
  kGENERATION_COMPLETE = 20,
  kDISAGG_CONTEXT_TRANS_IN_PROGRESS = 21,
  kDISAGG_CONTEXT_COMPLETE = 22,
  kDISAGG_TRANS_ERROR = -1,
};

enum LlmRequestType {
  LLMREQUEST_TYPE_CONTEXT_AND_GENERATION = 0,
  LLMREQUEST_TYPE_CONTEXT_ONLY = 1,
  LLMREQUEST_TYPE_GENERATION_ONLY = 2,
};

class LlmRequest {
 public:
  using SizeType32 = runtime::SizeType32;
  using TokenIdType = runtime::TokenIdType;
  using RequestIdType = std::uint64_t;
  using VecTokens = std::vector<TokenIdType>;
  using MultimodalHashes = std::vector<std::vector<SizeType32>>;

  LlmRequest(RequestIdType requestId, SizeType32 maxNewTokens, std::shared_ptr<VecTokens> const &inputTokens,
             LlmRequestType type = LLMREQUEST_TYPE_CONTEXT_AND_GENERATION)
      : mRequestId(requestId),
        mMaxNewTokens(maxNewTokens),
        mType(type),
        mPromptLen(static_cast<SizeType32>(inputTokens->size())),
        mState(type == LLMREQUEST_TYPE_GENERATION_ONLY ? LlmRequestState::kDISAGG_GENERATION_INIT
                                                       : LlmRequestState::kCONTEXT_INIT) {
    for (TokenIdType token : *inputTokens) {
      addNewToken(token, 0);
    }
  }

  RequestIdType const mRequestId;
  SizeType32 const mMaxNewTokens;

  // Everything that is optional on a request, set before it is first used.
  void setInputTokenExtraIds(runtime::VecTokenExtraIds ids) {
    for (std::size_t at = 0; at < ids.size(); ++at) {
      mUniqueTokens.at(at).tokenExtraId = ids[at];
    }
    mInputTokenExtraIds = std::make_shared<runtime::VecTokenExtraIds>(std::move(ids));
  }
  void setLoraTaskId(runtime::LoraTaskIdType id) { mLoraTaskId = id; }
  void setCacheSalt(std::string salt) { mCacheSalt = std::move(salt); }
  void setMultimodal(MultimodalHashes hashes, std::vector<SizeType32> positions, std::vector<SizeType32> lengths) {
    mMultimodalHashes = std::make_shared<MultimodalHashes>(std::move(hashes));
    mMultimodalPositions = std::make_shared<std::vector<SizeType32>>(std::move(positions));
    mMultimodalLengths = std::make_shared<std::vector<SizeType32>>(std::move(lengths));
  }
  void setContextPhaseParams(executor::ContextPhaseParams params) { mContextPhaseParams = std::move(params); }

  void addNewToken(TokenIdType token, SizeType32 beam) {
    common::check(beam == 0, "the stand-in has one beam");
    mTokens.push_back(token);
    mUniqueTokens.push_back({token, 0});
  }
  [[nodiscard]] VecTokens const &getTokens(SizeType32) const { return mTokens; }
  [[nodiscard]] runtime::VecUniqueTokens const &getUniqueTokens(SizeType32) const { return mUniqueTokens; }
  [[nodiscard]] SizeType32 getNumTokens(SizeType32) const { return static_cast<SizeType32>(mTokens.size()); }
  [[nodiscard]] SizeType32 getPromptLen() const { return mPromptLen; }

  [[nodiscard]] LlmRequestState getState() const { return mState; }
  void setState(LlmRequestState state) { mState = state; }

  [[nodiscard]] SizeType32 getContextCurrentPosition() const { return mContextCurrentPosition; }
  void setContextCurrentPosition(SizeType32 position) { mContextCurrentPosition = position; }
  [[nodiscard]] SizeType32 getPrepopulatedPromptLen() const { return mPrepopulatedPromptLen; }
  // What is there already; prefill begins after it. Never the whole prompt; 0 leaves the position alone.
  void setPrepopulatedPromptLen(SizeType32 prepopulatedPromptLen, SizeType32 /*kvTokensPerBlock*/) {
    common::check(prepopulatedPromptLen < mPromptLen, "the whole prompt cannot be there already");
    mPrepopulatedPromptLen = prepopulatedPromptLen;
    if (prepopulatedPromptLen > 0) {
      setContextCurrentPosition(prepopulatedPromptLen);
    }
  }

  [[nodiscard]] std::optional<std::shared_ptr<runtime::VecTokenExtraIds>> const &getInputTokensExtraIds() const {
    return mInputTokenExtraIds;
  }
  [[nodiscard]] std::optional<runtime::LoraTaskIdType> getLoraTaskId() const { return mLoraTaskId; }
  [[nodiscard]] std::optional<std::string> const &getCacheSalt() const { return mCacheSalt; }
  [[nodiscard]] std::optional<std::shared_ptr<MultimodalHashes>> getMultimodalHashes() const {
    return mMultimodalHashes;
  }
  [[nodiscard]] std::optional<std::shared_ptr<std::vector<SizeType32>>> getMultimodalPositions() const {
    return mMultimodalPositions;
  }
  [[nodiscard]] std::optional<std::shared_ptr<std::vector<SizeType32>>> getMultimodalLengths() const {
    return mMultimodalLengths;
  }
  [[nodiscard]] std::optional<executor::ContextPhaseParams> const &getContextPhaseParams() const {
    return mContextPhaseParams;
  }

  [[nodiscard]] bool isContextOnlyRequest() const { return mType == LLMREQUEST_TYPE_CONTEXT_ONLY; }
  [[nodiscard]] bool isGenerationOnlyRequest() const { return mType == LLMREQUEST_TYPE_GENERATION_ONLY; }
  [[nodiscard]] bool isDummyRequest() const { return false; }

 private:
  LlmRequestType mType;
  SizeType32 mPromptLen;
  LlmRequestState mState;
  VecTokens mTokens;
  runtime::VecUniqueTokens mUniqueTokens;
  SizeType32 mContextCurrentPosition = 0;
  SizeType32 mPrepopulatedPromptLen = 0;
  std::optional<std::shared_ptr<runtime::VecTokenExtraIds>> mInputTokenExtraIds;
  std::optional<runtime::LoraTaskIdType> mLoraTaskId;
  std::optional<std::string> mCacheSalt;
  std::optional<std::shared_ptr<MultimodalHashes>> mMultimodalHashes;
  std::optional<std::shared_ptr<std::vector<SizeType32>>> mMultimodalPositions;
  std::optional<std::shared_ptr<std::vector<SizeType32>>> mMultimodalLengths;
  std::optional<executor::ContextPhaseParams> mContextPhaseParams;
};

}  // namespace tensorrt_llm::batch_manager
