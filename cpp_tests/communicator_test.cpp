// kvh_communicator_t, kvh_local_group_t and kvh_broadcast, with the threads of this process as ranks.
#include "support.hpp"

#include <gmock/gmock.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <string>
#include <thread>
#include <vector>

namespace {

using testing::Each;
using testing::HasSubstr;
using Batch = support::Handle<kvh_batch_t, kvh_batch_destroy>;
using Communicator = support::Handle<kvh_communicator_t, kvh_communicator_destroy>;
using Group = support::Handle<kvh_local_group_t, kvh_local_group_destroy>;

constexpr const char *hint_json =
    R"({"protocol_version":"0.1","message_id":"m","actions":[{"action_id":"a","action_type":"kv.fetch",)"
    R"("action_version":"1.0","payload":{"block_hashes":[18446744073709551615,12345678901234567890,7]}}]})";

kvh_communicator_params_t params(uint32_t tensor = 0, uint32_t pipeline = 0, uint32_t context = 0) {
  kvh_communicator_params_t params{};
  params.struct_size = sizeof params;
  params.tensor_size = tensor;
  params.pipeline_size = pipeline;
  params.context_size = context;
  return params;
}

Group group_of(uint32_t size) {
  kvh_local_group_t *group = nullptr;
  EXPECT_EQ(kvh_local_group_create(size, &group), KVH_OK);
  return Group(group);
}

Communicator rank_of(const support::Context &context, const Group &group, uint32_t rank,
                     const kvh_communicator_params_t &params) {
  kvh_communicator_t *communicator = nullptr;
  EXPECT_EQ(kvh_communicator_create_local(context.get(), group.get(), rank, &params, &communicator), KVH_OK);
  return Communicator(communicator);
}

// Runs `rank_main` on a thread for each rank; the communicator ends with the thread.
std::vector<kvh_status_t> on_all_ranks(uint32_t size, const kvh_communicator_params_t &params,
                                       const std::function<kvh_status_t(kvh_communicator_t *)> &rank_main) {
  const support::Context context = support::context();
  const Group group = group_of(size);
  std::vector<kvh_status_t> statuses(size, 12345);
  std::vector<std::thread> threads;
  for (uint32_t rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank, communicator = rank_of(context, group, rank, params)] {
      statuses[rank] = rank_main(communicator.get());
    });
  }
  for (std::thread &thread : threads) {
    thread.join();
  }
  return statuses;
}

std::string long_body() {
  std::string body(9'000'000, '\0');
  for (size_t at = 0; at < body.size(); ++at) {
    body[at] = static_cast<char>(at * 2654435761u >> 7);
  }
  return body;
}

// A request with a hint, its child without one, one with a body of several chunks.
struct Sample {
  support::Context context = support::context();
  support::Snapshot snapshot = support::admitted(context.get(), hint_json);
  std::string body = long_body();

  Batch batch() const {
    kvh_batch_t *batch = nullptr;
    EXPECT_EQ(kvh_batch_create(&batch), KVH_OK);
    kvh_batch_request_t request{};
    request.struct_size = sizeof request;
    request.id = 10;
    request.body = support::bytes("first");
    request.snapshot = snapshot.get();
    EXPECT_EQ(kvh_batch_add(batch, &request), KVH_OK);
    request.id = 11;
    request.body = {};
    request.snapshot = nullptr;
    request.flags = KVH_BATCH_REQUEST_HAS_PARENT;
    EXPECT_EQ(kvh_batch_add(batch, &request), KVH_OK);
    request.id = 12;
    request.body = support::bytes(body);
    request.flags = 0;
    EXPECT_EQ(kvh_batch_add(batch, &request), KVH_OK);
    return Batch(batch);
  }

  void check(const kvh_batch_t *received, bool has_snapshots) const {
    ASSERT_EQ(kvh_batch_count(received), 3u);
    kvh_batch_request_t got[3];
    for (size_t index = 0; index < 3; ++index) {
      got[index].struct_size = sizeof got[index];
      ASSERT_EQ(kvh_batch_get(received, index, &got[index]), KVH_OK);
      EXPECT_EQ(got[index].id, 10 + index);
    }
    EXPECT_EQ(support::view(got[0].body), "first");
    EXPECT_EQ(got[1].body.len, 0u);
    EXPECT_TRUE(support::view(got[2].body) == body);
    EXPECT_EQ(got[1].flags, static_cast<uint32_t>(KVH_BATCH_REQUEST_HAS_PARENT));
    EXPECT_EQ(got[1].parent, 0u);
    if (!has_snapshots) {
      EXPECT_EQ(got[0].snapshot, nullptr);
      return;
    }
    ASSERT_NE(got[0].snapshot, nullptr);
    EXPECT_EQ(support::view(kvh_snapshot_json(got[0].snapshot)), hint_json);
    EXPECT_EQ(got[1].snapshot, got[0].snapshot) << "a child shares its parent's";
    EXPECT_EQ(got[2].snapshot, nullptr);
  }
};

