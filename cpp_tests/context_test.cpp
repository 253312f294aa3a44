// kvh_context_t, and the rules that hold for every call: statuses, struct sizes, NULL, forks,
// clocks and their user data.
#include "kvhints.h"

#include <gmock/gmock.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>
#include <cstdlib>
#include <string>
#include <vector>

namespace {

using testing::HasSubstr;

struct Destroyed {
  int count = 0;
  static void call(void *self) noexcept { ++static_cast<Destroyed *>(self)->count; }
};

uint64_t some_time(void *) noexcept { return 42; }

kvh_context_params_t params() {
  kvh_context_params_t params{};
  params.struct_size = sizeof params;
  return params;
}

kvh_context_t *create(const kvh_context_params_t *params = nullptr) {
  kvh_context_t *context = nullptr;
  EXPECT_EQ(kvh_context_create(params, &context), KVH_OK);
  return context;
}

std::string metrics(const kvh_context_t *context) {
  size_t length = 0;
  EXPECT_EQ(kvh_context_metrics(context, nullptr, 0, &length), KVH_OK);
  std::string text(length, '\0');
  EXPECT_EQ(kvh_context_metrics(context, text.data(), text.size(), &length), KVH_OK);
  EXPECT_EQ(text.size(), length);
  return text;
}

TEST(Status, NumbersStayInTheirRanges) {
  EXPECT_EQ(KVH_OK, 0);
  for (kvh_status_t answer : {KVH_IN_PROGRESS, KVH_NOT_FOUND, KVH_BUSY}) {
    EXPECT_GT(answer, 0);
  }
  for (kvh_status_t mistake : {KVH_ERR_INVALID_ARGUMENT, KVH_ERR_STATE, KVH_ERR_ABI, KVH_ERR_TOO_SMALL,
                               KVH_ERR_FORKED, KVH_ERR_BODY}) {
    EXPECT_TRUE(mistake <= -1 && mistake >= -19) << mistake;
  }
  for (kvh_status_t resource : {KVH_ERR_LIMIT, KVH_ERR_NO_MEMORY, KVH_ERR_UNSUPPORTED}) {
    EXPECT_TRUE(resource <= -20 && resource >= -39) << resource;
  }
  EXPECT_TRUE(KVH_ERR_PEER <= -40 && KVH_ERR_PEER >= -59);
  EXPECT_TRUE(KVH_ERR_COMMUNICATOR <= -60 && KVH_ERR_COMMUNICATOR >= -79);
  EXPECT_TRUE(KVH_ERR_POISONED <= -80 && KVH_ERR_POISONED >= -99);
}

TEST(Status, EveryNumberHasItsOwnText) {
  EXPECT_STREQ(kvh_status_string(KVH_OK), "ok");
  EXPECT_STREQ(kvh_status_string(12345), "unknown status");
  EXPECT_STREQ(kvh_status_string(INT32_MIN), "unknown status");
  for (kvh_status_t status = -99; status <= 3; ++status) {
    ASSERT_NE(kvh_status_string(status), nullptr);
  }
  EXPECT_STRNE(kvh_status_string(KVH_ERR_POISONED), "unknown status");
}

TEST(Version, HeaderAndLibraryAgree) {
  EXPECT_EQ(kvh_abi_version(), static_cast<uint32_t>(KVH_ABI_VERSION));
  EXPECT_THAT(kvh_version_string(), testing::MatchesRegex("[0-9]+\\.[0-9]+\\.[0-9]+"));
}

TEST(Context, NullParamsMeanDefaults) {
  kvh_context_t *context = create(nullptr);
  EXPECT_THAT(metrics(context), HasSubstr("trtllm_kv_hints_ignored_total{reason=\"malformed\"} 0\n"));
  kvh_context_destroy(context);
}

TEST(Context, NullIsRefusedWhereNothingSaysOtherwise) {
  EXPECT_EQ(kvh_context_create(nullptr, nullptr), KVH_ERR_INVALID_ARGUMENT);
  size_t length = 0;
  EXPECT_EQ(kvh_context_metrics(nullptr, nullptr, 0, &length), KVH_ERR_INVALID_ARGUMENT);
  kvh_context_t *context = create();
  EXPECT_EQ(kvh_context_metrics(context, nullptr, 0, nullptr), KVH_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(kvh_context_metrics(context, nullptr, 10, &length), KVH_ERR_INVALID_ARGUMENT);
  kvh_context_destroy(context);
  kvh_context_destroy(nullptr);
}

TEST(Context, ABufferTooSmallStaysUntouchedAndTheLengthIsTold) {
  kvh_context_t *context = create();
  char small[4] = {'k', 'e', 'e', 'p'};
  size_t length = 0;
  EXPECT_EQ(kvh_context_metrics(context, small, sizeof small, &length), KVH_ERR_TOO_SMALL);
  EXPECT_EQ(length, metrics(context).size());
  EXPECT_EQ(std::string(small, sizeof small), "keep");
  kvh_context_destroy(context);
}

TEST(Context, AStructSizeTooSmallIsRefused) {
  kvh_context_params_t given = params();
  kvh_context_t *context = nullptr;
  for (size_t size : {size_t{0}, size_t{1}, sizeof(size_t)}) {
    given.struct_size = size;
    EXPECT_EQ(kvh_context_create(&given, &context), KVH_ERR_ABI) << size;
  }
  EXPECT_EQ(context, nullptr) << "outputs are written only on success";
}

TEST(Context, ALongerStructIsAcceptedWhenItsTailIsZero) {
  struct Newer {
    kvh_context_params_t known;
    uint64_t added[3];
  } newer{};
  newer.known.struct_size = sizeof newer;
  kvh_context_destroy(create(&newer.known));

  newer.added[2] = 1;
  kvh_context_t *context = nullptr;
  EXPECT_EQ(kvh_context_create(&newer.known, &context), KVH_ERR_ABI);
  EXPECT_EQ(context, nullptr);
}

TEST(Context, UnknownValuesAreRefused) {
  kvh_context_params_t given = params();
  given.trust_http_hints = 3;
  kvh_context_t *context = nullptr;
  EXPECT_EQ(kvh_context_create(&given, &context), KVH_ERR_INVALID_ARGUMENT);
  given = params();
  given.reserved = 1;
  EXPECT_EQ(kvh_context_create(&given, &context), KVH_ERR_ABI);
  EXPECT_EQ(context, nullptr);
}

TEST(Context, UserDataIsDestroyedOnceWhenTheContextGoes) {
  Destroyed destroyed;
  kvh_context_params_t given = params();
  given.clock_monotonic_ns = some_time;
  given.clock_unix_seconds = some_time;
  given.clock_user_data = &destroyed;
  given.clock_destroy = Destroyed::call;
  kvh_context_t *context = create(&given);
  EXPECT_EQ(destroyed.count, 0);
  kvh_context_destroy(context);
  EXPECT_EQ(destroyed.count, 1);
}

TEST(Context, UserDataWithoutClocksIsKeptUntilTheLastObjectIsGone) {
  Destroyed destroyed;
  kvh_context_params_t given = params();
  given.clock_user_data = &destroyed;
  given.clock_destroy = Destroyed::call;
  kvh_context_t *context = create(&given);
  kvh_reuse_tree_params_t tree_params{};
  tree_params.struct_size = sizeof tree_params;
  tree_params.tokens_per_block = 4;
  tree_params.mode = 1;
  kvh_reuse_tree_t *tree = nullptr;
  ASSERT_EQ(kvh_reuse_tree_create(context, &tree_params, &tree), KVH_OK);
  EXPECT_EQ(destroyed.count, 0);
  kvh_context_destroy(context);
  EXPECT_EQ(destroyed.count, 0) << "the tree still belongs to the context";
  kvh_reuse_tree_destroy(tree);
  EXPECT_EQ(destroyed.count, 1);
}

TEST(Context, UserDataIsDestroyedOnceWhenAStructThatNamesItIsTooShort) {
  constexpr size_t kNamesDestroy = offsetof(kvh_context_params_t, clock_destroy) + sizeof(kvh_destroy_fn);
  constexpr size_t kFirstRevision = offsetof(kvh_context_params_t, key_ring);
  for (size_t size = 0; size < kFirstRevision; ++size) {
    Destroyed destroyed;
    kvh_context_params_t given = params();
    given.clock_monotonic_ns = some_time;
    given.clock_unix_seconds = some_time;
    given.clock_user_data = &destroyed;
    given.clock_destroy = Destroyed::call;
    given.struct_size = size;
    kvh_context_t *context = nullptr;
    EXPECT_EQ(kvh_context_create(&given, &context), KVH_ERR_ABI) << size;
    EXPECT_EQ(context, nullptr);
    EXPECT_EQ(destroyed.count, size >= kNamesDestroy ? 1 : 0) << size;
  }
}

TEST(Context, UserDataIsDestroyedOnceWhenCreatingFails) {
  Destroyed destroyed;
  kvh_context_params_t given = params();
  given.clock_monotonic_ns = some_time;  // and no other clock
  given.clock_user_data = &destroyed;
  given.clock_destroy = Destroyed::call;
  kvh_context_t *context = nullptr;
  EXPECT_EQ(kvh_context_create(&given, &context), KVH_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(destroyed.count, 1);

  given.clock_unix_seconds = some_time;
  given.trust_http_hints = 77;
  EXPECT_EQ(kvh_context_create(&given, &context), KVH_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(destroyed.count, 2);
  EXPECT_EQ(kvh_context_create(&given, nullptr), KVH_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(destroyed.count, 3);

  struct Newer {
    kvh_context_params_t known;
    uint64_t added;
  } newer{given, 1};
  newer.known.struct_size = sizeof newer;
  EXPECT_EQ(kvh_context_create(&newer.known, &context), KVH_ERR_ABI);
  EXPECT_EQ(destroyed.count, 4);
}

// What a child of fork() sees; gtest's own state is left alone there.
template <typename Check>
bool holds_in_child(Check check) {
  const pid_t child = fork();
  if (child == 0) {
    _exit(check() ? 0 : 1);
  }
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

TEST(Context, IsRefusedInAForkedChildAndServesTheParent) {
  kvh_context_t *context = create();
  EXPECT_TRUE(holds_in_child([context] {
    size_t length = 0;
    return kvh_context_metrics(context, nullptr, 0, &length) == KVH_ERR_FORKED;
  }));
  EXPECT_TRUE(holds_in_child([] {
    kvh_context_t *own = nullptr;
    size_t length = 0;
    return kvh_context_create(nullptr, &own) == KVH_OK &&
           kvh_context_metrics(own, nullptr, 0, &length) == KVH_OK;
  })) << "a child may create a context of its own";
  EXPECT_TRUE(holds_in_child([context] {
    kvh_context_destroy(context);
    return true;
  })) << "destroy works in the child";
  EXPECT_FALSE(metrics(context).empty());
  kvh_context_destroy(context);
}

}  // namespace
