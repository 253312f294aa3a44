// What the router sends to worker B, one request after the other, and what each must come to.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

struct Request {
  std::uint64_t id;
  const char *title;
  const char *conversation;
  const char *envelope;
  bool is_trusted_here;  // whether the server that it came through trusts hints
  bool has_lora;
  const char *fallback;  // why it must end in local prefill; empty: it must be fetched
  const char *fallback_without_a;  // the same, where A is killed while the first request fetches
};

inline const std::vector<Request> &requests() {
  static const std::vector<Request> all = {
      {1, "continues a conversation that A served", "boat", "continue", true, false, "", "peer_gone"},
      {2, "a hint that is cut off", "bridge", "malformed", true, false, "malformed", "malformed"},
      {3, "a hint of 4,000 hashes, over 64 KiB", "bridge", "oversized", true, false, "oversized", "oversized"},
      {4, "a good hint, through a server that trusts none", "bridge", "untrusted", false, false, "untrusted", "untrusted"},
      {5, "a hint that names an unlisted endpoint", "bridge", "unlisted", true, false, "endpoint_unlisted", "endpoint_unlisted"},
      {6, "a good hint on a request with a LoRA adapter", "bridge", "lora", true, true, "lora", "lora"},
      {7, "a hint to blocks that A has evicted since", "oven", "evicted", true, false, "content_miss", "metadata_failed"},
  };
  return all;
}
