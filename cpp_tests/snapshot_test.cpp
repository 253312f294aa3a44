// kvh_snapshot_t: what it answers, its copies and encodings, its references.
#include "support.hpp"

#include <gmock/gmock.h>

#include <thread>
#include <vector>

namespace {

using support::view;

const std::string kFirst =
    R"({"action_id":"a1","action_type":"kv.fetch","action_version":"1.0","payload":{"block_hashes":[11,22]},"x":1})";
const std::string kSecond = R"({"payload":{},"action_version":"2","action_type":"t\n","action_id":"é"})";
const std::string kJson = R"({"z":[0.5],"protocol_version":"0.1","actions":[)" + kFirst + "," + kSecond +
                          R"(],"message_id":"m\"7","tail":{"a":null}})";

class SnapshotTest : public testing::Test {
 protected:
  support::Context context_ = support::context();
  support::Snapshot snapshot_ = support::admitted(context_.get(), kJson);
};

TEST_F(SnapshotTest, AnswersFromItsOwnBytes) {
  context_.reset();  // a snapshot does not need its context
  EXPECT_EQ(view(kvh_snapshot_json(snapshot_.get())), kJson);
  EXPECT_EQ(view(kvh_snapshot_protocol_version(snapshot_.get())), "0.1");
  EXPECT_EQ(view(kvh_snapshot_message_id(snapshot_.get())), "m\"7");
  ASSERT_EQ(kvh_snapshot_action_count(snapshot_.get()), 2u);
  kvh_action_t action{};
  ASSERT_EQ(kvh_snapshot_action(snapshot_.get(), 0, &action), KVH_OK);
  EXPECT_EQ(view(action.id), "a1");
  EXPECT_EQ(view(action.type), "kv.fetch");
  EXPECT_EQ(view(action.version), "1.0");
  EXPECT_EQ(view(action.payload), R"({"block_hashes":[11,22]})");
  EXPECT_EQ(view(action.json), kFirst);
  ASSERT_EQ(kvh_snapshot_action(snapshot_.get(), 1, &action), KVH_OK);
  EXPECT_EQ(view(action.id), "é");
  EXPECT_EQ(view(action.type), "t\n");
  EXPECT_EQ(view(action.version), "2");
  EXPECT_EQ(view(action.payload), "{}");
  EXPECT_EQ(view(action.json), kSecond);
}

TEST_F(SnapshotTest, OneActionKeepsTheEnvelopeAroundIt) {
  for (const auto &[index, json] : {std::pair{0u, kFirst}, std::pair{1u, kSecond}}) {
    kvh_snapshot_t *out = nullptr;
    ASSERT_EQ(kvh_snapshot_one_action(snapshot_.get(), index, &out), KVH_OK);
    support::Snapshot one(out);
    EXPECT_EQ(view(kvh_snapshot_json(one.get())),
              R"({"z":[0.5],"protocol_version":"0.1","actions":[)" + json + R"(],"message_id":"m\"7","tail":{"a":null}})");
    EXPECT_EQ(view(kvh_snapshot_message_id(one.get())), "m\"7");
    ASSERT_EQ(kvh_snapshot_action_count(one.get()), 1u);
    kvh_action_t action{}, original{};
    ASSERT_EQ(kvh_snapshot_action(one.get(), 0, &action), KVH_OK);
    ASSERT_EQ(kvh_snapshot_action(snapshot_.get(), index, &original), KVH_OK);
    EXPECT_EQ(view(action.json), json);
    EXPECT_EQ(view(action.id), view(original.id));
    EXPECT_EQ(view(action.type), view(original.type));
    EXPECT_EQ(view(action.payload), view(original.payload));
  }
}

TEST_F(SnapshotTest, MessagePackGoesOutAndComesBack) {
  kvh_buffer_t *out = nullptr;
  ASSERT_EQ(kvh_snapshot_msgpack(snapshot_.get(), &out), KVH_OK);
  support::Buffer buffer(out);
  kvh_bytes_t packed = kvh_buffer_bytes(buffer.get());
  ASSERT_GT(packed.len, 0u);
  EXPECT_EQ(packed.data[0], 0x85);
  int32_t verdict = -1;
  kvh_snapshot_t *again = nullptr;
  ASSERT_EQ(kvh_admit_msgpack(context_.get(), KVH_INGRESS_TRUSTED, packed.data, packed.len, &verdict, &again), KVH_OK);
  support::Snapshot back(again);
  ASSERT_EQ(verdict, KVH_VERDICT_ADMITTED);
  EXPECT_EQ(view(kvh_snapshot_json(back.get())), kJson);
}

