/* SPDX-License-Identifier: Apache-2.0
 * Shared by kit/inspect, only. */
#ifndef RAIL_KIT_INSPECT_INSPECT_H
#define RAIL_KIT_INSPECT_INSPECT_H

#include <limits.h>
#include <stdio.h>

#include "kit/inspect/kit_inspect.h"
#include "loader/netload.h"
#include "loader/netload_slots.h"

#define KIT_VERSIONS (RAIL_NET_VERSION_MAX - RAIL_NET_VERSION_MIN + 1)
#define KIT_NAME_MAX 256
#define KIT_SAID_MAX 512 /* a line that the plugin logs */

/* ---- findings (findings.c) ---- */

enum kit_grade { KIT_NOTE, KIT_WARNING, KIT_ERROR };
const char *kit_grade_name(enum kit_grade grade);

struct kit_finding {
  enum kit_grade grade;
  const char *id;     /* for programs: "table.too_small" */
  uint32_t versions;  /* of the tables that it is about, as bits; 0: of none */
  char what[512];     /* what is the case */
  const char *why;    /* why it matters */
  const char *source; /* "NCCL src/plugin/net.cc" */
};

struct kit_findings {
  struct kit_finding *items;
  size_t n, cap;
};

/* `why` and `source` are kept as pointers. What is the case for several versions is one finding. version 0: none. */
void kit_find(struct kit_findings *f, int version, enum kit_grade grade, const char *id, const char *why,
              const char *source, const char *what, ...) __attribute__((format(printf, 7, 8)));
/* "v12: ", "v6-v8, v12: ", "" */
const char *kit_finding_versions(const struct kit_finding *finding, char *text, size_t size);
void kit_findings_sort(struct kit_findings *f); /* gravest first */
size_t kit_findings_count(const struct kit_findings *f, enum kit_grade grade);

/* Grows an array of *n items by one; ends the program when there is no memory. The new item is zeroed. */
void *kit_more(void *items, size_t *n, size_t *cap, size_t size);

/* ---- the file (elf.c) ---- */

struct kit_elf_symbol {
  char name[64];
  int version;        /* behind "_v"; 0: none */
  bool in_dynsym, in_symtab;
  bool defined, is_object, is_function;
  bool hidden;        /* by its visibility or binding */
  bool zeroed;        /* lies in memory that the file does not fill (.bss) */
  uint64_t size;
  char section[32];
};

struct kit_elf {
  bool read;        /* else `why` */
  char why[256];
  int bits;         /* 32 or 64 */
  bool machine_fits, shared;
  char machine[32];
  char soname[KIT_NAME_MAX], rpath[PATH_MAX], runpath[PATH_MAX];
  char (*needed)[KIT_NAME_MAX];
  size_t nneeded, cap_needed;
  bool text_relocations, executable_stack, no_delete, lazy_binding;
  int constructors;
  struct kit_elf_symbol *symbols; /* those that NCCL may look for */
  size_t nsymbols, cap_symbols;
};

/* Never fails: what could not be read is said in elf->why. */
void kit_elf_read(const char *path, struct kit_elf *elf);
void kit_elf_free(struct kit_elf *elf);
/* The table of a version; NULL: the file does not mention it. */
const struct kit_elf_symbol *kit_elf_table(const struct kit_elf *elf, const char *prefix, int version);

/* ---- dependencies (deps.c) ---- */

struct kit_dep {
  char name[KIT_NAME_MAX];
  char path[PATH_MAX];     /* "": not found */
  char needed_by[PATH_MAX]; /* the first that does */
};

struct kit_undefined {
  char symbol[KIT_NAME_MAX];
  char in[PATH_MAX];
};

struct kit_deps {
  bool asked;     /* the loader answered; else `why` */
  char why[256];
  char loader[PATH_MAX];
  struct kit_dep *items;
  size_t n, cap;
  struct kit_undefined *undefined;
  size_t nundefined, cap_undefined;
};

/* Asks the dynamic loader of this process, with a time limit. It loads nothing into this process. */
void kit_deps_resolve(const char *path, const struct kit_elf *elf, uint64_t limit_ms, struct kit_deps *deps);
void kit_deps_free(struct kit_deps *deps);

/* ---- NCCL's releases (check_file.c) ---- */

enum kit_file_rule {
  KIT_FILE_PREFIXED,        /* libnccl-net-VALUE.so and nothing else */
  KIT_FILE_BOTH,            /* VALUE, then libnccl-net-VALUE.so */
  KIT_FILE_LIB_OR_PREFIXED, /* VALUE if it is of the form lib*.so, else libnccl-net-VALUE.so */
  KIT_FILE_NAME_OR_BOTH,    /* VALUE, then libnccl-net-VALUE.so unless VALUE has a / or is lib*.so */
};

struct kit_release {
  const char *name;        /* "2.19", "2.28.7-2.28.9" */
  int newest, oldest;      /* tables it looks for */
  enum kit_file_rule rule;
  int buffer;              /* bytes that the name is written to: longer ones are cut, in a list ignored; 0: PATH_MAX */
  bool statics;            /* a beginning of STATIC_PLUGIN means the program itself */
  bool list;               /* NCCL_NET_PLUGIN is a list with commas */
  bool none;               /* "none" means no plugin */
  bool init_first;         /* init and devices are called before NCCL_NET is compared with the name */
  bool device_type;        /* netDeviceType is looked at */
  bool unloads;            /* the library is closed when the last communicator ends */
  bool forgets;            /* and its name with it: the next communicator looks for libnccl-net.so */
  bool finalize_failed;    /* finalize is called although init failed */
};

extern const struct kit_release kit_releases[];
extern const size_t kit_nreleases;

