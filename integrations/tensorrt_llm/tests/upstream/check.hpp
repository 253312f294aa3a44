// Stand-in for the host's assertions, where a broken expectation is an exception, and its references that
// may be missing.
#pragma once

#include <optional>
#include <stdexcept>
#include <string>

namespace tensorrt_llm::common {

inline void check(bool holds, std::string const &text) {
  if (!holds) {
    throw std::runtime_error(text);
  }
}

template <typename T>
class OptionalRef {
 public:
  OptionalRef(std::nullopt_t = std::nullopt) {}
  OptionalRef(T &value) : mValue(&value) {}

  [[nodiscard]] bool has_value() const { return mValue != nullptr; }
  T &operator*() const { return *mValue; }

 private:
  T *mValue = nullptr;
};

}  // namespace tensorrt_llm::common
