// The decided mode: rank 0 plans each of 10,000 requests once, every rank gets the same plan, byte for
// byte, or none, and only rank 0 counts.
#include "ranks.hpp"

#include <cstring>
#include <random>
#include <string>
#include <vector>

namespace {

constexpr size_t request_count = 10'000;
constexpr size_t batch_size = 625;

constexpr const char *table_json = R"({
  "version": 1,
  "bindings": [{"id": "pool", "family": "F", "addressing": "content_named",
                "actions": [{"type": "kv.fetch", "version": "1.0"}], "namespaces": ["n"]}],
  "endpoints": [{"endpoint": "tcp://known:1", "bindings": ["pool"]}]
})";

int rank = 0;

kvh_str_t str(const char *text) { return {text, std::strlen(text)}; }

// What a request brings, by chance: no hint, one for an endpoint that nobody knows, one for a known one
// with other hashes each time.
std::string hint_of(std::mt19937_64 &random) {
  const uint64_t kind = random() % 4;
  if (kind == 0) {
    return {};
  }
  std::string hashes = std::to_string(random());
  for (uint64_t more = random() % 30; more > 0; --more) {
    hashes += "," + std::to_string(random());
  }
  return R"({"protocol_version":"0.1","message_id":"m","actions":[{"action_id":"a","action_type":"kv.fetch",)"
         R"("action_version":"1.0","payload":{"source_control_endpoint":"tcp://)" +
         std::string(kind == 1 ? "stranger" : "known") + R"(:1","block_hashes":[)" + hashes + "]}}]}";
}

struct Planner {
  kvh_capabilities_t *capabilities = nullptr;
  kvh_binding_table_t *table = nullptr;
  kvh_request_profile_t profile{};

  Planner() {
    EXPECT(kvh_capabilities_create(&capabilities) == KVH_OK);
    EXPECT(kvh_capabilities_add(capabilities, str("F"), str("kv.fetch"), str("1.0")) == KVH_OK);
    const auto *json = reinterpret_cast<const uint8_t *>(table_json);
    EXPECT(kvh_binding_table_load(json, std::strlen(table_json), &table, nullptr) == KVH_OK);
    profile.struct_size = sizeof profile;
    profile.kind = KVH_REQUEST_CONTEXT;
    profile.has_lora = KVH_ANSWER_NO;
    profile.required_handoff = KVH_ANSWER_NO;
    profile.namespace_bytes = {reinterpret_cast<const uint8_t *>("n"), 1};
  }
  ~Planner() {
    kvh_binding_table_destroy(table);
    kvh_capabilities_destroy(capabilities);
  }
};

// FNV-1a over everything that a rank got, plans as the bytes that kvh_plan_to_bytes makes of them.
struct Digest {
  uint64_t value = 0xcbf29ce484222325u;
  size_t plans = 0;

  void add(const void *data, size_t len) {
    const auto *bytes = static_cast<const uint8_t *>(data);
    for (size_t at = 0; at < len; ++at) {
      value = (value ^ bytes[at]) * 0x100000001b3u;
    }
  }
  void add(const kvh_batch_request_t &request, const kvh_plan_t *plan) {
    add(&request.id, sizeof request.id);
    add(request.body.data, request.body.len);
    if (plan == nullptr) {
      add("none", 4);
      return;
    }
    ++plans;
    kvh_buffer_t *buffer = nullptr;
    EXPECT(kvh_plan_to_bytes(plan, &buffer) == KVH_OK);
    const kvh_bytes_t bytes = kvh_buffer_bytes(buffer);
    EXPECT(bytes.len > 0);
    add(bytes.data, bytes.len);
    kvh_buffer_release(buffer);
  }
};

kvh_batch_request_t get(const kvh_batch_t *batch, size_t index) {
  kvh_batch_request_t request{};
  request.struct_size = sizeof request;
  EXPECT(kvh_batch_get(batch, index, &request) == KVH_OK);
  return request;
}

