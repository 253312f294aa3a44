// Admission beside its peers in C++: this library through its C interface, simdjson (DOM, a walk over
// it, minify) and nlohmann::json (DOM, the same checks, dump). Each does as much of the work of
// admission as it can: one strict text, the structure of an envelope, depth, and a compact copy.
//
//   admission write DIR      the inputs, for peers in other languages
//   admission time ROUNDS [CASE]
//                            lines of: case, subject, bytes, least and median microseconds
//
// Subjects take turns within each round, so that a busy machine is busy for all of them. Inputs come
// in variants that take turns too: one input over and over would train the branch predictor.
#include "kvhints.h"

#include <nlohmann/json.hpp>
#include <simdjson.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace {

constexpr size_t kVariants = 32;
constexpr size_t kCanonicalMaxBytes = 65536;
constexpr int kDepthMax = 200;

// Numbers that look random and are the same in each run.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t next() {
    state_ += 0x9e3779b97f4a7c15u;
    uint64_t mixed = state_;
    mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9u;
    mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111ebu;
    return mixed ^ (mixed >> 31);
  }

 private:
  uint64_t state_;
};

std::string repeat(std::string_view piece, size_t count) {
  std::string text;
  for (size_t index = 0; index < count; ++index) text += piece;
  return text;
}

// A kv.fetch envelope of exactly this length, filled with block hashes.
std::string envelope(size_t bytes, uint64_t seed) {
  const auto text = [](const std::string &hashes, size_t padding) {
    return R"({"protocol_version":"0.1","message_id":"msg-)" + std::string(padding, 'x') +
           R"(","actions":[{"action_id":"a1","action_type":"kv.fetch","action_version":"1.0","payload":)"
           R"({"source_control_endpoint":"tcp://127.0.0.1:23280","block_hashes":[)" +
           hashes + "]}}]}";
  };
  const size_t room = bytes - text("", 0).size();
  Random random(seed);
  std::string hashes;
  for (;;) {
    const std::string next = (hashes.empty() ? "" : ",") + std::to_string(random.next());
    if (hashes.size() + next.size() > room) return text(hashes, room - hashes.size());
    hashes += next;
  }
}

std::string with_extra(const std::string &extra) {
  return R"({"protocol_version":"0.1","message_id":"m","actions":[],"x":)" + extra + "}";
}

// As Python's json module writes it.
std::string spaced(const std::string &json) {
  std::string text;
  for (char byte : json) {
    text += byte;
    if (byte == ',' || (byte == ':' && text[text.size() - 2] == '"')) text += ' ';
  }
  return text;
}

struct Case {
  std::string name;
  std::vector<std::string> texts;
  bool honest;
};

std::vector<Case> cases() {
  const auto variants = [](auto make) {
    std::vector<std::string> texts;
    for (uint64_t seed = 0; seed < kVariants; ++seed) texts.push_back(make(seed));
    return texts;
  };
  std::string names;
  for (int name = 0; name < 6000; ++name) names += (name ? ",\"n" : "\"n") + std::to_string(name) + "\":0";
  const auto hostile = [](std::string name, std::string text) {
    return Case{"hostile: " + std::move(name), {std::move(text)}, false};
  };
  return {
      {"300 B", variants([](uint64_t seed) { return envelope(300, seed); }), true},
      {"1 KiB", variants([](uint64_t seed) { return envelope(1024, seed); }), true},
      {"64 KiB", variants([](uint64_t seed) { return envelope(65536, seed); }), true},
      {"64 KiB spaced", variants([](uint64_t seed) { return spaced(envelope(65536, seed)); }), true},
      hostile("unclosed brackets", with_extra(repeat("[", 1000000))),
      hostile("arrays", with_extra(repeat("[", 30000) + repeat("]", 30000))),
      hostile("objects", with_extra(repeat("{\"a\":", 10000) + "1" + repeat("}", 10000))),
      hostile("small objects", with_extra("[" + repeat("{\"a\":0},", 8000) + "0]")),
      hostile("names", with_extra("{" + names + "}")),
      hostile("a megabyte of digits", with_extra(repeat("7", 1000000))),
      hostile("digits one by one", with_extra("[" + repeat("1,", 30000) + "1]")),
      hostile("floats", with_extra("[" + repeat("1e308,", 10000) + "1]")),
      hostile("long fractions", with_extra("[" + repeat("0.1234567890123456789012345678901,", 1900) + "1]")),
      hostile("negative integers", with_extra("[" + repeat("-9223372036854775808,", 3000) + "1]")),
      hostile("escapes", with_extra("\"" + repeat("\\u00e9", 30000) + "\"")),
      hostile("escapes that stay", with_extra("\"" + repeat("\\n", 30000) + "\"")),
      hostile("characters", with_extra("\"" + repeat("a\xc3\xa9", 20000) + "\"")),
      hostile("short strings", with_extra("[" + repeat("\"\",", 20000) + "\"\"]")),
      hostile("blanks", with_extra(repeat(" \n", 500000) + "1")),
      hostile("blanks between digits", with_extra("[" + repeat("1 , ", 30000) + "1]")),
      hostile("words", with_extra("[" + repeat("true,null,", 6000) + "1]")),
  };
}

