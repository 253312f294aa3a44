// What the tests of several objects share: owned handles, text arguments, the metrics.
#pragma once

#include "kvhints.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <string_view>

namespace support {

template <auto destroy>
struct Destroy {
  template <typename T>
  void operator()(T *object) const {
    destroy(object);
  }
};

template <typename T, auto destroy>
using Handle = std::unique_ptr<T, Destroy<destroy>>;

using Context = Handle<kvh_context_t, kvh_context_destroy>;
using Snapshot = Handle<kvh_snapshot_t, kvh_snapshot_release>;
using Error = Handle<kvh_error_t, kvh_error_destroy>;
using Buffer = Handle<kvh_buffer_t, kvh_buffer_release>;

inline kvh_str_t str(std::string_view text) { return {text.data(), text.size()}; }
inline kvh_bytes_t bytes(std::string_view text) {
  return {reinterpret_cast<const uint8_t *>(text.data()), text.size()};
}
inline std::string_view view(kvh_str_t text) { return {text.data, text.len}; }
inline std::string_view view(kvh_bytes_t bytes) {
  return {reinterpret_cast<const char *>(bytes.data), bytes.len};
}

inline Context context() {
  kvh_context_t *context = nullptr;
  EXPECT_EQ(kvh_context_create(nullptr, &context), KVH_OK);
  return Context(context);
}

inline std::string metrics(const kvh_context_t *context) {
  size_t length = 0;
  EXPECT_EQ(kvh_context_metrics(context, nullptr, 0, &length), KVH_OK);
  std::string text(length, '\0');
  EXPECT_EQ(kvh_context_metrics(context, text.data(), text.size(), &length), KVH_OK);
  return text;
}

// An admitted hint: ingress 2 is code in this process, verdict 0 is admitted.
inline Snapshot admitted(const kvh_context_t *context, std::string_view json) {
  int32_t verdict = -1;
  kvh_snapshot_t *snapshot = nullptr;
  const kvh_bytes_t data = bytes(json);
  EXPECT_EQ(kvh_admit(context, 2, data.data, data.len, &verdict, &snapshot), KVH_OK);
  EXPECT_EQ(verdict, 0);
  return Snapshot(snapshot);
}

}  // namespace support