// Rank 0: plans and gives a batch, and digests what the others must get.
void give(kvh_communicator_t *communicator, const kvh_context_t *context, const Planner &planner,
          std::mt19937_64 &random, uint64_t first_id, Digest &digest) {
  kvh_batch_t *batch = nullptr;
  EXPECT(kvh_batch_create(&batch) == KVH_OK);
  const std::string body = "body of a request";
  for (size_t index = 0; index < batch_size; ++index) {
    const std::string hint = hint_of(random);
    kvh_snapshot_t *snapshot = nullptr;
    if (!hint.empty()) {
      int32_t verdict = -1;
      const auto *json = reinterpret_cast<const uint8_t *>(hint.data());
      EXPECT(kvh_admit(context, 2, json, hint.size(), &verdict, &snapshot) == KVH_OK && verdict == 0);
    }
    kvh_plan_t *plan = nullptr;
    EXPECT(kvh_plan_decide(context, snapshot, planner.capabilities, planner.table, &planner.profile, &plan) == KVH_OK);
    kvh_batch_request_t request{};
    request.struct_size = sizeof request;
    request.id = first_id + index;
    request.body = {reinterpret_cast<const uint8_t *>(body.data()), random() % (body.size() + 1)};
    request.snapshot = snapshot;
    request.plan = plan;
    EXPECT(kvh_batch_add(batch, &request) == KVH_OK);
    digest.add(request, kvh_plan_kind(plan) == KVH_PLAN_LOCAL ? nullptr : plan);
    kvh_plan_destroy(plan);
    kvh_snapshot_release(snapshot);
  }
  EXPECT(kvh_broadcast(communicator, batch, nullptr) == KVH_OK);
  kvh_batch_destroy(batch);
}

void take(kvh_communicator_t *communicator, Digest &digest) {
  kvh_batch_t *received = nullptr;
  EXPECT(kvh_broadcast(communicator, nullptr, &received) == KVH_OK);
  EXPECT(kvh_batch_count(received) == batch_size);
  for (size_t index = 0; index < kvh_batch_count(received); ++index) {
    const kvh_batch_request_t request = get(received, index);
    EXPECT(request.snapshot == nullptr);
    EXPECT(request.plan == nullptr || kvh_plan_kind(request.plan) != KVH_PLAN_LOCAL);
    digest.add(request, request.plan);
  }
  kvh_batch_destroy(received);
}

// The counters of decisions, which another rank leaves at 0.
std::string counts(const kvh_context_t *context) {
  size_t len = 0;
  EXPECT(kvh_context_metrics(context, nullptr, 0, &len) == KVH_OK);
  std::string text(len + 1, '\0');
  EXPECT(kvh_context_metrics(context, text.data(), text.size(), &len) == KVH_OK);
  return text;
}

bool has_line(const std::string &text, const std::string &line) { return text.find("\n" + line + "\n") != std::string::npos; }

}  // namespace

int main(int argc, char **argv) {
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  kvh_context_t *context = ranks::create_context();
  kvh_communicator_params_t given = ranks::params();
  given.mode = KVH_BROADCAST_DECIDED;
  kvh_communicator_t *communicator = nullptr;
  EXPECT(ranks::create(context, given, MPI_COMM_WORLD, &communicator) == KVH_OK);

  Digest digest;
  {
    const Planner planner;
    std::mt19937_64 random(18);
    for (uint64_t first_id = 0; first_id < request_count; first_id += batch_size) {
      rank == 0 ? give(communicator, context, planner, random, first_id, digest) : take(communicator, digest);
    }
  }
  // Half of the requests have a hint for the known endpoint.
  EXPECT(digest.plans > request_count / 3 && digest.plans < request_count * 2 / 3);
  uint64_t smallest[2] = {digest.value, ~digest.value};
  EXPECT(kvh_communicator_min(communicator, smallest, 2, smallest) == KVH_OK);
  EXPECT(smallest[0] == digest.value && smallest[1] == ~digest.value);

  const std::string text = counts(context);
  EXPECT(has_line(text, "kvhints_plan_named_fetches_total " + std::to_string(rank == 0 ? digest.plans : 0)));
  EXPECT(has_line(text, "kvhints_broadcast_requests_total " + std::to_string(request_count)));

  EXPECT(kvh_communicator_close(communicator) == KVH_OK);
  kvh_communicator_destroy(communicator);
  kvh_context_destroy(context);
  const int code = ranks::exit_code();
  MPI_Finalize();
  return code;
}
