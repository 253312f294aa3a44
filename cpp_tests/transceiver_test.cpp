// kvh_transceiver_t: creation and its refusals, the worker's state, the served state, the list of
// endpoints, status, destruction in a forked child.
#include "transfer_support.hpp"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>

namespace {

using namespace transfer_support;
using testing::HasSubstr;
using testing::StartsWith;

struct TransceiverTest : testing::Test {
  support::Context context = support::context();
  Loopback hub = loopback(context.get());
  Worker worker{hub.get()};

  // Creates one more transceiver of the worker; says what the error said.
  kvh_status_t create(const kvh_transceiver_params_t &params, std::string *text = nullptr) {
    kvh_transceiver_t *created = nullptr;
    kvh_error_t *error = nullptr;
    const kvh_status_t status =
        kvh_transceiver_create(worker.context.get(), worker.tree.get(), &params, &created, &error);
    EXPECT_EQ(status == KVH_OK, created != nullptr);
    if (text != nullptr) {
      *text = std::string(support::view(kvh_error_message(error)));
    }
    kvh_error_destroy(error);
    kvh_transceiver_destroy(created);
    return status;
  }

  support::Buffer entry_of(const kvh_transceiver_t *transceiver) {
    kvh_buffer_t *entry = nullptr;
    EXPECT_EQ(kvh_transceiver_rank_entry(transceiver, &entry), KVH_OK);
    return support::Buffer(entry);
  }

  Transceiver rank_of_two(uint32_t rank) {
    kvh_transceiver_params_t params = worker.params(hub.get());
    params.rank = rank;
    params.tensor_parallel = 2;
    kvh_transceiver_t *created = nullptr;
    EXPECT_EQ(kvh_transceiver_create(worker.context.get(), worker.tree.get(), &params, &created, nullptr), KVH_OK);
    return Transceiver(created);
  }
};

TEST_F(TransceiverTest, ValuesThatCannotBeAreRefusedInWords) {
  using Change = std::function<void(kvh_transceiver_params_t &)>;
  const std::pair<Change, const char *> cases[] = {
      {[](auto &params) { params.transport = 0; }, "transport"},
      {[](auto &params) { params.loopback = nullptr; }, "kvh_loopback_t"},
      {[](auto &params) { params.rank = 1; }, "rank 1"},
      {[](auto &params) { params.tensor_parallel = params.pipeline_parallel = 1u << 31; }, "parallel"},
      {[](auto &params) { params.tensor_parallel = 4097; }, "4096 ranks"},
      {[](auto &params) { params.attention_data_parallel = 2; }, "attention data parallel"},
      {[](auto &params) { params.layer_count = 0; }, "kv_heads"},
      {[](auto &params) { params.kv_heads_per_layer = nullptr; }, "array"},
      {[](auto &params) { params.head_size = 0; }, "head_size"},
      {[](auto &params) { params.data_type = 99; }, "data_type"},
      {[](auto &params) { params.attention = 0; }, "attention"},
      {[](auto &params) { params.window = 64; }, "window"},
      {[](auto &params) { params.pool_memory = 0; }, "pool_memory"},
      {[](auto &params) { params.pool_base = nullptr; }, "pool"},
      {[](auto &params) { params.block_bytes = 0; }, "pool"},
      {[](auto &params) { params.block_count = SIZE_MAX; }, "memory"},
      {[](auto &params) { params.namespace_bytes = {nullptr, 1}; }, "namespace"},
      {[](auto &params) { params.unauthenticated_peers = 2; }, "KVH_PEERS_"},
      {[](auto &params) { params.peer_key_id = support::str("k"); }, "peer_keys"},
      {[](auto &params) { params.thread_core_count = 1; }, "thread_cores"},
      {[](auto &params) {
         static const uint32_t beyond = UINT32_MAX;
         params.thread_cores = &beyond;
         params.thread_core_count = 1;
       },
       "core 4294967295"},
  };
  for (const auto &[change, word] : cases) {
    kvh_transceiver_params_t params = worker.params(hub.get());
    change(params);
    std::string text;
    EXPECT_EQ(create(params, &text), KVH_ERR_INVALID_ARGUMENT) << word;
    EXPECT_THAT(text, HasSubstr(word));
    EXPECT_EQ(create(params), KVH_ERR_INVALID_ARGUMENT);
  }
}

struct PeerKeysTest : TransceiverTest {
  using KeyRing = support::Handle<kvh_key_ring_t, kvh_key_ring_destroy>;

