// kvh_communicator_from_ops: ranks whose messages the host moves, here through queues in this process.
#include "support.hpp"

#include <gmock/gmock.h>

#include <algorithm>
#include <condition_variable>
#include <cstddef>
#include <cstring>
#include <deque>
#include <functional>
#include <kvhints.hpp>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace {

using testing::Each;
using testing::HasSubstr;
using Batch = support::Handle<kvh_batch_t, kvh_batch_destroy>;
using Communicator = support::Handle<kvh_communicator_t, kvh_communicator_destroy>;

// How the ranks of a test talk.
class Fabric {
 public:
  explicit Fabric(uint32_t size) : size_(size) {}
  uint32_t size() const { return size_; }

  void put(uint32_t from, uint32_t to, const void *data, size_t len) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto *bytes = static_cast<const uint8_t *>(data);
    queues_[{from, to}].emplace_back(bytes, bytes + len);
    changed_.notify_all();
  }
  // Whether the next message had this length.
  bool get(uint32_t from, uint32_t to, void *data, size_t len) {
    std::unique_lock<std::mutex> lock(mutex_);
    auto &queue = queues_[{from, to}];
    changed_.wait(lock, [&] { return !queue.empty(); });
    const std::vector<uint8_t> message = std::move(queue.front());
    queue.pop_front();
    if (message.size() != len) return false;
    std::copy(message.begin(), message.end(), static_cast<uint8_t *>(data));
    return true;
  }

 private:
  uint32_t size_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::pair<uint32_t, uint32_t>, std::deque<std::vector<uint8_t>>> queues_;
};

// One rank's end, with counts of what was called.
struct End {
  Fabric *fabric = nullptr;
  uint32_t rank = 0;
  const kvh_context_t *context = nullptr;
  int destroyed = 0;
  int calls = 0;
  int fail_at = -1;    // the call with this number fails
  int damage_at = -1;  // the broadcast with this number brings a changed byte

  // Calls of a callback into the library work: no lock is held.
  int called() {
    size_t len = 0;
    if (context != nullptr && damage_at < 0) {
      EXPECT_THAT(kvh_context_metrics(context, nullptr, 0, &len), testing::AnyOf(KVH_OK, KVH_ERR_POISONED));
    }
    return calls++ == fail_at ? 17 : 0;
  }
  static int32_t broadcast(void *self, void *data, size_t len, uint32_t rank_count) {
    End &end = *static_cast<End *>(self);
    if (const int code = end.called(); code != 0) return code;
    if (end.rank > 0) {
      const bool is_there = end.fabric->get(0, end.rank, data, len);
      if (end.damage_at-- == 0) static_cast<uint8_t *>(data)[len - 1] ^= 1;
      return is_there ? 0 : -1;
    }
    for (uint32_t to = 1; to < rank_count; ++to) end.fabric->put(0, to, data, len);
    return 0;
  }
  static int32_t send(void *self, uint32_t to, const void *data, size_t len) {
    End &end = *static_cast<End *>(self);
    if (const int code = end.called(); code != 0) return code;
    end.fabric->put(end.rank, to, data, len);
    return 0;
  }
  static int32_t receive(void *self, uint32_t from, void *data, size_t len) {
    End &end = *static_cast<End *>(self);
    if (const int code = end.called(); code != 0) return code;
    return end.fabric->get(from, end.rank, data, len) ? 0 : -1;
  }
  static int32_t min_reduce(void *self, uint64_t *values, size_t count) {
    End &end = *static_cast<End *>(self);
    if (const int code = end.called(); code != 0) return code;
    const uint32_t size = end.fabric->size();
    for (uint32_t to = 0; to < size; ++to) end.fabric->put(end.rank, to, values, count * sizeof *values);
    for (uint32_t from = 0; from < size; ++from) {
      std::vector<uint64_t> theirs(count);
      if (!end.fabric->get(from, end.rank, theirs.data(), count * sizeof *values)) return -1;
      for (size_t at = 0; at < count; ++at) values[at] = std::min(values[at], theirs[at]);
    }
    return 0;
  }
  static void destroy(void *self) { ++static_cast<End *>(self)->destroyed; }

