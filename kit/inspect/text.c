/* SPDX-License-Identifier: Apache-2.0
 * The report for people. */
#include <string.h>
#include <unistd.h>

#include "common/base/result.h"
#include "kit/inspect/inspect.h"

#define WIDTH 110

/* Words of `text` from column `indent` on, broken before WIDTH. */
static void wrap(FILE *f, int indent, const char *text) {
  int column = indent;
  fprintf(f, "%*s", indent, "");
  while (*text) {
    int len = (int)strcspn(text, " ");
    if (column > indent && column + 1 + len > WIDTH) {
      fprintf(f, "\n%*s", indent, "");
      column = indent;
    }
    column += fprintf(f, "%s%.*s", column > indent ? " " : "", len, text);
    text += len;
    text += strspn(text, " ");
  }
  fputc('\n', f);
}

/* ---- the file ---- */

static void print_file(FILE *f, const struct kit_inspection *in) {
  const struct kit_elf *elf = &in->elf;
  fprintf(f, "%s\n  %llu bytes", in->path, (unsigned long long)in->bytes);
  if (elf->read) {
    fprintf(f, ", %d bits, %s, soname %s, %d constructor%s", elf->bits, elf->machine,
            elf->soname[0] ? elf->soname : "(none)", elf->constructors, elf->constructors == 1 ? "" : "s");
    if (elf->rpath[0]) fprintf(f, ", RPATH %s", elf->rpath);
    if (elf->runpath[0]) fprintf(f, ", RUNPATH %s", elf->runpath);
  }
  fprintf(f, "\n");
  for (size_t i = 0; i < in->deps.n; i++) {
    const struct kit_dep *d = &in->deps.items[i];
    fprintf(f, "  needs %s: %s\n", d->name, d->path[0] ? d->path : "NOT FOUND");
  }
  if (in->load.loaded)
    fprintf(f, "  loaded in %.1f ms, which left %d threads and %d files\n", in->load.seconds * 1e3, in->load.threads,
            in->load.fds);
}

/* ---- tables ---- */

static void print_slots(FILE *f, int version, const struct kit_seen_table *t) {
  int n = rail_net_slot_count(version), null = 0;
  for (int i = 0; i < n; i++) null += t->slots[i] == KIT_SLOT_NULL;
  fprintf(f, "%d of %d slots", n - null, n);
  for (int i = 0, some = 0; i < n; i++)
    if (t->slots[i] == KIT_SLOT_NULL) fprintf(f, "%s%s", some++ ? ", " : "; NULL: ", rail_net_slot_table[i].name);
}

static void print_tables(FILE *f, const struct kit_inspection *in) {
  fprintf(f, "\ntables\n");
  for (int v = RAIL_NET_VERSION_MAX; v >= RAIL_NET_VERSION_MIN; v--) {
    const struct kit_seen_table *t = &in->versions[v - RAIL_NET_VERSION_MIN].table;
    const struct kit_elf_symbol *s = kit_elf_table(&in->elf, "ncclNetPlugin", v);
    if (!t->there && !s) {
      fprintf(f, "  v%-3d -\n", v);
      continue;
    }
    fprintf(f, "  v%-3d ", v);
    if (s) fprintf(f, "%llu bytes, ", (unsigned long long)s->size);
    if (!t->there)
      fprintf(f, "not taken: %s", in->load.loaded ? "dlsym does not find it" : "the library is not loaded");
    else if (!t->readable) fprintf(f, "not readable");
    else {
      fprintf(f, "%-14s ", t->name.state == KIT_TEXT_FINE ? t->name.s : "(no name)");
      print_slots(f, v, t);
    }
    fputc('\n', f);
  }
}

/* ---- releases ---- */

static const char *way_text(const struct kit_way *way, bool searched, char *text, size_t size) {
  const char *search = way->reach == KIT_REACH_SEARCH && !searched ? " *" : "";
  snprintf(text, size, "%.500s%s", way->set ? strchr(way->value, '/') ? "the path" : way->value : "(unset)", search);
  return text;
}