kvh_status_t one_round(kvh_communicator_t *communicator, const Sample &sample, bool has_snapshots) {
  if (kvh_communicator_rank(communicator) == 0) {
    const Batch batch = sample.batch();
    return kvh_broadcast(communicator, batch.get(), nullptr);
  }
  kvh_batch_t *received = nullptr;
  const kvh_status_t status = kvh_broadcast(communicator, nullptr, &received);
  const Batch owned(received);
  if (status == KVH_OK) {
    sample.check(received, has_snapshots);
  }
  return status;
}

TEST(Broadcast, ReachesEveryRankOfEveryTopology) {
  const Sample sample;
  for (const auto &[size, given] : std::vector<std::pair<uint32_t, kvh_communicator_params_t>>{
           {1, params()}, {2, params()}, {4, params()}, {8, params()}, {2, params(1, 2)}, {4, params(2, 2)},
           {8, params(2, 2, 2)}, {4, params(1, 4, 1)}, {4, params(0, 2)}}) {
    const auto statuses = on_all_ranks(size, given, [&, size = size](kvh_communicator_t *communicator) -> kvh_status_t {
      EXPECT_EQ(kvh_communicator_size(communicator), size);
      for (int round = 0; round < 2; ++round) {
        EXPECT_EQ(one_round(communicator, sample, true), KVH_OK);
      }
      return kvh_communicator_close(communicator);
    });
    EXPECT_THAT(statuses, Each(KVH_OK));
  }
}

TEST(Broadcast, DecidedLeavesSnapshotsOnRank0) {
  const Sample sample;
  kvh_communicator_params_t given = params(2, 2);
  given.mode = KVH_BROADCAST_DECIDED;
  const auto statuses = on_all_ranks(
      4, given, [&](kvh_communicator_t *communicator) -> kvh_status_t { return one_round(communicator, sample, false); });
  EXPECT_THAT(statuses, Each(KVH_OK));
}

using Plan = support::Handle<kvh_plan_t, kvh_plan_destroy>;

// The plan of a request without a hint.
Plan local_plan(const support::Context &context) {
  kvh_capabilities_t *capabilities = nullptr;
  EXPECT_EQ(kvh_capabilities_create(&capabilities), KVH_OK);
  kvh_binding_table_t *table = nullptr;
  EXPECT_EQ(kvh_binding_table_create(&table), KVH_OK);
  kvh_request_profile_t profile{};
  profile.struct_size = sizeof profile;
  profile.kind = KVH_REQUEST_CONTEXT;
  profile.has_lora = KVH_ANSWER_NO;
  profile.required_handoff = KVH_ANSWER_NO;
  kvh_plan_t *plan = nullptr;
  EXPECT_EQ(kvh_plan_decide(context.get(), nullptr, capabilities, table, &profile, &plan), KVH_OK);
  kvh_binding_table_destroy(table);
  kvh_capabilities_destroy(capabilities);
  return Plan(plan);
}

TEST(Broadcast, PlansTravelAndALocalOneIsNoneWhereOnlyDecisionsDo) {
  const support::Context context = support::context();
  for (const uint32_t mode : {KVH_BROADCAST_FULL, KVH_BROADCAST_DECIDED}) {
    kvh_communicator_params_t given = params();
    given.mode = mode;
    const auto statuses = on_all_ranks(2, given, [&](kvh_communicator_t *communicator) -> kvh_status_t {
      kvh_batch_t *batch = nullptr;
      kvh_batch_request_t request{};
      request.struct_size = sizeof request;
      if (kvh_communicator_rank(communicator) == 0) {
        const Plan plan = local_plan(context);
        request.plan = plan.get();
        EXPECT_EQ(kvh_batch_create(&batch), KVH_OK);
        EXPECT_EQ(kvh_batch_add(batch, &request), KVH_OK);
      }
      const Batch owned(batch);
      kvh_batch_t *received = nullptr;
      const kvh_status_t status = kvh_broadcast(communicator, batch, &received);
      const Batch owned_too(received);
      EXPECT_EQ(kvh_batch_get(received != nullptr ? received : batch, 0, &request), KVH_OK);
      if (received != nullptr && mode == KVH_BROADCAST_DECIDED) {
        EXPECT_EQ(request.plan, nullptr);
      } else {
        EXPECT_EQ(kvh_plan_kind(request.plan), KVH_PLAN_LOCAL) << "kept by the batch";
        EXPECT_EQ(kvh_plan_reason(request.plan), KVH_REFUSAL_NO_CANDIDATE);
      }
      return status;
    });
    EXPECT_THAT(statuses, Each(KVH_OK));
  }
}

