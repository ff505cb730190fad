/* SPDX-License-Identifier: Apache-2.0
 * The script: words into offers and faults, and violations. The form is in ff.h. */
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "test/preload/fakefabric/ff.h"

int fakefabric_script(const char *text);
long fakefabric_live(const char *kind);
long fakefabric_calls(const char *what);
long fakefabric_violations(void);
const char *fakefabric_violation(long i);
void fakefabric_forget_violations(void);

struct ff_state ff;
const char *const ff_kind_names[FF_KINDS] = {"send", "tsend", "write", "read", "recv", "trecv"};

enum { MAX_FAULTS = 64, MAX_CALLS = 48 };

struct word {
  const char *name;
  uint64_t value;
};

static const struct word errors[] = {
  {"EIO", FI_EIO}, {"ENOMEM", FI_ENOMEM}, {"EAGAIN", FI_EAGAIN}, {"EINVAL", FI_EINVAL}, {"ENOSYS", FI_ENOSYS},
  {"ENODATA", FI_ENODATA}, {"EBUSY", FI_EBUSY}, {"EACCES", FI_EACCES}, {"EPERM", FI_EPERM}, {"ENODEV", FI_ENODEV},
  {"EMFILE", FI_EMFILE}, {"ENOSPC", FI_ENOSPC}, {"EFAULT", FI_EFAULT}, {"EINTR", FI_EINTR}, {"ENOBUFS", FI_ENOBUFS},
  {"EOPNOTSUPP", FI_EOPNOTSUPP}, {"ECONNREFUSED", FI_ECONNREFUSED}, {"ECONNRESET", FI_ECONNRESET},
  {"ECONNABORTED", FI_ECONNABORTED}, {"EHOSTUNREACH", FI_EHOSTUNREACH}, {"EHOSTDOWN", FI_EHOSTDOWN},
  {"ENETDOWN", FI_ENETDOWN}, {"ENETUNREACH", FI_ENETUNREACH}, {"ETIMEDOUT", FI_ETIMEDOUT}, {"ENOTCONN", FI_ENOTCONN},
  {"EADDRINUSE", FI_EADDRINUSE},
  {"ESHUTDOWN", FI_ESHUTDOWN}, {"EREMOTEIO", FI_EREMOTEIO}, {"EKEYREJECTED", FI_EKEYREJECTED},
  {"ECANCELED", FI_ECANCELED}, {"EMSGSIZE", FI_EMSGSIZE}, {"EOTHER", FI_EOTHER}, {"ETOOSMALL", FI_ETOOSMALL},
  {"EOPBADSTATE", FI_EOPBADSTATE}, {"ECRC", FI_ECRC}, {"ETRUNC", FI_ETRUNC}, {"ENOKEY", FI_ENOKEY},
  {"EOVERRUN", FI_EOVERRUN}, {"ENORX", FI_ENORX}, {"silent", 0}, {NULL, 0}};
static const struct word moves[] = {
  {"both", FF_BOTH}, {"sender", FF_SENDER}, {"receiver", FF_RECEIVER}, {"any", FF_ANY}, {NULL, 0}};
static const struct word formats[] = {
  {"in", FI_SOCKADDR_IN}, {"in6", FI_SOCKADDR_IN6}, {"str", FI_ADDR_STR}, {"raw", FI_FORMAT_UNSPEC}, {NULL, 0}};
static const struct word threadings[] = {
  {"safe", FI_THREAD_SAFE}, {"fid", FI_THREAD_FID}, {"endpoint", FI_THREAD_ENDPOINT},
  {"completion", FI_THREAD_COMPLETION}, {"domain", FI_THREAD_DOMAIN}, {NULL, 0}};
static const struct word progresses[] = {{"manual", FI_PROGRESS_MANUAL}, {"auto", FI_PROGRESS_AUTO}, {NULL, 0}};
static const struct word avs[] = {{"any", FI_AV_UNSPEC}, {"map", FI_AV_MAP}, {"table", FI_AV_TABLE}, {NULL, 0}};
static const struct word links[] = {
  {"up", FI_LINK_UP}, {"down", FI_LINK_DOWN}, {"unknown", FI_LINK_UNKNOWN}, {NULL, 0}};
