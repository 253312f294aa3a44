// The model that both workers pretend to run: its shape, and the KV bytes that tokens must give.
//
// Real attention keys and values of a token depend on all tokens before it, on the layer and on the
// head. So do these: a wrong token, block, layer, head or byte order anywhere gives other bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

namespace model {

constexpr const char *name = "two-workers-example/1";  // the namespace of content names
constexpr std::uint32_t tokens_per_block = 32;
constexpr std::uint32_t layers = 16;
constexpr std::uint32_t kv_heads = 8;  // of the whole model; tensor ranks share them out
constexpr std::uint32_t head_size = 64;
constexpr std::uint32_t bytes_per_value = 2;
constexpr std::uint32_t keys_and_values = 2;

constexpr std::uint32_t heads_per_rank(std::uint32_t ranks) { return kv_heads / ranks; }

// One block of one rank: [layer][key or value][head][token][value].
constexpr std::size_t block_bytes(std::uint32_t ranks) {
  return std::size_t{layers} * keys_and_values * heads_per_rank(ranks) * tokens_per_block * head_size *
         bytes_per_value;
}

inline std::uint64_t mix(std::uint64_t value) {
  value += 0x9e3779b97f4a7c15;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9;
  value = (value ^ (value >> 27)) * 0x94d049bb133111eb;
  return value ^ (value >> 31);
}

// The KV cache that a sequence of tokens must have on one rank.
class Attention {
 public:
  Attention(const std::vector<std::int32_t> &tokens, std::uint32_t rank, std::uint32_t ranks)
      : first_head_(rank * heads_per_rank(ranks)), heads_(heads_per_rank(ranks)) {
    std::uint64_t state = 0;
    for (std::int32_t token : tokens) {
      state = mix(state ^ static_cast<std::uint32_t>(token));
      states_.push_back(state);
    }
  }

  // Writes block `block`; positions after the last token stay as they are.
  void prefill(std::size_t block, std::uint8_t *out) const {
    for (std::uint32_t layer = 0; layer < layers; ++layer) {
      for (std::uint32_t kind = 0; kind < keys_and_values; ++kind) {
        for (std::uint32_t head = 0; head < heads_; ++head) {
          for (std::uint32_t slot = 0; slot < tokens_per_block; ++slot, out += head_size * bytes_per_value) {
            const std::size_t position = block * tokens_per_block + slot;
            if (position < states_.size()) {
              write_values(position, layer, kind, first_head_ + head, out);
            }
          }
        }
      }
    }
  }

 private:
  void write_values(std::size_t position, std::uint32_t layer, std::uint32_t kind, std::uint32_t head,
                    std::uint8_t *out) const {
    const std::uint64_t place = (std::uint64_t{layer} << 32) | (head << 1) | kind;
    std::uint64_t state = mix(states_[position] ^ mix(place));
    for (std::size_t at = 0; at < head_size * bytes_per_value; at += sizeof state) {
      state = mix(state);
      std::memcpy(out + at, &state, sizeof state);
    }
  }

  std::uint32_t first_head_;
  std::uint32_t heads_;
  std::vector<std::uint64_t> states_;  // what attention has seen up to each token
};

}  // namespace model
