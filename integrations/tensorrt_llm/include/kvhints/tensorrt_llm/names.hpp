// What the host's requests and block keys are to kvhints: the same tokens, adapters, salts and images, as
// a sequence whose block hashes are the host's own and whose names are the same on all workers.
//
// Duck-typed: knows the host's members, never its headers. Guards that what the host tells apart gets
// different names, and that what cannot be named rightly gets none.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef KVHINTS_TENSORRT_LLM_NAMES_HPP
#define KVHINTS_TENSORRT_LLM_NAMES_HPP

#include <kvhints.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace kvhints::trtllm {

// What a worker's names are about. The same on all workers that exchange blocks.
struct Naming {
  std::uint32_t tokens_per_block = 0;
  // Model and weights revision, KV data type, position encoding; never the parallel layout.
  std::string namespace_bytes;
  // What a LoRA task id means on every worker, such as a digest of its weights. None, or an empty digest:
  // blocks with that adapter stay on this worker.
  std::function<std::string(std::uint64_t lora_task_id)> adapter_digest;
};

namespace detail {

template <typename T, typename = void>
struct HasSaltText : std::false_type {};
template <typename T>
struct HasSaltText<T, std::void_t<decltype(std::declval<const T &>().cacheSalt)>> : std::true_type {};

template <typename T, typename = void>
struct HasSaltTextGetter : std::false_type {};
template <typename T>
struct HasSaltTextGetter<T, std::void_t<decltype(std::declval<const T &>().getCacheSalt())>> : std::true_type {};

// A sequence in the making; owns what the parameters point to.
class SequenceParts {
 public:
  // unique_tokens: the host's pairs of token and extra id, of which the first token_count count.
  template <typename UniqueTokens>
  SequenceParts(const Naming &naming, const UniqueTokens &unique_tokens, std::size_t token_count, bool has_extra_ids)
      : naming_(naming) {
    const std::size_t count = std::min<std::size_t>(token_count, unique_tokens.size());
    tokens_.reserve(count);
    for (std::size_t at = 0; at < count; ++at) {
      tokens_.push_back(unique_tokens[at].tokenId);
      if (has_extra_ids) {
        extra_ids_.push_back(unique_tokens[at].tokenExtraId);
      }
    }
    params_.flags = has_extra_ids ? KVH_SEQUENCE_HAS_EXTRA_IDS : 0;
  }

  void set_lora(const std::optional<std::uint64_t> &task_id) {
    if (task_id) {
      params_.flags |= KVH_SEQUENCE_HAS_LORA;
      params_.lora_id = *task_id;
      adapter_digest_ = naming_.adapter_digest ? naming_.adapter_digest(*task_id) : std::string();
    }
  }
  // The host hashes the text with its standard library, and so does this: the number feeds the block
  // hashes of this worker alone, and the text the names.
  void set_salt(const std::optional<std::string> &salt) {
    if (salt) {
      set_salt(std::optional<std::uint64_t>(std::hash<std::string>{}(*salt)));
      salt_bytes_ = *salt;
    }
  }
  void set_salt(const std::optional<std::uint64_t> &salt) {
    if (salt) {
      params_.flags |= KVH_SEQUENCE_HAS_SALT;
      params_.salt = *salt;
    }
  }
  // One image or the like: 8 words of hash, most significant byte first; where it begins; how long it is.
  // What lies after the last token is left out. False for a hash of another length.
  template <typename Words>
  bool add_item(const Words &hash_words, std::int64_t start, std::int64_t length) {
    kvh_mm_item_t item{};
    if (hash_words.size() * 4 != sizeof item.hash || start < 0 || length < 0) {
      return false;
    }
    for (std::size_t byte = 0; byte < sizeof item.hash; ++byte) {
      const auto word = static_cast<std::uint32_t>(hash_words[byte / 4]);
      item.hash[byte] = static_cast<std::uint8_t>(word >> (24 - byte % 4 * 8));
    }
    const auto end = std::min<std::int64_t>(start + length, static_cast<std::int64_t>(tokens_.size()));
    if (end > start) {
      item.start = static_cast<std::uint32_t>(start);
      item.length = static_cast<std::uint32_t>(end - start);
      items_.push_back(item);
    }
    return true;
  }

  Sequence build() {
    params_.struct_size = sizeof params_;
    params_.tokens_per_block = naming_.tokens_per_block;
    params_.tokens = tokens_.data();
    params_.token_count = tokens_.size();
    params_.extra_ids = extra_ids_.empty() ? nullptr : extra_ids_.data();
    params_.mm_items = items_.data();
    params_.mm_item_count = items_.size();
    params_.namespace_bytes = borrow(as_bytes(naming_.namespace_bytes));
    params_.salt_bytes = borrow(as_bytes(salt_bytes_));
    params_.adapter_digest = borrow(as_bytes(adapter_digest_));
    return Sequence(params_);
  }

 private:
  const Naming &naming_;
  kvh_sequence_params_t params_{};
  std::vector<std::int32_t> tokens_;
  std::vector<std::uint64_t> extra_ids_;
  std::vector<kvh_mm_item_t> items_;
  std::string salt_bytes_;
  std::string adapter_digest_;
};

}  // namespace detail

// The sequence of a host's BlockKey that holds all tokens of a prompt. Nothing for one with extra keys:
// those are the last block's alone, so the blocks before it cannot be named; ask with the request.
template <typename BlockKey>
std::optional<Sequence> sequence_of_key(const Naming &naming, const BlockKey &key) {
  if (!key.extraKeys.empty()) {
    return std::nullopt;
  }
  detail::SequenceParts parts(naming, key.uniqueTokens, key.uniqueTokens.size(), key.usesExtraIds);
  parts.set_lora(key.loraTaskId);
  if constexpr (detail::HasSaltText<BlockKey>::value) {
    parts.set_salt(key.cacheSalt);
  } else {
    parts.set_salt(key.cacheSaltID);
  }
  return parts.build();
}

// The sequence of a request's first token_count tokens, generated ones included. Nothing for one whose
// images are described inconsistently.
template <typename LlmRequest>
std::optional<Sequence> sequence_of_request(const Naming &naming, const LlmRequest &request,
                                            std::size_t token_count = SIZE_MAX) {
  detail::SequenceParts parts(naming, request.getUniqueTokens(0), token_count,
                              request.getInputTokensExtraIds().has_value());
  parts.set_lora(request.getLoraTaskId());
  if constexpr (detail::HasSaltTextGetter<LlmRequest>::value) {
    parts.set_salt(request.getCacheSalt());
  } else {
    parts.set_salt(request.getCacheSaltID());
  }
  const auto hashes = request.getMultimodalHashes();
  if (hashes && *hashes) {
    const auto positions = request.getMultimodalPositions();
    const auto lengths = request.getMultimodalLengths();
    if (!positions || !lengths || (*positions)->size() != (*hashes)->size() ||
        (*lengths)->size() != (*hashes)->size()) {
      return std::nullopt;
    }
    for (std::size_t item = 0; item < (*hashes)->size(); ++item) {
      if (!parts.add_item((**hashes)[item], (**positions)[item], (**lengths)[item])) {
        return std::nullopt;
      }
    }
  }
  return parts.build();
}

}  // namespace kvhints::trtllm

#endif  // KVHINTS_TENSORRT_LLM_NAMES_HPP
