/* SPDX-License-Identifier: Apache-2.0
 * The report for programs. */
#include <string.h>

#include "kit/inspect/inspect.h"
#include "kit/kit_json.h"

static void put_text(struct kit_json *j, const char *key, const struct kit_text *text) {
  kit_json_text(j, key, text->state == KIT_TEXT_FINE || text->state == KIT_TEXT_ENDLESS ? text->s : NULL);
}

static void put_file(struct kit_json *j, const struct kit_inspection *in) {
  const struct kit_elf *elf = &in->elf;
  kit_json_object(j, "file");
  kit_json_text(j, "path", in->path);
  kit_json_int(j, "bytes", (int64_t)in->bytes);
  kit_json_bool(j, "elf_read", elf->read);
  if (!elf->read) kit_json_text(j, "elf_error", elf->why);
  kit_json_int(j, "bits", elf->bits);
  kit_json_text(j, "machine", elf->machine);
  kit_json_text(j, "soname", elf->soname[0] ? elf->soname : NULL);
  kit_json_text(j, "rpath", elf->rpath[0] ? elf->rpath : NULL);
  kit_json_text(j, "runpath", elf->runpath[0] ? elf->runpath : NULL);
  kit_json_bool(j, "text_relocations", elf->text_relocations);
  kit_json_bool(j, "executable_stack", elf->executable_stack);
  kit_json_bool(j, "no_delete", elf->no_delete);
  kit_json_int(j, "constructors", elf->constructors);
  kit_json_array(j, "symbols");
  for (size_t i = 0; i < elf->nsymbols; i++) {
    const struct kit_elf_symbol *s = &elf->symbols[i];
    kit_json_object(j, NULL);
    kit_json_text(j, "name", s->name);
    kit_json_int(j, "bytes", (int64_t)s->size);
    kit_json_text(j, "kind", s->is_object ? "object" : s->is_function ? "function" : "other");
    kit_json_text(j, "section", s->section);
    kit_json_bool(j, "exported", s->in_dynsym && s->defined && !s->hidden);
    kit_json_end(j, '}');
  }
  kit_json_end(j, ']');
  kit_json_end(j, '}');
}

static void put_libraries(struct kit_json *j, const struct kit_deps *deps) {
  kit_json_array(j, "libraries");
  for (size_t i = 0; i < deps->n; i++) {
    const struct kit_dep *d = &deps->items[i];
    kit_json_object(j, NULL);
    kit_json_text(j, "name", d->name);
    kit_json_text(j, "path", d->path[0] ? d->path : NULL);
    kit_json_text(j, "needed_by", d->needed_by[0] ? d->needed_by : NULL);
    kit_json_end(j, '}');
  }
  kit_json_end(j, ']');
  kit_json_array(j, "undefined");
  for (size_t i = 0; i < deps->nundefined; i++) {
    kit_json_object(j, NULL);
    kit_json_text(j, "symbol", deps->undefined[i].symbol);
    kit_json_text(j, "in", deps->undefined[i].in);
    kit_json_end(j, '}');
  }
  kit_json_end(j, ']');
}

static void put_load(struct kit_json *j, const struct kit_inspection *in) {
  kit_json_object(j, "load");
  kit_json_bool(j, "loaded", in->load.loaded);
  kit_json_text(j, "error", in->load.error[0] ? in->load.error : NULL);
  kit_json_text(j, "end", in->load_end[0] ? in->load_end : NULL);
  kit_json_number(j, "seconds", in->load.seconds);
  kit_json_int(j, "threads", in->load.threads);
  kit_json_int(j, "files", in->load.fds);
  kit_json_end(j, '}');
}

static void put_slots(struct kit_json *j, int version, const struct kit_seen_table *t) {
  static const char *const states[] = {[KIT_SLOT_NULL] = "null", [KIT_SLOT_FINE] = "code",
                                       [KIT_SLOT_ELSEWHERE] = "code of another library", [KIT_SLOT_DATA] = "data",
                                       [KIT_SLOT_WILD] = "nothing"};
  kit_json_object(j, "slots");
  for (int i = 1; i < rail_net_slot_count(version) && t->readable; i++)
    kit_json_text(j, rail_net_slot_table[i].name, states[t->slots[i]]);
  kit_json_end(j, '}');
}

static void put_device(struct kit_json *j, int version, const struct kit_seen_props *seen) {
  const struct rail_net_props_v12 *p = &seen->value;
  kit_json_object(j, NULL);
  kit_json_int(j, "device", seen->dev);
  kit_json_int(j, "result", seen->result);
  put_text(j, "name", &seen->name);
  put_text(j, "pciPath", &seen->pci_path);
  kit_json_format(j, "guid", "0x%llx", (unsigned long long)p->guid);
  kit_json_int(j, "ptrSupport", p->ptr_support);
  kit_json_int(j, "speed", p->speed);
  kit_json_int(j, "port", p->port);
  kit_json_number(j, "latency", (double)p->latency);
  kit_json_int(j, "maxComms", p->max_comms);
  kit_json_int(j, "maxRecvs", p->max_recvs);
  if (version >= 7) kit_json_int(j, "netDeviceType", p->net_device_type);
  if (version >= 7) kit_json_int(j, "netDeviceVersion", p->net_device_version);
  if (version >= 8) kit_json_int(j, "regIsGlobal", p->reg_is_global);
  if (version >= 9) {
    kit_json_int(j, "forceFlush", p->force_flush);
    kit_json_array(j, "vProps");
    for (int i = 0; i < p->vprops.ndevs && i < (version >= 12 ? 8 : 4); i++) kit_json_int(j, NULL, p->vprops.devs[i]);
    kit_json_end(j, ']');
    kit_json_int(j, "maxP2pBytes", (int64_t)p->max_p2p_bytes);
    kit_json_int(j, "maxCollBytes", (int64_t)p->max_coll_bytes);
  }
  if (version >= 11) kit_json_int(j, "maxMultiRequestSize", p->max_multi_request_size);
  if (version >= 12) kit_json_int(j, "railId", p->rail_id);
  if (version >= 12) kit_json_int(j, "planeId", p->plane_id);
  kit_json_end(j, '}');
}

