/* SPDX-License-Identifier: Apache-2.0
 * Parameters from the environment: parse, load, warn. */
#include "common/base/param.h"

#include <ctype.h>
#include <dlfcn.h>
#include <errno.h>
#include <inttypes.h>
#include <link.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "common/base/compiler.h"
#include "common/base/log.h"
#include "common/base/param_names.h"

/* ---- parsing ---------------------------------------------------------- */

struct suffix { const char *text; int64_t factor; };

static const struct suffix byte_suffixes[] = {
  {"", 1}, {"K", 1ll << 10}, {"M", 1ll << 20}, {"G", 1ll << 30}, {"T", 1ll << 40},
};
static const struct suffix time_suffixes[] = {
  {"", 1000}, {"ms", 1}, {"s", 1000}, {"m", 60 * 1000},
};
static const struct suffix no_suffix[] = {{"", 1}};

/* Number, then one of the suffixes (any case), then nothing. */
static bool parse_scaled(const char *text, const struct suffix *suffixes, size_t count, int64_t *number) {
  char *end;
  while (isspace((unsigned char)*text)) text++;
  const char *digits = *text == '-' || *text == '+' ? text + 1 : text;
  int base = digits[0] == '0' && (digits[1] == 'x' || digits[1] == 'X') ? 16 : 10; /* a leading 0 is not octal */
  errno = 0;
  long long value = strtoll(text, &end, base);
  if (errno || end == text) return false;
  while (isspace((unsigned char)*end)) end++;
  for (size_t i = 0; i < count; i++) {
    if (strcasecmp(end, suffixes[i].text) != 0) continue;
    int64_t scaled;
    if (__builtin_mul_overflow((int64_t)value, suffixes[i].factor, &scaled)) return false;
    *number = scaled;
    return true;
  }
  return false;
}

static bool parse_bool(const char *text, int64_t *number) {
  static const char *const words[][4] = {{"0", "off", "no", "false"}, {"1", "on", "yes", "true"}};
  for (int value = 0; value < 2; value++) {
    for (int i = 0; i < 4; i++) {
      if (strcasecmp(text, words[value][i]) != 0) continue;
      *number = value;
      return true;
    }
  }
  return false;
}

static bool parse_word(const char *words, const char *text, int64_t *number) {
  int64_t index = 0;
  for (const char *word = words;; index++) {
    size_t len = strcspn(word, "|");
    if (strlen(text) == len && strncasecmp(word, text, len) == 0) {
      *number = index;
      return true;
    }
    if (word[len] == 0) return false;
    word += len + 1;
  }
}

/* What a value of this row may be, in words: "0..64", "inline|thread". */
static void allowed_text(const struct rail_param *row, char *text, size_t cap) {
  switch (row->type) {
    case RAIL_PARAM_INT:
    case RAIL_PARAM_BYTES:
    case RAIL_PARAM_MS: {
      const char *unit = row->type == RAIL_PARAM_MS ? " ms" : row->type == RAIL_PARAM_BYTES ? " bytes" : "";
      if (row->hi == INT64_MAX) snprintf(text, cap, ">= %" PRId64 "%s", row->lo, unit);
      else snprintf(text, cap, "%" PRId64 "..%" PRId64 "%s", row->lo, row->hi, unit);
      break;
    }
    case RAIL_PARAM_BOOL: snprintf(text, cap, "0 or 1"); break;
    case RAIL_PARAM_ENUM: snprintf(text, cap, "%s", row->words); break;
    case RAIL_PARAM_STRING: snprintf(text, cap, "text"); break;
  }
}

