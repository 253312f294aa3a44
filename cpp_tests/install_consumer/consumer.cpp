// Uses the installed library through its C++ header, and the adapter beside it for a host that is hardly one.
#include <kvhints.hpp>
#include <kvhints/tensorrt_llm.hpp>

#include <cstdio>

struct Token {
  std::int32_t tokenId;
  std::uint64_t tokenExtraId;
};
struct Key {
  bool usesExtraIds = false;
  std::optional<std::uint64_t> loraTaskId;
  std::vector<Token> uniqueTokens;
  std::vector<int> extraKeys;
  std::optional<std::string> cacheSalt;
};

int main() {
  kvhints::Context context;
  const auto hint = context.admit(
      kvhints::Ingress::trusted, R"({"protocol_version":"0.1","message_id":"m","actions":[]})");
  std::printf("%s: message id of %zu byte\n", kvh_version_string(), hint.snapshot.message_id().size());
  Key key;
  key.uniqueTokens = {{0, 0}, {1, 0}, {2, 0}, {3, 0}};
  const auto sequence = kvhints::trtllm::sequence_of_key({4, "model", nullptr}, key);
  const bool is_named = sequence && sequence->block_hashes().front() == 0x00029afbf4c44315;
  return hint.verdict == kvhints::Verdict::admitted && is_named ? 0 : 1;
}