  static KeyRing ring(uint8_t secret) {
    kvh_key_ring_params_t params{};
    params.struct_size = sizeof params;
    kvh_key_ring_t *ring = nullptr;
    EXPECT_EQ(kvh_key_ring_create(&params, &ring, nullptr), KVH_OK);
    const std::string bytes(32, static_cast<char>(secret));
    EXPECT_EQ(kvh_key_ring_add(ring, support::str("k"), support::bytes(bytes), nullptr), KVH_OK);
    return KeyRing(ring);
  }

  void restart(Worker &of, const kvh_key_ring_t *keys) {
    kvh_transceiver_params_t params = of.params(hub.get());
    params.peer_keys = keys;
    params.peer_key_id = support::str("k");
    kvh_transceiver_t *created = nullptr;
    EXPECT_EQ(kvh_transceiver_create(of.context.get(), of.tree.get(), &params, &created, nullptr), KVH_OK);
    of.transceiver.reset(created);
  }
};

TEST_F(PeerKeysTest, PeersProveThatTheyHoldAKey) {
  const Sequence wanted = sequence(8);
  Worker source(hub.get());
  source.hold(wanted.get(), {3, 9});
  for (const uint8_t secret : {uint8_t{1}, uint8_t{2}}) {
    restart(source, ring(1).get());
    restart(worker, ring(secret).get());
    const support::Buffer state = source.state();
    const std::vector<int32_t> places = {20, 21};
    kvh_prefetch_params_t params{};
    params.struct_size = sizeof params;
    params.policy = KVH_RANGE_STRICT;
    params.sequence = wanted.get();
    params.source_state = kvh_buffer_bytes(state.get());
    params.max_tokens = SIZE_MAX;
    params.block_ids = places.data();
    params.block_id_count = places.size();
    kvh_prefetch_t *begun = nullptr;
    ASSERT_EQ(kvh_prefetch_begin(worker.transceiver.get(), &params, &begun), KVH_OK);
    const Prefetch prefetch(begun);
    const kvh_prefetch_outcome_t ended = outcome(prefetch.get());
    EXPECT_EQ(ended.kind, secret == 1 ? KVH_OUTCOME_DELIVERED : KVH_OUTCOME_FAILED);
    EXPECT_STREQ(ended.reason, secret == 1 ? "" : "unauthenticated");
    settles(source);
    settles(worker);
  }
}

TEST_F(PeerKeysTest, ValuesThatCannotBeAreRefused) {
  const KeyRing keys = ring(1);
  kvh_transceiver_params_t params = worker.params(hub.get());
  params.peer_keys = keys.get();
  std::string text;
  EXPECT_EQ(create(params, &text), KVH_ERR_INVALID_ARGUMENT);
  EXPECT_THAT(text, HasSubstr("peer_key_id"));
  params.peer_key_id = support::str("other");
  EXPECT_EQ(create(params), KVH_ERR_INVALID_ARGUMENT);
  params.peer_key_id = support::str("k");
  params.unauthenticated_peers = KVH_PEERS_ANYBODY;
  EXPECT_EQ(create(params), KVH_ERR_INVALID_ARGUMENT);
}

TEST_F(PeerKeysTest, WhoIsServedWithoutKeysIsSaidOnce) {
  std::vector<std::string> said;
  const auto take = [](void *user_data, const kvh_log_record_t *record) {
    if (support::view(record->event) == "peers_unauthenticated") {
      static_cast<std::vector<std::string> *>(user_data)->emplace_back(support::view(record->fields));
    }
  };
  ASSERT_EQ(kvh_context_set_log(worker.context.get(), KVH_LOG_WARNING, take, &said, nullptr), KVH_OK);
  EXPECT_EQ(create(worker.params(hub.get())), KVH_OK);
  EXPECT_THAT(said, testing::ElementsAre(R"({"served":"this_machine"})"));
  kvh_transceiver_params_t params = worker.params(hub.get());
  params.unauthenticated_peers = KVH_PEERS_ANYBODY;
  EXPECT_EQ(create(params), KVH_OK);
  EXPECT_THAT(said, testing::ElementsAre(HasSubstr("this_machine"), R"({"served":"anybody"})"));
  restart(worker, ring(1).get());
  EXPECT_EQ(said.size(), 2u) << "with keys there is nothing to say";
}

TEST_F(TransceiverTest, TheStateIsServedOverTcpToo) {
  uint16_t port = 0;
  const kvh_transceiver_t *transceiver = worker.transceiver.get();
  ASSERT_EQ(kvh_transceiver_serve_tcp(transceiver, {nullptr, 0}, 0, &port, nullptr), KVH_OK);
  EXPECT_NE(port, 0);
  EXPECT_EQ(kvh_transceiver_serve_tcp(transceiver, {nullptr, 0}, 0, &port, nullptr), KVH_ERR_STATE);
  EXPECT_EQ(kvh_transceiver_serve_tcp(transceiver, support::str("x"), 0, &port, nullptr),
            KVH_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(kvh_transceiver_serve_tcp(transceiver, {nullptr, 0}, 0, nullptr, nullptr), KVH_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(kvh_transceiver_serve_tcp(nullptr, {nullptr, 0}, 0, &port, nullptr), KVH_ERR_INVALID_ARGUMENT);
}

TEST_F(TransceiverTest, AMachineWithoutADeviceSaysSoAndMemoryOfNoDeviceIsRefused) {
  kvh_transceiver_params_t params = worker.params(hub.get());
  params.pool_memory = KVH_MEMORY_CUDA;
  std::string text;
  const kvh_status_t status = create(params, &text);
  if (status == KVH_ERR_UNSUPPORTED) {
    EXPECT_THAT(text, HasSubstr("no CUDA device can be used here"));
  } else {
    EXPECT_EQ(status, KVH_ERR_INVALID_ARGUMENT);
    EXPECT_THAT(text, HasSubstr("not in memory of one CUDA device"));
  }
  // The same answer each time.
  EXPECT_EQ(create(params), status);
}

TEST_F(TransceiverTest, StreamsAndEventsGoWithDeviceMemoryOnly) {
  int handle = 0;
  kvh_transceiver_params_t params = worker.params(hub.get());
  params.cuda_stream = &handle;
  std::string text;
  EXPECT_EQ(create(params, &text), KVH_ERR_INVALID_ARGUMENT);
  EXPECT_THAT(text, HasSubstr("cuda_stream"));
  params = worker.params(hub.get());
  params.cuda_ready_event = &handle;
  EXPECT_EQ(create(params), KVH_ERR_INVALID_ARGUMENT);
}

TEST_F(TransceiverTest, AParameterStructFromBeforeDeviceMemoryIsTaken) {
  kvh_transceiver_params_t params = worker.params(hub.get());
  params.struct_size = offsetof(kvh_transceiver_params_t, cuda_stream);
  // Whatever lies behind it.
  params.cuda_stream = &params;
  EXPECT_EQ(create(params), KVH_OK);
}

TEST_F(TransceiverTest, NullArgumentsAndForeignStructsAreRefused) {
  kvh_transceiver_params_t params = worker.params(hub.get());
  kvh_transceiver_t *created = nullptr;
  const kvh_context_t *context = worker.context.get();
  const kvh_reuse_tree_t *tree = worker.tree.get();
  EXPECT_EQ(kvh_transceiver_create(nullptr, tree, &params, &created, nullptr), KVH_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(kvh_transceiver_create(context, nullptr, &params, &created, nullptr), KVH_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(kvh_transceiver_create(context, tree, nullptr, &created, nullptr), KVH_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(kvh_transceiver_create(context, tree, &params, nullptr, nullptr), KVH_ERR_INVALID_ARGUMENT);
  params.reserved = 1;
  EXPECT_EQ(create(params), KVH_ERR_ABI);
  params.reserved = 0;
  params.reserved_2 = 1;
  EXPECT_EQ(create(params), KVH_ERR_ABI);
  params.reserved_2 = 0;
  params.struct_size -= 1;
  EXPECT_EQ(create(params), KVH_ERR_ABI);
  kvh_transceiver_destroy(nullptr);
  kvh_transceiver_status_t status{};
  status.struct_size = 4;
  EXPECT_EQ(kvh_transceiver_status(worker.transceiver.get(), &status), KVH_ERR_ABI);
  EXPECT_EQ(kvh_transceiver_status(nullptr, &status), KVH_ERR_INVALID_ARGUMENT);
}

TEST_F(TransceiverTest, EntriesOfRanksJoinToOneState) {
  const Transceiver first = rank_of_two(0);
  const Transceiver second = rank_of_two(1);
  kvh_buffer_t *state = nullptr;
  EXPECT_EQ(kvh_transceiver_state(first.get(), &state), KVH_NOT_FOUND);
  EXPECT_EQ(state, nullptr);
  const support::Buffer entry0 = entry_of(first.get());
  const support::Buffer entry1 = entry_of(second.get());
  const kvh_bytes_t entries[] = {kvh_buffer_bytes(entry1.get()), kvh_buffer_bytes(entry0.get())};
  ASSERT_EQ(kvh_transceiver_set_state(first.get(), entries, 2, nullptr), KVH_OK);
  ASSERT_EQ(kvh_transceiver_set_state(second.get(), entries, 2, nullptr), KVH_OK);
  ASSERT_EQ(kvh_transceiver_state(first.get(), &state), KVH_OK);
  const support::Buffer of_first(state);
  ASSERT_EQ(kvh_transceiver_state(second.get(), &state), KVH_OK);
  const support::Buffer of_second(state);
  EXPECT_EQ(support::view(kvh_buffer_bytes(of_first.get())), support::view(kvh_buffer_bytes(of_second.get())));
}

TEST_F(TransceiverTest, EntriesThatDoNotBelongTogetherAreRefusedInWords) {
  const Transceiver first = rank_of_two(0);
  const Transceiver second = rank_of_two(1);
  const support::Buffer entry0 = entry_of(first.get());
  const support::Buffer entry1 = entry_of(second.get());
  const support::Buffer foreign = entry_of(worker.transceiver.get());
  const kvh_bytes_t own = kvh_buffer_bytes(entry0.get());
  const std::pair<std::vector<kvh_bytes_t>, const char *> cases[] = {
      {{}, "no rank entry"},
      {{own, own}, "twice"},
      {{own}, "1 of the worker's 2 ranks"},
      {{kvh_buffer_bytes(entry1.get())}, "own entry"},
      {{own, kvh_buffer_bytes(foreign.get())}, "differs"},
      {{own, support::bytes("nonsense")}, "rank entry 1"},
      {{own, {nullptr, 0}}, "truncated"},
  };
  for (const auto &[entries, word] : cases) {
    kvh_error_t *error = nullptr;
    EXPECT_EQ(kvh_transceiver_set_state(first.get(), entries.data(), entries.size(), &error),
              KVH_ERR_INVALID_ARGUMENT);
    EXPECT_THAT(std::string(support::view(kvh_error_message(error))), HasSubstr(word));
    kvh_error_destroy(error);
  }
  kvh_buffer_t *state = nullptr;
  EXPECT_EQ(kvh_transceiver_state(first.get(), &state), KVH_NOT_FOUND);
}

std::string http_get(uint16_t port) {
  const int socket = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(::connect(socket, reinterpret_cast<sockaddr *>(&address), sizeof address), 0);
  const std::string request = "GET /v1/data_transceiver_state HTTP/1.1\r\n\r\n";
  EXPECT_EQ(::send(socket, request.data(), request.size(), 0), static_cast<ssize_t>(request.size()));
  std::string answer;
  char chunk[1024];
  for (ssize_t got; (got = ::recv(socket, chunk, sizeof chunk, 0)) > 0;) {
    answer.append(chunk, static_cast<size_t>(got));
  }
  ::close(socket);
  return answer;
}

TEST_F(TransceiverTest, TheStateIsServedOverHttp) {
  uint16_t port = 0;
  ASSERT_EQ(kvh_transceiver_serve_http(worker.transceiver.get(), {nullptr, 0}, 0, &port, nullptr), KVH_OK);
  ASSERT_NE(port, 0);
  const std::string answer = http_get(port);
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 200 OK\r\n"));
  const support::Buffer state = worker.state();
  EXPECT_THAT(answer, testing::EndsWith(std::string(support::view(kvh_buffer_bytes(state.get())))));
  kvh_error_t *error = nullptr;
  EXPECT_EQ(kvh_transceiver_serve_http(worker.transceiver.get(), {nullptr, 0}, 0, &port, &error), KVH_ERR_STATE);
  EXPECT_THAT(std::string(support::view(kvh_error_message(error))), HasSubstr("already"));
  kvh_error_destroy(error);
}

TEST_F(TransceiverTest, OnlyAddressesAreListenedOn) {
  uint16_t port = 7;
  EXPECT_EQ(kvh_transceiver_serve_http(worker.transceiver.get(), support::str("localhost"), 0, &port, nullptr),
            KVH_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(kvh_transceiver_serve_http(worker.transceiver.get(), support::str("192.0.2.1"), 0, &port, nullptr),
            KVH_ERR_UNSUPPORTED);
  EXPECT_EQ(port, 7);
}

TEST_F(TransceiverTest, TheListTakesEachEndpointOnce) {
  const auto allow = [&](std::string_view endpoint, std::vector<kvh_str_t> ranges) {
    return kvh_transceiver_allow(worker.transceiver.get(), support::str(endpoint), ranges.data(), ranges.size(),
                                 nullptr);
  };
  EXPECT_EQ(allow("http://127.0.0.1:8000", {}), KVH_OK);
  EXPECT_EQ(allow("HTTP://127.1:8000/v1/data_transceiver_state", {}), KVH_ERR_STATE) << "the same endpoint";
  EXPECT_EQ(allow("http://source:8000", {support::str("10.0.0.0/8"), support::str("fd00::/8")}), KVH_OK);
  EXPECT_EQ(allow("http://other:8000", {support::str("10.0.0.0/99")}), KVH_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(allow("ftp://other:8000", {}), KVH_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(allow("", {}), KVH_ERR_INVALID_ARGUMENT);
}

TEST_F(TransceiverTest, StatusAndWiresStartEmpty) {
  const kvh_transceiver_status_t status = worker.status();
  EXPECT_STREQ(status.transport, "loopback");
  EXPECT_EQ(status.sources + status.destinations + status.requests_in_flight + status.prefetches_in_flight, 0u);
  size_t length = 1;
  EXPECT_EQ(kvh_transceiver_wires(worker.transceiver.get(), nullptr, 0, &length), KVH_OK);
  EXPECT_EQ(length, 0u);
}

TEST_F(TransceiverTest, ContextTreeAndHubMayGoFirst) {
  worker.tree.reset();
  worker.context.reset();
  hub.reset();
  EXPECT_STREQ(worker.status().transport, "loopback");
}

TEST_F(TransceiverTest, AForkedChildIsToldAndDestroysWithoutWaiting) {
  const pid_t child = ::fork();
  if (child == 0) {
    kvh_buffer_t *state = nullptr;
    const bool is_told = kvh_transceiver_state(worker.transceiver.get(), &state) == KVH_ERR_FORKED;
    worker.transceiver.reset();
    ::_exit(is_told ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

}  // namespace
