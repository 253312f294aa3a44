// A model for tests: the KV of a token is computed from the KV before it, as it lies in the cache, and the
// next token from the last KV. A wrong byte anywhere in a prompt's blocks gives other tokens.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

namespace model {

constexpr std::int32_t tokens_per_block = 4;
constexpr std::size_t bytes_per_token = 16;
constexpr std::size_t block_bytes = tokens_per_block * bytes_per_token;
constexpr const char *name = "model@7";

inline std::uint64_t mix(std::uint64_t value) {
  value += 0x9e3779b97f4a7c15;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9;
  value = (value ^ (value >> 27)) * 0x94d049bb133111eb;
  return value ^ (value >> 31);
}

// A request's blocks in the pool, by position of the token.
class Cache {
 public:
  Cache(std::vector<std::uint8_t> &pool, std::vector<std::int32_t> slots) : pool_(pool), slots_(std::move(slots)) {}

  // Computes the KV of one token. `beginning` is what the whole KV depends on besides: an adapter, a rank.
  void compute(std::size_t position, std::int32_t token, std::uint64_t beginning) {
    const std::uint64_t before = position == 0 ? beginning : read(position - 1);
    const std::uint64_t state = mix(before ^ static_cast<std::uint32_t>(token));
    const std::uint64_t values[2] = {state, mix(state)};
    std::memcpy(at(position), values, sizeof values);
  }
  std::int32_t next_token(std::size_t last_position) const {
    return static_cast<std::int32_t>(read(last_position) % 1000) + 1000;
  }

 private:
  std::uint8_t *at(std::size_t position) const {
    const auto slot = static_cast<std::size_t>(slots_.at(position / tokens_per_block));
    return pool_.data() + slot * block_bytes + position % tokens_per_block * bytes_per_token;
  }
  std::uint64_t read(std::size_t position) const {
    std::uint64_t values[2];
    std::memcpy(values, at(position), sizeof values);
    return values[0] ^ values[1] ^ mix(values[0]);
  }

  std::vector<std::uint8_t> &pool_;
  std::vector<std::int32_t> slots_;
};

}  // namespace model