static void print_releases(FILE *f, const struct kit_inspection *in) {
  bool searched = kit_searched(in), star = false;
  fprintf(f, "\nreleases\n  %-15s %-7s %s\n", "NCCL", "takes", "NCCL_NET_PLUGIN");
  for (size_t i = 0; i < kit_nreleases; i++) {
    static struct kit_way ways[KIT_MAX_WAYS];
    const struct kit_release *r = &kit_releases[i];
    int picks = kit_release_picks(r, in->exported), n = kit_ways(in, r, ways);
    char takes[16] = "nothing", text[512];
    if (picks) snprintf(takes, sizeof takes, "v%d", picks);
    fprintf(f, "  %-15s %-7s ", r->name, takes);
    for (int k = 0; k < n; k++) {
      fprintf(f, "%s%s", k ? ", " : "", way_text(&ways[k], searched, text, sizeof text));
      star |= ways[k].reach == KIT_REACH_SEARCH && !searched;
    }
    fprintf(f, "%s\n", n ? "" : "no value leads to it");
  }
  if (star) fprintf(f, "  * once its directory is in LD_LIBRARY_PATH or known to ldconfig\n");
  const struct kit_seen_table *t = NULL;
  for (int v = 0; v < KIT_VERSIONS; v++)
    if (in->versions[v].table.there) t = &in->versions[v].table;
  if (t && t->name.state == KIT_TEXT_FINE && t->name.length)
    fprintf(f, "  NCCL_NET=%s insists on it (in any case of letters)\n", t->name.s);
}

static bool has_quirk(const struct kit_inspection *in, size_t release, const char *quirk) {
  const char *quirks[KIT_MAX_QUIRKS];
  int n = kit_quirks(in, &kit_releases[release], quirks);
  for (int i = 0; i < n; i++)
    if (quirks[i] == quirk) return true;
  return false;
}

/* "2.13 to 2.23: ..." for each stretch of releases. */
static void print_quirk(FILE *f, const struct kit_inspection *in, const char *quirk) {
  for (size_t i = 0; i < kit_nreleases; i++) {
    size_t last = i;
    if (!has_quirk(in, i, quirk)) continue;
    while (last + 1 < kit_nreleases && has_quirk(in, last + 1, quirk)) last++;
    char span[64];
    snprintf(span, sizeof span, "%.24s%s%.24s", kit_releases[i].name, last > i ? " to " : "",
             last > i ? kit_releases[last].name : "");
    fprintf(f, "  %-24s %s\n", span, quirk);
    i = last;
  }
}

static void print_quirks(FILE *f, const struct kit_inspection *in) {
  const char *quirks[KIT_MAX_QUIRKS];
  bool any = false;
  for (size_t i = 0; i < kit_nreleases; i++) {
    int n = kit_quirks(in, &kit_releases[i], quirks);
    if (n > 0 && !any) fprintf(f, "\nwhat NCCL does with it\n");
    any |= n > 0;
    for (int k = 0; k < n; k++) {
      bool told = false;
      for (size_t before = 0; before < i; before++) told |= has_quirk(in, before, quirks[k]);
      if (!told) print_quirk(f, in, quirks[k]);
    }
  }
}

/* ---- devices ---- */

static void print_start(FILE *f, int version, const struct kit_seen_version *v) {
  const struct kit_seen_start *s = &v->start;
  if (v->end[0]) fprintf(f, "  v%-3d its process %s\n", version, v->end);
  if (v->skipped[0]) fprintf(f, "  v%-3d not started: %s\n", version, v->skipped);
  if (!s->init_called) return;
  fprintf(f, "  v%-3d init %s in %.1f ms", version, rail_result_name(s->init), s->init_s * 1e3);
  if (s->devices_called) fprintf(f, ", devices %s: %d", rail_result_name(s->devices), s->ndev);
  if (s->ended)
    fprintf(f, "; %d threads and %d files are its, %d and %d at the end", s->threads, s->fds, s->threads_left,
            s->fds_left);
  fputc('\n', f);
}

static void print_ids(FILE *f, const struct rail_net_props_v12 *p) {
  if (p->rail_id != RAIL_NET_ID_UNDEF) fprintf(f, ", rail %d", p->rail_id);
  if (p->plane_id != RAIL_NET_ID_UNDEF) fprintf(f, ", plane %d", p->plane_id);
}