int rail_param_parse(const struct rail_param *row, const char *text, int64_t *number, char *why, size_t cap) {
  bool good = false;
  bool ranged = row->type == RAIL_PARAM_INT || row->type == RAIL_PARAM_BYTES || row->type == RAIL_PARAM_MS;
  int64_t value = 0;
  switch (row->type) {
    case RAIL_PARAM_INT:
      good = parse_scaled(text, no_suffix, RAIL_COUNT_OF(no_suffix), &value);
      break;
    case RAIL_PARAM_BYTES:
      good = parse_scaled(text, byte_suffixes, RAIL_COUNT_OF(byte_suffixes), &value);
      break;
    case RAIL_PARAM_MS:
      good = parse_scaled(text, time_suffixes, RAIL_COUNT_OF(time_suffixes), &value);
      break;
    case RAIL_PARAM_BOOL: good = parse_bool(text, &value); break;
    case RAIL_PARAM_ENUM: good = parse_word(row->words, text, &value); break;
    case RAIL_PARAM_STRING: return 0;
  }
  if (good && (!ranged || (value >= row->lo && value <= row->hi))) {
    *number = value;
    return 0;
  }
  char allowed[160];
  allowed_text(row, allowed, sizeof allowed);
  if (good) snprintf(why, cap, "is out of range; allowed: %s", allowed);
  else if (row->type == RAIL_PARAM_BYTES) snprintf(why, cap, "is not a size; allowed: %s, suffix K M G T", allowed);
  else if (row->type == RAIL_PARAM_MS) snprintf(why, cap, "is not a time; allowed: %s, suffix ms s m", allowed);
  else snprintf(why, cap, "is not understood; allowed: %s", allowed);
  return -1;
}

/* ---- loading ---------------------------------------------------------- */

/* What this process has said and handed out already. Plugins load parameters
 * at each init, so copies of strings are kept and found again instead of
 * leaking one per init, and each warning is given once. */
struct kept {
  struct kept *next;
  char text[];
};
static struct kept *kept_values, *warned_names;
static pthread_mutex_t kept_lock = PTHREAD_MUTEX_INITIALIZER;

/* The kept copy of text; *fresh says whether it is new. NULL: out of memory. */
static const char *keep(struct kept **list, const char *text, bool *fresh) {
  struct kept *found;
  pthread_mutex_lock(&kept_lock);
  for (found = *list; found && strcmp(found->text, text) != 0;) found = found->next;
  *fresh = !found;
  if (!found) {
    size_t size = strlen(text) + 1;
    found = malloc(sizeof *found + size);
    if (found) {
      memcpy(found->text, text, size);
      found->next = *list;
      *list = found;
    }
  }
  pthread_mutex_unlock(&kept_lock);
  return found ? found->text : NULL;
}

/* A plugin that is unloaded takes its copies with it. Late among the destructors: others may still read them. */
__attribute__((destructor(101))) static void forget_kept(void) {
  pthread_mutex_lock(&kept_lock);
  struct kept *lists[] = {kept_values, warned_names};
  kept_values = warned_names = NULL;
  pthread_mutex_unlock(&kept_lock);
  for (size_t i = 0; i < RAIL_COUNT_OF(lists); i++) {
    for (struct kept *k = lists[i], *next; k; k = next) {
      next = k->next;
      free(k);
    }
  }
}

static bool is_first_warning(const char *name) {
  bool fresh;
  (void)keep(&warned_names, name, &fresh);
  return fresh;
}

/* A default that its own row refuses would be a bug of the table; test_param
 * and each module's tests load with an empty environment to find it. */
static int64_t default_number(const struct rail_param *row) {
  int64_t number = 0;
  char why[256];
  if (row->def && rail_param_parse(row, row->def, &number, why, sizeof why) != 0)
    RAIL_WARN("%s: built-in default %s %s", row->name, row->def, why);
  return number;
}

static int64_t load_number(const struct rail_param *row) {
  const char *text = getenv(row->name);
  char why[256];
  int64_t number;
  if (!text || !*text) return default_number(row);
  if (rail_param_parse(row, text, &number, why, sizeof why) == 0) return number;
  if (is_first_warning(row->name))
    RAIL_WARN("%s=%s %s. The default, %s, is used", row->name, text, why, row->def ? row->def : "0");
  return default_number(row);
}

static const char *load_string(const struct rail_param *row) {
  const char *text = getenv(row->name);
  bool fresh;
  const char *copy = text ? keep(&kept_values, text, &fresh) : NULL;
  return copy ? copy : row->def;
}