static void put_start(struct kit_json *j, const struct kit_seen_start *s) {
  kit_json_object(j, "start");
  kit_json_int(j, "init", s->init);
  kit_json_number(j, "init_seconds", s->init_s);
  if (s->devices_called) {
    kit_json_int(j, "devices", s->devices);
    kit_json_int(j, "ndev", s->ndev);
  }
  if (s->fuse_called) kit_json_int(j, "makeVDevice_without_pci", s->fuse);
  if (s->ended) {
    kit_json_int(j, "finalize", s->finalize);
    kit_json_int(j, "threads", s->threads);
    kit_json_int(j, "files", s->fds);
    kit_json_int(j, "threads_left", s->threads_left);
    kit_json_int(j, "files_left", s->fds_left);
  }
  kit_json_end(j, '}');
}

static void put_versions(struct kit_json *j, const struct kit_inspection *in) {
  kit_json_array(j, "versions");
  for (int version = RAIL_NET_VERSION_MAX; version >= RAIL_NET_VERSION_MIN; version--) {
    const struct kit_seen_version *v = &in->versions[version - RAIL_NET_VERSION_MIN];
    if (!(in->exported >> version & 1)) continue;
    kit_json_object(j, NULL);
    kit_json_int(j, "version", version);
    put_text(j, "name", &v->table.name);
    put_slots(j, version, &v->table);
    kit_json_text(j, "end", v->end[0] ? v->end : NULL);
    kit_json_text(j, "skipped", v->skipped[0] ? v->skipped : NULL);
    if (v->start.init_called) put_start(j, &v->start);
    kit_json_array(j, "devices");
    for (size_t i = 0; i < v->nprops; i++) put_device(j, version, &v->props[i]);
    kit_json_end(j, ']');
    kit_json_end(j, '}');
  }
  kit_json_end(j, ']');
}

static void put_releases(struct kit_json *j, const struct kit_inspection *in) {
  kit_json_array(j, "releases");
  for (size_t i = 0; i < kit_nreleases; i++) {
    static struct kit_way ways[KIT_MAX_WAYS];
    const char *quirks[KIT_MAX_QUIRKS];
    const struct kit_release *r = &kit_releases[i];
    int n = kit_ways(in, r, ways), nquirks = kit_quirks(in, r, quirks), picks = kit_release_picks(r, in->exported);
    kit_json_object(j, NULL);
    kit_json_text(j, "nccl", r->name);
    if (picks) kit_json_int(j, "takes", picks);
    else kit_json_text(j, "takes", NULL);
    kit_json_array(j, "NCCL_NET_PLUGIN");
    for (int k = 0; k < n; k++) {
      kit_json_object(j, NULL);
      kit_json_text(j, "value", ways[k].set ? ways[k].value : NULL);
      kit_json_bool(j, "needs_search_path", ways[k].reach == KIT_REACH_SEARCH);
      kit_json_end(j, '}');
    }
    kit_json_end(j, ']');
    kit_json_array(j, "quirks");
    for (int k = 0; k < nquirks; k++) kit_json_text(j, NULL, quirks[k]);
    kit_json_end(j, ']');
    kit_json_end(j, '}');
  }
  kit_json_end(j, ']');
}

static void put_findings(struct kit_json *j, const struct kit_findings *findings) {
  kit_json_array(j, "findings");
  for (size_t i = 0; i < findings->n; i++) {
    const struct kit_finding *found = &findings->items[i];
    kit_json_object(j, NULL);
    kit_json_text(j, "grade", kit_grade_name(found->grade));
    kit_json_text(j, "id", found->id);
    kit_json_array(j, "versions");
    for (int v = 1; v < 32; v++)
      if (found->versions >> v & 1) kit_json_int(j, NULL, v);
    kit_json_end(j, ']');
    kit_json_text(j, "what", found->what);
    kit_json_text(j, "why", found->why);
    kit_json_text(j, "source", found->source);
    kit_json_end(j, '}');
  }
  kit_json_end(j, ']');
}

bool kit_inspect_json(FILE *f, const struct kit_inspection *in) {
  struct kit_json j = kit_json_start(f);
  kit_json_object(&j, NULL);
  put_file(&j, in);
  put_libraries(&j, &in->deps);
  put_load(&j, in);
  put_versions(&j, in);
  put_releases(&j, in);
  kit_json_array(&j, "logged");
  for (size_t i = 0; i < in->nlogged; i++) kit_json_text(&j, NULL, in->logged[i]);
  kit_json_end(&j, ']');
  kit_json_array(&j, "said");
  for (size_t i = 0; i < in->nsaid; i++) kit_json_text(&j, NULL, in->said[i]);
  kit_json_end(&j, ']');
  put_findings(&j, &in->findings);
  kit_json_int(&j, "errors", (int64_t)kit_findings_count(&in->findings, KIT_ERROR));
  kit_json_int(&j, "warnings", (int64_t)kit_findings_count(&in->findings, KIT_WARNING));
  kit_json_end(&j, '}');
  return kit_json_finish(&j);
}
