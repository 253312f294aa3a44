// kvh_binding_table_t: building it call by call and from a file, and what each refuses.
#include "support.hpp"

#include <gmock/gmock.h>

#include <vector>

namespace {

using support::bytes;
using support::str;
using support::view;
using testing::HasSubstr;
using testing::StartsWith;
using Table = support::Handle<kvh_binding_table_t, kvh_binding_table_destroy>;

Table create() {
  kvh_binding_table_t *table = nullptr;
  EXPECT_EQ(kvh_binding_table_create(&table), KVH_OK);
  return Table(table);
}

kvh_binding_params_t params(std::string_view id) {
  kvh_binding_params_t params{};
  params.struct_size = sizeof params;
  params.id = str(id);
  params.family = str("native");
  params.addressing = KVH_ADDRESSING_CONTENT_NAMED;
  return params;
}

// Takes the error text of a call that fails, and checks that one that succeeds gives none.
struct Text {
  kvh_error_t *error = nullptr;
  ~Text() { kvh_error_destroy(error); }
  kvh_error_t **out() {
    kvh_error_destroy(error);
    error = nullptr;
    return &error;
  }
  std::string get() const { return std::string(view(kvh_error_message(error))); }
};

TEST(BindingTable, IsBuiltCallByCall) {
  const Table table = create();
  Text text;
  const auto binding = params("pool-a");
  EXPECT_EQ(kvh_binding_table_add_binding(table.get(), &binding, text.out()), KVH_OK);
  EXPECT_EQ(kvh_binding_table_add_action(table.get(), str("pool-a"), str("kv.fetch"), str("1.0"),
                                         text.out()),
            KVH_OK);
  EXPECT_EQ(kvh_binding_table_authorise_namespace(table.get(), str("pool-a"), bytes("llama"),
                                                  text.out()),
            KVH_OK);
  EXPECT_EQ(kvh_binding_table_allow_endpoint(table.get(), str("tcp://h:1"), str("pool-a"),
                                             text.out()),
            KVH_OK);
  EXPECT_EQ(kvh_binding_table_set_hash_dialect(table.get(), KVH_HASH_DIALECT_HEX_DIGITS), KVH_OK);
  EXPECT_EQ(text.error, nullptr);
}

TEST(BindingTable, RefusalsExplainThemselves) {
  const Table table = create();
  Text text;
  auto binding = params("pool-a");
  ASSERT_EQ(kvh_binding_table_add_binding(table.get(), &binding, nullptr), KVH_OK);
  EXPECT_EQ(kvh_binding_table_add_binding(table.get(), &binding, text.out()),
            KVH_ERR_INVALID_ARGUMENT);
  EXPECT_THAT(text.get(), HasSubstr("pool-a"));
  binding = params("");
  EXPECT_EQ(kvh_binding_table_add_binding(table.get(), &binding, text.out()),
            KVH_ERR_INVALID_ARGUMENT);
  EXPECT_THAT(text.get(), HasSubstr("1 to 128 bytes"));
  binding = params("\xff");
  EXPECT_EQ(kvh_binding_table_add_binding(table.get(), &binding, text.out()),
            KVH_ERR_INVALID_ARGUMENT);
  EXPECT_THAT(text.get(), HasSubstr("UTF-8"));
  for (uint32_t addressing : {0u, 3u, UINT32_MAX}) {
    binding = params("pool-b");
    binding.addressing = addressing;
    EXPECT_EQ(kvh_binding_table_add_binding(table.get(), &binding, text.out()),
              KVH_ERR_INVALID_ARGUMENT);
    EXPECT_THAT(text.get(), HasSubstr("addressing"));
  }
  EXPECT_EQ(kvh_binding_table_add_action(table.get(), str("nobody"), str("t"), str("v"),
                                         text.out()),
            KVH_ERR_INVALID_ARGUMENT);
  EXPECT_THAT(text.get(), HasSubstr("nobody"));
  EXPECT_EQ(kvh_binding_table_authorise_namespace(table.get(), str("pool-a"),
                                                  bytes(std::string(1025, 'x')), text.out()),
            KVH_ERR_INVALID_ARGUMENT);
  EXPECT_THAT(text.get(), HasSubstr("1024"));
  EXPECT_EQ(kvh_binding_table_allow_endpoint(table.get(), str("tcp://h"), str("pool-a"),
                                             text.out()),
            KVH_ERR_INVALID_ARGUMENT);
  EXPECT_THAT(text.get(), HasSubstr("tcp://host:port"));
  EXPECT_EQ(kvh_binding_table_allow_endpoint(table.get(), str("tcp://h"), str("pool-a"), nullptr),
            KVH_ERR_INVALID_ARGUMENT)
      << "a caller need not ask for the text";
}

TEST(BindingTable, IsBounded) {
  const Table table = create();
  for (int i = 0; i < 1024; ++i) {
    const std::string id = std::to_string(i);
    const auto binding = params(id);
    ASSERT_EQ(kvh_binding_table_add_binding(table.get(), &binding, nullptr), KVH_OK);
  }
  const auto binding = params("more");
  EXPECT_EQ(kvh_binding_table_add_binding(table.get(), &binding, nullptr), KVH_ERR_LIMIT);
}

TEST(BindingTable, StructSizesAndFlagsOfOtherReleases) {
  const Table table = create();
  auto binding = params("a");
  binding.struct_size = sizeof binding - 1;
  EXPECT_EQ(kvh_binding_table_add_binding(table.get(), &binding, nullptr), KVH_ERR_ABI);
  binding.struct_size = 0;
  EXPECT_EQ(kvh_binding_table_add_binding(table.get(), &binding, nullptr), KVH_ERR_ABI);
  binding = params("a");
  binding.flags = 2;
  EXPECT_EQ(kvh_binding_table_add_binding(table.get(), &binding, nullptr), KVH_ERR_ABI);
  struct Longer {
    kvh_binding_params_t known;
    uint64_t unknown;
  } longer{params("a"), 1};
  longer.known.struct_size = sizeof longer;
  EXPECT_EQ(kvh_binding_table_add_binding(table.get(), &longer.known, nullptr), KVH_ERR_ABI);
  longer.unknown = 0;
  EXPECT_EQ(kvh_binding_table_add_binding(table.get(), &longer.known, nullptr), KVH_OK);
}

TEST(BindingTable, HashDialectsAreChecked) {
  const Table table = create();
  for (uint32_t dialect : {1u, 2u, 3u})
    EXPECT_EQ(kvh_binding_table_set_hash_dialect(table.get(), dialect), KVH_OK);
  for (uint32_t dialect : {0u, 4u, UINT32_MAX})
    EXPECT_EQ(kvh_binding_table_set_hash_dialect(table.get(), dialect), KVH_ERR_INVALID_ARGUMENT);
}

kvh_status_t load(std::string_view json, kvh_binding_table_t **table_out, kvh_error_t **error_out) {
  const kvh_bytes_t data = bytes(json);
  return kvh_binding_table_load(data.data, data.len, table_out, error_out);
}

TEST(BindingTable, IsLoadedWholeOrNotAtAll) {
  Text text;
  kvh_binding_table_t *table = nullptr;
  ASSERT_EQ(load(R"({"version": 1,
      "bindings": [{"id": "a", "family": "f", "addressing": "content_named", "actions": []}],
      "endpoints": [{"endpoint": "tcp://h:1", "bindings": ["a"]}]})",
                 &table, text.out()),
            KVH_OK);
  EXPECT_EQ(text.error, nullptr);
  const Table loaded(table);
  // It is a table like any other.
  const auto again = params("a");
  EXPECT_EQ(kvh_binding_table_add_binding(loaded.get(), &again, nullptr), KVH_ERR_INVALID_ARGUMENT);

  char marker = 0;
  auto *untouched = reinterpret_cast<kvh_binding_table_t *>(&marker);
  table = untouched;
  EXPECT_EQ(load(R"({"version": 1, "bindings": [], "endpoints": [{"endpoint": "h", "bindings": []}]})",
                 &table, text.out()),
            KVH_ERR_INVALID_ARGUMENT);
  EXPECT_THAT(text.get(), StartsWith("endpoints[0].endpoint: "));
  EXPECT_EQ(load("", &table, text.out()), KVH_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(load("{\"version\"", &table, text.out()), KVH_ERR_INVALID_ARGUMENT);
  EXPECT_THAT(text.get(), StartsWith("line 1, column "));
  EXPECT_EQ(load("{", &table, nullptr), KVH_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(kvh_binding_table_load(nullptr, 1, &table, nullptr), KVH_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(table, untouched);
  EXPECT_EQ(load("{}", nullptr, nullptr), KVH_ERR_INVALID_ARGUMENT);
}

TEST(BindingTable, ErrorsInAFileNameTheirPlace) {
  constexpr std::string_view kGood = R"({"version": 1,
"hash_dialect": "hex_digits",
"bindings": [
  {"id": "a", "family": "f", "addressing": "content_named",
   "actions": [{"type": "kv.fetch", "version": "1.0"}],
   "namespaces": ["n"], "namespaces_hex": ["00ff"]}],
"endpoints": [{"endpoint": "tcp://h:1", "bindings": ["a"]}]})";
  struct Row {
    const char *from, *to, *place;
  };
  const std::vector<Row> rows = {
      {R"("version": 1)", R"("version": 2)", "version: expected 1, found 2"},
      {R"("version": 1)", R"("version": null)", "line 1, column "},
      {"hex_digits", "guess", "line 2, column "},
      {R"("id": "a")", R"("id": "")", "bindings[0]: "},
      {R"("id": "a", )", "", "line 6, column "},
      {"content_named", "named", "line 4, column "},
      {"kv.fetch", "", "bindings[0].actions[0]: "},
      {R"("1.0")", "1.0", "line 5, column "},
      {"00ff", "0", "bindings[0].namespaces_hex[0]: "},
      {R"("namespaces")", R"("namespace")", "line 6, column "},
      {"tcp://h:1", "tcp://h:0", "endpoints[0].endpoint: "},
      {R"(["a"])", "[]", "endpoints[0].bindings: "},
      {R"(["a"])", R"(["a", "b"])", "endpoints[0].bindings[1]: "},
      {R"([{"endpoint")", R"([{"endpoint": "TCP://H:01", "bindings": ["a"]}, {"endpoint")",
       "endpoints[1]: "},
      {R"(["a"]}])", R"(["a"]}], "extra": 1)", "line 7, column "},
      {R"({"version")", R"([{"version")", "the file: "},
  };
  for (const Row &row : rows) {
    SCOPED_TRACE(std::string(row.from) + " -> " + row.to);
    std::string file(kGood);
    const size_t at = file.find(row.from);
    ASSERT_NE(at, std::string::npos);
    file.replace(at, std::string_view(row.from).size(), row.to);
    kvh_binding_table_t *table = nullptr;
    Text text;
    EXPECT_EQ(load(file, &table, text.out()), KVH_ERR_INVALID_ARGUMENT);
    EXPECT_EQ(table, nullptr);
    EXPECT_THAT(text.get(), StartsWith(row.place));
  }
}

TEST(BindingTable, NullArgumentsAreRefused) {
  const Table table = create();
  const auto binding = params("a");
  EXPECT_EQ(kvh_binding_table_create(nullptr), KVH_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(kvh_binding_table_add_binding(nullptr, &binding, nullptr), KVH_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(kvh_binding_table_add_binding(table.get(), nullptr, nullptr), KVH_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(kvh_binding_table_add_action(nullptr, str("a"), str("t"), str("v"), nullptr),
            KVH_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(kvh_binding_table_authorise_namespace(nullptr, str("a"), bytes("n"), nullptr),
            KVH_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(kvh_binding_table_allow_endpoint(nullptr, str("tcp://h:1"), str("a"), nullptr),
            KVH_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(kvh_binding_table_set_hash_dialect(nullptr, 1), KVH_ERR_INVALID_ARGUMENT);
  kvh_binding_table_destroy(nullptr);
}

}  // namespace
