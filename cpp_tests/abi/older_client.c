/* A program that was built against the header of 2026-11-29 (older/kvhints.h) and runs with today's
 * library: from a hint to blocks fetched from another worker, with parameter and output structs that
 * were shorter then. Never changes; when a release promises a newer header, that one gets a client too. */
#include "kvhints.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define CHECK(condition)                                                            \
  do {                                                                              \
    if (!(condition)) {                                                             \
      fprintf(stderr, "older client, line %d: not so: %s\n", __LINE__, #condition); \
      exit(1);                                                                      \
    }                                                                               \
  } while (0)

enum { TOKENS_PER_BLOCK = 4, BLOCK_BYTES = 512, BLOCKS = 8, TOKENS = 12 };

static const char NAMESPACE[] = "model@7";
static const uint32_t KV_HEADS[2] = {8, 8};

/* One worker of one rank. */
struct worker {
  uint8_t pool[BLOCK_BYTES * BLOCKS];
  kvh_context_t *context;
  kvh_reuse_tree_t *tree;
  kvh_transceiver_t *transceiver;
};

static void start(struct worker *worker, const kvh_loopback_t *hub) {
  memset(worker, 0, sizeof *worker);
  CHECK(kvh_context_create(NULL, &worker->context) == KVH_OK);
  kvh_reuse_tree_params_t tree;
  memset(&tree, 0, sizeof tree);
  tree.struct_size = sizeof tree;
  tree.tokens_per_block = TOKENS_PER_BLOCK;
  tree.mode = 1;
  CHECK(kvh_reuse_tree_create(worker->context, &tree, &worker->tree) == KVH_OK);
  kvh_transceiver_params_t params;
  memset(&params, 0, sizeof params);
  params.struct_size = sizeof params;
  params.transport = KVH_TRANSPORT_LOOPBACK;
  params.loopback = hub;
  params.namespace_bytes.data = (const uint8_t *)NAMESPACE;
  params.namespace_bytes.len = sizeof NAMESPACE - 1;
  params.kv_heads_per_layer = KV_HEADS;
  params.layer_count = 2;
  params.head_size = 64;
  params.data_type = KVH_DATA_BFLOAT16;
  params.attention = KVH_ATTENTION_KEYS_AND_VALUES;
  params.window = KVH_WINDOW_FULL;
  params.pool_memory = KVH_MEMORY_HOST;
  params.pool_base = worker->pool;
  params.block_bytes = BLOCK_BYTES;
  params.block_count = BLOCKS;
  CHECK(kvh_transceiver_create(worker->context, worker->tree, &params, &worker->transceiver, NULL) == KVH_OK);
}

static void stop(struct worker *worker) {
  kvh_transceiver_destroy(worker->transceiver);
  kvh_reuse_tree_destroy(worker->tree);
  kvh_context_destroy(worker->context);
}

static kvh_sequence_t *prompt(void) {
  int32_t tokens[TOKENS];
  for (int32_t token = 0; token < TOKENS; ++token) {
    tokens[token] = token;
  }
  kvh_sequence_params_t params;
  memset(&params, 0, sizeof params);
  params.struct_size = sizeof params;
  params.tokens_per_block = TOKENS_PER_BLOCK;
  params.tokens = tokens;
  params.token_count = TOKENS;
  params.namespace_bytes.data = (const uint8_t *)NAMESPACE;
  params.namespace_bytes.len = sizeof NAMESPACE - 1;
  kvh_sequence_t *sequence = NULL;
  CHECK(kvh_sequence_create(&params, &sequence) == KVH_OK);
  return sequence;
}

static void a_hint_is_admitted(const kvh_context_t *context) {
  static const char HINT[] = "{\"protocol_version\":\"0.1\",\"message_id\":\"m-1\",\"actions\":[]}";
  static const char BAD[] = "{\"protocol_version\":1}";
  int32_t verdict = -1;
  kvh_snapshot_t *snapshot = NULL;
  CHECK(kvh_admit(context, KVH_INGRESS_TRUSTED, (const uint8_t *)BAD, sizeof BAD - 1, &verdict, &snapshot) == KVH_OK);
  CHECK(verdict == KVH_VERDICT_MALFORMED && snapshot == NULL);
  CHECK(kvh_admit(context, KVH_INGRESS_HTTP, (const uint8_t *)HINT, sizeof HINT - 1, &verdict, &snapshot) == KVH_OK);
  CHECK(verdict == KVH_VERDICT_UNTRUSTED && snapshot == NULL);
  CHECK(kvh_admit(context, KVH_INGRESS_TRUSTED, (const uint8_t *)HINT, sizeof HINT - 1, &verdict, &snapshot) == KVH_OK);
  CHECK(verdict == KVH_VERDICT_ADMITTED && kvh_snapshot_json(snapshot).len == sizeof HINT - 1);
  kvh_snapshot_release(snapshot);
}

int main(void) {
  CHECK(kvh_abi_version() >= KVH_ABI_VERSION);
  kvh_context_t *context = NULL;
  CHECK(kvh_context_create(NULL, &context) == KVH_OK);
  a_hint_is_admitted(context);
  kvh_loopback_t *hub = NULL;
  CHECK(kvh_loopback_create(context, &hub) == KVH_OK);
  static struct worker source, destination;
  start(&source, hub);
  start(&destination, hub);

  kvh_sequence_t *sequence = prompt();
  const int32_t held[3] = {0, 1, 2}, wanted[3] = {5, 6, 7};
  for (size_t byte = 0; byte < 3 * BLOCK_BYTES; ++byte) {
    source.pool[byte] = (uint8_t)(byte * 7 + byte / 256);
  }
  int32_t stored[3];
  CHECK(kvh_reuse_tree_store(source.tree, KVH_WINDOW_FULL, sequence, 0, held, 3, stored) == KVH_OK);
  CHECK(memcmp(held, stored, sizeof held) == 0);

  kvh_buffer_t *state = NULL;
  CHECK(kvh_transceiver_state(source.transceiver, &state) == KVH_OK);
  kvh_prefetch_params_t params;
  memset(&params, 0, sizeof params);
  params.struct_size = sizeof params;
  params.policy = KVH_RANGE_STRICT;
  params.sequence = sequence;
  params.source_state = kvh_buffer_bytes(state);
  params.max_tokens = TOKENS;
  params.block_ids = wanted;
  params.block_id_count = 3;
  kvh_prefetch_t *prefetch = NULL;
  CHECK(kvh_prefetch_begin(destination.transceiver, &params, &prefetch) == KVH_OK);
  kvh_prefetch_outcome_t outcome;
  memset(&outcome, 0, sizeof outcome);
  outcome.struct_size = sizeof outcome;
  const time_t give_up = time(NULL) + 60;
  while (kvh_prefetch_outcome(prefetch, &outcome) == KVH_IN_PROGRESS) {
    CHECK(time(NULL) < give_up);
  }
  CHECK(outcome.kind == KVH_OUTCOME_DELIVERED && outcome.token_end == TOKENS && outcome.block_count == 3);
  CHECK(memcmp(source.pool, destination.pool + 5 * BLOCK_BYTES, 3 * BLOCK_BYTES) == 0);
  size_t claimed = 0;
  CHECK(kvh_prefetch_claim(prefetch, &claimed) == KVH_OK && claimed == 3);
  CHECK(kvh_reuse_tree_store(destination.tree, KVH_WINDOW_FULL, sequence, 0, wanted, 3, stored) == KVH_OK);

  /* What follows the end of a struct of then is not written. */
  struct {
    kvh_reuse_tree_statistics_t statistics;
    uint8_t after[256];
  } behind;
  memset(&behind, 0xa5, sizeof behind);
  behind.statistics.struct_size = sizeof behind.statistics;
  CHECK(kvh_reuse_tree_statistics(destination.tree, &behind.statistics) == KVH_OK);
  CHECK(behind.statistics.stored_blocks == 3);
  for (size_t byte = 0; byte < sizeof behind.after; ++byte) {
    CHECK(behind.after[byte] == 0xa5);
  }
  kvh_block_state_t block;
  memset(&block, 0, sizeof block);
  block.struct_size = sizeof block;
  CHECK(kvh_reuse_tree_find_hash(destination.tree, KVH_WINDOW_FULL, 1, &block) == KVH_NOT_FOUND);

  kvh_prefetch_destroy(prefetch);
  kvh_buffer_release(state);
  kvh_sequence_destroy(sequence);
  stop(&destination);
  stop(&source);
  kvh_loopback_destroy(hub);
  kvh_context_destroy(context);
  return 0;
}