static void print_device(FILE *f, int version, const struct kit_seen_props *seen) {
  const struct rail_net_props_v12 *p = &seen->value;
  if (!seen->size) {
    fprintf(f, "  %3d getProperties failed\n", seen->dev);
    return;
  }
  fprintf(f, "  %3d %s: %d Mb/s, %g us, port %d, guid 0x%llx, maxComms %d, maxRecvs %d, pointers%s%s%s", seen->dev,
          seen->name.state == KIT_TEXT_FINE ? seen->name.s : "(no name)", p->speed, (double)p->latency, p->port,
          (unsigned long long)p->guid, p->max_comms, p->max_recvs, p->ptr_support & RAIL_PTR_HOST ? " host" : "",
          p->ptr_support & RAIL_PTR_CUDA ? " CUDA" : "", p->ptr_support & RAIL_PTR_DMABUF ? " DMA-BUF" : "");
  if (version >= 9) fprintf(f, ", maxP2pBytes %zu", p->max_p2p_bytes);
  if (version >= 12) print_ids(f, p);
  fprintf(f, "\n      %s\n", seen->pci_path.state == KIT_TEXT_FINE ? seen->pci_path.s : "no pciPath");
}

static void print_devices(FILE *f, const struct kit_inspection *in) {
  const struct kit_seen_version *newest = NULL;
  int version = 0;
  fprintf(f, "\nstart\n");
  for (int v = RAIL_NET_VERSION_MAX; v >= RAIL_NET_VERSION_MIN; v--) {
    const struct kit_seen_version *seen = &in->versions[v - RAIL_NET_VERSION_MIN];
    print_start(f, v, seen);
    if (newest || seen->nprops == 0) continue;
    newest = seen;
    version = v;
  }
  if (!in->load.loaded) fprintf(f, "  not loaded: %s\n", in->load_end[0] ? in->load_end : in->load.error);
  for (size_t i = 0; i < in->nlogged; i++) fprintf(f, "  it logged: %s\n", in->logged[i]);
  if (in->nsaid) fprintf(f, "\nwhat it logs then (NCCL_DEBUG=INFO), as v%d\n", in->said_version);
  for (size_t i = 0; i < in->nsaid; i++) fprintf(f, "  %s\n", in->said[i]);
  if (!newest) return;
  fprintf(f, "\ndevices, as v%d tells them\n", version);
  for (size_t i = 0; i < newest->nprops; i++) print_device(f, version, &newest->props[i]);
}

/* ---- findings ---- */

static void print_findings(FILE *f, const struct kit_findings *findings) {
  static const char *const colors[] = {[KIT_NOTE] = "", [KIT_WARNING] = "\033[33m", [KIT_ERROR] = "\033[31m"};
  bool color = isatty(fileno(f));
  fprintf(f, "\nfindings\n");
  for (size_t i = 0; i < findings->n; i++) {
    const struct kit_finding *found = &findings->items[i];
    char why[1024], versions[64];
    fprintf(f, "  %s%s%s: %s%s [%s]\n", color ? colors[found->grade] : "", kit_grade_name(found->grade),
            color && found->grade != KIT_NOTE ? "\033[0m" : "", kit_finding_versions(found, versions, sizeof versions),
            found->what, found->id);
    snprintf(why, sizeof why, "%s (%s)", found->why, found->source);
    /* the reason once, if the next finding has the same */
    if (i + 1 == findings->n || strcmp(findings->items[i + 1].why, found->why) != 0) wrap(f, 6, why);
  }
  size_t n[] = {kit_findings_count(findings, KIT_NOTE), kit_findings_count(findings, KIT_WARNING),
                kit_findings_count(findings, KIT_ERROR)};
  if (findings->n == 0) fprintf(f, "  none\n");
  fprintf(f, "\n%zu error%s, %zu warning%s, %zu note%s\n", n[KIT_ERROR], n[KIT_ERROR] == 1 ? "" : "s", n[KIT_WARNING],
          n[KIT_WARNING] == 1 ? "" : "s", n[KIT_NOTE], n[KIT_NOTE] == 1 ? "" : "s");
}

void kit_inspect_text(FILE *f, const struct kit_inspection *in) {
  print_file(f, in);
  print_tables(f, in);
  print_releases(f, in);
  print_quirks(f, in);
  print_devices(f, in);
  print_findings(f, &in->findings);
}
