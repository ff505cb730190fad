/* SPDX-License-Identifier: Apache-2.0
 * Proves: on which CPUs the engine's threads run, by those that they may use and those near the cards; that they do.
 * TEST-SAN: asan tsan */
#include <dirent.h>

#include "common/base/cpus.h"
#include "plugin/socket/sk_affinity.h"
#include "plugin/socket/sk_engine.h"
#include "test/unit/sk_data.h"

static cpu_set_t set(const char *text) {
  cpu_set_t cpus;
  ENSURE(rail_cpus_parse(text, &cpus), "'%s'", text);
  return cpus;
}

/* ---- the choice ---------------------------------------------------------------- */

static const struct row {
  const char *allowed, *near;
  unsigned int threads;
  enum sk_affinity_choice choice;
  const char *cpus;
} rows[] = {
  {"0-15", "0-7", 2, SK_AFFINITY_NEAR, "0-7"},
  {"4-11", "0-7", 4, SK_AFFINITY_NEAR, "4-7"},
  {"0-7", "0-7", 1, SK_AFFINITY_SAME, "0-7"},
  {"2-3", "0-7", 4, SK_AFFINITY_SAME, "2-3"}, /* few, but all there are */
  {"0-7", "8-15", 1, SK_AFFINITY_NONE, "0-7"},
  {"0-7", "", 1, SK_AFFINITY_NONE, "0-7"},
  {"0-8", "8-15", 2, SK_AFFINITY_FEW, "0-8"},
  {"0-8", "8-15", 1, SK_AFFINITY_NEAR, "8"},
  {"0-9", "8-15", 3, SK_AFFINITY_FEW, "0-9"},
  {"0-9", "8-15", 2, SK_AFFINITY_NEAR, "8-9"},
};

TEST(by_what_they_may_use_and_what_is_near) {
  for (size_t i = 0; i < RAIL_COUNT_OF(rows); i++) {
    const struct row *r = &rows[i];
    const cpu_set_t allowed = set(r->allowed), near = set(r->near);
    cpu_set_t cpus;
    char text[RAIL_CPUS_TEXT];
    enum sk_affinity_choice choice = sk_affinity_choose(&allowed, &near, r->threads, &cpus);
    CHECK_MSG(choice == r->choice, "row %zu: %d", i, choice);
    CHECK_STR(rail_cpus_text(&cpus, text), r->cpus);
  }
}

/* ---- one device after another --------------------------------------------------- */

static void add(struct sk_affinity *affinity, const char *near, const char *device, const char *line) {
  char text[RAIL_CPUS_TEXT], before[RAIL_CPUS_TEXT];
  const cpu_set_t cpus = set(near);
  rail_cpus_text(&affinity->now, before);
  log_forget();
  bool moved = sk_affinity_add(affinity, &cpus, device, 2);
  CHECK_STR(log_lines, line);
  CHECK_INT(moved, strcmp(rail_cpus_text(&affinity->now, text), before) != 0);
}

TEST(near_all_devices_in_use) {
  struct sk_affinity affinity;
  rail_log_set_sink(log_capture);
  sk_affinity_begin(&affinity);
  CHECK(affinity.known && CPU_COUNT(&affinity.allowed) > 0);
  affinity.allowed = affinity.now = set("0-15");
  add(&affinity, "", "veth0", ""); /* a virtual interface has no say */
  add(&affinity, "20-23", "eth9",
      "RailSocket: engine threads stay on CPUs 0-15: of those near eth9 (20-23) they may use none\n");
  add(&affinity, "15-19", "eth8",
      "RailSocket: engine threads stay on CPUs 0-15: of those near eth8 (15-19) they may use fewer than there are "
      "threads\n");
  add(&affinity, "0-3", "eth0",
      "RailSocket: engine threads run on CPUs 0-3,15 of 0-15, as those near eth0 are 0-3\n");
  add(&affinity, "0-3", "eth0", "");
  add(&affinity, "1-2", "eth1", "");
  add(&affinity, "", "veth0", "");
  add(&affinity, "2-7", "eth0+eth2",
      "RailSocket: engine threads run on CPUs 0-7,15 of 0-15, as those near eth0+eth2 are 2-7\n");
  add(&affinity, "8-14", "eth3", "RailSocket: engine threads run on CPUs 0-15 of 0-15, as those near eth3 are 8-14\n");
  affinity = (struct sk_affinity){.known = false};
  add(&affinity, "0-3", "eth0", "");
  rail_log_set_sink(NULL);
}

