// kvh_loopback_t: creation, and that transceivers outlive their hub's handle.
#include "transfer_support.hpp"

namespace {

using namespace transfer_support;

TEST(Loopback, NullArgumentsAreRefused) {
  const support::Context context = support::context();
  kvh_loopback_t *hub = nullptr;
  EXPECT_EQ(kvh_loopback_create(nullptr, &hub), KVH_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(kvh_loopback_create(context.get(), nullptr), KVH_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(hub, nullptr);
  kvh_loopback_destroy(nullptr);
}

TEST(Loopback, TransceiversOutliveTheHandle) {
  const support::Context context = support::context();
  Loopback hub = loopback(context.get());
  Worker worker(hub.get());
  hub.reset();
  EXPECT_STREQ(worker.status().transport, "loopback");
}

TEST(Loopback, TransceiversOfDifferentHubsDoNotMeet) {
  const support::Context context = support::context();
  const Loopback one = loopback(context.get());
  const Loopback other = loopback(context.get());
  Worker source(one.get());
  Worker destination(other.get());
  const Sequence wanted = sequence(4);
  const support::Buffer state = source.state();
  const int32_t place = 5;
  kvh_prefetch_params_t params{};
  params.struct_size = sizeof params;
  params.policy = KVH_RANGE_STRICT;
  params.sequence = wanted.get();
  params.source_state = kvh_buffer_bytes(state.get());
  params.max_tokens = 4;
  params.block_ids = &place;
  params.block_id_count = 1;
  kvh_prefetch_t *begun = nullptr;
  ASSERT_EQ(kvh_prefetch_begin(destination.transceiver.get(), &params, &begun), KVH_OK);
  const Prefetch prefetch(begun);
  const kvh_prefetch_outcome_t ended = outcome(prefetch.get());
  EXPECT_EQ(ended.kind, KVH_OUTCOME_FAILED);
  EXPECT_STREQ(ended.reason, "metadata_failed");
}

}  // namespace