void rail_param_load(const struct rail_param_table *table, void *out) {
  for (size_t i = 0; i < table->count; i++) {
    const struct rail_param *row = &table->rows[i];
    char *where = (char *)out + row->offset;
    if (row->type == RAIL_PARAM_STRING) {
      const char *value = load_string(row);
      memcpy(where, &value, sizeof value);
    } else {
      int64_t value = load_number(row);
      memcpy(where, &value, sizeof value);
    }
  }
}

/* ---- unknown names ---------------------------------------------------- */

#define NAME_MAX_COMPARED 64

/* Letters to insert, delete or change to make b of a. */
static size_t edit_distance(const char *a, const char *b) {
  size_t na = strlen(a), nb = strlen(b), row[NAME_MAX_COMPARED + 1];
  if (na > NAME_MAX_COMPARED || nb > NAME_MAX_COMPARED) return SIZE_MAX;
  for (size_t j = 0; j <= nb; j++) row[j] = j;
  for (size_t i = 1; i <= na; i++) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= nb; j++) {
      size_t change = diagonal + (a[i - 1] != b[j - 1]);
      diagonal = row[j];
      row[j] = RAIL_MIN(change, RAIL_MIN(row[j], row[j - 1]) + 1);
    }
  }
  return row[nb];
}

struct name_search {
  const char *name;   /* looked for */
  char nearest[256];  /* best so far */
  size_t distance;
  bool own;           /* a name under a prefix of the caller's */
};

static bool compare_name(struct name_search *s, const char *known) {
  size_t distance = edit_distance(s->name, known);
  if (distance < s->distance) {
    s->distance = distance;
    snprintf(s->nearest, sizeof s->nearest, "%s", known);
  }
  return strcmp(s->name, known) == 0;
}

/* RAIL_SOKET_STREAMS: the nearest may be one of another module's, RAIL_SOCKET_*, of which only the prefix is known. */
static void compare_prefix(struct name_search *s, const char *prefix, size_t len) {
  char word[64], known[64];
  const char *end = strchr(s->name + strlen("RAIL_"), '_');
  size_t have = end ? (size_t)(end + 1 - s->name) : 0;
  if (!end || have >= sizeof word || len >= sizeof known) return;
  snprintf(word, sizeof word, "%.*s", (int)have, s->name);
  snprintf(known, sizeof known, "%.*s", (int)len, prefix);
  size_t distance = edit_distance(word, known), letters = len - strlen("RAIL__");
  if (distance >= s->distance || distance > letters / 3) return;
  s->distance = distance;
  snprintf(s->nearest, sizeof s->nearest, "%s%s", known, s->name + have);
}

/* Does one of the tables name a variable under this prefix? Then its module
 * knows all of them, and the prefix excuses nothing. */
static bool owns_prefix(const struct rail_param_table *const *tables, size_t ntables, const char *prefix, size_t len) {
  for (size_t t = 0; t < ntables; t++)
    for (size_t i = 0; i < tables[t]->count; i++)
      if (strncmp(tables[t]->rows[i].name, prefix, len) == 0) return true;
  return false;
}

static bool is_known(const struct rail_param_table *const *tables, size_t ntables, struct name_search *s) {
  for (size_t t = 0; t < ntables; t++)
    for (size_t i = 0; i < tables[t]->count; i++)
      if (compare_name(s, tables[t]->rows[i].name)) return true;
  for (size_t i = 0; i < rail_param_names_count; i++) {
    const char *known = rail_param_names[i];
    size_t len = strlen(known) - 1;
    if (known[len] != '*') {
      if (compare_name(s, known)) return true;
      continue;
    }
    bool under = strncmp(s->name, known, len) == 0, own = under && owns_prefix(tables, ntables, known, len);
    if (under && !own) return true;
    s->own |= own;
    if (!under) compare_prefix(s, known, len);
  }
  return false;
}

/* ---- who warns --------------------------------------------------------- */

/* A process may have several modules of Railyard's, each with a copy of this code: the runtime, or railtrace, and a
 * plugin. Of a name that is under no module's prefix the one that was loaded first warns. */