// ---- subjects: each returns the length of what it keeps, 0 if it refuses ----

size_t ours(const kvh_context_t *context, const std::string &raw) {
  int32_t verdict = -1;
  kvh_snapshot_t *snapshot = nullptr;
  const auto *data = reinterpret_cast<const uint8_t *>(raw.data());
  if (kvh_admit(context, KVH_INGRESS_TRUSTED, data, raw.size(), &verdict, &snapshot) != KVH_OK) std::abort();
  const size_t len = kvh_snapshot_json(snapshot).len;
  kvh_snapshot_release(snapshot);
  return len;
}

namespace sj = simdjson;

bool shallow(sj::dom::element element, int depth) {
  if (depth > kDepthMax) return false;
  if (element.is_array()) {
    const sj::dom::array array(element);
    for (sj::dom::element child : array) {
      if ((child.is_array() || child.is_object()) && !shallow(child, depth + 1)) return false;
    }
  } else if (element.is_object()) {
    const sj::dom::object object(element);
    for (auto field : object) {
      if ((field.value.is_array() || field.value.is_object()) && !shallow(field.value, depth + 1)) return false;
    }
  }
  return true;
}

size_t with_simdjson(sj::dom::parser &parser, std::string &kept, const std::string &raw) {
  sj::dom::element document;
  sj::dom::object root;
  std::string_view text;
  sj::dom::array actions;
  if (parser.parse(raw).get(document) || document.get(root)) return 0;
  if (root["protocol_version"].get(text) || text != "0.1") return 0;
  if (root["message_id"].get(text) || root["actions"].get(actions)) return 0;
  for (sj::dom::element action : actions) {
    sj::dom::object members, payload;
    if (action.get(members) || members["action_id"].get(text) || members["action_type"].get(text) ||
        members["action_version"].get(text) || members["payload"].get(payload)) {
      return 0;
    }
  }
  if (!shallow(document, 1)) return 0;
  kept.resize(raw.size());
  size_t len = 0;
  if (sj::minify(raw.data(), raw.size(), kept.data(), len)) return 0;
  kept.resize(len);
  return len <= kCanonicalMaxBytes ? len : 0;
}

bool shallow(const nlohmann::json &value, int depth) {
  if (depth > kDepthMax) return false;
  for (const auto &child : value) {
    if (child.is_structured() && !shallow(child, depth + 1)) return false;
  }
  return true;
}

size_t with_nlohmann(std::string &kept, const std::string &raw) {
  const auto root = nlohmann::json::parse(raw, nullptr, false);
  const auto is_string = [](const nlohmann::json &object, const char *name) {
    const auto found = object.find(name);
    return found != object.end() && found->is_string();
  };
  if (!root.is_object() || !is_string(root, "protocol_version") || !is_string(root, "message_id")) return 0;
  if (root["protocol_version"] != "0.1") return 0;
  const auto actions = root.find("actions");
  if (actions == root.end() || !actions->is_array()) return 0;
  for (const auto &action : *actions) {
    if (!action.is_object() || !is_string(action, "action_id") || !is_string(action, "action_type") ||
        !is_string(action, "action_version") || !action.contains("payload") || !action["payload"].is_object()) {
      return 0;
    }
  }
  if (!shallow(root, 1)) return 0;
  kept = root.dump();
  return kept.size() <= kCanonicalMaxBytes ? kept.size() : 0;
}

// ---- timing ----

struct Subject {
  std::string name;
  std::function<size_t(const std::string &)> admit;
};

double seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void report(const std::string &what, const std::string &who, size_t bytes, std::vector<double> &microseconds) {
  std::sort(microseconds.begin(), microseconds.end());
  std::printf("%s\t%s\t%zu\t%.4f\t%.4f\n", what.c_str(), who.c_str(), bytes, microseconds.front(),
              microseconds[microseconds.size() / 2]);
  std::fflush(stdout);
}

// The volatile sink keeps results alive.
volatile size_t g_sink;