TEST(Broadcast, ReceivedSnapshotsOutliveTheirBatch) {
  const Sample sample;
  on_all_ranks(2, params(), [&](kvh_communicator_t *communicator) -> kvh_status_t {
    if (kvh_communicator_rank(communicator) == 0) {
      return one_round(communicator, sample, true);
    }
    kvh_batch_t *received = nullptr;
    EXPECT_EQ(kvh_broadcast(communicator, nullptr, &received), KVH_OK);
    kvh_batch_request_t request{};
    request.struct_size = sizeof request;
    EXPECT_EQ(kvh_batch_get(received, 0, &request), KVH_OK);
    EXPECT_EQ(kvh_batch_add(received, &request), KVH_ERR_STATE) << "a received batch stays as it is";
    const support::Snapshot kept(kvh_snapshot_retain(request.snapshot));
    kvh_batch_destroy(received);
    EXPECT_EQ(support::view(kvh_snapshot_json(kept.get())), hint_json);
    return KVH_OK;
  });
}

TEST(Broadcast, AllRanksLeaveWithTheStatusOfRank0AndTheNextRoundWorks) {
  const Sample sample;
  const auto statuses = on_all_ranks(4, params(2, 2), [&](kvh_communicator_t *communicator) -> kvh_status_t {
    kvh_batch_t *received = nullptr;
    const kvh_status_t status = kvh_broadcast(communicator, nullptr, &received);
    EXPECT_EQ(received, nullptr) << "outputs are written only on success";
    EXPECT_EQ(one_round(communicator, sample, true), KVH_OK);
    return status;
  });
  EXPECT_THAT(statuses, Each(KVH_ERR_INVALID_ARGUMENT));
}

TEST(Broadcast, ARankWithBadInputTakesPartAndIsToldAfterwards) {
  const Sample sample;
  const auto statuses = on_all_ranks(4, params(1, 4), [&](kvh_communicator_t *communicator) -> kvh_status_t {
    kvh_status_t status = KVH_OK;
    if (kvh_communicator_rank(communicator) == 1) {
      const Batch own = sample.batch();
      kvh_batch_t *received = nullptr;
      status = kvh_broadcast(communicator, own.get(), &received);
      EXPECT_EQ(received, nullptr);
    } else if (kvh_communicator_rank(communicator) == 2) {
      status = kvh_broadcast(communicator, nullptr, nullptr);
    } else {
      status = one_round(communicator, sample, true);
    }
    EXPECT_EQ(one_round(communicator, sample, true), KVH_OK);
    return status;
  });
  EXPECT_EQ(statuses, (std::vector<kvh_status_t>{KVH_OK, KVH_ERR_INVALID_ARGUMENT, KVH_ERR_INVALID_ARGUMENT, KVH_OK}));
}

TEST(Broadcast, ARankThatLeavesWakesTheOthers) {
  for (const uint32_t leaving : {0u, 1u, 3u}) {
    const auto statuses = on_all_ranks(4, params(2, 2), [&](kvh_communicator_t *communicator) -> kvh_status_t {
      if (kvh_communicator_rank(communicator) == leaving) {
        return KVH_OK;
      }
      uint64_t value = 1;
      EXPECT_EQ(kvh_communicator_min(communicator, &value, 1, &value), KVH_ERR_COMMUNICATOR);
      return kvh_communicator_min(communicator, &value, 1, &value);
    });
    for (uint32_t rank = 0; rank < 4; ++rank) {
      EXPECT_EQ(statuses[rank], rank == leaving ? KVH_OK : KVH_ERR_COMMUNICATOR) << rank;
    }
  }
}

