// Stand-in for BlockKey: what one block of tokens is to the reuse tree, its hash, and how a request is
// cut into such keys.
#pragma once

#include "llm_request.hpp"

#include <algorithm>
#include <array>
#include <functional>
#include <list>

namespace tensorrt_llm::batch_manager::kv_cache_manager {

using runtime::LoraTaskIdType;
using runtime::SizeType32;
using runtime::UniqueToken;
using runtime::VecUniqueTokens;
using VecTokens = std::vector<runtime::TokenIdType>;

// A multimodal item's part in a block: what the item is, and where in it the block begins.
struct MmKey {
  std::array<std::uint8_t, 32> hash;
  SizeType32 startOffset;

  bool operator==(MmKey const &other) const noexcept { return hash == other.hash && startOffset == other.startOffset; }
};

struct BlockKey {
  bool usesExtraIds = false;
  std::optional<LoraTaskIdType> loraTaskId;
  VecUniqueTokens uniqueTokens;
  std::vector<MmKey> extraKeys;
  std::optional<std::string> cacheSalt;

  BlockKey() = default;
  explicit BlockKey(VecTokens const &tokens, std::optional<LoraTaskIdType> lora = std::nullopt) : loraTaskId(lora) {
    for (auto token : tokens) {
      uniqueTokens.push_back({token, 0});
    }
  }
  BlockKey(bool usesExtraIdsValue, std::optional<LoraTaskIdType> lora, VecUniqueTokens tokens,
           std::vector<MmKey> mmKeys = {}, std::optional<std::string> salt = std::nullopt)
      : usesExtraIds(usesExtraIdsValue),
        loraTaskId(lora),
        uniqueTokens(std::move(tokens)),
        extraKeys(std::move(mmKeys)),
        cacheSalt(std::move(salt)) {}

  bool operator==(BlockKey const &other) const noexcept {
    return uniqueTokens == other.uniqueTokens && isOfOneKindWith(other);
  }
  // Leading tokens in common; none where anything else differs.
  [[nodiscard]] int numMatchingTokens(BlockKey const &other) const noexcept {
    if (!isOfOneKindWith(other)) {
      return 0;
    }
    auto const ends = std::mismatch(uniqueTokens.begin(), uniqueTokens.end(), other.uniqueTokens.begin(),
                                    other.uniqueTokens.end());
    return static_cast<int>(ends.first - uniqueTokens.begin());
  }
  [[nodiscard]] bool supportsPartialMatching() const noexcept { return extraKeys.empty(); }

 private:
  [[nodiscard]] bool isOfOneKindWith(BlockKey const &other) const noexcept {
    return usesExtraIds == other.usesExtraIds && loraTaskId == other.loraTaskId && extraKeys == other.extraKeys &&
           cacheSalt == other.cacheSalt;
  }
};

// The 64-bit hash of a block, chained to its parent's.
struct BlockKeyHasher {
  [[nodiscard]] static std::size_t hash(BlockKey const &key, std::size_t parentHash = 0) noexcept {
    std::uint64_t seed = key.uniqueTokens.size() ^ (parentHash * 0xbf58476d1ce4e5b9u);
    if (parentHash == 0 && key.cacheSalt) {
      seed = mix64(std::hash<std::string>{}(*key.cacheSalt), seed);
    }
    for (UniqueToken const &token : key.uniqueTokens) {
      seed = mix32(static_cast<std::uint32_t>(token.tokenId), seed);
      if (key.usesExtraIds) {
        seed = mix64(token.tokenExtraId, seed);
      }
    }
    if (key.loraTaskId) {
      seed = mix64(*key.loraTaskId, seed);
    }
    for (MmKey const &item : key.extraKeys) {
      for (std::size_t word = 0; word < 8; ++word) {
        std::uint32_t value = 0;
        for (std::size_t byte = 4; byte-- > 0;) {
          value = (value << 8) | item.hash[word * 4 + byte];
        }
        seed = mix32(value, seed);
      }
      seed = mix64(static_cast<std::uint64_t>(item.startOffset), seed);
    }
    return seed;
  }
  std::size_t operator()(BlockKey const &key) const noexcept { return hash(key); }

 private:
  static std::uint64_t mix32(std::uint32_t value, std::uint64_t seed) noexcept {
    value = ((value >> 16) ^ value) * 0x45d9f3bu;
    value = ((value >> 16) ^ value) * 0x45d9f3bu;
    value = ((value >> 16) ^ value) + 0x9e3779b9u;
    return seed ^ (value + (seed << 6) + (seed >> 2));
  }
  static std::uint64_t mix64(std::uint64_t value, std::uint64_t seed) noexcept {
    value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
    value = (value ^ (value >> 27)) * 0x94d049bb133111ebu;
    value ^= value >> 31;
    return seed ^ (value + 0x9e3779b9u + (seed << 6) + (seed >> 2));
  }
};

// Runs of tokensPerBlock from the first usableSize elements; a last short one only with allowPartial.
template <typename T>
std::list<std::vector<T>> chopVectorIntoBlocks(std::vector<T> const &values, SizeType32 usableSize,
                                               SizeType32 tokensPerBlock, bool allowPartial) {
  common::check(usableSize <= static_cast<SizeType32>(values.size()), "more tokens are used than there are");
  std::list<std::vector<T>> blocks;
  for (SizeType32 start = 0; start < usableSize; start += tokensPerBlock) {
    SizeType32 const end = std::min(start + tokensPerBlock, usableSize);
    if (end - start == tokensPerBlock || allowPartial) {
      blocks.emplace_back(values.begin() + start, values.begin() + end);
    }
  }
  return blocks;
}

// The multimodal keys of the block that holds the tokens start .. end.
inline std::vector<MmKey> generateBlockHashExtraKeys(LlmRequest const &request, SizeType32 start, SizeType32 end) {
  std::vector<MmKey> keys;
  auto const hashes = request.getMultimodalHashes();
  if (!hashes) {
    return keys;
  }
  auto const &positions = **request.getMultimodalPositions();
  auto const &lengths = **request.getMultimodalLengths();
  for (std::size_t item = 0; item < (*hashes)->size(); ++item) {
    SizeType32 const begin = positions.at(item);
    if (begin >= end || begin + lengths.at(item) <= start) {
      continue;
    }
    MmKey key{{}, begin >= start ? 0 : start - begin};
    common::check((**hashes)[item].size() == 8, "a multimodal hash has 8 words");
    for (std::size_t byte = 0; byte < 32; ++byte) {
      auto const word = static_cast<std::uint32_t>((**hashes)[item][byte / 4]);
      key.hash[byte] = static_cast<std::uint8_t>(word >> (24 - byte % 4 * 8));
    }
    keys.push_back(key);
  }
  return keys;
}

// A key for each block of a request, each with the multimodal keys of its own tokens.
inline std::vector<BlockKey> buildBlockKeys(std::list<VecUniqueTokens> &blockedUniqueTokens, LlmRequest const &request) {
  std::vector<BlockKey> keys;
  SizeType32 start = 0;
  for (VecUniqueTokens &tokens : blockedUniqueTokens) {
    auto const end = start + static_cast<SizeType32>(tokens.size());
    keys.emplace_back(request.getInputTokensExtraIds().has_value(), request.getLoraTaskId(), std::move(tokens),
                      generateBlockHashExtraKeys(request, start, end), request.getCacheSalt());
    start = end;
  }
  return keys;
}

}  // namespace tensorrt_llm::batch_manager::kv_cache_manager