static const struct word modes[] = {{"none", 0}, {"context", FI_CONTEXT}, {"context2", FI_CONTEXT2}, {NULL, 0}};
static const struct word mr_modes[] = {
  {"none", 0}, {"local", FI_MR_LOCAL}, {"virt_addr", FI_MR_VIRT_ADDR}, {"allocated", FI_MR_ALLOCATED},
  {"prov_key", FI_MR_PROV_KEY}, {"endpoint", FI_MR_ENDPOINT}, {"hmem", FI_MR_HMEM}, {NULL, 0}};
static const struct word caps[] = {
  {"msg", FI_MSG}, {"rma", FI_RMA}, {"tagged", FI_TAGGED}, {"read", FI_READ | FI_REMOTE_READ}, {"source", FI_SOURCE},
  {"multi_recv", FI_MULTI_RECV}, {"directed", FI_DIRECTED_RECV}, {"hmem", FI_HMEM}, {"local", FI_LOCAL_COMM},
  {"remote", FI_REMOTE_COMM}, {NULL, 0}};
static const struct word orders[] = {
  {"sas", FI_ORDER_SAS}, {"saw", FI_ORDER_SAW}, {"was", FI_ORDER_WAS}, {"waw", FI_ORDER_WAW}, {"raw", FI_ORDER_RAW},
  {"war", FI_ORDER_WAR}, {"rar", FI_ORDER_RAR}, {"sar", FI_ORDER_SAR}, {"ras", FI_ORDER_RAS}, {NULL, 0}};

/* Keys of a NIC. text: its size; list: words that are added up; words: one of them; else a number of that base. */
#define AT(field) offsetof(struct ff_nic, field)
#define TEXT(key, field) {key, AT(field), sizeof ((struct ff_nic *)0)->field, NULL, false, 0}
#define WORDS(key, field, words, list) {key, AT(field), 0, words, list, 0}
#define NUMBER(field) {#field, AT(field), 0, NULL, false, 10}
static const struct nic_key {
  const char *name;
  size_t at, text;
  const struct word *words;
  bool list;
  int base;
} nic_keys[] = {
  TEXT("prov", prov), TEXT("fabric", fabric), TEXT("net", net), TEXT("nic_addr", link_address), TEXT("pci", pci),
  WORDS("addr", addr_format, formats, false), WORDS("link", link, links, false),
  WORDS("mr_mode", mr_mode, mr_modes, true), WORDS("mode", mode, modes, false),
  WORDS("threading", threading, threadings, false), WORDS("data", data, progresses, false),
  WORDS("av", av, avs, false), NUMBER(speed), NUMBER(nic_attr), NUMBER(inject), NUMBER(cq_data), NUMBER(mr_key),
  NUMBER(max_msg), NUMBER(tx_size), NUMBER(rx_size), NUMBER(iov), NUMBER(mr_cnt), NUMBER(ep_cnt), NUMBER(cq_cnt),
  NUMBER(rm), {"tag_format", AT(tag_format), 0, NULL, false, 16}};

/* Behaviour that is a number, and what it is in the beginning. */
#define BEHAVIOUR(field, first) {#field, &ff.field, first}
static const struct {
  const char *name;
  uint64_t *to, first;
} numbers[] = {
  BEHAVIOUR(eager, 4096), BEHAVIOUR(early, 1), BEHAVIOUR(burst, 0), BEHAVIOUR(eagain, 0), BEHAVIOUR(eagain_next, 0),
  BEHAVIOUR(late, 0), BEHAVIOUR(reorder, 0), BEHAVIOUR(overtake, 0), BEHAVIOUR(torn, 0), BEHAVIOUR(av_size, 0),
  BEHAVIOUR(cq_size, 0),
  BEHAVIOUR(overrun, 0), BEHAVIOUR(cuda, 0), BEHAVIOUR(seed, 1)};

static struct fault {
  char what[16];
  long from, times, seen;
  int err, prov;
} faults[MAX_FAULTS];
static int nfaults;
static struct { char what[16]; long count; } calls[MAX_CALLS];
static struct { uint32_t number; int err; } deaths[MAX_FAULTS];
static int ndeaths;
static struct ff_nic *current; /* that keys of NICs are about; NULL: all, and the defaults */

/* ---- words ------------------------------------------------------------- */

