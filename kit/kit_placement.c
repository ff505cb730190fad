/* SPDX-License-Identifier: Apache-2.0 */
#include "kit/kit_placement.h"

#include <stdio.h>
#include <string.h>

#include "kit/kit_report.h"

void kit_placement_apply(const struct kit_placement *placement, int rank, struct kit_process_setup *setup) {
  const struct kit_location *place = &placement->at[rank % 2];
  if (place->netns[0]) setup->netns = place->netns;
  setup->place_env = place->env;
}

void kit_placement_append(const struct kit_placement *placement, char *text, size_t size) {
  size_t at = strlen(text);
  if (placement->at[0].netns[0])
    snprintf(text + at, size - at, " --netns %s,%s", placement->at[0].netns, placement->at[1].netns);
  for (int i = 0; i < 2; i++)
    for (const char *const *e = placement->at[i].env; *e; e++) {
      char word[512];
      snprintf(word, sizeof word, "%d:%s", i, *e);
      at = strlen(text);
      snprintf(text + at, size - at, " --side-env ");
      kit_append_quoted(text, size, word);
    }
}