TEST_F(SnapshotTest, IsRebuiltFromItsOwnBytesAlone) {
  kvh_bytes_t json = kvh_snapshot_json(snapshot_.get());
  kvh_snapshot_t *out = nullptr;
  ASSERT_EQ(kvh_snapshot_from_json(json.data, json.len, &out, nullptr), KVH_OK);
  support::Snapshot again(out);
  EXPECT_EQ(view(kvh_snapshot_json(again.get())), kJson);
  EXPECT_THAT(support::metrics(context_.get()), testing::HasSubstr("kvhints_hints_admitted_total 1\n"));
  out = nullptr;
  kvh_error_t *explained = nullptr;
  EXPECT_EQ(kvh_snapshot_from_json(json.data, json.len - 1, &out, &explained), KVH_ERR_INVALID_ARGUMENT);
  support::Error error(explained);
  EXPECT_THAT(view(kvh_error_message(error.get())), testing::HasSubstr("damaged"));
  EXPECT_EQ(kvh_snapshot_from_json(nullptr, 0, &out, nullptr), KVH_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(kvh_snapshot_from_json(json.data, json.len, nullptr, nullptr), KVH_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(out, nullptr);
}

TEST_F(SnapshotTest, PastTheLastActionIsNotFound) {
  kvh_action_t action{};
  action.json.len = 99;
  kvh_snapshot_t *one = nullptr;
  for (size_t index : {size_t{2}, SIZE_MAX}) {
    EXPECT_EQ(kvh_snapshot_action(snapshot_.get(), index, &action), KVH_ERR_INVALID_ARGUMENT);
    EXPECT_EQ(kvh_snapshot_one_action(snapshot_.get(), index, &one), KVH_ERR_INVALID_ARGUMENT);
  }
  EXPECT_EQ(action.json.len, 99u);
  EXPECT_EQ(one, nullptr);
}

TEST_F(SnapshotTest, NullIsAnsweredWithNothing) {
  EXPECT_EQ(kvh_snapshot_retain(nullptr), nullptr);
  kvh_snapshot_release(nullptr);
  EXPECT_EQ(kvh_snapshot_json(nullptr).len, 0u);
  EXPECT_EQ(kvh_snapshot_json(nullptr).data, nullptr);
  EXPECT_EQ(kvh_snapshot_message_id(nullptr).len, 0u);
  EXPECT_EQ(kvh_snapshot_protocol_version(nullptr).len, 0u);
  EXPECT_EQ(kvh_snapshot_action_count(nullptr), 0u);
  kvh_action_t action{};
  kvh_snapshot_t *one = nullptr;
  kvh_buffer_t *packed = nullptr;
  EXPECT_EQ(kvh_snapshot_action(nullptr, 0, &action), KVH_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(kvh_snapshot_one_action(nullptr, 0, &one), KVH_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(kvh_snapshot_msgpack(nullptr, &packed), KVH_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(kvh_snapshot_action(snapshot_.get(), 0, nullptr), KVH_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(kvh_snapshot_one_action(snapshot_.get(), 0, nullptr), KVH_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(kvh_snapshot_msgpack(snapshot_.get(), nullptr), KVH_ERR_INVALID_ARGUMENT);
}

TEST_F(SnapshotTest, EightThreadsRetainAndRelease) {
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 8; ++thread) {
    // Each thread owns one reference from the start, so that the last one frees.
    threads.emplace_back([mine = kvh_snapshot_retain(snapshot_.get())] {
      for (int round = 0; round < 10000; ++round) {
        kvh_snapshot_t *other = kvh_snapshot_retain(mine);
        EXPECT_EQ(kvh_snapshot_action_count(other), 2u);
        kvh_snapshot_release(other);
      }
      kvh_snapshot_release(mine);
    });
  }
  snapshot_.reset();
  for (auto &thread : threads) thread.join();
}

}  // namespace
