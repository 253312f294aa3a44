// Broadcast rounds beside the floor, raw MPI on bytes that were serialised before: one trial of every
// case, the systems in turn within each case. Run under MPI with two ranks.
//
//   broadcast CASES_FILE    lines of (system, kind, table, topology, tokens, batch, rate, hint KiB,
//                           payload bytes, p50 us, p99 us, requests/s, root CPU us/request, p99 lag ms)
//
// A root call of kvhints is all that a host does for a round: a batch is created, filled, broadcast
// and destroyed. The other rank reads every field of every request and compares a digest with that of
// what it knows was sent; it does the same with the bytes that raw MPI brings. A wrong digest ends the
// run with an error.
//
// Where a call is timed until it is delivered, rank 0 writes all bytes anew before the call, outside of
// its time: bodies are copied in, hints admitted, as in an executor, whose requests are new in each
// round. Bytes that stay as they are would lie in both cores' caches, and nothing would have to move.
#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>

#include "kvhints.h"

#include <algorithm>
#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <fstream>
#include <functional>
#include <memory>
#include <random>
#include <sstream>
#include <string>
#include <vector>

namespace {

constexpr size_t config_bytes = 126;  // of a request besides its tokens
constexpr size_t chunk_bytes = 4 << 20;
int rank = 0;

double now_s(clockid_t clock) {
  timespec time{};
  clock_gettime(clock, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}
double wall_s() { return now_s(CLOCK_MONOTONIC); }
double cpu_s() { return now_s(CLOCK_PROCESS_CPUTIME_ID); }

[[noreturn]] void fail(const char *what) {
  std::fprintf(stderr, "broadcast bench, rank %d: %s\n", rank, what);
  MPI_Abort(MPI_COMM_WORLD, 1);
  std::abort();
}
void must(bool holds, const char *what) {
  if (!holds) fail(what);
}

// Four lanes of 8 bytes, each a multiplication of three cycles, so that it costs little beside moving
// the bytes; as vectors they would take fifteen.
__attribute__((optimize("no-tree-vectorize"))) uint64_t digest(const void *data, size_t len, uint64_t seed) {
  constexpr uint64_t odd = 0x9e3779b97f4a7c15u;
  uint64_t lanes[4] = {seed, seed ^ odd, seed + len, ~seed};
  const char *at = static_cast<const char *>(data);
  const char *const end = at + len;
  const auto add = [&](const char *from) {
    uint64_t words[4];
    std::memcpy(words, from, sizeof words);
    lanes[0] = (lanes[0] ^ words[0]) * odd;
    lanes[1] = (lanes[1] ^ words[1]) * odd;
    lanes[2] = (lanes[2] ^ words[2]) * odd;
    lanes[3] = (lanes[3] ^ words[3]) * odd;
  };
  must(len >= 32, "a part too short for the digest");
  for (; end - at >= 32; at += 32) add(at);
  add(end - 32);  // what is left, with some of what came before
  return lanes[0] ^ (lanes[1] << 13 | lanes[1] >> 51) ^ (lanes[2] << 29 | lanes[2] >> 35) ^ (lanes[3] >> 7);
}

struct Case {
  std::string kind, table, topology;
  size_t tokens = 0, batch = 0, broadcasts = 0, hint_kib = 0;
  double rate = 0;
};

// An envelope of about `bytes` bytes: one fetch of random blocks.
std::string envelope(size_t bytes, std::mt19937_64 &random, size_t number) {
  std::string text = R"({"protocol_version":"0.1","message_id":"m-)" + std::to_string(number) +
                     R"(","actions":[{"action_id":"a1","action_type":"kv.fetch","action_version":"1.0",)"
                     R"("payload":{"source_control_endpoint":"http://10.0.0.1:23280","block_hashes":[)" +
                     std::to_string(random());
  const std::string end = "]}}]}";
  for (std::string next = std::to_string(random()); text.size() + 1 + next.size() + end.size() <= bytes;
       next = std::to_string(random())) {
    text += ',' + next;
  }
  return text + end;
}

// The same on both ranks: what is sent, and what must arrive.
struct Workload {
  std::vector<std::vector<uint8_t>> bodies;
  std::vector<std::string> hints;
  std::vector<uint8_t> serialised;  // for raw MPI: all of it in a row
  std::vector<uint64_t> digests;    // of each request
  uint64_t serialised_digest = 0;

  explicit Workload(const Case &given) {
    std::mt19937_64 random(given.batch * 31 + given.hint_kib * 7 + given.tokens);
    for (size_t index = 0; index < given.batch; ++index) {
      std::vector<uint8_t> body(given.tokens * 4 + config_bytes);
      for (size_t at = 0; at < body.size(); at += 8) {
        const uint64_t word = random() % 128000;
        std::memcpy(&body[at], &word, std::min<size_t>(8, body.size() - at));
      }
      uint64_t all = digest(body.data(), body.size(), index);
      serialised.insert(serialised.end(), body.begin(), body.end());
      if (given.hint_kib > 0) {
        hints.push_back(envelope(given.hint_kib * 1024, random, index));
        all = digest(hints.back().data(), hints.back().size(), all);
        serialised.insert(serialised.end(), hints.back().begin(), hints.back().end());
      }
      digests.push_back(all);
      bodies.push_back(std::move(body));
    }
    serialised_digest = digest(serialised.data(), serialised.size(), 0);
  }
};

// A way of telling the other rank; `give` on rank 0, before which it may `renew` what it gives, `take`
// on the other.
struct System {
  std::string name;
  std::function<void()> renew, give, take, end;
  std::function<double()> payload_bytes;
};

System raw_mpi(const Workload &workload, bool pipeline, bool with_header) {
  auto buffer = std::make_shared<std::vector<uint8_t>>(workload.serialised);
  const auto move = [=](size_t size, auto &&message) {
    int64_t header[3] = {1, static_cast<int64_t>(size), 0};
    if (with_header) message(header, sizeof header);
    for (size_t at = 0; at < size; at += chunk_bytes) {
      message(buffer->data() + at, std::min(chunk_bytes, size - at));
    }
  };
  const auto broadcast = [](void *data, size_t len) {
    MPI_Bcast(data, static_cast<int>(len), MPI_BYTE, 0, MPI_COMM_WORLD);
  };
  const auto send = [](void *data, size_t len) {
    MPI_Send(data, static_cast<int>(len), MPI_BYTE, 1, 0, MPI_COMM_WORLD);
  };
  const auto receive = [](void *data, size_t len) {
    MPI_Recv(data, static_cast<int>(len), MPI_BYTE, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  };
  const uint64_t expected = workload.serialised_digest;
  const size_t size = workload.serialised.size();
  System system;
  system.name = with_header ? "mpi-header" : "mpi";
  system.renew = [=, &workload] { std::memcpy(buffer->data(), workload.serialised.data(), size); };
  system.give = [=] { pipeline ? move(size, send) : move(size, broadcast); };
  system.take = [=] {
    pipeline ? move(size, receive) : move(size, broadcast);
    must(digest(buffer->data(), size, 0) == expected, "raw MPI brought other bytes");
  };
  system.end = [] {};
  system.payload_bytes = [=] { return static_cast<double>(size); };
  return system;
}

double metric(const kvh_context_t *context, const char *name) {
  size_t len = 0;
  must(kvh_context_metrics(context, nullptr, 0, &len) == KVH_OK, "metrics");
  std::string text(len + 1, '\0');
  must(kvh_context_metrics(context, text.data(), text.size(), &len) == KVH_OK, "metrics");
  const size_t at = text.find("\n" + std::string(name) + " ");
  return at == std::string::npos ? 0 : std::strtod(text.c_str() + at + 2 + std::strlen(name), nullptr);
}

// Reads every field of a received batch. In the decided mode no snapshots travel.
void read_batch(const kvh_batch_t *batch, const Workload &workload, bool decided) {
  must(kvh_batch_count(batch) == workload.bodies.size(), "another number of requests");
  for (size_t index = 0; index < workload.bodies.size(); ++index) {
    kvh_batch_request_t request{};
    request.struct_size = sizeof request;
    must(kvh_batch_get(batch, index, &request) == KVH_OK, "kvh_batch_get");
    must(request.id == 1000 + index && request.flags == 0, "another request");
    uint64_t all = digest(request.body.data, request.body.len, index);
    const bool has_hint = !decided && !workload.hints.empty();
    must((request.snapshot != nullptr) == has_hint, "a hint is missing, or one too many");
    if (has_hint) {
      must(kvh_snapshot_message_id(request.snapshot).len > 2, "message_id");
      must(kvh_snapshot_action_count(request.snapshot) == 1, "actions");
      kvh_action_t action{};
      must(kvh_snapshot_action(request.snapshot, 0, &action) == KVH_OK, "an action");
      must(action.type.len == 8 && action.payload.len > 0, "an action's fields");
      const kvh_bytes_t json = kvh_snapshot_json(request.snapshot);
      all = digest(json.data, json.len, all);
    }
    must(decided || all == workload.digests[index], "other bytes arrived");
  }
}

// How the library is used: by its defaults, but for what is named.
struct Way {
  const char *name;
  uint32_t mode = KVH_BROADCAST_FULL, node_window = KVH_NODE_WINDOW_ON, hint_form = KVH_HINT_FORM_TEXT;
  uint32_t first_message_bytes = 64, pipeline_sends = KVH_PIPELINE_SYNCHRONOUS;
};

constexpr Way full{"kvhints"};
constexpr Way decided{"kvhints-decided", KVH_BROADCAST_DECIDED};
constexpr Way messages{"kvhints-messages", KVH_BROADCAST_FULL, KVH_NODE_WINDOW_OFF};

// What the defaults were chosen among.
const std::vector<Way> ways_among_ranks{
    full,
    {"kvhints-packed", full.mode, full.node_window, KVH_HINT_FORM_PACKED},
    {"kvhints-4096", full.mode, full.node_window, full.hint_form, 4096},
    messages,
    {"kvhints-messages-packed", full.mode, messages.node_window, KVH_HINT_FORM_PACKED},
    {"kvhints-messages-4096", full.mode, messages.node_window, full.hint_form, 4096},
};
const std::vector<Way> ways_along_stages{
    full,
    {"kvhints-packed", full.mode, full.node_window, KVH_HINT_FORM_PACKED},
    {"kvhints-4096", full.mode, full.node_window, full.hint_form, 4096},
    {"kvhints-async", full.mode, full.node_window, full.hint_form, 64, KVH_PIPELINE_ASYNCHRONOUS},
};

System library(const Workload &workload, bool pipeline, Way way) {
  const bool decided = way.mode == KVH_BROADCAST_DECIDED;
  kvh_context_t *context = nullptr;
  must(kvh_context_create(nullptr, &context) == KVH_OK, "a context");
  kvh_communicator_params_t params{};
  params.struct_size = sizeof params;
  params.pipeline_size = pipeline ? 2 : 1;
  params.mode = way.mode;
  params.node_window = way.node_window;
  params.hint_form = way.hint_form;
  params.first_message_bytes = way.first_message_bytes;
  params.pipeline_sends = way.pipeline_sends;
  kvh_communicator_t *communicator = nullptr;
  must(kvh_communicator_create_mpi(context, &params, MPI_Comm_c2f(MPI_COMM_WORLD), &communicator, nullptr) == KVH_OK,
       "a communicator");
  auto bodies = std::make_shared<std::vector<std::vector<uint8_t>>>(workload.bodies);
  auto snapshots = std::make_shared<std::vector<kvh_snapshot_t *>>();
  System system;
  system.name = way.name;
  const auto release = [=] {
    for (kvh_snapshot_t *snapshot : *snapshots) kvh_snapshot_release(snapshot);
    snapshots->clear();
  };
  const auto admit = [=, &workload] {
    release();
    for (const std::string &hint : workload.hints) {
      int32_t verdict = -1;
      kvh_snapshot_t *snapshot = nullptr;
      const auto *json = reinterpret_cast<const uint8_t *>(hint.data());
      must(kvh_admit(context, 2, json, hint.size(), &verdict, &snapshot) == KVH_OK && verdict == 0, "admission");
      snapshots->push_back(snapshot);
    }
  };
  system.renew = [=, &workload] {
    // Where rank 0 decides, hints do not travel.
    if (!decided || snapshots->empty()) admit();
    for (size_t index = 0; index < bodies->size(); ++index) {
      std::memcpy((*bodies)[index].data(), workload.bodies[index].data(), workload.bodies[index].size());
    }
  };
  system.give = [=] {
    kvh_batch_t *batch = nullptr;
    must(kvh_batch_create(&batch) == KVH_OK, "a batch");
    for (size_t index = 0; index < bodies->size(); ++index) {
      kvh_batch_request_t request{};
      request.struct_size = sizeof request;
      request.id = 1000 + index;
      request.body = {(*bodies)[index].data(), (*bodies)[index].size()};
      request.snapshot = snapshots->empty() ? nullptr : (*snapshots)[index];
      must(kvh_batch_add(batch, &request) == KVH_OK, "kvh_batch_add");
    }
    must(kvh_broadcast(communicator, batch, nullptr) == KVH_OK, "kvh_broadcast");
    kvh_batch_destroy(batch);
  };
  system.take = [=, &workload] {
    kvh_batch_t *received = nullptr;
    must(kvh_broadcast(communicator, nullptr, &received) == KVH_OK, "kvh_broadcast");
    read_batch(received, workload, decided);
    kvh_batch_destroy(received);
  };
  system.payload_bytes = [=] {
    const double rounds = metric(context, "kvhints_broadcast_rounds_total{outcome=\"delivered\"}");
    return metric(context, "kvhints_broadcast_payload_bytes_total") / std::max(1.0, rounds);
  };
  system.end = [=] {
    must(kvh_communicator_close(communicator) == KVH_OK, "close");
    kvh_communicator_destroy(communicator);
    release();
    kvh_context_destroy(context);
  };
  return system;
}

double percentile(std::vector<double> values, double part) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[std::min(values.size() - 1, static_cast<size_t>(static_cast<double>(values.size()) * part))];
}

void trial(const Case &given, System &system) {
  const auto step = [&] { rank == 0 ? system.give() : system.take(); };
  const bool delivered = given.kind != "offered";
  const auto renew = [&] {
    if (rank == 0) system.renew();
  };
  renew();
  for (size_t warm = 0; warm < 100; ++warm) {
    if (delivered) renew();
    step();
    if (delivered) MPI_Barrier(MPI_COMM_WORLD);
  }
  std::vector<double> calls, lags;
  calls.reserve(given.broadcasts);
  lags.reserve(given.broadcasts);
  MPI_Barrier(MPI_COMM_WORLD);
  const double cpu_start = cpu_s();
  const double start = wall_s();
  for (size_t round = 0; round < given.broadcasts; ++round) {
    if (rank == 0 && given.rate > 0) {
      const double due = start + static_cast<double>(round * given.batch) / given.rate;
      while (wall_s() < due) {
      }
      lags.push_back(wall_s() - due);
    }
    if (delivered) {
      renew();
      MPI_Barrier(MPI_COMM_WORLD);
    }
    const double before = wall_s();
    step();
    if (delivered) MPI_Barrier(MPI_COMM_WORLD);
    calls.push_back(wall_s() - before);
  }
  const double cpu_end = cpu_s();
  MPI_Barrier(MPI_COMM_WORLD);
  const double end = wall_s();
  const double requests = static_cast<double>(given.broadcasts * given.batch);
  if (rank == 0) {
    std::printf("%s\t%s\t%s\t%s\t%zu\t%zu\t%.0f\t%zu\t%.0f\t%.3f\t%.3f\t%.1f\t%.3f\t%.4f\n", system.name.c_str(),
                given.kind.c_str(), given.table.c_str(), given.topology.c_str(), given.tokens, given.batch, given.rate,
                given.hint_kib, system.payload_bytes(), percentile(calls, 0.5) * 1e6, percentile(calls, 0.99) * 1e6,
                requests / (end - start), (cpu_end - cpu_start) * 1e6 / requests, percentile(lags, 0.99) * 1e3);
    std::fflush(stdout);
  }
  system.end();
}

}  // namespace

int main(int argc, char **argv) {
  MPI_Init(&argc, &argv);
  int size = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  must(argc == 2 && size == 2, "usage: mpirun -n 2 broadcast CASES_FILE");
  std::ifstream file(argv[1]);
  must(file.good(), "the file of cases cannot be read");
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line[0] == '#') continue;
    Case given;
    std::istringstream fields(line);
    fields >> given.kind >> given.table >> given.topology >> given.tokens >> given.batch >> given.rate >> given.broadcasts;
    must(!fields.fail(), "a line of the file of cases");
    for (const size_t hint_kib : {0, 1, 64}) {
      given.hint_kib = hint_kib;
      const Workload workload(given);
      const bool pipeline = given.topology == "pp";
      std::vector<std::function<System()>> systems;
      const auto use = [&](Way way) { systems.push_back([&, way] { return library(workload, pipeline, way); }); };
      if (given.kind == "ways") {
        for (const Way &way : pipeline ? ways_along_stages : ways_among_ranks) use(way);
      } else {
        use(full);
        systems.push_back([&] { return raw_mpi(workload, pipeline, false); });
        use(decided);
        use(messages);
        systems.push_back([&] { return raw_mpi(workload, pipeline, true); });
      }
      // In turn: what else runs on the machine meets all alike.
      for (const auto &make : systems) {
        System system = make();
        trial(given, system);
      }
    }
  }
  MPI_Finalize();
}
