/* A profiler's library that only writes down what it is told: what nsys would be given, for tests.
 *
 * Named by NVTX_INJECTION64_PATH; writes one JSON object a line to KVHINTS_NVTX_RECORD.<pid>.jsonl.
 * The declarations follow the published protocol, version 3 (github.com/NVIDIA/NVTX), and know
 * nothing of the library under test. */
#define _GNU_SOURCE
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

typedef void (*function)(void);

struct attributes {
  uint16_t version, size;
  uint32_t category;
  int32_t color_type;
  uint32_t color;
  int32_t payload_type, reserved;
  uint64_t payload;
  int32_t message_type;
  const char *message;
};

struct callbacks {
  size_t struct_size;
  int (*get_module_function_table)(uint32_t module, function ***table, unsigned *size);
};

struct version_info {
  size_t struct_size;
  uint32_t version, reserved;
  void (*set_injection_version)(uint32_t version);
};

enum { module_core = 1, module_core2 = 5 };
enum { payload_unsigned_64 = 1, message_ascii = 1 };

static FILE *record;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint64_t last_range;
static uintptr_t last_domain;

static uint64_t now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void begin_line(const char *event) {
  pthread_mutex_lock(&lock);
  fprintf(record, "{\"event\":\"%s\",\"time_ns\":%" PRIu64 ",\"thread\":%ld", event, now_ns(), syscall(SYS_gettid));
}

static void end_line(void) {
  fputs("}\n", record);
  fflush(record);
  pthread_mutex_unlock(&lock);
}

static void text(const char *member, const char *value) {
  fprintf(record, ",\"%s\":\"", member);
  for (; *value != '\0'; ++value) {
    if (*value == '"' || *value == '\\') fputc('\\', record);
    fputc((unsigned char)*value < ' ' ? '?' : *value, record);
  }
  fputc('"', record);
}

static void number(const char *member, uint64_t value) {
  fprintf(record, ",\"%s\":%" PRIu64, member, value);
}

static void describe(void *domain, const struct attributes *given) {
  number("domain", (uintptr_t)domain);
  number("version", given->version);
  number("size", given->size);
  number("category", given->category);
  if (given->payload_type == payload_unsigned_64) number("bytes", given->payload);
  if (given->message_type == message_ascii) text("message", given->message);
}

static void *domain_create(const char *name) {
  begin_line("domain");
  ++last_domain;
  number("domain", last_domain);
  text("name", name);
  end_line();
  return (void *)last_domain;
}

static void name_category(void *domain, uint32_t category, const char *name) {
  begin_line("category");
  number("domain", (uintptr_t)domain);
  number("category", category);
  text("name", name);
  end_line();
}

static void name_os_thread(uint32_t thread, const char *name) {
  begin_line("thread_name");
  number("named", thread);
  text("name", name);
  end_line();
}

static int range_push(void *domain, const struct attributes *given) {
  begin_line("push");
  describe(domain, given);
  end_line();
  return 0;
}

static int range_pop(void *domain) {
  begin_line("pop");
  number("domain", (uintptr_t)domain);
  end_line();
  return 0;
}

static uint64_t range_start(void *domain, const struct attributes *given) {
  begin_line("start");
  const uint64_t range = ++last_range;
  number("range", range);
  describe(domain, given);
  end_line();
  return range;
}

static void range_end(void *domain, uint64_t range) {
  begin_line("end");
  number("domain", (uintptr_t)domain);
  number("range", range);
  end_line();
}

static int fill(function **table, unsigned size, unsigned index, function with) {
  if (index >= size || table[index] == NULL) return 0;
  *table[index] = with;
  return 1;
}

/* What a program that speaks NVTX calls; 1 when the profiler is there. */
int InitializeInjectionNvtx2(const void *(*get_export_table)(uint32_t number));

int InitializeInjectionNvtx2(const void *(*get_export_table)(uint32_t number)) {
  const char *prefix = getenv("KVHINTS_NVTX_RECORD");
  const struct callbacks *callbacks = get_export_table(1);
  const struct version_info *version = get_export_table(3);
  if (prefix == NULL || callbacks == NULL || callbacks->struct_size < sizeof *callbacks) return 0;
  if (version == NULL || version->version != 3) return 0;
  version->set_injection_version(3);

  char path[4096];
  if (snprintf(path, sizeof path, "%s.%ld.jsonl", prefix, (long)getpid()) >= (int)sizeof path) return 0;
  record = fopen(path, "w");
  if (record == NULL) return 0;

  begin_line("process");
  text("name", program_invocation_short_name);
  end_line();

  function **core, **core2;
  unsigned core_size, core2_size;
  return callbacks->get_module_function_table(module_core, &core, &core_size) == 1 &&
         callbacks->get_module_function_table(module_core2, &core2, &core2_size) == 1 &&
         fill(core, core_size, 14, (function)name_os_thread) && fill(core2, core2_size, 2, (function)range_start) &&
         fill(core2, core2_size, 3, (function)range_end) && fill(core2, core2_size, 4, (function)range_push) &&
         fill(core2, core2_size, 5, (function)range_pop) && fill(core2, core2_size, 8, (function)name_category) &&
         fill(core2, core2_size, 12, (function)domain_create);
}