  kvh_communicator_ops_t ops() {
    kvh_communicator_ops_t ops{};
    ops.struct_size = sizeof ops;
    ops.user_data = this;
    ops.rank = rank;
    ops.size = fabric->size();
    ops.broadcast = broadcast;
    ops.send = send;
    ops.receive = receive;
    ops.min_reduce = min_reduce;
    ops.destroy = destroy;
    return ops;
  }
};

kvh_communicator_params_t params(uint32_t tensor = 0, uint32_t pipeline = 0) {
  kvh_communicator_params_t params{};
  params.struct_size = sizeof params;
  params.tensor_size = tensor;
  params.pipeline_size = pipeline;
  return params;
}

// Runs `rank_main` on a thread for each rank with that rank's end; ends are looked at afterwards.
std::vector<kvh_status_t> on_all_ranks(uint32_t size, const std::function<kvh_status_t(End &)> &rank_main) {
  Fabric fabric(size);
  const support::Context context = support::context();
  std::vector<End> ends(size);
  std::vector<kvh_status_t> statuses(size, 12345);
  std::vector<std::thread> threads;
  for (uint32_t rank = 0; rank < size; ++rank) {
    ends[rank].fabric = &fabric;
    ends[rank].rank = rank;
    ends[rank].context = context.get();
    threads.emplace_back([&, rank] { statuses[rank] = rank_main(ends[rank]); });
  }
  for (std::thread &thread : threads) thread.join();
  for (const End &end : ends) EXPECT_EQ(end.destroyed, 1) << "rank " << end.rank;
  return statuses;
}

kvh_status_t create(End &end, const kvh_communicator_params_t &given, Communicator &communicator) {
  const kvh_communicator_ops_t ops = end.ops();
  kvh_communicator_t *created = nullptr;
  kvh_error_t *error = nullptr;
  const kvh_status_t status = kvh_communicator_from_ops(end.context, &given, &ops, &created, &error);
  EXPECT_EQ(status == KVH_OK, created != nullptr);
  const support::Error owned(error);
  communicator.reset(created);
  return status;
}

kvh_status_t one_round(kvh_communicator_t *communicator, const std::string &body) {
  if (kvh_communicator_rank(communicator) == 0) {
    kvh_batch_t *batch = nullptr;
    EXPECT_EQ(kvh_batch_create(&batch), KVH_OK);
    const Batch owned(batch);
    kvh_batch_request_t request{};
    request.struct_size = sizeof request;
    request.id = 5;
    request.body = support::bytes(body);
    EXPECT_EQ(kvh_batch_add(batch, &request), KVH_OK);
    return kvh_broadcast(communicator, batch, nullptr);
  }
  kvh_batch_t *received = nullptr;
  const kvh_status_t status = kvh_broadcast(communicator, nullptr, &received);
  const Batch owned(received);
  if (status == KVH_OK) {
    kvh_batch_request_t request{};
    request.struct_size = sizeof request;
    EXPECT_EQ(kvh_batch_get(received, 0, &request), KVH_OK);
    EXPECT_EQ(request.id, 5u);
    EXPECT_TRUE(support::view(request.body) == body);
  }
  return status;
}

