/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/rail-kit/places.h"

#include <string.h>

static struct kit_places *places_of(const struct tool_value *v) { return (void *)((char *)v->into + v->option->at); }

static bool take(char *to, size_t size, const char *from, size_t n) {
  if (n == 0 || n >= size) return false;
  memcpy(to, from, n);
  to[n] = 0;
  return true;
}

int rk_set_netns(const struct tool_value *v) {
  struct kit_place *at = places_of(v)->at;
  size_t n = strcspn(v->text, ","), room = sizeof at[0].netns;
  const char *second = v->text + n + (v->text[n] != 0);
  if (take(at[0].netns, room, v->text, n) && take(at[1].netns, room, second, strlen(second)) && !strpbrk(second, ",/"))
    return 0;
  return tool_bad(v, "two names with a comma");
}

int rk_set_side_env(const struct tool_value *v) {
  const char *text = v->text, *equals = strchr(text, '=');
  bool fine = (text[0] == '0' || text[0] == '1') && text[1] == ':' && equals && equals > text + 2;
  struct kit_place *place = &places_of(v)->at[fine ? text[0] - '0' : 0];
  if (!fine || place->nenv == KIT_PLACE_ENV)
    return tool_bad(v, "0:NAME=VALUE or 1:NAME=VALUE, %d of each", KIT_PLACE_ENV);
  place->env[place->nenv++] = text + 2;
  return 0;
}

bool rk_has_places(const struct kit_places *places) {
  return places->at[0].netns[0] || places->at[0].nenv > 0 || places->at[1].nenv > 0;
}
