// The router: knows from worker A's announcements which blocks A holds, and writes the KV hint that
// goes with each request to worker B, as raw bytes. Some of them are what B must survive.
// usage: router RUN_DIR
#include "files.hpp"
#include "model.hpp"

#include <kvhints.hpp>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <set>
#include <string>
#include <vector>

namespace {

std::string envelope(const std::string &message_id, const std::string &endpoint,
                     const std::vector<std::uint64_t> &hashes) {
  std::string list;
  for (std::uint64_t hash : hashes) {
    list += (list.empty() ? "" : ",") + std::to_string(hash);
  }
  // Pretty-printed, with a member of the router's own: both are legal, and both travel.
  return "{\n  \"protocol_version\": \"0.1\",\n  \"message_id\": \"" + message_id +
         "\",\n  \"router\": {\"policy\": \"longest-prefix\"},\n  \"actions\": [{\n"
         "    \"action_id\": \"fetch-1\", \"action_type\": \"kv.fetch\", \"action_version\": \"1.0\",\n"
         "    \"payload\": {\"source_control_endpoint\": \"" +
         endpoint + "\",\n      \"block_hashes\": [" + list + "]}\n  }]\n}\n";
}

class Router {
 public:
  explicit Router(std::string run_dir) : run_dir_(std::move(run_dir)) {
    const files::Note announced = files::read_note(run_dir_ + "/a.ready");
    endpoint_ = files::value(announced, "endpoint");
    for (auto [at, end] = announced.equal_range("block_hash"); at != end; ++at) {
      held_by_a_.insert(std::stoull(at->second));
    }
  }

  void write_all() const {
    const auto boat = prefix_on_a("boat");
    if (boat.empty()) {
      throw std::runtime_error("worker A announced no block of the conversation to be continued");
    }
    write("continue", envelope("msg-1", endpoint_, boat));
    const auto bridge = prefix_on_a("bridge");
    write("malformed", envelope("msg-2", endpoint_, bridge).substr(0, 300));
    std::vector<std::uint64_t> too_many;
    for (std::uint64_t hash = 0; hash < 4000; ++hash) {
      too_many.push_back(model::mix(hash));
    }
    write("oversized", envelope("msg-3", endpoint_, too_many));
    write("untrusted", envelope("msg-4", endpoint_, bridge));
    write("unlisted", envelope("msg-5", "http://127.0.0.2:1/v1/data_transceiver_state", bridge));
    write("lora", envelope("msg-6", endpoint_, bridge));
    write("evicted", envelope("msg-7", endpoint_, prefix_on_a("oven")));
  }

 private:
  // The longest prefix of the conversation's blocks that A announced.
  std::vector<std::uint64_t> prefix_on_a(const std::string &conversation) const {
    const auto tokens = files::read_tokens(run_dir_ + "/" + conversation + ".tokens");
    const kvhints::Sequence sequence(model::tokens_per_block, tokens, model::name);
    std::vector<std::uint64_t> hashes = sequence.block_hashes();
    const auto unknown = std::find_if(hashes.begin(), hashes.end(),
                                      [this](std::uint64_t hash) { return held_by_a_.count(hash) == 0; });
    hashes.erase(unknown, hashes.end());
    return hashes;
  }

  void write(const std::string &name, const std::string &bytes) const {
    files::write(run_dir_ + "/" + name + ".envelope", bytes);
  }

  std::string run_dir_;
  std::string endpoint_;
  std::set<std::uint64_t> held_by_a_;
};

}  // namespace

int main(int argc, char **argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: router RUN_DIR\n");
    return 2;
  }
  try {
    Router(argv[1]).write_all();
    return 0;
  } catch (const std::exception &error) {
    std::fprintf(stderr, "router: %s\n", error.what());
    return 1;
  }
}