void time_cases(const kvh_context_t *context, size_t rounds, const std::string &only) {
  sj::dom::parser parser;
  std::string kept;
  const Subject subjects[] = {
      {"kvhints", [&](const std::string &raw) { return ours(context, raw); }},
      {"simdjson", [&](const std::string &raw) { return with_simdjson(parser, kept, raw); }},
      {"nlohmann", [&](const std::string &raw) { return with_nlohmann(kept, raw); }},
  };
  for (const Case &one : cases()) {
    if (!only.empty() && one.name != only) continue;
    const size_t bytes = one.texts[0].size();
    // nlohmann recurses: the deep inputs are not for it. simdjson only gives the measure for one byte.
    const size_t count = one.honest ? 3 : 1;
    std::vector<double> times[3];
    size_t turns[3];
    for (size_t who = 0; who < count; ++who) {
      const double start = seconds();
      size_t done = 0;
      do {
        g_sink = subjects[who].admit(one.texts[done++ % one.texts.size()]);
        if (one.honest && g_sink == 0) std::abort();
      } while (seconds() - start < 0.02);
      // Half a millisecond: short enough that most samples are not interrupted.
      turns[who] = std::max<size_t>(1, done / 40);
    }
    size_t variant = 0;
    for (size_t round = 0; round < rounds; ++round) {
      for (size_t who = 0; who < count; ++who) {
        const double start = seconds();
        for (size_t turn = 0; turn < turns[who]; ++turn) {
          g_sink = subjects[who].admit(one.texts[variant++ % one.texts.size()]);
        }
        times[who].push_back((seconds() - start) / turns[who] * 1e6);
      }
    }
    for (size_t who = 0; who < count; ++who) report(one.name, subjects[who].name, bytes, times[who]);
  }
}

// Calls on a snapshot beside an empty exported one, a thousand at a time.
void time_calls(const kvh_context_t *context, size_t rounds) {
  const std::string raw = envelope(65536, 1);
  int32_t verdict = -1;
  kvh_snapshot_t *snapshot = nullptr;
  const auto *data = reinterpret_cast<const uint8_t *>(raw.data());
  if (kvh_admit(context, KVH_INGRESS_TRUSTED, data, raw.size(), &verdict, &snapshot) != KVH_OK) std::abort();
  const std::pair<const char *, std::function<void()>> calls[] = {
      {"empty exported call", [] { for (int turn = 0; turn < 1000; ++turn) g_sink = kvh_abi_version(); }},
      {"snapshot json", [&] { for (int turn = 0; turn < 1000; ++turn) g_sink = kvh_snapshot_json(snapshot).len; }},
      {"snapshot message id",
       [&] { for (int turn = 0; turn < 1000; ++turn) g_sink = kvh_snapshot_message_id(snapshot).len; }},
      {"snapshot action",
       [&] {
         for (int turn = 0; turn < 1000; ++turn) {
           kvh_action_t action;
           if (kvh_snapshot_action(snapshot, 0, &action) != KVH_OK) std::abort();
           g_sink = action.payload.len;
         }
       }},
      {"snapshot retain and release",
       [&] { for (int turn = 0; turn < 1000; ++turn) kvh_snapshot_release(kvh_snapshot_retain(snapshot)); }},
  };
  std::vector<double> times[std::size(calls)];
  for (size_t round = 0; round < rounds; ++round) {
    for (size_t which = 0; which < std::size(calls); ++which) {
      const double start = seconds();
      calls[which].second();
      times[which].push_back((seconds() - start) * 1e6 / 1000);
    }
  }
  for (size_t which = 0; which < std::size(calls); ++which) report(calls[which].first, "kvhints", 0, times[which]);
  kvh_snapshot_release(snapshot);
}

int write_inputs(const std::string &folder) {
  for (const Case &one : cases()) {
    if (!one.honest) continue;
    for (size_t variant = 0; variant < one.texts.size(); ++variant) {
      std::string name = one.name;
      std::replace(name.begin(), name.end(), ' ', '_');
      std::ofstream(folder + "/" + name + "." + std::to_string(variant) + ".json", std::ios::binary)
          << one.texts[variant];
    }
  }
  return 0;
}

}  // namespace

int main(int count, char **arguments) {
  const std::string mode = count == 3 || count == 4 ? arguments[1] : "";
  if (mode == "write") return write_inputs(arguments[2]);
  if (mode != "time") {
    std::fprintf(stderr, "usage: admission write DIR | admission time ROUNDS [CASE]\n");
    return 2;
  }
  const size_t rounds = std::strtoul(arguments[2], nullptr, 10);
  kvh_context_t *context = nullptr;
  if (rounds == 0 || kvh_context_create(nullptr, &context) != KVH_OK) return 1;
  time_cases(context, rounds, count == 4 ? arguments[3] : "");
  if (count == 3) time_calls(context, rounds);
  kvh_context_destroy(context);
  return 0;
}
