/* SPDX-License-Identifier: Apache-2.0
 * The kit's foundation: jobs, choices, results, JSON, quoting. */
#include <math.h>
#include <unistd.h>

#include "kit/bench/bench_process.h"
#include "kit/kit_filter.h"
#include "kit/kit_job.h"
#include "kit/kit_json.h"
#include "kit/kit_report.h"
#include "kit/nccl/kit_nccl.h"
#include "kit/nccl/nccl_case.h"
#include "kit/trace/kit_trace.h"
#include "test/harness/tap.h"

TEST(job_args) {
  static struct kit_job job;
  CHECK(kit_job_arg(&job, "a") == NULL);
  kit_job_add(&job, "size", "%d", 64);
  kit_job_add(&job, "sizes", "1,2=3");
  kit_job_add(&job, "none", "%s", "");
  CHECK_STR(kit_job_arg(&job, "size"), "64");
  CHECK_STR(kit_job_arg(&job, "sizes"), "1,2=3");
  CHECK_STR(kit_job_arg(&job, "none"), "");
  CHECK(kit_job_arg(&job, "siz") == NULL);
  CHECK(kit_job_arg(&job, "ize") == NULL);
  CHECK_INT(kit_job_number(&job, "size", 7), 64);
  CHECK_INT(kit_job_number(&job, "other", 7), 7);
}

TEST(job_check) {
  static struct kit_job good = {.kind = "conform", .nprocesses = 2, .rank = 1, .hosts = 1}, bad;
  CHECK(kit_job_check(&good));
#define BAD(change)              \
  do {                           \
    bad = good;                  \
    change;                      \
    CHECK(!kit_job_check(&bad)); \
  } while (0)
  BAD(bad.nprocesses = 0);
  BAD(bad.nprocesses = KIT_MAX_PROCESSES + 1);
  BAD(bad.rank = 2);
  BAD(bad.rank = -1);
  BAD(bad.hosts = 3);
  BAD(bad.version = -1);
  BAD(memset(bad.kind, 'x', sizeof bad.kind));
  BAD(memset(bad.args, 'x', sizeof bad.args));
#undef BAD
}

static void choose(const char *only, const char *skip, const char *levels, const char *id, const char *name,
                   enum kit_level level, bool expected) {
  struct kit_filter c;
  CHECK(kit_filter_read(&c, only, skip, NULL, levels));
  CHECK_MSG(kit_filter_accepts(&c, id, name, level) == expected, "--only %s --skip %s --level %s %s %s",
            only ? only : "-", skip ? skip : "-", levels ? levels : "-", expected ? "leaves out" : "takes", name);
  kit_filter_free(&c);
}

TEST(choices) {
  choose(NULL, NULL, NULL, "4.1", "connect.dead_port", KIT_MUST, true);
  choose("connect", NULL, NULL, "4.1", "connect.dead_port", KIT_MUST, true);
  choose("conn", NULL, NULL, "4.1", "connect.dead_port", KIT_MUST, false);
  choose("4.1", NULL, NULL, "4.1", "connect.dead_port", KIT_MUST, true);
  choose("4.1", NULL, NULL, "4.11", "connect.dead_port", KIT_MUST, false);
  choose("*.dead_*,x", NULL, NULL, "4.1", "connect.dead_port", KIT_MUST, true);
  choose("x,,connect.dead_port", NULL, NULL, "4.1", "connect.dead_port", KIT_MUST, true);
  choose("connect", "4.1", NULL, "4.1", "connect.dead_port", KIT_MUST, false);
  choose(NULL, "connect", NULL, "4.1", "connect.dead_port", KIT_MUST, false);
  choose(NULL, NULL, "should,Observed", "4.1", "connect.dead_port", KIT_MUST, false);
  choose(NULL, NULL, "MUST", "4.1", "connect.dead_port", KIT_MUST, true);
  struct kit_filter c;
  CHECK(!kit_filter_read(&c, NULL, NULL, NULL, "must,perhaps"));
  CHECK(!kit_filter_read(&c, NULL, NULL, "/nonexistent", NULL));
}