/* Which table the release takes, newest first; 0: none. `exported`: bit N: version N is exported. */
int kit_release_picks(const struct kit_release *r, uint32_t exported);

#define KIT_MAX_TRIES 2
#define KIT_STATIC "(the program itself)"
/* What the release passes to dlopen for one value of NCCL_NET_PLUGIN; NULL: it is not set. How many. */
int kit_release_tries(const struct kit_release *r, const char *value, char tries[KIT_MAX_TRIES][PATH_MAX]);

enum kit_reach { KIT_REACH_NO, KIT_REACH_SEARCH, KIT_REACH_YES };

/* ---- the plugin in a process (process.c, kit_inspect.c) ---- */

enum kit_slot_state { KIT_SLOT_NULL, KIT_SLOT_FINE, KIT_SLOT_ELSEWHERE, KIT_SLOT_DATA, KIT_SLOT_WILD };

/* What is said of a string that a plugin gave. */
enum kit_text_state { KIT_TEXT_FINE, KIT_TEXT_NULL, KIT_TEXT_WILD, KIT_TEXT_ENDLESS };
struct kit_text {
  enum kit_text_state state;
  char s[KIT_NAME_MAX]; /* ENDLESS: its beginning */
  size_t length;
};

struct kit_seen_load {
  bool done, loaded;
  char error[768]; /* dlerror's */
  double seconds;
  int threads, fds; /* more than before */
};

struct kit_seen_table {
  bool there, readable;
  struct kit_text name;
  uint8_t slots[RAIL_NET_SLOTS];          /* enum kit_slot_state */
  char object[RAIL_NET_SLOTS][64];        /* ELSEWHERE: the library it lies in */
};

struct kit_seen_start {
  bool init_called, devices_called, ended;
  bool filled;                             /* the table was not complete before init */
  int init, ndev, devices, finalize;       /* results of the calls; ndev */
  int ndev_again;
  int no_pci[2], fuse, ndev_fused; /* devices without a PCI path; makeVDevice's result for them; ndev after it */
  bool fuse_called;
  double init_s, devices_s, properties_s;
  int threads, fds;                        /* more than before init */
  int threads_left, fds_left;              /* more than before init, after finalize; v10-: threads after dlclose */
};

/* One device through one version: the structure after two calls on memory that was filled with two patterns. */
struct kit_seen_props {
  int dev, result, result_again;
  size_t size;
  struct rail_net_props_v12 value;         /* widened; strings only by the texts below */
  uint8_t unwritten[sizeof(struct rail_net_props_v12)]; /* by byte of that version's structure */
  struct kit_text name, pci_path;
  bool moved;                              /* the strings' addresses differ from call to call */
  uint8_t changed[sizeof(struct rail_net_props_v12)]; /* by byte of that structure: written, and differs by call */
  bool texts_changed;                      /* the strings do */
  bool overrun;                            /* it wrote behind that version's structure */
};

struct kit_seen_version {
  struct kit_seen_table table;
  struct kit_seen_start start;
  struct kit_seen_props *props;
  size_t nprops, cap_props;
  char end[1200]; /* how its process ended, when not well */
  char skipped[256]; /* why it was not started */
  char call[32];  /* in which call, "" */
};

/* The kinds of records that a process sends; each begins with its header. */
enum kit_record_kind { KIT_RECORD_LOAD = 1, KIT_RECORD_TABLE, KIT_RECORD_START, KIT_RECORD_PROPS, KIT_RECORD_SAID };
struct kit_record {
  uint32_t kind;
  int32_t version;
};

/* ---- all of it ---- */

struct kit_inspection {
  const struct kit_inspect_options *how;
  char path[PATH_MAX]; /* absolute, but with the name that was given: NCCL goes by a link's name */
  char real[PATH_MAX];
  uint64_t bytes;
  struct kit_elf elf;
  struct kit_deps deps;
  struct kit_seen_load load;
  char load_end[1200];
  struct kit_seen_version versions[KIT_VERSIONS];
  char (*logged)[512]; /* warnings of the plugin, each once */
  size_t nlogged, cap_logged;
  int said_version;  /* the newest that logs anything at INFO; 0: none */
  char (*said)[KIT_SAID_MAX]; /* what it logs so, line by line */
  size_t nsaid, cap_said;
  uint32_t exported; /* bit N; what dlsym finds, or without a process what the file says */
  struct kit_findings findings;
};

static inline struct kit_seen_version *kit_seen(struct kit_inspection *in, int version) {
  return &in->versions[version - RAIL_NET_VERSION_MIN];
}

/* check_file.c, check_tables.c, check_props.c */
void kit_verify_file(struct kit_inspection *in);
void kit_verify_tables(struct kit_inspection *in);
void kit_verify_start(struct kit_inspection *in);
void kit_verify_props(struct kit_inspection *in);
void kit_verify_releases(struct kit_inspection *in);

/* One value of NCCL_NET_PLUGIN by which a release finds the file (check_file.c). */
#define KIT_MAX_WAYS 4
struct kit_way {
  bool set;             /* false: the variable is not set */
  char value[PATH_MAX];
  enum kit_reach reach;
};
int kit_ways(const struct kit_inspection *in, const struct kit_release *r, struct kit_way ways[KIT_MAX_WAYS]);
/* Is the file's directory in LD_LIBRARY_PATH? */
bool kit_searched(const struct kit_inspection *in);
/* What that release does that concerns the table it takes. */
#define KIT_MAX_QUIRKS 8
int kit_quirks(const struct kit_inspection *in, const struct kit_release *r, const char *quirks[KIT_MAX_QUIRKS]);

void kit_inspect_text(FILE *f, const struct kit_inspection *in);
bool kit_inspect_json(FILE *f, const struct kit_inspection *in); /* false: the stream did not take all */

#endif
