// Uses the installed library through its C++ header.
#include <kvhints.hpp>

#include <cstdio>

int main() {
  kvhints::Context context;
  const auto hint = context.admit(
      kvhints::Ingress::trusted, R"({"protocol_version":"0.1","message_id":"m","actions":[]})");
  std::printf("%s: message id of %zu byte\n", kvh_version_string(), hint.snapshot.message_id().size());
  return hint.verdict == kvhints::Verdict::admitted ? 0 : 1;
}
