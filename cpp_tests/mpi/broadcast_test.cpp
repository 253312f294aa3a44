// Rounds and agreements over MPI, any number of ranks: bodies of several chunks, shared snapshots,
// every topology that the ranks allow, every way in which messages can go, a root without a batch, ranks
// with bad input or other params, ranks that leave.
#include "ranks.hpp"

#include <cstring>
#include <vector>

namespace {

using ranks::params;

int rank = 0;
int size = 0;

constexpr const char *hint_json =
    R"({"protocol_version":"0.1","message_id":"m","actions":[{"action_id":"a","action_type":"kv.fetch",)"
    R"("action_version":"1.0","payload":{"block_hashes":[18446744073709551615,12345678901234567890,7]}}]})";

// Longer than two chunks of the default size.
constexpr size_t long_bytes = 9'000'001;

std::vector<uint8_t> body_of(size_t len, unsigned round) {
  std::vector<uint8_t> body(len);
  for (size_t at = 0; at < body.size(); ++at) {
    body[at] = static_cast<uint8_t>((at * 2654435761u >> 7) + round);
  }
  return body;
}

kvh_batch_t *sample(const kvh_context_t *context, const std::vector<uint8_t> &body) {
  int32_t verdict = -1;
  kvh_snapshot_t *snapshot = nullptr;
  const auto *json = reinterpret_cast<const uint8_t *>(hint_json);
  EXPECT(kvh_admit(context, 2, json, std::strlen(hint_json), &verdict, &snapshot) == KVH_OK);
  EXPECT(verdict == 0);
  kvh_batch_t *batch = nullptr;
  EXPECT(kvh_batch_create(&batch) == KVH_OK);
  for (uint64_t id = 0; id < 100; ++id) {
    kvh_batch_request_t request{};
    request.struct_size = sizeof request;
    request.id = id;
    request.body = {body.data(), id == 50 ? body.size() : static_cast<size_t>(id)};
    if (id % 2 == 0) {
      request.snapshot = snapshot;
    } else if (id % 4 == 1) {
      request.flags = KVH_BATCH_REQUEST_HAS_PARENT;
      request.parent = static_cast<uint32_t>(id - 1);
    }
    EXPECT(kvh_batch_add(batch, &request) == KVH_OK);
  }
  kvh_snapshot_release(snapshot);
  return batch;
}

void check(const kvh_batch_t *received, const std::vector<uint8_t> &body, bool has_snapshots) {
  EXPECT(kvh_batch_count(received) == 100);
  const kvh_snapshot_t *shared = nullptr;
  for (uint64_t id = 0; id < kvh_batch_count(received); ++id) {
    kvh_batch_request_t request{};
    request.struct_size = sizeof request;
    EXPECT(kvh_batch_get(received, id, &request) == KVH_OK);
    EXPECT(request.id == id);
    EXPECT(request.body.len == (id == 50 ? body.size() : id));
    EXPECT(request.body.len == 0 || std::memcmp(request.body.data, body.data(), request.body.len) == 0);
    EXPECT((request.flags == KVH_BATCH_REQUEST_HAS_PARENT) == (id % 4 == 1));
    const bool has_snapshot = has_snapshots && (id % 2 == 0 || id % 4 == 1);
    EXPECT((request.snapshot != nullptr) == has_snapshot);
    if (has_snapshot) {
      shared = shared == nullptr ? request.snapshot : shared;
      EXPECT(request.snapshot == shared);
      const kvh_bytes_t json = kvh_snapshot_json(request.snapshot);
      EXPECT(json.len == std::strlen(hint_json) && std::memcmp(json.data, hint_json, json.len) == 0);
    }
  }
}

kvh_status_t one_round(kvh_communicator_t *communicator, const kvh_context_t *context, unsigned round,
                       bool has_snapshots, size_t body_bytes = long_bytes) {
  const std::vector<uint8_t> body = body_of(body_bytes, round);
  kvh_batch_t *batch = rank == 0 ? sample(context, body) : nullptr;
  kvh_batch_t *received = nullptr;
  const kvh_status_t status = kvh_broadcast(communicator, batch, &received);
  EXPECT((received != nullptr) == (status == KVH_OK && rank != 0));
  if (received != nullptr) {
    check(received, body, has_snapshots);
  }
  kvh_batch_destroy(received);
  kvh_batch_destroy(batch);
  return status;
}

void every_topology(const kvh_context_t *context) {
  const auto ranks = static_cast<uint32_t>(size);
  for (uint32_t pipeline = 1; pipeline <= ranks; ++pipeline) {
    for (uint32_t context_parallel = 1; context_parallel <= ranks / pipeline; ++context_parallel) {
      if (ranks % (pipeline * context_parallel) != 0) {
        continue;
      }
      for (const uint32_t mode : {KVH_BROADCAST_FULL, KVH_BROADCAST_DECIDED}) {
        kvh_communicator_params_t given = params(0, pipeline, context_parallel);
        given.mode = mode;
        kvh_communicator_t *communicator = nullptr;
        EXPECT(ranks::create(context, given, MPI_COMM_WORLD, &communicator) == KVH_OK);
        EXPECT(kvh_communicator_rank(communicator) == static_cast<uint32_t>(rank));
        EXPECT(kvh_communicator_size(communicator) == ranks);
        for (unsigned round = 0; round < 2; ++round) {
          EXPECT(one_round(communicator, context, round, mode == KVH_BROADCAST_FULL) == KVH_OK);
        }
        EXPECT(kvh_communicator_close(communicator) == KVH_OK);
        EXPECT(kvh_communicator_close(communicator) == KVH_ERR_STATE);
        kvh_communicator_destroy(communicator);
      }
    }
  }
}

// A communicator on which each field that chooses how messages go has been set, and some rounds on it.
void every_way(const kvh_context_t *context) {
  const auto ranks = static_cast<uint32_t>(size);
  for (const uint32_t pipeline : {1u, ranks > 2 && ranks % 2 == 0 ? 2u : ranks}) {
    for (const uint32_t node_window : {KVH_NODE_WINDOW_ON, KVH_NODE_WINDOW_OFF}) {
      // More ranks than cores take their time: then some of the ways.
      for (unsigned way = 0; way < 16; way += size > 2 ? 5 : 1) {
        kvh_communicator_params_t given = params(0, pipeline);
        given.node_window = node_window;
        given.hint_form = (way & 1) != 0 ? KVH_HINT_FORM_PACKED : KVH_HINT_FORM_TEXT;
        given.pipeline_sends = (way & 2) != 0 ? KVH_PIPELINE_ASYNCHRONOUS : KVH_PIPELINE_SYNCHRONOUS;
        given.first_message_bytes = (way & 4) != 0 ? 4096 : 0;
        given.deadline_ns = (way & 8) != 0 ? uint64_t{200} * 1000 * 1000 * 1000 : 0;
        given.chunk_bytes = 64 << 10;
        kvh_communicator_t *communicator = nullptr;
        EXPECT(ranks::create(context, given, MPI_COMM_WORLD, &communicator) == KVH_OK);
        for (unsigned round = 0; round < 3; ++round) {
          EXPECT(one_round(communicator, context, round, true, 200'000) == KVH_OK);
        }
        kvh_batch_t *received = nullptr;
        EXPECT(kvh_broadcast(communicator, nullptr, &received) == KVH_ERR_INVALID_ARGUMENT);
        EXPECT(one_round(communicator, context, 7, true, 300) == KVH_OK);
        uint64_t value = 5 + static_cast<uint64_t>(rank);
        EXPECT(kvh_communicator_min(communicator, &value, 1, &value) == KVH_OK);
        EXPECT(value == 5);
        EXPECT(kvh_communicator_close(communicator) == KVH_OK);
        kvh_communicator_destroy(communicator);
      }
    }
  }
}

// A rank that goes without a word is missed by the others: in one node at once, with a deadline in any
// case. The others' MPI goes on.
void a_rank_that_leaves_is_missed(const kvh_context_t *context) {
  if (size == 1) {
    return;
  }
  for (const uint32_t node_window : {KVH_NODE_WINDOW_ON, KVH_NODE_WINDOW_OFF}) {
    for (const int leaving : {0, size - 1}) {
      kvh_communicator_params_t given = params();
      given.node_window = node_window;
      given.deadline_ns = node_window == KVH_NODE_WINDOW_ON ? 0 : 50 * 1000 * 1000;
      kvh_communicator_t *communicator = nullptr;
      EXPECT(ranks::create(context, given, MPI_COMM_WORLD, &communicator) == KVH_OK);
      if (rank != leaving) {
        uint64_t value = 1;
        EXPECT(kvh_communicator_min(communicator, &value, 1, &value) == KVH_ERR_COMMUNICATOR);
        EXPECT(one_round(communicator, context, 8, true, 1000) == KVH_ERR_COMMUNICATOR);
        EXPECT(kvh_communicator_close(communicator) == KVH_ERR_COMMUNICATOR);
      }
      kvh_communicator_destroy(communicator);
      MPI_Barrier(MPI_COMM_WORLD);
    }
  }
}

void failures_reach_all_ranks(const kvh_context_t *context) {
  for (const uint32_t pipeline : {1u, static_cast<uint32_t>(size)}) {
    kvh_communicator_t *communicator = nullptr;
    EXPECT(ranks::create(context, params(0, pipeline), MPI_COMM_WORLD, &communicator) == KVH_OK);

    kvh_batch_t *received = nullptr;
    EXPECT(kvh_broadcast(communicator, nullptr, &received) == KVH_ERR_INVALID_ARGUMENT);
    EXPECT(received == nullptr);

    // The last rank has no place for the batch; it takes part all the same.
    if (rank == size - 1 && rank > 0) {
      EXPECT(kvh_broadcast(communicator, nullptr, nullptr) == KVH_ERR_INVALID_ARGUMENT);
    } else {
      EXPECT(one_round(communicator, context, 3, true) == KVH_OK);
    }
    EXPECT(one_round(communicator, context, 4, true) == KVH_OK);

    EXPECT(kvh_communicator_close(communicator) == KVH_OK);
    kvh_communicator_destroy(communicator);
  }
}

void agreements(const kvh_context_t *context) {
  kvh_communicator_t *communicator = nullptr;
  EXPECT(ranks::create(context, params(), MPI_COMM_WORLD, &communicator) == KVH_OK);
  for (const size_t count : {size_t{0}, size_t{1}, size_t{61}, size_t{62}, size_t{65536}}) {
    std::vector<uint64_t> values(count);
    for (size_t at = 0; at < count; ++at) {
      values[at] = at * 100 + (at + static_cast<size_t>(rank)) % static_cast<size_t>(size);
    }
    EXPECT(kvh_communicator_min(communicator, values.data(), count, values.data()) == KVH_OK);
    for (size_t at = 0; at < count; ++at) {
      EXPECT(values[at] == at * 100);
    }
  }
  // The same begun, with a round in between.
  for (const size_t count : {size_t{0}, size_t{61}, size_t{62}, size_t{5000}}) {
    std::vector<uint64_t> values(count);
    for (size_t at = 0; at < count; ++at) {
      values[at] = at * 100 + (at + static_cast<size_t>(rank)) % static_cast<size_t>(size);
    }
    EXPECT(kvh_communicator_min_begin(communicator, values.data(), count) == KVH_OK);
    EXPECT(one_round(communicator, context, 6, true, 1000) == KVH_OK);
    EXPECT(kvh_communicator_min_begin(communicator, values.data(), count) == KVH_ERR_STATE);
    kvh_status_t status = KVH_IN_PROGRESS;
    while (status == KVH_IN_PROGRESS) {
      status = kvh_communicator_min_poll(communicator, values.data(), count);
    }
    EXPECT(status == KVH_OK);
    EXPECT(kvh_communicator_min_poll(communicator, values.data(), count) == KVH_ERR_STATE);
    for (size_t at = 0; at < count; ++at) {
      EXPECT(values[at] == at * 100);
    }
  }
  if (size > 1) {
    std::vector<uint64_t> values(3 + static_cast<size_t>(rank == 1));
    EXPECT(kvh_communicator_min(communicator, values.data(), values.size(), values.data()) == KVH_ERR_COMMUNICATOR);
    values.resize(3);
    EXPECT(kvh_communicator_min(communicator, values.data(), values.size(), values.data()) == KVH_OK);
  }
  EXPECT(kvh_communicator_close(communicator) == KVH_OK);
  kvh_communicator_destroy(communicator);
}

void creating_is_refused_on_all_ranks(const kvh_context_t *context) {
  kvh_communicator_t *communicator = nullptr;
  EXPECT(ranks::create(context, params(static_cast<uint32_t>(size) + 1), MPI_COMM_WORLD, &communicator) ==
         KVH_ERR_INVALID_ARGUMENT);
  if (size > 1) {
    const auto tensor = static_cast<uint32_t>(size) + static_cast<uint32_t>(rank == 1);
    EXPECT(ranks::create(context, params(tensor), MPI_COMM_WORLD, &communicator) ==
           (rank == 1 ? KVH_ERR_INVALID_ARGUMENT : KVH_ERR_COMMUNICATOR));
    kvh_communicator_params_t given = params();
    given.mode = rank == 1 ? KVH_BROADCAST_DECIDED : KVH_BROADCAST_FULL;
    EXPECT(ranks::create(context, given, MPI_COMM_WORLD, &communicator) == KVH_ERR_COMMUNICATOR);
  }
  for (int field = 0; field < 4; ++field) {
    kvh_communicator_params_t given = params();
    (field == 0 ? given.node_window : field == 1 ? given.hint_form : field == 2 ? given.pipeline_sends : given.mode) = 3;
    EXPECT(ranks::create(context, given, MPI_COMM_WORLD, &communicator) == KVH_ERR_INVALID_ARGUMENT);
  }
  const kvh_communicator_params_t given = params();
  EXPECT(ranks::create(context, params(), MPI_COMM_NULL, &communicator) == KVH_ERR_STATE);
  EXPECT(kvh_communicator_create_mpi(context, nullptr, MPI_Comm_c2f(MPI_COMM_WORLD), &communicator, nullptr) ==
         KVH_ERR_INVALID_ARGUMENT);
  EXPECT(kvh_communicator_create_mpi(context, &given, INT64_MAX, &communicator, nullptr) == KVH_ERR_STATE);
}

// Messages of the host on its own communicator and ours do not meet.
void the_hosts_messages_stay_apart(const kvh_context_t *context) {
  kvh_communicator_t *communicator = nullptr;
  EXPECT(ranks::create(context, params(0, static_cast<uint32_t>(size)), MPI_COMM_WORLD, &communicator) == KVH_OK);
  const int next = (rank + 1) % size;
  const int previous = (rank + size - 1) % size;
  int given = rank;
  int got = -1;
  MPI_Request request;
  MPI_Isend(&given, 1, MPI_INT, next, 0, MPI_COMM_WORLD, &request);
  EXPECT(one_round(communicator, context, 5, true) == KVH_OK);
  MPI_Recv(&got, 1, MPI_INT, previous, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  MPI_Wait(&request, MPI_STATUS_IGNORE);
  EXPECT(got == previous);
  EXPECT(kvh_communicator_close(communicator) == KVH_OK);
  kvh_communicator_destroy(communicator);
}

}  // namespace

int main(int argc, char **argv) {
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  kvh_context_t *context = ranks::create_context();
  every_topology(context);
  every_way(context);
  failures_reach_all_ranks(context);
  agreements(context);
  creating_is_refused_on_all_ranks(context);
  the_hosts_messages_stay_apart(context);
  a_rank_that_leaves_is_missed(context);
  kvh_context_destroy(context);
  const int code = ranks::exit_code();
  MPI_Finalize();
  return code;
}