TEST(Broadcast, IsCounted) {
  const Sample sample;
  const Group group = group_of(1);
  const Communicator communicator = rank_of(sample.context, group, 0, params());
  EXPECT_EQ(one_round(communicator.get(), sample, true), KVH_OK);
  EXPECT_EQ(kvh_broadcast(communicator.get(), nullptr, nullptr), KVH_ERR_INVALID_ARGUMENT);
  const std::string text = support::metrics(sample.context.get());
  EXPECT_THAT(text, HasSubstr("kvhints_broadcast_rounds_total{outcome=\"delivered\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("kvhints_broadcast_rounds_total{outcome=\"aborted\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("kvhints_broadcast_rounds_total{outcome=\"failed\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("kvhints_broadcast_requests_total 3\n"));
}

TEST(Communicator, MinIsTheSmallestOfAllRanks) {
  for (const size_t count : {size_t{0}, size_t{1}, size_t{61}, size_t{62}, size_t{5000}}) {
    const auto statuses = on_all_ranks(4, params(), [&](kvh_communicator_t *communicator) -> kvh_status_t {
      std::vector<uint64_t> mine(count);
      for (size_t at = 0; at < count; ++at) {
        mine[at] = at * 10 + (at + kvh_communicator_rank(communicator)) % 4;
      }
      std::vector<uint64_t> result(count);
      const kvh_status_t status = kvh_communicator_min(communicator, mine.data(), count, result.data());
      for (size_t at = 0; at < count; ++at) {
        EXPECT_EQ(result[at], at * 10);
      }
      return status;
    });
    EXPECT_THAT(statuses, Each(KVH_OK));
  }
}

TEST(Communicator, MinTellsAllRanksOfOneWithBadInput) {
  const auto statuses = on_all_ranks(3, params(), [&](kvh_communicator_t *communicator) -> kvh_status_t {
    uint64_t value = 5;
    const bool is_bad = kvh_communicator_rank(communicator) == 1;
    const kvh_status_t status = kvh_communicator_min(communicator, is_bad ? nullptr : &value, 1, &value);
    EXPECT_EQ(kvh_communicator_min(communicator, &value, 1, &value), KVH_OK) << "still in step";
    return status;
  });
  EXPECT_EQ(statuses, (std::vector<kvh_status_t>{KVH_ERR_COMMUNICATOR, KVH_ERR_INVALID_ARGUMENT, KVH_ERR_COMMUNICATOR}));
}

TEST(Communicator, ClosingIsOnce) {
  const Sample sample;
  const auto statuses = on_all_ranks(2, params(), [&](kvh_communicator_t *communicator) -> kvh_status_t {
    EXPECT_EQ(kvh_communicator_close(communicator), KVH_OK);
    uint64_t value = 0;
    EXPECT_EQ(kvh_communicator_min(communicator, &value, 1, &value), KVH_ERR_STATE);
    EXPECT_EQ(one_round(communicator, sample, true), KVH_ERR_STATE);
    return kvh_communicator_close(communicator);
  });
  EXPECT_THAT(statuses, Each(KVH_ERR_STATE));
}

TEST(Communicator, RanksWithOtherDeadlinesAreRefused) {
  const support::Context context = support::context();
  const Group group = group_of(2);
  kvh_communicator_params_t given = params();
  given.deadline_ns = 1000;
  const Communicator first = rank_of(context, group, 0, given);
  kvh_communicator_t *second = nullptr;
  for (uint64_t other : {uint64_t{0}, uint64_t{999}, UINT64_MAX}) {
    given.deadline_ns = other;
    EXPECT_EQ(kvh_communicator_create_local(context.get(), group.get(), 1, &given, &second), KVH_ERR_STATE);
  }
  EXPECT_EQ(second, nullptr);
  given.deadline_ns = 1000;
  rank_of(context, group, 1, given);
}

TEST(Communicator, ADeadlineEndsTheWait) {
  const support::Context context = support::context();
  const Group group = group_of(2);
  kvh_communicator_params_t hasty = params();
  hasty.deadline_ns = 1;
  const Communicator communicator = rank_of(context, group, 1, hasty);
  kvh_batch_t *received = nullptr;
  EXPECT_EQ(kvh_broadcast(communicator.get(), nullptr, &received), KVH_ERR_COMMUNICATOR);
  EXPECT_EQ(received, nullptr);
}

TEST(Communicator, BadParamsAreRefused) {
  const support::Context context = support::context();
  const Group group = group_of(4);
  kvh_communicator_t *communicator = nullptr;
  const auto create = [&](uint32_t rank, const kvh_communicator_params_t &given) {
    return kvh_communicator_create_local(context.get(), group.get(), rank, &given, &communicator);
  };
  EXPECT_EQ(create(0, params(3)), KVH_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(create(0, params(0, 3)), KVH_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(create(0, params(UINT32_MAX, UINT32_MAX, UINT32_MAX)), KVH_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(create(4, params()), KVH_ERR_INVALID_ARGUMENT);
  kvh_communicator_params_t bad = params();
  bad.mode = 3;
  EXPECT_EQ(create(0, bad), KVH_ERR_INVALID_ARGUMENT);
  bad = params();
  bad.chunk_bytes = 4095;
  EXPECT_EQ(create(0, bad), KVH_ERR_INVALID_ARGUMENT);
  bad = params();
  bad.reserved = 1;
  EXPECT_EQ(create(0, bad), KVH_ERR_ABI);
  bad = params();
  bad.struct_size = 8;
  EXPECT_EQ(create(0, bad), KVH_ERR_ABI);
  EXPECT_EQ(kvh_communicator_create_local(context.get(), group.get(), 0, nullptr, &communicator),
            KVH_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(communicator, nullptr);

  const Communicator first = rank_of(context, group, 0, params());
  EXPECT_EQ(create(0, params()), KVH_ERR_STATE) << "taken";
  EXPECT_EQ(create(1, params(2, 2)), KVH_ERR_STATE) << "other params than rank 0";
  EXPECT_EQ(communicator, nullptr);
}

TEST(Communicator, NullIsRefusedWhereNothingSaysOtherwise) {
  const support::Context context = support::context();
  const Group group = group_of(1);
  const kvh_communicator_params_t given = params();
  kvh_communicator_t *communicator = nullptr;
  EXPECT_EQ(kvh_local_group_create(0, nullptr), KVH_ERR_INVALID_ARGUMENT);
  kvh_local_group_t *none = nullptr;
  EXPECT_EQ(kvh_local_group_create(0, &none), KVH_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(kvh_local_group_create(257, &none), KVH_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(kvh_communicator_create_local(nullptr, group.get(), 0, &given, &communicator), KVH_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(kvh_communicator_create_local(context.get(), nullptr, 0, &given, &communicator),
            KVH_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(kvh_communicator_create_local(context.get(), group.get(), 0, &given, nullptr), KVH_ERR_INVALID_ARGUMENT);
  kvh_batch_t *received = nullptr;
  EXPECT_EQ(kvh_broadcast(nullptr, nullptr, &received), KVH_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(kvh_communicator_min(nullptr, nullptr, 0, nullptr), KVH_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(kvh_communicator_close(nullptr), KVH_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(kvh_communicator_rank(nullptr), 0u);
  EXPECT_EQ(kvh_communicator_size(nullptr), 0u);
  kvh_communicator_destroy(nullptr);
  kvh_local_group_destroy(nullptr);
}

TEST(Communicator, IsRefusedInAForkedChild) {
  const support::Context context = support::context();
  const Group group = group_of(1);
  const Communicator communicator = rank_of(context, group, 0, params());
  const pid_t child = fork();
  if (child == 0) {
    uint64_t value = 1;
    const bool is_refused = kvh_communicator_min(communicator.get(), &value, 1, &value) == KVH_ERR_FORKED &&
                            kvh_broadcast(communicator.get(), nullptr, nullptr) == KVH_ERR_FORKED &&
                            kvh_communicator_close(communicator.get()) == KVH_ERR_FORKED;
    _exit(is_refused ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

TEST(Communicator, MpiIsRefusedWithAReasonWhereItCannotBe) {
  // Built without MPI, or with an MPI that nobody initialised in this process.
  const support::Context context = support::context();
  const kvh_communicator_params_t given = params();
  kvh_communicator_t *communicator = nullptr;
  kvh_error_t *error = nullptr;
  const kvh_status_t status = kvh_communicator_create_mpi(context.get(), &given, 0, &communicator, &error);
  const support::Error owned(error);
  EXPECT_THAT(status, testing::AnyOf(KVH_ERR_UNSUPPORTED, KVH_ERR_STATE));
  EXPECT_THAT(std::string(support::view(kvh_error_message(error))), HasSubstr("MPI"));
  EXPECT_EQ(kvh_communicator_create_mpi(context.get(), &given, 0, &communicator, nullptr), status);
  EXPECT_EQ(communicator, nullptr);
}

}  // namespace