TEST(reasons) {
  char path[] = "/tmp/test_kit.XXXXXX";
  int fd = mkstemp(path);
  static const char text[] = "# comment\n\n  close.null\tthe vendor knows\nlisten.* later\n";
  struct kit_filter c;
  CHECK(fd >= 0 && write(fd, text, sizeof text - 1) == (ssize_t)sizeof text - 1);
  close(fd);
  bool ok = kit_filter_read(&c, NULL, NULL, path, NULL);
  unlink(path);
  CHECK(ok);
  CHECK_STR(kit_filter_skip_reason(&c, "12.1", "close.null"), "the vendor knows");
  CHECK_STR(kit_filter_skip_reason(&c, "3.1", "listen.any"), "later");
  CHECK(kit_filter_skip_reason(&c, "3.1", "close.nul") == NULL);
  kit_filter_free(&c);
}

static char *json_of(void (*write)(struct kit_json *j)) {
  static char text[1024];
  FILE *f = fmemopen(text, sizeof text, "w");
  struct kit_json j = kit_json_start(f);
  write(&j);
  CHECK(kit_json_finish(&j));
  fclose(f);
  for (char *p = text, *q = text;; p++) { /* without the layout */
    if (*p == '\n' || *p == ' ') continue;
    *q++ = *p;
    if (!*p) break;
  }
  return text;
}

static void write_nested(struct kit_json *j) {
  kit_json_object(j, NULL);
  kit_json_array(j, "empty");
  kit_json_end(j, ']');
  kit_json_array(j, "a");
  kit_json_int(j, NULL, -5);
  kit_json_object(j, NULL);
  kit_json_bool(j, "t", true);
  kit_json_text(j, "n", NULL);
  kit_json_end(j, '}');
  kit_json_number(j, NULL, 0.5);
  kit_json_number(j, NULL, NAN);
  kit_json_end(j, ']');
  kit_json_end(j, '}');
}

static void write_texts(struct kit_json *j) {
  kit_json_array(j, NULL);
  kit_json_text(j, NULL, "\"\\\n\t\x01");
  kit_json_text(j, NULL, "\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80");
  kit_json_text(j, NULL, "\xff\xc3(\xed\xa0\x80\xc0\x80\xf4\x90\x80\x80\xe2\x82");
  kit_json_end(j, ']');
}

TEST(json) {
  CHECK_STR(json_of(write_nested), "{\"empty\":[],\"a\":[-5,{\"t\":true,\"n\":null},0.5,null]}");
#define R "\\ufffd"
  CHECK_STR(json_of(write_texts), "[\"\\\"\\\\\\n\\t\\u0001\",\"\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\",\"" R R
            "(" R R R R R R R R R R R "\"]");
}

static struct rail_trace_event event;
static void write_event(struct kit_json *j) {
  kit_json_object(j, NULL);
  kit_trace_json_event(j, &event);
  kit_json_end(j, '}');
}

static void event_has(struct rail_trace_event e, const char *text) {
  event = e;
  const char *found = json_of(write_event);
  CHECK_MSG(strstr(found, text), "%s has no %s", found, text);
}

TEST(json_of_a_trace) {
  event_has((struct rail_trace_event){.kind = RAIL_TRACE_INIT, .value = 0xfedcba9876543210, .tag = 5, .dev = 12},
            "\"version\":12,\"comm_id\":\"0xfedcba9876543210\",\"traffic_class\":5");
  event_has((struct rail_trace_event){.kind = RAIL_TRACE_CONNECT, .tag = -1}, "\"traffic_class\":-1");
  struct rail_trace_event fused = {.kind = RAIL_TRACE_MAKE_VDEVICE, .dev = 7, .n = 2, .bufs = {{.tag = 3}, {.tag = 4}}};
  event_has(fused, "\"device\":7,\"devices\":[3,4]");
  event_has((struct rail_trace_event){.kind = RAIL_TRACE_SET_ATTR, .attr = {{1, 2, 3, 4}, {5, 6, 7, 8}, 9, 10, 11}},
            "\"recv\":{\"max_concurrent_peers\":5,\"min_concurrent_peers\":6,\"max_flows_per_peer\":7,"
            "\"min_flows_per_peer\":8},\"op\":9,\"algo\":10,\"proto\":11");
  event_has((struct rail_trace_event){.kind = RAIL_TRACE_REG_DMABUF, .value = 4096}, "\"offset\":4096");
  event_has((struct rail_trace_event){.kind = RAIL_TRACE_IRECV, .value = 1}, "\"completion_optional\":true");
  event_has((struct rail_trace_event){.kind = RAIL_TRACE_CONSUMED, .value = 6}, "\"count\":6");
  event_has((struct rail_trace_event){.kind = RAIL_TRACE_FINDING, .address = 8, .size = 9}, "\"numbers\":[8,9]");
}

