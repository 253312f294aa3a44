/* Sizes and offsets that programs compiled against this header have built in (LP64). */
#include "kvhints.h"

#include <stdio.h>

#define AT(type, field, offset) _Static_assert(offsetof(type, field) == (offset), #type "." #field)
#define SIZE(type, size) _Static_assert(sizeof(type) == (size), #type)

SIZE(kvh_status_t, 4);
SIZE(kvh_str_t, 16);
AT(kvh_str_t, data, 0);
AT(kvh_str_t, len, 8);
SIZE(kvh_bytes_t, 16);
AT(kvh_bytes_t, data, 0);
AT(kvh_bytes_t, len, 8);

AT(kvh_context_params_t, struct_size, 0);
AT(kvh_context_params_t, trust_http_hints, 8);
AT(kvh_context_params_t, clock_monotonic_ns, 16);
AT(kvh_context_params_t, clock_destroy, 40);
AT(kvh_context_params_t, key_ring, 56);

AT(kvh_log_record_t, level, 8);
AT(kvh_log_record_t, event, 16);
AT(kvh_log_record_t, fields, 48);
AT(kvh_log_record_t, left_out, 64);
AT(kvh_log_record_t, time_ns, 72);
AT(kvh_explanation_t, verdict, 8);
AT(kvh_explanation_t, rule, 12);
AT(kvh_explanation_t, offset, 16);
AT(kvh_explanation_t, limit, 40);
AT(kvh_explanation_t, canonical_bytes, 56);
AT(kvh_key_ring_params_t, audience, 8);
AT(kvh_key_ring_params_t, expiry, 24);
AT(kvh_key_ring_params_t, admissions_max, 28);
AT(kvh_key_ring_params_t, replay_entries_max, 32);
AT(kvh_signing_params_t, key_id, 8);
AT(kvh_signing_params_t, expiry_unix_seconds, 24);
AT(kvh_signing_params_t, audience, 32);
AT(kvh_signing_params_t, nonce, 48);

AT(kvh_communicator_params_t, tensor_size, 8);
AT(kvh_communicator_params_t, chunk_bytes, 24);
AT(kvh_communicator_params_t, pipeline_sends, 28);
AT(kvh_communicator_params_t, deadline_ns, 32);
AT(kvh_communicator_params_t, hint_form, 40);
AT(kvh_communicator_params_t, node_window, 44);
AT(kvh_communicator_params_t, first_message_bytes, 48);
AT(kvh_communicator_ops_t, user_data, 8);
AT(kvh_communicator_ops_t, rank, 16);
AT(kvh_communicator_ops_t, broadcast, 24);
AT(kvh_communicator_ops_t, min_reduce, 48);
AT(kvh_communicator_ops_t, destroy, 56);
AT(kvh_reuse_tree_params_t, secondary_blocks, 36);
AT(kvh_reuse_tree_params_t, event_capacity, 40);
AT(kvh_reuse_tree_statistics_t, evictions_busy, 72);
AT(kvh_reuse_tree_statistics_t, free_primary_blocks, 80);
AT(kvh_block_state_t, is_protected, 36);
AT(kvh_block_state_t, priority, 40);
SIZE(kvh_retention_range_t, 32);
AT(kvh_retention_range_t, priority, 16);
AT(kvh_retention_range_t, duration_ns, 24);
AT(kvh_request_params_t, retention_count, 32);
AT(kvh_reuse_event_t, kind, 16);
AT(kvh_reuse_event_t, block_hash, 32);
AT(kvh_reuse_event_t, lost_events, 64);
AT(kvh_stored_block_t, block_id, 32);
AT(kvh_block_copy_t, reason, 16);
AT(kvh_block_copy_t, token_count, 36);
AT(kvh_reuse_tree_refreshed_t, oldest_pin_age_ns, 24);
SIZE(kvh_pinned_block_t, 16);
AT(kvh_pinned_block_t, block_hash, 8);
AT(kvh_block_owner_ops_t, block_bytes, 24);
AT(kvh_block_owner_ops_t, pin, 32);
AT(kvh_block_owner_ops_t, address, 72);
AT(kvh_block_owner_ops_t, destroy, 80);

int main(void) {
  /* The library that was loaded is the one that this header describes. */
  if (kvh_abi_version() < KVH_ABI_VERSION) {
    fprintf(stderr, "header has ABI revision %d, library %u\n", KVH_ABI_VERSION, kvh_abi_version());
    return 1;
  }
  return 0;
}