static bool complain(const char *key, const char *value, const char *what) {
  fprintf(stderr, "fakefabric: '%s=%s': %s\n", key, value, what);
  return false;
}

static bool word_of(const struct word *words, const char *text, uint64_t *value) {
  for (; words->name; words++)
    if (strcmp(words->name, text) == 0) {
      *value = words->value;
      return true;
    }
  return false;
}

/* The next of a list that `separator` separates, into `word`; false at its end. */
static bool next_of(const char **list, char separator, char word[32]) {
  if (!**list) return false;
  size_t n = strcspn(*list, (char[]){separator, 0});
  ff_print(word, 32, "%.*s", (int)(n < 31 ? n : 31), *list);
  *list += n + ((*list)[n] != 0);
  return true;
}

static bool change(struct ff_nic *nic, const char *list, bool add) {
  char word[32];
  while (next_of(&list, ',', word)) {
    uint64_t bits, *to = word_of(caps, word, &bits) ? &nic->caps : word_of(orders, word, &bits) ? &nic->order : NULL;
    if (to) *to = add ? *to | bits : *to & ~bits;
    else if (strcmp(word, "delivery") == 0) nic->delivery = add;
    else if (strcmp(word, "strict") == 0) nic->strict = add;
    else return false;
  }
  return true;
}

static bool set_nic(struct ff_nic *nic, size_t key, const char *value) {
  char *field = (char *)nic + nic_keys[key].at, word[32];
  uint64_t all = 0, one;
  if (nic_keys[key].text) ff_print(field, nic_keys[key].text, "%s", value);
  else if (nic_keys[key].list) {
    while (next_of(&value, ',', word)) {
      if (!word_of(nic_keys[key].words, word, &one)) return false;
      all |= one;
    }
    *(uint64_t *)(void *)field = all;
  } else if (nic_keys[key].words) return word_of(nic_keys[key].words, value, (uint64_t *)(void *)field);
  else *(uint64_t *)(void *)field = strtoull(value, NULL, nic_keys[key].base);
  return true;
}

/* 1: a key of NICs; 0: none; -1: its value is wrong. */
static int nic_word(const char *key, const char *value) {
  bool no = strcmp(key, "no") == 0, add = strcmp(key, "add") == 0, good = true;
  size_t k = 0, n = sizeof nic_keys / sizeof nic_keys[0];
  while (k < n && strcmp(nic_keys[k].name, key) != 0) k++;
  if (k == n && !no && !add) return 0;
  if (current) return (no || add ? change(current, value, add) : set_nic(current, k, value)) ? 1 : -1;
  for (unsigned int i = 0; i <= ff.nnics; i++) {
    struct ff_nic *nic = i == ff.nnics ? &ff.defaults : &ff.nics[i];
    good &= no || add ? change(nic, value, add) : set_nic(nic, k, value);
  }
  return good ? 1 : -1;
}

static bool choose_nic(const char *name, bool loading) {
  for (unsigned int i = 0; i < ff.nnics && !loading; i++)
    if (strcmp(ff.nics[i].name, name) == 0) {
      current = &ff.nics[i];
      return true;
    }
  if (ff.nnics == FF_NICS) return false;
  current = &ff.nics[ff.nnics++];
  *current = ff.defaults;
  current->index = ff.nnics - 1;
  ff_print(current->name, sizeof current->name, "%s", name);
  ff.none = false;
  return true;
}

static long times_of(const char *word) { return strcmp(word, "ever") == 0 ? LONG_MAX / 2 : atol(word); }

static bool add_fault(const char *value, int how) {
  struct fault *f = &faults[nfaults];
  uint64_t err = FI_EIO;
  char word[32];
  if (nfaults == MAX_FAULTS) return false;
  *f = (struct fault){.from = 1, .times = 1, .err = how};
  for (int i = 0; next_of(&value, ':', word); i++) {
    if (i == 0) ff_print(f->what, sizeof f->what, "%.15s", word);
    else if (i == 1) f->from = atol(word);
    else if (how && i == 2) f->times = times_of(word);
    else if (i == 2 && !word_of(errors, word, &err)) return false;
    else if (i == 3) f->prov = atoi(word);
    else if (i == 4) f->times = times_of(word);
  }
  if (!how) f->err = (int)err;
  nfaults++;
  return f->what[0] && f->from > 0;
}