struct libraries {
  uintptr_t ours;
  char path[8][256]; /* loaded before ours, and perhaps Railyard's, by their names */
  size_t count;
};

static int add_library(struct dl_phdr_info *info, size_t size, void *arg) {
  struct libraries *l = arg;
  const char *slash = strrchr(info->dlpi_name, '/'), *file = slash ? slash + 1 : info->dlpi_name;
  (void)size;
  if (info->dlpi_addr == l->ours) return 1;
  if (strncmp(file, "lib", 3) != 0 || !(strstr(file, "nccl") || strstr(file, "railyard"))) return 0;
  if (l->count < RAIL_COUNT_OF(l->path))
    snprintf(l->path[l->count++], sizeof l->path[0], "%s", info->dlpi_name);
  return 0;
}

static bool is_of_railyard(const char *path) {
  void *library = dlopen(path, RTLD_LAZY | RTLD_LOCAL | RTLD_NOLOAD);
  if (!library) return false;
  bool found = dlsym(library, "railPluginParams") || dlsym(library, "railCommWait");
  dlclose(library);
  return found;
}

static bool is_first_module(void) {
  static const char here; /* any address of ours */
  struct libraries l = {.ours = 0};
  Dl_info info;
  struct link_map *map = NULL;
  if (!dladdr1(&here, &info, (void **)&map, RTLD_DL_LINKMAP) || !map) return true;
  l.ours = map->l_addr;
  dl_iterate_phdr(add_library, &l);
  for (size_t i = 0; i < l.count; i++)
    if (is_of_railyard(l.path[i])) return false;
  return true;
}

void rail_param_check_unknown(const struct rail_param_table *const *tables, size_t ntables) {
  const bool first = is_first_module();
  for (char **env = environ; env && *env; env++) {
    if (strncmp(*env, "RAIL_", 5) != 0) continue;
    char name[256];
    size_t len = strcspn(*env, "=");
    if (len >= sizeof name) len = sizeof name - 1;
    memcpy(name, *env, len);
    name[len] = 0;
    struct name_search search = {.name = name, .distance = SIZE_MAX};
    if (is_known(tables, ntables, &search) || !(first || search.own) || !is_first_warning(name)) continue;
    if (search.distance <= strlen(name) / 3)
      RAIL_WARN("%s is no variable of Railyard and has no effect; did you mean %s?", name, search.nearest);
    else
      RAIL_WARN("%s is no variable of Railyard and has no effect", name);
  }
}

/* ---- printing --------------------------------------------------------- */

static const char *const type_words[] = {
  [RAIL_PARAM_INT] = "number", [RAIL_PARAM_BYTES] = "bytes",  [RAIL_PARAM_MS] = "time",
  [RAIL_PARAM_BOOL] = "bool",  [RAIL_PARAM_STRING] = "text", [RAIL_PARAM_ENUM] = "word",
};
_Static_assert(RAIL_COUNT_OF(type_words) == RAIL_PARAM_ENUM + 1, "a word for each type");

/* A '|' inside a Markdown cell would end it. */
static void print_cell(FILE *out, const char *text) {
  for (; *text; text++) {
    if (*text == '|') fputc('\\', out);
    fputc(*text, out);
  }
}

void rail_param_print(FILE *out, const struct rail_param_table *table, int markdown) {
  if (markdown) fprintf(out, "| name | type | default | allowed | meaning |\n|---|---|---|---|---|\n");
  for (size_t i = 0; i < table->count; i++) {
    const struct rail_param *row = &table->rows[i];
    char allowed[160];
    allowed_text(row, allowed, sizeof allowed);
    if (markdown) {
      fprintf(out, "| `%s` | %s | %s | ", row->name, type_words[row->type], row->def ? row->def : "unset");
      print_cell(out, allowed);
      fprintf(out, " | ");
      print_cell(out, row->doc);
      fprintf(out, " |\n");
    } else {
      fprintf(out, "%-36s %-7s %-16s %-28s %s\n", row->name, type_words[row->type], row->def ? row->def : "unset",
              allowed, row->doc);
    }
  }
}
