// kvh_batch_t: what can be added, what comes back, what is refused.
#include "support.hpp"

#include <string>
#include <vector>

namespace {

using Batch = support::Handle<kvh_batch_t, kvh_batch_destroy>;

constexpr const char *hint_json =
    R"({"protocol_version":"0.1","message_id":"m","actions":[{"action_id":"a","action_type":"kv.fetch",)"
    R"("action_version":"1.0","payload":{"block_hashes":[18446744073709551615]}}]})";

Batch create() {
  kvh_batch_t *batch = nullptr;
  EXPECT_EQ(kvh_batch_create(&batch), KVH_OK);
  return Batch(batch);
}

kvh_batch_request_t request(uint64_t id, std::string_view body) {
  kvh_batch_request_t request{};
  request.struct_size = sizeof request;
  request.id = id;
  request.body = support::bytes(body);
  return request;
}

kvh_batch_request_t get(const Batch &batch, size_t index) {
  kvh_batch_request_t request{};
  request.struct_size = sizeof request;
  EXPECT_EQ(kvh_batch_get(batch.get(), index, &request), KVH_OK);
  return request;
}

TEST(Batch, GivesBackWhatWasAdded) {
  const Batch batch = create();
  EXPECT_EQ(kvh_batch_count(batch.get()), 0u);
  const std::string body = "opaque";
  kvh_batch_request_t given = request(7, body);
  ASSERT_EQ(kvh_batch_add(batch.get(), &given), KVH_OK);
  given = request(8, {});
  given.flags = KVH_BATCH_REQUEST_HAS_PARENT;
  ASSERT_EQ(kvh_batch_add(batch.get(), &given), KVH_OK);

  EXPECT_EQ(kvh_batch_count(batch.get()), 2u);
  EXPECT_EQ(get(batch, 0).id, 7u);
  EXPECT_EQ(get(batch, 0).body.data, reinterpret_cast<const uint8_t *>(body.data())) << "borrowed";
  EXPECT_EQ(get(batch, 0).flags, 0u);
  EXPECT_EQ(get(batch, 1).flags, static_cast<uint32_t>(KVH_BATCH_REQUEST_HAS_PARENT));
  EXPECT_EQ(get(batch, 1).body.len, 0u);
  EXPECT_EQ(get(batch, 1).snapshot, nullptr);
  EXPECT_EQ(get(batch, 1).plan, nullptr);
}

TEST(Batch, KeepsSnapshotsAndChildrenHaveTheirParents) {
  const support::Context context = support::context();
  const Batch batch = create();
  {
    const support::Snapshot snapshot = support::admitted(context.get(), hint_json);
    kvh_batch_request_t given = request(1, "b");
    given.snapshot = snapshot.get();
    ASSERT_EQ(kvh_batch_add(batch.get(), &given), KVH_OK);
  }
  kvh_batch_request_t child = request(2, "b");
  child.flags = KVH_BATCH_REQUEST_HAS_PARENT;
  ASSERT_EQ(kvh_batch_add(batch.get(), &child), KVH_OK);

  EXPECT_EQ(support::view(kvh_snapshot_json(get(batch, 0).snapshot)), hint_json);
  EXPECT_EQ(get(batch, 1).snapshot, get(batch, 0).snapshot);
  const support::Snapshot kept(kvh_snapshot_retain(get(batch, 0).snapshot));
  EXPECT_EQ(support::view(kvh_snapshot_json(kept.get())), hint_json);
}

TEST(Batch, RefusedRequestsLeaveItAsItWas) {
  const Batch batch = create();
  kvh_batch_request_t bad = request(1, "b");
  bad.flags = KVH_BATCH_REQUEST_HAS_PARENT;
  EXPECT_EQ(kvh_batch_add(batch.get(), &bad), KVH_ERR_INVALID_ARGUMENT) << "no earlier request";
  bad = request(1, "b");
  bad.parent = 1;
  EXPECT_EQ(kvh_batch_add(batch.get(), &bad), KVH_ERR_INVALID_ARGUMENT) << "a parent without the flag";
  bad = request(1, "b");
  bad.flags = 2;
  EXPECT_EQ(kvh_batch_add(batch.get(), &bad), KVH_ERR_INVALID_ARGUMENT) << "an unknown flag";
  bad = request(1, "b");
  bad.body.data = nullptr;
  EXPECT_EQ(kvh_batch_add(batch.get(), &bad), KVH_ERR_INVALID_ARGUMENT) << "NULL with a length";
  bad = request(1, "b");
  bad.body.len = (size_t{1} << 30) + 1;
  EXPECT_EQ(kvh_batch_add(batch.get(), &bad), KVH_ERR_LIMIT) << "too long";
  bad = request(1, "b");
  bad.body.len = SIZE_MAX;
  EXPECT_EQ(kvh_batch_add(batch.get(), &bad), KVH_ERR_INVALID_ARGUMENT) << "beyond the address space";
  bad = request(1, "b");
  bad.struct_size = 4;
  EXPECT_EQ(kvh_batch_add(batch.get(), &bad), KVH_ERR_ABI);
  EXPECT_EQ(kvh_batch_add(batch.get(), nullptr), KVH_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(kvh_batch_count(batch.get()), 0u);
}

TEST(Batch, NullAndIndicesBeyondTheEndAreRefused) {
  EXPECT_EQ(kvh_batch_create(nullptr), KVH_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(kvh_batch_count(nullptr), 0u);
  kvh_batch_destroy(nullptr);
  kvh_batch_request_t given = request(1, "b");
  EXPECT_EQ(kvh_batch_add(nullptr, &given), KVH_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(kvh_batch_get(nullptr, 0, &given), KVH_ERR_INVALID_ARGUMENT);
  const Batch batch = create();
  EXPECT_EQ(kvh_batch_get(batch.get(), 0, &given), KVH_ERR_INVALID_ARGUMENT);
  ASSERT_EQ(kvh_batch_add(batch.get(), &given), KVH_OK);
  EXPECT_EQ(kvh_batch_get(batch.get(), 1, &given), KVH_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(kvh_batch_get(batch.get(), SIZE_MAX, &given), KVH_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(kvh_batch_get(batch.get(), 0, nullptr), KVH_ERR_INVALID_ARGUMENT);
}

TEST(Batch, HasABound) {
  const Batch batch = create();
  const kvh_batch_request_t given = request(1, "b");
  for (size_t count = 0; count < 16384; ++count) {
    ASSERT_EQ(kvh_batch_add(batch.get(), &given), KVH_OK);
  }
  EXPECT_EQ(kvh_batch_add(batch.get(), &given), KVH_ERR_LIMIT);
  EXPECT_EQ(kvh_batch_count(batch.get()), 16384u);
}

}  // namespace