static bool add_death(const char *value) {
  char word[32];
  uint64_t err = 0;
  if (ndeaths == MAX_FAULTS || !next_of(&value, ':', word)) return false;
  deaths[ndeaths].number = (uint32_t)atol(word);
  if (*value && !word_of(errors, value, &err)) return false;
  deaths[ndeaths++].err = err ? (int)err : -1;
  return true;
}

static void set_offers(void) {
  ff.nnics = 0;
  current = NULL;
  ff.defaults = (struct ff_nic){
    .name = "fake0", .prov = "fake", .fabric = "fake", .net = "fake", .link_address = "none", .pci = "none",
    .caps = FI_MSG | FI_RMA | FI_TAGGED | FI_READ | FI_WRITE | FI_RECV | FI_SEND | FI_REMOTE_READ | FI_REMOTE_WRITE |
            FI_SOURCE | FI_MULTI_RECV | FI_DIRECTED_RECV | FI_LOCAL_COMM | FI_REMOTE_COMM,
    .order = FI_ORDER_SAS | FI_ORDER_SAW | FI_ORDER_WAS | FI_ORDER_WAW | FI_ORDER_RAW | FI_ORDER_WAR | FI_ORDER_RAR |
             FI_ORDER_SAR | FI_ORDER_RAS,
    .delivery = 1, .mr_mode = FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY, .threading = FI_THREAD_DOMAIN,
    .data = FI_PROGRESS_MANUAL, .addr_format = FI_SOCKADDR_IN, .rm = 1, .link = FI_LINK_UP, .nic_attr = 1, .speed = 100,
    .inject = 64, .cq_data = 8, .mr_key = 8, .max_msg = 1u << 30, .tx_size = 256, .rx_size = 1024, .iov = 4,
    .tag_format = 0xaaaaaaaaaaaaaaaau};
}

static void set_behaviour(void) {
  for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) *numbers[i].to = numbers[i].first;
  ff.move = FF_BOTH;
  ff.gone = FI_ECONNREFUSED;
  ff_print(ff.err_text, sizeof ff.err_text, "scripted failure");
  nfaults = ndeaths = 0;
}

static bool take_word(const char *key, const char *value, bool loading) {
  uint64_t word = 0;
  int nic = nic_word(key, value);
  for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
    if (strcmp(key, numbers[i].name) == 0) {
      *numbers[i].to = strtoull(value, NULL, 10);
      return true;
    }
  if (nic > 0) return true;
  bool good = nic == 0;
  if (!good) return complain(key, value, "not one of its words");
  if (strcmp(key, "nic") == 0) good = choose_nic(value, loading);
  else if (strcmp(key, "nics") == 0) ff.none = true, set_offers();
  else if (strcmp(key, "fail") == 0) good = add_fault(value, 0);
  else if (strcmp(key, "hang") == 0) good = add_fault(value, FF_HANGS);
  else if (strcmp(key, "lose") == 0) good = add_fault(value, FF_LOST);
  else if (strcmp(key, "dead") == 0) good = add_death(value);
  else if (strcmp(key, "reset") == 0) set_behaviour();
  else if (strcmp(key, "strict") == 0) ff.abort_on_violation = strcmp(value, "abort") == 0;
  else if (strcmp(key, "move") == 0) good = word_of(moves, value, &ff.move);
  else if (strcmp(key, "gone") == 0) {
    good = word_of(errors, value, &word);
    ff.gone = (int)word;
  } else if (strcmp(key, "err_text") == 0) {
    ff_print(ff.err_text, sizeof ff.err_text, "%s", value);
    for (char *c = ff.err_text; *c; c++) *c = *c == '_' ? ' ' : *c;
  } else return complain(key, value, "no such key");
  return good || complain(key, value, "not understood, or too many");
}

static bool take(const char *text, bool loading) {
  char word[512], *value;
  bool good = true;
  current = NULL;
  while (*(text += strspn(text, " \t\n"))) {
    size_t n = strcspn(text, *text == '#' ? "\n" : " \t\n");
    ff_print(word, sizeof word, "%.*s", (int)(n < 511 ? n : 511), text);
    text += n;
    if (word[0] == '#') continue;
    value = strchr(word, '=');
    if (value) *value++ = 0;
    good = (value ? take_word(word, value, loading) : complain(word, "", "wants key=value")) && good;
  }
  return good;
}