TEST(quoting) {
  char text[64] = "run ";
  kit_append_quoted(text, sizeof text, "/a/b-c.so");
  CHECK_STR(text, "run /a/b-c.so");
  strcpy(text, "run ");
  kit_append_quoted(text, sizeof text, "a b'c$");
  CHECK_STR(text, "run 'a b'\\''c$'");
  strcpy(text, "");
  kit_append_quoted(text, sizeof text, "");
  CHECK_STR(text, "''");
}

static void end_of(enum kit_end end, enum kit_level level, bool bad) {
  struct kit_result r = {.end = end, .level = level};
  CHECK_MSG(kit_result_bad(&r) == bad, "%s of a %s is %s", kit_end_text(end), kit_level_text(level),
            bad ? "fine" : "bad");
}

TEST(what_counts) {
  end_of(KIT_END_FINE, KIT_MUST, false);
  end_of(KIT_END_SKIPPED, KIT_MUST, false);
  end_of(KIT_END_FAILED, KIT_MUST, true);
  end_of(KIT_END_FAILED, KIT_SHOULD, true);
  end_of(KIT_END_FAILED, KIT_OBSERVED, false);
  end_of(KIT_END_CRASH, KIT_OBSERVED, true);
  end_of(KIT_END_HANG, KIT_OBSERVED, true);
  end_of(KIT_END_ERROR, KIT_SHOULD, true);
}

TEST(outcomes_and_words) {
  struct kit_outcome o = {.end = KIT_END_FAILED, .rank = 1, .seconds = 0.5};
  struct kit_result r = {0};
  snprintf(o.sides[1].text, sizeof o.sides[1].text, "wrong");
  kit_result_outcome(&r, &o, 2);
  CHECK_STR(r.text, "side 1: wrong");
  kit_result_message(&r, &(struct kit_message){.kind = KIT_MESSAGE_NOTE, .text = "one"});
  kit_result_message(&r, &(struct kit_message){.kind = KIT_MESSAGE_NOTE, .text = "two"});
  kit_result_message(&r, &(struct kit_message){.kind = KIT_MESSAGE_LOG, .text = "warned"});
  kit_result_message(
      &r, &(struct kit_message){.kind = KIT_MESSAGE_METRIC, .text = "rate", .value = 2, .unit = "/s", .rank = 1});
  CHECK_STR(r.notes, "one\ntwo\n");
  CHECK_STR(r.log, "warned\n");
  CHECK_INT(r.nfigures, 1);
  CHECK_STR(r.figures[0].name, "rate");
  kit_result_free(&r);
}

TEST(bench_of_a_slow_or_unknown_machine) {
  struct kit_bench_samples samples;
  CHECK(kit_bench_samples_make(&samples));
  kit_bench_sample(&samples, 5000000000);
  CHECK_INT(samples.ns[0], 5000000000);
  kit_bench_samples_free(&samples);
  double others[] = {0.1, NAN, 0.3};
  struct kit_bench_plan plan = {.rounds = 3};
  struct kit_bench_results results = {.plan = &plan, .others = others};
  char text[1024] = "";
  FILE *f = fmemopen(text, sizeof text, "w");
  kit_bench_table(&results, f);
  fclose(f);
  CHECK_MSG(strstr(text, "kept busy: unknown\n"), "%s", text);
}

/* The bits of a number from its first 1 to its last. */
static int width(unsigned n) {
  int bits = 0;
  while (n && n % 2 == 0) n /= 2;
  for (; n; n /= 2) bits++;
  return bits;
}