TEST(CommunicatorOps, ReachEveryRankOfEveryTopology) {
  const std::string body(300'000, 'x');
  for (const auto &[size, pipeline] : std::vector<std::pair<uint32_t, uint32_t>>{{1, 1}, {2, 1}, {2, 2}, {4, 2}, {4, 4}}) {
    for (const uint32_t sends : {KVH_PIPELINE_SYNCHRONOUS, KVH_PIPELINE_ASYNCHRONOUS}) {
      kvh_communicator_params_t given = params(0, pipeline);
      given.pipeline_sends = sends;
      const auto statuses = on_all_ranks(size, [&, size = size](End &end) -> kvh_status_t {
        Communicator communicator;
        EXPECT_EQ(create(end, given, communicator), KVH_OK);
        EXPECT_EQ(kvh_communicator_size(communicator.get()), size);
        EXPECT_EQ(one_round(communicator.get(), body), KVH_OK);
        EXPECT_EQ(one_round(communicator.get(), "short"), KVH_OK);
        uint64_t value = 10 + end.rank;
        EXPECT_EQ(kvh_communicator_min(communicator.get(), &value, 1, &value), KVH_OK);
        EXPECT_EQ(value, 10u);
        value = 20 + end.rank;
        EXPECT_EQ(kvh_communicator_min_begin(communicator.get(), &value, 1), KVH_OK);
        EXPECT_EQ(one_round(communicator.get(), "between"), KVH_OK);
        EXPECT_EQ(kvh_communicator_min_poll(communicator.get(), &value, 1), KVH_OK) << "made when it was begun";
        EXPECT_EQ(value, 20u);
        return kvh_communicator_close(communicator.get());
      });
      EXPECT_THAT(statuses, Each(KVH_OK));
    }
  }
}

TEST(CommunicatorOps, AFunctionThatFailsFailsTheCommunicatorAndIsNotCalledAgain) {
  for (int fail_at = 0; fail_at < 4; ++fail_at) {
    const auto statuses = on_all_ranks(1, [&](End &end) -> kvh_status_t {
      end.fail_at = fail_at;
      Communicator communicator;
      if (const kvh_status_t status = create(end, params(), communicator); status != KVH_OK) {
        EXPECT_EQ(fail_at, 0);
        return status;
      }
      kvh_status_t status = KVH_OK;
      for (int call = 0; call < 5 && status == KVH_OK; ++call) {
        uint64_t value = 1;
        status = kvh_communicator_min(communicator.get(), &value, 1, &value);
      }
      const int calls = end.calls;
      EXPECT_EQ(calls, fail_at + 1);
      EXPECT_EQ(one_round(communicator.get(), "body"), KVH_ERR_COMMUNICATOR);
      EXPECT_EQ(kvh_communicator_close(communicator.get()), KVH_ERR_COMMUNICATOR);
      EXPECT_EQ(end.calls, calls);
      return status;
    });
    EXPECT_THAT(statuses, Each(KVH_ERR_COMMUNICATOR)) << fail_at;
  }
}

TEST(CommunicatorOps, RanksThatDoNotAgreeAllLearnOfIt) {
  const auto statuses = on_all_ranks(3, [](End &end) -> kvh_status_t {
    kvh_communicator_params_t given = params();
    given.mode = end.rank == 2 ? KVH_BROADCAST_DECIDED : KVH_BROADCAST_FULL;
    Communicator communicator;
    return create(end, given, communicator);
  });
  EXPECT_THAT(statuses, Each(KVH_ERR_COMMUNICATOR));
  const auto told = on_all_ranks(3, [](End &end) -> kvh_status_t {
    kvh_communicator_params_t given = params();
    given.deadline_ns = end.rank == 2 ? 1 : 0;
    Communicator communicator;
    return create(end, given, communicator);
  });
  EXPECT_EQ(told, (std::vector<kvh_status_t>{KVH_ERR_COMMUNICATOR, KVH_ERR_COMMUNICATOR, KVH_ERR_INVALID_ARGUMENT}));
}

TEST(CommunicatorOps, UserDataIsDestroyedOnceWhateverIsWrong) {
  const support::Context context = support::context();
  Fabric fabric(1);
  const auto destroyed = [&](kvh_status_t expected, const std::function<void(kvh_communicator_ops_t &)> &spoil,
                             const kvh_communicator_params_t &given, const kvh_context_t *with) {
    End end;
    end.fabric = &fabric;
    end.context = context.get();
    kvh_communicator_ops_t ops = end.ops();
    spoil(ops);
    kvh_communicator_t *communicator = nullptr;
    EXPECT_EQ(kvh_communicator_from_ops(with, &given, &ops, &communicator, nullptr), expected);
    EXPECT_EQ(communicator, nullptr);
    return end.destroyed;
  };
  const auto as_it_is = [](kvh_communicator_ops_t &) {};
  EXPECT_EQ(destroyed(KVH_ERR_INVALID_ARGUMENT, as_it_is, params(), nullptr), 1);
  EXPECT_EQ(destroyed(KVH_ERR_INVALID_ARGUMENT, as_it_is, params(2), context.get()), 1);
  kvh_communicator_params_t bad = params();
  bad.reserved = 1;
  EXPECT_EQ(destroyed(KVH_ERR_ABI, as_it_is, bad, context.get()), 1);
  for (const auto &spoil : std::vector<std::function<void(kvh_communicator_ops_t &)>>{
           [](auto &ops) { ops.broadcast = nullptr; }, [](auto &ops) { ops.min_reduce = nullptr; },
           [](auto &ops) { ops.rank = 1; }, [](auto &ops) { ops.size = 0; }, [](auto &ops) { ops.size = UINT32_MAX; }}) {
    EXPECT_EQ(destroyed(KVH_ERR_INVALID_ARGUMENT, spoil, params(), context.get()), 1);
  }
  // A struct that ends before the function does not name it.
  EXPECT_EQ(destroyed(KVH_ERR_ABI, [](auto &ops) { ops.struct_size = offsetof(kvh_communicator_ops_t, destroy); },
                      params(), context.get()),
            0);
  kvh_communicator_t *communicator = nullptr;
  const kvh_communicator_params_t given = params();
  EXPECT_EQ(kvh_communicator_from_ops(context.get(), &given, nullptr, &communicator, nullptr), KVH_ERR_INVALID_ARGUMENT);
}

TEST(CommunicatorOps, APipelineNeedsSendAndReceive) {
  const auto statuses = on_all_ranks(2, [](End &end) -> kvh_status_t {
    const kvh_communicator_params_t given = params(1, 2);
    kvh_communicator_ops_t ops = end.ops();
    if (end.rank == 0) {
      ops.send = nullptr;
    } else {
      ops.receive = nullptr;
    }
    kvh_communicator_t *communicator = nullptr;
    kvh_error_t *error = nullptr;
    const kvh_status_t status = kvh_communicator_from_ops(end.context, &given, &ops, &communicator, &error);
    const support::Error owned(error);
    EXPECT_THAT(std::string(support::view(kvh_error_message(error))), HasSubstr("bad input"));
    return status;
  });
  EXPECT_THAT(statuses, Each(KVH_ERR_INVALID_ARGUMENT));
}

TEST(CommunicatorOps, ARankThatSeesDamageIsPoisonedTakesPartAndIsToldOfAtTheNextAgreement) {
  // The second message of a round, whose last byte belongs to a body.
  const auto statuses = on_all_ranks(3, [](End &end) -> kvh_status_t {
    const support::Context context = support::context();
    end.context = context.get();
    end.damage_at = end.rank == 1 ? 1 : -1;
    const bool is_damaged = end.rank == 1;
    Communicator communicator;
    EXPECT_EQ(create(end, params(), communicator), KVH_OK);
    EXPECT_EQ(one_round(communicator.get(), "body"), is_damaged ? KVH_ERR_COMMUNICATOR : KVH_OK);
    int32_t verdict = -1;
    kvh_snapshot_t *snapshot = nullptr;
    EXPECT_EQ(kvh_admit(context.get(), 2, nullptr, 0, &verdict, &snapshot), is_damaged ? KVH_ERR_POISONED : KVH_OK)
        << "local calls";
    EXPECT_EQ(one_round(communicator.get(), "another"), is_damaged ? KVH_ERR_POISONED : KVH_OK) << "still takes part";
    // At once, and begun.
    uint64_t value = 1;
    EXPECT_EQ(kvh_communicator_min(communicator.get(), &value, 1, &value),
              is_damaged ? KVH_ERR_POISONED : KVH_ERR_COMMUNICATOR);
    EXPECT_EQ(kvh_communicator_min_begin(communicator.get(), &value, 1), is_damaged ? KVH_ERR_POISONED : KVH_OK);
    EXPECT_EQ(kvh_communicator_min_poll(communicator.get(), &value, 1),
              is_damaged ? KVH_ERR_POISONED : KVH_ERR_COMMUNICATOR);
    end.context = nullptr;
    return kvh_communicator_close(communicator.get());
  });
  EXPECT_EQ(statuses, (std::vector<kvh_status_t>{KVH_OK, KVH_ERR_POISONED, KVH_OK}));
}

TEST(CommunicatorOps, HaveAWrapper) {
  Fabric fabric(1);
  const kvhints::Context context;
  End end;
  end.fabric = &fabric;
  end.context = context.get();
  {
    kvhints::Communicator communicator(context, params(), end.ops());
    EXPECT_EQ(communicator.min(7), 7u);
    communicator.begin_min({3, 4});
    std::vector<uint64_t> smallest(2);
    EXPECT_TRUE(communicator.poll_min(smallest));
    EXPECT_EQ(smallest, (std::vector<uint64_t>{3, 4}));
    communicator.close();
    EXPECT_EQ(end.destroyed, 0);
  }
  EXPECT_EQ(end.destroyed, 1);
}

}  // namespace