void ff_load(void) {
  static bool loaded;
  static char file[16384];
  const char *text = getenv("FAKEFABRIC");
  if (loaded) return;
  loaded = true;
  set_offers();
  set_behaviour();
  if (text && text[0] == '@') {
    FILE *f = fopen(text + 1, "re");
    if (f) file[fread(file, 1, sizeof file - 1, f)] = 0;
    else complain("FAKEFABRIC", text, "cannot be read");
    if (f) fclose(f);
    text = file;
  }
  if (text) take(text, true);
  if (!ff.nnics && !ff.none) choose_nic("fake0", true);
}

/* ---- faults ------------------------------------------------------------ */

uint64_t ff_draw(uint64_t below) {
  ff.seed = ff.seed * 6364136223846793005u + 1442695040888963407u;
  return below ? (ff.seed >> 33) % below : 0;
}

bool ff_chance(uint64_t percent) { return percent && ff_draw(100) < percent; }

static void count(const char *what) {
  for (int i = 0; i < MAX_CALLS; i++)
    if (!calls[i].what[0] || strcmp(calls[i].what, what) == 0) {
      ff_print(calls[i].what, sizeof calls[i].what, "%.15s", what);
      calls[i].count++;
      return;
    }
}

/* Every fault sees everything that it is about; the first whose turn it is decides. */
static const struct fault *turn(const char *what, bool operation) {
  const struct fault *found = NULL;
  for (int i = 0; i < nfaults; i++) {
    struct fault *f = &faults[i];
    if (strcmp(f->what, what) != 0 && !(operation && strcmp(f->what, "any") == 0)) continue;
    f->seen++;
    if (!found && f->seen >= f->from && f->seen < f->from + f->times) found = f;
  }
  return found;
}

int ff_fault(const char *call) {
  count(call);
  const struct fault *f = turn(call, false);
  return f ? -f->err : 0;
}

struct ff_verdict ff_judge(enum ff_kind kind) {
  count(ff_kind_names[kind]);
  const struct fault *f = turn(ff_kind_names[kind], true);
  return f ? (struct ff_verdict){f->err, f->prov} : (struct ff_verdict){0, 0};
}

int ff_dead(uint32_t number) {
  for (int i = 0; i < ndeaths; i++)
    if (!deaths[i].number || deaths[i].number == number) return deaths[i].err;
  return 0;
}

void ff_violate(const char *fmt, ...) {
  char *text = ff.violation[ff.violations < FF_VIOLATIONS ? ff.violations : FF_VIOLATIONS - 1];
  va_list ap;
  va_start(ap, fmt);
  ff_vprint(text, sizeof ff.violation[0], fmt, ap);
  va_end(ap);
  if (ff.violations++ < FF_VIOLATIONS) fprintf(stderr, "fakefabric: violation: %s\n", text);
  if (ff.abort_on_violation) abort();
}

/* ---- for tests --------------------------------------------------------- */

int fakefabric_script(const char *text) {
  ff_lock();
  ff_load();
  bool good = take(text, false);
  ff_unlock();
  return good ? 0 : -1;
}

long fakefabric_live(const char *kind) {
  static const char *const names[FF_CLASSES] = {"fabric", "domain", "ep", "cq", "av", "mr", "info"};
  long n = -1;
  ff_lock();
  for (int i = 0; i < FF_CLASSES; i++)
    if (strcmp(names[i], kind) == 0) n = ff.live[i];
  ff_unlock();
  return n;
}

long fakefabric_calls(const char *what) {
  long n = 0;
  ff_lock();
  for (int i = 0; i < MAX_CALLS; i++)
    if (strcmp(calls[i].what, what) == 0) n = calls[i].count;
  ff_unlock();
  return n;
}

long fakefabric_violations(void) {
  ff_lock();
  long n = ff.violations;
  ff_unlock();
  return n;
}

const char *fakefabric_violation(long i) {
  if (i < 0 || i >= fakefabric_violations()) return "";
  return ff.violation[i < FF_VIOLATIONS ? i : FF_VIOLATIONS - 1]; /* the last of all is there */
}

void fakefabric_forget_violations(void) {
  ff_lock();
  ff.violations = 0;
  ff_unlock();
}