/* No sum of what ranks send needs rounding in the smallest floats, in whatever order it is taken. */
TEST(sums_of_fp8) {
  static const struct { const char *type; int mantissa; uint8_t one, two; } types[] = {
      {"f8e4m3", 3, 0x38, 0x40}, {"f8e5m2", 2, 0x3c, 0x40}};
  for (int t = 0; t < 2; t++) {
    int number = 0;
    while (strcmp(kit_nccl_types[number], types[t].type) != 0) number++;
    unsigned sums[512] = {0};
    for (int rank = 0; rank < 8; rank++) {
      struct kit_nccl_call c = {.coll = KIT_NCCL_ALL_REDUCE, .type = number, .count = 512, .rank = rank, .ranks = 8};
      uint8_t sent[512];
      kit_nccl_fill(&c, sent);
      for (int i = 0; i < 512; i++) {
        CHECK_MSG(!sent[i] || sent[i] == types[t].one || sent[i] == types[t].two, "%#x", sent[i]);
        sums[i] += !sent[i] ? 0 : sent[i] == types[t].one ? 1 : 2;
        CHECK_MSG(width(sums[i]) <= types[t].mantissa + 1, "%s: %u, of %d ranks", types[t].type, sums[i], rank + 1);
      }
    }
  }
}

/* A case that makes communicators has more time, the more it makes, and the more ranks share the machine. */
TEST(limits_of_nccl) {
  struct kit_nccl how = {.limit_ms = 60000, .ranks = 2, .repeat = 20};
  struct kit_nccl_scenario repeats = {.repeats = true}, link = {.link = true};
  CHECK_INT(kit_nccl_limit(&how, &(struct kit_nccl_case){.scenario = NULL}), 60000);
  CHECK_INT(kit_nccl_limit(&how, &(struct kit_nccl_case){.scenario = &link}), 120000);
  CHECK_INT(kit_nccl_limit(&how, &(struct kit_nccl_case){.scenario = &repeats}), 180000);
  how.ranks = 8;
  CHECK_INT(kit_nccl_limit(&how, &(struct kit_nccl_case){.scenario = &repeats}), 540000);
}

/* By scalar code: the parts of all pairs of hosts, and for the rest what an algorithm without waste sends. */
TEST(bytes_between_hosts) {
  static const struct { enum kit_nccl_coll coll; uint64_t of_2, of_4, of_4_by_2; } least[] = {
      {KIT_NCCL_ALL_REDUCE, 2, 6, 2},     {KIT_NCCL_ALL_GATHER, 2, 12, 4}, {KIT_NCCL_REDUCE_SCATTER, 2, 12, 4},
      {KIT_NCCL_BROADCAST, 1, 3, 1},      {KIT_NCCL_REDUCE, 1, 3, 1},      {KIT_NCCL_SENDRECV, 2, 4, 2},
      {KIT_NCCL_ALLTOALL, 2, 12, 8}};
  struct kit_nccl_call c = {.count = 7};
  while (strcmp(kit_nccl_types[c.type], "float") != 0) c.type++;
  for (unsigned i = 0; i < sizeof least / sizeof *least; i++) {
    c.coll = least[i].coll;
    c.ranks = 2;
    CHECK_INT(kit_nccl_between_hosts(&c, 1), 28 * least[i].of_2);
    c.ranks = 4;
    CHECK_INT(kit_nccl_between_hosts(&c, 1), 28 * least[i].of_4);
    CHECK_INT(kit_nccl_between_hosts(&c, 2), 28 * least[i].of_4_by_2);
  }
  c = (struct kit_nccl_call){.coll = KIT_NCCL_ALLTOALLV, .type = c.type, .count = 800, .ranks = 2};
  for (c.round = 0; c.round < 7; c.round++) {
    long long there = kit_nccl_part(&c, 0, 1), back = kit_nccl_part(&c, 1, 0); /* -1: no call */
    CHECK_INT(kit_nccl_between_hosts(&c, 1), 4 * ((there > 0 ? there : 0) + (back > 0 ? back : 0)));
  }
}

TEST_MAIN(TEST_CASE(job_args), TEST_CASE(job_check), TEST_CASE(choices), TEST_CASE(reasons), TEST_CASE(json),
          TEST_CASE(json_of_a_trace), TEST_CASE(quoting), TEST_CASE(what_counts), TEST_CASE(outcomes_and_words),
          TEST_CASE(bench_of_a_slow_or_unknown_machine), TEST_CASE(sums_of_fp8),
          TEST_CASE(limits_of_nccl), TEST_CASE(bytes_between_hosts))