/* ---- the threads ----------------------------------------------------------------- */

/* How many there are; each must have these CPUs. */
static int check_threads(const cpu_set_t *want) {
  char text[RAIL_CPUS_TEXT], wanted[RAIL_CPUS_TEXT];
  DIR *dir = opendir("/proc/self/task");
  ENSURE(dir, "no /proc/self/task");
  int found = 0;
  rail_cpus_text(want, wanted);
  for (struct dirent *d; (d = readdir(dir));) {
    char path[300], name[32] = "";
    cpu_set_t cpus;
    snprintf(path, sizeof path, "/proc/self/task/%s/comm", d->d_name);
    FILE *f = fopen(path, "r");
    bool of_engine = f && fgets(name, sizeof name, f) && strncmp(name, "rail-socket-", 12) == 0;
    if (f) fclose(f);
    if (!of_engine) continue;
    found++;
    ENSURE_INT(sched_getaffinity((pid_t)strtol(d->d_name, NULL, 10), sizeof cpus, &cpus), 0);
    CHECK_STR(rail_cpus_text(&cpus, text), wanted);
  }
  closedir(dir);
  return found;
}

static cpu_set_t mine(void) {
  cpu_set_t cpus;
  ENSURE_INT(sched_getaffinity(0, sizeof cpus, &cpus), 0);
  return cpus;
}

static void open_near(struct data *d, const cpu_set_t *near) {
  data_device.cpus = *near;
  data_begin_another(d, SK_RECEIVER, 1, 0);
  data_create(d);
  ENSURE(d->comm->engine, "the engine did not take the connection: %s", log_lines);
}

static void begin(unsigned int threads) {
  data_prepare();
  sk_params.engine = SK_ENGINE_EPOLL;
  sk_params.threads = threads;
}

static void end(struct data *d, int n) {
  for (int i = 0; i < n; i++) data_close(&d[i]);
  sk_engine_stop();
  CPU_ZERO(&data_device.cpus);
}

TEST(threads_run_near_the_devices) {
  const cpu_set_t allowed = mine();
  cpu_set_t last, far, none = set("");
  struct data d[4];
  CPU_ZERO(&last);
  for (size_t i = 0; i < CPU_SETSIZE; i++)
    if (CPU_ISSET(i, &allowed)) {
      CPU_ZERO(&last);
      CPU_SET(i, &last);
    }
  CPU_XOR(&far, &allowed, &last);
  if (CPU_COUNT(&far) == 0) {
    tap_skip_case("needs two CPUs");
    return;
  }
  begin(1);
  open_near(&d[0], &none);
  CHECK_INT(check_threads(&allowed), 1);
  open_near(&d[1], &last);
  CHECK_INT(check_threads(&last), 1);
  open_near(&d[2], &none);
  CHECK_INT(check_threads(&last), 1);
  open_near(&d[3], &far); /* both are near now */
  CHECK_INT(check_threads(&allowed), 1);
  const cpu_set_t caller = mine();
  CHECK(CPU_EQUAL(&caller, &allowed));
  end(d, 4);

  begin(2); /* new threads begin anew; one CPU is too few for two */
  open_near(&d[0], &last);
  CHECK_INT(check_threads(&allowed), 2);
  CHECK_INT(log_count("engine threads stay on CPUs"), 1);
  end(d, 1);
}

TEST_MAIN(TEST_CASE(by_what_they_may_use_and_what_is_near), TEST_CASE(near_all_devices_in_use),
          TEST_CASE(threads_run_near_the_devices))
